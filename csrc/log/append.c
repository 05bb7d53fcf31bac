/* SPDX-License-Identifier: Apache-2.0
 *
 * append: add a batch to the log; begin a new segment.
 *
 * The order makes a kill harmless at every instruction: chunks, index, commit record,
 * publishing ids.  What was written before the commit record does not exist and is
 * written over by the next append; what should have come after it is done by
 * whoever inherits the mutex (log_lock).
 */
#include <string.h>

#include "../base/clock.h"
#include "handle.h"

/* ---- a new segment ---- */

/* Bytes of an append that failed lie past what is committed.  Cut them off, so that
 * the size of a closed segment's files is the end of what they hold. */
static err roll_trim(struct log *l, const struct commit *c, struct fault *f)
{
    uint64_t size, index_size = INDEX_HEADER_BYTES + c->chunks * INDEX_RECORD_BYTES;
    err e = file_size(l->segment_fd, l->segment_path, &size, f);
    if (!e && size > c->position) e = file_truncate(l->segment_fd, l->segment_path, c->position, f);
    if (!e) e = file_size(l->index_fd, l->index_path, &size, f);
    if (!e && size > index_size) e = file_truncate(l->index_fd, l->index_path, index_size, f);
    return e;
}

/* From where on is the segment that we close in doubt?  0: its syncs did not fail. */
static uint64_t roll_suspect(const struct log *l, const struct commit *c, const struct durable *d)
{
    uint64_t failed = atomic_load_explicit(&l->control->sync_failed_segment, memory_order_relaxed);
    if (failed != c->segment + 1) return 0;
    return d->segment == c->segment ? d->position : SEGMENT_HEADER_BYTES;
}

bool log_clock_turned(const struct commit *c, int64_t now_ms) { return c->timestamp_ms > now_ms + CLOCK_STEP_MS; }

/* Chunks of the segment `name` have earlier times than those before it.  With the mutex held, before their commit. */
static void note_turned(struct log *l, uint64_t name)
{
    atomic_store_explicit(&l->control->turned_segment, name + 1, memory_order_release);
}

err log_roll(struct log *l, struct commit *c, struct fault *f)
{
    if (c->next_offset == c->segment) return OK; /* nothing in it: it is as good as new */
    err e = log_open_active(l, c, f);
    if (!e) e = roll_trim(l, c, f);
    if (e) return e;

    struct durable d;
    control_durable(l->control, &d);
    struct segment_header h = {.first_offset = c->next_offset, .durable_segment = d.segment,
                               .durable_position = d.position, .suspect_position = roll_suspect(l, c, &d)};
    int segment_fd = -1, index_fd = -1;
    segment_header_stamp(&h);
    if (log_clock_turned(c, h.created_ms)) note_turned(l, h.first_offset);
    h.turned_segment = atomic_load_explicit(&l->control->turned_segment, memory_order_relaxed);
    e = file_random(&h.seed, sizeof h.seed, f);
    if (!e) e = segment_create(l->directory, &h, &segment_fd, f);
    if (!e) e = index_create(l->directory, h.first_offset, h.seed, &index_fd, f);
    if (!e) e = tracking_snapshot_write(l->tracking, l->directory, h.first_offset, false, f);
    if (e) {
        file_close(&segment_fd);
        file_close(&index_fd);
        segment_remove(l->directory, h.first_offset, NULL); /* log_list ignores what cannot be removed */
        return e;
    }

    c->segment = c->next_offset;
    c->batch_position = c->position = SEGMENT_HEADER_BYTES;
    c->chunks = 0;
    control_commit(l->control, c);
    atomic_fetch_add_explicit(&l->control->segments_generation, 1, memory_order_release);
    log_set_active(l, c->segment, h.seed, segment_fd, index_fd);
    return OK;
}

static bool roll_wanted(const struct control *control, const struct commit *c)
{
    return c->position >= atomic_load_explicit(&control->segment_bytes_max, memory_order_relaxed) ||
           c->chunks >= control->segment_chunks_max ||
           atomic_load_explicit(&control->sync_failed_segment, memory_order_relaxed) == c->segment + 1;
}

/* ---- deduplication ---- */

/* `*unknown`: the number of references without a slot in the table. */
static err references_look_up(struct log *l, struct batch *b, uint32_t *unknown, struct fault *f)
{
    *unknown = 0;
    for (uint32_t i = 0; i < b->reference_count; i++) {
        struct batch_reference *r = &b->references[i];
        if (r->first != i) continue;
        err e = log_tracking_find(l, r->text, r->bytes, &r->last, f);
        if (e && e != ERR_NOT_FOUND && e != ERR_EMPTY) return e;
        r->known = !e;
        *unknown += e == ERR_NOT_FOUND && !tracking_is_of_transactions(r->text, r->bytes);
    }
    return OK;
}

static bool holds_duplicates(struct batch *b)
{
    for (uint32_t i = 0; i < b->run_count; i++) {
        const struct batch_run *run = &b->runs[i];
        struct batch_reference *r = &b->references[b->references[run->reference].first];
        if (!run->ascending || (r->known && b->ids[run->first_id] <= r->last)) return true;
        r->known = true;
        r->last = b->ids[run->first_id + run->entries - 1];
    }
    return false;
}

static err deduplicate(struct log *l, struct batch *b, struct fault *f)
{
    uint32_t unknown;
    if (b->run_count == 0) return OK;
    err e = references_look_up(l, b, &unknown, f);
    if (!e) e = tracking_reserve(l->tracking, unknown, f);
    if (e || !holds_duplicates(b)) return e;
    e = references_look_up(l, b, &unknown, f); /* the first pass has advanced it */
    return e ? e : batch_drop_duplicates(b, f);
}

