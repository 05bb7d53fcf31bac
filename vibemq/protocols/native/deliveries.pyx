# SPDX-License-Identifier: Apache-2.0
"""What a connection is subscribed to, and the writing of Delivers.

A stored message becomes a Deliver in one pass over its parts: application properties are headers, the data
is the payload.  What was not written by this door may be no JSON, which would end the read loop of
clients that parse every payload; it is then sent as a JSON string, or as base64 in one.  A message that is
larger as a Deliver than clients read is given back as undeliverable.
"""

from libc.string cimport memcmp

from vibemq.broker.consumer cimport peer_key
from vibemq.broker.messages cimport message_view
from vibemq.broker.payload cimport HEADER_TEXT_BYTES_MAX, VALUE_TEXT_BYTES, as_json, payload_of, value_of
from vibemq.net.connection cimport Connection
from vibemq.storage cimport core
from vibemq.storage.core cimport amqp_pair, amqp_pairs, bytes_store16, bytes_store32
from vibemq.protocols.native.session cimport NativeSession
from vibemq.protocols.native.wire cimport (
    FRAME_HEADER_BYTES, TYPE_DELIVER, decimal_size, frame_begin, frame_end, frame_size, header_size, json_is_valid,
    put_bytes, put_decimal, put_header, put_str16,
)

from vibemq.protocols.native.compression import compress
from vibemq.protocols.native.spec import COMPRESSION_BY_NAME

cdef enum:
    # Delivers that wait for a peer to read.  Enough for one gathering send; more only waits longer.
    OUTBOX_BYTES_MAX = 512 * 1024
    HEADERS_COUNT_MAX = 65535  # the count on the wire is a u16
    UNDELIVERABLE = 1

cdef char *ATTEMPTS = "deliveryAttempts"
cdef uint32_t ATTEMPTS_SIZE = 16
cdef char *ENCODING = "payload-encoding"
cdef uint32_t ENCODING_SIZE = 16
cdef char *BASE64 = "base64"


cdef bint is_ours(const amqp_pair *pair) noexcept:
    """A header that we write ourselves replaces the publisher's."""
    return pair.key_bytes == ATTEMPTS_SIZE and memcmp(pair.key, ATTEMPTS, ATTEMPTS_SIZE) == 0


