/* SPDX-License-Identifier: Apache-2.0
 *
 * segment: headers, files and the directory's list; the index's records to bytes and back, and a binary search that
 * steps over damaged ones.
 */
#include "segment.h"

#include <stdlib.h>

#include "../base/bytes.h"
#include "../base/check.h"
#include "../base/crc32.h"
#include "cold.h"

uint32_t segment_boot(void)
{
    uint8_t id[16];
    if (sys->boot_id(id) < 0) return 0;
    uint32_t number = crc32_update(0, id, sizeof id);
    return number ? number : 1;
}

void segment_header_stamp(struct segment_header *h)
{
    int64_t seconds = (sys->boot_ms() + 999) / 1000;
    bool fits = seconds >= 0 && seconds <= UINT32_MAX;
    h->created_ms = sys->now_ms();
    h->boot = fits ? segment_boot() : 0;
    h->boot_s = fits ? (uint32_t)seconds : 0;
}

void segment_header_write(const struct segment_header *h, uint8_t out[SEGMENT_HEADER_BYTES])
{
    memset(out, 0, SEGMENT_HEADER_BYTES);
    bytes_store64(out + 8, h->first_offset);
    bytes_store64(out + 16, (uint64_t)h->created_ms);
    bytes_store32(out + 24, h->seed);
    bytes_store32(out + 28, h->boot);
    bytes_store64(out + 32, h->durable_segment);
    CHECK(h->durable_position <= UINT32_MAX && h->suspect_position <= UINT32_MAX);
    bytes_store32(out + 40, (uint32_t)h->durable_position);
    bytes_store32(out + 44, (uint32_t)h->suspect_position);
    bytes_store64(out + 48, h->turned_segment);
    bytes_store32(out + 56, h->boot_s);
    file_header_seal(out, SEGMENT_HEADER_BYTES, SEGMENT_MAGIC, SEGMENT_VERSION);
}

err segment_header_read(const char *path, const uint8_t *data, uint64_t size, struct segment_header *out,
                        struct fault *f)
{
    bool is_old = size >= 8 && bytes_load32(data + 4) == 1;
    uint32_t version = is_old ? 1 : SEGMENT_VERSION;
    err e = file_header_check(path, data, size, SEGMENT_HEADER_BYTES, SEGMENT_MAGIC, version, f);
    if (e) return e;
    *out = (struct segment_header){0};
    out->first_offset = bytes_load64(data + 8);
    out->created_ms = (int64_t)bytes_load64(data + 16);
    out->seed = bytes_load32(data + 24);
    out->durable_segment = bytes_load64(data + 32);
    if (is_old) {
        out->durable_position = bytes_load64(data + 40);
        out->suspect_position = bytes_load64(data + 48);
        return OK;
    }
    out->durable_position = bytes_load32(data + 40);
    out->suspect_position = bytes_load32(data + 44);
    out->turned_segment = bytes_load64(data + 48);
    out->boot = bytes_load32(data + 28);
    out->boot_s = bytes_load32(data + 56);
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
    struct segment_header h = {0};
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
    static const char *const suffixes[] = {TRACKING_SUFFIX, INDEX_SUFFIX, COLD_SUFFIX, STUB_SUFFIX, SEGMENT_SUFFIX};
    for (size_t i = 0; i < sizeof suffixes / sizeof suffixes[0]; i++) {
        struct file_path path = file_path_numbered(directory, first_offset, suffixes[i]);
        err e = file_unlink(path.text, f);
        if (e) return e;
    }
    return OK;
}

/* ---- the list ---- */

/* The numbers of both, each once; a number that only the second has is cold. */
static err list_merge(struct segment_list *list, const char *directory, const uint64_t *here, uint32_t here_count,
                      const uint64_t *stubs, uint32_t stub_count, struct fault *f)
{
    uint32_t i = 0, k = 0, most = here_count + stub_count;
    if (most == 0) return OK;
    list->first = malloc(most * sizeof *list->first);
    list->bytes = calloc(most, sizeof *list->bytes);
    list->cold = calloc(most, sizeof *list->cold);
    if (!list->first || !list->bytes || !list->cold)
        return fault_set(f, ERR_NO_MEMORY, 0, directory, 0, most * sizeof *list->first, 0);
    while (i < here_count || k < stub_count) {
        bool is_here = k == stub_count || (i < here_count && here[i] <= stubs[k]);
        uint64_t number = is_here ? here[i++] : stubs[k];
        if (k < stub_count && stubs[k] == number) k++;
        list->cold[list->count] = !is_here;
        list->first[list->count++] = number;
    }
    return OK;
}

