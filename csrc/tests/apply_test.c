/* SPDX-License-Identifier: Apache-2.0
 *
 * Applying transactions: every message once, in order, whatever is wrong with a block and wherever the walk was killed.
 */
#include <sys/wait.h>

#include "../log/apply.h"
#include "log_help.h"

#define TARGETS 3
#define MESSAGE "%u %-150" PRIu64 /* target and number; so long that segments are closed */

static struct batch batch;

/* A block for `target`: messages "<target> <number>" for the numbers from *number on. */
static uint32_t block(uint8_t *out, uint16_t target, uint64_t *number, uint32_t count)
{
    uint8_t *at = out + 4;
    bytes_store16(at, target);
    at += 2;
    for (uint32_t i = 0; i < count; i++) {
        char text[200];
        int n = snprintf(text, sizeof text, MESSAGE, target, (*number)++);
        at += help_entry(at, text, (uint32_t)n);
    }
    bytes_store32(out, (uint32_t)(at - out - 4));
    return (uint32_t)(at - out);
}

/* `count` blocks, for the targets in turn; numbers go on from `numbers`. */
static struct log *staged(uint32_t count, uint64_t *numbers)
{
    struct log *l = help_log(help_path(), &(struct log_options){.segment_bytes_max = 8192});
    for (uint32_t i = 0; i < count; i++) {
        uint8_t entry[4096];
        uint16_t target = (uint16_t)(i % TARGETS);
        EXPECT_OK(batch_add(&batch, entry, block(entry, target, &numbers[target], 1 + i % 7), 1));
        if (i % 4 == 3) EXPECT_OK(help_append(l, &batch, NULL));
    }
    if (!batch_is_empty(&batch)) EXPECT_OK(help_append(l, &batch, NULL));
    return l;
}

/* Walk a log to its end. */
static err walk(struct apply *a, struct log *from, uint64_t blocks, struct fault *f)
{
    err e = apply_begin(a, from, blocks, f);
    while (!e) e = apply_step(a, f);
    return e == ERR_END ? OK : e;
}

static err apply_all(struct log **from, const uint64_t *blocks, uint32_t count, struct apply_target *targets,
                     struct apply *a)
{
    struct fault f = {0};
    *a = (struct apply){.targets = targets, .target_count = TARGETS, .uncompressed_max = 1u << 20};
    err e = apply_init(a, &f);
    for (uint32_t i = 0; i < count && !e; i++) e = walk(a, from[i], blocks[i], &f);
    if (e) help_fault(&f);
    for (uint32_t i = 0; i < TARGETS && !e; i++) e = targets[i].failed;
    apply_free(a);
    return e;
}

struct seen { uint64_t next; unsigned target; bool wrong; };

static void look(struct help_walk *w, uint64_t offset, const uint8_t *body, uint32_t bytes)
{
    struct seen *seen = w->context;
    char text[200], wanted[200];
    (void)offset;
    snprintf(text, sizeof text, "%.*s", (int)bytes, (const char *)body);
    snprintf(wanted, sizeof wanted, MESSAGE, seen->target, seen->next++);
    if (strcmp(text, wanted)) seen->wrong = true;
}

/* Does the log hold this target's messages up to `end`, each once and in order? */
static bool holds(struct log *l, unsigned target, uint64_t end)
{
    struct seen seen = {.target = target};
    struct help_walk w = {.message = look, .context = &seen};
    help_walk_log(&w, l);
    bool right = EXPECT(!seen.wrong), whole = EXPECT_EQ(end, seen.next), sound = EXPECT_EQ(0, w.damaged);
    return right && whole && sound;
}

static void open_targets(struct apply_target *targets, uint64_t segment_bytes)
{
    for (unsigned i = 0; i < TARGETS; i++)
        targets[i] = (struct apply_target){.log = help_log(help_path(), &(struct log_options){.segment_bytes_max = segment_bytes}),
                                           .next_number = 1};
}

TEST(what_several_transactions_staged_is_there_in_their_order_and_once_however_often_it_is_applied)
{
    uint64_t numbers[TARGETS] = {0}, blocks[2] = {40, 25};
    struct apply_target targets[TARGETS];
    struct apply a;
    batch_init(&batch, NULL);
    struct log *from[2];
    for (int i = 0; i < 2; i++) from[i] = staged((uint32_t)blocks[i], numbers);
    open_targets(targets, 4096);
    for (int turn = 0; turn < 3; turn++) {
        for (unsigned i = 0; i < TARGETS; i++) {
            targets[i].next_number = 1;
            targets[i].messages = 0;
        }
        EXPECT_OK(apply_all(from, blocks, 2, targets, &a));
        EXPECT_EQ(0, a.malformed);
        for (unsigned i = 0; i < TARGETS; i++) {
            uint64_t sequence;
            holds(targets[i].log, i, numbers[i]);
            EXPECT_EQ(numbers[i], targets[i].messages);
            EXPECT_OK(log_publisher_sequence(targets[i].log, TRACKING_TRANSACTIONS, TRACKING_TRANSACTIONS_BYTES, &sequence, NULL));
            EXPECT_EQ(numbers[i], sequence);
        }
    }
    EXPECT(targets[0].rolled);
    for (unsigned i = 0; i < TARGETS; i++) log_close(targets[i].log);
    for (int i = 0; i < 2; i++) log_close(from[i]);
    batch_free(&batch);
}

