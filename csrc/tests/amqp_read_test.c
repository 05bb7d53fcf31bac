/* SPDX-License-Identifier: Apache-2.0 */
#include "../message/amqp.h"

#include <math.h>

#include "test.h"

#define BYTES(...) (const uint8_t[]){__VA_ARGS__}, sizeof((const uint8_t[]){__VA_ARGS__})

/* A map of one pair, key "k", with this value; the value as it was read, its text beside it. */
static bool value_of(const uint8_t *value, size_t size, struct amqp_value *out, char *text, size_t *text_bytes)
{
    static uint8_t map[128];
    struct amqp_pairs it;
    struct amqp_pair pair;
    if (size > 100) abort();
    map[0] = 0xC1, map[1] = (uint8_t)(4 + size), map[2] = 2, map[3] = 0xA1, map[4] = 1, map[5] = 'k';
    memcpy(map + 6, value, size);
    amqp_pairs_begin(&it, map, (uint32_t)(6 + size));
    if (!amqp_pairs_next(&it, &pair)) return false;
    EXPECT_EQ(1, pair.key_bytes);
    EXPECT_EQ('k', *pair.key);
    EXPECT_EQ(0, bytes_left(&it.r));
    *out = pair.value;
    *text_bytes = amqp_value_text(out, text, 64);
    return !amqp_pairs_next(&it, &pair);
}

static void expect_text(enum amqp_kind kind, const char *want, const uint8_t *value, size_t size)
{
    struct amqp_value v;
    char text[65] = {0};
    size_t bytes;
    REQUIRE(value_of(value, size, &v, text, &bytes));
    EXPECT_EQ(kind, v.kind);
    EXPECT_EQ(strlen(want), bytes);
    EXPECT_STR_EQ(want, text);
    for (size_t room = 0; room < bytes; room++) { /* too little room: the size it takes, and nothing written */
        char out[64];
        memset(out, 'Z', sizeof out);
        EXPECT_EQ(bytes, amqp_value_text(&v, out, room));
        EXPECT_EQ('Z', out[0]);
    }
}

TEST(every_type_is_read_and_has_its_text)
{
    expect_text(AMQP_NULL, "", BYTES(0x40));
    expect_text(AMQP_BOOL, "true", BYTES(0x41));
    expect_text(AMQP_BOOL, "false", BYTES(0x42));
    expect_text(AMQP_BOOL, "true", BYTES(0x56, 1));
    expect_text(AMQP_BOOL, "false", BYTES(0x56, 0));
    expect_text(AMQP_UINT, "0", BYTES(0x43));
    expect_text(AMQP_UINT, "0", BYTES(0x44));
    expect_text(AMQP_UINT, "255", BYTES(0x50, 0xFF));
    expect_text(AMQP_UINT, "200", BYTES(0x52, 200));
    expect_text(AMQP_UINT, "201", BYTES(0x53, 201));
    expect_text(AMQP_UINT, "65535", BYTES(0x60, 0xFF, 0xFF));
    expect_text(AMQP_UINT, "4294967295", BYTES(0x70, 0xFF, 0xFF, 0xFF, 0xFF));
    expect_text(AMQP_UINT, "18446744073709551615", BYTES(0x80, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF));
    expect_text(AMQP_INT, "-128", BYTES(0x51, 0x80));
    expect_text(AMQP_INT, "-1", BYTES(0x54, 0xFF));
    expect_text(AMQP_INT, "127", BYTES(0x55, 0x7F));
    expect_text(AMQP_INT, "-32768", BYTES(0x61, 0x80, 0));
    expect_text(AMQP_INT, "-2147483648", BYTES(0x71, 0x80, 0, 0, 0));
    expect_text(AMQP_INT, "-9223372036854775808", BYTES(0x81, 0x80, 0, 0, 0, 0, 0, 0, 0));
    expect_text(AMQP_INT, "1000000000000", BYTES(0x81, 0, 0, 0, 0xE8, 0xD4, 0xA5, 0x10, 0x00));
    expect_text(AMQP_FLOAT, "0.1", BYTES(0x72, 0x3D, 0xCC, 0xCC, 0xCD));
    expect_text(AMQP_FLOAT, "-inf", BYTES(0x72, 0xFF, 0x80, 0, 0));
    expect_text(AMQP_DOUBLE, "0.1", BYTES(0x82, 0x3F, 0xB9, 0x99, 0x99, 0x99, 0x99, 0x99, 0x9A));
    expect_text(AMQP_DOUBLE, "0.30000000000000004", BYTES(0x82, 0x3F, 0xD3, 0x33, 0x33, 0x33, 0x33, 0x33, 0x34));
    expect_text(AMQP_DOUBLE, "-1.7976931348623157e+308", BYTES(0x82, 0xFF, 0xEF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF));
    expect_text(AMQP_DOUBLE, "nan", BYTES(0x82, 0xFF, 0xF8, 0, 0, 0, 0, 0, 0));
    expect_text(AMQP_TIMESTAMP, "1700000000000", BYTES(0x83, 0, 0, 1, 0x8B, 0xCF, 0xE5, 0x68, 0));
    expect_text(AMQP_TIMESTAMP, "-1", BYTES(0x83, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF));
    static const uint8_t uuid[] = {0x98, 0x00, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77,
                                   0x88, 0x99, 0xAA, 0xBB, 0xCC, 0xDD, 0xEE, 0xFF};
    expect_text(AMQP_UUID, "00112233-4455-6677-8899-aabbccddeeff", uuid, sizeof uuid);
    expect_text(AMQP_STRING, "abc", BYTES(0xA1, 3, 'a', 'b', 'c'));
    expect_text(AMQP_STRING, "", BYTES(0xA1, 0));
    expect_text(AMQP_SYMBOL, "ab", BYTES(0xA3, 2, 'a', 'b'));
    expect_text(AMQP_BINARY, "\xFFz", BYTES(0xA0, 2, 0xFF, 'z'));
    expect_text(AMQP_STRING, "abc", BYTES(0xB1, 0, 0, 0, 3, 'a', 'b', 'c'));
    expect_text(AMQP_SYMBOL, "a", BYTES(0xB3, 0, 0, 0, 1, 'a'));
    expect_text(AMQP_BINARY, "", BYTES(0xB0, 0, 0, 0, 0));
}

