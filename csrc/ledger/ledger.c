/* SPDX-License-Identifier: Apache-2.0
 *
 * ledger: the control page, the files of blocks, and what the home does over all of them.
 *
 * The order of stores makes a kill harmless at every instruction: a block's file exists with its room before
 * next passes into it, and is removed after base has passed over it, or after its ".settled" file was made.
 * So a block that is missing in [base, next) without that file is damage.
 */
#include "ledger.h"

#include <stdlib.h>
#include <string.h>

#include "../base/check.h"
#include "../base/grow.h"

/* While base cannot move, how many empty places of the table a ledger_settle steps over for each
 * block that it may look at: a place is 16 bytes in a row, a look is a cache miss. */
#define SETTLE_GONE_PER_BLOCK 64u

static const char ledger_name[] = "ledger";
static const char members_name[] = "members"; /* of a fan-out (vibemq/storage/members.pyx) */
static const struct file_page_kind ledger_kind = {LEDGER_MAGIC, LEDGER_VERSION, LEDGER_HEAD_CHECK_AT};

static uint64_t least(uint64_t a, uint64_t b) { return a < b ? a : b; }
static uint64_t most(uint64_t a, uint64_t b) { return a > b ? a : b; }

/* ---- the page ---- */

static void ledger_raise_synced(struct ledger_control *c, uint64_t synced)
{
    word_raise(&c->synced, synced);
    word_raise(&c->synced_copies[0], synced);
    word_raise(&c->synced_copies[1], synced);
}

err ledger_make_room(const char *directory, uint64_t next, struct fault *f)
{
    uint64_t first = next / LEDGER_BLOCK_ENTRIES * LEDGER_BLOCK_ENTRIES, size = 0;
    struct file_path path;
    int fd;
    err e = file_open_numbered(&path, directory, first, LEDGER_SUFFIX, O_RDWR | O_CREAT, &fd, f);
    if (e) return e;
    e = file_size(fd, path.text, &size, f);
    if (!e && size != LEDGER_BLOCK_BYTES) e = file_truncate(fd, path.text, LEDGER_BLOCK_BYTES, f);
    file_close(&fd);
    return e;
}

err ledger_create(const char *directory, uint64_t base, bool sync, struct fault *f)
{
    struct file_path path = file_path_name(directory, ledger_name);
    struct stat st;
    err e = file_stat_of(path.text, &st, f);
    if (e != ERR_NOT_FOUND) return e ? e : fault_set(f, ERR_EXISTS, 0, path.text, 0, 0, 0);

    _Alignas(struct ledger_control) uint8_t page[LEDGER_CONTROL_BYTES] = {0};
    struct ledger_control *c = (struct ledger_control *)page;
    c->magic = LEDGER_MAGIC;
    c->version = LEDGER_VERSION;
    c->head_check = file_page_check(LEDGER_MAGIC, LEDGER_VERSION);
    ledger_store_base(c, base);
    ledger_store_next(c, base);
    atomic_init(&c->departed, base);
    ledger_raise_synced(c, base);
    /* The page last: a creation that is broken off is repeated. */
    e = ledger_make_room(directory, base, f);
    if (e) return e;
    /* Written, not only stretched: a full disk is an error here, not a signal at the first store. */
    e = file_replace(path.text, page, sizeof page, sync, f);
    return e || !sync ? e : file_sync_directory(directory, f);
}

err ledger_version_check(const char *directory, struct fault *f)
{
    uint8_t head[FILE_PAGE_HEAD_BYTES];
    size_t got;
    struct file_path path = file_path_name(directory, ledger_name);
    err e = file_read_head(path.text, head, sizeof head, &got, f);
    if (e) return e == ERR_NOT_FOUND ? OK : e;
    return file_page_version(path.text, head, got, &ledger_kind, f);
}