cdef class Subscription(Consumer):
    def __init__(self, NativeSession session, bytes name, int number, uint32_t wanted):
        self.session, self.name, self.number, self.wanted = session, name, number, wanted
        self.deliveries = session.in_flight
        self.peer = peer_key(session.client.user, session.peer_address)

    cdef bint room(self) noexcept:
        cdef Connection connection = (<NativeSession> self.session).connection
        return connection.outbox_size - connection.outbox_head < OUTBOX_BYTES_MAX and not connection.closing \
            and not (<NativeSession> self.session).shutting_down

    cdef int write(self, message_view *m, const uint8_t *id, uint32_t id_size, uint32_t attempts) except -1:
        cdef NativeSession session = <NativeSession> self.session
        cdef amqp_pairs it
        cdef amqp_pair pair
        cdef char text[VALUE_TEXT_BYTES]
        cdef const uint8_t *value
        cdef uint32_t value_size = 0, payload_size = 0, count = 1
        cdef size_t headers = header_size(ATTEMPTS_SIZE, decimal_size(attempts))
        cdef size_t size
        cdef uint8_t *out
        cdef uint8_t *p
        cdef const uint8_t *payload = payload_of(m, &payload_size)
        cdef bint base64 = False
        if payload_size and not json_is_valid(payload, payload_size):
            made, base64 = as_json(payload, payload_size)
            payload, payload_size = <const uint8_t *> <char *> made, <uint32_t> len(made)
            if base64:
                headers += header_size(ENCODING_SIZE, 6)
                count += 1
        if m.is_amqp and m.amqp.application_properties_size:
            core.amqp_pairs_begin(&it, m.amqp.application_properties, m.amqp.application_properties_size)
            while core.amqp_pairs_next(&it, &pair):
                value_of(&pair, text, &value_size)
                if value_size and pair.key_bytes and pair.key_bytes <= HEADER_TEXT_BYTES_MAX and not is_ours(&pair):
                    headers += header_size(pair.key_bytes, value_size)
                    count += 1
        size = frame_size(id_size, len(self.name), payload_size, headers, session.text_layout)
        if size - FRAME_HEADER_BYTES > session.frame_max or count > HEADERS_COUNT_MAX:
            return UNDELIVERABLE
        out = session.connection.outbox_reserve(size)
        p = frame_begin(out, size, TYPE_DELIVER, id, id_size, <char *> self.name, len(self.name))
        bytes_store32(p, payload_size)
        p = put_bytes(p + 4, payload, payload_size)
        bytes_store16(p, count)
        p += 2
        if m.is_amqp and m.amqp.application_properties_size:
            core.amqp_pairs_begin(&it, m.amqp.application_properties, m.amqp.application_properties_size)
            while core.amqp_pairs_next(&it, &pair):
                value = value_of(&pair, text, &value_size)
                if value_size and pair.key_bytes and pair.key_bytes <= HEADER_TEXT_BYTES_MAX and not is_ours(&pair):
                    p = put_header(p, pair.key, pair.key_bytes, value, value_size)
        if base64:
            p = put_header(p, ENCODING, ENCODING_SIZE, BASE64, 6)
        return self._finish(session, out, p, size, attempts)

    cdef int _finish(self, NativeSession session, uint8_t *out, uint8_t *p, size_t size, uint32_t attempts) except -1:
        """The last header, and the frame is whole."""
        p = put_str16(p, ATTEMPTS, ATTEMPTS_SIZE)
        bytes_store16(p, decimal_size(attempts))
        frame_end(put_decimal(p + 2, attempts), session.text_layout)
        if session.compression is not None and size - FRAME_HEADER_BYTES >= session.compression_threshold:
            self._compress(session, out, size)
        return 0

    cdef int _compress(self, NativeSession session, uint8_t *frame, size_t size) except -1:
        """Put the compressed body in the place of the one just written, when that is shorter."""
        cdef bytes packed = compress(session.compression, (<char *> frame)[FRAME_HEADER_BYTES:size])
        if packed is None:
            return 0
        bytes_store32(frame, <uint32_t> len(packed))
        frame[4] = <uint8_t> int(COMPRESSION_BY_NAME[session.compression])
        put_bytes(frame + FRAME_HEADER_BYTES, <char *> packed, len(packed))
        session.connection.outbox_size -= size - FRAME_HEADER_BYTES - len(packed)
        return 0

    def describe(self) -> dict:
        """This subscription as the admin side shows it."""
        return {
            "subscription_id": self.number,
            "stream": self.name.decode(),
            "active": not self.dormant,
            "prefetch": self.prefetch,
            "in_flight": self.own.count,
            "properties": {},
        }

    def leave(self, bint lost):
        if self.queue is not None:
            self.queue.remove_consumer(self, lost)

    cdef int on_deleted(self) except -1:
        """The subscription lives on by name, and attaches to the queue when it is made again."""
        self.dormant = True
        (<NativeSession> self.session).dormant = True
        return 0

    cdef int failed(self, object problem) except -1:
        (<NativeSession> self.session).connection.fail(problem)
        return 0


cdef class StoredSubscription(Subscription):
    cdef int write(self, message_view *m, const uint8_t *id, uint32_t id_size, uint32_t attempts) except -1:
        cdef NativeSession session = <NativeSession> self.session
        cdef size_t headers = header_size(ATTEMPTS_SIZE, decimal_size(attempts))
        cdef size_t size = frame_size(id_size, len(self.name), m.size, headers, session.text_layout)
        cdef uint8_t *out
        cdef uint8_t *p
        if size - FRAME_HEADER_BYTES > session.read_max:
            return UNDELIVERABLE
        out = session.connection.outbox_reserve(size)
        p = frame_begin(out, size, TYPE_DELIVER, id, id_size, <char *> self.name, len(self.name))
        bytes_store32(p, m.size)
        p = put_bytes(p + 4, m.data, m.size)
        bytes_store16(p, 1)
        return self._finish(session, out, p + 2, size, attempts)
