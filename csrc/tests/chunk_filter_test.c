/* SPDX-License-Identifier: Apache-2.0
 *
 * A filter by itself: where its bits lie, what it answers, and that damage never makes it say no.
 */
#include "../log/chunk.h"

#include <string.h>

#include "../base/bytes.h"
#include "../base/crc32.h"
#include "test.h"

#define SEED 0x5EEDu
#define VALUE_BYTES_MAX 40u

/* The head of a chunk: its header, and a filter of `bytes` with room for it. */
struct head {
    struct chunk chunk;
    uint8_t data[CHUNK_HEAD_BYTES_MAX];
};

static void head_begin(struct head *h, uint32_t bytes)
{
    *h = (struct head){.chunk = {.entries = 1, .records = 1, .epoch = 1, .chunk_id = 42, .data_bytes = 5,
                                 .bloom_bytes = (uint8_t)filter_stored_bytes(bytes)}};
    chunk_header_write(&h->chunk, SEED, h->data);
}

static void head_note(struct head *h, const void *value, uint32_t size)
{
    filter_note(h->data + CHUNK_HEADER_BYTES, h->chunk.bloom_bytes, value, size);
}

static bool head_matches(const struct head *h, bool match_unfiltered, const void *value, uint32_t size)
{
    struct filter f;
    filter_init(&f, match_unfiltered);
    if (value) EXPECT_OK(filter_add(&f, value, size));
    return filter_matches(&f, h->data, &h->chunk);
}

TEST(its_bits_and_its_check_lie_as_drawn)
{
    struct head h;
    uint8_t want[16] = {0x80};
    head_begin(&h, 16);
    EXPECT_EQ(20, h.chunk.bloom_bytes);
    /* FORMAT.md's rule, with the whole of a value of 9 bytes: two pieces. */
    const uint64_t factor = UINT64_C(0x9E3779B97F4A7C15);
    uint64_t hash = (UINT64_C(9) ^ bytes_load64((const uint8_t *)"eu-west-")) * factor;
    hash ^= hash >> 32;
    hash = (hash ^ (uint64_t)'1' << 56) * factor;
    hash ^= hash >> 32;
    hash = hash * factor ^ hash >> 29;
    uint32_t first = 1 + (uint32_t)((hash >> 32) * 127 >> 32), second = 1 + (uint32_t)((hash & UINT32_MAX) * 127 >> 32);
    want[first / 8] |= (uint8_t)(0x80 >> first % 8);
    want[second / 8] |= (uint8_t)(0x80 >> second % 8);

    head_note(&h, "eu-west-1", 9);
    filter_note_unfiltered(h.data + CHUNK_HEADER_BYTES);
    filter_seal(h.data, h.chunk.bloom_bytes);
    EXPECT_MEM_EQ(want, h.data + CHUNK_HEADER_BYTES, 16);
    EXPECT_EQ(crc32_update(0, h.data, 64), bytes_load32(h.data + 64));
}

/* Filters on disk outlive the program: these are written down once. */
TEST(the_hash_never_changes)
{
    struct head h;
    head_begin(&h, 16);
    head_note(&h, "eu", 2);
    head_note(&h, "a rather long value, of several pieces", 38);
    EXPECT_EQ(UINT64_C(0x0410000000000002), bytes_load64(h.data + CHUNK_HEADER_BYTES));
    EXPECT_EQ(UINT64_C(0x1000000000000000), bytes_load64(h.data + CHUNK_HEADER_BYTES + 8));
}

TEST(a_noted_value_is_always_found)
{
    for (int round = 0; round < 3000; round++) {
        struct head h;
        uint8_t values[64][VALUE_BYTES_MAX];
        uint32_t sizes[64], count = 1 + (uint32_t)test_random_below(64);
        head_begin(&h, FILTER_BYTES_MIN + (uint32_t)test_random_below(FILTER_BYTES_MAX - FILTER_BYTES_MIN + 1));
        EXPECT(h.chunk.bloom_bytes > FILTER_CHECK_BYTES);
        for (uint32_t i = 0; i < count; i++) {
            sizes[i] = 1 + (uint32_t)test_random_below(VALUE_BYTES_MAX);
            test_random_fill(values[i], sizes[i]);
            head_note(&h, values[i], sizes[i]);
        }
        filter_seal(h.data, h.chunk.bloom_bytes);
        for (uint32_t i = 0; i < count; i++) EXPECT(head_matches(&h, false, values[i], sizes[i]));
        EXPECT(!(h.data[CHUNK_HEADER_BYTES] & 0x80)); /* no value takes the bit of those without */
        EXPECT(!head_matches(&h, true, NULL, 0));
    }
}

