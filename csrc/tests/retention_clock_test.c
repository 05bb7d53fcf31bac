/* SPDX-License-Identifier: Apache-2.0
 *
 * Ages while the wall clock is wrong, or is set: of segments for retention, and of messages for a time to live.
 */
#include "../base/clock.h"
#include "../log/handle.h"
#include "../log/upkeep.h"
#include "log_help.h"

#define DAY_MS INT64_C(86400000)

static struct log *make(const struct log_options *options, struct batch *b)
{
    help_use_clock();
    help_clock_ms = 1000;
    EXPECT_OK(batch_init(b, NULL));
    return help_log(help_path(), options);
}

static int other_boot_id(uint8_t out[16])
{
    memset(out, 3, 16);
    return 0;
}

/* A segment for each of `count` messages, `gap_ms` apart. */
static void fill_apart(struct log *l, struct batch *b, int count, int64_t gap_ms)
{
    for (int i = 0; i < count; i++, help_clock_ms += gap_ms) EXPECT_OK(help_fill(l, b, 5, 1000, NULL));
}

static uint64_t first_after_run(struct log *l)
{
    struct retention_report report;
    EXPECT_OK(retention_run(l, &report, NULL));
    return report.first_offset;
}

TEST(a_clock_that_was_ahead_keeps_nothing_for_good)
{
    struct batch b;
    struct log *l = make(&(struct log_options){.segment_bytes_max = 4096, .retention_age_ms_max = DAY_MS}, &b);
    bool rolled;
    fill_apart(l, &b, 3, 1000);
    help_wrong_ms = 30000 * DAY_MS;
    fill_apart(l, &b, 3, 1000);
    help_wrong_ms = 0;
    fill_apart(l, &b, 3, 1000);
    EXPECT_EQ(0, first_after_run(l));
    help_clock_ms += DAY_MS;
    EXPECT_EQ(40, first_after_run(l)); /* all closed segments */
    batch_free(&b);
    log_close(l);

    /* Nobody writes after the clock was set right. */
    l = make(&(struct log_options){.retention_age_ms_max = DAY_MS}, &b);
    help_wrong_ms = 30000 * DAY_MS;
    fill_apart(l, &b, 1, 1000);
    help_wrong_ms = 0;
    EXPECT_OK(retention_roll_aged(l, DAY_MS / 8, &rolled, NULL));
    EXPECT(rolled);
    EXPECT_EQ(0, first_after_run(l));
    help_clock_ms += DAY_MS + 2000;
    EXPECT_EQ(5, first_after_run(l));
    sys = &sys_real;
    batch_free(&b);
    log_close(l);
}

TEST(within_a_boot_a_clock_that_is_set_neither_removes_nor_keeps)
{
    struct batch b;
    for (int years = -10; years <= 10; years += 20) {
        struct log *l = make(&(struct log_options){.segment_bytes_max = 4096, .retention_age_ms_max = DAY_MS}, &b);
        help_clock_ms = 20000 * DAY_MS;
        fill_apart(l, &b, 5, 1000);
        help_wrong_ms = years * 365 * DAY_MS;
        EXPECT_EQ(0, first_after_run(l));
        help_clock_ms += DAY_MS - 8000;
        EXPECT_EQ(0, first_after_run(l));
        help_clock_ms += 12000;
        EXPECT_EQ(20, first_after_run(l));
        batch_free(&b);
        log_close(l);
    }
    sys = &sys_real;
}

TEST(after_another_boot_nothing_goes_before_the_clock_is_believed)
{
    struct batch b;
    struct log *l = make(&(struct log_options){.segment_bytes_max = 4096, .retention_age_ms_max = 7 * DAY_MS}, &b);
    help_clock_ms = 20000 * DAY_MS;
    help_sys.boot_id = other_boot_id;
    fill_apart(l, &b, 5, DAY_MS);
    help_sys.boot_id = sys_real.boot_id;
    help_clock_ms += DAY_MS;

    REQUIRE(clock_share());
    struct clock_page *page = clock_shared();
    page->held_until_ms = help_clock_ms + 600000;
    help_wrong_ms = page->offset_ms = 400 * DAY_MS;
    EXPECT_EQ(0, first_after_run(l));
    bool rolled;
    EXPECT_OK(retention_roll_aged(l, DAY_MS, &rolled, NULL)); /* the new segment says when by the wrong clock */
    EXPECT(rolled);
    EXPECT_EQ(0, first_after_run(l));
    help_clock_ms += 600000;
    help_wrong_ms = 401 * DAY_MS; /* a step that nobody has seen yet */
    EXPECT_EQ(0, first_after_run(l));
    help_wrong_ms = page->offset_ms = 0;
    EXPECT_EQ(0, first_after_run(l));
    help_clock_ms += 3 * DAY_MS;
    EXPECT_EQ(15, first_after_run(l));
    page->held_until_ms = 0;
    sys = &sys_real;
    batch_free(&b);
    log_close(l);
}

