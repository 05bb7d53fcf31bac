/* SPDX-License-Identifier: Apache-2.0 */
#include "../log/cuts.h"

#include "../log/handle.h"
#include "log_help.h"

#define CHUNKS_MAX 400u

/* Every chunk of a log in order, found by walking. */
static struct { uint64_t count, id[CHUNKS_MAX + 1], bytes[CHUNKS_MAX]; } seen;

static void note(struct help_walk *w, uint64_t offset, const uint8_t *body, uint32_t bytes)
{
    (void)body, (void)bytes;
    if (offset != w->chunk->chunk_id) return;
    seen.id[seen.count] = offset;
    seen.bytes[seen.count++] = chunk_bytes(w->chunk);
}

static void look(struct log *l)
{
    struct help_walk w = {.message = note};
    seen.count = 0;
    help_walk_log(&w, l);
    seen.id[seen.count] = w.next;
}

/* Batches of 1 to 40 records in segments of one to a few chunks each. */
static struct log *make_log(uint64_t segment_bytes, unsigned batches)
{
    struct log *l = help_log(help_path(), &(struct log_options){.segment_bytes_max = segment_bytes});
    struct batch b;
    batch_init(&b, NULL);
    for (unsigned i = 0; i < batches; i++)
        EXPECT_OK(help_fill(l, &b, 1 + test_random_below(40), 10 + (uint32_t)test_random_below(200), NULL));
    batch_free(&b);
    look(l);
    return l;
}

/* The same by adding up: the number of the chunk where the last part before chunk `end` begins. */
static uint64_t part_by_hand(uint64_t end, uint64_t end_id, uint64_t bytes_max, uint64_t records_max)
{
    uint64_t bytes = 0, i = end;
    while (i > 0) {
        bytes += seen.bytes[i - 1];
        bool too_many = (bytes_max && bytes > bytes_max) || (records_max && end_id - seen.id[i - 1] > records_max);
        if (too_many && i < end) break;
        i--;
        if (too_many) break;
    }
    return i;
}

static void compare(struct log *l, uint64_t start, uint64_t from, uint64_t bytes_max, uint64_t records_max)
{
    uint64_t end = seen.id[from], cuts[CHUNKS_MAX], at = from;
    uint32_t count;
    struct fault f;
    if (!EXPECT_OK(log_cuts(l, start, &end, bytes_max, records_max, cuts, CHUNKS_MAX, &count, &f))) help_fault(&f);
    for (uint32_t i = 0; i < count; i++) {
        at = part_by_hand(at, seen.id[at], bytes_max, records_max);
        EXPECT_EQ(seen.id[at], cuts[i]);
    }
    if (at > 0) EXPECT(seen.id[part_by_hand(at, seen.id[at], bytes_max, records_max)] <= start || seen.id[at] <= start);
    EXPECT_EQ(start < seen.id[0] ? seen.id[0] : start, end);
}

TEST(cuts_are_those_of_adding_up_from_the_end)
{
    static const uint64_t segments[] = {0, 4096, 20000};
    for (unsigned kind = 0; kind < 3; kind++) {
        struct log *l = make_log(segments[kind], 150);
        for (int i = 0; i < 2000; i++) {
            uint64_t from = 1 + test_random_below(seen.count);
            uint64_t start = test_random_below(seen.id[from]);
            uint64_t bytes = test_random_below(3) ? 1 + test_random_below(30000) : 0;
            uint64_t records = test_random_below(3) ? 1 + test_random_below(300) : 0;
            compare(l, start, from, bytes, records);
        }
        log_close(l);
    }
}

TEST(an_end_inside_of_a_chunk_and_one_past_the_log_are_cut_below)
{
    struct log *l = make_log(4096, 100);
    uint64_t cuts[CHUNKS_MAX];
    uint32_t count;
    for (uint64_t at = 1; at <= seen.id[seen.count] + 5; at++) {
        uint64_t end = at, last = at;
        EXPECT_OK(log_cuts(l, 0, &end, 1, 0, cuts, CHUNKS_MAX, &count, NULL));
        uint64_t below = 0;
        while (below < seen.count && seen.id[below] < at) below++;
        EXPECT_EQ(below - 1, count); /* a part for each chunk */
        for (uint32_t i = 0; i < count; last = cuts[i++]) EXPECT(cuts[i] < last);
    }
    log_close(l);
}

