# SPDX-License-Identifier: Apache-2.0
"""What a hub connection is subscribed to, what it reads and what it pulls, and the writing of deliveries into its records.

A delivery is made once for all who get it (items.pyx) and copied behind a head that a subscription keeps ready.  Its
tag is ``sequence << 20 | slot``, below 2^53: the slot finds it among what the connection has in flight without a
search, and the sequence tells whether the slot still holds it.
"""

from vibemq.broker.consumer cimport UNDELIVERABLE, peer_key
from vibemq.broker.inflight cimport NO_SLOT, delivery
from vibemq.broker.queue cimport Queue
from vibemq.broker.stream cimport Stream
from vibemq.protocols.signalr.envelope cimport DIALECT_V1, ENCODING_JSON, TYPE_INVOCATION
from vibemq.protocols.signalr.items cimport delivery_size, delivery_write, item_of
from vibemq.protocols.signalr.writers cimport (
    decimal_put, invocation_begin, invocation_end, invocation_head_size, invocation_head_write, invocation_size,
    item_begin, item_end, item_size, json_text_put, json_text_size, mp_text_put, mp_text_size, put, span_of,
    stream_item_head_size, stream_item_head_write,
)

from vibemq.broker.reader import NO_MAX
from vibemq.errors import StreamNotFound
from vibemq.protocols.signalr.spec import ErrorCode

cdef enum:
    SLOT_BITS = 20
    IN_FLIGHT_MAX = 1 << SLOT_BITS
    PRODUCED_ID_BYTES = 24


cdef class Outlet:
    def __init__(self, HubConnection hub, bytes queue not None, bytes call_id=None, bytes method=b"ReceiveMessage",
                 bint wants_result=False):
        """`call_id`: of the stream invocation that is answered; without one `method` is called."""
        self.hub, self.queue, self.call_id, self.method, self.wants_result = hub, queue, call_id, method, wants_result
        self.record_max = hub.door.config.message_max_bytes
        if call_id is not None:
            text = span_of(<char *> call_id, len(call_id))
            self.head = bytes(stream_item_head_size(hub.dialect, hub.encoding, text))
            stream_item_head_write(<uint8_t *> <char *> self.head, hub.dialect, hub.encoding, text)
        else:
            text = span_of(<char *> queue, len(queue))
            if hub.encoding == ENCODING_JSON:
                self.queue_argument = bytes(json_text_size(text))
                json_text_put(<uint8_t *> <char *> self.queue_argument, text)
            else:
                self.queue_argument = bytes(mp_text_size(text))
                mp_text_put(<uint8_t *> <char *> self.queue_argument, text)

    cdef int write(self, const message_view *m, uint64_t key, const uint8_t *id, uint32_t id_size, bint redelivered,
                   uint64_t tag) except -1:
        cdef HubConnection hub = self.hub
        cdef int encoding = hub.encoding
        cdef const item *of = item_of(m, key, self.queue, id, id_size, redelivered, encoding)
        cdef size_t payload, size, head
        cdef uint8_t *p
        if self.head is None:
            return self._call(of, tag)
        head, payload = len(self.head), delivery_size(of, tag, encoding)
        size = item_size(encoding, head, payload)
        if size > self.record_max:
            return UNDELIVERABLE
        p = item_begin(hub.record(size), encoding, head, payload)
        p = put(p, <char *> self.head, head)
        item_end(delivery_write(p, of, tag, encoding), encoding)
        hub.written()
        return 0

    cdef int _call(self, const item *of, uint64_t tag) except -1:
        """The peer's method, with the queue's name and the delivery."""
        cdef HubConnection hub = self.hub
        cdef int encoding = hub.encoding, dialect = hub.dialect
        cdef bint is_json = encoding == ENCODING_JSON
        cdef bint has_id = self.wants_result or dialect != DIALECT_V1  # early ids are always there, and fresh
        cdef uint8_t made[PRODUCED_ID_BYTES]
        cdef size_t arguments = len(self.queue_argument) + delivery_size(of, tag, encoding) + (3 if is_json else 1)
        cdef size_t head, size
        cdef uint8_t *p
        made[0] = c"d" if self.wants_result else c"n"
        if not self.wants_result:
            self.called += 1
        id = span_of(made, decimal_put(made + 1, tag if self.wants_result else self.called) - made)
        method = span_of(<char *> self.method, len(self.method))
        none = span_of(NULL, 0)
        head = invocation_head_size(dialect, encoding, has_id, id, not self.wants_result, method)
        size = invocation_size(dialect, encoding, head, arguments, none)
        if size > self.record_max:
            return UNDELIVERABLE
        p = invocation_begin(hub.record(size), dialect, encoding, head, arguments, none)
        p = invocation_head_write(p, dialect, encoding, TYPE_INVOCATION, has_id, id, not self.wants_result, method)
        p = put(p, b"[" if is_json else b"\x92", 1)
        p = put(p, <char *> self.queue_argument, len(self.queue_argument))
        p = delivery_write(put(p, b",", is_json), of, tag, encoding)
        invocation_end(put(p, b"]", is_json), dialect, encoding, none)
        hub.written()
        return 0


