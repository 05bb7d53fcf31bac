/* SPDX-License-Identifier: Apache-2.0
 *
 * cold: the blocks of segments that lie in the object store.
 *
 * A block has a byte of its own in the page, written after its data, so nobody ever has to change a bit beside
 * another.  A reader loads the byte before the data and once more behind it: a block that was dropped meanwhile, or
 * dropped and fetched again, has another mark, and what was copied of it counts for nothing.  Whoever finds no mark in
 * the file that it has open opens the file anew before it asks: what was evicted and fetched again is in another file
 * of that name.
 */
#include "cold.h"

#include <stdlib.h>

#include "../base/bytes.h"
#include "../base/check.h"
#include "segment.h"

#define ASKS_MAX 4 /* each in vain means that the block was evicted before it could be read */
#define BRING_BYTES (64u << 10) /* at once, into memory that is only there to bring the page cache in */

_Static_assert(COLD_HEADER_BYTES + COLD_BLOCKS_MAX <= COLD_PAGE_BYTES, "the marks lie in the first page");
_Static_assert((uint64_t)COLD_BLOCKS_MAX * COLD_BLOCK_BYTES > UINT32_MAX, "any segment's blocks have marks");

/* ---- the header ---- */

void cold_header_encode(uint64_t segment, uint64_t bytes, uint8_t out[COLD_HEADER_BYTES])
{
    memset(out, 0, COLD_HEADER_BYTES);
    bytes_store64(out + 8, segment);
    bytes_store64(out + 16, bytes);
    bytes_store32(out + 24, COLD_BLOCK_BYTES);
    file_header_seal(out, COLD_HEADER_BYTES, COLD_MAGIC, COLD_VERSION);
}

err cold_header_decode(const char *path, const uint8_t *data, uint64_t size, uint64_t segment, uint64_t bytes,
                       struct fault *f)
{
    err e = file_header_check(path, data, size, COLD_HEADER_BYTES, COLD_MAGIC, COLD_VERSION, f);
    if (e) return e;
    if (bytes_load64(data + 8) == segment && bytes_load64(data + 16) == bytes && bytes_load32(data + 24) == COLD_BLOCK_BYTES)
        return OK;
    return fault_set(f, ERR_CORRUPT, 0, path, 8, segment, bytes_load64(data + 8));
}

/* Open a file of blocks if it is this segment's.  ERR_NOT_FOUND; any other error means that it is of no use. */
static err open_blocks(const char *directory, uint64_t segment, uint64_t bytes, int flags, struct file_path *path, int *fd,
                       struct fault *f)
{
    uint8_t header[COLD_HEADER_BYTES];
    size_t got;
    err e = file_open_numbered(path, directory, segment, COLD_SUFFIX, flags, fd, f);
    if (e) return e;
    e = file_read(*fd, path->text, header, sizeof header, 0, &got, f);
    if (!e) e = cold_header_decode(path->text, header, got, segment, bytes, f);
    if (e) file_close(fd);
    return e;
}

/* ---- the archiver's ---- */

static uint64_t block_at(uint32_t block) { return COLD_PAGE_BYTES + (uint64_t)block * COLD_BLOCK_BYTES; }

static err begin_blocks(const struct cold *c, struct fault *f)
{
    uint8_t page[COLD_PAGE_BYTES] = {0};
    cold_header_encode(c->segment, c->bytes, page);
    return file_replace(c->path.text, page, sizeof page, false, f); /* a power cut takes the blocks anyway */
}

err cold_open(struct cold *c, const char *directory, uint64_t segment, struct fault *f)
{
    struct stub stub;
    err e = stub_read(directory, segment, &stub, f);
    if (e) return e;
    *c = (struct cold){.fd = -1, .segment = segment, .bytes = stub.bytes};
    e = open_blocks(directory, segment, stub.bytes, O_RDWR, &c->path, &c->fd, f);
    if (e == ERR_NOT_FOUND || e == ERR_CORRUPT || e == ERR_TRUNCATED) {
        e = begin_blocks(c, f);
        if (!e) e = open_blocks(directory, segment, stub.bytes, O_RDWR, &c->path, &c->fd, f);
    }
    uint8_t marks[COLD_BLOCKS_MAX];
    if (!e) e = cold_marks(c, marks, f);
    for (uint32_t i = 0; i < COLD_BLOCKS_MAX && !e; i++)
        if (marks[i] > c->mark) c->mark = marks[i];
    if (e) cold_close(c);
    return e;
}

