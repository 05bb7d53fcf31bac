/* SPDX-License-Identifier: Apache-2.0
 *
 * scan: headers, entries and trailers of a segment file, with every size checked.
 */
#include "scan.h"

#include <stdlib.h>
#include <string.h>

#include "../base/check.h"
#include "../base/crc32.h"
#include "../base/file.h"
#include "index.h"
#include "segment.h"

#define PIECE_BYTES (32u << 10) /* on the stack of helper threads too */

static err scan_fault(const struct scan *s, err e, uint64_t position, uint64_t needed, uint64_t had, struct fault *f)
{
    struct file_path path;
    file_path_numbered(&path, s->directory, s->segment, SEGMENT_SUFFIX);
    return fault_set(f, e, 0, path.text, position, needed, had);
}

/* A file that ends before the limit is damaged, not a caller's mistake. */
static err scan_read(const struct scan *s, void *data, size_t size, uint64_t position, struct fault *f)
{
    struct file_path path;
    file_path_numbered(&path, s->directory, s->segment, SEGMENT_SUFFIX);
    err e = file_read_exact(s->fd, path.text, data, size, position, f);
    return e == ERR_TRUNCATED ? scan_fault(s, ERR_CORRUPT, position, size, 0, f) : e;
}

err scan_header(const struct scan *s, uint64_t position, struct chunk *out, struct fault *f)
{
    if (position >= s->limit) return scan_fault(s, ERR_END, position, CHUNK_HEADER_BYTES, 0, f);
    uint64_t left = s->limit - position;
    if (left < CHUNK_HEADER_BYTES) return scan_fault(s, ERR_CORRUPT, position, CHUNK_HEADER_BYTES, left, f);
    uint8_t header[CHUNK_HEADER_BYTES];
    err e = scan_read(s, header, sizeof header, position, f);
    if (e) return e;
    e = chunk_header_read(header, sizeof header, s->seed, out);
    if (e) return scan_fault(s, ERR_CORRUPT, position, 0, 0, f);
    if (chunk_bytes(out) > left) return scan_fault(s, ERR_CORRUPT, position, chunk_bytes(out), left, f);
    return OK;
}

err scan_entries(const struct scan *s, uint64_t position, const struct chunk *c, struct fault *f)
{
    uint8_t piece[PIECE_BYTES];
    uint32_t crc = 0;
    uint64_t at = position + CHUNK_HEADER_BYTES + c->bloom_bytes, left = c->data_bytes;
    while (left > 0) {
        size_t size = left < sizeof piece ? (size_t)left : sizeof piece;
        err e = scan_read(s, piece, size, at, f);
        if (e) return e;
        crc = crc32_update(crc, piece, size);
        at += size;
        left -= size;
    }
    return crc == c->crc ? OK : scan_fault(s, ERR_CORRUPT, position, c->crc, crc, f);
}

err scan_trailer(const struct scan *s, uint64_t position, const struct chunk *c, uint8_t **trailer, struct fault *f)
{
    *trailer = NULL;
    if (c->trailer_bytes == 0) return OK;
    CHECK(c->trailer_bytes <= CHUNK_TRAILER_MAX_BYTES);
    uint8_t *data = malloc(c->trailer_bytes);
    if (!data) return scan_fault(s, ERR_NO_MEMORY, position, c->trailer_bytes, 0, f);
    uint64_t at = position + chunk_bytes(c) - c->trailer_bytes;
    err e = scan_read(s, data, c->trailer_bytes, at, f);
    if (!e && crc32_update(0, data, c->trailer_bytes) != c->trailer_crc)
        e = scan_fault(s, ERR_CORRUPT, at, c->trailer_crc, 0, f);
    if (e) free(data);
    else *trailer = data;
    return e;
}

err scan_resync(const struct scan *s, uint64_t from, uint64_t id_min, uint64_t *position, struct chunk *out,
                struct fault *f)
{
    uint8_t piece[PIECE_BYTES];
    while (from < s->limit && s->limit - from >= CHUNK_HEADER_BYTES) {
        uint64_t left = s->limit - from;
        size_t size = left < sizeof piece ? (size_t)left : sizeof piece;
        err e = scan_read(s, piece, size, from, f);
        if (e) return e;
        size_t last = size - CHUNK_HEADER_BYTES;
        for (size_t i = 0; i <= last; i++) {
            const uint8_t *found = memchr(piece + i, CHUNK_MAGIC, last + 1 - i);
            if (!found) break;
            i = (size_t)(found - piece);
            struct chunk c;
            if (chunk_header_read(found, CHUNK_HEADER_BYTES, s->seed, &c)) continue;
            if (c.chunk_id < id_min || chunk_bytes(&c) > s->limit - (from + i)) continue;
            e = scan_entries(s, from + i, &c, f);
            if (e == ERR_CORRUPT) continue;
            if (e) return e;
            *position = from + i;
            *out = c;
            return OK;
        }
        from += last + 1; /* pieces overlap by a header less one byte */
    }
    return scan_fault(s, ERR_END, s->limit, 0, 0, f);
}

/* What the index knows: the end of the chunk at `position`. */
static err scan_ask_index(const struct scan *s, uint64_t position, uint64_t index_count, struct index_record *out)
{
    struct index ix;
    err e = index_open(&ix, s->directory, s->segment, s->seed, index_count, NULL);
    if (e) return e;
    e = index_first_from(&ix, INDEX_BY_POSITION, (int64_t)position, out, NULL);
    index_close(&ix);
    return e ? e : out->position == position ? OK : ERR_NOT_FOUND;
}

err scan_past_damage(const struct scan *s, uint64_t position, uint64_t id_min, uint64_t index_count,
                     uint64_t *next_position, uint64_t *next_id, struct fault *f)
{
    struct chunk c;
    err e = scan_header(s, position, &c, f);
    if (e == OK && c.chunk_id >= id_min) {
        *next_position = position + chunk_bytes(&c);
        *next_id = c.chunk_id + c.records;
        return OK;
    }
    if (e && e != ERR_CORRUPT && e != ERR_END) return e;

    struct index_record r;
    if (scan_ask_index(s, position, index_count, &r) == OK && r.chunk_id >= id_min &&
        r.chunk_bytes >= CHUNK_HEADER_BYTES && r.position + (uint64_t)r.chunk_bytes <= s->limit) {
        *next_position = r.position + (uint64_t)r.chunk_bytes;
        *next_id = r.chunk_id + r.records;
        return OK;
    }

    e = scan_resync(s, position + 1, id_min, next_position, &c, f);
    if (e && e != ERR_END && e != ERR_CORRUPT) return e;
    if (e) *next_position = s->limit;
    *next_id = e ? 0 : c.chunk_id;
    return OK;
}
