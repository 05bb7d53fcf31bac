/* SPDX-License-Identifier: Apache-2.0
 *
 * cuts: where a range of a log may be cut so that several can read it, and how far a number of bytes goes.
 *
 * Both are found by binary searches in the index files: some preads for each cut, whatever lies between.  What they
 * give is always the id of a chunk, so that nobody reads a chunk for another's sake.
 */
#ifndef VIBEMQ_LOG_CUTS_H
#define VIBEMQ_LOG_CUTS_H

#include "log.h"

/* Cut [start, *end) into parts of at most `bytes_max` bytes and `records_max` records (0: no limit), each of at
 * least one chunk.  The cuts are counted from the end: so they depend on it, the limits and the chunks alone, and a log
 * that has lost old segments meanwhile is cut at the same places for what is left.  `cuts` falls; at most `most`.
 * `*end` becomes what is not cut yet: `start`, or the last cut where there may be more.  Bytes are those of whole
 * chunks; an end inside of a chunk counts as its beginning.  ERR_IO. */
err log_cuts(struct log *l, uint64_t start, uint64_t *end, uint64_t bytes_max, uint64_t records_max, uint64_t *cuts,
             uint32_t most, uint32_t *count, struct fault *f);

/* The end of at most `bytes_max` bytes of chunks from the one that holds `start` on, but of one chunk at least; and
 * how many bytes there are up to the end of what is committed.  ERR_IO. */
err log_extent(struct log *l, uint64_t start, uint64_t bytes_max, uint64_t *limit, uint64_t *bytes, struct fault *f);

#endif
