/* SPDX-License-Identifier: Apache-2.0
 *
 * scan: look at the chunks of one segment file, and find the way past damage.
 *
 * Nothing here believes a size before it was compared with the end of what exists.
 * Memory is bounded: entries are hashed in pieces.
 */
#ifndef VIBEMQ_LOG_SCAN_H
#define VIBEMQ_LOG_SCAN_H

#include <stdint.h>

#include "../base/error.h"
#include "chunk.h"

struct scan {
    int fd;
    uint32_t seed;
    uint64_t segment;      /* first offset: no chunk of it has a smaller id */
    uint64_t limit;        /* bytes from here on do not exist */
    const char *directory; /* for faults and the index */
};

/* The header at `position`.  ERR_END at the limit; ERR_CORRUPT also when the chunk would
 * reach past the limit. */
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

/* A chunk at `position` cannot be used: where does the log go on?  Asks its own header, then its index
 * record, then looks for the next good chunk.  `index_count`: records to believe in.  Gives
 * the position, and the least id that can stand there; at the limit that id is 0. */
err scan_past_damage(const struct scan *s, uint64_t position, uint64_t id_min, uint64_t index_count,
                     uint64_t *next_position, uint64_t *next_id, struct fault *f);

#endif
