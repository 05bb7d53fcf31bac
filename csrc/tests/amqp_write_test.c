/* SPDX-License-Identifier: Apache-2.0 */
#include "../message/amqp_write.h"

#include "../message/amqp.h"
#include "test.h"

#define LARGEST_BYTES 70000

static const uint32_t edges[] = {0, 1, 3, 4, 7, 8, 9, 15, 16, 17, 31, 32, 33, 100, 234, 235, 236, 252, 253, 254, 255,
                                 256, 257, 1000, 65534, 65535, 65536, LARGEST_BYTES};
#define EDGES (sizeof edges / sizeof edges[0])

/* Text, or with `broken` the same with one byte in it that is no UTF-8; exact on the heap. */
static uint8_t *made(uint32_t bytes, bool broken)
{
    uint8_t *text = malloc(bytes ? bytes : 1);
    for (uint32_t i = 0; i < bytes; i++) text[i] = (uint8_t)('a' + (i + bytes) % 26);
    if (broken && bytes) text[test_random_below(bytes)] = 0xFF;
    return text;
}

static void properties_put(struct writer_bytes *w, const uint8_t *id, uint32_t bytes, bool json)
{
    amqp_write_properties(w, &(struct amqp_properties){.id = id, .id_bytes = bytes, .content_type = json ? AMQP_JSON : NULL,
                                                       .content_type_bytes = json ? AMQP_JSON_BYTES : 0});
}

static void message_put(struct writer_bytes *w, const uint8_t *text, uint32_t bytes)
{
    struct amqp_map m;
    amqp_write_header(w, 9);
    properties_put(w, text, bytes, true);
    amqp_map_begin(w, &m);
    amqp_map_add(w, &m, text, bytes, text, bytes);
    amqp_map_add(w, &m, (const uint8_t *)"k", 1, text, bytes);
    amqp_map_end(w, &m);
    amqp_write_data(w, text, bytes);
}

static void expect_message(const uint8_t *data, size_t size, const uint8_t *text, uint32_t bytes, enum amqp_kind kind)
{
    struct amqp_message m;
    struct amqp_value v;
    struct amqp_pairs it;
    struct amqp_pair pair;
    uint8_t priority = 0;
    REQUIRE_OK(amqp_parse(data, (uint32_t)size, &m));
    EXPECT(amqp_header_priority(&m, &priority));
    EXPECT_EQ(9, priority);
    REQUIRE(amqp_message_id(&m, &v));
    EXPECT_EQ(kind, v.kind);
    REQUIRE_EQ(bytes, v.bytes);
    EXPECT_MEM_EQ(text, v.data, bytes);
    REQUIRE(amqp_property(&m, AMQP_CONTENT_TYPE, &v));
    EXPECT_EQ(AMQP_SYMBOL, v.kind);
    REQUIRE_EQ(16, v.bytes);
    EXPECT_MEM_EQ("application/json", v.data, 16);
    EXPECT(!amqp_property(&m, AMQP_CORRELATION_ID, &v));

    amqp_pairs_begin(&it, m.application_properties, m.application_properties_size);
    for (int i = 0; i < 2; i++) {
        REQUIRE(amqp_pairs_next(&it, &pair));
        REQUIRE_EQ(i ? 1 : bytes, pair.key_bytes);
        EXPECT_MEM_EQ(i ? (const uint8_t *)"k" : text, pair.key, pair.key_bytes);
        EXPECT_EQ(kind, pair.value.kind);
        REQUIRE_EQ(bytes, pair.value.bytes);
        EXPECT_MEM_EQ(text, pair.value.data, bytes);
    }
    EXPECT(!amqp_pairs_next(&it, &pair));
    EXPECT_EQ(AMQP_BODY_DATA, m.body_kind);
    REQUIRE_EQ(bytes, m.body_size);
    EXPECT_MEM_EQ(text, m.body, bytes);
}

TEST(what_is_written_is_read_again_at_every_edge_of_a_size)
{
    for (size_t e = 0; e < EDGES; e++)
        for (int broken = 0; broken < 2; broken++) {
            uint32_t bytes = edges[e];
            uint8_t *text = made(bytes, broken);
            size_t room = amqp_size_max(2, 5 * (uint64_t)bytes);
            uint8_t *out = malloc(room);
            struct writer_bytes w = bytes_writer(out, room);
            message_put(&w, text, bytes);
            EXPECT(!w.failed);
            expect_message(out, (size_t)(w.at - out), text, bytes, broken && bytes ? AMQP_BINARY : AMQP_STRING);
            free(out);
            free(text);
        }
}

