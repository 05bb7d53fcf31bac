/* SPDX-License-Identifier: Apache-2.0
 *
 * msgpack: one reader of values, and two walks with it.
 *
 * The check walks with a stack of counts: for each open array or map the number of remaining values, keys included.  A
 * value of a map is a key when that number is even.  The JSON writer is recursive; the check before it
 * bounds its depth.  A key is never written as nested JSON, because each level of quotes inside quotes would double
 * its size.
 */
#include "msgpack.h"

#include <math.h>
#include <stdio.h>
#include <time.h>

#include "../base/check.h"
#include "amqp.h"
#include "text.h"

#define INLINE static inline __attribute__((always_inline))

#define TIMESTAMP_TYPE (-1)
#define NANOSECONDS 1000000000u
#define TICK_NANOSECONDS 100u                  /* the resolution of .NET's DateTime */
#define YEAR_1_S INT64_C(-62135596800)         /* 0001-01-01T00:00:00Z */
#define YEAR_9999_END_S INT64_C(253402300799)  /* 9999-12-31T23:59:59Z */
#define ISO_BYTES_MAX 128                      /* 30 are written; the compiler counts with any int for each field */

enum kind { NIL, BOOL, UINT, INT, REAL, STR, BIN, EXT, ARRAY, MAP };

/* `size`: the bytes of a str, bin or ext, which `data` points to; the values of an array or map, keys included. */
struct value {
    enum kind kind;
    bool truth;
    int8_t type;
    uint64_t natural;
    int64_t integer;
    double real;
    uint64_t size;
    const uint8_t *data;
};

bool msgpack_is_type(const uint8_t *type, uint32_t size)
{
    return size == sizeof MSGPACK_TYPE - 1 && memcmp(type, MSGPACK_TYPE, size) == 0;
}

/* ---- reading ---- */

INLINE uint64_t natural_read(struct reader_bytes *r, unsigned width)
{
    return width == 1 ? bytes_u8(r) : width == 2 ? bytes_u16(r) : width == 4 ? bytes_u32(r) : bytes_u64(r);
}

INLINE bool sized_set(struct value *v, enum kind kind, struct reader_bytes *r, uint64_t size)
{
    v->kind = kind;
    v->size = size;
    if (kind < ARRAY) v->data = bytes_take(r, size);
    return !r->failed;
}

INLINE bool ext_set(struct value *v, struct reader_bytes *r, uint64_t size)
{
    v->type = (int8_t)bytes_u8(r);
    return sized_set(v, EXT, r, size);
}

INLINE bool real_set(struct value *v, struct reader_bytes *r, unsigned width)
{
    v->kind = REAL;
    if (width == 4) {
        uint32_t bits = bytes_u32(r);
        float f;
        memcpy(&f, &bits, sizeof f);
        v->real = (double)f;
    } else {
        uint64_t bits = bytes_u64(r);
        memcpy(&v->real, &bits, sizeof v->real);
    }
    return !r->failed;
}

