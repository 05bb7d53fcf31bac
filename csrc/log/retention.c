/* SPDX-License-Identifier: Apache-2.0
 *
 * retention: decide how many of the oldest segments go, then drop them.
 *
 * The new first offset is published before anything is removed, so nobody attaches to what is going; the files go
 * oldest first, so a kill in between leaves no hole, and what it leaves is removed by the next run.
 */
#include "upkeep.h"

#include "../base/clock.h"
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

/* The clocks at one moment. */
struct now {
    int64_t wall_ms, boot_ms;
    uint32_t boot;    /* segment_boot */
    bool is_believed; /* clock_is_believed */
};

/* Headers have whole seconds since boot. */
#define STAMP_MS INT64_C(1000)

/* 2025-01-01 UTC.  The software is younger: a time before it comes from a clock that had not been set, and says nothing. */
#define EARLIEST_MS INT64_C(1735689600000)

static struct now now_read(void)
{
    struct now now = {.wall_ms = sys->now_ms(), .boot_ms = sys->boot_ms(), .boot = segment_boot()};
    now.is_believed = clock_is_believed();
    /* What was judged is another clock if it was set in between. */
    int64_t set_ms = sys->now_ms() - sys->boot_ms() - (now.wall_ms - now.boot_ms);
    if (set_ms < -STAMP_MS || set_ms > STAMP_MS) now.is_believed = false;
    return now;
}

static bool is_of_boot(const struct now *now, const struct segment_header *h)
{
    return h->boot && h->boot == now->boot && (int64_t)h->boot_s * 1000 <= now->boot_ms + STAMP_MS;
}

/* How long ago was the segment begun?  In its boot by the time since boot, which nobody can set; after another one by the
 * wall clock.  False: the wall clock is not believed now, or was ahead, or not set, when the segment was begun. */
static bool since_begun(const struct now *now, const struct segment_header *h, int64_t *ms)
{
    int64_t by_wall = now->wall_ms - h->created_ms;
    *ms = by_wall;
    if (!is_of_boot(now, h)) return now->is_believed && by_wall >= 0 && h->created_ms >= EARLIEST_MS;
    int64_t by_boot = now->boot_ms - (int64_t)h->boot_s * 1000;
    /* The same but for the seconds' fractions: the wall clock was not set meanwhile, and knows the milliseconds. */
    if (by_wall < by_boot - STAMP_MS || by_wall > by_boot + 2 * STAMP_MS) *ms = by_boot;
    if (*ms < 0) *ms = 0;
    return true;
}

bool retention_age(const char *directory, uint64_t first, int64_t *ms)
{
    struct segment_header h;
    const struct now now = now_read();
    return segment_header_load(directory, first, &h, NULL) == OK && since_begun(&now, &h, ms);
}

/* Time of the newest chunk of a closed segment.  False: not known. */
static bool newest_time(const struct log *l, const struct segment_list *list, uint32_t i, int64_t *out)
{
    struct chunk c;
    struct stub stub;
    err e;
    if (list->cold[i]) {
        e = stub_read(l->directory, list->first[i], &stub, NULL);
        *out = stub.newest_ms;
    } else {
        e = scan_last_chunk(l->directory, list->first[i], list->bytes[i], &c);
        *out = c.timestamp_ms;
    }
    return e == OK;
}

/* Wall clock less time since boot when the segment was begun: up to a second less than it was. */
static int64_t offset_at(const struct segment_header *h) { return h->created_ms - (int64_t)h->boot_s * 1000; }

/* How long the newest chunk of segment `i`, which was closed when `next` was begun, had been the newest then.  0 where that is
 * not known: the beginnings of both are of two boots, or the wall clock was set in between. */
