/* SPDX-License-Identifier: Apache-2.0
 *
 * doorbell: marks, requests and the flag of sleep.
 *
 * NO NEWS IS SLEPT ON.  All operations on a seat are sequentially consistent, so there is one order of them.  A ringer:
 * (1) sets the slot's bit, (2) sees to it that the summary bit is set, (3) looks at the flag.  A worker: (4) raises the
 * flag, (5) looks at the summary.  Either 2 is before 5 and the worker sees the news, or 4 is before 3 and the ringer
 * sees the flag.
 *
 * NO MARK IS LOST.  A worker clears a summary bit before it takes the word below it.  So a ringer that finds the
 * summary bit set after setting its own knows that the word will still be taken, and saves the second locked
 * instruction.
 *
 * A KILLED RINGER LEAVES NOBODY DEAF.  `asleep` is a count: odd while its worker sleeps.  A ringer writes the eventfd
 * first and then moves the count on, and only from the very sleep that it saw; killed in between, it has merely rung
 * twice.  Killed before the write, it leaves the flag up, and the next ringer rings.  News whose ringer died before its
 * mark is found by the look that each worker takes at all its streams about twice a second.
 */
#include "doorbell.h"

#include <unistd.h>

static bool is_asleep(uint32_t count) { return count & 1; }

/* Ends the sleep number `count`, unless it has ended already. */
static void sleep_end(struct doorbell_seat *s, uint32_t count)
{
    if (is_asleep(count)) atomic_compare_exchange_strong(&s->asleep, &count, count + 1);
}

static bool ring_if_asleep(struct doorbell_seat *s, int fd)
{
    const uint64_t one = 1;
    uint32_t count = atomic_load(&s->asleep);
    /* A full counter refuses the write, but then it is readable, which is all we want; it would take 2^64 rings. */
    if (!is_asleep(count) || write(fd, &one, sizeof one) != (ssize_t)sizeof one) return false;
    sleep_end(s, count);
    return true;
}

static bool has_news(struct doorbell_seat *s)
{
    if (atomic_load(&s->requests)) return true;
    for (int i = 0; i < DOORBELL_SUMMARY_WORDS; i++)
        if (atomic_load(&s->summary[i])) return true;
    return false;
}

void doorbell_board_init(struct doorbell_board *b, uint32_t worker_count, uint32_t epoch)
{
    CHECK(worker_count <= DOORBELL_WORKERS_MAX);
    atomic_store(&b->worker_count, worker_count);
    for (uint32_t i = 0; i < worker_count; i++) atomic_store(&b->seats[i].epoch, epoch);
}

void doorbell_sit(struct doorbell_board *b, uint32_t worker, uint32_t pid)
{
    struct doorbell_seat *s = doorbell_seat_of(b, worker);
    /* What is marked from here on is kept.  What is cleared needs no telling: whoever
     * sits down afresh looks at every stream it serves. */
    sleep_end(s, atomic_load(&s->asleep));
    atomic_store(&s->requests, 0);
    atomic_store(&s->connections, 0);
    atomic_store(&s->heard_ms, 0);
    for (int i = 0; i < DOORBELL_SUMMARY_WORDS; i++) atomic_store(&s->summary[i], 0);
    for (int i = 0; i < DOORBELL_WORDS; i++) atomic_store(&s->words[i], 0);
    atomic_fetch_add(&s->epoch, 1);
    atomic_store(&s->pid, pid);
}

uint32_t doorbell_connections(struct doorbell_board *b)
{
    uint32_t count = 0, workers = atomic_load(&b->worker_count);
    for (uint32_t i = 0; i < workers; i++) count += atomic_load(&doorbell_seat_of(b, i)->connections);
    return count;
}

bool doorbell_others_heard(struct doorbell_board *b, uint32_t worker, int64_t at_ms)
{
    uint32_t workers = atomic_load(&b->worker_count);
    for (uint32_t i = 0; i < workers; i++) {
        struct doorbell_seat *s = doorbell_seat_of(b, i);
        if (i != worker && atomic_load(&s->pid) && atomic_load_explicit(&s->heard_ms, memory_order_acquire) < at_ms)
            return false;
    }
    return true;
}

bool doorbell_mark(struct doorbell_board *b, uint32_t worker, uint32_t slot, int fd)
{
    struct doorbell_seat *s = doorbell_seat_of(b, worker);
    CHECK(slot < DOORBELL_SLOTS_MAX);
    uint32_t word = slot / 64;
    uint64_t summary_bit = (uint64_t)1 << (word % 64);

    /* Always a read-modify-write, even when the bit is set: it is what puts the
     * caller's own stores before the taking of this bit. */
    atomic_fetch_or(&s->words[word], (uint64_t)1 << (slot % 64));
    if (!(atomic_load(&s->summary[word / 64]) & summary_bit)) atomic_fetch_or(&s->summary[word / 64], summary_bit);
    return ring_if_asleep(s, fd);
}

void doorbell_request(struct doorbell_board *b, uint32_t worker, uint32_t bits, int fd)
{
    struct doorbell_seat *s = doorbell_seat_of(b, worker);
    atomic_fetch_or(&s->requests, bits);
    ring_if_asleep(s, fd);
}

uint32_t doorbell_requests_take(struct doorbell_board *b, uint32_t worker)
{
    struct doorbell_seat *s = doorbell_seat_of(b, worker);
    /* Asked in every turn of the loop; nearly always there is nothing to take. */
    return atomic_load(&s->requests) ? atomic_exchange(&s->requests, 0) : 0;
}

bool doorbell_sleep(struct doorbell_board *b, uint32_t worker)
{
    struct doorbell_seat *s = doorbell_seat_of(b, worker);
    uint32_t count = atomic_load(&s->asleep);
    CHECK(!is_asleep(count)); /* only the worker itself raises the flag */
    atomic_store(&s->asleep, count + 1);
    if (!has_news(s)) return true;
    sleep_end(s, count + 1);
    return false;
}

void doorbell_wake(struct doorbell_board *b, uint32_t worker)
{
    struct doorbell_seat *s = doorbell_seat_of(b, worker);
    sleep_end(s, atomic_load(&s->asleep));
}

/* Take at most `room` bits of one word; the others stay. */
static uint32_t word_take(struct doorbell_seat *s, uint32_t word, uint32_t *slots, uint32_t room)
{
    uint64_t bits = atomic_load(&s->words[word]), taken = 0;
    uint32_t count = 0;
    for (; bits && count < room; bits &= bits - 1) {
        taken |= bits & (~bits + 1);
        slots[count++] = word * 64 + (uint32_t)__builtin_ctzll(bits);
    }
    if (taken) atomic_fetch_and(&s->words[word], ~taken);
    return count;
}

uint32_t doorbell_take(struct doorbell_board *b, uint32_t worker, uint32_t *slots, uint32_t most)
{
    struct doorbell_seat *s = doorbell_seat_of(b, worker);
    uint32_t count = 0;
    for (uint32_t i = 0; i < DOORBELL_SUMMARY_WORDS && count < most; i++) {
        uint64_t bits = atomic_load(&s->summary[i]);
        if (bits) bits = atomic_exchange(&s->summary[i], 0);
        for (; bits && count < most; bits &= bits - 1) {
            uint32_t word = i * 64 + (uint32_t)__builtin_ctzll(bits);
            count += word_take(s, word, slots + count, most - count);
            if (count == most && atomic_load(&s->words[word])) break; /* its summary bit goes back too */
        }
        if (bits) atomic_fetch_or(&s->summary[i], bits);
    }
    return count;
}
