/* SPDX-License-Identifier: Apache-2.0
 *
 * text: is it UTF-8, is it JSON (RFC 8259), and bytes as JSON strings.
 *
 * Nothing is decoded: doors hand documents on as they came, and only promise that they are some.
 */
#ifndef VIBEMQ_MESSAGE_TEXT_H
#define VIBEMQ_MESSAGE_TEXT_H

#include "../base/bytes.h"
#include "../base/error.h"

/* Strictly (RFC 3629): no surrogates, no overlong forms, nothing above U+10FFFF. */
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

#define JSON_DEPTH_MAX 256 /* arrays and objects inside each other: one bit of the stack for each, 32 bytes of it */

/* Is `data` exactly one JSON value in valid UTF-8, with white space around it allowed?  Arrays and objects
 * may nest `depth_max` (at most JSON_DEPTH_MAX) deep.  Escapes are checked by their form only: a lone
 * surrogate \uD800 passes.  Where it is not, `position` is that of the first byte at which no JSON
 * text goes on as this one does (ERR_CORRUPT) or that opens an array or object too many (ERR_LIMIT);
 * ERR_TRUNCATED, with position == size, when more bytes could still make it JSON. */
err json_check(const uint8_t *data, uint64_t size, uint32_t depth_max, uint64_t *position);

/* As json_check, and whether there is a backslash in any of its strings. */
err json_check_escapes(const uint8_t *data, uint64_t size, uint32_t depth_max, uint64_t *position, bool *has_escapes);

/* Has JSON, which was checked, an escape that is half of a UTF-16 surrogate pair?  It is JSON, but no text. */
bool json_has_lone_surrogate(const uint8_t *data, uint64_t size);

/* What the strings below take at most; a caller compares the sizes with its own limits first. */
#define JSON_STRING_SIZE_MAX(bytes) (2 + 6 * (uint64_t)(bytes))
#define JSON_BASE64_SIZE(bytes) (2 + ((uint64_t)(bytes) + 2) / 3 * 4)

/* UTF-8 text as a JSON string, quotes included.  ERR_INVALID when it is not UTF-8: then nothing was
 * written.  ERR_LIMIT when it does not fit: then the writer has failed. */
err json_string_write(struct writer_bytes *w, const uint8_t *text, uint64_t bytes);

/* Any bytes as a JSON string of base64 (RFC 4648, padded).  ERR_LIMIT when it does not fit. */
err json_base64_write(struct writer_bytes *w, const uint8_t *data, uint64_t bytes);

#endif
