/* SPDX-License-Identifier: Apache-2.0
 *
 * block: the files of blocks and a handle's table of them; csrc/ledger's own.
 *
 * The table covers the blocks from first_block on.  Slots at its front whose blocks lie below base
 * and are not mapped are shifted out when it has to grow, so first_block never passes base's block.
 *
 * Files are never renamed from an old block to a new one: a process that still has the old one mapped
 * would change entries of other messages.
 */
#ifndef VIBEMQ_LEDGER_BLOCK_H
#define VIBEMQ_LEDGER_BLOCK_H

#include "ledger.h"

/* The entries of block `number`, mapped; NULL as ledger_entry says. */
struct ledger_entry *block_entries(struct ledger *l, uint64_t number, struct fault *f);

/* The slot of a block that is in the table, or NULL. */
static inline struct ledger_block *block_known(struct ledger *l, uint64_t number)
{
    uint64_t i = number - l->first_block;
    return i < l->block_count ? &l->blocks[i] : NULL;
}

/* Home: the file of block `number` exists with its whole size, and is mapped.  A new one has no room yet. */
err block_make(struct ledger *l, uint64_t number, struct fault *f);

/* Home: room for entries [from, to) of a block, zeroed. */
err block_allocate(struct ledger *l, uint64_t number, uint32_t from, uint32_t to, struct fault *f);

void block_unmap(struct ledger_block *b);

/* Home: remove the file and the mapping.  A file that cannot be removed is tried again by who
 * comes home next; its entries stay settled. */
void block_drop(struct ledger *l, uint64_t number);

/* Raise the block's count of settled entries as far as it goes, below `end` entries; returns it. */
uint32_t block_settled(struct ledger_block *b, uint32_t from, uint32_t end);

/* The numbers of the block files in a directory, in order; free() them. */
err block_list(const char *directory, uint64_t **numbers, uint32_t *count, struct fault *f);

void block_path(struct file_path *p, const char *directory, uint64_t number);

#endif
