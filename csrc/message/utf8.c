/* SPDX-License-Identifier: Apache-2.0
 *
 * utf8: a block at a time while it is ASCII, which nearly all of it is, and by characters where it is not.
 */
#include "utf8.h"

#include <string.h>

#include "block.h"

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
