/* SPDX-License-Identifier: Apache-2.0
 *
 * upkeep: what is done to a log beside appending and reading: the look at its versions, recovery, retention, printing.
 */
#ifndef VIBEMQ_LOG_UPKEEP_H
#define VIBEMQ_LOG_UPKEEP_H

#include "log.h"

/* ---- versions ----
 *
 * A file is of another version when its magic and its header's check are right and only the version differs.  Any other
 * file with wrong bytes is damaged, and recovery repairs it. */

/* All files of a log's directory, before anything is written there.  ERR_VERSION names such a
 * file, its version and ours.  ERR_NOT_FOUND (no such directory), ERR_IO, ERR_NO_MEMORY. */
err version_check(const char *directory, struct fault *f);

/* ---- recovery: make a log usable that was last written in another boot ----
 *
 * After a power cut anything past the last sync may be missing, torn or present.  The log is cut at the first damaged
 * chunk behind which no valid chunk fits.  The cut bytes go to quarantine (quarantine.c), and the other files are rebuilt
 * to match.  With durability `disk` and `remote` no message past the last sync was confirmed, and the first damaged chunk
 * ends the log.  A damaged tail never stops a stream from starting.  In the same boot, and if the start believes the control
 * page, recovery only compares the files with the page: their sizes, and each chunk that no sync covers.  A difference
 * makes it run as after another boot.  If one file is of another version, recovery writes nothing at all. */

/* What was taken out of the log, and where it is kept. */
struct recovery_cut {
    uint64_t segment, position, bytes; /* position 0: the whole file */
    char path[FAULT_WHERE_MAX_BYTES], kept[FAULT_WHERE_MAX_BYTES];
};
/* Damaged chunks that stay in place, because the log continues behind them.  `bytes` 0: messages that no file has;
 * `path` is then the file that should have them. */
struct recovery_skip {
    uint64_t segment, position, bytes;
    uint64_t first_offset, next_offset; /* of the messages in them */
    char path[FAULT_WHERE_MAX_BYTES];
};
#define RECOVERY_CUTS_MAX 8u /* told one by one: a power cut rarely leaves more than a tail */

struct recovery_report {
    bool ran;                        /* false: same boot, nothing done */
    uint64_t first_offset, next_offset; /* of the log as it is now */
    char unfit[FAULT_WHERE_MAX_BYTES]; /* the damaged file that made recovery run in the same boot; empty: none */
    uint64_t chunks_checked, bytes_checked;
    uint32_t cut_count;              /* all of them, also those past the maximum */
    uint64_t cut_bytes;              /* of all of them */
    uint32_t given_back;             /* segments that were not whole here any more, and are in the object store */
    uint32_t skip_count;             /* all of them, also those past the maximum */
    struct recovery_cut cuts[RECOVERY_CUTS_MAX];
    struct recovery_skip skips[RECOVERY_CUTS_MAX];
};

/* What the recoveries of one start share, in any number of threads: the first of them that runs syncs their file system,
 * and none has to sync what it finds there for itself (a flush of the device for each).  Each does where that fails, once a
 * recovery has failed, or in another file system. */
struct recovery_once {
    pthread_mutex_t mutex;
    enum { RECOVERY_UNSYNCED, RECOVERY_SYNCED, RECOVERY_EACH_SYNCS } state;
    dev_t device; /* that is synced */
    /* Control pages are believed only if they have this generation, too: that of the broker's last start, or 0 if its
     * unsynced writes may be lost (another mount, a snapshot).  Any page is believed where `checks_generation` is false. */
    bool checks_generation;
    uint64_t generation;
};
void recovery_once_init(struct recovery_once *once);
/* Before the first recovery. */
void recovery_once_believe(struct recovery_once *once, uint64_t generation);
/* From here on nobody syncs a whole file system: who comes after finds it done, or syncs its own. */
void recovery_once_settle(struct recovery_once *once);

/* How much work recovery_run with this `once` has ahead of it there, in bytes to be checked.
 * The errors of log_open but ERR_STALE, ERR_IO, ERR_NO_MEMORY. */
err recovery_ahead(const char *directory, const struct recovery_once *once, uint64_t *bytes, struct fault *f);

/* Only while no other process has the log open; `once` may be NULL.  `options` are those of the new control block; where there is
 * nothing to recover, their limits are set (log_set_limits).
 * ERR_VERSION: nothing was written.  After any other error it can be run again; what there was no room to keep is not cut. */
err recovery_run(const char *directory, const struct log_options *options, struct recovery_once *once,
                 struct recovery_report *out, struct fault *f);

/* ---- retention: drop whole old segments by size and age; never the active one ----
 *
 * Rules: the RabbitMQ Streams protocol.  With durability `disk` a segment that is not durable yet is kept, so that
 * recovery never looks for what it needs in vain. */

struct retention_report {
    uint64_t segments_dropped, bytes_dropped, first_offset;
    uint64_t local_segments, local_bytes; /* of these the object store is the only place now */
};

/* Apply the control block's limits now: those of the log, which count what is cold too, and those of what stays here
 * of it: a segment beyond these loses its file if it has a stub (cold.h).  Readers with an open segment keep it. */
err retention_run(struct log *l, struct retention_report *out, struct fault *f);

/* Drop closed segments all of whose offsets are below `offset`, whatever the limits say: a
 * queue's messages that are settled. */
err retention_drop_before(struct log *l, uint64_t offset, struct retention_report *out, struct fault *f);

/* How long ago the segment `first` was begun, as retention counts.  False: not known now. */
bool retention_age(const char *directory, uint64_t first, int64_t *ms);

/* The end of the messages from `from` on that are known to be older than `age_ms`: within a boot by the time since boot, also
 * if the wall clock was set meanwhile; after another one by the wall clock while it is believed (clock.h). */
err retention_older(struct log *l, uint64_t from, int64_t age_ms, uint64_t *end, struct fault *f);

/* Close the active segment if its oldest chunk is older than `age_ms`: age drops whole segments, so none may
 * cover more time than is tolerable.  Sets *rolled. */
err retention_roll_aged(struct log *l, int64_t age_ms, bool *rolled, struct fault *f);

/* ---- printing ---- */

struct dump_options {
    bool entries;      /* also each entry: offset, kind, size, first bytes in hex */
    uint64_t limit;    /* chunks or records at most; 0: all */
};

/* Print a .segment, .index, .tracking, control or tracking file, told apart by its magic.  `line` gets
 * each line without a newline; a non-zero answer stops.  ERR_CORRUPT after the report of
 * damaged chunks (the walk goes on past them by the index). */
err dump_file(const char *path, const struct dump_options *options,
              int (*line)(void *context, const char *text), void *context, struct fault *f);

#endif
