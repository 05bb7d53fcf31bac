/* SPDX-License-Identifier: Apache-2.0
 *
 * Filters in a log: whatever is published and asked for, no message that matches is withheld, and chunks that
 * nobody wants are passed over by their heads alone.
 */
#include "../log/chunk.h"

#include <errno.h>

#include "../base/check.h"
#include "../log/handle.h"
#include "log_help.h"

#define VALUES 12u /* "v0" to "v11"; number VALUES stands for none */
#define MESSAGES_MAX 8000u
#define READ_BYTES (1u << 20)

static struct sys fake;
static uint64_t bytes_read, reads;
static bool often_cold;

static ssize_t count_pread(int fd, void *data, size_t size, off_t position)
{
    ssize_t n = sys_real.pread(fd, data, size, position);
    if (n > 0) bytes_read += (uint64_t)n;
    reads++;
    return n;
}

/* What is cached may end anywhere. */
static ssize_t cold_pread(int fd, void *data, size_t size, off_t position)
{
    if (often_cold && test_random_below(3) == 0) {
        errno = EAGAIN;
        return -1;
    }
    if (often_cold && test_random_below(2)) size = 1 + (size_t)test_random_below(size);
    return count_pread(fd, data, size, position);
}

static void use_counting(void)
{
    fake = sys_real;
    fake.pread = count_pread;
    fake.pread_nowait = cold_pread;
    sys = &fake;
    bytes_read = reads = 0;
}

/* One message whose first byte is the number of its value; with an id when `reference` is given. */
static err add(struct batch *b, const char *reference, uint64_t id, uint32_t value, uint32_t bytes)
{
    char text[8];
    uint8_t entry[2052], body[2048] = {0};
    uint32_t index;
    body[0] = (uint8_t)value;
    bytes = help_entry(entry, body, bytes);
    err e = reference ? help_reference(b, reference, &index) : OK;
    if (!e) e = reference ? batch_add_tracked(b, entry, bytes, 1, index, id) : batch_add(b, entry, bytes, 1);
    if (e) return e;
    batch_filter(b, (const uint8_t *)text, value == VALUES ? 0 : (uint32_t)sprintf(text, "v%u", value));
    return OK;
}

/* What one consumer wants, and what came. */
struct asked {
    struct filter filter;
    bool wants[VALUES + 1], got[MESSAGES_MAX];
    uint64_t withheld, skipped;
};

static void ask(struct asked *a)
{
    memset(a, 0, sizeof *a);
    a->wants[VALUES] = test_random_below(4) == 0;
    filter_init(&a->filter, a->wants[VALUES]);
    for (uint32_t i = 0, count = 1 + (uint32_t)test_random_below(3); i < count; i++) {
        char text[8];
        uint32_t value = (uint32_t)test_random_below(VALUES);
        a->wants[value] = true;
        CHECK(filter_add(&a->filter, (const uint8_t *)text, (uint32_t)sprintf(text, "v%u", value)) == OK);
    }
}

static void note_got(struct asked *a, const uint8_t *data, const struct chunk *c)
{
    const uint8_t *at = data + CHUNK_HEADER_BYTES + c->bloom_bytes, *end = at + c->data_bytes;
    struct chunk_entry e;
    for (uint64_t offset = c->chunk_id; chunk_entry_next(&at, end, &e) == OK; offset++) {
        CHECK(offset < MESSAGES_MAX);
        a->got[offset] = true;
    }
}

static void note_withheld(struct help_walk *w, uint64_t offset, const uint8_t *body, uint32_t bytes)
{
    struct asked *a = w->context;
    (void)bytes;
    if (a->wants[body[0]] && !a->got[offset]) a->withheld++;
}

/* Read as a consumer with a filter does, then compare with what one without gets. */
static void consume(struct log *l, struct asked *a)
{
    static uint8_t buffer[READ_BYTES];
    struct reader r;
    uint64_t size;
    REQUIRE_OK(reader_open(&r, l, READER_FIRST, 0, NULL));
    for (;;) {
        struct chunk c;
        uint32_t skipped, most = 1 + (uint32_t)test_random_below(5);
        err e = reader_skip(&r, &a->filter, most, test_random() & 1, &skipped, NULL);
        EXPECT(skipped <= most);
        a->skipped += skipped;
        if (e == ERR_END) break;
        if (e == ERR_NOT_CACHED || (e == OK && skipped == most)) continue;
        if (!e) e = reader_fetch(&r, buffer, sizeof buffer, false, &size, NULL);
        if (!e) e = reader_chunk(&r, buffer, size, true, &c, NULL);
        if (!EXPECT_OK(e)) break;
        note_got(a, buffer, &c);
        reader_advance(&r, &c);
    }
    reader_close(&r);
    struct help_walk walk = {.message = note_withheld, .context = a};
    help_walk_log(&walk, l);
    EXPECT_EQ(0, walk.damaged);
    EXPECT_EQ(0, a->withheld);
}

