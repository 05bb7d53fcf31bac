/* SPDX-License-Identifier: Apache-2.0 */
#include "../message/text.h"

#include "test.h"

/* An exact heap copy, so that the address sanitizer sees a read past the end. */
static bool valid(const void *data, size_t size)
{
    uint8_t *copy = malloc(size ? size : 1);
    memcpy(copy, data, size);
    bool result = utf8_is_valid(copy, size);
    free(copy);
    return result;
}

static size_t encode(uint32_t point, uint8_t *out)
{
    if (point < 0x80) return out[0] = (uint8_t)point, 1;
    if (point < 0x800) return out[0] = (uint8_t)(0xC0 | point >> 6), out[1] = (uint8_t)(0x80 | (point & 63)), 2;
    size_t bytes = point < 0x10000 ? 3 : 4;
    out[0] = (uint8_t)((bytes == 3 ? 0xE0 : 0xF0) | point >> (6 * (bytes - 1)));
    for (size_t i = 1; i < bytes; i++) out[i] = (uint8_t)(0x80 | (point >> (6 * (bytes - 1 - i)) & 63));
    return bytes;
}

TEST(every_character_but_surrogates_is_valid)
{
    for (uint32_t point = 0; point < 0x120000; point++) {
        uint8_t text[4];
        size_t size = encode(point, text);
        bool good = point <= 0x10FFFF && (point < 0xD800 || point > 0xDFFF);
        if (utf8_is_valid(text, size) != good) EXPECT_EQ(good, utf8_is_valid(text, size) + (uint64_t)point * 2);
    }
}

TEST(two_and_three_bytes_are_valid_exactly_when_they_encode_something)
{
    static uint8_t known[1 << 24 >> 3]; /* one bit for each three bytes that are a character */
    uint8_t text[8];
    uint64_t wrong = 0;
    memset(known, 0, sizeof known);
    for (uint32_t point = 0x800; point < 0x10000; point++) {
        if (point >= 0xD800 && point <= 0xDFFF) continue;
        encode(point, text);
        uint32_t key = (uint32_t)text[0] << 16 | (uint32_t)text[1] << 8 | text[2];
        known[key >> 3] |= (uint8_t)(1 << (key & 7));
    }
    for (uint32_t first = 0xE0; first < 0xF0; first++)
        for (uint32_t rest = 0; rest < 0x10000; rest++) {
            uint32_t key = first << 16 | rest;
            text[0] = (uint8_t)first, text[1] = (uint8_t)(rest >> 8), text[2] = (uint8_t)rest;
            wrong += utf8_is_valid(text, 3) != (known[key >> 3] >> (key & 7) & 1);
        }
    for (uint32_t two = 0; two < 0x10000; two++) {
        text[0] = (uint8_t)(two >> 8), text[1] = (uint8_t)two;
        bool ascii = text[0] < 0x80 && text[1] < 0x80;
        bool good = ascii || (text[0] >= 0xC2 && text[0] < 0xE0 && (text[1] & 0xC0) == 0x80);
        wrong += utf8_is_valid(text, 2) != good;
    }
    EXPECT_EQ(0, wrong);
}

TEST(overlong_forms_and_cut_characters_are_refused)
{
    static const char *const bad[] = {
        "\xC0\x80", "\xC1\xBF", "\xE0\x80\x80", "\xE0\x9F\xBF", "\xF0\x80\x80\x80", "\xF0\x8F\xBF\xBF",
        "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xF8\x88\x80\x80\x80", "\xED\xA0\x80", "\xED\xBF\xBF", "\x80",
        "\xBF", "\xFE", "\xFF", "\xC3", "\xE2\x82", "\xF0\x9F\x98", "\xC3\xC3", "\xE2\x28\xA1",
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) EXPECT(!valid(bad[i], strlen(bad[i])));
    EXPECT(valid("", 0));
    EXPECT(utf8_is_valid(NULL, 0));
}

TEST(what_is_wrong_is_found_in_every_place)
{
    for (size_t size = 1; size < 70; size++)
        for (size_t at = 0; at < size; at++) {
            uint8_t text[70];
            memset(text, 'x', size);
            EXPECT(valid(text, size));
            text[at] = 0x80;
            EXPECT(!valid(text, size));
            text[at] = 0xC3;
            EXPECT(!valid(text, size));
            if (at + 1 < size) {
                text[at + 1] = 0xA9;
                EXPECT(valid(text, size));
            }
            if (at + 3 < size) {
                memcpy(text + at, "\xF0\x9F\x98\x80", 4);
                EXPECT(valid(text, size));
                EXPECT(!valid(text, at + 3));
            }
        }
}

TEST(mixed_text_is_judged_as_character_by_character)
{
    for (int round = 0; round < 50000; round++) {
        uint8_t text[96];
        size_t size = 0;
        while (size < 80 && test_random_below(40))
            size += encode((uint32_t)test_random_below(test_random_below(3) ? 0x80 : 0xD800), text + size);
        EXPECT(valid(text, size));
        if (!size) continue;
        text[test_random_below(size)] = (uint8_t)test_random();
        const uint8_t *at = text, *end = text + size;
        bool good = true;
        while (good && at < end) good = utf8_step(&at, end);
        EXPECT_EQ(good, valid(text, size));
    }
}
