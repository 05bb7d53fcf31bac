/* SPDX-License-Identifier: Apache-2.0
 *
 * ledger: what became of each message of a queue, in memory that all processes share.
 *
 * A queue's directory (its log's) also holds (FORMAT.md draws both)
 *
 *   ledger                               one page: the home, how far the queue has come, counters
 *   <20 digits of first offset>.ledger   a block: one entry for each of LEDGER_BLOCK_ENTRIES offsets
 *   <20 digits of first offset>.settled  empty: that block was removed, because all of it was settled
 *
 * An entry is two words.  Every change of state is one aligned 8-byte store or compare-and-swap of
 * the first, so a kill -9 never tears it: the mapping is the journal against the death of processes.
 * Power loss may bring back an older state, which only means one more delivery.  What must not come
 * back is a page that knows of a block whose file was lost with its name: `synced` tells up to where
 * names are on disk.
 *
 *        base                     next                 the log's next offset
 *   settled | entries of any state | no entry: waiting   | not written yet
 *
 * Blocks come as `next` grows and go when all of a block is settled, wherever it lies: so one
 * message that nobody acknowledges holds one block and not all that came after it.  A block that is removed
 * above `base` leaves an empty file, so a block that is missing without one is damage, and its messages are
 * delivered again.  Room is allocated before it is touched, because a full disk is SIGBUS to who stores into a hole.
 *
 * WHO WRITES.  The home (the worker named in `home`) makes entries, hands messages out, moves
 * base and next, adds and drops blocks.  The worker of the consumer that has a message in flight
 * settles it or gives it back, by compare-and-swap, so that what it was told is never lost
 * with the home.  A handle belongs to one thread.
 *
 * Invariants: base <= next (but for the instant of a ledger_skip); an offset
 * in [base, next) has an entry whose state is not LEDGER_NONE, or lies in a block whose ".settled" file is there;
 * departed <= next; synced <= next.
 */
#ifndef VIBEMQ_LEDGER_LEDGER_H
#define VIBEMQ_LEDGER_LEDGER_H

#include <stddef.h>

#include "../base/error.h"
#include "../base/file.h"
#include "words.h"

#define LEDGER_MAGIC 0x564D514Cu /* "VMQL" */
#define LEDGER_VERSION 2u /* 1: without copies and checks */
#define LEDGER_VERSION_UNCHECKED 1u
#define LEDGER_CONTROL_BYTES 4096u
#define LEDGER_BLOCK_ENTRIES 16384u    /* 256 KiB: a block comes and goes every 16 ms at a million messages a second */
#define LEDGER_BLOCK_BYTES (LEDGER_BLOCK_ENTRIES * LEDGER_ENTRY_BYTES)
#define LEDGER_RESERVE_ENTRIES 256u    /* a page: what an almost empty queue costs on disk */
#define LEDGER_BLOCKS_MAX 65536u       /* [base, next) spans at most 2^30 offsets: no hand-out beyond it */
#define LEDGER_OFFSET_MAX (UINT64_C(1) << 62) /* beyond: a damaged page; so sums of offsets never wrap */
#define LEDGER_SUFFIX ".ledger"
#define LEDGER_SETTLED_SUFFIX ".settled"
#define LEDGER_COUNT_MAX (UINT64_C(1) << 53) /* of a counter: beyond, JSON and metrics could not show it exactly */

/* The shared page.  Plain counters are written by the home alone. */
struct ledger_control {
    uint32_t magic, version;
    uint8_t reserved[116];
    uint32_t head_check;                     /* file_page_check of magic and version */
    _Alignas(128) _Atomic uint64_t home;     /* who decides: struct ledger_home, packed */
    _Alignas(128) _Atomic uint64_t base;     /* every offset below is settled */
    _Atomic uint64_t next;                   /* from here on there are no entries: never handed out */
    _Atomic uint64_t departed;               /* next less the messages below it that are ready: what does not wait */
    _Atomic uint64_t purge;                  /* all waiting messages below it are to be settled: ledger_offset_pack */
    _Atomic uint64_t synced;                 /* blocks that begin below it are durable, name and all (ledger_sync) */
    /* Copies, stored after the words of these names.  Two equal ones of three show the damaged one, also after a kill. */
    _Atomic uint64_t base_copies[2], next_copies[2], synced_copies[2];
    _Alignas(128) _Atomic uint64_t workers;  /* mask of those that have consumers of this queue */
    _Atomic uint64_t room_wanted;            /* mask of those whose publishers wait for room */
    _Alignas(128) _Atomic uint64_t consumers, in_flight;
    _Atomic uint64_t delivered, redelivered, acked, expired, dropped, dead_lettered, purged;
    _Atomic uint64_t looked;                 /* ledger_offset_pack of 1 more than the log's end when the home last
                                                dropped what was too much; 0: not known */
    /* Any worker's: messages that a full queue did not take, and whose publishers were told. */
    _Alignas(128) _Atomic uint64_t refused;
    /* Home, in a queue without a limit of failed deliveries: the number of messages that fail repeatedly, the offset of the
     * one that failed most often, and its failed deliveries. */
    _Atomic uint64_t failing, failing_offset, failing_deliveries;
    _Atomic uint64_t away;                   /* home: members of a fan-out that vanished and still have copies */
};
#define LEDGER_HEAD_CHECK_AT 124u
_Static_assert(offsetof(struct ledger_control, head_check) == LEDGER_HEAD_CHECK_AT, "newer versions keep it there");
_Static_assert(sizeof(struct ledger_control) <= LEDGER_CONTROL_BYTES, "the control page is one page");

