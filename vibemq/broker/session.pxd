# SPDX-License-Identifier: Apache-2.0
from vibemq.net.door cimport Session


# A session of a door to queues: counts what is a reason to pause (net/door.pxd).
cdef class QueueSession(Session):
    cdef readonly Py_ssize_t unconfirmed      # messages that wait for a sync
    cdef readonly Py_ssize_t parked_bytes     # of messages that wait for room in full queues
    cdef Py_ssize_t unconfirmed_max

    # Has it subscriptions, whose acknowledgements may be what makes room?
    cdef bint consumes(self)
    # Messages for full queues are refused: too much is parked, and the pause that would hold them up is not allowed.
    cdef bint parks_no_more(self)
    # It has had its share of this turn; the next deliver() lets it go on.
    cdef int yield_turn(self) except -1
    cdef int go_on_after_turn(self) except -1
