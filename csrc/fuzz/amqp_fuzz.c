/* SPDX-License-Identifier: Apache-2.0
 *
 * Any bytes are a message whose sections lie inside them, or corrupt, or truncated;
 * and a message cut short is never found to be corrupt.
 */
#include "../message/amqp.h"

#include <string.h>

#include "fuzz.h"

#define INPUT_MAX_BYTES 65536

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct amqp_message m;
    if (size > INPUT_MAX_BYTES) return 0;
    err result = amqp_parse(data, (uint32_t)size, &m);
    CHECK(result == OK || result == ERR_CORRUPT || result == ERR_TRUNCATED);
    if (result != OK) return 0;

    CHECK(fuzz_inside(data, size, m.body, m.body_size));
    CHECK(fuzz_inside(data, size, m.header, m.header_size));
    CHECK(fuzz_inside(data, size, m.properties, m.properties_size));
    CHECK(fuzz_inside(data, size, m.application_properties, m.application_properties_size));
    CHECK(fuzz_inside(data, size, m.message_annotations, m.message_annotations_size));
    CHECK((m.body != NULL) == (m.body_kind != AMQP_BODY_NONE));
    CHECK((m.data_count > 0) == (m.body_kind == AMQP_BODY_DATA));

    /* A prefix that ends with a section is a message; any other is waiting for more. */
    for (size_t cut = 1; cut < size && cut < 64; cut++) {
        struct amqp_message part;
        result = amqp_parse(data, (uint32_t)(size - cut), &part);
        CHECK(result == OK || result == ERR_TRUNCATED);
    }
    return 0;
}
