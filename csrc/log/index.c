/* SPDX-License-Identifier: Apache-2.0
 *
 * index: records to bytes and back, and a binary search that steps over damaged ones.
 */
#include "index.h"

#include <fcntl.h>

#include "../base/bytes.h"
#include "../base/check.h"
#include "../base/crc32.h"
#include "../base/file.h"
#include "segment.h"
#include "version.h"

#define RECORD_CRC_AT (INDEX_RECORD_BYTES - 4u)
#define RECORDS_PER_BLOCK (INDEX_BLOCK_BYTES / INDEX_RECORD_BYTES)

void index_header_write(uint64_t first_offset, uint32_t seed, uint8_t out[INDEX_HEADER_BYTES])
{
    bytes_store64(out + 8, first_offset);
    bytes_store32(out + 16, seed);
    bytes_store64(out + 20, 0);
    version_header_seal(out, INDEX_HEADER_BYTES, INDEX_MAGIC, INDEX_VERSION);
}

err index_header_read(const uint8_t *data, uint64_t size, uint64_t *first_offset, uint32_t *seed)
{
    err e = version_header_check(data, size, INDEX_HEADER_BYTES, INDEX_MAGIC, INDEX_VERSION);
    if (e) return e;
    *first_offset = bytes_load64(data + 8);
    *seed = bytes_load32(data + 16);
    return OK;
}

/* Seeded, so a record of an earlier file of the same name never passes. */
static uint32_t record_check(const uint8_t *data, uint32_t seed)
{
    uint8_t seed_bytes[4];
    bytes_store32(seed_bytes, seed);
    return crc32_update(crc32_update(0, seed_bytes, 4), data, RECORD_CRC_AT);
}

void index_record_write(const struct index_record *r, uint32_t seed, uint8_t out[INDEX_RECORD_BYTES])
{
    bytes_store64(out, r->chunk_id);
    bytes_store64(out + 8, (uint64_t)r->timestamp_ms);
    bytes_store32(out + 16, r->position);
    bytes_store32(out + 20, r->chunk_bytes);
    bytes_store32(out + 24, r->records);
    bytes_store32(out + RECORD_CRC_AT, record_check(out, seed));
}

err index_record_read(const uint8_t *data, uint64_t size, uint32_t seed, struct index_record *out)
{
    if (size < INDEX_RECORD_BYTES) return ERR_TRUNCATED;
    if (bytes_load32(data + RECORD_CRC_AT) != record_check(data, seed)) return ERR_CORRUPT;
    struct reader_bytes r = bytes_reader(data, INDEX_RECORD_BYTES);
    out->chunk_id = bytes_u64(&r);
    out->timestamp_ms = (int64_t)bytes_u64(&r);
    out->position = bytes_u32(&r);
    out->chunk_bytes = bytes_u32(&r);
    out->records = bytes_u32(&r);
    return OK;
}

err index_create(const char *directory, uint64_t first_offset, uint32_t seed, int *fd, struct fault *f)
{
    struct file_path path;
    file_path_numbered(&path, directory, first_offset, INDEX_SUFFIX);
    uint8_t header[INDEX_HEADER_BYTES];
    index_header_write(first_offset, seed, header);
    return file_create(path.text, header, sizeof header, fd, f);
}

err index_seed(const char *directory, uint64_t first_offset, uint32_t *seed, struct fault *f)
{
    struct file_path path;
    file_path_numbered(&path, directory, first_offset, INDEX_SUFFIX);
    int fd;
    err e = file_open(path.text, O_RDONLY, &fd, f);
    if (e) return e;
    uint8_t header[INDEX_HEADER_BYTES];
    size_t got;
    uint64_t first;
    e = file_read(fd, path.text, header, sizeof header, 0, &got, f);
    file_close(&fd);
    if (e) return e;
    e = index_header_read(header, got, &first, seed);
    if (!e && first != first_offset) e = ERR_CORRUPT;
    if (e == ERR_VERSION) return version_fault(path.text, INDEX_VERSION, header, f);
    return e ? fault_set(f, e, 0, path.text, 0, INDEX_HEADER_BYTES, got) : OK;
}

/* ---- searching ---- */

err index_open(struct index *ix, const char *directory, uint64_t segment, uint32_t seed, uint64_t count,
               struct fault *f)
{
    *ix = (struct index){.fd = -1, .seed = seed, .block = UINT64_MAX, .directory = directory, .segment = segment};
    struct file_path path;
    file_path_numbered(&path, directory, segment, INDEX_SUFFIX);
    err e = file_open(path.text, O_RDONLY, &ix->fd, f);
    if (e == ERR_NOT_FOUND) return OK;
    if (e) return e;
    uint64_t size;
    e = file_size(ix->fd, path.text, &size, f);
    if (e) {
        file_close(&ix->fd);
        return e;
    }
    uint64_t held = size < INDEX_HEADER_BYTES ? 0 : (size - INDEX_HEADER_BYTES) / INDEX_RECORD_BYTES;
    ix->count = count < held ? count : held;
    return OK;
}

