/* SPDX-License-Identifier: Apache-2.0 */
#include "../message/text.h"

#include "json_reference.h"
#include "test.h"

#define DEPTH_MAX 64

/* An exact heap copy, so that the address sanitizer sees a read past the end; and the slow way must agree. */
static err check_depth(const void *data, size_t size, uint32_t depth_max, uint64_t *position)
{
    uint64_t slow_position;
    uint8_t *copy = malloc(size ? size : 1);
    memcpy(copy, data, size);
    bool has_escapes;
    err result = json_check_escapes(copy, size, depth_max, position, &has_escapes);
    if (result == OK) EXPECT_EQ(has_escapes, size > 0 && memchr(copy, '\\', size) != NULL);
    err slow = json_reference_check(copy, size, depth_max, &slow_position);
    free(copy);
    if (result != slow || *position != slow_position)
        test_failed(__FILE__, __LINE__, "%s at %" PRIu64 ", but the reference %s at %" PRIu64 ": %.*s",
                    error_name(result), *position, error_name(slow), slow_position, (int)size, (const char *)data);
    return result;
}

TEST(a_lone_surrogate_is_half_of_a_pair_that_is_not_there)
{
    static const char *lone[] = {"\"\\ud83d\"", "\"\\ude00\"", "\"\\ud83dx\\ude00\"", "\"\\ude00\\ud83d\"",
                                 "\"\\ud83d\\n\"", "\"\\ud83d\\ud83d\\ude00\"", "[\"\\uD83D\",\"\\uDE00\"]"};
    static const char *whole[] = {"\"\\ud83d\\ude00\"", "\"\\uD83D\\uDE00\"", "\"\\\\ud83d\"", "\"\\u00e9\\n\"", "1"};
    for (size_t i = 0; i < sizeof lone / sizeof *lone; i++)
        EXPECT(json_has_lone_surrogate((const uint8_t *)lone[i], strlen(lone[i])));
    for (size_t i = 0; i < sizeof whole / sizeof *whole; i++)
        EXPECT(!json_has_lone_surrogate((const uint8_t *)whole[i], strlen(whole[i])));
}

static err check(const char *text)
{
    uint64_t position;
    err result = check_depth(text, strlen(text), DEPTH_MAX, &position);
    if (result != ERR_CORRUPT) EXPECT_EQ(strlen(text), position);
    return result;
}

/* Corrupt, and at that byte. */
static void expect_corrupt_at(size_t want, const char *text)
{
    uint64_t position;
    err result = check_depth(text, strlen(text), DEPTH_MAX, &position);
    if (result != ERR_CORRUPT || position != want)
        test_failed(__FILE__, __LINE__, "%s: expected ERR_CORRUPT at %zu, had %s at %" PRIu64, text, want,
                    error_name(result), position);
}

TEST(every_kind_of_value_is_a_document)
{
    static const char *const good[] = {
        "null", "true", "false", "0", "-0", "7", "10", "123456789012345678901234567890", "-1", "0.5", "-0.0", "1.25",
        "1e5", "1E5", "1e+5", "1e-5", "0e0", "1.5e300", "1e999999", "\"\"", "\"a\"", "[]", "{}", "[[]]", "[{}]",
        "{\"\":{}}", "{\"a\":1}", "{\"a\":1,\"a\":2}", "[1,2,3]", "[null,true,false,\"x\",1]",
        " \t\r\n 1 \t\r\n ", " [ 1 , 2 ] ", " { \"a\" : [ ] , \"b\" : { } } ", "\"\x7F\"", "[1\n]",
    };
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) EXPECT_OK(check(good[i]));
}

TEST(what_may_go_on_is_truncated)
{
    static const char *const cut[] = {
        "", " ", "n", "nul", "t", "fals", "-", "1.", "0.", "1e", "1e+", "1E-", "-0.", "\"", "\"a", "\"\\", "\"\\u",
        "\"\\u12", "\"\\u123", "[", "[1", "[1,", "[ ", "{", "{\"", "{\"a\"", "{\"a\":", "{\"a\":1", "{\"a\":1,",
        "[[]", "{\"a\":{}", "\"\xC3", "\"\xE2\x82", "\"\xF0\x9F\x98",
    };
    for (size_t i = 0; i < sizeof cut / sizeof cut[0]; i++) EXPECT_ERR(ERR_TRUNCATED, check(cut[i]));
}

