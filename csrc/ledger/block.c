/* SPDX-License-Identifier: Apache-2.0
 *
 * block: the files of blocks, mapped when asked for and removed when settled.
 *
 * Room is made by writing zeros, not by fallocate: a write reserves the room just as well, it zeroes what
 * a dead home left, and the pages are in the cache, in large pieces, when they are touched.
 * Measured on ext4 for all of a block's life, from creating to unlinking: 130 us, with fallocate 700 us.
 */
#include "block.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "../base/grow.h"
#include "../base/sys.h"

void block_path(struct file_path *p, const char *directory, uint64_t number)
{
    file_path_numbered(p, directory, number * LEDGER_BLOCK_ENTRIES, LEDGER_SUFFIX);
}

/* ---- the table ---- */

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

/* ---- mapping ---- */

static err block_map(struct ledger_block *b, int fd, const char *path, struct fault *f)
{
    void *memory = sys->mmap(NULL, LEDGER_BLOCK_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) return fault_from_errno(f, path, 0, LEDGER_BLOCK_BYTES, 0);
    b->entries = memory;
    b->settled = 0;
    return OK;
}

void block_unmap(struct ledger_block *b)
{
    if (b->entries) sys->munmap(b->entries, LEDGER_BLOCK_BYTES);
    b->entries = NULL;
}

/* Missing or not whole yet, and not all of its offsets were handed out: somebody may be making it. */
static bool block_may_come(uint64_t number, uint64_t next)
{
    return (number + 1) * LEDGER_BLOCK_ENTRIES > next;
}

struct ledger_entry *block_entries(struct ledger *l, uint64_t number, struct fault *f)
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
    block_path(&path, l->directory, number);
    int fd;
    err e = file_open(path.text, O_RDWR, &fd, f);
    if (e == ERR_NOT_FOUND) {
        b->gone = !block_may_come(number, next);
        if (f) f->code = OK;
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

/* ---- making ---- */

err block_make(struct ledger *l, uint64_t number, struct fault *f)
{
    uint64_t base_block = atomic_load_explicit(&l->control->base, memory_order_relaxed) / LEDGER_BLOCK_ENTRIES;
    struct ledger_block *b = table_slot(l, number, base_block, f);
    if (!b) return ERR_NO_MEMORY;
    if (b->entries) return OK;

    struct file_path path;
    block_path(&path, l->directory, number);
    int fd;
    bool fresh = false;
    err e = file_open(path.text, O_RDWR, &fd, f);
    if (e == ERR_NOT_FOUND) {
        e = file_open(path.text, O_RDWR | O_CREAT | O_EXCL, &fd, f);
        fresh = !e;
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

err block_allocate(struct ledger *l, uint64_t number, uint32_t from, uint32_t to, struct fault *f)
{
    static const uint8_t zeros[LEDGER_BLOCK_BYTES];
    struct file_path path;
    block_path(&path, l->directory, number);
    int fd;
    err e = file_open(path.text, O_RDWR, &fd, f);
    if (e) return e;
    uint64_t position = (uint64_t)from * LEDGER_ENTRY_BYTES, end = (uint64_t)to * LEDGER_ENTRY_BYTES;
    e = file_write(fd, path.text, zeros, end - position, position, f);
    file_close(&fd);
    return e;
}

/* ---- dropping ---- */

void block_drop(struct ledger *l, uint64_t number)
{
    struct file_path path;
    block_path(&path, l->directory, number);
    struct ledger_block *b = block_known(l, number);
    if (!b || !b->gone) file_unlink(path.text, NULL);
    if (!b) return;
    block_unmap(b);
    b->gone = true;
}

uint32_t block_settled(struct ledger_block *b, uint32_t from, uint32_t end)
{
    uint32_t i = b->settled > from ? b->settled : from;
    while (i < end && ledger_state_of(atomic_load_explicit(&b->entries[i].word, memory_order_relaxed)) == LEDGER_SETTLED)
        i++;
    b->settled = i;
    return i;
}

/* ---- listing ---- */

err block_list(const char *directory, uint64_t **numbers, uint32_t *count, struct fault *f)
{
    err e = file_numbers(directory, LEDGER_SUFFIX, numbers, count, f);
    if (e) return e;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < *count; i++)
        if ((*numbers)[i] % LEDGER_BLOCK_ENTRIES == 0) /* a name that no block has is nobody's business here */
            (*numbers)[kept++] = (*numbers)[i] / LEDGER_BLOCK_ENTRIES;
    *count = kept;
    return OK;
}
