/* SPDX-License-Identifier: Apache-2.0
 *
 * reader: attach, copy confirmed bytes, skip damage, continue with the next segment.
 *
 * The end of a segment is determined once per call from one confirmed record (control_confirmed).  The segment that it
 * names ends at its position.  An older one ends at its size, because a roll cuts off uncommitted bytes before it
 * publishes the new segment.  An older one with a failed fdatasync ends where that sync began.  The later messages were
 * refused to their publishers and may be torn by a power cut, so readers get them only after a recovery.
 */
#include "reader.h"

#include "cold.h"
#include "handle.h"

#define ATTEMPTS_MAX 8 /* each lost one means that retention removed a segment meanwhile */
#define SKIP_BYTES 4096u           /* one page: a head, and perhaps the next ones */
#define SKIP_BYTES_SMALL (16u << 10) /* where chunks are small */
_Static_assert(SKIP_BYTES >= CHUNK_HEAD_BYTES_MAX, "any head fits");

/* ---- opening a segment ---- */

/* Take over a segment that is open. */
static void reader_take(struct reader *r, const struct scan *s, uint64_t position, uint64_t next_offset)
{
    file_close(&r->fd);
    r->fd = s->fd;
    r->seed = s->seed;
    r->segment = s->segment;
    r->position = position;
    r->next_offset = next_offset;
    r->cold = s->cold_bytes > 0;
    r->told = 0;
    r->end = r->cold ? s->cold_bytes : UINT64_MAX;
}

static err reader_enter(struct reader *r, uint64_t segment, uint64_t position, uint64_t next_offset, struct fault *f)
{
    struct scan s;
    err e = scan_open(&s, r->log->directory, segment, 0, f);
    if (!e) reader_take(r, &s, position, next_offset);
    return e;
}

/* The end of an older segment for readers: `s->limit` is its size. */
static err confirmed_end(const struct control *control, const struct scan *s, uint64_t *end, struct fault *f)
{
    uint64_t from, position = SEGMENT_HEADER_BYTES, id = s->segment;
    struct index_record r;
    *end = s->limit;
    if (!control_readers_wait(control) || s->cold_bytes || !control_failed_from(control, s->segment, &from)) return OK;
    if (index_find(s, UINT64_MAX, INDEX_BY_OFFSET, (int64_t)from + 1, true, &r, NULL) == OK && r.chunk_id >= id &&
        r.position >= position && r.position < s->limit) {
        position = r.position;
        id = r.chunk_id;
    }
    while (id < from && position < s->limit) {
        err e = scan_past(s, UINT64_MAX, &position, &id, f);
        if (e) return e;
    }
    if (position < s->limit) *end = position;
    return OK;
}

/* Where what may be read of the open segment ends. */
static err reader_limit(struct reader *r, const struct commit *c, uint64_t *limit, struct fault *f)
{
    if (c->segment == r->segment) {
        *limit = c->position;
        return OK;
    }
    if (r->end == UINT64_MAX) {
        struct file_path path = file_path_numbered(r->log->directory, r->segment, SEGMENT_SUFFIX);
        struct scan s = {.fd = r->fd, .seed = r->seed, .segment = r->segment, .directory = r->log->directory};
        uint64_t end;
        err e = file_size(r->fd, path.text, &s.limit, f);
        if (!e) e = confirmed_end(r->log->control, &s, &end, f);
        if (e) return e;
        r->end = end;
    }
    *limit = r->end;
    return OK;
}

/* ---- attaching ---- */

static err place_open(const struct log *l, const struct segment_list *list, uint32_t i, const struct commit *c,
                      struct scan *s, struct fault *f)
{
    bool is_last = list->first[i] == c->segment;
    err e = scan_open(s, l->directory, list->first[i], is_last ? c->position : list->bytes[i], f);
    if (e || is_last) return e;
    e = confirmed_end(l->control, s, &s->limit, f);
    if (e) file_close(&s->fd);
    return e;
}