TEST(only_the_blocks_that_were_decided_count)
{
    uint64_t numbers[TARGETS] = {0}, first[TARGETS], blocks = 9;
    struct apply_target targets[TARGETS];
    struct apply a;
    uint8_t entry[4096];
    batch_init(&batch, NULL);
    struct log *from = staged(9, numbers);
    memcpy(first, numbers, sizeof first);
    EXPECT_OK(batch_add(&batch, entry, block(entry, 0, &numbers[0], 5), 1));
    EXPECT_OK(help_append(from, &batch, NULL));
    open_targets(targets, 4096);
    EXPECT_OK(apply_all(&from, &blocks, 1, targets, &a));
    for (unsigned i = 0; i < TARGETS; i++) {
        holds(targets[i].log, i, first[i]);
        log_close(targets[i].log);
    }
    log_close(from);
    batch_free(&batch);
}

TEST(what_is_malformed_is_passed_over_and_counted_and_the_rest_is_there)
{
    uint8_t entry[4096];
    uint64_t numbers[TARGETS] = {0}, unknown = 0, blocks = 6;
    struct apply_target targets[TARGETS];
    struct apply a;
    batch_init(&batch, NULL);
    struct log *from = help_log(help_path(), &(struct log_options){0});
    EXPECT_OK(batch_add(&batch, entry, block(entry, 0, &numbers[0], 2), 1));
    EXPECT_OK(batch_add(&batch, entry, block(entry, TARGETS, &unknown, 2), 1)); /* no such target */
    EXPECT_OK(batch_add(&batch, entry, help_entry(entry, "", 0), 1));           /* not even that */
    EXPECT_OK(batch_add(&batch, entry, help_entry(entry, "x", 1), 1));
    uint32_t bytes = block(entry, 1, &numbers[1], 3);
    bytes_store32(entry + 4 + 2, 5000); /* its first entry is longer than the block */
    numbers[1] = 0;
    EXPECT_OK(batch_add(&batch, entry, bytes, 1));
    bytes = block(entry, 0, &numbers[0], 1);
    const uint8_t sub_batch[] = {0x80, 0, 9, 0, 0, 0, 4, 0, 0, 0, 4, 0, 0, 0, 0}; /* nine messages in four bytes */
    memcpy(entry + bytes, sub_batch, sizeof sub_batch);
    bytes_store32(entry, bytes - 4 + (uint32_t)sizeof sub_batch);
    EXPECT_OK(batch_add(&batch, entry, bytes + (uint32_t)sizeof sub_batch, 1));
    EXPECT_OK(help_append(from, &batch, NULL));
    open_targets(targets, 0);
    EXPECT_OK(apply_all(&from, &blocks, 1, targets, &a));
    EXPECT_EQ(5, a.malformed);
    for (unsigned i = 0; i < TARGETS; i++) {
        holds(targets[i].log, i, numbers[i]);
        log_close(targets[i].log);
    }
    log_close(from);
    batch_free(&batch);
}

TEST(a_target_that_is_gone_or_refuses_takes_nothing_from_the_others)
{
    uint64_t numbers[TARGETS] = {0}, blocks = 30;
    struct apply_target targets[TARGETS];
    struct apply a;
    batch_init(&batch, NULL);
    struct log *from = staged(30, numbers);
    open_targets(targets, 4096);
    struct log *gone = targets[0].log;
    targets[0].log = NULL;
    log_mark_deleted(targets[1].log);
    EXPECT_ERR(ERR_DELETED, apply_all(&from, &blocks, 1, targets, &a));
    EXPECT_ERR(ERR_DELETED, targets[1].failed);
    holds(targets[2].log, 2, numbers[2]);
    EXPECT_EQ(numbers[0], targets[0].messages);
    log_close(gone);
    log_close(targets[1].log);
    log_close(targets[2].log);
    log_close(from);
    batch_free(&batch);
}

TEST(counting_appends_nothing)
{
    uint64_t numbers[TARGETS] = {0};
    struct apply_target targets[TARGETS];
    struct apply a = {.targets = targets, .target_count = TARGETS, .counts_only = true};
    batch_init(&batch, NULL);
    struct log *from = staged(12, numbers);
    open_targets(targets, 4096);
    EXPECT_OK(apply_init(&a, NULL));
    EXPECT_OK(walk(&a, from, 12, NULL));
    apply_free(&a);
    for (unsigned i = 0; i < TARGETS; i++) {
        EXPECT_EQ(numbers[i], targets[i].messages);
        holds(targets[i].log, i, 0);
        log_close(targets[i].log);
    }
    log_close(from);
    batch_free(&batch);
}

