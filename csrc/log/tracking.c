/* SPDX-License-Identifier: Apache-2.0
 *
 * tracking: the shared deduplication table and its snapshots.
 *
 * The hashes lie together, so looking for a reference reads 1 KiB that the processor
 * fetches ahead, and as a rule one slot's text.
 */
#include "tracking.h"

#include <stdlib.h>

#include "../base/bytes.h"
#include "../base/check.h"
#include "../base/crc32.h"
#include "segment.h"

static const char tracking_name[] = "tracking";
const struct file_page_kind tracking_kind = {TRACKING_MAGIC, TRACKING_VERSION, TRACKING_HEAD_CHECK_AT};

#define SNAPSHOT_HEADER_BYTES 20u /* magic, version, segment, count */
#define SLOT_NONE TRACKING_SLOTS

/* ---- the file ---- */

void tracking_init(struct tracking *t)
{
    t->magic = TRACKING_MAGIC;
    t->version = TRACKING_VERSION;
    t->head_check = file_page_check(TRACKING_MAGIC, TRACKING_VERSION);
}

err tracking_store(const struct tracking *t, const char *directory, bool sync, struct fault *f)
{
    struct file_path path = file_path_name(directory, tracking_name);
    return file_replace(path.text, t, sizeof *t, sync, f);
}

err tracking_create(const char *directory, bool sync, struct fault *f)
{
    struct tracking *empty = calloc(1, sizeof *empty);
    if (!empty) return fault_set(f, ERR_NO_MEMORY, 0, tracking_name, 0, sizeof *empty, 0);
    tracking_init(empty);
    err e = tracking_store(empty, directory, sync, f);
    free(empty);
    return e;
}

err tracking_map(const char *directory, struct tracking **out, struct fault *f)
{
    void *table;
    struct file_path path = file_path_name(directory, tracking_name);
    err e = file_page_map(path.text, &tracking_kind, sizeof **out, true, ERR_STALE, &table, NULL, f);
    if (e == ERR_NOT_FOUND) return fault_set(f, ERR_STALE, 0, path.text, 0, 0, 0);
    if (!e) *out = table;
    return e;
}

void tracking_unmap(struct tracking *t)
{
    if (t) sys->munmap(t, sizeof *t);
}

/* ---- the table ---- */

static uint32_t reference_hash(const char *reference, uint32_t bytes)
{
    return crc32_update(0, reference, bytes) | 1u; /* 0 means free */
}

static uint32_t slot_find(const struct tracking *t, const char *reference, uint32_t bytes)
{
    uint32_t hash = reference_hash(reference, bytes);
    for (uint32_t i = 0; i < TRACKING_SLOTS; i++)
        if (atomic_load_explicit(&t->hash[i], memory_order_relaxed) == hash && t->bytes[i] == bytes &&
            memcmp(t->text[i], reference, bytes) == 0) return i;
    return SLOT_NONE;
}

bool tracking_find(const struct tracking *t, const char *reference, uint32_t bytes, uint64_t *sequence)
{
    uint32_t i = slot_find(t, reference, bytes);
    if (i == SLOT_NONE) return false;
    *sequence = t->sequence[i];
    return true;
}

static bool is_kept(const struct tracking *t, uint32_t slot)
{
    return t->bytes[slot] == TRACKING_TRANSACTIONS_BYTES &&
           memcmp(t->text[slot], TRACKING_TRANSACTIONS, TRACKING_TRANSACTIONS_BYTES) == 0;
}

/* A free slot; the one of the oldest chunk is freed when the table holds what it may. */
static uint32_t slot_free(struct tracking *t)
{
    uint32_t used = 0, free_slot = SLOT_NONE, oldest = SLOT_NONE;
    for (uint32_t i = 0; i < TRACKING_SLOTS; i++) {
        if (atomic_load_explicit(&t->hash[i], memory_order_relaxed) == 0) {
            if (free_slot == SLOT_NONE) free_slot = i;
            continue;
        }
        used++;
        if ((oldest == SLOT_NONE || t->chunk[i] < t->chunk[oldest]) && !is_kept(t, i)) oldest = i;
    }
    if (used < TRACKING_REFERENCES_MAX && free_slot != SLOT_NONE) return free_slot;
    atomic_store_explicit(&t->hash[oldest], 0, memory_order_release);
    return oldest;
}

void tracking_raise(struct tracking *t, const char *reference, uint32_t bytes, uint64_t sequence, uint64_t chunk_id)
{
    CHECK(bytes > 0 && bytes <= TRACKING_REFERENCE_BYTES_MAX);
    uint32_t i = slot_find(t, reference, bytes);
    if (i != SLOT_NONE) {
        if (sequence > t->sequence[i]) t->sequence[i] = sequence;
        if (chunk_id > t->chunk[i]) t->chunk[i] = chunk_id;
        return;
    }
    i = slot_free(t);
    /* The stores before must not sink below nor rise above the two of the hash: release
     * for the insertion; for the eviction, a killed owner's half-written slot stays free. */
    atomic_signal_fence(memory_order_seq_cst);
    t->bytes[i] = (uint8_t)bytes;
    memcpy(t->text[i], reference, bytes);
    t->sequence[i] = sequence;
    t->chunk[i] = chunk_id;
    atomic_store_explicit(&t->hash[i], reference_hash(reference, bytes), memory_order_release);
}

err tracking_element_next(const uint8_t **at, const uint8_t *end, struct tracking_element *out)
{
    if (*at == end) return ERR_END;
    struct reader_bytes r = bytes_reader(*at, (size_t)(end - *at));
    out->type = bytes_u8(&r);
    out->bytes = bytes_u8(&r);
    out->reference = (const char *)bytes_take(&r, out->bytes);
    out->value = bytes_u64(&r);
    if (r.failed || out->bytes == 0) return ERR_CORRUPT;
    *at = r.at;
    return OK;
}

