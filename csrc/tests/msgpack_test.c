/* SPDX-License-Identifier: Apache-2.0 */
#include "../message/msgpack.h"

#include "../message/text.h"
#include "test.h"

#define DEPTH_MAX 60
#define JSON_BYTES_MAX 4096

static size_t from_hex(const char *hex, uint8_t *out)
{
    size_t size = 0;
    unsigned byte;
    for (; sscanf(hex, "%2x", &byte) == 1; hex += 2) out[size++] = (uint8_t)byte;
    return size;
}

/* An exact heap copy, so that the address sanitizer sees a read past the end. */
static err check(const uint8_t *data, size_t size, bool *is_json)
{
    uint8_t *copy = malloc(size ? size : 1);
    memcpy(copy, data, size);
    err result = msgpack_check(copy, size, DEPTH_MAX);
    *is_json = msgpack_is_json(copy, size);
    free(copy);
    return result;
}

static const struct { const char *hex, *json; bool is_json; } VALUES[] = {
    {"c0", "null", true}, {"c2", "false", true}, {"c3", "true", true}, {"7f", "127", true}, {"e0", "-32", true},
    {"cc80", "128", true}, {"cd0100", "256", true}, {"ce00010000", "65536", true},
    {"cfffffffffffffffff", "18446744073709551615", true}, {"d080", "-128", true}, {"d18000", "-32768", true},
    {"d280000000", "-2147483648", true}, {"d38000000000000000", "-9223372036854775808", true},
    {"cb3fb999999999999a", "0.1", true}, {"ca3fc00000", "1.5", true}, {"cb8000000000000000", "-0", true},
    {"cb7fefffffffffffff", "1.7976931348623157e+308", true}, {"cb0000000000000001", "4.94065645841247e-324", true},
    {"a0", "\"\"", true}, {"a3e282ac", "\"\xe2\x82\xac\"", true}, {"d90122", "\"\\\"\"", true}, {"da000161", "\"a\"", true},
    {"db0000000161", "\"a\"", true}, {"90", "[]", true}, {"80", "{}", true}, {"dc000101", "[1]", true},
    {"dd00000001c0", "[null]", true}, {"81a16101", "{\"a\":1}", true}, {"de0001a16190", "{\"a\":[]}", true},
    {"df00000001a16180", "{\"a\":{}}", true}, {"82a16182a162c0a163c2a164c3", "{\"a\":{\"b\":null,\"c\":false},\"d\":true}", true},
    /* Values that JSON cannot carry. */
    {"c400", "\"\"", false}, {"c40200ff", "\"AP8=\"", false}, {"c50001ff", "\"/w==\"", false},
    {"c600000001ff", "\"/w==\"", false}, {"81a161c401ff", "{\"a\":\"/w==\"}", false}, {"91c401ff", "[\"/w==\"]", false},
    {"ca7fc00000", "\"NaN\"", false}, {"cb7ff8000000000000", "\"NaN\"", false}, {"cb7ff0000000000000", "\"Infinity\"", false},
    {"cbfff0000000000000", "\"-Infinity\"", false}, {"81a161ca7f800000", "{\"a\":\"Infinity\"}", false},
    {"8101a161", "{\"1\":\"a\"}", false}, {"81ffc0", "{\"-1\":null}", false}, {"81c0c0", "{\"null\":null}", false},
    {"81c301", "{\"true\":1}", false}, {"81cb3fe000000000000001", "{\"0.5\":1}", false},
    {"81cb7ff800000000000001", "{\"NaN\":1}", false}, {"81c401ff01", "{\"/w==\":1}", false},
    {"81d6ff0000000001", "{\"1970-01-01T00:00:00Z\":1}", false}, {"8191c4010001", "{\"kcQBAA==\":1}", false},
    {"8180c0", "{\"gA==\":null}", false}, {"81d4050101", "{\"1AUB\":1}", false},
    {"82a161810102a16203", "{\"a\":{\"1\":2},\"b\":3}", false},
    {"d40501", "[5,\"AQ==\"]", false}, {"d4ff01", "[-1,\"AQ==\"]", false}, {"c7000a", "[10,\"\"]", false},
    {"d58000ff", "[-128,\"AP8=\"]", false}, {"c800010701", "[7,\"AQ==\"]", false}, {"c9000000010701", "[7,\"AQ==\"]", false},
    {"d80900112233445566778899aabbccddeeff", "[9,\"ABEiM0RVZneImaq7zN3u/w==\"]", false},
    /* Timestamps of 32, 64 and 96 bits, their limits, and some outside of ISO 8601. */
    {"d6ff00000000", "\"1970-01-01T00:00:00Z\"", false}, {"d6ff65539780", "\"2023-11-14T15:51:28Z\"", false},
    {"d6ffffffffff", "\"2106-02-07T06:28:15Z\"", false},
    {"d7ffee6b27fc65539780", "\"2023-11-14T15:51:28.999999999Z\"", false},
    {"d7ff0000019065539780", "\"2023-11-14T15:51:28.0000001Z\"", false},
    {"d7ff0000000465539780", "\"2023-11-14T15:51:28.000000001Z\"", false},
    {"c70cff00000000fffffff1886e0900", "\"0001-01-01T00:00:00Z\"", false},
    {"c70cff3b9ac99c0000003afff4417f", "\"9999-12-31T23:59:59.9999999Z\"", false},
    {"c70cff3b9ac9ffffffffffffffffff", "\"1969-12-31T23:59:59.999999999Z\"", false},
    {"c70cff000000000000003afff44180", "[-1,\"AAAAAAAAADr/9EGA\"]", false},
    {"c70cff3b9aca000000000000000000", "[-1,\"O5rKAAAAAAAAAAAA\"]", false},
};

