# SPDX-License-Identifier: Apache-2.0
"""What a hub connection is subscribed to, reads and pulls, and stored messages as hub clients get them.

A delivery is ``{tag, id, queue, body, headers?, offset, timestamp, redelivered, key?, contentType?, encoding?}``.  All
but the tag is the same for every consumer, so it is made once and copied for the rest: a thousand subscribers of one
message cost a thousand copies, behind heads that their subscriptions keep ready.  The tag is ``sequence << 20 | slot``,
below 2^53: the slot finds it among what the connection has in flight without a search, and the sequence tells whether
the slot still holds it.

`timestamp` is in milliseconds since 1970; `contentType` is left out where the body is JSON and says so.  What claims to
be JSON, or claims nothing, and is JSON, is that value.  Else, unless it claims to be bytes, what is UTF-8 is a string.
Anything else is bytes: bin in MessagePack, base64 with ``"encoding":"base64"`` in JSON.
"""

import msgspec
from libc.stdlib cimport free
from libc.string cimport memcmp, strlen
from vibemq.broker.client cimport NO_SLOT, UNDELIVERABLE, delivery, peer_key
from vibemq.broker.messages cimport MESSAGE_ID_BYTES_MAX, VALUE_TEXT_BYTES, id_of, payload_of
from vibemq.broker.queue cimport Queue
from vibemq.broker.stream cimport Stream
from vibemq.grow cimport grow
from vibemq.protocols.signalr.codec cimport DIALECT_V1
from vibemq.protocols.signalr.wire cimport (
    ENCODING_JSON, ENCODING_MESSAGEPACK, decimal_put, is_json_type, is_plain_json_type, mp_text_put,
    mp_unsigned_put, put, span_of, varint_size,
)
from vibemq.storage cimport core
from vibemq.storage.core cimport (
    AMQP_BINARY, AMQP_BOOL, AMQP_CONTENT_TYPE, AMQP_DOUBLE, AMQP_FLOAT, AMQP_GROUP_ID, AMQP_INT, AMQP_STRING,
    AMQP_SYMBOL, AMQP_TIMESTAMP, AMQP_UINT, OK, amqp_pair, amqp_pairs, amqp_value, bytes_store16, bytes_store32,
    bytes_store64, json_check, utf8_is_valid, writer_bytes,
)

from vibemq.access.permissions import Operation
from vibemq.broker.messages import NO_MAX
from vibemq.errors import StreamNotFound
from vibemq.protocols.signalr import records, spec
from vibemq.protocols.signalr.spec import ErrorCode

cdef enum:
    SLOT_BITS = 20
    IN_FLIGHT_MAX = 1 << SLOT_BITS
    PRODUCED_ID_BYTES = 24
    TAG_BYTES_MAX = 32
    MEMBER_BYTES = 32             # a name or number around what is the message's own
    BYTES_KEPT = 1 << 20          # a larger message's memory is given back
    DEPTH_MAX = 60                # of a body, which stands in an item: peers read no more than 64 levels of it all
    HEADERS_MAX = 65535           # the count is a u16

cdef enum:
    BODY_NULL, BODY_JSON, BODY_TEXT, BODY_BINARY


# A delivery without its tag, which is all of it that consumers of the same message do not share.
cdef struct item:
    int encoding
    uint64_t key, offset      # which message of which stream; 0 and 2^64-1: none
    bint redelivered
    uint8_t *data             # JSON: what follows the tag's number.  MessagePack: the pairs behind the tag's
    size_t size, capacity
    uint32_t pairs            # with the tag's


# ---- a delivery, piece by piece ----

cdef item made[2]                 # one for each encoding
made[0].offset = made[1].offset = <uint64_t> -1
made[1].encoding = ENCODING_MESSAGEPACK


cdef uint8_t *room_in(item *of, size_t size) except NULL:
    grow(&of.data, &of.capacity, of.size + size, 1)
    return of.data + of.size


cdef int add(item *of, const void *data, size_t size) except -1:
    put(room_in(of, size), data, size)
    of.size += size
    return 0


cdef int add_name(item *of, const char *name) except -1:
    cdef size_t size = strlen(name)
    cdef uint8_t *p = room_in(of, MEMBER_BYTES)
    of.pairs += 1
    if of.encoding == ENCODING_JSON:
        p = put(put(put(p, b',"', 2), name, size), b'":', 2)
    else:
        p[0] = <uint8_t> (0xA0 | size)
        p = put(p + 1, name, size)
    of.size = p - of.data
    return 0


