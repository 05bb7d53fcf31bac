/* SPDX-License-Identifier: Apache-2.0
 *
 * control: the memory-mapped page that all processes of one broker share for one stream: the mutex, the commit record,
 * the waiting readers, the durable and the confirmed record.
 *
 * The commit record has two slots written in turn and a sequence that names the newest whole one, so neither a reader
 * nor a process that inherits the mutex ever sees a torn record.  Bytes past the record do not exist.
 *
 * Readers end at the confirmed record (control_confirmed): no consumer is given a message before its publisher could be
 * confirmed.  With durability `os` and with `read-unconfirmed` that is the commit record.  With `disk` log_sync raises the
 * confirmed record, with `remote` the archiver does.  Appends, syncs, recovery and the archiver go by the commit record.
 *
 * Invariants (control_check in debug builds): the record named by `sequence` is whole; its position lies within its
 * segment; next_offset never goes back except by recovery; durable and confirmed (segment, position) <= committed
 * (segment, position).  No torn slot is ever named: a killed writer leaves the sequence as it was.
 */
#ifndef VIBEMQ_LOG_CONTROL_H
#define VIBEMQ_LOG_CONTROL_H

#include "../base/file.h"
#include "../shm/mutex.h"
#include "../shm/word.h"

#include <stddef.h>

#define CONTROL_BYTES 4096u
#define CONTROL_MAGIC 0x564D5143u /* "VMQC" */
#define CONTROL_VERSION 1u

enum control_state { CONTROL_LIVE = 1, CONTROL_DELETED = 2 };
enum control_durability { DURABILITY_OS = 0, DURABILITY_DISK = 1, DURABILITY_REMOTE = 2 };

/* What is committed.  All of it describes one instant. */
struct commit {
    uint64_t segment;         /* first offset of the active segment: its name */
    uint64_t batch_position;  /* where the newest batch of chunks begins: what an inheritor replays */
    uint64_t position;        /* where the newest batch ends = size of the valid segment */
    uint64_t next_offset;     /* offset of the next record */
    uint64_t last_chunk;      /* first offset of the newest user chunk; UINT64_MAX when none */
    uint64_t chunks;          /* chunks in the active segment = records in its index */
    int64_t timestamp_ms;     /* of the newest chunk; within a segment chunks never go back in time */
};
#define COMMIT_WORDS 7

/* What a finished fdatasync covers. */
struct durable {
    uint64_t segment, position; /* everything before this byte of this segment, and all older segments */
    uint64_t offset;            /* offsets below survive power loss */
};
#define DURABLE_WORDS 4 /* and a check, so that recovery knows a torn slot */
#define CONFIRMED_WORDS (COMMIT_WORDS + 1) /* a commit record and a check, for the same reason */

/* A device that failed this often is not trusted again before recovery. */
#define CONTROL_FAILED_MAX 16u

