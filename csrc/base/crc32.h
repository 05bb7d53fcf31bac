/* SPDX-License-Identifier: Apache-2.0
 *
 * crc32: CRC-32 (IEEE 802.3, the polynomial of zlib), by the quickest kernel this processor has: carry-less multiply
 * (VPCLMULQDQ or PCLMULQDQ, or the ARM CRC32 instructions), else slicing-by-8.  The choice is made once, when
 * the library is loaded, among what cpu.h has.
 */
#ifndef VIBEMQ_BASE_CRC32_H
#define VIBEMQ_BASE_CRC32_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* CRC of `size` bytes, going on from `crc` (0 to begin): crc32_update(0, "123456789", 9) == 0xCBF43926. */
uint32_t crc32_update(uint32_t crc, const void *data, size_t size);

/* Would one flipped bit in `bytes` bytes change their CRC by `difference`, the exclusive or of both CRCs?  Some nanoseconds a bit.
 * `*at`, which may be NULL, becomes that bit's byte. */
bool crc32_is_one_bit(uint32_t difference, uint64_t bytes, uint64_t *at);

/* The name of the kernel in use, for benchmarks and tests. */
const char *crc32_kernel(void);

struct crc32_kernel {
    const char *name;
    uint32_t (*update)(uint32_t crc, const void *data, size_t size);
    bool (*usable)(void); /* may the instructions be used here? */
};

/* Chooses again, for tests that have taken instruction sets away (cpu_look).  While nobody else computes. */
void crc32_choose(void);

/* The kernels compiled in, the quickest first, the portable one last: for tests and benchmarks of every kernel. */
const struct crc32_kernel *crc32_kernels(size_t *count);

#endif
