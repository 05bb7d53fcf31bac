/* SPDX-License-Identifier: Apache-2.0
 *
 * Homes are killed at random moments, and processes settle side by side.
 *
 * The home hands out, settles, gives back and skips at random, and notes in shared memory each offset that it
 * has settled.  After each kill a new handle must find every invariant, everything noted still
 * settled, and at most the one that was settled right before the kill settled without a note.
 */
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "ledger_help.h"

#define KILLS 150
#define MICROSECONDS_MAX 6000 /* that a home lives at most before it is killed */
#define OFFSETS_MAX (1u << 24)

struct board {
    _Atomic uint8_t settled[OFFSETS_MAX];
    _Atomic uint64_t skip;    /* noted before a skip: below it anything may be settled */
    _Atomic uint64_t steps, blocks_dropped;
    _Atomic int failed;
};

static struct board *board_new(void)
{
    struct board *b = mmap(NULL, sizeof *b, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (b == MAP_FAILED) exit(2);
    return b;
}

/* ---- a home that is killed ---- */

static void settle_some(struct ledger *l, struct board *b, uint64_t from, uint64_t to)
{
    for (uint64_t at = from; at < to; at++) {
        struct ledger_entry *entry = at < help_base(l) ? NULL : ledger_entry(l, at, NULL);
        if (!entry) continue;
        uint64_t old = atomic_load(&entry->word);
        struct ledger_word w = ledger_unpack(old);
        if (w.state != LEDGER_IN_FLIGHT) continue;
        w.state = LEDGER_SETTLED;
        if (atomic_compare_exchange_strong(&entry->word, &old, ledger_pack(w))) atomic_store(&b->settled[at], 1);
    }
}

static void home(const char *directory, struct board *b, uint64_t seed)
{
    struct ledger *l;
    if (ledger_open(directory, &l, NULL)) _exit(2);
    for (;;) {
        uint64_t base = help_base(l), next = help_next(l), dice = test_random_from(&seed) % 100;
        uint64_t count = 1 + test_random_from(&seed) % 3000;
        uint64_t at = base + (next > base ? test_random_from(&seed) % (next - base) : 0);
        if (next + 2 * 3000 > OFFSETS_MAX) pause(); /* until the next kill */
        if (dice < 40) {
            if (ledger_reserve(l, next + count, NULL)) {
                atomic_store(&b->failed, 1);
                _exit(3);
            }
            for (uint64_t i = next; i < next + count; i++) {
                struct ledger_entry *entry = ledger_entry(l, i, NULL);
                if (atomic_load(&entry->word) != 0) atomic_store(&b->failed, 2);
                ledger_put(entry, (struct ledger_word){.state = LEDGER_IN_FLIGHT});
            }
            ledger_store_next(ledger_control(l), next + count);
        } else if (dice < 70) {
            settle_some(l, b, base, base + count < next ? base + count : next);
        } else if (dice < 85) {
            settle_some(l, b, at, at + 5 * count < next ? at + 5 * count : next);
        } else if (dice < 99) {
            ledger_settle(l, UINT64_MAX, 4);
        } else if (base > OFFSETS_MAX / 4) {
            atomic_store(&b->skip, at);
            ledger_skip(l, at);
        }
        atomic_fetch_add(&b->steps, 1);
    }
}

static pid_t start(const char *directory, struct board *b)
{
    uint64_t seed = test_random();
    pid_t pid = fork();
    if (pid == 0) home(directory, b, seed);
    return pid;
}

static void stop(pid_t pid)
{
    int status;
    kill(pid, SIGKILL);
    waitpid(pid, &status, 0);
    EXPECT(WIFSIGNALED(status));
}

/* What a new home finds.  What was settled without a note is noted. */
static void look(const char *directory, struct board *b)
{
    struct ledger_damage damage;
    EXPECT_OK(ledger_recover(directory, 0, 0, true, &damage, NULL)); /* no kill looks like damage */
    EXPECT(!damage.anew && !damage.page && damage.entries == 0 && damage.blocks == 0);
    struct ledger *l = help_open(directory);
    uint64_t skip = atomic_load(&b->skip), next = help_next(l), without_note = 0;
    for (uint64_t at = 0; at < next; at++) {
        bool settled = help_state(l, at) == LEDGER_SETTLED, noted = atomic_load(&b->settled[at]);
        if (noted) EXPECT(settled);
        if (!settled || noted) continue;
        if (at >= skip) without_note++;
        atomic_store(&b->settled[at], 1);
    }
    EXPECT(without_note <= 1);
    ledger_check(l);
    ledger_close(l);
}

TEST(what_was_settled_stays_settled_whenever_the_home_is_killed)
{
    const char *d = help_directory();
    struct board *b = board_new();
    EXPECT_OK(ledger_create(d, 0, false, NULL));
    for (int kills = 0; kills < KILLS; kills++) {
        pid_t pid = start(d, b);
        usleep((useconds_t)test_random_below(MICROSECONDS_MAX));
        stop(pid);
        look(d, b);
    }
    EXPECT_EQ(0, atomic_load(&b->failed));
    struct ledger *l = help_open(d);
    EXPECT_EQ(0, ledger_verify(l).entries); /* and what lies below base is removed */
    printf("    %d kills, %" PRIu64 " steps, %" PRIu64 " offsets, base %" PRIu64 ", %u blocks left\n", KILLS,
           atomic_load(&b->steps), help_next(l), help_base(l), help_list(d).blocks);
    EXPECT(atomic_load(&b->steps) > KILLS);

    /* And it comes to an end. */
    settle_some(l, b, help_base(l), help_next(l));
    for (uint64_t left = UINT64_MAX; left > 0; left--)
        if (ledger_settle(l, UINT64_MAX, 100) == help_next(l)) break;
    EXPECT_EQ(help_next(l), help_base(l));
    EXPECT(help_list(d).blocks <= 2); /* next's, and one behind it that a dead home had made */
    ledger_close(l);
    munmap(b, sizeof *b);
}

/* ---- settling side by side ---- */

#define SHARED_OFFSETS (10u * BLOCK)

static void settler(const char *directory, struct board *b, uint32_t me, uint64_t seed)
{
    struct ledger *l;
    uint64_t mine = 0;
    if (ledger_open(directory, &l, NULL)) _exit(2);
    for (;;) {
        uint64_t base = help_base(l), next = help_next(l);
        if (base == SHARED_OFFSETS) break;
        if (base >= next) {
            sched_yield();
            continue;
        }
        uint64_t dice = test_random_from(&seed), at = dice % 4 ? base + (dice >> 2) % (next - base) : base;
        uint64_t end = at + 500 < next ? at + 500 : next;
        for (; at < end; at++) {
            struct ledger_entry *entry = ledger_entry(l, at, NULL);
            if (!entry) continue;
            uint64_t old = atomic_load(&entry->word);
            struct ledger_word w = ledger_unpack(old);
            if (w.state != LEDGER_IN_FLIGHT) continue;
            w.state = LEDGER_SETTLED;
            w.worker = me;
            if (!atomic_compare_exchange_strong(&entry->word, &old, ledger_pack(w))) continue;
            if (atomic_fetch_add(&b->settled[at], 1) != 0) atomic_store(&b->failed, 1);
            mine++;
        }
        if (mine % 16 == 0) ledger_trim(l);
    }
    atomic_fetch_add(&b->steps, mine);
    ledger_close(l);
    _exit(0);
}

TEST(each_message_is_settled_by_one_of_two_processes_while_the_home_drops_blocks)
{
    const char *d = help_directory();
    struct board *b = board_new();
    struct ledger *l = help_ledger(d, 0);
    pid_t pids[2];
    for (uint32_t i = 0; i < 2; i++) {
        uint64_t seed = test_random();
        pids[i] = fork();
        if (pids[i] == 0) settler(d, b, i, seed);
    }
    while (help_base(l) < SHARED_OFFSETS) {
        uint64_t next = help_next(l);
        /* Not far ahead, so that the settlers, who guess, come to the end. */
        if (next < SHARED_OFFSETS && next - help_base(l) < 3 * BLOCK)
            help_hand_out(l, next + BLOCK / 2, LEDGER_IN_FLIGHT);
        uint64_t base = help_base(l);
        if (ledger_settle(l, UINT64_MAX, 2) == base) sched_yield();
    }
    for (int i = 0; i < 2; i++) {
        int status;
        waitpid(pids[i], &status, 0);
        EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    EXPECT_EQ(0, atomic_load(&b->failed));
    EXPECT_EQ(SHARED_OFFSETS, atomic_load(&b->steps));
    EXPECT_EQ(0, help_list(d).blocks);
    ledger_check(l);
    ledger_close(l);
    munmap(b, sizeof *b);
}