void cold_close(struct cold *c) { file_close(&c->fd); }

err cold_put(struct cold *c, uint32_t block, const void *data, uint64_t size, struct fault *f)
{
    if (block >= cold_blocks(c->bytes)) return fault_set(f, ERR_INVALID, 0, c->path.text, block, cold_blocks(c->bytes), block);
    uint64_t needed = cold_block_bytes(c->bytes, block);
    if (size != needed) return fault_set(f, ERR_INVALID, 0, c->path.text, block, needed, size);
    c->mark = c->mark == UINT8_MAX ? 1 : c->mark + 1;
    err e = file_write(c->fd, c->path.text, data, size, block_at(block), f);
    return e ? e : file_write(c->fd, c->path.text, &c->mark, 1, COLD_HEADER_BYTES + block, f);
}

err cold_drop(const struct cold *c, uint32_t block, struct fault *f)
{
    uint8_t none = 0;
    if (block >= cold_blocks(c->bytes)) return fault_set(f, ERR_INVALID, 0, c->path.text, block, cold_blocks(c->bytes), block);
    err e = file_write(c->fd, c->path.text, &none, 1, COLD_HEADER_BYTES + block, f);
    return e ? e : file_punch(c->fd, c->path.text, block_at(block), cold_block_bytes(c->bytes, block), f);
}

err cold_marks(const struct cold *c, uint8_t marks[COLD_BLOCKS_MAX], struct fault *f)
{
    size_t got;
    memset(marks, 0, COLD_BLOCKS_MAX);
    return file_read(c->fd, c->path.text, marks, COLD_BLOCKS_MAX, COLD_HEADER_BYTES, &got, f);
}

err cold_evict(const char *directory, uint64_t segment, struct fault *f)
{
    struct file_path path;
    int fd;
    err e = file_open_numbered(&path, directory, segment, COLD_SUFFIX, O_RDWR, &fd, f);
    if (e) return e == ERR_NOT_FOUND ? OK : e;
    e = file_unlink(path.text, f);
    if (!e) e = file_truncate(fd, path.text, 0, f);
    file_close(&fd);
    return e;
}

/* ---- readers' ---- */

/* The blocks of [position, position + size), and the marks of those that are here up to the first that is not. */
struct marked {
    uint32_t from, count;
    uint8_t marks[COLD_BLOCKS_MAX];
};

/* None of a file that was evicted. */
static void look(int fd, uint64_t bytes, uint64_t position, uint64_t size, struct marked *m)
{
    size_t got;
    m->from = (uint32_t)(position / COLD_BLOCK_BYTES);
    m->count = 0;
    uint64_t to = (position + size - 1) / COLD_BLOCK_BYTES;
    if (position + size > bytes || to >= COLD_BLOCKS_MAX) return;
    if (file_read(fd, NULL, m->marks, (uint32_t)to - m->from + 1, COLD_HEADER_BYTES + m->from, &got, NULL)) return;
    while (m->count < got && m->marks[m->count]) m->count++;
}

/* Are they all there still, as they were? */
static bool stayed(int fd, const struct marked *m)
{
    uint8_t now[COLD_BLOCKS_MAX];
    size_t got;
    return file_read(fd, NULL, now, m->count, COLD_HEADER_BYTES + m->from, &got, NULL) == OK && got == m->count &&
           memcmp(m->marks, now, got) == 0;
}

/* Copy what is marked. */
static err take(const char *directory, uint64_t segment, uint64_t bytes, int fd, uint8_t *data, uint64_t size,
                uint64_t position, bool nowait, uint64_t *got, struct fault *f)
{
    struct marked m = {0};
    uint64_t begin = *got;
    if (fd >= 0 && *got < size) look(fd, bytes, position + *got, size - *got, &m);
    uint64_t end = ((uint64_t)m.from + m.count) * COLD_BLOCK_BYTES;
    end = m.count == 0 ? begin : end - position < size ? end - position : size;
    while (*got < end) {
        off_t at = (off_t)(COLD_PAGE_BYTES + position + *got);
        ssize_t n = nowait ? sys->pread_nowait(fd, data + *got, end - *got, at) : sys->pread(fd, data + *got, end - *got, at);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) {
            int error = errno;
            struct file_path path = file_path_numbered(directory, segment, COLD_SUFFIX);
            if (nowait && error == EAGAIN) {
                if (!stayed(fd, &m)) *got = begin;
                return fault_set(f, ERR_NOT_CACHED, 0, path.text, position, size, *got);
            }
            errno = error;
            return fault_from_errno(f, path.text, (uint64_t)at, end - *got, 0);
        }
        if (n == 0) break; /* evicted meanwhile */
        *got += (uint64_t)n;
    }
    if (*got > begin && !stayed(fd, &m)) *got = begin;
    return OK;
}