static err control_map(const char *directory, struct ledger_control **out, struct fault *f)
{
    void *page;
    struct file_path path = file_path_name(directory, ledger_name);
    err e = file_page_map(path.text, &ledger_kind, LEDGER_CONTROL_BYTES, true, ERR_CORRUPT, &page,
                          NULL, f);
    if (e) return e;

    struct ledger_control *c = page;
    uint64_t base = word_load(&c->base), next = word_load(&c->next);
    if (base > LEDGER_OFFSET_MAX || next > LEDGER_OFFSET_MAX ||
        (next > base && next / LEDGER_BLOCK_ENTRIES - base / LEDGER_BLOCK_ENTRIES > LEDGER_BLOCKS_MAX)) {
        sys->munmap(page, LEDGER_CONTROL_BYTES);
        return fault_set(f, ERR_CORRUPT, 0, path.text, 0, base, next);
    }
    /* A home was killed within ledger_skip, or is in it: then it will store the same. */
    if (base > next) atomic_compare_exchange_strong(&c->next, &next, base);
    *out = c;
    return OK;
}

/* ---- blocks ----
 *
 * A handle's table covers the blocks from first_block on.  Slots at its front whose blocks lie below base
 * and are not mapped are shifted out when it has to grow, so first_block never passes base's block.
 *
 * Files are never renamed from an old block to a new one: a process that still has the old one mapped
 * would change entries of other messages.
 */

static err block_open(const struct ledger *l, uint64_t number, int flags, struct file_path *path, int *fd,
                      struct fault *f)
{
    return file_open_numbered(path, l->directory, number * LEDGER_BLOCK_ENTRIES, LEDGER_SUFFIX, flags, fd, f);
}

/* The slot of a block that is in the table, or NULL. */
static struct ledger_block *block_known(struct ledger *l, uint64_t number)
{
    uint64_t i = number - l->first_block;
    return i < l->block_count ? &l->blocks[i] : NULL;
}

/* Slots at the front that nobody will ask for again: below base, and no pointer into them is out. */
static void table_shift(struct ledger *l, uint64_t base_block)
{
    uint32_t count = 0;
    while (count < l->block_count && l->first_block + count < base_block && !l->blocks[count].entries) count++;
    if (count == 0 && l->block_count > 0) return;
    l->block_count -= count;
    if (l->block_count) memmove(l->blocks, l->blocks + count, l->block_count * sizeof *l->blocks);
    l->first_block = l->block_count ? l->first_block + count : base_block;
}

/* The slot of a block that is not below base; `i` is bounded by LEDGER_BLOCKS_MAX and what is mapped before base. */
static struct ledger_block *table_slot(struct ledger *l, uint64_t number, uint64_t base_block, struct fault *f)
{
    struct ledger_block *known = block_known(l, number);
    if (known) return known;
    if (number - l->first_block >= l->block_capacity) table_shift(l, base_block);
    uint64_t i = number - l->first_block;
    if (grow(&l->blocks, &l->block_capacity, i + 1, sizeof *l->blocks, l->directory, f)) return NULL;
    memset(l->blocks + l->block_count, 0, (i + 1 - l->block_count) * sizeof *l->blocks);
    l->block_count = (uint32_t)i + 1;
    return &l->blocks[i];
}

static err block_map(struct ledger_block *b, int fd, const char *path, struct fault *f)
{
    void *memory;
    err e = file_map(fd, path, LEDGER_BLOCK_BYTES, true, &memory, f);
    if (e) return e;
    b->entries = memory;
    b->settled = 0;
    return OK;
}

static void block_unmap(struct ledger_block *b)
{
    if (b->entries) sys->munmap(b->entries, LEDGER_BLOCK_BYTES);
    b->entries = NULL;
}

/* Missing or not whole yet, and not all of its offsets were handed out: somebody may be making it. */
static bool block_may_come(uint64_t number, uint64_t next)
{
    return (number + 1) * LEDGER_BLOCK_ENTRIES > next;
}

err ledger_note_settled(const char *directory, uint64_t number, struct fault *f)
{
    struct file_path path;
    int fd;
    err e = file_open_numbered(&path, directory, number * LEDGER_BLOCK_ENTRIES, LEDGER_SETTLED_SUFFIX, O_WRONLY | O_CREAT,
                               &fd, f);
    if (!e) file_close(&fd);
    return e;
}

