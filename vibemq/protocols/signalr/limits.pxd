# SPDX-License-Identifier: Apache-2.0
cdef enum:
    # Of a stateful peer that acknowledges too little: calls that wait for it, and answers that are kept for it.
    HELD_BACK_BYTES_MAX = 16 << 20


cdef class Limits:
    cdef readonly Py_ssize_t unconfirmed, unconfirmed_max
    cdef readonly Py_ssize_t parked_bytes, waiting_bytes
    cdef Py_ssize_t consumers         # subscriptions of this connection whose Acks may make room
    cdef bint throttled, blocked, crowded

    # `is_held_back`: the peer of a stateful connection has acknowledged too little.
    cdef bint wants_pause(self, bint is_held_back) noexcept
    # Messages for full queues are refused, because the pause that would hold up more of them is not allowed.
    cdef bint parks_no_more(self) noexcept
    cdef int count_unconfirmed(self, Py_ssize_t more) except -1
    cdef int count_parked(self, Py_ssize_t more) except -1
    cdef int count_waiting(self, Py_ssize_t more) except -1
