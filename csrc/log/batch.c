/* SPDX-License-Identifier: Apache-2.0
 *
 * batch: growing, sealing, and laying out again without duplicates.
 *
 * Laying out again happens in place: entries, runs and ids only ever move towards
 * the front, so each is read before anything is written over it.
 */
#include "batch.h"

#include <stdlib.h>

#include "../base/crc32.h"
#include "../base/grow.h"
#include "segment.h"

#define KEEP_BYTES (2u << 20)      /* of an array: a usual turn */
#define FIRST_BYTES (64u << 10)
#define TRAILER_ELEMENT_BYTES 10u  /* type, size and value around the reference */
#define IDS_FIRST 1024u

static uint32_t smaller(uint32_t a, uint32_t b) { return a < b ? a : b; }

err batch_init(struct batch *b, struct fault *f)
{
    *b = (struct batch){.bytes_max = BATCH_BYTES_MAX, .chunk_messages = CHUNK_MESSAGES_MAX,
                        .chunk_messages_max = CHUNK_MESSAGES_MAX};
    b->chunks = calloc(BATCH_CHUNKS_MAX, sizeof *b->chunks);
    b->parts = malloc(2 * BATCH_CHUNKS_MAX * sizeof *b->parts);
    b->index_records = malloc((size_t)BATCH_CHUNKS_MAX * INDEX_RECORD_BYTES);
    if (b->chunks && b->parts && b->index_records) return OK;
    batch_free(b);
    return fault_set(f, ERR_NO_MEMORY, 0, "batch", 0, BATCH_CHUNKS_MAX * sizeof *b->chunks, 0);
}

void batch_free(struct batch *b)
{
    free(b->data);
    free(b->chunks);
    free(b->runs);
    free(b->ids);
    free(b->references);
    free(b->dropped);
    free(b->trailers);
    free(b->parts);
    free(b->index_records);
    *b = (struct batch){0};
}

static void batch_empty(struct batch *b)
{
    b->size = b->chunk_count = b->run_count = b->id_count = 0;
    b->records = 0;
    b->parting = false;
    b->trailer_size = 0;
    b->capacity = b->allocated < b->bytes_max ? (uint32_t)b->allocated : b->bytes_max;
}

/* What is left of an array for the next turn: a burst's memory is given back. */
static void *keep(void *memory, size_t *capacity, size_t item_bytes)
{
    if (*capacity * item_bytes <= KEEP_BYTES) return memory;
    free(memory);
    *capacity = 0;
    return NULL;
}

void batch_clear(struct batch *b)
{
    b->data = keep(b->data, &b->allocated, 1);
    b->ids = keep(b->ids, &b->id_capacity, sizeof *b->ids);
    b->trailers = keep(b->trailers, &b->trailer_capacity, 1);
    free(b->dropped);
    b->dropped = NULL;
    b->dropped_count = 0;
    batch_empty(b);
    b->reference_count = 0;
    b->duplicates = 0;
    b->sealed = false;
}

void batch_limit(struct batch *b, uint64_t bytes)
{
    CHECK(batch_is_empty(b));
    b->bytes_max = bytes == 0 || bytes > BATCH_BYTES_MAX ? BATCH_BYTES_MAX : (uint32_t)bytes;
    b->capacity = b->allocated < b->bytes_max ? (uint32_t)b->allocated : b->bytes_max;
}

void batch_filter_size(struct batch *b, uint32_t bytes)
{
    CHECK(batch_is_empty(b) && bytes <= FILTER_BYTES_MAX);
    b->filter_bytes = filter_stored_bytes(bytes);
}

void batch_chunk_messages(struct batch *b, uint32_t first, uint32_t most)
{
    CHECK(batch_is_empty(b));
    b->chunk_messages_max = most == 0 || most > CHUNK_MESSAGES_MAX ? CHUNK_MESSAGES_MAX : most;
    b->chunk_messages = smaller(first == 0 ? 1 : first, b->chunk_messages_max);
}

uint32_t batch_chunk_messages_next(const struct batch *b)
{
    bool shrinks = b->chunk_count <= 1 && b->records < b->chunk_messages / 2;
    uint32_t half = b->chunk_messages / 2;
    if (!shrinks || b->chunk_messages <= CHUNK_MESSAGES_FIRST) return b->chunk_messages;
    return half < CHUNK_MESSAGES_FIRST ? CHUNK_MESSAGES_FIRST : half;
}

