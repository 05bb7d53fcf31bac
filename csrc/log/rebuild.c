/* SPDX-License-Identifier: Apache-2.0
 *
 * rebuild: the walk over one segment that recovery makes.
 */
#include "rebuild.h"

#include <stdlib.h>

#include "../base/check.h"
#include "../base/file.h"
#include "../base/grow.h"
#include "index.h"
#include "segment.h"

/* A sector that cannot be read is damage like any other: it must not keep a stream from starting. */
static bool is_damage(err e) { return e == ERR_CORRUPT || e == ERR_IO; }

static err note_chunk(struct rebuild *r, uint64_t position, const struct chunk *c, struct fault *f)
{
    uint64_t at = INDEX_HEADER_BYTES + r->record_count * INDEX_RECORD_BYTES; /* the header is written last */
    if (grow(&r->records, &r->capacity, at + INDEX_RECORD_BYTES, 1, r->directory, f)) return ERR_NO_MEMORY;
    struct index_record record = {.chunk_id = c->chunk_id, .timestamp_ms = c->timestamp_ms,
                                  .position = (uint32_t)position, .chunk_bytes = (uint32_t)chunk_bytes(c),
                                  .records = c->records};
    index_record_write(&record, r->seed, r->records + at);
    r->record_count++;
    r->next_offset = c->chunk_id + c->records;
    if (c->type == CHUNK_USER) r->last_chunk = c->chunk_id;
    r->timestamp_ms = c->timestamp_ms;
    r->epoch = c->epoch;
    r->position = position + chunk_bytes(c);
    return OK;
}

/* An append that failed may have left a whole chunk behind the segment's end, and a power
 * cut may have undone that the roll cut it off. */
static bool beyond(const struct rebuild *r, const struct chunk *c)
{
    return r->id_limit && c->chunk_id + c->records > r->id_limit;
}

/* The part that is known to be durable: only headers are read.  A good chunk that reaches
 * past its end says that the place was never one where a chunk ended: the walk stops
 * before it, and it is looked at like what was not promised. */
static err walk_durable(struct rebuild *r, const struct scan *s, bool *damaged, struct fault *f)
{
    while (r->position < r->verify_from) {
        struct chunk c;
        if (r->id_limit && r->next_offset == r->id_limit) return OK; /* it holds all that it should */
        err e = scan_header(s, r->position, &c, f);
        if (e == OK && (beyond(r, &c) || r->position + chunk_bytes(&c) > r->verify_from)) return OK;
        if (e == OK && c.chunk_id >= r->next_offset) {
            e = note_chunk(r, r->position, &c, f);
            if (e) return e;
            continue;
        }
        if (e && !is_damage(e)) return e;
        *damaged = true;
        uint64_t position, id;
        e = scan_past_damage(s, r->position, r->next_offset, UINT64_MAX, &position, &id, f);
        if (e && !is_damage(e)) return e;
        if (e || position >= r->verify_from) {
            r->position = r->verify_from; /* a chunk begins there, whatever lies before */
            return OK;
        }
        r->position = position;
        if (id > r->next_offset) r->next_offset = id;
    }
    return OK;
}

static err chunk_right(const struct rebuild *r, const struct scan *s, const struct chunk *c, bool id_known, struct fault *f)
{
    if (id_known ? c->chunk_id != r->next_offset : c->chunk_id < r->next_offset) return ERR_CORRUPT;
    if (beyond(r, c)) return ERR_CORRUPT;
    if (c->timestamp_ms < r->timestamp_ms || c->epoch < r->epoch) return ERR_CORRUPT;
    err e = scan_entries(s, r->position, c, f);
    uint8_t *trailer = NULL;
    if (!e) e = scan_trailer(s, r->position, c, &trailer, f);
    if (trailer) {
        struct tracking_element element;
        const uint8_t *at = trailer, *end = trailer + c->trailer_bytes;
        while ((e = tracking_element_next(&at, end, &element)) == OK) continue;
        if (e == ERR_END) e = OK;
        free(trailer);
    }
    return e;
}

static err walk_promised_nothing(struct rebuild *r, const struct scan *s, bool id_known, struct fault *f)
{
    for (;;) {
        struct chunk c;
        err e = scan_header(s, r->position, &c, f);
        if (e == ERR_END) return OK;
        if (!e) e = chunk_right(r, s, &c, id_known, f);
        if (is_damage(e)) return OK;
        if (e) return fault_set(f, e, 0, r->directory, r->position, 0, 0);
        e = note_chunk(r, r->position, &c, f);
        if (e) return e;
        r->chunks_checked++;
        r->bytes_checked += chunk_bytes(&c);
        id_known = true;
    }
}

