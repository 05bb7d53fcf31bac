/* SPDX-License-Identifier: Apache-2.0
 *
 * crc32c: CRC-32C (Castagnoli), which snappy's framing format has beside each block; nothing of ours is stored with it.
 */
#ifndef VIBEMQ_BASE_CRC32C_H
#define VIBEMQ_BASE_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* crc32c("123456789", 9) == 0xE3069283. */
uint32_t crc32c(const void *data, size_t size);

#endif