TEST(the_reference_of_transactions_is_never_evicted)
{
    struct log *l = help_log(help_path(), &(struct log_options){0});
    uint64_t sequence = 0;
    uint32_t index;
    uint8_t entry[64];
    batch_init(&batch, NULL);
    EXPECT_OK(batch_reference_add(&batch, TRACKING_TRANSACTIONS, TRACKING_TRANSACTIONS_BYTES, &index));
    EXPECT_OK(batch_add_tracked(&batch, entry, help_entry(entry, "x", 1), 1, index, 7));
    EXPECT_OK(help_append(l, &batch, NULL));
    for (unsigned i = 0; i < 2 * TRACKING_SLOTS; i++) {
        char name[16];
        snprintf(name, sizeof name, "other%u", i);
        EXPECT_OK(help_add_tracked(&batch, name, 1, "y"));
        if (i % 100 == 99) EXPECT_OK(help_append(l, &batch, NULL));
    }
    EXPECT_OK(help_append(l, &batch, NULL));
    EXPECT_OK(log_publisher_sequence(l, TRACKING_TRANSACTIONS, TRACKING_TRANSACTIONS_BYTES, &sequence, NULL));
    EXPECT_EQ(7, sequence);
    EXPECT_ERR(ERR_NOT_FOUND, log_publisher_sequence(l, "other1", 6, &sequence, NULL));
    log_close(l);
    batch_free(&batch);
}

/* ---- killed at every call ---- */

static struct sys counting;
static long calls_left;

static void call(void)
{
    if (calls_left-- == 0) _exit(9);
}

/* Half of it is written, and then the process dies; or it dies before, or behind. */
static ssize_t count_pwritev(int fd, const struct iovec *iov, int count, off_t position)
{
    call();
    if (calls_left == 0 && count > 0) {
        sys_real.pwrite(fd, iov[0].iov_base, iov[0].iov_len / 2, position);
        call();
    }
    ssize_t n = sys_real.pwritev(fd, iov, count, position);
    call();
    return n;
}

static ssize_t count_pwrite(int fd, const void *data, size_t size, off_t position)
{
    call();
    if (calls_left == 0) {
        sys_real.pwrite(fd, data, size / 2, position);
        call();
    }
    ssize_t n = sys_real.pwrite(fd, data, size, position);
    call();
    return n;
}

static int count_open(const char *path, int flags, mode_t mode)
{
    call();
    return sys_real.open(path, flags, mode);
}

static int count_ftruncate(int fd, off_t size)
{
    call();
    return sys_real.ftruncate(fd, size);
}

static int count_rename(const char *source, const char *target)
{
    call();
    return sys_real.rename(source, target);
}

TEST(a_walk_that_is_killed_at_any_call_and_begun_again_leaves_each_message_once)
{
    uint64_t numbers[TARGETS] = {0}, blocks[2] = {23, 14};
    struct log *from[2];
    batch_init(&batch, NULL);
    for (int i = 0; i < 2; i++) from[i] = staged((uint32_t)blocks[i], numbers);
    int status = 0;
    long kills = 0;
    bool is_right = true;
    for (long at = 0; is_right; at++) {
        struct apply_target targets[TARGETS];
        struct apply a;
        open_targets(targets, 4096);
        fflush(stdout);
        pid_t pid = fork();
        if (pid == 0) {
            counting = sys_real;
            counting.open = count_open;
            counting.pwrite = count_pwrite;
            counting.pwritev = count_pwritev;
            counting.ftruncate = count_ftruncate;
            counting.rename = count_rename;
            calls_left = at;
            sys = &counting;
            _exit(apply_all(from, blocks, 2, targets, &a) ? 1 : 0);
        }
        waitpid(pid, &status, 0);
        is_right = EXPECT(WIFEXITED(status) && (WEXITSTATUS(status) == 9 || WEXITSTATUS(status) == 0));
        for (unsigned i = 0; i < TARGETS; i++) targets[i].next_number = 1;
        is_right &= EXPECT_OK(apply_all(from, blocks, 2, targets, &a));
        for (unsigned i = 0; i < TARGETS; i++) {
            is_right &= holds(targets[i].log, i, numbers[i]);
            log_close(targets[i].log);
        }
        if (WIFEXITED(status) && WEXITSTATUS(status) == 0) break;
        kills++;
    }
    printf("    %ld kills\n", kills);
    EXPECT(kills > 30);
    for (int i = 0; i < 2; i++) log_close(from[i]);
    batch_free(&batch);
}
