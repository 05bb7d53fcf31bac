/* SPDX-License-Identifier: Apache-2.0
 *
 * segment: one file of chunks: its header, its name, and the list of all of them.
 *
 * The header (big-endian, 64 bytes) holds the random seed of the chunk header checks, and what was known to be durable
 * when the segment was begun, so that recovery need not read the whole log when the control block is lost.  The index's
 * header repeats the seed: one damaged header does not cost a segment.
 */
#ifndef VIBEMQ_LOG_SEGMENT_H
#define VIBEMQ_LOG_SEGMENT_H

#include "../base/file.h"

#define SEGMENT_HEADER_BYTES 64u
#define SEGMENT_MAGIC 0x564D5153u /* "VMQS" */
#define SEGMENT_VERSION 1u
#define SEGMENT_SUFFIX ".segment"
#define INDEX_SUFFIX ".index"
#define TRACKING_SUFFIX ".tracking"

struct segment_header {
    uint64_t first_offset;
    int64_t created_ms;
    uint32_t seed;
    uint64_t durable_segment, durable_position; /* known to be durable when this segment was begun */
    uint64_t suspect_position; /* the segment before this one was closed because its fdatasync failed: from
                                  here on it may be torn.  0: it was not */
};

void segment_header_write(const struct segment_header *h, uint8_t out[SEGMENT_HEADER_BYTES]);
/* ERR_TRUNCATED, ERR_CORRUPT, ERR_VERSION, as file_header_check; `path` is for the fault. */
err segment_header_read(const char *path, const uint8_t *data, uint64_t size, struct segment_header *out, struct fault *f);

/* Make (or begin anew) the file with its header; open for reading and writing. */
err segment_create(const char *directory, const struct segment_header *h, int *fd, struct fault *f);

/* Open one and give the seed of its checks, from its header or else from its index's.
 * ERR_NOT_FOUND, ERR_CORRUPT when both headers are damaged, ERR_VERSION when either is of another, ERR_IO. */
err segment_open(const char *directory, uint64_t first_offset, bool write, int *fd, uint32_t *seed, struct fault *f);

/* Its header alone. */
err segment_header_load(const char *directory, uint64_t first_offset, struct segment_header *out, struct fault *f);

/* Remove the files of one: the chunks last, so that what is left half removed is still found.
 * Files that are not there are no error. */
err segment_remove(const char *directory, uint64_t first_offset, struct fault *f);

/* First offsets of all segment files, rising. */
struct segment_list {
    uint64_t *first;
    uint64_t *bytes;
    uint32_t count;
};

err segment_list_read(const char *directory, struct segment_list *list, struct fault *f);
void segment_list_free(struct segment_list *list);
/* Index of the greatest first offset <= `offset`; 0 when all are greater.  Only with count > 0. */
uint32_t segment_list_find(const struct segment_list *list, uint64_t offset);

#endif
