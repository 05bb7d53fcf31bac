/* SPDX-License-Identifier: Apache-2.0
 *
 * words: the two packed words of a ledger, an entry's and the home's, and every change of them by name.
 *
 * Nobody else knows their bits.  Each change is one store or compare-and-swap (csrc/shm/word.h).
 */
#ifndef VIBEMQ_LEDGER_WORDS_H
#define VIBEMQ_LEDGER_WORDS_H

#include "../shm/word.h"

#define LEDGER_ENTRY_BYTES 16u
#define LEDGER_ATTEMPTS_MAX 1023u

/* ---- an entry ---- */

enum ledger_state { LEDGER_NONE = 0, LEDGER_READY = 1, LEDGER_IN_FLIGHT = 2, LEDGER_SETTLED = 3, LEDGER_DEAD = 4,
                    LEDGER_DELAYED = 5 };

/* The first word of an entry:
 *    0..2   state           LEDGER_DEAD: being dead-lettered; LEDGER_DELAYED: given back, ready at a time that
 *                           the home knows.  Both are ready again if their home dies
 *    3..4   priority        0 low .. 3 critical
 *    5..14  attempts        how often it was handed out
 *   15..20  worker          who has it in flight: the worker's index
 *   21..31  life            and the low bits of its seat's epoch (csrc/shm/doorbell.h)
 *   32..47  index           of the message within its entry (0 unless a sub-batch)
 *   48..57  strikes        how many of the attempts ended in a timeout or a refusal: these count towards the limit
 *   58..62  check          of the bits below and of the place: each of their bits changes exactly one bit of it
 *   63      checked        0: there is no check, as in a word of version 1, or in one of zeros
 */
struct ledger_word {
    enum ledger_state state;
    uint32_t priority, attempts, worker, life, index, strikes;
};
#define LEDGER_STATE_MASK UINT64_C(7)
#define LEDGER_CHECK_SHIFT 58
#define LEDGER_CONTENT_MASK ((UINT64_C(1) << LEDGER_CHECK_SHIFT) - 1)
#define LEDGER_CHECKED (UINT64_C(1) << 63)
#define LEDGER_LIFE_MASK 0x7FFu

static inline uint64_t ledger_pack(struct ledger_word w)
{
    return (uint64_t)w.state | (uint64_t)(w.priority & 3) << 3 | (uint64_t)(w.attempts & LEDGER_ATTEMPTS_MAX) << 5 |
           (uint64_t)(w.worker & 63) << 15 | (uint64_t)(w.life & LEDGER_LIFE_MASK) << 21 |
           (uint64_t)(w.index & 0xFFFF) << 32 | (uint64_t)(w.strikes & LEDGER_ATTEMPTS_MAX) << 48;
}

static inline enum ledger_state ledger_state_of(uint64_t word) { return (enum ledger_state)(word & LEDGER_STATE_MASK); }

static inline struct ledger_word ledger_unpack(uint64_t word)
{
    return (struct ledger_word){
        .state = ledger_state_of(word), .priority = word >> 3 & 3, .attempts = word >> 5 & LEDGER_ATTEMPTS_MAX,
        .worker = word >> 15 & 63, .life = word >> 21 & LEDGER_LIFE_MASK, .index = word >> 32 & 0xFFFF,
        .strikes = word >> 48 & LEDGER_ATTEMPTS_MAX};
}

/* Fold 64 bits into 5 by exclusive or: each of them affects exactly one. */
static inline uint64_t ledger_fold(uint64_t bits)
{
    bits = (bits ^ bits >> 35) & ((UINT64_C(1) << 35) - 1);
    bits = (bits ^ bits >> 20) & ((UINT64_C(1) << 20) - 1);
    return (bits ^ bits >> 5 ^ bits >> 10 ^ bits >> 15) & 31;
}

/* Return a word with the check of its value and of the place beside it. */
static inline uint64_t ledger_checked(uint64_t word, uint64_t place)
{
    word &= LEDGER_CONTENT_MASK;
    return word | ledger_fold(word ^ place) << LEDGER_CHECK_SHIFT | LEDGER_CHECKED;
}

/* True if an entry's check is right, or it has none. */
static inline bool ledger_fits(uint64_t word, uint64_t place)
{
    return !(word & LEDGER_CHECKED) || word == ledger_checked(word, place);
}

/* What an entry keeps of the epoch of its holder's seat. */
static inline uint32_t ledger_life(uint32_t epoch) { return epoch & LEDGER_LIFE_MASK; }

/* In flight at that worker, in that life of it? */
static inline bool ledger_is_held_by(uint64_t word, uint32_t worker, uint32_t life)
{
    struct ledger_word w = ledger_unpack(word);
    return w.state == LEDGER_IN_FLIGHT && w.worker == worker && w.life == life;
}

