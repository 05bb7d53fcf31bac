/* SPDX-License-Identifier: Apache-2.0
 *
 * known: what recovery knows of a log before it walks it, and how much work the walk is.
 */
#include "reader.h"
#include "recovery.h"

static bool durable_later(const struct durable *a, uint64_t segment, uint64_t position)
{
    return segment > a->segment || (segment == a->segment && position > a->position);
}

void recovery_learn_durable(struct recovery *rc)
{
    rc->durable = (struct durable){.position = SEGMENT_HEADER_BYTES};
    if (rc->old.has_durable) rc->durable = rc->old.durable;
    for (uint32_t i = 0; i < rc->list.count; i++) {
        struct segment_header h;
        if (segment_header_load(rc->directory, rc->list.first[i], &h, NULL)) continue;
        if (!durable_later(&rc->durable, h.durable_segment, h.durable_position)) continue;
        /* Its offset is not noted in a header; the walk finds it. */
        rc->durable = (struct durable){h.durable_segment, h.durable_position, 0};
    }
}

/* True unless the first chunk of the last segment is known to be no older than the chunk before it. */
static bool last_turned(const struct recovery *rc)
{
    uint32_t i = rc->list.count - 1;
    struct scan s;
    struct chunk first, before = {.timestamp_ms = rc->stored_ms};
    if (rc->list.bytes[i] <= SEGMENT_HEADER_BYTES) return false;
    if (i > 0 && scan_last_chunk(rc->directory, rc->list.first[i - 1], rc->list.bytes[i - 1], &before)) return true;
    if (scan_open(&s, rc->directory, rc->list.first[i], rc->list.bytes[i], NULL)) return true;
    err e = scan_header(&s, SEGMENT_HEADER_BYTES, &first, NULL);
    file_close(&s.fd);
    return e || first.timestamp_ms < before.timestamp_ms;
}

void recovery_learn_turned(struct recovery *rc)
{
    struct segment_header h;
    if (rc->list.count == 0) return;
    uint64_t last = rc->list.first[rc->list.count - 1];
    err e = segment_header_load(rc->directory, last, &h, NULL);
    if (e || last_turned(rc)) rc->turned_segment = last + 1;
    else if (h.turned_segment > rc->turned_segment) rc->turned_segment = h.turned_segment;
}

uint32_t recovery_walk_start(const struct recovery *rc)
{
    uint32_t i = 0;
    while (i + 1 < rc->list.count && rc->list.first[i] < rc->durable.segment) i++;
    return i;
}

uint64_t recovery_suspect_from(const struct recovery *rc, uint32_t i)
{
    struct segment_header next;
    if (i + 1 >= rc->list.count) return 0;
    if (segment_header_load(rc->directory, rc->list.first[i + 1], &next, NULL) == OK && next.suspect_position)
        return next.suspect_position;
    for (uint32_t k = 0; k < rc->old.failed_count; k++)
        if (rc->old.failed[k][0] < rc->list.first[i + 1] && rc->old.failed[k][1] > rc->list.first[i])
            return SEGMENT_HEADER_BYTES;
    return 0;
}

/* True if the file is shorter than the control page says. */
static bool is_short(const struct file_path *path, uint64_t bytes, struct fault *f)
{
    struct stat st;
    err e = file_stat_of(path->text, &st, f);
    if (!e && (uint64_t)st.st_size < bytes) e = fault_set(f, ERR_TRUNCATED, 0, path->text, 0, bytes, (uint64_t)st.st_size);
    return e != OK;
}

bool recovery_believes(const struct recovery_once *once, const struct log *l)
{
    if (!once || !once->checks_generation) return true;
    return once->generation && atomic_load(&l->control->generation) == once->generation;
}

/* Report segments that are missing between others of a log that is not verified chunk by chunk. */
static void name_gaps(struct recovery *rc)
{
    for (uint32_t i = 0; i + 1 < rc->list.count; i++) {
        struct index_record last;
        uint32_t seed;
        uint64_t next = rc->list.first[i + 1];
        if (!rc->list.cold[i] && index_whole(rc->directory, rc->list.first[i], rc->list.bytes[i], next, &seed, &last) &&
            last.chunk_id + last.records < next && !recovery_suspect_from(rc, i))
            recovery_gap(rc, last.chunk_id + last.records, next);
    }
}

/* A table of a later instant than the page would take messages for duplicates that the log does not have. */
static bool table_fits(const struct log *l, const struct commit *c, struct fault *f)
{
    const struct tracking_table *t = l->tracking->table;
    uint32_t count = t->count < t->capacity ? t->count : t->capacity; /* a damaged header is found when it is first used */
    for (uint32_t i = 0; i < count; i++) {
        const struct tracking_slot *slot = &t->slots[i];
        if (!atomic_load(&slot->hash) || slot->chunk == TRACKING_NEVER || slot->chunk < c->next_offset) continue;
        struct file_path path = file_path_name(l->directory, "tracking");
        fault_set(f, ERR_CORRUPT, 0, path.text, 0, c->next_offset, slot->chunk);
        return false;
    }
    return true;
}

