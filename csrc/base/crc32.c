/* SPDX-License-Identifier: Apache-2.0
 *
 * crc32: CRC-32 by folding, by CRC instructions or by tables.
 *
 * ARITHMETIC
 *   A CRC is a remainder of polynomials over GF(2), modulo
 *     P = x^32 + x^26 + x^23 + x^22 + x^16 + x^12 + x^11 + x^10 + x^8 + x^7
 *         + x^5 + x^4 + x^2 + x + 1.
 *   This CRC is "reflected": the first bit of a byte, the highest power, is its
 *   lowest bit.  So in a 32-bit value bit 31 is x^0, and P without x^32 is
 *   0xEDB88320; multiplying by x is a shift to the right.
 *
 * FOLDING
 *   Let A be 128 bits of the message and D the number of bits from the end of A
 *   to the end of a later 128-bit block B.  A contributes A * x^D, so A can be
 *   taken out if its product, reduced to 128 bits, is added to B.  With
 *   A = H * x^64 + L (H is the lower half of the register, being reflected)
 *     A * x^D = H * (x^(D+64) mod P) + L * (x^D mod P)    (mod P)
 *   Two carry-less multiplications, of degree 63 + 31 < 128.  A product of two
 *   reflected 64-bit values lies one bit too low in its reflected 128 bits, which
 *   multiplies by x once more, hence the constants are x^(D+63) and x^(D-1).
 *   Every constant is computed from P below, when the library is loaded.
 *
 *   When less than a block remains, the accumulator is 16 bytes of message like
 *   any other and the tables finish the work.  The CRC so far enters by being added to
 *   the first four bytes.
 *
 * No kernel reads a byte outside data .. data + size.
 */
#include "crc32.h"

#include <string.h>

#include "cpu.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "blocks are loaded as little-endian words");

#define POLYNOMIAL 0xEDB88320u
#define X_TO_0 0x80000000u
#define X_TO_1 0x40000000u

#define FOLD_STEPS_MAX 16 /* distances of 1 .. 16 lanes of 128 bits */

static uint32_t table[8][256];         /* table[k][b]: the byte b followed by k zero bytes */
static uint32_t power[64];             /* power[k] = x^(8 * 2^k) mod P */
static uint64_t fold_by[FOLD_STEPS_MAX + 1][2]; /* what takes a lane over so many: first its lower half */

static uint32_t times_x(uint32_t a) { return (a >> 1) ^ (POLYNOMIAL & (0u - (a & 1))); }

static uint32_t multiply(uint32_t a, uint32_t b)
{
    uint32_t product = 0;
    for (; a; a <<= 1) {
        product ^= b & (0u - (a >> 31));
        b = times_x(b);
    }
    return product;
}

static uint32_t x_to_the(uint32_t exponent)
{
    uint32_t result = X_TO_0, square = X_TO_1;
    for (; exponent; exponent >>= 1) {
        if (exponent & 1) result = multiply(result, square);
        square = multiply(square, square);
    }
    return result;
}

static void constants_compute(void)
{
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t r = byte;
        for (int bit = 0; bit < 8; bit++) r = times_x(r);
        table[0][byte] = r;
    }
    for (int k = 1; k < 8; k++)
        for (int byte = 0; byte < 256; byte++) {
            uint32_t r = table[k - 1][byte];
            table[k][byte] = (r >> 8) ^ table[0][r & 0xFF];
        }
    power[0] = x_to_the(8);
    for (int k = 1; k < 64; k++) power[k] = multiply(power[k - 1], power[k - 1]);
    for (uint32_t lanes = 1; lanes <= FOLD_STEPS_MAX; lanes++) {
        fold_by[lanes][0] = (uint64_t)x_to_the(lanes * 128 + 63) << 32;
        fold_by[lanes][1] = (uint64_t)x_to_the(lanes * 128 - 1) << 32;
    }
}

/* ---- tables: slicing by 8 ---- */

/* Goes on from a remainder (not inverted, unlike the CRC that callers see). */
static uint32_t tables_update(uint32_t r, const uint8_t *p, size_t size)
{
    for (; size >= 8; p += 8, size -= 8) {
        uint32_t first, second;
        memcpy(&first, p, 4);
        memcpy(&second, p + 4, 4);
        first ^= r;
        r = table[7][first & 0xFF] ^ table[6][first >> 8 & 0xFF] ^ table[5][first >> 16 & 0xFF] ^
            table[4][first >> 24] ^ table[3][second & 0xFF] ^ table[2][second >> 8 & 0xFF] ^
            table[1][second >> 16 & 0xFF] ^ table[0][second >> 24];
    }
    for (; size; p++, size--) r = (r >> 8) ^ table[0][(r ^ *p) & 0xFF];
    return r;
}

