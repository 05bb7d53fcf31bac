/* SPDX-License-Identifier: Apache-2.0
 *
 * Any bytes are judged as the reference judges them, at the same position; text written as a string
 * is JSON exactly when it is UTF-8; and base64 always is.  The first byte is the depth allowed.
 */
#include "../message/text.h"

#include <stdbool.h>

#include "../tests/json_reference.h"
#include "fuzz.h"

#define INPUT_MAX_BYTES 4096
#define REFERENCE_DEPTH_MAX 255 /* it is recursive */

static void strings_check(const uint8_t *data, size_t size)
{
    static uint8_t out[JSON_STRING_SIZE_MAX(INPUT_MAX_BYTES)];
    uint64_t position;
    struct writer_bytes w = bytes_writer(out, sizeof out);
    bool is_text = utf8_is_valid(data, size);
    err result = json_string_write(&w, data, size);
    CHECK(result == (is_text ? OK : ERR_INVALID));
    CHECK(is_text || (w.at == out && !w.failed));
    CHECK(!is_text || json_check(out, (uint64_t)(w.at - out), 0, &position) == OK);

    w = bytes_writer(out, sizeof out);
    CHECK(json_base64_write(&w, data, size) == OK);
    CHECK((uint64_t)(w.at - out) == JSON_BASE64_SIZE(size));
    CHECK(json_check(out, (uint64_t)(w.at - out), 0, &position) == OK);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1 || size > INPUT_MAX_BYTES) return 0;
    uint32_t depth_max = data[0] < REFERENCE_DEPTH_MAX ? data[0] : REFERENCE_DEPTH_MAX;
    uint64_t position, slow_position;
    data++, size--;
    err result = json_check(data, size, depth_max, &position);
    CHECK(result == json_reference_check(data, size, depth_max, &slow_position));
    CHECK(position == slow_position && position <= size);
    CHECK(result == OK || result == ERR_CORRUPT || result == ERR_LIMIT || result == ERR_TRUNCATED);
    CHECK((position == size) == (result == OK || result == ERR_TRUNCATED));

    /* Without the byte that is wrong it is JSON, or may still become some. */
    if (position < size) {
        err before = json_check(data, position, depth_max, &slow_position);
        CHECK(before == OK || before == ERR_TRUNCATED);
    }
    strings_check(data, size);
    return 0;
}
