/* SPDX-License-Identifier: Apache-2.0
 *
 * Where a reader attaches (every row of the RabbitMQ Streams protocol), and how it
 * follows the log.
 */
#include "../log/reader.h"

#include <errno.h>

#include "../log/handle.h"
#include "log_help.h"

static bool cached;
static ssize_t fake_nowait(int fd, void *data, size_t size, off_t position)
{
    if (cached) return sys_real.pread(fd, data, size, position);
    errno = EAGAIN;
    return -1;
}

static void use_clock(void)
{
    help_use_clock();
    help_sys.pread_nowait = fake_nowait;
}

/* Ten chunks of ten messages, one each 100 ms from 1000 on, over several segments. */
static struct log *make_log(uint64_t segment_bytes)
{
    struct log *l = help_log(help_path(), &(struct log_options){.segment_bytes_max = segment_bytes});
    struct batch b;
    batch_init(&b, NULL);
    for (int i = 0; i < 10; i++) {
        help_clock_ms = 1000 + 100 * i;
        EXPECT_OK(help_fill(l, &b, 10, 300, NULL));
    }
    batch_free(&b);
    return l;
}

/* The id of the first chunk that a reader attached so gets; -1: none. */
static int64_t attach(struct log *l, enum reader_from from, int64_t value)
{
    struct reader r;
    struct help_walk w = {0};
    if (!EXPECT_OK(reader_open(&r, l, from, value, NULL))) return -2;
    bool more = reader_has_more(&r);
    help_walk_on(&w, &r);
    EXPECT_EQ(0, w.damaged);
    EXPECT_EQ(w.chunks > 0, more);
    EXPECT(!reader_has_more(&r));
    EXPECT_EQ(100 - (w.chunks ? w.first : 100), w.messages);
    reader_close(&r);
    return w.chunks ? (int64_t)w.first : -1;
}

static unsigned opens_left;
static int opened;

static int counting_open(const char *path, int flags, mode_t mode)
{
    if (opens_left-- == 0) {
        errno = EMFILE;
        return -1;
    }
    int fd = sys_real.open(path, flags, mode);
    opened += fd >= 0;
    return fd;
}

static int counting_close(int fd)
{
    opened--;
    return sys_real.close(fd);
}

TEST(a_reader_that_could_not_attach_keeps_no_descriptor)
{
    use_clock();
    struct log *l = make_log(4096);
    help_sys.open = counting_open;
    help_sys.close = counting_close;
    for (int64_t time = 900; time <= 2000; time += 50) {
        err e = ERR_IO;
        for (unsigned left = 0; e; left++) {
            struct reader r;
            opens_left = left;
            opened = 0;
            e = reader_open(&r, l, READER_TIMESTAMP, time, NULL);
            EXPECT_EQ(e ? 0 : 1, opened);
            EXPECT_EQ(e ? -1 : r.fd, r.fd);
            if (!e) reader_close(&r);
        }
    }
    sys = &sys_real;
    log_close(l);
}

TEST(every_rule_of_attaching_holds)
{
    use_clock();
    for (int segments = 0; segments < 2; segments++) {
        struct log *l = make_log(segments ? 4096 : 0);
        EXPECT_EQ(0, attach(l, READER_FIRST, 0));
        EXPECT_EQ(90, attach(l, READER_LAST, 0));
        EXPECT_EQ(-1, attach(l, READER_NEXT, 0));
        for (int64_t n = 0; n < 100; n++) EXPECT_EQ(n / 10 * 10, attach(l, READER_OFFSET, n));
        EXPECT_EQ(-1, attach(l, READER_OFFSET, 100));
        EXPECT_EQ(-1, attach(l, READER_OFFSET, 1000000));
        EXPECT_EQ(-1, attach(l, READER_OFFSET, -1)); /* as u64: far past the end */
        EXPECT_EQ(0, attach(l, READER_TIMESTAMP, 0));
        EXPECT_EQ(0, attach(l, READER_TIMESTAMP, -5));
        EXPECT_EQ(0, attach(l, READER_TIMESTAMP, 1000));
        for (int64_t t = 1001; t <= 1900; t++) EXPECT_EQ((t - 1000 + 99) / 100 * 10, attach(l, READER_TIMESTAMP, t));
        EXPECT_EQ(-1, attach(l, READER_TIMESTAMP, 1901));
        EXPECT_EQ(-1, attach(l, READER_TIMESTAMP, INT64_MAX));
        log_close(l);
    }
    sys = &sys_real;
}

TEST(an_empty_log_attaches_everything_to_offset_0)
{
    struct log *l = help_log(help_path(), &(struct log_options){0});
    for (int from = READER_FIRST; from <= READER_TIMESTAMP; from++) {
        struct reader r;
        uint8_t buffer[64];
        uint64_t got;
        REQUIRE_OK(reader_open(&r, l, (enum reader_from)from, 7, NULL));
        EXPECT_EQ(0, r.next_offset);
        EXPECT(!reader_has_more(&r));
        EXPECT_ERR(ERR_END, reader_fetch(&r, buffer, sizeof buffer, false, &got, NULL));
        reader_close(&r);
    }
    struct reader r;
    EXPECT_ERR(ERR_INVALID, reader_open(&r, l, (enum reader_from)9, 0, NULL));
    log_close(l);
}

