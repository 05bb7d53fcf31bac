/* SPDX-License-Identifier: Apache-2.0
 *
 * doorbell: how one process tells another that a stream has news, at the price of two stores while the other is awake
 * and of one eventfd write when it sleeps.
 *
 * The board lies in memory shared by the supervisor and all workers (a memfd).  Each worker has a seat: a bitmap of
 * stream slots with news, a summary of that bitmap (one bit for each of its words), a word of other requests, and the
 * flag that says it is about to sleep.  News is never slept on: doorbell.c says why.
 *
 * Nothing in csrc/shm has a version: who maps it was forked from the process that laid it out, and it goes with the
 * last of them.
 */
#ifndef VIBEMQ_SHM_DOORBELL_H
#define VIBEMQ_SHM_DOORBELL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "../base/check.h"

#define DOORBELL_WORKERS_MAX 64      /* one bit each in a stream's masks of workers */
#define DOORBELL_SLOTS_MAX 65536     /* streams of one broker */
#define DOORBELL_WORDS (DOORBELL_SLOTS_MAX / 64)
#define DOORBELL_SUMMARY_WORDS (DOORBELL_WORDS / 64)
#define DOORBELL_CACHE_LINE 128      /* two lines: the prefetcher takes pairs */

/* Bits of `requests`. */
#define DOORBELL_REQUEST_SEATS 1u    /* a seat has changed hands: look after the queues it was home to */
#define DOORBELL_REQUEST_ACCESS 2u   /* users or permissions changed: forget cached answers */
#define DOORBELL_REQUEST_WORK 4u     /* a helper thread of this worker has finished something */
#define DOORBELL_REQUEST_MAIL 8u     /* another worker has put letters into a ring for this one */
#define DOORBELL_REQUEST_GROUPS 16u  /* a consumer of this worker became active in its group, or is to stop */

struct doorbell_seat {
    _Alignas(DOORBELL_CACHE_LINE) _Atomic uint32_t asleep; /* counts: odd while asleep, see doorbell.c */
    _Atomic uint32_t requests;
    _Atomic uint32_t pid;            /* 0 while nobody sits here */
    _Atomic uint32_t epoch;          /* raised each time the seat is taken */
    _Atomic uint32_t connections;    /* of clients that this worker serves and that count against a limit */
    _Atomic int64_t heard_ms;        /* the worker has read all input that had come by then (CLOCK_MONOTONIC) */
    _Alignas(DOORBELL_CACHE_LINE) _Atomic uint64_t summary[DOORBELL_SUMMARY_WORDS];
    _Alignas(DOORBELL_CACHE_LINE) _Atomic uint64_t words[DOORBELL_WORDS];
};

struct doorbell_board {
    _Atomic uint32_t worker_count;
    struct doorbell_seat seats[DOORBELL_WORKERS_MAX];
    /* How often the stream in a slot was restarted: whoever held it before lets go of it.  Only compared,
     * so that a slot's next stream may go on counting. */
    _Atomic uint32_t restarts[DOORBELL_SLOTS_MAX];
};

static inline struct doorbell_seat *doorbell_seat_of(struct doorbell_board *b, uint32_t worker)
{
    CHECK(worker < DOORBELL_WORKERS_MAX);
    return &b->seats[worker];
}

/* Lay out a board in zeroed shared bytes.  Seats' epochs count from `epoch`: a number that no earlier
 * run used, because they are written into files that outlive the board. */
void doorbell_board_init(struct doorbell_board *b, uint32_t worker_count, uint32_t epoch);

/* Take seat `worker` after a start or restart: clears its news, raises its epoch. */
void doorbell_sit(struct doorbell_board *b, uint32_t worker, uint32_t pid);

/* Tell `worker` that stream `slot` has news; rings its eventfd `fd` if it sleeps.  Returns true when it rang. */
bool doorbell_mark(struct doorbell_board *b, uint32_t worker, uint32_t slot, int fd);

/* Say how many connections `worker` has; how many all workers have together. */
static inline void doorbell_connections_set(struct doorbell_board *b, uint32_t worker, uint32_t count)
{
    atomic_store(&doorbell_seat_of(b, worker)->connections, count);
}
uint32_t doorbell_connections(struct doorbell_board *b);

/* Record that `worker` has read all input that had come by `at_ms` and has passed on the notices about it. */
static inline void doorbell_heard_set(struct doorbell_board *b, uint32_t worker, int64_t at_ms)
{
    atomic_store_explicit(&doorbell_seat_of(b, worker)->heard_ms, at_ms, memory_order_release);
}

/* Return true if each worker other than `worker` has read all input that had come by `at_ms`. */
bool doorbell_others_heard(struct doorbell_board *b, uint32_t worker, int64_t at_ms);

/* Which process generation sits on a seat. */
static inline uint32_t doorbell_epoch(struct doorbell_board *b, uint32_t worker)
{
    return atomic_load(&b->seats[worker].epoch);
}

/* Restarts of the stream in `slot`: count one more (then mark it for whoever holds it), or read the count. */
static inline void doorbell_restart(struct doorbell_board *b, uint32_t slot)
{
    CHECK(slot < DOORBELL_SLOTS_MAX);
    atomic_fetch_add(&b->restarts[slot], 1);
}

static inline uint32_t doorbell_restarts(struct doorbell_board *b, uint32_t slot)
{
    CHECK(slot < DOORBELL_SLOTS_MAX);
    return atomic_load(&b->restarts[slot]);
}

/* Raise request bits for `worker`; rings if it sleeps. */
void doorbell_request(struct doorbell_board *b, uint32_t worker, uint32_t bits, int fd);

/* Take all request bits, clearing them. */
uint32_t doorbell_requests_take(struct doorbell_board *b, uint32_t worker);

/* Say "I am about to sleep"; returns false (and the flag is down again) if there is news. */
bool doorbell_sleep(struct doorbell_board *b, uint32_t worker);
void doorbell_wake(struct doorbell_board *b, uint32_t worker);

/* Take up to `most` slots with news into `slots`, clearing them; returns how many.
 * Call again while it returns `most`. */
uint32_t doorbell_take(struct doorbell_board *b, uint32_t worker, uint32_t *slots, uint32_t most);

#endif
