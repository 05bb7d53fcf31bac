/* SPDX-License-Identifier: Apache-2.0
 *
 * recovery: what recovery.c, known.c and backed.c share.
 */
#ifndef VIBEMQ_LOG_RECOVERY_H
#define VIBEMQ_LOG_RECOVERY_H

#include "cold.h"
#include "handle.h"
#include "upkeep.h"

/* A segment that lies before those that are walked. */
struct piece {
    uint64_t first, next; /* its offsets, as its stub or else its own chunks say */
    bool stored, here;    /* in the store, with a stub; on this machine */
};

struct recovery {
    const char *directory;
    struct recovery_report *report;
    struct control_old old;
    struct durable durable;   /* what is known; segment 0 and the first byte when nothing is */
    struct segment_list list; /* what is walked; `count` shrinks when segments are dropped */
    struct commit commit;     /* what the new control block will say */
    uint32_t epoch;           /* highest seen */
    uint64_t turned_segment;  /* as in the control block */
    int64_t stored_ms;        /* when the newest stub's last chunk was written; INT64_MIN: there is none */
    struct piece *pieces;     /* what lies before the list, rising; none where no segment is stored */
    uint32_t piece_count;
    bool synced;              /* what was found is durable */
    bool keeps_behind;        /* durability `os`: each chunk was confirmed when it was written, so undamaged ones stay */
    bool keeps_proven;        /* durability `disk`: only a chunk that was once whole on the disk is stepped over */
    bool changed;             /* a file that a power cut must not undo was written anew */
    uint64_t stored_to;       /* all before it is in the store, or once was; 0: there are no stubs */
};

/* One segment's walk: where it ends, and its index made anew. */
struct walk {
    uint64_t segment, verify_from;
    uint64_t verify_id;     /* the id of the chunk at verify_from; 0: not known */
    uint64_t id_limit;      /* the next segment's first offset, where this one ends; 0: there is none */
    struct scan scan;       /* its limit is what the file holds */
    uint64_t position;      /* where the good part ends */
    uint64_t next_offset;   /* after the last good chunk */
    uint64_t last_chunk;    /* UINT64_MAX when there is none */
    int64_t timestamp_ms;
    uint32_t epoch;
    bool damaged;           /* something was stepped over */
    uint64_t chunks_checked, bytes_checked;
    uint8_t *index;         /* the new file */
    uint64_t index_records;
    size_t index_capacity;  /* in bytes */
};

/* ---- what is known before (known.c) ---- */

/* By the old control block and the segments' headers. */
void recovery_learn_durable(struct recovery *rc);
/* After the walk: since which segment do times not go back? */
void recovery_learn_turned(struct recovery *rc);
/* The first segment that must be walked. */
uint32_t recovery_walk_start(const struct recovery *rc);
/* True if this start may believe the control page of this boot. */
bool recovery_believes(const struct recovery_once *once, const struct log *l);
/* True if the files in the directory match the control page of this boot; else `f` names the first that does not. */
bool recovery_fits(struct log *l, struct recovery_report *report, struct fault *f);
/* True if the log was written in this boot and in this directory, so an unusable page or table is damaged. */
bool recovery_of_this_boot(const char *directory);
/* 0, or from where on segment `i` may be torn although durable has moved past it. */
uint64_t recovery_suspect_from(const struct recovery *rc, uint32_t i);
/* Return the first confirmed record of the new control block. */
struct commit recovery_confirmed(const struct recovery *rc, uint32_t durability, uint64_t first_offset);
/* The same for a log of this boot that needs no recovery. */
void recovery_confirm(struct log *l);

/* ---- the walk ---- */

/* ERR_CORRUPT unless the chunk at the walk's position is whole and follows the one before; `id_known`: its id is next_offset. */
err recovery_chunk_right(const struct walk *w, const struct chunk *c, bool id_known, struct fault *f);

/* ERR_CORRUPT: neither the segment's nor its index's header is whole, so nothing in it can
 * be told from noise.  After OK, and only then, `index` is to be freed. */
err recovery_walk(struct recovery *rc, struct walk *w, struct fault *f);
/* Cut off what is not good, and make sure that the rest stays. */
err recovery_keep(struct recovery *rc, const struct walk *w, struct fault *f);
/* Report messages that no file has although later messages exist or they were known to be durable. */
void recovery_gap(struct recovery *rc, uint64_t from, uint64_t to);
/* Put the list's segments from number `i` on into quarantine: what lies behind them is not the log any more. */
err recovery_drop(struct recovery *rc, uint32_t i, struct fault *f);
/* Put a whole file into quarantine and tell it. */
err recovery_put_away(struct recovery *rc, uint64_t segment, const char *suffix, uint64_t bytes, struct fault *f);

/* ---- what the object store has as well (backed.c) ---- */

/* Take what lies before the newest stub's end out of the list, and see to it: what is damaged here and whole there goes. */
err backed_take(struct recovery *rc, struct fault *f);
/* After the walk: from which offset on is there no hole?  What lies before it is put away. */
err backed_join(struct recovery *rc, uint64_t *first_offset, struct fault *f);
/* Does a segment's index, or the publishing ids as of its beginning, still serve? */
bool backed_needs(const struct recovery *rc, uint64_t segment, bool index);
/* Fill a table that is empty from what lies before the list. */
err backed_tracking(const struct recovery *rc, struct tracking *t, struct fault *f);

#endif
