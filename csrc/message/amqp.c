/* SPDX-License-Identifier: Apache-2.0
 *
 * amqp: find a message's sections, stepping over every value in them, and read single values.
 *
 * A value is walked to its last byte and not only skipped by its size: after OK, whatever lies inside a section is well
 * formed too, and whoever reads it later needs no case for half a value.  Every byte is visited once and nesting is
 * bounded, so the work is linear in the size of the message whatever it says of itself.
 *
 * The order of sections is not enforced, because real clients differ in it; that none comes twice (but for data and
 * sequences, which may) and that bodies are of one kind is.
 */
#include "amqp.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "amqp_codes.h"

#define AMQP_DEPTH_MAX 32 /* values inside values; client libraries nest two or three deep */

/* For each category the lower halves that are assigned, one bit each. */
static const uint16_t assigned[16] = {
    [CATEGORY_FIXED_0] = 0x003F,    /* null, true, false, uint 0, ulong 0, empty list */
    [CATEGORY_FIXED_1] = 0x007F,    /* ubyte, byte, small uint, ulong, int, long, boolean */
    [CATEGORY_FIXED_2] = 0x0003,    /* ushort, short */
    [CATEGORY_FIXED_4] = 0x001F,    /* uint, int, float, char, decimal32 */
    [CATEGORY_FIXED_8] = 0x001F,    /* ulong, long, double, timestamp, decimal64 */
    [CATEGORY_FIXED_16] = 0x0110,   /* decimal128, uuid */
    [CATEGORY_VARIABLE_1] = 0x000B, /* binary, string, symbol */
    [CATEGORY_VARIABLE_4] = 0x000B,
    [CATEGORY_COMPOUND_1] = 0x0003, /* list, map */
    [CATEGORY_COMPOUND_4] = 0x0003,
    [CATEGORY_ARRAY_1] = 0x0001,
    [CATEGORY_ARRAY_4] = 0x0001,
};

enum shape { SHAPE_OTHER, SHAPE_LIST, SHAPE_MAP, SHAPE_BINARY };

static bool is_assigned(uint8_t code) { return assigned[code >> 4] >> (code & 15) & 1; }

static enum shape shape_of(uint8_t code)
{
    switch (code) {
    case CODE_BINARY_8: case CODE_BINARY_32: return SHAPE_BINARY;
    case CODE_LIST_EMPTY: case CODE_LIST_8: case CODE_LIST_32: return SHAPE_LIST;
    case CODE_MAP_8: case CODE_MAP_32: return SHAPE_MAP;
    default: return SHAPE_OTHER;
    }
}

static err value_skip(struct reader_bytes *r, unsigned depth);
static err data_skip(struct reader_bytes *r, uint8_t code, unsigned depth);

/* Most values of real messages are short strings, short binaries and nulls: over those in few steps.  False when
 * the next value is another or leaves the reader; nothing has happened then. */
static inline bool common_skip(struct reader_bytes *r)
{
    size_t left = bytes_left(r);
    if (left == 0) return false;
    uint8_t code = r->at[0];
    if (code == CODE_NULL) {
        r->at++;
        return true;
    }
    if (code >> 4 != CATEGORY_VARIABLE_1 || !is_assigned(code) || left < 2 || r->at[1] > left - 2) return false;
    r->at += 2 + (size_t)r->at[1];
    return true;
}

/* A size or count of one byte or of four. */
static uint32_t number_read(struct reader_bytes *r, bool wide) { return wide ? bytes_u32(r) : bytes_u8(r); }

/* Elements of a list or map: each has its own code, so `count` of them take at least as many bytes. */
static err elements_skip(struct reader_bytes *r, uint32_t count, unsigned depth)
{
    if (count > bytes_left(r) || (count && depth > AMQP_DEPTH_MAX)) return ERR_CORRUPT;
    for (uint32_t i = 0; i < count; i++)
        if (!common_skip(r) && value_skip(r, depth) != OK) return ERR_CORRUPT;
    return OK;
}

/* Elements of an array: one code for all.  Those of fixed width are never counted out one
 * by one, because `count` elements of no width take no bytes. */
