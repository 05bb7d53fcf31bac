/* SPDX-License-Identifier: Apache-2.0
 *
 * The confirmed end of readers: no reader is given a message before its publisher could be confirmed, and every reader
 * gets all confirmed messages.  Failed syncs, killed processes and recoveries never block a reader for ever.
 */
#include <errno.h>

#include "../log/handle.h"
#include "log_help.h"

static struct sys fake;
static int fail_next; /* number of the next sync that fails; 0: none */

static int failing_sync(int fd)
{
    (void)fd;
    if (fail_next && --fail_next == 0) {
        errno = EIO;
        return -1;
    }
    return 0;
}

static struct log *make(uint32_t durability, bool read_unconfirmed)
{
    fake = sys_real;
    fake.fdatasync = failing_sync;
    sys = &fake;
    fail_next = 0;
    return help_log(help_path(), &(struct log_options){.durability = durability, .segment_bytes_max = 4096,
                                                       .read_unconfirmed = read_unconfirmed});
}

static uint64_t attached(struct log *l, enum reader_from from, int64_t value)
{
    struct reader r;
    EXPECT_OK(reader_open(&r, l, from, value, NULL));
    uint64_t at = r.next_offset;
    reader_close(&r);
    return at;
}

/* Expect readers to get exactly the messages [0, next), from every start. */
static void expect_end(struct log *l, uint64_t next)
{
    struct help_walk w = {.message = help_message_is_ours};
    struct log_stats stats;
    help_walk_log(&w, l);
    EXPECT_EQ(next, w.messages);
    EXPECT_EQ(next, w.next);
    EXPECT_EQ(next, attached(l, READER_NEXT, 0));
    EXPECT_EQ(next, attached(l, READER_OFFSET, INT64_MAX));
    EXPECT_EQ(next, attached(l, READER_TIMESTAMP, INT64_MAX));
    EXPECT(attached(l, READER_LAST, 0) <= next);
    EXPECT(next == 0 || attached(l, READER_LAST, 0) < next);
    EXPECT_OK(log_stats(l, &stats, NULL));
    EXPECT_EQ(next, stats.confirmed_offset);
    EXPECT(stats.last_chunk == UINT64_MAX ? next == 0 : stats.last_chunk < next);
    EXPECT_EQ(next, control_confirmed_offset(l->control));
}

static void finish(struct log *l, struct batch *b)
{
    sys = &sys_real;
    batch_free(b);
    log_close(l);
}

TEST(a_reader_of_durability_disk_ends_at_the_newest_sync)
{
    struct log *l = make(DURABILITY_DISK, false);
    struct batch b;
    struct reader r;
    uint64_t durable;
    batch_init(&b, NULL);
    expect_end(l, 0);
    EXPECT_OK(reader_open(&r, l, READER_NEXT, 0, NULL));
    for (uint64_t end = 10; end <= 300; end += 10) {
        EXPECT_OK(help_fill(l, &b, 10, 100, NULL));
        EXPECT(!reader_has_more(&r));
        expect_end(l, end - 10);
        EXPECT_OK(log_sync(l, &durable, NULL));
        EXPECT(reader_has_more(&r));
        struct help_walk w = {.message = help_message_is_ours};
        help_walk_on(&w, &r);
        EXPECT_ERR(ERR_END, w.last);
        EXPECT_EQ(10, w.messages);
        expect_end(l, end);
    }
    reader_close(&r);
    finish(l, &b);
}

TEST(with_durability_os_or_read_unconfirmed_a_reader_ends_at_the_commit)
{
    for (int unconfirmed = 0; unconfirmed < 2; unconfirmed++) {
        struct log *l = make(unconfirmed ? DURABILITY_DISK : DURABILITY_OS, unconfirmed);
        struct batch b;
        batch_init(&b, NULL);
        for (uint64_t end = 10; end <= 200; end += 10) {
            EXPECT_OK(help_fill(l, &b, 10, 100, NULL));
            expect_end(l, end);
        }
        finish(l, &b);
    }
}

