/* SPDX-License-Identifier: Apache-2.0
 *
 * tracking: the shared deduplication table and its snapshots.
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
#define SCANNED_MAX 8u            /* up to so many references are compared one by one */
#define INDEX_SIZE_FIRST 32u
#define GROW_PIECE_BYTES (64u << 10)

/* ---- checks ---- */

static uint32_t reference_hash(const char *reference, uint32_t bytes)
{
    return crc32_update(0, reference, bytes) | 1u; /* 0 means free */
}

/* Each step is a bijection of 64 bits, so one flipped bit changes the input of the last one, which takes 32 bits of it. */
static uint32_t slot_check(const struct tracking_slot *s)
{
    uint64_t h = (uint64_t)s->bytes << 32 | atomic_load_explicit(&s->hash, memory_order_relaxed);
    h = (h ^ s->sequence) * UINT64_C(0x9E3779B97F4A7C15);
    h = ((h ^ h >> 32) ^ s->chunk) * UINT64_C(0xD6E8FEB86659FD93);
    return (uint32_t)(h ^ h >> 32) | 1u;
}

static uint32_t header_check(const struct tracking_table *table)
{
    return crc32_update(0, &table->capacity, 4 * sizeof(uint32_t));
}

static uint32_t slot_hash(const struct tracking_slot *s)
{
    return atomic_load_explicit(&s->hash, memory_order_relaxed);
}

/* Between these two a killed owner may leave a slot or the header half changed.  Its stores stay in this order. */
static void change_begin(struct tracking *t, uint32_t changing)
{
    t->table->changing = changing;
    atomic_signal_fence(memory_order_seq_cst);
}

static void change_end(struct tracking *t)
{
    t->table->check = header_check(t->table);
    atomic_signal_fence(memory_order_seq_cst);
    t->table->changing = 0;
}

/* ---- the file ---- */

static void table_begin(struct tracking_table *table, uint32_t capacity)
{
    memset(table, 0, tracking_bytes(capacity));
    table->magic = TRACKING_MAGIC;
    table->version = TRACKING_VERSION;
    table->head_check = file_page_check(TRACKING_MAGIC, TRACKING_VERSION);
    table->capacity = capacity;
    table->generation = 1;
    table->check = header_check(table);
}

err tracking_new(struct tracking **out, struct fault *f)
{
    struct tracking *t = calloc(1, sizeof *t);
    struct tracking_table *table = malloc(tracking_bytes(TRACKING_SLOTS_FIRST));
    if (!t || !table) {
        free(t);
        free(table);
        return fault_set(f, ERR_NO_MEMORY, 0, tracking_name, 0, tracking_bytes(TRACKING_SLOTS_FIRST), 0);
    }
    table_begin(table, TRACKING_SLOTS_FIRST);
    t->table = table;
    *out = t;
    return OK;
}

void tracking_clear(struct tracking *t)
{
    CHECK(!t->is_mapped);
    uint32_t generation = t->table->generation;
    table_begin(t->table, t->table->capacity);
    t->table->generation = generation + 1;
    t->table->check = header_check(t->table);
}

void tracking_free(struct tracking *t)
{
    if (!t) return;
    if (t->is_mapped) sys->munmap(t->table, tracking_bytes(TRACKING_SLOTS));
    else free(t->table);
    free(t->index);
    free(t->path);
    free(t);
}

err tracking_store(const struct tracking *t, const char *directory, bool sync, struct fault *f)
{
    struct file_path path = file_path_name(directory, tracking_name);
    return file_replace(path.text, t->table, tracking_bytes(t->table->capacity), sync, f);
}

err tracking_create(const char *directory, bool sync, struct fault *f)
{
    struct tracking *empty;
    err e = tracking_new(&empty, f);
    if (e) return e;
    e = tracking_store(empty, directory, sync, f);
    tracking_free(empty);
    return e;
}

