/* SPDX-License-Identifier: Apache-2.0 */
#include "../log/upkeep.h"

#include "../log/handle.h"
#include "log_help.h"

static struct log *watched;
static unsigned reads;

static ssize_t read_while_nobody_waits(int fd, void *data, size_t size, off_t position)
{
    struct mutex *m = &log_control(watched)->mutex;
    reads++;
    EXPECT_EQ(0, pthread_mutex_trylock(&m->raw));
    mutex_unlock(m);
    return sys_real.pread(fd, data, size, position);
}

static struct log *make(const struct log_options *options, struct batch *b)
{
    help_use_clock();
    help_clock_ms = 1000;
    EXPECT_OK(batch_init(b, NULL));
    return help_log(help_path(), options);
}

TEST(the_example_of_the_specification_holds)
{
    struct batch b;
    struct log *l = make(&(struct log_options){.segment_bytes_max = 50000, .retention_bytes_max = 100000}, &b);
    struct retention_report report;
    batch_limit(&b, log_control(l)->segment_bytes_max);
    for (int i = 0; i < 2000;) {
        uint8_t entry[1004], body[1000] = {0};
        err e = batch_add(&b, entry, help_entry(entry, body, sizeof body), 1);
        if (e == OK) i++;
        else EXPECT_OK(help_append(l, &b, NULL)); /* ERR_FULL: the turn must persist first */
    }
    EXPECT_OK(help_append(l, &b, NULL));
    EXPECT_OK(retention_run(l, &report, NULL));
    EXPECT(report.first_offset > 0);
    struct log_stats stats;
    EXPECT_OK(log_stats(l, &stats, NULL));
    EXPECT(stats.bytes <= 100000 + 50000);
    EXPECT_EQ(report.first_offset, stats.first_offset);
    sys = &sys_real;
    batch_free(&b);
    log_close(l);
}

TEST(the_newest_segment_always_stays)
{
    struct batch b;
    struct log *l = make(&(struct log_options){.segment_bytes_max = 4096, .retention_bytes_max = 1, .retention_age_ms_max = 1}, &b);
    struct retention_report report;
    EXPECT_OK(help_fill(l, &b, 10, 900, NULL));
    help_clock_ms += 100000;
    EXPECT_OK(retention_run(l, &report, NULL));
    EXPECT_EQ(0, report.segments_dropped);
    EXPECT_OK(help_fill(l, &b, 1, 900, NULL));
    EXPECT_OK(retention_run(l, &report, NULL));
    EXPECT_EQ(1, report.segments_dropped);
    EXPECT_EQ(10, report.first_offset);
    sys = &sys_real;
    batch_free(&b);
    log_close(l);
}

TEST(age_is_that_of_a_segments_last_chunk)
{
    struct batch b;
    struct log *l = make(&(struct log_options){.segment_bytes_max = 4096, .retention_age_ms_max = 1000}, &b);
    struct retention_report report;
    for (int i = 0; i < 10; i++) { /* a segment each */
        help_clock_ms = 10000 + 100 * i;
        EXPECT_OK(help_fill(l, &b, 5, 1000, NULL));
    }
    help_clock_ms = 11000;
    EXPECT_OK(retention_run(l, &report, NULL));
    EXPECT_EQ(0, report.segments_dropped);
    help_clock_ms = 11301;
    EXPECT_OK(retention_run(l, &report, NULL));
    EXPECT_EQ(4, report.segments_dropped);
    EXPECT_EQ(20, report.first_offset);
    bool rolled;
    help_clock_ms = 20000;
    EXPECT_OK(retention_roll_aged(l, 1000, &rolled, NULL));
    EXPECT(rolled);
    EXPECT_OK(retention_roll_aged(l, 1000, &rolled, NULL)); /* it is empty now */
    EXPECT(!rolled);
    EXPECT_OK(retention_run(l, &report, NULL));
    EXPECT_EQ(50, report.first_offset);
    sys = &sys_real;
    batch_free(&b);
    log_close(l);
}

/* Age counts from a segment's last chunk, so a stream that is written all the time must be cut up. */
TEST(a_segment_covers_no_more_time_than_was_said)
{
    struct batch b;
    struct log *l = make(&(struct log_options){.retention_age_ms_max = 8000}, &b);
    struct retention_report report;
    bool rolled;
    unsigned rolls = 0;
    for (int i = 0; i < 100; i++) { /* one message each 500 ms, and a look each second */
        help_clock_ms += 500;
        EXPECT_OK(help_fill(l, &b, 1, 50, NULL));
        if (i % 2 == 0) continue;
        EXPECT_OK(retention_roll_aged(l, 1000, &rolled, NULL));
        rolls += rolled;
        EXPECT_OK(retention_run(l, &report, NULL));
    }
    EXPECT_EQ(25, rolls);
    EXPECT(report.first_offset >= 100 - (8000 + 2 * 1000) / 500 - 2);
    help_clock_ms += 9001; /* nothing more is written */
    EXPECT_OK(retention_roll_aged(l, 1000, &rolled, NULL));
    EXPECT_OK(retention_run(l, &report, NULL));
    EXPECT_EQ(100, report.first_offset);
    sys = &sys_real;
    batch_free(&b);
    log_close(l);
}