/* Its file is not there: OK if all of it is settled. */
static err block_missing(struct ledger *l, uint64_t number, const char *path, struct fault *f)
{
    struct stat st;
    struct file_path noted = file_path_numbered(l->directory, number * LEDGER_BLOCK_ENTRIES, LEDGER_SETTLED_SUFFIX);
    err e = file_stat_of(noted.text, &st, f);
    if (e == ERR_NOT_FOUND && number < word_load(&l->control->base) / LEDGER_BLOCK_ENTRIES) e = OK;
    return e == ERR_NOT_FOUND ? fault_set(f, ERR_CORRUPT, 0, path, 0, LEDGER_BLOCK_BYTES, 0) : e;
}

/* The entries of block `number`, mapped; NULL as ledger_entry says. */
static struct ledger_entry *block_entries(struct ledger *l, uint64_t number, struct fault *f)
{
    struct ledger_block *b = block_known(l, number);
    if (b && b->entries) return b->entries;

    if (f) f->code = OK;
    /* Before the look at the file: a block that is missing now may be made right after. */
    uint64_t next = word_load(&l->control->next);
    uint64_t base_block = word_load(&l->control->base) / LEDGER_BLOCK_ENTRIES;
    if (number < base_block || number - base_block >= LEDGER_BLOCKS_MAX) return NULL;
    b = table_slot(l, number, base_block, f);
    if (!b || b->gone) return NULL;

    struct file_path path;
    int fd;
    err e = block_open(l, number, O_RDWR, &path, &fd, f);
    if (e == ERR_NOT_FOUND) {
        bool may_come = block_may_come(number, next);
        e = may_come ? OK : block_missing(l, number, path.text, f);
        b->gone = !e && !may_come;
        if (f && !e) f->code = OK;
        return NULL;
    }
    if (e) return NULL;
    uint64_t size;
    e = file_size(fd, path.text, &size, f);
    if (!e && size == LEDGER_BLOCK_BYTES) block_map(b, fd, path.text, f);
    else if (!e && !block_may_come(number, next))
        fault_set(f, ERR_CORRUPT, 0, path.text, 0, LEDGER_BLOCK_BYTES, size);
    file_close(&fd);
    return b->entries;
}

struct ledger_entry *ledger_entry_slow(struct ledger *l, uint64_t offset, struct fault *f)
{
    struct ledger_entry *entries = block_entries(l, offset / LEDGER_BLOCK_ENTRIES, f);
    return entries ? &entries[offset % LEDGER_BLOCK_ENTRIES] : NULL;
}

/* Home: the file of block `number` exists with its whole size, and is mapped.  A new one has no room yet. */
static err block_make(struct ledger *l, uint64_t number, struct fault *f)
{
    uint64_t base_block = atomic_load_explicit(&l->control->base, memory_order_relaxed) / LEDGER_BLOCK_ENTRIES;
    struct ledger_block *b = table_slot(l, number, base_block, f);
    if (!b) return ERR_NO_MEMORY;
    if (b->entries) return OK;

    struct file_path path;
    int fd;
    err e = block_open(l, number, O_RDWR, &path, &fd, f);
    bool fresh = e == ERR_NOT_FOUND;
    if (fresh) { /* a note of other offsets does not speak for it */
        struct file_path noted = file_path_numbered(l->directory, number * LEDGER_BLOCK_ENTRIES, LEDGER_SETTLED_SUFFIX);
        e = file_unlink(noted.text, f);
        if (!e) e = file_open(path.text, O_RDWR | O_CREAT | O_EXCL, &fd, f);
    }
    if (e) return e;
    uint64_t size = 0;
    if (!fresh) e = file_size(fd, path.text, &size, f);
    if (!e && size != LEDGER_BLOCK_BYTES) e = file_truncate(fd, path.text, LEDGER_BLOCK_BYTES, f);
    if (!e) e = block_map(b, fd, path.text, f);
    file_close(&fd);
    if (e && fresh) file_unlink(path.text, NULL);
    return e;
}

