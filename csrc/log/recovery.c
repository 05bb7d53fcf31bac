/* SPDX-License-Identifier: Apache-2.0
 *
 * recovery: make a log usable that was last written in another boot.
 *
 * 0. See to it that every file is of a version that we know.
 * 1. Learn what is known to be durable: from the old control block's two checked slots
 *    and from the segments' headers, whichever says most.
 * 2. Walk the segments from there on; cut at the first chunk that is wrong and put
 *    what lies behind into quarantine.  Older segments are only given an index if theirs is not whole;
 *    one that was closed because its sync failed is looked at from that place on.
 * 3. Sync what was kept, so that a second power cut finds it too: at a start all logs at once, before the first is walked.
 *    Files that hold already what is to be in them stay.
 * 4. Build the deduplication table, and last of all the control block.  Until that
 *    is of this boot everything above can be done again.
 *
 * The walk over a segment has two parts.  Up to `verify_from` the bytes are known to be durable: damage there is skipped
 * and costs only its own messages.  Behind it the durability decides.  With `disk` the control block may name an older
 * place than the last sync, and with `remote` the store has the confirmed messages.  There the first damaged chunk ends
 * the segment, so that a publishing id in a later chunk never stands for an earlier one that is lost.  With `disk` a chunk
 * that one flipped bit has damaged was once whole on the disk: it is skipped.  With `os` every chunk was confirmed when it
 * was written: a damaged one is skipped if the next valid one fits exactly behind it (step_over), and a whole later
 * segment stays.
 */
#include "recovery.h"

#include <stdlib.h>

#include "../base/grow.h"

static void put_path(char out[FAULT_WHERE_MAX_BYTES], const struct file_path *path)
{
    struct fault named;
    fault_set(&named, OK, 0, path->text, 0, 0, 0); /* keeps the tail of a long path */
    memcpy(out, named.where, FAULT_WHERE_MAX_BYTES);
}

/* ---- walking a segment ---- */

/* A sector that cannot be read is damage like any other: it must not keep a stream from starting. */
static bool is_damage(err e) { return e == ERR_CORRUPT || e == ERR_IO; }

static err note_record(struct walk *w, const struct index_record *record, struct fault *f)
{
    uint64_t at = INDEX_HEADER_BYTES + w->index_records * INDEX_RECORD_BYTES; /* the header is written last */
    if (grow(&w->index, &w->index_capacity, at + INDEX_RECORD_BYTES, 1, w->scan.directory, f)) return ERR_NO_MEMORY;
    index_record_write(record, w->scan.seed, w->index + at);
    w->index_records++;
    return OK;
}

static err note_chunk(struct walk *w, const struct chunk *c, struct fault *f)
{
    struct index_record record = {.chunk_id = c->chunk_id, .timestamp_ms = c->timestamp_ms,
                                  .position = (uint32_t)w->position, .chunk_bytes = (uint32_t)chunk_bytes(c),
                                  .records = c->records};
    err e = note_record(w, &record, f);
    if (e) return e;
    w->next_offset = c->chunk_id + c->records;
    if (c->type == CHUNK_USER) w->last_chunk = c->chunk_id;
    w->timestamp_ms = c->timestamp_ms;
    w->epoch = c->epoch;
    w->position += chunk_bytes(c);
    return OK;
}

/* An append that failed may have left a whole chunk behind the segment's end, and a power
 * cut may have undone that the roll cut it off. */
static bool beyond(const struct walk *w, const struct chunk *c)
{
    return w->id_limit && c->chunk_id + c->records > w->id_limit;
}

/* The part that is known to be durable: only headers are read.  A good chunk that reaches past its end says that the
 * place was never one where a chunk ended: the walk stops before it, and it is looked at like what was not promised. */
