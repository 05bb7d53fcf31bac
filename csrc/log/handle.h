/* SPDX-License-Identifier: Apache-2.0
 *
 * handle: what one process holds of a log, shared by the sources behind log.h.
 *
 * The appender's files are cached and checked against the commit record at each use: when it names another segment,
 * another process has rolled.  They belong to the handle's thread; log_sync, which may run in another, opens its own.
 *
 * Invariant: segment_fd >= 0 only together with index_fd, both of `segment`.
 */
#ifndef VIBEMQ_LOG_HANDLE_H
#define VIBEMQ_LOG_HANDLE_H

#include "../base/check.h"
#include "log.h"
#include "segment.h"

struct log {
    struct control *control;
    struct tracking *tracking;
    int segment_fd, index_fd;
    uint64_t segment;
    uint32_t seed;
    char *segment_path, *index_path; /* of the two files, behind `directory`: printing them costs as much as a write */
    struct segment_list list;      /* see log_list */
    uint64_t list_generation, list_segment;
    bool list_known;
    bool tracking_checked;         /* this process has verified the table's checks since it mapped it */
    bool tracking_rebuilt;         /* and rebuilt it since the last call of log_tracking_rebuilt */
    char directory[]; /* as long as it is: a broker holds thousands of these */
};

/* Check options and fill in the defaults.  ERR_INVALID, ERR_LIMIT. */
err log_options_check(const struct log_options *o, struct log_options *out, struct fault *f);
/* A first segment and its index. */
err log_files_create(const char *directory, uint64_t first_offset, uint64_t turned_segment, bool sync, struct fault *f);

/* Take the control mutex.  A process that inherits it from a dead owner makes the tracking table consistent first; one
 * that takes it for the first time verifies the table.  Thread-safe.  ERR_LOCK, ERR_BUSY (log_lock_patience), or why the
 * repair failed. */
err log_lock(struct log *l, struct fault *f);
/* With it held: tracking_find, after the rebuild of a damaged table. */
err log_tracking_find(struct log *l, const char *reference, uint32_t bytes, uint64_t *sequence, struct fault *f);
void log_unlock(struct log *l);

/* With the mutex held: have the active segment's files open. */
err log_open_active(struct log *l, const struct commit *c, struct fault *f);
/* Take over files that are open. */
void log_set_active(struct log *l, uint64_t segment, uint32_t seed, int segment_fd, int index_fd);

/* With the mutex held: begin a new segment at c->next_offset and commit that; `c` becomes
 * the new record.  On error the old segment stays the active one. */
err log_roll(struct log *l, struct commit *c, struct fault *f);
/* True if the wall clock went back behind the newest chunk by more than CLOCK_STEP_MS. */
bool log_clock_turned(const struct commit *c, int64_t now_ms);

/* The segments that exist for readers, rising: from the first retained to the active
 * one.  Cached until a segment comes or goes.  Closed segments are never empty in it. */
err log_list(struct log *l, const struct segment_list **out, struct commit *committed, struct fault *f);

/* The same for readers: the segments up to the one with the confirmed record.  `out` borrows the handle's list until the
 * next call.  ERR_NOT_FOUND: retention deleted that segment meanwhile. */
err log_list_confirmed(struct log *l, struct segment_list *out, struct commit *confirmed, struct fault *f);

/* ---- quarantine (quarantine.c) ---- */

/* What earlier recoveries of a log put there is removed, oldest first, while it is more than this: about two segments. */
#define QUARANTINE_EARLIER_BYTES_MAX (UINT64_C(1) << 30)

/* Copy a segment's bytes from `position` up to `size`; the file stays as it is.  `*kept` is the copy's path.  What cannot be
 * read is zeros there.  ERR_DISK_FULL, ERR_IO: nothing may be cut. */
err quarantine_tail(const char *directory, uint64_t segment, uint64_t position, uint64_t size, uint32_t number,
                    struct file_path *kept, struct fault *f);

/* Rename a whole file.  ERR_NOT_FOUND when there is none. */
err quarantine_file(const char *directory, uint64_t segment, const char *suffix, uint32_t number, struct file_path *kept,
                    struct fault *f);

/* After a recovery that began with epoch `first`: keep all it put there, and of earlier ones at most the limit. */
err quarantine_trim(const char *directory, uint32_t first, struct fault *f);

/* Remove what was last written before `oldest_ms` since 1970. */
err quarantine_expire(const char *directory, int64_t oldest_ms, struct fault *f);

#endif
