/* SPDX-License-Identifier: Apache-2.0
 *
 * clock: whether the wall clock may be used to decide that something is old.
 *
 * Durations are measured by clocks that setting the time does not move.  An age across a reboot needs the wall clock, which
 * may be wrong after a boot and may be stepped at any time.  The supervisor watches it (vibemq/server/clock.py) and
 * writes what it knows into a page that all processes of the broker share.
 */
#ifndef VIBEMQ_BASE_CLOCK_H
#define VIBEMQ_BASE_CLOCK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* The wall clock was stepped if it moved against the time since boot by more than this between two looks. */
#define CLOCK_STEP_MS INT64_C(60000)

struct clock_page {
    _Atomic int64_t offset_ms;     /* wall clock less time since boot, at the last look */
    _Atomic int64_t held_until_ms; /* time since boot before which no age by the wall clock counts */
    _Atomic int64_t step_ms;       /* the last step: positive if the clock was set forward */
    _Atomic int64_t stepped_ms;    /* time since boot at which it was seen; 0: there was none */
    _Atomic uint64_t steps;
};

/* Map the page, before the first fork.  False: errno says why. */
bool clock_share(void);

/* The page; NULL in a process whose broker has none, as a command of the operator. */
struct clock_page *clock_shared(void);

/* True if ages by the wall clock count now: not within the grace after a start or a step, and not after a step that the
 * supervisor has not seen yet.  Without a page always. */
bool clock_is_believed(void);

/* True if the kernel says that its clock is synchronised (adjtimex). */
bool clock_is_synchronised(void);

#endif
