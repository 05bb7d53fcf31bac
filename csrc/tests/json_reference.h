/* SPDX-License-Identifier: Apache-2.0
 *
 * json_reference: what json_check should answer, written from the grammar of RFC 8259 one rule after another,
 * recursive, byte by byte and without a thought for speed.  Tests and the fuzzer compare the two;
 * nothing else includes it.
 */
#ifndef VIBEMQ_TESTS_JSON_REFERENCE_H
#define VIBEMQ_TESTS_JSON_REFERENCE_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "../base/error.h"

/* Once `result` is not OK, `at` stays where it is. */
struct reference {
    const uint8_t *data;
    uint64_t size, at;
    uint32_t depth_max;
    err result;
};

static inline int reference_peek(const struct reference *r) { return r->at < r->size ? r->data[r->at] : -1; }

static inline bool reference_fail(struct reference *r, err result)
{
    r->result = result;
    return false;
}

/* The byte here is in lo .. hi, and is stepped over. */
static inline bool reference_range(struct reference *r, int lo, int hi)
{
    int c = reference_peek(r);
    if (c < 0) return reference_fail(r, ERR_TRUNCATED);
    if (c < lo || c > hi) return reference_fail(r, ERR_CORRUPT);
    r->at++;
    return true;
}

static inline bool reference_is(struct reference *r, int c) { return reference_range(r, c, c); }

static inline void reference_space(struct reference *r)
{
    while (reference_peek(r) == ' ' || reference_peek(r) == '\t' || reference_peek(r) == '\n' ||
           reference_peek(r) == '\r')
        r->at++;
}

/* One character of more than one byte, by the table of RFC 3629 section 4. */
static inline bool reference_character(struct reference *r)
{
    static const uint8_t table[][9] = { /* bytes, then the range of each */
        {2, 0xC2, 0xDF, 0x80, 0xBF, 0, 0, 0, 0},          {3, 0xE0, 0xE0, 0xA0, 0xBF, 0x80, 0xBF, 0, 0},
        {3, 0xE1, 0xEC, 0x80, 0xBF, 0x80, 0xBF, 0, 0},    {3, 0xED, 0xED, 0x80, 0x9F, 0x80, 0xBF, 0, 0},
        {3, 0xEE, 0xEF, 0x80, 0xBF, 0x80, 0xBF, 0, 0},    {4, 0xF0, 0xF0, 0x90, 0xBF, 0x80, 0xBF, 0x80, 0xBF},
        {4, 0xF1, 0xF3, 0x80, 0xBF, 0x80, 0xBF, 0x80, 0xBF}, {4, 0xF4, 0xF4, 0x80, 0x8F, 0x80, 0xBF, 0x80, 0xBF},
    };
    int lead = reference_peek(r);
    for (size_t row = 0; row < sizeof table / sizeof table[0]; row++) {
        if (lead < table[row][1] || lead > table[row][2]) continue;
        for (int i = 0; i < table[row][0]; i++)
            if (!reference_range(r, table[row][1 + 2 * i], table[row][2 + 2 * i])) return false;
        return true;
    }
    return reference_fail(r, ERR_CORRUPT);
}

static inline bool reference_escape(struct reference *r)
{
    int c = reference_peek(r);
    if (c < 0) return reference_fail(r, ERR_TRUNCATED);
    if (c == '"' || c == '\\' || c == '/' || c == 'b' || c == 'f' || c == 'n' || c == 'r' || c == 't') {
        r->at++;
        return true;
    }
    if (!reference_is(r, 'u')) return false;
    for (int i = 0; i < 4; i++) {
        c = reference_peek(r);
        int lo = c >= 'a' ? 'a' : c >= 'A' ? 'A' : '0', hi = c >= 'a' ? 'f' : c >= 'A' ? 'F' : '9';
        if (!reference_range(r, lo, hi)) return false;
    }
    return true;
}

static inline bool reference_string(struct reference *r)
{
    if (!reference_is(r, '"')) return false;
    for (;;) {
        int c = reference_peek(r);
        if (c == '"') return reference_is(r, '"');
        if (c == '\\') {
            r->at++;
            if (!reference_escape(r)) return false;
        } else if (c >= 0x80) {
            if (!reference_character(r)) return false;
        } else if (!reference_range(r, 0x20, 0x7F)) return false;
    }
}

static inline bool reference_digits(struct reference *r)
{
    if (!reference_range(r, '0', '9')) return false;
    while (reference_peek(r) >= '0' && reference_peek(r) <= '9') r->at++;
    return true;
}

static inline bool reference_number(struct reference *r)
{
    if (reference_peek(r) == '-') r->at++;
    if (reference_peek(r) == '0') r->at++;
    else if (!reference_digits(r)) return false;
    if (reference_peek(r) == '.') {
        r->at++;
        if (!reference_digits(r)) return false;
    }
    if (reference_peek(r) == 'e' || reference_peek(r) == 'E') {
        r->at++;
        if (reference_peek(r) == '+' || reference_peek(r) == '-') r->at++;
        if (!reference_digits(r)) return false;
    }
    return true;
}

static inline bool reference_word(struct reference *r, const char *word)
{
    for (; *word; word++)
        if (!reference_is(r, *word)) return false;
    return true;
}

static inline bool reference_value(struct reference *r, uint32_t depth)
{
    reference_space(r);
    int c = reference_peek(r);
    if (c < 0) return reference_fail(r, ERR_TRUNCATED);
    if (c == '"') return reference_string(r);
    if (c == '-' || (c >= '0' && c <= '9')) return reference_number(r);
    if (c == 't') return reference_word(r, "true");
    if (c == 'f') return reference_word(r, "false");
    if (c == 'n') return reference_word(r, "null");
    if (c != '[' && c != '{') return reference_fail(r, ERR_CORRUPT);
    if (depth == r->depth_max) return reference_fail(r, ERR_LIMIT);

    int end = c == '[' ? ']' : '}';
    r->at++;
    reference_space(r);
    if (reference_peek(r) == end) return reference_is(r, end);
    for (;;) {
        if (c == '{') {
            reference_space(r);
            if (!reference_string(r)) return false;
            reference_space(r);
            if (!reference_is(r, ':')) return false;
        }
        if (!reference_value(r, depth + 1)) return false;
        reference_space(r);
        if (reference_peek(r) == end) return reference_is(r, end);
        if (!reference_is(r, ',')) return false;
    }
}

static inline err json_reference_check(const uint8_t *data, uint64_t size, uint32_t depth_max, uint64_t *position)
{
    struct reference r = {.data = data, .size = size, .depth_max = depth_max, .result = OK};
    if (reference_value(&r, 0)) {
        reference_space(&r);
        if (r.at < r.size) r.result = ERR_CORRUPT;
    }
    *position = r.at;
    return r.result;
}

#endif
