# SPDX-License-Identifier: Apache-2.0
"""What a connection has subscribed to, and the writing of MESSAGE frames.

A payload of more than FRAGMENT_BYTES goes out in several frames, each with its own number in the send window.  Where the
window or the socket has no room for all of them the rest is kept, and nothing else is written until it has gone.

What filters leave out takes no room, so nothing but time bounds it: all filters of a worker share a part of each turn.
"""

from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memcmp

from vibemq.broker.client cimport NO_SLOT, UNDELIVERABLE, UNWANTED, WRITTEN, peer_key
from vibemq.broker.messages cimport payload_of
from vibemq.broker.queue cimport Queue
from vibemq.broker.stream cimport Stream
from vibemq.protocols.micromsg2.properties cimport TOO_LARGE, dotnet_type_of, properties_of
from vibemq.protocols.micromsg2.wire cimport (
    FRAGMENT_BYTES, extension_frame_size, extension_frame_write, message_frame_size, message_frame_write,
)

from vibemq.protocols.micromsg2.spec import DOTNET_TYPE_NONE

cdef enum:
    COMPARED_BYTES_PER_TURN = 1 << 20      # of properties, by each condition of a filter: a millisecond
    COMPARED_BYTES_MIN = 64                # what a message without properties costs

cdef bytes NO_TYPE = DOTNET_TYPE_NONE.encode()

# Of all filters of this worker, in the turn that began then.
cdef int64_t comparing_ms = 0
cdef uint64_t compared_bytes = 0


cdef class Outlet:
    def __init__(self, Micromsg2Session session not None, bytes destination not None, filter):
        self.session, self.destination, self.filter = session, destination, filter
        self.compared_ms = session.queues.now_ms  # who subscribes again and again gets no more for it

    cdef bint has_turn(self) noexcept:
        """One message a turn is always looked at: who comes last among many gets on as well."""
        global comparing_ms, compared_bytes
        cdef int64_t now_ms = self.session.queues.now_ms
        if comparing_ms != now_ms:
            comparing_ms, compared_bytes = now_ms, 0
        if self.filter is None or compared_bytes < COMPARED_BYTES_PER_TURN or self.compared_ms != now_ms:
            return True
        self.session.has_stalled = True
        self.session.connection.want_turn()
        return False

    cdef int write(self, const message_view *m, int32_t consumer, int32_t slot) except -1:
        global compared_bytes
        cdef Micromsg2Session session = self.session
        cdef uint32_t properties_size = 0, payload_size = 0, sequence = 0
        cdef const uint8_t *properties
        cdef const uint8_t *payload
        cdef uint8_t *out
        if self.filter is not None:
            self.compared_ms = session.queues.now_ms
            compared_bytes += COMPARED_BYTES_MIN
            if m.is_amqp:
                compared_bytes += <uint64_t> self.filter.count * m.amqp.application_properties_size
            if not self.filter.matches(m):
                return UNWANTED
        payload = payload_of(m, &payload_size)
        properties = properties_of(m, session.type_data, session.type_size, session.dotnet_id != 0, session.is_sharp,
                                   &properties_size)
        if payload_size > session.payload_max or properties_size == TOO_LARGE:
            return UNDELIVERABLE
        if session.dotnet_id:
            self._tell_type(m)
        if slot != NO_SLOT:
            sequence = session.in_flight.slots[slot].sequence
        if payload_size > FRAGMENT_BYTES:
            self.rest, self.rest_at = (<const char *> payload)[:payload_size], FRAGMENT_BYTES
            self.rest_consumer, self.rest_slot, self.rest_sequence = consumer, slot, sequence
            session.sending = self
            payload_size, slot = FRAGMENT_BYTES, NO_SLOT
        out = session.connection.outbox_reserve(message_frame_size(len(self.destination), properties_size, payload_size))
        message_frame_write(out, session.sent.next(), <const char *> self.destination, len(self.destination), properties,
                            properties_size, payload, payload_size, self.rest is not None)
        session.sent.push(consumer, slot, sequence)
        return WRITTEN

    cdef int _tell_type(self, const message_view *m) except -1:
        """The .NET type of the next message, where it is not that of the last one."""
        cdef Micromsg2Session session = self.session
        cdef bytes last = session.dotnet_type_sent
        cdef uint32_t size = 0
        cdef const uint8_t *type = dotnet_type_of(m, &size)
        if size == 0:
            if last is None:
                return 0
            type, size = <const uint8_t *> <const char *> NO_TYPE, <uint32_t> len(NO_TYPE)
        if last is not None and <uint32_t> len(last) == size and memcmp(<const char *> last, type, size) == 0:
            return 0
        session.dotnet_type_sent = (<const char *> type)[:size]
        extension_frame_write(session.connection.outbox_reserve(extension_frame_size(size)), session.dotnet_id, type, size)
        return 0

    cdef int go_on(self) except -1:
        cdef Micromsg2Session session = self.session
        cdef size_t size
        cdef bint is_last
        cdef uint8_t *out
        while self.rest is not None and session.may_write():
            size = min(<size_t> len(self.rest) - self.rest_at, <size_t> FRAGMENT_BYTES)
            is_last = self.rest_at + size == <size_t> len(self.rest)
            out = session.connection.outbox_reserve(message_frame_size(0, 0, size))
            message_frame_write(out, session.sent.next(), NULL, 0, NULL, 0, <const char *> self.rest + self.rest_at, size,
                                not is_last)
            session.sent.push(self.rest_consumer, self.rest_slot if is_last else NO_SLOT, self.rest_sequence)
            self.rest_at += size
            if is_last:
                self.rest = session.sending = None
        return 0


