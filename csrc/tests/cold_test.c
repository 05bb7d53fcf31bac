/* SPDX-License-Identifier: Apache-2.0
 *
 * What lies only in the object store is read as if it were here.
 */
#include "cold_help.h"

#include "../log/cuts.h"

/* Forty chunks of ten messages, one each 100 ms from 1000 on, two in each segment. */
static struct log *make_log(void)
{
    struct log *l = cold_begin(&(struct log_options){.segment_bytes_max = 4096});
    struct batch b;
    help_use_clock();
    batch_init(&b, NULL);
    for (int i = 0; i < 40; i++) {
        help_clock_ms = 1000 + 100 * i;
        EXPECT_OK(help_fill(l, &b, 10, 300, NULL));
    }
    batch_free(&b);
    return l;
}

static uint64_t attached(struct log *l, enum reader_from from, int64_t value)
{
    struct reader r;
    struct fault f;
    if (!EXPECT_OK(reader_open(&r, l, from, value, &f))) help_fault(&f);
    if (!EXPECT_OK(reader_settle(&r, false, &f))) help_fault(&f);
    uint64_t at = r.next_offset;
    reader_close(&r);
    return at;
}

static const struct stub good = {.first = 7, .next = 19, .bytes = 5000, .oldest_ms = 1, .newest_ms = 9, .seed = 3, .epoch = 2,
                                 .broker_epoch = 5};

TEST(a_stub_says_what_it_was_given_and_no_damaged_one_says_anything)
{
    uint8_t data[STUB_BYTES], bad[STUB_BYTES];
    struct stub out;
    stub_encode(&good, data);
    REQUIRE_OK(stub_decode("stub", data, sizeof data, &out, NULL));
    EXPECT_EQ(0, memcmp(&good, &out, sizeof out));
    for (uint32_t bit = 0; bit < 8 * STUB_BYTES; bit++) {
        memcpy(bad, data, sizeof bad);
        bad[bit / 8] ^= (uint8_t)(1u << bit % 8);
        EXPECT_ERR(ERR_CORRUPT, stub_decode("stub", bad, sizeof bad, &out, NULL));
    }
    EXPECT_ERR(ERR_TRUNCATED, stub_decode("stub", data, sizeof data - 1, &out, NULL));
    memcpy(bad, data, sizeof bad);
    file_header_seal(bad, STUB_BYTES, STUB_MAGIC, STUB_VERSION + 1);
    EXPECT_ERR(ERR_VERSION, stub_decode("stub", bad, sizeof bad, &out, NULL));
}

TEST(a_stub_of_a_segment_that_cannot_be_is_not_written)
{
    struct log *l = make_log();
    struct stub s = good;
    s.next = s.first;
    EXPECT_ERR(ERR_INVALID, stub_write(cold_world.log, &s, NULL));
    s = good;
    s.bytes = SEGMENT_HEADER_BYTES;
    EXPECT_ERR(ERR_INVALID, stub_write(cold_world.log, &s, NULL));
    s = good;
    s.bytes = UINT64_C(1) << 32;
    EXPECT_ERR(ERR_INVALID, stub_write(cold_world.log, &s, NULL));
    cold_end(l);
}

TEST(a_segment_with_a_stub_is_read_from_its_file_while_that_is_here)
{
    struct log *l = make_log();
    cold_all_up(l, 0);
    help_read_all(l, 0, 400); /* with no archiver */
    cold_end(l);
}

TEST(a_log_is_read_across_the_border)
{
    struct log *l = make_log();
    struct log_stats before, after;
    log_stats(l, &before, NULL);
    cold_all_up(l, 10);
    cold_start();
    EXPECT_OK(log_stats(l, &after, NULL));
    EXPECT_EQ(before.first_offset, after.first_offset);
    EXPECT_EQ(before.bytes, after.bytes);
    EXPECT_EQ(before.segment_count, after.segment_count);
    help_read_all(l, 0, 400);
    EXPECT_EQ(10, cold_world.fetched);
    EXPECT_EQ(10, cold_world.questions);
    help_read_all(l, 0, 400);
    EXPECT_EQ(10, cold_world.questions); /* nothing is fetched twice */
    cold_end(l);
}

