/* SPDX-License-Identifier: Apache-2.0
 *
 * Processes that append to one log are killed at random moments, again and again.
 *
 * Each child appends batches of its own numbered messages, with a publisher reference, and
 * notes in shared memory the last number that log_append said OK to.  A child that starts
 * anew goes on with the number after that: what it repeats (it was killed between the
 * commit and the note) deduplication must drop.  In the end every number is there once,
 * in order for each publisher, with every CRC right, and none that was noted is missing.
 */
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "log_help.h"

#define CHILDREN 3
#define KILLS 240
#define MICROSECONDS_MAX 4000 /* that a child lives at most before it is killed */

struct board { _Atomic uint64_t accepted[CHILDREN]; _Atomic uint64_t batches; _Atomic int failed; };

static void child(const char *path, struct board *board, unsigned me, uint64_t seed)
{
    struct log *l;
    struct batch b;
    struct fault f;
    char name[8];
    uint32_t reference;
    if (log_open(path, &l, &f) || batch_init(&b, &f)) _exit(2);
    snprintf(name, sizeof name, "child%u", me);
    for (;;) {
        uint64_t id = atomic_load(&board->accepted[me]);
        unsigned count = 1 + (unsigned)(test_random_from(&seed) % 40);
        batch_reference_add(&b, name, (uint32_t)strlen(name), &reference);
        for (unsigned i = 0; i < count; i++) {
            char text[200];
            uint8_t entry[220];
            int n = snprintf(text, sizeof text, "%u %" PRIu64 " %0*d", me, ++id, (int)(test_random_from(&seed) % 100), 7);
            if (batch_add_tracked(&b, entry, help_entry(entry, text, (uint32_t)n), 1, reference, id)) _exit(3);
        }
        if (help_append(l, &b, NULL)) {
            atomic_store(&board->failed, 1);
            _exit(4);
        }
        atomic_store(&board->accepted[me], id);
        atomic_fetch_add(&board->batches, 1);
    }
}

static void check_order(struct help_walk *w, uint64_t offset, const uint8_t *body, uint32_t bytes)
{
    uint64_t *next = w->context;
    char text[64];
    unsigned who;
    uint64_t id;
    (void)offset;
    snprintf(text, sizeof text, "%.*s", (int)(bytes < 60 ? bytes : 60), (const char *)body);
    if (!EXPECT(sscanf(text, "%u %" SCNu64, &who, &id) == 2 && who < CHILDREN)) return;
    EXPECT_EQ(next[who] + 1, id);
    next[who] = id;
}

static pid_t start(const char *path, struct board *board, unsigned me)
{
    uint64_t seed = test_random();
    pid_t pid = fork();
    if (pid == 0) child(path, board, me, seed);
    return pid;
}

TEST(what_was_accepted_is_there_once_whoever_was_killed)
{
    const char *path = help_path();
    struct board *board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t pids[CHILDREN];
    struct log *l = help_log(path, &(struct log_options){.segment_bytes_max = 40000});
    for (unsigned i = 0; i < CHILDREN; i++) pids[i] = start(path, board, i);
    for (int kill_count = 0; kill_count < KILLS; kill_count++) {
        unsigned who = (unsigned)test_random_below(CHILDREN);
        int status;
        usleep((useconds_t)test_random_below(MICROSECONDS_MAX));
        kill(pids[who], SIGKILL);
        waitpid(pids[who], &status, 0);
        EXPECT(WIFSIGNALED(status));
        pids[who] = start(path, board, who);
    }
    for (unsigned i = 0; i < CHILDREN; i++) {
        kill(pids[i], SIGKILL);
        waitpid(pids[i], NULL, 0);
    }
    EXPECT_EQ(0, atomic_load(&board->failed));

    uint64_t next[CHILDREN] = {0};
    struct help_walk w = {.message = check_order, .context = next};
    help_walk_log(&w, l);
    EXPECT_EQ(0, w.damaged);
    for (unsigned i = 0; i < CHILDREN; i++) {
        char name[8];
        uint64_t sequence;
        EXPECT(next[i] >= atomic_load(&board->accepted[i]));
        snprintf(name, sizeof name, "child%u", i);
        EXPECT_OK(log_publisher_sequence(l, name, (uint32_t)strlen(name), &sequence, NULL)); /* repairs */
        EXPECT_EQ(next[i], sequence);
    }
    struct log_stats stats;
    EXPECT_OK(log_stats(l, &stats, NULL));
    printf("    %d kills, %" PRIu64 " batches, %" PRIu64 " messages, %" PRIu64 " segments\n", KILLS,
           atomic_load(&board->batches), w.messages, stats.segment_count);
    EXPECT(atomic_load(&board->batches) > 100);

    /* And it goes on. */
    struct batch b;
    batch_init(&b, NULL);
    EXPECT_OK(help_add(&b, "alive"));
    EXPECT_OK(help_append(l, &b, NULL));
    batch_free(&b);
    log_close(l);
    munmap(board, sizeof *board);
}