/* From the nearest index record on, chunk by chunk, to the one that is wanted. */
static err place_find(const struct scan *s, uint64_t index_count, enum index_key key, int64_t value, uint64_t *position,
                      uint64_t *id, struct fault *f)
{
    struct index_record r;
    struct chunk c;
    *position = SEGMENT_HEADER_BYTES;
    *id = s->segment;
    /* An offset lies in the last chunk that begins at or before it. */
    err e = index_find(s, index_count, key, key == INDEX_BY_OFFSET ? value + 1 : value, true, &r, f);
    if (e && e != ERR_NOT_FOUND) return e;
    if (!e && r.position >= s->limit) { /* the index has chunks behind the confirmed record */
        *position = s->limit;
        *id = r.chunk_id;
        return OK;
    }
    if (!e && (scan_header(s, r.position, &c, NULL) == ERR_CORRUPT || c.chunk_id == r.chunk_id)) {
        *position = r.position;
        *id = r.chunk_id;
    }

    while ((e = scan_header(s, *position, &c, f)) != ERR_END) {
        uint64_t next = *position, next_id = *id;
        if (e && e != ERR_CORRUPT) return e;
        if (!e && key == INDEX_BY_TIMESTAMP && c.timestamp_ms >= value) return OK;
        e = scan_past(s, index_count, &next, &next_id, f);
        if (e) return e;
        /* A damaged chunk that may hold the offset is given too: its reader will tell. */
        if (key == INDEX_BY_OFFSET && (next_id > (uint64_t)value || next >= s->limit)) return OK;
        *position = next;
        *id = next_id;
    }
    return OK;
}

/* The same by the index alone, of a cold segment: what lies there is not looked at. */
static err place_by_index(const struct scan *s, enum index_key key, int64_t value, uint64_t *position, uint64_t *id,
                          struct fault *f)
{
    struct index_record r;
    *position = SEGMENT_HEADER_BYTES;
    *id = s->segment;
    err e = index_find(s, UINT64_MAX, key, key == INDEX_BY_OFFSET ? value + 1 : value, true, &r, f);
    if (e) return e == ERR_NOT_FOUND ? OK : e;
    if (r.chunk_id < s->segment || r.position < SEGMENT_HEADER_BYTES || r.position + (uint64_t)r.chunk_bytes > s->cold_bytes)
        return fault_set(f, ERR_CORRUPT, 0, s->directory, r.position, r.chunk_bytes, s->cold_bytes);
    /* The last chunk before the time is not the one, but the next. */
    *position = r.position + (key == INDEX_BY_TIMESTAMP ? r.chunk_bytes : 0);
    *id = r.chunk_id + (key == INDEX_BY_TIMESTAMP ? r.records : 0);
    return OK;
}

err reader_settle(struct reader *r, bool nowait, struct fault *f)
{
    if (r->position != 0) return OK;
    struct scan s = {.fd = -1, .seed = r->seed, .cold_bytes = r->end, .segment = r->segment, .directory = r->log->directory};
    uint64_t position, id;
    err e = cold_index(s.directory, s.segment, s.seed, nowait, f);
    if (!e) e = place_by_index(&s, r->by_time ? INDEX_BY_TIMESTAMP : INDEX_BY_OFFSET, r->wanted, &position, &id, f);
    if (e) return e;
    r->position = position;
    r->next_offset = id;
    return OK;
}

/* Enter segment `i` there.  The place may be its end: a fetch goes on from there. */
static err reader_find(struct reader *r, const struct segment_list *list, uint32_t i, const struct commit *c,
                       enum index_key key, int64_t value, struct fault *f)
{
    struct scan s;
    uint64_t position, id;
    err e = place_open(r->log, list, i, c, &s, f);
    if (e) return e;
    if (s.cold_bytes) {
        reader_take(r, &s, 0, s.segment);
        r->by_time = key == INDEX_BY_TIMESTAMP;
        r->wanted = value;
        e = reader_settle(r, true, f);
        return e == ERR_NOT_CACHED ? OK : e;
    }
    e = place_find(&s, s.segment == c->segment ? c->chunks : UINT64_MAX, key, value, &position, &id, f);
    if (e) file_close(&s.fd);
    else reader_take(r, &s, position, id);
    return e;
}

