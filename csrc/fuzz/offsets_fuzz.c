/* SPDX-License-Identifier: Apache-2.0
 *
 * Any bytes are a file of stored offsets in which sound records are found, damaged ones are
 * not, and a store is found again and takes nothing away but the one that makes room; or
 * a file of a later version, which is refused and stays as it is.
 *
 * The file lies in memory, behind the table of system calls.  The first byte of the input
 * says whether the checks of the header and the records are put right before.
 */
#include "../log/offsets.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "../base/bytes.h"
#include "../base/crc32.h"
#include "../base/sys.h"
#include "fuzz.h"

#define FILE_BYTES_MAX ((OFFSETS_REFERENCES_MAX + 2) * OFFSETS_RECORD_BYTES)

static uint8_t file[FILE_BYTES_MAX], was[FILE_BYTES_MAX];
static size_t file_size_now;

#define FILE_FD 3

static int fake_open(const char *path, int flags, mode_t mode) { return (void)path, (void)flags, (void)mode, FILE_FD; }
static int fake_entropy(void *out, size_t size) { return memset(out, 0x5A, size), 0; }
static int fake_close(int fd) { return (void)fd, 0; }
static int fake_flock(int fd, int operation) { return (void)fd, (void)operation, 0; }
static int64_t fake_now(void) { return INT64_C(1) << 62; }

static ssize_t fake_pread(int fd, void *data, size_t size, off_t at)
{
    (void)fd;
    if ((size_t)at >= file_size_now) return 0;
    if (size > file_size_now - (size_t)at) size = file_size_now - (size_t)at;
    memcpy(data, file + at, size);
    return (ssize_t)size;
}

static ssize_t fake_pwrite(int fd, const void *data, size_t size, off_t at)
{
    (void)fd;
    CHECK((size_t)at + size <= sizeof file);
    memcpy(file + at, data, size);
    if ((size_t)at + size > file_size_now) file_size_now = (size_t)at + size;
    return (ssize_t)size;
}

static int fake_fstat(int fd, struct stat *out)
{
    (void)fd;
    memset(out, 0, sizeof *out);
    out->st_size = (off_t)file_size_now;
    return 0;
}

static void put_right(void)
{
    if (file_size_now >= OFFSETS_HEADER_BYTES) bytes_store32(file + 16, crc32_update(0, file, 16));
    for (size_t at = OFFSETS_RECORD_BYTES; at + OFFSETS_RECORD_BYTES <= file_size_now; at += OFFSETS_RECORD_BYTES)
        bytes_store32(file + at, crc32_update(0, file + at + 4, OFFSETS_RECORD_BYTES - 4));
}

struct seen { uint32_t count; bool had_new; };

static void see(void *context, const struct offsets_record *r)
{
    struct seen *seen = context;
    seen->count++;
    seen->had_new |= r->bytes == 3 && memcmp(r->reference, "new", 3) == 0 && r->offset == 42;
    uint8_t again[OFFSETS_RECORD_BYTES];
    struct offsets_record back;
    offsets_record_write(r, again);
    CHECK(offsets_record_read(again, &back) == OK && back.offset == r->offset && back.bytes == r->bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct sys fake;
    fake = sys_real;
    fake.open = fake_open;
    fake.entropy = fake_entropy;
    fake.close = fake_close;
    fake.flock = fake_flock;
    fake.pread = fake_pread;
    fake.fstat = fake_fstat;
    fake.pwrite = fake_pwrite;
    fake.now_ms = fake_now;
    if (size == 0 || size - 1 > sizeof file - OFFSETS_RECORD_BYTES) return 0;
    file_size_now = size - 1;
    memcpy(file, data + 1, file_size_now);
    if (data[0] & 1) put_right();
    memcpy(was, file, file_size_now);
    sys = &fake;

    struct offsets *o, *other;
    struct seen before = {0}, after = {0};
    uint64_t offset;
    bool evicted = false;
    CHECK(offsets_open("d", &o, NULL) == OK && offsets_open("d", &other, NULL) == OK);
    err e = offsets_each(o, see, &before, NULL);
    CHECK(e == OK || e == ERR_VERSION);
    if (e == ERR_VERSION) {
        CHECK(offsets_store(o, "new", 3, 42, &evicted, NULL) == ERR_VERSION);
        CHECK(memcmp(file, was, file_size_now) == 0);
    } else {
        CHECK(before.count <= OFFSETS_REFERENCES_MAX);
        CHECK(offsets_damaged(o) <= OFFSETS_REFERENCES_MAX);
        e = offsets_get(other, "new", 3, &offset, NULL); /* the other one remembers it as it was */
        CHECK(e == OK || e == ERR_NOT_FOUND);
        bool had = e == OK;
        CHECK(offsets_store(o, "new", 3, 42, &evicted, NULL) == OK);
        CHECK(offsets_get(other, "new", 3, &offset, NULL) == OK && offset == 42);
        CHECK(offsets_each(other, see, &after, NULL) == OK && after.had_new);
        CHECK(after.count == before.count + (had || evicted ? 0 : 1));
        CHECK(!evicted || before.count == OFFSETS_REFERENCES_MAX);
    }
    offsets_close(o);
    offsets_close(other);
    sys = &sys_real;
    return 0;
}