/* Flip a bit of some filters: positions from a walk over the log. */
static void damage_filters(struct log *l)
{
    struct reader r;
    static uint8_t buffer[READ_BYTES];
    uint64_t size;
    struct chunk c;
    REQUIRE_OK(reader_open(&r, l, READER_FIRST, 0, NULL));
    while (reader_fetch(&r, buffer, sizeof buffer, false, &size, NULL) == OK && EXPECT_OK(reader_chunk(&r, buffer, size, true, &c, NULL))) {
        if (c.bloom_bytes && test_random_below(3) == 0) {
            struct file_path path = file_path_numbered(l->directory, r.segment, SEGMENT_SUFFIX);
            uint64_t at = CHUNK_HEADER_BYTES + test_random_below(c.bloom_bytes);
            buffer[at] ^= (uint8_t)(1 << test_random_below(8));
            int fd = open(path.text, O_WRONLY);
            EXPECT_EQ(1, pwrite(fd, buffer + at, 1, (off_t)(r.position + at)));
            close(fd);
        }
        reader_advance(&r, &c);
    }
    reader_close(&r);
}

static void publish_some(struct log *l, struct batch *b, uint64_t ids[2])
{
    uint32_t messages = 1 + (uint32_t)test_random_below(test_random_below(6) ? 12 : CHUNK_MESSAGES_MAX + 200);
    uint32_t usual = (uint32_t)test_random_below(VALUES + 1);
    struct log_options limits = {.segment_bytes_max = 4096u << test_random_below(5),
                                 .filter_bytes = FILTER_BYTES_MIN + (uint32_t)test_random_below(FILTER_BYTES_MAX - FILTER_BYTES_MIN + 1)};
    if (test_random_below(4) == 0) EXPECT_OK(log_set_limits(l, &limits, NULL));
    batch_filter_size(b, log_filter_bytes(l));
    for (uint32_t i = 0; i < messages; i++) {
        uint32_t who = (uint32_t)test_random_below(3), bytes = 1 + (uint32_t)test_random_below(60);
        uint32_t value = test_random_below(3) ? usual : (uint32_t)test_random_below(VALUES + 1);
        bool again = who < 2 && ids[who] > 0 && test_random_below(4) == 0;
        EXPECT_OK(add(b, who == 2 ? NULL : who ? "one" : "other", who == 2 ? 0 : again ? ids[who] : ++ids[who], value, bytes));
    }
    batch_check(b);
    EXPECT_OK(help_append(l, b, NULL));
}

TEST(no_message_that_matches_is_ever_withheld)
{
    struct batch b;
    static struct asked asked;
    uint64_t skipped = 0;
    use_counting();
    often_cold = true;
    REQUIRE_OK(batch_init(&b, NULL));
    for (int round = 0; round < 60; round++) {
        struct log *l = help_log(help_path(), &(struct log_options){.segment_bytes_max = 20000});
        struct commit c = {0};
        uint64_t ids[2] = {0};
        for (int i = 0; i < 30 && c.next_offset < MESSAGES_MAX - 2 * CHUNK_MESSAGES_MAX; i++) {
            publish_some(l, &b, ids);
            control_committed(log_control(l), &c);
        }
        for (int i = 0; i < 4; i++) {
            ask(&asked);
            consume(l, &asked);
            skipped += asked.skipped;
        }
        damage_filters(l);
        for (int i = 0; i < 2; i++) {
            ask(&asked);
            consume(l, &asked);
        }
        log_close(l);
    }
    EXPECT(skipped > 1000);
    often_cold = false;
    sys = &sys_real;
    batch_free(&b);
}

