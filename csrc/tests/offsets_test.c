/* SPDX-License-Identifier: Apache-2.0 */
#include "../log/offsets.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "../base/bytes.h"
#include "../base/crc32.h"
#include "../base/file.h"
#include "../base/sys.h"
#include "../log/upkeep.h"
#include "../log/log.h"
#include "test.h"

static const char *directory_new(void)
{
    static char path[512];
    static int count;
    snprintf(path, sizeof path, "%s/offsets%d", test_scratch(), count++);
    if (sys_real.mkdir(path, 0700) < 0) abort();
    return path;
}

static struct offsets *handle(const char *directory)
{
    struct offsets *o = NULL;
    if (offsets_open(directory, &o, NULL) != OK) abort();
    return o;
}

static err store(struct offsets *o, const char *reference, uint64_t offset)
{
    bool evicted;
    return offsets_store(o, reference, (uint32_t)strlen(reference), offset, &evicted, NULL);
}

/* What is stored, or UINT64_MAX - 1 when nothing is. */
#define NOTHING (UINT64_MAX - 1)
static uint64_t get(struct offsets *o, const char *reference)
{
    uint64_t offset;
    err e = offsets_get(o, reference, (uint32_t)strlen(reference), &offset, NULL);
    if (e == ERR_NOT_FOUND) return NOTHING;
    EXPECT_OK(e);
    return offset;
}

static uint8_t *bytes_of(const char *directory, size_t *size)
{
    static uint8_t data[(OFFSETS_REFERENCES_MAX + 2) * OFFSETS_RECORD_BYTES];
    int fd;
    struct file_path path = file_path_name(directory, "offsets");
    EXPECT_OK(file_open(path.text, O_RDONLY, &fd, NULL));
    EXPECT_OK(file_read(fd, path.text, data, sizeof data, 0, size, NULL));
    file_close(&fd);
    return data;
}

static void write_bytes(const char *directory, const void *data, size_t size)
{
    int fd;
    struct file_path path = file_path_name(directory, "offsets");
    EXPECT_OK(file_open(path.text, O_RDWR | O_CREAT | O_TRUNC, &fd, NULL));
    EXPECT_OK(file_write(fd, path.text, data, size, 0, NULL));
    file_close(&fd);
}

static void count_one(void *context, const struct offsets_record *r)
{
    (void)r;
    (*(uint32_t *)context)++;
}

static uint32_t count_of(struct offsets *o)
{
    uint32_t count = 0;
    EXPECT_OK(offsets_each(o, count_one, &count, NULL));
    return count;
}

TEST(the_last_store_counts_also_backwards_and_for_every_handle)
{
    const char *directory = directory_new();
    struct offsets *a = handle(directory), *b = handle(directory);
    EXPECT_EQ(NOTHING, get(a, "x"));
    EXPECT_EQ(0, count_of(a));
    EXPECT_OK(store(a, "x", 7));
    EXPECT_EQ(7, get(b, "x"));
    EXPECT_OK(store(b, "x", 3));
    EXPECT_EQ(3, get(a, "x"));
    EXPECT_OK(store(b, "", UINT64_MAX)); /* an empty reference is one like any other */
    EXPECT_EQ(UINT64_MAX, get(a, ""));
    EXPECT_EQ(2, count_of(a));
    offsets_close(a);
    offsets_close(b);
    a = handle(directory);
    EXPECT_EQ(3, get(a, "x"));
    offsets_close(a);
}

TEST(nothing_is_made_before_the_first_store_nor_in_a_stream_that_is_gone)
{
    const char *directory = directory_new();
    struct offsets *o = handle(directory);
    struct stat st;
    char path[600];
    snprintf(path, sizeof path, "%s/offsets", directory);
    EXPECT_EQ(NOTHING, get(o, "x"));
    EXPECT(stat(path, &st) < 0 && errno == ENOENT);
    EXPECT(rmdir(directory) == 0);
    EXPECT_ERR(ERR_NOT_FOUND, store(o, "x", 1));
    offsets_close(o);
}

TEST(a_reference_is_as_long_as_the_protocol_allows_and_no_longer)
{
    struct offsets *o = handle(directory_new());
    char longest[257];
    memset(longest, 'r', sizeof longest);
    longest[256] = 0;
    EXPECT_ERR(ERR_LIMIT, store(o, longest, 1));
    EXPECT_EQ(NOTHING, get(o, longest));
    longest[255] = 0;
    EXPECT_OK(store(o, longest, 1));
    EXPECT_EQ(1, get(o, longest));
    offsets_close(o);
}

