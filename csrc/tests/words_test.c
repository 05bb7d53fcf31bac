/* SPDX-License-Identifier: Apache-2.0 */
#include "../ledger/words.h"

#include <pthread.h>

#include "test.h"

/* ---- an entry ---- */

TEST(a_word_holds_each_field_at_its_limits)
{
    static const struct ledger_word words[] = {
        {0, 0, 0, 0, 0, 0, 0},
        {LEDGER_DELAYED, 3, LEDGER_ATTEMPTS_MAX, 63, LEDGER_LIFE_MASK, 0xFFFF, LEDGER_ATTEMPTS_MAX},
        {LEDGER_READY, 3, 0, 0, 0, 0, 0}, {LEDGER_READY, 0, LEDGER_ATTEMPTS_MAX, 0, 0, 0, 0},
        {LEDGER_IN_FLIGHT, 0, 0, 63, 0, 0, 0}, {LEDGER_IN_FLIGHT, 0, 0, 0, LEDGER_LIFE_MASK, 0, 0},
        {LEDGER_SETTLED, 0, 0, 0, 0, 0xFFFF, 0}, {LEDGER_DEAD, 0, 0, 0, 0, 0, LEDGER_ATTEMPTS_MAX},
    };
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        struct ledger_word had = ledger_unpack(ledger_pack(words[i]));
        EXPECT_MEM_EQ(&words[i], &had, sizeof had);
        EXPECT_EQ(0, ledger_pack(words[i]) >> 58);
    }
}

TEST(a_change_of_state_keeps_the_rest_of_the_word)
{
    struct ledger_word w = {LEDGER_IN_FLIGHT, 2, 1000, 62, 0x5A5, 0xABC, 77};
    uint64_t packed = ledger_pack(w);
    for (int state = LEDGER_NONE; state <= LEDGER_DELAYED; state++) {
        w.state = (enum ledger_state)state;
        EXPECT_EQ(state, ledger_state_of(ledger_pack(w)));

        struct ledger_entry entry = {.word = packed, .place = 9};
        EXPECT_EQ(ledger_checked(ledger_pack(w), 9), ledger_with_state(&entry, packed, w.state));
        ledger_set_state(&entry, w.state);
        EXPECT_EQ(ledger_checked(ledger_pack(w), 9), word_load(&entry.word));
        EXPECT_EQ(9, entry.place);
    }
    ledger_set_state(NULL, LEDGER_READY); /* of a block that is gone */
}

TEST(a_state_is_swapped_only_if_nobody_was_faster)
{
    uint64_t seen = ledger_pack((struct ledger_word){.state = LEDGER_IN_FLIGHT, .attempts = 1, .worker = 3});
    struct ledger_entry entry = {.word = seen};
    EXPECT(ledger_swap_state(&entry, seen, LEDGER_SETTLED));
    EXPECT(!ledger_swap_state(&entry, seen, LEDGER_READY));
    EXPECT_EQ(ledger_with_state(&entry, seen, LEDGER_SETTLED), word_load(&entry.word));
}

/* The check shows each single flipped bit of an entry. */
TEST(each_flipped_bit_of_an_entry_shows)
{
    struct ledger_word w = {LEDGER_IN_FLIGHT, 2, 1000, 62, 0x5A5, 0xABC, 77};
    for (int turn = 0; turn < 64; turn++) {
        struct ledger_entry entry = {.place = UINT64_C(0x9E3779B97F4A7C15) * (uint64_t)turn};
        w.attempts = (uint32_t)turn * 13;
        ledger_put(&entry, w);
        uint64_t word = word_load(&entry.word);
        EXPECT(ledger_fits(word, entry.place) && ledger_is_known(word, entry.place));
        EXPECT_EQ(ledger_pack(w), word & LEDGER_CONTENT_MASK);
        for (int bit = 0; bit < 64; bit++) {
            EXPECT(!ledger_fits(word, entry.place ^ UINT64_C(1) << bit));
            bool is_mark = bit == 63; /* without it the word has no check */
            EXPECT_EQ(is_mark, ledger_fits(word ^ UINT64_C(1) << bit, entry.place));
        }
    }
    EXPECT(ledger_fits(ledger_pack(w), 77)); /* of version 1 */
    EXPECT(!ledger_is_known(0, 0));
}

TEST(a_flipped_bit_of_an_order_to_purge_is_no_order)
{
    EXPECT_EQ(0, ledger_offset_pack(0));
    for (uint64_t offset = 0; offset < 1000; offset += 333) {
        uint64_t word = ledger_offset_pack(offset);
        EXPECT_EQ(offset, ledger_offset_unpack(word));
        EXPECT(ledger_offset_pack(offset + 1) > word);
        for (int bit = 0; bit < 64; bit++) EXPECT_EQ(0, ledger_offset_unpack(word ^ UINT64_C(1) << bit));
    }
}