cdef int add_number(item *of, uint64_t value) except -1:
    cdef uint8_t *p = room_in(of, MEMBER_BYTES)
    of.size = (decimal_put(p, value) if of.encoding == ENCODING_JSON else mp_unsigned_put(p, value)) - of.data
    return 0


cdef int add_flag(item *of, bint value) except -1:
    if of.encoding != ENCODING_JSON:
        return add(of, b"\xc3" if value else b"\xc2", 1)
    return add(of, b"true", 4) if value else add(of, b"false", 5)


cdef int add_bin(item *of, const uint8_t *data, uint32_t size) except -1:
    """Bytes: bin, or base64 in JSON."""
    cdef size_t most = core.JSON_BASE64_SIZE(size) if of.encoding == ENCODING_JSON else <size_t> size + 5
    cdef uint8_t *p = room_in(of, most)
    cdef writer_bytes w = core.bytes_writer(p, most)
    if of.encoding == ENCODING_JSON:
        core.json_base64_write(&w, data, size)
        p = w.at
    else:
        p[0] = 0xC6
        bytes_store32(p + 1, size)
        p = put(p + 5, data, size)
    of.size = p - of.data
    return 0


cdef int add_text(item *of, const uint8_t *text, uint32_t size) except -1:
    """A string; bytes where it is not UTF-8."""
    cdef size_t most
    cdef writer_bytes w
    if of.encoding == ENCODING_JSON:
        most = core.JSON_STRING_SIZE_MAX(size)
        w = core.bytes_writer(room_in(of, most), most)
        if core.json_string_write(&w, text, size) != OK:
            return add_bin(of, text, size)
        of.size = w.at - of.data
        return 0
    if not utf8_is_valid(text, size):
        return add_bin(of, text, size)
    of.size = mp_text_put(room_in(of, <size_t> size + 5), span_of(text, size)) - of.data
    return 0


cdef int add_value(item *of, const amqp_value *v) except -1:
    cdef char text[VALUE_TEXT_BYTES]
    cdef bint is_whole = v.kind == AMQP_INT or v.kind == AMQP_UINT or v.kind == AMQP_TIMESTAMP
    cdef bint is_real = v.kind == AMQP_FLOAT or v.kind == AMQP_DOUBLE
    cdef double real
    cdef size_t size
    cdef uint8_t *p
    if v.kind == AMQP_STRING or v.kind == AMQP_SYMBOL or v.kind == AMQP_BINARY:
        return add_text(of, v.data, v.bytes)
    if v.kind == AMQP_BOOL:
        return add_flag(of, v.truth)
    if of.encoding != ENCODING_JSON and is_whole and (v.kind == AMQP_UINT or v.integer >= 0):
        return add_number(of, v.natural)
    if of.encoding != ENCODING_JSON and (is_whole or is_real):
        p, real = room_in(of, 9), v.real
        p[0] = 0xCB if is_real else 0xD3
        bytes_store64(p + 1, (<uint64_t *> &real)[0] if is_real else <uint64_t> v.integer)
        of.size += 9
        return 0
    size = core.amqp_value_text(v, text, VALUE_TEXT_BYTES)
    if is_whole or is_real and v.real - v.real == 0:
        return add(of, text, size)
    # A UUID, or a number that JSON has no word for.
    return add_text(of, <const uint8_t *> text, <uint32_t> size)


cdef int body_kind(const uint8_t *body, uint32_t size, const amqp_value *type) noexcept:
    cdef uint64_t position = 0
    if type.bytes == 0 or is_json_type(type.data, type.bytes):
        if size == 0:
            return BODY_NULL
        if json_check(body, size, DEPTH_MAX, &position) == OK:
            return BODY_JSON
    elif type.bytes == 24 and memcmp(type.data, b"application/octet-stream", 24) == 0:
        return BODY_BINARY
    return BODY_TEXT if utf8_is_valid(body, size) else BODY_BINARY


