/* SPDX-License-Identifier: Apache-2.0
 *
 * amqp_write: how much a part takes is computed first and its room taken once, so that there is
 * one comparison for each part and never half of one.
 */
#include "amqp_write.h"

#include <string.h>

#include "amqp_codes.h"
#include "text.h"

#define CONTENT_TYPE_NULLS (AMQP_CONTENT_TYPE - AMQP_MESSAGE_ID - 1) /* fields between the two */
#define CREATION_TIME_NULLS (AMQP_CREATION_TIME - AMQP_CONTENT_TYPE - 1)
#define WIDE_BYTES 9    /* the code of a number, and the number */
#define NARROW_BYTES 5
#define UUID_BYTES 17
#define SHORT_MAX_BYTES 255  /* sizes of one byte */

static uint8_t *descriptor_put(uint8_t *p, enum amqp_section section)
{
    p[0] = CODE_DESCRIBED;
    p[1] = CODE_SMALL_ULONG;
    p[2] = (uint8_t)(SECTION_FIRST + section);
    return p + 3;
}

/* What a string or binary takes: code, size, content. */
static uint64_t variable_size(uint32_t bytes) { return (bytes <= SHORT_MAX_BYTES ? 2 : 5) + (uint64_t)bytes; }

static uint8_t *variable_put(uint8_t *p, uint8_t code_short, const uint8_t *data, uint32_t bytes)
{
    if (bytes <= SHORT_MAX_BYTES) {
        p[0] = code_short;
        p[1] = (uint8_t)bytes;
        p += 2;
    } else {
        p[0] = (uint8_t)(code_short + (CODE_BINARY_32 - CODE_BINARY_8));
        bytes_store32(p + 1, bytes);
        p += 5;
    }
    if (bytes) memcpy(p, data, bytes);
    return p + bytes;
}

/* The beginning of a list or map of the code `small`, or where it is `wide` of the one for greater sizes. */
static uint8_t *container_put(uint8_t *p, uint8_t small, bool wide, uint64_t content_bytes, uint32_t count)
{
    if (!wide) {
        p[0] = small;
        p[1] = (uint8_t)(content_bytes + 1); /* the count, too */
        p[2] = (uint8_t)count;
        return p + 3;
    }
    p[0] = (uint8_t)(small + (CODE_LIST_32 - CODE_LIST_8));
    bytes_store32(p + 1, (uint32_t)content_bytes + 4);
    bytes_store32(p + 5, count);
    return p + 9;
}

#define WORD_HIGH_BITS UINT64_C(0x8080808080808080)

/* At most 16 bytes copied, two words that may overlap at a time; the bits of all bytes together. */
static inline uint64_t copy_small(uint8_t *p, const uint8_t *data, uint32_t bytes)
{
    uint64_t first = 0, last = 0;
    if (bytes >= 8) {
        memcpy(&first, data, 8);
        memcpy(&last, data + bytes - 8, 8);
        memcpy(p, &first, 8);
        memcpy(p + bytes - 8, &last, 8);
    } else if (bytes >= 4) {
        memcpy(&first, data, 4);
        memcpy(&last, data + bytes - 4, 4);
        memcpy(p, &first, 4);
        memcpy(p + bytes - 4, &last, 4);
    } else {
        for (uint32_t i = 0; i < bytes; i++) first |= p[i] = data[i];
    }
    return first | last;
}

/* A string where it is UTF-8, else binary.  Keys, ids and most values are so short that calls would cost more
 * than the bytes: those up to 32 are copied and looked at in the same loads. */
static uint8_t *text_put(uint8_t *p, const uint8_t *data, uint32_t bytes)
{
    if (bytes > 32) return variable_put(p, utf8_is_valid(data, bytes) ? CODE_STRING_8 : CODE_BINARY_8, data, bytes);
    uint64_t bits = copy_small(p + 2, data, bytes > 16 ? 16 : bytes);
    if (bytes > 16) bits |= copy_small(p + 2 + bytes - 16, data + bytes - 16, 16);
    p[0] = !(bits & WORD_HIGH_BITS) || utf8_is_valid(data, bytes) ? CODE_STRING_8 : CODE_BINARY_8;
    p[1] = (uint8_t)bytes;
    return p + 2 + bytes;
}