TEST(every_attachment_is_where_it_was_when_all_was_here)
{
    struct log *l = make_log();
    uint64_t by_offset[401], by_time[60], by_word[3];
    for (uint64_t i = 0; i <= 400; i++) by_offset[i] = attached(l, READER_OFFSET, (int64_t)i);
    for (int i = 0; i < 60; i++) by_time[i] = attached(l, READER_TIMESTAMP, 900 + 77 * i);
    for (int i = 0; i < 3; i++) by_word[i] = attached(l, READER_FIRST + i, 0);
    cold_all_up(l, 19); /* all but the active one */
    EXPECT_EQ(0, cold_world.questions);
    for (uint64_t i = 0; i <= 400; i++) EXPECT_EQ(by_offset[i], attached(l, READER_OFFSET, (int64_t)i));
    for (int i = 0; i < 60; i++) EXPECT_EQ(by_time[i], attached(l, READER_TIMESTAMP, 900 + 77 * i));
    for (int i = 0; i < 3; i++) EXPECT_EQ(by_word[i], attached(l, READER_FIRST + i, 0));
    cold_end(l); /* with no archiver: the index is here */
}

TEST(without_its_index_a_place_in_a_cold_segment_is_found_by_the_first_fetch_that_may_wait)
{
    struct log *l = make_log();
    struct reader r;
    struct fault f;
    uint8_t data[16384];
    uint64_t got;
    cold_all_up(l, 19);
    for (int by_time = 0; by_time < 2; by_time++) {
        uint64_t first[64];
        uint32_t count = cold_segments(l, first, 64);
        for (uint32_t i = 0; i + 1 < count; i++) cold_unlink(first[i], INDEX_SUFFIX);
        cold_start();
        EXPECT_OK(reader_open(&r, l, by_time ? READER_TIMESTAMP : READER_OFFSET, by_time ? 1850 : 95, &f));
        EXPECT_EQ(0, cold_world.questions); /* attaching asks nobody */
        EXPECT(reader_has_more(&r));
        EXPECT_ERR(ERR_NOT_CACHED, reader_fetch(&r, data, sizeof data, true, &got, &f));
        EXPECT_EQ(0, cold_world.questions);
        if (!EXPECT_OK(reader_fetch(&r, data, sizeof data, false, &got, &f))) help_fault(&f);
        EXPECT_EQ(90, r.next_offset);
        struct chunk c;
        EXPECT_OK(reader_chunk(&r, data, got, true, &c, &f));
        EXPECT_EQ(90, c.chunk_id);
        reader_close(&r);
        cold_stop();
        for (uint32_t i = 0; i + 1 < count; i++)
            if (!cold_has(first[i], INDEX_SUFFIX)) cold_copy(cold_world.bucket, cold_world.log, first[i], INDEX_SUFFIX);
    }
    cold_end(l);
}

TEST(a_fetch_that_may_not_wait_says_so_and_a_helper_brings_what_it_wants)
{
    struct log *l = make_log();
    struct reader r;
    struct fault f;
    uint8_t data[16384];
    uint64_t got;
    cold_all_up(l, 10);
    cold_start();
    EXPECT_OK(reader_open(&r, l, READER_OFFSET, 25, &f));
    EXPECT_ERR(ERR_NOT_CACHED, reader_fetch(&r, data, sizeof data, true, &got, &f));
    EXPECT_EQ(0, cold_world.questions);
    EXPECT_OK(cold_bring(cold_world.log, r.segment, r.position, 1 << 20, &f));
    EXPECT_OK(reader_fetch(&r, data, sizeof data, true, &got, &f));
    EXPECT(reader_in_segment(&r, 100) && !reader_in_segment(&r, 100000));
    cold_unlink(r.segment, INDEX_SUFFIX);
    EXPECT_OK(cold_bring(cold_world.log, r.segment, 0, 1, &f)); /* of who does not know his place: the index */
    EXPECT(cold_has(r.segment, INDEX_SUFFIX));
    reader_close(&r);
    cold_end(l);
}

