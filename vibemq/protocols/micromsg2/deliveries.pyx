# SPDX-License-Identifier: Apache-2.0
"""What a connection has subscribed to, and the writing of MESSAGE frames.

A payload of more than FRAGMENT_BYTES goes out in several frames, each with its own number in the send window.  Where the
window or the socket has no room for all of them the rest is kept, and nothing else is written until it has gone.
"""

from libc.string cimport memcmp

from vibemq.broker.consumer cimport UNDELIVERABLE, UNWANTED, WRITTEN
from vibemq.broker.inflight cimport NO_SLOT
from vibemq.broker.payload cimport payload_of
from vibemq.broker.queue cimport Queue
from vibemq.net.connection cimport Connection
from vibemq.protocols.micromsg2.properties cimport dotnet_type_of, properties_of
from vibemq.protocols.micromsg2.wire cimport (
    FRAGMENT_BYTES, extension_frame_size, extension_frame_write, message_frame_size, message_frame_write,
)

from vibemq.protocols.micromsg2.spec import DOTNET_TYPE_NONE

cdef enum:
    PROPERTIES_BYTES_MAX = 65535

cdef bytes NO_TYPE = DOTNET_TYPE_NONE.encode()


cdef class Subscription(Consumer):
    def __init__(self, Micromsg2Session session, str name, bytes destination, int number, filter, bint is_auto):
        self.session, self.name, self.destination, self.number = session, name, destination, number
        self.filter, self.is_auto = filter, is_auto
        self.deliveries = session.in_flight

    def select(self, filter):
        """From now on by this filter."""
        self.filter = filter

    cdef bint room(self) noexcept:
        return self.session.room()

    cdef int write(self, message_view *m, const uint8_t *id, uint32_t id_size, uint32_t attempts) except -1:
        cdef Micromsg2Session session = self.session
        cdef uint32_t properties_size = 0, payload_size = 0, sequence = 0
        cdef int32_t slot = self.own.last
        cdef const uint8_t *properties
        cdef const uint8_t *payload
        cdef uint8_t *out
        if self.filter is not None and not self.filter.matches(m):
            return UNWANTED
        payload = payload_of(m, &payload_size)
        if payload_size > session.payload_max:
            return UNDELIVERABLE
        if session.dotnet_id:
            self._tell_type(m)
        properties = properties_of(m, session.type_data, session.type_size, session.dotnet_id != 0, session.is_sharp,
                                   &properties_size)
        if properties_size > PROPERTIES_BYTES_MAX:
            return UNDELIVERABLE
        if slot != NO_SLOT:
            sequence = self.deliveries.slots[slot].sequence
        session.has_autos |= self.is_auto
        if payload_size > FRAGMENT_BYTES:
            self.rest, self.rest_at = (<const char *> payload)[:payload_size], FRAGMENT_BYTES
            self.rest_slot, self.rest_sequence = slot, sequence
            session.sending = self
            payload_size, slot = FRAGMENT_BYTES, NO_SLOT
        out = session.connection.outbox_reserve(message_frame_size(len(self.destination), properties_size, payload_size))
        message_frame_write(out, session.sent.next(), <const char *> self.destination, len(self.destination), properties,
                            properties_size, payload, payload_size, self.rest is not None)
        session.sent.push(self.number, slot, sequence)
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
            session.sent.push(self.number, self.rest_slot if is_last else NO_SLOT, self.rest_sequence)
            self.rest_at += size
            if is_last:
                self.rest = session.sending = None
        return 0

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
            "properties": {},
        }

    cdef int on_deleted(self) except -1:
        self.session.lost_queue(self)
        return 0

    cdef int failed(self, object problem) except -1:
        self.session.fail(problem)
        return 0
