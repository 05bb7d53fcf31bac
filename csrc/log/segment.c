/* SPDX-License-Identifier: Apache-2.0
 *
 * segment: headers, files and the directory's list.
 */
#include "segment.h"

#include <stdlib.h>

#include "../base/bytes.h"
#include "index.h"

void segment_header_write(const struct segment_header *h, uint8_t out[SEGMENT_HEADER_BYTES])
{
    memset(out, 0, SEGMENT_HEADER_BYTES);
    bytes_store64(out + 8, h->first_offset);
    bytes_store64(out + 16, (uint64_t)h->created_ms);
    bytes_store32(out + 24, h->seed);
    bytes_store64(out + 32, h->durable_segment);
    bytes_store64(out + 40, h->durable_position);
    bytes_store64(out + 48, h->suspect_position);
    file_header_seal(out, SEGMENT_HEADER_BYTES, SEGMENT_MAGIC, SEGMENT_VERSION);
}

err segment_header_read(const char *path, const uint8_t *data, uint64_t size, struct segment_header *out, struct fault *f)
{
    err e = file_header_check(path, data, size, SEGMENT_HEADER_BYTES, SEGMENT_MAGIC, SEGMENT_VERSION, f);
    if (e) return e;
    out->first_offset = bytes_load64(data + 8);
    out->created_ms = (int64_t)bytes_load64(data + 16);
    out->seed = bytes_load32(data + 24);
    out->durable_segment = bytes_load64(data + 32);
    out->durable_position = bytes_load64(data + 40);
    out->suspect_position = bytes_load64(data + 48);
    return OK;
}

err segment_create(const char *directory, const struct segment_header *h, int *fd, struct fault *f)
{
    struct file_path path = file_path_numbered(directory, h->first_offset, SEGMENT_SUFFIX);
    uint8_t header[SEGMENT_HEADER_BYTES];
    segment_header_write(h, header);
    return file_create(path.text, header, sizeof header, fd, f);
}

/* The header of this very segment; one that is too short is damaged as well. */
static err header_of(const char *path, uint64_t first_offset, const uint8_t *data, uint64_t size,
                     struct segment_header *out, struct fault *f)
{
    err e = segment_header_read(path, data, size, out, f);
    if (e == ERR_TRUNCATED || (!e && out->first_offset != first_offset))
        return fault_set(f, ERR_CORRUPT, 0, path, 0, SEGMENT_HEADER_BYTES, size);
    return e;
}

err segment_open(const char *directory, uint64_t first_offset, bool write, int *fd, uint32_t *seed, struct fault *f)
{
    struct file_path path;
    struct segment_header h;
    uint8_t header[SEGMENT_HEADER_BYTES];
    size_t got;
    err e = file_open_numbered(&path, directory, first_offset, SEGMENT_SUFFIX, write ? O_RDWR : O_RDONLY, fd, f);
    if (e) return e;
    e = file_read(*fd, path.text, header, sizeof header, 0, &got, f);
    if (!e) e = header_of(path.text, first_offset, header, got, &h, f);
    if (!e) *seed = h.seed;
    else if (e == ERR_CORRUPT) {
        struct fault of_index;
        err other = index_seed(directory, first_offset, seed, &of_index);
        if (other == OK) e = OK;
        /* The fault keeps naming the segment when the index cannot help either. */
        else if (other == ERR_VERSION) e = fault_set(f, other, 0, of_index.where, of_index.position, of_index.needed, of_index.had);
    }
    if (e) file_close(fd);
    return e;
}

err segment_header_load(const char *directory, uint64_t first_offset, struct segment_header *out, struct fault *f)
{
    uint8_t header[SEGMENT_HEADER_BYTES];
    size_t got;
    struct file_path path = file_path_numbered(directory, first_offset, SEGMENT_SUFFIX);
    err e = file_read_head(path.text, header, sizeof header, &got, f);
    return e ? e : header_of(path.text, first_offset, header, got, out, f);
}

err segment_remove(const char *directory, uint64_t first_offset, struct fault *f)
{
    static const char *const suffixes[] = {TRACKING_SUFFIX, INDEX_SUFFIX, SEGMENT_SUFFIX};
    for (size_t i = 0; i < sizeof suffixes / sizeof suffixes[0]; i++) {
        struct file_path path = file_path_numbered(directory, first_offset, suffixes[i]);
        err e = file_unlink(path.text, f);
        if (e) return e;
    }
    return OK;
}

/* ---- the list ---- */

err segment_list_read(const char *directory, struct segment_list *list, struct fault *f)
{
    segment_list_free(list);
    err e = file_numbers(directory, SEGMENT_SUFFIX, &list->first, &list->count, f);
    if (e || list->count == 0) return e;
    list->bytes = calloc(list->count, sizeof *list->bytes);
    if (!list->bytes) e = fault_set(f, ERR_NO_MEMORY, 0, directory, 0, list->count * sizeof *list->bytes, 0);
    for (uint32_t i = 0; i < list->count && !e; i++) {
        struct stat st = {0};
        struct file_path path = file_path_numbered(directory, list->first[i], SEGMENT_SUFFIX);
        e = file_stat_of(path.text, &st, f);
        if (e == ERR_NOT_FOUND) e = OK; /* retention removes it while we look: it counts as empty */
        list->bytes[i] = (uint64_t)st.st_size;
    }
    if (e) segment_list_free(list);
    return e;
}

void segment_list_free(struct segment_list *list)
{
    free(list->first);
    free(list->bytes);
    *list = (struct segment_list){0};
}

uint32_t segment_list_find(const struct segment_list *list, uint64_t offset)
{
    uint32_t low = 0, high = list->count;
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        if (list->first[middle] <= offset) low = middle;
        else high = middle;
    }
    return low;
}
