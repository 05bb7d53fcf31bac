/* SPDX-License-Identifier: Apache-2.0
 *
 * scan: headers, entries and trailers of a segment file, with every size checked.
 */
#include "segment.h"

#include <stdlib.h>
#include <string.h>

#include "../base/check.h"
#include "../base/crc32.h"
#include "cold.h"

#define PIECE_BYTES (32u << 10) /* on the stack of helper threads too */

err scan_open(struct scan *s, const char *directory, uint64_t segment, uint64_t limit, struct fault *f)
{
    *s = (struct scan){.segment = segment, .limit = limit, .directory = directory};
    err e = segment_open(directory, segment, false, &s->fd, &s->seed, f);
    if (e != ERR_NOT_FOUND) return e;
    struct stub stub;
    if (stub_read(directory, segment, &stub, NULL)) return e; /* the fault keeps naming the segment */
    s->seed = stub.seed;
    s->cold_bytes = stub.bytes;
    s->fd = -1;
    return OK;
}

static err scan_fault(const struct scan *s, err e, uint64_t position, uint64_t needed, uint64_t had, struct fault *f)
{
    struct file_path path = file_path_numbered(s->directory, s->segment, SEGMENT_SUFFIX);
    return fault_set(f, e, 0, path.text, position, needed, had);
}

/* A file that ends before the limit is damaged, not a caller's mistake. */
static err scan_read(const struct scan *s, void *data, size_t size, uint64_t position, struct fault *f)
{
    if (s->cold_bytes) {
        uint64_t got;
        int fd = -1; /* opened for each piece: nobody scans what is cold for long */
        err e = cold_read(s->directory, s->segment, s->cold_bytes, &fd, data, size, position, false, &got, f);
        file_close(&fd);
        return e;
    }
    struct file_path path = file_path_numbered(s->directory, s->segment, SEGMENT_SUFFIX);
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
    uint32_t crc = e ? 0 : crc32_update(0, data, c->trailer_bytes);
    if (!e && crc != c->trailer_crc) e = scan_fault(s, ERR_CORRUPT, at, c->trailer_crc, crc, f);
    if (e) free(data);
    else *trailer = data;
    return e;
}

#define SECTOR_BYTES 512u /* the smallest that a power cut leaves unwritten */

bool scan_header_one_bit(const struct scan *s, uint64_t position, uint64_t id, struct chunk *out, int *flipped)
{
    uint8_t header[CHUNK_HEADER_BYTES];
    if (position >= s->limit || s->limit - position < sizeof header) return false;
    if (scan_read(s, header, sizeof header, position, NULL)) return false;
    err e = chunk_header_read(header, sizeof header, s->seed, out);
    *flipped = -1;
    for (int bit = 0; e && bit < 8 * (int)sizeof header; bit++) {
        header[bit / 8] ^= (uint8_t)(1u << bit % 8);
        e = chunk_header_read(header, sizeof header, s->seed, out);
        header[bit / 8] ^= (uint8_t)(1u << bit % 8);
        *flipped = bit / 8;
    }
    return !e && out->chunk_id == id && chunk_bytes(out) <= s->limit - position;
}

/* Is a sector with bytes of [position, end) all zeros?  The next chunk's bytes count: they were written with these. */
static bool has_hole(const struct scan *s, uint64_t position, uint64_t end)
{
    static const uint8_t zeros[SECTOR_BYTES];
    uint8_t sector[SECTOR_BYTES];
    while (position < end) {
        size_t size = SECTOR_BYTES - (size_t)(position % SECTOR_BYTES);
        if (size > s->limit - position) size = (size_t)(s->limit - position);
        if (scan_read(s, sector, size, position, NULL) || memcmp(sector, zeros, size) == 0) return true;
        position += size;
    }
    return false;
}

