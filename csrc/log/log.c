/* SPDX-License-Identifier: Apache-2.0
 *
 * log: make, open, close and remove a log; the lock; the list of segments.
 */
#include "log.h"

#include <libgen.h>
#include <stdlib.h>
#include <string.h>

#include "../base/calls.h"
#include "handle.h"

/* ---- make ---- */

/* The directory that holds `directory`: its new entry is what must be durable. */
static err sync_parent(const char *directory, struct fault *f)
{
    char copy[FILE_DIRECTORY_BYTES_MAX];
    CHECK(strlen(directory) < sizeof copy);
    return file_sync_directory(dirname(strcpy(copy, directory)), f);
}

static err directory_allowed(const char *directory, struct fault *f)
{
    size_t size = strlen(directory);
    if (size == 0) return fault_set(f, ERR_INVALID, 0, directory, 0, 1, 0);
    if (size >= FILE_DIRECTORY_BYTES_MAX) return fault_set(f, ERR_LIMIT, 0, directory, 0, FILE_DIRECTORY_BYTES_MAX - 1, size);
    return OK;
}

err log_options_check(const struct log_options *o, struct log_options *out, struct fault *f)
{
    if (o->durability > DURABILITY_REMOTE)
        return fault_set(f, ERR_INVALID, 0, "durability", 0, DURABILITY_REMOTE, o->durability);
    if (o->segment_bytes_max > LOG_SEGMENT_BYTES_MAX)
        return fault_set(f, ERR_LIMIT, 0, "segment_bytes_max", 0, LOG_SEGMENT_BYTES_MAX, o->segment_bytes_max);
    if (o->filter_bytes > FILTER_BYTES_MAX || (o->filter_bytes && o->filter_bytes < FILTER_BYTES_MIN))
        return fault_set(f, ERR_LIMIT, 0, "filter_bytes", 0, FILTER_BYTES_MAX, o->filter_bytes);
    if (o->chunk_messages_max > CHUNK_MESSAGES_MAX)
        return fault_set(f, ERR_LIMIT, 0, "chunk_messages_max", 0, CHUNK_MESSAGES_MAX, o->chunk_messages_max);
    *out = *o;
    if (!out->chunk_messages_max) out->chunk_messages_max = CHUNK_MESSAGES_MAX;
    if (!out->filter_bytes) out->filter_bytes = FILTER_BYTES_DEFAULT;
    if (!out->segment_bytes_max) out->segment_bytes_max = LOG_SEGMENT_BYTES_DEFAULT;
    if (out->segment_bytes_max < LOG_SEGMENT_BYTES_MIN) out->segment_bytes_max = LOG_SEGMENT_BYTES_MIN;
    if (!out->segment_chunks_max) out->segment_chunks_max = LOG_SEGMENT_CHUNKS_DEFAULT;
    return OK;
}

err log_files_create(const char *directory, uint64_t first_offset, uint64_t turned_segment, bool sync, struct fault *f)
{
    struct segment_header h = {.first_offset = first_offset, .durable_segment = first_offset,
                               .durable_position = SEGMENT_HEADER_BYTES, .turned_segment = turned_segment};
    int segment_fd = -1, index_fd = -1;
    segment_header_stamp(&h);
    struct file_path path = file_path_numbered(directory, first_offset, SEGMENT_SUFFIX);
    err e = file_random(&h.seed, sizeof h.seed, f);
    if (!e) e = segment_create(directory, &h, &segment_fd, f);
    if (!e) e = index_create(directory, first_offset, h.seed, &index_fd, f);
    if (!e && sync) e = file_datasync(segment_fd, path.text, f);
    file_close(&segment_fd);
    file_close(&index_fd);
    return e;
}

err log_create(const char *directory, const struct log_options *options, struct fault *f)
{
    struct control_init init = {.epoch = 1};
    err e = directory_allowed(directory, f);
    if (!e) e = log_options_check(options, &init.options, f);
    if (e) return e;
    if (sys->mkdir(directory, 0750) < 0) return fault_from_errno(f, directory, 0, 0, 0);

    bool sync = options->durability != DURABILITY_OS; /* its record is synced too, and must not stand alone */
    init.commit = (struct commit){.batch_position = SEGMENT_HEADER_BYTES, .position = SEGMENT_HEADER_BYTES,
                                  .last_chunk = UINT64_MAX, .timestamp_ms = INT64_MIN};
    init.confirmed = init.commit;
    init.durable = (struct durable){.position = SEGMENT_HEADER_BYTES};
    e = log_files_create(directory, 0, 0, sync, f);
    if (!e) e = tracking_create(directory, sync, f);
    /* The control block comes last: a directory without one is not a log yet. */
    if (!e) e = control_create(directory, &init, sync, f);
    if (!e && sync) e = file_sync_directory(directory, f);
    if (!e && sync) e = sync_parent(directory, f);
    if (e) log_remove(directory, NULL); /* f keeps the first fault */
    return e;
}

