/* SPDX-License-Identifier: Apache-2.0 */
#include "../log/log.h"

#include <sys/wait.h>

#include "log_help.h"

static const struct log_options plain = {0};

TEST(a_new_log_is_empty_and_cannot_be_made_twice)
{
    const char *path = help_path();
    struct log *l = help_log(path, &plain);
    struct log_stats stats;
    struct fault f;
    EXPECT_OK(log_stats(l, &stats, &f));
    EXPECT_EQ(0, stats.first_offset);
    EXPECT_EQ(0, stats.next_offset);
    EXPECT_EQ(UINT64_MAX, stats.last_chunk);
    EXPECT_EQ(1, stats.segment_count);
    EXPECT_ERR(ERR_EXISTS, log_create(path, &plain, &f));
    struct help_walk w = {0};
    help_walk_log(&w, l);
    EXPECT_EQ(0, w.messages);
    log_close(l);
}

TEST(what_is_appended_is_read_back_in_order_across_segments)
{
    struct log *l = help_log(help_path(), &(struct log_options){.segment_bytes_max = 5000});
    struct batch b;
    batch_init(&b, NULL);
    uint64_t total = 0;
    for (int i = 0; i < 200; i++) {
        uint64_t count = 1 + test_random_below(20);
        struct log_appended a;
        EXPECT_OK(help_fill(l, &b, count, 50, &a));
        EXPECT_EQ(total, a.first_offset);
        total += count;
        EXPECT_EQ(total, a.next_offset);
    }
    struct help_walk w = {0};
    help_walk_log(&w, l);
    EXPECT_EQ(total, w.messages);
    EXPECT_EQ(200, w.chunks);
    EXPECT_EQ(0, w.damaged);
    struct log_stats stats;
    EXPECT_OK(log_stats(l, &stats, NULL));
    EXPECT(stats.segment_count > 10);
    EXPECT_EQ(total, stats.next_offset);
    batch_free(&b);
    log_close(l);
}
