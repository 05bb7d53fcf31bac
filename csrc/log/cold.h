/* SPDX-License-Identifier: Apache-2.0
 *
 * cold: segments that lie whole in the object store and not, or no more, on this machine.
 *
 *   <20 digits>.remote   the stub: this segment is whole in the store, and what it is like
 *   <20 digits>.cold     blocks of it that were fetched, and which
 *   <20 digits>.index    its index, which stays here when the segment goes, or is fetched
 *
 * A segment with a stub and no `.segment` is cold.  One process, the archiver, writes stubs and blocks and talks to the
 * store; readers take what is there, and ask it for the rest through a Unix socket in the data directory.  FORMAT.md
 * draws both files.
 *
 * The order makes a kill or a power cut harmless: a stub is durable, with the index and the publishing ids that belong to
 * it, before anybody removes the segment for it; a block is marked after its bytes are written.  A power cut may keep a
 * mark and lose the bytes, so recovery throws the blocks away.
 */
#ifndef VIBEMQ_LOG_COLD_H
#define VIBEMQ_LOG_COLD_H

#include <stdbool.h>

#include "../base/file.h"

/* ---- stubs ---- */

#define STUB_MAGIC 0x564D5146u /* "VMQF" */
#define STUB_VERSION 1u
#define STUB_BYTES 64u
#define STUB_SUFFIX ".remote"

struct stub {
    uint64_t first, next;         /* its first offset, and that of the segment behind it */
    uint64_t bytes;               /* of the segment's file */
    int64_t oldest_ms, newest_ms; /* of its first and last chunk */
    uint32_t seed, epoch;         /* of its checks; of the log when it was sent up */
    uint32_t broker_epoch;        /* of the broker that uploaded it, in the bucket; 0: an older version uploaded it */
};

void stub_encode(const struct stub *s, uint8_t out[STUB_BYTES]);
/* ERR_TRUNCATED, ERR_CORRUPT (also of values that no segment has), ERR_VERSION. */
err stub_decode(const char *path, const uint8_t *data, uint64_t size, struct stub *out, struct fault *f);

/* Make one durable, and before it what else must outlive the segment: its index, and the snapshot of the publishing ids
 * behind it, where these are here.  ERR_INVALID: no segment is like that.  ERR_DISK_FULL, ERR_IO. */
err stub_write(const char *directory, const struct stub *s, struct fault *f);
/* What the stub of a closed segment that is here would say; `next` is the first offset of the one behind it.
 * ERR_NOT_FOUND, ERR_CORRUPT (its first or last chunk cannot be read), ERR_IO. */
err stub_make(const char *directory, uint64_t first, uint64_t next, uint32_t epoch, struct stub *out, struct fault *f);
/* ERR_NOT_FOUND; what stub_decode says; ERR_IO. */
err stub_read(const char *directory, uint64_t first, struct stub *out, struct fault *f);
err stub_remove(const char *directory, uint64_t first, struct fault *f);
/* All that can be used, rising; `*stubs` is to be freed.  One that is damaged is left out. */
err stub_list(const char *directory, struct stub **stubs, uint32_t *count, struct fault *f);

/* ---- blocks: a segment's bytes at the place they have in it, behind one page that says which are there ---- */

#define COLD_MAGIC 0x564D514Bu /* "VMQK" */
#define COLD_VERSION 1u
#define COLD_SUFFIX ".cold"
#define COLD_HEADER_BYTES 64u      /* the part of the page that never changes */
#define COLD_PAGE_BYTES 4096u      /* the segment's bytes begin here */
#define COLD_BLOCK_BYTES (8u << 20)
#define COLD_BLOCKS_MAX 512u       /* positions fit u32 */

/* What the archiver holds of one. */
struct cold {
    int fd;
    uint8_t mark; /* of the block that was put last; never 0 */
    uint64_t segment, bytes;
    struct file_path path;
};

