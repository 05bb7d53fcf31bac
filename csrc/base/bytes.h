/* SPDX-License-Identifier: Apache-2.0
 *
 * bytes: a bounded reader and a bounded writer of big-endian values.
 *
 * A reader carries its end; a read past it sets `failed` and yields 0, so a
 * decoder reads all fields and asks once.  Nothing here allocates or copies
 * more than the value asked for.
 */
#ifndef VIBEMQ_BASE_BYTES_H
#define VIBEMQ_BASE_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline uint16_t bytes_load16(const uint8_t *p) { uint16_t v; memcpy(&v, p, 2); return __builtin_bswap16(v); }
static inline uint32_t bytes_load32(const uint8_t *p) { uint32_t v; memcpy(&v, p, 4); return __builtin_bswap32(v); }
static inline uint64_t bytes_load64(const uint8_t *p) { uint64_t v; memcpy(&v, p, 8); return __builtin_bswap64(v); }
static inline void bytes_store16(uint8_t *p, uint16_t v) { v = __builtin_bswap16(v); memcpy(p, &v, 2); }
static inline void bytes_store32(uint8_t *p, uint32_t v) { v = __builtin_bswap32(v); memcpy(p, &v, 4); }
static inline void bytes_store64(uint8_t *p, uint64_t v) { v = __builtin_bswap64(v); memcpy(p, &v, 8); }

/* Invariant: at <= end; once failed, every read yields 0 and `at` stays put. */
struct reader_bytes {
    const uint8_t *at, *end;
    bool failed;
};

static inline struct reader_bytes bytes_reader(const void *p, size_t size)
{
    return (struct reader_bytes){(const uint8_t *)p, (const uint8_t *)p + size, false};
}
static inline size_t bytes_left(const struct reader_bytes *r) { return (size_t)(r->end - r->at); }

/* The next n bytes in place, or NULL (and failed) when there are fewer. */
static inline const uint8_t *bytes_take(struct reader_bytes *r, size_t n)
{
    if (r->failed || n > bytes_left(r)) { r->failed = true; return NULL; }
    const uint8_t *p = r->at;
    r->at += n;
    return p;
}
static inline uint8_t bytes_u8(struct reader_bytes *r) { const uint8_t *p = bytes_take(r, 1); return p ? *p : 0; }
static inline uint16_t bytes_u16(struct reader_bytes *r) { const uint8_t *p = bytes_take(r, 2); return p ? bytes_load16(p) : 0; }
static inline uint32_t bytes_u32(struct reader_bytes *r) { const uint8_t *p = bytes_take(r, 4); return p ? bytes_load32(p) : 0; }
static inline uint64_t bytes_u64(struct reader_bytes *r) { const uint8_t *p = bytes_take(r, 8); return p ? bytes_load64(p) : 0; }

/* Invariant: at <= end; once failed, nothing more is written. */
struct writer_bytes {
    uint8_t *at, *end;
    bool failed;
};

static inline struct writer_bytes bytes_writer(void *p, size_t size)
{
    return (struct writer_bytes){(uint8_t *)p, (uint8_t *)p + size, false};
}
static inline uint8_t *bytes_room(struct writer_bytes *w, size_t n)
{
    if (w->failed || n > (size_t)(w->end - w->at)) { w->failed = true; return NULL; }
    uint8_t *p = w->at;
    w->at += n;
    return p;
}
static inline void bytes_put8(struct writer_bytes *w, uint8_t v) { uint8_t *p = bytes_room(w, 1); if (p) *p = v; }
static inline void bytes_put16(struct writer_bytes *w, uint16_t v) { uint8_t *p = bytes_room(w, 2); if (p) bytes_store16(p, v); }
static inline void bytes_put32(struct writer_bytes *w, uint32_t v) { uint8_t *p = bytes_room(w, 4); if (p) bytes_store32(p, v); }
static inline void bytes_put64(struct writer_bytes *w, uint64_t v) { uint8_t *p = bytes_room(w, 8); if (p) bytes_store64(p, v); }
static inline void bytes_put(struct writer_bytes *w, const void *data, size_t n) { uint8_t *p = bytes_room(w, n); if (p && n) memcpy(p, data, n); }

#endif
