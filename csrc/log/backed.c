/* SPDX-License-Identifier: Apache-2.0
 *
 * backed: recovery of what the object store has as well.
 *
 * What lies only there is trusted: it was compared with its checks when it was sent up.  What lies here too is looked at
 * like any other segment, but where it is not whole there is nothing to save: it is removed, and read from there.
 * So all that recovery can lose is what lies behind the newest stub.
 *
 * A log has no holes.  Where a stub is missing or was damaged, the log begins behind the hole; the stubs before
 * it, and a damaged one, are put away, for whoever can say what became of it: what they name may be whole in the store.
 */
#include <stdlib.h>

#include "recovery.h"

/* The stub of a segment, or of the one in whose midst it would begin. */
static const struct stub *stub_of(const struct stub *stubs, uint32_t count, uint64_t offset)
{
    for (uint32_t i = count; i-- > 0;)
        if (stubs[i].first <= offset) return offset < stubs[i].next ? &stubs[i] : NULL;
    return NULL;
}

/* The store has it whole, and here it is not. */
static err give_back(struct recovery *rc, const struct stub *s, struct fault *f)
{
    struct index_record last;
    uint32_t seed;
    struct file_path path = file_path_numbered(rc->directory, s->first, SEGMENT_SUFFIX);
    err e = file_unlink(path.text, f);
    rc->report->given_back++;
    if (e || (index_whole(rc->directory, s->first, s->bytes, s->next, &seed, &last) && seed == s->seed)) return e;
    path = file_path_numbered(rc->directory, s->first, INDEX_SUFFIX);
    return file_unlink(path.text, f);
}

/* A segment that is here.  `s` may be NULL: the store does not have it. */
static err tend(struct recovery *rc, uint64_t first, uint64_t bytes, uint64_t id_limit, const struct stub *s,
                struct piece *out, struct fault *f)
{
    struct index_record last;
    uint32_t seed = 0;
    *out = (struct piece){.first = first, .next = s ? s->next : first, .stored = s != NULL, .here = true};
    if (first < rc->durable.segment && (!s || bytes == s->bytes) &&
        index_whole(rc->directory, first, bytes, id_limit, &seed, &last) && (!s || seed == s->seed)) {
        if (!s) out->next = last.chunk_id + last.records;
        return OK;
    }
    struct walk w = {.segment = first, .id_limit = id_limit, .verify_from = SEGMENT_HEADER_BYTES};
    if (first < rc->durable.segment) w.verify_from = bytes;
    if (first == rc->durable.segment) {
        w.verify_from = rc->durable.position;
        w.verify_id = rc->durable.offset;
    }
    err e = recovery_walk(rc, &w, f);
    if (e == ERR_CORRUPT) { /* both headers are gone */
        out->here = s == NULL;
        return s ? give_back(rc, s, f) : OK;
    }
    if (e) return e;
    bool is_whole = !s || (w.position == s->bytes && w.scan.seed == s->seed && !w.damaged);
    e = is_whole ? recovery_keep(rc, &w, f) : give_back(rc, s, f);
    free(w.index);
    out->here = is_whole;
    if (!s) out->next = w.next_offset;
    rc->report->chunks_checked += w.chunks_checked;
    rc->report->bytes_checked += w.bytes_checked;
    return e;
}

/* What the newest stub says of the log's end, as long as nothing later is found. */
static void learn_end(struct recovery *rc, const struct stub *stubs, uint32_t count)
{
    const struct stub *newest = &stubs[count - 1];
    struct index_record last;
    uint32_t seed;
    bool known = index_whole(rc->directory, newest->first, newest->bytes, newest->next, &seed, &last) && seed == newest->seed;
    /* A reader that wants the last chunk is given the one that holds this offset. */
    rc->commit.last_chunk = known ? last.chunk_id : newest->next - 1;
    for (uint32_t i = 0; i < count; i++) {
        if (i && stubs[i].oldest_ms < stubs[i - 1].newest_ms) rc->turned_segment = stubs[i].first + 1;
        if (stubs[i].epoch > rc->epoch) rc->epoch = stubs[i].epoch;
    }
    rc->commit.timestamp_ms = rc->stored_ms = newest->newest_ms;
    rc->stored_to = newest->next;
}

