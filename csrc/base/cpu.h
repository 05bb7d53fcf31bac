/* SPDX-License-Identifier: Apache-2.0
 *
 * cpu: the instruction sets beyond the baseline that code of ours may use here.  What is compiled runs on every x86-64
 * or AArch64; a quicker way is taken only after asking here, at run time.
 *
 * VIBEMQ_CPU_WITHOUT in the environment names sets that are not to be used, with commas between: to try each way on one
 * machine, or to go on where one misbehaves.  It is read when the library is loaded.
 */
#ifndef VIBEMQ_BASE_CPU_H
#define VIBEMQ_BASE_CPU_H

#include <stdbool.h>

enum cpu_set {
    CPU_SSE42,
    CPU_AVX,
    CPU_PCLMULQDQ,
    CPU_AVX512F,
    CPU_AVX512VL,
    CPU_AVX512BW,
    CPU_VPCLMULQDQ,
    CPU_ARM_CRC32,
    CPU_SETS, /* how many there are */
};

/* Has this processor the set, does the kernel save its registers, and is it not to be left unused? */
bool cpu_has(enum cpu_set set);

/* As VIBEMQ_CPU_WITHOUT has it: "vpclmulqdq". */
const char *cpu_set_name(enum cpu_set set);

/* Looks again, with `without` in the place of the environment's; NULL: all there is.  For tests: who has chosen by what
 * was there before does not choose again by itself. */
void cpu_look(const char *without);

#endif
