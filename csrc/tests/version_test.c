/* SPDX-License-Identifier: Apache-2.0
 *
 * Whichever file of a log is of another version: recovery, appending, reading and retention refuse, say which file and
 * which versions, and leave every byte as it was.
 */
#include "../log/upkeep.h"

#include <dirent.h>

#include "../base/crc32.h"
#include "../ledger/ledger.h"
#include "../log/handle.h"
#include "../log/offsets.h"
#include "log_help.h"

static const struct log_options options = {.segment_bytes_max = 4096, .retention_bytes_max = 1};

/* A log of three segments that has everything: an offset stored, a ledger, publishing ids. */
static const char *make_log(void)
{
    const char *path = help_path();
    struct log *l = help_log(path, &options);
    struct batch b;
    struct offsets *o;
    bool evicted;
    batch_init(&b, NULL);
    for (int i = 0; i < 12; i++) {
        EXPECT_OK(help_add_tracked(&b, "p", (uint64_t)i, "tracked"));
        EXPECT_OK(help_fill(l, &b, 4, 200, NULL));
    }
    batch_free(&b);
    log_close(l);
    EXPECT_OK(offsets_open(path, &o, NULL));
    EXPECT_OK(offsets_store(o, "c", 1, 7, &evicted, NULL));
    offsets_close(o);
    EXPECT_OK(ledger_create(path, 0, false, NULL));
    return path;
}

static size_t load(const char *file, uint8_t *data, size_t size)
{
    int fd = open(file, O_RDONLY);
    ssize_t got = read(fd, data, size);
    close(fd);
    EXPECT(got >= 0 && (size_t)got < size);
    return (size_t)got;
}

static void save(const char *file, const uint8_t *data, size_t size)
{
    int fd = open(file, O_WRONLY);
    EXPECT_EQ(size, pwrite(fd, data, size, 0));
    close(fd);
}

/* Names, sizes and bytes of all files in one number. */
static uint32_t hash_of(const char *directory)
{
    static uint8_t data[1 << 20];
    struct dirent **entries;
    uint32_t crc = 0;
    int count = scandir(directory, &entries, NULL, alphasort);
    for (int i = 0; i < count; i++) {
        char file[800];
        if (entries[i]->d_name[0] != '.') {
            snprintf(file, sizeof file, "%s/%s", directory, entries[i]->d_name);
            size_t size = load(file, data, sizeof data);
            crc = crc32_update(crc, entries[i]->d_name, strlen(entries[i]->d_name) + 1);
            crc = crc32_update(crc, data, size);
        }
        free(entries[i]);
    }
    free(entries);
    return crc;
}

enum check_at { LAST = -1 };

/* Make it the version after the newest, with a check that is right. */
static void raise_version(const char *file, bool big_endian, int check_at)
{
    static uint8_t data[1 << 20];
    size_t size = load(file, data, sizeof data), at = check_at == LAST ? size - 4 : (size_t)check_at;
    uint32_t version;
    memcpy(&version, data + 4, 4);
    version = (big_endian ? bytes_load32(data + 4) : version) + 1;
    if (big_endian) bytes_store32(data + 4, version);
    else {
        uint32_t magic, check;
        memcpy(&magic, data, 4);
        memcpy(data + 4, &version, 4);
        check = file_page_check(magic, version);
        memcpy(data + check_at, &check, 4);
    }
    if (big_endian) bytes_store32(data + at, crc32_update(0, data, at));
    save(file, data, size);
}

static const struct { const char *name; bool big_endian; int check_at; } files[] = {
    {"control", false, CONTROL_HEAD_CHECK_AT},
    {"tracking", false, TRACKING_HEAD_CHECK_AT},
    {"offsets", true, OFFSETS_HEADER_BYTES - 4},
    {"00000000000000000000.segment", true, SEGMENT_HEADER_BYTES - 4},
    {"00000000000000000025.segment", true, SEGMENT_HEADER_BYTES - 4},
    {"00000000000000000050.segment", true, SEGMENT_HEADER_BYTES - 4},
    {"00000000000000000000.index", true, INDEX_HEADER_BYTES - 4},
    {"00000000000000000050.index", true, INDEX_HEADER_BYTES - 4},
    {"00000000000000000025.tracking", true, LAST},
};