TEST(chunks_that_nobody_wants_cost_their_heads)
{
    struct batch b;
    struct reader r;
    struct filter filter;
    uint32_t skipped;
    struct log *l = help_log(help_path(), &(struct log_options){.segment_bytes_max = 2u << 20});
    REQUIRE_OK(batch_init(&b, NULL));
    for (int i = 0; i < 100; i++) {
        batch_filter_size(&b, log_filter_bytes(l));
        for (int k = 0; k < 100; k++) EXPECT_OK(add(&b, NULL, 0, 3, 1000));
        EXPECT_OK(help_append(l, &b, NULL));
    }
    filter_init(&filter, true);
    EXPECT_OK(filter_add(&filter, (const uint8_t *)"elsewhere", 9));
    REQUIRE_OK(reader_open(&r, l, READER_FIRST, 0, NULL));
    use_counting();
    EXPECT_OK(reader_skip(&r, &filter, 99, true, &skipped, NULL));
    EXPECT_EQ(99, skipped);
    EXPECT_ERR(ERR_END, reader_skip(&r, &filter, 99, true, &skipped, NULL));
    EXPECT_EQ(1, skipped);
    EXPECT_EQ(10000, r.next_offset);
    EXPECT(!reader_has_more(&r));
    EXPECT(reads < 120 && bytes_read < 120 * 4096); /* of 10 MB; some heads of segments */
    sys = &sys_real;
    reader_close(&r);
    batch_free(&b);
    log_close(l);
}

TEST(a_chunk_without_any_value_has_no_filter_and_is_as_long_as_ever)
{
    struct batch b;
    struct log_appended a;
    struct log *l = help_log(help_path(), &(struct log_options){0});
    REQUIRE_OK(batch_init(&b, NULL));
    batch_filter_size(&b, log_filter_bytes(l));
    for (unsigned i = 0; i < CHUNK_MESSAGES_MAX + 1; i++) EXPECT_OK(add(&b, NULL, 0, VALUES, 4));
    EXPECT_OK(help_append(l, &b, &a));
    EXPECT_EQ(SEGMENT_HEADER_BYTES + 2 * CHUNK_HEADER_BYTES + 8 * (CHUNK_MESSAGES_MAX + 1), a.position);
    EXPECT_OK(add(&b, NULL, 0, 1, 4));
    uint64_t before = a.position;
    EXPECT_OK(help_append(l, &b, &a));
    EXPECT_EQ(CHUNK_HEADER_BYTES + FILTER_BYTES_DEFAULT + FILTER_CHECK_BYTES + 8, a.position - before);
    struct help_walk walk = {0};
    help_walk_log(&walk, l);
    EXPECT_EQ(CHUNK_MESSAGES_MAX + 2, walk.messages);
    batch_free(&b);
    log_close(l);
}

TEST(a_file_that_ends_too_early_is_told_and_not_waited_for)
{
    struct batch b;
    struct reader r;
    struct filter filter;
    uint32_t skipped;
    struct fault f;
    struct log *l = help_log(help_path(), &(struct log_options){0});
    REQUIRE_OK(batch_init(&b, NULL));
    batch_filter_size(&b, log_filter_bytes(l));
    for (int i = 0; i < 2; i++) {
        EXPECT_OK(add(&b, NULL, 0, 3, 1000));
        EXPECT_OK(help_append(l, &b, NULL));
    }
    struct file_path path = file_path_numbered(l->directory, 0, SEGMENT_SUFFIX);
    uint64_t chunk = CHUNK_HEADER_BYTES + FILTER_BYTES_DEFAULT + FILTER_CHECK_BYTES + 1004;
    EXPECT_EQ(0, truncate(path.text, (off_t)(SEGMENT_HEADER_BYTES + chunk + CHUNK_HEADER_BYTES + 3)));
    filter_init(&filter, false);
    EXPECT_OK(filter_add(&filter, (const uint8_t *)"v4", 2));
    REQUIRE_OK(reader_open(&r, l, READER_FIRST, 0, NULL));
    for (int nowait = 0; nowait < 2; nowait++) {
        EXPECT_ERR(ERR_CORRUPT, reader_skip(&r, &filter, 9, nowait, &skipped, &f));
        EXPECT_EQ(nowait ? 0 : 1, skipped);
        EXPECT_EQ(SEGMENT_HEADER_BYTES + chunk, f.position);
    }
    reader_close(&r);
    batch_free(&b);
    log_close(l);
}
