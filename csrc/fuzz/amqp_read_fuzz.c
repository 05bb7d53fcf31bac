/* SPDX-License-Identifier: Apache-2.0
 *
 * What is inside a message is read without leaving its section, whether amqp_parse has seen it or not;
 * of a message it has found good every pair is read to the end of its map; and what is read and is
 * text is the same again when it is written and read once more.
 */
#include "../message/amqp.h"

#include <string.h>

#include "../message/amqp_write.h"
#include "fuzz.h"

#define INPUT_MAX_BYTES 65536

static uint8_t again[2 * INPUT_MAX_BYTES];

static void value_check(const uint8_t *data, size_t size, const struct amqp_value *v)
{
    char text[64];
    size_t bytes = amqp_value_text(v, text, sizeof text);
    bool is_span = v->kind == AMQP_STRING || v->kind == AMQP_SYMBOL || v->kind == AMQP_BINARY;
    CHECK(fuzz_inside(data, size, v->data, v->bytes));
    CHECK((v->data != NULL) == (is_span || v->kind == AMQP_UUID || v->kind == AMQP_OTHER));
    CHECK(is_span ? bytes == v->bytes : bytes <= AMQP_TEXT_MAX_BYTES);
    CHECK(v->kind != AMQP_UUID || v->bytes == 16);
}

/* Those pairs whose value has bytes are written to `w` as well. */
static void pairs_check(const uint8_t *data, size_t size, struct writer_bytes *w, bool parsed)
{
    struct amqp_pairs it;
    struct amqp_pair pair;
    struct amqp_map m;
    amqp_pairs_begin(&it, data, (uint32_t)size);
    amqp_map_begin(w, &m);
    while (amqp_pairs_next(&it, &pair)) {
        CHECK(pair.key && fuzz_inside(data, size, pair.key, pair.key_bytes));
        value_check(data, size, &pair.value);
        if (pair.value.data) amqp_map_add(w, &m, pair.key, pair.key_bytes, pair.value.data, pair.value.bytes);
    }
    amqp_map_end(w, &m);
    CHECK(it.left == 0);
    CHECK(!parsed || bytes_left(&it.r) == 0);
}

static void fields_check(const struct amqp_message *m)
{
    struct amqp_value v;
    uint8_t priority;
    for (unsigned field = 0; field <= AMQP_REPLY_TO_GROUP_ID + 1; field++)
        if (amqp_property(m, (enum amqp_field)field, &v)) value_check(m->properties, m->properties_size, &v);
    (void)amqp_header_priority(m, &priority);
}

/* The pairs of the message in `w` are those of the map that have bytes. */
static void again_check(const uint8_t *map, size_t map_bytes, const struct writer_bytes *w)
{
    struct amqp_message m;
    struct amqp_pairs old, new;
    struct amqp_pair was, is;
    CHECK(!w->failed);
    CHECK(amqp_parse(again, (uint32_t)(w->at - again), &m) == OK);
    amqp_pairs_begin(&old, map, (uint32_t)map_bytes);
    amqp_pairs_begin(&new, m.application_properties, m.application_properties_size);
    while (amqp_pairs_next(&old, &was)) {
        if (!was.value.data) continue;
        CHECK(amqp_pairs_next(&new, &is));
        CHECK(is.value.kind == AMQP_STRING || is.value.kind == AMQP_BINARY);
        CHECK(is.key_bytes == was.key_bytes && memcmp(is.key, was.key, was.key_bytes) == 0);
        CHECK(is.value.bytes == was.value.bytes && memcmp(is.value.data, was.value.data, was.value.bytes) == 0);
    }
    CHECK(!amqp_pairs_next(&new, &is));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size > INPUT_MAX_BYTES) return 0;
    struct amqp_message m;
    struct writer_bytes w = bytes_writer(again, sizeof again);
    if (amqp_parse(data, (uint32_t)size, &m) == OK) {
        pairs_check(m.application_properties, m.application_properties_size, &w, true);
        fields_check(&m);
        again_check(m.application_properties, m.application_properties_size, &w);
        return 0;
    }
    /* The same bytes as a section that nobody has looked at. */
    m = (struct amqp_message){.properties = data, .properties_size = (uint32_t)size, .header = data,
                              .header_size = (uint32_t)size};
    pairs_check(data, size, &w, false);
    fields_check(&m);
    return 0;
}
