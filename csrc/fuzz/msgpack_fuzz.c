/* SPDX-License-Identifier: Apache-2.0
 *
 * Any bytes are one MessagePack value or invalid.  A value's JSON is valid and within MSGPACK_JSON_SIZE_MAX.
 */
#include "../message/msgpack.h"

#include <stdbool.h>

#include "../message/text.h"
#include "fuzz.h"

#define INPUT_MAX_BYTES 4096

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static uint8_t out[MSGPACK_JSON_SIZE_MAX(INPUT_MAX_BYTES)];
    uint64_t position;
    if (size > INPUT_MAX_BYTES) return 0;
    err result = msgpack_check(data, size, MSGPACK_DEPTH_MAX);
    bool is_json = msgpack_is_json(data, size);
    CHECK(result == OK || result == ERR_CORRUPT || result == ERR_LIMIT || result == ERR_TRUNCATED);
    if (result != OK) return 0;
    struct writer_bytes w = bytes_writer(out, MSGPACK_JSON_SIZE_MAX(size));
    CHECK(msgpack_json_write(&w, data, size) == OK);
    CHECK(json_check(out, (uint64_t)(w.at - out), MSGPACK_DEPTH_MAX, &position) == OK);
    (void)is_json;
    return 0;
}
