/* SPDX-License-Identifier: Apache-2.0 */
#include "../shm/groups.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "test.h"

static uint32_t rows[GROUPS_ROWS];

static void *shared_new(size_t size)
{
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) abort();
    return memory;
}

static struct groups *table_new(void)
{
    struct groups *g = shared_new(sizeof *g);
    struct fault f;
    if (groups_init(g, &f) != OK) abort();
    return g;
}

static struct groups_row row_of(uint64_t incarnation, const char *name, int32_t partition, uint32_t worker, uint32_t epoch)
{
    struct groups_row r = {.incarnation = incarnation, .slot = 7, .worker = worker, .epoch = epoch, .partition = partition,
                           .name_bytes = (uint8_t)strlen(name)};
    memcpy(r.name, name, strlen(name));
    return r;
}

static err add(struct groups *g, uint64_t incarnation, const char *name, int32_t partition, uint32_t *row)
{
    struct groups_row r = row_of(incarnation, name, partition, 0, 1);
    struct fault f;
    return groups_add(g, &r, row, &f);
}

static uint32_t count_of(struct groups *g, uint64_t incarnation, const char *name)
{
    return groups_of(g, incarnation, name, (uint32_t)strlen(name), rows);
}

TEST(a_group_is_a_stream_and_a_name)
{
    struct groups *g = table_new();
    uint32_t a, b, c, d;
    EXPECT_OK(groups_lock(g, NULL));
    EXPECT_OK(add(g, 1, "x", -1, &a));
    EXPECT_OK(add(g, 1, "x", -1, &b));
    EXPECT_OK(add(g, 2, "x", -1, &c));
    EXPECT_OK(add(g, 1, "xx", 4, &d));
    EXPECT_EQ(2, count_of(g, 1, "x"));
    EXPECT_EQ(1, count_of(g, 2, "x"));
    EXPECT_EQ(1, count_of(g, 1, "xx"));
    EXPECT_EQ(0, count_of(g, 3, "x"));
    EXPECT_EQ(0, count_of(g, 1, ""));
    EXPECT_EQ(4, groups_all(g, rows));
    EXPECT_EQ(GROUPS_WAITING, groups_state(g, a));
    EXPECT(g->rows[a].number < g->rows[b].number);
    groups_unlock(g);
    munmap(g, sizeof *g);
}

TEST(who_comes_back_is_last_in_the_order_though_its_row_is_used_again)
{
    struct groups *g = table_new();
    uint32_t a, b, again;
    EXPECT_OK(groups_lock(g, NULL));
    EXPECT_OK(add(g, 1, "x", -1, &a));
    EXPECT_OK(add(g, 1, "x", -1, &b));
    groups_set_state(g, a, GROUPS_ACTIVE);
    groups_remove(g, a);
    EXPECT_EQ(1, count_of(g, 1, "x"));
    EXPECT_OK(add(g, 1, "x", -1, &again));
    EXPECT_EQ(a, again);
    EXPECT_EQ(GROUPS_WAITING, groups_state(g, again));
    EXPECT(g->rows[again].number > g->rows[b].number);
    groups_unlock(g);
    munmap(g, sizeof *g);
}

TEST(a_group_has_one_partition_as_long_as_it_has_members)
{
    struct groups *g = table_new();
    uint32_t a, b;
    EXPECT_OK(groups_lock(g, NULL));
    EXPECT_OK(add(g, 1, "x", 2, &a));
    EXPECT_ERR(ERR_INVALID, add(g, 1, "x", 3, &b));
    EXPECT_ERR(ERR_INVALID, add(g, 1, "x", -1, &b));
    EXPECT_OK(add(g, 1, "x", 2, &b));
    groups_remove(g, a);
    groups_remove(g, b);
    EXPECT_OK(add(g, 1, "x", -1, &a));
    groups_unlock(g);
    munmap(g, sizeof *g);
}