static int other_boot_id(uint8_t out[16])
{
    memset(out, 77, 16);
    return 0;
}

static void expect_refused(err e, const struct fault *f, const char *name)
{
    char line[600];
    EXPECT_ERR(ERR_VERSION, e);
    EXPECT(strstr(f->where, name) != NULL);
    EXPECT_EQ(f->needed + 1, f->had);
    fault_format(f, line, sizeof line);
    EXPECT(strstr(line, f->needed == 1 ? "version 2, known is version 1" : "version 3, known is version 2") != NULL);
    EXPECT(strstr(line, "start the newer vibemq") != NULL);
}

TEST(one_file_of_another_version_refuses_recovery_in_any_boot_and_nothing_is_written)
{
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++)
        for (int other_boot = 0; other_boot < 2; other_boot++) {
            const char *path = make_log();
            char file[700];
            struct recovery_report report;
            struct fault f = {0};
            snprintf(file, sizeof file, "%s/%s", path, files[i].name);
            EXPECT_OK(version_check(path, &f));
            raise_version(file, files[i].big_endian, files[i].check_at);
            uint32_t before = hash_of(path);
            struct sys changed = sys_real;
            if (other_boot) changed.boot_id = other_boot_id;
            sys = &changed;
            expect_refused(recovery_run(path, &options, NULL, &report, &f), &f, files[i].name);
            sys = &sys_real;
            EXPECT(!report.ran);
            EXPECT_EQ(before, hash_of(path));
        }
}

TEST(what_is_mapped_is_refused_by_who_opens_the_log_whatever_its_size)
{
    for (size_t i = 0; i < 2; i++)
        for (int larger = 0; larger < 2; larger++) {
            const char *path = make_log();
            char file[700];
            struct log *l;
            struct fault f = {0};
            snprintf(file, sizeof file, "%s/%s", path, files[i].name);
            raise_version(file, false, files[i].check_at);
            if (larger) EXPECT_EQ(0, truncate(file, 1 << 18));
            uint32_t before = hash_of(path);
            expect_refused(log_open(path, &l, &f), &f, files[i].name);
            EXPECT_EQ(before, hash_of(path));
        }
}

/* Also with an index whose header is good: its seed stands in for a damaged header, not for another format. */
TEST(a_segment_of_another_version_is_neither_appended_to_nor_read)
{
    const char *path = make_log();
    char file[700];
    struct log *l;
    struct batch b;
    struct log_appended a;
    struct reader r;
    struct fault f = {0};
    static uint8_t buffer[65536];
    uint64_t got;
    snprintf(file, sizeof file, "%s/00000000000000000050.segment", path);
    raise_version(file, true, SEGMENT_HEADER_BYTES - 4);
    uint32_t before = hash_of(path);
    REQUIRE_OK(log_open(path, &l, &f));
    batch_init(&b, NULL);
    EXPECT_OK(help_add(&b, "more"));
    EXPECT_OK(batch_seal(&b, &f));
    expect_refused(log_append(l, &b, &a, &f), &f, "50.segment");
    err e = reader_open(&r, l, READER_OFFSET, 55, &f);
    if (!e) {
        e = reader_fetch(&r, buffer, sizeof buffer, false, &got, &f);
        reader_close(&r);
    }
    expect_refused(e, &f, "50.segment");
    batch_free(&b);
    log_close(l);
    EXPECT_EQ(before, hash_of(path));
}

