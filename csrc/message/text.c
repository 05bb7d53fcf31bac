/* SPDX-License-Identifier: Apache-2.0
 *
 * text: blocks of bytes at once where nothing stands out, and single characters where something does.
 *
 * JSON is checked in one pass, driven by a table: what is expected next, against the class of the byte that is there.
 * What nests is remembered as one bit for each level, so there is no recursion and a document's depth
 * costs no stack.  Strings are stepped through by blocks, as most bytes of most documents
 * are in them.  A function that finds something wrong leaves `at` on the byte that is wrong, or at the
 * end when bytes are only missing; that alone decides between corrupt and truncated.
 */
#include "text.h"

#include <string.h>

#include "../base/check.h"

#define INLINE static inline __attribute__((always_inline))

/* ---- blocks: 16 bytes with SSE2, 8 in a word elsewhere ----
 *
 * An answer is a mask with BLOCK_BITS bits for each byte, the first byte lowest, of which the highest tells.
 * No byte's answer depends on its neighbours, so a mask may be shifted to look at the end of a
 * block alone; that is how the last bytes of a text are read without reading past them.
 * VIBEMQ_NO_SIMD chooses the words where there is SSE2 too, so that they can be tested there. */

#if defined(__SSE2__) && !defined(VIBEMQ_NO_SIMD)
#include <emmintrin.h>

#define BLOCK_BYTES 16
#define BLOCK_BITS 1
typedef uint32_t block_mask;

INLINE __m128i block_load(const uint8_t *p)
{
    __m128i block;
    memcpy(&block, p, sizeof block);
    return block;
}

/* Bytes that are not ASCII. */
INLINE block_mask block_high(const uint8_t *p) { return (uint32_t)_mm_movemask_epi8(block_load(p)); }

/* Bytes that a JSON string cannot just hold: quote, backslash, control characters, and what is not ASCII. */
INLINE block_mask block_stops(const uint8_t *p)
{
    __m128i block = block_load(p);
    /* As signed numbers, bytes from 0x80 are below 0x20 too. */
    __m128i low = _mm_cmplt_epi8(block, _mm_set1_epi8(0x20));
    __m128i quote = _mm_cmpeq_epi8(block, _mm_set1_epi8('"'));
    __m128i backslash = _mm_cmpeq_epi8(block, _mm_set1_epi8('\\'));
    return (uint32_t)_mm_movemask_epi8(_mm_or_si128(low, _mm_or_si128(quote, backslash)));
}

/* Bytes that are not JSON's white space. */
INLINE block_mask block_solid(const uint8_t *p)
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

INLINE uint64_t block_load(const uint8_t *p)
{
    uint64_t block;
    memcpy(&block, p, sizeof block);
    return block;
}

/* Bytes that are `byte`; sums stay inside their bytes, so there is no carry to mislead. */
INLINE uint64_t block_equal(uint64_t block, uint8_t byte)
{
    uint64_t other = block ^ BLOCK_EACH(byte);
    return ~(((other & BLOCK_EACH(0x7F)) + BLOCK_EACH(0x7F)) | other) & BLOCK_EACH(0x80);
}

INLINE block_mask block_high(const uint8_t *p) { return block_load(p) & BLOCK_EACH(0x80); }

INLINE block_mask block_stops(const uint8_t *p)
{
    uint64_t block = block_load(p);
    uint64_t low = ~((block & BLOCK_EACH(0x7F)) + BLOCK_EACH(0x80 - 0x20)) & BLOCK_EACH(0x80);
    return low | (block & BLOCK_EACH(0x80)) | block_equal(block, '"') | block_equal(block, '\\');
}

INLINE block_mask block_solid(const uint8_t *p)
{
    uint64_t block = block_load(p);
    uint64_t blank = block_equal(block, ' ') | block_equal(block, '\t');
    uint64_t line = block_equal(block, '\n') | block_equal(block, '\r');
    return (blank | line) ^ BLOCK_EACH(0x80);
}
#endif