TEST(a_name_or_label_beyond_its_limit_is_refused)
{
    struct groups *g = table_new();
    struct groups_row r = row_of(1, "x", -1, 0, 1);
    struct fault f;
    uint32_t row;
    EXPECT_OK(groups_lock(g, NULL));
    r.label_bytes = GROUPS_LABEL_BYTES_MAX + 1;
    EXPECT_ERR(ERR_LIMIT, groups_add(g, &r, &row, &f));
    r.label_bytes = GROUPS_LABEL_BYTES_MAX;
    EXPECT_OK(groups_add(g, &r, &row, &f));
    r.name_bytes = 0;
    EXPECT_ERR(ERR_LIMIT, groups_add(g, &r, &row, &f));
    r.name_bytes = GROUPS_NAME_BYTES_MAX;
    EXPECT_OK(groups_add(g, &r, &row, &f));
    groups_unlock(g);
    munmap(g, sizeof *g);
}

TEST(a_full_table_refuses_and_takes_again_when_one_has_left)
{
    struct groups *g = table_new();
    uint32_t row;
    char name[16];
    for (uint32_t i = 0; i < GROUPS_ROWS; i++) {
        snprintf(name, sizeof name, "g%u", i);
        if (!EXPECT_OK(add(g, 1, name, -1, &row))) break;
    }
    EXPECT_ERR(ERR_FULL, add(g, 1, "one more", -1, &row));
    groups_remove(g, 4711);
    EXPECT_EQ(0, count_of(g, 1, "g4711"));
    EXPECT_EQ(1, count_of(g, 1, "g4712"));
    EXPECT_OK(add(g, 1, "one more", -1, &row));
    EXPECT_EQ(4711, row);
    munmap(g, sizeof *g);
}

TEST(members_are_dead_when_another_process_has_their_seat)
{
    struct groups *g = table_new();
    struct doorbell_board *board = shared_new(sizeof *board);
    struct fault f;
    uint32_t row;
    doorbell_board_init(board, 2, 100);
    doorbell_sit(board, 0, 1);
    doorbell_sit(board, 1, 2);
    for (uint32_t worker = 0; worker < 2; worker++) {
        struct groups_row r = row_of(1, "x", -1, worker, doorbell_epoch(board, worker));
        EXPECT_OK(groups_add(g, &r, &row, &f));
    }
    EXPECT_EQ(0, groups_dead(g, board, rows));
    doorbell_sit(board, 1, 3);
    EXPECT_EQ(1, groups_dead(g, board, rows));
    EXPECT_EQ(1, g->rows[rows[0]].worker);
    munmap(g, sizeof *g);
    munmap(board, sizeof *board);
}

/* ---- kill -9 ---- */

#define CHILDREN 3
#define KILLS 300
#define MICROSECONDS_MAX 3000
#define GROUPS_USED 4
#define MEMBERS_OF_A_CHILD 6

struct shared { struct doorbell_board board; _Atomic uint64_t changes; _Atomic int failed; };

static int by_number(const void *a, const void *b, void *table)
{
    const struct groups *g = table;
    uint64_t x = g->rows[*(const uint32_t *)a].number, y = g->rows[*(const uint32_t *)b].number;
    return (x > y) - (x < y);
}

/* What the broker decides, in short; true when there was something to change. */
static bool decide(struct groups *g, uint64_t incarnation, const char *name)
{
    uint32_t count = count_of(g, incarnation, name), active = UINT32_MAX;
    if (count == 0) return false;
    qsort_r(rows, count, sizeof *rows, by_number, g);
    for (uint32_t i = 0; i < count; i++) {
        if (groups_state(g, rows[i]) == GROUPS_DEACTIVATING) return false;
        if (groups_state(g, rows[i]) == GROUPS_ACTIVE) active = rows[i];
    }
    int32_t partition = g->rows[rows[0]].partition;
    uint32_t chosen = partition >= 0 ? rows[(uint32_t)partition % count] : active != UINT32_MAX ? active : rows[0];
    if (chosen == active) return false;
    if (active == UINT32_MAX) groups_set_state(g, chosen, GROUPS_ACTIVE);
    else groups_set_state(g, active, GROUPS_DEACTIVATING);
    return true;
}

static const char *name_of(unsigned group)
{
    static const char *const names[GROUPS_USED] = {"plain", "p1", "p2", "another plain"};
    return names[group];
}

static int32_t partition_of(unsigned group) { return group == 1 ? 1 : group == 2 ? 2 : -1; }