/* Room for entries [from, to) of a block: zeros are written, because that reserves the room just as fallocate does,
 * zeroes what a dead home left, and brings the pages into the cache, in large pieces, before they are touched.  Measured
 * on ext4 for all of a block's life, from creating to unlinking: 130 us, with fallocate 700 us. */
static err block_allocate(struct ledger *l, uint64_t number, uint32_t from, uint32_t to, struct fault *f)
{
    static const uint8_t zeros[LEDGER_BLOCK_BYTES];
    struct file_path path;
    int fd;
    err e = block_open(l, number, O_RDWR, &path, &fd, f);
    if (e) return e;
    uint64_t position = (uint64_t)from * LEDGER_ENTRY_BYTES, end = (uint64_t)to * LEDGER_ENTRY_BYTES;
    e = file_write(fd, path.text, zeros, end - position, position, f);
    file_close(&fd);
    return e;
}

/* Home: remove the mapping, and the file or, of a block that is gone, its ".settled" file.  A file that cannot be
 * removed is tried again by who comes home next; its entries stay settled. */
static void block_drop(struct ledger *l, uint64_t number)
{
    struct ledger_block *b = block_known(l, number);
    struct file_path path = file_path_numbered(l->directory, number * LEDGER_BLOCK_ENTRIES, LEDGER_SUFFIX);
    struct file_path noted = file_path_numbered(l->directory, number * LEDGER_BLOCK_ENTRIES, LEDGER_SETTLED_SUFFIX);
    if (!b || !b->gone) file_unlink(path.text, NULL);
    if (!b || b->gone) file_unlink(noted.text, NULL);
    if (!b) return;
    block_unmap(b);
    b->gone = true;
}

/* Home: drop the blocks of [from, to) that lie below base. */
static void blocks_drop(struct ledger *l, uint64_t from, uint64_t to)
{
    for (uint64_t number = from; number < to; number++) block_drop(l, number);
}

/* Raise the block's count of settled entries as far as it goes, below `end` entries; returns it. */
static uint32_t block_settled(struct ledger_block *b, uint32_t from, uint32_t end)
{
    uint32_t i = b->settled > from ? b->settled : from;
    while (i < end && ledger_state_of(atomic_load_explicit(&b->entries[i].word, memory_order_relaxed)) == LEDGER_SETTLED)
        i++;
    b->settled = i;
    return i;
}

/* ---- handles ---- */

err ledger_open(const char *directory, struct ledger **out, struct fault *f)
{
    size_t length = strlen(directory);
    if (length >= FILE_DIRECTORY_BYTES_MAX)
        return fault_set(f, ERR_LIMIT, 0, directory, 0, FILE_DIRECTORY_BYTES_MAX - 1, length);
    struct ledger *l = calloc(1, sizeof *l + length + 1);
    if (!l) return fault_set(f, ERR_NO_MEMORY, 0, directory, 0, sizeof *l, 0);
    memcpy(l->directory, directory, length + 1);
    err e = control_map(directory, &l->control, f);
    if (!e) {
        l->first_block = word_load(&l->control->base) / LEDGER_BLOCK_ENTRIES;
        *out = l;
    } else free(l);
    return e;
}

void ledger_close(struct ledger *l)
{
    if (!l) return;
    for (uint32_t i = 0; i < l->block_count; i++) block_unmap(&l->blocks[i]);
    sys->munmap(l->control, LEDGER_CONTROL_BYTES);
    free(l->blocks);
    free(l);
}

/* ---- room ---- */

/* The end of the next step from entry `at` of a block: as much again as the block has, in whole pages, so a
 * busy queue asks seven times a block and an idle one has a page. */
static uint32_t reserve_step(uint32_t at)
{
    uint32_t end = at < LEDGER_RESERVE_ENTRIES ? LEDGER_RESERVE_ENTRIES : 2 * at;
    end = (end + LEDGER_RESERVE_ENTRIES - 1) / LEDGER_RESERVE_ENTRIES * LEDGER_RESERVE_ENTRIES;
    return end < LEDGER_BLOCK_ENTRIES ? end : LEDGER_BLOCK_ENTRIES;
}

