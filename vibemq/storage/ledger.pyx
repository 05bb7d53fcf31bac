# SPDX-License-Identifier: Apache-2.0
"""A queue's numbers as its ledger's page shows them, for whoever is no worker.

The page is read as a file and never mapped, so a reader cannot change it.  Each word is of some instant during the
read, and words of different instants may stand side by side.  What is in flight, and how many consumers there are, is
what the last home wrote: a worker that takes a dead one's seat comes home where that told of consumers, and nothing
is left of either when the broker starts (`storage.log.ledger_recover`).
"""

import os
from typing import NamedTuple

from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memcpy
from vibemq.storage cimport core
from vibemq.storage.core cimport LEDGER_MAGIC, LEDGER_NOBODY, LEDGER_SETTLED, LEDGER_VERSION, fault, ledger_control
from vibemq.storage.log cimport check

from vibemq.errors import StorageError


class QueueStats(NamedTuple):
    """How many messages wait and are in flight, and what has become of others since the queue was made."""

    waiting: int
    in_flight: int
    consumers: int
    delivered: int
    redelivered: int
    acked: int
    expired: int
    dropped: int
    dead_lettered: int
    purged: int
    refused: int  # by a full queue: their publishers were told
    away: int  # members of a fan-out that vanished and still have copies
    base: int  # all messages below this offset are settled
    failing: int  # messages that fail repeatedly in a queue without a limit
    failing_offset: int  # offset of the one that failed most often
    failing_deliveries: int  # its failed deliveries


def queue_stats(str directory, uint64_t next_offset) -> QueueStats:
    """``next_offset``: the log's.  Raises StorageError, with ERR_NOT_FOUND where there is no ledger (any more)."""
    cdef ledger_control page
    _read(directory, &page)
    departed = core.word_load(&page.departed)
    return QueueStats(
        next_offset - departed if next_offset > departed else 0, core.word_load(&page.in_flight),
        core.word_load(&page.consumers), core.word_load(&page.delivered), core.word_load(&page.redelivered),
        core.word_load(&page.acked), core.word_load(&page.expired), core.word_load(&page.dropped),
        core.word_load(&page.dead_lettered), core.word_load(&page.purged), core.word_load(&page.refused),
        core.word_load(&page.away),
        core.word_load(&page.base), core.word_load(&page.failing), core.word_load(&page.failing_offset),
        core.word_load(&page.failing_deliveries),
    )


def has_consumers_of(str directory, uint32_t worker) -> bool:
    """Does it tell of consumers, or of messages with them, by the word of a home on that worker?"""
    cdef ledger_control page
    _read(directory, &page)
    return _home(&page) == worker and _tells_of_consumers(&page)


# ---- what is settled, for a copy of it elsewhere ----

#: Ranges that are told one by one; what is settled behind more of them is told when those before it are.
RANGES_MAX = 1024


def settled_count(str directory) -> int:
    """How many messages have left the queue for good; it changes whenever `settled` may."""
    cdef ledger_control page
    _read(directory, &page)
    return (core.word_load(&page.base) + core.word_load(&page.acked) + core.word_load(&page.expired)
            + core.word_load(&page.dropped) + core.word_load(&page.dead_lettered) + core.word_load(&page.purged))


def settled(str directory) -> tuple[int, list[tuple[int, int]]]:
    """Everything below the first number is settled, and these ranges above it.  Raises StorageError."""
    cdef core.ledger *held = NULL
    cdef core.ledger_entry *entry
    cdef fault f
    cdef bytes path = os.fsencode(directory)
    cdef uint64_t base, end, at, begin = 0
    cdef bint is_in = False, is_settled
    check(core.ledger_open(path, &held, &f), &f)
    found = []
    try:
        base, end = core.word_load(&held.control.base), core.word_load(&held.control.next)
        at = base
        while at < end and len(found) < RANGES_MAX:
            entry = core.ledger_entry_of(held, at, &f)
            if entry == NULL:
                check(f.code, &f)  # else its block is gone, so it is settled
            is_settled = entry == NULL or core.ledger_state_of(core.word_load(&entry.word)) == LEDGER_SETTLED
            if is_settled and not is_in:
                begin = at
            elif is_in and not is_settled:
                found.append((begin, at))
            is_in = is_settled
            at += 1
        if is_in:
            found.append((begin, at))
    finally:
        core.ledger_close(held)
    return base, found


def restore(str directory, uint64_t base, list ranges):
    """Make the ledger of a queue whose log is restored, with what `settled` told.  Raises StorageError.

    Before the log's recovery, and the ledger's, which gives what is not settled its entries' other words.
    """
    cdef core.ledger *held = NULL
    cdef core.ledger_entry *entry
    cdef fault f
    cdef bytes path = os.fsencode(directory)
    cdef uint64_t end = base, at, first, last
    for first, last in ranges:
        end = max(end, last)
    check(core.ledger_create(path, base, False, &f), &f)
    check(core.ledger_open(path, &held, &f), &f)
    try:
        at = base
        while at < end:
            at = min(end, at + core.LEDGER_BLOCK_ENTRIES)
            check(core.ledger_reserve(held, at, &f), &f)
            core.ledger_store_next(held.control, at)
        for first, last in ranges:
            for at in range(first, last):
                entry = core.ledger_entry_of(held, at, &f)
                if entry == NULL:
                    raise StorageError("ERR_CORRUPT", f"{directory}: offset {at} cannot be settled: no entry was made")
                core.ledger_set_state(entry, LEDGER_SETTLED)
    finally:
        core.ledger_close(held)
    check(core.ledger_sync(path, &f), &f)  # what was handed out below is known after a power cut, too


cdef uint32_t _home(ledger_control *page) noexcept:
    return core.ledger_home_unpack(core.word_load(&page.home)).worker


cdef bint _tells_of_consumers(ledger_control *page) noexcept:
    return core.word_load(&page.consumers) or core.word_load(&page.in_flight)


def _path(directory):
    return os.path.join(directory, "ledger")


cdef int _read(str directory, ledger_control *page) except -1:
    cdef Py_ssize_t needed = sizeof(page[0])
    cdef bytes read
    path = _path(directory)
    try:
        with open(path, "rb", buffering=0) as file:
            read = file.read(needed)
    except OSError as problem:
        raise StorageError("ERR_NOT_FOUND" if isinstance(problem, FileNotFoundError) else "ERR_IO",
                           f"{path}: {problem.strerror}") from problem
    if len(read) == needed:
        memcpy(page, <const char *> read, needed)
    if len(read) < needed or page.magic != LEDGER_MAGIC:
        raise StorageError("ERR_CORRUPT", f"{path} is no ledger's page")
    if page.version != LEDGER_VERSION:
        raise StorageError("ERR_VERSION", f"{path} is of version {page.version}, known is version {LEDGER_VERSION}")
    return 0