TEST(a_few_cuts_at_a_time_are_the_same_cuts)
{
    struct log *l = make_log(20000, 150);
    uint64_t all[CHUNKS_MAX], some[3], end = seen.id[seen.count];
    uint32_t count, got, found = 0;
    EXPECT_OK(log_cuts(l, 7, &end, 3000, 0, all, CHUNKS_MAX, &count, NULL));
    end = seen.id[seen.count];
    do {
        EXPECT_OK(log_cuts(l, 7, &end, 3000, 0, some, 3, &got, NULL));
        for (uint32_t i = 0; i < got && found < count; i++, found++) EXPECT_EQ(all[found], some[i]);
    } while (end > 7 && got == 3);
    EXPECT_EQ(count, found);
    EXPECT_EQ(7, end);
    log_close(l);
}

TEST(retention_and_appends_leave_the_cuts_between_as_they_were)
{
    struct log *l = make_log(4096, 150);
    uint64_t before[CHUNKS_MAX], after[CHUNKS_MAX], last = seen.id[seen.count], end = last;
    uint32_t count, left;
    struct retention_report report;
    EXPECT_OK(log_cuts(l, 0, &end, 9000, 200, before, CHUNKS_MAX, &count, NULL));
    EXPECT(count > 10);
    EXPECT_OK(retention_drop_before(l, last / 2, &report, NULL));
    EXPECT(report.segments_dropped > 0);
    struct batch b;
    batch_init(&b, NULL);
    for (int i = 0; i < 50; i++) EXPECT_OK(help_fill(l, &b, 20, 100, NULL));
    batch_free(&b);
    end = last;
    EXPECT_OK(log_cuts(l, 0, &end, 9000, 200, after, CHUNKS_MAX, &left, NULL));
    EXPECT(left > 4 && left < count);
    for (uint32_t i = 0; i < left; i++) EXPECT_EQ(before[i], after[i]);
    log_close(l);
}

TEST(an_extent_is_that_of_adding_up)
{
    static const uint64_t segments[] = {0, 4096};
    for (unsigned kind = 0; kind < 2; kind++) {
        struct log *l = make_log(segments[kind], 100);
        for (int i = 0; i < 2000; i++) {
            uint64_t start = test_random_below(seen.id[seen.count] + 3), most = test_random_below(60000);
            uint64_t limit, bytes, sum = 0, all = 0, first = 0;
            EXPECT_OK(log_extent(l, start, most, &limit, &bytes, NULL));
            while (first < seen.count && seen.id[first + 1] <= start) first++;
            for (uint64_t j = first; j < seen.count; j++) all += seen.bytes[j];
            EXPECT_EQ(all, bytes);
            uint64_t to = first;
            while (to < seen.count && (to == first || sum + seen.bytes[to] <= most)) sum += seen.bytes[to++];
            EXPECT_EQ(seen.id[to], limit);
        }
        log_close(l);
    }
}

TEST(a_log_without_an_index_is_cut_at_its_segments)
{
    struct log *l = make_log(20000, 150);
    const struct segment_list *list;
    struct commit c;
    REQUIRE_OK(log_list(l, &list, &c, NULL));
    EXPECT(list->count > 5);
    for (uint32_t i = 0; i < list->count; i++) {
        struct file_path path = file_path_numbered(l->directory, list->first[i], INDEX_SUFFIX);
        EXPECT_OK(file_unlink(path.text, NULL));
    }
    uint64_t cuts[CHUNKS_MAX], end = c.next_offset, limit, bytes;
    uint32_t count;
    EXPECT_OK(log_cuts(l, 0, &end, 1, 1, cuts, CHUNKS_MAX, &count, NULL));
    EXPECT_EQ(list->count - 1, count);
    for (uint32_t i = 0; i < count; i++) EXPECT_EQ(list->first[list->count - 1 - i], cuts[i]);
    EXPECT_OK(log_extent(l, 0, 1, &limit, &bytes, NULL));
    EXPECT_EQ(list->first[1], limit);
    log_close(l);
}

TEST(an_empty_log_has_nothing_to_cut)
{
    struct log *l = help_log(help_path(), &(struct log_options){0});
    uint64_t cuts[1], end = 0, limit = 9, bytes = 9;
    uint32_t count;
    EXPECT_OK(log_cuts(l, 0, &end, 1, 1, cuts, 1, &count, NULL));
    EXPECT_EQ(0, count);
    EXPECT_EQ(0, end);
    EXPECT_OK(log_extent(l, 0, 1, &limit, &bytes, NULL));
    EXPECT_EQ(0, limit);
    EXPECT_EQ(0, bytes);
    log_close(l);
}