/* ---- adding ---- */

/* A single entry above the limit has all the room that it needs. */
static err batch_grow(struct batch *b, uint64_t needed)
{
    err e = grow(&b->data, &b->allocated, needed > FIRST_BYTES ? needed : FIRST_BYTES, 1, "batch", NULL);
    if (e) return e;
    uint64_t capacity = needed > b->bytes_max ? needed : b->bytes_max;
    b->capacity = capacity < b->allocated ? (uint32_t)capacity : (uint32_t)b->allocated;
    return OK;
}

err batch_reserve_slow(struct batch *b, uint32_t bytes, uint32_t records)
{
    if (bytes > CHUNK_DATA_MAX_BYTES) return ERR_LIMIT;
    const struct batch_chunk *c = b->chunk_count ? &b->chunks[b->chunk_count - 1] : NULL;
    bool is_full = c && c->entries > 0 && (uint64_t)c->records + records > b->chunk_messages;
    bool opens = !c || b->parting || is_full ||
                 (c->entries > 0 && c->data_bytes + (uint64_t)bytes > CHUNK_DATA_TARGET_BYTES);
    if (opens && b->chunk_count == BATCH_CHUNKS_MAX) return ERR_FULL;

    uint32_t head = CHUNK_HEADER_BYTES + b->filter_bytes;
    uint64_t needed = b->size + (uint64_t)bytes + (opens ? head : 0);
    if (needed > b->bytes_max && !batch_is_empty(b)) return ERR_FULL;
    err e = batch_grow(b, needed);
    if (e) return e;
    if (opens) {
        if (is_full) b->chunk_messages = smaller(2 * b->chunk_messages, b->chunk_messages_max);
        b->parting = false;
        b->chunks[b->chunk_count++] = (struct batch_chunk){.position = b->size};
        memset(b->data + b->size + CHUNK_HEADER_BYTES, 0, b->filter_bytes);
        b->size += head;
    }
    return OK;
}

err batch_reference_add(struct batch *b, const char *text, uint32_t bytes, uint32_t *index)
{
    if (bytes == 0 || bytes > BATCH_REFERENCE_BYTES_MAX) return ERR_LIMIT;
    err e = grow(&b->references, &b->reference_capacity, b->reference_count + 1u, sizeof *b->references, "batch", NULL);
    if (e) return e;
    uint32_t first = b->reference_count;
    /* The newest first: publishers come in bursts. */
    for (uint32_t i = b->reference_count; i-- > 0 && first == b->reference_count;)
        if (b->references[i].bytes == bytes && memcmp(b->references[i].text, text, bytes) == 0)
            first = b->references[i].first;
    struct batch_reference *r = &b->references[b->reference_count];
    *r = (struct batch_reference){.bytes = (uint8_t)bytes, .first = first};
    memcpy(r->text, text, bytes);
    *index = b->reference_count++;
    return OK;
}

err batch_reserve_tracking(struct batch *b)
{
    size_t ids = b->id_count < IDS_FIRST ? IDS_FIRST : b->id_count + 1u;
    err e = grow(&b->ids, &b->id_capacity, ids, sizeof *b->ids, "batch", NULL);
    return e ? e : grow(&b->runs, &b->run_capacity, b->run_count + 1u, sizeof *b->runs, "batch", NULL);
}

void batch_begin_run(struct batch *b, uint32_t reference, uint32_t chunk, uint32_t entry)
{
    b->runs[b->run_count++] = (struct batch_run){.reference = reference, .chunk = chunk, .first_entry = entry,
                                                 .entries = 1, .first_id = b->id_count, .ascending = true};
}

/* ---- sealing ---- */

