/* SPDX-License-Identifier: Apache-2.0 */
#include "../log/chunk.h"

#include "../base/bytes.h"
#include "../base/crc32.h"
#include "test.h"

#define SEED 0x12345678u

static const struct chunk example = {
    .type = CHUNK_USER, .bloom_bytes = 16, .entries = 3, .records = 12, .timestamp_ms = 1700000000123,
    .epoch = 1, .chunk_id = 1000, .crc = 0xCBF43926, .data_bytes = 500, .trailer_bytes = 24,
};

static void expect_same(const struct chunk *want, const struct chunk *had)
{
    EXPECT_EQ(want->type, had->type);
    EXPECT_EQ(want->bloom_bytes, had->bloom_bytes);
    EXPECT_EQ(want->entries, had->entries);
    EXPECT_EQ(want->records, had->records);
    EXPECT_EQ(want->timestamp_ms, had->timestamp_ms);
    EXPECT_EQ(want->epoch, had->epoch);
    EXPECT_EQ(want->chunk_id, had->chunk_id);
    EXPECT_EQ(want->crc, had->crc);
    EXPECT_EQ(want->data_bytes, had->data_bytes);
    EXPECT_EQ(want->trailer_bytes, had->trailer_bytes);
}

TEST(a_header_lies_on_disk_as_drawn)
{
    static const uint8_t drawn[45] = {
        0x50, 0, 0, 3, 0, 0, 0, 12, 0, 0, 0x01, 0x8B, 0xCF, 0xE5, 0x68, 0x7B, 0, 0, 0, 0, 0, 0, 0, 1,
        0, 0, 0, 0, 0, 0, 0x03, 0xE8, 0xCB, 0xF4, 0x39, 0x26, 0, 0, 0x01, 0xF4, 0, 0, 0, 24, 16,
    };
    uint8_t header[CHUNK_HEADER_BYTES], input[4 + CHUNK_HEADER_BYTES] = {0x12, 0x34, 0x56, 0x78};
    chunk_header_write(&example, SEED, header);
    EXPECT_MEM_EQ(drawn, header, sizeof drawn);
    memcpy(input + 4, drawn, sizeof drawn);
    EXPECT_EQ(crc32_update(0, input, sizeof input) >> 8, bytes_load32(header + 44) & 0xFFFFFF);
}

TEST(what_is_written_is_read_back)
{
    for (int round = 0; round < 10000; round++) {
        struct chunk c = {
            .type = (uint8_t)test_random_below(3), .bloom_bytes = (uint8_t)test_random(),
            .entries = (uint16_t)(1 + test_random_below(UINT16_MAX)), .records = (uint32_t)test_random() | 0xFFFF,
            .timestamp_ms = (int64_t)test_random(), .epoch = test_random(), .chunk_id = test_random(),
            .crc = (uint32_t)test_random(), .data_bytes = (uint32_t)test_random_below(CHUNK_DATA_MAX_BYTES + 1),
            .trailer_bytes = (uint32_t)test_random_below(CHUNK_TRAILER_MAX_BYTES + 1),
        }, had;
        uint8_t header[CHUNK_HEADER_BYTES];
        uint32_t seed = (uint32_t)test_random();
        chunk_header_write(&c, seed, header);
        REQUIRE_OK(chunk_header_read(header, sizeof header, seed, &had));
        expect_same(&c, &had);
    }
}

TEST(a_header_cut_short_is_truncated_and_with_a_tail_is_read)
{
    uint8_t stored[CHUNK_HEADER_BYTES + 9] = {0};
    struct chunk had;
    chunk_header_write(&example, SEED, stored);
    for (size_t size = 0; size < CHUNK_HEADER_BYTES; size++)
        EXPECT_ERR(ERR_TRUNCATED, chunk_header_read(stored, size, SEED, &had));
    EXPECT_OK(chunk_header_read(stored, sizeof stored, SEED, &had));
    expect_same(&example, &had);
}