cdef class HubSubscription(Consumer):
    def __init__(self, HubConnection hub, int number, Outlet outlet not None, *, bint is_auto, when_deleted=None):
        """``when_deleted()`` is called when the queue is gone; the subscription has then been taken off it."""
        self.hub, self.number, self.outlet, self.is_auto = hub, number, outlet, is_auto
        self.when_deleted = when_deleted
        self.deliveries = hub.in_flight
        self.peer = peer_key(hub.user, hub.address)

    cdef bint room(self) noexcept:
        return self.hub.in_flight.count < IN_FLIGHT_MAX and self.hub.room()

    cdef int write(self, message_view *m, const uint8_t *id, uint32_t id_size, uint32_t attempts) except -1:
        cdef uint64_t tag = 0  # without acknowledgements
        cdef int32_t slot = self.own.last
        if slot != NO_SLOT:
            tag = <uint64_t> self.deliveries.slots[slot].sequence << SLOT_BITS | <uint64_t> slot
        return self.outlet.write(m, (<Queue> self.queue).key, id, id_size, attempts > 1, tag)

    cdef int sent(self) except -1:
        if self.is_auto and self.queue is not None:
            while self.own.first != NO_SLOT:
                (<Queue> self.queue).settle(self, self.own.first)
        return 0

    cdef int on_deleted(self) except -1:
        if self.when_deleted is not None:
            self.when_deleted()
        return 0

    cdef int failed(self, object problem) except -1:
        self.hub.fail(problem)
        return 0


# ---- logs that are read: nothing is acknowledged, every delivery has the tag 0 ----


cdef class HubReader(LogReader):
    def __init__(self, HubConnection hub, Stream stream not None, Outlet outlet not None, uint64_t offset,
                 uint64_t most=NO_MAX, bint follows=True, when_over=None):
        """``when_over(code, text)`` is called once when it ends by itself: None, None after the last message."""
        self.hub, self.outlet, self.when_over = hub, outlet, when_over
        super().__init__(hub.queues, stream, offset, most, follows)

    def __str__(self):
        return self.hub.peer

    cdef bint room(self) noexcept:
        return self.hub.room()

    cdef int write(self, message_view *m, const uint8_t *id, uint32_t id_size) except -1:
        return self.outlet.write(m, self.key, id, id_size, False, 0)

    def ended(self, problem):
        if self.when_over is None:
            return
        if problem is None:
            self.when_over(None, None)
        elif isinstance(problem, StreamNotFound):
            self.when_over(ErrorCode.QUEUE_NOT_FOUND, f"'{self.stream.name}' was deleted.")
        else:
            self.when_over(ErrorCode.SERVER_ERROR, "The stream cannot be read here; the broker's log says why.")

    cdef int failed(self, object problem) except -1:
        self.hub.fail(problem)
        return 0


# ---- messages that one call pulls ----


cdef class PullOutlet(Outlet):
    """Keeps a delivery, as a raw value."""

    cdef object pull
    cdef readonly bytes taken

    def __init__(self, HubConnection hub, bytes queue, pull):
        super().__init__(hub, queue)
        self.pull = pull

    cdef int write(self, const message_view *m, uint64_t key, const uint8_t *id, uint32_t id_size, bint redelivered,
                   uint64_t tag) except -1:
        cdef int encoding = self.hub.encoding
        cdef const item *of = item_of(m, key, self.queue, id, id_size, redelivered, encoding)
        cdef size_t size = delivery_size(of, tag, encoding)
        if size + <size_t> self.pull.adds > self.record_max:
            return UNDELIVERABLE
        if not self.pull.fits(size):
            return 0  # it goes back to the queue with its consumer, as soon as the call is answered
        taken = bytes(size)
        delivery_write(<uint8_t *> <char *> taken, of, tag, encoding)
        self.taken = taken
        self.pull.came(taken)
        return 0


cdef class PullConsumer(HubSubscription):
    cdef bint room(self) noexcept:
        cdef PullOutlet outlet = <PullOutlet> self.outlet
        return outlet.taken is None and not outlet.pull.is_full and HubSubscription.room(self)

    @property
    def taken(self):
        return (<PullOutlet> self.outlet).taken


# ---- acknowledging ----


cdef int settle_one(Consumer consumer, int32_t slot, bint nack, bint requeue, int64_t delay_ms) except -1:
    cdef Queue queue = <Queue> consumer.queue
    if not nack:
        return queue.settle(consumer, slot)
    if requeue:
        return queue.give_back(consumer, slot, True, delay_ms)
    # No attempt will do better, says the peer: with all of them used up the home takes the message out of the queue.
    consumer.deliveries.slots[slot].strikes = <uint32_t> queue.policy.attempts_max
    return queue.give_back(consumer, slot, False, 0)


cdef int settle(HubConnection hub, int64_t tag, bint multiple, bint nack, bint requeue, int64_t delay_ms) except -1:
    cdef int32_t slot = <int32_t> (tag & (IN_FLIGHT_MAX - 1))
    cdef int32_t at, following
    cdef Consumer consumer
    cdef delivery *d
    cdef int count = 0
    if tag <= 0 or <uint32_t> slot >= hub.in_flight.capacity:
        return 0
    d = &hub.in_flight.slots[slot]
    if d.consumer == NO_SLOT or d.sequence != <uint64_t> tag >> SLOT_BITS:
        return 0  # it went back to the queue, or was settled, before this was on its way
    consumer = <Consumer> hub.by_number[d.consumer]
    if not multiple:
        settle_one(consumer, slot, nack, requeue, delay_ms)
        return 1
    at = consumer.own.first
    while True:
        following = hub.in_flight.slots[at].next
        settle_one(consumer, at, nack, requeue, delay_ms)
        count += 1
        if at == slot:
            return count
        at = following