TEST(blocks_that_are_evicted_are_fetched_again_and_their_room_is_free_though_a_reader_has_them_open)
{
    struct log *l = make_log();
    struct reader r;
    struct fault f;
    struct stat st;
    uint8_t data[4096];
    uint64_t got;
    cold_all_up(l, 10);
    cold_start();
    EXPECT_OK(reader_open(&r, l, READER_FIRST, 0, &f));
    EXPECT_OK(reader_fetch(&r, data, sizeof data, false, &got, &f));
    EXPECT_OK(cold_evict(cold_world.log, 0, &f));
    EXPECT(fstat(r.fd, &st) == 0 && st.st_blocks == 0);
    EXPECT_ERR(ERR_NOT_CACHED, reader_fetch(&r, data, sizeof data, true, &got, &f));
    EXPECT_OK(reader_fetch(&r, data, sizeof data, false, &got, &f));
    EXPECT_EQ(2, cold_world.fetched);
    EXPECT_OK(reader_fetch(&r, data, sizeof data, true, &got, &f));
    EXPECT_OK(cold_evict(cold_world.log, 0, &f));
    EXPECT_OK(cold_evict(cold_world.log, 0, &f)); /* twice is no error */
    reader_close(&r);
    cold_end(l);
}

TEST(a_file_of_blocks_that_is_damaged_or_of_another_segment_is_begun_anew)
{
    struct log *l = make_log();
    cold_all_up(l, 10);
    cold_start();
    help_read_all(l, 0, 400);
    cold_unlink(0, COLD_SUFFIX);
    struct file_path from = file_path_numbered(cold_world.log, 20, COLD_SUFFIX), to = file_path_numbered(cold_world.log, 0, COLD_SUFFIX);
    EXPECT(rename(from.text, to.text) == 0);
    to = file_path_numbered(cold_world.log, 40, COLD_SUFFIX);
    int fd = open(to.text, O_RDWR);
    EXPECT_EQ(8, pwrite(fd, "12345678", 8, 8));
    close(fd);
    help_read_all(l, 0, 400);
    EXPECT_EQ(13, cold_world.fetched);
    cold_end(l);
}

TEST(a_block_of_another_size_or_place_is_refused)
{
    struct log *l = make_log();
    struct cold c;
    uint8_t data[64] = {0};
    cold_all_up(l, 10);
    EXPECT_OK(cold_open(&c, cold_world.log, 0, NULL));
    EXPECT_ERR(ERR_INVALID, cold_put(&c, 0, data, sizeof data, NULL));
    EXPECT_ERR(ERR_INVALID, cold_put(&c, 1, data, sizeof data, NULL));
    cold_close(&c);
    EXPECT_ERR(ERR_NOT_FOUND, cold_open(&c, cold_world.log, 12345, NULL));
    cold_end(l);
}

static err first_fetch(struct log *l, struct fault *f)
{
    struct reader r;
    uint8_t data[4096];
    uint64_t got;
    EXPECT_OK(reader_open(&r, l, READER_FIRST, 0, f));
    err e = reader_fetch(&r, data, sizeof data, false, &got, f);
    reader_close(&r);
    return e;
}

TEST(why_something_cannot_be_fetched_is_in_the_fault)
{
    static const struct { const char *answer, *says; } kinds[] = {
        {"{\"ok\":false,\"why\":\"the store said 503\"}", "the store said 503"},
        {"{ \"ok\" : false, \"why\" : \"a \\\"quote\\\" in it\" }", "a \\\"quote\\\" in it"},
        {"{\"ok\":false}", "no reason"},
        {"nonsense", "no reason"},
        {"", "not running"},
    };
    struct log *l = make_log();
    struct fault f;
    cold_all_up(l, 10);
    EXPECT_ERR(ERR_IO, first_fetch(l, &f));
    EXPECT(strstr(f.where, "not running") != NULL);
    cold_start();
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        cold_world.instead = kinds[i].answer;
        EXPECT_ERR(ERR_IO, first_fetch(l, &f));
        if (!EXPECT(strstr(f.where, kinds[i].says) != NULL)) help_fault(&f);
    }
    /* An archiver that says yes and does nothing is asked a few times, and not for ever. */
    cold_world.instead = "{\"ok\":true}";
    int before = cold_world.questions;
    EXPECT_ERR(ERR_IO, first_fetch(l, &f));
    EXPECT(cold_world.questions - before < 10);
    char long_answer[6000];
    memset(long_answer, ' ', sizeof long_answer);
    long_answer[sizeof long_answer - 1] = 0;
    cold_world.instead = long_answer;
    EXPECT_ERR(ERR_IO, first_fetch(l, &f));
    EXPECT(strstr(f.where, "too long") != NULL);
    cold_end(l);
}

