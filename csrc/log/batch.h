/* SPDX-License-Identifier: Apache-2.0
 *
 * batch: what one turn of a worker adds to one stream, laid out as it will lie on disk, before any lock is taken.
 *
 * Entries are copied once, from the socket buffer to here.  The memory reads [head room][entries][head
 * room][entries]...; a chunk is closed before an entry that would take it past `chunk_messages` or
 * CHUNK_DATA_TARGET_BYTES.  A reader is given whole chunks, so that is what one credit of it may cost; an entry larger
 * than that is a chunk of its own.  batch_seal computes the CRCs and trailers; log_append stamps the headers and
 * writes.
 *
 * The head room takes the 48 bytes of the header and, where the stream filters, the chunk's filter (chunk.h).  A chunk
 * without any filter value is written without one: its header then lies at the end of the room.
 *
 * Publishers with a reference are tracked in runs (consecutive entries of one publisher), so that deduplication touches
 * only batches that can hold duplicates.  Which entries it drops is kept for each of them until batch_clear
 * (batch_dropped).
 *
 * A caller whose stream has small segments sets `batch_limit` to the segment's size, so that one turn does not become
 * one segment far above its limit.
 *
 * Invariant (batch_check in debug builds): the open chunk is the last in `chunks`; data_bytes of all chunks plus their
 * head rooms is `size`; the runs lie in order and name `id_count` ids.
 */
#ifndef VIBEMQ_LOG_BATCH_H
#define VIBEMQ_LOG_BATCH_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include <sys/uio.h>

#include "../base/bytes.h"
#include "../base/check.h"
#include "../base/error.h"
#include "chunk.h"

#define BATCH_CHUNKS_MAX 512u            /* iovec limit 1024: header+entries and trailer of each */
#define BATCH_BYTES_MAX (64u << 20)      /* a turn that has taken this in is persisted before it reads on */
#define BATCH_REFERENCE_BYTES_MAX 255u   /* the RabbitMQ Streams protocol */

struct batch_chunk {
    uint32_t position, data_bytes, records;  /* of its head room in `data` */
    uint32_t trailer_position, trailer_bytes; /* in `trailers` */
    uint32_t crc, trailer_crc;
    uint16_t entries;
    uint16_t filtered;   /* entries that came with a filter value, before any was dropped as a duplicate */
};

/* Consecutive entries of one publisher with a reference. */
struct batch_run {
    uint32_t reference;        /* index into `references` */
    uint32_t chunk;            /* index of the chunk the run lies in; a run never spans chunks */
    uint32_t first_entry, entries; /* within the chunk */
    uint32_t first_id;         /* index into `ids` */
    bool ascending;            /* ids rise strictly */
};

/* One who publishes with a reference into this batch.  Several may bear the same. */
struct batch_reference {
    uint8_t bytes;
    char text[BATCH_REFERENCE_BYTES_MAX];
    uint32_t first;            /* index of the first one with the same reference: it has the rest for all of them */
    uint64_t last;             /* used by log_append: the highest id accepted so far */
    bool known;                /* is `last` a value */
    uint32_t trailer_chunk;    /* used by batch_seal: 1 + the chunk whose trailer names it last */
    uint32_t trailer_value;    /* where in `trailers` its value stands */
    uint32_t passed;           /* used by batch_drop_duplicates: its own entries, so far */
    uint32_t dropped_first, dropped_last; /* its own in `dropped`, 1 + index; 0: none */
};

/* An entry that was a duplicate. */
struct batch_drop {
    uint32_t number;           /* among the entries of its publisher in this batch, from 0 */
    uint32_t next;             /* the same publisher's next one, 1 + index; 0: none */
};

struct batch {
    uint8_t *data;
    size_t allocated;
    uint32_t size, capacity;             /* capacity: how far entries may be added without another look; <= allocated */
    uint32_t bytes_max;
    uint32_t filter_bytes;               /* room for each chunk's filter, its check included; 0: none */
    uint32_t chunk_messages;             /* of the open chunk: doubled with each that it closes, up to the next */
    uint32_t chunk_messages_max;
    uint32_t chunk_count;
    uint64_t records;
    uint64_t duplicates;                 /* messages dropped from it by log_append */
    struct batch_chunk *chunks;          /* BATCH_CHUNKS_MAX of them */
    struct batch_run *runs;
    size_t run_capacity;
    uint32_t run_count;
    uint64_t *ids;
    size_t id_capacity;
    uint32_t id_count;
    struct batch_reference *references;
    size_t reference_capacity;
    uint32_t reference_count;
    struct batch_drop *dropped;          /* NULL: none */
    uint32_t dropped_count;
    uint8_t *trailers;
    size_t trailer_capacity;
    uint32_t trailer_size;
    bool sealed;
    bool parting;                        /* the next entry begins a chunk, see batch_part_kinds */
    struct iovec *parts;                 /* for log_append: what it hands to pwritev, two for each chunk */
    uint8_t *index_records;              /* and the index records of the chunks */
};

err batch_init(struct batch *b, struct fault *f);
void batch_free(struct batch *b);
void batch_clear(struct batch *b);        /* keeps up to 2 MiB of memory for the next turn, gives the rest back */
static inline bool batch_is_empty(const struct batch *b) { return b->chunk_count == 0; }

/* Refuse (ERR_FULL) what would take a batch that holds something past `bytes`; only while it
 * is empty.  0: BATCH_BYTES_MAX. */
void batch_limit(struct batch *b, uint64_t bytes);

/* Let the chunks carry filters of that many bytes (FILTER_BYTES_MIN to FILTER_BYTES_MAX; 0: none); only
 * while it is empty.  Stays until it is set again. */
void batch_filter_size(struct batch *b, uint32_t bytes);