err ledger_reserve(struct ledger *l, uint64_t end, struct fault *f)
{
    uint64_t next = word_load(&l->control->next), base = word_load(&l->control->base);
    if (end <= next) return OK;
    if (l->reserved >= next && end <= l->reserved) return OK;
    if (end - next > LEDGER_BLOCK_ENTRIES || end > LEDGER_OFFSET_MAX)
        return fault_set(f, ERR_LIMIT, 0, l->directory, 0, LEDGER_BLOCK_ENTRIES, end - next);
    if ((end - 1) / LEDGER_BLOCK_ENTRIES - base / LEDGER_BLOCK_ENTRIES >= LEDGER_BLOCKS_MAX)
        return fault_set(f, ERR_LIMIT, 0, l->directory, 0, LEDGER_BLOCKS_MAX, end - base);

    /* The first time, or somebody else has moved next: nothing is known of what lies behind it. */
    if (l->reserved < next) l->reserved = next;
    while (l->reserved < end) {
        uint64_t number = l->reserved / LEDGER_BLOCK_ENTRIES;
        uint32_t from = (uint32_t)(l->reserved % LEDGER_BLOCK_ENTRIES), to = reserve_step(from);
        err e = block_make(l, number, f);
        if (!e) e = block_allocate(l, number, from, to, f);
        if (e) return e;
        l->reserved = number * LEDGER_BLOCK_ENTRIES + to;
    }
    return OK;
}

/* ---- looking ---- */

struct range { uint64_t number; uint32_t from, to; };

/* Part of [at, end) that lies in one block. */
static struct range range_at(uint64_t at, uint64_t end)
{
    uint64_t number = at / LEDGER_BLOCK_ENTRIES, first = number * LEDGER_BLOCK_ENTRIES;
    return (struct range){number, (uint32_t)(at - first), (uint32_t)least(end - first, LEDGER_BLOCK_ENTRIES)};
}

static void clamp_to_entries(struct ledger *l, uint64_t *from, uint64_t *to)
{
    *from = most(*from, word_load(&l->control->base));
    *to = least(*to, word_load(&l->control->next));
}

static bool wanted(uint64_t word, enum ledger_state state, uint32_t priorities)
{
    return ledger_state_of(word) == state && (priorities == 0 || (priorities >> ledger_unpack(word).priority & 1));
}

uint64_t ledger_find(struct ledger *l, uint64_t from, uint64_t to, enum ledger_state state, uint32_t priorities)
{
    uint64_t at = from, end = to;
    clamp_to_entries(l, &at, &end);
    while (at < end) {
        struct range r = range_at(at, end);
        uint64_t first = r.number * LEDGER_BLOCK_ENTRIES;
        struct fault why;
        struct ledger_entry *entries = block_entries(l, r.number, &why);
        if (!entries && why.code != OK) return at;
        if (entries) {
            uint32_t settled = state == LEDGER_SETTLED ? 0 : block_known(l, r.number)->settled;
            for (uint32_t i = r.from > settled ? r.from : settled; i < r.to; i++)
                if (wanted(word_load(&entries[i].word), state, priorities)) return first + i;
        }
        at = first + LEDGER_BLOCK_ENTRIES;
    }
    return to;
}

bool ledger_each_next(struct ledger_each *at)
{
    for (;;) {
        at->offset = ledger_find(at->ledger, at->from, at->to, at->state, 0);
        if (at->offset >= at->to) return false;
        at->from = at->offset + 1;
        at->entry = ledger_entry(at->ledger, at->offset, NULL);
        if (at->entry) return true;
    }
}

uint64_t ledger_count(struct ledger *l, uint64_t from, uint64_t to, enum ledger_state state)
{
    uint64_t count = 0;
    clamp_to_entries(l, &from, &to);
    while (from < to) {
        struct range r = range_at(from, to);
        struct ledger_entry *entries = block_entries(l, r.number, NULL);
        for (uint32_t i = r.from; entries && i < r.to; i++)
            count += wanted(atomic_load_explicit(&entries[i].word, memory_order_relaxed), state, 0);
        from = (r.number + 1) * LEDGER_BLOCK_ENTRIES;
    }
    return count;
}