TEST(what_is_old_goes_also_where_durability_was_asked_for_and_nobody_writes)
{
    struct batch b;
    struct log *l = make(&(struct log_options){.retention_age_ms_max = 1000, .durability = DURABILITY_DISK}, &b);
    struct retention_report report;
    uint64_t durable;
    bool rolled;
    EXPECT_OK(help_fill(l, &b, 5, 100, NULL));
    EXPECT_OK(log_sync(l, &durable, NULL));
    help_clock_ms += 5000;
    EXPECT_OK(retention_roll_aged(l, 1000, &rolled, NULL));
    EXPECT(rolled);
    EXPECT_OK(retention_run(l, &report, NULL));
    EXPECT_EQ(0, report.segments_dropped); /* the new segment's name may still be lost */
    EXPECT_OK(log_sync(l, &durable, NULL));
    EXPECT_EQ(5, durable);
    EXPECT_OK(retention_run(l, &report, NULL));
    EXPECT_EQ(5, report.first_offset);
    sys = &sys_real;
    batch_free(&b);
    log_close(l);
}

TEST(limits_that_are_changed_hold_for_every_handle_at_once)
{
    struct batch b;
    struct log *l = make(&(struct log_options){0}, &b), *other;
    struct retention_report report;
    struct fault f;
    REQUIRE_OK(log_open(l->directory, &other, &f));
    for (int i = 0; i < 10; i++) EXPECT_OK(help_fill(l, &b, 5, 1000, NULL));
    EXPECT_OK(log_set_limits(other, &(struct log_options){.segment_bytes_max = 5000, .retention_bytes_max = 20000, .filter_bytes = 99}, &f));
    EXPECT_EQ(99, log_filter_bytes(l));
    for (int i = 0; i < 10; i++) EXPECT_OK(help_fill(l, &b, 5, 1000, NULL));
    EXPECT_OK(retention_run(l, &report, NULL));
    EXPECT(report.first_offset >= 50);
    EXPECT_ERR(ERR_LIMIT, log_set_limits(other, &(struct log_options){.filter_bytes = 15}, &f));
    EXPECT_ERR(ERR_LIMIT, log_set_limits(other, &(struct log_options){.filter_bytes = 256}, &f));
    EXPECT_ERR(ERR_LIMIT, log_set_limits(other, &(struct log_options){.segment_bytes_max = LOG_SEGMENT_BYTES_MAX + 1}, &f));
    EXPECT_EQ(99, log_filter_bytes(l));
    EXPECT_OK(log_set_limits(other, &(struct log_options){0}, &f));
    EXPECT_EQ(FILTER_BYTES_DEFAULT, log_filter_bytes(l));
    sys = &sys_real;
    batch_free(&b);
    log_close(l);
    log_close(other);
}

TEST(readers_go_on_in_a_segment_that_was_dropped)
{
    struct batch b;
    struct log *l = make(&(struct log_options){.segment_bytes_max = 4096, .retention_bytes_max = 5000}, &b);
    struct retention_report report;
    struct reader r;
    struct help_walk w = {0};
    for (int i = 0; i < 20; i++) EXPECT_OK(help_fill(l, &b, 5, 300, NULL));
    REQUIRE_OK(reader_open(&r, l, READER_FIRST, 0, NULL));
    EXPECT_OK(retention_run(l, &report, NULL));
    EXPECT(report.segments_dropped > 3);
    help_walk_on(&w, &r);
    EXPECT_EQ(0, w.damaged);
    EXPECT_EQ(0, w.first);
    EXPECT_EQ(100, w.next);
    EXPECT(w.messages < 100); /* its own segment, then what is left */
    EXPECT(w.messages > 100 - report.first_offset);
    reader_close(&r);
    sys = &sys_real;
    batch_free(&b);
    log_close(l);
}

TEST(what_is_settled_goes_whatever_the_limits_say)
{
    struct batch b;
    struct log *l = make(&(struct log_options){.segment_bytes_max = 4096}, &b);
    struct retention_report report;
    for (int i = 0; i < 10; i++) EXPECT_OK(help_fill(l, &b, 5, 1000, NULL));
    EXPECT_OK(retention_drop_before(l, 24, &report, NULL));
    EXPECT_EQ(20, report.first_offset);
    EXPECT_OK(retention_drop_before(l, 25, &report, NULL));
    EXPECT_EQ(25, report.first_offset);
    EXPECT_OK(retention_drop_before(l, 1000, &report, NULL));
    EXPECT_EQ(45, report.first_offset);
    sys = &sys_real;
    batch_free(&b);
    log_close(l);
}

TEST(what_is_not_durable_yet_stays_where_durability_was_asked_for)
{
    struct batch b;
    struct log *l = make(&(struct log_options){.segment_bytes_max = 4096, .retention_bytes_max = 1, .durability = DURABILITY_DISK}, &b);
    struct retention_report report;
    uint64_t durable;
    for (int i = 0; i < 5; i++) EXPECT_OK(help_fill(l, &b, 5, 1000, NULL));
    EXPECT_OK(retention_run(l, &report, NULL));
    EXPECT_EQ(0, report.segments_dropped);
    EXPECT_OK(log_sync(l, &durable, NULL));
    EXPECT_OK(retention_run(l, &report, NULL));
    EXPECT_EQ(4, report.segments_dropped);
    sys = &sys_real;
    batch_free(&b);
    log_close(l);
}

/* The beginning of a segment is long out of the page cache, and every append waits for the lock. */
TEST(the_oldest_chunk_is_read_without_the_lock)
{
    struct batch b;
    struct log *l = make(&(struct log_options){.retention_age_ms_max = 1000}, &b);
    bool rolled;
    EXPECT_OK(help_fill(l, &b, 5, 100, NULL));
    watched = l;
    help_sys.pread = read_while_nobody_waits;
    EXPECT_OK(retention_roll_aged(l, 1000, &rolled, NULL));
    EXPECT(!rolled && reads > 0);
    help_clock_ms += 5000;
    help_sys.pread = sys_real.pread;
    EXPECT_OK(retention_roll_aged(l, 1000, &rolled, NULL));
    EXPECT(rolled);
    sys = &sys_real;
    batch_free(&b);
    log_close(l);
}
