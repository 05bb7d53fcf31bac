/* SPDX-License-Identifier: Apache-2.0
 *
 * What of a log stays here, and how one is recovered of which the object store has a part, or all.
 */
#include "cold_help.h"

/* Retention takes no time before the software existed for an age. */
#define BEGUN_MS INT64_C(1770000000000)

/* Twenty segments of twenty messages, 100 ms for each ten; publisher "p" has sent one for each. */
static struct log *make_log(const struct log_options *options)
{
    struct log_options o = *options;
    struct batch b;
    o.segment_bytes_max = 4096;
    struct log *l = cold_begin(&o);
    help_use_clock();
    batch_init(&b, NULL);
    for (int i = 0; i < 40; i++) {
        help_clock_ms = BEGUN_MS + 100 * i;
        for (int k = 0; k < 10; k++) {
            char text[300];
            memset(text, '.', sizeof text);
            text[snprintf(text, sizeof text, "m%d", 10 * i + k)] = ' ';
            text[sizeof text - 1] = 0;
            EXPECT_OK(help_add_tracked(&b, "p", (uint64_t)(10 * i + k + 1), text));
        }
        EXPECT_OK(help_append(l, &b, NULL));
    }
    batch_free(&b);
    return l;
}

static uint64_t published(struct log *l)
{
    uint64_t id = 0;
    log_publisher_sequence(l, "p", 1, &id, NULL);
    return id;
}

/* ---- retention ---- */

static struct retention_report keep(struct log *l, const struct log_options *limits)
{
    struct retention_report report;
    struct fault f;
    EXPECT_OK(log_set_limits(l, limits, &f));
    if (!EXPECT_OK(retention_run(l, &report, &f))) help_fault(&f);
    return report;
}

static unsigned here(void)
{
    unsigned count = 0;
    for (uint64_t segment = 0; segment < 400; segment += 20) count += cold_has(segment, SEGMENT_SUFFIX);
    return count;
}

TEST(what_is_beyond_the_local_limit_goes_from_here_if_the_store_has_it)
{
    struct log *l = make_log(&(struct log_options){0});
    struct log_stats stats;
    cold_send_up(0, 20);
    cold_send_up(20, 40);
    cold_send_up(60, 80); /* of 40 there is none yet */
    struct retention_report report = keep(l, &(struct log_options){.local_bytes_max = 1});
    EXPECT_EQ(3, report.local_segments);
    EXPECT_EQ(0, report.segments_dropped);
    EXPECT(!cold_has(0, SEGMENT_SUFFIX) && cold_has(0, INDEX_SUFFIX) && cold_has(0, STUB_SUFFIX));
    EXPECT(cold_has(40, SEGMENT_SUFFIX) && cold_has(40, TRACKING_SUFFIX));
    EXPECT(!cold_has(60, SEGMENT_SUFFIX) && !cold_has(60, TRACKING_SUFFIX));
    EXPECT_EQ(17, here());
    EXPECT_EQ(0, keep(l, &(struct log_options){.local_bytes_max = 1}).local_segments);
    EXPECT_OK(log_stats(l, &stats, NULL));
    EXPECT_EQ(0, stats.first_offset);
    cold_start();
    help_read_all(l, 0, 400);
    cold_end(l);
}

TEST(the_newest_stay_here_up_to_the_limit_and_the_active_one_always)
{
    struct log *l = make_log(&(struct log_options){0});
    cold_all_up(l, 0);
    keep(l, &(struct log_options){.local_bytes_max = 30000});
    EXPECT_EQ(4, here());
    EXPECT(cold_has(380, SEGMENT_SUFFIX) && cold_has(320, SEGMENT_SUFFIX) && !cold_has(300, SEGMENT_SUFFIX));
    keep(l, &(struct log_options){.local_bytes_max = 1});
    EXPECT_EQ(1, here());
    cold_start();
    help_read_all(l, 0, 400);
    cold_end(l);
}

