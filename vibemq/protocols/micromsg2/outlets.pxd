# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from vibemq.broker.client cimport Consumer, QueueSession
from vibemq.broker.messages cimport LogReader, message_view
from vibemq.broker.queue_table cimport QueueTable
from vibemq.protocols.micromsg2.filters cimport Filter
from vibemq.protocols.micromsg2.window cimport SendWindow

cdef class Outlet


# What goes out of one connection.
cdef class Sender:
    cdef QueueSession session
    cdef QueueTable queues
    cdef SendWindow window
    cdef Outlet sending                # whose message has frames to come; None: there is none
    cdef const char *type_data         # the content type of the peer's serializer; NULL: payloads are opaque
    cdef uint32_t type_size
    cdef uint8_t dotnet_id             # of the extension dotnet; 0: it is not in use
    cdef bytes dotnet_type_sent
    cdef bint is_sharp                 # the peer is SharpMessaging, which reads less than the protocol allows
    cdef uint32_t payload_max          # of what such a one can read
    cdef bint has_autos                # something is settled as soon as the socket has taken it
    cdef bint has_stalled              # some subscription was told that there is no room

    # Is there room for another frame with a message?
    cdef bint may_write(self) noexcept
    # For another message.  Whoever is told that there is none is woken when there is.
    cdef bint room(self) noexcept
    cdef int write_extension(self, uint8_t id, const uint8_t *data, uint32_t size) except -1
    # All messages up to this number are settled; a number that nobody waits for is late, and means nothing.
    cdef int acknowledged(self, int64_t number) except -1
    # Send; True: there is more to send at once.
    cdef bint deliver(self) except -1
    cdef int _settle_autos(self) except -1
    cdef int _wake_stalled(self) except -1


# Where the messages of one subscription go.  A payload of more than FRAGMENT_BYTES goes out in several frames, each
# with its own number in the send window.  Where the window or the socket has no room for all of them the rest is kept,
# and nothing else is written until it has gone.  What a filter leaves out takes no room, so nothing but time bounds it:
# all filters of a worker share a part of each turn.
# Invariant: `rest` is None or holds more than `rest_at` bytes, and then this is the sender's `sending`.
cdef class Outlet:
    cdef Sender sender
    cdef readonly bytes destination   # as messages bear it: the peer's own word for it
    cdef public Filter filter         # None: every message
    cdef int64_t compared_ms          # when a message was compared with it last, by the loop's clock
    cdef bytes rest                   # the payload of a message that goes out in frames
    cdef size_t rest_at
    cdef int32_t rest_consumer, rest_slot   # what the last frame is remembered with
    cdef uint32_t rest_sequence

    cdef bint room(self) noexcept
    cdef int write(self, const message_view *m, int32_t consumer, int32_t slot) except -1
    cdef int go_on(self) except -1
    cdef int _tell_type(self, const message_view *m) except -1


# What a connection has subscribed to: a queue or a topic.
cdef class Subscription(Consumer):
    cdef readonly str name            # of the queue
    cdef readonly Outlet outlet


# Or a log that is read from a place on.
cdef class TopicReader(LogReader):
    cdef readonly str name
    cdef readonly Outlet outlet
    cdef readonly int32_t number      # among the connection's subscriptions
    cdef readonly bint is_plain       # the stream is no queue: other rights count
