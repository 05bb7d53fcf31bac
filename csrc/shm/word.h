/* SPDX-License-Identifier: Apache-2.0
 *
 * word: the words that processes share in mapped pages: 8 bytes, always changed whole, so that a kill
 * leaves no half of one.  What a word says of others is stored after them: a load that sees a stored
 * value also sees what its writer had stored before.
 */
#ifndef VIBEMQ_SHM_WORD_H
#define VIBEMQ_SHM_WORD_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

static inline uint64_t word_load(const _Atomic uint64_t *w) { return atomic_load_explicit(w, memory_order_acquire); }

static inline void word_store(_Atomic uint64_t *w, uint64_t value)
{
    atomic_store_explicit(w, value, memory_order_release);
}

/* For counters: they say nothing of other words. */
static inline void word_add(_Atomic uint64_t *w, uint64_t count)
{
    atomic_fetch_add_explicit(w, count, memory_order_relaxed);
}

/* Store `to` if it still is `from`. */
static inline bool word_swap(_Atomic uint64_t *w, uint64_t from, uint64_t to)
{
    return atomic_compare_exchange_strong(w, &from, to);
}

/* From now on it is at least `to`. */
static inline void word_raise(_Atomic uint64_t *w, uint64_t to)
{
    uint64_t had = atomic_load(w);
    while (had < to && !atomic_compare_exchange_weak(w, &had, to)) continue;
}

/* What it was; it is 0 from then on. */
static inline uint64_t word_take(_Atomic uint64_t *w) { return atomic_load(w) ? atomic_exchange(w, 0) : 0; }

/* Masks of workers.  One sets its bit and then looks, the other stores and then loads the mask, so as a rule one of them
 * sees; where the load came before the store was seen, the next tick finds it. */
static inline uint64_t word_bits(const _Atomic uint64_t *mask) { return atomic_load(mask); }
static inline void word_bit_set(_Atomic uint64_t *mask, uint32_t bit) { atomic_fetch_or(mask, UINT64_C(1) << bit); }
static inline void word_bit_clear(_Atomic uint64_t *mask, uint32_t bit) { atomic_fetch_and(mask, ~(UINT64_C(1) << bit)); }

#endif