static int64_t clock_ms;
static int64_t clock_now(void) { return ++clock_ms; }

TEST(the_reference_stored_longest_ago_makes_room_and_every_handle_notices)
{
    const char *directory = directory_new();
    struct offsets *a = handle(directory), *b = handle(directory);
    struct sys fake = sys_real;
    char name[16];
    bool evicted;
    fake.now_ms = clock_now;
    sys = &fake;
    for (unsigned i = 0; i < OFFSETS_REFERENCES_MAX; i++) {
        snprintf(name, sizeof name, "r%u", i);
        EXPECT_OK(store(a, name, i));
    }
    EXPECT_EQ(0, get(b, "r0")); /* b knows now where each one stands */
    EXPECT_OK(store(a, "r0", 77));
    EXPECT_OK(offsets_store(a, "new", 3, 5, &evicted, NULL));
    EXPECT(evicted);
    EXPECT_EQ(NOTHING, get(b, "r1"));
    EXPECT_EQ(5, get(b, "new"));
    EXPECT_EQ(77, get(b, "r0"));
    EXPECT_OK(store(b, "r1", 6)); /* takes the place of r2, not of what a stored there */
    EXPECT_EQ(5, get(a, "new"));
    EXPECT_EQ(NOTHING, get(a, "r2"));
    EXPECT_EQ(OFFSETS_REFERENCES_MAX, count_of(a));
    sys = &sys_real;
    offsets_close(a);
    offsets_close(b);
}

TEST(a_damaged_record_costs_itself_only_and_its_place_is_used_again)
{
    const char *directory = directory_new();
    struct offsets *o = handle(directory);
    size_t size;
    EXPECT_OK(store(o, "a", 1));
    EXPECT_OK(store(o, "b", 2));
    EXPECT_OK(store(o, "c", 3));
    offsets_close(o);
    static uint8_t whole[4 * OFFSETS_RECORD_BYTES];
    memcpy(whole, bytes_of(directory, &size), sizeof whole);
    EXPECT_EQ(sizeof whole, size);
    for (unsigned bit = 0; bit < 8 * OFFSETS_RECORD_BYTES; bit += bit < 8 * 40 ? 1 : 67) {
        uint8_t *at = &whole[2 * OFFSETS_RECORD_BYTES + bit / 8];
        *at ^= (uint8_t)(1u << bit % 8);
        write_bytes(directory, whole, sizeof whole);
        *at ^= (uint8_t)(1u << bit % 8);
        o = handle(directory);
        EXPECT_EQ(1, get(o, "a"));
        EXPECT_EQ(NOTHING, get(o, "b"));
        EXPECT_EQ(3, get(o, "c"));
        EXPECT_EQ(1, offsets_damaged(o));
        EXPECT_OK(store(o, "d", 4));
        EXPECT_EQ(3, count_of(o));
        offsets_close(o);
        bytes_of(directory, &size);
        EXPECT_EQ(sizeof whole, size);
    }
}

TEST(a_damaged_header_costs_nothing)
{
    const char *directory = directory_new();
    struct offsets *o = handle(directory), *other = handle(directory);
    size_t size;
    EXPECT_OK(store(o, "a", 1));
    EXPECT_EQ(1, get(other, "a"));
    for (unsigned at = 0; at < OFFSETS_HEADER_BYTES; at++) {
        uint8_t *data = bytes_of(directory, &size);
        data[at] ^= 0x40;
        write_bytes(directory, data, size);
        EXPECT_OK(store(o, "b", at));
        EXPECT_EQ(1, get(other, "a"));
        EXPECT_EQ(at, get(other, "b"));
    }
    offsets_close(o);
    offsets_close(other);
}