static err walk_durable(struct walk *w, struct fault *f)
{
    while (w->position < w->verify_from) {
        struct chunk c;
        if (w->id_limit && w->next_offset == w->id_limit) return OK; /* it holds all that it should */
        err e = scan_header(&w->scan, w->position, &c, f);
        if (e == OK && (beyond(w, &c) || w->position + chunk_bytes(&c) > w->verify_from)) return OK;
        if (e == OK && c.chunk_id >= w->next_offset) {
            e = note_chunk(w, &c, f);
            if (e) return e;
            continue;
        }
        if (e && !is_damage(e)) return e;
        w->damaged = true;
        uint64_t position = w->position, id = w->next_offset;
        e = scan_past(&w->scan, UINT64_MAX, &position, &id, f);
        if (e && !is_damage(e)) return e;
        if (e || position >= w->verify_from) {
            w->position = w->verify_from; /* a chunk begins there, whatever lies before */
            return OK;
        }
        w->position = position;
        w->next_offset = id;
    }
    return OK;
}

err recovery_chunk_right(const struct walk *w, const struct chunk *c, bool id_known, struct fault *f)
{
    if (id_known ? c->chunk_id != w->next_offset : c->chunk_id < w->next_offset) return ERR_CORRUPT;
    if (beyond(w, c)) return ERR_CORRUPT;
    if (c->timestamp_ms < w->timestamp_ms || c->epoch < w->epoch) return ERR_CORRUPT;
    err e = scan_entries(&w->scan, w->position, c, f);
    uint8_t *trailer = NULL;
    if (!e) e = scan_trailer(&w->scan, w->position, c, &trailer, f);
    if (trailer) e = tracking_trailer_check(trailer, c->trailer_bytes);
    free(trailer);
    return e;
}

/* Return the chunk at the walk's position, by its own header or else by its index record.  False: neither fits there. */
static bool damaged_chunk(const struct walk *w, struct index_record *out)
{
    struct chunk c;
    if (scan_header(&w->scan, w->position, &c, NULL) == OK)
        *out = (struct index_record){.chunk_id = c.chunk_id, .timestamp_ms = c.timestamp_ms,
                                     .position = (uint32_t)w->position, .chunk_bytes = (uint32_t)chunk_bytes(&c),
                                     .records = c.records};
    else if (index_find(&w->scan, UINT64_MAX, INDEX_BY_POSITION, (int64_t)w->position, false, out, NULL))
        return false;
    uint64_t next = out->chunk_id + out->records;
    return out->position == w->position && out->chunk_id == w->next_offset && out->records > 0 &&
           out->chunk_bytes >= CHUNK_HEADER_BYTES && out->position + (uint64_t)out->chunk_bytes <= w->scan.limit &&
           (!w->id_limit || next <= w->id_limit);
}

/* With `disk`: the chunk that was once whole on the disk, and which one flipped bit has damaged since. */
static bool proven_chunk(const struct walk *w, struct index_record *out)
{
    struct chunk c;
    if (!scan_is_one_bit(&w->scan, w->position, w->next_offset, &c)) return false;
    *out = (struct index_record){.chunk_id = c.chunk_id, .timestamp_ms = c.timestamp_ms, .position = (uint32_t)w->position,
                                 .chunk_bytes = (uint32_t)chunk_bytes(&c), .records = c.records};
    return c.epoch >= w->epoch && !beyond(w, &c);
}

static void report_skip(struct recovery *rc, const struct walk *from, const struct walk *to)
{
    struct recovery_report *r = rc->report;
    if (r->skip_count++ >= RECOVERY_CUTS_MAX) return;
    struct recovery_skip *skip = &r->skips[r->skip_count - 1];
    *skip = (struct recovery_skip){.segment = from->segment, .position = from->position,
                                   .bytes = to->position - from->position, .first_offset = from->next_offset,
                                   .next_offset = to->next_offset};
    struct file_path path = file_path_numbered(rc->directory, from->segment, SEGMENT_SUFFIX);
    put_path(skip->path, &path);
}

void recovery_gap(struct recovery *rc, uint64_t from, uint64_t to)
{
    const struct walk before = {.segment = from, .next_offset = from}, after = {.next_offset = to};
    if (from < to) report_skip(rc, &before, &after);
}

