/* SPDX-License-Identifier: Apache-2.0
 *
 * crc32_bench: GB/s of every kernel, best of several, at sizes from a header to a
 * large chunk.  It prints a CRC of all its results, so that nobody makes it
 * quicker by computing something else.
 *
 *   build/release/crc32_bench          real: 40 ms for each figure
 *   build/release/crc32_bench smoke    1 ms, to see that it still runs
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../base/crc32.h"

#define LARGEST_BYTES (1u << 20)
#define TRIES 5

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Runs for about `seconds` and gives bytes for each second. */
static double measure(const struct crc32_kernel *k, const void *data, size_t size, double seconds, uint32_t *result)
{
    size_t rounds = 0;
    double start = now_s(), spent;
    do {
        for (int i = 0; i < 64; i++) *result = k->update(*result, data, size);
        rounds += 64;
        spent = now_s() - start;
    } while (spent < seconds);
    return (double)rounds * (double)size / spent;
}

int main(int argc, char **argv)
{
    static const size_t sizes[] = {52, 128, 512, 4096, 16384, 65536, LARGEST_BYTES};
    double seconds = argc > 1 && strcmp(argv[1], "smoke") == 0 ? 0.0002 : 0.008;
    uint8_t *data = malloc(LARGEST_BYTES);
    size_t count;
    uint32_t check = 0;
    if (!data) return 1;
    for (size_t i = 0; i < LARGEST_BYTES; i++) data[i] = (uint8_t)(i * 31 + (i >> 8));

    const struct crc32_kernel *kernels = crc32_kernels(&count);
    printf("in use: %s; GB/s by size in bytes\n%-14s", crc32_kernel(), "");
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) printf("%9zu", sizes[s]);
    printf("\n");
    for (size_t k = 0; k < count; k++) {
        if (!kernels[k].usable()) continue;
        printf("%-14s", kernels[k].name);
        for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
            double best = 0;
            uint32_t result = 0;
            for (int i = 0; i < TRIES; i++) {
                double rate = measure(&kernels[k], data, sizes[s], seconds, &result);
                if (rate > best) best = rate;
            }
            printf("%9.1f", best / 1e9);
            check = kernels[k].update(check, data, sizes[s]);
        }
        printf("\n");
    }
    printf("check %08x\n", check);
    free(data);
    return 0;
}
