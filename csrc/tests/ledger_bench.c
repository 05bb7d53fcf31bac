/* SPDX-License-Identifier: Apache-2.0
 *
 * ledger_bench: what a message costs in the ledger (hand out and settle), what a new block costs, and how long
 * a home that starts anew looks for messages in flight among ten million that are not.
 *
 *   ledger_bench [DIRECTORY]     a fresh directory in it is used; /tmp by default
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "../base/check.h"
#include "ledger_check.h"

#define MESSAGES 10000000u

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void hand_out(struct ledger *l, uint64_t end, enum ledger_state state)
{
    uint64_t next = atomic_load(&ledger_control(l)->next);
    CHECK(ledger_reserve(l, end, NULL) == OK);
    for (uint64_t at = next; at < end; at++) {
        struct ledger_entry *entry = ledger_entry(l, at, NULL);
        entry->place = at;
        atomic_store_explicit(&entry->word, ledger_pack((struct ledger_word){.state = state, .attempts = 1}),
                              memory_order_release);
    }
    ledger_store_next(ledger_control(l), end);
}

/* Hand out in batches, settle by compare-and-swap as a worker does, and let the home move on. */
static void bench_batches(const char *directory, uint64_t batch)
{
    struct ledger *l;
    CHECK(ledger_create(directory, 0, false, NULL) == OK && ledger_open(directory, &l, NULL) == OK);
    double begin = seconds();
    for (uint64_t at = 0; at + batch <= MESSAGES; at += batch) {
        hand_out(l, at + batch, LEDGER_IN_FLIGHT);
        for (uint64_t i = at; i < at + batch; i++) {
            struct ledger_entry *entry = ledger_entry(l, i, NULL);
            uint64_t old = atomic_load_explicit(&entry->word, memory_order_relaxed);
            struct ledger_word w = ledger_unpack(old);
            w.state = LEDGER_SETTLED;
            CHECK(atomic_compare_exchange_strong(&entry->word, &old, ledger_pack(w)));
        }
        CHECK(ledger_settle(l, UINT64_MAX, 1) == at + batch);
    }
    double all = seconds() - begin;
    printf("hand out and settle, batches of %-5" PRIu64 " %8.1f ns a message, %8.1f us a block\n", batch,
           all / MESSAGES * 1e9, all / MESSAGES * LEDGER_BLOCK_ENTRIES * 1e6);
    ledger_close(l);
    ledger_clear(directory);
}

static void bench_home(const char *directory)
{
    struct ledger *l;
    CHECK(ledger_create(directory, 0, false, NULL) == OK && ledger_open(directory, &l, NULL) == OK);
    for (uint64_t at = 0; at < MESSAGES; at += 10000) hand_out(l, at + 10000, LEDGER_READY);
    ledger_close(l);
    double begin = seconds();
    CHECK(ledger_open(directory, &l, NULL) == OK);
    CHECK(ledger_find(l, 0, MESSAGES, LEDGER_IN_FLIGHT, 0) == MESSAGES);
    double mapped = seconds();
    CHECK(ledger_find(l, 0, MESSAGES, LEDGER_IN_FLIGHT, 0) == MESSAGES);
    double again = seconds();
    printf("open and find among %u entries     %8.1f ms, once more mapped %8.1f ms\n", MESSAGES, (mapped - begin) * 1e3,
           (again - mapped) * 1e3);
    ledger_close(l);
    bool anew;
    begin = seconds();
    CHECK(help_recover(directory, 0, MESSAGES, &anew, NULL) == OK);
    printf("recover %u entries                 %8.1f ms\n", MESSAGES, (seconds() - begin) * 1e3);
    begin = seconds();
    CHECK(ledger_sync(directory, NULL) == OK);
    printf("sync them                                %8.1f ms\n", (seconds() - begin) * 1e3);
    ledger_clear(directory);
}

int main(int argc, char **argv)
{
    char directory[256];
    snprintf(directory, sizeof directory, "%s/vibemq-bench-XXXXXX", argc > 1 ? argv[1] : "/tmp");
    CHECK(mkdtemp(directory) != NULL);
    for (int round = 0; round < 2; round++) { /* the first touches fresh memory */
        printf(round ? "warm:\n" : "first:\n");
        bench_batches(directory, 1);
        bench_batches(directory, 100);
        bench_batches(directory, 5000);
        bench_home(directory);
    }
    return rmdir(directory);
}