/* ---- open and close ---- */

static err open_handle(const char *directory, bool write, struct log **out, struct fault *f)
{
    err e = directory_allowed(directory, f);
    if (e) return e;
    size_t path_bytes = strlen(directory) + FILE_NAME_BYTES_MAX;
    struct log *l = calloc(1, sizeof *l + 3 * path_bytes);
    if (!l) return fault_set(f, ERR_NO_MEMORY, 0, directory, 0, sizeof *l, 0);
    l->segment_fd = l->index_fd = -1;
    l->segment_path = l->directory + path_bytes;
    l->index_path = l->segment_path + path_bytes;
    memcpy(l->directory, directory, strlen(directory) + 1);
    e = control_map(directory, write, &l->control, f);
    if (!e && write) e = tracking_map(directory, &l->tracking, f);
    if (e) log_close(l);
    else *out = l;
    return e;
}

err log_open(const char *directory, struct log **out, struct fault *f) { return open_handle(directory, true, out, f); }

err log_open_readonly(const char *directory, struct log **out, struct fault *f)
{
    return open_handle(directory, false, out, f);
}

void log_close(struct log *l)
{
    if (!l) return;
    log_rest(l);
    segment_list_free(&l->list);
    tracking_free(l->tracking);
    control_unmap(l->control);
    free(l);
}

struct control *log_control(struct log *l) { return l->control; }

/* Rebuild the missing index of the active segment from its committed chunks.  It is renamed into place when complete: an
 * append would write behind an incomplete one, and its missing records would never be added. */
static err index_anew(const struct log *l, const struct commit *c, int segment_fd, uint32_t seed, const char *path, struct fault *f)
{
    struct scan s = {.fd = segment_fd, .seed = seed, .segment = c->segment, .limit = c->position, .directory = l->directory};
    uint64_t id = c->segment, position = SEGMENT_HEADER_BYTES, at = INDEX_HEADER_BYTES;
    uint8_t header[INDEX_HEADER_BYTES], bytes[INDEX_RECORD_BYTES];
    struct file_path temporary = file_path_numbered(l->directory, c->segment, INDEX_SUFFIX ".tmp");
    int fd;
    index_header_write(c->segment, seed, header);
    err e = file_create(temporary.text, header, sizeof header, &fd, f);
    if (e) return file_unlink(temporary.text, NULL), e;
    while (!e && position < c->position && at < INDEX_HEADER_BYTES + c->chunks * INDEX_RECORD_BYTES) {
        struct chunk found;
        e = scan_header(&s, position, &found, f);
        if (!e && found.chunk_id >= id) {
            struct index_record r = {.chunk_id = found.chunk_id, .timestamp_ms = found.timestamp_ms, .position = (uint32_t)position,
                                     .chunk_bytes = (uint32_t)chunk_bytes(&found), .records = found.records};
            index_record_write(&r, seed, bytes);
            e = file_write(fd, temporary.text, bytes, sizeof bytes, at, f);
            at += sizeof bytes;
        } else if (e == ERR_CORRUPT || e == ERR_IO) {
            e = OK; /* a damaged chunk gets no record */
        }
        if (!e) e = scan_past(&s, 0, &position, &id, f);
    }
    return file_put(e, &fd, temporary.text, path, false, f);
}

err log_open_active(struct log *l, const struct commit *c, struct fault *f)
{
    if (l->segment_fd >= 0 && l->segment == c->segment) return OK;
    int segment_fd, index_fd;
    uint32_t seed;
    struct file_path path;
    err e = segment_open(l->directory, c->segment, true, &segment_fd, &seed, f);
    if (e) return e;
    e = file_open_numbered(&path, l->directory, c->segment, INDEX_SUFFIX, O_RDWR, &index_fd, f);
    if (e == ERR_NOT_FOUND) {
        e = index_anew(l, c, segment_fd, seed, path.text, f);
        if (!e) e = file_open(path.text, O_RDWR, &index_fd, f);
    }
    if (e) file_close(&segment_fd);
    else log_set_active(l, c->segment, seed, segment_fd, index_fd);
    return e;
}