/* Chunks behind the commit record: the page is of an earlier instant than the segments, as in a copy of a live directory. */
static bool nothing_behind(const struct segment_list *list, const char *directory, const struct commit *c, struct fault *f)
{
    for (uint32_t i = list->count; i-- > 0 && list->first[i] >= c->segment;) {
        struct scan s;
        struct chunk found;
        bool is_active = list->first[i] == c->segment;
        if (list->cold[i] || list->bytes[i] <= (is_active ? c->position : SEGMENT_HEADER_BYTES)) continue;
        if (is_active) {
            if (scan_open(&s, directory, c->segment, list->bytes[i], f)) return false;
            bool is_chunk = scan_header(&s, c->position, &found, NULL) == OK && found.chunk_id == c->next_offset;
            file_close(&s.fd);
            if (!is_chunk) continue;
        }
        struct file_path path = file_path_numbered(directory, list->first[i], SEGMENT_SUFFIX);
        fault_set(f, ERR_CORRUPT, 0, path.text, is_active ? c->position : 0, 0, 0);
        return false;
    }
    return true;
}

/* The chunks of a segment from the walk's position up to the scan's limit. */
static bool tail_of_segment_fits(struct walk *w, struct recovery_report *report, struct fault *f)
{
    struct file_path path = file_path_numbered(w->scan.directory, w->segment, SEGMENT_SUFFIX);
    while (w->position < w->scan.limit) {
        struct chunk c;
        err e = scan_header(&w->scan, w->position, &c, f);
        if (!e) e = recovery_chunk_right(w, &c, true, f);
        if (e) {
            fault_set(f, e, 0, path.text, w->position, 0, 0);
            return false;
        }
        w->next_offset = c.chunk_id + c.records;
        w->timestamp_ms = c.timestamp_ms;
        w->epoch = c.epoch;
        w->position += chunk_bytes(&c);
        report->chunks_checked++;
        report->bytes_checked += chunk_bytes(&c);
    }
    return true;
}

/* The log's unsynced chunks, [durable, commit) in the segments of `list`. */
static bool tail_fits(const struct segment_list *list, const char *directory, const struct durable *from,
                      const struct commit *to, struct recovery_report *report, struct fault *f)
{
    const struct recovery rc = {.list = *list, .directory = directory};
    if (from->segment == to->segment && from->position == to->position) return true;
    for (uint32_t i = 0; i < list->count; i++) {
        struct walk w = {.segment = list->first[i], .position = SEGMENT_HEADER_BYTES, .next_offset = list->first[i],
                         .timestamp_ms = INT64_MIN};
        bool is_last = w.segment == to->segment;
        if (w.segment < from->segment || w.segment > to->segment || list->cold[i]) continue;
        if (w.segment == from->segment && from->offset >= w.segment) {
            w.position = from->position;
            w.next_offset = from->offset;
        }
        if (scan_open(&w.scan, directory, w.segment, is_last ? to->position : list->bytes[i], f)) return false;
        bool fits = tail_of_segment_fits(&w, report, f);
        file_close(&w.scan.fd);
        if (!fits) return false;
        uint64_t end = is_last || i + 1 == list->count ? to->next_offset : list->first[i + 1];
        if (w.next_offset == end || (!is_last && w.next_offset < end && recovery_suspect_from(&rc, i))) continue;
        struct file_path path = file_path_numbered(directory, w.segment, SEGMENT_SUFFIX);
        fault_set(f, ERR_CORRUPT, 0, path.text, w.position, end, w.next_offset);
        return false;
    }
    return true;
}

static bool files_fit(struct log *l, const struct segment_list *list, struct recovery_report *report, struct fault *f)
{
    struct commit c;
    struct durable d;
    struct control *control = log_control(l);
    uint32_t seed;
    int fd;
    control_committed(control, &c);
    control_durable(control, &d);
    struct file_path path = file_path_name(l->directory, "control");
    if (!control_is_whole(control)) {
        fault_set(f, ERR_CORRUPT, 0, path.text, 0, 0, 0);
        return false;
    }
    if (segment_open(l->directory, c.segment, false, &fd, &seed, f)) return false;
    file_close(&fd);
    path = file_path_numbered(l->directory, c.segment, SEGMENT_SUFFIX);
    if (is_short(&path, c.position, f)) return false;
    path = file_path_numbered(l->directory, c.segment, INDEX_SUFFIX);
    if (is_short(&path, INDEX_HEADER_BYTES + c.chunks * INDEX_RECORD_BYTES, f)) return false;
    uint64_t first = atomic_load(&control->first_offset);
    report->first_offset = first;
    report->next_offset = c.next_offset;
    if (!table_fits(l, &c, f) || !nothing_behind(list, l->directory, &c, f)) return false;
    if (!tail_fits(list, l->directory, &d, &c, report, f)) return false;
    path = file_path_numbered(l->directory, first, STUB_SUFFIX);
    if (first == c.segment || !is_short(&path, 0, NULL)) return true;
    path = file_path_numbered(l->directory, first, SEGMENT_SUFFIX);
    return !is_short(&path, 0, f);
}

