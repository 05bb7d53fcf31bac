/* SPDX-License-Identifier: Apache-2.0
 *
 * apply: the walk over staged blocks.  One batch is enough, because blocks are large: it is appended when a block is
 * for another target.
 */
#include "apply.h"

#include <stdlib.h>

#include "../base/grow.h"

#define DATA_FIRST_BYTES (2u << 20) /* a chunk or more, see CHUNK_DATA_TARGET_BYTES */
#define RECORD_BYTES_MIN 4u         /* of a message in a sub-batch: its size */

err apply_init(struct apply *a, struct fault *f)
{
    err e = batch_init(&a->batch, f);
    a->reading = false;
    a->malformed = 0;
    a->data = NULL;
    a->capacity = 0;
    if (!e) e = grow(&a->data, &a->capacity, DATA_FIRST_BYTES, 1, "staged blocks", f);
    if (e) apply_free(a);
    return e;
}

static void reading_ends(struct apply *a)
{
    if (a->reading) reader_close(&a->reader);
    a->reading = false;
}

void apply_free(struct apply *a)
{
    reading_ends(a);
    batch_free(&a->batch);
    free(a->data);
    a->data = NULL;
}

err apply_begin(struct apply *a, struct log *staged, uint64_t blocks, struct fault *f)
{
    reading_ends(a);
    err e = reader_open(&a->reader, staged, READER_FIRST, 0, f);
    a->reading = e == OK;
    a->blocks = blocks;
    return e;
}

/* ---- out ---- */

/* Append the batch; an error is the target's. */
static void flush(struct apply *a)
{
    if (batch_is_empty(&a->batch)) return;
    struct apply_target *t = &a->targets[a->target];
    struct log_appended appended;
    t->failed = batch_seal(&a->batch, &t->fault);
    if (!t->failed) t->failed = log_append(t->log, &a->batch, &appended, &t->fault);
    if (!t->failed) t->rolled |= appended.rolled;
    batch_clear(&a->batch);
}

static err open_batch(struct apply *a, uint32_t target)
{
    struct log *l = a->targets[target].log;
    a->target = target;
    batch_limit(&a->batch, atomic_load_explicit(&log_control(l)->segment_bytes_max, memory_order_relaxed));
    batch_filter_size(&a->batch, log_filter_bytes(l));
    batch_chunk_messages(&a->batch, log_chunk_messages(l), log_chunk_messages(l));
    return batch_reference_add(&a->batch, TRACKING_TRANSACTIONS, TRACKING_TRANSACTIONS_BYTES, &a->reference);
}

static err add(struct apply *a, uint32_t target, const uint8_t *entry, uint32_t bytes, const struct chunk_entry *is,
               uint64_t number)
{
    const struct apply_target *t = &a->targets[target];
    err e = ERR_FULL;
    if (a->target != target || a->batch.size >= APPLY_BATCH_BYTES) flush(a);
    while (e == ERR_FULL && !t->failed) {
        e = batch_is_empty(&a->batch) ? open_batch(a, target) : OK;
        if (!e && a->parts_kinds) batch_part_kinds(&a->batch, is->is_sub_batch);
        if (!e) e = batch_add_tracked(&a->batch, entry, bytes, is->records, a->reference, number);
        if (e == ERR_FULL) flush(a);
    }
    return e == ERR_FULL ? OK : e;
}

/* ---- in ---- */

/* May it be stored?  As the streams door has it for what is published. */
static bool is_sound(const struct apply *a, const struct chunk_entry *e)
{
    if (!e->is_sub_batch) return true;
    return e->uncompressed_bytes <= a->uncompressed_max && e->records * RECORD_BYTES_MIN <= e->uncompressed_bytes &&
           !(e->body_bytes == 0 && e->compression != 0);
}

static err walk_block(struct apply *a, const struct chunk_entry *block)
{
    uint32_t target = block->body_bytes >= 2 && !block->is_sub_batch ? bytes_load16(block->body) : UINT32_MAX;
    if (target >= a->target_count) {
        a->malformed++;
        return OK;
    }
    struct apply_target *t = &a->targets[target];
    const uint8_t *at = block->body + 2, *end = block->body + block->body_bytes;
    err e = OK;
    while (!e && at < end) {
        const uint8_t *entry = at;
        struct chunk_entry is;
        if (chunk_entry_next(&at, end, &is)) {
            a->malformed++;
            break;
        }
        uint64_t number = t->next_number++;
        if (!is_sound(a, &is)) {
            a->malformed++;
            continue;
        }
        t->messages += is.records;
        if (!a->counts_only && t->log && !t->failed) e = add(a, target, entry, (uint32_t)(at - entry), &is, number);
    }
    return e;
}

static err walk_chunk(struct apply *a, const uint8_t *data, const struct chunk *c, struct fault *f)
{
    const uint8_t *at = data + CHUNK_HEADER_BYTES + c->bloom_bytes, *end = at + c->data_bytes;
    uint64_t block = c->chunk_id;
    struct chunk_entry entry;
    while (block < a->blocks && chunk_entry_next(&at, end, &entry) == OK) {
        err e = walk_block(a, &entry);
        if (e) return fault_set(f, e, 0, "applying a transaction", block, 0, 0);
        block += entry.records;
    }
    return OK;
}

/* Walk what lies in `data`, but for a chunk that is not whole; `*walked`: how far. */
static err walk_data(struct apply *a, uint64_t got, uint64_t *walked, struct fault *f)
{
    err e = OK;
    *walked = 0;
    while (!e && *walked < got && a->reader.next_offset < a->blocks) {
        struct chunk c;
        e = reader_chunk(&a->reader, a->data + *walked, got - *walked, true, &c, f);
        if (e == ERR_TRUNCATED && *walked > 0) return OK;
        if (e == ERR_TRUNCATED && chunk_bytes(&c) <= a->capacity) return ERR_CORRUPT; /* the file ends inside it */
        if (e == ERR_TRUNCATED) return grow(&a->data, &a->capacity, chunk_bytes(&c), 1, "staged blocks", f);
        if (e) break;
        e = walk_chunk(a, a->data + *walked, &c, f);
        reader_advance(&a->reader, &c);
        *walked += chunk_bytes(&c);
    }
    return e;
}

err apply_step(struct apply *a, struct fault *f)
{
    uint64_t bytes = 0;
    err e = OK;
    while (!e && bytes < APPLY_STEP_BYTES) {
        uint64_t got, walked = 0;
        if (a->reader.next_offset >= a->blocks) e = ERR_END;
        if (!e) e = reader_fetch(&a->reader, a->data, a->capacity, false, &got, f);
        if (!e) e = walk_data(a, got, &walked, f);
        bytes += walked;
        if (e == ERR_CORRUPT) {
            a->malformed++;
            e = reader_skip_damaged(&a->reader, f);
        }
    }
    flush(a);
    if (e == ERR_END && a->reader.next_offset < a->blocks) a->malformed++; /* a power cut took the rest */
    if (e) reading_ends(a);
    return e;
}
