/* SPDX-License-Identifier: Apache-2.0 */
#include "../log/batch.h"

#include "../base/crc32.h"
#include "log_help.h"

TEST(entries_lie_one_behind_the_other_with_room_for_a_header)
{
    struct batch b;
    REQUIRE_OK(batch_init(&b, NULL));
    EXPECT(batch_is_empty(&b));
    EXPECT_OK(help_add(&b, "one"));
    EXPECT_OK(help_add(&b, "three"));
    EXPECT_EQ(1, b.chunk_count);
    EXPECT_EQ(CHUNK_HEADER_BYTES + 7 + 9, b.size);
    EXPECT_MEM_EQ("\0\0\0\3one\0\0\0\5three", b.data + CHUNK_HEADER_BYTES, 16);
    EXPECT_OK(batch_seal(&b, NULL));
    EXPECT_EQ(crc32_update(0, b.data + CHUNK_HEADER_BYTES, 16), b.chunks[0].crc);
    EXPECT_EQ(0, b.chunks[0].trailer_bytes);
    batch_clear(&b);
    EXPECT(batch_is_empty(&b));
    batch_free(&b);
}

TEST(a_chunk_is_closed_by_count_and_by_size)
{
    struct batch b;
    static uint8_t entry[300000];
    batch_init(&b, NULL);
    for (int i = 0; i < 5000; i++) EXPECT_OK(help_add(&b, "x"));
    EXPECT_EQ(3, b.chunk_count);
    EXPECT_EQ(CHUNK_MESSAGES_MAX, b.chunks[0].entries);
    EXPECT_EQ(5000 - 2 * CHUNK_MESSAGES_MAX, b.chunks[2].entries);
    batch_clear(&b);
    bytes_store32(entry, sizeof entry - 4);
    for (int i = 0; i < 7; i++) EXPECT_OK(batch_add(&b, entry, sizeof entry, 1));
    EXPECT_EQ(3, b.chunk_count);
    EXPECT_EQ(3, b.chunks[0].entries);
    batch_check(&b);
    batch_free(&b);
}

TEST(where_kinds_are_parted_a_sub_batch_shares_its_chunk_with_nothing)
{
    static const uint8_t sub_batch[] = {0x80, 0, 1, 0, 0, 0, 5, 0, 0, 0, 5, 0, 0, 0, 1, 'x'};
    struct batch b;
    REQUIRE_OK(batch_init(&b, NULL));
    for (const char *kind = "..S.SS.."; *kind; kind++) {
        batch_part_kinds(&b, *kind == 'S');
        if (*kind == 'S') EXPECT_OK(batch_add(&b, sub_batch, sizeof sub_batch, 1));
        else EXPECT_OK(help_add_tracked(&b, "p", (uint64_t)(9 - (int)strlen(kind)), "one"));
    }
    EXPECT_EQ(6, b.chunk_count);
    EXPECT_EQ(2, b.chunks[0].entries);
    for (uint32_t i = 1; i < 5; i++) EXPECT_EQ(1, b.chunks[i].entries);
    EXPECT_EQ(2, b.chunks[5].entries);
    batch_check(&b);
    batch_clear(&b);
    for (uint32_t i = 0; i < BATCH_CHUNKS_MAX; i++) {
        batch_part_kinds(&b, true);
        EXPECT_OK(batch_add(&b, sub_batch, sizeof sub_batch, 1));
    }
    batch_part_kinds(&b, true);
    EXPECT_ERR(ERR_FULL, batch_add(&b, sub_batch, sizeof sub_batch, 1));
    batch_clear(&b);
    EXPECT_OK(help_add(&b, "one"));
    EXPECT_OK(help_add(&b, "more"));
    EXPECT_EQ(1, b.chunk_count);
    batch_free(&b);
}