TEST(a_room_that_is_exactly_enough_is_and_one_byte_less_is_not)
{
    for (size_t e = 0; edges[e] <= 1000; e++) {
        uint32_t bytes = edges[e];
        uint8_t *text = made(bytes, false), scratch[8192];
        struct writer_bytes w = bytes_writer(scratch, sizeof scratch);
        message_put(&w, text, bytes);
        size_t size = (size_t)(w.at - scratch);
        for (size_t room = bytes < 40 ? 0 : size - 40; room <= size; room++) {
            uint8_t *out = malloc(room ? room : 1);
            w = bytes_writer(out, room);
            message_put(&w, text, bytes);
            EXPECT_EQ(room < size, w.failed);
            if (!w.failed) EXPECT_MEM_EQ(scratch, out, size);
            free(out);
        }
        free(text);
    }
}

static size_t properties_size(const uint8_t *id, uint32_t bytes, bool json, uint8_t *out, size_t room)
{
    struct writer_bytes w = bytes_writer(out, room);
    properties_put(&w, id, bytes, json);
    return w.failed ? 0 : (size_t)(w.at - out);
}

TEST(properties_are_spelled_as_the_standard_says)
{
    uint8_t out[64];
    static const uint8_t id[] = {0x00, 0x53, 0x73, 0xC0, 5, 1, 0xA1, 2, 'i', 'd'};
    REQUIRE_EQ(sizeof id, properties_size((const uint8_t *)"id", 2, false, out, sizeof out));
    EXPECT_MEM_EQ(id, out, sizeof id);
    static const uint8_t json[] = {0x00, 0x53, 0x73, 0xC0, 25, 7, 0x40, 0x40, 0x40, 0x40, 0x40, 0x40, 0xA3, 16, 'a',
                                   'p', 'p', 'l', 'i', 'c', 'a', 't', 'i', 'o', 'n', '/', 'j', 's', 'o', 'n'};
    REQUIRE_EQ(sizeof json, properties_size(NULL, 0, true, out, sizeof out));
    EXPECT_MEM_EQ(json, out, sizeof json);
    static const uint8_t none[] = {0x00, 0x53, 0x73, 0xC0, 2, 1, 0x40};
    REQUIRE_EQ(sizeof none, properties_size(NULL, 0, false, out, sizeof out));
    EXPECT_MEM_EQ(none, out, sizeof none);
}

TEST(a_content_type_and_a_key_are_read_again_with_and_without_each_other)
{
    for (int which = 0; which < 8; which++)
        for (size_t e = 0; edges[e] <= 1000; e++) {
            uint32_t bytes = edges[e];
            uint8_t *text = made(bytes, false), scratch[8192];
            struct amqp_properties p = {0};
            struct amqp_message m;
            struct amqp_value v;
            if (which & 1) p.id = text, p.id_bytes = bytes;
            if (which & 2) p.content_type = (const char *)text, p.content_type_bytes = bytes;
            if (which & 4) p.key = text, p.key_bytes = bytes;
            struct writer_bytes w = bytes_writer(scratch, AMQP_PROPERTIES_OVERHEAD_BYTES + 3 * bytes);
            amqp_write_properties(&w, &p);
            amqp_write_null(&w);
            if (w.failed) {
                w = bytes_writer(scratch, sizeof scratch);
                amqp_write_properties(&w, &p);
                EXPECT((size_t)(w.at - scratch) <= AMQP_PROPERTIES_OVERHEAD_BYTES + 3 * bytes);
                amqp_write_null(&w);
            }
            REQUIRE_OK(amqp_parse(scratch, (uint32_t)(w.at - scratch), &m));
            static const enum amqp_field fields[] = {AMQP_MESSAGE_ID, AMQP_CONTENT_TYPE, AMQP_GROUP_ID};
            for (int i = 0; i < 3; i++) {
                REQUIRE_EQ(which >> i & 1, amqp_property(&m, fields[i], &v));
                if (!(which >> i & 1)) continue;
                EXPECT_EQ(i == 1 ? AMQP_SYMBOL : AMQP_STRING, v.kind);
                REQUIRE_EQ(bytes, v.bytes);
                EXPECT_MEM_EQ(text, v.data, bytes);
            }
            EXPECT(!amqp_property(&m, AMQP_SUBJECT, &v) && !amqp_property(&m, AMQP_CREATION_TIME, &v));
            free(text);
        }
}

