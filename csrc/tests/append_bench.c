/* SPDX-License-Identifier: Apache-2.0
 *
 * append_bench: what one append costs, filling the batch and sealing it included and apart,
 * and what reading it back costs.  Every row says what was written, so nobody makes it
 * quick by writing less.
 *
 *   append_bench [DIRECTORY]     a fresh directory in it is used; /tmp by default
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "../base/bytes.h"
#include "../base/check.h"
#include "../log/log.h"
#include "../log/reader.h"
#include "../log/upkeep.h"

#define ENTRY_BYTES_MAX 4096u

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void fill(struct batch *b, unsigned messages, uint32_t bytes, const char *reference, uint64_t *id)
{
    static uint8_t entry[ENTRY_BYTES_MAX];
    uint32_t index = 0;
    bytes_store32(entry, bytes);
    if (reference) CHECK(batch_reference_add(b, reference, (uint32_t)strlen(reference), &index) == OK);
    for (unsigned i = 0; i < messages; i++)
        CHECK((reference ? batch_add_tracked(b, entry, bytes + 4, 1, index, ++*id) : batch_add(b, entry, bytes + 4, 1)) == OK);
}

static void bench(const char *name, const char *directory, unsigned messages, uint32_t bytes, const char *reference, unsigned rounds)
{
    struct log *l;
    struct batch b;
    struct fault f;
    uint64_t id = 0, written = 0;
    double append = 0, seal = 0, begin;
    struct log_options options = {.retention_bytes_max = 1u << 30};
    CHECK(log_create(directory, &options, &f) == OK && log_open(directory, &l, &f) == OK && batch_init(&b, &f) == OK);
    begin = seconds();
    for (unsigned i = 0; i < rounds; i++) {
        struct log_appended a;
        fill(&b, messages, bytes, reference, &id);
        double t0 = seconds();
        CHECK(batch_seal(&b, &f) == OK);
        double t1 = seconds();
        CHECK(log_append(l, &b, &a, &f) == OK);
        append += seconds() - t1;
        seal += t1 - t0;
        written += a.next_offset - a.first_offset;
        batch_clear(&b);
        if (a.rolled) {
            struct retention_report report;
            CHECK(retention_run(l, &report, &f) == OK);
        }
    }
    double all = seconds() - begin;
    printf("%-34s %8.2f us append, %8.2f us seal, %8.2f us in all; %8.3f M msg/s, %6.0f MB/s (%" PRIu64 " messages)\n", name,
           append / rounds * 1e6, seal / rounds * 1e6, all / rounds * 1e6, (double)written / all / 1e6,
           (double)written * bytes / all / 1e6, written);

    static uint8_t buffer[1 << 20];
    struct reader r;
    uint64_t got, read = 0;
    CHECK(reader_open(&r, l, READER_FIRST, 0, &f) == OK);
    begin = seconds();
    while (reader_fetch(&r, buffer, sizeof buffer, false, &got, &f) == OK) {
        struct chunk c;
        for (uint64_t at = 0; at < got && reader_chunk(&r, buffer + at, got - at, false, &c, &f) == OK; at += chunk_bytes(&c)) {
            read += c.records;
            reader_advance(&r, &c);
        }
    }
    all = seconds() - begin;
    printf("%-34s %8.3f M msg/s\n", "  read back", (double)read / all / 1e6);
    reader_close(&r);
    batch_free(&b);
    log_close(l);
    CHECK(log_remove(directory, &f) == OK);
}

int main(int argc, char **argv)
{
    char base[256], directory[300];
    snprintf(base, sizeof base, "%s/vibemq-bench-XXXXXX", argc > 1 ? argv[1] : "/tmp");
    CHECK(mkdtemp(base) != NULL);
    snprintf(directory, sizeof directory, "%s/log", base);
    for (int round = 0; round < 2; round++) { /* the first touches fresh memory */
        printf(round ? "warm:\n" : "first:\n");
        bench("1 x 100 B", directory, 1, 100, NULL, 200000);
        bench("1 x 100 B, with a reference", directory, 1, 100, "publisher", 200000);
        bench("9000 x 100 B", directory, 9000, 100, NULL, 500);
        bench("9000 x 100 B, with a reference", directory, 9000, 100, "publisher", 500);
        bench("1000 x 1000 B", directory, 1000, 1000, NULL, 500);
    }
    return rmdir(base);
}