cdef int add_body(item *of, const uint8_t *body, uint32_t size, int kind) except -1:
    cdef bytes packed
    if kind == BODY_NULL:
        return add(of, b"null", 4) if of.encoding == ENCODING_JSON else add(of, b"\xc0", 1)
    if kind == BODY_TEXT:
        return add_text(of, body, size)
    if kind == BODY_BINARY:
        return add_bin(of, body, size)
    if of.encoding == ENCODING_JSON:
        return add(of, body, size)
    try:
        packed = msgspec.msgpack.encode(msgspec.json.decode((<const char *> body)[:size]))
    except (ValueError, OverflowError, RecursionError, msgspec.MsgspecError):  # MessagePack has no form for it
        return add_text(of, body, size)
    return add(of, <char *> packed, len(packed))


cdef int add_headers(item *of, const message_view *m) except -1:
    cdef amqp_pairs it
    cdef amqp_pair pair
    cdef size_t count_at = 0
    cdef uint32_t count = 0
    core.amqp_pairs_begin(&it, m.amqp.application_properties, m.amqp.application_properties_size)
    while count < HEADERS_MAX and core.amqp_pairs_next(&it, &pair):
        if not utf8_is_valid(pair.key, pair.key_bytes) or pair.value.kind == core.AMQP_NULL \
                or pair.value.kind == core.AMQP_OTHER:
            continue
        if count == 0:
            add_name(of, b"headers")
            if of.encoding == ENCODING_JSON:
                add(of, b"{", 1)
            else:
                add(of, b"\xde\0\0", 3)
                count_at = of.size - 2
        elif of.encoding == ENCODING_JSON:
            add(of, b",", 1)
        count += 1
        add_text(of, pair.key, pair.key_bytes)
        if of.encoding == ENCODING_JSON:
            add(of, b":", 1)
        add_value(of, &pair.value)
    if count and of.encoding == ENCODING_JSON:
        add(of, b"}", 1)
    elif count:
        bytes_store16(of.data + count_at, count)
    return 0


cdef int make(item *of, const message_view *m, bytes queue, const uint8_t *id, uint32_t id_size) except -1:
    cdef amqp_value type, key
    cdef uint32_t size = 0
    cdef const uint8_t *body = payload_of(m, &size)
    cdef int kind
    if not m.is_amqp or not core.amqp_property(&m.amqp, AMQP_CONTENT_TYPE, &type) \
            or type.kind != AMQP_SYMBOL and type.kind != AMQP_STRING:
        type.bytes = 0
    kind = body_kind(body, size, &type)
    of.size, of.pairs = 0, 1
    add_name(of, b"id")
    add_text(of, id, id_size)
    add_name(of, b"queue")
    add_text(of, <const uint8_t *> <char *> queue, <uint32_t> len(queue))
    add_name(of, b"body")
    add_body(of, body, size, kind)
    if m.is_amqp and m.amqp.application_properties_size:
        add_headers(of, m)
    add_name(of, b"offset")
    add_number(of, m.offset)
    add_name(of, b"timestamp")
    add_number(of, <uint64_t> max(m.timestamp_ms, <int64_t> 0))
    add_name(of, b"redelivered")
    add_flag(of, of.redelivered)
    if m.is_amqp and core.amqp_property(&m.amqp, AMQP_GROUP_ID, &key):
        add_name(of, b"key")
        add_value(of, &key)
    if type.bytes and not is_plain_json_type(type.data, type.bytes):
        add_name(of, b"contentType")
        add_value(of, &type)
    if of.encoding != ENCODING_JSON:
        return 0
    return add(of, b',"encoding":"base64"}', 21) if kind == BODY_BINARY else add(of, b"}", 1)


cdef const item *item_of(const message_view *m, uint64_t key, bytes queue, const uint8_t *id, uint32_t id_size,
                         bint redelivered, int encoding) except NULL:
    """The worker's only one for this encoding: holds until the next call.  `key`: of the stream, as a Queue has it."""
    cdef item *of = &made[encoding]
    if of.offset == m.offset and of.key == key and of.redelivered == redelivered:
        return of
    if of.capacity > BYTES_KEPT:
        free(of.data)
        of.data, of.capacity = NULL, 0
    of.offset, of.redelivered = <uint64_t> -1, redelivered
    make(of, m, queue, id, id_size)
    of.key, of.offset = key, m.offset
    return of


cdef size_t tag_put(uint8_t *out, const item *of, uint64_t tag) noexcept:
    """What stands before the item's data in a delivery, TAG_BYTES_MAX at most; its size."""
    if of.encoding == ENCODING_JSON:
        return decimal_put(put(out, b'{"tag":', 7), tag) - out
    out[0] = <uint8_t> (0x80 + of.pairs)
    return mp_unsigned_put(put(out + 1, b"\xa3tag", 4), tag) - out


