/* SPDX-License-Identifier: Apache-2.0
 *
 * control: the memory-mapped page that all processes of one broker share for
 * one stream: the mutex, the commit record, who reads, and what is durable.
 *
 * The commit record has two slots written in turn and a sequence that names the
 * newest whole one, so neither a reader nor a process that inherits the mutex
 * ever sees a torn record.  Bytes past the record do not exist.
 *
 * Invariants (control_check in debug builds): the record named by `sequence` is
 * whole; its position lies within its segment; next_offset never goes back
 * except by recovery; durable (segment, position) <= committed (segment, position).
 */
#ifndef VIBEMQ_LOG_CONTROL_H
#define VIBEMQ_LOG_CONTROL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "../base/error.h"
#include "../shm/mutex.h"

#define CONTROL_BYTES 4096u

enum control_state { CONTROL_LIVE = 1, CONTROL_DELETED = 2 };
enum control_durability { DURABILITY_OS = 0, DURABILITY_DISK = 1 };

/* What is committed.  All of it describes one instant. */
struct commit {
    uint64_t segment;         /* first offset of the active segment: its name */
    uint64_t batch_position;  /* where the newest batch of chunks begins: what an inheritor replays */
    uint64_t position;        /* where the newest batch ends = size of the valid segment */
    uint64_t next_offset;     /* offset of the next record */
    uint64_t last_chunk;      /* first offset of the newest user chunk; UINT64_MAX when none */
    uint64_t chunks;          /* chunks in the active segment = records in its index */
    int64_t timestamp_ms;     /* of the newest chunk; chunks never go back in time */
};
#define COMMIT_WORDS 7

struct control {
    uint32_t magic, version;
    uint8_t boot_id[16];               /* the mutex and the record are valid in this boot only */
    _Atomic uint32_t state;            /* enum control_state */
    uint32_t durability;               /* enum control_durability */
    uint64_t epoch;                    /* stamped into chunks; from 1 */
    uint64_t segment_bytes_max, segment_chunks_max;
    _Atomic uint64_t retention_bytes_max; /* 0: no limit */
    _Atomic uint64_t retention_age_ms_max; /* 0: no limit */
    _Alignas(128) struct mutex mutex;  /* guards every append, roll and the tracking table */
    _Alignas(128) _Atomic uint64_t sequence;       /* slot sequence & 1 is the newest whole record */
    _Atomic uint64_t slots[2][COMMIT_WORDS];
    _Alignas(128) _Atomic uint64_t readers;        /* workers with a reader waiting at the tail */
    _Atomic uint64_t holders;                      /* workers that have the stream open for any client */
    _Atomic uint64_t first_offset;                 /* first retained offset */
    _Atomic uint64_t segments_generation;          /* raised when segments come or go */
    _Atomic uint64_t sync_failed_segment;          /* a segment whose fdatasync failed + 1; never written again */
    /* What a finished fdatasync covers.  Guarded by durable_sequence (odd while it changes) and a check,
     * because recovery after a power cut reads it from a page written back at any time. */
    _Alignas(128) struct mutex durable_mutex;      /* one fdatasync at a time */
    _Atomic uint64_t durable_segment, durable_position, durable_offset;
    _Atomic uint32_t durable_check;                /* CRC-32 of the three words above */
};
_Static_assert(sizeof(struct control) <= CONTROL_BYTES, "the control block is one page");

/* The newest commit record; consistent, lock-free, safe beside a writer. */
void control_committed(const struct control *c, struct commit *out);

/* Publish a record.  Only with the mutex held. */
void control_commit(struct control *c, const struct commit *record);

#endif