TEST(values_keep_their_types)
{
    static const struct amqp_value rows[] = {
        {.kind = AMQP_NULL}, {.kind = AMQP_BOOL, .truth = true}, {.kind = AMQP_BOOL, .truth = false},
        {.kind = AMQP_UINT, .natural = UINT64_MAX}, {.kind = AMQP_UINT, .natural = 0},
        {.kind = AMQP_TIMESTAMP, .integer = 1413198000500}, {.kind = AMQP_TIMESTAMP, .integer = -1},
        {.kind = AMQP_INT, .integer = INT64_MIN}, {.kind = AMQP_INT, .integer = 7}, {.kind = AMQP_DOUBLE, .real = -0.1},
        {.kind = AMQP_FLOAT, .real = -0.5}, {.kind = AMQP_STRING, .data = (const uint8_t *)"text", .bytes = 4},
        {.kind = AMQP_UUID, .data = (const uint8_t *)"sixteen bytes of", .bytes = 16},
        {.kind = AMQP_OTHER, .data = (const uint8_t *)"\x73\0\0\0A", .bytes = 5}, /* a character */
    };
    const uint32_t count = sizeof rows / sizeof rows[0];
    uint8_t out[512];
    struct amqp_map map;
    struct amqp_message m;
    struct amqp_pairs it;
    struct amqp_pair pair;
    struct writer_bytes w = bytes_writer(out, sizeof out);
    amqp_map_begin(&w, &map);
    for (uint32_t i = 0; i < count; i++) amqp_map_add_value(&w, &map, (const uint8_t *)"key", 2, &rows[i]);
    amqp_map_end(&w, &map);
    amqp_write_null(&w);
    REQUIRE_OK(amqp_parse(out, (uint32_t)(w.at - out), &m));
    amqp_pairs_begin(&it, m.application_properties, m.application_properties_size);
    for (uint32_t i = 0; i < count; i++) {
        REQUIRE(amqp_pairs_next(&it, &pair));
        EXPECT_EQ(rows[i].kind, pair.value.kind);
        EXPECT_EQ(rows[i].bytes, pair.value.bytes);
        if (rows[i].data) EXPECT_MEM_EQ(rows[i].data, pair.value.data, rows[i].bytes);
        else if (rows[i].kind == AMQP_BOOL) EXPECT_EQ(rows[i].truth, pair.value.truth);
        else EXPECT_EQ(rows[i].natural, pair.value.natural);
    }
    EXPECT(!amqp_pairs_next(&it, &pair));
}

TEST(an_id_keeps_its_type)
{
    static const struct amqp_value rows[] = {
        {.kind = AMQP_UINT, .natural = 41},
        {.kind = AMQP_UUID, .data = (const uint8_t *)"sixteen bytes of", .bytes = 16},
        {.kind = AMQP_BINARY, .data = (const uint8_t *)"\xff\0", .bytes = 2},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        uint8_t out[AMQP_PROPERTIES_OVERHEAD_BYTES + 2 + AMQP_NULL_BYTES];
        struct amqp_message m;
        struct amqp_value id;
        struct writer_bytes w = bytes_writer(out, sizeof out);
        amqp_write_properties(&w, &(struct amqp_properties){.id_value = &rows[i], .content_type = AMQP_JSON,
                                                            .content_type_bytes = AMQP_JSON_BYTES});
        amqp_write_null(&w);
        REQUIRE_OK(amqp_parse(out, (uint32_t)(w.at - out), &m));
        REQUIRE(amqp_message_id(&m, &id));
        EXPECT_EQ(rows[i].kind, id.kind);
        if (rows[i].data) EXPECT_MEM_EQ(rows[i].data, id.data, rows[i].bytes);
        else EXPECT_EQ(rows[i].natural, id.natural);
    }
}

TEST(a_creation_time_is_read_again_with_and_without_a_content_type_and_a_key)
{
    static const int64_t times[] = {0, 1, -1, 1700000000123, INT64_MAX, INT64_MIN};
    for (int which = 0; which < 4; which++)
        for (size_t i = 0; i < sizeof times / sizeof times[0]; i++) {
            uint8_t out[AMQP_PROPERTIES_OVERHEAD_BYTES + 3 + AMQP_NULL_BYTES];
            struct amqp_properties p = {.creation_time_ms = &times[i]};
            struct amqp_message m;
            struct amqp_value v;
            if (which & 1) p.content_type = AMQP_JSON, p.content_type_bytes = AMQP_JSON_BYTES;
            if (which & 2) p.key = (const uint8_t *)"key", p.key_bytes = 3;
            struct writer_bytes w = bytes_writer(out, sizeof out);
            amqp_write_properties(&w, &p);
            amqp_write_null(&w);
            REQUIRE_OK(amqp_parse(out, (uint32_t)(w.at - out), &m));
            REQUIRE(amqp_property(&m, AMQP_CREATION_TIME, &v));
            EXPECT_EQ(AMQP_TIMESTAMP, v.kind);
            EXPECT_EQ(times[i], v.integer);
            EXPECT_EQ((which & 1) != 0, amqp_property(&m, AMQP_CONTENT_TYPE, &v));
            EXPECT_EQ((which & 2) != 0, amqp_property(&m, AMQP_GROUP_ID, &v));
            EXPECT(!(which & 2) || (v.kind == AMQP_STRING && v.bytes == 3));
        }
}

