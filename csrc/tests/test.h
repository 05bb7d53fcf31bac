/* SPDX-License-Identifier: Apache-2.0
 *
 * test: the whole test runner.  Include it once in each *_test.c; it brings main().
 *
 * TEST(name) { ... } registers itself before main, so adding a test is writing a
 * function; the name states the fact that the test shows.  An EXPECT that fails
 * prints file, line and both values and the test goes on; a REQUIRE returns from
 * the function it stands in.  Both count from any thread of this process (a forked
 * child must report through its exit status).  test_random() is seeded from
 * VIBEMQ_TEST_SEED when set; the seed is printed first, so a failure can be had again.
 *
 *   build/plain/crc32_test            run all
 *   build/plain/crc32_test combine    run the tests whose name contains "combine"
 */
#ifndef VIBEMQ_TESTS_TEST_H
#define VIBEMQ_TESTS_TEST_H

#include <ftw.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "../base/error.h"

#define TEST_UNUSED __attribute__((unused))

struct test {
    const char *name;
    void (*run)(void);
    struct test *next;
};

static struct test *test_first, **test_last = &test_first;
static _Atomic int test_failures; /* of the test that runs now */
static uint64_t test_random_state;
static char test_scratch_path[256];

#define TEST(test_name)                                                              \
    static void test_name(void);                                                     \
    __attribute__((constructor)) static void test_register_##test_name(void)         \
    {                                                                                \
        static struct test t = {#test_name, test_name, NULL};                        \
        *test_last = &t;                                                             \
        test_last = &t.next;                                                         \
    }                                                                                \
    static void test_name(void)

__attribute__((format(printf, 3, 4))) TEST_UNUSED static bool
test_failed(const char *file, int line, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    flockfile(stdout);
    printf("  %s:%d: ", file, line);
    vprintf(format, args);
    printf("\n");
    fflush(stdout);
    funlockfile(stdout);
    va_end(args);
    atomic_fetch_add(&test_failures, 1);
    return false;
}

TEST_UNUSED static bool test_true(const char *file, int line, const char *text, bool had)
{
    return had ? true : test_failed(file, line, "not true: %s", text);
}

TEST_UNUSED static bool test_eq(const char *file, int line, const char *want_text, const char *had_text,
                                uint64_t want, uint64_t had)
{
    if (want == had) return true;
    return test_failed(file, line, "%s: expected %s = %" PRId64 " (0x%" PRIx64 "), had %" PRId64 " (0x%" PRIx64 ")",
                       had_text, want_text, (int64_t)want, want, (int64_t)had, had);
}

TEST_UNUSED static bool test_str_eq(const char *file, int line, const char *had_text, const char *want,
                                    const char *had)
{
    if (want && had && strcmp(want, had) == 0) return true;
    return test_failed(file, line, "%s: expected \"%s\", had \"%s\"", had_text, want ? want : "(null)",
                       had ? had : "(null)");
}

TEST_UNUSED static bool test_mem_eq(const char *file, int line, const char *had_text, const void *want,
                                    const void *had, size_t size)
{
    const unsigned char *w = want, *h = had;
    for (size_t i = 0; i < size; i++)
        if (w[i] != h[i])
            return test_failed(file, line, "%s: byte %zu of %zu: expected 0x%02x, had 0x%02x", had_text, i, size,
                               w[i], h[i]);
    return true;
}

TEST_UNUSED static bool test_err_eq(const char *file, int line, const char *had_text, err want, err had)
{
    if (want == had) return true;
    return test_failed(file, line, "%s: expected %s, had %s", had_text, error_name(want), error_name(had));
}

/* The expected value comes first.  Integers of any width and sign, compared as 64 bits. */
#define EXPECT(x) test_true(__FILE__, __LINE__, #x, !!(x))
#define EXPECT_EQ(want, had) test_eq(__FILE__, __LINE__, #want, #had, (uint64_t)(want), (uint64_t)(had))
#define EXPECT_STR_EQ(want, had) test_str_eq(__FILE__, __LINE__, #had, want, had)
#define EXPECT_MEM_EQ(want, had, size) test_mem_eq(__FILE__, __LINE__, #had, want, had, size)
#define EXPECT_ERR(want, had) test_err_eq(__FILE__, __LINE__, #had, want, had)
#define EXPECT_OK(had) EXPECT_ERR(OK, had)

#define REQUIRE(x) do { if (!EXPECT(x)) return; } while (0)
#define REQUIRE_EQ(want, had) do { if (!EXPECT_EQ(want, had)) return; } while (0)
#define REQUIRE_OK(had) do { if (!EXPECT_OK(had)) return; } while (0)

/* The next 64 bits (splitmix64).  Not for several threads at once: give each its own state. */
TEST_UNUSED static uint64_t test_random_from(uint64_t *state)
{
    uint64_t z = (*state += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}
TEST_UNUSED static uint64_t test_random(void) { return test_random_from(&test_random_state); }

/* A number in 0 .. count - 1. */
TEST_UNUSED static uint64_t test_random_below(uint64_t count) { return test_random() % count; }

TEST_UNUSED static void test_random_fill(void *data, size_t size)
{
    for (size_t i = 0; i < size; i++) ((unsigned char *)data)[i] = (unsigned char)test_random();
}

TEST_UNUSED static int test_scratch_remove(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st, (void)type, (void)ftw;
    return remove(path);
}

/* A directory of this program's own under TMPDIR; made at the first call and removed at the end. */
TEST_UNUSED static const char *test_scratch(void)
{
    if (test_scratch_path[0]) return test_scratch_path;
    const char *base = getenv("TMPDIR");
    snprintf(test_scratch_path, sizeof test_scratch_path, "%s/vibemq-test-XXXXXX", base ? base : "/tmp");
    if (!mkdtemp(test_scratch_path)) {
        perror(test_scratch_path);
        exit(2);
    }
    return test_scratch_path;
}

int main(int argc, char **argv)
{
    const char *only = argc > 1 ? argv[1] : "";
    const char *seed_text = getenv("VIBEMQ_TEST_SEED");
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    uint64_t seed = seed_text ? strtoull(seed_text, NULL, 0)
                              : (uint64_t)now.tv_nsec ^ ((uint64_t)now.tv_sec << 30) ^ (uint64_t)getpid();
    int passed = 0, failed = 0;

    setvbuf(stdout, NULL, _IOLBF, 0);
    printf("VIBEMQ_TEST_SEED=0x%" PRIx64 "\n", seed);
    for (struct test *t = test_first; t; t = t->next) {
        if (!strstr(t->name, only)) continue;
        /* Every test starts from the seed, so one run alone sees the same numbers. */
        test_random_state = seed;
        atomic_store(&test_failures, 0);
        fflush(stdout); /* or a forked child would print it again */
        t->run();
        bool good = atomic_load(&test_failures) == 0;
        good ? passed++ : failed++;
        printf("%s %s\n", good ? "ok    " : "FAILED", t->name);
    }
    if (test_scratch_path[0]) nftw(test_scratch_path, test_scratch_remove, 16, FTW_DEPTH | FTW_PHYS);
    printf("%d passed, %d failed\n", passed, failed);
    return failed || !passed;
}

#endif
