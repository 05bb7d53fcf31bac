/* SPDX-License-Identifier: Apache-2.0
 *
 * ring_bench: what a push and a pop of a descriptor cost, 64 at a time.  It counts what came out, so nobody makes
 * it quick by losing some.
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "../base/check.h"
#include "../shm/ring.h"

#define CELL_BYTES 32u
#define CELLS 4096u
#define ROUNDS 200000u

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

int main(void)
{
    struct ring *r = aligned_alloc(RING_CACHE_LINE, ring_bytes(CELL_BYTES, CELLS));
    uint8_t cell[CELL_BYTES] = {7};
    unsigned out = 0;
    CHECK(r && ring_init(r, CELL_BYTES, CELLS, NULL) == OK);
    double begin = seconds();
    for (unsigned i = 0; i < ROUNDS; i++) {
        for (int k = 0; k < 64; k++) CHECK(ring_push(r, cell) == OK);
        for (int k = 0; k < 64; k++) out += ring_pop(r, cell) == OK;
    }
    double spent = seconds() - begin;
    CHECK(out == 64 * ROUNDS && cell[0] == 7);
    printf("%-34s %8.2f ns for a push and a pop of %u B\n", "ring", spent / out * 1e9, CELL_BYTES);
    free(r);
    return 0;
}