cdef class Subscription(Consumer):
    def __init__(self, Micromsg2Session session, str name, Outlet outlet not None, int number, bint is_auto):
        self.session, self.name, self.outlet, self.number, self.is_auto = session, name, outlet, number, is_auto
        self.deliveries = session.in_flight
        self.peer = peer_key(session.client.user, session.peer_address)

    def __str__(self):
        return self.session.peer

    def leave(self, bint lost):
        if self.queue is not None:
            self.queue.remove_consumer(self, lost)

    cdef bint room(self) noexcept:
        return self.outlet.has_turn() and self.session.room()

    cdef int write(self, message_view *m, const uint8_t *id, uint32_t id_size, uint32_t attempts) except -1:
        self.session.has_autos |= self.is_auto
        return self.outlet.write(m, self.number, self.own.last)

    cdef int settle_all(self) except -1:
        """The socket has taken all that was written."""
        while self.queue is not None and self.own.first != NO_SLOT:
            (<Queue> self.queue).settle(self, self.own.first)
        return 0

    def describe(self) -> dict:
        """This subscription as the admin side shows it."""
        return {
            "subscription_id": self.number,
            "stream": self.name,
            "active": self.queue is not None,
            "prefetch": self.prefetch,
            "in_flight": self.own.count,
            "properties": {"filter": self.outlet.filter.text} if self.outlet.filter is not None else {},
        }

    cdef int on_deleted(self) except -1:
        self.session.subscription_ended(self, None)
        return 0

    cdef int failed(self, object problem) except -1:
        self.session.fail(problem)
        return 0


cdef class TopicReader(LogReader):
    def __init__(self, Micromsg2Session session, str name, Outlet outlet not None, int number, Stream stream,
                 uint64_t offset, bint is_plain):
        self.session, self.name, self.outlet, self.number, self.is_plain = session, name, outlet, number, is_plain
        super().__init__(session.queues, stream, offset)

    def __str__(self):
        return self.session.peer

    cdef bint room(self) noexcept:
        return self.outlet.has_turn() and self.session.room()

    cdef int write(self, message_view *m, const uint8_t *id, uint32_t id_size) except -1:
        return self.outlet.write(m, self.number, NO_SLOT)

    def leave(self, bint lost):
        self.close()

    def describe(self) -> dict:
        return {
            "subscription_id": self.number,
            "stream": self.name,
            "active": True,
            "prefetch": 0,
            "in_flight": 0,
            "properties": {"offset": str(self.next_offset)},
        }

    def ended(self, problem):
        self.session.subscription_ended(self, problem)

    cdef int failed(self, object problem) except -1:
        self.session.fail(problem)
        return 0