/* The index of the first byte of a mask that is not 0. */
INLINE unsigned block_first(block_mask mask) { return (unsigned)__builtin_ctzll(mask) / BLOCK_BITS; }

/* ---- UTF-8 ---- */

#define HIGH_BITS UINT64_C(0x8080808080808080)

/* Fewer bytes than 16: two loads that may overlap see all of them. */
static bool is_ascii_short(const uint8_t *p, size_t n)
{
    uint64_t first = 0, last = 0;
    if (n >= 8) {
        memcpy(&first, p, 8);
        memcpy(&last, p + n - 8, 8);
    } else if (n >= 4) {
        memcpy(&first, p, 4);
        memcpy(&last, p + n - 4, 4);
    } else if (n) {
        first = p[0] | p[n / 2];
        last = p[n - 1];
    }
    return ((first | last) & HIGH_BITS) == 0;
}

bool utf8_is_valid(const uint8_t *p, size_t n)
{
    if (n < 16 && is_ascii_short(p, n)) return true; /* before anything is added to `p`, which may be NULL with n = 0 */
    const uint8_t *end = p + n;
    if (n >= 16) {
        while ((size_t)(end - p) >= BLOCK_BYTES && !block_high(p)) p += BLOCK_BYTES;
        /* The last block again from where it ends; before `p` all is ASCII. */
        if ((size_t)(end - p) < BLOCK_BYTES && !block_high(end - BLOCK_BYTES)) return true;
    }
    while (p < end) {
        if ((size_t)(end - p) >= BLOCK_BYTES) {
            block_mask high = block_high(p);
            p += high ? block_first(high) : BLOCK_BYTES;
            if (!high) continue;
        }
        do {
            if (!utf8_step(&p, end)) return false;
        } while (p < end && *p >= 0x80);
    }
    return true;
}

/* ---- JSON ---- */

/* Invariant: begin <= at <= end. */
struct scan {
    const uint8_t *at, *end, *begin;
    bool has_escapes;
};

/* `data` may be NULL when there are no bytes. */
INLINE struct scan scan_of(const uint8_t *data, uint64_t size)
{
    return (struct scan){.at = data, .end = size ? data + size : data, .begin = data};
}

/* The next byte that a string cannot just hold, or the end. */
INLINE const uint8_t *plain_end(const uint8_t *p, const struct scan *s)
{
    while ((size_t)(s->end - p) >= BLOCK_BYTES) {
        block_mask stops = block_stops(p);
        if (stops) return p + block_first(stops);
        p += BLOCK_BYTES;
    }
    if (s->end - s->begin >= BLOCK_BYTES) {
        /* Fewer bytes than a block: the document's last block, without those before `p`. */
        size_t before = BLOCK_BYTES - (size_t)(s->end - p);
        if (before == BLOCK_BYTES) return p;
        block_mask stops = block_stops(s->end - BLOCK_BYTES) >> (before * BLOCK_BITS);
        return stops ? p + block_first(stops) : s->end;
    }
    while (p < s->end && *p >= 0x20 && *p < 0x80 && *p != '"' && *p != '\\') p++;
    return p;
}

static bool is_digit(uint8_t c) { return (uint8_t)(c - '0') < 10; }
static bool is_hex(uint8_t c) { return is_digit(c) || (uint8_t)((c | 0x20) - 'a') < 6; }

/* After a backslash. */
static bool escape_skip(struct scan *s)
{
    static const char simple[] = "\"\\/bfnrt";
    if (s->at == s->end) return false;
    if (*s->at != 'u') return *s->at && strchr(simple, *s->at) && s->at++;
    s->at++;
    for (int i = 0; i < 4; i++, s->at++)
        if (s->at == s->end || !is_hex(*s->at)) return false;
    return true;
}

/* After the opening quote, over the closing one. */
INLINE bool string_skip(struct scan *s)
{
    for (;;) {
        s->at = plain_end(s->at, s);
        if (s->at == s->end) return false;
        uint8_t stop = *s->at;
        if (stop == '"') break;
        if (stop == '\\') {
            s->has_escapes = true;
            s->at++;
            if (!escape_skip(s)) return false;
        } else if (stop >= 0x80) {
            do {
                if (!utf8_step(&s->at, s->end)) return false;
            } while (s->at < s->end && *s->at >= 0x80);
        } else return false;
    }
    s->at++;
    return true;
}