TEST(what_is_wrong_is_told_with_its_first_byte)
{
    static const struct { size_t at; const char *text; } bad[] = {
        {1, "01"}, {2, "-01"}, {0, ".5"}, {0, "+1"}, {2, "1 2"}, {2, "1.e5"}, {2, "1.x"}, {2, "1ex"}, {3, "1e+-1"},
        {1, "-a"}, {1, "--1"}, {1, "1a"}, {1, "0x10"}, {0, "NaN"}, {0, "Infinity"}, {1, "-Infinity"}, {0, "True"},
        {4, "nulll"}, {3, "nulL"}, {2, "trUe"}, {0, "'a'"}, {0, "a"}, {3, "\"a\"b"}, {4, "\"a\" \"b\""}, {3, "[1,]"},
        {1, "[,1]"}, {3, "[1 2]"}, {2, "[1}"}, {1, "[}"}, {1, "{]"}, {1, "{,}"}, {7, "{\"a\":1,}"}, {1, "{1:2}"},
        {1, "{a:1}"}, {4, "{\"a\"1}"}, {4, "{\"a\",1}"}, {5, "{\"a\":}"}, {6, "{\"a\":1]"}, {7, "{\"a\":1 \"b\":2}"},
        {4, "{\"a\"}"}, {2, "[]]"}, {2, "{}}"}, {0, "]"}, {0, "}"}, {0, ","}, {0, ":"}, {0, "/* c */ 1"},
        {2, "1 // c"}, {1, "[/**/]"}, {0, "\xEF\xBB\xBF{}"}, {0, "\x0B" "1"}, {1, "1\f"}, {0, "\xA0" "1"},
        {1, "\"\n\""}, {2, "\"a\tb\""}, {1, "\"\x01\""}, {1, "\"\x1F\""}, {2, "\"\\x\""}, {2, "\"\\'\""},
        {2, "\"\\U0041\""}, {2, "\"\\0\""}, {5, "\"\\u00g0\""}, {3, "\"\\u\""}, {6, "\"\\u004\""}, {3, "\"\\u{41}\""},
        {3, "\"\\u+041\""},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        expect_corrupt_at(bad[i].at, bad[i].text);
}

TEST(nothing_at_all_may_be_null)
{
    uint64_t position = 1;
    uint8_t out[2];
    struct writer_bytes w = bytes_writer(out, sizeof out);
    EXPECT_ERR(ERR_TRUNCATED, json_check(NULL, 0, DEPTH_MAX, &position));
    EXPECT_EQ(0, position);
    EXPECT_OK(json_string_write(&w, NULL, 0));
    w = bytes_writer(out, sizeof out);
    EXPECT_OK(json_base64_write(&w, NULL, 0));
    EXPECT_MEM_EQ("\"\"", out, 2);
}

TEST(a_nul_byte_is_nothing_special)
{
    uint64_t position;
    EXPECT_ERR(ERR_CORRUPT, check_depth("1\0", 2, DEPTH_MAX, &position));
    EXPECT_EQ(1, position);
    EXPECT_ERR(ERR_CORRUPT, check_depth("\"\0\"", 3, DEPTH_MAX, &position));
    EXPECT_EQ(1, position);
    EXPECT_ERR(ERR_CORRUPT, check_depth("\"\\\0\"", 4, DEPTH_MAX, &position));
    EXPECT_EQ(2, position);
}

TEST(exactly_the_escapes_of_the_standard_are_good)
{
    for (int c = 0; c < 256; c++) {
        uint64_t position;
        char text[4] = {'"', '\\', (char)c, '"'};
        bool good = c && strchr("\"\\/bfnrt", c);
        err result = check_depth(text, sizeof text, DEPTH_MAX, &position);
        EXPECT_ERR(good ? OK : ERR_CORRUPT, result);
        EXPECT_EQ(good ? 4 : c == 'u' ? 3 : 2, position);
    }
    EXPECT_OK(check("\"\\u0000\\uABCD\\uabcd\\u09Af\""));
    EXPECT_OK(check("\"\\uD800\""));
    EXPECT_OK(check("\"\\uDC00 alone, \\uD83D\\uDE00 together\""));
}

TEST(every_byte_in_every_place_of_a_number_is_judged_as_by_the_grammar)
{
    static const char digits[] = "0123456789+-.eE ,]x\"";
    for (size_t a = 0; a < sizeof digits - 1; a++)
        for (size_t b = 0; b < sizeof digits - 1; b++)
            for (size_t c = 0; c < sizeof digits - 1; c++)
                for (size_t d = 0; d < sizeof digits - 1; d++) {
                    uint64_t position;
                    char text[4] = {digits[a], digits[b], digits[c], digits[d]};
                    (void)check_depth(text, sizeof text, DEPTH_MAX, &position);
                }
}

/* Objects where a bit of `kinds` is 1, arrays where it is 0; closed again or not. */
static size_t nested(char *out, uint32_t depth, uint64_t kinds, bool closed)
{
    size_t size = 0;
    for (uint32_t i = 0; i < depth; i++) {
        bool is_object = kinds >> (i % 61) & 1;
        const char *open = !is_object ? "[" : i + 1 < depth ? "{\"k\":" : "{";
        memcpy(out + size, open, strlen(open));
        size += strlen(open);
    }
    for (uint32_t i = depth; closed && i-- > 0;) out[size++] = kinds >> (i % 61) & 1 ? '}' : ']';
    return size;
}

TEST(nesting_is_good_exactly_up_to_the_limit)
{
    static char text[4096];
    static const uint32_t limits[] = {0, 1, 2, 63, 64, 65, 127, 128, 129, 255, 256};
    uint64_t position, kinds[] = {0, UINT64_MAX, test_random()};
    for (size_t k = 0; k < 3; k++)
        for (size_t l = 0; l < sizeof limits / sizeof limits[0]; l++) {
            uint32_t limit = limits[l];
            size_t size = nested(text, limit, kinds[k], true);
            if (limit) EXPECT_OK(check_depth(text, size, limit, &position));
            size = nested(text, limit + 1, kinds[k], true);
            EXPECT_ERR(ERR_LIMIT, check_depth(text, size, limit, &position));
            /* The one too many opens last. */
            EXPECT_EQ(nested(text, limit + 1, kinds[k], false) - 1, position);
        }
    EXPECT_OK(check_depth("[[],[],{},[]]", 13, 2, &position)); /* beside each other is not inside each other */
    EXPECT_OK(check_depth("17", 2, 0, &position));
}

TEST(an_end_of_the_other_kind_is_found_at_every_depth)
{
    static char text[4096];
    for (uint32_t depth = 1; depth <= 256; depth++) {
        uint64_t position, kinds = test_random();
        size_t size = nested(text, depth, kinds, true), wrong = size - depth + test_random_below(depth);
        text[wrong] = text[wrong] == ']' ? '}' : ']';
        EXPECT_ERR(ERR_CORRUPT, check_depth(text, size, JSON_DEPTH_MAX, &position));
        EXPECT_EQ(wrong, position);
    }
}

TEST(whatever_ends_a_string_is_found_in_every_place_of_a_block)
{
    static const char *const stops[] = {
        "\"", "\\n", "\\u12aB", "\xC3\xA9", "\xE2\x82\xAC", "\xF0\x9F\x98\x80", "\x01", "\x1F", "\x7F", "\x80",
        "\xC0\xAF", "\xED\xA0\x80", "\xF4\x90\x80\x80", "\xFF", "\\x", "\xC3(",
    };
    for (size_t s = 0; s < sizeof stops / sizeof stops[0]; s++)
        for (size_t before = 0; before < 40; before++)
            for (size_t after = 0; after < 40; after++) {
                uint64_t position;
                char text[96] = "\"";
                size_t size = 1, stop_bytes = strlen(stops[s]);
                memset(text + size, 'x', before);
                memcpy(text + (size += before), stops[s], stop_bytes);
                memset(text + (size += stop_bytes), 'y', after);
                text[size += after] = '"';
                err result = check_depth(text, ++size, DEPTH_MAX, &position);
                bool is_good = (s >= 1 && s <= 5) || s == 8;
                EXPECT_ERR(is_good ? OK : ERR_CORRUPT, result);
            }
}

TEST(white_space_of_every_length_is_stepped_over)
{
    for (size_t spaces = 0; spaces < 70; spaces++) {
        uint64_t position;
        char text[1024];
        size_t size = 0;
        static const char *const tokens[] = {"[", "{", "\"k\"", ":", "1", "}", ",", "2", "]"};
        size_t count = sizeof tokens / sizeof tokens[0];
        for (size_t t = 0; t < count; t++) {
            for (size_t i = 0; i < spaces; i++) text[size++] = " \t\r\n"[test_random_below(4)];
            memcpy(text + size, tokens[t], strlen(tokens[t]));
            size += strlen(tokens[t]);
            EXPECT_ERR(t + 1 < count ? ERR_TRUNCATED : OK, check_depth(text, size, DEPTH_MAX, &position));
        }
        size = 0;
        text[size++] = '[';
        for (size_t i = 0; i < spaces; i++) text[size++] = " \t\r\n"[test_random_below(4)];
        text[size++] = ']';
        EXPECT_OK(check_depth(text, size, DEPTH_MAX, &position));
        text[size - 1] = '\v';
        EXPECT_ERR(ERR_CORRUPT, check_depth(text, size, DEPTH_MAX, &position));
        EXPECT_EQ(spaces + 1, position);
    }
}

static const char sample[] = " {\"id\": \"a8f5-\\u00e9\\n\", \"n\": [1, -2.5e+10, 0, true, false, null, {}, []],\r\n"
                             "\t\"text\": \"na\xC3\xAFve \xE2\x82\xAC \xF0\x9F\x98\x80 and some more of it\", "
                             "\"o\": {\"\": [[{\"x\": 0.5}]]}} ";

TEST(a_document_cut_anywhere_is_truncated)
{
    size_t size = sizeof sample - 1;
    for (size_t cut = 0; cut < size - 1; cut++) {
        uint64_t position;
        EXPECT_ERR(ERR_TRUNCATED, check_depth(sample, cut, DEPTH_MAX, &position));
        EXPECT_EQ(cut, position);
    }
    EXPECT_OK(check(sample));
}

TEST(damaged_documents_are_judged_as_by_the_reference)
{
    static const char pieces[] = "{}[]:,\"\\/bfnrtu0123456789+-.eE \n\tadls\xC3\xA9\xE2\x82\xED\xF0\xF4\x01\x7F";
    uint8_t text[2 * sizeof sample];
    for (int round = 0; round < 200000; round++) {
        uint64_t position, size = sizeof sample - 1;
        memcpy(text, sample, size);
        for (uint64_t n = 1 + test_random_below(4); n; n--) {
            uint64_t at = test_random_below(size);
            uint8_t piece = (uint8_t)pieces[test_random_below(sizeof pieces - 1)];
            switch (test_random_below(4)) {
            case 0: text[at] = piece; break;
            case 1: memmove(text + at + 1, text + at, size - at), text[at] = piece, size++; break;
            case 2: memmove(text + at, text + at + 1, size - at - 1), size--; break;
            default: text[at] = (uint8_t)test_random(); break;
            }
        }
        (void)check_depth(text, size, (uint32_t)test_random_below(8), &position);
    }
}

TEST(random_short_texts_are_judged_as_by_the_reference)
{
    static const char *const words[] = {
        "{", "}", "[", "]", ":", ",", "\"k\"", "\"\"", "1", "-0.5", "true", "null", " ", "\n", "\"", "x",
    };
    for (int round = 0; round < 200000; round++) {
        uint64_t position;
        char text[128];
        size_t size = 0;
        for (uint64_t n = test_random_below(16); n; n--) {
            const char *word = words[test_random_below(sizeof words / sizeof words[0])];
            memcpy(text + size, word, strlen(word));
            size += strlen(word);
        }
        (void)check_depth(text, size, 4, &position);
    }
}

/* ---- strings ---- */

static void expect_string(const char *want, const void *text, size_t bytes)
{
    uint64_t position;
    char out[256], *copy = malloc(bytes ? bytes : 1);
    memcpy(copy, text, bytes);
    size_t size = strlen(want);
    struct writer_bytes w = bytes_writer(out, size);
    EXPECT_OK(json_string_write(&w, (uint8_t *)copy, bytes));
    EXPECT_EQ(size, (char *)w.at - out);
    EXPECT_MEM_EQ(want, out, size);
    EXPECT_OK(json_check((uint8_t *)out, size, 0, &position));
    EXPECT(size <= JSON_STRING_SIZE_MAX(bytes));
    for (size_t room = 0; room < size; room++) { /* a byte after the room stays as it was */
        out[room] = 'Z';
        w = bytes_writer(out, room);
        EXPECT_ERR(ERR_LIMIT, json_string_write(&w, (uint8_t *)copy, bytes));
        EXPECT(w.failed && out[room] == 'Z');
    }
    free(copy);
}

TEST(text_is_written_with_the_escapes_it_needs)
{
    expect_string("\"\"", "", 0);
    expect_string("\"hello\"", "hello", 5);
    expect_string("\"\\\"\\\\/\"", "\"\\/", 3);
    expect_string("\"\\b\\f\\n\\r\\t\"", "\b\f\n\r\t", 5);
    expect_string("\"\\u0000\\u0001\\u000b\\u001f\x7F\"", "\0\x01\x0B\x1F\x7F", 5);
    expect_string("\"na\xC3\xAFve \xE2\x82\xAC \xF0\x9F\x98\x80\"", "na\xC3\xAFve \xE2\x82\xAC \xF0\x9F\x98\x80", 15);
    expect_string("\"0123456789abcdef0123\\n456789abcdef\\\"\"", "0123456789abcdef0123\n456789abcdef\"", 34);
}

TEST(bytes_that_are_no_text_leave_the_writer_as_it_was)
{
    static const char *const bad[] = {"\xFF", "abc\xC3", "0123456789abcdef\x80", "\"\n\xED\xA0\x80", "\xC0\x80"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        uint8_t out[256];
        struct writer_bytes w = bytes_writer(out, sizeof out);
        EXPECT_ERR(ERR_INVALID, json_string_write(&w, (const uint8_t *)bad[i], strlen(bad[i])));
        EXPECT(w.at == out && !w.failed);
    }
}

TEST(any_text_written_is_a_document)
{
    for (int round = 0; round < 20000; round++) {
        uint8_t text[80], out[JSON_STRING_SIZE_MAX(sizeof text)];
        uint64_t position, size = test_random_below(sizeof text + 1);
        for (uint64_t i = 0; i < size; i++) text[i] = (uint8_t)test_random_below(test_random_below(8) ? 128 : 32);
        struct writer_bytes w = bytes_writer(out, sizeof out);
        EXPECT_OK(json_string_write(&w, text, size));
        EXPECT_OK(json_check(out, (uint64_t)(w.at - out), 0, &position));
    }
}

TEST(base64_is_that_of_the_standard)
{
    static const char *const rows[][2] = { /* RFC 4648 section 10 */
        {"", ""}, {"f", "Zg=="}, {"fo", "Zm8="}, {"foo", "Zm9v"}, {"foob", "Zm9vYg=="}, {"fooba", "Zm9vYmE="},
        {"foobar", "Zm9vYmFy"}, {"\xFB\xEF\xFF", "++//"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char want[32], out[32];
        int size = snprintf(want, sizeof want, "\"%s\"", rows[i][1]);
        size_t bytes = strlen(rows[i][0]);
        struct writer_bytes w = bytes_writer(out, (size_t)size);
        EXPECT_EQ(size, JSON_BASE64_SIZE(bytes));
        EXPECT_OK(json_base64_write(&w, (const uint8_t *)rows[i][0], bytes));
        EXPECT(w.at == w.end);
        EXPECT_MEM_EQ(want, out, (size_t)size);
        w = bytes_writer(out, (size_t)size - 1);
        EXPECT_ERR(ERR_LIMIT, json_base64_write(&w, (const uint8_t *)rows[i][0], bytes));
        EXPECT(w.failed && w.at == (uint8_t *)out);
    }
    struct writer_bytes w = bytes_writer(NULL, 0);
    EXPECT_ERR(ERR_LIMIT, json_base64_write(&w, NULL, UINT64_MAX));
}
