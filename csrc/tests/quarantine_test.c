/* SPDX-License-Identifier: Apache-2.0
 *
 * What recovery takes out of a log is kept byte for byte before anything is cut, within bounds; and where it
 * cannot be kept, nothing is cut.
 */
#include "../log/handle.h"

#include <dirent.h>
#include <errno.h>

#include "../log/handle.h"
#include "log_help.h"

static const struct log_options options = {.segment_bytes_max = 1 << 20};

static int boot_byte = 1;
static int some_boot_id(uint8_t out[16])
{
    memset(out, boot_byte, 16);
    return 0;
}

static ssize_t full_pwrite(int fd, const void *data, size_t size, off_t position)
{
    (void)fd, (void)data, (void)size, (void)position;
    errno = ENOSPC;
    return -1;
}

static uint64_t broken_at; /* a read that touches this byte fails */
static ssize_t broken_pread(int fd, void *data, size_t size, off_t position)
{
    if (broken_at >= (uint64_t)position && broken_at < (uint64_t)position + size) {
        errno = EIO;
        return -1;
    }
    return sys_real.pread(fd, data, size, position);
}

static struct sys table;

static void begin(void)
{
    table = sys_real;
    table.boot_id = some_boot_id;
    sys = &table;
}

/* A log of ten messages and 100,000 bytes behind them that are no chunk; then another boot. */
static void make_torn(const char *path, uint64_t *good, uint8_t *tail, size_t tail_bytes)
{
    struct log *l = help_log(path, &options);
    struct batch b;
    struct commit c;
    batch_init(&b, NULL);
    EXPECT_OK(help_fill(l, &b, 10, 100, NULL));
    batch_free(&b);
    control_committed(log_control(l), &c);
    log_close(l);
    *good = c.position;
    test_random_fill(tail, tail_bytes);
    struct file_path file = file_path_numbered(path, 0, SEGMENT_SUFFIX);
    int fd = open(file.text, O_RDWR);
    EXPECT_EQ(tail_bytes, pwrite(fd, tail, tail_bytes, (off_t)c.position));
    close(fd);
    boot_byte++;
}

static size_t load(const char *file, uint8_t *out, size_t size)
{
    int fd = open(file, O_RDONLY);
    ssize_t got = fd < 0 ? -1 : read(fd, out, size);
    EXPECT(got >= 0);
    close(fd);
    return got < 0 ? 0 : (size_t)got;
}

static unsigned files_with(const char *directory, const char *part)
{
    unsigned count = 0;
    DIR *d = opendir(directory);
    for (struct dirent *entry; (entry = readdir(d)) != NULL;) count += strstr(entry->d_name, part) != NULL;
    closedir(d);
    return count;
}

static uint64_t size_of(const char *path, const char *name)
{
    char file[700];
    struct stat st;
    snprintf(file, sizeof file, "%s/%s", path, name);
    return stat(file, &st) == 0 ? (uint64_t)st.st_size : UINT64_MAX;
}

static uint8_t tail[100000], kept[200000];

TEST(a_torn_tail_is_copied_before_it_is_cut_and_each_one_has_a_file_of_its_own)
{
    begin();
    const char *path = help_path();
    struct recovery_report report;
    uint64_t good;
    make_torn(path, &good, tail, sizeof tail);
    for (unsigned turn = 1; turn <= 3; turn++) {
        REQUIRE_OK(recovery_run(path, &options, NULL, &report, NULL));
        EXPECT_EQ(1, report.cut_count);
        EXPECT_EQ(good, report.cuts[0].position);
        EXPECT_EQ(sizeof tail, report.cut_bytes);
        EXPECT_EQ(sizeof tail, load(report.cuts[0].kept, kept, sizeof kept));
        EXPECT(memcmp(tail, kept, sizeof tail) == 0);
        EXPECT_EQ(good, size_of(path, "00000000000000000000.segment"));
        EXPECT_EQ(turn, files_with(path, ".quarantine"));
        EXPECT_EQ(0, files_with(path, ".tmp"));
        /* The same place is torn again, with other bytes. */
        test_random_fill(tail, sizeof tail);
        struct file_path file = file_path_numbered(path, 0, SEGMENT_SUFFIX);
        int fd = open(file.text, O_RDWR);
        EXPECT_EQ(sizeof tail, pwrite(fd, tail, sizeof tail, (off_t)good));
        close(fd);
        boot_byte++;
    }
    EXPECT_OK(log_remove(path, NULL)); /* they go with the log */
    sys = &sys_real;
}

TEST(a_disk_too_full_to_keep_the_tail_refuses_the_log_and_loses_nothing)
{
    begin();
    const char *path = help_path();
    struct recovery_report report;
    struct log *l;
    uint64_t good;
    make_torn(path, &good, tail, sizeof tail);
    table.pwrite = full_pwrite;
    EXPECT_ERR(ERR_DISK_FULL, recovery_run(path, &options, NULL, &report, NULL));
    EXPECT_EQ(good + sizeof tail, size_of(path, "00000000000000000000.segment"));
    EXPECT_EQ(0, files_with(path, ".tmp"));
    EXPECT_ERR(ERR_STALE, log_open(path, &l, NULL));
    table.pwrite = sys_real.pwrite; /* room was made */
    EXPECT_OK(recovery_run(path, &options, NULL, &report, NULL));
    EXPECT_EQ(sizeof tail, load(report.cuts[0].kept, kept, sizeof kept));
    EXPECT(memcmp(tail, kept, sizeof tail) == 0);
    sys = &sys_real;
}

