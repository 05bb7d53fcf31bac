/* SPDX-License-Identifier: Apache-2.0
 *
 * json: is it JSON (RFC 8259), and bytes as JSON strings.
 *
 * Nothing is decoded: doors hand documents on as they came, and only promise that they are some.
 */
#ifndef VIBEMQ_MESSAGE_JSON_H
#define VIBEMQ_MESSAGE_JSON_H

#include <stdbool.h>
#include <stdint.h>

#include "../base/bytes.h"
#include "../base/error.h"

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
