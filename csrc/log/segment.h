/* SPDX-License-Identifier: Apache-2.0
 *
 * segment: the files of one segment: chunks and the index of them; the list of all segments; and the look at the
 * chunks of one, also past damage.
 *
 * The header (big-endian, 64 bytes) holds the random seed of the chunk header checks, when the segment was begun, and what
 * was known to be durable then, so that recovery need not read the whole log when the control block is lost.  The index's
 * header repeats the seed: one damaged header does not cost a segment.
 */
#ifndef VIBEMQ_LOG_SEGMENT_H
#define VIBEMQ_LOG_SEGMENT_H

#include "../base/file.h"
#include "chunk.h"
#include "tracking.h"

#define SEGMENT_HEADER_BYTES 64u
#define SEGMENT_MAGIC 0x564D5153u /* "VMQS" */
#define SEGMENT_VERSION 2u
#define SEGMENT_SUFFIX ".segment"
#define INDEX_SUFFIX ".index"
#define TRACKING_SUFFIX ".tracking"

struct segment_header {
    uint64_t first_offset;
    int64_t created_ms;        /* by the wall clock */
    uint32_t seed;
    uint32_t boot;             /* the boot in which it was begun (segment_boot); 0: not known, as in version 1 */
    uint32_t boot_s;           /* seconds since that boot, rounded up */
    uint64_t turned_segment;   /* as of the control block when it was begun */
    uint64_t durable_segment, durable_position; /* known to be durable when this segment was begun */
    uint64_t suspect_position; /* the segment before this one was closed because its fdatasync failed: from
                                  here on it may be torn.  0: it was not */
};

/* Note the present time in a header. */
void segment_header_stamp(struct segment_header *h);
/* The number of this boot in headers; 0: it cannot be told. */
uint32_t segment_boot(void);

void segment_header_write(const struct segment_header *h, uint8_t out[SEGMENT_HEADER_BYTES]);
/* ERR_TRUNCATED, ERR_CORRUPT, ERR_VERSION, as file_header_check; `path` is for the fault. */
err segment_header_read(const char *path, const uint8_t *data, uint64_t size, struct segment_header *out,
                        struct fault *f);

/* Make (or begin anew) the file with its header; open for reading and writing. */
err segment_create(const char *directory, const struct segment_header *h, int *fd, struct fault *f);

/* Open one and give the seed of its checks, from its header or else from its index's.
 * ERR_NOT_FOUND, ERR_CORRUPT when both headers are damaged, ERR_VERSION when either is of another, ERR_IO. */
err segment_open(const char *directory, uint64_t first_offset, bool write, int *fd, uint32_t *seed, struct fault *f);

/* Its header alone. */
err segment_header_load(const char *directory, uint64_t first_offset, struct segment_header *out, struct fault *f);

/* Remove all files of one: the chunks last, or the stub where there are none here, so that what is left half removed is
 * still found.  Files that are not there are no error. */
err segment_remove(const char *directory, uint64_t first_offset, struct fault *f);

/* All segments, also those that only the object store has, rising. */
struct segment_list {
    uint64_t *first;
    uint64_t *bytes;
    bool *cold; /* not here (cold.h) */
    uint32_t count;
};

/* What the list held of cold segments, which never change, is not read again. */
err segment_list_read(const char *directory, struct segment_list *list, struct fault *f);
/* Keep what is there for readers: from `first` on, which leaves out what retention has dropped but not yet removed, up
 * to the active one, and no other that is empty, as of a roll that was killed before it was committed. */
void segment_list_keep(struct segment_list *list, uint64_t first, uint64_t active);
void segment_list_free(struct segment_list *list);
/* Index of the greatest first offset <= `offset`; 0 when all are greater.  Only with count > 0. */
uint32_t segment_list_find(const struct segment_list *list, uint64_t offset);

/* ---- the index: one 32-byte record for each chunk of a segment, in order ----
 *
 * Records are hints.  Each has a check of its own, seeded like its segment; one that fails it is stepped over, and what
 * one says is compared with the chunk it points at.  In turn a record tells where a chunk ends whose own header is
 * damaged.  A search that finds no good record gives the segment's beginning: slower, never wrong.
 */

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