TEST(what_is_older_than_the_local_age_goes_from_here)
{
    struct log *l = make_log(&(struct log_options){0});
    cold_all_up(l, 0);
    /* It is 4900; the segment of 200 has its last chunk at 3100. */
    EXPECT_EQ(0, keep(l, &(struct log_options){.local_age_ms_max = 1000000}).local_segments);
    EXPECT_EQ(11, keep(l, &(struct log_options){.local_age_ms_max = 1799}).local_segments);
    EXPECT(cold_has(220, SEGMENT_SUFFIX) && !cold_has(200, SEGMENT_SUFFIX));
    cold_end(l);
}

TEST(a_segment_that_is_not_the_one_that_was_sent_up_stays)
{
    struct log *l = make_log(&(struct log_options){0});
    struct stub s;
    cold_all_up(l, 0);
    EXPECT_OK(stub_read(cold_world.log, 20, &s, NULL));
    s.bytes++;
    EXPECT_OK(stub_write(cold_world.log, &s, NULL));
    EXPECT_OK(stub_read(cold_world.log, 40, &s, NULL));
    s.seed++;
    EXPECT_OK(stub_write(cold_world.log, &s, NULL));
    keep(l, &(struct log_options){.local_bytes_max = 1});
    EXPECT(cold_has(20, SEGMENT_SUFFIX) && cold_has(40, SEGMENT_SUFFIX));
    EXPECT_EQ(3, here());
    cold_end(l);
}

TEST(an_index_that_is_not_whole_is_not_left_to_be_trusted)
{
    struct log *l = make_log(&(struct log_options){0});
    cold_all_up(l, 0);
    struct file_path path = file_path_numbered(cold_world.log, 20, INDEX_SUFFIX);
    EXPECT(truncate(path.text, INDEX_HEADER_BYTES + 5) == 0);
    keep(l, &(struct log_options){.local_bytes_max = 1});
    EXPECT(!cold_has(20, SEGMENT_SUFFIX) && !cold_has(20, INDEX_SUFFIX) && cold_has(0, INDEX_SUFFIX));
    cold_start();
    help_read_all(l, 0, 400);
    cold_end(l);
}

TEST(limits_of_the_log_count_what_is_cold_too_and_leave_nothing_of_it)
{
    struct log *l = make_log(&(struct log_options){0});
    struct log_stats stats;
    cold_all_up(l, 15);
    cold_start();
    help_read_all(l, 0, 400);
    EXPECT_OK(log_stats(l, &stats, NULL));
    struct retention_report report = keep(l, &(struct log_options){.retention_bytes_max = stats.bytes / 2});
    EXPECT_EQ(10, report.segments_dropped);
    for (uint64_t segment = 0; segment < 200; segment += 20)
        EXPECT(!cold_has(segment, STUB_SUFFIX) && !cold_has(segment, COLD_SUFFIX) && !cold_has(segment, INDEX_SUFFIX));
    EXPECT(cold_has(200, STUB_SUFFIX));
    help_read_all(l, 200, 400);
    EXPECT_EQ(2, keep(l, &(struct log_options){.retention_age_ms_max = 1599}).segments_dropped);
    help_read_all(l, 240, 400);
    cold_end(l);
}

/* ---- recovery ---- */

static struct recovery_report report;

static struct log *recovered(void)
{
    struct log *l = NULL;
    struct fault f = {0};
    char path[600];
    snprintf(path, sizeof path, "%s/control", cold_world.log);
    int fd = open(path, O_RDWR);
    if (fd >= 0) {
        EXPECT_EQ(16, pwrite(fd, "another boot....", 16, 8));
        close(fd);
    }
    if (!EXPECT_OK(recovery_run(cold_world.log, &(struct log_options){.segment_bytes_max = 4096}, NULL, &report, &f))) help_fault(&f);
    EXPECT(report.ran);
    if (!EXPECT_OK(log_open(cold_world.log, &l, &f))) help_fault(&f);
    return l;
}

