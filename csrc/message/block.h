/* SPDX-License-Identifier: Apache-2.0
 *
 * block: what several bytes of text are, asked at once: 16 with SSE2, 8 in a word elsewhere.
 *
 * An answer is a mask with BLOCK_BITS bits for each byte, the first byte lowest, of which the highest tells.
 * No byte's answer depends on its neighbours, so a mask may be shifted to look at the end of a
 * block alone; that is how the last bytes of a text are read without reading past them.
 * VIBEMQ_NO_SIMD chooses the words where there is SSE2 too, so that they can be tested there.
 */
#ifndef VIBEMQ_MESSAGE_BLOCK_H
#define VIBEMQ_MESSAGE_BLOCK_H

#include <stdint.h>
#include <string.h>

#if defined(__SSE2__) && !defined(VIBEMQ_NO_SIMD)
#include <emmintrin.h>

#define BLOCK_BYTES 16
#define BLOCK_BITS 1
typedef uint32_t block_mask;

static inline __m128i block_load(const uint8_t *p)
{
    __m128i block;
    memcpy(&block, p, sizeof block);
    return block;
}

/* Bytes that are not ASCII. */
static inline block_mask block_high(const uint8_t *p) { return (uint32_t)_mm_movemask_epi8(block_load(p)); }

/* Bytes that a JSON string cannot just hold: quote, backslash, control characters, and what is not ASCII. */
static inline block_mask block_stops(const uint8_t *p)
{
    __m128i block = block_load(p);
    /* As signed numbers, bytes from 0x80 are below 0x20 too. */
    __m128i low = _mm_cmplt_epi8(block, _mm_set1_epi8(0x20));
    __m128i quote = _mm_cmpeq_epi8(block, _mm_set1_epi8('"'));
    __m128i backslash = _mm_cmpeq_epi8(block, _mm_set1_epi8('\\'));
    return (uint32_t)_mm_movemask_epi8(_mm_or_si128(low, _mm_or_si128(quote, backslash)));
}

/* Bytes that are not JSON's white space. */
static inline block_mask block_solid(const uint8_t *p)
{
    __m128i block = block_load(p);
    __m128i space = _mm_cmpeq_epi8(block, _mm_set1_epi8(' ')), tab = _mm_cmpeq_epi8(block, _mm_set1_epi8('\t'));
    __m128i line = _mm_cmpeq_epi8(block, _mm_set1_epi8('\n')), ret = _mm_cmpeq_epi8(block, _mm_set1_epi8('\r'));
    __m128i any = _mm_or_si128(_mm_or_si128(space, tab), _mm_or_si128(line, ret));
    return (uint32_t)_mm_movemask_epi8(any) ^ 0xFFFFu;
}
#else
#define BLOCK_BYTES 8
#define BLOCK_BITS 8
typedef uint64_t block_mask;

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the first byte of a block is the lowest of its word");

#define BLOCK_EACH(byte) (UINT64_C(0x0101010101010101) * (byte))

static inline uint64_t block_load(const uint8_t *p)
{
    uint64_t block;
    memcpy(&block, p, sizeof block);
    return block;
}

/* Bytes that are `byte`; sums stay inside their bytes, so there is no carry to mislead. */
static inline uint64_t block_equal(uint64_t block, uint8_t byte)
{
    uint64_t other = block ^ BLOCK_EACH(byte);
    return ~(((other & BLOCK_EACH(0x7F)) + BLOCK_EACH(0x7F)) | other) & BLOCK_EACH(0x80);
}

static inline block_mask block_high(const uint8_t *p) { return block_load(p) & BLOCK_EACH(0x80); }

static inline block_mask block_stops(const uint8_t *p)
{
    uint64_t block = block_load(p);
    uint64_t low = ~((block & BLOCK_EACH(0x7F)) + BLOCK_EACH(0x80 - 0x20)) & BLOCK_EACH(0x80);
    return low | (block & BLOCK_EACH(0x80)) | block_equal(block, '"') | block_equal(block, '\\');
}

static inline block_mask block_solid(const uint8_t *p)
{
    uint64_t block = block_load(p);
    uint64_t blank = block_equal(block, ' ') | block_equal(block, '\t');
    uint64_t line = block_equal(block, '\n') | block_equal(block, '\r');
    return (blank | line) ^ BLOCK_EACH(0x80);
}
#endif

/* The index of the first byte of a mask that is not 0. */
static inline unsigned block_first(block_mask mask) { return (unsigned)__builtin_ctzll(mask) / BLOCK_BITS; }

#endif