/* At least one digit. */
INLINE bool digits_skip(struct scan *s)
{
    const uint8_t *p = s->at;
    while (p < s->end && is_digit(*p)) p++;
    bool some = p != s->at;
    s->at = p;
    return some;
}

INLINE bool number_skip(struct scan *s)
{
    if (*s->at == '-') s->at++;
    if (s->at < s->end && *s->at == '0') s->at++; /* and a digit after it is no part of the number */
    else if (!digits_skip(s)) return false;
    if (s->at < s->end && *s->at == '.') {
        s->at++;
        if (!digits_skip(s)) return false;
    }
    if (s->at < s->end && (*s->at | 0x20) == 'e') {
        s->at++;
        if (s->at < s->end && (*s->at == '+' || *s->at == '-')) s->at++;
        if (!digits_skip(s)) return false;
    }
    return true;
}

/* true, false or null, told apart by the first byte. */
INLINE bool literal_skip(struct scan *s)
{
    const char *word = *s->at == 't' ? "true" : *s->at == 'f' ? "false" : "null";
    for (; *word; word++, s->at++)
        if (s->at == s->end || *s->at != (uint8_t)*word) return false;
    return true;
}

INLINE void space_skip(struct scan *s)
{
    const uint8_t *p = s->at + 1; /* the caller has seen the first */
    while ((size_t)(s->end - p) >= BLOCK_BYTES) {
        block_mask solid = block_solid(p);
        if (solid) {
            s->at = p + block_first(solid);
            return;
        }
        p += BLOCK_BYTES;
    }
    while (p < s->end && (*p == ' ' || *p == '\n' || *p == '\r' || *p == '\t')) p++;
    s->at = p;
}

/* ---- the table ---- */

enum class {
    CLASS_NONE, CLASS_SPACE, CLASS_QUOTE, CLASS_NUMBER, CLASS_LETTER, CLASS_COLON, CLASS_COMMA, CLASS_OBJECT,
    CLASS_OBJECT_END, CLASS_ARRAY, CLASS_ARRAY_END, CLASS_COUNT
};

static const uint8_t class_of[256] = {
    [' '] = CLASS_SPACE, ['\n'] = CLASS_SPACE, ['\r'] = CLASS_SPACE, ['\t'] = CLASS_SPACE, ['"'] = CLASS_QUOTE,
    ['-'] = CLASS_NUMBER, ['0' ... '9'] = CLASS_NUMBER, ['t'] = CLASS_LETTER, ['f'] = CLASS_LETTER,
    ['n'] = CLASS_LETTER, [':'] = CLASS_COLON, [','] = CLASS_COMMA, ['{'] = CLASS_OBJECT, ['}'] = CLASS_OBJECT_END,
    ['['] = CLASS_ARRAY, [']'] = CLASS_ARRAY_END,
};

enum expected {
    EXPECT_VALUE, EXPECT_FIRST_VALUE, EXPECT_KEY, EXPECT_FIRST_KEY, EXPECT_COLON, EXPECT_MORE_OF_OBJECT,
    EXPECT_MORE_OF_ARRAY, EXPECT_NOTHING, EXPECT_COUNT
};

enum action { REFUSE, SPACE, KEY, STRING, NUMBER, LITERAL, OPEN, CLOSE, NEXT_VALUE, NEXT_KEY };

#define VALUES \
    [CLASS_SPACE] = SPACE, [CLASS_QUOTE] = STRING, [CLASS_NUMBER] = NUMBER, [CLASS_LETTER] = LITERAL, \
    [CLASS_OBJECT] = OPEN, [CLASS_ARRAY] = OPEN

