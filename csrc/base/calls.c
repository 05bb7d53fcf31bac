/* SPDX-License-Identifier: Apache-2.0
 *
 * calls: note a call, count slow ones, and read the notes of another process.
 */
#include "calls.h"

#include <errno.h>
#include <string.h>
#include <time.h>

#define MINUTE_MS 60000

static struct calls own; /* of a process without a seat */
static struct calls *here = &own;
static _Atomic int64_t stall_ended_ms; /* when the last call of calls_have_stalled ended; 0: there was none */
static _Thread_local int64_t turn_ms, turn_calls; /* calls of calls_have_stalled in this turn of the first thread */
static _Thread_local uint32_t mine; /* the entry that this thread used last; 0: none yet, or it is the seat's first thread */
static _Thread_local bool is_first;

int64_t calls_now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

void calls_sit(struct calls *seat)
{
    here = seat ? seat : &own;
    is_first = true;
    for (uint32_t i = 0; i < CALLS_ENTRIES; i++) { /* of a process that was killed within its calls */
        atomic_store_explicit(&here->running[i].since_ms, 0, memory_order_relaxed);
        atomic_store_explicit(&here->running[i].kind, CALL_NONE, memory_order_release);
    }
    atomic_store_explicit(&here->ended.kind, CALL_NONE, memory_order_release);
    calls_replace(false);
}

int64_t calls_first_ms(void)
{
    struct call *c = &here->running[0];
    int64_t since_ms = atomic_load_explicit(&c->since_ms, memory_order_acquire);
    if (since_ms == 0 || atomic_load_explicit(&c->kind, memory_order_relaxed) == CALL_LOCK) return 0;
    return calls_now_ms() - since_ms;
}

void calls_replace(bool replaced) { atomic_store_explicit(&here->replaced, replaced, memory_order_relaxed); }

static bool claim(struct call *c, enum call_kind kind)
{
    uint32_t none = CALL_NONE;
    return atomic_compare_exchange_strong_explicit(&c->kind, &none, kind, memory_order_acquire, memory_order_relaxed);
}

static struct call *entry_of_this_thread(enum call_kind kind)
{
    if (is_first) { /* no other thread uses this entry, so it needs no locked instruction */
        struct call *c = &here->running[0];
        if (atomic_load_explicit(&c->kind, memory_order_relaxed) != CALL_NONE) return NULL; /* a call within a call */
        atomic_store_explicit(&c->kind, kind, memory_order_relaxed);
        return c;
    }
    for (uint32_t i = 0; i < CALLS_ENTRIES; i++) {
        uint32_t at = (mine + i) % CALLS_ENTRIES;
        if (at == 0 || !claim(&here->running[at], kind)) continue;
        mine = at;
        return &here->running[at];
    }
    return NULL;
}

/* The end of a long path says which file it is. */
static void path_copy(char *out, const char *path)
{
    size_t size = path ? strlen(path) : 0;
    if (size > CALL_PATH_BYTES) {
        path += size - CALL_PATH_BYTES;
        size = CALL_PATH_BYTES;
    }
    if (size) memcpy(out, path, size);
    out[size] = 0;
}

struct call *call_begin(enum call_kind kind, const char *path)
{
    struct call *c = entry_of_this_thread(kind);
    if (!c) return NULL;
    path_copy(c->path, path);
    atomic_store_explicit(&c->number, atomic_load_explicit(&c->number, memory_order_relaxed) + 1, memory_order_relaxed);
    atomic_store_explicit(&c->since_ms, calls_now_ms(), memory_order_release);
    return c;
}

static bool is_for_appends(enum call_kind kind)
{
    return kind == CALL_OPEN || kind == CALL_WRITE || kind == CALL_TRUNCATE || kind == CALL_RENAME;
}

void calls_turn(void) { turn_ms = turn_calls = 0; }

/* The coarse clock shows a quick call as 0 or as a whole tick; their sum is right on average. */
static void count_in_turn(const struct call *c, int64_t now_ms, int64_t ms)
{
    if (!is_for_appends((enum call_kind)atomic_load_explicit(&c->kind, memory_order_relaxed))) return;
    turn_ms += ms;
    turn_calls++;
    if (turn_ms > CALLS_STALLED_MS && turn_ms >= CALLS_EACH_MS * turn_calls)
        atomic_store_explicit(&stall_ended_ms, now_ms, memory_order_relaxed);
}