static uint64_t append_one(struct log *l)
{
    struct batch b;
    struct log_appended out;
    batch_init(&b, NULL);
    EXPECT_OK(help_fill(l, &b, 1, 20, &out));
    batch_free(&b);
    return out.first_offset;
}

TEST(cold_segments_are_taken_as_they_are_and_the_rest_is_recovered)
{
    struct log *l = make_log(&(struct log_options){0});
    cold_all_up(l, 12);
    log_close(l);
    l = recovered();
    EXPECT_EQ(0, report.cut_count);
    EXPECT_EQ(0, report.given_back);
    EXPECT_EQ(400, published(l));
    EXPECT_EQ(0, cold_world.questions); /* it asks nobody */
    cold_start();
    help_read_all(l, 0, 400);
    EXPECT_EQ(400, append_one(l));
    cold_end(l);
}

TEST(blocks_do_not_outlive_the_boot_in_which_they_were_fetched)
{
    struct log *l = make_log(&(struct log_options){0});
    cold_all_up(l, 12);
    cold_start();
    help_read_all(l, 0, 400);
    EXPECT(cold_has(0, COLD_SUFFIX));
    cold_end(l);
    l = recovered();
    EXPECT(!cold_has(0, COLD_SUFFIX) && cold_has(0, INDEX_SUFFIX) && cold_has(0, STUB_SUFFIX));
    log_close(l);
}

/* What a machine that was lost leaves: the store, from which stubs are written to an empty directory. */
static void lose_all_but_stubs(bool with_tracking, bool with_indexes)
{
    for (uint64_t segment = 0; segment < 400; segment += 20) {
        if (cold_has(segment, SEGMENT_SUFFIX)) cold_unlink(segment, SEGMENT_SUFFIX);
        if (cold_has(segment, INDEX_SUFFIX) && (!with_indexes || segment == 380)) cold_unlink(segment, INDEX_SUFFIX);
        if (cold_has(segment, TRACKING_SUFFIX) && !(with_tracking && segment == 380)) cold_unlink(segment, TRACKING_SUFFIX);
    }
    char path[600];
    snprintf(path, sizeof path, "%s/control", cold_world.log);
    EXPECT(unlink(path) == 0);
    snprintf(path, sizeof path, "%s/tracking", cold_world.log);
    EXPECT(unlink(path) == 0);
}

TEST(a_log_is_there_again_from_its_stubs_alone)
{
    for (int with_indexes = 0; with_indexes < 2; with_indexes++) {
        struct log *l = make_log(&(struct log_options){0});
        struct commit c;
        struct reader r;
        struct fault f;
        cold_all_up(l, 0);
        log_close(l);
        lose_all_but_stubs(true, with_indexes);
        help_clock_ms = BEGUN_MS - 1000; /* a clock that is wrong does not turn the log back */
        l = recovered();
        control_committed(log_control(l), &c);
        EXPECT_EQ(380, c.segment);
        EXPECT_EQ(380, c.next_offset);
        EXPECT_EQ(BEGUN_MS + 3700, c.timestamp_ms);
        EXPECT_EQ(380, published(l));
        EXPECT_EQ(2, log_control(l)->epoch);
        EXPECT_EQ(0, atomic_load(&log_control(l)->first_offset));
        cold_start();
        help_read_all(l, 0, 380);
        EXPECT_OK(reader_open(&r, l, READER_LAST, 0, &f));
        EXPECT_OK(reader_settle(&r, false, &f));
        EXPECT_EQ(370, r.next_offset);
        reader_close(&r);
        EXPECT_EQ(380, append_one(l));
        control_committed(log_control(l), &c);
        EXPECT_EQ(BEGUN_MS + 3700, c.timestamp_ms);
        cold_end(l);
    }
}

TEST(without_the_publishing_ids_of_the_end_a_log_is_there_all_the_same)
{
    struct log *l = make_log(&(struct log_options){0});
    cold_all_up(l, 0);
    log_close(l);
    lose_all_but_stubs(false, true);
    l = recovered();
    EXPECT_EQ(0, published(l));
    EXPECT_EQ(380, append_one(l));
    log_close(l);
}