/* ---- a look at the chunks of one segment file ----
 *
 * Nothing here believes a size before it was compared with the end of what exists.
 * Memory is bounded: entries are hashed in pieces.
 */

struct scan {
    int fd;                /* -1 of a cold segment: its bytes come through cold_read */
    uint32_t seed;
    uint64_t cold_bytes;   /* size of a cold segment, 0: it is here */
    uint64_t segment;      /* first offset: no chunk of it has a smaller id */
    uint64_t limit;        /* bytes from here on do not exist */
    const char *directory; /* for faults and the index */
};

/* As segment_open, or the stub where that is all there is.  Closing `fd` is the caller's. */
err scan_open(struct scan *s, const char *directory, uint64_t segment, uint64_t limit, struct fault *f);

/* The header at `position`.  ERR_END at the limit; ERR_CORRUPT also when the chunk would reach past the limit. */
err scan_header(const struct scan *s, uint64_t position, struct chunk *out, struct fault *f);

/* Compare the entries' CRC.  ERR_CORRUPT. */
err scan_entries(const struct scan *s, uint64_t position, const struct chunk *c, struct fault *f);

/* Read the trailer of a chunk and compare its CRC.  `*trailer` is to be freed; NULL when
 * there is none.  ERR_CORRUPT. */
err scan_trailer(const struct scan *s, uint64_t position, const struct chunk *c, uint8_t **trailer, struct fault *f);

/* The header at `position` of the chunk whose first record has offset `id`, as it is or with one bit flipped: `*flipped` is
 * that bit's byte in the header, or -1.  False: more of it is damaged. */
bool scan_header_one_bit(const struct scan *s, uint64_t position, uint64_t id, struct chunk *out, int *flipped);

/* Does one flipped bit explain why the chunk at `position`, whose first record has offset `id`, is damaged?  Then it was
 * once whole on the disk.  No: also where a sector of it is all zeros, as a power cut leaves them, or cannot be read. */
bool scan_is_one_bit(const struct scan *s, uint64_t position, uint64_t id, struct chunk *out);

/* From `from` on, byte by byte, the next place where a whole good chunk lies whose id is at
 * least `id_min`.  The seed keeps a message's bytes from posing as one.  ERR_END. */
err scan_resync(const struct scan *s, uint64_t from, uint64_t id_min, uint64_t *position, struct chunk *out,
                struct fault *f);

/* Move on from the chunk at `*position`, also one that cannot be used: where does the log go on?  Asks its own
 * header, then its index record, then looks for the next good chunk.  `index_count`: records to believe in.  No chunk
 * from there on has an id below `*id`, which rises. */
err scan_past(const struct scan *s, uint64_t index_count, uint64_t *position, uint64_t *id, struct fault *f);

enum index_key { INDEX_BY_OFFSET, INDEX_BY_TIMESTAMP, INDEX_BY_POSITION };

/* The first good record of a segment whose key is >= `value` or, with `below`, the last good one whose key is less.
 * `count`: how many records to believe in; UINT64_MAX: all that the file holds.  ERR_NOT_FOUND also when the file
 * is missing or cannot be read; what else keeps it from being opened is in `f`. */
err index_find(const struct scan *s, uint64_t count, enum index_key key, int64_t value, bool below,
               struct index_record *out, struct fault *f);

/* Does the index reach to the very end of the segment, and not past `id_limit`?  Gives its seed and its last record. */
bool index_whole(const char *directory, uint64_t segment, uint64_t size, uint64_t id_limit, uint32_t *seed,
                 struct index_record *last);

/* The last chunk of a segment as its index names it. */
err scan_last_chunk(const char *directory, uint64_t segment, uint64_t size, struct chunk *out);

/* Raise everything that the trailers of a segment name from `position` on.  Over damage it steps and, with
 * `past_unread`, over what cannot be read; else that is ERR_IO. */
err scan_tracking(const char *directory, uint64_t segment, uint64_t position, uint64_t limit, bool past_unread,
                  struct tracking *t, struct fault *f);

#endif