void log_set_active(struct log *l, uint64_t segment, uint32_t seed, int segment_fd, int index_fd)
{
    log_rest(l);
    l->segment = segment;
    l->seed = seed;
    l->segment_fd = segment_fd;
    l->index_fd = index_fd;
    struct file_path path = file_path_numbered(l->directory, segment, SEGMENT_SUFFIX);
    memcpy(l->segment_path, path.text, strlen(path.text) + 1);
    path = file_path_numbered(l->directory, segment, INDEX_SUFFIX);
    memcpy(l->index_path, path.text, strlen(path.text) + 1);
}

void log_rest(struct log *l)
{
    file_close(&l->segment_fd);
    file_close(&l->index_fd);
}

/* ---- limits ---- */

err log_set_limits(struct log *l, const struct log_options *options, struct fault *f)
{
    struct log_options limits;
    err e = log_options_check(options, &limits, f);
    if (!e) control_limits_set(l->control, &limits);
    return e;
}

uint32_t log_filter_bytes(const struct log *l)
{
    uint32_t bytes = atomic_load_explicit(&l->control->filter_bytes, memory_order_relaxed);
    return bytes ? bytes : FILTER_BYTES_DEFAULT;
}

uint32_t log_chunk_messages(const struct log *l)
{
    uint32_t messages = atomic_load_explicit(&l->control->chunk_messages_max, memory_order_relaxed);
    return messages ? messages : CHUNK_MESSAGES_MAX;
}

/* ---- the lock ---- */

/* Fill an empty table from the newest undamaged snapshot and the trailers behind it. */
static err tracking_from_log(struct log *l, const struct segment_list *list, const struct commit *c, struct tracking *t,
                             struct fault *f)
{
    uint32_t from = list->count;
    bool found = false;
    err e = OK;
    while (from > 0 && !found) {
        found = tracking_snapshot_read(l->directory, list->first[--from], t, NULL) == OK;
        if (!found) tracking_clear(t);
    }
    for (uint32_t i = from; i < list->count && !e; i++) {
        uint64_t limit = list->first[i] == c->segment ? c->position : list->bytes[i];
        e = scan_tracking(l->directory, list->first[i], SEGMENT_HEADER_BYTES, limit, true, t, f);
        if (e == ERR_CORRUPT || (e == ERR_NOT_FOUND && list->first[i] != c->segment)) e = OK; /* retention is deleting it */
    }
    return e;
}

/* Rebuild the table in place if a check is wrong. */
static err tracking_rebuild(struct log *l, struct fault *f)
{
    struct segment_list list = {0};
    struct tracking *built;
    struct commit c;
    control_committed(l->control, &c);
    err e = tracking_new(&built, f);
    if (e) return e;
    e = segment_list_read(l->directory, &list, f);
    if (!e) {
        segment_list_keep(&list, atomic_load_explicit(&l->control->first_offset, memory_order_acquire), c.segment);
        e = tracking_from_log(l, &list, &c, built, f);
    }
    if (!e) e = tracking_replace(l->tracking, built, f);
    segment_list_free(&list);
    tracking_free(built);
    if (!e) l->tracking_rebuilt = true;
    return e;
}

/* The dead owner may have committed a batch and not yet noted its publishing ids: note
 * them (again).  All else is consistent by construction. */
static err log_repair(struct log *l, bool inherited, struct fault *f)
{
    struct commit c;
    control_committed(l->control, &c);
    if (inherited) tracking_inherit(l->tracking);
    if (!tracking_is_whole(l->tracking)) {
        err e = tracking_rebuild(l, f);
        if (e) return e;
    }
    l->tracking_checked = true;
    /* Damage in the file is the reader's to report; the table is as good as it can be. */
    return inherited ? scan_tracking(l->directory, c.segment, c.batch_position, c.position, false, l->tracking, f) : OK;
}

/* A wait for a process that is in a file system call with the lock is noted as one itself. */
static enum mutex_taken take(struct log *l, int64_t ms)
{
    struct mutex *m = &l->control->mutex;
    enum mutex_taken taken = mutex_try(m);
    if (taken != MUTEX_BUSY || ms == 0) return taken;
    struct call *noted = call_begin(CALL_LOCK, l->directory);
    taken = ms < 0 ? mutex_lock(m) : mutex_lock_within(m, ms);
    int kept = errno;
    call_end(noted);
    errno = kept;
    return taken;
}