TEST(a_message_is_held_by_one_life_of_one_worker)
{
    uint32_t life = ledger_life(0xFFFFF9A1), other = ledger_life(0xFFFFF9A2);
    uint64_t word = ledger_pack((struct ledger_word){.state = LEDGER_IN_FLIGHT, .worker = 63, .life = life});
    EXPECT_EQ(0xFFFFF9A1 & LEDGER_LIFE_MASK, life);
    EXPECT(ledger_is_held_by(word, 63, life));
    EXPECT(!ledger_is_held_by(word, 62, life));
    EXPECT(!ledger_is_held_by(word, 63, other));
    struct ledger_entry entry = {.word = word};
    EXPECT(!ledger_is_held_by(ledger_with_state(&entry, word, LEDGER_READY), 63, life));
}

/* ---- the home ---- */

TEST(a_home_word_holds_each_field_at_its_limits)
{
    static const struct ledger_home homes[] = {
        {LEDGER_NOBODY, 0, 0}, {0, 0, 0}, {63, 0xFFFFFF, 0xFFFFFF}, {0xFFFE, 0xFFFFFF, 1}, {2, 9, 4},
    };
    for (size_t i = 0; i < sizeof homes / sizeof *homes; i++) {
        struct ledger_home had = ledger_home_unpack(ledger_home_pack(homes[i]));
        EXPECT_MEM_EQ(&homes[i], &had, sizeof had);
    }
    EXPECT_EQ(0, ledger_home_pack(homes[0]));
    EXPECT_EQ(UINT64_C(3) << 48 | UINT64_C(9) << 24 | 4, ledger_home_pack(homes[4])); /* as FORMAT.md draws it */
}

TEST(a_home_sits_while_its_seat_has_its_epoch)
{
    struct ledger_home h = {5, 0x123456, 1};
    EXPECT(ledger_home_sits(h, 0x123456));
    EXPECT(ledger_home_sits(h, 0x77123456)); /* the word has the low 24 bits of an epoch */
    EXPECT(!ledger_home_sits(h, 0x123457));
    EXPECT(!ledger_home_sits((struct ledger_home){LEDGER_NOBODY, 0, 1}, 0));
}

TEST(a_claim_raises_the_generation_and_holds_only_if_nobody_was_faster)
{
    _Atomic uint64_t home = ledger_home_pack((struct ledger_home){LEDGER_NOBODY, 0, 0xFFFFFF});
    uint64_t seen = word_load(&home), late = seen;
    EXPECT(ledger_home_claim(&home, &seen, 4, 0x99000007));
    EXPECT_EQ(seen, word_load(&home));
    struct ledger_home h = ledger_home_unpack(seen);
    EXPECT_EQ(4, h.worker);
    EXPECT_EQ(7, h.epoch);
    EXPECT_EQ(0, h.generation); /* it wraps, and reaches no other field */

    EXPECT(!ledger_home_claim(&home, &late, 5, 7));
    EXPECT_EQ(seen, late); /* who came late is told who was faster */
    EXPECT(ledger_home_claim(&home, &late, 5, 7));
    EXPECT_EQ(1, ledger_home_unpack(late).generation);
}

TEST(only_who_is_home_can_leave_and_the_generation_stays)
{
    _Atomic uint64_t home = ledger_home_pack((struct ledger_home){4, 7, 12});
    ledger_home_leave(&home, 3);
    EXPECT_EQ(4, ledger_home_unpack(word_load(&home)).worker);
    ledger_home_leave(&home, 4);
    struct ledger_home h = ledger_home_unpack(word_load(&home));
    EXPECT_EQ(LEDGER_NOBODY, h.worker);
    EXPECT_EQ(12, h.generation);
    ledger_home_leave(&home, LEDGER_NOBODY);
    EXPECT_EQ(12, word_load(&home));
}

#define CLAIMS 20000

struct claimer { _Atomic uint64_t *home; uint32_t worker; uint64_t claims; };

static void *claim(void *context)
{
    struct claimer *me = context;
    uint64_t seen = word_load(me->home);
    for (int i = 0; i < CLAIMS; i++) {
        me->claims += ledger_home_claim(me->home, &seen, me->worker, 1);
        if (i % 3 == 0) ledger_home_leave(me->home, me->worker);
    }
    return NULL;
}

TEST(of_two_who_claim_at_once_one_is_home)
{
    _Atomic uint64_t home = 0;
    struct claimer claimers[2] = {{&home, 0, 0}, {&home, 1, 0}};
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) REQUIRE(pthread_create(&threads[i], NULL, claim, &claimers[i]) == 0);
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    EXPECT_EQ(claimers[0].claims + claimers[1].claims, ledger_home_unpack(word_load(&home)).generation);
}