TEST(a_file_cut_anywhere_keeps_the_records_before_the_cut)
{
    const char *directory = directory_new();
    struct offsets *o = handle(directory);
    size_t size;
    EXPECT_OK(store(o, "a", 1));
    EXPECT_OK(store(o, "b", 2));
    offsets_close(o);
    static uint8_t whole[3 * OFFSETS_RECORD_BYTES];
    memcpy(whole, bytes_of(directory, &size), sizeof whole);
    for (size_t cut = 0; cut <= sizeof whole; cut += 61) {
        write_bytes(directory, whole, cut);
        o = handle(directory);
        EXPECT_EQ(cut >= 2 * OFFSETS_RECORD_BYTES ? 1 : NOTHING, get(o, "a"));
        EXPECT_EQ(cut >= 3 * OFFSETS_RECORD_BYTES ? 2 : NOTHING, get(o, "b"));
        EXPECT_OK(store(o, "c", 3));
        EXPECT_EQ(3, get(o, "c"));
        offsets_close(o);
    }
}

TEST(a_later_version_is_refused_and_left_as_it_is)
{
    const char *directory = directory_new();
    struct offsets *o = handle(directory);
    size_t size;
    EXPECT_OK(store(o, "a", 1));
    uint8_t *data = bytes_of(directory, &size);
    bytes_store32(data + 4, OFFSETS_VERSION + 1);
    bytes_store32(data + 16, crc32_update(0, data, 16));
    write_bytes(directory, data, size);
    uint8_t copy[2 * OFFSETS_RECORD_BYTES];
    memcpy(copy, data, sizeof copy);
    uint64_t offset;
    EXPECT_ERR(ERR_VERSION, store(o, "a", 2));
    EXPECT_ERR(ERR_VERSION, offsets_get(o, "a", 1, &offset, NULL));
    EXPECT_MEM_EQ(copy, bytes_of(directory, &size), sizeof copy);
    offsets_close(o);
}

TEST(a_file_of_version_1_is_read_and_becomes_version_2_with_a_new_reference)
{
    const char *directory = directory_new();
    struct offsets *o = handle(directory), *other;
    size_t size;
    char name[16];
    EXPECT_OK(store(o, "r0", 0));
    uint8_t *data = bytes_of(directory, &size);
    bytes_store32(data + 4, 1);
    bytes_store32(data + 16, crc32_update(0, data, 16));
    write_bytes(directory, data, size);
    other = handle(directory);
    EXPECT_OK(store(other, "r0", 5));
    EXPECT_EQ(5, get(o, "r0"));
    EXPECT_EQ(1, bytes_load32(bytes_of(directory, &size) + 4));
    for (unsigned i = 1; i < 1500; i++) {
        snprintf(name, sizeof name, "r%u", i);
        EXPECT_OK(store(i % 2 ? o : other, name, i));
    }
    EXPECT_EQ(2, bytes_load32(bytes_of(directory, &size) + 4));
    EXPECT_EQ(5, get(o, "r0"));
    EXPECT_EQ(1499, get(o, "r1499"));
    EXPECT_EQ(1500, count_of(other));
    offsets_close(o);
    offsets_close(other);
}

TEST(a_record_that_stands_there_twice_counts_as_it_was_written_last)
{
    const char *directory = directory_new();
    struct offsets *o = handle(directory);
    size_t size;
    EXPECT_OK(store(o, "a", 1));
    offsets_close(o);
    uint8_t *data = bytes_of(directory, &size), copy[4 * OFFSETS_RECORD_BYTES];
    memcpy(copy, data, 2 * OFFSETS_RECORD_BYTES);
    struct offsets_record r;
    EXPECT_OK(offsets_record_read(data + OFFSETS_RECORD_BYTES, &r));
    r.offset = 20, r.written_ms += 5;
    offsets_record_write(&r, copy + 2 * OFFSETS_RECORD_BYTES);
    r.offset = 30, r.written_ms -= 9;
    offsets_record_write(&r, copy + 3 * OFFSETS_RECORD_BYTES);
    write_bytes(directory, copy, sizeof copy);
    o = handle(directory);
    EXPECT_EQ(20, get(o, "a"));
    offsets_close(o);
}

static char text[4096];

static int collect(void *context, const char *line)
{
    (void)context;
    snprintf(text + strlen(text), sizeof text - strlen(text), "%s\n", line);
    return 0;
}

static err dump(const char *directory)
{
    struct file_path path = file_path_name(directory, "offsets");
    text[0] = 0;
    return dump_file(path.text, &(struct dump_options){0}, collect, NULL, NULL);
}

