/* SPDX-License-Identifier: Apache-2.0
 *
 * tracking: the highest publishing id accepted from each publisher reference.
 *
 * The table is a mapped file that all processes share, guarded by the control block's mutex.  It begins with room for a
 * dozen references and grows with them: the whole range is mapped at once, and a process looks only at slots below
 * `capacity`, which is raised after the file.  An index from a reference's hash to its slot is each process's own.
 *
 * The table is changed only after the commit of the chunks that name the references, and every change is idempotent: a
 * process that inherits the mutex of a killed owner replays the trailers of the last committed batch.  Each slot and the
 * header have a check.  It is verified when a process locks the log for the first time and at each lookup.  If one is
 * wrong, the table is rebuilt from the log (log_lock).  `changing` names the slot that a killed owner was changing: its
 * check is computed again and proves nothing.
 *
 * A reference of a connected publisher is pinned: its slot has a bit for each worker with such a connection.  Only
 * references without a pin are evicted, the one with the oldest chunk first.  A killed worker leaves its pins set; they
 * are void because the epoch of its seat has changed.
 *
 * Invariant: no reference stands in two slots.
 */
#ifndef VIBEMQ_LOG_TRACKING_H
#define VIBEMQ_LOG_TRACKING_H

#include <stdatomic.h>
#include <stddef.h>

#include "../base/file.h"
#include "../shm/doorbell.h"

#define TRACKING_MAGIC 0x564D5154u          /* "VMQT", the table */
#define TRACKING_SNAPSHOT_MAGIC 0x564D5150u /* "VMQP", a snapshot */
#define TRACKING_VERSION 2u
#define TRACKING_SNAPSHOT_VERSION 2u
#define TRACKING_REFERENCES_MAX 10000u      /* of a stream: 3 MB of its table, and at most as much in each snapshot */
#define TRACKING_REFERENCES_MAX_1 255u      /* in a snapshot of version 1 */
#define TRACKING_SLOTS (TRACKING_REFERENCES_MAX + 1u) /* one is reserved for TRACKING_TRANSACTIONS */
#define TRACKING_SLOTS_FIRST 12u            /* of a new table: a page with its header */
#define TRACKING_REFERENCE_BYTES_MAX 255u   /* the RabbitMQ Streams protocol */
#define TRACKING_ELEMENT_PUBLISHER 0u       /* type of a trailer's element */
#define TRACKING_NEVER UINT64_MAX           /* the chunk of a reference that was declared and has not published */
/* Whose ids are those of what transactions append (apply.h).  No client may publish under it, and it is never evicted:
 * what was decided could be appended twice. */
#define TRACKING_TRANSACTIONS "\0transactions"
#define TRACKING_TRANSACTIONS_BYTES 13u

bool tracking_is_of_transactions(const char *reference, uint32_t bytes);

struct tracking_slot {
    _Atomic uint32_t hash; /* of the reference; 0: the slot is free, and `check` is 0 */
    uint32_t check;        /* of hash, sequence, chunk and bytes */
    uint64_t sequence;     /* highest publishing id */
    uint64_t chunk;        /* id of the newest chunk that named it */
    uint64_t pins;         /* workers with a connected publisher of that name */
    uint8_t bytes;
    char text[TRACKING_REFERENCE_BYTES_MAX];
};

struct tracking_table {
    uint32_t magic, version;
    uint32_t reserved[13];
    uint32_t head_check;                /* file_page_check of magic and version */
    uint32_t capacity;                  /* slots in the file */
    uint32_t count, used;               /* slots below `count` were used; `used` of them have a reference */
    uint32_t generation;                /* raised when a slot loses its reference or is reused: indexes are then stale */
    uint32_t check;                     /* of these four */
    uint32_t changing;                  /* 1 + the slot that the mutex's owner is changing; TRACKING_CHANGES_HEADER; 0 */
    uint32_t rebuilding;                /* an owner is replacing the whole table */
    uint32_t seat_epochs[DOORBELL_WORKERS_MAX]; /* of the workers with pins; 0: none */
    uint32_t unused[41];
    struct tracking_slot slots[];
};
#define TRACKING_HEADER_BYTES 512u
#define TRACKING_CHANGES_HEADER UINT32_MAX
_Static_assert(sizeof(struct tracking_table) == TRACKING_HEADER_BYTES, "no padding");
_Static_assert(sizeof(struct tracking_slot) == 288, "no padding");
#define TRACKING_HEAD_CHECK_AT 60u
_Static_assert(offsetof(struct tracking_table, head_check) == TRACKING_HEAD_CHECK_AT, "newer versions keep it there");
extern const struct file_page_kind tracking_kind;

/* One process's handle on a mapped table, or a table in its own memory. */
struct tracking {
    struct tracking_table *table;
    uint16_t *index;                    /* hash -> 1 + slot; NULL: few references, which are compared one by one */
    uint32_t index_size, indexed, index_generation;
    bool is_mapped;
    uint64_t inode;
    char *path;                         /* NULL: not mapped */
};