static const uint8_t rules[EXPECT_COUNT][CLASS_COUNT] = {
    [EXPECT_VALUE] = {VALUES},
    [EXPECT_FIRST_VALUE] = {VALUES, [CLASS_ARRAY_END] = CLOSE},
    [EXPECT_KEY] = {[CLASS_SPACE] = SPACE, [CLASS_QUOTE] = KEY},
    [EXPECT_FIRST_KEY] = {[CLASS_SPACE] = SPACE, [CLASS_QUOTE] = KEY, [CLASS_OBJECT_END] = CLOSE},
    [EXPECT_COLON] = {[CLASS_SPACE] = SPACE, [CLASS_COLON] = NEXT_VALUE},
    [EXPECT_MORE_OF_OBJECT] = {[CLASS_SPACE] = SPACE, [CLASS_COMMA] = NEXT_KEY, [CLASS_OBJECT_END] = CLOSE},
    [EXPECT_MORE_OF_ARRAY] = {[CLASS_SPACE] = SPACE, [CLASS_COMMA] = NEXT_VALUE, [CLASS_ARRAY_END] = CLOSE},
    [EXPECT_NOTHING] = {[CLASS_SPACE] = SPACE},
};

/* ---- the check ---- */

/* What may follow a value, at this depth: a bit of the stack is 1 for an object. */
INLINE enum expected after_value(const uint64_t *stack, uint32_t depth)
{
    if (depth == 0) return EXPECT_NOTHING;
    bool is_object = stack[(depth - 1) / 64] >> ((depth - 1) % 64) & 1;
    return is_object ? EXPECT_MORE_OF_OBJECT : EXPECT_MORE_OF_ARRAY;
}

INLINE void stack_push(uint64_t *stack, uint32_t depth, bool is_object)
{
    uint64_t bit = UINT64_C(1) << (depth % 64);
    stack[depth / 64] = is_object ? stack[depth / 64] | bit : stack[depth / 64] & ~bit;
}

/* From `s` on; when it is not JSON, `s` stands where it is not. */
static err document_check(struct scan *s, uint32_t depth_max)
{
    uint64_t stack[JSON_DEPTH_MAX / 64] = {0};
    uint32_t depth = 0;
    enum expected expected = EXPECT_VALUE, after = EXPECT_NOTHING;

    while (s->at < s->end) {
        bool is_object, good = true;
        switch (rules[expected][class_of[*s->at]]) {
        case SPACE: space_skip(s); break;
        case KEY: s->at++, good = string_skip(s), expected = EXPECT_COLON; break;
        case STRING: s->at++, good = string_skip(s), expected = after; break;
        case NUMBER: good = number_skip(s), expected = after; break;
        case LITERAL: good = literal_skip(s), expected = after; break;
        case NEXT_VALUE: s->at++, expected = EXPECT_VALUE; break;
        case NEXT_KEY: s->at++, expected = EXPECT_KEY; break;
        case OPEN:
            if (depth >= depth_max) return ERR_LIMIT;
            is_object = *s->at++ == '{';
            stack_push(stack, depth++, is_object);
            after = is_object ? EXPECT_MORE_OF_OBJECT : EXPECT_MORE_OF_ARRAY;
            expected = is_object ? EXPECT_FIRST_KEY : EXPECT_FIRST_VALUE;
            break;
        case CLOSE: s->at++, expected = after = after_value(stack, --depth); break;
        default: good = false; break;
        }
        if (!good) return s->at == s->end ? ERR_TRUNCATED : ERR_CORRUPT;
    }
    return expected == EXPECT_NOTHING ? OK : ERR_TRUNCATED;
}

err json_check_escapes(const uint8_t *data, uint64_t size, uint32_t depth_max, uint64_t *position, bool *has_escapes)
{
    CHECK(depth_max <= JSON_DEPTH_MAX);
    struct scan s = scan_of(data, size);
    err result = document_check(&s, depth_max);
    *position = (uint64_t)(s.at - s.begin);
    *has_escapes = s.has_escapes;
    return result;
}

err json_check(const uint8_t *data, uint64_t size, uint32_t depth_max, uint64_t *position)
{
    bool has_escapes;
    return json_check_escapes(data, size, depth_max, position, &has_escapes);
}