TEST(every_flipped_bit_and_every_other_seed_is_noticed)
{
    uint8_t header[CHUNK_HEADER_BYTES];
    struct chunk had;
    chunk_header_write(&example, SEED, header);
    for (size_t bit = 0; bit < 8 * CHUNK_HEADER_BYTES; bit++) {
        header[bit / 8] ^= (uint8_t)(1u << (bit % 8));
        EXPECT_ERR(ERR_CORRUPT, chunk_header_read(header, sizeof header, SEED, &had));
        header[bit / 8] ^= (uint8_t)(1u << (bit % 8));
    }
    for (int bit = 0; bit < 32; bit++)
        EXPECT_ERR(ERR_CORRUPT, chunk_header_read(header, sizeof header, SEED ^ 1u << bit, &had));
    memset(header, 0, sizeof header); /* what a preallocated file holds */
    EXPECT_ERR(ERR_CORRUPT, chunk_header_read(header, sizeof header, SEED, &had));
}

/* Stores a big-endian field and puts the header check right again. */
static err read_with(size_t at, size_t width, uint64_t value)
{
    uint8_t header[CHUNK_HEADER_BYTES], input[4 + CHUNK_HEADER_BYTES];
    struct chunk had;
    chunk_header_write(&example, SEED, header);
    for (size_t i = 0; i < width; i++) header[at + i] = (uint8_t)(value >> 8 * (width - 1 - i));
    memset(header + 45, 0, 3);
    bytes_store32(input, SEED);
    memcpy(input + 4, header, sizeof header);
    uint32_t check = crc32_update(0, input, sizeof input) >> 8;
    for (int i = 0; i < 3; i++) header[45 + i] = (uint8_t)(check >> 8 * (2 - i));
    return chunk_header_read(header, sizeof header, SEED, &had);
}

TEST(a_good_check_does_not_excuse_a_value_beyond_its_limit)
{
    EXPECT_OK(read_with(1, 1, CHUNK_TRACKING_SNAPSHOT));
    EXPECT_ERR(ERR_CORRUPT, read_with(0, 1, 0x51));
    EXPECT_ERR(ERR_CORRUPT, read_with(1, 1, 3));
    EXPECT_ERR(ERR_CORRUPT, read_with(2, 2, 0));
    EXPECT_OK(read_with(4, 4, 3));
    EXPECT_ERR(ERR_CORRUPT, read_with(4, 4, 2));
    EXPECT_OK(read_with(36, 4, CHUNK_DATA_MAX_BYTES));
    EXPECT_ERR(ERR_CORRUPT, read_with(36, 4, CHUNK_DATA_MAX_BYTES + 1));
    EXPECT_ERR(ERR_CORRUPT, read_with(36, 4, UINT32_MAX));
    EXPECT_OK(read_with(40, 4, CHUNK_TRAILER_MAX_BYTES));
    EXPECT_ERR(ERR_CORRUPT, read_with(40, 4, CHUNK_TRAILER_MAX_BYTES + 1));
}

TEST(the_wire_never_sees_the_check_or_the_bloom_size)
{
    uint8_t stored[CHUNK_HEADER_BYTES], wire[CHUNK_HEADER_BYTES];
    static const uint8_t zero[4];
    chunk_header_write(&example, SEED, stored);
    chunk_header_to_wire(stored, wire);
    EXPECT_MEM_EQ(stored, wire, 44);
    EXPECT_MEM_EQ(zero, wire + 44, 4);
    chunk_header_to_wire(stored, stored); /* in place, too */
    EXPECT_MEM_EQ(wire, stored, sizeof wire);
}

TEST(verify_covers_the_entries_and_nothing_else)
{
    struct chunk c = example;
    uint8_t data[CHUNK_HEADER_BYTES + 16 + 500 + 24];
    test_random_fill(data, sizeof data);
    c.crc = crc32_update(0, data + CHUNK_HEADER_BYTES + 16, 500);
    EXPECT_EQ(sizeof data, chunk_bytes(&c));
    EXPECT_OK(chunk_verify(data, sizeof data, &c));
    EXPECT_ERR(ERR_TRUNCATED, chunk_verify(data, sizeof data - 1, &c));
    for (size_t at = 0; at < sizeof data; at++) {
        bool is_entry = at >= CHUNK_HEADER_BYTES + 16 && at < sizeof data - 24;
        data[at] ^= 0x10;
        EXPECT_ERR(is_entry ? ERR_CORRUPT : OK, chunk_verify(data, sizeof data, &c));
        data[at] ^= 0x10;
    }
}

