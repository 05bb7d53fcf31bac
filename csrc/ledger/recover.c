/* SPDX-License-Identifier: Apache-2.0
 *
 * recover: make a ledger consistent with its own checks and with the recovered log, at a start.
 *
 * In the boot that wrote it only damage is corrected: words of the page by their copies, and entries with a wrong check, or
 * of a missing block, become ready.  After another boot, when each page of each file may be of any instant:
 *   1. The page says base and next; both are brought into [first, next) of the log.
 *   2. A block that is missing without its ".settled" file may have been lost with its name.  Where it begins at or past
 *      `synced`, next goes back to where it begins; further down it is made anew, and its messages are ready.
 *   3. Entries below next that are not settled are ready; those from next on are zeros, because
 *      other messages will have these offsets.
 *   4. Other blocks are removed, and a new page is renamed into place.
 * The blocks are durable before the page, and the directory before anybody uses what is left.  A power cut
 * in between finds the old page, and all of it is done again with the same outcome.
 *
 * Blocks are read and written, not mapped: on a full disk that is an error and not a signal.
 */
#include <stdlib.h>
#include <string.h>

#include "ledger.h"

struct recover {
    const char *directory;
    struct fault *f;
    bool is_same_boot, is_unnoted; /* of version 1, which made no ".settled" files */
    struct ledger_damage *damage;
    uint64_t base, next, ready;
    struct numbers { uint64_t *of; uint32_t count; } blocks, noted; /* of the files, in order */
    struct ledger_entry *entries; /* of one block */
    union {
        struct ledger_control control;
        uint8_t bytes[LEDGER_CONTROL_BYTES];
    } page;
};

static const char ledger_name[] = "ledger";

static uint64_t plain(const _Atomic uint64_t *word) { return atomic_load_explicit(word, memory_order_relaxed); }
static uint64_t least(uint64_t a, uint64_t b) { return a < b ? a : b; }
static uint64_t most(uint64_t a, uint64_t b) { return a > b ? a : b; }

/* ---- 1: the page ---- */

static void synced_store(struct ledger_control *c, uint64_t synced)
{
    atomic_init(&c->synced, synced);
    atomic_init(&c->synced_copies[0], synced);
    atomic_init(&c->synced_copies[1], synced);
}

/* Return the value of two equal words of three, also after a kill between the stores; else the lowest, by which most
 * messages are delivered again. */
static uint64_t voted(struct recover *r, uint64_t a, const _Atomic uint64_t copies[2])
{
    uint64_t b = plain(&copies[0]), c = plain(&copies[1]);
    if (a != b || b != c) r->damage->page = true;
    return a == b || a == c ? a : b == c ? b : least(a, least(b, c));
}

/* Set counters to 0 that no queue can have reached, and those that the next home computes. */
static void counters_check(struct recover *r)
{
    struct ledger_control *c = &r->page.control;
    _Atomic uint64_t *const counters[] = {&c->delivered, &c->redelivered, &c->acked, &c->expired, &c->dropped,
                                          &c->dead_lettered, &c->purged, &c->refused};
    for (size_t i = 0; i < sizeof counters / sizeof *counters; i++) {
        if (plain(counters[i]) < LEDGER_COUNT_MAX) continue;
        atomic_init(counters[i], 0);
        r->damage->page = true;
    }
    atomic_init(&c->failing, 0);
    atomic_init(&c->failing_offset, 0);
    atomic_init(&c->failing_deliveries, 0);
    atomic_init(&c->away, 0);
}

static void offset_check(struct recover *r, _Atomic uint64_t *word)
{
    if (plain(word) == ledger_offset_pack(ledger_offset_unpack(plain(word)))) return;
    atomic_init(word, 0);
    r->damage->page = true;
}