TEST(the_option_changes_the_end_of_running_readers)
{
    struct log *l = make(DURABILITY_DISK, false);
    struct batch b;
    struct reader r;
    batch_init(&b, NULL);
    EXPECT_OK(help_fill(l, &b, 10, 100, NULL));
    EXPECT_OK(reader_open(&r, l, READER_FIRST, 0, NULL));
    EXPECT(!reader_has_more(&r));
    EXPECT_OK(log_set_limits(l, &(struct log_options){.segment_bytes_max = 4096, .read_unconfirmed = true}, NULL));
    EXPECT(reader_has_more(&r));
    expect_end(l, 10);
    reader_close(&r);
    finish(l, &b);
}

TEST(closed_segments_are_read_though_the_sync_of_the_active_one_fails)
{
    struct log *l = make(DURABILITY_DISK, false);
    struct batch b;
    struct log_appended last = {0};
    struct commit c;
    uint64_t durable;
    batch_init(&b, NULL);
    while (!last.rolled) EXPECT_OK(help_fill(l, &b, 10, 100, &last));
    control_committed(l->control, &c);
    /* Count the files that a sync of such a log covers: the last of them is the active segment. */
    struct log *other = make(DURABILITY_DISK, false);
    struct log_appended rolled = {0};
    while (!rolled.rolled) EXPECT_OK(help_fill(other, &b, 10, 100, &rolled));
    fail_next = INT32_MAX;
    EXPECT_OK(log_sync(other, &durable, NULL));
    fail_next = INT32_MAX - fail_next;
    log_close(other);
    EXPECT_ERR(ERR_IO, log_sync(l, &durable, NULL));
    EXPECT_EQ(c.segment, durable);
    expect_end(l, c.segment); /* the publishers up to this durable offset are confirmed */
    finish(l, &b);
}

TEST(messages_of_a_failed_sync_are_skipped_until_a_recovery_has_made_them_durable)
{
    struct log *l = make(DURABILITY_DISK, false);
    struct batch b;
    struct reader r;
    struct recovery_report report;
    char path[600];
    uint64_t durable;
    batch_init(&b, NULL);
    EXPECT_OK(help_fill(l, &b, 10, 50, NULL));
    EXPECT_OK(log_sync(l, &durable, NULL));
    EXPECT_OK(reader_open(&r, l, READER_FIRST, 0, NULL));
    EXPECT_OK(help_fill(l, &b, 5, 50, NULL));
    fail_next = 1;
    EXPECT_ERR(ERR_IO, log_sync(l, &durable, NULL));
    EXPECT(!log_sync_failed(l, 0, 10) && log_sync_failed(l, 10, 15));
    expect_end(l, 10);

    EXPECT_OK(help_fill(l, &b, 3, 50, NULL));
    expect_end(l, 10);
    EXPECT_OK(log_sync(l, &durable, NULL));
    struct help_walk w = {.message = help_message_is_ours};
    help_walk_on(&w, &r); /* a reader that began before them */
    EXPECT_ERR(ERR_END, w.last);
    EXPECT_EQ(13, w.messages);
    EXPECT_EQ(18, w.next);
    EXPECT(!reader_has_more(&r));
    reader_close(&r);
    /* And readers that attach within them, behind them and by time. */
    for (int64_t from = 0; from < 18; from++) {
        struct help_walk on = {.message = help_message_is_ours};
        EXPECT_OK(reader_open(&r, l, READER_OFFSET, from, NULL));
        help_walk_on(&on, &r);
        EXPECT_EQ(from < 10 ? 13 : 3, on.messages);
        reader_close(&r);
    }
    EXPECT_EQ(15, attached(l, READER_LAST, 0));
    snprintf(path, sizeof path, "%s", l->directory);
    memset(l->control->boot_id, 1, sizeof l->control->boot_id);
    log_close(l);

    EXPECT_OK(recovery_run(path, &(struct log_options){.durability = DURABILITY_DISK}, NULL, &report, NULL));
    EXPECT(report.ran);
    REQUIRE_OK(log_open(path, &l, NULL));
    expect_end(l, 18);
    finish(l, &b);
}

