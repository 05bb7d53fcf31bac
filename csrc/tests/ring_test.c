/* SPDX-License-Identifier: Apache-2.0 */
#include "../shm/ring.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "test.h"

struct cell { uint64_t number, check, more[2]; };

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define ROUNDS 200000
#else
#define ROUNDS 2000000
#endif

static struct ring *ring_new(uint32_t cell_bytes, uint32_t cells)
{
    struct ring *r = mmap(NULL, ring_bytes(cell_bytes, cells), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                          -1, 0);
    struct fault f;
    if (r == MAP_FAILED || ring_init(r, cell_bytes, cells, &f) != OK) abort();
    return r;
}

static void ring_free(struct ring *r) { munmap(r, ring_bytes(r->cell_bytes, r->cells)); }

static struct cell cell_of(uint64_t number) { return (struct cell){number, ~number, {number * 3, number * 7}}; }

/* How many are in it. */
static uint64_t ring_count(const struct ring *r)
{
    /* Head first: what happens in between can then only make the answer too large. */
    uint64_t head = atomic_load_explicit(&r->head, memory_order_acquire);
    uint64_t tail = atomic_load_explicit(&r->tail, memory_order_acquire);
    return tail - head < r->cells ? tail - head : r->cells;
}

TEST(sizes_beyond_the_limits_are_refused_by_name)
{
    static struct ring r;
    struct fault f;
    EXPECT_ERR(ERR_LIMIT, ring_init(&r, RING_CELL_BYTES_MAX + 1, 8, &f));
    EXPECT_EQ(RING_CELL_BYTES_MAX, f.needed);
    EXPECT_EQ(RING_CELL_BYTES_MAX + 1, f.had);
    EXPECT_ERR(ERR_LIMIT, ring_init(&r, 8, RING_CELLS_MAX * 2, &f));
    EXPECT_ERR(ERR_INVALID, ring_init(&r, 0, 8, &f));
    EXPECT_ERR(ERR_INVALID, ring_init(&r, 8, 0, &f));
    EXPECT_ERR(ERR_INVALID, ring_init(&r, 8, 12, NULL));
    EXPECT_EQ(sizeof(struct ring) + (size_t)RING_CELL_BYTES_MAX * RING_CELLS_MAX,
              ring_bytes(RING_CELL_BYTES_MAX, RING_CELLS_MAX));
}

TEST(what_goes_in_comes_out_in_order_at_every_fill)
{
    for (uint32_t cells = 1; cells <= 64; cells *= 2) {
        struct ring *r = ring_new(sizeof(struct cell), cells);
        uint64_t pushed = 0, popped = 0;
        for (int round = 0; round < 2000; round++) {
            for (uint64_t n = test_random_below(cells + 2); n; n--) {
                struct cell c = cell_of(pushed);
                err expected = pushed - popped == cells ? ERR_FULL : OK, had = ring_push(r, &c);
                EXPECT_ERR(expected, had);
                pushed += had == OK;
            }
            EXPECT_EQ(pushed - popped, ring_count(r));
            for (uint64_t n = test_random_below(cells + 2); n; n--) {
                struct cell c, want = cell_of(popped);
                err expected = pushed == popped ? ERR_EMPTY : OK, had = ring_pop(r, &c);
                EXPECT_ERR(expected, had);
                if (had == OK) EXPECT_MEM_EQ(&want, &c, sizeof c);
                popped += had == OK;
            }
        }
        ring_free(r);
    }
}

static void push_all(struct ring *r, uint64_t from, uint64_t count)
{
    for (uint64_t i = from; i < from + count; i++) {
        struct cell c = cell_of(i);
        while (ring_push(r, &c) != OK) sched_yield();
    }
}

static void *producer_run(void *r)
{
    push_all(r, 0, ROUNDS);
    return NULL;
}

/* Pops `count` cells and says how many were not the expected ones. */
static uint64_t pop_all(struct ring *r, uint64_t from, uint64_t count)
{
    uint64_t wrong = 0;
    for (uint64_t i = from; i < from + count; i++) {
        struct cell c, want = cell_of(i);
        while (ring_pop(r, &c) != OK) sched_yield();
        wrong += memcmp(&c, &want, sizeof c) != 0;
    }
    return wrong;
}

TEST(two_threads_lose_and_reorder_nothing)
{
    struct ring *r = ring_new(sizeof(struct cell), 256);
    pthread_t producer;
    REQUIRE(pthread_create(&producer, NULL, producer_run, r) == 0);
    EXPECT_EQ(0, pop_all(r, 0, ROUNDS));
    pthread_join(producer, NULL);
    EXPECT_EQ(0, ring_count(r));
    ring_free(r);
}

TEST(two_processes_lose_and_reorder_nothing)
{
    struct ring *r = ring_new(sizeof(struct cell), 1024);
    pid_t child = fork();
    if (child == 0) {
        push_all(r, 0, ROUNDS);
        _exit(0);
    }
    EXPECT_EQ(0, pop_all(r, 0, ROUNDS));
    waitpid(child, NULL, 0);
    ring_free(r);
}

TEST(a_killed_producer_leaves_whole_cells_and_its_heir_goes_on)
{
    struct ring *r = ring_new(sizeof(struct cell), 64);
    uint64_t next = 0;
    for (int round = 0; round < 50; round++) {
        pid_t child = fork();
        if (child == 0) {
            /* `next` is how many were popped; the ring was empty then. */
            push_all(r, next, UINT64_MAX / 2);
            _exit(0);
        }
        uint64_t count = 1 + test_random_below(5000);
        EXPECT_EQ(0, pop_all(r, next, count));
        next += count;
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
        count = ring_count(r);
        EXPECT_EQ(0, pop_all(r, next, count));
        next += count;
        struct cell c;
        EXPECT_ERR(ERR_EMPTY, ring_pop(r, &c));
    }
    ring_free(r);
}