/* Map the largest size of the file.  Bytes behind its end are not touched before it has grown. */
static err map_open_file(struct tracking *t, int fd, const char *path, struct fault *f)
{
    struct stat st;
    struct tracking_table head;
    size_t got;
    void *memory;
    memset(&head, 0, sizeof head);
    err e = file_head(fd, path, &head, sizeof head, &got, f);
    if (!e) e = file_page_version(path, &head, got, &tracking_kind, f);
    if (!e) e = file_stat(fd, path, &st, f);
    if (e) return e;
    if (head.magic != TRACKING_MAGIC || head.version != TRACKING_VERSION)
        return fault_set(f, ERR_STALE, 0, path, 4, TRACKING_VERSION, head.version);
    /* The capacity is raised after the file has grown, so no undamaged file is shorter. */
    if (head.capacity > TRACKING_SLOTS || (uint64_t)st.st_size < tracking_bytes(head.capacity))
        return fault_set(f, ERR_STALE, 0, path, 0, tracking_bytes(head.capacity), (uint64_t)st.st_size);
    e = file_map(fd, path, tracking_bytes(TRACKING_SLOTS), true, &memory, f);
    if (e) return e;
    t->table = memory;
    t->is_mapped = true;
    t->inode = (uint64_t)st.st_ino;
    return OK;
}

err tracking_map(const char *directory, struct tracking **out, struct fault *f)
{
    struct file_path path = file_path_name(directory, tracking_name);
    int fd;
    err e = file_open(path.text, O_RDWR | O_NOFOLLOW, &fd, f);
    if (e == ERR_NOT_FOUND) return fault_set(f, ERR_STALE, 0, path.text, 0, 0, 0);
    if (e) return e;
    struct tracking *t = calloc(1, sizeof *t);
    if (t) t->path = strdup(path.text);
    if (!t || !t->path) e = fault_set(f, ERR_NO_MEMORY, 0, path.text, 0, sizeof *t, 0);
    if (!e) e = map_open_file(t, fd, path.text, f);
    file_close(&fd);
    if (!e) *out = t;
    else tracking_free(t);
    return e;
}

/* ---- growing ---- */

/* Zeros are written, not left as a hole: a store to a hole of a full disk would end the process. */
static err file_grow(const struct tracking *t, uint64_t from, uint64_t to, struct fault *f)
{
    int fd;
    struct stat st;
    err e = file_open(t->path, O_RDWR | O_NOFOLLOW, &fd, f);
    if (e) return e;
    e = file_stat(fd, t->path, &st, f);
    if (!e && (uint64_t)st.st_ino != t->inode) e = fault_set(f, ERR_STALE, 0, t->path, 0, t->inode, (uint64_t)st.st_ino);
    uint8_t *zeros = e ? NULL : calloc(1, GROW_PIECE_BYTES);
    if (!e && !zeros) e = fault_set(f, ERR_NO_MEMORY, 0, t->path, 0, GROW_PIECE_BYTES, 0);
    while (!e && from < to) {
        size_t piece = to - from < GROW_PIECE_BYTES ? (size_t)(to - from) : GROW_PIECE_BYTES;
        e = file_write(fd, t->path, zeros, piece, from, f);
        from += piece;
    }
    free(zeros);
    file_close(&fd);
    return e;
}

static err table_grow(struct tracking *t, uint32_t needed, struct fault *f)
{
    uint32_t had = t->table->capacity, capacity = 2 * had > needed ? 2 * had : needed;
    if (capacity > TRACKING_SLOTS) capacity = TRACKING_SLOTS;
    if (t->is_mapped) {
        err e = file_grow(t, tracking_bytes(had), tracking_bytes(capacity), f);
        if (e) return e;
    } else {
        void *larger = sys->realloc(t->table, tracking_bytes(capacity));
        if (!larger) return fault_set(f, ERR_NO_MEMORY, 0, tracking_name, 0, tracking_bytes(capacity), 0);
        t->table = larger;
        memset((uint8_t *)larger + tracking_bytes(had), 0, tracking_bytes(capacity) - tracking_bytes(had));
    }
    change_begin(t, TRACKING_CHANGES_HEADER);
    t->table->capacity = capacity;
    change_end(t);
    return OK;
}

/* ---- the index ---- */

static void index_add(struct tracking *t, uint32_t slot)
{
    uint32_t at = slot_hash(&t->table->slots[slot]);
    if (at == 0) return;
    /* The lowest bit of a hash is always 1. */
    for (at >>= 1; t->index[at & (t->index_size - 1)]; at++) continue;
    t->index[at & (t->index_size - 1)] = (uint16_t)(slot + 1);
}