/* Skip damaged chunks up to the next valid one, which begins where the last of them ends, with the offset behind its
 * messages; or up to the next segment's beginning.  A chunk at any other position may belong to an append that was killed
 * before its commit.  `*stepped` false: no chunk fits, and the walk's position is unchanged. */
static err step_over(struct recovery *rc, struct walk *w, bool *stepped, struct fault *f)
{
    const struct walk before = *w;
    struct index_record r;
    err e = OK;
    *stepped = false;
    while (!*stepped && (rc->keeps_proven ? proven_chunk(w, &r) : damaged_chunk(w, &r))) {
        struct chunk c;
        if ((e = note_record(w, &r, f))) return e;
        w->position += r.chunk_bytes;
        w->next_offset += r.records;
        e = scan_header(&w->scan, w->position, &c, f);
        if (e == ERR_END) *stepped = rc->keeps_proven || (w->id_limit && w->next_offset == w->id_limit);
        else {
            if (!e) e = recovery_chunk_right(w, &c, true, f);
            if (e && !is_damage(e)) return e;
            *stepped = e == OK || rc->keeps_proven; /* a proven chunk keeps its offsets, also before a torn one */
        }
    }
    if (*stepped) {
        w->damaged = true;
        report_skip(rc, &before, w);
    } else {
        w->position = before.position;
        w->next_offset = before.next_offset;
        w->index_records = before.index_records;
    }
    return OK;
}

static err walk_promised_nothing(struct recovery *rc, struct walk *w, bool id_known, struct fault *f)
{
    for (;;) {
        struct chunk c;
        bool stepped = false;
        err e = scan_header(&w->scan, w->position, &c, f);
        if (e == ERR_END) return OK;
        if (!e) e = recovery_chunk_right(w, &c, id_known, f);
        if (is_damage(e) && id_known && (rc->keeps_behind || rc->keeps_proven)) {
            e = step_over(rc, w, &stepped, f);
            if (e) return e;
            if (stepped) continue;
            return OK;
        }
        if (is_damage(e)) return OK;
        if (e) return fault_set(f, e, 0, w->scan.directory, w->position, 0, 0);
        e = note_chunk(w, &c, f);
        if (e) return e;
        w->chunks_checked++;
        w->bytes_checked += chunk_bytes(&c);
        id_known = true;
    }
}

err recovery_walk(struct recovery *rc, struct walk *w, struct fault *f)
{
    err e = scan_open(&w->scan, rc->directory, w->segment, 0, f);
    if (e) return e;
    struct file_path path = file_path_numbered(rc->directory, w->segment, SEGMENT_SUFFIX);
    e = file_size(w->scan.fd, path.text, &w->scan.limit, f);
    w->position = SEGMENT_HEADER_BYTES;
    w->next_offset = w->segment;
    w->last_chunk = UINT64_MAX;
    w->timestamp_ms = INT64_MIN;
    /* A file shorter than what was synced has lost it; then all that is left is looked at closely. */
    if (!e && (w->verify_from < SEGMENT_HEADER_BYTES || w->verify_from > w->scan.limit)) {
        w->verify_from = SEGMENT_HEADER_BYTES;
        w->verify_id = w->segment;
    }
    if (!e) e = walk_durable(w, f);
    bool id_known = !w->damaged;
    if (!e && w->position == w->verify_from && w->verify_id && w->verify_id >= w->next_offset) {
        w->next_offset = w->verify_id;
        id_known = true;
    }
    if (!e) e = walk_promised_nothing(rc, w, id_known, f);
    file_close(&w->scan.fd);
    if (e) free(w->index);
    return e;
}

/* ---- cutting ---- */

static void report_cut(struct recovery *rc, uint64_t segment, const char *suffix, uint64_t position, uint64_t bytes,
                       const struct file_path *kept)
{
    struct recovery_report *r = rc->report;
    r->cut_bytes += bytes;
    if (r->cut_count++ >= RECOVERY_CUTS_MAX) return;
    struct recovery_cut *cut = &r->cuts[r->cut_count - 1];
    *cut = (struct recovery_cut){.segment = segment, .position = position, .bytes = bytes};
    struct file_path path = file_path_numbered(rc->directory, segment, suffix);
    put_path(cut->path, &path);
    put_path(cut->kept, kept);
}

