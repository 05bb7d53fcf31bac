/* SPDX-License-Identifier: Apache-2.0
 *
 * utf8: is it UTF-8?  Strictly (RFC 3629): no surrogates, no overlong forms, nothing above U+10FFFF.
 */
#ifndef VIBEMQ_MESSAGE_UTF8_H
#define VIBEMQ_MESSAGE_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

bool utf8_is_valid(const uint8_t *p, size_t n);

/* Move `at`, which is before `end`, over one character.  If there is none it stops at the first byte that
 * cannot be, or at `end` when a character is only cut short. */
static inline bool utf8_step(const uint8_t **at, const uint8_t *end)
{
    const uint8_t *p = *at;
    uint8_t lead = *p, low = 0x80, high = 0xBF; /* the range of the second byte; further ones have all of it */
    unsigned more;
    if (lead < 0x80) more = 0;
    else if (lead < 0xC2) return false;
    else if (lead < 0xE0) more = 1;
    else if (lead < 0xF0) {
        more = 2;
        if (lead == 0xE0) low = 0xA0;
        if (lead == 0xED) high = 0x9F;
    } else if (lead < 0xF5) {
        more = 3;
        if (lead == 0xF0) low = 0x90;
        if (lead == 0xF4) high = 0x8F;
    } else return false;

    for (p++; more; more--, p++) {
        if (p == end || *p < low || *p > high) break;
        low = 0x80, high = 0xBF;
    }
    *at = p;
    return more == 0;
}

#endif
