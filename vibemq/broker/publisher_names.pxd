# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport int64_t

from vibemq.storage.core cimport err
from vibemq.storage.log cimport Log
from vibemq.storage.meters cimport Meters
from vibemq.storage.shm cimport Board


# The names of this worker's connected publishers of one stream.
cdef class PublisherNames:
    cdef str stream
    cdef Log log
    cdef Board board
    cdef Meters meters
    cdef object helpers
    cdef dict connected             # name -> number of its publishers
    cdef dict released              # name -> number of releases that helper threads do now
    cdef int64_t busy_until_us      # the log's lock could not be had; until then the loop does not wait for it again

    # Declare a publisher of that name: its highest publishing id is kept until `undeclare`.
    cdef int declare(self, bytes name) except -1
    cdef int undeclare(self, bytes name) except -1
    cdef bint _is_busy(self) noexcept
    cdef err _note_busy(self, err e) noexcept