static int64_t idle_at_close(const struct log *l, const struct segment_list *list, uint32_t i,
                             const struct segment_header *next, int64_t newest_ms)
{
    struct segment_header begun;
    if (list->cold[i] || segment_header_load(l->directory, list->first[i], &begun, NULL)) return 0;
    if (begun.boot == 0 || begun.boot != next->boot) return 0;
    int64_t set_ms = offset_at(next) - offset_at(&begun);
    if (set_ms < -2 * STAMP_MS || set_ms > 2 * STAMP_MS) return 0;
    int64_t idle = next->created_ms - newest_ms, most = ((int64_t)next->boot_s - begun.boot_s) * 1000 + STAMP_MS;
    return idle >= 0 && idle <= most ? idle : 0;
}

/* Age of the newest chunk of a closed segment.  False: not known now. */
static bool segment_age(const struct log *l, const struct segment_list *list, uint32_t i, const struct now *now, int64_t *ms)
{
    struct segment_header next;
    int64_t newest = 0;
    bool has_newest = newest_time(l, list, i, &newest);
    if (!list->cold[i + 1] && segment_header_load(l->directory, list->first[i + 1], &next, NULL) == OK) {
        if (!since_begun(now, &next, ms)) return false;
        if (has_newest) *ms += idle_at_close(l, list, i, &next, newest);
        return true;
    }
    *ms = now->wall_ms - newest;
    return has_newest && now->is_believed && *ms >= 0 && newest >= EARLIEST_MS;
}

/* The first segment from `from` on that is not older.  Segments were closed one after the other, so the ages are checked against
 * each other: none is older than one before it, and one whose age is not known is at least as old as the next. */