/* Home: these two and no other way. */
static inline void ledger_store_base(struct ledger_control *c, uint64_t base)
{
    word_store(&c->base, base);
    word_store(&c->base_copies[0], base);
    word_store(&c->base_copies[1], base);
}

static inline void ledger_store_next(struct ledger_control *c, uint64_t next)
{
    word_store(&c->next, next);
    word_store(&c->next_copies[0], next);
    word_store(&c->next_copies[1], next);
}

/* Any worker: settle all waiting messages below `offset`. */
static inline void ledger_order_purge(struct ledger_control *c, uint64_t offset)
{
    word_raise(&c->purge, ledger_offset_pack(offset));
}

/* Before any worker lives: nobody is home and nobody consumes, so what was in flight waits again.  What a home works
 * out for itself (which messages those are) stays as it is. */
static inline void ledger_disown(struct ledger_control *c)
{
    uint64_t base = word_load(&c->base), departed = word_load(&c->departed), lost = word_load(&c->in_flight);
    /* Copies of a fan-out are more than messages: at most all that is not settled waits. */
    word_store(&c->departed, departed > base && departed - base > lost ? departed - lost : base);
    word_store(&c->home, ledger_home_without_worker(word_load(&c->home)));
    word_store(&c->workers, 0);
    word_store(&c->room_wanted, 0);
    word_store(&c->consumers, 0);
    word_store(&c->in_flight, 0);
}

/* What a handle knows of a block. */
struct ledger_block {
    struct ledger_entry *entries; /* NULL: not mapped here */
    uint32_t settled;             /* so many entries at its beginning are known to be settled */
    bool gone;                    /* its file is no more, for good */
};

/* One process's handle.  The fields are for ledger_entry and csrc/ledger only.
 * blocks[i] is the block of the offsets from (first_block + i) * LEDGER_BLOCK_ENTRIES. */
struct ledger {
    struct ledger_control *control;
    struct ledger_block *blocks;
    uint64_t first_block;
    uint32_t block_count;
    size_t block_capacity;
    uint64_t reserved; /* home: entries below are allocated, and zeroed from next on; 0: not looked at yet */
    uint64_t sweep;    /* home: the number of the block in the middle that is looked at next */
    char directory[];
};

/* Note that all of a block is settled, so that its file may be removed.  ERR_IO, ERR_DISK_FULL. */
err ledger_note_settled(const char *directory, uint64_t number, struct fault *f);

/* Make the file of the block of offset `next` with its whole size, if it is missing: a queue whose messages are confirmed
 * needs no new file to deliver the first of them.  ERR_IO, ERR_DISK_FULL. */
err ledger_make_room(const char *directory, uint64_t next, struct fault *f);

/* Make the first block's file and the control page in a log's directory (as "ledger.tmp", renamed); `base`: the first
 * offset that is a message of the queue.  ERR_EXISTS, ERR_IO, ERR_DISK_FULL. */
err ledger_create(const char *directory, uint64_t base, bool sync, struct fault *f);

/* Is the page (which speaks for the blocks too) of a version that we know, or not there?  Writes nothing; before the
 * log's own recovery does.  ERR_VERSION, ERR_IO. */
err ledger_version_check(const char *directory, struct fault *f);

/* Map the control page; blocks are mapped when first asked for.  ERR_NOT_FOUND, ERR_VERSION, ERR_CORRUPT, ERR_IO. */
err ledger_open(const char *directory, struct ledger **out, struct fault *f);
void ledger_close(struct ledger *l);
static inline struct ledger_control *ledger_control(struct ledger *l) { return l->control; }

/* Damage of a ledger, by its copies and checks.  The messages are delivered again. */
struct ledger_damage {
    bool anew;        /* the page was created again: all retained messages are delivered again */
    bool page;        /* words of the page were wrong, and were corrected from their copies */
    uint64_t entries; /* entries that became ready because they were damaged */
    uint64_t offset;  /* of the first of these */
    uint64_t blocks;  /* so many files of blocks were missing; their messages are among `entries` */
    uint64_t block;   /* first offset of the first of these */
};

/* At a start, before any worker runs: remove the home and the consumers, and correct words by their copies and checks.  A
 * damaged or missing control page is created again with base = first.
 *
 * After another boot: offsets outside [first, next) of the recovered log are unknown.  Entries in flight become ready.
 * Blocks of offsets that were cut or dropped are removed.  Its changes are made durable.
 * `is_same_boot`: every word is of the same instant.  Entries keep their workers, which the next home asks.  It syncs
 * nothing, and ignores `first`.  A ledger beyond the log's end `next` is recovered as after another boot.
 *
 * After an error it can be run again.  ERR_VERSION: nothing was written. */