/* Home: remove a file of a block below base, which a killed home has left. */
static err file_tidy(void *context, const char *directory, const char *name, struct fault *f)
{
    struct ledger *l = context;
    uint64_t first;
    if (!file_name_parse(name, LEDGER_SUFFIX, &first) && !file_name_parse(name, LEDGER_SETTLED_SUFFIX, &first)) return OK;
    uint64_t base_block = word_load(&l->control->base) / LEDGER_BLOCK_ENTRIES;
    if (first / LEDGER_BLOCK_ENTRIES >= base_block) return OK;
    struct file_path path = file_path_name(directory, name);
    return file_unlink(path.text, f);
}

/* Home: a block that is missing without a note is there again, all zeros, so its messages are delivered again. */
static struct ledger_entry *block_again(struct ledger *l, uint64_t number, struct ledger_damage *damage)
{
    struct ledger_block *b = block_known(l, number);
    struct file_path path = file_path_numbered(l->directory, number * LEDGER_BLOCK_ENTRIES, LEDGER_SUFFIX);
    struct stat st;
    if ((b && b->gone) || file_stat_of(path.text, &st, NULL) != ERR_NOT_FOUND) return NULL;
    if (block_make(l, number, NULL) || block_allocate(l, number, 0, LEDGER_BLOCK_ENTRIES, NULL)) return NULL;
    if (damage->blocks++ == 0) damage->block = number * LEDGER_BLOCK_ENTRIES;
    return block_entries(l, number, NULL);
}

struct ledger_damage ledger_verify(struct ledger *l)
{
    struct ledger_damage damage = {0};
    uint64_t at = 0, to = UINT64_MAX;
    file_each(l->directory, file_tidy, l, NULL); /* what cannot be removed is harmless */
    clamp_to_entries(l, &at, &to);
    while (at < to) {
        struct range r = range_at(at, to);
        struct ledger_entry *entries = block_entries(l, r.number, NULL);
        if (!entries) entries = block_again(l, r.number, &damage);
        for (uint32_t i = r.from; entries && i < r.to; i++) {
            uint64_t word = word_load(&entries[i].word);
            if (ledger_is_known(word, entries[i].place)) continue;
            if (damage.entries++ == 0) damage.offset = r.number * LEDGER_BLOCK_ENTRIES + i;
            entries[i].place = 0;
            ledger_put(&entries[i], (struct ledger_word){.state = LEDGER_READY});
        }
        at = (r.number + 1) * LEDGER_BLOCK_ENTRIES;
    }
    return damage;
}

/* ---- settling ---- */

/* Move over what is settled from `base` on. */
static uint64_t settle_base(struct ledger *l, uint64_t base, uint64_t upto)
{
    while (base < upto) {
        struct range r = range_at(base, upto);
        uint64_t first = r.number * LEDGER_BLOCK_ENTRIES;
        struct fault why;
        struct ledger_entry *entries = block_entries(l, r.number, &why);
        if (!entries && why.code != OK) break;
        uint32_t settled = entries ? block_settled(block_known(l, r.number), r.from, r.to) : r.to;
        base = first + settled;
        if (settled < LEDGER_BLOCK_ENTRIES) break;
    }
    return base;
}

/* Drop the block in the middle if all of it is settled and that can be noted.  Says whether it had to be looked at. */
static bool settle_block(struct ledger *l, uint64_t number)
{
    struct ledger_block *b = block_known(l, number);
    if (b && b->gone) return false;
    if (!block_entries(l, number, NULL)) return true;
    if (block_settled(block_known(l, number), 0, LEDGER_BLOCK_ENTRIES) == LEDGER_BLOCK_ENTRIES &&
        ledger_note_settled(l->directory, number, NULL) == OK)
        block_drop(l, number);
    return true;
}