TEST(one_entry_may_be_larger_than_a_chunks_aim_and_than_the_batchs_limit)
{
    struct batch b;
    uint32_t bytes = 3 << 20;
    uint8_t *entry = calloc(1, bytes);
    bytes_store32(entry, bytes - 4);
    batch_init(&b, NULL);
    batch_limit(&b, 50000);
    EXPECT_OK(batch_add(&b, entry, bytes, 1));
    EXPECT_ERR(ERR_FULL, help_add(&b, "no more"));
    EXPECT_EQ(1, b.chunk_count);
    EXPECT_ERR(ERR_LIMIT, batch_reserve_slow(&b, CHUNK_DATA_MAX_BYTES + 1, 1));
    free(entry);
    batch_free(&b);
}

TEST(a_limited_batch_is_full_at_its_limit_and_can_be_used_again)
{
    struct batch b;
    batch_init(&b, NULL);
    for (int round = 0; round < 3; round++) {
        batch_limit(&b, 5000);
        err e;
        while ((e = help_add(&b, "0123456789012345")) == OK) continue;
        EXPECT_ERR(ERR_FULL, e);
        EXPECT(b.size <= 5000 && b.size > 4900);
        batch_check(&b);
        batch_clear(&b);
    }
    batch_limit(&b, 0);
    for (int i = 0; i < 1000; i++) EXPECT_OK(help_add(&b, "0123456789012345"));
    batch_free(&b);
}

TEST(the_number_of_chunks_is_limited)
{
    struct batch b;
    uint8_t entry[11] = {0x80, 255, 255}; /* a sub-batch of 65535 records and no bytes */
    batch_init(&b, NULL);
    err e;
    uint64_t entries = 0;
    while ((e = batch_add(&b, entry, sizeof entry, 65535)) == OK) entries++;
    EXPECT_ERR(ERR_FULL, e);
    EXPECT_EQ(BATCH_CHUNKS_MAX, entries); /* each is more than a chunk has room for, so it has one of its own */
    EXPECT_EQ(entries * 65535, b.records);
    batch_free(&b);
}

TEST(chunks_begin_small_and_double_up_to_the_largest)
{
    struct batch b;
    REQUIRE_OK(batch_init(&b, NULL));
    batch_chunk_messages(&b, CHUNK_MESSAGES_FIRST, 256);
    for (int i = 0; i < 1000; i++) EXPECT_OK(help_add(&b, "x"));
    static const uint32_t expected[] = {32, 64, 128, 256, 256, 256, 8};
    EXPECT_EQ(7, b.chunk_count);
    for (uint32_t i = 0; i < 7; i++) EXPECT_EQ(expected[i], b.chunks[i].records);
    batch_check(&b);
    EXPECT_EQ(256, batch_chunk_messages_next(&b)); /* it was needed: the next batch begins with it */
    batch_clear(&b);
    batch_chunk_messages(&b, 256, 256);
    for (int i = 0; i < 127; i++) EXPECT_OK(help_add(&b, "x"));
    EXPECT_EQ(128, batch_chunk_messages_next(&b));
    EXPECT_OK(help_add(&b, "x"));
    EXPECT_EQ(256, batch_chunk_messages_next(&b)); /* half of it is no reason */
    batch_clear(&b);
    batch_chunk_messages(&b, 40, 256);
    EXPECT_OK(help_add(&b, "x"));
    EXPECT_EQ(CHUNK_MESSAGES_FIRST, batch_chunk_messages_next(&b));
    batch_clear(&b);
    batch_chunk_messages(&b, CHUNK_MESSAGES_FIRST, 1); /* the largest is below where others begin */
    for (int i = 0; i < 3; i++) EXPECT_OK(help_add(&b, "x"));
    EXPECT_EQ(3, b.chunk_count);
    EXPECT_EQ(1, batch_chunk_messages_next(&b));
    batch_free(&b);
}

