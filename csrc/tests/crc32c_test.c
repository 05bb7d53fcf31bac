/* SPDX-License-Identifier: Apache-2.0 */
#include "../base/crc32c.h"

#include "test.h"

/* The definition, one bit at a time. */
static uint32_t by_definition(const uint8_t *p, size_t size)
{
    uint32_t r = ~0u;
    for (size_t i = 0; i < size; i++) {
        r ^= p[i];
        for (int bit = 0; bit < 8; bit++) r = r & 1 ? (r >> 1) ^ 0x82F63B78u : r >> 1;
    }
    return ~r;
}

TEST(it_is_the_crc_of_the_definition_at_every_size_and_alignment)
{
    uint8_t data[300];
    EXPECT_EQ(0xE3069283u, crc32c("123456789", 9));
    for (size_t i = 0; i < sizeof data; i++) data[i] = (uint8_t)test_random_below(256);
    for (size_t at = 0; at < 8; at++)
        for (size_t size = 0; size + at <= sizeof data; size++)
            EXPECT_EQ(by_definition(data + at, size), crc32c(data + at, size));
}
