/* SPDX-License-Identifier: Apache-2.0
 *
 * msgpack: is it one MessagePack value, can JSON carry it exactly, and its JSON where JSON cannot.
 *
 * Nothing is decoded into objects, and no function allocates.
 */
#ifndef VIBEMQ_MESSAGE_MSGPACK_H
#define VIBEMQ_MESSAGE_MSGPACK_H

#include "../base/bytes.h"
#include "../base/error.h"

#define MSGPACK_TYPE "application/msgpack" /* the content type of a body that is one value */
#define MSGPACK_DEPTH_MAX 64               /* arrays and maps inside each other; a walk keeps 8 bytes for each */

/* Is a content type MSGPACK_TYPE?  `type` may be NULL when there are no bytes. */
bool msgpack_is_type(const uint8_t *type, uint32_t size);

/* Is `data` exactly one value, arrays and maps at most `depth_max` (up to MSGPACK_DEPTH_MAX) deep, and each str of it
 * UTF-8?  ERR_TRUNCATED: it is cut short.  ERR_CORRUPT: bytes follow it, the byte 0xc1, or a str that is no UTF-8.
 * ERR_LIMIT: it is deeper. */
err msgpack_check(const uint8_t *data, uint64_t size, uint32_t depth_max);

/* Does JSON carry the value exactly?  True without bin, ext, NaN, infinities and map keys that are no str.  False also
 * for data that is no value.  UTF-8 is not looked at. */
bool msgpack_is_json(const uint8_t *data, uint64_t size);

/* The most bytes that msgpack_json_write needs: `false` as a key is eight bytes for one. */
#define MSGPACK_JSON_SIZE_MAX(bytes) (8 * (uint64_t)(bytes))

/* Write the JSON of a value that msgpack_check has found good:
 *
 *   bin               a string of base64
 *   timestamp (-1)    a string of ISO 8601 in UTC, with 7 digits of a second, or 9 where 7 lose some; none where all
 *                     are 0.  Only for the years 1 to 9999
 *   other ext         [type, "base64"], as MessagePack-CSharp's ConvertToJson has it
 *   NaN, infinities   "NaN", "Infinity", "-Infinity", as System.Text.Json reads them
 *   a key             its text; of an array, a map or another ext the base64 of its MessagePack
 *
 * ERR_LIMIT where it does not fit: then the writer has failed. */
err msgpack_json_write(struct writer_bytes *w, const uint8_t *data, uint64_t size);

#endif