/* Convert an older page, and correct the words that have copies or checks; false: it is no page. */
static bool page_read_words(struct recover *r)
{
    struct ledger_control *c = &r->page.control;
    uint32_t check = file_page_check(LEDGER_MAGIC, LEDGER_VERSION);
    if (c->magic == LEDGER_MAGIC && c->version == LEDGER_VERSION_UNCHECKED) {
        r->is_unnoted = true;
        c->version = LEDGER_VERSION;
        c->head_check = check;
        ledger_store_base(c, plain(&c->base));
        ledger_store_next(c, plain(&c->next));
        synced_store(c, plain(&c->synced));
        atomic_init(&c->purge, ledger_offset_pack(least(plain(&c->purge), LEDGER_OFFSET_MAX >> LEDGER_OFFSET_SHIFT)));
        atomic_init(&c->looked, ledger_offset_pack(least(plain(&c->looked), LEDGER_OFFSET_MAX >> LEDGER_OFFSET_SHIFT)));
        counters_check(r);
        return true;
    }
    bool is_ours = c->magic == LEDGER_MAGIC && c->version == LEDGER_VERSION && c->head_check == check;
    if (!is_ours) { /* other words may be undamaged, which their copies show */
        if (plain(&c->next) == 0 || plain(&c->next) != plain(&c->next_copies[0])) return false;
        c->magic = LEDGER_MAGIC;
        c->version = LEDGER_VERSION;
        c->head_check = check;
        r->damage->page = true;
    }
    uint64_t base = voted(r, plain(&c->base), c->base_copies), next = voted(r, plain(&c->next), c->next_copies);
    uint64_t synced = voted(r, plain(&c->synced), c->synced_copies);
    ledger_store_base(c, base);
    ledger_store_next(c, next);
    synced_store(c, synced);
    offset_check(r, &c->purge);
    offset_check(r, &c->looked);
    counters_check(r);
    return true;
}

/* Read the page, and keep its bytes as read; `*good` is false when none is usable. */
static err page_read(struct recover *r, bool *good, uint8_t *as_it_is)
{
    struct file_path path = file_path_name(r->directory, ledger_name);
    struct stat st;
    size_t got;
    *good = false;
    err e = file_stat_of(path.text, &st, r->f);
    if (!e) e = file_read_head(path.text, r->page.bytes, sizeof r->page, &got, r->f);
    if (e) return e == ERR_NOT_FOUND ? OK : e;
    memcpy(as_it_is, r->page.bytes, sizeof r->page);
    *good = got == sizeof r->page && st.st_size == sizeof r->page && page_read_words(r);
    return OK;
}

/* Base may be of a later instant than next: below it everything is settled all the same. */
static bool page_clamp(struct recover *r, uint64_t first, uint64_t log_next)
{
    uint64_t base = plain(&r->page.control.base), next = most(plain(&r->page.control.next), base);
    r->next = r->is_same_boot ? next : most(least(next, log_next), first);
    r->base = r->is_same_boot ? base : most(least(base, r->next), first);
    return r->next <= LEDGER_OFFSET_MAX &&
           r->next / LEDGER_BLOCK_ENTRIES - r->base / LEDGER_BLOCK_ENTRIES < LEDGER_BLOCKS_MAX;
}

static void page_anew(struct recover *r, uint64_t first)
{
    memset(&r->page, 0, sizeof r->page);
    r->page.control.magic = LEDGER_MAGIC;
    r->page.control.version = LEDGER_VERSION;
    r->page.control.head_check = file_page_check(LEDGER_MAGIC, LEDGER_VERSION);
    r->base = r->next = first;
}

static err page_write(struct recover *r, uint64_t log_next)
{
    struct ledger_control *c = &r->page.control;
    atomic_init(&c->home, 0);
    ledger_store_base(c, r->base);
    ledger_store_next(c, r->next);
    atomic_init(&c->departed, r->next - r->ready);
    /* Beyond the log's end it would settle messages that were not there when the order came. */
    atomic_init(&c->purge, ledger_offset_pack(least(ledger_offset_unpack(plain(&c->purge)), log_next)));
    atomic_init(&c->looked, ledger_offset_pack(least(ledger_offset_unpack(plain(&c->looked)), log_next + 1)));
    synced_store(c, r->next);
    atomic_init(&c->workers, 0);
    atomic_init(&c->room_wanted, 0);
    atomic_init(&c->consumers, 0);
    atomic_init(&c->in_flight, 0);
    struct file_path path = file_path_name(r->directory, ledger_name);
    return file_replace(path.text, r->page.bytes, sizeof r->page, true, r->f);
}

