# SPDX-License-Identifier: Apache-2.0
"""Appends that helper threads do, because the disk is slow.

A worker appends in its loop, which costs least.  A write that took longer than CALL_STALLED_MS (csrc/base/calls.h) shows a
disk that may stall.  From then on, until QUIET_MS were quiet, helper threads append, and the loop serves all connections
that need nothing of that log.  The same follows if the lock of a log cannot be had within LOCK_WAIT_MS: another process
holds it in its own slow write.

The first slow write of a worker is in its loop: the kernel has no buffered write on ext4 that refuses instead of waiting
(RWF_NOWAIT), and a hand-over for each append costs more than the append.  If nothing else of the turn is half done then,
another thread takes the loop over (server/substitute.py): the batch counts as handed over then, and the thread that returns
from the system call leaves its turn (Displaced) and gets the loop back.  So a batch that is full in the middle of a
connection's input is kept, and appended before the next connection is read.

The thread that appends takes and releases the log's robust mutex itself.  A log has one such batch at a time; messages
that follow collect in the next batch.  Messages of handed batches count as unconfirmed and as parked for their client, so
its connection is not read above these limits.  Above HANDED_BYTES_MAX of one log no publisher of it is read.
"""

import logging
from collections import deque

from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport free, malloc
from posix.unistd cimport usleep

from vibemq.storage cimport core
from vibemq.storage.calls cimport CALL_STALLED_MS, calls_have_stalled, calls_first_ms, calls_replace
from vibemq.storage.core cimport ERR_BUSY, OK, batch, err, fault, log_appended
from vibemq.storage.meters cimport Meters

from vibemq.once_a_minute import OnceAMinute

logger = logging.getLogger(__name__)
says_full = OnceAMinute(logger, logging.WARNING)

cdef enum:
    QUIET_MS = 60_000
    LOOK_US = 100_000                # ten wake-ups a second: a hundredth of a thousandth of a processor
    HANDED_BYTES_MAX = 64 << 20      # of one log: one batch of the largest size
    KEPT_BYTES_MAX = 8 << 20         # of full batches of one log, until the input of a connection has been handled
    # Counted as parked for each publisher above that, so that none is read (PARKED_BYTES_MAX in broker/client.pyx).
    SIZE_OF_A_FULL_LOG = (16 << 20) + 1
    # Batches kept with their memory (up to 2 MiB each): more streams than this in one turn is rare.
    SPARE_BATCHES = 16


class Displaced(BaseException):
    """Another thread has taken the loop over, with all that the turn had still to do."""


cdef class Appender:
    cdef Appends later(self):
        if self.appends is None:
            self.appends = Appends(self)
        return self.appends

    cdef int persist(self) except -1:
        return 0

    cdef int hand(self, list users, size_t share) except -1:
        return 0

    cdef int appended(self, batch *appended_batch, list users, bint handed, err e, fault *f, log_appended *done,
                      int64_t began_us) except -1:
        return 0


cdef class HandedBatch:
    def append(self):
        """In a helper thread."""
        self.run()

    cdef int run(self) except -1:
        with nogil:
            self.e = OK if self.sealed else core.batch_seal(self.raw, &self.f)
            if self.e == OK:
                self.sealed = True
                self.e = core.log_append(self.log.raw, self.raw, &self.appended, &self.f)
        return 0