TEST(the_messages_of_a_sub_batch_count_and_one_larger_than_a_chunk_has_one_of_its_own)
{
    uint8_t entry[11] = {0x80, 0, 30};
    struct batch b;
    REQUIRE_OK(batch_init(&b, NULL));
    batch_chunk_messages(&b, 64, 64);
    for (int i = 0; i < 3; i++) EXPECT_OK(batch_add(&b, entry, sizeof entry, 30));
    EXPECT_OK(batch_add(&b, entry, sizeof entry, 65));
    EXPECT_OK(batch_add(&b, entry, sizeof entry, 1));
    static const uint32_t expected[] = {60, 30, 65, 1};
    EXPECT_EQ(4, b.chunk_count);
    for (uint32_t i = 0; i < 4; i++) EXPECT_EQ(expected[i], b.chunks[i].records);
    batch_check(&b);
    batch_free(&b);
}

TEST(a_trailer_names_each_reference_once_with_its_highest_id)
{
    struct batch b;
    batch_init(&b, NULL);
    help_add_tracked(&b, "producer-alpha", 7, "a");
    help_add_tracked(&b, "b", 1, "b");
    help_add_tracked(&b, "producer-alpha", 9, "a");
    help_add_tracked(&b, "producer-alpha", 8, "a");
    EXPECT_EQ(3, b.run_count);
    EXPECT(!b.runs[2].ascending);
    EXPECT_OK(batch_seal(&b, NULL));
    EXPECT_EQ(24 + 11, b.chunks[0].trailer_bytes); /* the RabbitMQ Streams protocol: 24 for 14 bytes */
    EXPECT_MEM_EQ("\0\16producer-alpha\0\0\0\0\0\0\0\11\0\1b\0\0\0\0\0\0\0\1", b.trailers, 35);
    EXPECT_EQ(crc32_update(0, b.trailers, 35), b.chunks[0].trailer_crc);
    batch_free(&b);
}

TEST(each_chunk_has_the_trailer_of_its_own_entries)
{
    struct batch b;
    batch_init(&b, NULL);
    for (uint64_t i = 0; i < CHUNK_MESSAGES_MAX + 10; i++) help_add_tracked(&b, "r", i, "x");
    EXPECT_OK(batch_seal(&b, NULL));
    EXPECT_EQ(2, b.chunk_count);
    EXPECT_EQ(CHUNK_MESSAGES_MAX - 1, bytes_load64(b.trailers + b.chunks[0].trailer_position + 3));
    EXPECT_EQ(CHUNK_MESSAGES_MAX + 9, bytes_load64(b.trailers + b.chunks[1].trailer_position + 3));
    batch_free(&b);
}

/* Dropping duplicates, against the plainest way to say what should stay. */
TEST(exactly_the_duplicates_are_dropped)
{
    struct batch b;
    batch_init(&b, NULL);
    for (int round = 0; round < 300; round++) {
        uint64_t last[4], next = 0, kept = 0;
        static bool gone[4][9000]; /* which entries of each publisher are to go */
        uint32_t entries[4] = {0};
        bool known[4];
        struct { int reference; uint64_t id, serial; } want[9000];
        unsigned count = 1 + (unsigned)test_random_below(round % 10 ? 60 : 9000);
        batch_clear(&b);
        for (int r = 0; r < 4; r++) {
            char name[2] = {(char)('a' + r), 0};
            uint32_t index;
            batch_reference_add(&b, name, 1, &index);
            known[r] = test_random() & 1;
            last[r] = b.references[index].last = test_random_below(20);
            b.references[index].known = known[r];
        }
        uint64_t rises = test_random_below(4);
        for (unsigned i = 0; i < count; i++) {
            char text[32];
            int r = (int)test_random_below(5) - 1;
            uint64_t id = rises ? i : test_random_below(40);
            snprintf(text, sizeof text, "%u", i);
            if (r < 0) help_add(&b, text);
            else {
                char name[2] = {(char)('a' + r), 0};
                help_add_tracked(&b, name, id, text);
            }
            if (r >= 0 && (gone[r][entries[r]++] = known[r] && id <= last[r])) continue;
            if (r >= 0) { known[r] = true; last[r] = id; }
            want[kept].reference = r;
            want[kept].id = id;
            want[kept++].serial = i;
        }
        REQUIRE_OK(batch_seal(&b, NULL));
        REQUIRE_OK(batch_drop_duplicates(&b, NULL));
        batch_check(&b);
        EXPECT_EQ(kept, b.records);
        EXPECT_EQ(count - kept, b.duplicates);
        for (uint32_t i = 0; i < b.chunk_count; i++) {
            const struct batch_chunk *c = &b.chunks[i];
            const uint8_t *at = b.data + c->position + CHUNK_HEADER_BYTES, *end = at + c->data_bytes;
            EXPECT_EQ(crc32_update(0, at, c->data_bytes), c->crc);
            struct chunk_entry e;
            while (chunk_entry_next(&at, end, &e) == OK) {
                char text[32];
                int n = snprintf(text, sizeof text, "%" PRIu64, want[next].serial);
                EXPECT_EQ(n, e.body_bytes);
                EXPECT_MEM_EQ(text, e.body, e.body_bytes);
                next++;
            }
        }
        EXPECT_EQ(kept, next);
        for (uint32_t r = 0; r < 4; r++) {
            uint32_t at = 0, number = 0;
            for (uint32_t i = 0; i < entries[r]; i++)
                if (gone[r][i]) EXPECT(batch_dropped(&b, r, &at, &number) && number == i);
            EXPECT(!batch_dropped(&b, r, &at, &number));
        }
        for (uint32_t i = 0; i < b.run_count; i++) EXPECT(b.runs[i].ascending);
    }
    batch_free(&b);
}

