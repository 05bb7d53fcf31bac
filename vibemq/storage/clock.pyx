# SPDX-License-Identifier: Apache-2.0
"""The clocks of the broker, and whether the wall clock may decide that something is old (csrc/base/clock.h).

A duration is measured by ``time.monotonic`` in one process, and by ``boot_ms`` over restarts of processes.  ``stamp``
keeps such a moment beside a wall time, so that ``age_ms`` is right in the same boot whatever happens to the wall clock.
"""

from typing import NamedTuple

from vibemq.errors import StorageError

from libc.stdint cimport int64_t, uint32_t, uint64_t

cdef extern from "base/sys.h" nogil:
    ctypedef struct sys_t "struct sys":
        int64_t (*now_ms)()
        int64_t (*boot_ms)()
    const sys_t *sys

cdef extern from "base/clock.h" nogil:
    const int64_t CLOCK_STEP_MS
    struct clock_page:
        int64_t offset_ms, held_until_ms, step_ms, stepped_ms
        uint64_t steps
    bint clock_share()
    clock_page *clock_shared()
    bint clock_is_believed()
    bint clock_is_synchronised()

cdef extern from "log/segment.h" nogil:
    uint32_t segment_boot()

STEP_MS = CLOCK_STEP_MS


class State(NamedTuple):
    """What the supervisor knows of the wall clock.

    ``offset_ms``: wall clock less time since boot at its last look.  ``held_until_ms``, ``stepped_ms``: since boot.
    """

    offset_ms: int
    held_until_ms: int
    steps: int
    step_ms: int
    stepped_ms: int


def wall_ms() -> int:
    """The wall clock, in ms since 1970: for people, and for ages after another boot."""
    return sys.now_ms()


def boot_ms() -> int:
    """Milliseconds since the boot, also while the machine slept.  Nobody can set this clock."""
    return sys.boot_ms()


def is_believed() -> bool:
    """True if an age by the wall clock counts now; false in the grace after a start and a step."""
    return clock_is_believed()


def is_synchronised() -> bool:
    """True if the kernel says that its wall clock is synchronised."""
    return clock_is_synchronised()


def stamp() -> int:
    """This moment, for ``age_ms`` in this boot: the number of the boot, and seconds since it, rounded up."""
    return <uint64_t> segment_boot() << 32 | <uint64_t> ((sys.boot_ms() + 999) // 1000) & 0xFFFFFFFF


def age_ms(int64_t since_ms, uint64_t stamped=0) -> int | None:
    """How long ago it was ``since_ms`` by the wall clock.  None: not known now.

    ``stamped``: the ``stamp`` of that moment, which is right within its boot; 0: there is none.
    """
    cdef int64_t boot = sys.boot_ms()
    cdef int64_t then = <int64_t> (stamped & 0xFFFFFFFF) * 1000
    if stamped >> 32 and stamped >> 32 == segment_boot() and then <= boot + 1000:
        return max(boot - then, 0)
    cdef clock_page *page = clock_shared()
    cdef int64_t age = sys.now_ms() - since_ms
    if not clock_is_believed():
        return None
    if page != NULL and page.steps and page.step_ms > 0 and age > boot - page.stepped_ms:
        age -= page.step_ms  # the clock was set forward since then
    return age if age >= 0 else None


def wall_ms_by_both() -> list[int]:
    """The wall clock, and what it would be without its last step: one of them is right beside an earlier reading."""
    cdef clock_page *page = clock_shared()
    cdef int64_t now = sys.now_ms()
    if page == NULL:
        return [now]
    # A step that nobody has seen yet is part of the difference.
    return [now, now - page.step_ms, sys.boot_ms() + page.offset_ms]


# ---- the shared page ----


def share():
    """Make the page that all processes share, before the first fork.  Raises StorageError."""
    if not clock_share():
        raise StorageError("ERR_NO_MEMORY", "no memory for the page that the broker's processes share about the clock")
    if clock_shared().offset_ms == 0:
        publish(sys.now_ms() - sys.boot_ms(), 0)


def publish(int64_t offset_ms, int64_t held_until_ms):
    """By the supervisor alone."""
    # In this order, both atomic: who finds the offset after a step finds what is held for it, too (clock_is_believed).
    clock_shared().held_until_ms = held_until_ms
    clock_shared().offset_ms = offset_ms


def note_step(int64_t step_ms):
    """The wall clock was stepped by so much.  By the supervisor alone."""
    cdef clock_page *page = clock_shared()
    page.step_ms, page.stepped_ms = step_ms, sys.boot_ms()
    page.steps += 1


def state() -> State | None:
    """None: no broker has made the page, as in a command of the operator."""
    cdef clock_page *page = clock_shared()
    if page == NULL:
        return None
    return State(page.offset_ms, page.held_until_ms, page.steps, page.step_ms, page.stepped_ms)
