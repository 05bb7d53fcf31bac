# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport int64_t, uint64_t
from vibemq.storage.core cimport batch, err, fault, log_appended
from vibemq.storage.log cimport Log

cdef class Disk
cdef class SpareBatches

from vibemq.broker.stream cimport Stream


# A batch whose append a helper thread does.
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


# Of one stream: its batches that helper threads append, one at a time.
cdef class Appends:
    cdef Stream stream
    cdef object queue               # deque of HandedBatch; a helper thread has the first one
    cdef readonly uint64_t records, size

    # The stream's batch follows, now or (not `must`) when the batch before it is done.
    cdef int add(self, bint must, bint sealed) except -1
    cdef int _take(self, HandedBatch handed, bint sealed) except -1
    cdef int _start(self) except -1
    # Of all its batches.
    cdef list users(self)


cdef class Disk:
    cdef readonly int handed        # batches of all streams that helper threads append
    cdef bint may_yield             # the loop appends at the end of its turn: nothing else of the turn is under way
    cdef Stream appending           # whose batch it appends then
    cdef HandedBatch taken          # that batch, once another thread has taken the loop over

    # Do helper threads append now?
    cdef bint is_slow(self) noexcept
    # The append has returned, in the thread that was replaced meanwhile.  Raises Displaced.
    cdef int displaced(self, err e, fault *f, log_appended *done) except -1


# Empty batches with their memory: only streams with something to persist hold one.
cdef class SpareBatches:
    cdef batch *spare[16]
    cdef int count

    cdef batch *take(self) except NULL
    cdef void give(self, batch *b) noexcept
