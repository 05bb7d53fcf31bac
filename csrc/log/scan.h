/* SPDX-License-Identifier: Apache-2.0
 *
 * scan: look at the chunks of one segment file, and find the way past damage.
 *
 * Nothing here believes a size before it was compared with the end of what exists.
 * Memory is bounded: entries are hashed in pieces.
 */
#ifndef VIBEMQ_LOG_SCAN_H
#define VIBEMQ_LOG_SCAN_H

#include "chunk.h"
#include "tracking.h"

struct scan {
    int fd;
    uint32_t seed;
    uint64_t segment;      /* first offset: no chunk of it has a smaller id */
    uint64_t limit;        /* bytes from here on do not exist */
    const char *directory; /* for faults and the index */
};

/* As segment_open.  Closing `fd` is the caller's. */
err scan_open(struct scan *s, const char *directory, uint64_t segment, uint64_t limit, struct fault *f);

/* The header at `position`.  ERR_END at the limit; ERR_CORRUPT also when the chunk would reach past the limit. */
err scan_header(const struct scan *s, uint64_t position, struct chunk *out, struct fault *f);

/* Compare the entries' CRC.  ERR_CORRUPT. */
err scan_entries(const struct scan *s, uint64_t position, const struct chunk *c, struct fault *f);

/* Read the trailer of a chunk and compare its CRC.  `*trailer` is to be freed; NULL when
 * there is none.  ERR_CORRUPT. */
err scan_trailer(const struct scan *s, uint64_t position, const struct chunk *c, uint8_t **trailer, struct fault *f);

/* From `from` on, byte by byte, the next place where a whole good chunk lies whose id is at
 * least `id_min`.  The seed keeps a message's bytes from posing as one.  ERR_END. */
err scan_resync(const struct scan *s, uint64_t from, uint64_t id_min, uint64_t *position, struct chunk *out,
                struct fault *f);

/* Move on from the chunk at `*position`, also one that cannot be used: where does the log go on?  Asks its own
 * header, then its index record, then looks for the next good chunk.  `index_count`: records to believe in.  No chunk
 * from there on has an id below `*id`, which rises. */
err scan_past(const struct scan *s, uint64_t index_count, uint64_t *position, uint64_t *id, struct fault *f);

/* The last chunk of a segment as its index names it. */
err scan_last_chunk(const char *directory, uint64_t segment, uint64_t size, struct chunk *out);

/* Raise everything that the trailers of a segment name from `position` on.  What is damaged is stepped over; ERR_IO says
 * that some could not be read. */
err scan_tracking(const char *directory, uint64_t segment, uint64_t position, uint64_t limit, struct tracking *t,
                  struct fault *f);

#endif