/* True if an entry below next has a state and a right check. */
static inline bool ledger_is_known(uint64_t word, uint64_t place)
{
    enum ledger_state state = ledger_state_of(word);
    return state != LEDGER_NONE && state <= LEDGER_DELAYED && ledger_fits(word, place);
}

struct ledger_entry {
    _Atomic uint64_t word;
    uint64_t place; /* chunk's position in its segment << 32 | entry's position in the chunk's data; 0: look it up */
};
_Static_assert(sizeof(struct ledger_entry) == LEDGER_ENTRY_BYTES, "an entry is two words");

/* Home: store an entry's word when no other process may change it. */
static inline void ledger_put(struct ledger_entry *entry, struct ledger_word w)
{
    word_store(&entry->word, ledger_checked(ledger_pack(w), entry->place));
}

/* Change an entry if its word is still `word`. */
static inline bool ledger_swap(struct ledger_entry *entry, uint64_t word, struct ledger_word w)
{
    return word_swap(&entry->word, word, ledger_checked(ledger_pack(w), entry->place));
}

static inline uint64_t ledger_with_state(const struct ledger_entry *entry, uint64_t word, enum ledger_state state)
{
    return ledger_checked((word & ~LEDGER_STATE_MASK) | (uint64_t)state, entry->place);
}

/* Home: of an entry that nobody else may change now.  NULL: its block is gone, so it is settled. */
static inline void ledger_set_state(struct ledger_entry *entry, enum ledger_state state)
{
    if (entry) word_store(&entry->word, ledger_with_state(entry, word_load(&entry->word), state));
}

/* Change the state of an entry that still is as `word` says. */
static inline bool ledger_swap_state(struct ledger_entry *entry, uint64_t word, enum ledger_state state)
{
    return word_swap(&entry->word, word, ledger_with_state(entry, word, state));
}

/* ---- offsets with a check ---- */

/* The page's words `purge` and `looked`: an offset << 8 with a check of it, so that the higher of two offsets is
 * the higher word.  0: none. */
#define LEDGER_OFFSET_SHIFT 8

static inline uint64_t ledger_offset_pack(uint64_t offset)
{
    return offset ? offset << LEDGER_OFFSET_SHIFT | UINT64_C(0x20) | ledger_fold(offset) : 0;
}

/* The offset; 0: none, or the word is damaged. */
static inline uint64_t ledger_offset_unpack(uint64_t word)
{
    uint64_t offset = word >> LEDGER_OFFSET_SHIFT;
    return word == ledger_offset_pack(offset) ? offset : 0;
}

/* ---- the home ---- */

#define LEDGER_NOBODY UINT32_MAX
#define LEDGER_GENERATION_MASK 0xFFFFFFu /* of an epoch, too */

/* The page's word `home`:
 *    0..23  generation      raised by each claim
 *   24..47  epoch           of the worker's seat
 *   48..63  worker          its index + 1; 0: nobody
 */
struct ledger_home {
    uint32_t worker, epoch, generation;
};

static inline uint64_t ledger_home_pack(struct ledger_home h)
{
    return (uint64_t)((h.worker + 1) & 0xFFFF) << 48 | (uint64_t)(h.epoch & LEDGER_GENERATION_MASK) << 24 |
           (h.generation & LEDGER_GENERATION_MASK);
}

static inline struct ledger_home ledger_home_unpack(uint64_t word)
{
    return (struct ledger_home){.worker = (uint32_t)(word >> 48) - 1, .epoch = word >> 24 & LEDGER_GENERATION_MASK,
                                .generation = word & LEDGER_GENERATION_MASK};
}

/* Does the home's seat, whose epoch is `epoch` now, still have the worker that is named? */
static inline bool ledger_home_sits(struct ledger_home h, uint32_t epoch)
{
    return h.worker != LEDGER_NOBODY && h.epoch == (epoch & LEDGER_GENERATION_MASK);
}

/* Make a worker the home, with the next generation, if the word still is `*seen`.  `*seen` is then what it is now. */
static inline bool ledger_home_claim(_Atomic uint64_t *home, uint64_t *seen, uint32_t worker, uint32_t epoch)
{
    uint64_t claim = ledger_home_pack((struct ledger_home){worker, epoch, ledger_home_unpack(*seen).generation + 1});
    if (!atomic_compare_exchange_strong(home, seen, claim)) return false;
    *seen = claim;
    return true;
}

static inline uint64_t ledger_home_without_worker(uint64_t word) { return word & LEDGER_GENERATION_MASK; }

/* Nobody is home any more, if that worker was. */
static inline void ledger_home_leave(_Atomic uint64_t *home, uint32_t worker)
{
    uint64_t word = word_load(home);
    if (ledger_home_unpack(word).worker == worker) word_swap(home, word, ledger_home_without_worker(word));
}

#endif