void cold_header_encode(uint64_t segment, uint64_t bytes, uint8_t out[COLD_HEADER_BYTES]);
/* Is it the header of this segment's blocks?  ERR_TRUNCATED, ERR_CORRUPT, ERR_VERSION. */
err cold_header_decode(const char *path, const uint8_t *data, uint64_t size, uint64_t segment, uint64_t bytes,
                       struct fault *f);

static inline uint32_t cold_blocks(uint64_t bytes) { return (uint32_t)((bytes + COLD_BLOCK_BYTES - 1) / COLD_BLOCK_BYTES); }
/* All have the same size but for the last. */
static inline uint64_t cold_block_bytes(uint64_t bytes, uint32_t block)
{
    uint64_t left = bytes - (uint64_t)block * COLD_BLOCK_BYTES;
    return left < COLD_BLOCK_BYTES ? left : COLD_BLOCK_BYTES;
}

/* ---- the archiver's ---- */

/* Open a segment's blocks, or begin with none.  ERR_NOT_FOUND: there is no such stub. */
err cold_open(struct cold *c, const char *directory, uint64_t segment, struct fault *f);
void cold_close(struct cold *c);
/* Write a block and then mark it.  ERR_INVALID: there is no such block, or it has another size.  ERR_DISK_FULL, ERR_IO. */
err cold_put(struct cold *c, uint32_t block, const void *data, uint64_t size, struct fault *f);
/* Take away its mark, then its room.  ERR_IO: also where the file system gives back no room within a file. */
err cold_drop(const struct cold *c, uint32_t block, struct fault *f);
/* One byte for each block: not 0 where it is there, and another one each time that it was put. */
err cold_marks(const struct cold *c, uint8_t marks[COLD_BLOCKS_MAX], struct fault *f);
/* Remove all blocks of a segment.  Their room is free at once: who still has the file open finds no mark in it. */
err cold_evict(const char *directory, uint64_t segment, struct fault *f);

/* ---- readers' ---- */

/* Copy [position, position + size) of a cold segment of `bytes`.  `*fd` is its file of blocks as the caller has it open,
 * or -1; it is opened anew when what is wanted is not in it.  With `nowait`: as much as is there and in memory, and
 * ERR_NOT_CACHED where that is less; else all of it, fetched where it has to be.  ERR_NOT_FOUND: retention took the
 * segment.  ERR_IO: also what the archiver said. */
err cold_read(const char *directory, uint64_t segment, uint64_t bytes, int *fd, void *data, uint64_t size,
              uint64_t position, bool nowait, uint64_t *got, struct fault *f);

/* Say that a reader has come to `position` and reads on: what follows is fetched before it is asked for.  Does not wait
 * for that, but for the archiver.  ERR_IO. */
err cold_tell(const char *directory, uint64_t segment, uint64_t position, struct fault *f);

/* See to it that a cold segment's index is here.  With `nowait` ERR_NOT_CACHED when it is not.  ERR_NOT_FOUND, ERR_IO. */
err cold_index(const char *directory, uint64_t segment, uint32_t seed, bool nowait, struct fault *f);

/* Bring what a reader wants next into memory, from a helper thread that has nothing of the reader but its place: the
 * bytes from `position` on or, where that is 0, the index by which the reader will find its place. */
err cold_bring(const char *directory, uint64_t segment, uint64_t position, uint64_t size, struct fault *f);

/* ---- asking (ask.c) ---- */

#define ASK_SOCKET "remote.sock" /* in the data directory, two above a log's */
#define ASK_TIMEOUT_S 120        /* a slow store and a large block; a thread that waits longer waits for nothing */

/* Have the archiver fetch the blocks of [from, to), or the index.  OK: they are there now.  ERR_IO: the fault says why.
 * An empty range asks for nothing: cold_tell. */
err ask_fetch(const char *directory, uint64_t segment, uint64_t from, uint64_t to, struct fault *f);
err ask_index(const char *directory, uint64_t segment, struct fault *f);

#endif