static _Thread_local int64_t patience_ms = -1;

void log_lock_patience(int64_t ms) { patience_ms = ms; }

err log_lock(struct log *l, struct fault *f)
{
    struct control *c = l->control;
    enum mutex_taken taken = take(l, patience_ms);
    if (taken == MUTEX_BUSY) return fault_set(f, ERR_BUSY, 0, l->directory, 0, 0, 0);
    if (taken == MUTEX_FAILED) return fault_set(f, ERR_LOCK, errno, l->directory, 0, 0, 0);
    /* Kept in the page until a repair succeeds: whoever cannot do it now leaves it to the next. */
    if (taken == MUTEX_INHERITED) atomic_store_explicit(&c->repair_wanted, 1, memory_order_relaxed);
    bool inherited = atomic_load_explicit(&c->repair_wanted, memory_order_relaxed) != 0;
    if (l->tracking && (inherited || !l->tracking_checked)) {
        err e = log_repair(l, inherited, f);
        if (e) {
            mutex_unlock(&c->mutex);
            return e;
        }
        atomic_store_explicit(&c->repair_wanted, 0, memory_order_relaxed);
        DEBUG_CHECK((control_check(c), tracking_check(l->tracking), true));
    }
    return OK;
}

void log_unlock(struct log *l) { mutex_unlock(&l->control->mutex); }

err log_tracking_find(struct log *l, const char *reference, uint32_t bytes, uint64_t *sequence, struct fault *f)
{
    err e = tracking_find(l->tracking, reference, bytes, sequence);
    if (e != ERR_CORRUPT) return e;
    e = tracking_rebuild(l, f);
    return e ? e : tracking_find(l->tracking, reference, bytes, sequence);
}

/* ---- questions ---- */

err log_publisher_sequence(struct log *l, const char *reference, uint32_t bytes, uint64_t *out, struct fault *f)
{
    uint64_t chunk;
    return log_publisher_last(l, reference, bytes, out, &chunk, f);
}

err log_publisher_last(struct log *l, const char *reference, uint32_t bytes, uint64_t *out, uint64_t *chunk, struct fault *f)
{
    *out = *chunk = 0;
    if (bytes == 0 || bytes > TRACKING_REFERENCE_BYTES_MAX)
        return fault_set(f, ERR_NOT_FOUND, 0, "publisher reference", 0, TRACKING_REFERENCE_BYTES_MAX, bytes);
    err e = log_lock(l, f);
    if (e) return e;
    e = log_tracking_find(l, reference, bytes, out, f);
    if (!e) *chunk = tracking_chunk(l->tracking, reference, bytes);
    log_unlock(l);
    return e == ERR_NOT_FOUND || e == ERR_EMPTY ? fault_set(f, ERR_NOT_FOUND, 0, "publisher reference", 0, 0, 0) : e;
}

err log_publisher_declare(struct log *l, struct doorbell_board *board, uint32_t seat, const char *reference, uint32_t bytes,
                          bool *evicted, struct fault *f)
{
    *evicted = false;
    if (bytes == 0 || bytes > TRACKING_REFERENCE_BYTES_MAX)
        return fault_set(f, ERR_INVALID, 0, "publisher reference", 0, TRACKING_REFERENCE_BYTES_MAX, bytes);
    err e = log_lock(l, f);
    if (e) return e;
    e = tracking_pin(l->tracking, board, seat, reference, bytes, evicted, f);
    log_unlock(l);
    return e;
}

err log_publisher_release(struct log *l, uint32_t seat, const char *reference, uint32_t bytes, struct fault *f)
{
    err e = log_lock(l, f);
    if (e) return e;
    tracking_unpin(l->tracking, seat, reference, bytes);
    log_unlock(l);
    return OK;
}

bool log_tracking_rebuilt(struct log *l)
{
    bool rebuilt = l->tracking_rebuilt;
    l->tracking_rebuilt = false;
    return rebuilt;
}

