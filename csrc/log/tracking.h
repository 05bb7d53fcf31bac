/* SPDX-License-Identifier: Apache-2.0
 *
 * tracking: the highest publishing id accepted from each publisher reference.
 *
 * The table is a mapped file that all processes share, guarded by the control block's mutex.  It is changed only after
 * the commit of the chunks it speaks of, and every change is one that may be made again: who inherits the mutex of a
 * killed owner replays the trailers of the last committed batch.  A slot counts from the moment its hash is stored,
 * which is the last store of an insertion and the first of an eviction; so no half-written reference is ever compared.
 *
 * Invariant: no reference stands in two slots.
 */
#ifndef VIBEMQ_LOG_TRACKING_H
#define VIBEMQ_LOG_TRACKING_H

#include <stdatomic.h>
#include <stddef.h>

#include "../base/file.h"

#define TRACKING_MAGIC 0x564D5154u          /* "VMQT", the table */
#define TRACKING_SNAPSHOT_MAGIC 0x564D5150u /* "VMQP", a snapshot */
#define TRACKING_VERSION 1u
#define TRACKING_SLOTS 256u
#define TRACKING_REFERENCES_MAX 255u        /* the RabbitMQ Streams protocol; one slot stays free */
#define TRACKING_REFERENCE_BYTES_MAX 255u
#define TRACKING_ELEMENT_PUBLISHER 0u       /* type of a trailer's element */
/* Whose ids are those of what transactions append (apply.h).  No client may publish under it, and it is never evicted:
 * what was decided could be appended twice. */
#define TRACKING_TRANSACTIONS "\0transactions"
#define TRACKING_TRANSACTIONS_BYTES 13u

struct tracking {
    uint32_t magic, version;
    uint32_t reserved[13];
    uint32_t head_check;                   /* file_page_check of magic and version */
    _Atomic uint32_t hash[TRACKING_SLOTS]; /* 0: the slot is free */
    uint64_t sequence[TRACKING_SLOTS];     /* highest publishing id */
    uint64_t chunk[TRACKING_SLOTS];        /* id of the newest chunk that named it: the oldest is evicted */
    uint8_t bytes[TRACKING_SLOTS];
    char text[TRACKING_SLOTS][TRACKING_REFERENCE_BYTES_MAX + 1];
};

#define TRACKING_HEAD_CHECK_AT 60u
_Static_assert(offsetof(struct tracking, head_check) == TRACKING_HEAD_CHECK_AT, "newer versions keep it there");
extern const struct file_page_kind tracking_kind;

/* Begin a table in zeroed memory. */
void tracking_init(struct tracking *t);
/* Write a table as "tracking.tmp" and rename it. */
err tracking_store(const struct tracking *t, const char *directory, bool sync, struct fault *f);
/* Store an empty one. */
err tracking_create(const char *directory, bool sync, struct fault *f);
/* ERR_STALE when missing or damaged: recovery builds it again.  ERR_VERSION. */
err tracking_map(const char *directory, struct tracking **out, struct fault *f);
void tracking_unmap(struct tracking *t);

/* ---- with the control block's mutex held ---- */

bool tracking_find(const struct tracking *t, const char *reference, uint32_t bytes, uint64_t *sequence);
/* Raise a reference's sequence (never lower it), adding the reference; evicts the oldest when full. */
void tracking_raise(struct tracking *t, const char *reference, uint32_t bytes, uint64_t sequence, uint64_t chunk_id);
/* Raise all that a chunk's trailer names.  ERR_CORRUPT, and nothing changed, if it is not well-formed. */
err tracking_apply(struct tracking *t, const uint8_t *trailer, uint32_t bytes, uint64_t chunk_id);
void tracking_check(const struct tracking *t);

/* Is a trailer well-formed?  ERR_CORRUPT. */
err tracking_trailer_check(const uint8_t *trailer, uint32_t bytes);
/* One element of a trailer, in place.  ERR_END, ERR_CORRUPT. */
struct tracking_element { uint8_t type, bytes; const char *reference; uint64_t value; };
err tracking_element_next(const uint8_t **at, const uint8_t *end, struct tracking_element *out);

/* ---- snapshots: the table as it was when a segment began ---- */

/* Always written at a roll, even empty: it says that older segments need not be read. */
err tracking_snapshot_write(const struct tracking *t, const char *directory, uint64_t segment, bool sync,
                            struct fault *f);
/* Decode one into an empty table.  ERR_CORRUPT, ERR_TRUNCATED, ERR_VERSION. */
err tracking_snapshot_decode(const char *path, const uint8_t *data, uint64_t size, uint64_t *segment,
                             struct tracking *t, struct fault *f);
err tracking_snapshot_read(const char *directory, uint64_t segment, struct tracking *t, struct fault *f);

#define TRACKING_SNAPSHOT_BYTES_MAX (20u + TRACKING_SLOTS * (17u + TRACKING_REFERENCE_BYTES_MAX) + 4u)

#endif
