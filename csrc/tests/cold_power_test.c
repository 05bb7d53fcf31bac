/* SPDX-License-Identifier: Apache-2.0
 *
 * Appending, sending up, giving up what the store has, and a power cut at a random system call, recovery sometimes cut
 * too: all that a finished stub_write spoke of is there, in order and whole, and so are the publishing ids; appending
 * goes on.  Nothing is ever synced for the log itself, so all of this rests on stubs alone.
 */
#include <dirent.h>

#include "cold_help.h"
#include "powercut.h"

#define ROUNDS 600 /* each is one power cut, every third has a second one during recovery; VIBEMQ_POWER_ROUNDS=n: more */

/* With durability `os` valid chunks behind a lost one stay, and offsets have a gap there. */
static struct log_options options = {.segment_bytes_max = 4096, .local_bytes_max = 9000};

static uint64_t log_next(struct log *l)
{
    struct commit c;
    control_committed(log_control(l), &c);
    return c.next_offset;
}

static void append_some(struct log *l, struct batch *b)
{
    uint64_t next = log_next(l);
    for (uint64_t i = 0; i < 1 + test_random_below(9); i++, next++) {
        char text[900];
        memset(text, '.', sizeof text);
        text[snprintf(text, sizeof text, "m%" PRIu64, next)] = ' ';
        text[100 + test_random_below(790)] = 0;
        EXPECT_OK(help_add_tracked(b, "p", next + 1, text));
    }
    EXPECT_OK(help_append(l, b, NULL));
}

/* The oldest that has no stub; offsets below the answer are in the store then. */
static uint64_t send_up_one(struct log *l)
{
    uint64_t first[256];
    uint32_t count = cold_segments(l, first, 256);
    for (uint32_t i = 0; i + 1 < count; i++) {
        struct stub s;
        if (cold_has(first[i], STUB_SUFFIX)) continue;
        cold_copy(cold_world.log, cold_world.bucket, first[i], SEGMENT_SUFFIX);
        cold_copy(cold_world.log, cold_world.bucket, first[i], INDEX_SUFFIX);
        EXPECT_OK(stub_make(cold_world.log, first[i], first[i + 1], 1, &s, NULL));
        EXPECT_OK(stub_write(cold_world.log, &s, NULL));
        return first[i + 1];
    }
    return 0;
}

static void watch(int64_t calls)
{
    char result[200];
    struct dirent *entry;
    snprintf(result, sizeof result, "%s/cut", cold_world.data);
    cut_watch(cold_world.log, result, calls);
    DIR *directory = opendir(cold_world.log);
    while ((entry = readdir(directory)))
        if (entry->d_name[0] != '.') cut_adopt(entry->d_name);
    closedir(directory);
}

/* The machine starts again with what the cut left. */
static void start_again(int number)
{
    char was[200], result[200];
    snprintf(was, sizeof was, "%s/before%d", cold_world.data, number);
    snprintf(result, sizeof result, "%s/cut", cold_world.data);
    EXPECT(rename(cold_world.log, was) == 0 && rename(result, cold_world.log) == 0);
    cut_boot++;
}

static uint64_t gaps_from; /* offsets below it are confirmed */

static void check_message(struct help_walk *w, uint64_t offset, const uint8_t *body, uint32_t bytes)
{
    char text[32];
    int n = snprintf(text, sizeof text, "m%" PRIu64 " ", offset);
    uint64_t *expected = w->context;
    if (bytes < (uint32_t)n || memcmp(body, text, (size_t)n) != 0 || offset < *expected) EXPECT(!"another message");
    if (offset != *expected) EXPECT(options.durability == DURABILITY_OS && *expected >= gaps_from);
    *expected = offset + 1;
}

static void one_round(int number)
{
    struct batch b;
    struct fault f;
    struct recovery_report report;
    struct retention_report dropped;
    uint64_t stored = 0, expected = 0, published = 0;
    sys = &sys_real;
    options.durability = number % 2 ? DURABILITY_OS : DURABILITY_DISK;
    struct log *l = cold_begin(&options);
    log_close(l);
    watch(20 + (int64_t)test_random_below(600));
    /* Made by another boot than the cut's: now is the first time that it counts. */
    EXPECT_OK(recovery_run(cold_world.log, &options, NULL, &report, &f));
    if (!EXPECT_OK(log_open(cold_world.log, &l, &f))) return;
    batch_init(&b, NULL);
    while (!cut_disk.cut) {
        uint64_t to;
        switch (test_random_below(6)) {
        case 0: case 1: case 2: append_some(l, &b); break;
        case 3: case 4:
            to = send_up_one(l);
            if (!cut_disk.cut && to) stored = to;
            break;
        default: if (!EXPECT_OK(retention_run(l, &dropped, &f))) help_fault(&f);
        }
        cut_photograph(log_control(l));
    }
    log_close(l);
    start_again(0);
    if (number % 3 == 0) {
        watch((int64_t)test_random_below(60));
        if (!EXPECT_OK(recovery_run(cold_world.log, &options, NULL, &report, &f))) help_fault(&f);
        if (!cut_disk.cut) cut_now();
        start_again(1);
    }
    cut_sys = sys_real;
    cut_sys.boot_id = cut_boot_id;
    if (!EXPECT_OK(recovery_run(cold_world.log, &options, NULL, &report, &f))) help_fault(&f);
    if (!EXPECT_OK(log_open(cold_world.log, &l, &f))) return;
    cold_start();
    gaps_from = stored;
    struct help_walk w = {.message = check_message, .context = &expected};
    help_walk_log(&w, l);
    EXPECT(w.damaged == 0 || options.durability == DURABILITY_OS);
    EXPECT_EQ(0, atomic_load(&log_control(l)->first_offset));
    EXPECT(log_next(l) >= stored);
    log_publisher_sequence(l, "p", 1, &published, NULL);
    if (options.durability == DURABILITY_OS) {
        EXPECT(expected >= stored && expected <= log_next(l) && published >= stored && published <= log_next(l));
    } else {
        EXPECT_EQ(log_next(l), expected);
        EXPECT_EQ(log_next(l), published);
    }
    append_some(l, &b);
    batch_free(&b);
    cold_end(l);
}

TEST(what_was_stored_survives_a_power_cut_at_any_call)
{
    const char *rounds = getenv("VIBEMQ_POWER_ROUNDS");
    int most = rounds ? atoi(rounds) : ROUNDS;
    for (int i = 0; i < most && test_failures == 0; i++) one_round(i);
    sys = &sys_real;
}