static void expect_other(const uint8_t *value, size_t size)
{
    struct amqp_value v;
    char text[64];
    size_t bytes;
    REQUIRE(value_of(value, size, &v, text, &bytes));
    EXPECT_EQ(AMQP_OTHER, v.kind);
    REQUIRE_EQ(size, v.bytes);
    EXPECT_MEM_EQ(value, v.data, size);
    EXPECT_EQ(0, bytes);
}

TEST(values_without_a_word_for_them_are_given_whole_and_have_no_text)
{
    expect_other(BYTES(0x45));
    expect_other(BYTES(0x73, 0, 0, 0, 'c'));
    expect_other(BYTES(0x74, 0, 0, 0, 0));
    expect_other(BYTES(0x84, 0, 0, 0, 0, 0, 0, 0, 0));
    expect_other(BYTES(0x94, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0));
    expect_other(BYTES(0xC0, 4, 1, 0xA1, 1, 'x'));
    expect_other(BYTES(0xC1, 1, 0));
    expect_other(BYTES(0xD0, 0, 0, 0, 5, 0, 0, 0, 1, 0x40));
    expect_other(BYTES(0xE0, 4, 2, 0x50, 1, 2));
    expect_other(BYTES(0xF0, 0, 0, 0, 5, 0, 0, 0, 9, 0x40));
    expect_other(BYTES(0x00, 0xA3, 1, 't', 0x40));
    expect_other(BYTES(0x00, 0x00, 0x53, 1, 0x53, 2, 0x00, 0x53, 3, 0x53, 4)); /* both halves are described too */
}

TEST(shortest_texts_of_reals_are_the_same_reals_again)
{
    for (int round = 0; round < 20000; round++) {
        uint64_t bits = test_random();
        struct amqp_value v = {.kind = round & 1 ? AMQP_DOUBLE : AMQP_FLOAT};
        float f;
        char text[AMQP_TEXT_MAX_BYTES + 1] = {0};
        memcpy(&f, &bits, sizeof f);
        if (round & 1) memcpy(&v.real, &bits, sizeof v.real);
        else v.real = (double)f;
        size_t bytes = amqp_value_text(&v, text, AMQP_TEXT_MAX_BYTES);
        REQUIRE(bytes <= 24);
        if (isnan(v.real)) EXPECT_STR_EQ("nan", text);
        else EXPECT(round & 1 ? strtod(text, NULL) == v.real : strtof(text, NULL) == f);
    }
}

