/* SPDX-License-Identifier: Apache-2.0
 *
 * apply: append what transactions have staged to the logs that it is for, each message once however often it is begun.
 *
 * A staged log holds blocks.  A block is one message:
 *
 *   target u16 | entry | entry ...      entries as they lie in a chunk; target: an index into the targets
 *
 * Every entry for a target has a number there: the target's first one and so on, in the order of the walk.  It is
 * appended under the reference TRACKING_TRANSACTIONS with its number as publishing id.  So a walk that was cut short
 * by a kill is done again from its beginning, and the target's own deduplication, which is committed with the messages,
 * drops what is there.  That holds as long as the same blocks are walked in the same order with the same first
 * numbers: whoever decides writes these down before.
 *
 * What is wrong with a block never depends on what is not in it: bytes that are no entries are passed over to the
 * block's end, and an entry that may not be stored keeps its number and is left out.
 *
 * Handles belong to one thread, and so does this.
 */
#ifndef VIBEMQ_LOG_APPLY_H
#define VIBEMQ_LOG_APPLY_H

#include "reader.h"
#include "tracking.h"

#define APPLY_BATCH_BYTES (4u << 20) /* of one append: enough for the price of a lock, little to hold in memory */
#define APPLY_STEP_BYTES (64u << 20) /* of staged bytes, after which readers are told */

struct apply_target {
    struct log *log;      /* NULL: it is gone, and so is what was meant for it */
    uint64_t next_number; /* of the next entry; to begin with the first one's */
    uint64_t messages;    /* that were for it so far, those included that were there already */
    bool rolled;          /* a segment was closed */
    err failed;           /* of an append: nothing more goes there in this walk; what is in `fault` */
    struct fault fault;
};

struct apply {
    struct apply_target *targets;
    uint32_t target_count;
    bool counts_only;             /* append nothing */
    bool parts_kinds;             /* see batch_part_kinds */
    uint32_t uncompressed_max;    /* of a sub-batch, in bytes */
    uint64_t malformed;           /* places where there should have been a block or an entry, and damaged chunks */
    struct batch batch;
    uint32_t target, reference;   /* whose the batch is, and its reference there */
    bool reading;                 /* a staged log is open in `reader` */
    struct reader reader;
    uint64_t blocks;              /* of the staged log, that count */
    uint8_t *data;
    size_t capacity;
};

/* The caller fills in targets, target_count and what follows up to uncompressed_max.  ERR_NO_MEMORY. */
err apply_init(struct apply *a, struct fault *f);
void apply_free(struct apply *a);

/* Walk this log next, whose first `blocks` blocks count; the one before is at its end. */
err apply_begin(struct apply *a, struct log *staged, uint64_t blocks, struct fault *f);

/* Go on for about APPLY_STEP_BYTES; what was walked is appended.  OK: there is more; ERR_END: that was all.  ERR_IO
 * and others: the staged log cannot be read.  After either it may be closed.  A target's own trouble is noted there, and
 * is none of the others'. */
err apply_step(struct apply *a, struct fault *f);

#endif