TEST(a_dump_shows_what_is_stored_and_what_is_damaged)
{
    const char *directory = directory_new();
    struct offsets *o = handle(directory);
    size_t size;
    EXPECT_OK(store(o, "a", 17));
    EXPECT_OK(store(o, "\x01", 18));
    EXPECT_OK(dump(directory));
    EXPECT(strstr(text, "512: \"a\" at offset 17, ") != NULL);
    EXPECT(strstr(text, "1024: \"\\x01\" at offset 18, ") != NULL);
    uint8_t *data = bytes_of(directory, &size);
    data[1024 + 20] ^= 1;
    data[9] ^= 1;
    write_bytes(directory, data, size);
    EXPECT_ERR(ERR_CORRUPT, dump(directory));
    EXPECT(strstr(text, "DAMAGED header") != NULL && strstr(text, "1024: DAMAGED record") != NULL);
    EXPECT(strstr(text, "at offset 17") != NULL);
    offsets_close(o);
}

static const char *reborn_in;
static int rmdir_after_a_store(const char *path)
{
    if (reborn_in) {
        struct offsets *o = handle(reborn_in);
        reborn_in = NULL;
        EXPECT_OK(store(o, "late", 1));
        offsets_close(o);
    }
    return sys_real.rmdir(path);
}

TEST(offsets_die_with_the_stream_even_if_one_is_stored_at_the_last_moment)
{
    char path[600];
    struct sys fake = sys_real;
    struct fault f;
    snprintf(path, sizeof path, "%s/stream", directory_new());
    for (int late = 0; late < 2; late++) {
        EXPECT_OK(log_create(path, &(struct log_options){0}, &f));
        struct offsets *o = handle(path);
        EXPECT_EQ(NOTHING, get(o, "a"));
        EXPECT_OK(store(o, "a", 1));
        offsets_close(o);
        fake.rmdir = rmdir_after_a_store;
        reborn_in = late ? path : NULL;
        sys = &fake;
        EXPECT_OK(log_remove(path, &f));
        sys = &sys_real;
        EXPECT(access(path, F_OK) < 0);
    }
}

/* ---- calls that fail ---- */

static int calls_left;
static bool fails(void) { return --calls_left < 0 ? (errno = EIO, true) : false; }
static int fail_open(const char *p, int flags, mode_t mode) { return fails() ? -1 : sys_real.open(p, flags, mode); }
static int fail_flock(int fd, int operation)
{
    return operation != LOCK_UN && fails() ? -1 : sys_real.flock(fd, operation);
}
static ssize_t fail_pread(int fd, void *data, size_t size, off_t at) { return fails() ? -1 : sys_real.pread(fd, data, size, at); }
static ssize_t fail_pwrite(int fd, const void *data, size_t size, off_t at)
{
    return fails() ? -1 : sys_real.pwrite(fd, data, size, at);
}

TEST(a_call_that_fails_is_told_and_costs_nothing_that_was_stored)
{
    struct sys fake = sys_real;
    fake.open = fail_open;
    fake.flock = fail_flock;
    fake.pread = fail_pread;
    fake.pwrite = fail_pwrite;
    for (int most = 0; most < 24; most++) {
        const char *directory = directory_new();
        struct offsets *o = handle(directory), *other = handle(directory);
        EXPECT_OK(store(other, "old", 1));
        calls_left = most;
        sys = &fake;
        err first = store(o, "new", 2), second = store(o, "old", 3);
        sys = &sys_real;
        EXPECT(first == OK || first == ERR_IO);
        EXPECT(second == OK || second == ERR_IO);
        EXPECT_EQ(first == OK ? 2 : NOTHING, get(other, "new"));
        EXPECT_EQ(second == OK ? 3 : 1, get(other, "old"));
        EXPECT_OK(store(o, "new", 4)); /* and it goes on */
        EXPECT_EQ(4, get(other, "new"));
        EXPECT_EQ(2, count_of(other));
        offsets_close(o);
        offsets_close(other);
    }
}

/* ---- kill -9 ---- */

#define CHILDREN 3
#define KILLS 150
#define MICROSECONDS_MAX 3000

struct board { _Atomic uint64_t stored[CHILDREN]; _Atomic int failed; };

/* Has each child stored since `seen`, which is brought up to now?  Who gets no processor must not lose its place as the
 * one that stored longest ago. */
