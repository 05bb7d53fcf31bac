/* SPDX-License-Identifier: Apache-2.0
 *
 * offsets: the offset that each consumer of a stream has stored: reference -> offset.
 *
 * The file "offsets" in the stream's directory is made by the first store and dies with the stream.  It is a header and
 * records of 512 bytes, each with its own check and rewritten in place by one pwrite within one sector: a kill never
 * tears one, and a power cut costs at most the newest stores.  A record whose check is wrong counts as not there and is
 * used again.
 *
 * Every operation holds the kernel's lock on the file (flock), which a killed process gives back, so there is nothing
 * to repair and the file means the same in every boot.  A handle keeps the place of each reference in memory.
 * The header's generation, raised before a record gets another reference, shows when that memory is stale.  Records that
 * other processes have added at the end are read when the file has grown.
 *
 * Invariant: of records with the same reference the one written last counts.
 */
#ifndef VIBEMQ_LOG_OFFSETS_H
#define VIBEMQ_LOG_OFFSETS_H

#include <stdbool.h>

#include "../base/error.h"

#define OFFSETS_MAGIC 0x564D514Fu /* "VMQO" */
#define OFFSETS_VERSION 2u
#define OFFSETS_VERSION_OLDEST 1u /* has at most 1,024 references; a new reference raises it to OFFSETS_VERSION */
#define OFFSETS_HEADER_BYTES 20u
#define OFFSETS_RECORD_BYTES 512u /* a sector: written whole or not at all */
#define OFFSETS_REFERENCES_MAX 10000u /* of a stream: a file of 5 MB; the one stored longest ago is evicted */
#define OFFSETS_REFERENCE_BYTES_MAX 255u

struct offsets_record {
    int64_t written_ms;
    uint64_t offset;
    uint8_t bytes;
    char reference[OFFSETS_REFERENCE_BYTES_MAX];
};

/* What stands in a record's place.  OK, ERR_EMPTY (zeros), ERR_CORRUPT. */
err offsets_record_read(const uint8_t data[OFFSETS_RECORD_BYTES], struct offsets_record *out);
void offsets_record_write(const struct offsets_record *r, uint8_t out[OFFSETS_RECORD_BYTES]);
/* Of the file's first bytes.  ERR_CORRUPT: magic or check; ERR_VERSION. */
err offsets_header_read(const char *path, const uint8_t data[OFFSETS_HEADER_BYTES], uint64_t *generation,
                        struct fault *f);

struct offsets;

/* A handle; it belongs to one thread.  Opens nothing yet.  ERR_NO_MEMORY, ERR_LIMIT. */
err offsets_open(const char *directory, struct offsets **out, struct fault *f);
void offsets_close(struct offsets *o);

/* Remember `offset`, forwards or backwards; *evicted says that another reference made room.
 * ERR_LIMIT (the reference is too long), ERR_IO, ERR_DISK_FULL, ERR_NOT_FOUND (the stream is gone), ERR_VERSION. */
err offsets_store(struct offsets *o, const char *reference, uint32_t bytes, uint64_t offset, bool *evicted,
                  struct fault *f);
/* ERR_NOT_FOUND when nothing was stored. */
err offsets_get(struct offsets *o, const char *reference, uint32_t bytes, uint64_t *offset, struct fault *f);
/* Each stored one, in the order of the file; a reference that stands there twice is given twice. */
err offsets_each(struct offsets *o, void (*each)(void *context, const struct offsets_record *r), void *context,
                 struct fault *f);

/* Records that were found damaged at the last look at the whole file. */
uint32_t offsets_damaged(const struct offsets *o);

#endif
