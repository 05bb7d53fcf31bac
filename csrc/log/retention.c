/* SPDX-License-Identifier: Apache-2.0
 *
 * retention: decide how many of the oldest segments go, then drop them.
 *
 * The new first offset is published before anything is removed, so nobody attaches to what is going; the files go
 * oldest first, so a kill in between leaves no hole, and what it leaves is removed by the next run.
 */
#include "upkeep.h"

#include "cold.h"
#include "handle.h"

/* ---- deciding ---- */

/* The newest stays; older ones stay, newest first, while the sum is within the limit. */
static uint32_t over_size(const struct segment_list *list, const struct commit *c, uint64_t bytes_max)
{
    if (bytes_max == 0) return 0;
    uint32_t kept_from = list->count - 1;
    uint64_t sum = c->position;
    while (kept_from > 0 && sum + list->bytes[kept_from - 1] <= bytes_max) sum += list->bytes[--kept_from];
    return kept_from;
}

/* Timestamp of the newest chunk of a closed segment; the next one's creation when it cannot be read. */
static int64_t newest_timestamp(const struct log *l, const struct segment_list *list, uint32_t i)
{
    struct chunk c;
    struct segment_header next;
    struct stub stub;
    if (list->cold[i]) return stub_read(l->directory, list->first[i], &stub, NULL) ? INT64_MAX : stub.newest_ms;
    if (scan_last_chunk(l->directory, list->first[i], list->bytes[i], &c) == OK) return c.timestamp_ms;
    if (segment_header_load(l->directory, list->first[i + 1], &next, NULL) == OK) return next.created_ms;
    return INT64_MAX; /* not known to be old */
}

static uint32_t over_age(const struct log *l, const struct segment_list *list, uint64_t age_ms_max)
{
    uint32_t drop = 0;
    int64_t now = sys->now_ms();
    if (age_ms_max == 0 || age_ms_max > (uint64_t)INT64_MAX) return 0;
    while (drop + 1 < list->count && newest_timestamp(l, list, drop) < now - (int64_t)age_ms_max) drop++;
    return drop;
}

static uint32_t only_durable(const struct log *l, const struct segment_list *list, uint32_t drop)
{
    if (l->control->durability != DURABILITY_DISK) return drop;
    struct durable d;
    control_durable(l->control, &d);
    while (drop > 0 && list->first[drop - 1] >= d.segment) drop--;
    return drop;
}

/* ---- dropping ---- */

static void raise_first_offset(struct control *c, uint64_t first)
{
    uint64_t had = atomic_load_explicit(&c->first_offset, memory_order_relaxed);
    while (had < first && !atomic_compare_exchange_weak_explicit(&c->first_offset, &had, first, memory_order_release,
                                                                 memory_order_relaxed)) continue;
    atomic_fetch_add_explicit(&c->segments_generation, 1, memory_order_release);
}

/* Files of segments below the first offset: those to drop now, and what an earlier run that was killed has left. */
static err remove_older(const struct log *l, uint64_t first, struct retention_report *out, struct fault *f)
{
    struct segment_list list = {0};
    err e = segment_list_read(l->directory, &list, f);
    for (uint32_t i = 0; i < list.count && !e && list.first[i] < first; i++) {
        e = segment_remove(l->directory, list.first[i], f);
        if (e) break;
        out->segments_dropped++;
        out->bytes_dropped += list.bytes[i];
    }
    segment_list_free(&list);
    return e;
}

static err drop_oldest(struct log *l, const struct segment_list *list, uint32_t drop, struct retention_report *out,
                       struct fault *f)
{
    out->first_offset = atomic_load_explicit(&l->control->first_offset, memory_order_acquire);
    drop = only_durable(l, list, drop);
    if (drop == 0) return OK;
    uint64_t first = list->first[drop];
    raise_first_offset(l->control, first);
    out->first_offset = first;
    return remove_older(l, first, out, f);
}

/* ---- what lies in the object store as well ---- */

/* Is this very segment whole in the store, and found there without its file? */
static bool can_go_cold(const struct log *l, const struct segment_list *list, uint32_t i)
{
    struct stub stub;
    struct index_record last;
    uint32_t seed;
    int fd;
    if (list->cold[i] || stub_read(l->directory, list->first[i], &stub, NULL) || stub.bytes != list->bytes[i]) return false;
    if (segment_open(l->directory, list->first[i], false, &fd, &seed, NULL)) return false;
    file_close(&fd);
    if (seed != stub.seed) return false;
    /* An index that is not whole is worth nothing once the chunks are gone: it will be fetched. */
    if (index_whole(l->directory, list->first[i], stub.bytes, stub.next, &seed, &last) && seed == stub.seed) return true;
    struct file_path path = file_path_numbered(l->directory, list->first[i], INDEX_SUFFIX);
    return file_unlink(path.text, NULL) == OK;
}