/* Let chunks have up to `most` messages (1 to CHUNK_MESSAGES_MAX; 0 is that), and the first of them
 * `first`: small chunks while little is published, so that a consumer is not given a burst for one credit, and large
 * ones, which cost less, while much is.  Only while it is empty; stays until it is set again. */
void batch_chunk_messages(struct batch *b, uint32_t first, uint32_t most);

/* With what the next batch of this stream had best begin: where this one ended, or half of that when it did not
 * fill half a chunk. */
uint32_t batch_chunk_messages_next(const struct batch *b);

/* Where the entries of a chunk begin. */
static inline uint8_t *batch_entries(const struct batch *b, const struct batch_chunk *c)
{
    return b->data + c->position + CHUNK_HEADER_BYTES + b->filter_bytes;
}

/* Make sure one more entry of `bytes` and `records` has room in an open chunk: grows the memory, opens the first chunk
 * or closes a full one.  ERR_FULL when the turn must persist first (BATCH_CHUNKS_MAX, BATCH_BYTES_MAX), ERR_LIMIT
 * beyond CHUNK_DATA_MAX_BYTES, ERR_NO_MEMORY. */
err batch_reserve_slow(struct batch *b, uint32_t bytes, uint32_t records);

/* Add one entry of an unreferenced publisher as it will lie in the chunk: header
 * (4 or 11 bytes) and body, `records` messages.  Inline: this is the hot path. */
static inline err batch_add(struct batch *b, const uint8_t *entry, uint32_t bytes, uint32_t records)
{
    struct batch_chunk *c = b->chunk_count ? &b->chunks[b->chunk_count - 1] : NULL;
    if (!c || (uint64_t)c->records + records > b->chunk_messages || bytes > b->capacity - b->size ||
        c->data_bytes + (uint64_t)bytes > CHUNK_DATA_TARGET_BYTES) {
        err e = batch_reserve_slow(b, bytes, records);
        if (e) return e;
        c = &b->chunks[b->chunk_count - 1];
    }
    memcpy(b->data + b->size, entry, bytes);
    b->size += bytes;
    c->data_bytes += bytes;
    c->entries++;
    c->records += records;
    b->records += records;
    return OK;
}

/* Let one more publisher with a reference add to this batch, under the index for batch_add_tracked.
 * They are forgotten by batch_clear.  ERR_LIMIT over 255 bytes. */
err batch_reference_add(struct batch *b, const char *text, uint32_t bytes, uint32_t *index);

/* Room for one more id and one more run; before batch_add_tracked has changed anything.  ERR_NO_MEMORY. */
err batch_reserve_tracking(struct batch *b);

/* Begin a run of one entry, whose id is the next in `ids`. */
void batch_begin_run(struct batch *b, uint32_t reference, uint32_t chunk, uint32_t entry);

/* Note the id of entry number `entry` of chunk number `chunk`: in the last run if it goes on with it. */
static inline void batch_note(struct batch *b, uint32_t reference, uint32_t chunk, uint32_t entry, uint64_t id)
{
    struct batch_run *r = b->run_count ? &b->runs[b->run_count - 1] : NULL;
    if (r && r->reference == reference && r->chunk == chunk && r->first_entry + r->entries == entry) {
        r->ascending &= id > b->ids[b->id_count - 1];
        r->entries++;
    } else {
        batch_begin_run(b, reference, chunk, entry);
    }
    b->ids[b->id_count++] = id;
}

/* As batch_add, for a publisher with a reference. */
static inline err batch_add_tracked(struct batch *b, const uint8_t *entry, uint32_t bytes, uint32_t records,
                                    uint32_t reference, uint64_t publishing_id)
{
    DEBUG_CHECK(reference < b->reference_count);
    err e = b->id_count == b->id_capacity || b->run_count == b->run_capacity ? batch_reserve_tracking(b) : OK;
    if (!e) e = batch_add(b, entry, bytes, records);
    if (e) return e;
    uint32_t chunk = b->chunk_count - 1;
    batch_note(b, reference, chunk, b->chunks[chunk].entries - 1u, publishing_id);
    return OK;
}

/* Before an entry is added: let it begin another chunk if it is a sub-batch or the open chunk holds one.  For
 * readers that look only at a chunk's first entry to know what all are. */
static inline void batch_part_kinds(struct batch *b, bool is_sub_batch)
{
    const struct batch_chunk *c = b->chunk_count ? &b->chunks[b->chunk_count - 1] : NULL;
    if (!c || !c->entries || !(is_sub_batch || *batch_entries(b, c) & CHUNK_SUB_BATCH_BIT)) return;
    b->parting = true;
    b->capacity = b->size; /* so that the entry is looked at */
}

/* The filter value of the entry that was added last: once for each, at once.  Entries for which it is not
 * called, or with size 0, have none.  Only after batch_filter_size. */
static inline void batch_filter(struct batch *b, const uint8_t *value, uint32_t size)
{
    if (size == 0) return;
    struct batch_chunk *c = &b->chunks[b->chunk_count - 1];
    filter_note(b->data + c->position + CHUNK_HEADER_BYTES, b->filter_bytes, value, size);
    c->filtered++;
}

/* Compute CRCs and trailers.  After it only log_append, batch_clear. */
err batch_seal(struct batch *b, struct fault *f);

/* Drop every entry whose id is not above the `last` of its reference (which rises as
 * entries are kept), lay out the rest anew and seal it.  For log_append. */
err batch_drop_duplicates(struct batch *b, struct fault *f);

/* Which of a publisher's entries were dropped: `*number` of the first for `*at` == 0, then of the next; false: no more. */
bool batch_dropped(const struct batch *b, uint32_t reference, uint32_t *at, uint32_t *number);

void batch_check(const struct batch *b);

#endif