TEST(pairs_whose_key_is_no_text_are_stepped_over)
{
    static const uint8_t map[] = {0xD1, 0, 0, 0, 21, 0, 0, 0, 8, 0x54, 1, 0x41, 0xA3, 1, 's', 0x54, 7, 0x40, 0x40, 0xB1,
                                  0, 0, 0, 1, 't', 0x43};
    struct amqp_pairs it;
    struct amqp_pair pair;
    amqp_pairs_begin(&it, map, sizeof map);
    REQUIRE(amqp_pairs_next(&it, &pair));
    EXPECT_EQ('s', *pair.key);
    EXPECT_EQ(7, pair.value.integer);
    REQUIRE(amqp_pairs_next(&it, &pair));
    EXPECT_EQ('t', *pair.key);
    EXPECT_EQ(AMQP_UINT, pair.value.kind);
    EXPECT(!amqp_pairs_next(&it, &pair));
    EXPECT(!amqp_pairs_next(&it, &pair));
}

static size_t pairs_count(const uint8_t *data, size_t size)
{
    struct amqp_pairs it;
    struct amqp_pair pair;
    size_t count = 0;
    uint8_t *copy = malloc(size ? size : 1);
    memcpy(copy, data, size);
    amqp_pairs_begin(&it, copy, (uint32_t)size);
    while (amqp_pairs_next(&it, &pair)) {
        EXPECT(pair.key >= copy && pair.key + pair.key_bytes <= copy + size);
        EXPECT(!pair.value.data || (pair.value.data >= copy && pair.value.data + pair.value.bytes <= copy + size));
        count++;
    }
    free(copy);
    return count;
}

TEST(bytes_that_are_no_map_have_no_pairs)
{
    struct amqp_pairs it;
    struct amqp_pair pair;
    amqp_pairs_begin(&it, NULL, 0);
    EXPECT(!amqp_pairs_next(&it, &pair));
    EXPECT_EQ(0, pairs_count(BYTES(0xC0, 7, 2, 0xA1, 1, 'k', 0xA1, 1, 'v')));      /* a list */
    EXPECT_EQ(0, pairs_count(BYTES(0x40)));
    EXPECT_EQ(0, pairs_count(BYTES(0xC1)));
    EXPECT_EQ(0, pairs_count(BYTES(0xC1, 0)));
    EXPECT_EQ(0, pairs_count(BYTES(0xD1, 0, 0, 0, 1, 0)));
    EXPECT_EQ(0, pairs_count(BYTES(0xC1, 8, 2, 0xA1, 1, 'k', 0xA1, 1, 'v')));      /* longer than there is */
    EXPECT_EQ(1, pairs_count(BYTES(0xC1, 7, 2, 0xA1, 1, 'k', 0xA1, 1, 'v')));
    EXPECT_EQ(1, pairs_count(BYTES(0xC1, 7, 3, 0xA1, 1, 'k', 0xA1, 1, 'v')));      /* an odd count */
    EXPECT_EQ(1, pairs_count(BYTES(0xC1, 7, 0xFE, 0xA1, 1, 'k', 0xA1, 1, 'v')));   /* a count too large */
    EXPECT_EQ(0, pairs_count(BYTES(0xC1, 7, 2, 0xA1, 1, 'k', 0xA1, 2, 'v')));      /* a value that leaves the map */
    EXPECT_EQ(0, pairs_count(BYTES(0xC1, 7, 2, 0xA1, 1, 'k', 0x31, 1, 'v')));      /* no such code */
    EXPECT_EQ(0, pairs_count(BYTES(0xC1, 5, 2, 0xA1, 1, 'k', 0x00)));              /* described, and nothing after it */
}