/* Does the index say nothing that we know, and yet something?  A power cut leaves short files and zeros: these are
 * not worth keeping. */
static bool index_unknown(const char *directory, uint64_t segment, uint64_t *bytes)
{
    uint8_t head[INDEX_HEADER_BYTES];
    uint32_t seed;
    struct stat st;
    size_t got;
    if (index_seed(directory, segment, &seed, NULL) != ERR_CORRUPT) return false;
    struct file_path path = file_path_numbered(directory, segment, INDEX_SUFFIX);
    if (file_stat_of(path.text, &st, NULL) || file_read_head(path.text, head, sizeof head, &got, NULL)) return false;
    *bytes = (uint64_t)st.st_size;
    for (size_t i = 0; i < got; i++)
        if (head[i]) return true;
    return false;
}

/* Does a file hold just that already?  Of thousands of logs nearly all do, and what is not written need not be synced. */
static bool file_is(const char *path, const void *data, size_t bytes)
{
    size_t got;
    uint8_t *held = malloc(bytes + 1);
    bool same = held && file_read_head(path, held, bytes + 1, &got, NULL) == OK && got == bytes;
    same = same && memcmp(held, data, bytes) == 0;
    free(held);
    return same;
}

static err store_index(struct recovery *rc, const struct walk *w, struct fault *f)
{
    uint64_t bytes;
    struct file_path path;
    uint8_t header[INDEX_HEADER_BYTES], *data = w->index ? w->index : header;
    if (index_unknown(rc->directory, w->segment, &bytes)) {
        err e = quarantine_file(rc->directory, w->segment, INDEX_SUFFIX, rc->epoch, &path, f);
        if (e) return e;
        report_cut(rc, w->segment, INDEX_SUFFIX, 0, bytes, &path);
    }
    path = file_path_numbered(rc->directory, w->segment, INDEX_SUFFIX);
    index_header_write(w->segment, w->scan.seed, data);
    bytes = INDEX_HEADER_BYTES + w->index_records * INDEX_RECORD_BYTES;
    if (file_is(path.text, data, bytes)) return OK;
    rc->changed = true;
    return file_replace(path.text, data, bytes, true, f);
}

err recovery_keep(struct recovery *rc, const struct walk *w, struct fault *f)
{
    struct file_path path, kept;
    int fd;
    uint64_t size = w->scan.limit;
    if (rc->synced && size <= w->position) return store_index(rc, w, f);
    err e = file_open_numbered(&path, rc->directory, w->segment, SEGMENT_SUFFIX, O_RDWR, &fd, f);
    if (e) return e;
    if (size > w->position) {
        e = quarantine_tail(rc->directory, w->segment, w->position, size, rc->epoch, &kept, f);
        if (!e) report_cut(rc, w->segment, SEGMENT_SUFFIX, w->position, size - w->position, &kept);
        if (!e) e = file_truncate(fd, path.text, w->position, f);
    }
    if (!e) e = file_datasync(fd, path.text, f);
    file_close(&fd);
    return e ? e : store_index(rc, w, f);
}

err recovery_put_away(struct recovery *rc, uint64_t segment, const char *suffix, uint64_t bytes, struct fault *f)
{
    struct file_path kept;
    err e = quarantine_file(rc->directory, segment, suffix, rc->epoch, &kept, f);
    if (!e) report_cut(rc, segment, suffix, 0, bytes, &kept);
    return e;
}

/* Remove the files of a segment that only this machine has.  The publishing ids at the end of what is stored stay: if
 * what begins there is lost, the log goes on there. */
static err remove_here(const struct recovery *rc, uint64_t segment, struct fault *f)
{
    if (!backed_needs(rc, segment, false)) return segment_remove(rc->directory, segment, f);
    struct file_path path = file_path_numbered(rc->directory, segment, INDEX_SUFFIX);
    err e = file_unlink(path.text, f);
    path = file_path_numbered(rc->directory, segment, SEGMENT_SUFFIX);
    return e ? e : file_unlink(path.text, f);
}

