/* SPDX-License-Identifier: Apache-2.0 */
#include "../log/upkeep.h"

#include "../log/cold.h"
#include "../log/handle.h"
#include "log_help.h"

static char text[200000];
static unsigned lines;
static int collect(void *context, const char *line)
{
    const unsigned *stop_after = context;
    size_t n = strlen(text);
    snprintf(text + n, sizeof text - n, "%s\n", line);
    lines++;
    return stop_after && lines >= *stop_after;
}

static err dump(const char *directory, const char *name, const struct dump_options *options, struct fault *f)
{
    char path[700];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    text[0] = 0;
    lines = 0;
    return dump_file(path, options, collect, NULL, f);
}

static const char *make_log(void)
{
    const char *path = help_path();
    struct log *l = help_log(path, &(struct log_options){.segment_bytes_max = 4096});
    struct batch b;
    batch_init(&b, NULL);
    batch_filter_size(&b, log_filter_bytes(l));
    for (int i = 0; i < 8; i++) {
        help_add_tracked(&b, i % 2 ? "plain" : "od\td\xff", (uint64_t)i, "hello");
        if (i == 1) batch_filter(&b, (const uint8_t *)"eu", 2);
        EXPECT_OK(help_fill(l, &b, 5, 200, NULL));
    }
    batch_free(&b);
    log_close(l);
    return path;
}

TEST(each_kind_of_file_is_printed)
{
    const char *path = make_log();
    struct dump_options all = {.entries = true};
    struct fault f;
    EXPECT_OK(dump(path, "00000000000000000000.segment", &all, &f));
    EXPECT(strstr(text, "segment: first offset 0") != NULL);
    EXPECT(strstr(text, "chunk 0, 6 entries, 6 records") != NULL);
    EXPECT(strstr(text, "filter 0, data 1029,") != NULL);
    EXPECT(strstr(text, "filter 20, data 1029,") != NULL);
    EXPECT(strstr(text, "offset 0: 5 bytes: 68656c6c6f") != NULL);
    EXPECT(strstr(text, "publisher \"od\\x09d\\xff\" up to id 0") != NULL);
    EXPECT_OK(dump(path, "00000000000000000000.index", &all, &f));
    EXPECT(strstr(text, "0: chunk 0,") != NULL);
    EXPECT_OK(dump(path, "control", &all, &f));
    EXPECT(strstr(text, "next offset 48") != NULL);
    EXPECT(strstr(text, "filters 16 bytes") != NULL);
    EXPECT_OK(dump(path, "tracking", &all, &f));
    EXPECT(strstr(text, "publisher \"plain\" up to id 7") != NULL);
    EXPECT_OK(dump(path, "00000000000000000024.tracking", &all, &f));
    EXPECT(strstr(text, "as segment 24 began") != NULL);
    EXPECT_OK(stub_write(path, &(struct stub){.first = 0, .next = 24, .bytes = 5000, .seed = 3, .epoch = 2, .broker_epoch = 7}, &f));
    EXPECT_OK(dump(path, "00000000000000000000.remote", &all, &f));
    EXPECT(strstr(text, "segment 0 up to offset 24, 5000 bytes") != NULL);
    EXPECT(strstr(text, "epoch 2, broker's epoch 7:") != NULL);
}

TEST(a_limit_and_a_reader_who_has_had_enough_end_it)
{
    const char *path = make_log();
    struct fault f;
    EXPECT_OK(dump(path, "00000000000000000000.index", &(struct dump_options){.limit = 2}, &f));
    EXPECT_EQ(3, lines);
    char file[700];
    unsigned stop_after = 1;
    lines = 0;
    snprintf(file, sizeof file, "%s/00000000000000000000.segment", path);
    EXPECT_OK(dump_file(file, &(struct dump_options){.entries = true}, collect, &stop_after, &f));
    EXPECT_EQ(1, lines);
}

