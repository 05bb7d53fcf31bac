/* SPDX-License-Identifier: Apache-2.0
 *
 * crc32: CRC-32 (IEEE 802.3, the polynomial of zlib), by the quickest kernel
 * this processor has: carry-less multiply (VPCLMULQDQ, PCLMULQDQ, ARM PMULL or
 * the ARM CRC32 instructions), else slicing-by-8.  The choice is made once, at
 * the first call.
 */
#ifndef VIBEMQ_BASE_CRC32_H
#define VIBEMQ_BASE_CRC32_H

#include <stddef.h>
#include <stdint.h>

/* CRC of `size` bytes, going on from `crc` (0 to begin): crc32_update(0, "123456789", 9) == 0xCBF43926. */
uint32_t crc32_update(uint32_t crc, const void *data, size_t size);

/* The name of the kernel in use, for benchmarks and tests. */
const char *crc32_kernel(void);

/* The portable kernel, so that tests can compare every other with it. */
uint32_t crc32_portable(uint32_t crc, const void *data, size_t size);

/* The CRC of A followed by B from crc(A), crc(B) and the length of B. */
uint32_t crc32_combine(uint32_t crc_a, uint32_t crc_b, uint64_t size_b);

#endif