cdef bytes delivery_of(const item *of, uint64_t tag):
    cdef uint8_t head[TAG_BYTES_MAX]
    cdef size_t head_size = tag_put(head, of, tag)
    return (<char *> head)[:head_size] + (<char *> of.data)[:of.size]


def encode_delivery(bytes message not None, int encoding, *, bytes queue=b"q", uint64_t tag=1, uint64_t offset=0,
                    int64_t timestamp_ms=0, int attempts=1) -> bytes:
    """A stored message as a client gets it, for tests."""
    cdef message_view m
    cdef uint8_t text[MESSAGE_ID_BYTES_MAX]
    cdef uint32_t id_size = 0
    cdef const uint8_t *id
    m.data, m.size = <const uint8_t *> <char *> message, <uint32_t> len(message)
    m.is_amqp = core.amqp_parse(m.data, m.size, &m.amqp) == OK
    m.offset, m.timestamp_ms = offset, timestamp_ms
    id = id_of(&m, text, &id_size)
    made[encoding].offset = <uint64_t> -1
    out = delivery_of(item_of(&m, 0, queue, id, id_size, attempts > 1, encoding), tag)
    made[encoding].offset = <uint64_t> -1
    return out


# ---- where deliveries go ----


cdef class Subscription:
    """Its deliveries are items of a stream, or calls of a method of the peer's.  It ends with its call, its queue or its
    right, and gives back what its peer had not acknowledged."""

    def __init__(self, HubConnection hub, str name not None, call=None, str method=None, bint wants_result=False):
        """`call`: the stream invocation that is answered; without one `method` is called; without either it pulls."""
        self.hub, self.name, self.queue, self.call, self.wants_result = hub, name, name.encode(), call, wants_result
        self.id = next(hub.calls.numbers)
        self.record_max = hub.door.config.message_max_bytes
        self.middle = self.tail = b""
        if call is not None:
            self.head = records.item_head(hub.dialect, hub.encoding, call.id.decode())
            self.tail = b"}" if hub.encoding == ENCODING_JSON else b""
            call.on_cancel, call.on_over = call.end, self.close
        elif method is not None:
            self.has_number = wants_result or hub.dialect != DIALECT_V1  # early ids are always there, and fresh
            self.head, self.middle, self.tail = records.call_parts(
                hub.dialect, hub.encoding, has_id=self.has_number, is_answered=wants_result, target=method, queue=name)

    cdef int write(self, const message_view *m, uint64_t key, const uint8_t *id, uint32_t id_size, bint redelivered,
                   uint64_t tag) except -1:
        cdef HubConnection hub = self.hub
        cdef const item *of = item_of(m, key, self.queue, id, id_size, redelivered, hub.encoding)
        cdef uint8_t number[PRODUCED_ID_BYTES]
        cdef uint8_t head[TAG_BYTES_MAX]
        cdef size_t number_size = 0
        cdef size_t head_size = tag_put(head, of, tag)
        cdef size_t size
        cdef uint8_t *p = number + (hub.encoding != ENCODING_JSON)  # behind its length
        if self.has_number:  # of what it brings, where a result settles that
            self.called += 1
            p[0] = c"d" if self.wants_result else c"n"
            p = decimal_put(p + 1, tag if self.wants_result else self.called)
            number_size = p - number
            if hub.encoding != ENCODING_JSON:
                number[0] = <uint8_t> (0xA0 + number_size - 1)
        size = len(self.head) + number_size + len(self.middle) + head_size + of.size + len(self.tail)
        if size + (1 if hub.encoding == ENCODING_JSON else varint_size(size)) > self.record_max:
            return UNDELIVERABLE
        p = put(hub.record(size), <char *> self.head, len(self.head))
        p = put(put(p, number, number_size), <char *> self.middle, len(self.middle))
        p = put(put(p, head, head_size), of.data, of.size)
        put(p, <char *> self.tail, len(self.tail))
        return hub.written()

    def close(self):
        self.hub.subscriptions.remove(self.id)

    def end(self, code=None, str text=None):
        if self.call is None:
            self.close()
        elif code is None:
            self.call.end()
        else:
            self.call.fail(spec.stream_failed(code, text, self.hub.dialect))

    def revoke(self):
        self.end(ErrorCode.NOT_AUTHORIZED, spec.lacks_right(self.hub.client.user, Operation.Subscribe.name, self.name))

    def describe(self) -> dict:
        shown = {"subscription_id": self.id, "stream": self.name, "active": True}
        if self.consumer is None:
            return shown | {"prefetch": 0, "in_flight": 0, "properties": {"offset": str(self.reader.next_offset)}}
        acks = {"ack": "auto" if self.consumer.is_auto else "manual"}
        return shown | {"prefetch": self.consumer.prefetch, "in_flight": self.consumer.in_flight, "properties": acks}