static err array_skip(struct reader_bytes *r, uint32_t count, unsigned depth)
{
    uint32_t width;
    if (count == 0 && bytes_left(r) == 0) return OK; /* some encoders leave the code out then */
    uint8_t code = bytes_u8(r);
    if (!r->failed && code == CODE_DESCRIBED) {
        if (value_skip(r, depth) != OK) return ERR_CORRUPT;
        code = bytes_u8(r);
    }
    if (r->failed || !is_assigned(code)) return ERR_CORRUPT;
    if (amqp_fixed_width(code, &width)) {
        uint64_t size = (uint64_t)count * width;
        return size <= bytes_left(r) && bytes_take(r, (size_t)size) ? OK : ERR_CORRUPT;
    }
    for (uint32_t i = 0; i < count; i++)
        if (data_skip(r, code, depth) != OK) return ERR_CORRUPT;
    return OK;
}

/* What follows the size of a list, map or array: the elements fill it exactly. */
static err compound_skip(struct reader_bytes *r, uint8_t code, unsigned depth)
{
    uint8_t category = code >> 4;
    bool wide = category & 1, is_array = category >= CATEGORY_ARRAY_1;
    uint32_t size = number_read(r, wide);
    const uint8_t *content = bytes_take(r, size);
    if (!content) return ERR_TRUNCATED;

    struct reader_bytes inside = bytes_reader(content, size);
    uint32_t count = number_read(&inside, wide);
    if (inside.failed) return ERR_CORRUPT;
    if (shape_of(code) == SHAPE_MAP && count % 2) return ERR_CORRUPT;
    err result = is_array ? array_skip(&inside, count, depth + 1) : elements_skip(&inside, count, depth + 1);
    return result == OK && bytes_left(&inside) == 0 ? OK : ERR_CORRUPT;
}

/* The value after its code. */
static err data_skip(struct reader_bytes *r, uint8_t code, unsigned depth)
{
    uint32_t width;
    if (depth > AMQP_DEPTH_MAX || !is_assigned(code)) return ERR_CORRUPT;
    if (amqp_fixed_width(code, &width)) return bytes_take(r, width) ? OK : ERR_TRUNCATED;
    if (code >> 4 >= CATEGORY_COMPOUND_1) return compound_skip(r, code, depth);
    width = number_read(r, code >> 4 == CATEGORY_VARIABLE_4);
    return bytes_take(r, width) ? OK : ERR_TRUNCATED;
}

/* A code and its value, or a descriptor and the value it describes. */
static err value_skip(struct reader_bytes *r, unsigned depth)
{
    if (depth > AMQP_DEPTH_MAX) return ERR_CORRUPT;
    uint8_t code = bytes_u8(r);
    if (r->failed) return ERR_TRUNCATED;
    if (code != CODE_DESCRIBED) return data_skip(r, code, depth);
    err result = value_skip(r, depth + 1);
    return result == OK ? value_skip(r, depth + 1) : result;
}

/* A value of any shape. */
static inline bool any_skip(struct reader_bytes *r) { return common_skip(r) || value_skip(r, 0) == OK; }

/* ---- sections ---- */

/* SHAPE_OTHER: any value will do. */
static const struct { enum shape shape; enum amqp_body body; } section_rules[SECTION_COUNT] = {
    [SECTION_HEADER] = {SHAPE_LIST, AMQP_BODY_NONE},
    [SECTION_DELIVERY_ANNOTATIONS] = {SHAPE_MAP, AMQP_BODY_NONE},
    [SECTION_MESSAGE_ANNOTATIONS] = {SHAPE_MAP, AMQP_BODY_NONE},
    [SECTION_PROPERTIES] = {SHAPE_LIST, AMQP_BODY_NONE},
    [SECTION_APPLICATION_PROPERTIES] = {SHAPE_MAP, AMQP_BODY_NONE},
    [SECTION_DATA] = {SHAPE_BINARY, AMQP_BODY_DATA},
    [SECTION_SEQUENCE] = {SHAPE_LIST, AMQP_BODY_SEQUENCE},
    [SECTION_VALUE] = {SHAPE_OTHER, AMQP_BODY_VALUE},
    [SECTION_FOOTER] = {SHAPE_MAP, AMQP_BODY_NONE},
};

