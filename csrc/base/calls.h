/* SPDX-License-Identifier: Apache-2.0
 *
 * calls: the file system calls that run now, and those that were slow, in memory that other processes can read.
 *
 * A disk that stalls stops a process within such a call.  The process cannot say so then; another one reads it here.  Each
 * thread notes its call in an entry of its process's seat before it makes it, and frees the entry afterwards.  That costs
 * two readings of a coarse clock (4 ms) and a copy of the path's end.
 *
 * Invariant: an entry whose `since_ms` is not 0 has the kind and the path of one call.  Its number rises with each call.
 */
#ifndef VIBEMQ_BASE_CALLS_H
#define VIBEMQ_BASE_CALLS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define CALLS_LINE 128
/* Threads of a process that are noted at once: the loop and all helpers of a worker are fewer.  Further ones are not noted. */
#define CALLS_ENTRIES 64u
#define CALL_PATH_BYTES 232u /* the end of the path; with the other fields 256 bytes */
#define CALL_SLOW_MS 50      /* calls that took longer are counted */
#define CALL_STALLED_MS 200  /* longer than that is the disk: a busy machine takes the processor away for less */
/* The same of all calls between two of calls_turn, if they took so long on average: quick calls may be many. */
#define CALLS_STALLED_MS 100
#define CALLS_EACH_MS 2

enum call_kind {
    CALL_NONE,
    CALL_OPEN,
    CALL_READ,
    CALL_WRITE,
    CALL_TRUNCATE,
    CALL_SYNC,
    CALL_REMOVE,
    CALL_RENAME,
    CALL_LOCK, /* a wait for a log's lock, which another process holds during its own call */
    CALL_SPACE, /* statvfs */
    CALLS_KINDS,
};

struct call {
    _Atomic uint32_t kind; /* CALL_NONE: the entry is free */
    _Atomic uint32_t number;
    _Atomic int64_t since_ms; /* by CLOCK_MONOTONIC; 0: no call runs */
    char path[CALL_PATH_BYTES + 8];
};

struct calls {
    /* The first entry is of the thread that called calls_sit: a worker's loop. */
    _Alignas(CALLS_LINE) struct call running[CALLS_ENTRIES];
    _Atomic uint64_t slow[CALLS_KINDS], slow_ms[CALLS_KINDS]; /* ended calls above CALL_SLOW_MS: their number, and their time */
    _Atomic int64_t slowest_minute[2];                        /* of an even and an odd minute: which one, */
    _Atomic uint64_t slowest_ms[2];                           /* and its slowest call */
    _Atomic uint32_t replaced; /* 1: another thread runs the loop while the first one is in a slow call */
    struct call ended;         /* the slowest ended call that calls_take_ended has not returned yet */
    _Atomic uint64_t ended_ms; /* its time */
};

/* A copy of an entry. */
struct call_seen {
    uint32_t entry;
    enum call_kind kind;
    int64_t ms; /* how long it has run, or took */
    char path[CALL_PATH_BYTES + 8];
};

/* Milliseconds of CLOCK_MONOTONIC, exact to a tick of the kernel. */
int64_t calls_now_ms(void);

/* The calls of this process are noted in `seat` from now on; the calling thread has the first entry.  NULL: in memory of its
 * own again. */
void calls_sit(struct calls *seat);

/* About to make a call; the path may be NULL, if nobody knows it.  NULL: it is not noted, as all entries are used. */
struct call *call_begin(enum call_kind kind, const char *path);
/* It has returned; errno is kept. */
void call_end(struct call *c);

/* Has a call of this process above CALL_STALLED_MS that opens, writes, cuts or renames a file ended in the last `ms`
 * milliseconds?  Syncs and removals take long on a healthy disk.  The calls of one turn of the first thread count as one above
 * CALLS_STALLED_MS.  Costs one load while there was none. */
bool calls_have_stalled(int64_t ms);
/* A turn of the calling thread begins. */
void calls_turn(void);

/* How long the first thread of this process has been in its call, in milliseconds; 0: in none, or it waits for a lock. */
int64_t calls_first_ms(void);
void calls_replace(bool replaced);

/* Copy the running calls of a seat that are older than `ms`; returns their number, at most `count`. */
uint32_t calls_running(struct calls *seat, int64_t ms, struct call_seen *out, uint32_t count);
/* The slowest call of this minute and the one before. */
uint64_t calls_slowest_ms(struct calls *seat);
/* Copy and forget the slowest ended call above CALL_SLOW_MS; false: there is none.  For one reader. */
bool calls_take_ended(struct calls *seat, struct call_seen *out);

#endif
