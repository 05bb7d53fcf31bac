/* SPDX-License-Identifier: Apache-2.0 */
#include "../base/bytes.h"

#include "test.h"

static const uint8_t data[15] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

TEST(values_are_read_big_endian_and_in_turn)
{
    struct reader_bytes r = bytes_reader(data, sizeof data);
    EXPECT_EQ(0x01, bytes_u8(&r));
    EXPECT_EQ(0x0203, bytes_u16(&r));
    EXPECT_EQ(0x04050607, bytes_u32(&r));
    EXPECT_EQ(0x08090A0B0C0D0E0F, bytes_u64(&r));
    EXPECT_EQ(0, bytes_left(&r));
    EXPECT(!r.failed);
}

TEST(a_read_past_the_end_yields_zero_and_sticks)
{
    struct reader_bytes r = bytes_reader(data, 3);
    EXPECT_EQ(0, bytes_u32(&r));
    EXPECT(r.failed && r.at == data);
    EXPECT_EQ(0, bytes_u8(&r)); /* although there is a byte */
    EXPECT(bytes_take(&r, 0) == NULL);
    r = bytes_reader(data, 3);
    EXPECT(bytes_take(&r, SIZE_MAX) == NULL);
    EXPECT(r.failed);
}

TEST(nothing_may_be_taken_from_nothing)
{
    struct reader_bytes r = bytes_reader(data, 0);
    EXPECT(bytes_take(&r, 0) == data);
    EXPECT(!r.failed);
}

TEST(what_is_written_is_read_back)
{
    uint8_t out[18];
    struct writer_bytes w = bytes_writer(out, sizeof out);
    bytes_put8(&w, 0xFE);
    bytes_put16(&w, 0xFEDC);
    bytes_put32(&w, 0xFEDCBA98);
    bytes_put64(&w, 0xFEDCBA9876543210);
    bytes_put(&w, "end", 3);
    EXPECT(!w.failed && w.at == w.end);
    struct reader_bytes r = bytes_reader(out, sizeof out);
    EXPECT_EQ(0xFE, bytes_u8(&r));
    EXPECT_EQ(0xFEDC, bytes_u16(&r));
    EXPECT_EQ(0xFEDCBA98, bytes_u32(&r));
    EXPECT_EQ(0xFEDCBA9876543210, bytes_u64(&r));
    EXPECT_MEM_EQ("end", bytes_take(&r, 3), 3);
}

TEST(a_write_past_the_end_writes_nothing_and_sticks)
{
    uint8_t out[4] = {9, 9, 9, 9};
    struct writer_bytes w = bytes_writer(out, 3);
    bytes_put32(&w, 1);
    EXPECT(w.failed && w.at == out);
    bytes_put8(&w, 1);
    for (int i = 0; i < 4; i++) EXPECT_EQ(9, out[i]);
}