/* The descriptor of a section: 0x00 and a ulong in either of its two encodings. */
static err descriptor_read(struct reader_bytes *r, enum amqp_section *out)
{
    uint64_t number;
    if (bytes_left(r) >= 3 && r->at[0] == CODE_DESCRIBED && r->at[1] == CODE_SMALL_ULONG) { /* as nearly all write it */
        number = r->at[2];
        r->at += 3;
    } else {
        uint8_t described = bytes_u8(r);
        if (described != CODE_DESCRIBED) return ERR_CORRUPT;
        uint8_t code = bytes_u8(r);
        if (r->failed) return ERR_TRUNCATED;
        if (code != CODE_SMALL_ULONG && code != CODE_ULONG) return ERR_CORRUPT;
        number = code == CODE_SMALL_ULONG ? bytes_u8(r) : bytes_u64(r);
        if (r->failed) return ERR_TRUNCATED;
    }
    if (number < SECTION_FIRST || number - SECTION_FIRST >= SECTION_COUNT) return ERR_CORRUPT;
    *out = (enum amqp_section)(number - SECTION_FIRST);
    return OK;
}

/* Where the value of a section goes in the answer. */
static void section_note(struct amqp_message *m, enum amqp_section section, const uint8_t *value, uint32_t size)
{
    switch (section) {
    case SECTION_HEADER: m->header = value, m->header_size = size; break;
    case SECTION_MESSAGE_ANNOTATIONS: m->message_annotations = value, m->message_annotations_size = size; break;
    case SECTION_PROPERTIES: m->properties = value, m->properties_size = size; break;
    case SECTION_APPLICATION_PROPERTIES:
        m->application_properties = value, m->application_properties_size = size;
        break;
    case SECTION_DATA: case SECTION_SEQUENCE: case SECTION_VALUE:
        m->data_count += section == SECTION_DATA;
        if (!m->body) m->body = value, m->body_size = size; /* the first is the one we give */
        break;
    default: break;
    }
}

err amqp_parse(const uint8_t *data, uint32_t size, struct amqp_message *out)
{
    if (size == 0) return ERR_CORRUPT; /* no section is no message */
    struct reader_bytes r = bytes_reader(data, size);
    struct amqp_message m = {0};
    uint32_t seen = 0; /* one bit for each section */

    while (bytes_left(&r)) {
        enum amqp_section section;
        err result = descriptor_read(&r, &section);
        if (result != OK) return result;
        enum amqp_body body = section_rules[section].body;
        enum shape shape = section_rules[section].shape;
        bool repeats = section == SECTION_DATA || section == SECTION_SEQUENCE;
        if (!repeats && seen >> section & 1) return ERR_CORRUPT;
        if (body != AMQP_BODY_NONE && m.body_kind != AMQP_BODY_NONE && m.body_kind != body) return ERR_CORRUPT;
        seen |= 1u << section;

        const uint8_t *value = r.at;
        if (bytes_left(&r) == 0) return ERR_TRUNCATED;
        if (shape != SHAPE_OTHER && shape_of(*value) != shape) return ERR_CORRUPT;
        result = common_skip(&r) ? OK : value_skip(&r, 0);
        if (result != OK) return result;
        if (body != AMQP_BODY_NONE) m.body_kind = body;
        if (section == SECTION_DATA) value += *value >> 4 == CATEGORY_VARIABLE_1 ? 2 : 5; /* code and size */
        section_note(&m, section, value, (uint32_t)(r.at - value));
    }
    *out = m;
    return OK;
}

/* ---- values ---- */

static void span_set(struct amqp_value *v, enum amqp_kind kind, struct reader_bytes *r, uint32_t bytes)
{
    v->kind = kind;
    v->bytes = bytes;
    v->data = bytes_take(r, bytes);
}

static void natural_set(struct amqp_value *v, uint64_t natural) { v->kind = AMQP_UINT, v->natural = natural; }
static void integer_set(struct amqp_value *v, int64_t integer) { v->kind = AMQP_INT, v->integer = integer; }
static void truth_set(struct amqp_value *v, bool truth) { v->kind = AMQP_BOOL, v->truth = truth; }

static double float_of(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, sizeof f);
    return (double)f;
}

/* A string, symbol or binary whose size is one byte, as most values are: in few steps.  False when the next value
 * is another or leaves the reader; nothing has happened then. */
static inline bool short_read(struct reader_bytes *r, struct amqp_value *out)
{
    static const uint8_t kinds[4] = {AMQP_BINARY, AMQP_STRING, AMQP_NULL, AMQP_SYMBOL}; /* NULL: no such code */
    size_t left = bytes_left(r);
    if (left < 2 || (r->at[0] & 0xFCu) != CODE_BINARY_8 || r->at[1] > left - 2) return false;
    enum amqp_kind kind = (enum amqp_kind)kinds[r->at[0] & 3];
    if (kind == AMQP_NULL) return false;
    out->kind = kind;
    out->bytes = r->at[1];
    out->data = r->at + 2;
    out->natural = 0;
    r->at += 2 + (size_t)out->bytes;
    return true;
}