struct control {
    uint32_t magic, version;
    uint8_t boot_id[16];               /* the mutex and the record are valid in this boot only */
    uint64_t inode;                    /* of this file: a copied directory has mutexes of nobody */
    _Atomic uint32_t state;            /* enum control_state */
    uint32_t durability;               /* enum control_durability */
    uint32_t epoch;                    /* stamped into chunks; from 1, raised by each recovery */
    _Atomic uint32_t filter_bytes;     /* of new chunks' filters; 0 (made before there were any): the default */
    _Atomic uint64_t segment_bytes_max;
    uint64_t segment_chunks_max;
    _Atomic uint64_t retention_bytes_max; /* 0: no limit */
    _Atomic uint64_t retention_age_ms_max; /* 0: no limit */
    _Atomic uint32_t chunk_messages_max;   /* of new chunks; 0 (made before it could be set): CHUNK_MESSAGES_MAX */
    uint32_t head_check;               /* file_page_check of magic and version */
    uint64_t fixed_check;              /* of durability, epoch and segment_chunks_max; 0: this page has no checks */
    _Atomic uint32_t readers_wait;         /* not 0: readers end at the confirmed record; 0: at the commit record */
    _Alignas(128) struct mutex mutex;  /* guards every append, roll and the tracking table */
    _Alignas(128) _Atomic uint64_t sequence;       /* slot sequence & 1 is the newest whole record */
    _Atomic uint64_t slots[2][COMMIT_WORDS];
    _Alignas(128) _Atomic uint64_t readers;        /* workers with a reader waiting at the tail */
    _Atomic uint64_t holders;                      /* workers that have the stream open for any client */
    _Atomic uint64_t first_offset;                 /* first retained offset */
    _Atomic uint64_t segments_generation;          /* raised when segments come or go */
    _Atomic uint64_t sync_failed_segment;          /* a segment whose fdatasync failed + 1; never written again */
    _Atomic uint32_t repair_wanted;                /* an owner died; set and cleared with the mutex held */
    /* What a finished fdatasync covers: two slots like the commit record's, each with a check, because
     * recovery after a power cut reads them from a page that may have been written back at any time. */
    _Alignas(128) struct mutex durable_mutex;      /* one fdatasync at a time */
    _Atomic uint64_t durable_sequence;
    _Atomic uint64_t durable_slots[2][DURABLE_WORDS];
    /* Ranges of offsets whose fdatasync failed: they are never confirmed, though durable moves past them. */
    _Atomic uint64_t failed_count;
    _Atomic uint64_t failed[CONTROL_FAILED_MAX][2];
    /* What lies in the object store.  With durability `remote` offsets below the first are there; written by the
     * archiver alone.  The others: how much of what is there stays here as well; 0: no limit. */
    _Alignas(128) _Atomic uint64_t remote_offset;
    _Atomic uint64_t local_bytes_max, local_age_ms_max;
    _Atomic uint64_t commit_checks[2];             /* of each slot of the commit record and its sequence */
    _Atomic uint64_t failed_check;                 /* of failed_count and failed */
    _Atomic uint64_t remote_check;                 /* of remote_offset */
    /* The commit record up to which publishers could be confirmed: two slots with a check each, as the durable record has.
     * Sequence 0: the page was made by a version without it; recovery_run fills it in. */
    _Alignas(128) _Atomic uint64_t confirmed_sequence;
    _Atomic uint64_t confirmed_slots[2][CONFIRMED_WORDS];
    _Atomic uint64_t turned_segment;               /* the newest segment that begins before the time of an earlier chunk + 1; 0: none */
    /* Of the start of the broker that used the page last (control_generation_set).  0: a version without it. */
    _Atomic uint64_t generation;
};
#define CONTROL_HEAD_CHECK_AT 84u
extern const struct file_page_kind control_kind;
_Static_assert(offsetof(struct control, head_check) == CONTROL_HEAD_CHECK_AT, "newer versions keep it there");
_Static_assert(sizeof(struct control) <= CONTROL_BYTES, "the control block is one page");

static inline bool control_is_deleted(const struct control *c) { return atomic_load(&c->state) == CONTROL_DELETED; }

/* What a log is made with.  Where 0 is the default, no control block has it. */
struct log_options {
    uint64_t segment_bytes_max;   /* 0: default */
    uint64_t segment_chunks_max;  /* 0: default */
    uint64_t retention_bytes_max; /* 0: none */
    uint64_t retention_age_ms_max; /* 0: none */
    uint64_t local_bytes_max;      /* 0: none */
    uint64_t local_age_ms_max;     /* 0: none */
    uint32_t durability;          /* enum control_durability */
    uint32_t filter_bytes;        /* 0: default */
    uint32_t chunk_messages_max;  /* 0: CHUNK_MESSAGES_MAX */
    bool read_unconfirmed;        /* readers do not wait for confirms */
};

/* What a new control block begins with. */
struct control_init {
    struct commit commit, confirmed;
    struct durable durable;
    uint32_t epoch;
    uint64_t first_offset;
    uint64_t turned_segment;
    struct log_options options;
};

/* The generation of this start of the broker, in every page that this process makes or resets from now on. */
void control_generation_set(uint64_t generation);

/* Write a control block as "control.tmp" and rename it, so it is whole or not there. */
err control_create(const char *directory, const struct control_init *init, bool sync, struct fault *f);
/* The same into the page of another boot that is there, whose block needs no journal and no flush of the device: for a
 * log of which a power cut may take back what nobody has synced.  Only while no other process has the log open. */
err control_renew(const char *directory, const struct control_init *init, struct fault *f);

