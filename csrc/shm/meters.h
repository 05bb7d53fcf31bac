/* SPDX-License-Identifier: Apache-2.0
 *
 * meters: what a process counts of its own work, for whoever watches the broker.  They lie in memory that all processes
 * share, so they are read without asking anybody, and whoever takes a dead worker's seat counts on.
 *
 * Each seat has one writer at a time: counting is a load and a store, without a locked instruction.  A reader may see a
 * bucket that the sum does not know of yet; the next look has both.
 *
 * Invariant: bucket k of a histogram counts what took at most 2^k microseconds and more than 2^(k-1); the last one all
 * that took longer than the one before it.
 */
#ifndef VIBEMQ_SHM_METERS_H
#define VIBEMQ_SHM_METERS_H

#include <stdatomic.h>
#include <stdint.h>

#define METERS_BUCKETS 33 /* up to 2^31 us, 36 minutes, and what is longer */
#define METERS_LINE 128   /* seats of different processes are no neighbours in a cache line */

enum meter_histogram_kind {
    METER_TURN,           /* a turn of the loop, without the wait before it */
    METER_CONFIRM_OS,     /* messages: from the turn that read them until they were confirmed; by durability */
    METER_CONFIRM_DISK,
    METER_CONFIRM_REMOTE,
    METER_DELIVER_STREAM, /* messages: their age when they were written to a consumer, by offset */
    METER_DELIVER_QUEUE,  /* the same for consumers of queues */
    METER_SYNC,           /* an fdatasync of a log */
    METERS_HISTOGRAMS,
};

enum meter_counter_kind {
    METER_STARTS,         /* processes that have sat here */
    METER_ACCEPTED,       /* connections */
    METER_NOT_APPENDED,   /* batches that their log did not take */
    METER_LOG_WARNINGS,   /* lines of the log */
    METER_LOG_ERRORS,
    METER_NAMES_EVICTED,  /* publisher references that were evicted from a stream's table */
    METER_NAMES_REFUSED,  /* publishers that were refused because all references belonged to connected ones */
    METER_OFFSETS_EVICTED, /* stored offsets that were evicted for another reference's */
    METER_TABLES_REBUILT, /* damaged tables of publishing ids that were rebuilt */
    METERS_COUNTERS,
};

struct meter_histogram {
    _Atomic uint64_t sum_us;
    _Atomic uint64_t buckets[METERS_BUCKETS];
};

struct meters {
    _Alignas(METERS_LINE) struct meter_histogram histograms[METERS_HISTOGRAMS];
    _Atomic uint64_t counters[METERS_COUNTERS];
    _Atomic uint64_t pid; /* of who sits here now, or sat here last; 0: nobody yet */
};

static inline void meter_count(_Atomic uint64_t *counter, uint64_t count)
{
    atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + count, memory_order_relaxed);
}

static inline uint32_t meter_bucket_of(uint64_t us)
{
    uint32_t bits = us > 1 ? 64 - (uint32_t)__builtin_clzll(us - 1) : 0;
    return bits < METERS_BUCKETS ? bits : METERS_BUCKETS - 1;
}

/* `count` times `us` microseconds; a clock that was set back is no negative time. */
static inline void meter_add(struct meter_histogram *h, int64_t us, uint64_t count)
{
    uint64_t took = us > 0 ? (uint64_t)us : 0;
    meter_count(&h->sum_us, took * count);
    meter_count(&h->buckets[meter_bucket_of(took)], count);
}

#endif