static int calls_left;
static bool call_fails(int error)
{
    errno = error;
    return calls_left-- == 0;
}
static int fail_socket(int domain, int type, int protocol) { return call_fails(EMFILE) ? -1 : sys_real.socket(domain, type, protocol); }
static int fail_connect(int fd, const struct sockaddr *a, socklen_t n) { return call_fails(EINTR) ? -1 : sys_real.connect(fd, a, n); }
static ssize_t fail_send(int fd, const void *data, size_t n, int flags)
{
    return call_fails(EINTR) ? -1 : sys_real.send(fd, data, n > 5 ? 5 : n, flags);
}
static ssize_t fail_recv(int fd, void *data, size_t n, int flags)
{
    return call_fails(EINTR) ? -1 : sys_real.recv(fd, data, n > 3 ? 3 : n, flags);
}

static ssize_t never_recv(int fd, void *data, size_t n, int flags)
{
    (void)fd, (void)data, (void)n, (void)flags;
    errno = EAGAIN; /* as when the socket's time limit is over */
    return -1;
}
static int time_is_over(int fd, int level, int name, const void *value, socklen_t n)
{
    if (calls_left-- > 0) return sys_real.setsockopt(fd, level, name, value, n);
    errno = EDOM; /* what a limit below 0 would be */
    return -1;
}

TEST(an_archiver_that_does_not_answer_is_not_waited_for_for_ever)
{
    struct log *l = make_log();
    struct fault f;
    cold_all_up(l, 10);
    help_sys.recv = never_recv;
    help_sys.setsockopt = time_is_over;
    cold_start();
    for (calls_left = 40; calls_left >= 0;) { /* at each step of asking once */
        int left = calls_left;
        EXPECT_ERR(ERR_IO, first_fetch(l, &f));
        EXPECT(strstr(f.where, "did not answer within 120 s") != NULL);
        EXPECT_OK(cold_evict(cold_world.log, 0, NULL));
        calls_left = left > 4 ? left / 2 : left - 1;
    }
    cold_end(l);
    sys = &sys_real; /* the archiver uses it, too */
}

TEST(interrupted_and_short_calls_are_gone_on_with_and_others_are_told)
{
    struct log *l = make_log();
    struct fault f;
    cold_all_up(l, 10);
    help_sys.connect = fail_connect;
    help_sys.send = fail_send;
    help_sys.recv = fail_recv;
    cold_start();
    for (int n = 0; n < 30; n++) {
        calls_left = n;
        EXPECT_OK(first_fetch(l, &f));
        EXPECT_OK(cold_evict(cold_world.log, 0, &f));
    }
    cold_stop();
    help_sys.socket = fail_socket;
    calls_left = 0;
    EXPECT_ERR(ERR_IO, first_fetch(l, &f));
    EXPECT_EQ(EMFILE, f.sys_errno);
    cold_end(l);
    sys = &sys_real;
}

TEST(what_retention_took_meanwhile_is_not_fetched_and_not_waited_for)
{
    struct log *l = make_log();
    struct reader r;
    struct fault f;
    struct retention_report report;
    uint8_t data[4096];
    uint64_t got;
    cold_all_up(l, 10);
    cold_start();
    EXPECT_OK(reader_open(&r, l, READER_FIRST, 0, &f));
    EXPECT_OK(retention_drop_before(l, 100, &report, &f));
    EXPECT_EQ(5, report.segments_dropped);
    EXPECT(!cold_has(0, STUB_SUFFIX) && !cold_has(0, INDEX_SUFFIX) && !cold_has(0, COLD_SUFFIX));
    EXPECT_ERR(ERR_NOT_FOUND, reader_fetch(&r, data, sizeof data, false, &got, &f));
    EXPECT_ERR(ERR_NOT_FOUND, reader_fetch(&r, data, sizeof data, true, &got, &f));
    EXPECT_EQ(0, cold_world.questions);
    reader_close(&r);
    help_read_all(l, 100, 400);
    cold_end(l);
}