static err put_segment_away(struct recovery *rc, uint32_t i, struct fault *f)
{
    uint64_t segment = rc->list.first[i];
    if (rc->list.bytes[i] > SEGMENT_HEADER_BYTES) {
        struct file_path of_index;
        /* The index first: if the segment's header is damaged the index has the seed of all checks, and without the segment
         * it would never be read again. */
        err e = quarantine_file(rc->directory, segment, INDEX_SUFFIX, rc->epoch, &of_index, f);
        if (!e || e == ERR_NOT_FOUND) e = recovery_put_away(rc, segment, SEGMENT_SUFFIX, rc->list.bytes[i], f);
        if (e) return e;
    }
    return remove_here(rc, segment, f);
}

err recovery_drop(struct recovery *rc, uint32_t i, struct fault *f)
{
    /* The last one first: what a second power cut leaves is still a log without a hole. */
    err e = OK;
    for (uint32_t k = rc->list.count; k-- > i && !e;) {
        e = put_segment_away(rc, k, f);
        if (!e) rc->list.count = k;
    }
    return e;
}

/* ---- walking the log ---- */

static void list_take_out(struct segment_list *list, uint32_t i)
{
    uint32_t left = --list->count - i;
    memmove(&list->first[i], &list->first[i + 1], left * sizeof *list->first);
    memmove(&list->bytes[i], &list->bytes[i + 1], left * sizeof *list->bytes);
}

/* Is there more of the log behind segment `i`, which ends at `next_offset`?  Removes the empty file
 * of a roll that was never committed. */
static err goes_on(struct recovery *rc, uint32_t i, uint64_t next_offset, bool *yes, struct fault *f)
{
    *yes = false;
    while (i + 1 < rc->list.count) {
        uint64_t next = rc->list.first[i + 1];
        bool holds_chunks = rc->list.bytes[i + 1] > SEGMENT_HEADER_BYTES;
        bool may_be_apart = (rc->keeps_behind && holds_chunks) || recovery_suspect_from(rc, i);
        if (next == next_offset || (next > next_offset && may_be_apart)) {
            if (!recovery_suspect_from(rc, i)) recovery_gap(rc, next_offset, next);
            *yes = true;
            return OK;
        }
        if (next > next_offset || rc->list.bytes[i + 1] > SEGMENT_HEADER_BYTES) return OK;
        err e = remove_here(rc, next, f);
        if (e) return e;
        list_take_out(&rc->list, i + 1);
    }
    return OK;
}

static void take_over(struct recovery *rc, const struct walk *w)
{
    struct commit *c = &rc->commit;
    c->segment = w->segment;
    c->batch_position = c->position = w->position;
    c->next_offset = w->next_offset;
    c->chunks = w->index_records;
    if (w->last_chunk != UINT64_MAX) c->last_chunk = w->last_chunk;
    if (w->timestamp_ms != INT64_MIN) c->timestamp_ms = w->timestamp_ms;
    if (w->epoch > rc->epoch) rc->epoch = w->epoch;
    rc->report->chunks_checked += w->chunks_checked;
    rc->report->bytes_checked += w->bytes_checked;
}

/* Moves `*i` to the next segment. */
static err walk_one(struct recovery *rc, uint32_t *at, uint64_t verify_from, bool *more, struct fault *f)
{
    uint32_t i = *at;
    struct walk w = {.segment = rc->list.first[i], .verify_from = verify_from};
    if (w.segment == rc->durable.segment) w.verify_id = rc->durable.offset;
    /* A segment with chunks in it was begun where this one ended.  One without may be of a
     * roll that was never committed. */
    if (i + 1 < rc->list.count && rc->list.bytes[i + 1] > SEGMENT_HEADER_BYTES) w.id_limit = rc->list.first[i + 1];
    err e = recovery_walk(rc, &w, f);
    if (e == ERR_CORRUPT && rc->keeps_behind && w.id_limit) { /* both headers are damaged: only this segment is lost */
        e = put_segment_away(rc, i, f);
        if (!e) list_take_out(&rc->list, i);
        return e;
    }
    if (e == ERR_CORRUPT) {
        *more = false;
        return recovery_drop(rc, i, f);
    }
    if (e) return e;
    *at = i + 1;
    e = recovery_keep(rc, &w, f);
    free(w.index);
    if (e) return e;
    rc->list.bytes[i] = w.position;
    take_over(rc, &w);
    e = goes_on(rc, i, w.next_offset, more, f);
    /* A cut in the middle ends the log, unless the next segment was begun because of it. */
    return e || *more ? e : recovery_drop(rc, i + 1, f);
}

