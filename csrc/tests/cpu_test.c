/* SPDX-License-Identifier: Apache-2.0
 *
 * Each instruction set is taken away in turn, and what is chosen then computes the same.
 */
#include "../base/cpu.h"
#include "../base/crc32.h"
#include "../base/crc32c.h"

#include "test.h"

enum { SIZE_BYTES = 5000 }; /* every kernel has its longest steps in it */

static uint8_t data[SIZE_BYTES];

static void choose(const char *without)
{
    cpu_look(without);
    crc32_choose();
}

/* With all that the processor has. */
static void choose_freely(void) { choose(NULL); }

/* What is chosen without the set must not be one that needs it, nor slower than need be. */
static const struct {
    enum cpu_set without;
    const char *crc32_then; /* "": as before */
} cases[] = {
    {CPU_SSE42, ""},
    {CPU_AVX, "slicing-by-8"},
    {CPU_PCLMULQDQ, "slicing-by-8"},
    {CPU_AVX512F, "pclmulqdq"},
    {CPU_AVX512VL, "pclmulqdq"},
    {CPU_AVX512BW, "pclmulqdq"},
    {CPU_VPCLMULQDQ, "pclmulqdq"},
    {CPU_ARM_CRC32, "slicing-by-8"},
};

TEST(each_set_masked_off_is_not_used_and_changes_no_result)
{
    _Static_assert(sizeof cases / sizeof *cases == CPU_SETS, "a case for each set");
    choose_freely();
    test_random_fill(data, sizeof data);
    const char *freely = crc32_kernel();
    uint32_t crc = crc32_update(7, data, sizeof data), castagnoli = crc32c(data, sizeof data);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *name = cpu_set_name(cases[i].without);
        if (!cpu_has(cases[i].without)) {
            printf("  not on this processor: %s\n", name);
            continue;
        }
        choose(name);
        EXPECT(!cpu_has(cases[i].without));
        const char *then = *cases[i].crc32_then ? cases[i].crc32_then : freely;
        /* Where the quickest kernel lacks a set anyway, the next one is what was used before, too. */
        if (strcmp(then, "pclmulqdq") == 0 && !(cpu_has(CPU_AVX) && cpu_has(CPU_PCLMULQDQ))) then = "slicing-by-8";
        if (!EXPECT(strcmp(then, crc32_kernel()) == 0)) printf("  without %s: %s\n", name, crc32_kernel());
        EXPECT_EQ(crc, crc32_update(7, data, sizeof data));
        EXPECT_EQ(castagnoli, crc32c(data, sizeof data));
        choose_freely();
    }
    EXPECT(strcmp(freely, crc32_kernel()) == 0);
}

TEST(all_sets_masked_off_leave_what_every_processor_can)
{
    choose_freely();
    test_random_fill(data, sizeof data);
    uint32_t crc = crc32_update(0, data, sizeof data), castagnoli = crc32c(data, sizeof data);
    choose("vpclmulqdq,,avx512bw,avx512vl,avx512f,pclmulqdq,avx,sse4.2,arm-crc32,");
    for (int set = 0; set < CPU_SETS; set++) EXPECT(!cpu_has((enum cpu_set)set));
    EXPECT(strcmp("slicing-by-8", crc32_kernel()) == 0);
    EXPECT_EQ(crc, crc32_update(0, data, sizeof data));
    EXPECT_EQ(castagnoli, crc32c(data, sizeof data));
    choose_freely();
}

TEST(a_name_that_is_none_takes_nothing_away)
{
    bool had[CPU_SETS];
    choose_freely();
    for (int set = 0; set < CPU_SETS; set++) had[set] = cpu_has((enum cpu_set)set);
    choose("avx1024,AVX,vpclmul");
    for (int set = 0; set < CPU_SETS; set++) EXPECT(had[set] == cpu_has((enum cpu_set)set));
    choose_freely();
}
