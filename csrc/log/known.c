/* SPDX-License-Identifier: Apache-2.0
 *
 * known: what recovery knows of a log before it walks it, and how much work the walk is.
 */
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

err recovery_ahead(const char *directory, uint64_t *bytes, struct fault *f)
{
    struct log *l;
    struct recovery rc = {.directory = directory};
    *bytes = 0;
    err e = log_open(directory, &l, f);
    if (e == OK) log_close(l);
    if (e != ERR_STALE) return e;
    e = control_old_read(directory, &rc.old, f);
    if (!e) e = segment_list_read(directory, &rc.list, f);
    if (e) return e;
    recovery_learn_durable(&rc);
    for (uint32_t i = recovery_walk_start(&rc); i < rc.list.count; i++) {
        bool is_known = rc.list.first[i] == rc.durable.segment && rc.durable.position <= rc.list.bytes[i];
        *bytes += rc.list.bytes[i] - (is_known ? rc.durable.position : 0);
        *bytes += headers_cost(directory, rc.list.first[i]);
    }
    segment_list_free(&rc.list);
    return OK;
}