/* Read the next value, or the head of an array or map.  False: it is cut short (`failed`), or 0xc1. */
INLINE bool value_read(struct reader_bytes *r, struct value *v)
{
    uint8_t first = bytes_u8(r);
    if (r->failed) return false;
    if (first < 0x80) return v->kind = UINT, v->natural = first, true;
    if (first >= 0xE0) return v->kind = INT, v->integer = (int8_t)first, true;
    if (first < 0x90) return sized_set(v, MAP, r, 2 * (uint64_t)(first & 0x0F));
    if (first < 0xA0) return sized_set(v, ARRAY, r, first & 0x0F);
    if (first < 0xC0) return sized_set(v, STR, r, first & 0x1F);
    switch (first) {
    case 0xC0: return v->kind = NIL, true;
    case 0xC2: case 0xC3: return v->kind = BOOL, v->truth = first & 1, true;
    case 0xC4: case 0xC5: case 0xC6: return sized_set(v, BIN, r, natural_read(r, 1u << (first - 0xC4)));
    case 0xC7: case 0xC8: case 0xC9: return ext_set(v, r, natural_read(r, 1u << (first - 0xC7)));
    case 0xCA: case 0xCB: return real_set(v, r, 4u << (first - 0xCA));
    case 0xCC: case 0xCD: case 0xCE: case 0xCF:
        v->kind = UINT, v->natural = natural_read(r, 1u << (first - 0xCC));
        return !r->failed;
    case 0xD0: v->kind = INT, v->integer = (int8_t)bytes_u8(r); return !r->failed;
    case 0xD1: v->kind = INT, v->integer = (int16_t)bytes_u16(r); return !r->failed;
    case 0xD2: v->kind = INT, v->integer = (int32_t)bytes_u32(r); return !r->failed;
    case 0xD3: v->kind = INT, v->integer = (int64_t)bytes_u64(r); return !r->failed;
    case 0xD4: case 0xD5: case 0xD6: case 0xD7: case 0xD8: return ext_set(v, r, UINT64_C(1) << (first - 0xD4));
    case 0xD9: case 0xDA: case 0xDB: return sized_set(v, STR, r, natural_read(r, 1u << (first - 0xD9)));
    case 0xDC: case 0xDD: return sized_set(v, ARRAY, r, natural_read(r, 2u << (first - 0xDC)));
    case 0xDE: case 0xDF: return sized_set(v, MAP, r, 2 * natural_read(r, 2u << (first - 0xDE)));
    default: return false;
    }
}

/* ---- the check ---- */

/* `is_json`: NULL asks for UTF-8 instead; else the walk ends at the first value that JSON cannot carry. */
INLINE err walk(const uint8_t *data, uint64_t size, uint32_t depth_max, bool *is_json)
{
    uint64_t left[MSGPACK_DEPTH_MAX];
    bool in_map[MSGPACK_DEPTH_MAX];
    uint32_t depth = 0;
    struct reader_bytes r = bytes_reader(data, size);
    struct value v = {0};
    CHECK(depth_max <= MSGPACK_DEPTH_MAX);

    for (;;) {
        bool is_key = depth && in_map[depth - 1] && left[depth - 1] % 2 == 0;
        if (!value_read(&r, &v)) return r.failed ? ERR_TRUNCATED : ERR_CORRUPT;
        if (is_json && (v.kind == BIN || v.kind == EXT || (is_key && v.kind != STR) ||
                        (v.kind == REAL && !isfinite(v.real)))) {
            *is_json = false;
            return OK;
        }
        if (!is_json && v.kind == STR && !utf8_is_valid(v.data, v.size)) return ERR_CORRUPT;
        if (depth) left[depth - 1]--;
        if (v.kind >= ARRAY) {
            if (depth == depth_max) return ERR_LIMIT;
            if (v.size > bytes_left(&r)) return ERR_TRUNCATED; /* each value is a byte at least */
            left[depth] = v.size;
            in_map[depth] = v.kind == MAP;
            depth++;
        }
        while (depth && left[depth - 1] == 0) depth--;
        if (depth == 0) break;
    }
    return bytes_left(&r) ? ERR_CORRUPT : OK;
}

err msgpack_check(const uint8_t *data, uint64_t size, uint32_t depth_max) { return walk(data, size, depth_max, NULL); }

bool msgpack_is_json(const uint8_t *data, uint64_t size)
{
    bool is_json = true;
    return walk(data, size, MSGPACK_DEPTH_MAX, &is_json) == OK && is_json;
}

/* ---- JSON ---- */

static void word_write(struct writer_bytes *w, const char *word) { bytes_put(w, word, strlen(word)); }

static void number_write(struct writer_bytes *w, const struct value *v)
{
    struct amqp_value number = {0};
    char text[AMQP_TEXT_MAX_BYTES];
    if (v->kind == UINT) number.kind = AMQP_UINT, number.natural = v->natural;
    else if (v->kind == INT) number.kind = AMQP_INT, number.integer = v->integer;
    else number.kind = AMQP_DOUBLE, number.real = v->real;
    bytes_put(w, text, amqp_value_text(&number, text, sizeof text));
}