/* ---- 2: which blocks ---- */

static err files_list(struct recover *r, const char *suffix, struct numbers *found)
{
    uint32_t count;
    err e = file_numbers(r->directory, suffix, &found->of, &count, r->f);
    for (uint32_t i = 0; !e && i < count; i++)
        if (found->of[i] % LEDGER_BLOCK_ENTRIES == 0) /* a name that no block has is nobody's business here */
            found->of[found->count++] = found->of[i] / LEDGER_BLOCK_ENTRIES;
    return e;
}

static bool block_wanted(const struct recover *r, uint64_t number)
{
    return r->base < r->next && number >= r->base / LEDGER_BLOCK_ENTRIES &&
           number <= (r->next - 1) / LEDGER_BLOCK_ENTRIES;
}

static int compare_numbers(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static bool is_among(const struct numbers *numbers, uint64_t number)
{
    return numbers->count && bsearch(&number, numbers->of, numbers->count, sizeof number, compare_numbers);
}

static bool block_there(const struct recover *r, uint64_t number) { return is_among(&r->blocks, number); }

/* Is a block that is not there known to be settled?  One of which a part lies behind next never is. */
static bool block_noted(const struct recover *r, uint64_t number)
{
    return (number + 1) * LEDGER_BLOCK_ENTRIES <= r->next && is_among(&r->noted, number);
}

static void damage_count(uint64_t *count, uint64_t *first, uint64_t at)
{
    if ((*count)++ == 0) *first = at;
}

/* Take next back to the first block that may have been lost; and out of a block that is missing
 * because it was settled, when the log was cut in it: there is to be one entry for each offset below next. */
static void blocks_missing(struct recover *r, uint64_t synced)
{
    uint64_t number = most(r->base, synced) / LEDGER_BLOCK_ENTRIES;
    if (number * LEDGER_BLOCK_ENTRIES < synced) number++; /* it began below */
    while (block_wanted(r, number) && (block_there(r, number) || block_noted(r, number))) number++;
    if (block_wanted(r, number)) {
        uint64_t from = most(number * LEDGER_BLOCK_ENTRIES, r->base);
        damage_count(&r->damage->blocks, &r->damage->block, number * LEDGER_BLOCK_ENTRIES);
        damage_count(&r->damage->entries, &r->damage->offset, from);
        r->damage->entries += r->next - from - 1;
    } else {
        number = r->next / LEDGER_BLOCK_ENTRIES;
        if (r->next % LEDGER_BLOCK_ENTRIES == 0 || block_there(r, number)) return;
        if (!is_among(&r->noted, number) && !r->is_unnoted) return; /* lost: it is made anew */
    }
    r->next = most(number * LEDGER_BLOCK_ENTRIES, r->base);
}

/* ---- 3: the entries ---- */

/* Return the state of an entry below next at a start: in the same boot unchanged, if it is undamaged. */
static struct ledger_entry entry_recovered(struct recover *r, uint64_t offset, const struct ledger_entry *old)
{
    struct ledger_word w = ledger_unpack(plain(&old->word));
    struct ledger_entry new = {.place = old->place};
    bool is_known = ledger_is_known(plain(&old->word), old->place);
    bool counts = r->is_same_boot || plain(&old->word) != 0 || !block_there(r, offset / LEDGER_BLOCK_ENTRIES);
    if (!is_known && counts) damage_count(&r->damage->entries, &r->damage->offset, offset);
    switch (is_known ? w.state : LEDGER_NONE) {
    case LEDGER_SETTLED:
    case LEDGER_READY:
        break;
    case LEDGER_IN_FLIGHT:
    case LEDGER_DEAD:
    case LEDGER_DELAYED:
        if (r->is_same_boot) break;
        w.state = LEDGER_READY;
        w.worker = w.life = 0;
        break;
    default: /* never written, or no state at all */
        w = (struct ledger_word){.state = LEDGER_READY};
        new.place = 0;
    }
    atomic_init(&new.word, ledger_checked(ledger_pack(w), new.place));
    return new;
}

/* Go over the entries in memory; the part that changed is [*from, *to). */
static void entries_recover(struct recover *r, uint64_t first, uint32_t *from, uint32_t *to)
{
    *from = LEDGER_BLOCK_ENTRIES;
    *to = 0;
    for (uint32_t i = r->base > first ? (uint32_t)(r->base - first) : 0; i < LEDGER_BLOCK_ENTRIES; i++) {
        struct ledger_entry new = {0};
        if (first + i < r->next) {
            new = entry_recovered(r, first + i, &r->entries[i]);
            r->ready += ledger_unpack(plain(&new.word)).state != LEDGER_SETTLED;
        } else if (r->is_same_boot) break;
        if (memcmp(&new, &r->entries[i], sizeof new) == 0) continue;
        r->entries[i] = new;
        if (*to == 0) *from = i;
        *to = i + 1;
    }
}

static err block_recover(struct recover *r, uint64_t number)
{
    struct file_path path;
    int fd;
    uint64_t size;
    size_t got;
    err e = file_open_numbered(&path, r->directory, number * LEDGER_BLOCK_ENTRIES, LEDGER_SUFFIX, O_RDWR, &fd, r->f);
    if (e) return e;
    e = file_size(fd, path.text, &size, r->f);
    bool changed = !e && size != LEDGER_BLOCK_BYTES;
    if (changed) e = file_truncate(fd, path.text, LEDGER_BLOCK_BYTES, r->f);
    /* In the same boot read only the pages in use: one in most queues. */
    uint64_t first = number * LEDGER_BLOCK_ENTRIES, end = least(r->next, first + LEDGER_BLOCK_ENTRIES) - first;
    size_t bytes = r->is_same_boot ? (size_t)end * LEDGER_ENTRY_BYTES : LEDGER_BLOCK_BYTES;
    if (!e) e = file_read(fd, path.text, r->entries, bytes, 0, &got, r->f);
    if (!e && got != bytes) e = fault_set(r->f, ERR_IO, 0, path.text, 0, bytes, got);
    if (!e) {
        uint32_t from, to;
        entries_recover(r, first, &from, &to);
        changed |= from < to;
        if (from < to)
            e = file_write(fd, path.text, r->entries + from, (size_t)(to - from) * LEDGER_ENTRY_BYTES,
                           (uint64_t)from * LEDGER_ENTRY_BYTES, r->f);
    }
    if (!e && changed && !r->is_same_boot) e = file_datasync(fd, path.text, r->f);
    file_close(&fd);
    return e;
}

/* ---- all of it ---- */

/* A block that is missing and not known to be settled is made anew: all that it held comes again.  Of version 1 all that
 * are missing were settled, but the one with base in it. */
static err block_replace(struct recover *r, uint64_t number)
{
    struct file_path path;
    int fd;
    bool is_whole = (number + 1) * LEDGER_BLOCK_ENTRIES <= r->next && number > r->base / LEDGER_BLOCK_ENTRIES;
    if (r->is_unnoted && is_whole) return ledger_note_settled(r->directory, number, r->f);
    err e = file_open_numbered(&path, r->directory, number * LEDGER_BLOCK_ENTRIES, LEDGER_SUFFIX, O_RDWR | O_CREAT | O_EXCL,
                               &fd, r->f);
    if (e) return e;
    file_close(&fd);
    damage_count(&r->damage->blocks, &r->damage->block, number * LEDGER_BLOCK_ENTRIES);
    return block_recover(r, number);
}

static err blocks_recover(struct recover *r)
{
    err e = OK;
    for (uint64_t number = r->base / LEDGER_BLOCK_ENTRIES; !e && block_wanted(r, number); number++)
        if (block_there(r, number)) e = block_recover(r, number);
        else if (!block_noted(r, number)) e = block_replace(r, number);
    return e;
}

static err files_remove(struct recover *r, const char *suffix, const struct numbers *found)
{
    err e = OK;
    for (uint32_t i = 0; !e && i < found->count; i++) {
        if (block_wanted(r, found->of[i])) continue;
        struct file_path path = file_path_numbered(r->directory, found->of[i] * LEDGER_BLOCK_ENTRIES, suffix);
        e = file_unlink(path.text, r->f);
    }
    return e;
}

static err recover_other_boot(struct recover *r, uint64_t first, uint64_t log_next)
{
    if (r->damage->anew) page_anew(r, first);
    else blocks_missing(r, plain(&r->page.control.synced));
    err e = blocks_recover(r);
    if (!e) e = files_remove(r, LEDGER_SUFFIX, &r->blocks);
    if (!e) e = files_remove(r, LEDGER_SETTLED_SUFFIX, &r->noted);
    if (!e) e = page_write(r, log_next);
    return e ? e : file_sync_directory(r->directory, r->f);
}

static err recover_same_boot(struct recover *r, const void *page)
{
    struct ledger_control *c = &r->page.control;
    err e = blocks_recover(r);
    if (e) return e;
    ledger_disown(c);
    ledger_store_base(c, r->base);
    ledger_store_next(c, r->next);
    synced_store(c, least(plain(&c->synced), r->next));
    atomic_init(&c->departed, r->next - r->ready);
    if (memcmp(page, r->page.bytes, sizeof r->page) == 0) return OK;
    struct file_path path = file_path_name(r->directory, ledger_name);
    return file_replace(path.text, r->page.bytes, sizeof r->page, false, r->f);
}

static err recover_run(struct recover *r, uint64_t first, uint64_t log_next)
{
    bool good;
    uint8_t page[LEDGER_CONTROL_BYTES];
    err e = ledger_version_check(r->directory, r->f);
    if (!e) e = page_read(r, &good, page);
    /* A page of a later instant than the log, as in a copy: it would take messages to come for settled ones. */
    if (!e && good && plain(&r->page.control.next) > log_next) r->is_same_boot = false;
    if (!e) r->damage->anew = !good || !page_clamp(r, first, log_next);
    if (!e && (!r->is_same_boot || r->damage->anew || r->base < r->next)) {
        e = files_list(r, LEDGER_SUFFIX, &r->blocks);
        if (!e) e = files_list(r, LEDGER_SETTLED_SUFFIX, &r->noted);
    }
    if (e) return e;
    /* A page that is created again starts without knowledge, as after a power cut. */
    e = r->is_same_boot && !r->damage->anew ? recover_same_boot(r, page) : recover_other_boot(r, first, log_next);
    if (e) return e;
    e = ledger_make_room(r->directory, r->next, r->f);
    return e == ERR_DISK_FULL ? OK : e; /* the disk alarm is on and keeps publishers out; the next start tries again */
}

err ledger_recover(const char *directory, uint64_t first, uint64_t next, bool is_same_boot, struct ledger_damage *damage,
                   struct fault *f)
{
    if (first > next || next > LEDGER_OFFSET_MAX) return fault_set(f, ERR_INVALID, 0, directory, 0, first, next);
    *damage = (struct ledger_damage){0};
    struct recover r = {.directory = directory, .f = f, .is_same_boot = is_same_boot, .damage = damage,
                        .entries = malloc(LEDGER_BLOCK_BYTES)};
    if (!r.entries) return fault_set(f, ERR_NO_MEMORY, 0, directory, 0, LEDGER_BLOCK_BYTES, 0);
    err e = recover_run(&r, first, next);
    free(r.blocks.of);
    free(r.noted.of);
    free(r.entries);
    return e;
}