err ledger_recover(const char *directory, uint64_t first, uint64_t next, bool is_same_boot, struct ledger_damage *damage,
                   struct fault *f);

/* Home, when it takes over: make entries with a wrong check, without a state, or of a missing block ready with all counts
 * at zero.  Remove files that a killed home left below base. */
struct ledger_damage ledger_verify(struct ledger *l);

/* Home: see to it that there are entries for [next, end), zeroed, in allocated memory.  At most
 * LEDGER_BLOCK_ENTRIES at a time.  ERR_DISK_FULL, ERR_IO, ERR_LIMIT (LEDGER_BLOCKS_MAX), ERR_NO_MEMORY.
 * Entries from next on are whatever a dead home left there, and are zeroed when a handle reserves for
 * the first time; so a worker that comes home again with an old handle calls ledger_trim first. */
err ledger_reserve(struct ledger *l, uint64_t end, struct fault *f);

/* The entry of an offset below what is reserved, or NULL when its block is gone (it is settled) or
 * was never made.  Maps the block if this handle has not yet; a block that cannot be mapped for lack of
 * memory or descriptors, or is missing without its ".settled" file, also gives NULL and leaves the reason in `f` (which may be NULL), code != OK; with
 * any other NULL the code is OK.  Valid until this handle's next ledger_settle, ledger_skip or ledger_trim. */
struct ledger_entry *ledger_entry_slow(struct ledger *l, uint64_t offset, struct fault *f);
static inline struct ledger_entry *ledger_entry(struct ledger *l, uint64_t offset, struct fault *f)
{
    uint64_t i = offset / LEDGER_BLOCK_ENTRIES - l->first_block;
    if (__builtin_expect(i < l->block_count && l->blocks[i].entries, 1))
        return &l->blocks[i].entries[offset % LEDGER_BLOCK_ENTRIES];
    return ledger_entry_slow(l, offset, f);
}

/* Home: the first offset in [from, to) whose entry is in `state` and, if `priorities` is not 0, whose
 * priority's bit is set in it; `to` when none is.  Blocks that are gone are stepped over whole, and so is what
 * lies outside [base, next).  An offset whose block cannot be mapped now counts as found, because
 * stepping over it would lose messages: ledger_entry then says why. */
uint64_t ledger_find(struct ledger *l, uint64_t from, uint64_t to, enum ledger_state state, uint32_t priorities);

/* Home: goes over the entries of a range that are in one state, as ledger_find finds them; the state of those that
 * were passed may be changed meanwhile.  Those whose block cannot be mapped now are left out.
 *
 *     struct ledger_each at = ledger_each_of(l, from, to, LEDGER_READY);
 *     while (ledger_each_next(&at)) ... at.offset, at.entry ...
 */
struct ledger_each {
    struct ledger *ledger;
    uint64_t from, to, offset;
    enum ledger_state state;
    struct ledger_entry *entry;
};
static inline struct ledger_each ledger_each_of(struct ledger *l, uint64_t from, uint64_t to, enum ledger_state state)
{
    return (struct ledger_each){.ledger = l, .from = from, .to = to, .state = state};
}
bool ledger_each_next(struct ledger_each *at);

/* How many entries of [from, to) are in `state`, for counters after a change of home. */
uint64_t ledger_count(struct ledger *l, uint64_t from, uint64_t to, enum ledger_state state);

/* Home: move base over what is settled and drop blocks that are settled as a whole, also those in
 * the middle (looked at for at most `blocks_most` of them a call), but nothing from `floor` on: somebody
 * still needs it.  Returns the new base.  The caller has seen to it that log segments below it may go. */
uint64_t ledger_settle(struct ledger *l, uint64_t floor, uint32_t blocks_most);

/* Home: settle every offset below `offset` without a look at any of them: base and next move to it at
 * least, and blocks below are dropped.  For a queue whose messages retention has taken, and for purging.
 * departed is raised to the new base; who drops ready messages between that and next counts them before. */
void ledger_skip(struct ledger *l, uint64_t offset);

/* Any process: drop this handle's mappings of blocks that are settled (their files are gone, or soon
 * will be), and forget what it knew as a home. */
void ledger_trim(struct ledger *l);

/* Make the page and the blocks durable, and `synced` what next was when it began.  It uses no handle, so any
 * thread may call it.  Power loss delivers again what was settled since, and, where blocks had gone from the
 * middle, what came after the last call: so call it now and then, and when the broker stops. */
err ledger_sync(const char *directory, struct fault *f);

/* Print a control page or a block, told apart by its name, for people.  `line` gets each line without a
 * newline; a non-zero answer stops.  `limit`: lines about entries at most; 0: all.  ERR_CORRUPT after
 * the report of a file that is not as it should be. */
err ledger_print(const char *path, uint64_t limit, int (*line)(void *context, const char *text), void *context,
                 struct fault *f);

#endif
