# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from vibemq.broker.client cimport Consumer
from vibemq.broker.messages cimport LogReader, message_view
from vibemq.protocols.micromsg2.filters cimport Filter
from vibemq.protocols.micromsg2.session cimport Micromsg2Session


# Where the messages of one subscription go.  Invariant: `rest` is None or holds more than `rest_at` bytes, and then
# this is the session's `sending`.
cdef class Outlet:
    cdef Micromsg2Session session
    cdef readonly bytes destination   # as messages bear it: the peer's own word for it
    cdef public Filter filter         # None: every message
    cdef int64_t compared_ms          # when a message was compared with it last, by the loop's clock
    cdef bytes rest                   # the payload of a message that goes out in frames
    cdef size_t rest_at
    cdef int32_t rest_consumer, rest_slot   # what the last frame is remembered with
    cdef uint32_t rest_sequence

    # Write a message, or its first frame; WRITTEN, UNDELIVERABLE or UNWANTED.  What the send window remembers it by:
    # the consumer's number and its slot, which may be NO_SLOT.
    cdef int write(self, const message_view *m, int32_t consumer, int32_t slot) except -1
    # May it look at another message in this turn?  When not, its session is woken in the next.
    cdef bint has_turn(self) noexcept
    # More frames of the message that is going out, as far as there is room.
    cdef int go_on(self) except -1
    cdef int _tell_type(self, const message_view *m) except -1


# What a connection has subscribed to: a queue or a topic.
cdef class Subscription(Consumer):
    cdef Micromsg2Session session
    cdef readonly str name            # of the queue
    cdef readonly Outlet outlet
    cdef readonly bint is_auto        # settled when the socket has taken it

    cdef int settle_all(self) except -1


# Or a log that is read from a place on.
cdef class TopicReader(LogReader):
    cdef Micromsg2Session session
    cdef readonly str name
    cdef readonly Outlet outlet
    cdef readonly int32_t number      # among the connection's subscriptions
    cdef readonly bint is_plain       # the stream is no queue: other rights count