TEST(damage_is_told_and_the_walk_goes_on)
{
    const char *path = make_log();
    char file[700];
    struct fault f;
    snprintf(file, sizeof file, "%s/00000000000000000000.segment", path);
    int fd = open(file, O_RDWR);
    EXPECT_EQ(1, pwrite(fd, "\xff", 1, SEGMENT_HEADER_BYTES + 30)); /* a header */
    EXPECT_ERR(ERR_CORRUPT, dump(path, "00000000000000000000.segment", &(struct dump_options){0}, &f));
    EXPECT(strstr(text, "64: DAMAGED") != NULL);
    EXPECT(strstr(text, "chunk 6,") != NULL);
    EXPECT(strstr(text, "DAMAGED filter") == NULL);
    uint64_t second = strtoull(strstr(text, "filter 20") ? strstr(text, "stepped over\n") + 13 : "0", NULL, 10);
    EXPECT_EQ(1, pwrite(fd, "\xff", 1, (off_t)second + CHUNK_HEADER_BYTES + 8));
    EXPECT_ERR(ERR_CORRUPT, dump(path, "00000000000000000000.segment", &(struct dump_options){0}, &f));
    EXPECT(strstr(text, "DAMAGED filter") != NULL);
    EXPECT_EQ(4, pwrite(fd, "none", 4, 0)); /* and the file's */
    EXPECT_ERR(ERR_CORRUPT, dump(path, "00000000000000000000.segment", &(struct dump_options){0}, &f));
    EXPECT(strstr(text, "DAMAGED segment header") != NULL);
    EXPECT(strstr(text, "chunk 6,") != NULL);
    close(fd);
}

TEST(the_byte_of_a_flipped_bit_is_named)
{
    const char *path = make_log(), *name = "00000000000000000000.segment";
    char file[700], expected[100];
    struct fault f;
    snprintf(file, sizeof file, "%s/%s", path, name);
    int fd = open(file, O_RDWR);
    struct scan s;
    struct chunk c;
    EXPECT_OK(scan_open(&s, path, 0, 4096, &f));
    EXPECT_OK(scan_header(&s, SEGMENT_HEADER_BYTES, &c, &f));
    file_close(&s.fd);
    uint64_t entries = SEGMENT_HEADER_BYTES + CHUNK_HEADER_BYTES + c.bloom_bytes;
    uint64_t places[] = {entries, entries + 700, entries + c.data_bytes, SEGMENT_HEADER_BYTES + 20};
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        uint8_t byte;
        EXPECT_EQ(1, pread(fd, &byte, 1, (off_t)places[i]));
        byte ^= 1u << i;
        EXPECT_EQ(1, pwrite(fd, &byte, 1, (off_t)places[i]));
        EXPECT_ERR(ERR_CORRUPT, dump(path, name, &(struct dump_options){0}, &f));
        EXPECT_EQ(places[i], f.position);
        snprintf(expected, sizeof expected, "of chunk 0: one bit of byte %llu", (unsigned long long)places[i]);
        EXPECT(strstr(text, expected) != NULL);
        byte ^= 1u << i;
        EXPECT_EQ(1, pwrite(fd, &byte, 1, (off_t)places[i]));
    }
    EXPECT_EQ(2, pwrite(fd, "\x55\x55", 2, (off_t)entries + 7));
    EXPECT_ERR(ERR_CORRUPT, dump(path, name, &(struct dump_options){0}, &f));
    EXPECT_EQ(entries, f.position);
    close(fd);
}

TEST(any_bytes_at_all_are_printed_or_refused)
{
    char file[700];
    uint8_t bytes[5000];
    static const uint32_t magics[] = {SEGMENT_MAGIC, INDEX_MAGIC, TRACKING_SNAPSHOT_MAGIC};
    for (int round = 0; round < 500; round++) {
        size_t size = test_random_below(sizeof bytes);
        uint32_t native = test_random() & 1 ? TRACKING_MAGIC : CONTROL_MAGIC;
        struct fault f;
        test_random_fill(bytes, sizeof bytes);
        if (round % 5 < 3) bytes_store32(bytes, magics[round % 5]);
        else if (round % 5 == 3) memcpy(bytes, &native, 4);
        snprintf(file, sizeof file, "%s/noise", test_scratch());
        if (round % 7 == 0) size = 4096;
        int fd = open(file, O_RDWR | O_CREAT | O_TRUNC, 0600);
        EXPECT_EQ(size, write(fd, bytes, size));
        close(fd);
        text[0] = 0;
        dump_file(file, &(struct dump_options){.entries = true, .limit = 100}, collect, NULL, &f);
    }
    struct fault f;
    EXPECT_ERR(ERR_NOT_FOUND, dump_file("/nowhere", &(struct dump_options){0}, collect, NULL, &f));
}
