/* SPDX-License-Identifier: Apache-2.0
 *
 * ledger_help: what the tests of the ledger share: directories, handing out and settling.
 */
#ifndef VIBEMQ_TESTS_LEDGER_HELP_H
#define VIBEMQ_TESTS_LEDGER_HELP_H

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

#include "../base/file.h"
#include "../base/sys.h"
#include "ledger_check.h"
#include "test.h"

#define BLOCK LEDGER_BLOCK_ENTRIES

/* A fresh directory under the scratch directory. */
TEST_UNUSED static const char *help_directory(void)
{
    static int count;
    static char paths[8][512];
    char *path = paths[count % 8];
    snprintf(path, sizeof paths[0], "%s/queue%d", test_scratch(), count++);
    mkdir(path, 0750);
    return path;
}

TEST_UNUSED static struct ledger *help_open(const char *directory)
{
    struct ledger *l = NULL;
    struct fault f = {0};
    if (!EXPECT_OK(ledger_open(directory, &l, &f))) {
        char line[600];
        fault_format(&f, line, sizeof line);
        printf("    %s\n", line);
        exit(1);
    }
    return l;
}

TEST_UNUSED static struct ledger *help_ledger(const char *directory, uint64_t base)
{
    EXPECT_OK(ledger_create(directory, base, false, NULL));
    return help_open(directory);
}

TEST_UNUSED static err help_recover(const char *directory, uint64_t first, uint64_t next, bool *anew, struct fault *f)
{
    struct ledger_damage damage = {0};
    err e = ledger_recover(directory, first, next, false, &damage, f);
    *anew = damage.anew;
    return e;
}

TEST_UNUSED static uint64_t help_base(struct ledger *l) { return atomic_load(&ledger_control(l)->base); }
TEST_UNUSED static uint64_t help_next(struct ledger *l) { return atomic_load(&ledger_control(l)->next); }

TEST_UNUSED static void help_put(struct ledger *l, uint64_t offset, struct ledger_word w)
{
    struct fault f;
    struct ledger_entry *entry = ledger_entry(l, offset, &f);
    if (!EXPECT(entry != NULL)) exit(1);
    ledger_put(entry, w);
}

/* The state of an offset that the ledger covers: what has no entry is settled. */
TEST_UNUSED static enum ledger_state help_state(struct ledger *l, uint64_t offset)
{
    if (offset < help_base(l)) return LEDGER_SETTLED;
    struct ledger_entry *entry = ledger_entry(l, offset, NULL);
    return entry ? ledger_unpack(atomic_load(&entry->word)).state : LEDGER_SETTLED;
}

/* Make entries for [next, end), all in one state, as a home does. */
TEST_UNUSED static void help_hand_out(struct ledger *l, uint64_t end, enum ledger_state state)
{
    while (help_next(l) < end) {
        uint64_t next = help_next(l), to = end - next > BLOCK ? next + BLOCK : end;
        if (!EXPECT_OK(ledger_reserve(l, to, NULL))) exit(1);
        for (uint64_t at = next; at < to; at++) {
            struct ledger_entry *entry = ledger_entry(l, at, NULL);
            EXPECT_EQ(0, atomic_load(&entry->word) | entry->place);
            entry->place = at + 1;
            struct ledger_word w = {.state = state, .attempts = 1, .priority = at & 3};
            ledger_put(entry, w);
        }
        ledger_store_next(ledger_control(l), to);
    }
}

TEST_UNUSED static void help_settle(struct ledger *l, uint64_t from, uint64_t to)
{
    for (uint64_t at = from; at < to; at++) help_put(l, at, (struct ledger_word){.state = LEDGER_SETTLED});
}

struct help_files { unsigned blocks, noted, others; uint64_t disk_bytes, first; /* lowest block's offset */ };

TEST_UNUSED static struct help_files help_list(const char *directory)
{
    struct help_files files = {.first = UINT64_MAX};
    DIR *d = opendir(directory);
    for (struct dirent *entry; d && (entry = readdir(d));) {
        char path[1024];
        struct stat st;
        uint64_t first;
        if (entry->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "%s/%s", directory, entry->d_name);
        if (stat(path, &st) == 0) files.disk_bytes += (uint64_t)st.st_blocks * 512;
        if (!file_name_parse(entry->d_name, LEDGER_SUFFIX, &first)) {
            if (file_name_parse(entry->d_name, LEDGER_SETTLED_SUFFIX, &first)) files.noted++;
            else files.others++;
            continue;
        }
        files.blocks++;
        if (first < files.first) files.first = first;
    }
    if (d) closedir(d);
    return files;
}

TEST_UNUSED static void help_block_path(struct file_path *p, const char *directory, uint64_t number)
{
    *p = file_path_numbered(directory, number * BLOCK, LEDGER_SUFFIX);
}

/* ---- failing calls ---- */

static struct { int64_t left; int number; bool failed; } help_plan; /* `left` calls go well, the next one fails */
static struct sys help_faulty;

static bool help_fails(void)
{
    if (help_plan.left-- != 0) return false;
    help_plan.failed = true;
    errno = help_plan.number;
    return true;
}

static int help_fail_open(const char *p, int flags, mode_t m) { return help_fails() ? -1 : sys_real.open(p, flags, m); }
static ssize_t help_fail_pread(int fd, void *data, size_t size, off_t at)
{
    return help_fails() ? -1 : sys_real.pread(fd, data, size, at);
}
static ssize_t help_fail_pwrite(int fd, const void *data, size_t size, off_t at)
{
    return help_fails() ? -1 : sys_real.pwrite(fd, data, size, at);
}
static int help_fail_ftruncate(int fd, off_t n) { return help_fails() ? -1 : sys_real.ftruncate(fd, n); }
static int help_fail_fstat(int fd, struct stat *st) { return help_fails() ? -1 : sys_real.fstat(fd, st); }
static int help_fail_rename(const char *a, const char *b) { return help_fails() ? -1 : sys_real.rename(a, b); }
static int help_fail_unlink(const char *p) { return help_fails() ? -1 : sys_real.unlink(p); }
static int help_fail_fdatasync(int fd) { return help_fails() ? -1 : sys_real.fdatasync(fd); }
static int help_fail_fsync(int fd) { return help_fails() ? -1 : sys_real.fsync(fd); }
static void *help_fail_mmap(void *a, size_t n, int p, int flags, int fd, off_t at)
{
    return help_fails() ? (void *)-1 : sys_real.mmap(a, n, p, flags, fd, at);
}

/* Let the call after `left` others fail with `number`; `sys = &sys_real` ends it. */
TEST_UNUSED static void help_fail_at(int64_t left, int number)
{
    help_faulty = sys_real;
    help_faulty.open = help_fail_open;
    help_faulty.pread = help_fail_pread;
    help_faulty.pwrite = help_fail_pwrite;
    help_faulty.ftruncate = help_fail_ftruncate;
    help_faulty.fstat = help_fail_fstat;
    help_faulty.rename = help_fail_rename;
    help_faulty.unlink = help_fail_unlink;
    help_faulty.fdatasync = help_fail_fdatasync;
    help_faulty.fsync = help_fail_fsync;
    help_faulty.mmap = help_fail_mmap;
    help_plan.left = left;
    help_plan.number = number;
    help_plan.failed = false;
    sys = &help_faulty;
}

#endif