/* Update the index.  False: there is none, because the table is small or memory is short. */
static bool index_refresh(struct tracking *t)
{
    const struct tracking_table *table = t->table;
    uint32_t count = table->count;
    if (count <= SCANNED_MAX) return false;
    if (t->index && t->index_generation == table->generation && 2 * count <= t->index_size) {
        while (t->indexed < count) index_add(t, t->indexed++);
        return true;
    }
    uint32_t size = t->index_size ? t->index_size : INDEX_SIZE_FIRST;
    while (size < 2 * count) size *= 2;
    if (size != t->index_size) {
        uint16_t *larger = sys->realloc(t->index, size * sizeof *larger);
        if (!larger) return false;
        t->index = larger;
        t->index_size = size;
    }
    memset(t->index, 0, size * sizeof *t->index);
    for (t->indexed = 0; t->indexed < count; t->indexed++) index_add(t, t->indexed);
    t->index_generation = table->generation;
    return true;
}

static bool slot_is(const struct tracking_slot *s, uint32_t hash, const char *reference, uint32_t bytes)
{
    return slot_hash(s) == hash && s->bytes == bytes && memcmp(s->text, reference, bytes) == 0;
}

static uint32_t slot_find(struct tracking *t, const char *reference, uint32_t bytes)
{
    const struct tracking_table *table = t->table;
    uint32_t hash = reference_hash(reference, bytes), slot;
    if (!index_refresh(t)) {
        for (uint32_t i = 0; i < table->count; i++)
            if (slot_is(&table->slots[i], hash, reference, bytes)) return i;
        return SLOT_NONE;
    }
    for (uint32_t at = hash >> 1; (slot = t->index[at & (t->index_size - 1)]) != 0; at++)
        if (slot_is(&table->slots[slot - 1], hash, reference, bytes)) return slot - 1;
    return SLOT_NONE;
}

/* ---- the table ---- */

err tracking_find(struct tracking *t, const char *reference, uint32_t bytes, uint64_t *sequence)
{
    uint32_t i = slot_find(t, reference, bytes);
    if (i == SLOT_NONE) return ERR_NOT_FOUND;
    const struct tracking_slot *s = &t->table->slots[i];
    if (s->check != slot_check(s)) return ERR_CORRUPT;
    if (s->chunk == TRACKING_NEVER) return ERR_EMPTY;
    *sequence = s->sequence;
    return OK;
}

uint64_t tracking_chunk(struct tracking *t, const char *reference, uint32_t bytes)
{
    uint32_t i = slot_find(t, reference, bytes);
    return i == SLOT_NONE ? TRACKING_NEVER : t->table->slots[i].chunk;
}

bool tracking_is_of_transactions(const char *reference, uint32_t bytes)
{
    return bytes == TRACKING_TRANSACTIONS_BYTES && memcmp(reference, TRACKING_TRANSACTIONS, bytes) == 0;
}

static bool is_evictable(const struct tracking_slot *s)
{
    return slot_hash(s) && !s->pins && !tracking_is_of_transactions(s->text, s->bytes);
}

static void slot_clear(struct tracking *t, uint32_t i)
{
    struct tracking_slot *s = &t->table->slots[i];
    change_begin(t, i + 1);
    atomic_store_explicit(&s->hash, 0, memory_order_release);
    s->check = 0;
    s->pins = 0;
    t->table->used--;
    t->table->generation++;
    change_end(t);
}

/* Choose the reference with the oldest chunk; one that has never published comes first. */
static uint32_t slot_oldest(const struct tracking *t)
{
    uint32_t oldest = SLOT_NONE;
    uint64_t oldest_chunk = 0;
    for (uint32_t i = 0; i < t->table->count; i++) {
        const struct tracking_slot *s = &t->table->slots[i];
        uint64_t chunk = s->chunk + 1; /* TRACKING_NEVER is the oldest */
        if (!is_evictable(s) || (oldest != SLOT_NONE && chunk >= oldest_chunk)) continue;
        oldest = i;
        oldest_chunk = chunk;
    }
    return oldest;
}

/* The number of clients' references in the table, and the number that still fit. */
static uint32_t names(struct tracking *t)
{
    bool decided = t->table->used > 0 &&
                   slot_find(t, TRACKING_TRANSACTIONS, TRACKING_TRANSACTIONS_BYTES) != SLOT_NONE;
    return t->table->used - (decided ? 1 : 0);
}

/* Add slots for so many more references, at most up to TRACKING_SLOTS. */
static err table_room(struct tracking *t, uint32_t references, struct fault *f)
{
    uint32_t needed = t->table->count + references;
    if (needed > TRACKING_SLOTS || needed < references) needed = TRACKING_SLOTS;
    return t->table->capacity < needed ? table_grow(t, needed, f) : OK;
}