cdef class HubSubscription(Consumer):
    def __init__(self, Subscription way not None, bint is_auto):
        """The caller adds it to its queue."""
        cdef Subscriptions all = way.hub.subscriptions
        self.way, self.is_auto, self.deliveries = way, is_auto, all.in_flight
        self.peer = peer_key(way.hub.client.user, way.hub.peer_address)
        way.consumer, all.by_id[way.id] = self, way
        if all.free_numbers:
            self.number = all.free_numbers.pop()
            all.by_number[self.number] = self
        else:
            self.number = len(all.by_number)
            all.by_number.append(self)
        if is_auto:
            all.autos.append(self)
        else:
            way.hub.client.count_consumers(1)

    cdef bint room(self) noexcept:
        return self.deliveries.count < IN_FLIGHT_MAX and self.way.hub.room()

    cdef int write(self, message_view *m, const uint8_t *id, uint32_t id_size, uint32_t attempts) except -1:
        cdef uint64_t tag = 0  # without acknowledgements
        cdef int32_t slot = self.own.last
        if slot != NO_SLOT:
            tag = <uint64_t> self.deliveries.slots[slot].sequence << SLOT_BITS | <uint64_t> slot
        return self.way.write(m, (<Queue> self.queue).key, id, id_size, attempts > 1, tag)

    cdef int sent(self) except -1:
        if self.is_auto and self.queue is not None:
            while self.own.first != NO_SLOT:
                (<Queue> self.queue).settle(self, self.own.first)
        return 0

    cdef int on_deleted(self) except -1:
        self.way.end(ErrorCode.QUEUE_NOT_FOUND, f"Queue '{self.way.name}' was deleted.")
        return 0

    cdef int failed(self, object problem) except -1:
        self.way.hub.fail(problem)
        return 0


cdef class HubReader(LogReader):
    """Of a log: nothing is acknowledged, every delivery has the tag 0."""

    def __init__(self, Subscription way not None, Stream stream not None, uint64_t offset, uint64_t most=NO_MAX,
                 bint follows=True):
        self.way = way
        super().__init__(way.hub.queues, stream, offset, most, follows)
        way.reader, way.hub.subscriptions.by_id[way.id] = self, way

    def __str__(self):
        return self.way.hub.peer

    cdef bint room(self) noexcept:
        return self.way.hub.room()

    cdef int write(self, message_view *m, const uint8_t *id, uint32_t id_size) except -1:
        return self.way.write(m, self.key, id, id_size, False, 0)

    def ended(self, problem):
        if problem is None:
            self.way.end()
        elif isinstance(problem, StreamNotFound):
            self.way.end(ErrorCode.QUEUE_NOT_FOUND, f"'{self.stream.name}' was deleted.")
        else:
            self.way.end(ErrorCode.SERVER_ERROR, "The stream cannot be read here; the broker's log says why.")

    cdef int failed(self, object problem) except -1:
        self.way.hub.fail(problem)
        return 0


# ---- messages that one call pulls: each has a consumer of its own ----


cdef class PullSubscription(Subscription):
    """Keeps a delivery, as a raw value."""

    cdef object pull                  # message_methods.Pull
    cdef readonly bytes taken

    def __init__(self, pull):
        super().__init__(pull.hub, pull.queue.name)
        self.pull = pull

    cdef int write(self, const message_view *m, uint64_t key, const uint8_t *id, uint32_t id_size, bint redelivered,
                   uint64_t tag) except -1:
        cdef const item *of = item_of(m, key, self.queue, id, id_size, redelivered, self.hub.encoding)
        taken = delivery_of(of, tag)
        if len(taken) + self.pull.adds > self.record_max:
            return UNDELIVERABLE
        if self.pull.fits(len(taken)):  # or it goes back to the queue with its consumer, once the call is answered
            self.taken = taken
            self.pull.came(taken)
        return 0


