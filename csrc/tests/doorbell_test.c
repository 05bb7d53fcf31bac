/* SPDX-License-Identifier: Apache-2.0 */
#include "../shm/doorbell.h"

#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "test.h"

#define WORKER 3

static struct doorbell_board *board_new(void)
{
    struct doorbell_board *b =
        mmap(NULL, sizeof *b, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (b == MAP_FAILED) abort();
    doorbell_board_init(b, 8, 1000);
    doorbell_sit(b, WORKER, (uint32_t)getpid());
    return b;
}

static uint64_t rings(int fd)
{
    uint64_t count = 0;
    return read(fd, &count, sizeof count) == sizeof count ? count : 0;
}

TEST(marks_come_out_once_and_in_order_of_slots)
{
    static const uint32_t marked[] = {DOORBELL_SLOTS_MAX - 1, 0, 63, 64, 4096, 64};
    static const uint32_t expected[] = {0, 63, 64, 4096, DOORBELL_SLOTS_MAX - 1};
    struct doorbell_board *b = board_new();
    uint32_t slots[16];
    for (size_t i = 0; i < sizeof marked / sizeof marked[0]; i++) EXPECT(!doorbell_mark(b, WORKER, marked[i], -1));
    EXPECT_EQ(5, doorbell_take(b, WORKER, slots, 16));
    EXPECT_MEM_EQ(expected, slots, sizeof expected);
    EXPECT_EQ(0, doorbell_take(b, WORKER, slots, 16));
    munmap(b, sizeof *b);
}

TEST(taking_a_few_at_a_time_takes_all)
{
    static bool had[DOORBELL_SLOTS_MAX];
    struct doorbell_board *b = board_new();
    uint32_t slots[100];
    for (uint32_t most = 1; most <= 100; most += 33) {
        uint32_t marks = 0, taken = 0, n;
        memset(had, 0, sizeof had);
        for (int i = 0; i < 3000; i++) {
            uint32_t slot = (uint32_t)test_random_below(i % 2 ? 128 : DOORBELL_SLOTS_MAX);
            marks += !had[slot];
            had[slot] = true;
            doorbell_mark(b, WORKER, slot, -1);
        }
        do {
            n = doorbell_take(b, WORKER, slots, most);
            REQUIRE(n <= most);
            for (uint32_t i = 0; i < n; i++) {
                EXPECT(had[slots[i]]);
                had[slots[i]] = false;
            }
            taken += n;
        } while (n == most);
        EXPECT_EQ(marks, taken);
        EXPECT(doorbell_sleep(b, WORKER)); /* nothing is left over */
        doorbell_wake(b, WORKER);
    }
    munmap(b, sizeof *b);
}

TEST(only_a_sleeper_is_rung_and_only_once)
{
    struct doorbell_board *b = board_new();
    int fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    uint32_t slots[4];
    EXPECT(!doorbell_mark(b, WORKER, 7, fd));
    EXPECT(!doorbell_sleep(b, WORKER)); /* there is news */
    EXPECT_EQ(1, doorbell_take(b, WORKER, slots, 4));
    EXPECT(doorbell_sleep(b, WORKER));
    EXPECT_EQ(0, rings(fd));
    EXPECT(doorbell_mark(b, WORKER, 8, fd));
    EXPECT(!doorbell_mark(b, WORKER, 9, fd));
    EXPECT_EQ(1, rings(fd));
    doorbell_wake(b, WORKER);
    EXPECT_EQ(2, doorbell_take(b, WORKER, slots, 4));
    EXPECT(doorbell_sleep(b, WORKER));
    doorbell_wake(b, WORKER);
    EXPECT(!doorbell_mark(b, WORKER, 9, fd));
    EXPECT_EQ(0, rings(fd));
    close(fd);
    munmap(b, sizeof *b);
}

TEST(a_bell_that_cannot_be_rung_leaves_the_sleeper_for_the_next)
{
    struct doorbell_board *b = board_new();
    int fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    EXPECT(doorbell_sleep(b, WORKER));
    EXPECT(!doorbell_mark(b, WORKER, 1, -1));
    EXPECT(doorbell_mark(b, WORKER, 1, fd));
    close(fd);
    munmap(b, sizeof *b);
}

TEST(requests_are_news_and_ring_only_who_sleeps)
{
    struct doorbell_board *b = board_new();
    int fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    doorbell_request(b, WORKER, DOORBELL_REQUEST_SEATS, fd);
    doorbell_request(b, WORKER, DOORBELL_REQUEST_WORK, fd);
    EXPECT_EQ(0, rings(fd));
    EXPECT(!doorbell_sleep(b, WORKER));
    EXPECT_EQ(DOORBELL_REQUEST_SEATS | DOORBELL_REQUEST_WORK, doorbell_requests_take(b, WORKER));
    EXPECT_EQ(0, doorbell_requests_take(b, WORKER));
    EXPECT(doorbell_sleep(b, WORKER));
    doorbell_request(b, WORKER, DOORBELL_REQUEST_MAIL, fd);
    EXPECT_EQ(1, rings(fd));
    close(fd);
    munmap(b, sizeof *b);
}

TEST(connections_are_counted_over_all_seats_and_a_fresh_one_has_none)
{
    struct doorbell_board *b = board_new();
    uint32_t other = (WORKER + 1) % atomic_load(&b->worker_count);
    doorbell_connections_set(b, WORKER, 5);
    EXPECT_EQ(5, doorbell_connections(b));
    if (other != WORKER) {
        doorbell_connections_set(b, other, 7);
        EXPECT_EQ(12, doorbell_connections(b));
    }
    doorbell_sit(b, WORKER, 4711);
    EXPECT_EQ(other == WORKER ? 0 : 7, doorbell_connections(b));
    munmap(b, sizeof *b);
}

TEST(who_sits_down_begins_awake_and_without_old_news)
{
    struct doorbell_board *b = board_new();
    uint32_t slot, epoch = atomic_load(&b->seats[WORKER].epoch);
    EXPECT(doorbell_sleep(b, WORKER)); /* and is killed while asleep */
    doorbell_mark(b, WORKER, 5, -1);
    doorbell_request(b, WORKER, DOORBELL_REQUEST_ACCESS, -1);
    doorbell_sit(b, WORKER, 4711);
    EXPECT_EQ(epoch + 1, atomic_load(&b->seats[WORKER].epoch));
    EXPECT_EQ(4711, atomic_load(&b->seats[WORKER].pid));
    EXPECT_EQ(0, doorbell_take(b, WORKER, &slot, 1));
    EXPECT_EQ(0, doorbell_requests_take(b, WORKER));
    EXPECT(doorbell_sleep(b, WORKER));
    munmap(b, sizeof *b);
}

/* ---- no wake-up is lost ---- */

#define RINGERS 2
#define SLOTS 200 /* spread over the words by a stride */
#define STRIDE 327
#if defined(__SANITIZE_THREAD__)
#define ROUNDS 100000
#else
#define ROUNDS 500000 /* of each ringer: a million in all */
#endif
#define POLL_TIMEOUT_MS 20000 /* reached only when a wake-up was lost */

static struct {
    struct doorbell_board *board;
    int fd;
    _Atomic uint64_t news[SLOTS], seen_total;
} race;

/* Stores its news, marks, and at random waits until all is seen: so the worker is met
 * awake, falling asleep and asleep. */
static void *ringer_run(void *seed)
{
    uint64_t state = *(uint64_t *)seed, rang = 0;
    for (int i = 0; i < ROUNDS; i++) {
        uint64_t random = test_random_from(&state), slot = random % SLOTS;
        atomic_fetch_add_explicit(&race.news[slot], 1, memory_order_relaxed);
        rang += doorbell_mark(race.board, WORKER, (uint32_t)slot * STRIDE, race.fd);
        if ((random >> 32) % 16 == 0)
            for (uint64_t n = (random >> 40) % 300; n; n--) atomic_signal_fence(memory_order_seq_cst);
        if ((random >> 32) % 100 == 1) sched_yield();
    }
    *(uint64_t *)seed = rang;
    return NULL;
}

static bool sleep_until_rung(uint64_t *slept)
{
    if (!doorbell_sleep(race.board, WORKER)) return true;
    struct pollfd bell = {.fd = race.fd, .events = POLLIN};
    int ready = poll(&bell, 1, POLL_TIMEOUT_MS);
    doorbell_wake(race.board, WORKER);
    rings(race.fd);
    (*slept)++;
    return ready == 1;
}

TEST(a_million_marks_and_none_is_slept_on)
{
    static uint64_t seen[SLOTS];
    pthread_t ringers[RINGERS];
    uint64_t seeds[RINGERS], total = 0, slept = 0;
    race.board = board_new();
    race.fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    for (int i = 0; i < RINGERS; i++) seeds[i] = test_random();
    for (int i = 0; i < RINGERS; i++) REQUIRE(pthread_create(&ringers[i], NULL, ringer_run, &seeds[i]) == 0);
    while (total < (uint64_t)RINGERS * ROUNDS) {
        uint32_t slots[32], n = doorbell_take(race.board, WORKER, slots, 32);
        for (uint32_t i = 0; i < n; i++) {
            uint32_t index = slots[i] / STRIDE;
            uint64_t now = atomic_load_explicit(&race.news[index], memory_order_relaxed);
            total += now - seen[index];
            seen[index] = now;
        }
        if (n == 0 && !EXPECT(sleep_until_rung(&slept))) break; /* news, and nobody rang */
    }
    for (int i = 0; i < RINGERS; i++) pthread_join(ringers[i], NULL);
    printf("  %" PRIu64 " marks, %" PRIu64 " sleeps, %" PRIu64 " rings\n", total, slept, seeds[0] + seeds[1]);
    close(race.fd);
    munmap(race.board, sizeof *race.board);
}

TEST(each_single_mark_wakes_a_sleeper_in_another_process)
{
    enum { TURNS = 3000 };
    struct doorbell_board *b = board_new();
    int fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC), back = eventfd(0, EFD_CLOEXEC);
    pid_t ringer = fork();
    if (ringer == 0) {
        uint64_t n;
        for (int i = 0; i < TURNS; i++) {
            doorbell_mark(b, WORKER, (uint32_t)i, fd);
            if (read(back, &n, sizeof n) != sizeof n) _exit(1); /* until that one is seen */
        }
        _exit(0);
    }
    for (uint32_t seen = 0; seen < TURNS;) {
        uint32_t slot, n = doorbell_take(b, WORKER, &slot, 1);
        if (n) {
            const uint64_t one = 1;
            EXPECT_EQ(seen, slot);
            seen++;
            REQUIRE(write(back, &one, sizeof one) == sizeof one);
            continue;
        }
        if (!doorbell_sleep(b, WORKER)) continue;
        struct pollfd bell = {.fd = fd, .events = POLLIN};
        int ready = poll(&bell, 1, POLL_TIMEOUT_MS);
        doorbell_wake(b, WORKER);
        rings(fd);
        if (!EXPECT_EQ(1, ready)) {
            kill(ringer, SIGKILL);
            break;
        }
    }
    waitpid(ringer, NULL, 0);
    munmap(b, sizeof *b);
}