/* One element for each distinct reference of the chunk, with the highest of its ids there. */
static err batch_trailer_add(struct batch *b, const struct batch_run *run)
{
    uint64_t highest = b->ids[run->first_id + run->entries - 1];
    for (uint32_t i = 0; !run->ascending && i < run->entries; i++)
        if (b->ids[run->first_id + i] > highest) highest = b->ids[run->first_id + i];

    struct batch_reference *r = &b->references[b->references[run->reference].first];
    if (r->trailer_chunk == run->chunk + 1) {
        if (highest > bytes_load64(b->trailers + r->trailer_value))
            bytes_store64(b->trailers + r->trailer_value, highest);
        return OK;
    }
    size_t needed = (size_t)b->trailer_size + TRAILER_ELEMENT_BYTES + r->bytes;
    if (needed > UINT32_MAX || grow(&b->trailers, &b->trailer_capacity, needed, 1, "batch", NULL)) return ERR_NO_MEMORY;
    uint8_t *at = b->trailers + b->trailer_size;
    at[0] = 0; /* type: a publisher's sequence */
    at[1] = r->bytes;
    memcpy(at + 2, r->text, r->bytes);
    bytes_store64(at + 2 + r->bytes, highest);
    r->trailer_chunk = run->chunk + 1;
    r->trailer_value = b->trailer_size + 2u + r->bytes;
    b->trailer_size = (uint32_t)needed;
    return OK;
}

static err batch_trailers(struct batch *b, struct fault *f)
{
    uint32_t run = 0;
    b->trailer_size = 0;
    for (uint32_t i = 0; i < b->reference_count; i++) b->references[i].trailer_chunk = 0;
    for (uint32_t i = 0; i < b->chunk_count; i++) {
        struct batch_chunk *c = &b->chunks[i];
        c->trailer_position = b->trailer_size;
        for (; run < b->run_count && b->runs[run].chunk == i; run++)
            if (batch_trailer_add(b, &b->runs[run]))
                return fault_set(f, ERR_NO_MEMORY, 0, "batch trailers", 0, b->trailer_size, 0);
        c->trailer_bytes = b->trailer_size - c->trailer_position;
        c->trailer_crc = c->trailer_bytes ? crc32_update(0, b->trailers + c->trailer_position, c->trailer_bytes) : 0;
        CHECK(c->trailer_bytes <= CHUNK_TRAILER_MAX_BYTES);
    }
    return OK;
}

static void batch_crc(const struct batch *b, struct batch_chunk *c)
{
    c->crc = crc32_update(0, batch_entries(b, c), c->data_bytes);
}

err batch_seal(struct batch *b, struct fault *f)
{
    DEBUG_CHECK((batch_check(b), true));
    err e = batch_trailers(b, f);
    if (e) return e;
    for (uint32_t i = 0; i < b->chunk_count; i++) {
        struct batch_chunk *c = &b->chunks[i];
        batch_crc(b, c);
        if (c->filtered && c->filtered < c->entries) filter_note_unfiltered(b->data + c->position + CHUNK_HEADER_BYTES);
    }
    b->sealed = true;
    return OK;
}

/* ---- dropping duplicates ---- */

/* Where the walk stands in the old runs and ids. */
struct drop {
    const struct batch_run *run, *end;
    uint32_t in_run;            /* entries of `run` already passed */
    const struct batch_run *of; /* the newest entry's, and its id; NULL: it is not tracked */
    uint64_t id;
};

/* Is entry `entry` of old chunk `chunk` a duplicate? */
static bool drop_next(struct batch *b, struct drop *d, uint32_t chunk, uint32_t entry)
{
    d->of = d->run < d->end && d->run->chunk == chunk && d->run->first_entry + d->in_run == entry ? d->run : NULL;
    if (!d->of) return false;
    d->id = b->ids[d->of->first_id + d->in_run];
    if (++d->in_run == d->of->entries) {
        d->run++;
        d->in_run = 0;
    }
    struct batch_reference *own = &b->references[d->of->reference];
    struct batch_reference *r = &b->references[own->first];
    uint32_t number = own->passed++;
    if (r->known && d->id <= r->last) {
        b->dropped[b->dropped_count++] = (struct batch_drop){.number = number};
        if (own->dropped_last) b->dropped[own->dropped_last - 1].next = b->dropped_count;
        else own->dropped_first = b->dropped_count;
        own->dropped_last = b->dropped_count;
        return true;
    }
    r->known = true;
    r->last = d->id;
    return false;
}

