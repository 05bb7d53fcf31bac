/* SPDX-License-Identifier: Apache-2.0
 *
 * cuts: boundaries of chunks, found by their positions and offsets in the index files.
 *
 * Cuts end at the confirmed record, as readers do.  An index is a hint (segment.h): a segment with a damaged or missing index is not divided, which makes parts
 * larger and nothing wrong.
 */
#include "cuts.h"

#include "cold.h"
#include "handle.h"
#include "reader.h"

#define ATTEMPTS_MAX 8 /* each lost one means that retention removed a segment meanwhile */

/* The segments as they are at one instant. */
struct cutting {
    const struct log *log;
    struct segment_list segments, *list;
    struct commit committed; /* the confirmed record, where readers end */
};

/* The beginning of a chunk, or the confirmed end. */
struct place {
    uint32_t segment; /* its number in the list */
    uint64_t position, id;
};

/* The confirmed end within a segment. */
static uint64_t segment_end(const struct cutting *k, uint32_t i)
{
    return i + 1 == k->list->count ? k->committed.position : k->list->bytes[i];
}

static struct place segment_begin(const struct cutting *k, uint32_t i)
{
    return (struct place){i, SEGMENT_HEADER_BYTES, k->list->first[i]};
}

/* The place behind a segment's last chunk. */
static struct place behind(const struct cutting *k, uint32_t i)
{
    if (i + 1 < k->list->count) return segment_begin(k, i + 1);
    return (struct place){i, k->committed.position, k->committed.next_offset};
}

/* The place of the chunk that holds `offset`; at most the end. */
static err place_of(struct log *l, struct cutting *k, uint64_t offset, struct place *out, struct fault *f)
{
    err e = ERR_NOT_FOUND;
    k->log = l;
    for (int attempt = 0; attempt < ATTEMPTS_MAX && e == ERR_NOT_FOUND; attempt++) {
        struct reader r;
        e = reader_open(&r, l, READER_OFFSET, (int64_t)offset, f);
        if (!e) e = reader_settle(&r, false, f);
        reader_close(&r);
        if (e == ERR_NOT_FOUND) continue;
        if (e) break;
        k->list = &k->segments;
        e = log_list_confirmed(l, k->list, &k->committed, f);
        if (e) break;
        *out = (struct place){segment_list_find(k->list, r.segment), r.position, r.next_offset};
        if (k->list->first[out->segment] != r.segment) e = fault_set(f, ERR_NOT_FOUND, 0, l->directory, 0, 0, 0);
        else if (out->position >= segment_end(k, out->segment)) *out = behind(k, out->segment);
    }
    return e;
}

/* A search in one segment's index.  Not found: as index_find, or where the index cannot be used. */
static err search(const struct cutting *k, uint32_t i, enum index_key key, uint64_t value, bool below,
                  struct place *out, bool *found, struct fault *f)
{
    struct index_record r;
    struct scan s = {.fd = -1, .segment = k->list->first[i], .directory = k->log->directory};
    uint64_t count = s.segment == k->committed.segment ? k->committed.chunks : UINT64_MAX;
    err e = OK;
    if (k->list->cold[i]) {
        struct stub stub;
        e = stub_read(s.directory, s.segment, &stub, f);
        s.seed = stub.seed;
        if (!e) e = cold_index(s.directory, s.segment, s.seed, false, f);
    } else {
        e = index_seed(s.directory, s.segment, &s.seed, f);
    }
    if (!e) e = index_find(&s, count, key, (int64_t)value, below, &r, f);
    *found = !e && r.chunk_id >= s.segment && r.position >= SEGMENT_HEADER_BYTES;
    if (*found) *out = (struct place){i, r.position, r.chunk_id};
    return e == ERR_IO ? e : OK;
}

/* The first boundary at or behind `value` there; the segment's end where there is none inside. */
static err at_least(const struct cutting *k, uint32_t i, enum index_key key, uint64_t value, struct place *out,
                    struct fault *f)
{
    bool found;
    err e = search(k, i, key, value, false, out, &found, f);
    if (!e && !found) *out = behind(k, i);
    return e;
}

/* Where the last part below `end` begins. */
static err part_begin(const struct cutting *k, const struct place *end, uint64_t bytes_max, uint64_t records_max,
                      struct place *out, struct fault *f)
{
    err e = OK;
    *out = segment_begin(k, 0);
    if (bytes_max) {
        uint32_t i = end->segment;
        uint64_t top = end->position, left = bytes_max;
        while (top - SEGMENT_HEADER_BYTES <= left && i > 0) {
            left -= top - SEGMENT_HEADER_BYTES;
            top = segment_end(k, --i);
        }
        if (top - SEGMENT_HEADER_BYTES > left) e = at_least(k, i, INDEX_BY_POSITION, top - left, out, f);
    }
    if (!e && records_max && end->id - k->list->first[0] > records_max) {
        struct place other;
        uint64_t least = end->id - records_max;
        e = at_least(k, segment_list_find(k->list, least), INDEX_BY_OFFSET, least, &other, f);
        if (!e && other.id > out->id) *out = other;
    }
    if (e || out->id < end->id) return e;

    /* No boundary is near enough: one chunk. */
    bool found;
    uint32_t i = segment_list_find(k->list, end->id - 1);
    e = search(k, i, INDEX_BY_OFFSET, end->id, true, out, &found, f);
    if (!found) *out = segment_begin(k, i);
    return e;
}

err log_cuts(struct log *l, uint64_t start, uint64_t *end, uint64_t bytes_max, uint64_t records_max, uint64_t *cuts,
             uint32_t most, uint32_t *count, struct fault *f)
{
    struct cutting k;
    struct place at, below;
    *count = 0;
    err e = place_of(l, &k, *end, &at, f);
    if (e) return e;
    if (at.id < *end && at.id < k.committed.next_offset) at.id = *end;
    if (start < k.list->first[0]) start = k.list->first[0];
    while (at.id > start && *count < most) {
        e = part_begin(&k, &at, bytes_max, records_max, &below, f);
        if (e) return e;
        at = below;
        if (at.id > start) cuts[(*count)++] = at.id;
    }
    *end = at.id > start ? at.id : start;
    return OK;
}

err log_extent(struct log *l, uint64_t start, uint64_t bytes_max, uint64_t *limit, uint64_t *bytes, struct fault *f)
{
    struct cutting k;
    struct place at;
    bool found = false;
    err e = place_of(l, &k, start, &at, f);
    if (e) return e;

    uint32_t i = at.segment, last = k.list->count - 1;
    uint64_t bottom = at.position, left = bytes_max;
    *bytes = segment_end(&k, i) - bottom;
    for (uint32_t j = i + 1; j <= last; j++) *bytes += segment_end(&k, j) - SEGMENT_HEADER_BYTES;
    *limit = k.committed.next_offset;
    if (*bytes <= bytes_max) return OK;

    while (segment_end(&k, i) - bottom <= left) {
        left -= segment_end(&k, i++) - bottom;
        bottom = SEGMENT_HEADER_BYTES;
    }
    struct place to = segment_begin(&k, i);
    e = search(&k, i, INDEX_BY_POSITION, bottom + left + 1, true, &to, &found, f);
    if (!e && to.id <= at.id) e = at_least(&k, at.segment, INDEX_BY_OFFSET, at.id + 1, &to, f);
    *limit = to.id;
    return e;
}
