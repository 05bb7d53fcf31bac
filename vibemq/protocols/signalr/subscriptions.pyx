# SPDX-License-Identifier: Apache-2.0
"""What a hub connection is subscribed to, reads and pulls, and its acknowledgements.

The tag of a delivery is ``sequence << 20 | slot``, below 2^53: the slot finds it among what the connection has in
flight without a search, and the sequence tells whether the slot still holds it.
"""

from vibemq.broker.client cimport NO_SLOT, UNDELIVERABLE, delivery, peer_key
from vibemq.broker.queue cimport FAILURES_REJECTED, Queue
from vibemq.broker.stream cimport Stream
from vibemq.protocols.signalr.codec cimport DIALECT_V1
from vibemq.protocols.signalr.deliveries cimport TAG_BYTES_MAX, delivery_of, item, item_of, tag_put
from vibemq.protocols.signalr.wire cimport ENCODING_JSON, decimal_put, put, varint_size

from vibemq.access.permissions import Operation
from vibemq.broker.messages import NO_MAX
from vibemq.errors import StreamNotFound
from vibemq.protocols.signalr import records, spec
from vibemq.protocols.signalr.spec import ErrorCode

cdef enum:
    SLOT_BITS = 20
    IN_FLIGHT_MAX = 1 << SLOT_BITS
    PRODUCED_ID_BYTES = 24


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
            self.head, self.tail = records.item_parts(hub.dialect, hub.encoding, call.id.decode())
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
        size = len(self.head) + number_size + len(self.middle) + head_size + of.out.size + len(self.tail)
        if size + (1 if hub.encoding == ENCODING_JSON else varint_size(size)) > self.record_max:
            return UNDELIVERABLE
        p = put(hub.record(size), <char *> self.head, len(self.head))
        p = put(put(p, number, number_size), <char *> self.middle, len(self.middle))
        p = put(put(p, head, head_size), of.out.data, of.out.size)
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
            self.call.fail(spec.hub_exception(spec.STREAMING, f"{code}: {text}", self.hub.dialect))

    def revoke(self):
        self.end(ErrorCode.NOT_AUTHORIZED, spec.lacks_right(self.hub.client.user, Operation.Subscribe.name, self.name))

    def describe(self) -> dict:
        shown = {"subscription_id": self.id, "stream": self.name, "active": True}
        if self.consumer is None:
            at = self.reader.next_offset
            return shown | {"prefetch": 0, "in_flight": 0, "next_offset": at, "properties": {"offset": str(at)}}
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

    cdef object pull                  # subscribing.Pull
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
    consumer.deliveries.slots[slot].strikes = FAILURES_REJECTED
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
                while subscription.queue is not None and subscription.own.first != NO_SLOT:
                    (<Queue> subscription.queue).settle(subscription, subscription.own.first)
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