static bool is_text(const struct amqp_value *v)
{
    return v->kind == AMQP_STRING || v->kind == AMQP_SYMBOL || v->kind == AMQP_BINARY;
}

/* What a value takes, its code included. */
static uint64_t value_size(const struct amqp_value *v)
{
    if (is_text(v)) return variable_size(v->bytes);
    switch (v->kind) {
    case AMQP_UINT: case AMQP_INT: case AMQP_TIMESTAMP: case AMQP_DOUBLE: return WIDE_BYTES;
    case AMQP_FLOAT: return NARROW_BYTES;
    case AMQP_UUID: return UUID_BYTES;
    case AMQP_OTHER: return v->bytes;
    default: return 1;
    }
}

static uint8_t *value_put(uint8_t *p, const struct amqp_value *v)
{
    static const uint8_t wide_codes[] = {[AMQP_UINT] = CODE_ULONG, [AMQP_INT] = CODE_LONG,
                                         [AMQP_DOUBLE] = CODE_DOUBLE, [AMQP_TIMESTAMP] = CODE_TIMESTAMP};
    float narrow;
    uint32_t bits;
    if (is_text(v)) return text_put(p, v->data, v->bytes);
    switch (v->kind) {
    case AMQP_BOOL: *p = v->truth ? CODE_TRUE : CODE_FALSE; break;
    case AMQP_UINT: case AMQP_INT: case AMQP_TIMESTAMP: case AMQP_DOUBLE:
        *p = wide_codes[v->kind];
        bytes_store64(p + 1, v->natural); /* the bits of any of them */
        break;
    case AMQP_FLOAT:
        *p = CODE_FLOAT;
        narrow = (float)v->real;
        memcpy(&bits, &narrow, sizeof bits);
        bytes_store32(p + 1, bits);
        break;
    case AMQP_UUID:
        *p = CODE_UUID;
        memcpy(p + 1, v->data, UUID_BYTES - 1);
        break;
    case AMQP_OTHER: memcpy(p, v->data, v->bytes); break;
    default: *p = CODE_NULL; break;
    }
    return p + value_size(v);
}

void amqp_write_header(struct writer_bytes *w, uint8_t priority)
{
    uint8_t *p = bytes_room(w, AMQP_HEADER_BYTES);
    if (!p) return;
    p = descriptor_put(p, SECTION_HEADER);
    const uint8_t list[] = {CODE_LIST_8, 4, 2, CODE_TRUE, CODE_UBYTE, priority};
    memcpy(p, list, sizeof list);
}

void amqp_write_annotation(struct writer_bytes *w, const char *key, uint32_t key_bytes, const uint8_t *value,
                           uint32_t value_bytes)
{
    uint64_t pair = variable_size(key_bytes) + variable_size(value_bytes);
    bool wide = pair + 1 > SHORT_MAX_BYTES; /* a map's size counts the count */
    if (pair + 4 > UINT32_MAX) w->failed = true;
    uint8_t *p = bytes_room(w, 3 + (wide ? 9 : 3) + pair);
    if (!p) return;
    p = container_put(descriptor_put(p, SECTION_MESSAGE_ANNOTATIONS), CODE_MAP_8, wide, pair, 2);
    p = variable_put(p, CODE_SYMBOL_8, (const uint8_t *)key, key_bytes);
    variable_put(p, CODE_BINARY_8, value, value_bytes);
}