/* How large is segment `i`?  One that retention removes while we look counts as empty; so does one whose stub is damaged. */
static err list_size(struct segment_list *list, uint32_t i, const struct segment_list *before, const char *directory,
                     struct fault *f)
{
    uint32_t k = before->count ? segment_list_find(before, list->first[i]) : 0;
    if (list->cold[i] && before->count && before->first[k] == list->first[i] && before->cold[k] && before->bytes[k]) {
        list->bytes[i] = before->bytes[k];
        return OK;
    }
    struct stat st = {0};
    struct stub stub = {0};
    struct file_path path = file_path_numbered(directory, list->first[i], SEGMENT_SUFFIX);
    err e = list->cold[i] ? ERR_NOT_FOUND : file_stat_of(path.text, &st, f);
    /* It may just have become cold. */
    if (e == ERR_NOT_FOUND) {
        e = stub_read(directory, list->first[i], &stub, f);
        list->cold[i] = true;
        list->bytes[i] = stub.bytes;
        return e == ERR_NOT_FOUND || e == ERR_CORRUPT || e == ERR_TRUNCATED ? OK : e;
    }
    list->bytes[i] = (uint64_t)st.st_size;
    return e;
}

err segment_list_read(const char *directory, struct segment_list *list, struct fault *f)
{
    struct segment_list before = *list;
    uint64_t *here = NULL, *stubs = NULL;
    uint32_t here_count = 0, stub_count = 0;
    *list = (struct segment_list){0};
    /* Stubs last: a segment that goes cold between the two is found in both. */
    err e = file_numbers(directory, SEGMENT_SUFFIX, &here, &here_count, f);
    if (!e) e = file_numbers(directory, STUB_SUFFIX, &stubs, &stub_count, f);
    if (!e) e = list_merge(list, directory, here, here_count, stubs, stub_count, f);
    for (uint32_t i = 0; i < list->count && !e; i++) e = list_size(list, i, &before, directory, f);
    free(here);
    free(stubs);
    segment_list_free(&before);
    if (e) segment_list_free(list);
    return e;
}

void segment_list_keep(struct segment_list *list, uint64_t first, uint64_t active)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < list->count; i++) {
        uint64_t name = list->first[i];
        if (name < first || name > active || (name != active && list->bytes[i] <= SEGMENT_HEADER_BYTES)) continue;
        list->first[kept] = name;
        list->cold[kept] = list->cold[i];
        list->bytes[kept++] = list->bytes[i];
    }
    list->count = kept;
}