TEST(a_sector_that_cannot_be_read_is_zeros_in_the_copy)
{
    begin();
    const char *path = help_path();
    struct file_path out;
    uint64_t good;
    make_torn(path, &good, tail, sizeof tail);
    broken_at = good + 70000;
    table.pread = broken_pread;
    EXPECT_OK(quarantine_tail(path, 0, good, good + sizeof tail, 1, &out, NULL));
    sys = &sys_real;
    EXPECT_EQ(sizeof tail, load(out.text, kept, sizeof kept));
    uint64_t zeros = 0;
    for (size_t i = 0; i < sizeof tail; i++) {
        if (kept[i] == tail[i]) continue;
        EXPECT_EQ(0, kept[i]);
        zeros++;
    }
    EXPECT(zeros > 0 && zeros <= 4096);
    EXPECT_EQ(0, kept[70000]);
}

TEST(an_index_that_says_nothing_we_know_is_kept_and_one_that_is_zeros_is_not)
{
    for (int zeros = 0; zeros < 2; zeros++) {
        begin();
        const char *path = help_path();
        struct recovery_report report;
        uint8_t head[32];
        uint64_t good;
        make_torn(path, &good, tail, 0);
        test_random_fill(head, sizeof head);
        if (zeros) memset(head, 0, sizeof head);
        struct file_path file = file_path_numbered(path, 0, INDEX_SUFFIX);
        int fd = open(file.text, O_RDWR);
        EXPECT_EQ(sizeof head, pwrite(fd, head, sizeof head, 0));
        close(fd);
        EXPECT_OK(recovery_run(path, &options, NULL, &report, NULL));
        EXPECT_EQ(zeros ? 0 : 1, report.cut_count);
        EXPECT_EQ(zeros ? 0 : 1, files_with(path, ".index."));
        sys = &sys_real;
    }
}

static void put(const char *path, const char *name, uint64_t size, int64_t age_s)
{
    char file[700];
    struct timespec times[2] = {{.tv_sec = time(NULL) - age_s}, {.tv_sec = time(NULL) - age_s}};
    snprintf(file, sizeof file, "%s/%s", path, name);
    int fd = open(file, O_RDWR | O_CREAT, 0600);
    EXPECT_EQ(0, ftruncate(fd, (off_t)size)); /* a hole */
    EXPECT_EQ(0, futimens(fd, times));
    close(fd);
}

TEST(of_earlier_recoveries_the_oldest_go_first_and_what_is_new_stays)
{
    const char *path = help_path();
    mkdir(path, 0750);
    put(path, "00000000000000000000.segment.64.1.quarantine", QUARANTINE_EARLIER_BYTES_MAX, 0);
    put(path, "00000000000000000000.segment.64.10.quarantine", QUARANTINE_EARLIER_BYTES_MAX / 2, 0);
    put(path, "00000000000000000009.segment.9.quarantine", QUARANTINE_EARLIER_BYTES_MAX / 2, 0);
    put(path, "00000000000000000000.segment.64.11.quarantine", QUARANTINE_EARLIER_BYTES_MAX * 2, 0);
    put(path, "notes.quarantine", QUARANTINE_EARLIER_BYTES_MAX * 2, 0);
    EXPECT_OK(quarantine_trim(path, 11, NULL));
    EXPECT_EQ(4, files_with(path, ".quarantine"));
    EXPECT_EQ(UINT64_MAX, size_of(path, "00000000000000000000.segment.64.1.quarantine"));
    EXPECT_OK(quarantine_trim(path, 12, NULL));
    EXPECT_EQ(1, files_with(path, ".quarantine")); /* the last one alone is too much; what has no name of ours is not ours */
}

TEST(a_whole_file_never_takes_the_name_of_another_one_of_the_same_size)
{
    const char *path = help_path();
    struct file_path out;
    mkdir(path, 0750);
    put(path, "00000000000000000007.segment.1.quarantine", 4096, 60);
    put(path, "00000000000000000007.segment", 4096, 0);
    EXPECT_OK(quarantine_file(path, 7, SEGMENT_SUFFIX, 1, &out, NULL));
    EXPECT_EQ(2, files_with(path, ".quarantine"));
    EXPECT_EQ(4096, size_of(path, "00000000000000000007.segment.2.quarantine"));
    EXPECT_EQ(UINT64_MAX, size_of(path, "00000000000000000007.segment"));
}

TEST(age_takes_what_the_log_may_not_keep_longer_either)
{
    const char *path = help_path();
    struct log_options aged = {.retention_age_ms_max = 3600 * 1000};
    struct retention_report report;
    struct log *l = help_log(path, &aged);
    put(path, "00000000000000000000.segment.64.1.quarantine", 10, 3700);
    put(path, "00000000000000000000.segment.64.2.quarantine", 10, 3500);
    EXPECT_OK(retention_run(l, &report, NULL));
    EXPECT_EQ(UINT64_MAX, size_of(path, "00000000000000000000.segment.64.1.quarantine"));
    EXPECT_EQ(10, size_of(path, "00000000000000000000.segment.64.2.quarantine"));
    log_close(l);
}