/* Map a directory's control block; without `write` any store to it is a fault.  ERR_STALE: missing, damaged or of another boot.
 * ERR_VERSION, ERR_DELETED, ERR_NOT_FOUND (no such directory), ERR_IO, ERR_NO_MEMORY. */
err control_map(const char *directory, bool write, struct control **out, struct fault *f);
void control_unmap(struct control *c);
void control_limits_set(struct control *c, const struct log_options *limits);

/* What recovery may believe of a control block of another boot. */
struct control_old {
    bool is_there;  /* the file exists, damaged or not */
    bool has_durable, has_confirmed;
    struct durable durable;
    struct commit confirmed;
    uint32_t epoch;
    uint32_t failed_count;
    uint64_t failed[CONTROL_FAILED_MAX][2];
};
/* ERR_DELETED when it bears that mark, ERR_VERSION; a block that is missing or damaged gives an empty answer. */
err control_old_read(const char *directory, struct control_old *out, struct fault *f);

/* Raise the confirmed record of another boot's control block before its recovery, when the object store has more messages
 * than the block says.  Does nothing if the block is missing, damaged or of another version.  ERR_IO. */
err control_old_confirm(const char *directory, const struct commit *record, struct fault *f);

/* The newest commit record; consistent, lock-free, safe beside a writer. */
void control_committed(const struct control *c, struct commit *out);

/* Publish a record.  Only with the mutex held. */
void control_commit(struct control *c, const struct commit *record);

/* True if readers end at the confirmed record, before messages whose publishers still wait. */
static inline bool control_readers_wait(const struct control *c)
{
    return atomic_load_explicit(&c->readers_wait, memory_order_acquire) != 0;
}

/* The end for readers: the only definition, for every consumer and every answer about the end.  It is the newest whole
 * record up to which publishers could be confirmed.  `chunks` may be UINT64_MAX: all chunks in the segment's index. */
void control_confirmed(const struct control *c, struct commit *out);

/* The same for its next_offset alone: two loads and a branch. */
static inline uint64_t control_confirmed_offset(const struct control *c)
{
    /* One word of a record is enough, and it only grows, so it needs no second load. */
    const unsigned word = offsetof(struct commit, next_offset) / sizeof(uint64_t);
    if (!control_readers_wait(c)) {
        uint64_t sequence = atomic_load_explicit(&c->sequence, memory_order_acquire);
        return atomic_load_explicit(&c->slots[sequence & 1][word], memory_order_acquire);
    }
    uint64_t sequence = atomic_load_explicit(&c->confirmed_sequence, memory_order_acquire);
    return atomic_load_explicit(&c->confirmed_slots[sequence & 1][word], memory_order_acquire);
}

/* Raise the confirmed record; a lower or equal one is ignored.  With durability `disk` only with durable_mutex held; with
 * `remote` by the archiver, or before the log is in use. */
void control_confirm(struct control *c, const struct commit *record);
/* The confirmed record itself, also where readers end at the commit record. */
void control_confirmed_record(const struct control *c, struct commit *out);

/* The same for what is durable; publishing only with durable_mutex held. */
void control_durable(const struct control *c, struct durable *out);
void control_durable_set(struct control *c, const struct durable *record);

/* Add a range of offsets that will never be confirmed.  Only with durable_mutex held.  When the table is full, the
 * device is not to be trusted any more. */
void control_failed_add(struct control *c, uint64_t first, uint64_t next);
/* Does [first, next) touch such a range? */
bool control_failed_covers(const struct control *c, uint64_t first, uint64_t next);
/* Return how many of the offsets [first, next) lie in failed ranges. */
uint64_t control_failed_within(const struct control *c, uint64_t first, uint64_t next);
/* The first such offset at or behind `offset`.  False: there is none. */
bool control_failed_from(const struct control *c, uint64_t offset, uint64_t *first);

/* True if the checks of a page in memory are right, or the page has none because an older broker made it.  Only while no
 * other process has the log open. */
bool control_is_whole(const struct control *c);
/* Publish a higher remote_offset.  By the archiver alone. */
void control_remote_set(struct control *c, uint64_t offset);
/* Before the first process of a broker uses the page: initialize both locks, and remove the processes that used it. */
err control_reset(struct control *c, const char *directory, struct fault *f);

/* The invariants above; only with the mutex held.  Ends the process when one is broken. */
void control_check(const struct control *c);

#endif
