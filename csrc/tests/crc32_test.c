/* SPDX-License-Identifier: Apache-2.0 */
#include "../base/crc32.h"

#include <pthread.h>
#include <sys/mman.h>

#include "test.h"

#define SIZE_MAX_BYTES 5000
#define ALIGNMENTS 64

/* The definition, one bit at a time: what the tables are compared with. */
static uint32_t crc_by_definition(const uint8_t *p, size_t size)
{
    uint32_t r = ~0u;
    for (size_t i = 0; i < size; i++) {
        r ^= p[i];
        for (int bit = 0; bit < 8; bit++) r = r & 1 ? (r >> 1) ^ 0xEDB88320u : r >> 1;
    }
    return ~r;
}

/* The last of the table, which every other is compared with. */
static uint32_t crc32_portable(uint32_t crc, const void *data, size_t size)
{
    size_t count;
    const struct crc32_kernel *kernels = crc32_kernels(&count);
    return kernels[count - 1].update(crc, data, size);
}

/* Stands first, so that in a whole run it is the first call. */
static void *update_known(void *out)
{
    *(uint32_t *)out = crc32_update(0, "123456789", 9);
    return NULL;
}

TEST(threads_may_make_the_first_call_together)
{
    pthread_t threads[4];
    uint32_t results[4];
    for (int i = 0; i < 4; i++) REQUIRE(pthread_create(&threads[i], NULL, update_known, &results[i]) == 0);
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        EXPECT_EQ(0xCBF43926u, results[i]);
    }
}

TEST(known_values_of_the_polynomial_and_of_stream_clients)
{
    EXPECT_EQ(0xCBF43926u, crc32_update(0, "123456789", 9));
    EXPECT_EQ(0, crc32_update(0, "", 0));
    EXPECT_EQ(0, crc32_update(0, NULL, 0));
    EXPECT_EQ(307778378u, crc32_update(0, "\0\0\0\x0ctest message", 16));
    EXPECT_EQ(3486439553u, crc32_update(0, "\0\0\0\x06msg: 9", 10));
}

TEST(the_portable_kernel_follows_the_definition)
{
    uint8_t data[300];
    test_random_fill(data, sizeof data);
    for (size_t size = 0; size <= sizeof data; size++)
        REQUIRE_EQ(crc_by_definition(data, size), crc32_portable(0, data, size));
}

TEST(every_kernel_agrees_with_the_portable_one_at_every_size)
{
    static uint8_t data[SIZE_MAX_BYTES];
    size_t count;
    const struct crc32_kernel *kernels = crc32_kernels(&count);
    test_random_fill(data, sizeof data);
    for (size_t k = 0; k < count; k++) {
        if (!kernels[k].usable()) {
            printf("  not on this processor: %s\n", kernels[k].name);
            continue;
        }
        for (size_t size = 0; size <= sizeof data; size++) {
            uint32_t crc = (uint32_t)test_random();
            if (!EXPECT_EQ(crc32_portable(crc, data, size), kernels[k].update(crc, data, size))) {
                printf("  kernel %s, size %zu\n", kernels[k].name, size);
                return;
            }
        }
    }
}

TEST(every_kernel_agrees_at_every_alignment_and_random_size)
{
    static uint8_t data[SIZE_MAX_BYTES + ALIGNMENTS];
    size_t count;
    const struct crc32_kernel *kernels = crc32_kernels(&count);
    for (size_t k = 0; k < count; k++) {
        if (!kernels[k].usable()) continue;
        for (size_t start = 0; start < ALIGNMENTS; start++)
            for (int round = 0; round < 20; round++) {
                size_t size = test_random_below(SIZE_MAX_BYTES + 1);
                uint32_t crc = (uint32_t)test_random();
                test_random_fill(data, 64);
                REQUIRE_EQ(crc32_portable(crc, data + start, size), kernels[k].update(crc, data + start, size));
            }
    }
}

TEST(every_kernel_agrees_on_large_input)
{
    enum { LARGE_BYTES = 300 * 1000 + 7 };
    uint8_t *data = malloc(LARGE_BYTES);
    size_t count;
    const struct crc32_kernel *kernels = crc32_kernels(&count);
    test_random_fill(data, LARGE_BYTES);
    for (size_t k = 0; k < count; k++)
        if (kernels[k].usable())
            EXPECT_EQ(crc32_portable(0, data, LARGE_BYTES), kernels[k].update(0, data, LARGE_BYTES));
    free(data);
}

/* Pages without access on both sides: a read outside is a fault in any build. */
TEST(no_kernel_reads_outside_its_input)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), usable = (SIZE_MAX_BYTES / page + 1) * page, count;
    uint8_t *map = mmap(NULL, usable + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(map != MAP_FAILED);
    uint8_t *data = map + page;
    REQUIRE(mprotect(data, usable, PROT_READ | PROT_WRITE) == 0);
    const struct crc32_kernel *kernels = crc32_kernels(&count);
    for (size_t k = 0; k < count; k++) {
        if (!kernels[k].usable()) continue;
        for (size_t size = 0; size <= 1100; size++) {
            uint32_t want = crc32_portable(0, data, size);
            EXPECT_EQ(want, kernels[k].update(0, data + usable - size, size));
            EXPECT_EQ(want, kernels[k].update(0, data, size));
        }
    }
    munmap(map, usable + 2 * page);
}

TEST(a_crc_in_parts_is_the_crc_of_the_whole)
{
    static uint8_t data[SIZE_MAX_BYTES];
    test_random_fill(data, sizeof data);
    uint32_t whole = crc32_update(0, data, sizeof data);
    for (int round = 0; round < 2000; round++) {
        size_t cut = test_random_below(sizeof data + 1);
        uint32_t first = crc32_update(0, data, cut);
        REQUIRE_EQ(whole, crc32_update(first, data + cut, sizeof data - cut));
    }
}

TEST(the_kernel_in_use_is_one_of_the_table)
{
    size_t count, found = 0;
    const struct crc32_kernel *kernels = crc32_kernels(&count);
    for (size_t k = 0; k < count; k++) found += strcmp(kernels[k].name, crc32_kernel()) == 0;
    EXPECT_EQ(1, found);
    printf("  in use: %s\n", crc32_kernel());
}

TEST(one_flipped_bit_is_told_from_other_damage)
{
    uint8_t data[600];
    for (unsigned round = 0; round < 300; round++) {
        size_t size = 1 + (size_t)test_random_below(sizeof data);
        for (size_t i = 0; i < size; i++) data[i] = (uint8_t)test_random();
        uint32_t before = crc32_update(0, data, size);
        uint64_t first = test_random_below(8 * size), second = test_random_below(8 * size);
        data[first / 8] ^= (uint8_t)(1u << first % 8);
        uint64_t at = UINT64_MAX;
        EXPECT(crc32_is_one_bit(before ^ crc32_update(0, data, size), size, &at));
        EXPECT_EQ(first / 8, at);
        data[second / 8] ^= (uint8_t)(1u << second % 8);
        EXPECT(!crc32_is_one_bit(before ^ crc32_update(0, data, size), size, NULL)); /* two, or none */
    }
}