static void remember(struct log *l, const struct batch *b, uint64_t first_offset)
{
    uint64_t chunk_id = first_offset;
    uint32_t chunk = 0;
    for (uint32_t i = 0; i < b->run_count; i++) {
        const struct batch_run *run = &b->runs[i];
        for (; chunk < run->chunk; chunk++) chunk_id += b->chunks[chunk].records;
        const struct batch_reference *r = &b->references[run->reference];
        /* After deduplication every run ascends. */
        err e = tracking_raise(l->tracking, r->text, r->bytes, b->ids[run->first_id + run->entries - 1], chunk_id);
        CHECK(e == OK); /* deduplicate has reserved room */
    }
}

/* ---- writing ---- */

/* Stamp the headers; collect what is written and the index records.  `c` moves on to
 * what will be committed. */
static int stamp(struct log *l, struct batch *b, struct commit *c)
{
    int parts = 0;
    c->batch_position = c->position;
    for (uint32_t i = 0; i < b->chunk_count; i++) {
        const struct batch_chunk *bc = &b->chunks[i];
        struct chunk header = {.type = CHUNK_USER, .entries = bc->entries, .records = bc->records,
                               .timestamp_ms = c->timestamp_ms, .epoch = l->control->epoch, .chunk_id = c->next_offset,
                               .crc = bc->crc, .data_bytes = bc->data_bytes, .trailer_bytes = bc->trailer_bytes,
                               .bloom_bytes = bc->filtered ? (uint8_t)b->filter_bytes : 0, .trailer_crc = bc->trailer_crc};
        uint8_t *at = batch_entries(b, bc) - header.bloom_bytes - CHUNK_HEADER_BYTES;
        size_t bytes = CHUNK_HEADER_BYTES + (size_t)header.bloom_bytes + bc->data_bytes;
        chunk_header_write(&header, l->seed, at);
        if (header.bloom_bytes) filter_seal(at, header.bloom_bytes);
        struct index_record r = {.chunk_id = c->next_offset, .timestamp_ms = c->timestamp_ms,
                                 .position = (uint32_t)c->position, .chunk_bytes = (uint32_t)chunk_bytes(&header),
                                 .records = bc->records};
        index_record_write(&r, l->seed, b->index_records + (size_t)i * INDEX_RECORD_BYTES);

        /* Chunks without trailers that fill their head room lie one behind the other in memory as on disk. */
        struct iovec *last = parts ? &b->parts[parts - 1] : NULL;
        if (last && (uint8_t *)last->iov_base + last->iov_len == at) last->iov_len += bytes;
        else b->parts[parts++] = (struct iovec){at, bytes};
        if (bc->trailer_bytes) b->parts[parts++] = (struct iovec){b->trailers + bc->trailer_position, bc->trailer_bytes};

        c->last_chunk = c->next_offset;
        c->next_offset += bc->records;
        c->position += chunk_bytes(&header);
        c->chunks++;
    }
    return parts;
}

static err write_batch(struct log *l, struct batch *b, struct commit *c, struct fault *f)
{
    const struct commit before = *c;
    int parts = stamp(l, b, c);
    if (c->position > UINT32_MAX) {
        /* Only a segment limit far beyond LOG_SEGMENT_BYTES_MAX could bring us here. */
        *c = before;
        return fault_set(f, ERR_LIMIT, 0, l->directory, before.position, UINT32_MAX, b->size);
    }
    err e = file_writev(l->segment_fd, l->segment_path, b->parts, parts, before.position, f);
    if (!e)
        e = file_write(l->index_fd, l->index_path, b->index_records, (size_t)b->chunk_count * INDEX_RECORD_BYTES,
                       INDEX_HEADER_BYTES + before.chunks * INDEX_RECORD_BYTES, f);
    if (e) *c = before;
    return e;
}

/* ---- the procedure ---- */

static err append_locked(struct log *l, struct batch *b, struct log_appended *out, struct commit *c, struct fault *f)
{
    struct control *control = l->control;
    if (atomic_load_explicit(&control->state, memory_order_relaxed) == CONTROL_DELETED)
        return fault_set(f, ERR_DELETED, 0, l->directory, 0, 0, 0);
    err e = deduplicate(l, b, f);
    if (e || batch_is_empty(b)) return e;
    int64_t now = sys->now_ms();
    bool turned = log_clock_turned(c, now); /* within a segment times do not go back: its index is searched by them */
    if (turned || roll_wanted(control, c)) {
        uint64_t closed = c->segment;
        e = log_roll(l, c, f);
        if (e) return e;
        out->rolled = c->segment != closed;
        out->closed_segment = closed;
    }
    if (turned) note_turned(l, c->segment); /* also one that was begun before the clock went back, and is empty */
    if (turned || now > c->timestamp_ms) c->timestamp_ms = now;
    e = log_open_active(l, c, f);
    if (!e) e = write_batch(l, b, c, f);
    if (e) return e;
    control_commit(control, c);
    remember(l, b, out->first_offset);
    return OK;
}

err log_append(struct log *l, struct batch *b, struct log_appended *out, struct fault *f)
{
    CHECK(b->sealed);
    struct commit c;
    *out = (struct log_appended){0};
    err e = log_lock(l, f);
    if (e) return e;
    control_committed(l->control, &c);
    out->first_offset = c.next_offset;
    e = append_locked(l, b, out, &c, f);
    log_unlock(l);
    out->next_offset = c.next_offset;
    out->segment = c.segment;
    out->position = c.position;
    out->duplicates = b->duplicates > UINT32_MAX ? UINT32_MAX : (uint32_t)b->duplicates;
    return e;
}
