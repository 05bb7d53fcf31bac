# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from vibemq.broker.client cimport Consumer, QueueSession
from vibemq.broker.messages cimport LogReader, message_view
from vibemq.broker.queue_table cimport QueueTable
from vibemq.protocols.micromsg2.filters cimport Filter


# What becomes of a message that the peer sends.
cpdef enum Arrival:
    TAKEN = 0
    DUPLICATE = 1  # its number was received within the window: it is acknowledged again and dropped
    OVERRUN = 2    # the peer has a full window unacknowledged and sends on


# A delivery that waits for its acknowledgement.
cdef struct sent_message:
    int32_t consumer
    int32_t slot                   # NO_SLOT: a fragment before the last
    uint32_t slot_sequence


# A message of the peer, from its arrival until its number may come again.
cdef struct received_message:
    uint16_t number
    uint8_t state


# Invariant: `last` is the number of the newest of the `count` that are remembered, and they are numbered without gaps.
cdef class SendWindow:
    cdef readonly uint32_t size    # of the window; 0: no acknowledgements, nothing is remembered, there is always room
    cdef readonly uint32_t count   # sent and not acknowledged
    cdef readonly uint16_t last    # the number given last; 0: none yet
    cdef sent_message *ring        # the n-th message lies at n modulo capacity
    cdef uint32_t capacity
    cdef uint64_t first            # the oldest in the ring, as a count of all that was pushed

    cpdef bint has_room(self) noexcept
    # The number of the next message.  With acknowledgements the message must then be pushed.
    cpdef uint16_t next(self) noexcept
    cpdef int push(self, int32_t consumer, int32_t slot, uint32_t slot_sequence) except -1
    # How many of the oldest an acknowledgement of `number` settles; 0: none, it is late, a duplicate or was never sent.
    cpdef uint32_t covered(self, int64_t number) noexcept
    # The oldest message, which is there while `count` is not 0; it is gone with pop().
    cdef sent_message *oldest(self) noexcept
    cpdef void pop(self) noexcept


# Messages are counted from 1 by `index`.  Invariant: forgotten <= answered <= decided <= index.
cdef class ReceiveWindow:
    cdef readonly uint32_t size            # of the window; 0: no acknowledgements, every message is taken
    cdef readonly bint lenient             # for a peer whose window is its own business: only WINDOW_MAX is an overrun
    cdef readonly uint64_t index           # of the message taken last
    cdef readonly uint16_t last            # its number
    cdef received_message *ring            # the n-th message lies at n modulo capacity
    cdef uint32_t capacity
    cdef uint64_t *seen                    # a bit for each number that is remembered; NULL before the first message
    cdef uint64_t forgotten                # up to this index numbers are no longer remembered
    cdef uint64_t answered                 # up to this index the peer waits for nothing
    cdef uint64_t decided                  # up to this index everything is accepted or refused
    cdef uint64_t due                      # the message whose number the next acknowledgement bears; 0: none
    cdef uint64_t acknowledged             # that of the last one; 0: none yet
    cdef int64_t acknowledged_number
    cdef bint waits                        # the last duplicate does, for an acknowledgement that is not due yet

    cpdef int take(self, uint16_t number) except -1
    # It is accepted and durable.
    cpdef void accepted(self, uint64_t index) noexcept
    # It was refused: its number is never acknowledged by itself, only by the number of a later one that was accepted.
    cpdef void refused(self, uint64_t index) noexcept
    # The number up to which everything is decided, which from now on is acknowledged; -1: nothing new.
    cpdef int64_t acknowledge(self) noexcept
    # The answer to the duplicate that came last: the number that was acknowledged last; -1: it lies behind that one.
    cpdef int64_t again(self) noexcept
    # The number of a message that is not answered.
    cpdef uint16_t number_of(self, uint64_t index) noexcept
    cpdef bint is_full(self) noexcept
    cpdef bint is_decided(self) noexcept

    cdef bint _is_behind(self, uint16_t number) noexcept
    cdef int _remember(self, uint16_t number) except -1
    cdef void _decide(self, uint64_t index, uint8_t state) noexcept


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
    cdef bint says_held                # the peer names the messages in its program's hand
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
