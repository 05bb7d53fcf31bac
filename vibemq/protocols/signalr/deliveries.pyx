# SPDX-License-Identifier: Apache-2.0
"""What a hub connection is subscribed to, reads and pulls, and the writing of deliveries into its records.

A delivery is made once for all who get it (`delivery_write` in bodies.pyx) and copied behind a head that a subscription keeps ready.  Its
tag is ``sequence << 20 | slot``, below 2^53: the slot finds it among what the connection has in flight without a
search, and the sequence tells whether the slot still holds it.
"""

from vibemq.broker.consumer cimport UNDELIVERABLE, peer_key
from vibemq.broker.inflight cimport NO_SLOT, InFlight, delivery
from vibemq.broker.queue cimport Queue
from vibemq.broker.stream cimport Stream
from vibemq.protocols.signalr.codec cimport DIALECT_V1, ENCODING_JSON
from vibemq.protocols.signalr.framing cimport decimal_put, put, varint_size
from vibemq.protocols.signalr.bodies cimport delivery_size, delivery_write, item_of

from vibemq.broker.reader import NO_MAX
from vibemq.errors import StreamNotFound
from vibemq.protocols.signalr import records
from vibemq.protocols.signalr.spec import ErrorCode

cdef enum:
    SLOT_BITS = 20
    IN_FLIGHT_MAX = 1 << SLOT_BITS
    PRODUCED_ID_BYTES = 24


cdef class Outlet:
    def __init__(self, HubConnection hub, str queue not None, bytes call_id=None, str method="ReceiveMessage",
                 bint wants_result=False):
        """`call_id`: of the stream invocation that is answered; without one `method` is called."""
        self.hub, self.queue, self.call_id, self.wants_result = hub, queue.encode(), call_id, wants_result
        self.record_max = hub.door.config.message_max_bytes
        self.middle = b""
        if call_id is not None:
            self.begin = records.item_head(hub.dialect, hub.encoding, call_id.decode())
            self.end = b"}" if hub.encoding == ENCODING_JSON else b""
        else:
            self.has_number = wants_result or hub.dialect != DIALECT_V1  # early ids are always there, and fresh
            self.begin, self.middle, self.end = records.call_parts(
                hub.dialect, hub.encoding, has_id=self.has_number, is_answered=wants_result, target=method, queue=queue)

    cdef int write(self, const message_view *m, uint64_t key, const uint8_t *id, uint32_t id_size, bint redelivered,
                   uint64_t tag) except -1:
        cdef HubConnection hub = self.hub
        cdef int encoding = hub.encoding
        cdef const item *of = item_of(m, key, self.queue, id, id_size, redelivered, encoding)
        cdef uint8_t number[PRODUCED_ID_BYTES]
        cdef size_t number_size = 0
        cdef size_t size
        cdef uint8_t *p
        if self.has_number:
            number_size = self._number(number, tag)
        size = len(self.begin) + number_size + len(self.middle) + delivery_size(of, tag, encoding) + len(self.end)
        if size + (1 if encoding == ENCODING_JSON else varint_size(size)) > self.record_max:
            return UNDELIVERABLE
        p = put(hub.record(size), <char *> self.begin, len(self.begin))
        p = put(put(p, number, number_size), <char *> self.middle, len(self.middle))
        put(delivery_write(p, of, tag, encoding), <char *> self.end, len(self.end))
        hub.written()
        return 0

    cdef size_t _number(self, uint8_t *out, uint64_t tag) noexcept:
        """The id of a call, in MessagePack with its length: by what it brings, where a result settles that."""
        cdef uint8_t *p = out + (self.hub.encoding != ENCODING_JSON)
        self.called += 1
        p[0] = c"d" if self.wants_result else c"n"
        p = decimal_put(p + 1, tag if self.wants_result else self.called)
        if self.hub.encoding != ENCODING_JSON:
            out[0] = <uint8_t> (0xA0 + (p - out - 1))
        return p - out


cdef class HubSubscription(Consumer):
    def __init__(self, HubConnection hub, Outlet outlet not None, *, bint is_auto, when_deleted=None):
        """``when_deleted()`` is called when the queue is gone; the subscription has then been taken off it."""
        self.hub, self.outlet, self.is_auto = hub, outlet, is_auto
        self.number = hub.subscriptions.new_number()
        self.when_deleted = when_deleted
        self.deliveries = hub.subscriptions.in_flight
        self.peer = peer_key(hub.client.user, hub.address)

    cdef bint room(self) noexcept:
        return self.deliveries.count < IN_FLIGHT_MAX and self.hub.room()

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

    def __init__(self, HubConnection hub, str queue, pull):
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

    cdef int new_number(self) except -1:
        """Of a consumer; deliveries bear it."""
        if self.free_numbers:
            return self.free_numbers.pop()
        self.by_number.append(None)
        return len(self.by_number) - 1

    def add(self, subscribed, HubSubscription consumer):
        """`consumer`: None for one that reads a log."""
        self.by_id[subscribed.id] = subscribed
        subscribed.consumer = consumer
        if consumer is not None:
            self.by_number[consumer.number] = consumer
            if consumer.is_auto:
                self.autos.append(consumer)
            else:
                self.hub.client.count_consumers(1)

    def remove(self, int64_t id):
        cdef HubSubscription consumer
        subscribed = self.by_id.pop(id, None)
        if subscribed is None:
            return
        consumer = subscribed.consumer
        if consumer is not None:
            if consumer.queue is not None:
                (<Queue> consumer.queue).remove_consumer(consumer, self.hub.was_lost)
            self.by_number[consumer.number] = None
            self.free_numbers.append(consumer.number)
            if consumer.is_auto:
                self.autos.remove(consumer)
            else:
                self.hub.client.count_consumers(-1)
        elif subscribed.reader is not None:
            subscribed.reader.close()

    def close(self):
        for id in list(self.by_id):
            self.remove(id)

    def settle_when_sent(self, HubSubscription consumer):
        """It was handed what nobody will acknowledge."""
        consumer.is_auto = True
        self.autos.append(consumer)
        self.hub.client.count_consumers(-1)

    cdef int room_again(self) except -1:
        """Whoever had no room goes on."""
        cdef Consumer consumer
        for subscribed in list(self.by_id.values()):
            if not self.hub.room():
                return 0
            consumer = subscribed.consumer
            if consumer is None:
                subscribed.reader.pump()
            elif consumer.stalled and consumer.queue is not None:
                (<Queue> consumer.queue).room_again(consumer)
        return 0

    cdef int sent(self) except -1:
        """What was written has left: deliveries that nobody acknowledges are settled."""
        cdef HubSubscription subscription
        if self.autos:
            for subscription in self.autos:
                subscription.sent()
            self.end_pulls()
        return 0

    def add_pull(self, subscribed):
        """It holds one delivery, and ends when that is settled."""
        self.pulls.append(subscribed)

    cdef int end_pulls(self) except -1:
        if self.pulls:
            for subscribed in [one for one in self.pulls if not one.consumer.in_flight]:
                self.pulls.remove(subscribed)
                subscribed.close()
        return 0

    cdef int settle_one(self, int64_t tag, bint nack) except -1:
        cdef int count = settle(self, tag, False, nack, True, 0)
        self.end_pulls()
        return count

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