/* Segments older than the durable place: only what is not whole is touched. */
static err tend_older(struct recovery *rc, uint32_t i, struct fault *f)
{
    uint64_t suspect = recovery_suspect_from(rc, i);
    uint64_t next = rc->list.first[i + 1];
    struct index_record last;
    uint32_t seed;
    if (!suspect && index_whole(rc->directory, rc->list.first[i], rc->list.bytes[i], next, &seed, &last)) {
        recovery_gap(rc, last.chunk_id + last.records, next);
        return OK;
    }
    struct walk w = {.segment = rc->list.first[i], .id_limit = next,
                     .verify_from = suspect ? suspect : rc->list.bytes[i]};
    err e = recovery_walk(rc, &w, f);
    if (e) return e == ERR_CORRUPT ? OK : e; /* nothing can be told from it; readers step over it */
    if (!suspect && !w.damaged) recovery_gap(rc, w.next_offset, next);
    e = recovery_keep(rc, &w, f);
    free(w.index);
    if (!e) rc->list.bytes[i] = w.position;
    return e;
}

static err walk_all(struct recovery *rc, struct fault *f)
{
    uint32_t start = recovery_walk_start(rc);
    err e = OK;
    for (uint32_t i = 0; i < start && !e; i++) e = tend_older(rc, i, f);
    bool more = rc->list.count > 0;
    for (uint32_t i = start; more && !e;) {
        uint64_t from = rc->list.first[i] == rc->durable.segment ? rc->durable.position : SEGMENT_HEADER_BYTES;
        e = walk_one(rc, &i, from, &more, f);
    }
    return e;
}

/* ---- the end of the log ---- */

/* The newest chunk before an empty active segment. */
static void look_back(struct recovery *rc)
{
    for (uint32_t i = rc->list.count; i-- > 0 && rc->commit.last_chunk == UINT64_MAX;) {
        struct chunk c;
        if (scan_last_chunk(rc->directory, rc->list.first[i], rc->list.bytes[i], &c)) continue;
        rc->commit.last_chunk = c.chunk_id;
        rc->commit.timestamp_ms = c.timestamp_ms;
        if (c.epoch > rc->epoch) rc->epoch = c.epoch;
    }
}

/* An offset is never given out twice, even when what bore it was lost. */
static err begin_anew_if_lost(struct recovery *rc, uint64_t first_seen, struct fault *f)
{
    uint64_t least = rc->old.has_durable ? rc->old.durable.offset : 0;
    if (first_seen > least) least = first_seen;
    if (rc->list.count > 0) {
        uint32_t last = rc->list.count - 1;
        /* When the walk's own segment was dropped, the one before it is closed and stays so. */
        if (rc->commit.segment != rc->list.first[last]) {
            struct walk w = {.segment = rc->list.first[last], .verify_from = rc->list.bytes[last]};
            err e = recovery_walk(rc, &w, f);
            if (e && e != ERR_CORRUPT) return e;
            if (!e) take_over(rc, &w);
            if (!e) free(w.index);
        }
        if (rc->commit.segment == rc->list.first[last] && rc->commit.next_offset >= least) return OK;
    }
    if (rc->commit.next_offset > least) least = rc->commit.next_offset;
    recovery_gap(rc, rc->commit.next_offset > rc->stored_to ? rc->commit.next_offset : rc->stored_to, least);
    rc->changed = true;
    err e = log_files_create(rc->directory, least, rc->turned_segment, true, f);
    rc->commit.segment = rc->commit.next_offset = least;
    rc->commit.batch_position = rc->commit.position = SEGMENT_HEADER_BYTES;
    rc->commit.chunks = 0;
    return e;
}