/* When a segment cannot be had: was it because retention took it? */
static err cold_problem(const char *directory, uint64_t segment, err e, struct fault *f)
{
    struct stub stub;
    if (stub_read(directory, segment, &stub, NULL) != ERR_NOT_FOUND) return e;
    struct file_path path = file_path_numbered(directory, segment, STUB_SUFFIX);
    return fault_set(f, ERR_NOT_FOUND, 0, path.text, 0, 0, 0);
}

err cold_read(const char *directory, uint64_t segment, uint64_t bytes, int *fd, void *data, uint64_t size,
              uint64_t position, bool nowait, uint64_t *got, struct fault *f)
{
    struct file_path path;
    *got = 0;
    if (position > bytes || size > bytes - position)
        return fault_set(f, ERR_INVALID, 0, directory, position, size, bytes);
    for (int asked = 0;; asked++) {
        for (int opened = 0; opened < 2; opened++) {
            if (opened) {
                file_close(fd);
                err of_open = open_blocks(directory, segment, bytes, O_RDONLY, &path, fd, f);
                if (of_open == ERR_IO || of_open == ERR_VERSION || of_open == ERR_NO_MEMORY) return of_open;
            }
            err e = take(directory, segment, bytes, *fd, data, size, position, nowait, got, f);
            if (e || *got == size) return e;
        }
        path = file_path_numbered(directory, segment, COLD_SUFFIX);
        err e = cold_problem(directory, segment, OK, f); /* or it would be fetched for nobody */
        if (!e && nowait) return fault_set(f, ERR_NOT_CACHED, 0, path.text, position, size, *got);
        if (!e && asked == ASKS_MAX) return fault_set(f, ERR_IO, 0, path.text, position, size, *got);
        if (!e) e = ask_fetch(directory, segment, position + *got, position + size, f);
        if (e) return cold_problem(directory, segment, e, f);
    }
}

err cold_tell(const char *directory, uint64_t segment, uint64_t position, struct fault *f)
{
    return ask_fetch(directory, segment, position, position, f);
}

err cold_index(const char *directory, uint64_t segment, uint32_t seed, bool nowait, struct fault *f)
{
    for (bool asked = false;; asked = true) {
        uint32_t found;
        err e = index_seed(directory, segment, &found, f);
        if (!e && found == seed) return OK;
        if (e == ERR_VERSION || e == ERR_NO_MEMORY) return e;
        struct file_path path = file_path_numbered(directory, segment, INDEX_SUFFIX);
        if (nowait) return cold_problem(directory, segment, fault_set(f, ERR_NOT_CACHED, 0, path.text, 0, 0, 0), f);
        if (asked) return cold_problem(directory, segment, fault_set(f, ERR_IO, 0, path.text, 0, seed, e ? 0 : found), f);
        e = ask_index(directory, segment, f);
        if (e) return cold_problem(directory, segment, e, f);
    }
}

err cold_bring(const char *directory, uint64_t segment, uint64_t position, uint64_t size, struct fault *f)
{
    struct stub stub;
    int fd = -1;
    err e = stub_read(directory, segment, &stub, f);
    if (e) return e;
    if (position == 0) return cold_index(directory, segment, stub.seed, false, f);
    uint8_t *data = malloc(BRING_BYTES);
    if (!data) return fault_set(f, ERR_NO_MEMORY, 0, directory, 0, BRING_BYTES, 0);
    while (!e && size > 0 && position < stub.bytes) {
        uint64_t left = stub.bytes - position, piece = left < size ? left : size, got;
        if (piece > BRING_BYTES) piece = BRING_BYTES;
        e = cold_read(directory, segment, stub.bytes, &fd, data, piece, position, false, &got, f);
        position += piece;
        size -= piece;
    }
    file_close(&fd);
    free(data);
    return e;
}
