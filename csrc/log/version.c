/* SPDX-License-Identifier: Apache-2.0
 *
 * version: one table of what stands where in each kind of file.
 *
 * It reads the first bytes of each file, and all of a file only where a check over all of it must
 * tell a newer version from damage.
 */
#include "../base/bytes.h"
#include "../base/crc32.h"
#include "cold.h"
#include "control.h"
#include "segment.h"
#include "offsets.h"
#include "tracking.h"
#include "upkeep.h"

#define HEAD_BYTES FILE_PAGE_HEAD_BYTES
#define PIECE_BYTES (32u << 10)
#define SMALLEST_CHECKED_WHOLE_BYTES 16u /* of a tracking snapshot: its header, without a count */

#define MAPPED 0u /* the check of the first two words lies at `check_at` */
#define CHECKED_WHOLE UINT32_MAX /* the last four bytes of the file are the check of all before them */

static const struct kind {
    const char *name; /* of the only one, or a suffix of those that are numbered */
    uint32_t magic, version;
    uint32_t header_bytes; /* with the check in the last four of them */
    uint32_t check_at;
} kinds[] = {
    {"control", CONTROL_MAGIC, CONTROL_VERSION, MAPPED, CONTROL_HEAD_CHECK_AT},
    {"tracking", TRACKING_MAGIC, TRACKING_VERSION, MAPPED, TRACKING_HEAD_CHECK_AT},
    {"offsets", OFFSETS_MAGIC, OFFSETS_VERSION, OFFSETS_HEADER_BYTES, 0},
    {SEGMENT_SUFFIX, SEGMENT_MAGIC, SEGMENT_VERSION, SEGMENT_HEADER_BYTES, 0},
    {INDEX_SUFFIX, INDEX_MAGIC, INDEX_VERSION, INDEX_HEADER_BYTES, 0},
    {TRACKING_SUFFIX, TRACKING_SNAPSHOT_MAGIC, TRACKING_SNAPSHOT_VERSION, CHECKED_WHOLE, 0},
    {STUB_SUFFIX, STUB_MAGIC, STUB_VERSION, STUB_BYTES, 0},
    {COLD_SUFFIX, COLD_MAGIC, COLD_VERSION, COLD_HEADER_BYTES, 0},
};

static const struct kind *kind_of(const char *name)
{
    uint64_t first;
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        if (strcmp(name, kinds[i].name) == 0 || file_name_parse(name, kinds[i].name, &first)) return &kinds[i];
    return NULL;
}

/* Does the CRC-32 in the last four bytes of a file hold?  Only asked where the version is not ours. */
static err file_check(int fd, const char *path, bool *right, struct fault *f)
{
    uint8_t piece[PIECE_BYTES];
    uint64_t size, at = 0;
    uint32_t crc = 0;
    *right = false;
    err e = file_size(fd, path, &size, f);
    if (e || size < SMALLEST_CHECKED_WHOLE_BYTES) return e;
    while (!e && at < size - 4) {
        uint64_t left = size - 4 - at;
        size_t wanted = left < sizeof piece ? (size_t)left : sizeof piece;
        e = file_read_exact(fd, path, piece, wanted, at, f);
        if (!e) crc = crc32_update(crc, piece, wanted);
        at += wanted;
    }
    if (!e) e = file_read_exact(fd, path, piece, 4, size - 4, f);
    *right = !e && bytes_load32(piece) == crc;
    return e == ERR_TRUNCATED ? OK : e;
}

/* An older version is read as it is. */
static err header_version(const char *path, const uint8_t *head, size_t got, const struct kind *k, struct fault *f)
{
    err e = OK;
    for (uint32_t version = 1; version <= k->version; version++) {
        e = file_header_check(path, head, got, k->header_bytes, k->magic, version, f);
        if (e != ERR_VERSION) return e;
    }
    return e;
}

static err check_one(void *context, const char *directory, const char *name, struct fault *f)
{
    (void)context;
    const struct kind *k = kind_of(name);
    if (!k) return OK;
    struct file_path path = file_path_name(directory, name);
    int fd;
    err e = file_open(path.text, O_RDONLY, &fd, f);
    if (e) return e == ERR_NOT_FOUND ? OK : e; /* retention may be at work */
    uint8_t head[HEAD_BYTES] = {0};
    size_t got;
    bool right = false;
    e = file_head(fd, path.text, head, sizeof head, &got, f);
    const struct file_page_kind page = {k->magic, k->version, k->check_at};
    if (!e && k->header_bytes == MAPPED) e = file_page_version(path.text, head, got, &page, f);
    else if (!e && k->header_bytes != CHECKED_WHOLE)
        e = header_version(path.text, head, got, k, f);
    else if (!e && bytes_load32(head) == k->magic && bytes_load32(head + 4) > k->version) {
        e = file_check(fd, path.text, &right, f);
        if (!e && right) e = fault_set(f, ERR_VERSION, 0, path.text, 4, k->version, bytes_load32(head + 4));
    }
    file_close(&fd);
    /* Anything else that is wrong, a sector that cannot be read too, says nothing of a version: it is damage. */
    return e == ERR_IO || e == ERR_CORRUPT || e == ERR_TRUNCATED ? OK : e;
}

err version_check(const char *directory, struct fault *f) { return file_each(directory, check_one, NULL, f); }