static void take(struct groups *g)
{
    if (groups_lock(g, NULL) != OK) abort();
    if (!atomic_load(&g->repair_wanted)) return;
    for (unsigned i = 0; i < GROUPS_USED; i++) decide(g, 1, name_of(i));
    atomic_store(&g->repair_wanted, 0);
}

static _Noreturn void child(struct groups *g, struct shared *s, uint32_t me, uint64_t seed)
{
    struct { uint32_t row; unsigned group; } mine[MEMBERS_OF_A_CHILD];
    unsigned count = 0;
    for (;;) {
        unsigned group = (unsigned)(test_random_from(&seed) % GROUPS_USED), what = (unsigned)(test_random_from(&seed) % 3);
        take(g);
        if (what == 0 && count < MEMBERS_OF_A_CHILD) {
            struct groups_row r = row_of(1, name_of(group), partition_of(group), me, doorbell_epoch(&s->board, me));
            if (groups_add(g, &r, &mine[count].row, NULL)) atomic_store(&s->failed, 1);
            mine[count++].group = group;
        } else if (what == 1 && count > 0) {
            unsigned i = (unsigned)(test_random_from(&seed) % count);
            groups_remove(g, mine[i].row);
            group = mine[i].group;
            mine[i] = mine[--count];
        } else {
            for (unsigned i = 0; i < count; i++)
                if (groups_state(g, mine[i].row) == GROUPS_DEACTIVATING) {
                    groups_set_state(g, mine[i].row, GROUPS_WAITING);
                    decide(g, 1, name_of(mine[i].group));
                }
        }
        decide(g, 1, name_of(group));
        groups_unlock(g);
        atomic_fetch_add(&s->changes, 1);
    }
}

static pid_t start(struct groups *g, struct shared *s, uint32_t me)
{
    uint64_t seed = test_random();
    doorbell_sit(&s->board, me, 1);
    pid_t pid = fork();
    if (pid == 0) child(g, s, me, seed);
    return pid;
}

TEST(a_worker_killed_in_the_middle_of_a_change_leaves_groups_that_the_next_one_sets_right)
{
    struct groups *g = table_new();
    struct shared *s = shared_new(sizeof *s);
    pid_t pids[CHILDREN];
    int inherited = 0;
    doorbell_board_init(&s->board, CHILDREN, 1);
    for (uint32_t i = 0; i < CHILDREN; i++) pids[i] = start(g, s, i);
    for (int round = 0; round < KILLS; round++) {
        uint32_t who = (uint32_t)test_random_below(CHILDREN);
        int status;
        usleep((useconds_t)test_random_below(MICROSECONDS_MAX));
        kill(pids[who], SIGKILL);
        waitpid(pids[who], &status, 0);
        EXPECT(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        doorbell_sit(&s->board, who, 1); /* another has the seat: what was its predecessor's is dead */
        EXPECT_OK(groups_lock(g, NULL));
        inherited += atomic_load(&g->repair_wanted) != 0;
        groups_unlock(g);
        take(g);
        uint32_t dead = groups_dead(g, &s->board, rows);
        for (uint32_t i = 0; i < dead; i++) {
            EXPECT_EQ(who, g->rows[rows[i]].worker);
            groups_remove(g, rows[i]);
        }
        for (unsigned i = 0; i < GROUPS_USED; i++) decide(g, 1, name_of(i));
        groups_check(g);
        for (unsigned i = 0; i < GROUPS_USED; i++) {
            EXPECT(!decide(g, 1, name_of(i))); /* deciding again changes nothing */
            uint32_t count = count_of(g, 1, name_of(i)), busy = 0;
            for (uint32_t k = 0; k < count; k++) busy += groups_state(g, rows[k]) != GROUPS_WAITING;
            EXPECT_EQ(count > 0, busy);
        }
        groups_unlock(g);
        pids[who] = start(g, s, who);
    }
    for (uint32_t i = 0; i < CHILDREN; i++) {
        kill(pids[i], SIGKILL);
        waitpid(pids[i], NULL, 0);
    }
    printf("    %d kills, %d of them with the mutex held, %" PRIu64 " changes\n", KILLS, inherited, atomic_load(&s->changes));
    EXPECT_EQ(0, atomic_load(&s->failed));
    EXPECT(atomic_load(&s->changes) > 100);
    munmap(g, sizeof *g);
    munmap(s, sizeof *s);
}