/* Move the entries of old chunk `index` that stay to `b->size`, as chunk `b->chunk_count`. */
static err drop_chunk(struct batch *b, struct drop *d, const struct batch_chunk *old, uint32_t index)
{
    const uint8_t *at = batch_entries(b, old), *end = at + old->data_bytes;
    /* The filter of all that was there says no less than one of what stays would. */
    struct batch_chunk c = {.position = b->size, .filtered = old->filtered};
    uint32_t size = b->size + CHUNK_HEADER_BYTES + b->filter_bytes;
    memmove(b->data + c.position + CHUNK_HEADER_BYTES, b->data + old->position + CHUNK_HEADER_BYTES, b->filter_bytes);
    for (uint32_t entry = 0; entry < old->entries; entry++) {
        const uint8_t *begin = at;
        struct chunk_entry e;
        if (chunk_entry_next(&at, end, &e)) return ERR_INVALID;
        if (drop_next(b, d, index, entry)) {
            b->duplicates += e.records;
            continue;
        }
        uint32_t bytes = (uint32_t)(at - begin);
        memmove(b->data + size, begin, bytes);
        size += bytes;
        /* The id that is read lies at or behind the one written. */
        if (d->of) batch_note(b, d->of->reference, b->chunk_count, c.entries, d->id);
        c.data_bytes += bytes;
        c.records += e.records;
        c.entries++;
    }
    if (c.entries == 0) return OK;
    b->size = size;
    b->records += c.records;
    b->chunks[b->chunk_count++] = c;
    batch_crc(b, &b->chunks[b->chunk_count - 1]);
    return OK;
}

err batch_drop_duplicates(struct batch *b, struct fault *f)
{
    CHECK(b->sealed);
    uint32_t chunk_count = b->chunk_count;
    struct batch_run *runs = NULL;
    struct drop d = {0};
    /* A kept entry may begin a new run (its run had a hole), so runs can grow in number:
     * the old ones are walked in a copy. */
    if (b->run_count) {
        runs = malloc(b->run_count * sizeof *runs);
        b->dropped = malloc(b->id_count * sizeof *b->dropped);
        if (!runs || !b->dropped || grow(&b->runs, &b->run_capacity, b->id_count, sizeof *runs, "batch duplicates", NULL)) {
            free(runs);
            return fault_set(f, ERR_NO_MEMORY, 0, "batch duplicates", 0, b->id_count * sizeof *runs, 0);
        }
        memcpy(runs, b->runs, b->run_count * sizeof *runs);
        d = (struct drop){.run = runs, .end = runs + b->run_count};
    }
    b->size = b->chunk_count = b->run_count = b->id_count = 0;
    b->records = 0;
    err e = OK;
    for (uint32_t i = 0; i < chunk_count && !e; i++) {
        struct batch_chunk old = b->chunks[i];
        e = drop_chunk(b, &d, &old, i);
    }
    free(runs);
    if (e) {
        batch_empty(b);
        return fault_set(f, e, 0, "batch duplicates", 0, 0, 0);
    }
    DEBUG_CHECK((batch_check(b), true));
    return batch_trailers(b, f);
}

bool batch_dropped(const struct batch *b, uint32_t reference, uint32_t *at, uint32_t *number)
{
    uint32_t found = *at ? b->dropped[*at - 1].next : b->references[reference].dropped_first;
    if (!found) return false;
    *at = found;
    *number = b->dropped[found - 1].number;
    return true;
}

void batch_check(const struct batch *b)
{
    uint64_t size = 0, records = 0;
    for (uint32_t i = 0; i < b->chunk_count; i++) {
        const struct batch_chunk *c = &b->chunks[i];
        CHECK(c->position == size && (c->entries == 1 || c->records <= b->chunk_messages_max) && c->records >= c->entries);
        size += CHUNK_HEADER_BYTES + b->filter_bytes + (uint64_t)c->data_bytes;
        records += c->records;
    }
    CHECK(size == b->size && b->size <= b->allocated && b->capacity <= b->allocated && records == b->records);

    uint64_t ids = 0;
    for (uint32_t i = 0; i < b->run_count; i++) {
        const struct batch_run *r = &b->runs[i];
        CHECK(r->chunk < b->chunk_count && r->reference < b->reference_count && r->first_id == ids);
        CHECK(r->first_entry + r->entries <= b->chunks[r->chunk].entries && r->entries > 0);
        CHECK(i == 0 || b->runs[i - 1].chunk < r->chunk ||
              b->runs[i - 1].first_entry + b->runs[i - 1].entries <= r->first_entry);
        ids += r->entries;
    }
    CHECK(ids == b->id_count);
}