/* A start of the broker does this for each of its logs: it lists the directory, inspects three files, and reads what no
 * sync covers. */
bool recovery_fits(struct log *l, struct recovery_report *report, struct fault *f)
{
    struct recovery rc = {.directory = l->directory, .report = report};
    if (segment_list_read(l->directory, &rc.list, f)) return false;
    bool fits = files_fit(l, &rc.list, report, f);
    if (fits) name_gaps(&rc);
    segment_list_free(&rc.list);
    return fits;
}

bool recovery_of_this_boot(const char *directory)
{
    _Alignas(struct control) uint8_t page[CONTROL_BYTES];
    const struct control *c = (const struct control *)page;
    uint8_t boot_id[sizeof c->boot_id];
    struct stat st;
    size_t got;
    struct file_path path = file_path_name(directory, "control");
    if (file_read_head(path.text, page, sizeof page, &got, NULL) || file_stat_of(path.text, &st, NULL)) return false;
    return got == sizeof page && sys->boot_id(boot_id) == 0 && c->inode == (uint64_t)st.st_ino &&
           memcmp(c->boot_id, boot_id, sizeof boot_id) == 0;
}

/* For a chunk whose header alone is looked at; its index record is compared, too. */
#define HEADER_COST_BYTES 1024u

/* A segment's chunks by its index, which is as good as a guess here. */
static uint64_t headers_cost(const char *directory, uint64_t segment)
{
    struct stat st;
    struct file_path path = file_path_numbered(directory, segment, INDEX_SUFFIX);
    if (file_stat_of(path.text, &st, NULL) || st.st_size < INDEX_HEADER_BYTES) return 0;
    return ((uint64_t)st.st_size - INDEX_HEADER_BYTES) / INDEX_RECORD_BYTES * HEADER_COST_BYTES;
}

err recovery_ahead(const char *directory, const struct recovery_once *once, uint64_t *bytes, struct fault *f)
{
    struct log *l;
    struct recovery rc = {.directory = directory};
    *bytes = 0;
    err e = log_open(directory, &l, f);
    bool believed = e == OK && recovery_believes(once, l); /* only what no sync covers is read */
    if (e == OK) log_close(l);
    else if (e != ERR_STALE) return e;
    e = control_old_read(directory, &rc.old, f);
    if (!e) e = segment_list_read(directory, &rc.list, f);
    if (e) return e;
    recovery_learn_durable(&rc);
    for (uint32_t i = recovery_walk_start(&rc); i < rc.list.count; i++) {
        bool is_known = rc.list.first[i] == rc.durable.segment && rc.durable.position <= rc.list.bytes[i];
        *bytes += rc.list.bytes[i] - (is_known ? rc.durable.position : believed ? SEGMENT_HEADER_BYTES : 0);
        if (!believed) *bytes += headers_cost(directory, rc.list.first[i]);
    }
    segment_list_free(&rc.list);
    return OK;
}

/* ---- the confirmed record ---- */

/* Recovery has synced all messages that it kept, so they are confirmed.  With durability `remote` the confirmed record
 * stays that of the old control block.  Without an old block, as after a restore from the store, all are confirmed.  The
 * archiver sends the later ones again and confirms them. */
struct commit recovery_confirmed(const struct recovery *rc, uint32_t durability, uint64_t first_offset)
{
    const struct commit *old = &rc->old.confirmed, *c = &rc->commit;
    if (durability != DURABILITY_REMOTE || !rc->old.is_there) return *c;
    if (!rc->old.has_confirmed)
        return (struct commit){.segment = first_offset, .batch_position = SEGMENT_HEADER_BYTES, .next_offset = first_offset,
                               .position = SEGMENT_HEADER_BYTES, .last_chunk = UINT64_MAX, .timestamp_ms = INT64_MIN};
    bool is_within = old->segment < c->segment || (old->segment == c->segment && old->position <= c->position);
    return is_within && old->next_offset <= c->next_offset ? *old : *c;
}

/* For a log of this boot: sync the messages that a killed process appended, because perhaps no other process would.  If
 * the page is of a version without a confirmed record, readers get one. */
void recovery_confirm(struct log *l)
{
    struct commit confirmed;
    uint64_t offset;
    if (l->control->durability == DURABILITY_DISK) log_sync(l, &offset, NULL); /* a failure is recorded in the page */
    control_confirmed_record(l->control, &confirmed);
    if (l->control->durability == DURABILITY_REMOTE && confirmed.position == 0)
        reader_confirm(l, atomic_load_explicit(&l->control->remote_offset, memory_order_acquire), NULL);
}
