/* SPDX-License-Identifier: Apache-2.0
 *
 * rebuild: walk one segment for recovery: find where it ends, and make its index anew.
 *
 * A walk has two parts.  Up to `verify_from` the bytes are known to be durable: damage
 * there is stepped over and costs nothing behind it.  From there on nothing was
 * promised: the first chunk that is not right in every way ends the segment.
 */
#ifndef VIBEMQ_LOG_REBUILD_H
#define VIBEMQ_LOG_REBUILD_H

#include <stdbool.h>
#include <stdint.h>

#include "../base/error.h"
#include "scan.h"
#include "tracking.h"

struct rebuild {
    /* in */
    const char *directory;
    uint64_t segment, verify_from;
    uint64_t verify_id;     /* the id of the chunk at verify_from; 0: not known */
    uint64_t id_limit;      /* the next segment's first offset, where this one ends; 0: there is none */
    /* out */
    uint32_t seed;
    uint64_t position;      /* where the good part ends */
    uint64_t size;          /* what the file holds: more than `position` when there is something to cut */
    uint64_t next_offset;   /* after the last good chunk */
    uint64_t last_chunk;    /* UINT64_MAX when there is none */
    int64_t timestamp_ms;
    uint32_t epoch;
    uint64_t chunks_checked, bytes_checked;
    uint8_t *records;       /* of the index; to be freed */
    uint64_t record_count;
    size_t capacity;        /* of `records`, in bytes */
};

/* ERR_CORRUPT: neither the segment's nor its index's header is whole, so nothing in it can
 * be told from noise.  ERR_VERSION, ERR_NOT_FOUND, ERR_IO, ERR_NO_MEMORY. */
err rebuild_walk(struct rebuild *r, struct fault *f);
/* Put the index in place; synced. */
err rebuild_store_index(const struct rebuild *r, struct fault *f);
void rebuild_free(struct rebuild *r);

/* Does the index reach to the very end of the segment, and not past `id_limit`? */
bool rebuild_index_whole(const char *directory, uint64_t segment, uint64_t size, uint64_t id_limit);

/* The last chunk of a segment as its index names it.  ERR_NOT_FOUND. */
err rebuild_last_chunk(const char *directory, uint64_t segment, uint64_t size, struct chunk *out, struct fault *f);

/* Raise everything that the trailers of a segment name. */
err rebuild_tracking(const char *directory, uint64_t segment, uint64_t size, struct tracking *t, struct fault *f);

#endif
