/* SPDX-License-Identifier: Apache-2.0 */
#include "../base/grow.h"
#include "../base/sys.h"

#include "test.h"

static struct sys fake;
static unsigned calls, fails_at;

static void *realloc_or_not(void *memory, size_t size)
{
    return ++calls == fails_at ? NULL : realloc(memory, size);
}

TEST(what_is_held_stays_and_capacity_doubles)
{
    uint32_t *items = NULL;
    size_t capacity = 0, changes = 0;
    for (uint32_t i = 0; i < 10000; i++) {
        size_t had = capacity;
        REQUIRE(grow(&items, &capacity, i + 1, sizeof *items, "items", NULL) == OK);
        EXPECT(capacity > i && (capacity == had || had == 0 || capacity == 2 * had));
        changes += capacity != had;
        items[i] = i;
    }
    EXPECT_EQ(9, changes);
    for (uint32_t i = 0; i < 10000; i++) REQUIRE(items[i] == i);
    free(items);
}

TEST(more_than_twice_as_much_is_had_at_once)
{
    uint64_t *items = NULL;
    size_t capacity = 0;
    EXPECT_EQ(OK, grow(&items, &capacity, 1000, sizeof *items, "items", NULL));
    EXPECT_EQ(1000, capacity);
    EXPECT_EQ(OK, grow(&items, &capacity, 7, sizeof *items, "items", NULL));
    EXPECT_EQ(1000, capacity);
    free(items);
}

TEST(without_memory_everything_stays_as_it_was)
{
    uint64_t *items = NULL;
    size_t capacity = 0;
    struct fault f;
    REQUIRE(grow(&items, &capacity, 100, sizeof *items, "items", NULL) == OK);
    items[99] = 4711;
    fake = sys_real;
    fake.realloc = realloc_or_not;
    sys = &fake;
    calls = 0;
    fails_at = 1;
    const uint64_t *before = items;
    EXPECT_EQ(ERR_NO_MEMORY, grow(&items, &capacity, 101, sizeof *items, "items", &f));
    sys = &sys_real;
    EXPECT(items == before && items[99] == 4711);
    EXPECT_EQ(100, capacity);
    EXPECT_EQ(808, f.needed);
    EXPECT_EQ(800, f.had);
    EXPECT(strcmp("items", f.where) == 0);
    free(items);
}

TEST(a_size_that_cannot_be_is_refused_without_asking)
{
    uint64_t *items = NULL;
    size_t capacity = 0;
    struct fault f;
    fake = sys_real;
    fake.realloc = realloc_or_not;
    sys = &fake;
    calls = fails_at = 0;
    EXPECT_EQ(ERR_NO_MEMORY, grow(&items, &capacity, SIZE_MAX / 8 + 1, sizeof *items, "items", &f));
    capacity = SIZE_MAX / 2 + 1; /* twice as much cannot be counted */
    EXPECT_EQ(ERR_NO_MEMORY, grow(&items, &capacity, SIZE_MAX / 2 + 2, sizeof *items, "items", &f));
    sys = &sys_real;
    EXPECT(items == NULL && calls == 0);
    EXPECT_EQ(SIZE_MAX, f.needed);
}