TEST(what_retention_took_begins_at_the_first_retained)
{
    use_clock();
    struct log *l = make_log(4096);
    struct retention_report report;
    atomic_store(&log_control(l)->retention_bytes_max, 10000);
    EXPECT_OK(retention_run(l, &report, NULL));
    EXPECT(report.first_offset > 0);
    EXPECT_EQ(report.first_offset, attach(l, READER_OFFSET, 0));
    EXPECT_EQ(report.first_offset, attach(l, READER_FIRST, 0));
    EXPECT_EQ(report.first_offset, attach(l, READER_TIMESTAMP, 1000));
    EXPECT_EQ(90, attach(l, READER_LAST, 0));
    sys = &sys_real;
    log_close(l);
}

TEST(last_is_next_when_the_last_chunk_was_dropped)
{
    use_clock();
    struct log *l = make_log(0);
    struct retention_report report;
    bool rolled;
    help_clock_ms += 100000;
    EXPECT_OK(retention_roll_aged(l, 1000, &rolled, NULL));
    EXPECT(rolled);
    EXPECT_EQ(90, attach(l, READER_LAST, 0)); /* in the closed segment */
    EXPECT_EQ(95 / 10 * 10, attach(l, READER_OFFSET, 95));
    EXPECT_EQ(-1, attach(l, READER_TIMESTAMP, 1901));
    atomic_store(&log_control(l)->retention_age_ms_max, 1000);
    EXPECT_OK(retention_run(l, &report, NULL));
    EXPECT_EQ(100, report.first_offset);
    EXPECT_EQ(-1, attach(l, READER_LAST, 0));
    EXPECT_EQ(-1, attach(l, READER_FIRST, 0));
    sys = &sys_real;
    log_close(l);
}

TEST(a_reader_at_the_tail_sees_each_append_across_rolls)
{
    struct log *l = help_log(help_path(), &(struct log_options){.segment_bytes_max = 4096});
    struct batch b;
    struct reader r;
    struct help_walk w = {0};
    batch_init(&b, NULL);
    REQUIRE_OK(reader_open(&r, l, READER_NEXT, 0, NULL));
    for (uint64_t i = 0; i < 300; i++) {
        EXPECT(!reader_has_more(&r));
        EXPECT_OK(help_fill(l, &b, 2, 100, NULL));
        EXPECT(reader_has_more(&r));
        help_walk_on(&w, &r);
        EXPECT_EQ(2 * (i + 1), w.messages);
    }
    EXPECT_EQ(0, w.damaged);
    reader_close(&r);
    batch_free(&b);
    log_close(l);
}

TEST(a_small_buffer_is_told_how_much_the_chunk_needs)
{
    struct log *l = help_log(help_path(), &(struct log_options){0});
    struct batch b;
    struct reader r;
    struct chunk c;
    uint8_t buffer[4096];
    uint64_t got;
    batch_init(&b, NULL);
    EXPECT_OK(help_fill(l, &b, 3, 500, NULL));
    REQUIRE_OK(reader_open(&r, l, READER_FIRST, 0, NULL));
    EXPECT_OK(reader_fetch(&r, buffer, CHUNK_HEADER_BYTES, false, &got, NULL));
    EXPECT_ERR(ERR_TRUNCATED, reader_chunk(&r, buffer, got, true, &c, NULL));
    EXPECT_EQ(CHUNK_HEADER_BYTES + 3 * 504, chunk_bytes(&c));
    EXPECT_OK(reader_fetch(&r, buffer, chunk_bytes(&c), false, &got, NULL));
    EXPECT_OK(reader_chunk(&r, buffer, got, true, &c, NULL));
    reader_advance(&r, &c);
    EXPECT(!reader_has_more(&r));
    EXPECT_ERR(ERR_TRUNCATED, reader_chunk(&r, buffer, 10, true, &c, NULL));
    reader_close(&r);
    batch_free(&b);
    log_close(l);
}

TEST(the_rest_of_a_chunk_is_fetched_from_any_of_its_bytes)
{
    struct log *l = help_log(help_path(), &(struct log_options){0});
    struct batch b;
    struct reader r;
    struct chunk c;
    uint8_t whole[4096], pieces[4096];
    uint64_t got;
    batch_init(&b, NULL);
    for (int i = 0; i < 2; i++) EXPECT_OK(help_fill(l, &b, 3, 500, NULL));
    REQUIRE_OK(reader_open(&r, l, READER_FIRST, 0, NULL));
    for (int i = 0; i < 2; i++) {
        EXPECT_OK(reader_fetch(&r, whole, sizeof whole, false, &got, NULL));
        EXPECT_OK(reader_chunk(&r, whole, got, true, &c, NULL));
        uint64_t size = chunk_bytes(&c);
        for (uint64_t at = 0; at < size; at += got) {
            EXPECT_OK(reader_fetch_rest(&r, at, pieces + at, size - at < 100 ? size - at : 100, i, &got, NULL));
            EXPECT(got > 0 && got <= 100);
        }
        EXPECT_EQ(0, memcmp(whole, pieces, size));
        reader_advance(&r, &c);
    }
    reader_close(&r);
    batch_free(&b);
    log_close(l);
}

