/* SPDX-License-Identifier: Apache-2.0
 *
 * ledger_check: the invariants of a ledger, for every block.
 */
#ifndef VIBEMQ_TESTS_LEDGER_CHECK_H
#define VIBEMQ_TESTS_LEDGER_CHECK_H

#include <stdlib.h>

#include "../base/check.h"
#include "../ledger/ledger.h"

static inline void ledger_check(struct ledger *l)
{
    struct ledger_control *c = l->control;
    uint64_t base = word_load(&c->base), next = word_load(&c->next);
    CHECK(c->magic == LEDGER_MAGIC && c->version == LEDGER_VERSION);
    CHECK(base <= next && next <= LEDGER_OFFSET_MAX);
    CHECK(word_load(&c->departed) <= next && word_load(&c->synced) <= next);
    CHECK(l->first_block <= base / LEDGER_BLOCK_ENTRIES);
    CHECK(l->block_count <= l->block_capacity);
    while (base < next) {
        uint64_t number = base / LEDGER_BLOCK_ENTRIES, end = (number + 1) * LEDGER_BLOCK_ENTRIES;
        /* Maps the block; NULL when it is gone. */
        bool there = ledger_entry(l, base, NULL) != NULL;
        uint32_t settled = there ? l->blocks[number - l->first_block].settled : 0;
        for (; there && base < end && base < next; base++) {
            enum ledger_state state = ledger_state_of(word_load(&ledger_entry(l, base, NULL)->word));
            CHECK(state != LEDGER_NONE && state <= LEDGER_DELAYED);
            CHECK(base % LEDGER_BLOCK_ENTRIES >= settled || state == LEDGER_SETTLED);
        }
        base = end;
    }
}

/* Remove what a ledger has in a directory, so that a test may begin anew there. */
static inline void ledger_clear(const char *directory)
{
    struct file_path path;
    uint64_t *firsts;
    uint32_t count;
    CHECK(file_numbers(directory, LEDGER_SUFFIX, &firsts, &count, NULL) == OK);
    for (uint32_t i = 0; i < count; i++) {
        path = file_path_numbered(directory, firsts[i], LEDGER_SUFFIX);
        file_unlink(path.text, NULL);
    }
    free(firsts);
    CHECK(file_numbers(directory, LEDGER_SETTLED_SUFFIX, &firsts, &count, NULL) == OK);
    for (uint32_t i = 0; i < count; i++) {
        path = file_path_numbered(directory, firsts[i], LEDGER_SETTLED_SUFFIX);
        file_unlink(path.text, NULL);
    }
    free(firsts);
    path = file_path_name(directory, "ledger.tmp");
    file_unlink(path.text, NULL);
    path = file_path_name(directory, "ledger");
    file_unlink(path.text, NULL);
}

#endif
