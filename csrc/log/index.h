/* SPDX-License-Identifier: Apache-2.0
 *
 * index: one 32-byte record for each chunk of a segment, in order.
 *
 * Records are hints.  Each has a check of its own, seeded like its segment; one that fails it is stepped over, and what
 * one says is compared with the chunk it points at.  In turn a record tells where a chunk ends whose own header is
 * damaged.  A search that finds no good record gives the segment's beginning: slower, never wrong.
 */
#ifndef VIBEMQ_LOG_INDEX_H
#define VIBEMQ_LOG_INDEX_H

#include "../base/file.h"
#include "scan.h"

#define INDEX_MAGIC 0x564D5149u /* "VMQI" */
#define INDEX_VERSION 1u
#define INDEX_HEADER_BYTES 32u
#define INDEX_RECORD_BYTES 32u

struct index_record {
    uint64_t chunk_id;
    int64_t timestamp_ms;
    uint32_t position, chunk_bytes; /* of the whole chunk in the segment */
    uint32_t records;               /* messages in the chunk: chunk_id + records is the next one's id */
};

void index_header_write(uint64_t first_offset, uint32_t seed, uint8_t out[INDEX_HEADER_BYTES]);
/* ERR_TRUNCATED, ERR_CORRUPT, ERR_VERSION, as file_header_check; `path` is for the fault. */
err index_header_read(const char *path, const uint8_t *data, uint64_t size, uint64_t *first_offset, uint32_t *seed,
                      struct fault *f);
void index_record_write(const struct index_record *r, uint32_t seed, uint8_t out[INDEX_RECORD_BYTES]);
err index_record_read(const uint8_t *data, uint64_t size, uint32_t seed, struct index_record *out);

/* Make (or begin anew) the file with its header. */
err index_create(const char *directory, uint64_t first_offset, uint32_t seed, int *fd, struct fault *f);
/* The seed that a segment's index repeats.  ERR_NOT_FOUND, ERR_TRUNCATED, ERR_CORRUPT, ERR_VERSION. */
err index_seed(const char *directory, uint64_t first_offset, uint32_t *seed, struct fault *f);

enum index_key { INDEX_BY_OFFSET, INDEX_BY_TIMESTAMP, INDEX_BY_POSITION };

/* The first good record of a segment whose key is >= `value` or, with `below`, the last good one whose key is < `value`.
 * `count`: how many records to believe in; UINT64_MAX: all that the file holds.  ERR_NOT_FOUND also when the file
 * is missing or cannot be read; what else keeps it from being opened is in `f`. */
err index_find(const struct scan *s, uint64_t count, enum index_key key, int64_t value, bool below,
               struct index_record *out, struct fault *f);

#endif