/* Timestamp of a segment's first readable chunk.  ERR_END: it has none. */
static err first_timestamp(const struct scan *s, int64_t *out, struct fault *f)
{
    struct chunk c;
    uint64_t position;
    err e = scan_header(s, SEGMENT_HEADER_BYTES, &c, f);
    if (e == ERR_CORRUPT) e = scan_resync(s, SEGMENT_HEADER_BYTES + 1, s->segment, &position, &c, f);
    if (!e) *out = c.timestamp_ms;
    return e;
}

/* When segment `i` begins; an empty one begins in the future. */
static err begins_at(const struct log *l, const struct segment_list *list, uint32_t i, const struct commit *c, int64_t *out,
                     struct fault *f)
{
    struct scan s;
    struct stub stub;
    *out = INT64_MAX;
    if (list->cold[i]) {
        err e = stub_read(l->directory, list->first[i], &stub, f);
        if (!e) *out = stub.oldest_ms;
        return e;
    }
    err e = place_open(l, list, i, c, &s, f);
    if (e) return e;
    if (s.cold_bytes) e = fault_set(f, ERR_NOT_FOUND, 0, l->directory, 0, 0, 0); /* since the list was made */
    else e = first_timestamp(&s, out, f);
    file_close(&s.fd);
    return e == ERR_END ? OK : e;
}

/* The time of the last chunk of a closed segment, its latest.  False: not known. */
static bool ends_at(const struct log *l, const struct segment_list *list, uint32_t i, int64_t *out)
{
    struct stub stub;
    struct index_record last;
    uint32_t seed;
    if (list->cold[i]) {
        err e = stub_read(l->directory, list->first[i], &stub, NULL);
        *out = stub.newest_ms;
        return !e;
    }
    if (!index_whole(l->directory, list->first[i], list->bytes[i], list->first[i + 1], &seed, &last)) return false;
    *out = last.timestamp_ms;
    return true;
}

/* Search segment `i`.  `*found`: the reader stands at its first chunk of the time or later, or will once the index of a
 * cold segment is here. */
static err search_segment(struct reader *r, const struct segment_list *list, uint32_t i, const struct commit *c, int64_t time,
                          bool *found, struct fault *f)
{
    uint64_t end;
    err e = reader_find(r, list, i, c, INDEX_BY_TIMESTAMP, time, f);
    *found = !e && r->position == 0;
    if (e || *found) return e;
    e = reader_limit(r, c, &end, f);
    *found = !e && r->position < end;
    return e;
}

/* Of the segments before the one at which times went back last, each one may hold the time. */
static err search_turned(struct reader *r, const struct segment_list *list, const struct commit *c, int64_t time,
                         uint32_t *behind, bool *found, struct fault *f)
{
    uint64_t turned = atomic_load_explicit(&r->log->control->turned_segment, memory_order_acquire);
    uint32_t i = 0;
    *found = false;
    for (; turned && i + 1 < list->count && list->first[i] < turned - 1; i++) {
        int64_t newest;
        if (ends_at(r->log, list, i, &newest) && newest < time) continue;
        err e = search_segment(r, list, i, c, time, found, f);
        if (e || *found) return e;
    }
    *behind = i;
    return OK;
}