static inline uint64_t tracking_bytes(uint32_t slots)
{
    return TRACKING_HEADER_BYTES + (uint64_t)slots * sizeof(struct tracking_slot);
}

/* A table in memory, empty.  ERR_NO_MEMORY. */
err tracking_new(struct tracking **out, struct fault *f);
/* Remove all references; only for a table in memory. */
void tracking_clear(struct tracking *t);
/* Write a table as "tracking.tmp" and rename it. */
err tracking_store(const struct tracking *t, const char *directory, bool sync, struct fault *f);
/* Store an empty one. */
err tracking_create(const char *directory, bool sync, struct fault *f);
/* ERR_STALE when missing, damaged or of an older version: recovery rebuilds it.  ERR_VERSION. */
err tracking_map(const char *directory, struct tracking **out, struct fault *f);
/* Close a mapped table, or one in memory. */
void tracking_free(struct tracking *t);

/* ---- with the control block's mutex held ---- */

/* ERR_NOT_FOUND; ERR_EMPTY: it was declared and has not published; ERR_CORRUPT: its slot's check is wrong. */
err tracking_find(struct tracking *t, const char *reference, uint32_t bytes, uint64_t *sequence);
/* The id of the newest chunk that named a reference; TRACKING_NEVER: there is none. */
uint64_t tracking_chunk(struct tracking *t, const char *reference, uint32_t bytes);
/* Make room for so many more references, besides TRACKING_TRANSACTIONS.  Raising them does not fail after it.
 * ERR_LIMIT: too many are pinned; ERR_DISK_FULL, ERR_IO, ERR_NO_MEMORY. */
err tracking_reserve(struct tracking *t, uint32_t references, struct fault *f);
/* Raise a reference's sequence (never lower it), adding the reference; evicts the oldest when full.
 * Errors as tracking_reserve. */
err tracking_raise(struct tracking *t, const char *reference, uint32_t bytes, uint64_t sequence, uint64_t chunk_id);
/* Raise all that a chunk's trailer names.  ERR_CORRUPT, and nothing changed, if it is not well-formed; or as tracking_raise. */
err tracking_apply(struct tracking *t, const uint8_t *trailer, uint32_t bytes, uint64_t chunk_id);

/* Keep a reference from being evicted while `seat` has a publisher of that name.  `*evicted`: another one was evicted.
 * ERR_LIMIT: all references are pinned; and as tracking_reserve. */
err tracking_pin(struct tracking *t, struct doorbell_board *board, uint32_t seat, const char *reference, uint32_t bytes,
                 bool *evicted, struct fault *f);
void tracking_unpin(struct tracking *t, uint32_t seat, const char *reference, uint32_t bytes);

/* After the mutex was inherited: correct the check of the slot that its dead owner was changing. */
void tracking_inherit(struct tracking *t);
/* True if all checks are right.  False also if an owner was killed while it replaced the table. */
bool tracking_is_whole(struct tracking *t);
/* Replace the content of a damaged table by that of `from`; pins stay.  Errors as tracking_reserve. */
err tracking_replace(struct tracking *t, struct tracking *from, struct fault *f);
/* Ends the process when an invariant is broken. */
void tracking_check(struct tracking *t);

/* Return the reference at or behind slot `*at` and move `*at` past it; NULL: no more. */
const struct tracking_slot *tracking_next(const struct tracking *t, uint32_t *at);

/* Is a trailer well-formed?  ERR_CORRUPT. */
err tracking_trailer_check(const uint8_t *trailer, uint32_t bytes);
/* One element of a trailer, in place.  ERR_END, ERR_CORRUPT. */
struct tracking_element { uint8_t type, bytes; const char *reference; uint64_t value; };
err tracking_element_next(const uint8_t **at, const uint8_t *end, struct tracking_element *out);

/* ---- snapshots: the table as it was when a segment began ---- */

/* Always written at a roll, even empty: it says that older segments need not be read. */
err tracking_snapshot_write(const struct tracking *t, const char *directory, uint64_t segment, bool sync,
                            struct fault *f);
/* Decode one, of any version up to ours, into an empty table.  ERR_CORRUPT, ERR_TRUNCATED, ERR_VERSION, ERR_NO_MEMORY. */
err tracking_snapshot_decode(const char *path, const uint8_t *data, uint64_t size, uint64_t *segment,
                             struct tracking *t, struct fault *f);
err tracking_snapshot_read(const char *directory, uint64_t segment, struct tracking *t, struct fault *f);

#define TRACKING_SNAPSHOT_BYTES_MAX (20u + TRACKING_SLOTS * (17u + TRACKING_REFERENCE_BYTES_MAX) + 4u)

#endif