static uint32_t hex4(const uint8_t *p)
{
    uint32_t value = 0;
    for (int i = 0; i < 4; i++)
        value = value << 4 | (is_digit(p[i]) ? p[i] - (uint32_t)'0' : (p[i] | 0x20u) - 'a' + 10);
    return value;
}

bool json_has_lone_surrogate(const uint8_t *data, uint64_t size)
{
    const uint8_t *p = data, *end = data + size;
    bool wants_low = false; /* the escape just before was the first half */
    for (;;) {
        if (wants_low && (end - p < 6 || p[0] != '\\' || p[1] != 'u')) return true;
        p = memchr(p, '\\', (size_t)(end - p));
        if (!p) return false;
        if (p[1] != 'u') {
            p += 2;
            continue;
        }
        uint32_t half = hex4(p + 2) & 0xFC00;
        if (wants_low != (half == 0xDC00)) return true;
        wants_low = half == 0xD800;
        p += 6;
    }
}

/* ---- strings ---- */

static void escape_put(struct writer_bytes *w, uint8_t c)
{
    static const char hex[] = "0123456789abcdef";
    static const char letters[] = "uuuuuuuubtnufruuuuuuuuuuuuuuuuuu"; /* after the backslash, of control characters */
    uint8_t letter = c < 0x20 ? (uint8_t)letters[c] : c;
    uint8_t *p = bytes_room(w, letter == 'u' ? 6 : 2);
    if (!p) return;
    p[0] = '\\';
    p[1] = letter;
    if (letter != 'u') return;
    p[2] = p[3] = '0';
    p[4] = (uint8_t)hex[c >> 4];
    p[5] = (uint8_t)hex[c & 15];
}

err json_string_write(struct writer_bytes *w, const uint8_t *text, uint64_t bytes)
{
    struct scan s = scan_of(text, bytes);
    struct writer_bytes before = *w;
    const uint8_t *run = text; /* not yet copied */
    bytes_put8(w, '"');
    while ((s.at = plain_end(s.at, &s)) < s.end) {
        if (*s.at >= 0x80) {
            do {
                if (utf8_step(&s.at, s.end)) continue;
                *w = before;
                return ERR_INVALID;
            } while (s.at < s.end && *s.at >= 0x80);
            continue;
        }
        bytes_put(w, run, (size_t)(s.at - run));
        escape_put(w, *s.at);
        run = ++s.at;
    }
    bytes_put(w, run, (size_t)(s.end - run));
    bytes_put8(w, '"');
    return w->failed ? ERR_LIMIT : OK;
}

err json_base64_write(struct writer_bytes *w, const uint8_t *data, uint64_t bytes)
{
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    /* Text is longer than its bytes: compared first, so that the size cannot overflow. */
    if (bytes > (size_t)(w->end - w->at)) w->failed = true;
    uint8_t *p = w->failed ? NULL : bytes_room(w, JSON_BASE64_SIZE(bytes));
    if (!p) return ERR_LIMIT;

    *p++ = '"';
    for (; bytes >= 3; bytes -= 3, data += 3, p += 4) {
        uint32_t three = (uint32_t)data[0] << 16 | (uint32_t)data[1] << 8 | data[2];
        p[0] = (uint8_t)letters[three >> 18];
        p[1] = (uint8_t)letters[three >> 12 & 63];
        p[2] = (uint8_t)letters[three >> 6 & 63];
        p[3] = (uint8_t)letters[three & 63];
    }
    if (bytes) {
        uint32_t rest = (uint32_t)data[0] << 16 | (bytes == 2 ? (uint32_t)data[1] << 8 : 0);
        p[0] = (uint8_t)letters[rest >> 18];
        p[1] = (uint8_t)letters[rest >> 12 & 63];
        p[2] = bytes == 2 ? (uint8_t)letters[rest >> 6 & 63] : '=';
        p[3] = '=';
        p += 4;
    }
    *p = '"';
    return OK;
}
