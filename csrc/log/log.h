/* SPDX-License-Identifier: Apache-2.0
 *
 * log: one stream's append-only chunks on disk, as one process holds them.
 *
 * A directory holds one incarnation of a stream:
 *
 *   control                          the shared page (control.h)
 *   tracking                         the shared deduplication table (tracking.h)
 *   offsets                          how far consumers have come, once one has said so (offsets.h)
 *   <20 digits of first offset>.segment   a header, then chunks
 *   <20 digits of first offset>.index     a header, then one record for each chunk
 *   <20 digits of first offset>.tracking  the table as it was when the segment began
 *   <20 digits of first offset>.remote    a segment that the object store has (cold.h)
 *   <20 digits of first offset>.cold      blocks of one that is not here
 *
 * Any process appends, under the control block's mutex; any process reads, without
 * it.  A handle belongs to one thread, except that log_sync may be called from
 * another, and so may log_append while the first one appends nothing and keeps its descriptors.  Handles are opened after fork.  FORMAT.md draws every record.
 */
#ifndef VIBEMQ_LOG_LOG_H
#define VIBEMQ_LOG_LOG_H

#include <stdbool.h>
#include <stdint.h>

#include "../base/error.h"
#include "batch.h"
#include "chunk.h"
#include "control.h"

#define LOG_SEGMENT_BYTES_DEFAULT 500000000u /* the RabbitMQ Streams protocol */
#define LOG_SEGMENT_BYTES_MAX 3000000000u    /* positions fit u32 with one chunk to spare */
#define LOG_SEGMENT_BYTES_MIN 4096u          /* a smaller limit is taken as this one */
#define LOG_SEGMENT_CHUNKS_DEFAULT 256000u

struct log;

/* Make the directory and an empty log in it.  But for DURABILITY_OS the directory and
 * its parent are synced.  ERR_EXISTS, ERR_IO, ERR_DISK_FULL, ERR_LIMIT, ERR_INVALID. */
err log_create(const char *directory, const struct log_options *options, struct fault *f);

/* Open a log of this boot.  ERR_STALE: recovery_run first.  ERR_VERSION, ERR_NOT_FOUND, ERR_CORRUPT. */
err log_open(const char *directory, struct log **out, struct fault *f);
/* The same for a process that may only read the files, beside those that write: for the functions of reader.h and
 * log_stats, and no other. */
err log_open_readonly(const char *directory, struct log **out, struct fault *f);
void log_close(struct log *l);
/* Give back the descriptors that appending holds; the next append opens them again. */
void log_rest(struct log *l);
struct control *log_control(struct log *l);
/* How long the calling thread waits for the lock of any log in this and all other processes, whose holder may be in a slow
 * file system call: its functions then fail with ERR_BUSY.  Below 0, as at first: as long as it takes. */
void log_lock_patience(int64_t ms);

/* Change the limits while the log is in use: of `options` all but the durability and segment_chunks_max, which
 * stay.  Every process uses them from its next append, read and retention_run on.  ERR_LIMIT: none was changed. */
err log_set_limits(struct log *l, const struct log_options *options, struct fault *f);

/* Size in bytes of the filters that new chunks get (chunk.h). */
uint32_t log_filter_bytes(const struct log *l);

/* How many messages a new chunk may have (batch_chunk_messages). */
uint32_t log_chunk_messages(const struct log *l);

struct log_appended {
    uint64_t first_offset, next_offset; /* of this batch's records; equal when all were duplicates */
    uint64_t segment, position;         /* end of the batch: what a sync must cover */
    uint32_t duplicates;                /* messages that deduplication dropped */
    bool rolled;                        /* a new segment was begun: the old one wants syncing, retention a look */
    uint64_t closed_segment;            /* which, when rolled */
};

/* Append a sealed batch: one lock, one pwritev (unless it is cut short), one commit.
 * On error nothing of it is committed.  ERR_DISK_FULL, ERR_IO, ERR_DELETED, ERR_LOCK. */
err log_append(struct log *l, struct batch *b, struct log_appended *out, struct fault *f);

/* Highest publishing id accepted from a reference; ERR_NOT_FOUND when unknown. */
err log_publisher_sequence(struct log *l, const char *reference, uint32_t bytes, uint64_t *out, struct fault *f);
/* The same, and the id of the chunk that holds its message. */
err log_publisher_last(struct log *l, const char *reference, uint32_t bytes, uint64_t *out, uint64_t *chunk, struct fault *f);

/* Keep a reference in the table of publishing ids while the worker on `seat` has a publisher of that name; a killed
 * worker keeps none.  `*evicted`: the reference without a connected publisher that published longest ago was evicted.
 * ERR_LIMIT: all references have connected publishers; ERR_DISK_FULL, ERR_IO, ERR_LOCK. */
struct doorbell_board;
err log_publisher_declare(struct log *l, struct doorbell_board *board, uint32_t seat, const char *reference, uint32_t bytes,
                          bool *evicted, struct fault *f);
err log_publisher_release(struct log *l, uint32_t seat, const char *reference, uint32_t bytes, struct fault *f);
/* True if this handle found the table damaged and rebuilt it from the log since the last call. */
bool log_tracking_rebuilt(struct log *l);

#define LOG_PUBLISHERS_MAX 10001u /* TRACKING_SLOTS */
struct log_publisher { uint64_t sequence; uint8_t bytes; char reference[256]; };
/* All of them, in no order; `out` has room for LOG_PUBLISHERS_MAX. */
err log_publishers(struct log *l, struct log_publisher *out, uint32_t *count, struct fault *f);

/* fdatasync everything committed so far and publish it as durable; gives what is
 * durable afterwards.  Thread-safe.  Closed segments not yet synced are covered first.
 * On failure (ERR_IO) the segment is marked so that the next append begins a new one;
 * it is never synced again.  Durable goes on in the new segment, past offsets that
 * were not made durable: so a batch is confirmed when its next_offset <= the durable
 * offset and log_sync_failed says no, and refused when log_sync_failed says yes. */
err log_sync(struct log *l, uint64_t *durable_offset, struct fault *f);

/* The same for a log that this process does not have open.  A log that cannot be opened yet (before its recovery) is no
 * error. */
err log_sync_rest(const char *directory, struct fault *f);
/* True if a closed segment is not known to be durable. */
bool log_closed_is_unsynced(const struct log *l);

/* Does [first_offset, next_offset) touch offsets whose fdatasync failed?  For good.  Thread-safe. */
bool log_sync_failed(const struct log *l, uint64_t first_offset, uint64_t next_offset);

/* Offsets below this survive power loss. */
uint64_t log_durable_offset(const struct log *l);

/* Mark deleted: appends and opens fail from now on.  Removing the files is log_remove's. */
void log_mark_deleted(struct log *l);
err log_remove(const char *directory, struct fault *f);

/* ---- statistics, of what is cold too ---- */
struct log_stats {
    uint64_t first_offset, next_offset;    /* of committed messages */
    uint64_t confirmed_offset, last_chunk; /* for readers: the next offset, and the newest chunk */
    uint64_t segment_count, bytes;         /* of committed segments */
};
err log_stats(struct log *l, struct log_stats *out, struct fault *f);

#endif