err tracking_reserve(struct tracking *t, uint32_t references, struct fault *f)
{
    err e = table_room(t, references + 1, f); /* and for TRACKING_TRANSACTIONS */
    if (e || t->table->used + references <= TRACKING_REFERENCES_MAX) return e;
    const struct tracking_table *table = t->table;
    uint32_t left = TRACKING_REFERENCES_MAX - names(t);
    for (uint32_t i = 0; left < references && i < table->count; i++) left += is_evictable(&table->slots[i]);
    return left >= references ? OK : fault_set(f, ERR_LIMIT, 0, "publisher references of connected publishers", 0,
                                               TRACKING_REFERENCES_MAX, table->used);
}

/* A slot that is free now. */
static err slot_take(struct tracking *t, const char *reference, uint32_t bytes, uint32_t *slot, bool *evicted, struct fault *f)
{
    err e = table_room(t, 1, f);
    if (e) return e;
    const struct tracking_table *table = t->table;
    bool is_full = !tracking_is_of_transactions(reference, bytes) && table->used >= TRACKING_REFERENCES_MAX &&
                   names(t) >= TRACKING_REFERENCES_MAX;
    if (is_full || table->used == TRACKING_SLOTS) {
        *slot = slot_oldest(t);
        if (*slot == SLOT_NONE)
            return fault_set(f, ERR_LIMIT, 0, "publisher references of connected publishers", 0, TRACKING_REFERENCES_MAX,
                             table->used);
        slot_clear(t, *slot);
        *evicted = true;
    } else if (table->used < table->count) {
        for (*slot = 0; slot_hash(&table->slots[*slot]); ++*slot) CHECK(*slot < table->count);
    } else {
        *slot = table->count;
    }
    return OK;
}

static err slot_add(struct tracking *t, const char *reference, uint32_t bytes, uint64_t sequence, uint64_t chunk_id,
                    uint64_t pins, bool *evicted, struct fault *f)
{
    uint32_t i;
    err e = slot_take(t, reference, bytes, &i, evicted, f);
    if (e) return e;
    struct tracking_table *table = t->table;
    struct tracking_slot *s = &table->slots[i];
    change_begin(t, i + 1);
    s->bytes = (uint8_t)bytes;
    memcpy(s->text, reference, bytes);
    s->sequence = sequence;
    s->chunk = chunk_id;
    s->pins = pins;
    atomic_store_explicit(&s->hash, reference_hash(reference, bytes), memory_order_release);
    s->check = slot_check(s);
    table->used++;
    if (i < table->count) table->generation++;
    else table->count = i + 1;
    change_end(t);
    return OK;
}

err tracking_raise(struct tracking *t, const char *reference, uint32_t bytes, uint64_t sequence, uint64_t chunk_id)
{
    CHECK(bytes > 0 && bytes <= TRACKING_REFERENCE_BYTES_MAX && chunk_id != TRACKING_NEVER);
    uint32_t i = slot_find(t, reference, bytes);
    bool evicted;
    if (i == SLOT_NONE) return slot_add(t, reference, bytes, sequence, chunk_id, 0, &evicted, NULL);
    struct tracking_slot *s = &t->table->slots[i];
    bool is_first = s->chunk == TRACKING_NEVER;
    if (!is_first && sequence <= s->sequence && chunk_id <= s->chunk) return OK;
    change_begin(t, i + 1);
    if (is_first || sequence > s->sequence) s->sequence = sequence;
    if (is_first || chunk_id > s->chunk) s->chunk = chunk_id;
    s->check = slot_check(s);
    atomic_signal_fence(memory_order_seq_cst);
    t->table->changing = 0; /* the header is as it was */
    return OK;
}

/* ---- pins ---- */

/* Clear the pins of dead workers, and remove references that only they had declared and that never published. */
static void forget_dead(struct tracking *t, struct doorbell_board *board)
{
    struct tracking_table *table = t->table;
    uint64_t dead = 0;
    for (uint32_t seat = 0; seat < DOORBELL_WORKERS_MAX; seat++)
        if (table->seat_epochs[seat] && table->seat_epochs[seat] != doorbell_epoch(board, seat)) dead |= UINT64_C(1) << seat;
    if (!dead) return;
    for (uint32_t i = 0; i < table->count; i++) {
        struct tracking_slot *s = &table->slots[i];
        if (!(s->pins & dead)) continue;
        s->pins &= ~dead;
        if (slot_hash(s) && !s->pins && s->chunk == TRACKING_NEVER) slot_clear(t, i);
    }
    for (uint32_t seat = 0; seat < DOORBELL_WORKERS_MAX; seat++)
        if (dead >> seat & 1) table->seat_epochs[seat] = 0;
}