TEST(an_annotation_is_read_again_and_is_nothing_else_of_the_message)
{
    static uint8_t out[2 * LARGEST_BYTES + 100];
    for (size_t e = 0; e < EDGES; e++)
        for (size_t k = 0; k < EDGES; k++) {
            uint32_t bytes = edges[e], key_bytes = edges[k];
            uint8_t *value = made(bytes, true), *key = made(key_bytes, false);
            struct amqp_message m;
            struct amqp_pairs it;
            struct amqp_pair pair;
            size_t room = AMQP_ANNOTATION_OVERHEAD_BYTES + bytes + key_bytes + AMQP_NULL_BYTES;
            struct writer_bytes w = bytes_writer(out, room);
            amqp_write_annotation(&w, (const char *)key, key_bytes, value, bytes);
            amqp_write_null(&w);
            REQUIRE(!w.failed);
            REQUIRE_OK(amqp_parse(out, (uint32_t)(w.at - out), &m));
            EXPECT(!m.header && !m.properties && !m.application_properties);
            amqp_pairs_begin(&it, m.message_annotations, m.message_annotations_size);
            REQUIRE(amqp_pairs_next(&it, &pair));
            REQUIRE_EQ(key_bytes, pair.key_bytes);
            EXPECT_MEM_EQ(key, pair.key, key_bytes);
            EXPECT_EQ(AMQP_BINARY, pair.value.kind);
            REQUIRE_EQ(bytes, pair.value.bytes);
            EXPECT_MEM_EQ(value, pair.value.data, bytes);
            EXPECT(!amqp_pairs_next(&it, &pair));
            free(value);
            free(key);
        }
}

TEST(an_annotation_is_spelled_as_the_standard_says)
{
    uint8_t out[64];
    static const uint8_t small[] = {0x00, 0x53, 0x72, 0xC1, 7, 2, 0xA3, 1, 'k', 0xA0, 1, 'v'};
    struct writer_bytes w = bytes_writer(out, sizeof out);
    amqp_write_annotation(&w, "k", 1, (const uint8_t *)"v", 1);
    REQUIRE_EQ(sizeof small, (size_t)(w.at - out));
    EXPECT_MEM_EQ(small, out, sizeof small);
    w = bytes_writer(out, sizeof small - 1);
    amqp_write_annotation(&w, "k", 1, (const uint8_t *)"v", 1);
    EXPECT(w.failed && w.at == out);
}

TEST(a_section_takes_at_most_its_overhead)
{
    static uint8_t out[LARGEST_BYTES + 100];
    for (size_t e = 0; e < EDGES; e++) {
        uint8_t *text = made(edges[e], false);
        struct writer_bytes w = bytes_writer(out, sizeof out);
        EXPECT(properties_size(text, edges[e], true, out, sizeof out) <= AMQP_PROPERTIES_OVERHEAD_BYTES + edges[e]);
        amqp_write_data(&w, text, edges[e]);
        EXPECT((size_t)(w.at - out) <= AMQP_DATA_OVERHEAD_BYTES + edges[e]);
        free(text);
    }
    struct writer_bytes w = bytes_writer(out, AMQP_HEADER_BYTES + AMQP_MAP_OVERHEAD_BYTES + AMQP_NULL_BYTES);
    struct amqp_map m;
    amqp_write_header(&w, 0);
    amqp_map_begin(&w, &m);
    amqp_map_end(&w, &m);
    amqp_write_null(&w);
    EXPECT(!w.failed && w.at == w.end);
}

