/* SPDX-License-Identifier: Apache-2.0
 *
 * print: a control page or a block as lines of text.
 *
 * Entries that are settled or were never made are told as runs: of a block one wants to see what is left.
 */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ledger.h"

#define LINE_BYTES_MAX 4096 /* a path and some words */

struct print {
    const char *path;
    uint64_t limit;
    int (*line)(void *context, const char *text);
    void *context;
    struct fault *f;
    bool stopped;
};

__attribute__((format(printf, 2, 3))) static void say(struct print *p, const char *format, ...)
{
    char text[LINE_BYTES_MAX];
    va_list args;
    if (p->stopped) return;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    p->stopped = p->line(p->context, text) != 0;
}

/* ---- the page ---- */

static err print_control(struct print *p, uint64_t size)
{
    union {
        struct ledger_control control;
        uint8_t bytes[LEDGER_CONTROL_BYTES];
    } page = {.bytes = {0}};
    size_t got;
    err e = file_read_head(p->path, page.bytes, sizeof page, &got, p->f);
    if (e) return e;
    const struct ledger_control *c = &page.control;
    say(p, "ledger: magic 0x%08" PRIx32 ", version %" PRIu32 ", %" PRIu64 " bytes", c->magic, c->version, size);
    if (c->magic == LEDGER_MAGIC && c->version > LEDGER_VERSION && c->head_check == file_page_check(c->magic, c->version))
        return fault_set(p->f, ERR_VERSION, 0, p->path, 4, LEDGER_VERSION, c->version);
    if (size != sizeof page || c->magic != LEDGER_MAGIC)
        return fault_set(p->f, ERR_CORRUPT, 0, p->path, 0, sizeof page, size);

    struct ledger_home home = ledger_home_unpack(c->home);
    if (home.worker == LEDGER_NOBODY) say(p, "home: nobody");
    else
        say(p, "home: worker %" PRIu32 ", epoch %" PRIu32 ", generation %" PRIu32, home.worker, home.epoch,
            home.generation);
    const struct { const char *name; uint64_t value; bool mask; } words[] = {
        {"base", c->base, false}, {"next", c->next, false}, {"departed", c->departed, false},
        {"purge", ledger_offset_unpack(c->purge), false}, {"synced", c->synced, false}, {"workers", c->workers, true},
        {"room wanted", c->room_wanted, true}, {"consumers", c->consumers, false}, {"in flight", c->in_flight, false},
        {"delivered", c->delivered, false}, {"redelivered", c->redelivered, false}, {"acked", c->acked, false},
        {"expired", c->expired, false}, {"dropped", c->dropped, false}, {"dead-lettered", c->dead_lettered, false},
        {"purged", c->purged, false}, {"refused", c->refused, false}, {"failing", c->failing, false},
        {"away", c->away, false},
        {"looked", ledger_offset_unpack(c->looked), false},
    };
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (words[i].mask) say(p, "%s: 0x%" PRIx64, words[i].name, words[i].value);
        else say(p, "%s: %" PRIu64, words[i].name, words[i].value);
    return OK;
}

/* ---- a block ---- */

static const char *const state_names[8] = {"none", "ready", "in flight", "settled", "dead", "delayed", "6?", "7?"};

static bool told_as_run(uint32_t state) { return state == LEDGER_NONE || state == LEDGER_SETTLED; }

static void print_entry(struct print *p, uint64_t offset, const struct ledger_entry *entry)
{
    struct ledger_word w = ledger_unpack(entry->word);
    char holder[64] = "";
    if (w.state == LEDGER_IN_FLIGHT)
        snprintf(holder, sizeof holder, ", worker %" PRIu32 ", life %" PRIu32, w.worker, w.life);
    say(p, "offset %" PRIu64 ": %s, priority %" PRIu32 ", attempts %" PRIu32 ", strikes %" PRIu32 "%s, index %" PRIu32
        ", chunk at %" PRIu64 ", entry at %" PRIu64 "%s", offset, state_names[w.state], w.priority, w.attempts,
        w.strikes, holder, w.index, entry->place >> 32, entry->place & UINT32_MAX,
        ledger_fits(entry->word, entry->place) ? "" : ", damaged");
}

static void print_entries(struct print *p, uint64_t first, const struct ledger_entry *entries, uint32_t count)
{
    uint64_t lines = 0, by_state[8] = {0};
    for (uint32_t i = 0; i < count; i++) by_state[ledger_state_of(entries[i].word)]++;
    for (uint32_t state = 0; state < 8; state++)
        if (by_state[state]) say(p, "%s: %" PRIu64, state_names[state], by_state[state]);

    for (uint32_t i = 0; i < count && !p->stopped && (p->limit == 0 || lines < p->limit); lines++) {
        uint32_t state = ledger_state_of(entries[i].word), end = i + 1;
        while (told_as_run(state) && end < count && ledger_state_of(entries[end].word) == state) end++;
        if (told_as_run(state))
            say(p, "offsets %" PRIu64 " to below %" PRIu64 ": %s", first + i, first + end, state_names[state]);
        else print_entry(p, first + i, &entries[i]);
        i = end;
    }
}

static err print_block(struct print *p, uint64_t size, uint64_t first)
{
    struct ledger_entry *entries = malloc(LEDGER_BLOCK_BYTES);
    if (!entries) return fault_set(p->f, ERR_NO_MEMORY, 0, p->path, 0, LEDGER_BLOCK_BYTES, 0);
    size_t got;
    err e = file_read_head(p->path, entries, LEDGER_BLOCK_BYTES, &got, p->f);
    if (!e) {
        say(p, "block: offsets %" PRIu64 " to below %" PRIu64 ", %" PRIu64 " bytes", first,
            first + LEDGER_BLOCK_ENTRIES, size);
        print_entries(p, first, entries, (uint32_t)(got / LEDGER_ENTRY_BYTES));
        if (size != LEDGER_BLOCK_BYTES || first % LEDGER_BLOCK_ENTRIES != 0)
            e = fault_set(p->f, ERR_CORRUPT, 0, p->path, 0, LEDGER_BLOCK_BYTES, size);
    }
    free(entries);
    return e;
}

err ledger_print(const char *path, uint64_t limit, int (*line)(void *context, const char *text), void *context,
                 struct fault *f)
{
    struct print p = {.path = path, .limit = limit, .line = line, .context = context, .f = f};
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    uint64_t first;
    struct stat st;
    bool block = file_name_parse(name, LEDGER_SUFFIX, &first) && first <= LEDGER_OFFSET_MAX;
    if (file_name_parse(name, LEDGER_SETTLED_SUFFIX, &first)) {
        say(&p, "offsets %" PRIu64 " to below %" PRIu64 ": settled", first, first + LEDGER_BLOCK_ENTRIES);
        return OK;
    }
    if (!block && strcmp(name, "ledger") != 0) return fault_set(f, ERR_INVALID, 0, path, 0, 0, 0);
    err e = file_stat_of(path, &st, f);
    if (e) return e;
    return block ? print_block(&p, (uint64_t)st.st_size, first) : print_control(&p, (uint64_t)st.st_size);
}