err tracking_pin(struct tracking *t, struct doorbell_board *board, uint32_t seat, const char *reference, uint32_t bytes,
                 bool *evicted, struct fault *f)
{
    CHECK(seat < DOORBELL_WORKERS_MAX && bytes > 0 && bytes <= TRACKING_REFERENCE_BYTES_MAX);
    *evicted = false;
    forget_dead(t, board);
    t->table->seat_epochs[seat] = doorbell_epoch(board, seat);
    uint32_t i = slot_find(t, reference, bytes);
    if (i == SLOT_NONE) return slot_add(t, reference, bytes, 0, TRACKING_NEVER, UINT64_C(1) << seat, evicted, f);
    t->table->slots[i].pins |= UINT64_C(1) << seat;
    return OK;
}

void tracking_unpin(struct tracking *t, uint32_t seat, const char *reference, uint32_t bytes)
{
    uint32_t i = slot_find(t, reference, bytes);
    if (i == SLOT_NONE) return;
    struct tracking_slot *s = &t->table->slots[i];
    s->pins &= ~(UINT64_C(1) << seat);
    if (!s->pins && s->chunk == TRACKING_NEVER) slot_clear(t, i);
}

/* ---- damage ---- */

void tracking_inherit(struct tracking *t)
{
    struct tracking_table *table = t->table;
    uint32_t changing = table->changing, i = changing - 1;
    if (changing == 0) return;
    if (i < table->capacity) table->slots[i].check = slot_hash(&table->slots[i]) ? slot_check(&table->slots[i]) : 0;
    table->count = table->used = 0;
    for (i = 0; i < table->capacity && i < TRACKING_SLOTS; i++) {
        if (!slot_hash(&table->slots[i])) continue;
        table->used++;
        table->count = i + 1;
    }
    table->generation++;
    change_end(t);
}

static bool slot_is_whole(const struct tracking_slot *s)
{
    uint32_t hash = slot_hash(s);
    if (hash == 0) return s->check == 0;
    return s->bytes > 0 && hash == reference_hash(s->text, s->bytes) && s->check == slot_check(s);
}

bool tracking_is_whole(struct tracking *t)
{
    struct tracking_table *table = t->table;
    uint32_t used = 0;
    if (table->check != header_check(table) || table->rebuilding || table->capacity > TRACKING_SLOTS ||
        table->count > table->capacity) return false;
    for (uint32_t i = 0; i < table->capacity; i++) {
        if (!slot_is_whole(&table->slots[i]) || (i >= table->count && slot_hash(&table->slots[i]))) return false;
        used += slot_hash(&table->slots[i]) != 0;
    }
    return used == table->used;
}

/* Collect the pinned references, of slots with a text that matches their hash. */
static err pinned_copy(const struct tracking *t, struct tracking_slot **out, uint32_t *count, struct fault *f)
{
    uint32_t capacity = t->table->capacity;
    struct tracking_slot *pinned = malloc(((size_t)capacity + 1) * sizeof *pinned);
    *count = 0;
    if (!pinned) return fault_set(f, ERR_NO_MEMORY, 0, tracking_name, 0, capacity * sizeof *pinned, 0);
    for (uint32_t i = 0; i < capacity; i++) {
        const struct tracking_slot *s = &t->table->slots[i];
        if (!s->pins || !slot_hash(s) || !s->bytes || slot_hash(s) != reference_hash(s->text, s->bytes)) continue;
        memcpy(&pinned[(*count)++], s, sizeof *s);
    }
    *out = pinned;
    return OK;
}