static err reader_at_timestamp(struct reader *r, const struct segment_list *list, const struct commit *c, int64_t time,
                               struct fault *f)
{
    uint32_t low, high = list->count, behind = 0;
    bool found;
    err e = search_turned(r, list, c, time, &behind, &found, f);
    if (e || found) return e;
    /* From there on times rise: the last segment that begins before the time. */
    low = behind;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        int64_t first;
        e = begins_at(r->log, list, middle, c, &first, f);
        if (e) return e;
        if (first < time) low = middle + 1;
        else high = middle;
    }
    if (low == behind) return reader_enter(r, list->first[low], SEGMENT_HEADER_BYTES, list->first[low], f);

    e = search_segment(r, list, low - 1, c, time, &found, f);
    if (e || found) return e;
    if (low == list->count) return reader_enter(r, c->segment, c->position, c->next_offset, f);
    return reader_enter(r, list->first[low], SEGMENT_HEADER_BYTES, list->first[low], f);
}

static err reader_attach(struct reader *r, enum reader_from from, int64_t value, struct fault *f)
{
    struct segment_list listed, *list = &listed;
    struct commit c;
    err e = log_list_confirmed(r->log, list, &c, f);
    if (e) return e;
    uint64_t first = list->first[0], offset = (uint64_t)value;
    if (from == READER_LAST) {
        /* The newest user chunk; retention may have taken it when the active segment is empty. */
        from = c.last_chunk == UINT64_MAX || c.last_chunk < first ? READER_NEXT : READER_OFFSET;
        offset = c.last_chunk;
    }
    switch (from) {
    case READER_FIRST: return reader_enter(r, first, SEGMENT_HEADER_BYTES, first, f);
    case READER_NEXT: return reader_enter(r, c.segment, c.position, c.next_offset, f);
    case READER_TIMESTAMP: return reader_at_timestamp(r, list, &c, value, f);
    case READER_OFFSET:
        if (offset < first) return reader_enter(r, first, SEGMENT_HEADER_BYTES, first, f);
        if (offset >= c.next_offset) return reader_enter(r, c.segment, c.position, c.next_offset, f);
        return reader_find(r, list, segment_list_find(list, offset), &c, INDEX_BY_OFFSET, (int64_t)offset, f);
    case READER_LAST: break;
    }
    return fault_set(f, ERR_INVALID, 0, "reader from", 0, READER_TIMESTAMP, from);
}

err reader_open(struct reader *r, struct log *l, enum reader_from from, int64_t value, struct fault *f)
{
    *r = (struct reader){.log = l, .fd = -1};
    err e = ERR_NOT_FOUND;
    for (int attempt = 0; attempt < ATTEMPTS_MAX && e == ERR_NOT_FOUND; attempt++) {
        if (attempt) l->list_known = false; /* it named a segment that is gone */
        e = reader_attach(r, from, value, f);
    }
    if (e) reader_close(r); /* it may have entered one segment on its way to the next */
    return e;
}

void reader_close(struct reader *r) { file_close(&r->fd); }

/* ---- reading ---- */

bool reader_has_more(const struct reader *r)
{
    return r->next_offset < control_confirmed_offset(r->log->control);
}

/* Is `segment` there for readers: the active one, or a closed one with chunks? */
static err reader_try(struct reader *r, uint64_t segment, const struct commit *c, struct fault *f)
{
    struct stat st;
    struct file_path path = file_path_numbered(r->log->directory, segment, SEGMENT_SUFFIX);
    err e = segment == c->segment ? OK : file_stat_of(path.text, &st, f);
    if (e == ERR_NOT_FOUND) return reader_enter(r, segment, SEGMENT_HEADER_BYTES, segment, f); /* it may be cold */
    if (!e && segment != c->segment && st.st_size <= SEGMENT_HEADER_BYTES)
        e = fault_set(f, ERR_NOT_FOUND, 0, path.text, 0, SEGMENT_HEADER_BYTES, (uint64_t)st.st_size);
    return e ? e : reader_enter(r, segment, SEGMENT_HEADER_BYTES, segment, f);
}

/* Usually the next segment bears the next offset as its name.  After damage, or when retention
 * took it, the directory is asked for the nearest later one. */
