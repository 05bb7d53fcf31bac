# SPDX-License-Identifier: Apache-2.0
"""What the processes count of their own work, in memory that they share (csrc/shm/meters.h)."""

import mmap
import os
from typing import NamedTuple

from vibemq.storage.core cimport word_load, word_store
from vibemq.storage.shm cimport address_of

HISTOGRAMS = {
    "turn": METER_TURN, "confirm_os": METER_CONFIRM_OS, "confirm_disk": METER_CONFIRM_DISK,
    "confirm_remote": METER_CONFIRM_REMOTE, "deliver_stream": METER_DELIVER_STREAM,
    "deliver_queue": METER_DELIVER_QUEUE, "sync": METER_SYNC,
}
COUNTERS = {
    "starts": METER_STARTS, "accepted": METER_ACCEPTED, "not_appended": METER_NOT_APPENDED,
    "log_warnings": METER_LOG_WARNINGS, "log_errors": METER_LOG_ERRORS,
    "names_evicted": METER_NAMES_EVICTED, "names_refused": METER_NAMES_REFUSED,
    "offsets_evicted": METER_OFFSETS_EVICTED, "tables_rebuilt": METER_TABLES_REBUILT,
}


class Histogram(NamedTuple):
    """``buckets[k]`` counts what took at most 2^k microseconds and more than 2^(k-1); the last one all that is longer."""

    sum_us: int
    buckets: tuple[int, ...]


def shared(int seats):
    """Memory for so many processes; made before they are forked."""
    return mmap.mmap(-1, seats * sizeof(meters))


cdef class Meters:
    """One process's seat in them.  Only who sits there may count."""

    def __cinit__(self, memory=None, int seat=0):
        """``memory``: of ``shared``; None: nobody else looks."""
        self.memory = shared(seat + 1) if memory is None else memory
        if not 0 <= seat < <Py_ssize_t> (len(self.memory) // sizeof(meters)):
            raise IndexError(f"seat {seat} of {len(self.memory) // sizeof(meters)}")
        self.raw = <meters *> address_of(self.memory) + seat
        self.begin_turn()

    def sit(self):
        """A new process has this seat."""
        word_store(&self.raw.pid, os.getpid())
        self.count(METER_STARTS, 1)

    @property
    def pid(self) -> int:
        """Of who sits here, or sat here last; 0: nobody has yet."""
        return word_load(&self.raw.pid)

    def tell(self, str counter, uint64_t count=1):
        """So many more of what stands in COUNTERS."""
        self.count(COUNTERS[counter], count)

    def histogram(self, str name) -> Histogram:
        """One of HISTOGRAMS."""
        cdef meter_histogram *h = &self.raw.histograms[<int> HISTOGRAMS[name]]
        return Histogram(word_load(&h.sum_us), tuple([word_load(&h.buckets[k]) for k in range(METERS_BUCKETS)]))

    def counter(self, str name) -> int:
        """One of COUNTERS."""
        return word_load(&self.raw.counters[<int> COUNTERS[name]])
