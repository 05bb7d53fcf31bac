/* SPDX-License-Identifier: Apache-2.0
 *
 * sync: make what is committed survive power loss, and say how far that is.
 *
 * One fdatasync serves all: it covers whatever was committed when it began, and who waited for its turn meanwhile finds
 * its work done.  Closed segments come first and in order, so durable never has a hole.  Files are opened here: the
 * appender's belong to another thread, and an error that the kernel noted since the last sync is told to a file opened
 * now as well.
 *
 * A segment whose fdatasync failed is never synced again, because the kernel may have dropped the dirty pages and would
 * call the next try a success.  Its offsets from the durable one on are noted as failed, the next append begins a new
 * segment, and durable goes on from there.
 *
 * With durability `disk` messages that become durable are confirmed in the same step, and readers get them.  Readers skip
 * offsets that are recorded as failed.
 */
#include "handle.h"

uint64_t log_durable_offset(const struct log *l)
{
    struct durable d;
    control_durable(l->control, &d);
    return d.offset;
}

bool log_sync_failed(const struct log *l, uint64_t first_offset, uint64_t next_offset)
{
    return control_failed_covers(l->control, first_offset, next_offset);
}

/* `*gave_up`: the sync itself failed, which must not be tried again; a file that could not be opened may be. */
static err sync_file(const struct log *l, uint64_t segment, const char *suffix, bool *gave_up, struct fault *f)
{
    struct file_path path = file_path_numbered(l->directory, segment, suffix);
    int fd;
    err e = file_open(path.text, O_RDONLY, &fd, f);
    if (e) return e;
    e = file_datasync(fd, path.text, f);
    *gave_up = e != OK;
    file_close(&fd);
    return e;
}

/* What a segment's recovery begins with.  None of these is needed for what was confirmed
 * (the chunks hold all), so their failure is only a slower recovery. */
static void sync_companions(const struct log *l, uint64_t segment, bool closed)
{
    bool gave_up;
    sync_file(l, segment, TRACKING_SUFFIX, &gave_up, NULL);
    if (closed) sync_file(l, segment, INDEX_SUFFIX, &gave_up, NULL);
}

/* Note that `segment` cannot be made durable from d->offset on.  With the control mutex, so
 * that no append is under way whose offsets the range would miss. */
static void sync_give_up(struct log *l, uint64_t segment, uint64_t segment_end, const struct durable *d)
{
    struct commit c;
    bool locked = log_lock(l, NULL) == OK;
    control_committed(l->control, &c);
    uint64_t next = c.segment == segment ? c.next_offset : segment_end;
    control_failed_add(l->control, d->offset, next);
    if (c.segment == segment) atomic_store_explicit(&l->control->sync_failed_segment, segment + 1, memory_order_relaxed);
    if (locked) log_unlock(l);
}

/* Raise the confirmed record to the durable one, with durability `disk`.  `whole`: the commit record that was synced;
 * NULL: a closed segment was, and its last chunk is looked up.  With durable_mutex held. */
static void sync_confirm(struct log *l, const struct durable *d, const struct commit *whole)
{
    struct commit c, before;
    struct chunk last;
    if (l->control->durability != DURABILITY_DISK) return;
    control_confirmed_record(l->control, &before);
    c = (struct commit){.segment = d->segment, .batch_position = d->position, .position = d->position, .next_offset = d->offset,
                        .last_chunk = before.last_chunk, .chunks = UINT64_MAX, .timestamp_ms = before.timestamp_ms};
    if (whole) {
        c = *whole;
    } else if (scan_last_chunk(l->directory, d->segment, d->position, &last) == OK) {
        c.last_chunk = last.chunk_id;
        c.timestamp_ms = last.timestamp_ms;
    }
    /* A segment that is still empty names the last chunk of the one before. */
    if (c.last_chunk != UINT64_MAX && control_failed_covers(l->control, c.last_chunk, c.last_chunk + 1))
        c.last_chunk = before.last_chunk;
    control_confirm(l->control, &c);
}

/* Sync one segment and publish that it is durable up to `to`.  `whole` as of sync_confirm. */
static err sync_segment(struct log *l, const struct durable *to, uint64_t segment_end, const struct commit *whole,
                        struct durable *d, struct fault *f)
{
    bool closed = whole == NULL;
    bool gave_up = false;
    err e = OK;
    if (closed || d->segment != to->segment) sync_companions(l, to->segment, closed);
    if (d->segment != to->segment) {
        /* The first sync in this file: its name must be durable too. */
        e = file_sync_directory(l->directory, f);
        gave_up = e != OK;
    }
    if (!e) e = sync_file(l, to->segment, SEGMENT_SUFFIX, &gave_up, f);
    if (e && gave_up) sync_give_up(l, to->segment, segment_end, d);
    if (e == ERR_NOT_FOUND && closed) return OK; /* retention took it: nobody can ask for it any more */
    if (e) return e;
    *d = *to;
    control_durable_set(l->control, d);
    sync_confirm(l, d, whole);
    return OK;
}

