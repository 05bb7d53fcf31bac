/* SPDX-License-Identifier: Apache-2.0 */
#include "../log/segment.h"

#include <fcntl.h>
#include <unistd.h>

#include "../base/file.h"
#include "log_help.h"

#define SEED 0x12345678u

/* Chunk i: id 10 i, timestamp 1000 + i / 4, position 64 + 100 i. */
static struct index_record record_of(uint64_t i)
{
    return (struct index_record){10 * i, 1000 + (int64_t)(i / 4), (uint32_t)(64 + 100 * i), 100, 10};
}

static const char *make_index(uint64_t count)
{
    const char *directory = help_path();
    uint8_t *data = malloc(count * INDEX_RECORD_BYTES + 1);
    struct fault f;
    int fd;
    sys->mkdir(directory, 0750);
    if (!EXPECT_OK(index_create(directory, 0, SEED, &fd, &f))) exit(1);
    for (uint64_t i = 0; i < count; i++) {
        struct index_record r = record_of(i);
        index_record_write(&r, SEED, data + i * INDEX_RECORD_BYTES);
    }
    EXPECT_OK(file_write(fd, "index", data, count * INDEX_RECORD_BYTES, INDEX_HEADER_BYTES, &f));
    close(fd);
    free(data);
    return directory;
}

static void damage(const char *directory, uint64_t i)
{
    struct fault f;
    int fd;
    struct file_path path = file_path_numbered(directory, 0, INDEX_SUFFIX);
    EXPECT_OK(file_open(path.text, O_RDWR, &fd, &f));
    uint64_t at = INDEX_HEADER_BYTES + i * INDEX_RECORD_BYTES + test_random_below(INDEX_RECORD_BYTES);
    uint8_t byte;
    EXPECT_OK(file_read_exact(fd, path.text, &byte, 1, at, &f));
    byte ^= (uint8_t)(1u << test_random_below(8));
    EXPECT_OK(file_write(fd, path.text, &byte, 1, at, &f));
    close(fd);
}

