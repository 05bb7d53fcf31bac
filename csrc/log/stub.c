/* SPDX-License-Identifier: Apache-2.0
 *
 * stub: the small files that say which segments lie whole in the object store.
 */
#include <stdlib.h>

#include "../base/bytes.h"
#include "cold.h"
#include "segment.h"

void stub_encode(const struct stub *s, uint8_t out[STUB_BYTES])
{
    memset(out, 0, STUB_BYTES);
    bytes_store64(out + 8, s->first);
    bytes_store64(out + 16, s->next);
    bytes_store64(out + 24, s->bytes);
    bytes_store64(out + 32, (uint64_t)s->oldest_ms);
    bytes_store64(out + 40, (uint64_t)s->newest_ms);
    bytes_store32(out + 48, s->seed);
    bytes_store32(out + 52, s->epoch);
    bytes_store32(out + 56, s->broker_epoch);
    file_header_seal(out, STUB_BYTES, STUB_MAGIC, STUB_VERSION);
}

/* Offsets are signed where clients see them, and recovery takes an epoch above every one that it meets. */
static bool makes_sense(const struct stub *s)
{
    return s->next > s->first && s->next <= INT64_MAX && s->bytes > SEGMENT_HEADER_BYTES && s->bytes <= UINT32_MAX &&
           s->oldest_ms <= s->newest_ms && s->epoch < UINT32_MAX;
}

err stub_decode(const char *path, const uint8_t *data, uint64_t size, struct stub *out, struct fault *f)
{
    err e = file_header_check(path, data, size, STUB_BYTES, STUB_MAGIC, STUB_VERSION, f);
    if (e) return e;
    *out = (struct stub){.first = bytes_load64(data + 8), .next = bytes_load64(data + 16), .bytes = bytes_load64(data + 24),
                         .oldest_ms = (int64_t)bytes_load64(data + 32), .newest_ms = (int64_t)bytes_load64(data + 40),
                         .seed = bytes_load32(data + 48), .epoch = bytes_load32(data + 52),
                         .broker_epoch = bytes_load32(data + 56)};
    return makes_sense(out) ? OK : fault_set(f, ERR_CORRUPT, 0, path, 0, STUB_BYTES, size);
}

/* What is not here need not be synced. */
static err sync_if_there(const char *directory, uint64_t first, const char *suffix, struct fault *f)
{
    struct file_path path = file_path_numbered(directory, first, suffix);
    err e = file_sync(path.text, f);
    return e == ERR_NOT_FOUND ? OK : e;
}

err stub_write(const char *directory, const struct stub *s, struct fault *f)
{
    uint8_t data[STUB_BYTES];
    struct file_path path = file_path_numbered(directory, s->first, STUB_SUFFIX);
    if (!makes_sense(s)) return fault_set(f, ERR_INVALID, 0, path.text, 0, s->first, s->next);
    err e = sync_if_there(directory, s->first, INDEX_SUFFIX, f);
    if (!e) e = sync_if_there(directory, s->next, TRACKING_SUFFIX, f);
    if (!e) e = file_sync_directory(directory, f); /* their names too: a rename may be durable before an older name is */
    stub_encode(s, data);
    if (!e) e = file_replace(path.text, data, sizeof data, true, f);
    return e ? e : file_sync_directory(directory, f);
}

err stub_make(const char *directory, uint64_t first, uint64_t next, uint32_t epoch, struct stub *out, struct fault *f)
{
    struct scan s;
    struct chunk oldest, newest;
    struct file_path path = file_path_numbered(directory, first, SEGMENT_SUFFIX);
    *out = (struct stub){.first = first, .next = next, .epoch = epoch};
    s = (struct scan){.fd = -1, .segment = first, .directory = directory};
    err e = segment_open(directory, first, false, &s.fd, &s.seed, f); /* never of what is cold: this is what is sent up */
    if (e) return e;
    e = file_size(s.fd, path.text, &s.limit, f);
    if (!e) e = scan_header(&s, SEGMENT_HEADER_BYTES, &oldest, f);
    file_close(&s.fd);
    if (!e) e = scan_last_chunk(directory, first, s.limit, &newest);
    if (e) return fault_set(f, e == ERR_IO || e == ERR_NO_MEMORY ? e : ERR_CORRUPT, 0, path.text, 0, 0, s.limit);
    out->seed = s.seed;
    out->bytes = s.limit;
    out->oldest_ms = oldest.timestamp_ms;
    out->newest_ms = newest.timestamp_ms;
    return makes_sense(out) ? OK : fault_set(f, ERR_CORRUPT, 0, path.text, 0, first, next);
}

err stub_read(const char *directory, uint64_t first, struct stub *out, struct fault *f)
{
    uint8_t data[STUB_BYTES];
    size_t got;
    struct file_path path = file_path_numbered(directory, first, STUB_SUFFIX);
    err e = file_read_head(path.text, data, sizeof data, &got, f);
    if (!e) e = stub_decode(path.text, data, got, out, f);
    return !e && out->first != first ? fault_set(f, ERR_CORRUPT, 0, path.text, 8, first, out->first) : e;
}

err stub_remove(const char *directory, uint64_t first, struct fault *f)
{
    struct file_path path = file_path_numbered(directory, first, STUB_SUFFIX);
    return file_unlink(path.text, f);
}

err stub_list(const char *directory, struct stub **stubs, uint32_t *count, struct fault *f)
{
    uint64_t *first = NULL;
    uint32_t found = 0;
    *stubs = NULL;
    *count = 0;
    err e = file_numbers(directory, STUB_SUFFIX, &first, &found, f);
    if (!e && found) {
        *stubs = malloc(found * sizeof **stubs);
        if (!*stubs) e = fault_set(f, ERR_NO_MEMORY, 0, directory, 0, found * sizeof **stubs, 0);
    }
    for (uint32_t i = 0; i < found && !e; i++) {
        e = stub_read(directory, first[i], &(*stubs)[*count], f);
        if (!e) ++*count;
        else if (e != ERR_NO_MEMORY && e != ERR_VERSION) e = OK; /* damaged or gone: it says nothing */
    }
    free(first);
    if (e) {
        free(*stubs);
        *stubs = NULL;
        *count = 0;
    }
    return e;
}
