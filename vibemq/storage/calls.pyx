# SPDX-License-Identifier: Apache-2.0
"""File system calls of the processes that run now, or were slow, in memory that they share (csrc/base/calls.h)."""

import mmap
import os
from typing import NamedTuple

from vibemq.storage.core cimport word_load
from vibemq.storage.shm cimport address_of

#: In the order of `enum call_kind`; "" stands for no call.
KINDS = ("", "open", "read", "write", "truncate", "sync", "remove", "rename", "lock", "space")
SLOW_MS = CALL_SLOW_MS
_WORDS = {
    "open": "an open of", "read": "a read of", "write": "a write to", "truncate": "a truncation of", "sync": "a sync of",
    "remove": "a removal of", "rename": "a rename to", "lock": "a wait for the lock of", "space": "a look at the free space of",
}


class Call(NamedTuple):
    kind: str
    path: str
    seconds: float  # that it took, or has taken so far
    is_loops: bool  # of the thread that runs the loop of a worker, or maybe of it

    def __str__(self) -> str:
        return f"{_WORDS[self.kind]} {self.path}"


def shared(int seats):
    """Memory for so many processes; made before they are forked."""
    return mmap.mmap(-1, seats * sizeof(calls))


class noted:
    """``with noted("space", path):`` around a call of Python's own."""

    __slots__ = ("_kind", "_path", "_at")

    def __init__(self, kind: str, path: str) -> None:
        self._kind, self._path = KINDS.index(kind), os.fsencode(path)

    def __enter__(self):
        self._at = <size_t> call_begin(self._kind, self._path)

    def __exit__(self, *_):
        call_end(<call *> <size_t> self._at)


cdef class Calls:
    """The calls of one process."""

    def __cinit__(self, memory, int seat):
        """``memory``: of ``shared``."""
        if not 0 <= seat < <Py_ssize_t> (len(memory) // sizeof(calls)):
            raise IndexError(f"seat {seat} of {len(memory) // sizeof(calls)}")
        self.memory = memory
        self.raw = <calls *> address_of(memory) + seat

    def sit(self):
        """This process has the seat, and the calling thread is its loop."""
        calls_sit(self.raw)

    def running(self, double seconds) -> list[Call]:
        """Those that have run for longer."""
        cdef call_seen seen[64]
        cdef uint32_t count = calls_running(self.raw, <int64_t> (seconds * 1000), seen, CALLS_ENTRIES)
        cdef bint replaced = self.raw.replaced
        # While the first thread is replaced, nobody notes which of the others is the loop: each of them counts.
        return [_call(&seen[i], (seen[i].entry == 0) != replaced) for i in range(count)]

    def take_ended(self) -> Call | None:
        """The slowest one that ended since the last call of this; for one process."""
        cdef call_seen seen
        return _call(&seen, False) if calls_take_ended(self.raw, &seen) else None

    def slow(self) -> dict[str, tuple[int, float]]:
        """Of each kind: how many ended calls took more than SLOW_MS, and how many seconds in all."""
        return {kind: (word_load(&self.raw.slow[i]), word_load(&self.raw.slow_ms[i]) / 1000)
                for i, kind in enumerate(KINDS) if kind}

    @property
    def slowest_s(self) -> float:
        """Of the calls that ended in this minute and the one before."""
        return calls_slowest_ms(self.raw) / 1000


cdef object _call(const call_seen *seen, bint is_loops):
    return Call(KINDS[seen.kind], os.fsdecode(seen.path), seen.ms / 1000, is_loops)