/* The segment files that begin before the newest stub's end: tended, and out of the list. */
static err tend_files(struct recovery *rc, const struct stub *stubs, uint32_t count, struct fault *f)
{
    struct segment_list *list = &rc->list;
    uint32_t i = 0;
    err e = OK;
    for (; i < list->count && list->first[i] < rc->stored_to && !e; i++) {
        uint64_t first = list->first[i];
        const struct stub *s = stub_of(stubs, count, first);
        if (s && s->first != first) { /* another history of these offsets */
            e = recovery_put_away(rc, first, SEGMENT_SUFFIX, list->bytes[i], f);
            continue;
        }
        uint64_t limit = i + 1 < list->count && list->first[i + 1] < rc->stored_to ? list->first[i + 1] : rc->stored_to;
        for (uint32_t k = count; k-- > 0 && stubs[k].first > first;)
            if (stubs[k].first < limit) limit = stubs[k].first;
        e = tend(rc, first, list->bytes[i], s ? s->next : limit, s, &rc->pieces[rc->piece_count++], f);
    }
    list->count -= i;
    memmove(list->first, list->first + i, list->count * sizeof *list->first);
    memmove(list->bytes, list->bytes + i, list->count * sizeof *list->bytes);
    return e;
}

/* Does a segment that ends at `end` meet the one that begins at `first`?  One that was begun because the sync of the one
 * before failed may begin later than what could be kept of that. */
static bool meets(const struct recovery *rc, uint64_t end, uint64_t first)
{
    struct segment_header h;
    return end == first ||
           (end < first && segment_header_load(rc->directory, first, &h, NULL) == OK && h.suspect_position > 0);
}

/* With durability `os`: true if the local chunks were confirmed, although chunks between them and the stored part are lost. */
static bool is_kept_apart(const struct recovery *rc)
{
    return rc->keeps_behind && rc->stored_to && rc->list.count > 0 && rc->list.first[0] > rc->stored_to;
}

/* The local chunks do not continue where the stored part ends.  If they were confirmed, a stub is missing.  If not, the
 * power cut took the chunks between them: the log ends there, or with durability `os` has a gap. */
static err drop_what_is_apart(struct recovery *rc, struct fault *f)
{
    if (rc->list.count == 0) return OK;
    bool is_durable = rc->durable.segment >= rc->list.first[0];
    if ((is_durable || is_kept_apart(rc)) && !meets(rc, rc->stored_to, rc->list.first[0]))
        recovery_gap(rc, rc->stored_to, rc->list.first[0]);
    if (is_durable) return OK;
    return (is_kept_apart(rc) && rc->list.bytes[0] > SEGMENT_HEADER_BYTES) || meets(rc, rc->stored_to, rc->list.first[0]) ? OK : recovery_drop(rc, 0, f);
}

static int by_first(const void *a, const void *b)
{
    const struct piece *x = a, *y = b;
    return (x->first > y->first) - (x->first < y->first);
}

err backed_take(struct recovery *rc, struct fault *f)
{
    struct stub *stubs;
    uint32_t count, kept = 0;
    err e = stub_list(rc->directory, &stubs, &count, f);
    for (uint32_t i = 0; i < rc->list.count; i++) {
        if (rc->list.cold[i]) continue;
        rc->list.first[kept] = rc->list.first[i];
        rc->list.bytes[kept++] = rc->list.bytes[i];
    }
    rc->list.count = kept;
    if (e || count == 0) {
        free(stubs);
        return e;
    }
    rc->pieces = calloc(rc->list.count + count, sizeof *rc->pieces);
    if (!rc->pieces) e = fault_set(f, ERR_NO_MEMORY, 0, rc->directory, 0, count * sizeof *rc->pieces, 0);
    if (!e) {
        learn_end(rc, stubs, count);
        e = tend_files(rc, stubs, count, f);
        if (!e) e = drop_what_is_apart(rc, f);
    }
    uint32_t tended = rc->piece_count;
    for (uint32_t i = 0; i < count && !e; i++) {
        bool known = false;
        for (uint32_t k = 0; k < tended && !known; k++) known = rc->pieces[k].first == stubs[i].first;
        if (!known) rc->pieces[rc->piece_count++] = (struct piece){.first = stubs[i].first, .next = stubs[i].next, .stored = true};
    }
    if (!e) qsort(rc->pieces, rc->piece_count, sizeof *rc->pieces, by_first);
    free(stubs);
    return e;
}