TEST(a_reader_goes_on_in_the_file_it_has_open_and_then_from_the_store)
{
    struct log *l = make_log();
    struct reader r;
    struct fault f;
    EXPECT_OK(reader_open(&r, l, READER_FIRST, 0, &f));
    cold_all_up(l, 10);
    cold_start();
    struct help_walk w = {.message = help_message_is_ours};
    help_walk_on(&w, &r);
    EXPECT_EQ(400, w.next);
    EXPECT_EQ(9, cold_world.fetched);
    reader_close(&r);
    cold_end(l);
}

TEST(a_damaged_chunk_of_a_cold_segment_costs_itself_only)
{
    static const struct { uint64_t segment, position; } places[] = {{20, 200}, {40, 8}, {80, 1}};
    struct log *l = make_log();
    cold_all_up(l, 10);
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) { /* entries, and headers */
        struct file_path path = file_path_numbered(cold_world.bucket, places[i].segment, SEGMENT_SUFFIX);
        int fd = open(path.text, O_RDWR);
        EXPECT_EQ(4, pwrite(fd, "????", 4, (off_t)(SEGMENT_HEADER_BYTES + places[i].position)));
        close(fd);
    }
    cold_start();
    struct help_walk w = {.message = help_message_is_ours};
    help_walk_log(&w, l);
    EXPECT_EQ(3, w.damaged);
    EXPECT_EQ(370, w.messages);
    EXPECT_EQ(400, w.next);
    cold_end(l);
}

TEST(a_log_is_cut_and_measured_as_if_all_were_here)
{
    struct log *l = make_log();
    uint64_t cuts[2][64], end[2] = {395, 395}, limit[2], bytes[2];
    uint32_t count[2];
    struct fault f;
    for (int i = 0; i < 2; i++) {
        if (!EXPECT_OK(log_cuts(l, 15, &end[i], 9000, 70, cuts[i], 64, &count[i], &f))) help_fault(&f);
        if (!EXPECT_OK(log_extent(l, 33, 30000, &limit[i], &bytes[i], &f))) help_fault(&f);
        if (i) break;
        cold_all_up(l, 15);
        for (uint64_t segment = 0; segment < 300; segment += 20) cold_unlink(segment, INDEX_SUFFIX);
        cold_start();
    }
    EXPECT(cold_world.questions > 0);
    EXPECT_EQ(0, cold_world.fetched); /* indexes alone */
    EXPECT_EQ(count[0], count[1]);
    EXPECT_MEM_EQ(cuts[0], cuts[1], count[0] * sizeof cuts[0][0]);
    EXPECT_EQ(limit[0], limit[1]);
    EXPECT_EQ(bytes[0], bytes[1]);
    cold_end(l);
}

TEST(chunks_that_a_filter_does_not_take_are_skipped_in_a_cold_segment_too)
{
    struct log *l = cold_begin(&(struct log_options){.segment_bytes_max = 4096});
    struct batch b;
    struct reader r;
    struct filter wanted;
    struct fault f;
    uint32_t skipped;
    help_use_clock();
    batch_init(&b, NULL);
    for (int i = 0; i < 40; i++) {
        batch_filter_size(&b, 16);
        for (int k = 0; k < 10; k++) {
            uint8_t text[300] = {0}, entry[400];
            EXPECT_OK(batch_add(&b, entry, help_entry(entry, text, sizeof text), 1));
            batch_filter(&b, (const uint8_t *)(i == 30 ? "yes" : "no"), i == 30 ? 3 : 2);
        }
        EXPECT_OK(help_append(l, &b, NULL));
    }
    batch_free(&b);
    cold_all_up(l, 17);
    cold_start();
    filter_init(&wanted, false);
    EXPECT_OK(filter_add(&wanted, (const uint8_t *)"yes", 3));
    EXPECT_OK(reader_open(&r, l, READER_FIRST, 0, &f));
    if (!EXPECT_OK(reader_skip(&r, &wanted, 100, false, &skipped, &f))) help_fault(&f);
    EXPECT_EQ(300, r.next_offset);
    reader_close(&r);
    cold_end(l);
}

TEST(a_removed_log_leaves_nothing_of_what_was_cold)
{
    struct log *l = make_log();
    cold_all_up(l, 10);
    cold_start();
    help_read_all(l, 0, 400);
    log_mark_deleted(l);
    EXPECT_OK(log_remove(cold_world.log, NULL));
    EXPECT(access(cold_world.log, F_OK) < 0);
    cold_end(l);
}
