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

/* The same, begun in another boot while the clock is wrong. */
static struct log *make_before_boot(const struct log_options *options, struct batch *b, int64_t wrong_ms)
{
    help_use_clock();
    help_clock_ms = 20500 * DAY_MS;
    help_wrong_ms = wrong_ms;
    help_sys.boot_id = other_boot_id;
    EXPECT_OK(batch_init(b, NULL));
    return help_log(help_path(), options);
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
        help_clock_ms = 20500 * DAY_MS;
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
    help_clock_ms = 20500 * DAY_MS;
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
    help_clock_ms = 20500 * DAY_MS;
    help_sys.boot_id = other_boot_id;
    fill_apart(l, &b, 2, 1000);
    help_wrong_ms = 30000 * DAY_MS; /* closed in the future: no younger than the next */
    fill_apart(l, &b, 1, 1000);
    help_wrong_ms = 0;
    fill_apart(l, &b, 2, 1000);
    help_wrong_ms = -400 * DAY_MS; /* closed long ago: no older than the one before */
    fill_apart(l, &b, 2, 1000);
    help_wrong_ms = 0;
    help_clock_ms += DAY_MS;
    fill_apart(l, &b, 2, 1000);
    help_sys.boot_id = sys_real.boot_id;
    EXPECT_EQ(0, first_after_run(l));
    help_clock_ms += 6 * DAY_MS - 60000;
    EXPECT_EQ(0, first_after_run(l));
    help_clock_ms += 120000;
    EXPECT_EQ(30, first_after_run(l)); /* all that was closed before the day's pause */
    help_clock_ms += DAY_MS;
    EXPECT_EQ(40, first_after_run(l));
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

/* A message that was stored next to a step may count as stored when its segment was closed: never as older than it is. */
TEST(within_a_boot_no_message_is_older_because_the_clock_is_set_and_none_is_younger_than_the_next_segment)
{
    struct batch b;
    for (int years = -10; years <= 10; years += 20) {
        struct log *l = make(&(struct log_options){.segment_bytes_max = 4096}, &b);
        help_clock_ms = 20500 * DAY_MS;
        fill_apart(l, &b, 2, 60000);
        help_wrong_ms = years * 365 * DAY_MS;
        fill_apart(l, &b, 2, 60000);
        help_wrong_ms = 0;
        fill_apart(l, &b, 2, 60000);
        help_wrong_ms = years * 365 * DAY_MS;
        for (int i = 0; i <= 6; i++) {
            uint64_t end = older(l, i * 60000 + 30000), known = (uint64_t)(6 - i) * 5;
            EXPECT(end == known || end + 5 == known);
        }
        sys = &sys_real;
        batch_free(&b);
        log_close(l);
    }
}

TEST(after_another_boot_no_message_is_older_before_the_clock_is_believed)
{
    struct batch b;
    struct log *l = make(&(struct log_options){.segment_bytes_max = 4096}, &b);
    help_clock_ms = 20500 * DAY_MS;
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

TEST(a_clock_that_is_set_back_within_a_segment_makes_no_message_older)
{
    struct batch b;
    const int64_t back_ms[] = {3600000, 30000};
    REQUIRE(clock_share());
    struct clock_page *page = clock_shared();
    for (int i = 0; i < 2; i++) {
        struct log *l = make(&(struct log_options){.segment_bytes_max = 4096}, &b);
        EXPECT_OK(help_fill(l, &b, 2, 500, NULL));
        help_clock_ms += 7200000;
        help_wrong_ms = -back_ms[i];
        EXPECT_OK(help_fill(l, &b, 2, 500, NULL));
        help_clock_ms += 20000;
        EXPECT_EQ(2, older(l, 1800000));
        EXPECT_EQ(2, older(l, 20001));
        if (back_ms[i] > CLOCK_STEP_MS) { /* set right again: only the page of the clock tells of it */
            help_wrong_ms = 0;
            page->step_ms = back_ms[i];
            page->stepped_ms = help_clock_ms;
            page->steps = 1;
            EXPECT(older(l, 20001) <= 2);
            EXPECT_EQ(4, older(l, 19999));
            page->steps = 0;
            help_wrong_ms = -back_ms[i];
        }
        fill_apart(l, &b, 2, 0); /* the second closes it */
        help_wrong_ms = 0;
        EXPECT_EQ(2, older(l, 20001));
        help_clock_ms += 10000000;
        EXPECT_EQ(14, older(l, 9998000));
        sys = &sys_real;
        batch_free(&b);
        log_close(l);
    }
}

/* The clock was set back and then right, and nobody saw it. */
TEST(no_message_is_older_than_its_segment)
{
    struct batch b;
    struct log *l = make(&(struct log_options){.segment_bytes_max = 4096}, &b);
    help_clock_ms += 7200000;
    help_wrong_ms = -7300000;
    EXPECT_OK(help_fill(l, &b, 2, 500, NULL));
    help_wrong_ms = 0;
    EXPECT_EQ(0, older(l, 7250000));
    help_clock_ms += 60000;
    EXPECT_EQ(2, older(l, 7250000));
    sys = &sys_real;
    batch_free(&b);
    log_close(l);
}

TEST(a_message_of_this_boot_in_a_segment_of_another_is_no_older_since_the_clock_was_set_forward)
{
    struct batch b;
    struct log *l = make_before_boot(&(struct log_options){.segment_bytes_max = 1 << 20}, &b, -300 * DAY_MS);
    REQUIRE(clock_share());
    struct clock_page *page = clock_shared();
    fill_apart(l, &b, 1, 60000);
    help_sys.boot_id = sys_real.boot_id;
    fill_apart(l, &b, 1, 60000);
    help_wrong_ms = 0;
    page->step_ms = 300 * DAY_MS;
    page->stepped_ms = help_clock_ms;
    page->steps = 1;
    EXPECT_EQ(0, older(l, DAY_MS));
    help_clock_ms += DAY_MS;
    EXPECT_EQ(10, older(l, DAY_MS));
    page->steps = 0;
    sys = &sys_real;
    batch_free(&b);
    log_close(l);
}

TEST(a_time_before_the_software_existed_makes_nothing_old)
{
    struct batch b;
    struct log_options options = {.segment_bytes_max = 4096, .retention_age_ms_max = 7 * DAY_MS};
    struct log *l = make_before_boot(&options, &b, -20000 * DAY_MS);
    fill_apart(l, &b, 3, 1000);
    help_sys.boot_id = sys_real.boot_id;
    help_wrong_ms = 0;
    EXPECT_EQ(0, older(l, DAY_MS));
    EXPECT_EQ(0, first_after_run(l));
    fill_apart(l, &b, 2, 1000);
    EXPECT_EQ(0, older(l, DAY_MS));
    EXPECT_EQ(0, first_after_run(l));
    help_clock_ms += 7 * DAY_MS;
    EXPECT_EQ(20, first_after_run(l)); /* a later one is known to be old */
    sys = &sys_real;
    batch_free(&b);
    log_close(l);
}

TEST(a_clock_that_was_set_while_a_segment_was_open_makes_it_no_older)
{
    struct batch b;
    struct log_options options = {.segment_bytes_max = 4096, .retention_age_ms_max = 7 * DAY_MS};
    for (int is_other_boot = 0; is_other_boot <= 1; is_other_boot++) {
        struct log *l = make_before_boot(&options, &b, -300 * DAY_MS);
        fill_apart(l, &b, 1, 1000);
        help_wrong_ms = 0;
        if (is_other_boot) help_sys.boot_id = sys_real.boot_id; /* the next is begun in this one */
        fill_apart(l, &b, 1, 1000);
        help_sys.boot_id = sys_real.boot_id;
        EXPECT_EQ(0, first_after_run(l));
        help_clock_ms += 7 * DAY_MS;
        EXPECT_EQ(5, first_after_run(l));
        sys = &sys_real;
        batch_free(&b);
        log_close(l);
    }
}