TEST(publishers_with_the_same_reference_are_told_apart)
{
    struct batch b;
    uint8_t entry[16];
    uint32_t one, two, at = 0, number = 0;
    uint32_t bytes = help_entry(entry, "x", 1);
    batch_init(&b, NULL);
    EXPECT_OK(batch_reference_add(&b, "p", 1, &one));
    EXPECT_OK(batch_reference_add(&b, "p", 1, &two));
    EXPECT_OK(batch_add_tracked(&b, entry, bytes, 1, one, 5));
    EXPECT_OK(batch_add_tracked(&b, entry, bytes, 1, two, 5)); /* goes */
    EXPECT_OK(batch_add_tracked(&b, entry, bytes, 1, two, 6));
    EXPECT_OK(batch_add_tracked(&b, entry, bytes, 1, one, 6)); /* goes */
    EXPECT_OK(batch_add_tracked(&b, entry, bytes, 1, one, 7));
    REQUIRE_OK(batch_seal(&b, NULL));
    REQUIRE_OK(batch_drop_duplicates(&b, NULL));
    EXPECT_EQ(3, b.records);
    EXPECT_EQ(2, b.duplicates);
    EXPECT_EQ(11, b.chunks[0].trailer_bytes); /* their reference is one */
    EXPECT(batch_dropped(&b, one, &at, &number) && number == 1);
    EXPECT(!batch_dropped(&b, one, &at, &number));
    at = 0;
    EXPECT(batch_dropped(&b, two, &at, &number) && number == 0);
    EXPECT(!batch_dropped(&b, two, &at, &number));
    batch_clear(&b);
    EXPECT(b.dropped == NULL);
    batch_free(&b);
}

TEST(a_reference_is_one_to_255_bytes)
{
    struct batch b;
    char text[256];
    uint32_t index;
    memset(text, 'r', sizeof text);
    batch_init(&b, NULL);
    EXPECT_ERR(ERR_LIMIT, batch_reference_add(&b, text, 256, &index));
    EXPECT_ERR(ERR_LIMIT, batch_reference_add(&b, text, 0, &index));
    EXPECT_OK(batch_reference_add(&b, text, 255, &index));
    EXPECT_EQ(0, index);
    EXPECT_OK(batch_reference_add(&b, text, 254, &index));
    EXPECT_EQ(1, b.references[index].first);
    EXPECT_OK(batch_reference_add(&b, text, 255, &index));
    EXPECT_EQ(0, b.references[index].first);
    batch_free(&b);
}
