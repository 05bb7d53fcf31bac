/* SPDX-License-Identifier: Apache-2.0
 *
 * amqp_read: lists and maps are stepped through by the sizes in them, without recursion.
 */
#include "amqp_read.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "amqp_codes.h"

/* ---- values ---- */

/* What follows a code that is not CODE_DESCRIBED, by its size alone. */
static bool content_take(struct reader_bytes *r, uint8_t code)
{
    uint32_t width;
    uint8_t category = code >> 4;
    if (!amqp_fixed_width(code, &width)) {
        if (category < CATEGORY_VARIABLE_1) return false;
        width = category & 1 ? bytes_u32(r) : bytes_u8(r); /* odd categories have sizes of four bytes */
    }
    return bytes_take(r, width) != NULL;
}

/* A value of any shape, and the descriptors before it: each of those announces one value more. */
static bool any_take(struct reader_bytes *r)
{
    for (size_t expected = 1; expected; expected--) {
        uint8_t code = bytes_u8(r);
        if (r->failed) return false;
        if (code == CODE_DESCRIBED) expected += 2;
        else if (!content_take(r, code)) return false;
    }
    return true;
}

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

static double double_of(uint64_t bits)
{
    double d;
    memcpy(&d, &bits, sizeof d);
    return d;
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

/* The next value; false when it does not end before the reader does. */
static bool value_read(struct reader_bytes *r, struct amqp_value *out)
{
    if (short_read(r, out)) return true;
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
    case CODE_DOUBLE: v.kind = AMQP_DOUBLE, v.real = double_of(bytes_u64(r)); break;
    case CODE_UUID: span_set(&v, AMQP_UUID, r, 16); break;
    case CODE_STRING_8: span_set(&v, AMQP_STRING, r, bytes_u8(r)); break;
    case CODE_STRING_32: span_set(&v, AMQP_STRING, r, bytes_u32(r)); break;
    case CODE_SYMBOL_8: span_set(&v, AMQP_SYMBOL, r, bytes_u8(r)); break;
    case CODE_SYMBOL_32: span_set(&v, AMQP_SYMBOL, r, bytes_u32(r)); break;
    case CODE_BINARY_8: span_set(&v, AMQP_BINARY, r, bytes_u8(r)); break;
    case CODE_BINARY_32: span_set(&v, AMQP_BINARY, r, bytes_u32(r)); break;
    default: /* or no byte was left */
        *r = before;
        if (!any_take(r)) return false;
        v = (struct amqp_value){.kind = AMQP_OTHER, .bytes = (uint32_t)(r->at - before.at), .data = before.at};
        break;
    }
    if (r->failed) return false;
    *out = v;
    return true;
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
        if (!any_take(&r)) return false;
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