static __attribute__((noinline)) bool other_read(struct reader_bytes *r, struct amqp_value *out)
{
    struct amqp_value v = {0};
    struct reader_bytes before = *r;
    switch (bytes_u8(r)) {
    case CODE_NULL: v.kind = AMQP_NULL; break;
    case CODE_TRUE: truth_set(&v, true); break;
    case CODE_FALSE: truth_set(&v, false); break;
    case CODE_BOOLEAN: truth_set(&v, bytes_u8(r) != 0); break;
    case CODE_UINT_0: case CODE_ULONG_0: natural_set(&v, 0); break;
    case CODE_UBYTE: case CODE_SMALL_UINT: case CODE_SMALL_ULONG: natural_set(&v, bytes_u8(r)); break;
    case CODE_USHORT: natural_set(&v, bytes_u16(r)); break;
    case CODE_UINT: natural_set(&v, bytes_u32(r)); break;
    case CODE_ULONG: natural_set(&v, bytes_u64(r)); break;
    case CODE_BYTE: case CODE_SMALL_INT: case CODE_SMALL_LONG: integer_set(&v, (int8_t)bytes_u8(r)); break;
    case CODE_SHORT: integer_set(&v, (int16_t)bytes_u16(r)); break;
    case CODE_INT: integer_set(&v, (int32_t)bytes_u32(r)); break;
    case CODE_LONG: integer_set(&v, (int64_t)bytes_u64(r)); break;
    case CODE_TIMESTAMP: v.kind = AMQP_TIMESTAMP, v.integer = (int64_t)bytes_u64(r); break;
    case CODE_FLOAT: v.kind = AMQP_FLOAT, v.real = float_of(bytes_u32(r)); break;
    case CODE_DOUBLE: v.kind = AMQP_DOUBLE, v.natural = bytes_u64(r); break; /* its bits */
    case CODE_UUID: span_set(&v, AMQP_UUID, r, 16); break;
    case CODE_STRING_8: span_set(&v, AMQP_STRING, r, bytes_u8(r)); break;
    case CODE_STRING_32: span_set(&v, AMQP_STRING, r, bytes_u32(r)); break;
    case CODE_SYMBOL_8: span_set(&v, AMQP_SYMBOL, r, bytes_u8(r)); break;
    case CODE_SYMBOL_32: span_set(&v, AMQP_SYMBOL, r, bytes_u32(r)); break;
    case CODE_BINARY_8: span_set(&v, AMQP_BINARY, r, bytes_u8(r)); break;
    case CODE_BINARY_32: span_set(&v, AMQP_BINARY, r, bytes_u32(r)); break;
    default: /* or no byte was left */
        *r = before;
        if (value_skip(r, 0) != OK) return false;
        v = (struct amqp_value){.kind = AMQP_OTHER, .bytes = (uint32_t)(r->at - before.at), .data = before.at};
        break;
    }
    if (r->failed) return false;
    *out = v;
    return true;
}

/* The next value; false when it does not end before the reader does. */
static inline bool value_read(struct reader_bytes *r, struct amqp_value *out)
{
    return short_read(r, out) || other_read(r, out);
}

/* ---- lists and maps ---- */

/* A list or map of the code `small` or the one for greater sizes: its elements and how many it says they are. */
static struct reader_bytes container_open(const uint8_t *data, uint32_t size, uint8_t small, uint32_t *count)
{
    const struct reader_bytes none = {0};
    *count = 0;
    if (!data) return none;
    struct reader_bytes r = bytes_reader(data, size);
    uint8_t code = bytes_u8(&r);
    bool wide = code == small + (CODE_LIST_32 - CODE_LIST_8);
    if (code != small && !wide) return none;
    uint32_t inside = wide ? bytes_u32(&r) : bytes_u8(&r);
    const uint8_t *content = bytes_take(&r, inside);
    if (!content) return none;
    r = bytes_reader(content, inside);
    *count = wide ? bytes_u32(&r) : bytes_u8(&r);
    return r;
}

void amqp_pairs_begin(struct amqp_pairs *it, const uint8_t *data, uint32_t size)
{
    uint32_t count;
    it->r = container_open(data, size, CODE_MAP_8, &count);
    it->left = count / 2;
}

