# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport uint8_t
from vibemq.net.connection cimport Connection
from vibemq.net.door cimport Session
from vibemq.protocols.signalr.hub cimport HubConnection


# One way to a peer.  The records of a turn leave together at its end.
cdef class Transport:
    cdef readonly str name              # as negotiate lists it
    cdef readonly bint carries_binary
    cdef HubConnection hub
    cdef readonly Session session       # HttpSession: the socket; None between polls, and once it is gone
    cdef Connection connection          # the session's
    cdef bint wants_room                # room() said no
    cdef readonly bint over             # end() was called, or the peer has gone
    cdef readonly bint is_held          # hold() said so
    cdef list kept_waiting              # sessions with POSTs that come when the hub takes no more
    # Room for one whole record, which the caller fills.
    cdef uint8_t *reserve(self, size_t size, bint is_text) except NULL
    # May more be written?  When not: hub.subscriptions.room_again() is called once there is room.
    cdef bint room(self) noexcept
    # Read no more from the peer; or on.
    cdef int hold(self, bint holds) except -1
    # For the session: bytes that wait here and in the outbox; the end of a turn; its socket took everything.
    cdef size_t pending(self) noexcept
    cdef int seal(self) except -1
    cdef int drained(self) except -1


cdef class WebSocketTransport(Transport):
    cdef size_t open_size               # payload of the message at the end of the outbox; 0: none is open
    cdef int open_opcode


# Records that wait for something to go with.
cdef class BufferedTransport(Transport):
    cdef uint8_t *data
    cdef size_t size, capacity


cdef class EventsTransport(BufferedTransport):
    cdef bint is_chunked
    cdef bint is_binary
    cdef int _event(self) except -1


cdef class LongPollingTransport(BufferedTransport):
    cdef object sizes                   # deque of the records' sizes, where each needs a response of its own; None
    cdef bytes leaving                  # the answer that lies in a session's outbox; None
    cdef object leaver                  # that session
    cdef int _answer(self) except -1
    cdef int answer_over(self, bint was_taken) except -1
