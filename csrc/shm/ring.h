/* SPDX-License-Identifier: Apache-2.0
 *
 * ring: a single-producer single-consumer ring of fixed-size descriptors in shared memory.  Heads sit on their own
 * cache lines and each side keeps a cached copy of the other's, so an uncontended push or pop touches one shared line.
 * A killed producer leaves at most an unpublished cell, which nobody sees.
 */
#ifndef VIBEMQ_SHM_RING_H
#define VIBEMQ_SHM_RING_H

#include <stdatomic.h>
#include <stdint.h>

#include "../base/error.h"

#define RING_CACHE_LINE 128
#define RING_CELL_BYTES_MAX 256
#define RING_CELLS_MAX (1u << 20)

/* Invariant: head <= tail <= head + cells (as counts that never wrap in 2^64). */
struct ring {
    uint32_t magic, cell_bytes, cells, reserved; /* cells is a power of two */
    _Alignas(RING_CACHE_LINE) _Atomic uint64_t tail; /* written by the producer */
    uint64_t head_cached;
    _Alignas(RING_CACHE_LINE) _Atomic uint64_t head; /* written by the consumer */
    uint64_t tail_cached;
    _Alignas(RING_CACHE_LINE) uint8_t cell[];
};

size_t ring_bytes(uint32_t cell_bytes, uint32_t cells);
err ring_init(struct ring *r, uint32_t cell_bytes, uint32_t cells, struct fault *f); /* ERR_INVALID, ERR_LIMIT */
err ring_push(struct ring *r, const void *cell); /* ERR_FULL */
err ring_pop(struct ring *r, void *cell);        /* ERR_EMPTY */

#endif
