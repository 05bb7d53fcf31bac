/* SPDX-License-Identifier: Apache-2.0
 *
 * A cold segment of several blocks: fetched one by one, dropped one by one, and told of one by one.
 */
#include "cold_help.h"

/* Two and a bit blocks in one cold segment. */
static struct log *make_large(void)
{
    struct log *l = cold_begin(&(struct log_options){.segment_bytes_max = 18u << 20});
    struct batch b;
    help_use_clock();
    batch_init(&b, NULL);
    for (int i = 0; i < 110; i++) EXPECT_OK(help_fill(l, &b, 100, 2000, NULL));
    batch_free(&b);
    cold_all_up(l, 1);
    return l;
}

TEST(a_large_segment_is_fetched_by_blocks)
{
    struct log *l = make_large();
    struct reader r;
    struct fault f;
    cold_start();
    uint8_t data[300000];
    uint64_t got;
    EXPECT_OK(reader_open(&r, l, READER_OFFSET, 5000, &f));
    EXPECT_OK(reader_fetch(&r, data, sizeof data, false, &got, &f));
    EXPECT_EQ(sizeof data, got);
    EXPECT_EQ(1, cold_world.fetched); /* the one in the middle */
    r.position = COLD_BLOCK_BYTES - 100; /* over the border of two */
    EXPECT_OK(reader_fetch(&r, data, sizeof data, false, &got, &f));
    EXPECT_EQ(sizeof data, got);
    EXPECT_EQ(2, cold_world.fetched);
    /* Without waiting: up to what is not there. */
    r.position = 2 * COLD_BLOCK_BYTES - 1000;
    EXPECT_OK(reader_fetch(&r, data, sizeof data, true, &got, &f));
    EXPECT_EQ(1000, got);
    reader_close(&r);
    help_read_all(l, 0, 11000);
    cold_end(l);
}

TEST(a_block_that_is_dropped_gives_back_its_room_and_is_fetched_again_while_the_others_stay)
{
    struct log *l = make_large();
    struct reader r;
    struct fault f;
    struct cold c;
    struct stat st;
    uint8_t data[4096], before[COLD_BLOCKS_MAX], after[COLD_BLOCKS_MAX];
    uint64_t got;
    cold_start();
    EXPECT_OK(reader_open(&r, l, READER_FIRST, 0, &f));
    EXPECT_OK(cold_bring(cold_world.log, 0, 1, 2 * COLD_BLOCK_BYTES, &f));
    EXPECT_OK(reader_fetch(&r, data, sizeof data, true, &got, &f));
    REQUIRE_OK(cold_open(&c, cold_world.log, 0, &f));
    EXPECT_OK(cold_marks(&c, before, &f));
    EXPECT_OK(cold_drop(&c, 0, &f));
    EXPECT(fstat(c.fd, &st) == 0 && (uint64_t)st.st_blocks * 512 < 2 * COLD_BLOCK_BYTES);
    EXPECT_ERR(ERR_NOT_CACHED, reader_fetch(&r, data, sizeof data, true, &got, &f));
    r.position = COLD_BLOCK_BYTES;
    EXPECT_OK(reader_fetch(&r, data, sizeof data, true, &got, &f));
    r.position = SEGMENT_HEADER_BYTES;
    EXPECT_OK(reader_fetch(&r, data, sizeof data, false, &got, &f));
    EXPECT_OK(cold_marks(&c, after, &f));
    EXPECT(after[0] && after[0] != before[0] && after[1] == before[1]);
    EXPECT_ERR(ERR_INVALID, cold_drop(&c, cold_blocks(c.bytes), &f));
    cold_close(&c);
    reader_close(&r);
    help_read_all(l, 0, 11000);
    cold_end(l);
}

static struct cold dropped;
static bool comes_back;
static int drops;

/* The block goes, and perhaps comes back, between a reader's look at its mark and the end of his reading. */
static ssize_t read_and_drop(int fd, void *data, size_t size, off_t position)
{
    if (position >= (off_t)COLD_PAGE_BYTES && drops > 0) {
        drops--;
        uint8_t *block = malloc(COLD_BLOCK_BYTES);
        EXPECT_EQ(COLD_BLOCK_BYTES, pread(dropped.fd, block, COLD_BLOCK_BYTES, COLD_PAGE_BYTES));
        EXPECT_OK(cold_drop(&dropped, 0, NULL));
        ssize_t n = pread(fd, data, size, position);
        if (comes_back) EXPECT_OK(cold_put(&dropped, 0, block, COLD_BLOCK_BYTES, NULL));
        free(block);
        return n;
    }
    return pread(fd, data, size, position);
}

TEST(what_was_copied_while_a_block_was_dropped_counts_for_nothing)
{
    struct log *l = make_large();
    struct reader r;
    struct fault f;
    uint8_t data[4096];
    uint64_t got;
    struct chunk c;
    cold_start();
    EXPECT_OK(reader_open(&r, l, READER_FIRST, 0, &f));
    EXPECT_OK(reader_fetch(&r, data, sizeof data, false, &got, &f));
    REQUIRE_OK(cold_open(&dropped, cold_world.log, 0, &f));
    help_sys.pread = help_sys.pread_nowait = read_and_drop;
    for (int back = 0; back < 2; back++) {
        comes_back = back;
        drops = 1;
        err e = reader_fetch(&r, data, sizeof data, true, &got, &f);
        EXPECT_ERR(back ? OK : ERR_NOT_CACHED, e); /* when it is back, it is copied again */
        EXPECT_EQ(0, drops);
        EXPECT_OK(reader_fetch(&r, data, sizeof data, false, &got, &f));
        EXPECT_OK(reader_header(&r, data, got, &c, &f));
    }
    help_sys.pread = sys_real.pread;
    help_sys.pread_nowait = sys_real.pread_nowait;
    cold_close(&dropped);
    reader_close(&r);
    cold_end(l);
}

TEST(a_reader_tells_once_of_each_block_that_it_comes_to)
{
    struct log *l = make_large();
    struct reader r;
    struct fault f;
    uint8_t data[4096];
    uint64_t got, told = 0;
    cold_start();
    EXPECT_OK(reader_open(&r, l, READER_FIRST, 0, &f));
    while (r.cold || told == 0) {
        EXPECT_OK(reader_fetch(&r, data, sizeof data, false, &got, &f));
        told += reader_enters(&r);
        EXPECT(!reader_enters(&r));
        if (r.cold) r.position = r.position + 1000000 < r.end ? r.position + 1000000 : r.end;
    }
    EXPECT_EQ(3, told);
    EXPECT_EQ(3, cold_world.fetched);
    reader_close(&r);
    cold_world.instead = "{\"ok\": true}";
    EXPECT_OK(cold_tell(cold_world.log, 0, 5, &f));
    EXPECT_EQ(4, cold_world.questions);
    cold_end(l);
    EXPECT_ERR(ERR_IO, cold_tell(cold_world.log, 0, 5, &f)); /* nobody is there */
}