err tracking_replace(struct tracking *t, struct tracking *from, struct fault *f)
{
    struct tracking_slot *pinned = NULL;
    uint32_t pinned_count = 0;
    struct stat st;
    t->table->rebuilding = 1;
    if (t->is_mapped) { /* the header may be damaged */
        err e = file_stat_of(t->path, &st, f);
        if (e) return e;
        uint64_t slots = ((uint64_t)st.st_size - TRACKING_HEADER_BYTES) / sizeof(struct tracking_slot);
        t->table->capacity = slots < TRACKING_SLOTS ? (uint32_t)slots : TRACKING_SLOTS;
    }
    err e = pinned_copy(t, &pinned, &pinned_count, f);
    if (!e && t->table->capacity < from->table->count) e = table_grow(t, from->table->count, f);
    if (e) {
        free(pinned);
        return e;
    }
    memset(t->table->slots, 0, t->table->capacity * sizeof(struct tracking_slot));
    t->table->count = t->table->used = 0;
    t->table->generation++;
    change_end(t);
    const struct tracking_slot *s;
    bool evicted;
    for (uint32_t at = 0; !e && (s = tracking_next(from, &at)) != NULL;)
        e = slot_add(t, s->text, s->bytes, s->sequence, s->chunk, 0, &evicted, f);
    for (uint32_t i = 0; !e && i < pinned_count; i++) {
        uint32_t slot = slot_find(t, pinned[i].text, pinned[i].bytes);
        if (slot != SLOT_NONE) t->table->slots[slot].pins |= pinned[i].pins;
        else e = slot_add(t, pinned[i].text, pinned[i].bytes, 0, TRACKING_NEVER, pinned[i].pins, &evicted, f);
    }
    free(pinned);
    if (!e) t->table->rebuilding = 0;
    return e;
}

void tracking_check(struct tracking *t)
{
    CHECK(tracking_is_whole(t));
    for (uint32_t i = 0; i < t->table->count; i++) {
        const struct tracking_slot *s = &t->table->slots[i];
        if (slot_hash(s)) CHECK(slot_find(t, s->text, s->bytes) == i);
    }
    CHECK(names(t) <= TRACKING_REFERENCES_MAX);
}

const struct tracking_slot *tracking_next(const struct tracking *t, uint32_t *at)
{
    while (*at < t->table->count && *at < t->table->capacity) {
        const struct tracking_slot *s = &t->table->slots[(*at)++];
        if (slot_hash(s)) return s;
    }
    return NULL;
}

/* ---- trailers ---- */

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
    for (const uint8_t *at = trailer; !e && tracking_element_next(&at, end, &element) == OK;)
        if (element.type == TRACKING_ELEMENT_PUBLISHER)
            e = tracking_raise(t, element.reference, element.bytes, element.value, chunk_id);
    return e;
}

/* ---- snapshots ---- */

err tracking_snapshot_write(const struct tracking *t, const char *directory, uint64_t segment, bool sync,
                            struct fault *f)
{
    size_t room = SNAPSHOT_HEADER_BYTES + 4;
    const struct tracking_slot *s;
    for (uint32_t at = 0; (s = tracking_next(t, &at)) != NULL;) room += 17u + s->bytes;
    uint8_t *data = malloc(room);
    if (!data) return fault_set(f, ERR_NO_MEMORY, 0, "tracking snapshot", 0, room, 0);
    struct writer_bytes w = bytes_writer(data, room);
    bytes_put32(&w, TRACKING_SNAPSHOT_MAGIC);
    bytes_put32(&w, TRACKING_SNAPSHOT_VERSION);
    bytes_put64(&w, segment);
    uint8_t *count_at = bytes_room(&w, 4);
    uint32_t count = 0;
    for (uint32_t at = 0; (s = tracking_next(t, &at)) != NULL;) {
        if (s->chunk == TRACKING_NEVER) continue;
        bytes_put64(&w, s->chunk);
        bytes_put64(&w, s->sequence);
        bytes_put8(&w, s->bytes);
        bytes_put(&w, s->text, s->bytes);
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
    if (good && (version == 0 || version > TRACKING_SNAPSHOT_VERSION))
        return fault_set(f, ERR_VERSION, 0, path, 4, TRACKING_SNAPSHOT_VERSION, version);
    *segment = bytes_u64(&r);
    uint32_t count = bytes_u32(&r);
    if (count > (version == 1 ? TRACKING_REFERENCES_MAX_1 : TRACKING_SLOTS)) good = false;
    for (uint32_t i = 0; good && i < count; i++) {
        uint64_t chunk = bytes_u64(&r), sequence = bytes_u64(&r);
        uint32_t bytes = bytes_u8(&r);
        const char *text = (const char *)bytes_take(&r, bytes);
        good = !r.failed && bytes > 0 && chunk != TRACKING_NEVER;
        if (!good) break;
        err e = tracking_raise(t, text, bytes, sequence, chunk);
        if (e) return fault_set(f, e, 0, path, 0, 0, 0);
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