TEST(few_others_are_found)
{
    struct head h;
    char value[32];
    unsigned found = 0;
    head_begin(&h, 16);
    for (int i = 0; i < 10; i++) head_note(&h, value, (uint32_t)snprintf(value, sizeof value, "region-%d", i));
    filter_seal(h.data, h.chunk.bloom_bytes);
    for (int i = 10; i < 10010; i++)
        found += head_matches(&h, false, value, (uint32_t)snprintf(value, sizeof value, "region-%d", i));
    EXPECT(found < 400); /* 2 % are expected of 10 values in 16 bytes */
}

TEST(values_that_differ_only_in_zeros_or_in_size_differ)
{
    struct head h;
    head_begin(&h, 255);
    head_note(&h, "a", 1);
    filter_seal(h.data, h.chunk.bloom_bytes);
    EXPECT(head_matches(&h, false, "a", 1));
    EXPECT(!head_matches(&h, false, "a\0", 2));
    EXPECT(!head_matches(&h, false, "\0a", 2));
    EXPECT(!head_matches(&h, false, "A", 1));
}

TEST(messages_without_a_value_are_for_those_who_want_them)
{
    struct head h;
    head_begin(&h, 0);
    EXPECT_EQ(0, h.chunk.bloom_bytes);
    EXPECT(!head_matches(&h, false, "eu", 2));
    EXPECT(head_matches(&h, true, "eu", 2));
    EXPECT(head_matches(&h, false, "", 0)); /* an empty value is none */

    head_begin(&h, 16);
    head_note(&h, "us", 2);
    filter_seal(h.data, h.chunk.bloom_bytes);
    EXPECT(!head_matches(&h, true, "eu", 2));
    filter_note_unfiltered(h.data + CHUNK_HEADER_BYTES);
    filter_seal(h.data, h.chunk.bloom_bytes);
    EXPECT(head_matches(&h, true, "eu", 2));
    EXPECT(!head_matches(&h, false, "eu", 2));
}

TEST(a_chunk_whose_head_is_damaged_goes_to_everybody)
{
    struct head h;
    head_begin(&h, 16);
    head_note(&h, "us", 2);
    filter_seal(h.data, h.chunk.bloom_bytes);
    EXPECT(!head_matches(&h, false, "eu", 2));
    for (uint32_t bit = 0; bit < 8 * (CHUNK_HEADER_BYTES + h.chunk.bloom_bytes); bit++) {
        h.data[bit / 8] ^= (uint8_t)(1 << bit % 8);
        EXPECT(head_matches(&h, false, "eu", 2));
        h.data[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    /* The filter of another chunk, whole, behind this one's header. */
    struct head other = h;
    other.chunk.chunk_id++;
    chunk_header_write(&other.chunk, SEED, other.data);
    EXPECT(head_matches(&other, false, "eu", 2));
    /* And sizes that no writer makes. */
    for (h.chunk.bloom_bytes = 1; h.chunk.bloom_bytes <= FILTER_CHECK_BYTES; h.chunk.bloom_bytes++)
        EXPECT(head_matches(&h, false, "eu", 2));
}

TEST(a_filter_takes_any_of_its_values_and_not_more_than_it_can_hold)
{
    struct head h;
    struct filter f;
    char value[32];
    filter_init(&f, false);
    for (unsigned i = 0; i < FILTER_VALUES_MAX; i++)
        EXPECT_OK(filter_add(&f, (const uint8_t *)value, (uint32_t)snprintf(value, sizeof value, "v%u", i)));
    EXPECT_ERR(ERR_LIMIT, filter_add(&f, (const uint8_t *)"more", 4));
    head_begin(&h, 16);
    head_note(&h, "v254", 4);
    filter_seal(h.data, h.chunk.bloom_bytes);
    EXPECT(filter_matches(&f, h.data, &h.chunk));
}