static err reader_next_segment(struct reader *r, const struct commit *c, struct fault *f)
{
    err e = ERR_NOT_FOUND;
    if (r->next_offset > r->segment && r->next_offset <= c->segment) e = reader_try(r, r->next_offset, c, f);
    for (int attempt = 0; attempt < ATTEMPTS_MAX && e == ERR_NOT_FOUND; attempt++) {
        struct segment_list list = {0};
        e = segment_list_read(r->log->directory, &list, f);
        if (!e) {
            e = fault_set(f, ERR_NOT_FOUND, 0, r->log->directory, 0, 0, 0);
            for (uint32_t i = 0; i < list.count && e == ERR_NOT_FOUND; i++)
                if (list.first[i] > r->segment && list.first[i] <= c->segment) e = reader_try(r, list.first[i], c, f);
        }
        segment_list_free(&list);
    }
    return e;
}

/* A fault at `at` of the reader's segment; `error` is its errno where a call failed.  The path is printed only here:
 * that costs as much as a short read. */
static err reader_fault_at(const struct reader *r, uint64_t at, err e, int error, uint64_t needed, uint64_t had,
                           struct fault *f)
{
    struct file_path path = file_path_numbered(r->log->directory, r->segment, SEGMENT_SUFFIX);
    errno = error;
    return error ? fault_from_errno(f, path.text, at + had, needed, had)
                 : fault_set(f, e, 0, path.text, at, needed, had);
}

static err reader_fault(const struct reader *r, err e, int error, uint64_t needed, uint64_t had, struct fault *f)
{
    return reader_fault_at(r, r->position, e, error, needed, had, f);
}

/* The bytes from `at` on of the open segment: `size`, or as many as there are, but `least` of them. */
static err reader_copy(struct reader *r, uint64_t at, uint8_t *data, uint64_t size, uint64_t least, bool nowait,
                       uint64_t *got, struct fault *f)
{
    *got = 0;
    if (r->cold) {
        err e = cold_read(r->log->directory, r->segment, r->end, &r->fd, data, size, at, nowait, got, f);
        if (e && !(e == ERR_NOT_CACHED && *got >= least)) return e;
        return *got >= least ? OK : reader_fault_at(r, at, ERR_CORRUPT, 0, least, *got, f);
    }
    while (*got < size) {
        off_t from = (off_t)(at + *got);
        ssize_t n = nowait ? sys->pread_nowait(r->fd, data + *got, size - *got, from)
                           : sys->pread(r->fd, data + *got, size - *got, from);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && nowait && errno == EAGAIN) {
            if (*got >= least) return OK; /* what is cached is worth having */
            return reader_fault_at(r, at, ERR_NOT_CACHED, 0, size, *got, f);
        }
        if (n < 0) return reader_fault_at(r, at, ERR_IO, errno, size, *got, f);
        if (n == 0) break;
        *got += (uint64_t)n;
    }
    return *got >= least ? OK : reader_fault_at(r, at, ERR_CORRUPT, 0, least, *got, f);
}

err reader_fetch(struct reader *r, uint8_t *data, uint64_t size, bool nowait, uint64_t *got, struct fault *f)
{
    CHECK(size >= CHUNK_HEADER_BYTES);
    struct commit c;
    uint64_t limit;
    *got = 0;
    control_confirmed(r->log->control, &c);
    for (;;) {
        err e = reader_limit(r, &c, &limit, f);
        if (!e && r->position == 0) e = reader_settle(r, nowait, f);
        if (e) return e;
        if (r->position < limit) break;
        if (r->segment == c.segment) return fault_set(f, ERR_END, 0, r->log->directory, r->position, 0, 0);
        e = reader_next_segment(r, &c, f);
        if (e) return e;
    }
    uint64_t left = limit - r->position;
    return reader_copy(r, r->position, data, left < size ? left : size, CHUNK_HEADER_BYTES, nowait, got, f);
}

