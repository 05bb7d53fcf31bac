# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport int64_t, uint8_t


cdef class Replay:
    cdef object unacked               # collections.deque of records, the first is number `first`
    cdef readonly int64_t first       # number of the first record that was not acknowledged
    cdef readonly int64_t total       # records ever sent
    cdef readonly size_t bytes, bytes_max
    cdef readonly int64_t received    # the highest number that the peer has used
    cdef int64_t coming               # the number of the record that came last
    cdef readonly bint awaits_sequence
    cdef int64_t told                 # what the peer was told of `received`

    cdef int keep(self, const uint8_t *data, size_t size) except -1
    cdef bint takes(self, int type) noexcept