err rebuild_walk(struct rebuild *r, struct fault *f)
{
    struct scan s = {.segment = r->segment, .directory = r->directory};
    struct file_path path;
    file_path_numbered(&path, r->directory, r->segment, SEGMENT_SUFFIX);
    err e = segment_open(r->directory, r->segment, false, &s.fd, &r->seed, f);
    if (e) return e;
    s.seed = r->seed;
    e = file_size(s.fd, path.text, &r->size, f);
    r->position = SEGMENT_HEADER_BYTES;
    r->next_offset = r->segment;
    r->last_chunk = UINT64_MAX;
    r->timestamp_ms = INT64_MIN;
    /* A file shorter than what was synced has lost it; then all that is left is looked at closely. */
    if (!e && (r->verify_from < SEGMENT_HEADER_BYTES || r->verify_from > r->size)) {
        r->verify_from = SEGMENT_HEADER_BYTES;
        r->verify_id = r->segment;
    }
    bool damaged = false;
    s.limit = r->size;
    if (!e) e = walk_durable(r, &s, &damaged, f);
    bool id_known = !damaged;
    if (!e && r->position == r->verify_from && r->verify_id && r->verify_id >= r->next_offset) {
        r->next_offset = r->verify_id;
        id_known = true;
    }
    if (!e) e = walk_promised_nothing(r, &s, id_known, f);
    file_close(&s.fd);
    return e;
}

err rebuild_store_index(const struct rebuild *r, struct fault *f)
{
    struct file_path path;
    file_path_numbered(&path, r->directory, r->segment, INDEX_SUFFIX);
    uint8_t header[INDEX_HEADER_BYTES];
    uint8_t *data = r->records ? r->records : header;
    index_header_write(r->segment, r->seed, data);
    return file_replace(path.text, data, INDEX_HEADER_BYTES + r->record_count * INDEX_RECORD_BYTES, true, f);
}

void rebuild_free(struct rebuild *r)
{
    free(r->records);
    r->records = NULL;
}

static err last_record(const char *directory, uint64_t segment, uint32_t seed, struct index_record *out, struct fault *f)
{
    struct index ix;
    err e = index_open(&ix, directory, segment, seed, UINT64_MAX, f);
    if (e) return e;
    e = index_last(&ix, out, f);
    index_close(&ix);
    return e;
}

bool rebuild_index_whole(const char *directory, uint64_t segment, uint64_t size, uint64_t id_limit)
{
    uint32_t seed;
    struct index_record last;
    if (index_seed(directory, segment, &seed, NULL)) return false;
    if (last_record(directory, segment, seed, &last, NULL)) return false;
    return last.position + (uint64_t)last.chunk_bytes == size && last.chunk_id + last.records <= id_limit;
}

err rebuild_last_chunk(const char *directory, uint64_t segment, uint64_t size, struct chunk *out, struct fault *f)
{
    struct scan s = {.segment = segment, .directory = directory, .limit = size};
    struct index_record last;
    err e = segment_open(directory, segment, false, &s.fd, &s.seed, f);
    if (e) return e;
    e = last_record(directory, segment, s.seed, &last, f);
    if (!e) e = scan_header(&s, last.position, out, f);
    file_close(&s.fd);
    return e;
}

err rebuild_tracking(const char *directory, uint64_t segment, uint64_t size, struct tracking *t, struct fault *f)
{
    struct scan s = {.segment = segment, .directory = directory, .limit = size};
    err e = segment_open(directory, segment, false, &s.fd, &s.seed, f);
    if (e) return e;
    uint64_t position = SEGMENT_HEADER_BYTES, id = segment;
    while (!e && position < size) {
        struct chunk c;
        uint8_t *trailer = NULL;
        e = scan_header(&s, position, &c, f);
        if (!e) e = scan_trailer(&s, position, &c, &trailer, f);
        if (!e && trailer) e = tracking_apply(t, trailer, c.trailer_bytes, c.chunk_id);
        free(trailer);
        if (e && !is_damage(e)) break;
        uint64_t next_position = size, next_id = 0;
        e = scan_past_damage(&s, position, id, UINT64_MAX, &next_position, &next_id, f);
        if (is_damage(e)) e = OK;
        position = next_position;
        if (next_id > id) id = next_id;
    }
    file_close(&s.fd);
    return e;
}
