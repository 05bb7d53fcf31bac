/* SPDX-License-Identifier: Apache-2.0
 *
 * A wall clock that is set back and forth: what the chunks' times are, and what a reader by time finds.
 */
#include "../log/handle.h"
#include "../log/reader.h"
#include "../log/upkeep.h"
#include "log_help.h"

#define CHUNKS_MAX 400
#define YEARS_MS INT64_C(2500000000000)

static struct log *l;
static char path[512];
static const struct log_options options = {.segment_bytes_max = 4096};

static struct { int64_t time; uint64_t id; } chunks[CHUNKS_MAX];
static unsigned count;

static void note_chunk(struct help_walk *w, uint64_t offset, const uint8_t *body, uint32_t bytes)
{
    (void)body;
    (void)bytes;
    if (offset != w->chunk->chunk_id) return;
    REQUIRE(count < CHUNKS_MAX);
    chunks[count].time = w->chunk->timestamp_ms;
    chunks[count++].id = offset;
}

/* All chunks by a walk from the first. */
static void scan_all(void)
{
    struct help_walk w = {.message = note_chunk};
    count = 0;
    help_walk_log(&w, l);
    EXPECT_EQ(0, w.damaged);
}

/* Where a reader by time begins; -1: at the end. */
static int64_t begins(int64_t time)
{
    struct reader r;
    struct help_walk w = {0};
    if (!EXPECT_OK(reader_open(&r, l, READER_TIMESTAMP, time, NULL))) return -2;
    help_walk_on(&w, &r);
    reader_close(&r);
    return w.chunks ? (int64_t)w.first : -1;
}

static void expect_as_linear(int64_t time)
{
    for (unsigned i = 0; i < count; i++)
        if (chunks[i].time >= time) {
            EXPECT_EQ((int64_t)chunks[i].id, begins(time));
            return;
        }
    EXPECT_EQ(-1, begins(time));
}

/* At each chunk's time and beside it, a sample of them. */
static void expect_all_as_linear(void)
{
    scan_all();
    for (unsigned i = 0; i < count; i += 1 + (unsigned)(test_random() % 5))
        for (int64_t beside = -1; beside <= 1; beside++) expect_as_linear(chunks[i].time + beside);
    expect_as_linear(INT64_MIN);
    expect_as_linear(INT64_MAX);
}

static void begin(void)
{
    help_use_clock();
    help_clock_ms = YEARS_MS;
    snprintf(path, sizeof path, "%s", help_path());
    l = help_log(path, &options);
}

static void other_boot(void)
{
    struct recovery_report report;
    memset(log_control(l)->boot_id, 7, sizeof log_control(l)->boot_id);
    log_close(l);
    EXPECT_OK(recovery_run(path, &options, NULL, &report, NULL));
    EXPECT(report.ran);
    EXPECT_EQ(0, report.cut_count);
    EXPECT_OK(log_open(path, &l, NULL));
}

static void end(void)
{
    sys = &sys_real;
    log_close(l);
}

TEST(a_clock_that_was_ahead_pins_no_later_chunk)
{
    struct batch b;
    begin();
    EXPECT_OK(batch_init(&b, NULL));
    EXPECT_OK(help_fill(l, &b, 1, 10, NULL));
    help_wrong_ms = YEARS_MS;
    EXPECT_OK(help_fill(l, &b, 1, 10, NULL));
    help_wrong_ms = 0;
    for (int i = 0; i < 3; i++, help_clock_ms += 1000) EXPECT_OK(help_fill(l, &b, 1, 10, NULL));
    scan_all();
    const int64_t times[] = {YEARS_MS, 2 * YEARS_MS, YEARS_MS, YEARS_MS + 1000, YEARS_MS + 2000};
    for (int i = 0; i < 5; i++) EXPECT_EQ(times[i], chunks[i].time);
    EXPECT_EQ(1, begins(YEARS_MS + 2000));

    /* When retention has taken the segment with the wrong time, nothing is left of it. */
    struct retention_report report;
    EXPECT_OK(retention_drop_before(l, 2, &report, NULL));
    EXPECT_EQ(4, begins(YEARS_MS + 2000));
    EXPECT_EQ(-1, begins(YEARS_MS + 2001));
    batch_free(&b);
    end();
}

TEST(a_clock_that_goes_back_by_less_than_a_minute_is_waited_for)
{
    struct batch b;
    struct log_appended a;
    begin();
    EXPECT_OK(batch_init(&b, NULL));
    EXPECT_OK(help_fill(l, &b, 1, 10, NULL));
    help_clock_ms -= 60000;
    EXPECT_OK(help_fill(l, &b, 1, 10, &a));
    EXPECT(!a.rolled);
    help_clock_ms -= 1;
    EXPECT_OK(help_fill(l, &b, 1, 10, &a));
    EXPECT(a.rolled);
    scan_all();
    EXPECT_EQ(chunks[0].time, chunks[1].time);
    EXPECT_EQ(YEARS_MS - 60001, chunks[2].time);
    batch_free(&b);
    end();
}

TEST(an_empty_segment_that_was_begun_before_the_clock_went_back_is_found)
{
    for (int boots = 0; boots < 2; boots++) {
        struct batch b;
        bool rolled;
        begin();
        EXPECT_OK(batch_init(&b, NULL));
        EXPECT_OK(help_fill(l, &b, 1, 10, NULL));
        help_clock_ms += 2;
        EXPECT_OK(retention_roll_aged(l, 1, &rolled, NULL));
        EXPECT(rolled);
        help_wrong_ms = -1000000;
        for (int i = 0; i < 40; i++, help_clock_ms += 1000) EXPECT_OK(help_fill(l, &b, 1, 1000, NULL));
        if (boots) other_boot();
        expect_all_as_linear();
        batch_free(&b);
        end();
    }
}

TEST(a_reader_by_time_begins_where_a_linear_scan_does_whatever_the_clock_did)
{
    for (int round = 0; round < 30; round++) {
        struct batch b;
        bool rolled;
        begin();
        EXPECT_OK(batch_init(&b, NULL));
        for (int i = 0; i < 100; i++) {
            help_clock_ms += (int64_t)(test_random() % 1000);
            switch (test_random() % (round < 10 ? 100 : 12)) {
            case 0: help_wrong_ms = YEARS_MS; break;
            case 1: help_wrong_ms = 0; break;
            case 2: help_wrong_ms -= 30000; break;
            case 3: help_wrong_ms -= 90000; break;
            case 4: help_wrong_ms += 70000; break;
            case 5: EXPECT_OK(retention_roll_aged(l, -1, &rolled, NULL)); break;
            default: break;
            }
            EXPECT_OK(help_fill(l, &b, 1 + test_random() % 3, 10 + (uint32_t)(test_random() % 900), NULL));
            if (test_random() % 40 == 0) other_boot();
        }
        if (round % 3 == 0) {
            struct retention_report report;
            EXPECT_OK(retention_drop_before(l, test_random() % 100, &report, NULL));
        }
        expect_all_as_linear();
        other_boot();
        expect_all_as_linear();
        batch_free(&b);
        end();
    }
}