TEST(of_an_epoch_that_a_stub_names_a_log_takes_a_higher_one)
{
    struct log *l = make_log(&(struct log_options){0});
    struct stub s;
    cold_all_up(l, 0);
    EXPECT_OK(stub_read(cold_world.log, 40, &s, NULL));
    s.epoch = 77;
    EXPECT_OK(stub_write(cold_world.log, &s, NULL));
    log_close(l);
    l = recovered();
    EXPECT_EQ(78, log_control(l)->epoch);
    log_close(l);
}

TEST(a_segment_that_is_damaged_here_and_whole_in_the_store_is_read_from_there)
{
    /* Torn, emptied, gone wrong in the middle; and nothing of it is put into quarantine. */
    for (int kind = 0; kind < 4; kind++) {
        struct log *l = make_log(&(struct log_options){0});
        cold_all_up(l, 5);
        log_close(l);
        struct file_path path = file_path_numbered(cold_world.log, 200, SEGMENT_SUFFIX);
        if (kind == 0) EXPECT(truncate(path.text, 3000) == 0);
        if (kind == 1) EXPECT(truncate(path.text, 0) == 0);
        if (kind >= 2) {
            int fd = open(path.text, O_RDWR);
            EXPECT_EQ(4, pwrite(fd, "????", 4, kind == 2 ? 500 : SEGMENT_HEADER_BYTES + 2));
            close(fd);
        }
        l = recovered();
        EXPECT_EQ(1, report.given_back);
        EXPECT_EQ(0, report.cut_count);
        EXPECT(!cold_has(200, SEGMENT_SUFFIX));
        EXPECT_EQ(400, published(l));
        cold_start();
        help_read_all(l, 0, 400);
        cold_end(l);
    }
}

TEST(when_the_end_is_lost_a_log_goes_on_where_what_is_stored_ends_and_knows_its_publishers)
{
    for (int kind = 0; kind < 3; kind++) {
        struct log *l = make_log(&(struct log_options){0});
        cold_all_up(l, kind == 2 ? 0 : 5);
        log_close(l);
        struct file_path path = file_path_numbered(cold_world.log, 380, SEGMENT_SUFFIX);
        if (kind == 1) EXPECT(truncate(path.text, 0) == 0); /* with its index, which a power cut may have kept */
        else cold_unlink(380, SEGMENT_SUFFIX);
        if (kind != 1) cold_unlink(380, INDEX_SUFFIX);
        l = recovered();
        EXPECT_EQ(380, published(l));
        cold_start();
        help_read_all(l, 0, 380);
        EXPECT_EQ(380, append_one(l));
        cold_end(l);
    }
}

TEST(a_log_begins_behind_a_hole_and_the_stubs_before_it_are_put_away)
{
    struct log *l = make_log(&(struct log_options){0});
    cold_all_up(l, 19);
    log_close(l);
    cold_unlink(200, STUB_SUFFIX);
    l = recovered();
    EXPECT_EQ(10, report.cut_count);
    EXPECT_EQ(220, atomic_load(&log_control(l)->first_offset));
    EXPECT(!cold_has(180, STUB_SUFFIX) && !cold_has(180, INDEX_SUFFIX) && cold_has(220, STUB_SUFFIX));
    cold_start();
    help_read_all(l, 220, 400);
    cold_end(l);
    /* A hole right below what is here. */
    cold_unlink(360, STUB_SUFFIX);
    l = recovered();
    EXPECT_EQ(220, atomic_load(&log_control(l)->first_offset)); /* the local messages were confirmed: a gap, not the end */
    cold_start();
    struct help_walk w = {0};
    help_walk_log(&w, l);
    EXPECT_EQ(160, w.messages);
    EXPECT_EQ(400, append_one(l));
    cold_end(l);
}