void amqp_write_properties(struct writer_bytes *w, const struct amqp_properties *of)
{
    uint32_t count = 1;
    uint64_t fields = of->id ? variable_size(of->id_bytes) : of->id_value ? value_size(of->id_value) : 1;
    if (of->content_type || of->creation_time_ms || of->key) {
        fields += CONTENT_TYPE_NULLS + (of->content_type ? variable_size(of->content_type_bytes) : 1);
        count = AMQP_CONTENT_TYPE + 1;
    }
    if (of->creation_time_ms || of->key) {
        fields += CREATION_TIME_NULLS + (of->creation_time_ms ? WIDE_BYTES : 1);
        count = AMQP_CREATION_TIME + 1;
    }
    if (of->key) {
        fields += variable_size(of->key_bytes);
        count = AMQP_GROUP_ID + 1;
    }
    bool wide = fields + 1 > SHORT_MAX_BYTES; /* a list's size counts the count */
    if (fields + 4 > UINT32_MAX) w->failed = true;
    uint8_t *p = bytes_room(w, 3 + (wide ? 9 : 3) + fields);
    if (!p) return;

    p = container_put(descriptor_put(p, SECTION_PROPERTIES), CODE_LIST_8, wide, fields, count);
    if (of->id) p = text_put(p, of->id, of->id_bytes);
    else if (of->id_value) p = value_put(p, of->id_value);
    else *p++ = CODE_NULL;
    if (count == 1) return;
    memset(p, CODE_NULL, CONTENT_TYPE_NULLS);
    p += CONTENT_TYPE_NULLS;
    if (of->content_type)
        p = variable_put(p, CODE_SYMBOL_8, (const uint8_t *)of->content_type, of->content_type_bytes);
    else *p++ = CODE_NULL;
    if (count <= AMQP_CREATION_TIME) return;
    memset(p, CODE_NULL, CREATION_TIME_NULLS + 1); /* the time, too */
    p += CREATION_TIME_NULLS;
    if (of->creation_time_ms) {
        struct amqp_value time = {.kind = AMQP_TIMESTAMP, .integer = *of->creation_time_ms};
        p = value_put(p, &time);
    } else p++;
    if (of->key) text_put(p, of->key, of->key_bytes);
}

void amqp_map_begin(struct writer_bytes *w, struct amqp_map *m)
{
    uint8_t *p = bytes_room(w, AMQP_MAP_OVERHEAD_BYTES);
    *m = (struct amqp_map){0};
    if (!p) return;
    p = descriptor_put(p, SECTION_APPLICATION_PROPERTIES);
    p[0] = CODE_MAP_32;
    memset(p + 1, 0, 8); /* size and count, known at the end */
    m->size_at = p + 1;
}

void amqp_map_add(struct writer_bytes *w, struct amqp_map *m, const uint8_t *key, uint32_t key_bytes,
                  const uint8_t *value, uint32_t value_bytes)
{
    uint8_t *p = bytes_room(w, variable_size(key_bytes) + variable_size(value_bytes));
    if (!p) return;
    p = text_put(p, key, key_bytes);
    text_put(p, value, value_bytes);
    m->count += 2;
}

void amqp_map_add_value(struct writer_bytes *w, struct amqp_map *m, const uint8_t *key, uint32_t key_bytes,
                        const struct amqp_value *value)
{
    uint8_t *p = bytes_room(w, variable_size(key_bytes) + value_size(value));
    if (!p) return;
    value_put(text_put(p, key, key_bytes), value);
    m->count += 2;
}

void amqp_map_end(struct writer_bytes *w, struct amqp_map *m)
{
    if (w->failed || !m->size_at) return;
    uint64_t size = (uint64_t)(w->at - (m->size_at + 4));
    if (size > UINT32_MAX) {
        w->failed = true;
        return;
    }
    bytes_store32(m->size_at, (uint32_t)size);
    bytes_store32(m->size_at + 4, m->count);
}

void amqp_write_data(struct writer_bytes *w, const uint8_t *body, uint32_t bytes)
{
    uint8_t *p = bytes_room(w, 3 + variable_size(bytes));
    if (!p) return;
    variable_put(descriptor_put(p, SECTION_DATA), CODE_BINARY_8, body, bytes);
}

void amqp_write_value(struct writer_bytes *w, const uint8_t *encoded, uint32_t bytes)
{
    uint8_t *p = bytes_room(w, 3 + (size_t)bytes);
    if (!p) return;
    memcpy(descriptor_put(p, SECTION_VALUE), encoded, bytes);
}

void amqp_write_null(struct writer_bytes *w)
{
    amqp_write_value(w, (const uint8_t[]){CODE_NULL}, 1);
}
