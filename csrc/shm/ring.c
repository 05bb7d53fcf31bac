/* SPDX-License-Identifier: Apache-2.0
 *
 * ring: descriptors from one process to one other, without a lock.
 *
 * The cell is written first and published by a release store of `tail`; it is read first and given back by a release
 * store of `head`.  The cached copies lie in shared memory too, but each belongs to one side only.  They may be old,
 * never ahead, so a process that takes a dead one's side over goes on from them.
 */
#include "ring.h"

#include <string.h>

#include "../base/check.h"

#define RING_MAGIC 0x474E4952u /* "RING" */

static uint8_t *cell_of(struct ring *r, uint64_t count)
{
    return r->cell + (size_t)(count & (r->cells - 1)) * r->cell_bytes;
}

size_t ring_bytes(uint32_t cell_bytes, uint32_t cells)
{
    return sizeof(struct ring) + (size_t)cell_bytes * cells;
}

err ring_init(struct ring *r, uint32_t cell_bytes, uint32_t cells, struct fault *f)
{
    if (cell_bytes > RING_CELL_BYTES_MAX)
        return fault_set(f, ERR_LIMIT, 0, "ring cell size", 0, RING_CELL_BYTES_MAX, cell_bytes);
    if (cells > RING_CELLS_MAX) return fault_set(f, ERR_LIMIT, 0, "ring cell count", 0, RING_CELLS_MAX, cells);
    if (cell_bytes == 0) return fault_set(f, ERR_INVALID, 0, "ring cell size", 0, 1, 0);
    if (cells == 0 || cells & (cells - 1))
        return fault_set(f, ERR_INVALID, 0, "ring cell count, a power of two", 0, 1, cells);
    r->cell_bytes = cell_bytes;
    r->cells = cells;
    r->reserved = 0;
    r->head_cached = r->tail_cached = 0;
    atomic_store_explicit(&r->tail, 0, memory_order_relaxed);
    atomic_store_explicit(&r->head, 0, memory_order_relaxed);
    r->magic = RING_MAGIC;
    return OK;
}

err ring_push(struct ring *r, const void *cell)
{
    DEBUG_CHECK(r->magic == RING_MAGIC);
    uint64_t tail = atomic_load_explicit(&r->tail, memory_order_relaxed);
    if (tail - r->head_cached >= r->cells) {
        r->head_cached = atomic_load_explicit(&r->head, memory_order_acquire);
        CHECK(tail - r->head_cached <= r->cells); /* or a cell in use would be written over */
        if (tail - r->head_cached == r->cells) return ERR_FULL;
    }
    memcpy(cell_of(r, tail), cell, r->cell_bytes);
    atomic_store_explicit(&r->tail, tail + 1, memory_order_release);
    return OK;
}

err ring_pop(struct ring *r, void *cell)
{
    DEBUG_CHECK(r->magic == RING_MAGIC);
    uint64_t head = atomic_load_explicit(&r->head, memory_order_relaxed);
    if (head == r->tail_cached) {
        r->tail_cached = atomic_load_explicit(&r->tail, memory_order_acquire);
        CHECK(r->tail_cached - head <= r->cells);
        if (head == r->tail_cached) return ERR_EMPTY;
    }
    memcpy(cell, cell_of(r, head), r->cell_bytes);
    atomic_store_explicit(&r->head, head + 1, memory_order_release);
    return OK;
}