TEST(what_is_not_cached_is_left_to_a_helper)
{
    use_clock();
    struct log *l = make_log(0);
    struct reader r;
    uint8_t buffer[64];
    uint64_t got;
    REQUIRE_OK(reader_open(&r, l, READER_FIRST, 0, NULL));
    cached = false;
    EXPECT_ERR(ERR_NOT_CACHED, reader_fetch(&r, buffer, sizeof buffer, true, &got, NULL));
    EXPECT_ERR(ERR_NOT_CACHED, reader_fetch_rest(&r, 1, buffer, CHUNK_HEADER_BYTES, true, &got, NULL));
    EXPECT_OK(reader_fetch(&r, buffer, sizeof buffer, false, &got, NULL));
    cached = true;
    EXPECT_OK(reader_fetch(&r, buffer, sizeof buffer, true, &got, NULL));
    EXPECT_EQ(sizeof buffer, got);
    sys = &sys_real;
    reader_close(&r);
    log_close(l);
}

TEST(bytes_past_the_commit_do_not_exist)
{
    struct log *l = help_log(help_path(), &(struct log_options){0});
    struct batch b;
    struct commit c;
    batch_init(&b, NULL);
    EXPECT_OK(help_fill(l, &b, 5, 100, NULL));
    control_committed(log_control(l), &c);
    char path[600];
    snprintf(path, sizeof path, "%s/%020d.segment", l->directory, 0);
    int fd = open(path, O_RDWR);
    char noise[1000];
    memset(noise, 0x50, sizeof noise);
    EXPECT_EQ(1000, pwrite(fd, noise, sizeof noise, (off_t)c.position));
    close(fd);
    struct help_walk w = {0};
    help_walk_log(&w, l);
    EXPECT_EQ(5, w.messages);
    EXPECT_EQ(0, w.damaged);
    batch_free(&b);
    log_close(l);
}

static bool wrote;
static int open_and_tell(const char *path, int flags, mode_t mode)
{
    if ((flags & O_ACCMODE) != O_RDONLY) wrote = true;
    return sys_real.open(path, flags, mode);
}
static void *map_and_tell(void *address, size_t size, int protection, int flags, int fd, off_t position)
{
    if (protection & PROT_WRITE) wrote = true;
    return sys_real.mmap(address, size, protection, flags, fd, position);
}

TEST(a_process_that_may_only_read_follows_another_that_appends)
{
    use_clock();
    struct log *writer = make_log(4096), *l;
    struct help_walk w = {0};
    struct batch b;
    help_sys.open = open_and_tell;
    help_sys.mmap = map_and_tell;
    wrote = false;
    REQUIRE_OK(log_open_readonly(writer->directory, &l, NULL));
    struct reader r;
    REQUIRE_OK(reader_open(&r, l, READER_FIRST, 0, NULL));
    help_walk_on(&w, &r);
    EXPECT_EQ(100, w.messages);
    EXPECT(!wrote);
    help_sys.open = sys_real.open;
    batch_init(&b, NULL);
    for (int i = 0; i < 5; i++) EXPECT_OK(help_fill(writer, &b, 10, 300, NULL)); /* it rolls on the way */
    batch_free(&b);
    help_sys.open = open_and_tell;
    help_walk_on(&w, &r);
    EXPECT_EQ(150, w.messages);
    EXPECT(!wrote);
    sys = &sys_real;
    reader_close(&r);
    log_close(l);
    log_close(writer);
}

TEST(a_link_is_no_file_of_a_log)
{
    use_clock();
    struct log *writer = make_log(0), *l;
    struct reader r;
    static const char *const names[] = {"00000000000000000000.segment", "control"};
    for (int i = 0; i < 2; i++) {
        struct file_path path = file_path_name(writer->directory, names[i]);
        struct file_path moved = file_path_name(writer->directory, "elsewhere");
        REQUIRE_OK(log_open_readonly(writer->directory, &l, NULL));
        EXPECT_EQ(0, rename(path.text, moved.text));
        EXPECT_EQ(0, symlink(moved.text, path.text));
        struct log *again = NULL;
        EXPECT_ERR(i == 0 ? OK : ERR_IO, log_open_readonly(writer->directory, &again, NULL));
        EXPECT_ERR(i == 0 ? ERR_IO : OK, reader_open(&r, l, READER_FIRST, 0, NULL));
        reader_close(&r);
        log_close(again);
        log_close(l);
        EXPECT_EQ(0, rename(moved.text, path.text));
    }
    sys = &sys_real;
    log_close(writer);
}