static uint32_t tables_kernel(uint32_t crc, const void *data, size_t size)
{
    return ~tables_update(~crc, data, size);
}

static bool always_usable(void) { return true; }

/* ---- x86-64: carry-less multiplication ---- */
#if defined(__x86_64__)

/* AVX only for its encoding with three operands: measured, it is worth a factor of two. */
#define TARGET_128 __attribute__((target("avx,pclmul")))
#define TARGET_512 __attribute__((target("avx512f,avx512vl,avx512bw,vpclmulqdq,pclmul")))
#define INLINE_128 TARGET_128 __attribute__((always_inline)) static inline
#define INLINE_512 TARGET_512 __attribute__((always_inline)) static inline

/* `a` taken over the distance of `k`, added to `b`. */
INLINE_128 __m128i fold_128(__m128i a, __m128i b, __m128i k)
{
    __m128i h = _mm_clmulepi64_si128(a, k, 0x00), l = _mm_clmulepi64_si128(a, k, 0x11);
    return _mm_xor_si128(_mm_xor_si128(h, l), b);
}

INLINE_128 __m128i load_128(const void *p) { return _mm_loadu_si128((const __m128i *)p); }
INLINE_128 __m128i constant_128(int lanes) { return load_128(&fold_by[lanes]); }

/* The last blocks of 16 bytes into the accumulator, then accumulator and tail through the tables. */
INLINE_128 uint32_t finish_128(__m128i a, const uint8_t *p, size_t size)
{
    uint8_t last[16];
    for (; size >= 16; p += 16, size -= 16) a = fold_128(a, load_128(p), constant_128(1));
    _mm_storeu_si128((__m128i *)last, a);
    return ~tables_update(tables_update(0, last, 16), p, size);
}

/* Four accumulators: as many as it takes to hide the latency of a multiplication.  Four
 * names and no array, or they would live in memory between two steps. */
TARGET_128 static uint32_t pclmul_kernel(uint32_t crc, const void *data, size_t size)
{
    if (size < 16) return tables_kernel(crc, data, size);
    const uint8_t *p = data;
    __m128i first = _mm_xor_si128(load_128(p), _mm_cvtsi32_si128((int)~crc));
    if (size < 64) return finish_128(first, p + 16, size - 16);
    __m128i k = constant_128(4);
    __m128i a = first, b = load_128(p + 16), c = load_128(p + 32), d = load_128(p + 48);
    for (p += 64, size -= 64; size >= 64; p += 64, size -= 64) {
        a = fold_128(a, load_128(p), k);
        b = fold_128(b, load_128(p + 16), k);
        c = fold_128(c, load_128(p + 32), k);
        d = fold_128(d, load_128(p + 48), k);
    }
    k = constant_128(1);
    d = fold_128(fold_128(fold_128(a, b, k), c, k), d, k);
    return finish_128(d, p, size);
}

static bool pclmul_usable(void) { return cpu_has(CPU_AVX) && cpu_has(CPU_PCLMULQDQ); }

INLINE_512 __m512i fold_512(__m512i a, __m512i b, __m512i k)
{
    __m512i h = _mm512_clmulepi64_epi128(a, k, 0x00), l = _mm512_clmulepi64_epi128(a, k, 0x11);
    return _mm512_ternarylogic_epi64(h, l, b, 0x96); /* 0x96: exclusive or of three */
}

INLINE_512 __m512i constant_512(int lanes) { return _mm512_broadcast_i32x4(constant_128(lanes)); }

INLINE_512 __m512i load_512(const void *p) { return _mm512_loadu_si512(p); }

/* Four accumulators of 64 bytes; what is left of 256 goes 64 at a time, then 16 at a time. */
TARGET_512 static uint32_t vpclmul_kernel(uint32_t crc, const void *data, size_t size)
{
    if (size < 256) return pclmul_kernel(crc, data, size);
    const uint8_t *p = data;
    __m512i k = constant_512(16);
    __m512i a = load_512(p), b = load_512(p + 64), c = load_512(p + 128), d = load_512(p + 192);
    a = _mm512_xor_si512(a, _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)~crc)));
    for (p += 256, size -= 256; size >= 256; p += 256, size -= 256) {
        a = fold_512(a, load_512(p), k);
        b = fold_512(b, load_512(p + 64), k);
        c = fold_512(c, load_512(p + 128), k);
        d = fold_512(d, load_512(p + 192), k);
    }
    k = constant_512(4);
    d = fold_512(fold_512(fold_512(a, b, k), c, k), d, k);
    for (; size >= 64; p += 64, size -= 64) d = fold_512(d, load_512(p), k);

    __m128i k1 = constant_128(1), e = _mm512_extracti32x4_epi32(d, 0);
    e = fold_128(e, _mm512_extracti32x4_epi32(d, 1), k1);
    e = fold_128(e, _mm512_extracti32x4_epi32(d, 2), k1);
    e = fold_128(e, _mm512_extracti32x4_epi32(d, 3), k1);
    return finish_128(e, p, size);
}

