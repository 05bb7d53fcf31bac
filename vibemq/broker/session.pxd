# SPDX-License-Identifier: Apache-2.0
from vibemq.net.door cimport Session


# A session of a door to queues: what keeps it from reading on.  Invariant: `busy` whenever one of these is set.
cdef class QueueSession(Session):
    cdef readonly Py_ssize_t unconfirmed      # messages that wait for a sync
    cdef readonly Py_ssize_t parked_bytes     # of messages that wait for room in full queues
    cdef Py_ssize_t unconfirmed_max
    cdef bint working                         # a helper thread has a command of its
    cdef bint throttled, blocked              # too much is unconfirmed, or parked
    cdef bint yielded                         # it has had its share of this turn

    # It has had its share of this turn; the next deliver() lets it go on.
    cdef int yield_turn(self) except -1
    cdef int go_on_after_turn(self) except -1