static bool all_have_stored(struct board *board, uint64_t seen[CHILDREN])
{
    uint64_t now[CHILDREN];
    for (unsigned i = 0; i < CHILDREN; i++) {
        now[i] = atomic_load(&board->stored[i]);
        if (now[i] == seen[i]) return false;
    }
    memcpy(seen, now, sizeof now);
    return true;
}

static _Noreturn void child(const char *directory, struct board *board, unsigned me, uint64_t seed)
{
    struct offsets *o = handle(directory);
    uint64_t seen[CHILDREN] = {0};
    char name[16];
    for (;;) {
        uint64_t next = atomic_load(&board->stored[me]) + 1;
        snprintf(name, sizeof name, "child%u", me);
        if (store(o, name, next)) atomic_store(&board->failed, 1);
        atomic_store(&board->stored[me], next);
        /* Others come and go, so that places change hands. */
        snprintf(name, sizeof name, "r%u", (unsigned)(test_random_from(&seed) % (2 * OFFSETS_REFERENCES_MAX)));
        if (all_have_stored(board, seen) && store(o, name, next)) atomic_store(&board->failed, 1);
    }
}

static pid_t start(const char *directory, struct board *board, unsigned me)
{
    uint64_t seed = test_random();
    pid_t pid = fork();
    if (pid == 0) child(directory, board, me, seed);
    return pid;
}

TEST(what_was_stored_is_there_whoever_was_killed)
{
    const char *directory = directory_new();
    struct board *board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    struct offsets *o = handle(directory);
    pid_t pids[CHILDREN];
    char name[16];
    for (unsigned i = 0; i < OFFSETS_REFERENCES_MAX; i++) { /* no place is free: each new name takes another's */
        snprintf(name, sizeof name, "r%u", i);
        EXPECT_OK(store(o, name, 0));
    }
    for (unsigned i = 0; i < CHILDREN; i++) pids[i] = start(directory, board, i);
    for (int round = 0; round < KILLS; round++) {
        unsigned who = (unsigned)test_random_below(CHILDREN);
        usleep((useconds_t)test_random_below(MICROSECONDS_MAX));
        kill(pids[who], SIGKILL);
        waitpid(pids[who], NULL, 0);
        uint64_t least = atomic_load(&board->stored[who]);
        snprintf(name, sizeof name, "child%u", who);
        uint64_t had = get(o, name);
        /* The store that the kill interrupted may have happened. */
        if (least > 0) EXPECT(had == least || had == least + 1);
        EXPECT_EQ(0, offsets_damaged(o));
        pids[who] = start(directory, board, who);
    }
    for (unsigned i = 0; i < CHILDREN; i++) {
        kill(pids[i], SIGKILL);
        waitpid(pids[i], NULL, 0);
        printf("    child %u stored %" PRIu64 "\n", i, atomic_load(&board->stored[i]));
    }
    EXPECT_EQ(0, atomic_load(&board->failed));
    EXPECT(get(o, "r0") == NOTHING || get(o, "r1") == NOTHING || get(o, "r2") == NOTHING); /* places did change hands */
    offsets_close(o);
    munmap(board, sizeof *board);
}

TEST(offsets_that_a_cut_file_has_lost_are_counted)
{
    const char *directory = directory_new();
    struct offsets *o;
    bool evicted;
    char file[600];
    EXPECT_OK(offsets_open(directory, &o, NULL));
    for (unsigned i = 0; i < 10; i++) {
        char name[8];
        EXPECT_OK(offsets_store(o, name, (uint32_t)snprintf(name, sizeof name, "c%u", i), i, &evicted, NULL));
    }
    EXPECT_EQ(0, offsets_damaged(o));
    offsets_close(o);
    snprintf(file, sizeof file, "%s/offsets", directory);
    for (unsigned left = 10; left-- > 0;) {
        uint64_t offset;
        EXPECT_EQ(0, truncate(file, (off_t)(left + 1) * OFFSETS_RECORD_BYTES + (off_t)test_random_below(512)));
        EXPECT_OK(offsets_open(directory, &o, NULL));
        EXPECT_ERR(ERR_NOT_FOUND, offsets_get(o, "c9", 2, &offset, NULL));
        EXPECT_EQ(10 - left, offsets_damaged(o));
        if (left) {
            EXPECT_OK(offsets_get(o, "c0", 2, &offset, NULL));
            EXPECT_EQ(0, offset);
        }
        offsets_close(o);
    }
}
