# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport int64_t
from vibemq.broker.inflight cimport InFlight
from vibemq.net.door cimport Session


# Whoever publishes and consumes through a door: who it is, what it may do, and how much of it waits here.  Each limit
# that is passed is a reason to read nothing more of it (net/door.pxd), until it is well below that limit again.
cdef class Client:
    cdef readonly object owner        # the session, or whatever outlives one; see client.pyx
    cdef readonly object broker       # broker.parts.Broker
    cdef public str user              # "" when nobody had to log in
    cdef public object access         # access.permissions.Access; None: it is not let in yet
    cdef readonly set refusals        # (user, right, queue) of those in the log
    cdef readonly Py_ssize_t unconfirmed      # messages that wait for a sync
    cdef readonly Py_ssize_t parked_bytes     # of messages that wait for room in full queues
    cdef readonly Py_ssize_t consumers        # its subscriptions, whose acknowledgements may be what makes room
    cdef Py_ssize_t unconfirmed_max
    cdef Py_ssize_t burying           # its publishers that wait for a dead-letter queue to be made
    cdef bint parks_much
    cdef readonly unsigned int held   # reasons of net.door.Pause for which it is not read

    cdef int count_unconfirmed(self, Py_ssize_t more) except -1
    cdef int count_parked(self, Py_ssize_t more) except -1
    cdef int count_consumers(self, Py_ssize_t more) except -1
    cdef int count_burying(self, Py_ssize_t more) except -1
    # Messages for full queues are refused: too much is parked, and the pause that would hold them up is not allowed.
    cdef bint parks_no_more(self) noexcept
    # This reason holds now, or no longer.
    cdef int hold(self, unsigned int reason, bint holds) except -1
    cdef int _look_at_parked(self) except -1


# A door's session whose peer is a client of the broker.
cdef class ClientSession(Session):
    cdef readonly object door          # what all sessions of the door on this worker share
    cdef readonly Client client
    cdef public str state              # a key of the door's table of states; "closed" at the end
    cdef readonly int64_t connected_ms # since 1970
    cdef public int64_t deadline_ms    # of a handshake, of an answer that is held back; 0: none
    cdef public object at_deadline     # what happens then: (session) -> None
    cdef readonly dict publishers      # the door's own key -> broker.publisher.Publisher
    cdef object publisher_cached       # the one used last

    # It has had its share of this turn; the next deliver() lets it go on.
    cdef int yield_turn(self) except -1
    cdef int go_on_after_turn(self) except -1
    cdef bint has_confirmed_all(self) except -1
    cdef int close_publishers(self) except -1
    # Is a deadline over?  Then what was to happen has happened.
    cdef bint look_at_deadline(self, int64_t now_ms) except -1


# The same of a door to queues, whose clients acknowledge each message.
cdef class QueueSession(ClientSession):
    cdef readonly dict subscriptions   # by name; each has a `number` and leave(lost)
    cdef list by_number                # the same, or None
    cdef InFlight in_flight
    cdef bint shutting_down