err reader_fetch_rest(struct reader *r, uint64_t from, uint8_t *data, uint64_t size, bool nowait, uint64_t *got,
                      struct fault *f)
{
    return reader_copy(r, r->position + from, data, size, 1, nowait, got, f);
}

/* Read a header and compare its sizes with what exists. */
static err reader_look(const struct reader *r, const uint8_t *data, uint64_t size, struct chunk *out, struct fault *f)
{
    if (size < CHUNK_HEADER_BYTES) {
        *out = (struct chunk){0};
        return fault_set(f, ERR_TRUNCATED, 0, r->log->directory, r->position, CHUNK_HEADER_BYTES, size);
    }
    err e = chunk_header_read(data, size, r->seed, out);
    if (e) return e;
    if (out->chunk_id < r->next_offset) return ERR_CORRUPT;
    if (size >= chunk_bytes(out)) return OK;
    /* Past what exists it will never be whole. */
    struct commit c;
    control_confirmed(r->log->control, &c);
    uint64_t limit = c.segment == r->segment ? c.position : r->end;
    return limit == UINT64_MAX || r->position + chunk_bytes(out) <= limit ? OK : ERR_CORRUPT;
}

static err reader_bad(const struct reader *r, err e, struct fault *f)
{
    return e == ERR_CORRUPT ? reader_fault(r, e, 0, 0, 0, f) : e;
}

static err reader_needs(const struct reader *r, uint64_t needed, uint64_t size, struct fault *f)
{
    return size < needed ? fault_set(f, ERR_TRUNCATED, 0, r->log->directory, r->position, needed, size) : OK;
}

err reader_header(const struct reader *r, const uint8_t *data, uint64_t size, struct chunk *out, struct fault *f)
{
    err e = reader_look(r, data, size, out, f);
    if (!e) e = reader_needs(r, CHUNK_HEADER_BYTES + out->bloom_bytes, size, f);
    return reader_bad(r, e, f);
}

err reader_chunk(const struct reader *r, const uint8_t *data, uint64_t size, bool verify, struct chunk *out,
                 struct fault *f)
{
    err e = reader_look(r, data, size, out, f);
    if (!e) e = reader_needs(r, chunk_bytes(out), size, f);
    if (!e && verify) e = chunk_verify(data, size, out);
    return reader_bad(r, e, f);
}

void reader_advance(struct reader *r, const struct chunk *c)
{
    r->position += chunk_bytes(c);
    r->next_offset = c->chunk_id + c->records;
}

bool reader_enters(struct reader *r)
{
    uint32_t block = (uint32_t)(r->position / COLD_BLOCK_BYTES);
    if (!r->cold || block + 1 == r->told) return false;
    r->told = block + 1;
    return true;
}

bool reader_in_segment(const struct reader *r, uint64_t bytes)
{
    uint64_t size;
    if (r->cold) return r->position + bytes <= r->end;
    return file_size(r->fd, r->log->directory, &size, NULL) == OK && r->position + bytes <= size;
}

err reader_skip(struct reader *r, const struct filter *filter, uint32_t most, bool nowait, uint32_t *skipped,
                struct fault *f)
{
    uint8_t data[SKIP_BYTES_SMALL];
    uint64_t size = SKIP_BYTES;
    *skipped = 0;
    while (*skipped < most) {
        struct chunk c;
        uint64_t got, at = 0;
        uint32_t before = *skipped;
        err e = reader_fetch(r, data, size, nowait, &got, f);
        while (!e) {
            e = reader_header(r, data + at, got - at, &c, f);
            if (e) break;
            if (filter_matches(filter, data + at, &c)) return OK;
            reader_advance(r, &c);
            at += chunk_bytes(&c);
            if (++*skipped == most || at >= got) break;
        }
        /* The buffer has room for every head: at its beginning, the file gave no more of it. */
        if (e == ERR_TRUNCATED && at == 0)
            e = reader_fault(r, reader_in_segment(r, CHUNK_HEADER_BYTES + c.bloom_bytes) ? ERR_NOT_CACHED : ERR_CORRUPT, 0,
                             size, got, f);
        if (e && e != ERR_TRUNCATED) return e;
        size = *skipped - before > 1 ? SKIP_BYTES_SMALL : SKIP_BYTES;
    }
    return OK;
}