/* ---- entries ---- */

/* A simple entry, an lz4 sub-batch of 5 records, an empty simple entry. */
static const uint8_t entries[] = {
    0, 0, 0, 3, 'a', 'b', 'c',
    0xB0, 0, 5, 0, 0, 0x01, 0, 0, 0, 0, 2, 'x', 'y',
    0, 0, 0, 0,
};
static const size_t entry_ends[] = {7, 20, 24};

TEST(entries_are_stepped_over_in_place)
{
    const uint8_t *at = entries, *end = entries + sizeof entries;
    struct chunk_entry e;
    REQUIRE_OK(chunk_entry_next(&at, end, &e));
    EXPECT(!e.is_sub_batch && e.body == entries + 4);
    EXPECT_EQ(3, e.body_bytes);
    EXPECT_EQ(3, e.uncompressed_bytes);
    EXPECT_EQ(1, e.records);
    REQUIRE_OK(chunk_entry_next(&at, end, &e));
    EXPECT(e.is_sub_batch && e.body == entries + 18);
    EXPECT_EQ(3, e.compression);
    EXPECT_EQ(5, e.records);
    EXPECT_EQ(256, e.uncompressed_bytes);
    EXPECT_EQ(2, e.body_bytes);
    REQUIRE_OK(chunk_entry_next(&at, end, &e));
    EXPECT_EQ(0, e.body_bytes);
    EXPECT_ERR(ERR_END, chunk_entry_next(&at, end, &e));
    EXPECT(at == end);
}

TEST(an_entry_cut_short_is_truncated_and_the_position_stays)
{
    for (size_t size = 0; size <= sizeof entries; size++) {
        uint8_t *copy = malloc(size ? size : 1);
        memcpy(copy, entries, size);
        const uint8_t *at = copy, *before = copy;
        struct chunk_entry e;
        err result;
        size_t whole = 0;
        while (before = at, (result = chunk_entry_next(&at, copy + size, &e)) == OK) whole++;
        bool is_boundary = size == 0 || (whole > 0 && entry_ends[whole - 1] == size);
        EXPECT_ERR(is_boundary ? ERR_END : ERR_TRUNCATED, result);
        EXPECT(at == before);
        free(copy);
    }
}

TEST(a_sub_batch_that_no_writer_makes_is_corrupt)
{
    static const struct { uint8_t first, records; err result; } rows[] = {
        {0x80, 1, OK}, {0xC0, 1, OK}, {0xD0, 1, ERR_CORRUPT}, {0xE0, 1, ERR_CORRUPT},
        {0xF0, 1, ERR_CORRUPT}, {0x81, 1, OK}, {0x8F, 1, OK}, {0x80, 0, ERR_CORRUPT},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        uint8_t data[] = {rows[i].first, 0, rows[i].records, 0, 0, 0, 5, 0, 0, 0, 1, 'x'};
        const uint8_t *at = data;
        struct chunk_entry e;
        EXPECT_ERR(rows[i].result, chunk_entry_next(&at, data + sizeof data, &e));
    }
}

TEST(lengths_of_four_gigabytes_are_only_truncated)
{
    static const uint8_t simple[] = {0x7F, 0xFF, 0xFF, 0xFF, 1};
    static const uint8_t batch[] = {0x80, 0, 1, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 1};
    const uint8_t *at = simple;
    struct chunk_entry e;
    EXPECT_ERR(ERR_TRUNCATED, chunk_entry_next(&at, simple + sizeof simple, &e));
    at = batch;
    EXPECT_ERR(ERR_TRUNCATED, chunk_entry_next(&at, batch + sizeof batch, &e));
}
