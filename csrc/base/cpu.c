/* SPDX-License-Identifier: Apache-2.0
 *
 * cpu: what the processor says, less what the environment takes away.
 */
#include "cpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__)
#include <sys/auxv.h>
#define HWCAP_CRC32_BIT (1ul << 7)
#endif

#define LOOKS_FIRST 101 /* the first constructor that is not the compiler's own: others choose by what is found here */

static const char *const names[CPU_SETS] = {"sse4.2",   "avx",      "pclmulqdq",  "avx512f",
                                            "avx512vl", "avx512bw", "vpclmulqdq", "arm-crc32"};
static bool there[CPU_SETS];

static void ask_the_processor(void)
{
#if defined(__x86_64__)
    unsigned a, b, c, d;
    __builtin_cpu_init();
    /* The compiler's answers for AVX and AVX-512 include that the kernel saves their registers. */
    there[CPU_SSE42] = __builtin_cpu_supports("sse4.2");
    there[CPU_AVX] = __builtin_cpu_supports("avx");
    there[CPU_PCLMULQDQ] = __builtin_cpu_supports("pclmul");
    there[CPU_AVX512F] = __builtin_cpu_supports("avx512f");
    there[CPU_AVX512VL] = __builtin_cpu_supports("avx512vl");
    there[CPU_AVX512BW] = __builtin_cpu_supports("avx512bw");
    /* Has no name in older compilers: leaf 7, ECX bit 10. */
    there[CPU_VPCLMULQDQ] = __get_cpuid_count(7, 0, &a, &b, &c, &d) && (c >> 10 & 1);
#elif defined(__aarch64__)
    there[CPU_ARM_CRC32] = getauxval(AT_HWCAP) & HWCAP_CRC32_BIT;
#endif
}

static void leave_unused(const char *name, size_t size)
{
    for (int set = 0; set < CPU_SETS; set++)
        if (strlen(names[set]) == size && memcmp(names[set], name, size) == 0) {
            there[set] = false;
            return;
        }
    fprintf(stderr, "vibemq: VIBEMQ_CPU_WITHOUT: no instruction set that is used here is called \"%.*s\"; there are",
            (int)size, name);
    for (int set = 0; set < CPU_SETS; set++) fprintf(stderr, " %s", names[set]);
    fprintf(stderr, "\n");
}

void cpu_look(const char *without)
{
    memset(there, 0, sizeof there);
    ask_the_processor();
    for (size_t size; without && *without; without += size) {
        size = strcspn(without, ",");
        if (size)
            leave_unused(without, size);
        else
            size = 1; /* the comma */
    }
}

__attribute__((constructor(LOOKS_FIRST))) static void look_when_loaded(void)
{
    cpu_look(getenv("VIBEMQ_CPU_WITHOUT"));
}

bool cpu_has(enum cpu_set set) { return there[set]; }

const char *cpu_set_name(enum cpu_set set) { return names[set]; }
