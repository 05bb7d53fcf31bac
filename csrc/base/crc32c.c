/* SPDX-License-Identifier: Apache-2.0
 *
 * crc32c: by the processor's own instruction where it has one, else four bits at a time, from a table that is small enough to be read.
 */
#include "crc32c.h"

#include <stdbool.h>
#include <string.h>

#include "cpu.h"

static uint32_t update_portable(uint32_t crc, const uint8_t *at, size_t size)
{
    static const uint32_t table[16] = {
        0x00000000, 0x105ec76f, 0x20bd8ede, 0x30e349b1, 0x417b1dbc, 0x5125dad3, 0x61c69362, 0x7198540d,
        0x82f63b78, 0x92a8fc17, 0xa24bb5a6, 0xb21572c9, 0xc38d26c4, 0xd3d3e1ab, 0xe330a81a, 0xf36e6f75,
    };
    for (; size; size--) {
        crc ^= *at++;
        crc = crc >> 4 ^ table[crc & 15];
        crc = crc >> 4 ^ table[crc & 15];
    }
    return crc;
}

#ifdef __x86_64__
#ifdef __clang__
#define TARGET_CRC __attribute__((target("sse4.2,crc32"))) /* a name of its own, though it came with SSE4.2 */
#else
#define TARGET_CRC __attribute__((target("sse4.2")))
#endif

TARGET_CRC static uint32_t update_quick(uint32_t crc, const uint8_t *at, size_t size)
{
    uint64_t wide = crc, word;
    for (; size >= 8; at += 8, size -= 8) {
        memcpy(&word, at, 8);
        wide = __builtin_ia32_crc32di(wide, word);
    }
    return update_portable((uint32_t)wide, at, size);
}

static bool is_quick(void) { return cpu_has(CPU_SSE42); }
#else
#define update_quick update_portable
static bool is_quick(void) { return false; }
#endif

uint32_t crc32c(const void *data, size_t size)
{
    const uint8_t *at = (const uint8_t *)data;
    return ~(is_quick() ? update_quick(~0u, at, size) : update_portable(~0u, at, size));
}