TEST(an_empty_map_and_a_null_body_are_a_message)
{
    uint8_t out[32];
    struct amqp_map map;
    struct amqp_message m;
    struct amqp_pairs it;
    struct amqp_pair pair;
    struct amqp_value v;
    struct writer_bytes w = bytes_writer(out, sizeof out);
    amqp_map_begin(&w, &map);
    amqp_map_end(&w, &map);
    amqp_write_null(&w);
    REQUIRE_OK(amqp_parse(out, (uint32_t)(w.at - out), &m));
    EXPECT_EQ(AMQP_BODY_VALUE, m.body_kind);
    EXPECT_EQ(1, m.body_size);
    EXPECT_EQ(0x40, *m.body);
    amqp_pairs_begin(&it, m.application_properties, m.application_properties_size);
    EXPECT(!amqp_pairs_next(&it, &pair));
    EXPECT(!m.properties && !amqp_message_id(&m, &v));
}

TEST(many_pairs_come_back_in_their_order)
{
    static uint8_t out[1 << 20];
    struct amqp_map map;
    struct amqp_message m;
    struct amqp_pairs it;
    struct amqp_pair pair;
    struct writer_bytes w = bytes_writer(out, sizeof out);
    amqp_map_begin(&w, &map);
    for (uint32_t i = 0; i < 10000; i++) {
        uint8_t key[4], value[40];
        bytes_store32(key, i);
        memset(value, (int)(i & 0x7F), sizeof value);
        amqp_map_add(&w, &map, key, 4, value, i % 41);
    }
    amqp_map_end(&w, &map);
    REQUIRE_OK(amqp_parse(out, (uint32_t)(w.at - out), &m));
    amqp_pairs_begin(&it, m.application_properties, m.application_properties_size);
    for (uint32_t i = 0; i < 10000; i++) {
        REQUIRE(amqp_pairs_next(&it, &pair));
        REQUIRE_EQ(4, pair.key_bytes);
        EXPECT_EQ(i, bytes_load32(pair.key));
        REQUIRE_EQ(i % 41, pair.value.bytes);
        EXPECT_EQ(AMQP_STRING, pair.value.kind);
    }
    EXPECT(!amqp_pairs_next(&it, &pair));
}

TEST(non_ascii_values_are_strings_exactly_when_they_are_utf8)
{
    static const struct { const char *text; enum amqp_kind kind; } rows[] = {
        {"", AMQP_STRING}, {"\xC3\xA9", AMQP_STRING}, {"caf\xC3\xA9", AMQP_STRING}, {"\xE9", AMQP_BINARY},
        {"abc\xC3", AMQP_BINARY}, {"\xF0\x9F\x98\x80 twelve", AMQP_STRING}, {"\xED\xA0\x80", AMQP_BINARY},
        {"sixteen bytes \xC3\xA9", AMQP_STRING}, {"twenty bytes and \xC3\xA9", AMQP_STRING},
        {"\xC3\xA9 more than thirty-two bytes of it", AMQP_STRING},
        {"\xC3 more than thirty-two bytes of it", AMQP_BINARY},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        uint8_t out[256];
        struct amqp_map map;
        struct amqp_message m;
        struct amqp_pairs it;
        struct amqp_pair pair;
        uint32_t bytes = (uint32_t)strlen(rows[i].text);
        struct writer_bytes w = bytes_writer(out, sizeof out);
        amqp_map_begin(&w, &map);
        amqp_map_add(&w, &map, (const uint8_t *)rows[i].text, bytes, (const uint8_t *)rows[i].text, bytes);
        amqp_map_end(&w, &map);
        REQUIRE_OK(amqp_parse(out, (uint32_t)(w.at - out), &m));
        amqp_pairs_begin(&it, m.application_properties, m.application_properties_size);
        REQUIRE(amqp_pairs_next(&it, &pair));
        EXPECT_EQ(rows[i].kind, pair.value.kind);
        REQUIRE_EQ(bytes, pair.value.bytes);
        EXPECT_MEM_EQ(rows[i].text, pair.value.data, bytes);
        REQUIRE_EQ(bytes, pair.key_bytes);
        EXPECT_MEM_EQ(rows[i].text, pair.key, bytes);
    }
}

TEST(a_failed_writer_writes_nothing_more)
{
    uint8_t out[64];
    struct amqp_map m;
    memset(out, 'Z', sizeof out);
    struct writer_bytes w = bytes_writer(out, 5);
    amqp_map_begin(&w, &m);
    EXPECT(w.failed);
    amqp_map_add(&w, &m, (const uint8_t *)"k", 1, (const uint8_t *)"v", 1);
    amqp_map_end(&w, &m);
    amqp_write_null(&w);
    for (size_t i = 0; i < sizeof out; i++) EXPECT_EQ('Z', out[i]);
}
