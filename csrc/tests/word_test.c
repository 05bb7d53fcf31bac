/* SPDX-License-Identifier: Apache-2.0 */
#include "../shm/word.h"

#include <pthread.h>

#include "test.h"

#define THREADS 4
#define ROUNDS 20000

struct shared { _Atomic uint64_t counter, highest, mask, taken, claimed; };
struct worker { struct shared *shared; uint32_t index; uint64_t takes; };

static void *work(void *context)
{
    struct worker *me = context;
    struct shared *s = me->shared;
    for (uint64_t i = 0; i < ROUNDS; i++) {
        word_add(&s->counter, 2);
        word_raise(&s->highest, i * THREADS + me->index);
        word_bit_set(&s->mask, me->index);
        if (i % 2) word_bit_clear(&s->mask, me->index);
        word_bit_set(&s->taken, me->index);
        me->takes += (uint64_t)__builtin_popcountll(word_take(&s->taken));
        for (uint64_t had = word_load(&s->claimed); !word_swap(&s->claimed, had, had + 1);) had = word_load(&s->claimed);
    }
    return NULL;
}

TEST(nothing_is_lost_of_what_several_change_at_once)
{
    struct shared s = {0};
    struct worker workers[THREADS];
    pthread_t threads[THREADS];
    uint64_t takes = 0;
    for (uint32_t i = 0; i < THREADS; i++) {
        workers[i] = (struct worker){.shared = &s, .index = i};
        REQUIRE(pthread_create(&threads[i], NULL, work, &workers[i]) == 0);
    }
    for (uint32_t i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        takes += workers[i].takes;
    }
    EXPECT_EQ(2 * THREADS * ROUNDS, word_load(&s.counter));
    EXPECT_EQ(THREADS * ROUNDS - 1, word_load(&s.highest));
    EXPECT_EQ(0, word_bits(&s.mask));
    EXPECT_EQ(0, word_take(&s.taken));
    EXPECT(takes >= ROUNDS && takes <= THREADS * ROUNDS);
    EXPECT_EQ(THREADS * ROUNDS, word_load(&s.claimed));
}

TEST(a_word_is_only_raised)
{
    _Atomic uint64_t w = 7;
    word_raise(&w, 5);
    EXPECT_EQ(7, word_load(&w));
    word_raise(&w, UINT64_MAX);
    EXPECT_EQ(UINT64_MAX, word_load(&w));
}

TEST(a_word_is_swapped_only_if_it_is_as_it_was)
{
    _Atomic uint64_t w = 3;
    EXPECT(!word_swap(&w, 2, 4));
    EXPECT_EQ(3, word_load(&w));
    EXPECT(word_swap(&w, 3, 4));
    EXPECT_EQ(4, word_load(&w));
}

TEST(a_mask_has_a_bit_for_each_of_64_workers)
{
    _Atomic uint64_t mask = 0;
    for (uint32_t bit = 0; bit < 64; bit++) word_bit_set(&mask, bit);
    EXPECT_EQ(UINT64_MAX, word_bits(&mask));
    word_bit_clear(&mask, 63);
    word_bit_clear(&mask, 0);
    EXPECT_EQ(UINT64_MAX >> 1 & ~UINT64_C(1), word_take(&mask));
    EXPECT_EQ(0, word_take(&mask));
}
