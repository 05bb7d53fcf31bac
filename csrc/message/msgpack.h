/* SPDX-License-Identifier: Apache-2.0
 *
 * msgpack: verify one MessagePack value, tell whether JSON carries it exactly, and convert it to JSON.
 *
 * Nothing is decoded into objects, and no function allocates.
 */
#ifndef VIBEMQ_MESSAGE_MSGPACK_H
#define VIBEMQ_MESSAGE_MSGPACK_H

#include "../base/bytes.h"
#include "../base/error.h"

#define MSGPACK_TYPE "application/msgpack" /* the content type of a body that is one value */
#define MSGPACK_DEPTH_MAX 64               /* nested arrays and maps; a walk keeps 8 bytes for each */

/* True if a content type is MSGPACK_TYPE.  `type` may be NULL when there are no bytes. */
bool msgpack_is_type(const uint8_t *type, uint32_t size);

/* Verify that `data` is exactly one value, with each str in UTF-8 and arrays and maps nested at most `depth_max` (up to
 * MSGPACK_DEPTH_MAX) deep.  ERR_TRUNCATED: it is cut short.  ERR_CORRUPT: bytes follow it, the byte 0xc1, or a str that is
 * no UTF-8.  ERR_LIMIT: it is deeper. */
err msgpack_check(const uint8_t *data, uint64_t size, uint32_t depth_max);

/* True if JSON carries the value exactly: it has no bin, ext, NaN, infinity or map key that is no str.  False also for
 * invalid data.  UTF-8 is not verified. */
bool msgpack_is_json(const uint8_t *data, uint64_t size);

/* The most bytes that msgpack_json_write needs.  The worst case is `false` as a key: eight bytes for one. */
#define MSGPACK_JSON_SIZE_MAX(bytes) (8 * (uint64_t)(bytes))

/* Write the JSON of a value that msgpack_check has accepted:
 *
 *   bin               a string of base64
 *   timestamp (-1)    a string of ISO 8601 in UTC, for the years 1 to 9999.  The fraction of the second has no digits if it
 *                     is 0, 7 if they are exact, else 9
 *   other ext         [type, "base64"], as ConvertToJson of MessagePack-CSharp writes it
 *   NaN, infinities   "NaN", "Infinity", "-Infinity", as System.Text.Json reads them
 *   a key             its text; of an array, a map or another ext the base64 of its MessagePack
 *
 * ERR_LIMIT if the writer has too little room; the writer has failed then. */
err msgpack_json_write(struct writer_bytes *w, const uint8_t *data, uint64_t size);

#endif
