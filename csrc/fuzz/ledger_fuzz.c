/* SPDX-License-Identifier: Apache-2.0
 *
 * Whatever bytes the control page and two blocks hold, opening refuses or gives a ledger that can be looked
 * through, settled and trimmed; and recovery ends with one whose invariants hold, that lies within the log, has
 * nothing in flight, and takes new entries that are zero.
 *
 * The input: two bytes with sizes, 8 bytes with the log's first and next offset (in units of 1/16 block), then
 * the page's words from `base` on, then what the blocks hold.  Magic and version are right unless the first
 * byte is odd, or no input would come far.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../base/file.h"
#include "../tests/ledger_check.h"
#include "fuzz.h"

#define HEAD_BYTES 10u
#define WORDS_BYTES 40u /* base, next, departed, purge, synced */
#define INPUT_MAX_BYTES (HEAD_BYTES + WORDS_BYTES + 8192u)
#define UNIT (LEDGER_BLOCK_ENTRIES / 16)
#define OFFSET_MASK 0x3FFFFu /* a page that reaches further costs a new file for each of its blocks */

static char directory[64];

static void put(const char *path, const void *data, size_t size, uint64_t whole)
{
    int fd = open(path, O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0600);
    CHECK(fd >= 0 && write(fd, data, size) == (ssize_t)size);
    CHECK(ftruncate(fd, (off_t)whole) == 0);
    close(fd);
}

static void put_page(const uint8_t *words, uint8_t how)
{
    _Alignas(struct ledger_control) uint8_t page[LEDGER_CONTROL_BYTES] = {0};
    struct ledger_control *c = (struct ledger_control *)page;
    uint64_t values[WORDS_BYTES / 8];
    memcpy(values, words, sizeof values);
    c->magic = how & 1 ? (uint32_t)values[0] : LEDGER_MAGIC;
    c->version = LEDGER_VERSION;
    uint64_t mask = how & 2 ? UINT64_MAX : OFFSET_MASK;
    c->head_check = how & 8 ? 0 : file_page_check(LEDGER_MAGIC, LEDGER_VERSION);
    ledger_store_base(c, values[0] & mask);
    /* Wide and narrow, but not so wide that a look at each block takes a second. */
    uint64_t wide = (values[0] & mask) + (values[1] & (OFFSET_MASK | UINT64_C(1) << 63));
    ledger_store_next(c, how & 2 ? wide : values[1] & mask);
    if (how & 16) atomic_init(&c->next_copies[0], values[0]);
    if (how & 32) atomic_init(&c->base, values[4]);
    atomic_init(&c->departed, values[2]);
    atomic_init(&c->purge, values[3]);
    atomic_init(&c->synced, values[4] & mask);
    atomic_init(&c->home, values[2]);
    struct file_path path = file_path_name(directory, "ledger");
    put(path.text, page, sizeof page, how & 4 ? values[3] % (2 * sizeof page) : sizeof page);
}

static int ignore(void *context, const char *line)
{
    (void)context, (void)line;
    return 0;
}

static void print_all(uint64_t block)
{
    struct file_path path;
    path = file_path_name(directory, "ledger");
    ledger_print(path.text, 3, ignore, NULL, NULL);
    path = file_path_numbered(directory, block * LEDGER_BLOCK_ENTRIES, LEDGER_SUFFIX);
    ledger_print(path.text, 100, ignore, NULL, NULL);
}

static void look_through(void)
{
    struct ledger *l;
    struct fault f;
    err e = ledger_open(directory, &l, &f);
    CHECK(e == OK || e == ERR_CORRUPT);
    if (e) return;
    uint64_t base = atomic_load(&ledger_control(l)->base), next = atomic_load(&ledger_control(l)->next);
    for (unsigned state = 0; state < 8; state++) {
        uint64_t at = ledger_find(l, base, next, (enum ledger_state)state, state & 3);
        CHECK(at >= base && at <= next);
    }
    ledger_entry(l, 0, &f);
    ledger_entry(l, UINT64_MAX, &f);
    CHECK(ledger_settle(l, UINT64_MAX, 3) >= base);
    ledger_trim(l);
    ledger_skip(l, base + 5000);
    e = ledger_reserve(l, atomic_load(&ledger_control(l)->next) + 300, &f);
    CHECK(e == OK || e == ERR_LIMIT);
    ledger_close(l);
}

static void recover_in_this_boot(void)
{
    struct ledger *l;
    struct fault f;
    struct ledger_damage damage;
    CHECK(ledger_recover(directory, 0, 0, true, &damage, &f) == OK);
    CHECK(ledger_open(directory, &l, &f) == OK);
    ledger_check(l);
    CHECK(ledger_verify(l).entries == 0);
    ledger_close(l);
}

static void recover(uint64_t first, uint64_t next)
{
    struct ledger *l;
    struct fault f;
    struct ledger_damage damage;
    CHECK(ledger_recover(directory, first, next, false, &damage, &f) == OK);
    CHECK(ledger_open(directory, &l, &f) == OK);
    struct ledger_control *c = ledger_control(l);
    ledger_check(l);
    uint64_t base = atomic_load(&c->base), end = atomic_load(&c->next);
    uint64_t ready = ledger_count(l, base, end, LEDGER_READY);
    CHECK(base >= first && end <= next && atomic_load(&c->departed) == end - ready && ledger_offset_unpack(atomic_load(&c->purge)) <= next);
    CHECK(ready + ledger_count(l, base, end, LEDGER_SETTLED) <= end - base);
    CHECK(ledger_count(l, base, end, LEDGER_IN_FLIGHT) == 0 && ledger_count(l, base, end, LEDGER_DEAD) == 0);
    CHECK(ledger_reserve(l, end + LEDGER_BLOCK_ENTRIES, &f) == OK);
    for (uint64_t at = end; at < end + LEDGER_BLOCK_ENTRIES; at++) {
        struct ledger_entry *entry = ledger_entry(l, at, &f);
        CHECK(entry && entry->word == 0 && entry->place == 0);
    }
    ledger_settle(l, UINT64_MAX, 3);
    ledger_check(l);
    ledger_close(l);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < HEAD_BYTES + WORDS_BYTES || size > INPUT_MAX_BYTES) return 0;
    if (!directory[0]) {
        snprintf(directory, sizeof directory, "/dev/shm/vibemq-fuzz-XXXXXX");
        CHECK(mkdtemp(directory) != NULL);
    }
    uint32_t units[2];
    memcpy(units, data + 2, sizeof units);
    uint64_t first = (uint64_t)(units[0] & 0xFFF) * UNIT + (units[0] >> 28), next = first + (units[1] & 0xFFFFF);
    const uint8_t *entries = data + HEAD_BYTES + WORDS_BYTES;
    size_t entries_bytes = size - HEAD_BYTES - WORDS_BYTES;
    put_page(data + HEAD_BYTES, data[0]);
    uint64_t block = units[0] >> 12 & 7;
    for (uint64_t i = 0; i < 2; i++) {
        struct file_path path =
            file_path_numbered(directory, (block + i * (1 + data[1] % 3)) * LEDGER_BLOCK_ENTRIES, LEDGER_SUFFIX);
        put(path.text, entries, entries_bytes, data[1] & 16 << i ? (uint64_t)data[1] * 2000 : LEDGER_BLOCK_BYTES);
    }
    print_all(block);
    if (data[1] & 64) look_through();
    if (data[1] & 128) recover_in_this_boot();
    recover(first, next);
    ledger_clear(directory);
    return 0;
}