cdef class Appends:
    def __init__(self, Appender stream):
        self.stream, self.disk, self.queue = stream, stream.disk, deque()

    cdef int add(self, bint must, bint sealed) except -1:
        if self.queue and not must:
            return 0  # the batch stays open, and `done` goes on with it
        self._take(HandedBatch(), sealed)
        return 0 if self.started else self._start()

    cdef int keep(self) except -1:
        if self.size + self.stream.batch.size > KEPT_BYTES_MAX:
            return self.stream.persist()
        self._take(HandedBatch(), False)
        self.disk.full.append(self.stream)
        return 0

    cdef int append_here(self) except -1:
        cdef Disk disk = self.disk
        cdef HandedBatch handed
        cdef bint may_yield = disk.may_yield
        disk.may_yield = False  # what is told to users may append more, in the middle of it
        while self.queue and not self.started:
            if disk.is_slow():
                self._start()
                break
            handed = self.queue[0]
            if may_yield:
                disk.appending, disk.is_kept = self.stream, True
            handed.run()
            if disk.taken is not None:
                disk.displaced()
            disk.appending = None
            if handed.e == ERR_BUSY:
                self._start()
                break
            self.queue.popleft()
            self._tell(handed)
        disk.may_yield = may_yield
        return 0

    cdef int _take(self, HandedBatch handed, bint sealed) except -1:
        cdef Appender stream = self.stream
        cdef size_t share
        handed.raw, stream.batch = stream.batch, NULL
        handed.sealed, handed.log = sealed, stream.log
        handed.began_us = self.disk.meters.turn_us
        handed.records, handed.size = handed.raw.records, handed.raw.size
        waiting, stream.waiting = stream.waiting, []
        self.records += handed.records
        self.size += handed.size
        stream.handed += 1
        stream.handed_records = self.records
        share = handed.size // len(waiting)
        if self.size > HANDED_BYTES_MAX:
            share = SIZE_OF_A_FULL_LOG
            says_full.say(stream.name, "stream %s: %d bytes of messages wait for a slow disk: its publishers are not read "
                          "until they are written", stream.name, self.size)
        handed.users = waiting
        stream.hand(waiting, share)
        self.queue.append(handed)
        return 0

    cdef list users(self):
        return [user for handed in self.queue for user in (<HandedBatch> handed).users]

    cdef int _start(self) except -1:
        cdef HandedBatch handed = self.queue[0]
        self.started = True
        self.disk.handed += 1
        self.disk.helpers.submit_append(handed.append, self.done)
        return 0

    def done(self, _, error):
        """In the loop, after `_start`."""
        cdef HandedBatch handed = self.queue.popleft()
        self.started = False
        self.disk.handed -= 1
        if self.queue:
            self._start()
        self._tell(handed)
        if self.stream.waiting and not self.queue:
            self.stream.persist()

    cdef int _tell(self, HandedBatch handed) except -1:
        """What became of a batch that is not in the queue any more."""
        cdef Appender stream = self.stream
        self.records -= handed.records
        self.size -= handed.size
        stream.handed -= 1
        stream.handed_records = self.records
        return stream.appended(handed.raw, handed.users, True, handed.e, &handed.f, &handed.appended, handed.began_us)


cdef class Disk:
    def __init__(self, helpers, Meters meters, resume):
        """``resume()``: have the next turn append to the streams to which this one has not."""
        self.helpers, self.meters, self.resume, self.full = helpers, meters, resume, []

    cdef bint is_slow(self) noexcept:
        return self.handed > 0 or calls_have_stalled(QUIET_MS)

    def take_over(self) -> bool:
        """Wait for some time, without the interpreter's lock.  If the loop is in a slow append then, and may yield, take the
        loop over for the calling thread, and return True."""
        cdef HandedBatch handed = HandedBatch()
        cdef Appender stream
        cdef Appends appends
        cdef int64_t ms
        with nogil:
            usleep(LOOK_US)
            ms = calls_first_ms()
        if ms <= CALL_STALLED_MS or self.appending is None or self.taken is not None:
            return False
        stream = self.appending
        appends = stream.appends if stream.appends is not None else Appends(stream)
        # Nothing from here to the assignment of `taken` runs Python code, so the append cannot return to its turn between.
        if self.appending is not stream or calls_first_ms() <= CALL_STALLED_MS:
            return False
        self.taken = appends.queue[0] if self.is_kept else handed
        stream.appends = appends
        if not self.is_kept:
            appends._take(handed, True)
        appends.started = True
        self.handed += 1
        self.resume()
        self.helpers.count_append()  # until `done`
        calls_replace(True)
        return True

    def give_back(self):
        """By the same thread, at the end of a turn."""
        calls_replace(False)

    cdef int displaced(self) except -1:
        cdef Appends appends = self.appending.appends
        self.taken = self.appending = None
        self.helpers.finish(appends.done)
        raise Displaced

    @property
    def slow(self) -> bool:
        return self.is_slow()


cdef class SpareBatches:
    def __dealloc__(self):
        while self.count:
            self.count -= 1
            core.batch_free(self.spare[self.count])
            free(self.spare[self.count])

    cdef batch *take(self) except NULL:
        cdef fault f
        cdef batch *fresh
        if self.count:
            self.count -= 1
            return self.spare[self.count]
        fresh = <batch *> malloc(sizeof(batch))
        if fresh == NULL:
            raise MemoryError
        if core.batch_init(fresh, &f) != OK:
            free(fresh)
            raise MemoryError
        return fresh

    cdef void give(self, batch *b) noexcept:
        if self.count < SPARE_BATCHES:
            core.batch_clear(b)
            self.spare[self.count] = b
            self.count += 1
        else:
            core.batch_free(b)
            free(b)