TEST(a_log_whose_process_was_killed_before_its_sync_is_synced_by_the_next_start)
{
    struct log *l = make(DURABILITY_DISK, false);
    struct batch b;
    struct recovery_report report;
    batch_init(&b, NULL);
    EXPECT_OK(help_fill(l, &b, 10, 50, NULL));
    expect_end(l, 0);
    EXPECT_OK(recovery_run(l->directory, &(struct log_options){.durability = DURABILITY_DISK}, NULL, &report, NULL));
    EXPECT(!report.ran);
    expect_end(l, 10);
    finish(l, &b);
}

TEST(a_page_without_a_confirmed_record_gets_one_at_the_next_start)
{
    for (uint32_t durability = DURABILITY_DISK; durability <= DURABILITY_REMOTE; durability++) {
        struct log *l = make(durability, false);
        struct batch b;
        struct recovery_report report;
        uint64_t durable;
        batch_init(&b, NULL);
        for (int i = 0; i < 20; i++) EXPECT_OK(help_fill(l, &b, 10, 100, NULL));
        if (durability == DURABILITY_DISK) EXPECT_OK(log_sync(l, &durable, NULL));
        /* A page as an older version leaves it. */
        struct control *c = l->control;
        memset(c->confirmed_slots, 0, sizeof c->confirmed_slots);
        atomic_store(&c->confirmed_sequence, 0);
        atomic_store(&c->readers_wait, 0);
        control_remote_set(c, 110);
        EXPECT_OK(recovery_run(l->directory, &(struct log_options){.durability = durability}, NULL, &report, NULL));
        EXPECT(!report.ran);
        EXPECT(control_readers_wait(c));
        expect_end(l, durability == DURABILITY_DISK ? 200 : 110);
        finish(l, &b);
    }
}

/* Return the record with which the archiver confirms the chunks below `offset`. */
static struct commit place_of(struct log *l, uint64_t offset)
{
    struct reader r;
    atomic_store(&l->control->readers_wait, 0);
    EXPECT_OK(reader_open(&r, l, READER_OFFSET, (int64_t)offset, NULL));
    atomic_store(&l->control->readers_wait, 1);
    struct commit c = {.segment = r.segment, .batch_position = r.position, .position = r.position, .next_offset = r.next_offset,
                       .last_chunk = offset - 10, .chunks = UINT64_MAX};
    reader_close(&r);
    return c;
}

TEST(a_reader_of_durability_remote_ends_at_the_archivers_confirm)
{
    struct log *l = make(DURABILITY_REMOTE, false);
    struct batch b;
    uint64_t durable;
    batch_init(&b, NULL);
    for (int i = 0; i < 20; i++) EXPECT_OK(help_fill(l, &b, 10, 100, NULL));
    EXPECT_OK(log_sync(l, &durable, NULL));
    expect_end(l, 0); /* a sync confirms nothing */
    for (uint64_t end = 10; end <= 200; end += 10) {
        struct commit c = end == 200 ? (struct commit){0} : place_of(l, end);
        if (end == 200) control_committed(l->control, &c);
        control_confirm(l->control, &c);
        expect_end(l, end);
        struct commit back = place_of(l, 10);
        control_confirm(l->control, &back); /* an archiver that begins again */
        expect_end(l, end);
    }
    finish(l, &b);
}