TEST(times_of_another_boot_are_checked_against_each_other)
{
    struct batch b;
    struct log *l = make(&(struct log_options){.segment_bytes_max = 4096, .retention_age_ms_max = 7 * DAY_MS}, &b);
    help_clock_ms = 20000 * DAY_MS;
    help_sys.boot_id = other_boot_id;
    fill_apart(l, &b, 2, 1000);
    help_wrong_ms = 30000 * DAY_MS; /* closed in the future: no younger than the next */
    fill_apart(l, &b, 1, 1000);
    help_wrong_ms = 0;
    fill_apart(l, &b, 2, 1000);
    help_wrong_ms = -19000 * DAY_MS; /* closed long ago: no older than the one before */
    fill_apart(l, &b, 2, 1000);
    help_wrong_ms = 0;
    help_clock_ms += DAY_MS;
    fill_apart(l, &b, 2, 1000);
    help_sys.boot_id = sys_real.boot_id;
    EXPECT_EQ(0, first_after_run(l));
    help_clock_ms += 6 * DAY_MS - 60000;
    EXPECT_EQ(0, first_after_run(l));
    help_clock_ms += 120000;
    EXPECT_EQ(35, first_after_run(l)); /* all that was written before the day's pause */
    sys = &sys_real;
    batch_free(&b);
    log_close(l);
}

static uint64_t older(struct log *l, int64_t age_ms)
{
    uint64_t end;
    EXPECT_OK(retention_older(l, 0, age_ms, &end, NULL));
    return end;
}

TEST(messages_are_older_chunk_by_chunk)
{
    struct batch b;
    struct log *l = make(&(struct log_options){.segment_bytes_max = 4096}, &b);
    EXPECT_EQ(0, older(l, 0));
    for (int i = 0; i < 10; i++, help_clock_ms += 100) EXPECT_OK(help_fill(l, &b, 2, 500, NULL)); /* up to 4 in a segment */
    for (int age = 1; age <= 1000; age++) EXPECT_EQ((uint64_t)(1000 - age + 99) / 100 * 2, older(l, age));
    uint64_t end;
    EXPECT_OK(retention_older(l, 7, 500, &end, NULL));
    EXPECT_EQ(10, end);
    EXPECT_OK(retention_older(l, 15, 500, &end, NULL));
    EXPECT_EQ(15, end);
    sys = &sys_real;
    batch_free(&b);
    log_close(l);
}

TEST(within_a_boot_no_message_is_older_or_younger_because_the_clock_is_set)
{
    struct batch b;
    for (int years = -10; years <= 10; years += 20) {
        struct log *l = make(&(struct log_options){.segment_bytes_max = 4096}, &b);
        help_clock_ms = 20000 * DAY_MS;
        fill_apart(l, &b, 2, 60000);
        help_wrong_ms = years * 365 * DAY_MS;
        fill_apart(l, &b, 2, 60000);
        help_wrong_ms = 0;
        fill_apart(l, &b, 2, 60000);
        help_wrong_ms = years * 365 * DAY_MS;
        for (int i = 0; i <= 6; i++) EXPECT_EQ((uint64_t)(6 - i) * 5, older(l, i * 60000 + 30000));
        sys = &sys_real;
        batch_free(&b);
        log_close(l);
    }
}

TEST(after_another_boot_no_message_is_older_before_the_clock_is_believed)
{
    struct batch b;
    struct log *l = make(&(struct log_options){.segment_bytes_max = 4096}, &b);
    help_clock_ms = 20000 * DAY_MS;
    help_sys.boot_id = other_boot_id;
    fill_apart(l, &b, 4, 60000);
    help_sys.boot_id = sys_real.boot_id;
    EXPECT_EQ(10, older(l, 150000));
    REQUIRE(clock_share());
    clock_shared()->held_until_ms = help_clock_ms + 1;
    EXPECT_EQ(5, older(l, 150000)); /* the first segment was begun in this boot */
    help_clock_ms++;
    EXPECT_EQ(10, older(l, 150000));
    help_wrong_ms = 10 * DAY_MS;
    EXPECT_EQ(5, older(l, 150000));
    clock_shared()->held_until_ms = 0;
    sys = &sys_real;
    batch_free(&b);
    log_close(l);
}