static err rebuild_table(struct recovery *rc, struct fault *f)
{
    struct tracking *t;
    err e = tracking_new(&t, f);
    if (e) return e;
    /* From the newest snapshot on; without any, from the beginning. */
    uint32_t from = rc->list.count;
    bool found = false;
    while (from > 0 && !found) {
        found = tracking_snapshot_read(rc->directory, rc->list.first[--from], t, NULL) == OK;
        if (!found) tracking_clear(t);
    }
    if (!found) e = backed_tracking(rc, t, f);
    for (uint32_t i = from; i < rc->list.count && !e; i++) {
        e = scan_tracking(rc->directory, rc->list.first[i], SEGMENT_HEADER_BYTES, rc->list.bytes[i], true, t, f);
        if (e == ERR_CORRUPT) e = OK; /* both headers are gone */
    }
    /* Never synced: whatever a power cut leaves of it, the next recovery builds it again. */
    struct file_path path = file_path_name(rc->directory, "tracking");
    if (!e && !file_is(path.text, t->table, tracking_bytes(t->table->capacity))) e = tracking_store(t, rc->directory, false, f);
    tracking_free(t);
    return e;
}

static bool has_suffix(const char *name, const char *suffix)
{
    size_t n = strlen(name), s = strlen(suffix);
    return n > s && strcmp(name + n - s, suffix) == 0;
}

/* Files that no segment needs: half-made ones, and companions of segments that are gone. */
static err sweep_one(void *context, const char *directory, const char *name, struct fault *f)
{
    const struct recovery *rc = context;
    uint64_t first;
    /* Of blocks that were fetched a power cut may keep the marks and lose the bytes. */
    bool orphan = has_suffix(name, ".tmp") || file_name_parse(name, COLD_SUFFIX, &first);
    if (file_name_parse(name, INDEX_SUFFIX, &first) || file_name_parse(name, TRACKING_SUFFIX, &first)) {
        orphan = first != rc->commit.segment && !backed_needs(rc, first, file_name_parse(name, INDEX_SUFFIX, &first));
        for (uint32_t i = 0; i < rc->list.count && orphan; i++) orphan = rc->list.first[i] != first;
    }
    if (!orphan) return OK;
    struct file_path path = file_path_name(directory, name);
    return file_unlink(path.text, f);
}

/* ---- the procedure ---- */

void recovery_once_init(struct recovery_once *once)
{
    *once = (struct recovery_once){.state = RECOVERY_UNSYNCED};
    pthread_mutex_init(&once->mutex, NULL);
}

void recovery_once_believe(struct recovery_once *once, uint64_t generation)
{
    once->checks_generation = true;
    once->generation = generation;
}

/* What is read after this is what a power cut leaves as well. */
static bool found_is_synced(struct recovery_once *once, const char *directory)
{
    struct stat st;
    if (!once || file_stat_of(directory, &st, NULL)) return false;
    pthread_mutex_lock(&once->mutex);
    if (once->state == RECOVERY_UNSYNCED) {
        once->device = st.st_dev;
        once->state = file_sync_system(directory, NULL) == OK ? RECOVERY_SYNCED : RECOVERY_EACH_SYNCS;
    }
    bool synced = once->state == RECOVERY_SYNCED && once->device == st.st_dev;
    pthread_mutex_unlock(&once->mutex);
    return synced;
}

void recovery_once_settle(struct recovery_once *once)
{
    if (once->state == RECOVERY_UNSYNCED) once->state = RECOVERY_EACH_SYNCS;
}

/* What it has cut or written may not be on the disk, and it may be run again. */
static void each_syncs(struct recovery_once *once)
{
    if (!once) return;
    pthread_mutex_lock(&once->mutex);
    once->state = RECOVERY_EACH_SYNCS;
    pthread_mutex_unlock(&once->mutex);
}