TEST(a_damaged_stub_is_nothing_where_the_segment_is_here_and_a_hole_where_it_is_not)
{
    struct log *l = make_log(&(struct log_options){0});
    cold_all_up(l, 10);
    log_close(l);
    struct file_path path = file_path_numbered(cold_world.log, 240, STUB_SUFFIX);
    EXPECT(truncate(path.text, 10) == 0);
    l = recovered();
    EXPECT_EQ(0, atomic_load(&log_control(l)->first_offset));
    cold_start();
    help_read_all(l, 0, 400);
    cold_end(l);
    path = file_path_numbered(cold_world.log, 100, STUB_SUFFIX);
    EXPECT(truncate(path.text, 10) == 0);
    l = recovered();
    EXPECT_EQ(120, atomic_load(&log_control(l)->first_offset));
    EXPECT_EQ(6, report.cut_count); /* it and those before it are put away, because what they name may be whole */
    cold_start();
    help_read_all(l, 120, 400);
    cold_end(l);
}

TEST(the_oldest_stub_is_put_away_when_it_is_damaged)
{
    struct log *l = make_log(&(struct log_options){0});
    cold_all_up(l, 10);
    log_close(l);
    struct file_path path = file_path_numbered(cold_world.log, 0, STUB_SUFFIX);
    EXPECT(truncate(path.text, 10) == 0);
    l = recovered();
    EXPECT_EQ(20, atomic_load(&log_control(l)->first_offset));
    EXPECT_EQ(1, report.cut_count);
    EXPECT_STR_EQ(path.text, report.cuts[0].path);
    EXPECT(!cold_has(0, STUB_SUFFIX));
    EXPECT(access(report.cuts[0].kept, F_OK) == 0);
    log_close(l);
}

TEST(a_segment_that_is_only_here_stays_also_between_stored_ones)
{
    struct log *l = make_log(&(struct log_options){0});
    cold_all_up(l, 0);
    cold_unlink(100, STUB_SUFFIX);
    for (uint64_t segment = 0; segment < 300; segment += 20)
        if (segment != 100) cold_unlink(segment, SEGMENT_SUFFIX);
    log_close(l);
    l = recovered();
    EXPECT_EQ(0, report.cut_count);
    cold_start();
    help_read_all(l, 0, 400);
    cold_end(l);
}

TEST(a_segment_of_another_history_of_stored_offsets_is_put_away)
{
    struct log *l = make_log(&(struct log_options){0});
    cold_all_up(l, 19);
    cold_copy(cold_world.log, cold_world.log, 380, SEGMENT_SUFFIX);
    log_close(l);
    struct file_path from = file_path_numbered(cold_world.bucket, 100, SEGMENT_SUFFIX), to = file_path_numbered(cold_world.log, 105, SEGMENT_SUFFIX);
    EXPECT(rename(from.text, to.text) == 0);
    l = recovered();
    EXPECT_EQ(1, report.cut_count);
    EXPECT(!cold_has(105, SEGMENT_SUFFIX));
    EXPECT_EQ(0, atomic_load(&log_control(l)->first_offset));
    log_close(l);
}

TEST(a_stub_or_blocks_of_another_version_refuse_the_log_and_nothing_is_written)
{
    for (int of_stub = 0; of_stub < 2; of_stub++) {
        struct log *l = make_log(&(struct log_options){0});
        uint8_t data[64];
        struct fault f;
        cold_all_up(l, 5);
        cold_start();
        help_read_all(l, 0, 400);
        cold_end(l);
        struct file_path path = file_path_numbered(cold_world.log, 20, of_stub ? STUB_SUFFIX : COLD_SUFFIX);
        int fd = open(path.text, O_RDWR);
        EXPECT_EQ(64, pread(fd, data, 64, 0));
        file_header_seal(data, 64, of_stub ? STUB_MAGIC : COLD_MAGIC, 2);
        EXPECT_EQ(64, pwrite(fd, data, 64, 0));
        close(fd);
        EXPECT_ERR(ERR_VERSION, recovery_run(cold_world.log, &(struct log_options){0}, NULL, &report, &f));
    }
}