/* Its index says where the next chunk begins, and nothing is fetched to look for it.  The bytes were compared with their
 * check when they came, so what is damaged was so when it was sent up. */
static err skip_damaged_cold(struct reader *r, struct fault *f)
{
    struct scan s = {.fd = -1, .seed = r->seed, .cold_bytes = r->end, .segment = r->segment, .directory = r->log->directory};
    struct index_record next;
    err e = reader_settle(r, false, f);
    if (!e && r->position >= r->end) return OK;
    if (!e) e = cold_index(s.directory, s.segment, s.seed, false, f);
    if (!e) e = index_find(&s, UINT64_MAX, INDEX_BY_POSITION, (int64_t)r->position + 1, false, &next, f);
    if (e && e != ERR_NOT_FOUND) return e;
    bool is_there = !e && next.position < r->end && next.chunk_id >= r->next_offset;
    r->position = is_there ? next.position : r->end;
    if (is_there) r->next_offset = next.chunk_id;
    r->skipped_chunks++;
    return OK;
}

err reader_skip_damaged(struct reader *r, struct fault *f)
{
    if (r->cold) return skip_damaged_cold(r, f);
    struct commit c;
    control_confirmed(r->log->control, &c);
    struct scan s = {.fd = r->fd, .seed = r->seed, .segment = r->segment, .directory = r->log->directory};
    err e = reader_limit(r, &c, &s.limit, f);
    if (e) return e;
    if (r->position >= s.limit) return OK;
    bool active = r->segment == c.segment;
    e = scan_past(&s, active ? c.chunks : UINT64_MAX, &r->position, &r->next_offset, f);
    if (e) return e;
    if (r->position == s.limit && active && r->next_offset < c.next_offset) r->next_offset = c.next_offset;
    r->skipped_chunks++;
    return OK;
}

/* ---- confirming ---- */

static err confirm_once(struct log *l, uint64_t offset, struct fault *f)
{
    struct reader r = {.log = l, .fd = -1};
    const struct segment_list *list;
    struct commit c;
    struct index_record before;
    err e = log_list(l, &list, &c, f);
    if (!e && offset < c.next_offset) {
        if (offset < list->first[0]) offset = list->first[0];
        e = reader_find(&r, list, segment_list_find(list, offset), &c, INDEX_BY_OFFSET, (int64_t)offset, f);
        /* In a cold segment without a local index the position is not known, only the segment's beginning. */
        struct scan s = {.fd = -1, .seed = r.seed, .segment = r.segment, .directory = l->directory};
        c = (struct commit){.segment = r.segment, .position = r.position ? r.position : SEGMENT_HEADER_BYTES,
                            .next_offset = r.next_offset, .last_chunk = UINT64_MAX, .chunks = UINT64_MAX,
                            .timestamp_ms = INT64_MIN};
        c.batch_position = c.position;
        if (!e && !r.cold && index_find(&s, UINT64_MAX, INDEX_BY_OFFSET, (int64_t)c.next_offset, true, &before, NULL) == OK) {
            c.last_chunk = before.chunk_id;
            c.timestamp_ms = before.timestamp_ms;
        }
        reader_close(&r);
    }
    if (!e) control_confirm(l->control, &c);
    return e;
}

err reader_confirm(struct log *l, uint64_t offset, struct fault *f)
{
    err e = ERR_NOT_FOUND;
    for (int attempt = 0; attempt < ATTEMPTS_MAX && e == ERR_NOT_FOUND; attempt++) {
        if (attempt) l->list_known = false; /* it named a segment that is gone */
        e = confirm_once(l, offset, f);
    }
    return e;
}