/* Those that say nothing and lie before the log's first offset. */
static err put_away_damaged(struct recovery *rc, uint64_t first_offset, struct fault *f)
{
    uint64_t *first = NULL;
    uint32_t count = 0;
    err e = file_numbers(rc->directory, STUB_SUFFIX, &first, &count, f);
    for (uint32_t i = 0; i < count && !e && first[i] < first_offset; i++) {
        struct stub s;
        err found = stub_read(rc->directory, first[i], &s, NULL);
        if (found == ERR_CORRUPT || found == ERR_TRUNCATED) e = recovery_put_away(rc, first[i], STUB_SUFFIX, STUB_BYTES, f);
    }
    free(first);
    return e;
}

err backed_join(struct recovery *rc, uint64_t *first_offset, struct fault *f)
{
    uint32_t from = rc->piece_count;
    *first_offset = rc->list.count ? rc->list.first[0] : rc->commit.segment;
    /* With nothing left behind the stubs the log goes on where they end, or later: that is no hole, but what was lost. */
    bool joined = rc->list.count == 0 || is_kept_apart(rc);
    while (from > 0 && (joined || meets(rc, rc->pieces[from - 1].next, *first_offset))) {
        *first_offset = rc->pieces[--from].first;
        joined = false;
    }
    err e = OK;
    for (uint32_t i = 0; i < from && !e; i++) {
        const struct piece *p = &rc->pieces[i];
        struct file_path path = file_path_numbered(rc->directory, p->first, SEGMENT_SUFFIX);
        struct stat st;
        if (p->stored) e = recovery_put_away(rc, p->first, STUB_SUFFIX, STUB_BYTES, f);
        if (!e && p->here) e = file_stat_of(path.text, &st, f);
        if (!e && p->here) e = recovery_put_away(rc, p->first, SEGMENT_SUFFIX, (uint64_t)st.st_size, f);
    }
    if (!e) e = put_away_damaged(rc, *first_offset, f);
    if (from == 0) return e;
    rc->piece_count -= from;
    memmove(rc->pieces, rc->pieces + from, rc->piece_count * sizeof *rc->pieces);
    return e;
}

bool backed_needs(const struct recovery *rc, uint64_t segment, bool index)
{
    if (!index && rc->stored_to && segment == rc->stored_to) return true;
    for (uint32_t i = 0; i < rc->piece_count; i++)
        if (rc->pieces[i].first == segment) return index || rc->pieces[i].here;
    return false;
}

err backed_tracking(const struct recovery *rc, struct tracking *t, struct fault *f)
{
    err e = OK;
    if (!rc->stored_to || tracking_snapshot_read(rc->directory, rc->stored_to, t, NULL) == OK) return OK;
    /* It was durable before the stub: only a damaged disk brings us here.  What is still here says some of it. */
    tracking_clear(t);
    for (uint32_t i = 0; i < rc->piece_count && !e; i++) {
        struct file_path path = file_path_numbered(rc->directory, rc->pieces[i].first, SEGMENT_SUFFIX);
        struct stat st;
        if (!rc->pieces[i].here || file_stat_of(path.text, &st, NULL)) continue;
        e = scan_tracking(rc->directory, rc->pieces[i].first, SEGMENT_HEADER_BYTES, (uint64_t)st.st_size, true, t, f);
        if (e == ERR_CORRUPT) e = OK;
    }
    return e;
}