static err recover(struct recovery *rc, const struct log_options *options, struct fault *f)
{
    struct control_init init = {0};
    err e = log_options_check(options, &init.options, f);
    if (!e) e = control_old_read(rc->directory, &rc->old, f);
    if (!e) e = segment_list_read(rc->directory, &rc->list, f);
    if (e) return e;
    recovery_learn_durable(rc);
    rc->epoch = rc->old.epoch;
    e = backed_take(rc, f);
    uint64_t first_seen = rc->list.count ? rc->list.first[0] : rc->stored_to;
    if (!e) e = walk_all(rc, f);
    if (!e) recovery_learn_turned(rc);
    if (!e) e = begin_anew_if_lost(rc, first_seen, f);
    if (e) return e;
    look_back(rc);
    e = backed_join(rc, &init.first_offset, f);
    if (e) return e;
    e = file_each(rc->directory, sweep_one, rc, f);
    if (!e) e = rebuild_table(rc, f);
    /* What was kept is synced.  Where nothing was cut and nothing stored, a power cut that undoes the rest brings back
     * files of which the next recovery makes the same; a log that is durable beyond that keeps what its page knows. */
    bool sync = init.options.durability != DURABILITY_OS || rc->changed || rc->report->cut_count || rc->stored_to;
    if (!e && sync) e = file_sync_directory(rc->directory, f);
    if (e) return e;

    init.commit = rc->commit;
    init.confirmed = recovery_confirmed(rc, init.options.durability, init.first_offset);
    init.durable = (struct durable){rc->commit.segment, rc->commit.position, rc->commit.next_offset};
    init.epoch = rc->epoch + 1;
    init.turned_segment = rc->turned_segment;
    rc->report->first_offset = init.first_offset;
    rc->report->next_offset = init.commit.next_offset;
    e = quarantine_trim(rc->directory, rc->old.epoch, f);
    if (!e) e = sync ? control_create(rc->directory, &init, true, f) : control_renew(rc->directory, &init, f);
    return e || !sync ? e : file_sync_directory(rc->directory, f);
}

err recovery_run(const char *directory, const struct log_options *options, struct recovery_once *once,
                 struct recovery_report *out, struct fault *f)
{
    *out = (struct recovery_report){0};
    struct log *l;
    err e = version_check(directory, f);
    if (e) return e;
    struct fault opened;
    e = log_open(directory, &l, &opened);
    if (e == OK) {
        struct fault misfit = {0};
        bool believed = recovery_believes(once, l), fits = believed && recovery_fits(l, out, &misfit);
        if (believed && !fits) {
            *out = (struct recovery_report){0};
            memcpy(out->unfit, misfit.where, sizeof out->unfit);
        }
        if (fits) e = control_reset(log_control(l), directory, f);
        if (fits && !e) recovery_confirm(l);
        if (fits && !e) e = log_set_limits(l, options, f);
        log_close(l);
        if (fits || e) return e;
    } else if (e != ERR_STALE) return fault_set(f, e, opened.sys_errno, opened.where, opened.position, opened.needed, opened.had);
    else if (recovery_of_this_boot(directory)) memcpy(out->unfit, opened.where, sizeof out->unfit);

    out->ran = true;
    struct recovery rc = {.directory = directory, .report = out, .synced = found_is_synced(once, directory),
                          .keeps_behind = options->durability == DURABILITY_OS,
                          .keeps_proven = options->durability == DURABILITY_DISK};
    rc.commit = (struct commit){.batch_position = SEGMENT_HEADER_BYTES, .position = SEGMENT_HEADER_BYTES,
                                .last_chunk = UINT64_MAX, .timestamp_ms = INT64_MIN};
    rc.stored_ms = INT64_MIN;
    rc.commit.segment = UINT64_MAX; /* none yet */
    e = recover(&rc, options, f);
    if (e) each_syncs(once);
    segment_list_free(&rc.list);
    free(rc.pieces);
    return e;
}