void index_close(struct index *ix) { file_close(&ix->fd); }

static err index_fault(const struct index *ix, err e, uint64_t i, struct fault *f)
{
    struct file_path path;
    file_path_numbered(&path, ix->directory, ix->segment, INDEX_SUFFIX);
    return fault_set(f, e, 0, path.text, INDEX_HEADER_BYTES + i * INDEX_RECORD_BYTES, INDEX_RECORD_BYTES, 0);
}

err index_get(struct index *ix, uint64_t i, struct index_record *out, struct fault *f)
{
    CHECK(i < ix->count);
    uint64_t block = i / RECORDS_PER_BLOCK;
    if (ix->block != block) {
        struct file_path path;
        size_t got;
        file_path_numbered(&path, ix->directory, ix->segment, INDEX_SUFFIX);
        ix->block = UINT64_MAX;
        err e = file_read(ix->fd, path.text, ix->data, INDEX_BLOCK_BYTES,
                          INDEX_HEADER_BYTES + block * INDEX_BLOCK_BYTES, &got, f);
        if (e) return e;
        ix->block = block;
        ix->block_bytes = (uint32_t)got;
    }
    uint64_t at = i % RECORDS_PER_BLOCK * INDEX_RECORD_BYTES;
    uint64_t left = at < ix->block_bytes ? ix->block_bytes - at : 0;
    err e = index_record_read(ix->data + at, left, ix->seed, out);
    return e ? index_fault(ix, ERR_CORRUPT, i, f) : OK;
}

static bool record_less(const struct index_record *r, enum index_key key, int64_t value)
{
    switch (key) {
    case INDEX_BY_OFFSET: return r->chunk_id < (uint64_t)value;
    case INDEX_BY_TIMESTAMP: return r->timestamp_ms < value;
    case INDEX_BY_POSITION: return r->position < (uint64_t)value;
    }
    return false;
}

/* The good record nearest to `middle` in [low, high), upwards first.  ERR_NOT_FOUND when all are damaged. */
static err index_nearest(struct index *ix, uint64_t low, uint64_t middle, uint64_t high, uint64_t *found,
                         struct index_record *out, struct fault *f)
{
    for (uint64_t i = middle; i < high; i++) {
        err e = index_get(ix, i, out, f);
        *found = i;
        if (e != ERR_CORRUPT) return e;
    }
    for (uint64_t i = middle; i-- > low;) {
        err e = index_get(ix, i, out, f);
        *found = i;
        if (e != ERR_CORRUPT) return e;
    }
    return ERR_NOT_FOUND;
}

/* Both neighbours of the place where `value` belongs. */
static err index_search(struct index *ix, enum index_key key, int64_t value, struct index_record *before,
                        bool *has_before, struct index_record *from, bool *has_from, struct fault *f)
{
    uint64_t low = 0, high = ix->count;
    *has_before = *has_from = false;
    while (low < high) {
        struct index_record r;
        uint64_t middle = low + (high - low) / 2, found;
        err e = index_nearest(ix, low, middle, high, &found, &r, f);
        if (e == ERR_NOT_FOUND) break;
        if (e) return e;
        if (record_less(&r, key, value)) {
            *before = r;
            *has_before = true;
            /* Found below the middle: everything above it is damaged, the search is over. */
            low = found < middle ? high : found + 1;
        } else {
            *from = r;
            *has_from = true;
            /* Found above the middle: everything between is damaged. */
            high = found < middle ? found : middle;
        }
    }
    return OK;
}

err index_first_from(struct index *ix, enum index_key key, int64_t value, struct index_record *out, struct fault *f)
{
    struct index_record before;
    bool has_before, has_from;
    err e = index_search(ix, key, value, &before, &has_before, out, &has_from, f);
    if (e) return e;
    return has_from ? OK : index_fault(ix, ERR_NOT_FOUND, ix->count, f);
}

err index_last_before(struct index *ix, enum index_key key, int64_t value, struct index_record *out, struct fault *f)
{
    struct index_record from;
    bool has_before, has_from;
    err e = index_search(ix, key, value, out, &has_before, &from, &has_from, f);
    if (e) return e;
    return has_before ? OK : index_fault(ix, ERR_NOT_FOUND, 0, f);
}

err index_last(struct index *ix, struct index_record *out, struct fault *f)
{
    for (uint64_t i = ix->count; i-- > 0;) {
        err e = index_get(ix, i, out, f);
        if (e != ERR_CORRUPT) return e;
    }
    return index_fault(ix, ERR_NOT_FOUND, 0, f);
}