/* False: it is another ext, or a timestamp outside of ISO 8601. */
static bool timestamp_read(const struct value *v, int64_t *seconds, uint32_t *nanoseconds)
{
    if (v->type != TIMESTAMP_TYPE) return false;
    *nanoseconds = 0;
    if (v->size == 4) *seconds = bytes_load32(v->data);
    else if (v->size == 8) {
        uint64_t both = bytes_load64(v->data);
        *seconds = (int64_t)(both & ((UINT64_C(1) << 34) - 1));
        *nanoseconds = (uint32_t)(both >> 34);
    } else if (v->size == 12) {
        *nanoseconds = bytes_load32(v->data);
        *seconds = (int64_t)bytes_load64(v->data + 4);
    } else return false;
    return *nanoseconds < NANOSECONDS && *seconds >= YEAR_1_S && *seconds <= YEAR_9999_END_S;
}

static void timestamp_write(struct writer_bytes *w, int64_t seconds, uint32_t nanoseconds)
{
    struct tm t;
    time_t whole = (time_t)seconds;
    char text[ISO_BYTES_MAX];
    int size;
    CHECK(gmtime_r(&whole, &t));
    size = snprintf(text, sizeof text, "\"%04d-%02d-%02dT%02d:%02d:%02d", t.tm_year + 1900, t.tm_mon + 1, t.tm_mday,
                    t.tm_hour, t.tm_min, t.tm_sec);
    bytes_put(w, text, (size_t)size);
    if (nanoseconds) {
        bool in_ticks = nanoseconds % TICK_NANOSECONDS == 0;
        size = in_ticks ? snprintf(text, sizeof text, ".%07u", nanoseconds / TICK_NANOSECONDS)
                        : snprintf(text, sizeof text, ".%09u", nanoseconds);
        bytes_put(w, text, (size_t)size);
    }
    word_write(w, "Z\"");
}

static void ext_write(struct writer_bytes *w, const struct value *v)
{
    char text[8];
    bytes_put(w, text, (size_t)snprintf(text, sizeof text, "[%d,", v->type));
    json_base64_write(w, v->data, v->size);
    bytes_put8(w, ']');
}

static void value_write(struct writer_bytes *w, struct reader_bytes *r, bool is_key)
{
    const uint8_t *begin = r->at;
    int64_t seconds;
    uint32_t nanoseconds;
    struct value v = {0};
    CHECK(value_read(r, &v));
    bool is_plain = v.kind <= INT || (v.kind == REAL && isfinite(v.real)); /* no string of its own */
    if (is_key && is_plain) bytes_put8(w, '"');
    switch (v.kind) {
    case NIL: word_write(w, "null"); break;
    case BOOL: word_write(w, v.truth ? "true" : "false"); break;
    case UINT: case INT: number_write(w, &v); break;
    case REAL:
        if (isfinite(v.real)) number_write(w, &v);
        else word_write(w, isnan(v.real) ? "\"NaN\"" : v.real > 0 ? "\"Infinity\"" : "\"-Infinity\"");
        break;
    case STR: CHECK(json_string_write(w, v.data, v.size) != ERR_INVALID); break;
    case BIN: json_base64_write(w, v.data, v.size); break;
    case EXT:
        if (timestamp_read(&v, &seconds, &nanoseconds)) timestamp_write(w, seconds, nanoseconds);
        else if (is_key) json_base64_write(w, begin, (uint64_t)(r->at - begin));
        else ext_write(w, &v);
        break;
    case ARRAY: case MAP:
        if (is_key) {
            struct writer_bytes none = {0}; /* writes nothing: only the reader moves */
            for (uint64_t i = 0; i < v.size; i++) value_write(&none, r, false);
            json_base64_write(w, begin, (uint64_t)(r->at - begin));
            break;
        }
        bytes_put8(w, v.kind == MAP ? '{' : '[');
        for (uint64_t i = 0; i < v.size; i++) {
            bool key = v.kind == MAP && i % 2 == 0;
            if (i) bytes_put8(w, v.kind == MAP && !key ? ':' : ',');
            value_write(w, r, key);
        }
        bytes_put8(w, v.kind == MAP ? '}' : ']');
        break;
    }
    if (is_key && is_plain) bytes_put8(w, '"');
}

err msgpack_json_write(struct writer_bytes *w, const uint8_t *data, uint64_t size)
{
    struct reader_bytes r = bytes_reader(data, size);
    value_write(w, &r, false);
    return w->failed ? ERR_LIMIT : OK;
}