static bool range_crc(const struct scan *s, uint64_t at, uint64_t bytes, uint32_t *crc)
{
    uint8_t piece[PIECE_BYTES];
    for (*crc = 0; bytes > 0;) {
        size_t size = bytes < sizeof piece ? (size_t)bytes : sizeof piece;
        if (scan_read(s, piece, size, at, NULL)) return false;
        *crc = crc32_update(*crc, piece, size);
        at += size;
        bytes -= size;
    }
    return true;
}

bool scan_is_one_bit(const struct scan *s, uint64_t position, uint64_t id, struct chunk *out)
{
    int flipped;
    uint32_t entries, trailer;
    if (s->cold_bytes || !scan_header_one_bit(s, position, id, out, &flipped)) return false;
    uint64_t end = position + chunk_bytes(out);
    if (has_hole(s, position, end)) return false;
    if (!range_crc(s, end - out->trailer_bytes - out->data_bytes, out->data_bytes, &entries)) return false;
    if (!range_crc(s, end - out->trailer_bytes, out->trailer_bytes, &trailer)) return false;
    entries ^= out->crc;
    if (out->trailer_bytes) trailer ^= out->trailer_crc;
    if (flipped >= 0) return !entries && !trailer;
    if (entries) return !trailer && crc32_is_one_bit(entries, out->data_bytes, NULL);
    return trailer && crc32_is_one_bit(trailer, out->trailer_bytes, NULL);
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

err scan_past(const struct scan *s, uint64_t index_count, uint64_t *position, uint64_t *id, struct fault *f)
{
    struct chunk c;
    struct index_record r;
    err e = scan_header(s, *position, &c, f);
    if (e == OK && c.chunk_id >= *id) {
        *position += chunk_bytes(&c);
        *id = c.chunk_id + c.records;
        return OK;
    }
    if (e && e != ERR_CORRUPT && e != ERR_END) return e;

    if (index_find(s, index_count, INDEX_BY_POSITION, (int64_t)*position, false, &r, NULL) == OK &&
        r.position == *position && r.chunk_id >= *id && r.chunk_bytes >= CHUNK_HEADER_BYTES &&
        r.position + (uint64_t)r.chunk_bytes <= s->limit) {
        *position += r.chunk_bytes;
        *id = r.chunk_id + r.records;
        return OK;
    }

    e = scan_resync(s, *position + 1, *id, position, &c, f);
    if (e == OK) *id = c.chunk_id;
    else if (e == ERR_END || e == ERR_CORRUPT) *position = s->limit;
    else return e;
    return OK;
}

err scan_last_chunk(const char *directory, uint64_t segment, uint64_t size, struct chunk *out)
{
    struct scan s;
    struct index_record last;
    err e = scan_open(&s, directory, segment, size, NULL);
    if (e) return e;
    e = index_find(&s, UINT64_MAX, INDEX_BY_POSITION, INT64_MAX, true, &last, NULL);
    if (!e) e = scan_header(&s, last.position, out, NULL);
    file_close(&s.fd);
    return e;
}

err scan_tracking(const char *directory, uint64_t segment, uint64_t position, uint64_t limit, bool past_unread,
                  struct tracking *t, struct fault *f)
{
    struct scan s;
    err e = scan_open(&s, directory, segment, limit, f);
    if (e) return e;
    for (uint64_t id = segment; !e && position < limit;) {
        struct chunk c;
        uint8_t *trailer = NULL;
        e = scan_header(&s, position, &c, f);
        if (!e) e = scan_trailer(&s, position, &c, &trailer, f);
        if (!e && trailer) e = tracking_apply(t, trailer, c.trailer_bytes, c.chunk_id);
        free(trailer);
        if (e && e != ERR_CORRUPT && !(e == ERR_IO && past_unread)) break;
        e = scan_past(&s, UINT64_MAX, &position, &id, f);
        if (e != ERR_IO || !past_unread) continue;
        e = OK;
        position = limit; /* no way past it is known */
    }
    file_close(&s.fd);
    return e;
}
