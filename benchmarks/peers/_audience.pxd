# SPDX-License-Identifier: Apache-2.0
"""What a protocol adds to the audience of a fan-out. See _audience.pyx."""

from libc.stdint cimport int64_t, uint8_t, uint64_t

from vibemq.bench._flow cimport Buffer, Flow, Histogram


cdef struct listener:
    int fd
    int64_t next                # the number that is to come
    int64_t received
    Buffer rest                 # of a frame that was not whole


cdef class Audience:
    cdef listener *listeners
    cdef int64_t count, messages, step, received_, stopped
    cdef int64_t now            # when the bytes that `take` looks at had come
    cdef bint timed
    cdef int poll
    cdef Buffer inbox
    cdef Flow failure           # holds the words of the first failure
    cdef readonly int64_t last_ns, disordered
    cdef readonly Histogram latencies
    # Reads whole frames and says how far it came; NULL when all is over.
    cdef const uint8_t *take(self, listener *each, const uint8_t *p, const uint8_t *end) noexcept nogil
    # Counts a delivery; False: this is no body of ours.
    cdef bint note(self, listener *each, const uint8_t *body, size_t size) noexcept nogil
    cdef bint keep(self, listener *each, const uint8_t *p, size_t size) noexcept nogil
    cdef void loop(self) noexcept nogil
    cdef bint read(self, listener *each, bint receives) noexcept nogil