TEST(damaged_maps_never_give_spans_outside_them)
{
    static const uint8_t good[] = {
        0xC1, 46, 10, 0xA1, 1, 'a', 0xA1, 3, 'x', 'y', 'z', 0xA3, 1, 'b', 0xB0, 0, 0, 0, 2, 1, 2, 0xB1, 0, 0, 0, 1, 'c',
        0xC0, 3, 2, 0x40, 0x41, 0xA1, 1, 'd', 0x00, 0xA3, 1, 't', 0x40, 0xA1, 1, 'e', 0x71, 0, 0, 0, 7,
    };
    uint8_t data[sizeof good];
    EXPECT_EQ(5, pairs_count(good, sizeof good));
    for (size_t cut = 0; cut < sizeof good; cut++) EXPECT_EQ(0, pairs_count(good, cut));
    for (int round = 0; round < 100000; round++) {
        memcpy(data, good, sizeof good);
        for (uint64_t n = 1 + test_random_below(3); n; n--)
            data[test_random_below(sizeof data)] = (uint8_t)test_random();
        EXPECT(pairs_count(data, sizeof data) <= 127);
    }
}

TEST(fields_are_found_by_their_index)
{
    static const uint8_t list[] = {
        0xC0, 36, 10, 0x80, 0, 0, 0, 0, 0, 0, 1, 2, /* message-id: ulong 258 */
        0xA0, 1, 'u', 0xA1, 1, 't', 0x40,           /* user-id, to, no subject */
        0xA1, 1, 'r', 0x53, 5, 0xA3, 1, 'c',        /* reply-to, correlation-id, content-type */
        0x40, 0x40, 0x83, 0, 0, 0, 0, 0, 0, 0, 9,   /* no encoding, no expiry time, creation time */
    };
    struct amqp_message m = {.properties = list, .properties_size = sizeof list};
    struct amqp_value v;
    EXPECT_EQ(list[1], sizeof list - 2);
    REQUIRE(amqp_message_id(&m, &v));
    EXPECT_EQ(AMQP_UINT, v.kind);
    EXPECT_EQ(258, v.natural);
    REQUIRE(amqp_property(&m, AMQP_USER_ID, &v));
    EXPECT_EQ(AMQP_BINARY, v.kind);
    REQUIRE(amqp_property(&m, AMQP_TO, &v));
    EXPECT_EQ('t', *v.data);
    EXPECT(!amqp_property(&m, AMQP_SUBJECT, &v));
    REQUIRE(amqp_property(&m, AMQP_REPLY_TO, &v));
    EXPECT_EQ('r', *v.data);
    REQUIRE(amqp_property(&m, AMQP_CORRELATION_ID, &v));
    EXPECT_EQ(5, v.natural);
    REQUIRE(amqp_property(&m, AMQP_CONTENT_TYPE, &v));
    EXPECT_EQ(AMQP_SYMBOL, v.kind);
    EXPECT(!amqp_property(&m, AMQP_CONTENT_ENCODING, &v));
    REQUIRE(amqp_property(&m, AMQP_CREATION_TIME, &v));
    EXPECT_EQ(AMQP_TIMESTAMP, v.kind);
    EXPECT_EQ(9, v.integer);
    EXPECT(!amqp_property(&m, AMQP_GROUP_ID, &v)); /* after the last */
    m.properties = (const uint8_t[]){0x45}, m.properties_size = 1;
    EXPECT(!amqp_message_id(&m, &v));
    m.properties = NULL, m.properties_size = 0;
    EXPECT(!amqp_message_id(&m, &v));
}

static bool priority_of(const uint8_t *header, size_t size, uint8_t *out)
{
    struct amqp_message m = {.header = header, .header_size = (uint32_t)size};
    return amqp_header_priority(&m, out);
}

TEST(a_priority_is_an_unsigned_byte)
{
    uint8_t priority = 0;
    EXPECT(priority_of(BYTES(0xC0, 4, 2, 0x41, 0x50, 7), &priority));
    EXPECT_EQ(7, priority);
    EXPECT(priority_of(BYTES(0xD0, 0, 0, 0, 7, 0, 0, 0, 2, 0x40, 0x50, 255), &priority));
    EXPECT_EQ(255, priority);
    EXPECT(!priority_of(NULL, 0, &priority));
    EXPECT(!priority_of(BYTES(0x45), &priority));
    EXPECT(!priority_of(BYTES(0xC0, 2, 1, 0x41), &priority));
    EXPECT(!priority_of(BYTES(0xC0, 3, 2, 0x41, 0x40), &priority));
    EXPECT(!priority_of(BYTES(0xC0, 5, 2, 0x41, 0x60, 1, 0), &priority)); /* 256 */
    EXPECT(!priority_of(BYTES(0xC0, 4, 2, 0x41, 0x51, 7), &priority));
    EXPECT_EQ(255, priority);
}