err log_publishers(struct log *l, struct log_publisher *out, uint32_t *count, struct fault *f)
{
    _Static_assert(LOG_PUBLISHERS_MAX == TRACKING_SLOTS, "room for every reference");
    const struct tracking_slot *s;
    *count = 0;
    err e = log_lock(l, f);
    if (e) return e;
    for (uint32_t at = 0; (s = tracking_next(l->tracking, &at)) != NULL;) {
        if (s->chunk == TRACKING_NEVER) continue;
        struct log_publisher *p = &out[(*count)++];
        p->sequence = s->sequence;
        p->bytes = s->bytes;
        memcpy(p->reference, s->text, s->bytes);
    }
    log_unlock(l);
    return OK;
}

err log_list(struct log *l, const struct segment_list **out, struct commit *committed, struct fault *f)
{
    uint64_t generation = atomic_load_explicit(&l->control->segments_generation, memory_order_acquire);
    control_committed(l->control, committed);
    /* Both are compared: a roll may have been killed between its commit and the generation. */
    if (!l->list_known || l->list_generation != generation || l->list_segment != committed->segment) {
        l->list_known = false;
        err e = segment_list_read(l->directory, &l->list, f);
        if (e) return e;
        uint64_t first = atomic_load_explicit(&l->control->first_offset, memory_order_acquire);
        segment_list_keep(&l->list, first, committed->segment);
        if (l->list.count == 0 || l->list.first[l->list.count - 1] != committed->segment) {
            struct file_path path = file_path_numbered(l->directory, committed->segment, SEGMENT_SUFFIX);
            return fault_set(f, ERR_NOT_FOUND, 0, path.text, 0, 0, 0);
        }
        l->list_generation = generation;
        l->list_segment = committed->segment;
        l->list_known = true;
    }
    *out = &l->list;
    return OK;
}

err log_list_confirmed(struct log *l, struct segment_list *out, struct commit *confirmed, struct fault *f)
{
    const struct segment_list *all;
    struct commit committed;
    /* First, so that a later commit record covers it. */
    control_confirmed(l->control, confirmed);
    err e = log_list(l, &all, &committed, f);
    if (e) return e;
    *out = *all;
    while (out->count > 0 && out->first[out->count - 1] > confirmed->segment) out->count--;
    if (out->count > 0 && out->first[out->count - 1] == confirmed->segment) return OK;
    struct file_path path = file_path_numbered(l->directory, confirmed->segment, SEGMENT_SUFFIX);
    return fault_set(f, ERR_NOT_FOUND, 0, path.text, 0, 0, 0);
}

err log_stats(struct log *l, struct log_stats *out, struct fault *f)
{
    const struct segment_list *list;
    struct commit c, confirmed;
    control_confirmed(l->control, &confirmed);
    err e = log_list(l, &list, &c, f);
    if (e) return e;
    *out = (struct log_stats){.next_offset = c.next_offset, .confirmed_offset = confirmed.next_offset,
                              .last_chunk = confirmed.last_chunk, .segment_count = list->count,
                              .first_offset = atomic_load_explicit(&l->control->first_offset, memory_order_acquire)};
    /* The file may be longer than what is committed. */
    for (uint32_t i = 0; i + 1 < list->count; i++) out->bytes += list->bytes[i];
    out->bytes += c.position;
    return OK;
}

/* ---- the end ---- */

void log_mark_deleted(struct log *l)
{
    /* With the mutex no append is under way when we return; without it (it cannot be had) the
     * next one still sees the mark. */
    bool locked = log_lock(l, NULL) == OK;
    atomic_store_explicit(&l->control->state, CONTROL_DELETED, memory_order_release);
    if (locked) log_unlock(l);
}

static err remove_one(void *context, const char *directory, const char *name, struct fault *f)
{
    (void)context;
    if (strcmp(name, "control") == 0) return OK;
    struct file_path path = file_path_name(directory, name);
    return file_unlink(path.text, f);
}

err log_remove(const char *directory, struct fault *f)
{
    struct file_path path = file_path_name(directory, "control");
    err e = file_each(directory, remove_one, NULL, f);
    /* Last: its mark is what keeps a half removed log from being recovered. */
    if (!e) e = file_unlink(path.text, f);
    if (e) return e;
    if (sys->rmdir(directory) == 0) return OK;
    /* A store of an offset that was under way may have made its files again. */
    if (errno == ENOTEMPTY && file_each(directory, remove_one, NULL, NULL) == OK && sys->rmdir(directory) == 0) return OK;
    return fault_from_errno(f, directory, 0, 0, 0);
}
