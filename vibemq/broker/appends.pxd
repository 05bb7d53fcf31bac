# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport int64_t, uint64_t
from vibemq.storage.core cimport batch, err, fault, log_appended
from vibemq.storage.log cimport Log
from vibemq.storage.meters cimport Meters


# What appends to a log in one worker: a stream (stream.pyx).
cdef class Appender:
    cdef readonly str name
    cdef readonly Log log
    cdef batch *batch               # what this turn publishes; NULL while that is nothing
    cdef list waiting               # users with entries in the batch
    cdef Disk disk
    cdef Appends appends            # batches that are appended later; None: there was none yet
    cdef readonly int handed        # how many there are now
    cdef readonly uint64_t handed_records

    # `appends`, made if need be.
    cdef Appends later(self)
    # Append the batch, or have a helper thread append it while the disk is slow; it may stay open then.
    cdef int persist(self) except -1
    # Users of the batch are told that it is appended later; `share`: the part of each, in bytes.
    cdef int hand(self, list users, size_t share) except -1
    # The batch was appended, or (e) was not; `handed`: its users were told that it would be later.
    cdef int appended(self, batch *appended_batch, list users, bint handed, err e, fault *f, log_appended *done,
                      int64_t began_us) except -1


# A batch that is appended later than its messages came: by a helper thread, or (a full one) when the input of its
# connection has been handled.
cdef class HandedBatch:
    cdef batch *raw
    cdef bint sealed
    cdef readonly list users
    cdef readonly uint64_t records, size
    cdef int64_t began_us           # the turn in which it was handed over
    cdef Log log
    cdef log_appended appended
    cdef fault f
    cdef err e

    cdef int run(self) except -1


# Of one stream: its batches that are appended later, one at a time.
cdef class Appends:
    cdef Appender stream
    cdef Disk disk
    cdef object queue               # deque of HandedBatch
    cdef bint started               # a helper thread has the first one, or the thread that was replaced
    cdef readonly uint64_t records, size

    # The stream's batch follows, now or (not `must`) when the batch before it is done.
    cdef int add(self, bint must, bint sealed) except -1
    # The stream's batch is full: `append_here` follows in this turn.
    cdef int keep(self) except -1
    # Append all of the queue in the loop, or have a helper thread append it while the disk is slow.
    cdef int append_here(self) except -1
    cdef int _take(self, HandedBatch handed, bint sealed) except -1
    cdef int _start(self) except -1
    cdef int _tell(self, HandedBatch handed) except -1
    # Of all its batches.
    cdef list users(self)


# Of one worker.
cdef class Disk:
    cdef object helpers, resume
    cdef Meters meters
    cdef list full                  # streams with full batches
    cdef readonly int handed        # logs to which helper threads append now
    cdef bint may_yield             # the loop appends, and nothing else of the turn is half done
    cdef Appender appending         # whose batch it appends then,
    cdef bint is_kept               # which is the first one of its queue, and not the open one
    cdef HandedBatch taken          # that batch, once another thread has taken the loop over

    # Do helper threads append now?
    cdef bint is_slow(self) noexcept
    # The append of `taken` has returned, in the thread that was replaced meanwhile.  Raises Displaced.
    cdef int displaced(self) except -1


# Empty batches with their memory: only streams with something to persist hold one.
cdef class SpareBatches:
    cdef batch *spare[16]
    cdef int count

    cdef batch *take(self) except NULL
    cdef void give(self, batch *b) noexcept