/* The closed segments from the durable one on. */
static err sync_closed(struct log *l, const struct commit *c, struct durable *d, struct fault *f)
{
    struct segment_list list = {0};
    err e = segment_list_read(l->directory, &list, f);
    if (!e) segment_list_keep(&list, d->segment, c->segment);
    for (uint32_t i = 0; i < list.count && !e; i++) {
        uint64_t segment = list.first[i];
        if (segment == c->segment || list.cold[i]) continue;
        /* Its last offset is the next segment's name; the active one is in the list or was made since. */
        uint64_t end = i + 1 < list.count ? list.first[i + 1] : c->segment;
        struct durable to = {segment, list.bytes[i], end};
        if (d->segment == segment && d->position == to.position) continue;
        if (control_failed_covers(l->control, end - 1, end)) continue; /* given up for good */
        e = sync_segment(l, &to, end, NULL, d, f);
    }
    segment_list_free(&list);
    return e;
}

static err sync_locked(struct log *l, struct fault *f)
{
    struct commit c;
    struct durable d;
    control_committed(l->control, &c);
    control_durable(l->control, &d);
    if (atomic_load_explicit(&l->control->failed_count, memory_order_relaxed) >= CONTROL_FAILED_MAX)
        return fault_set(f, ERR_IO, 0, l->directory, 0, CONTROL_FAILED_MAX, CONTROL_FAILED_MAX);
    if (d.segment != c.segment) {
        err e = sync_closed(l, &c, &d, f);
        if (e) return e;
    }
    if (c.position == SEGMENT_HEADER_BYTES && d.segment == c.segment) return OK;
    if (atomic_load_explicit(&l->control->sync_failed_segment, memory_order_relaxed) == c.segment + 1)
        return fault_set(f, ERR_IO, 0, l->directory, d.position, c.next_offset, d.offset);
    struct durable to = {c.segment, c.position, c.next_offset};
    return sync_segment(l, &to, c.next_offset, &c, &d, f);
}

/* An empty segment too is worth a sync: with it durable, retention may drop the ones before. */
static bool sync_wanted(const struct durable *d, const struct commit *c)
{
    return d->offset < c->next_offset || d->segment < c->segment;
}

/* True if the confirmed record is behind the durable one: a version without it has synced in this boot. */
static bool confirm_wanted(const struct log *l, const struct durable *d)
{
    struct commit confirmed;
    if (l->control->durability != DURABILITY_DISK) return false;
    control_confirmed_record(l->control, &confirmed);
    return confirmed.next_offset < d->offset || confirmed.position == 0;
}

err log_sync(struct log *l, uint64_t *durable_offset, struct fault *f)
{
    struct commit wanted;
    struct durable d;
    control_committed(l->control, &wanted);
    control_durable(l->control, &d);
    err e = OK;
    if (sync_wanted(&d, &wanted) || confirm_wanted(l, &d)) {
        if (mutex_lock(&l->control->durable_mutex) == MUTEX_FAILED)
            return fault_set(f, ERR_LOCK, errno, l->directory, 0, 0, 0);
        /* Who waited here for another's fdatasync may find that it began late enough. */
        control_durable(l->control, &d);
        if (sync_wanted(&d, &wanted)) e = sync_locked(l, f);
        control_durable(l->control, &d);
        if (confirm_wanted(l, &d)) sync_confirm(l, &d, NULL);
        mutex_unlock(&l->control->durable_mutex);
        control_durable(l->control, &d);
    }
    *durable_offset = d.offset;
    return e;
}

err log_sync_rest(const char *directory, struct fault *f)
{
    struct log *l;
    uint64_t durable;
    err e = log_open(directory, &l, f);
    if (e) return e == ERR_IO || e == ERR_NO_MEMORY || e == ERR_LIMIT ? e : OK;
    e = log_sync(l, &durable, f);
    log_close(l);
    return e;
}

bool log_closed_is_unsynced(const struct log *l)
{
    struct commit c;
    struct durable d;
    control_durable(l->control, &d);
    control_committed(l->control, &c);
    return d.segment < c.segment;
}