static void count_slow(const struct call *c, int64_t now_ms, uint64_t ms)
{
    enum call_kind kind = (enum call_kind)atomic_load_explicit(&c->kind, memory_order_relaxed);
    atomic_fetch_add_explicit(&here->slow[kind], 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&here->slow_ms[kind], ms, memory_order_relaxed);
    if (is_for_appends(kind) && ms > CALL_STALLED_MS)
        atomic_store_explicit(&stall_ended_ms, now_ms, memory_order_relaxed);

    int64_t minute = now_ms / MINUTE_MS;
    _Atomic uint64_t *slowest = &here->slowest_ms[minute % 2];
    if (atomic_exchange_explicit(&here->slowest_minute[minute % 2], minute, memory_order_relaxed) != minute)
        atomic_store_explicit(slowest, 0, memory_order_relaxed);
    uint64_t known = atomic_load_explicit(slowest, memory_order_relaxed);
    while (known < ms && !atomic_compare_exchange_weak_explicit(slowest, &known, ms, memory_order_relaxed, memory_order_relaxed)) {}

    /* `ended.number` is its lock, which is held for a copy.  Of two calls that end at the same time one is not kept. */
    uint32_t unlocked = 0;
    if (!atomic_compare_exchange_strong_explicit(&here->ended.number, &unlocked, 1, memory_order_acquire, memory_order_relaxed)) return;
    if (atomic_load_explicit(&here->ended.kind, memory_order_relaxed) == CALL_NONE ||
        atomic_load_explicit(&here->ended_ms, memory_order_relaxed) < ms) {
        memcpy(here->ended.path, c->path, sizeof c->path);
        atomic_store_explicit(&here->ended_ms, ms, memory_order_relaxed);
        atomic_store_explicit(&here->ended.kind, kind, memory_order_relaxed);
    }
    atomic_store_explicit(&here->ended.number, 0, memory_order_release);
}

void call_end(struct call *c)
{
    if (!c) return;
    int64_t now_ms = calls_now_ms(), ms = now_ms - atomic_load_explicit(&c->since_ms, memory_order_relaxed);
    if (is_first) count_in_turn(c, now_ms, ms);
    if (ms > CALL_SLOW_MS) {
        int kept = errno;
        count_slow(c, now_ms, (uint64_t)ms);
        errno = kept;
    }
    atomic_store_explicit(&c->since_ms, 0, memory_order_relaxed);
    atomic_store_explicit(&c->kind, CALL_NONE, memory_order_release);
}

bool calls_have_stalled(int64_t ms)
{
    int64_t ended_ms = atomic_load_explicit(&stall_ended_ms, memory_order_relaxed);
    return ended_ms && calls_now_ms() - ended_ms < ms;
}

/* False: the call ended, or another began, during the copy. */
static bool see(struct call *c, int64_t now_ms, int64_t ms, struct call_seen *out)
{
    uint32_t number = atomic_load_explicit(&c->number, memory_order_acquire);
    int64_t since_ms = atomic_load_explicit(&c->since_ms, memory_order_acquire);
    if (since_ms == 0 || now_ms - since_ms <= ms) return false;
    out->kind = (enum call_kind)atomic_load_explicit(&c->kind, memory_order_relaxed);
    out->ms = now_ms - since_ms;
    memcpy(out->path, c->path, sizeof out->path);
    out->path[sizeof out->path - 1] = 0;
    atomic_thread_fence(memory_order_acquire);
    return out->kind != CALL_NONE && atomic_load_explicit(&c->since_ms, memory_order_relaxed) == since_ms &&
           atomic_load_explicit(&c->number, memory_order_relaxed) == number;
}

uint32_t calls_running(struct calls *seat, int64_t ms, struct call_seen *out, uint32_t count)
{
    int64_t now_ms = calls_now_ms();
    uint32_t found = 0;
    for (uint32_t i = 0; i < CALLS_ENTRIES && found < count; i++) {
        out[found].entry = i;
        found += see(&seat->running[i], now_ms, ms, &out[found]);
    }
    return found;
}

uint64_t calls_slowest_ms(struct calls *seat)
{
    uint64_t slowest = 0;
    int64_t minute = calls_now_ms() / MINUTE_MS;
    for (int i = 0; i < 2; i++) {
        uint64_t ms = atomic_load_explicit(&seat->slowest_ms[i], memory_order_relaxed);
        if (atomic_load_explicit(&seat->slowest_minute[i], memory_order_relaxed) >= minute - 1 && ms > slowest) slowest = ms;
    }
    return slowest;
}

bool calls_take_ended(struct calls *seat, struct call_seen *out)
{
    uint32_t unlocked = 0;
    if (atomic_load_explicit(&seat->ended.kind, memory_order_relaxed) == CALL_NONE ||
        !atomic_compare_exchange_strong_explicit(&seat->ended.number, &unlocked, 1, memory_order_acquire, memory_order_relaxed))
        return false;
    out->entry = 0;
    out->kind = (enum call_kind)atomic_load_explicit(&seat->ended.kind, memory_order_relaxed);
    out->ms = (int64_t)atomic_load_explicit(&seat->ended_ms, memory_order_relaxed);
    memcpy(out->path, seat->ended.path, sizeof out->path);
    out->path[sizeof out->path - 1] = 0;
    atomic_store_explicit(&seat->ended.kind, CALL_NONE, memory_order_relaxed);
    atomic_store_explicit(&seat->ended.number, 0, memory_order_release);
    return true;
}
