/* SPDX-License-Identifier: Apache-2.0
 *
 * version: one table of what stands where in each kind of file.
 *
 * It reads the first bytes of each file, and all of a file only where a check over all of it must
 * tell a newer version from damage.
 */
#include "../base/bytes.h"
#include "../base/crc32.h"
#include "control.h"
#include "index.h"
#include "offsets.h"
#include "segment.h"
#include "tracking.h"
#include "upkeep.h"

#define HEAD_BYTES 64u
#define PIECE_BYTES (32u << 10)

enum order { BIG_ENDIAN_ORDER, MACHINE_ORDER };
enum check { CHECK_NONE, CHECK_HEADER, CHECK_FILE }; /* a CRC-32 over: nothing; the header before it; the file before it */

static const struct kind {
    const char *name;   /* of the only one, or */
    const char *suffix; /* of those that are numbered */
    uint32_t magic, version;
    enum order order;
    enum check check;
    uint32_t header_bytes; /* of CHECK_HEADER: the check is its last four */
} kinds[] = {
    {"control", NULL, CONTROL_MAGIC, CONTROL_VERSION, MACHINE_ORDER, CHECK_NONE, 0},
    {"tracking", NULL, TRACKING_MAGIC, TRACKING_VERSION, MACHINE_ORDER, CHECK_NONE, 0},
    {"offsets", NULL, OFFSETS_MAGIC, OFFSETS_VERSION, BIG_ENDIAN_ORDER, CHECK_HEADER, OFFSETS_HEADER_BYTES},
    {NULL, SEGMENT_SUFFIX, SEGMENT_MAGIC, SEGMENT_VERSION, BIG_ENDIAN_ORDER, CHECK_HEADER, SEGMENT_HEADER_BYTES},
    {NULL, INDEX_SUFFIX, INDEX_MAGIC, INDEX_VERSION, BIG_ENDIAN_ORDER, CHECK_HEADER, INDEX_HEADER_BYTES},
    {NULL, TRACKING_SUFFIX, TRACKING_SNAPSHOT_MAGIC, TRACKING_VERSION, BIG_ENDIAN_ORDER, CHECK_FILE, 0},
};

static const struct kind *kind_of(const char *name)
{
    uint64_t first;
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        const struct kind *k = &kinds[i];
        if (k->name ? strcmp(name, k->name) == 0 : file_name_parse(name, k->suffix, &first)) return k;
    }
    return NULL;
}

static uint32_t word(const uint8_t *data, enum order order)
{
    if (order == BIG_ENDIAN_ORDER) return bytes_load32(data);
    uint32_t value;
    memcpy(&value, data, sizeof value);
    return value;
}

/* Does the CRC-32 in the last four bytes of a file hold?  Only asked where the version is not ours. */
static err file_check(int fd, const char *path, bool *right, struct fault *f)
{
    uint8_t piece[PIECE_BYTES];
    uint64_t size, at = 0;
    uint32_t crc = 0;
    *right = false;
    err e = file_size(fd, path, &size, f);
    if (e || size < HEAD_BYTES / 4) return e;
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
    e = file_read(fd, path.text, head, sizeof head, 0, &got, f);
    bool other = !e && got >= 8 && word(head, k->order) == k->magic && word(head + 4, k->order) != k->version;
    if (other && k->check == CHECK_HEADER)
        other = file_header_check(path.text, head, got, k->header_bytes, k->magic, k->version, NULL) == ERR_VERSION;
    if (other && k->check == CHECK_FILE) e = file_check(fd, path.text, &other, f);
    file_close(&fd);
    /* A sector that cannot be read says nothing of a version: it is damage. */
    if (e) return e == ERR_IO ? OK : e;
    return other ? fault_set(f, ERR_VERSION, 0, path.text, 4, k->version, word(head + 4, k->order)) : OK;
}

err version_check(const char *directory, struct fault *f) { return file_each(directory, check_one, NULL, f); }