TEST(each_value_has_its_json)
{
    for (size_t i = 0; i < sizeof VALUES / sizeof *VALUES; i++) {
        uint8_t data[64], out[JSON_BYTES_MAX];
        size_t size = from_hex(VALUES[i].hex, data);
        bool is_json;
        uint64_t position;
        struct writer_bytes w = bytes_writer(out, MSGPACK_JSON_SIZE_MAX(size));
        EXPECT_EQ(check(data, size, &is_json), OK);
        EXPECT_EQ(is_json, VALUES[i].is_json);
        EXPECT_EQ(msgpack_json_write(&w, data, size), OK);
        size_t written = (size_t)(w.at - out);
        if (written != strlen(VALUES[i].json) || memcmp(out, VALUES[i].json, written))
            test_failed(__FILE__, __LINE__, "%s is %.*s, but %s was needed", VALUES[i].hex, (int)written, (char *)out,
                        VALUES[i].json);
        EXPECT_EQ(json_check(out, written, DEPTH_MAX, &position), OK);
    }
}

TEST(a_value_that_is_cut_short_or_followed_by_a_byte_is_refused)
{
    for (size_t i = 0; i < sizeof VALUES / sizeof *VALUES; i++) {
        uint8_t data[64];
        size_t size = from_hex(VALUES[i].hex, data);
        bool is_json;
        for (size_t cut = 0; cut < size; cut++) EXPECT_EQ(check(data, cut, &is_json), ERR_TRUNCATED);
        data[size] = 0xC0;
        EXPECT_EQ(check(data, size + 1, &is_json), ERR_CORRUPT);
        EXPECT(!is_json);
    }
}

TEST(the_byte_c1_and_a_str_that_is_no_utf8_are_refused)
{
    static const char *bad[] = {"c1", "91c1", "a1ff", "81a1ffc0", "d902c3", "dd7fffffff", "c6ffffffff", "c9ffffffffff"};
    static const err why[] = {ERR_CORRUPT, ERR_CORRUPT, ERR_CORRUPT, ERR_CORRUPT, ERR_TRUNCATED, ERR_TRUNCATED,
                              ERR_TRUNCATED, ERR_TRUNCATED};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        uint8_t data[64];
        size_t size = from_hex(bad[i], data);
        bool is_json;
        EXPECT_EQ(check(data, size, &is_json), why[i]);
    }
}

TEST(a_value_nests_as_deep_as_it_may)
{
    uint8_t data[MSGPACK_DEPTH_MAX + 2], out[JSON_BYTES_MAX];
    for (uint32_t depth = 0; depth <= MSGPACK_DEPTH_MAX + 1; depth++) {
        memset(data, 0x91, depth);
        data[depth] = 0xC0;
        for (uint32_t most = 0; most <= MSGPACK_DEPTH_MAX; most++)
            EXPECT_EQ(msgpack_check(data, depth + 1, most), depth <= most ? OK : ERR_LIMIT);
        EXPECT_EQ(msgpack_is_json(data, depth + 1), depth <= MSGPACK_DEPTH_MAX);
        if (depth > MSGPACK_DEPTH_MAX) continue;
        struct writer_bytes w = bytes_writer(out, sizeof out);
        EXPECT_EQ(msgpack_json_write(&w, data, depth + 1), OK);
        EXPECT_EQ((size_t)(w.at - out), 2 * depth + 4);
    }
}

TEST(json_that_does_not_fit_is_reported)
{
    uint8_t data[64], out[JSON_BYTES_MAX];
    for (size_t i = 0; i < sizeof VALUES / sizeof *VALUES; i++) {
        size_t size = from_hex(VALUES[i].hex, data);
        for (size_t room = 0; room < strlen(VALUES[i].json); room++) {
            struct writer_bytes w = bytes_writer(out, room);
            EXPECT_EQ(msgpack_json_write(&w, data, size), ERR_LIMIT);
        }
    }
}

/* Random bytes: accepted values become valid JSON within MSGPACK_JSON_SIZE_MAX. */
TEST(any_value_becomes_json_within_the_size_limit)
{
    static uint8_t data[256], out[MSGPACK_JSON_SIZE_MAX(sizeof data)];
    static const uint8_t heads[] = {0x80, 0x81, 0x82, 0x90, 0x91, 0x92, 0xA0, 0xA1, 0xC0, 0xC2, 0xC4, 0xC7, 0xCA, 0xCB,
                                    0xCC, 0xD0, 0xD4, 0xD6, 0xD7, 0xE0, 0x01, 0x00, 0xFF};
    uint64_t good = 0;
    for (unsigned round = 0; round < 200000; round++) {
        size_t size = 1 + test_random() % 40;
        bool is_json;
        for (size_t i = 0; i < size; i++)
            data[i] = test_random() % 4 ? heads[test_random() % sizeof heads] : (uint8_t)test_random();
        if (check(data, size, &is_json) != OK) continue;
        uint64_t position;
        struct writer_bytes w = bytes_writer(out, MSGPACK_JSON_SIZE_MAX(size));
        EXPECT_EQ(msgpack_json_write(&w, data, size), OK);
        EXPECT_EQ(json_check(out, (uint64_t)(w.at - out), JSON_DEPTH_MAX, &position), OK);
        good++;
    }
    EXPECT(good > 1000);
}

TEST(a_longer_content_type_is_not_messagepack)
{
    EXPECT(msgpack_is_type((const uint8_t *)"application/msgpack", 19));
    EXPECT(!msgpack_is_type((const uint8_t *)"application/msgpack2", 20));
    EXPECT(!msgpack_is_type((const uint8_t *)"application/x-msgpac", 20));
    EXPECT(!msgpack_is_type(NULL, 0));
}