static bool vpclmul_usable(void)
{
    return pclmul_usable() && cpu_has(CPU_AVX512F) && cpu_has(CPU_AVX512VL) && cpu_has(CPU_AVX512BW) &&
           cpu_has(CPU_VPCLMULQDQ);
}

/* ---- AArch64: CRC instructions ---- */
#elif defined(__aarch64__)

#define LANE_BYTES 4096 /* long enough that joining three lanes (two multiplications) is lost in it */

/* Written as assembly: how a compiler wants to be asked for these differs between versions. */
static inline uint32_t crc_8_bytes(uint32_t r, const uint8_t *p)
{
    uint64_t word;
    memcpy(&word, p, 8);
    __asm__(".arch_extension crc\n\tcrc32x %w0, %w0, %x1" : "+r"(r) : "r"(word));
    return r;
}

static inline uint32_t crc_1_byte(uint32_t r, uint8_t byte)
{
    __asm__(".arch_extension crc\n\tcrc32b %w0, %w0, %w1" : "+r"(r) : "r"((uint32_t)byte));
    return r;
}

/* One instruction waits for the one before it, so three lanes run side by side. */
static uint32_t arm_crc_kernel(uint32_t crc, const void *data, size_t size)
{
    const uint8_t *p = data;
    uint32_t r = ~crc, one_lane = power[12], two_lanes = power[13]; /* 2^12 and 2^13 bytes */
    _Static_assert(LANE_BYTES == 1 << 12, "the powers above are for this lane");
    for (; size >= 3 * LANE_BYTES; p += 3 * LANE_BYTES, size -= 3 * LANE_BYTES) {
        uint32_t second = 0, third = 0;
        for (size_t i = 0; i < LANE_BYTES; i += 8) {
            r = crc_8_bytes(r, p + i);
            second = crc_8_bytes(second, p + LANE_BYTES + i);
            third = crc_8_bytes(third, p + 2 * LANE_BYTES + i);
        }
        r = multiply(r, two_lanes) ^ multiply(second, one_lane) ^ third;
    }
    for (; size >= 8; p += 8, size -= 8) r = crc_8_bytes(r, p);
    for (; size; p++, size--) r = crc_1_byte(r, *p);
    return ~r;
}

static bool arm_crc_usable(void) { return cpu_has(CPU_ARM_CRC32); }

#endif

/* ---- the choice ---- */

static const struct crc32_kernel kernels[] = {
#if defined(__x86_64__)
    {"vpclmulqdq", vpclmul_kernel, vpclmul_usable},
    {"pclmulqdq", pclmul_kernel, pclmul_usable},
#elif defined(__aarch64__)
    {"arm-crc32", arm_crc_kernel, arm_crc_usable},
#endif
    {"slicing-by-8", tables_kernel, always_usable},
};

const struct crc32_kernel *crc32_kernels(size_t *count)
{
    *count = sizeof kernels / sizeof kernels[0];
    return kernels;
}

static const struct crc32_kernel *chosen = kernels;

void crc32_choose(void)
{
    chosen = kernels;
    while (!chosen->usable()) chosen++; /* the last one always is */
}

__attribute__((constructor)) static void crc32_begin(void)
{
    constants_compute();
    crc32_choose();
}

/* A bit with k bits behind it changes the CRC by x^(k + 32) mod P.  P is primitive, so no two bits change it alike. */
bool crc32_is_one_bit(uint32_t difference, uint64_t bytes, uint64_t *at)
{
    uint32_t change = POLYNOMIAL;
    for (uint64_t bits = 8 * bytes; bits > 0; bits--) {
        if (change == difference) {
            if (at) *at = (bits - 1) / 8;
            return true;
        }
        change = times_x(change);
    }
    return false;
}

uint32_t crc32_update(uint32_t crc, const void *data, size_t size) { return chosen->update(crc, data, size); }

const char *crc32_kernel(void) { return chosen->name; }