uint64_t ledger_settle(struct ledger *l, uint64_t floor, uint32_t blocks_most)
{
    uint64_t old = word_load(&l->control->base), upto = least(floor, word_load(&l->control->next));
    uint64_t base = settle_base(l, old, upto);
    if (base != old) {
        ledger_store_base(l->control, base);
        blocks_drop(l, old / LEDGER_BLOCK_ENTRIES, base / LEDGER_BLOCK_ENTRIES);
    }

    uint64_t first = base / LEDGER_BLOCK_ENTRIES + 1, end = upto / LEDGER_BLOCK_ENTRIES;
    if (first >= end) return base;
    uint64_t steps = least(end - first, (uint64_t)blocks_most * SETTLE_GONE_PER_BLOCK);
    for (uint32_t looks = 0; steps > 0 && looks < blocks_most; steps--) {
        if (l->sweep < first || l->sweep >= end) l->sweep = first;
        looks += settle_block(l, l->sweep++);
    }
    return base;
}

void ledger_skip(struct ledger *l, uint64_t offset)
{
    uint64_t base = word_load(&l->control->base), next = word_load(&l->control->next);
    CHECK(offset <= LEDGER_OFFSET_MAX);
    if (offset <= base) return;
    /* A home may have had room for a whole block behind next, so that it reached into the one after. */
    uint64_t end = least(offset / LEDGER_BLOCK_ENTRIES, next / LEDGER_BLOCK_ENTRIES + 2);
    /* Base first: entries between the old next and the new do not exist, and would never be settled. */
    ledger_store_base(l->control, offset);
    if (offset > next) ledger_store_next(l->control, offset);
    if (word_load(&l->control->departed) < offset) word_store(&l->control->departed, offset);
    blocks_drop(l, base / LEDGER_BLOCK_ENTRIES, end);
    block_make(l, offset / LEDGER_BLOCK_ENTRIES, NULL); /* if it fails, ledger_reserve tries again and reports it */
}

void ledger_trim(struct ledger *l)
{
    uint64_t base = word_load(&l->control->base), next = word_load(&l->control->next);
    l->reserved = 0;
    for (uint32_t i = 0; i < l->block_count; i++) {
        struct ledger_block *b = &l->blocks[i];
        uint64_t first = (l->first_block + i) * LEDGER_BLOCK_ENTRIES, end = first + LEDGER_BLOCK_ENTRIES;
        if (!b->entries) continue;
        uint32_t from = base > first ? (uint32_t)least(base - first, LEDGER_BLOCK_ENTRIES) : 0;
        if (end <= base || (end <= next && block_settled(b, from, LEDGER_BLOCK_ENTRIES) == LEDGER_BLOCK_ENTRIES))
            block_unmap(b);
    }
}

/* ---- durability ---- */

err ledger_sync(const char *directory, struct fault *f)
{
    struct ledger_control *c;
    struct file_path path;
    uint64_t *firsts = NULL;
    uint32_t count = 0;
    err e = control_map(directory, &c, f);
    if (e) return e;
    /* First: a message that one member of a fan-out has acknowledged is still owed to the others. */
    path = file_path_name(directory, members_name);
    e = file_sync(path.text, f);
    if (e == ERR_NOT_FOUND) e = OK;
    uint64_t next = word_load(&c->next); /* before the list: every block that begins below it is in it, or settled */
    if (!e) e = file_numbers(directory, LEDGER_SUFFIX, &firsts, &count, f);
    for (uint32_t i = 0; !e && i < count; i++) {
        path = file_path_numbered(directory, firsts[i], LEDGER_SUFFIX);
        e = file_sync(path.text, f);
        if (e == ERR_NOT_FOUND) e = OK; /* settled meanwhile */
    }
    free(firsts);
    if (!e) e = file_sync_directory(directory, f);
    if (!e) {
        ledger_raise_synced(c, next);
        path = file_path_name(directory, ledger_name);
        e = file_sync(path.text, f);
    }
    sys->munmap(c, LEDGER_CONTROL_BYTES);
    return e;
}