/* The newest stay while their sum is within the limit, and what is younger than the age; the active one always. */
static err drop_local(struct log *l, uint32_t from, const struct segment_list *list, const struct commit *c,
                      struct retention_report *out, struct fault *f)
{
    uint64_t bytes_max = atomic_load_explicit(&l->control->local_bytes_max, memory_order_relaxed);
    uint64_t age_ms_max = atomic_load_explicit(&l->control->local_age_ms_max, memory_order_relaxed);
    int64_t oldest = age_ms_max && age_ms_max <= (uint64_t)INT64_MAX ? sys->now_ms() - (int64_t)age_ms_max : INT64_MIN;
    uint64_t sum = c->position, gone = 0;
    err e = OK;
    if (bytes_max == 0 && oldest == INT64_MIN) return OK;
    uint32_t young = from; /* the first that is not older; chunks never go back in time */
    while (oldest != INT64_MIN && young + 1 < list->count && (list->cold[young] || newest_timestamp(l, list, young) < oldest))
        young++;
    for (uint32_t i = list->count - 1; i-- > from && !e;) {
        if (list->cold[i]) continue;
        sum += list->bytes[i];
        if (i >= young && (bytes_max == 0 || sum <= bytes_max)) continue;
        if (!can_go_cold(l, list, i)) continue;
        struct file_path path = file_path_numbered(l->directory, list->first[i], SEGMENT_SUFFIX);
        e = file_unlink(path.text, f);
        path = file_path_numbered(l->directory, list->first[i], TRACKING_SUFFIX);
        if (!e) e = file_unlink(path.text, f);
        gone++;
        out->local_bytes += list->bytes[i];
    }
    out->local_segments += gone;
    if (gone) atomic_fetch_add_explicit(&l->control->segments_generation, 1, memory_order_release);
    return e;
}

err retention_run(struct log *l, struct retention_report *out, struct fault *f)
{
    *out = (struct retention_report){0};
    const struct segment_list *list;
    struct commit c;
    err e = log_list(l, &list, &c, f);
    if (e) return e;
    uint64_t bytes_max = atomic_load_explicit(&l->control->retention_bytes_max, memory_order_relaxed);
    uint64_t age_ms_max = atomic_load_explicit(&l->control->retention_age_ms_max, memory_order_relaxed);
    uint32_t by_size = over_size(list, &c, bytes_max), by_age = over_age(l, list, age_ms_max);
    uint32_t drop = by_size > by_age ? by_size : by_age;
    e = drop_oldest(l, list, drop, out, f);
    if (!e) e = drop_local(l, drop, list, &c, out, f);
    /* What recovery took out is of the same age as what it stood beside. */
    if (!e && age_ms_max && age_ms_max <= (uint64_t)INT64_MAX)
        e = quarantine_expire(l->directory, sys->now_ms() - (int64_t)age_ms_max, f);
    return e;
}

err retention_drop_before(struct log *l, uint64_t offset, struct retention_report *out, struct fault *f)
{
    *out = (struct retention_report){0};
    const struct segment_list *list;
    struct commit c;
    err e = log_list(l, &list, &c, f);
    if (e) return e;
    uint32_t drop = 0;
    while (drop + 1 < list->count && list->first[drop + 1] <= offset) drop++;
    return drop_oldest(l, list, drop, out, f);
}

/* When the oldest chunk of the active segment was written; the newest one's time when that cannot be read. */
static int64_t oldest_timestamp(const struct log *l, const struct commit *c)
{
    struct scan s;
    struct chunk oldest;
    if (scan_open(&s, l->directory, c->segment, c->position, NULL)) return c->timestamp_ms;
    err e = scan_header(&s, SEGMENT_HEADER_BYTES, &oldest, NULL);
    file_close(&s.fd);
    return e ? c->timestamp_ms : oldest.timestamp_ms;
}

err retention_roll_aged(struct log *l, int64_t age_ms, bool *rolled, struct fault *f)
{
    struct commit c;
    *rolled = false;
    control_committed(l->control, &c);
    uint64_t segment = c.segment;
    /* Before the lock, for which appends wait: what nobody has read for long may have to come from the disk. */
    if (c.next_offset == segment || oldest_timestamp(l, &c) >= sys->now_ms() - age_ms) return OK;
    err e = log_lock(l, f);
    if (e) return e;
    control_committed(l->control, &c);
    if (c.segment == segment) {
        e = log_roll(l, &c, f);
        *rolled = e == OK;
    }
    log_unlock(l);
    return e;
}