TEST(records_and_headers_read_back_and_every_flipped_bit_is_noticed)
{
    uint8_t data[INDEX_RECORD_BYTES], header[INDEX_HEADER_BYTES];
    struct index_record r = record_of(77), had;
    uint64_t first;
    uint32_t seed;
    index_record_write(&r, SEED, data);
    EXPECT_OK(index_record_read(data, sizeof data, SEED, &had));
    EXPECT_EQ(r.chunk_id, had.chunk_id);
    EXPECT_EQ(r.timestamp_ms, had.timestamp_ms);
    EXPECT_EQ(r.position, had.position);
    EXPECT_EQ(r.chunk_bytes, had.chunk_bytes);
    EXPECT_EQ(r.records, had.records);
    EXPECT_ERR(ERR_CORRUPT, index_record_read(data, sizeof data, SEED + 1, &had));
    EXPECT_ERR(ERR_TRUNCATED, index_record_read(data, sizeof data - 1, SEED, &had));
    for (unsigned bit = 0; bit < 8 * sizeof data; bit++) {
        data[bit / 8] ^= (uint8_t)(1 << bit % 8);
        EXPECT_ERR(ERR_CORRUPT, index_record_read(data, sizeof data, SEED, &had));
        data[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    index_header_write(99, SEED, header);
    EXPECT_OK(index_header_read("index", header, sizeof header, &first, &seed, NULL));
    EXPECT_EQ(99, first);
    EXPECT_EQ(SEED, seed);
    for (unsigned bit = 0; bit < 8 * sizeof header; bit++) {
        header[bit / 8] ^= (uint8_t)(1 << bit % 8);
        EXPECT_ERR(ERR_CORRUPT, index_header_read("index", header, sizeof header, &first, &seed, NULL));
        header[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
}

TEST(a_million_chunks_are_searched_in_a_few_reads)
{
    uint64_t count = 1000000;
    const char *directory = make_index(count);
    struct scan ix = {.directory = directory, .seed = SEED};
    struct index_record r;
    for (int i = 0; i < 2000; i++) {
        uint64_t offset = test_random_below(10 * count);
        REQUIRE_OK(index_find(&ix, UINT64_MAX, INDEX_BY_OFFSET, (int64_t)offset + 1, true, &r, NULL));
        EXPECT_EQ(offset / 10 * 10, r.chunk_id);
        int64_t time = 1000 + (int64_t)test_random_below(count / 4);
        REQUIRE_OK(index_find(&ix, UINT64_MAX, INDEX_BY_TIMESTAMP, time, false, &r, NULL));
        EXPECT_EQ((uint64_t)(time - 1000) * 40, r.chunk_id);
    }
    EXPECT_ERR(ERR_NOT_FOUND, index_find(&ix, UINT64_MAX, INDEX_BY_TIMESTAMP, 1000 + (int64_t)count, false, &r, NULL));
    EXPECT_ERR(ERR_NOT_FOUND, index_find(&ix, UINT64_MAX, INDEX_BY_OFFSET, 0, true, &r, NULL));
    EXPECT_OK(index_find(&ix, UINT64_MAX, INDEX_BY_POSITION, INT64_MAX, true, &r, NULL));
    EXPECT_EQ(10 * (count - 1), r.chunk_id);
}

TEST(a_search_over_damaged_records_gives_the_nearest_good_ones)
{
    for (int round = 0; round < 200; round++) {
        uint64_t count = 1 + test_random_below(300);
        bool good[300];
        const char *directory = make_index(count);
        for (uint64_t i = 0; i < count; i++) {
            good[i] = test_random_below(3) > 0;
            if (!good[i]) damage(directory, i);
        }
        struct scan ix = {.directory = directory, .seed = SEED};
        for (int64_t value = 0; value <= (int64_t)(10 * count); value += 3) {
            struct index_record r;
            int64_t before = -1, from = -1;
            for (uint64_t i = 0; i < count; i++) {
                if (!good[i]) continue;
                if ((int64_t)(10 * i) < value) before = (int64_t)(10 * i);
                else if (from < 0) from = (int64_t)(10 * i);
            }
            EXPECT_ERR(before < 0 ? ERR_NOT_FOUND : OK, index_find(&ix, UINT64_MAX, INDEX_BY_OFFSET, value, true, &r, NULL));
            if (before >= 0) EXPECT_EQ(before, r.chunk_id);
            EXPECT_ERR(from < 0 ? ERR_NOT_FOUND : OK, index_find(&ix, UINT64_MAX, INDEX_BY_OFFSET, value, false, &r, NULL));
            if (from >= 0) EXPECT_EQ(from, r.chunk_id);
        }
    }
}

static uint64_t unread_from; /* a byte of the file */

static ssize_t unread_pread(int fd, void *data, size_t size, off_t at)
{
    if ((uint64_t)at < unread_from) return sys_real.pread(fd, data, size, at);
    errno = EIO;
    return -1;
}

TEST(where_the_search_meets_what_cannot_be_read_it_names_no_record)
{
    const uint64_t count = 1000;
    struct scan ix = {.directory = make_index(count), .seed = SEED};
    struct index_record r;
    struct sys fake = sys_real;
    fake.pread = unread_pread;
    unread_from = INDEX_HEADER_BYTES + 3 * count / 4 * INDEX_RECORD_BYTES;
    sys = &fake;
    /* The last good one that can be read is not the last one. */
    EXPECT_ERR(ERR_NOT_FOUND, index_find(&ix, UINT64_MAX, INDEX_BY_POSITION, INT64_MAX, true, &r, NULL));
    EXPECT_ERR(ERR_NOT_FOUND, index_find(&ix, UINT64_MAX, INDEX_BY_OFFSET, (int64_t)(10 * count), false, &r, NULL));
    EXPECT_OK(index_find(&ix, UINT64_MAX, INDEX_BY_OFFSET, 101, true, &r, NULL));
    EXPECT_EQ(100, r.chunk_id);
    sys = &sys_real;
}

TEST(records_past_the_count_are_not_believed_and_a_missing_file_has_none)
{
    const char *directory = make_index(10);
    struct scan ix = {.directory = directory, .seed = SEED};
    struct index_record r;
    EXPECT_OK(index_find(&ix, 4, INDEX_BY_POSITION, INT64_MAX, true, &r, NULL));
    EXPECT_EQ(30, r.chunk_id);
    ix.segment = 1;
    EXPECT_ERR(ERR_NOT_FOUND, index_find(&ix, 4, INDEX_BY_POSITION, INT64_MAX, true, &r, NULL));
}