void segment_list_free(struct segment_list *list)
{
    free(list->first);
    free(list->bytes);
    free(list->cold);
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

/* ---- the index ---- */

#define RECORD_CRC_AT (INDEX_RECORD_BYTES - 4u)
#define BLOCK_BYTES 4096u /* read at once: one system call serves the end of a search */
#define RECORDS_PER_BLOCK (BLOCK_BYTES / INDEX_RECORD_BYTES)

void index_header_write(uint64_t first_offset, uint32_t seed, uint8_t out[INDEX_HEADER_BYTES])
{
    bytes_store64(out + 8, first_offset);
    bytes_store32(out + 16, seed);
    bytes_store64(out + 20, 0);
    file_header_seal(out, INDEX_HEADER_BYTES, INDEX_MAGIC, INDEX_VERSION);
}

err index_header_read(const char *path, const uint8_t *data, uint64_t size, uint64_t *first_offset, uint32_t *seed,
                      struct fault *f)
{
    err e = file_header_check(path, data, size, INDEX_HEADER_BYTES, INDEX_MAGIC, INDEX_VERSION, f);
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
    struct file_path path = file_path_numbered(directory, first_offset, INDEX_SUFFIX);
    uint8_t header[INDEX_HEADER_BYTES];
    index_header_write(first_offset, seed, header);
    return file_create(path.text, header, sizeof header, fd, f);
}

err index_seed(const char *directory, uint64_t first_offset, uint32_t *seed, struct fault *f)
{
    uint8_t header[INDEX_HEADER_BYTES];
    size_t got;
    uint64_t first;
    struct file_path path = file_path_numbered(directory, first_offset, INDEX_SUFFIX);
    err e = file_read_head(path.text, header, sizeof header, &got, f);
    if (!e) e = index_header_read(path.text, header, got, &first, seed, f);
    return !e && first != first_offset ? fault_set(f, ERR_CORRUPT, 0, path.text, 0, INDEX_HEADER_BYTES, got) : e;
}

/* ---- searching ---- */

/* An open file, and the block of it that was read last. */
struct index {
    int fd;
    uint32_t seed, block_bytes;
    uint64_t block; /* which block of records `data` holds, UINT64_MAX: none */
    uint8_t data[BLOCK_BYTES];
};

/* Record number `i`.  ERR_CORRUPT when its check fails. */
static err index_get(struct index *ix, uint64_t i, struct index_record *out)
{
    uint64_t block = i / RECORDS_PER_BLOCK;
    if (ix->block != block) {
        size_t got;
        ix->block = UINT64_MAX;
        err e = file_read(ix->fd, NULL, ix->data, BLOCK_BYTES, INDEX_HEADER_BYTES + block * BLOCK_BYTES, &got, NULL);
        if (e) return e;
        ix->block = block;
        ix->block_bytes = (uint32_t)got;
    }
    uint64_t at = i % RECORDS_PER_BLOCK * INDEX_RECORD_BYTES;
    uint64_t left = at < ix->block_bytes ? ix->block_bytes - at : 0;
    return index_record_read(ix->data + at, left, ix->seed, out) ? ERR_CORRUPT : OK;
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

/* The good record nearest to `middle` in [low, high), upwards first.  ERR_CORRUPT when all are damaged. */
static err index_nearest(struct index *ix, uint64_t low, uint64_t middle, uint64_t high, uint64_t *found,
                         struct index_record *out)
{
    err e = ERR_CORRUPT;
    for (uint64_t i = middle; i < high && e == ERR_CORRUPT; i++) e = index_get(ix, *found = i, out);
    for (uint64_t i = middle; i > low && e == ERR_CORRUPT; i--) e = index_get(ix, *found = i - 1, out);
    return e;
}

err index_find(const struct scan *s, uint64_t count, enum index_key key, int64_t value, bool below,
               struct index_record *out, struct fault *f)
{
    struct index ix = {.seed = s->seed, .block = UINT64_MAX};
    struct file_path path;
    uint64_t size = 0, at = 0;
    bool some = false;
    err e = file_open_numbered(&path, s->directory, s->segment, INDEX_SUFFIX, O_RDONLY, &ix.fd, f);
    if (e) return e;
    e = file_size(ix.fd, path.text, &size, f);
    uint64_t held = size < INDEX_HEADER_BYTES ? 0 : (size - INDEX_HEADER_BYTES) / INDEX_RECORD_BYTES;
    uint64_t low = 0, high = count < held ? count : held; /* no record past it is ever looked at */
    while (!e && low < high) {
        struct index_record r;
        uint64_t middle = low + (high - low) / 2;
        err found = index_nearest(&ix, low, middle, high, &at, &r);
        if (found == ERR_IO) some = false; /* what was found so far may be far from the place */
        if (found) break;
        bool less = record_less(&r, key, value);
        if (less == below) {
            *out = r;
            some = true;
        }
        /* What lies between the middle and the record that was found is damaged. */
        if (less) low = at < middle ? high : at + 1;
        else high = at < middle ? at : middle;
    }
    file_close(&ix.fd);
    return e || some ? e : ERR_NOT_FOUND;
}

bool index_whole(const char *directory, uint64_t segment, uint64_t size, uint64_t id_limit, uint32_t *seed,
                 struct index_record *last)
{
    struct scan s = {.segment = segment, .directory = directory};
    if (index_seed(directory, segment, &s.seed, NULL)) return false;
    *seed = s.seed;
    return index_find(&s, UINT64_MAX, INDEX_BY_POSITION, INT64_MAX, true, last, NULL) == OK &&
           last->position + (uint64_t)last->chunk_bytes == size && last->chunk_id + last->records <= id_limit;
}
