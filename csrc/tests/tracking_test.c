/* SPDX-License-Identifier: Apache-2.0 */
#include "../log/tracking.h"

#include "../base/crc32.h"
#include "../base/file.h"
#include "../log/segment.h"
#include "log_help.h"

static struct tracking *table(void)
{
    static struct tracking t;
    memset(&t, 0, sizeof t);
    tracking_init(&t);
    return &t;
}

TEST(a_sequence_is_raised_and_never_lowered)
{
    struct tracking *t = table();
    uint64_t sequence = 99;
    EXPECT(!tracking_find(t, "p", 1, &sequence));
    tracking_raise(t, "p", 1, 0, 0);
    EXPECT(tracking_find(t, "p", 1, &sequence));
    EXPECT_EQ(0, sequence);
    tracking_raise(t, "p", 1, 7, 10);
    tracking_raise(t, "p", 1, 3, 5);
    EXPECT(tracking_find(t, "p", 1, &sequence));
    EXPECT_EQ(7, sequence);
    EXPECT(!tracking_find(t, "pp", 2, &sequence));
    EXPECT(!tracking_find(t, "q", 1, &sequence));
    tracking_check(t);
}

TEST(the_reference_of_the_oldest_chunk_makes_room)
{
    struct tracking *t = table();
    uint64_t sequence;
    for (uint64_t i = 0; i < 1000; i++) {
        char name[16];
        int n = snprintf(name, sizeof name, "r%" PRIu64, i);
        tracking_raise(t, name, (uint32_t)n, i, i);
        tracking_raise(t, "kept", 4, i, i);
        tracking_check(t);
    }
    EXPECT(tracking_find(t, "kept", 4, &sequence));
    EXPECT(tracking_find(t, "r999", 4, &sequence));
    EXPECT(tracking_find(t, "r746", 4, &sequence));
    EXPECT(!tracking_find(t, "r745", 4, &sequence));
}

TEST(a_malformed_trailer_changes_nothing)
{
    static const uint8_t good[] = {0, 1, 'p', 0, 0, 0, 0, 0, 0, 0, 9, 1, 1, 'o', 0, 0, 0, 0, 0, 0, 0, 1};
    for (uint32_t bytes = 0; bytes <= sizeof good; bytes++) {
        struct tracking *t = table();
        uint64_t sequence;
        bool whole = bytes == 0 || bytes == 11 || bytes == sizeof good;
        EXPECT_ERR(whole ? OK : ERR_CORRUPT, tracking_apply(t, good, bytes, 5));
        EXPECT_EQ(whole && bytes > 0, tracking_find(t, "p", 1, &sequence));
        EXPECT(!tracking_find(t, "o", 1, &sequence)); /* a stored offset is not a publisher */
    }
    static const uint8_t nameless[] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
    EXPECT_ERR(ERR_CORRUPT, tracking_apply(table(), nameless, sizeof nameless, 1));
}

TEST(a_snapshot_reads_back_and_every_flipped_bit_is_noticed)
{
    const char *directory = help_path();
    struct tracking *t = table();
    mkdir(directory, 0750);
    for (uint32_t i = 1; i <= TRACKING_REFERENCES_MAX; i++) {
        char name[TRACKING_REFERENCE_BYTES_MAX];
        memset(name, (int)i, sizeof name);
        tracking_raise(t, name, i, i * 1000, i);
    }
    EXPECT_OK(tracking_snapshot_write(t, directory, 77, true, NULL));
    static struct tracking had;
    memset(&had, 0, sizeof had);
    tracking_init(&had);
    struct fault f;
    EXPECT_OK(tracking_snapshot_read(directory, 77, &had, &f));
    EXPECT_MEM_EQ(t, &had, sizeof had);
    EXPECT_ERR(ERR_NOT_FOUND, tracking_snapshot_read(directory, 78, &had, &f));

    static uint8_t bytes[TRACKING_SNAPSHOT_BYTES_MAX];
    uint64_t segment;
    size_t size;
    int fd;
    struct file_path path = file_path_numbered(directory, 77, TRACKING_SUFFIX);
    EXPECT_OK(file_open(path.text, O_RDONLY, &fd, &f));
    EXPECT_OK(file_read(fd, path.text, bytes, sizeof bytes, 0, &size, &f));
    close(fd);
    for (size_t bit = 0; bit < 8 * size; bit += size > 1000 && bit > 400 ? 61 : 1) {
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        EXPECT_ERR(ERR_CORRUPT, tracking_snapshot_decode("tracking", bytes, size, &segment, table(), NULL));
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    for (size_t cut = 0; cut < size; cut += 7) EXPECT(tracking_snapshot_decode("tracking", bytes, cut, &segment, table(), NULL) != OK);
}

TEST(a_good_checksum_does_not_excuse_a_value_beyond_its_limit)
{
    uint8_t bytes[20 + 17 + 4] = {0};
    uint64_t segment;
    bytes_store32(bytes, TRACKING_SNAPSHOT_MAGIC);
    bytes_store32(bytes + 4, TRACKING_VERSION);
    static const uint32_t counts[] = {1, 2, TRACKING_REFERENCES_MAX + 1, UINT32_MAX};
    for (size_t i = 0; i < 4; i++) { /* one with an empty name, and counts that the bytes do not hold */
        bytes_store32(bytes + 16, counts[i]);
        bytes_store32(bytes + sizeof bytes - 4, crc32_update(0, bytes, sizeof bytes - 4));
        EXPECT_ERR(ERR_CORRUPT, tracking_snapshot_decode("tracking", bytes, sizeof bytes, &segment, table(), NULL));
    }
}
