/* SPDX-License-Identifier: Apache-2.0 */
#include "../shm/meters.h"

#include "test.h"

TEST(a_bucket_counts_up_to_its_power_of_two_and_the_last_one_all_the_rest)
{
    EXPECT_EQ(0, meter_bucket_of(0));
    EXPECT_EQ(0, meter_bucket_of(1));
    for (uint32_t k = 1; k < METERS_BUCKETS - 1; k++) {
        EXPECT_EQ(k, meter_bucket_of(UINT64_C(1) << k));
        EXPECT_EQ(k + 1, meter_bucket_of((UINT64_C(1) << k) + 1));
    }
    EXPECT_EQ(METERS_BUCKETS - 1, meter_bucket_of(UINT64_MAX));
}

TEST(many_are_counted_as_one_by_one)
{
    struct meter_histogram once = {0}, each = {0};
    meter_add(&once, 300, 5);
    for (int i = 0; i < 5; i++) meter_add(&each, 300, 1);
    EXPECT_EQ(1500, once.sum_us);
    EXPECT_EQ(1500, each.sum_us);
    EXPECT_EQ(5, once.buckets[9]);
    EXPECT_EQ(5, each.buckets[9]);
}

TEST(a_time_before_its_beginning_counts_as_none)
{
    struct meter_histogram h = {0};
    meter_add(&h, -5, 2);
    EXPECT_EQ(0, h.sum_us);
    EXPECT_EQ(2, h.buckets[0]);
}

TEST(seats_are_apart_by_whole_lines)
{
    EXPECT_EQ(0, sizeof(struct meters) % METERS_LINE);
}