err tracking_trailer_check(const uint8_t *trailer, uint32_t bytes)
{
    struct tracking_element element;
    const uint8_t *end = trailer + bytes;
    err e;
    while ((e = tracking_element_next(&trailer, end, &element)) == OK) continue;
    return e == ERR_END ? OK : e;
}

err tracking_apply(struct tracking *t, const uint8_t *trailer, uint32_t bytes, uint64_t chunk_id)
{
    struct tracking_element element;
    const uint8_t *end = trailer + bytes;
    err e = tracking_trailer_check(trailer, bytes);
    if (e) return e;
    for (const uint8_t *at = trailer; tracking_element_next(&at, end, &element) == OK;)
        if (element.type == TRACKING_ELEMENT_PUBLISHER)
            tracking_raise(t, element.reference, element.bytes, element.value, chunk_id);
    return OK;
}

void tracking_check(const struct tracking *t)
{
    uint32_t used = 0;
    for (uint32_t i = 0; i < TRACKING_SLOTS; i++) {
        uint32_t hash = atomic_load_explicit(&t->hash[i], memory_order_relaxed);
        if (!hash) continue;
        used++;
        CHECK(t->bytes[i] > 0 && hash == reference_hash(t->text[i], t->bytes[i]));
        CHECK(slot_find(t, t->text[i], t->bytes[i]) == i);
    }
    CHECK(used <= TRACKING_REFERENCES_MAX);
}

/* ---- snapshots ---- */

err tracking_snapshot_write(const struct tracking *t, const char *directory, uint64_t segment, bool sync,
                            struct fault *f)
{
    uint8_t *data = malloc(TRACKING_SNAPSHOT_BYTES_MAX);
    if (!data) return fault_set(f, ERR_NO_MEMORY, 0, "tracking snapshot", 0, TRACKING_SNAPSHOT_BYTES_MAX, 0);
    struct writer_bytes w = bytes_writer(data, TRACKING_SNAPSHOT_BYTES_MAX);
    bytes_put32(&w, TRACKING_SNAPSHOT_MAGIC);
    bytes_put32(&w, TRACKING_VERSION);
    bytes_put64(&w, segment);
    uint8_t *count_at = bytes_room(&w, 4);
    uint32_t count = 0;
    for (uint32_t i = 0; i < TRACKING_SLOTS; i++) {
        if (atomic_load_explicit(&t->hash[i], memory_order_relaxed) == 0) continue;
        bytes_put64(&w, t->chunk[i]);
        bytes_put64(&w, t->sequence[i]);
        bytes_put8(&w, t->bytes[i]);
        bytes_put(&w, t->text[i], t->bytes[i]);
        count++;
    }
    bytes_store32(count_at, count);
    bytes_put32(&w, crc32_update(0, data, (size_t)(w.at - data)));
    CHECK(!w.failed);

    struct file_path path = file_path_numbered(directory, segment, TRACKING_SUFFIX);
    err e = file_replace(path.text, data, (size_t)(w.at - data), sync, f);
    free(data);
    return e;
}

err tracking_snapshot_decode(const char *path, const uint8_t *data, uint64_t size, uint64_t *segment,
                             struct tracking *t, struct fault *f)
{
    const uint32_t least = SNAPSHOT_HEADER_BYTES + 4;
    if (size < least) return fault_set(f, ERR_TRUNCATED, 0, path, 0, least, size);
    struct reader_bytes r = bytes_reader(data, size - 4);
    bool good = size <= TRACKING_SNAPSHOT_BYTES_MAX && bytes_load32(data + size - 4) == crc32_update(0, data, size - 4);
    if (bytes_u32(&r) != TRACKING_SNAPSHOT_MAGIC) good = false;
    uint32_t version = bytes_u32(&r);
    if (good && version != TRACKING_VERSION) return fault_set(f, ERR_VERSION, 0, path, 4, TRACKING_VERSION, version);
    *segment = bytes_u64(&r);
    uint32_t count = bytes_u32(&r);
    if (count > TRACKING_REFERENCES_MAX) good = false;
    for (uint32_t i = 0; good && i < count; i++) {
        uint64_t chunk = bytes_u64(&r), sequence = bytes_u64(&r);
        uint32_t bytes = bytes_u8(&r);
        const char *text = (const char *)bytes_take(&r, bytes);
        good = !r.failed && bytes > 0;
        if (good) tracking_raise(t, text, bytes, sequence, chunk);
    }
    return good && r.at == r.end ? OK : fault_set(f, ERR_CORRUPT, 0, path, 0, 0, size);
}

err tracking_snapshot_read(const char *directory, uint64_t segment, struct tracking *t, struct fault *f)
{
    size_t got;
    uint64_t named;
    uint8_t *data = malloc(TRACKING_SNAPSHOT_BYTES_MAX + 1);
    if (!data) return fault_set(f, ERR_NO_MEMORY, 0, "tracking snapshot", 0, TRACKING_SNAPSHOT_BYTES_MAX, 0);
    struct file_path path = file_path_numbered(directory, segment, TRACKING_SUFFIX);
    err e = file_read_head(path.text, data, TRACKING_SNAPSHOT_BYTES_MAX + 1, &got, f);
    if (!e) e = tracking_snapshot_decode(path.text, data, got, &named, t, f);
    if (!e && named != segment) e = fault_set(f, ERR_CORRUPT, 0, path.text, 0, segment, named);
    free(data);
    return e;
}