static uint32_t over_age(const struct log *l, const struct segment_list *list, uint32_t from, uint64_t age_ms_max,
                         bool skip_cold)
{
    if (age_ms_max == 0 || age_ms_max > (uint64_t)INT64_MAX) return from;
    const struct now now = now_read();
    int64_t age = INT64_MAX;
    uint32_t young = from;
    for (uint32_t i = from; i + 1 < list->count; i++) {
        int64_t its;
        if (!(skip_cold && list->cold[i])) {
            if (!segment_age(l, list, i, &now, &its)) continue;
            if (its < age) age = its;
            if (age <= (int64_t)age_ms_max) break;
        }
        young = i + 1;
    }
    return young;
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
    uint64_t sum = c->position, gone = 0;
    err e = OK;
    if (bytes_max == 0 && age_ms_max == 0) return OK;
    uint32_t young = over_age(l, list, from, age_ms_max, true);
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
    uint32_t by_size = over_size(list, &c, bytes_max), by_age = over_age(l, list, 0, age_ms_max, false);
    uint32_t drop = by_size > by_age ? by_size : by_age;
    e = drop_oldest(l, list, drop, out, f);
    if (!e) e = drop_local(l, drop, list, &c, out, f);
    /* What recovery took out is of the same age as what it stood beside. */
    if (!e && age_ms_max && age_ms_max <= (uint64_t)INT64_MAX && clock_is_believed())
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

/* Messages of a segment that were written before this time by the wall clock of then are older than `age_ms`.  False: none is
 * known to be.  `next` is what the segment was closed for; NULL: it is open, or that is not known. */
static bool older_before(const struct now *now, const struct segment_header *h, const struct segment_header *next,
                         int64_t age_ms, int64_t *time_ms)
{
    *time_ms = now->wall_ms - age_ms;
    if (!is_of_boot(now, h)) return now->is_believed;
    /* None is older than its segment. */
    if (now->boot_ms - (int64_t)h->boot_s * 1000 + STAMP_MS <= age_ms) return false;
    /* By how much the wall clock was set forward since.  If it was set back, nobody knows which messages were written before:
     * they count as written after, since none may look older than it is. */
    int64_t offset_ms = offset_at(h);
    if (next && offset_at(next) < offset_ms) offset_ms = offset_at(next);
    int64_t set_ms = now->wall_ms - now->boot_ms - offset_ms;
    if (set_ms > 2 * STAMP_MS) *time_ms -= set_ms;
    return true;
}

/* May a chunk have been written in this boot, before the wall clock was set forward, and be younger than it looks? */
static bool is_before_step(const struct now *now, int64_t timestamp_ms, int64_t older_ms)
{
    struct clock_page *page = clock_shared();
    if (!page || page->steps == 0 || page->step_ms <= 0) return false;
    int64_t boot_began_ms = now->wall_ms - now->boot_ms - page->step_ms; /* by the clock before the step */
    return timestamp_ms >= boot_began_ms - CLOCK_STEP_MS &&
           timestamp_ms <= boot_began_ms + page->stepped_ms + CLOCK_STEP_MS && timestamp_ms + page->step_ms >= older_ms;
}

/* The end of the messages in segment `i` that are older; its first offset where none is known to be. */
static uint64_t older_end(const struct log *l, const struct segment_list *list, uint32_t i, const struct commit *c,
                          const struct now *now, int64_t age_ms)
{
    struct segment_header h, next;
    struct index_record r;
    struct stub stub;
    struct chunk found;
    int64_t time_ms, since_ms;
    uint64_t first = list->first[i];
    if (list->cold[i]) {
        bool is_old = now->is_believed && stub_read(l->directory, first, &stub, NULL) == OK &&
                      stub.newest_ms >= EARLIEST_MS && stub.newest_ms < now->wall_ms - age_ms;
        return is_old ? stub.next : first;
    }
    /* All are older than the next segment, whatever the wall clock did. */
    bool has_next = i + 1 < list->count && !list->cold[i + 1] &&
                    segment_header_load(l->directory, list->first[i + 1], &next, NULL) == OK && is_of_boot(now, &next);
    if (has_next && since_begun(now, &next, &since_ms) && since_ms > age_ms) return list->first[i + 1];
    if (segment_header_load(l->directory, first, &h, NULL)) return first;
    if (!older_before(now, &h, has_next ? &next : NULL, age_ms, &time_ms)) return first;
    struct scan s = {.fd = -1, .seed = h.seed, .segment = first, .directory = l->directory};
    uint64_t count = first == c->segment ? c->chunks : UINT64_MAX;
    if (index_find(&s, count, INDEX_BY_TIMESTAMP, time_ms, true, &r, NULL)) return first;
    if (scan_open(&s, l->directory, first, first == c->segment ? c->position : list->bytes[i], NULL)) return first;
    err e = scan_header(&s, r.position, &found, NULL);
    file_close(&s.fd);
    if (e || found.chunk_id != r.chunk_id || found.timestamp_ms >= time_ms) return first;
    if (!is_of_boot(now, &h) && found.timestamp_ms < EARLIEST_MS) return first;
    bool is_by_wall = time_ms == now->wall_ms - age_ms;
    return is_by_wall && is_before_step(now, found.timestamp_ms, time_ms) ? first : found.chunk_id + found.records;
}

err retention_older(struct log *l, uint64_t from, int64_t age_ms, uint64_t *end, struct fault *f)
{
    struct segment_list list;
    struct commit c;
    *end = from;
    err e = log_list_confirmed(l, &list, &c, f);
    if (e) return e;
    const struct now now = now_read();
    for (uint32_t i = segment_list_find(&list, from); i < list.count; i++) {
        uint64_t older = older_end(l, &list, i, &c, &now, age_ms);
        if (older > *end) *end = older;
        if (i + 1 == list.count || older < list.first[i + 1]) break;
    }
    if (*end > c.next_offset) *end = c.next_offset;
    return OK;
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
    int64_t oldest = c.next_offset == segment ? 0 : oldest_timestamp(l, &c), now = sys->now_ms();
    /* One that lies ahead was written by a clock that was wrong: the next segment says when it was closed. */
    if (c.next_offset == segment || (oldest >= now - age_ms && oldest <= now + CLOCK_STEP_MS)) return OK;
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
