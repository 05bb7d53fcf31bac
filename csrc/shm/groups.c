/* SPDX-License-Identifier: Apache-2.0
 *
 * groups: the shared table of single-active-consumer groups.
 *
 * The hashes lie together, so looking for a group reads 4 bytes for each row that was ever
 * used, which the processor fetches ahead, and then the group's own rows.
 */
#include "groups.h"

#include <string.h>

#include "../base/check.h"
#include "../base/crc32.h"

err groups_init(struct groups *g, struct fault *f)
{
    if (mutex_init(&g->mutex) < 0) return fault_set(f, ERR_LOCK, errno, "groups", 0, 0, 0);
    return OK;
}

err groups_lock(struct groups *g, struct fault *f)
{
    enum mutex_taken taken = mutex_lock(&g->mutex);
    if (taken == MUTEX_FAILED) return fault_set(f, ERR_LOCK, errno, "groups", 0, 0, 0);
    /* Kept in the table until all is decided anew: whoever dies before leaves it to the next. */
    if (taken == MUTEX_INHERITED) atomic_store_explicit(&g->repair_wanted, 1, memory_order_relaxed);
    return OK;
}

void groups_unlock(struct groups *g)
{
    DEBUG_CHECK((groups_check(g), true));
    mutex_unlock(&g->mutex);
}

/* ---- rows ---- */

static uint32_t hash_of(uint64_t incarnation, const char *name, uint32_t bytes)
{
    return crc32_update((uint32_t)(incarnation ^ incarnation >> 32), name, bytes) | 1u; /* 0 means free */
}

static uint32_t hash_at(const struct groups *g, uint32_t row)
{
    return atomic_load_explicit(&g->hash[row], memory_order_relaxed);
}

static uint32_t high(const struct groups *g) { return atomic_load_explicit(&g->high, memory_order_relaxed); }

static bool same_group(const struct groups_row *r, uint64_t incarnation, const char *name, uint32_t bytes)
{
    return r->incarnation == incarnation && r->name_bytes == bytes && memcmp(r->name, name, bytes) == 0;
}

enum groups_state groups_state(const struct groups *g, uint32_t row)
{
    CHECK(row < GROUPS_ROWS);
    return (enum groups_state)atomic_load_explicit(&g->rows[row].state, memory_order_acquire);
}

err groups_add(struct groups *g, const struct groups_row *member, uint32_t *row, struct fault *f)
{
    if (member->name_bytes == 0) return fault_set(f, ERR_LIMIT, 0, "group name", 0, GROUPS_NAME_BYTES_MAX, 0);
    if (member->label_bytes > GROUPS_LABEL_BYTES_MAX)
        return fault_set(f, ERR_LIMIT, 0, "group label", 0, GROUPS_LABEL_BYTES_MAX, member->label_bytes);
    uint32_t hash = hash_of(member->incarnation, member->name, member->name_bytes);
    uint32_t end = high(g), free_row = end;
    for (uint32_t i = 0; i < end; i++) {
        if (hash_at(g, i) == 0 && free_row == end) free_row = i;
        if (hash_at(g, i) != hash) continue;
        const struct groups_row *r = &g->rows[i];
        if (same_group(r, member->incarnation, member->name, member->name_bytes) && r->partition != member->partition)
            return fault_set(f, ERR_INVALID, 0, "partition of the group", 0, (uint64_t)(int64_t)r->partition,
                             (uint64_t)(int64_t)member->partition);
    }
    if (free_row == GROUPS_ROWS) return fault_set(f, ERR_FULL, 0, "groups", 0, GROUPS_ROWS, GROUPS_ROWS);
    struct groups_row *r = &g->rows[free_row];
    uint64_t number = atomic_load_explicit(&g->numbers, memory_order_relaxed) + 1;
    atomic_store_explicit(&g->numbers, number, memory_order_relaxed);
    memcpy(r, member, sizeof *r);
    r->number = number;
    atomic_store_explicit(&r->state, GROUPS_WAITING, memory_order_relaxed);
    if (free_row == end) atomic_store_explicit(&g->high, end + 1, memory_order_release);
    atomic_store_explicit(&g->hash[free_row], hash, memory_order_release);
    *row = free_row;
    return OK;
}

void groups_remove(struct groups *g, uint32_t row)
{
    CHECK(row < high(g) && hash_at(g, row) != 0);
    atomic_store_explicit(&g->hash[row], 0, memory_order_release);
}

void groups_set_state(struct groups *g, uint32_t row, enum groups_state state)
{
    CHECK(row < high(g) && hash_at(g, row) != 0);
    atomic_store_explicit(&g->rows[row].state, state, memory_order_release);
}

/* ---- questions ---- */

uint32_t groups_of(const struct groups *g, uint64_t incarnation, const char *name, uint32_t name_bytes, uint32_t *rows)
{
    uint32_t hash = hash_of(incarnation, name, name_bytes), end = high(g), count = 0;
    for (uint32_t i = 0; i < end; i++)
        if (hash_at(g, i) == hash && same_group(&g->rows[i], incarnation, name, name_bytes)) rows[count++] = i;
    return count;
}

uint32_t groups_all(const struct groups *g, uint32_t *rows)
{
    uint32_t end = high(g), count = 0;
    for (uint32_t i = 0; i < end; i++)
        if (hash_at(g, i)) rows[count++] = i;
    return count;
}

uint32_t groups_dead(const struct groups *g, struct doorbell_board *b, uint32_t *rows)
{
    uint32_t count = groups_all(g, rows), dead = 0;
    for (uint32_t i = 0; i < count; i++)
        if (g->rows[rows[i]].epoch != doorbell_epoch(b, g->rows[rows[i]].worker)) rows[dead++] = rows[i];
    return dead;
}

void groups_check(const struct groups *g)
{
    uint32_t end = high(g);
    CHECK(end <= GROUPS_ROWS);
    for (uint32_t i = 0; i < end; i++) {
        if (!hash_at(g, i)) continue;
        const struct groups_row *a = &g->rows[i];
        uint32_t state = atomic_load_explicit(&a->state, memory_order_relaxed);
        CHECK(state >= GROUPS_WAITING && state <= GROUPS_DEACTIVATING);
        CHECK(a->number > 0 && a->number <= atomic_load_explicit(&g->numbers, memory_order_relaxed));
        CHECK(a->worker < DOORBELL_WORKERS_MAX && a->label_bytes <= GROUPS_LABEL_BYTES_MAX);
        CHECK(hash_at(g, i) == hash_of(a->incarnation, a->name, a->name_bytes));
        for (uint32_t k = 0; k < i; k++) {
            const struct groups_row *b = &g->rows[k];
            if (hash_at(g, k) != hash_at(g, i) || !same_group(b, a->incarnation, a->name, a->name_bytes)) continue;
            CHECK(a->number != b->number && a->partition == b->partition);
            CHECK(state == GROUPS_WAITING || atomic_load_explicit(&b->state, memory_order_relaxed) == GROUPS_WAITING);
        }
    }
}
