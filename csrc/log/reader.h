/* SPDX-License-Identifier: Apache-2.0
 *
 * reader: follow a log chunk by chunk, from any offset, across segments, up to the confirmed record (control_confirmed).
 *
 * A reader has its place as (segment, position, next offset).  reader_fetch copies confirmed bytes from the page
 * cache to the caller's buffer (measured as cheap as mapping them, cheaper than sendfile, and a bad disk block is an
 * error code, not a signal); the caller walks whole chunks with reader_chunk and moves the reader with reader_advance
 * only past what it has really passed on.
 *
 * A segment that lies in the object store (cold.h) is read like any other: what is not here yet is ERR_NOT_CACHED with
 * `nowait`, and fetched without.
 *
 * reader_open belongs to the thread of the log's handle.  The others touch nothing of the handle that changes, so a
 * cold fetch may run in a helper thread while the owner leaves this one reader alone.
 */
#ifndef VIBEMQ_LOG_READER_H
#define VIBEMQ_LOG_READER_H

#include "log.h"

enum reader_from { READER_FIRST = 1, READER_LAST = 2, READER_NEXT = 3, READER_OFFSET = 4, READER_TIMESTAMP = 5 };

struct reader {
    struct log *log;
    int fd;
    uint32_t seed;             /* of the open segment, for header checks */
    uint64_t segment, position; /* where the next chunk's header begins; 0: see `wanted` */
    uint64_t end;              /* the end of the open segment for readers once it is closed; UINT64_MAX before */
    uint64_t next_offset;      /* the id that chunk should have (it may be higher after damage) */
    uint64_t skipped_chunks;   /* damaged places passed over */
    bool cold;                 /* the segment lies in the object store; `fd` is its file of blocks, or -1 */
    uint32_t told;             /* of a cold segment: the block after the last that reader_enters has named */
    bool by_time;              /* `wanted` is a timestamp, not an offset */
    int64_t wanted;            /* at position 0: what the place is to be found by once the cold segment's index is here */
};

/* Attach (the RabbitMQ Streams protocol); `value` is an offset or ms.  Never waits for the object store: in a cold
 * segment whose index is not here the place is found later, and next_offset is the segment's first until then. */
err reader_open(struct reader *r, struct log *l, enum reader_from from, int64_t value, struct fault *f);
/* Find the place if that is still to be done.  ERR_NOT_CACHED (only with `nowait`), ERR_NOT_FOUND, ERR_IO. */
err reader_settle(struct reader *r, bool nowait, struct fault *f);
void reader_close(struct reader *r);

/* True if there is a confirmed chunk to read.  Two loads and a branch; no system call. */
bool reader_has_more(const struct reader *r);

/* Copy bytes from the reader's place on, at most `size` and up to the confirmed end; moves to the next segment by
 * itself when this one is read out.  At least CHUNK_HEADER_BYTES when OK.  ERR_END: nothing more.  ERR_NOT_CACHED (only
 * with `nowait`): use a helper thread.  ERR_IO: see fault; ERR_NOT_FOUND: retention took the segment (re-attach with
 * reader_open READER_FIRST). */
err reader_fetch(struct reader *r, uint8_t *data, uint64_t size, bool nowait, uint64_t *got, struct fault *f);

/* Of the whole chunk at the reader's place: its bytes from `from` on, at least one when OK; from + size is at most
 * chunk_bytes.  ERR_NOT_CACHED, ERR_IO and ERR_NOT_FOUND as from reader_fetch; ERR_CORRUPT: the file has lost them. */
err reader_fetch_rest(struct reader *r, uint64_t from, uint8_t *data, uint64_t size, bool nowait, uint64_t *got,
                      struct fault *f);

/* Has it come to a block of a cold segment that it was not in before?  Then it is time to cold_tell. */
bool reader_enters(struct reader *r);

/* Does the open segment go on for so many bytes? */
bool reader_in_segment(const struct reader *r, uint64_t bytes);

/* The chunk at `data` (`size` bytes fetched).  Verifies its header and, with `verify`, the CRC.  ERR_TRUNCATED: the
 * chunk is whole on disk but not in the buffer: `out` holds its sizes, fetch at least chunk_bytes(out).  ERR_CORRUPT:
 * `f` names file and position; call reader_skip_damaged. */
err reader_chunk(const struct reader *r, const uint8_t *data, uint64_t size, bool verify,
                 struct chunk *out, struct fault *f);

/* The header alone, for who wants to know whether to read the rest: as reader_chunk, but ERR_TRUNCATED only
 * where not even the filter behind the header is whole (CHUNK_HEAD_BYTES_MAX always do). */
err reader_header(const struct reader *r, const uint8_t *data, uint64_t size, struct chunk *out, struct fault *f);

/* Move past chunks that `filter` does not take, reading little more than their headers: at most `most` of them,
 * so that a turn ends.  `*skipped`: how many.  OK: here begins a chunk to read, or (*skipped == most) ask again.
 * ERR_END, ERR_NOT_CACHED, ERR_NOT_FOUND, ERR_IO as from reader_fetch, ERR_CORRUPT as from reader_chunk: the reader
 * stands where that happened, and `*skipped` is right. */
err reader_skip(struct reader *r, const struct filter *filter, uint32_t most, bool nowait, uint32_t *skipped,
                struct fault *f);

/* Move past one chunk that reader_chunk or reader_header gave. */
void reader_advance(struct reader *r, const struct chunk *c);

/* Move past a damaged chunk: its end comes from the index (or from its own header if only the entries are damaged).
 * Never goes past the next good chunk; in a cold segment never past the next one that the index names. */
err reader_skip_damaged(struct reader *r, struct fault *f);

/* Confirm the chunks of a log of durability `remote` that lie below `offset`: the object store is known to have them.
 * Before the log is in use. */
err reader_confirm(struct log *l, uint64_t offset, struct fault *f);

#endif