TEST(a_ledger_of_another_version_refuses_who_opens_or_recovers_it)
{
    const char *path = make_log();
    char file[700];
    struct ledger *ledger;
    struct fault f = {0};
    struct ledger_damage damage;
    EXPECT_OK(ledger_version_check(path, &f));
    EXPECT_OK(ledger_version_check("/nowhere", &f)); /* a stream's log has none */
    snprintf(file, sizeof file, "%s/ledger", path);
    raise_version(file, false, LEDGER_HEAD_CHECK_AT);
    for (int larger = 0; larger < 2; larger++) {
        if (larger) EXPECT_EQ(0, truncate(file, 1 << 16));
        uint32_t before = hash_of(path);
        expect_refused(ledger_version_check(path, &f), &f, "ledger");
        expect_refused(ledger_open(path, &ledger, &f), &f, "ledger");
        expect_refused(ledger_recover(path, 0, 60, false, &damage, &f), &f, "ledger");
        EXPECT_EQ(before, hash_of(path));
    }
}

/* Also for a page of a broker that wrote no check. */
TEST(a_flipped_version_of_a_mapped_file_is_damage_in_any_boot)
{
    for (size_t i = 0; i < 2; i++)
        for (int round = 0; round < 128; round++) {
            const char *path = make_log();
            char file[700];
            struct recovery_report report;
            struct log *l;
            struct fault f = {0};
            uint8_t byte;
            const uint8_t none[4] = {0};
            bool other_boot = round / 32 % 2, unchecked = round / 64;
            snprintf(file, sizeof file, "%s/%s", path, files[i].name);
            int fd = open(file, O_RDWR);
            EXPECT_EQ(1, pread(fd, &byte, 1, 4 + round % 32 / 8));
            byte ^= (uint8_t)(1 << round % 8);
            EXPECT_EQ(1, pwrite(fd, &byte, 1, 4 + round % 32 / 8));
            if (unchecked) EXPECT_EQ(4, pwrite(fd, none, 4, files[i].check_at));
            close(fd);
            EXPECT_OK(version_check(path, &f));
            EXPECT_ERR(ERR_STALE, log_open(path, &l, &f));
            struct sys changed = sys_real;
            if (other_boot) changed.boot_id = other_boot_id;
            sys = &changed;
            EXPECT_OK(recovery_run(path, &options, NULL, &report, &f));
            EXPECT(report.ran && report.cut_count == 0);
            REQUIRE_OK(log_open(path, &l, &f));
            struct help_walk w = {0};
            help_walk_log(&w, l);
            EXPECT_EQ(60, w.messages);
            EXPECT_EQ(0, w.damaged);
            uint64_t last;
            EXPECT_OK(log_publisher_sequence(l, "p", 1, &last, &f));
            EXPECT_EQ(11, last);
            log_close(l);
            sys = &sys_real;
        }
}

TEST(a_wrong_version_without_a_right_check_is_damage_and_recovers)
{
    for (size_t i = 2; i < sizeof files / sizeof files[0]; i++) {
        const char *path = make_log();
        char file[700];
        uint8_t byte = 2;
        struct recovery_report report;
        struct fault f = {0};
        snprintf(file, sizeof file, "%s/%s", path, files[i].name);
        int fd = open(file, O_RDWR);
        EXPECT_EQ(1, pwrite(fd, &byte, 1, 7));
        close(fd);
        EXPECT_OK(version_check(path, &f));
        struct sys changed = sys_real;
        changed.boot_id = other_boot_id;
        sys = &changed;
        EXPECT_OK(recovery_run(path, &options, NULL, &report, &f));
        sys = &sys_real;
        EXPECT(report.ran);
    }
}

TEST(a_file_too_short_to_tell_is_no_other_version)
{
    const char *path = make_log();
    struct fault f = {0};
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        char file[700];
        snprintf(file, sizeof file, "%s/%s", path, files[i].name);
        raise_version(file, files[i].big_endian, files[i].check_at);
        EXPECT_EQ(0, truncate(file, 7));
    }
    EXPECT_OK(version_check(path, &f));
    EXPECT_ERR(ERR_NOT_FOUND, version_check("/nowhere/at/all", &f));
}