cdef class PullConsumer(HubSubscription):
    cdef bint room(self) noexcept:
        cdef PullSubscription way = <PullSubscription> self.way
        return way.taken is None and not way.pull.is_full and HubSubscription.room(self)

    cdef int on_deleted(self) except -1:
        (<PullSubscription> self.way).pull.deleted()
        return 0


# ---- all of one connection, and their acknowledgements ----


cdef int settle_one(Consumer consumer, int32_t slot, bint nack, bint requeue, int64_t delay_ms) except -1:
    cdef Queue queue = <Queue> consumer.queue
    if not nack:
        return queue.settle(consumer, slot)
    if requeue:
        return queue.give_back(consumer, slot, True, delay_ms)
    # No attempt will do better, says the peer: with all of them used up the home takes the message out of the queue.
    consumer.deliveries.slots[slot].strikes = <uint32_t> queue.options.attempts_max
    return queue.give_back(consumer, slot, False, 0)


cdef class Subscriptions:
    def __init__(self, HubConnection hub):
        self.hub, self.in_flight = hub, InFlight()
        self.by_id, self.by_number, self.free_numbers, self.autos, self.pulls = {}, [], [], [], []

    def remove(self, int64_t id):
        cdef Subscription way = self.by_id.pop(id, None)
        cdef HubSubscription consumer
        if way is None:
            return
        consumer = way.consumer
        if consumer is not None:
            if consumer.queue is not None:
                (<Queue> consumer.queue).remove_consumer(consumer, self.hub.was_lost)
            self.by_number[consumer.number] = None
            self.free_numbers.append(consumer.number)
            if consumer.is_auto:
                self.autos.remove(consumer)
            else:
                self.hub.client.count_consumers(-1)
        else:
            way.reader.close()

    def close(self):
        for id in list(self.by_id):
            self.remove(id)

    cdef int room_again(self) except -1:
        cdef Subscription way
        for way in list(self.by_id.values()):
            if not self.hub.room():
                return 0
            if way.consumer is None:
                way.reader.pump()
            elif way.consumer.stalled and way.consumer.queue is not None:
                (<Queue> way.consumer.queue).room_again(way.consumer)
        return 0

    cdef int sent(self) except -1:
        cdef HubSubscription subscription
        if self.autos:
            for subscription in self.autos:
                subscription.sent()
            self.end_pulls()
        return 0

    def keep_pull(self, PullSubscription way not None, bint is_auto):
        """It holds one delivery, and ends when that is settled; `is_auto`: when it is sent."""
        self.pulls.append(way)
        if is_auto:
            way.consumer.is_auto = True
            self.autos.append(way.consumer)
            self.hub.client.count_consumers(-1)

    cdef int end_pulls(self) except -1:
        if self.pulls:
            for way in [one for one in self.pulls if not one.consumer.in_flight]:
                self.pulls.remove(way)
                way.close()
        return 0

    def settle(self, list tags, bint multiple, bint nack, bint requeue, int64_t delay_ms) -> int:
        """Acknowledge deliveries, or give them back; how many those were.  Unknown tags are settled already."""
        cdef int64_t settled = 0
        for tag in tags:
            if 0 <= tag < 1 << 53:
                settled += settle(self, tag, multiple, nack, requeue, delay_ms)
        self.end_pulls()
        return settled


cdef int settle(Subscriptions of, int64_t tag, bint multiple, bint nack, bint requeue, int64_t delay_ms) except -1:
    """What a tag names, with `multiple` also what its subscription was handed before; how many those were."""
    cdef int32_t slot = <int32_t> (tag & (IN_FLIGHT_MAX - 1))
    cdef int32_t at, following
    cdef Consumer consumer
    cdef delivery *d
    cdef int count = 0
    if tag <= 0 or <uint32_t> slot >= of.in_flight.capacity:
        return 0
    d = &of.in_flight.slots[slot]
    if d.consumer == NO_SLOT or d.sequence != <uint64_t> tag >> SLOT_BITS:
        return 0  # it went back to the queue, or was settled, before this was on its way
    consumer = <Consumer> of.by_number[d.consumer]
    if not multiple:
        settle_one(consumer, slot, nack, requeue, delay_ms)
        return 1
    at = consumer.own.first
    while True:
        following = of.in_flight.slots[at].next
        settle_one(consumer, at, nack, requeue, delay_ms)
        count += 1
        if at == slot:
            return count
        at = following