bool amqp_pairs_next(struct amqp_pairs *it, struct amqp_pair *out)
{
    while (it->left) {
        struct amqp_value key;
        it->left--;
        if (!value_read(&it->r, &key) || !value_read(&it->r, &out->value)) {
            it->left = 0;
            return false;
        }
        if (key.kind != AMQP_STRING && key.kind != AMQP_SYMBOL && key.kind != AMQP_BINARY) continue;
        out->key = key.data;
        out->key_bytes = key.bytes;
        return true;
    }
    return false;
}

static bool list_field(const uint8_t *data, uint32_t size, uint32_t index, struct amqp_value *out)
{
    uint32_t count;
    struct reader_bytes r = container_open(data, size, CODE_LIST_8, &count);
    if (index >= count) return false;
    for (uint32_t i = 0; i < index; i++)
        if (!any_skip(&r)) return false;
    return value_read(&r, out) && out->kind != AMQP_NULL;
}

bool amqp_property(const struct amqp_message *m, enum amqp_field field, struct amqp_value *out)
{
    return list_field(m->properties, m->properties_size, (uint32_t)field, out);
}

bool amqp_message_id(const struct amqp_message *m, struct amqp_value *out)
{
    return amqp_property(m, AMQP_MESSAGE_ID, out);
}

bool amqp_header_priority(const struct amqp_message *m, uint8_t *out)
{
    struct amqp_value v;
    if (!list_field(m->header, m->header_size, 1, &v) || v.kind != AMQP_UINT || v.natural > UINT8_MAX) return false;
    *out = (uint8_t)v.natural;
    return true;
}

/* ---- text ---- */

static size_t natural_text(uint64_t natural, bool negative, char *out)
{
    char digits[20];
    size_t count = 0, size = 0;
    do digits[count++] = (char)('0' + natural % 10);
    while (natural /= 10);
    if (negative) out[size++] = '-';
    while (count) out[size++] = digits[--count];
    return size;
}

static size_t integer_text(int64_t integer, char *out)
{
    uint64_t bits = (uint64_t)integer;
    return natural_text(integer < 0 ? 0 - bits : bits, integer < 0, out);
}

/* The fewest digits from which the same number is read again; 9 and 17 are always enough. */
static size_t real_text(double real, bool is_float, char *out, size_t size)
{
    if (real != real) {
        memcpy(out, "nan", 3); /* printf would show the sign of some */
        return 3;
    }
    int digits = is_float ? 6 : 15, digits_max = is_float ? 9 : 17, bytes = 0;
    for (; digits <= digits_max; digits++) {
        bytes = snprintf(out, size, "%.*g", digits, real);
        if (is_float ? strtof(out, NULL) == (float)real : strtod(out, NULL) == real) break;
    }
    return (size_t)bytes;
}

static size_t uuid_text(const uint8_t *uuid, char *out)
{
    static const char hex[] = "0123456789abcdef";
    char *p = out;
    for (int i = 0; i < 16; i++) {
        if (i == 4 || i == 6 || i == 8 || i == 10) *p++ = '-';
        *p++ = hex[uuid[i] >> 4];
        *p++ = hex[uuid[i] & 15];
    }
    return (size_t)(p - out);
}

size_t amqp_value_text(const struct amqp_value *v, char *out, size_t size)
{
    char made[AMQP_TEXT_MAX_BYTES + 1]; /* snprintf ends with a NUL */
    const void *text = made;
    size_t bytes = 0;
    switch (v->kind) {
    case AMQP_NULL: case AMQP_OTHER: break;
    case AMQP_STRING: case AMQP_SYMBOL: case AMQP_BINARY: text = v->data, bytes = v->bytes; break;
    case AMQP_BOOL: text = v->truth ? "true" : "false", bytes = v->truth ? 4 : 5; break;
    case AMQP_UINT: bytes = natural_text(v->natural, false, made); break;
    case AMQP_INT: case AMQP_TIMESTAMP: bytes = integer_text(v->integer, made); break;
    case AMQP_FLOAT: case AMQP_DOUBLE: bytes = real_text(v->real, v->kind == AMQP_FLOAT, made, sizeof made); break;
    case AMQP_UUID: bytes = uuid_text(v->data, made); break;
    }
    if (bytes && bytes <= size) memcpy(out, text, bytes);
    return bytes;
}