TEST(after_another_boot_a_remote_log_is_read_up_to_the_end_of_the_store)
{
    for (int lost = 0; lost < 3; lost++) { /* the old page exists; is missing, as after a restore; is raised */
        struct log *l = make(DURABILITY_REMOTE, false);
        struct batch b;
        struct recovery_report report;
        char path[600], control[700];
        batch_init(&b, NULL);
        for (int i = 0; i < 20; i++) EXPECT_OK(help_fill(l, &b, 10, 100, NULL));
        struct commit c = place_of(l, 110), more = place_of(l, 150);
        control_confirm(l->control, &c);
        memset(l->control->boot_id, 1, sizeof l->control->boot_id);
        snprintf(path, sizeof path, "%s", l->directory);
        snprintf(control, sizeof control, "%s/control", path);
        log_close(l);
        if (lost == 1) EXPECT_EQ(0, unlink(control));
        if (lost == 2) EXPECT_OK(control_old_confirm(path, &more, NULL));
        if (lost == 2) EXPECT_OK(control_old_confirm(path, &c, NULL)); /* a lower record is ignored */
        EXPECT_OK(recovery_run(path, &(struct log_options){.durability = DURABILITY_REMOTE}, NULL, &report, NULL));
        EXPECT(report.ran);
        REQUIRE_OK(log_open(path, &l, NULL));
        expect_end(l, (uint64_t[]){110, 200, 150}[lost]);
        finish(l, &b);
    }
}

TEST(readers_begin_behind_messages_that_retention_deleted_before_the_upload)
{
    struct log *l = make(DURABILITY_REMOTE, false);
    struct batch b;
    struct retention_report report;
    batch_init(&b, NULL);
    for (int i = 0; i < 20; i++) EXPECT_OK(help_fill(l, &b, 10, 100, NULL));
    EXPECT_OK(retention_drop_before(l, 150, &report, NULL));
    EXPECT(report.segments_dropped > 0 && report.first_offset > 0);
    struct help_walk w = {0};
    help_walk_log(&w, l);
    EXPECT_EQ(0, w.messages);
    EXPECT_EQ(report.first_offset, attached(l, READER_NEXT, 0));
    struct commit c;
    control_committed(l->control, &c);
    control_confirm(l->control, &c);
    help_read_all(l, report.first_offset, 200);
    finish(l, &b);
}

/* Random appends, syncs that fail or not, and new segments, against the rule at every step and from every offset:
 * readers get the messages that a sync has covered, except those of a failed sync. */
TEST(at_every_step_of_random_work_readers_have_exactly_the_confirmed_messages)
{
    for (int round = 0; round < 60; round++) {
        struct log *l = make(DURABILITY_DISK, false);
        struct batch b;
        static uint8_t confirmed[4000];
        uint64_t written = 0, durable = 0;
        memset(confirmed, 0, sizeof confirmed);
        batch_init(&b, NULL);
        for (int step = 0; step < 60 && written < 3900; step++) {
            uint64_t what = test_random() % 8;
            if (what < 4) {
                uint64_t count = 1 + test_random() % 20;
                EXPECT_OK(help_fill(l, &b, count, 60, NULL));
                written += count;
            } else {
                fail_next = what == 4 ? 1 + (int)(test_random() % 4) : 0;
                (void)log_sync(l, &durable, NULL);
                fail_next = 0;
            }
            durable = log_durable_offset(l);
            for (uint64_t i = 0; i < written; i++) confirmed[i] = i < durable && !log_sync_failed(l, i, i + 1);
            uint64_t from = test_random() % (written + 1), want = 0;
            for (uint64_t i = from; i < written; i++) want += confirmed[i];
            struct reader r;
            struct help_walk w = {.message = help_message_is_ours};
            EXPECT_OK(reader_open(&r, l, READER_OFFSET, (int64_t)from, NULL));
            bool has_more = reader_has_more(&r);
            uint64_t begins = r.next_offset < from ? r.next_offset : from;
            for (uint64_t i = begins; i < from; i++) want += confirmed[i]; /* a reader gets its whole chunk */
            help_walk_on(&w, &r);
            EXPECT_ERR(ERR_END, w.last);
            EXPECT_EQ(want, w.messages);
            EXPECT(has_more || want == 0);
            EXPECT(w.messages == 0 || w.next <= durable);
            reader_close(&r);
        }
        finish(l, &b);
    }
}
