# SPDX-License-Identifier: Apache-2.0
"""The windows of one connection, what was sent and is not acknowledged in either direction, and what goes out.

Each direction numbers its messages 1 to 65535 and then begins at 1 again; an acknowledgement settles everything up to
its number.  Our own numbers have no gaps, so where one stands follows from the number sent last.  A peer's numbers are
only tags: some go from 65535 to 0, so theirs are kept, and what counts here is the order of arrival.

Rings grow by doubling as far as the window is used, so an idle connection has none, whatever window it agreed.
"""

from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcmp, memcpy

from vibemq.broker.client cimport (
    NO_SLOT, UNDELIVERABLE, UNWANTED, WRITTEN, Consumer, QueueSession, delivery, peer_key,
)
from vibemq.broker.messages cimport LogReader, message_view, payload_of
from vibemq.broker.queue cimport Queue
from vibemq.broker.queue_table cimport QueueTable
from vibemq.broker.stream cimport Stream
from vibemq.protocols.micromsg2.properties cimport TOO_LARGE, dotnet_type_of, properties_of
from vibemq.protocols.micromsg2.wire cimport (
    FRAGMENT_BYTES, SEQUENCE_MAX, extension_frame_size, extension_frame_write, message_frame_size, message_frame_write,
)
from vibemq.storage.core cimport amqp_pair

from vibemq.protocols.micromsg2.spec import DOTNET_TYPE_NONE, WINDOW_MAX

cdef enum:
    SEEN_WORDS = (SEQUENCE_MAX + 1) // 64
    CAPACITY_FIRST = 16
    OUTBOX_BYTES_MAX = 512 * 1024          # of messages that wait for a peer to read; more only waits longer
    COMPARED_BYTES_PER_TURN = 1 << 20      # of properties, by each condition of a filter: a millisecond
    COMPARED_BYTES_MIN = 64                # what a message without properties costs

cdef enum:  # states of a received message
    WAITING
    ACCEPTED
    REFUSED

cdef uint32_t window_max = WINDOW_MAX
cdef bytes NO_TYPE = DOTNET_TYPE_NONE.encode()

# Of all filters of this worker, in the turn that began then.
cdef int64_t comparing_ms = 0
cdef uint64_t compared_bytes = 0


cdef int check_size(uint32_t size) except -1:
    if size > window_max:
        raise ValueError(f"A window of {size} messages is above {window_max}, beyond which numbers would be ambiguous.")
    return 0


cdef void *doubled(void *ring, uint32_t *capacity, size_t item_bytes, uint64_t first) except NULL:
    """A ring of twice the capacity instead of a full one, whose oldest item is `first`; each keeps its count."""
    cdef uint32_t larger = capacity[0] * 2 if capacity[0] else CAPACITY_FIRST
    cdef char *items = <char *> malloc(larger * item_bytes)
    cdef uint64_t at
    if items == NULL:
        raise MemoryError
    for at in range(first, first + capacity[0]):
        memcpy(items + (at & (larger - 1)) * item_bytes,
               <char *> ring + (at & (capacity[0] - 1)) * item_bytes, item_bytes)
    free(ring)
    capacity[0] = larger
    return items


cdef class SendWindow:
    def __cinit__(self, uint32_t size):
        check_size(size)
        self.size = size

    def __dealloc__(self):
        free(self.ring)

    def __sizeof__(self):
        return sizeof(SendWindow) + self.capacity * sizeof(sent_message)

    cpdef bint has_room(self) noexcept:
        return self.count < self.size or self.size == 0

    cpdef uint16_t next(self) noexcept:
        self.last = 1 if self.last == SEQUENCE_MAX else self.last + 1
        return self.last

    cpdef int push(self, int32_t consumer, int32_t slot, uint32_t slot_sequence) except -1:
        cdef sent_message *message
        if self.size == 0:
            return 0
        if self.count == self.capacity:
            self.ring = <sent_message *> doubled(self.ring, &self.capacity, sizeof(sent_message), self.first)
        message = &self.ring[(self.first + self.count) & (self.capacity - 1)]
        message.consumer, message.slot, message.slot_sequence = consumer, slot, slot_sequence
        self.count += 1
        return 0

    cpdef uint32_t covered(self, int64_t number) noexcept:
        cdef int64_t younger = self.last - number
        if number < 1 or number > SEQUENCE_MAX:
            return 0
        if younger < 0:
            younger += SEQUENCE_MAX
        return self.count - <uint32_t> younger if younger < self.count else 0

    cdef sent_message *oldest(self) noexcept:
        return &self.ring[self.first & (self.capacity - 1)]

    cpdef void pop(self) noexcept:
        self.first += 1
        self.count -= 1

    def peek(self):
        """The oldest message as (consumer, slot, slot_sequence); None: there is none."""
        cdef sent_message *message
        if self.count == 0:
            return None
        message = self.oldest()
        return message.consumer, message.slot, message.slot_sequence


cdef class ReceiveWindow:
    def __cinit__(self, uint32_t size, bint lenient=False):
        check_size(size)
        self.size, self.lenient = size, lenient
        self.acknowledged_number = -1

    def __dealloc__(self):
        free(self.ring)
        free(self.seen)

    def __sizeof__(self):
        return (sizeof(ReceiveWindow) + self.capacity * sizeof(received_message)
                + (SEEN_WORDS * sizeof(uint64_t) if self.seen != NULL else 0))

    cpdef int take(self, uint16_t number) except -1:
        if self.size:
            if self.seen != NULL and self.seen[number >> 6] >> (number & 63) & 1:
                self.waits = self._is_behind(number)
                return DUPLICATE
            if self.index - self.answered >= (window_max if self.lenient else self.size):
                return OVERRUN
            self._remember(number)
        self.index += 1
        self.last = number
        return TAKEN

    cdef bint _is_behind(self, uint16_t number) noexcept:
        """Is this duplicate one of those behind the last acknowledgement?

        Then that one is no answer: SharpMessaging takes a number that it does not wait for as settling everything."""
        cdef uint64_t at = self.index
        while at > self.acknowledged and at > self.forgotten:
            if self.ring[at & (self.capacity - 1)].number == number:
                return True
            at -= 1
        return False

    cdef int _remember(self, uint16_t number) except -1:
        """As many numbers as the window has, and all that are not answered."""
        cdef received_message *message
        cdef uint16_t old
        while self.index - self.forgotten >= self.size and self.forgotten < self.answered:
            self.forgotten += 1
            old = self.ring[self.forgotten & (self.capacity - 1)].number
            self.seen[old >> 6] &= ~(<uint64_t> 1 << (old & 63))
        if self.seen == NULL:
            self.seen = <uint64_t *> calloc(SEEN_WORDS, sizeof(uint64_t))
            if self.seen == NULL:
                raise MemoryError
        if self.index - self.forgotten == self.capacity:
            self.ring = <received_message *> doubled(self.ring, &self.capacity, sizeof(received_message),
                                                     self.forgotten + 1)
        message = &self.ring[(self.index + 1) & (self.capacity - 1)]
        message.number, message.state = number, WAITING
        self.seen[number >> 6] |= <uint64_t> 1 << (number & 63)
        return 0

    cpdef void accepted(self, uint64_t index) noexcept:
        self._decide(index, ACCEPTED)

    cpdef void refused(self, uint64_t index) noexcept:
        self._decide(index, REFUSED)

    cdef void _decide(self, uint64_t index, uint8_t state) noexcept:
        cdef received_message *message
        if self.size == 0 or index <= self.decided or index > self.index:
            return
        self.ring[index & (self.capacity - 1)].state = state
        while self.decided < self.index:
            message = &self.ring[(self.decided + 1) & (self.capacity - 1)]
            if message.state == WAITING:
                break
            self.decided += 1
            if message.state == ACCEPTED:
                self.due = self.decided
        if self.due == 0:
            self.answered = self.decided

    cpdef int64_t acknowledge(self) noexcept:
        if self.due == 0:
            return -1
        self.acknowledged_number = self.ring[self.due & (self.capacity - 1)].number
        self.acknowledged, self.due, self.answered = self.due, 0, self.decided
        return self.acknowledged_number

    cpdef int64_t again(self) noexcept:
        return -1 if self.waits else self.acknowledged_number

    cpdef uint16_t number_of(self, uint64_t index) noexcept:
        return self.ring[index & (self.capacity - 1)].number if self.forgotten < index <= self.index else 0

    @property
    def unacknowledged(self) -> int:
        """How many messages were taken for which the peer still waits."""
        return self.index - self.answered if self.size else 0

    cpdef bint is_full(self) noexcept:
        return self.size != 0 and self.index - self.answered >= self.size

    cpdef bint is_decided(self) noexcept:
        return self.size == 0 or self.decided == self.index


# ---- out ----


cdef class Sender:
    def __init__(self, QueueSession session not None, QueueTable queues not None):
        self.session, self.queues, self.window = session, queues, SendWindow(0)
        self.payload_max = <uint32_t> -1

    cdef bint may_write(self) noexcept:
        return self.window.has_room() and not self.session.connection.closing \
            and self.session.connection.outbox_size - self.session.connection.outbox_head < OUTBOX_BYTES_MAX

    cdef bint room(self) noexcept:
        cdef bint room = self.sending is None and self.may_write() and not self.session.shutting_down
        self.has_stalled |= not room
        return room

    cdef int write_extension(self, uint8_t id, const uint8_t *data, uint32_t size) except -1:
        extension_frame_write(self.session.connection.outbox_reserve(extension_frame_size(size)), id, data, size)
        return 0

    cdef int acknowledged(self, int64_t number) except -1:
        cdef uint32_t count = self.window.covered(number)
        cdef sent_message s
        cdef delivery *d
        cdef Consumer consumer
        if count:
            self.session.connection.want_turn()  # whoever had no room has some now
        while count:
            s = self.window.oldest()[0]
            self.window.pop()
            count -= 1
            if s.slot == NO_SLOT:
                continue
            d = &self.session.in_flight.slots[s.slot]
            if d.consumer != NO_SLOT and d.sequence == s.slot_sequence:  # else it has gone back to the queue
                consumer = <Consumer> self.session.by_number[d.consumer]
                (<Queue> consumer.queue).settle(consumer, s.slot)
        return 0

    def hold(self, int64_t number):
        """Note that the peer's program holds the message of this number."""
        cdef uint32_t count = self.window.covered(number)
        cdef sent_message s
        cdef delivery *d
        self.says_held = True
        if not count:
            return
        s = self.window.ring[(self.window.first + count - 1) & (self.window.capacity - 1)]
        if s.slot == NO_SLOT:
            return
        d = &self.session.in_flight.slots[s.slot]
        if d.consumer != NO_SLOT and d.sequence == s.slot_sequence:  # else it has gone back to the queue
            d.held = True

    cdef bint deliver(self) except -1:
        cdef bint more = False
        cdef Outlet outlet
        if self.sending is not None:
            outlet = self.sending  # its subscription may be gone, and then nobody else holds it
            outlet.go_on()
        if self.session.connection.flush():
            if self.has_autos and self.sending is None:
                self._settle_autos()
            more = self.sending is not None and self.may_write()
        if self.has_stalled and self.room():
            self._wake_stalled()
        return more

    cdef int _settle_autos(self) except -1:
        """Without acknowledgements a message counts as delivered once the socket has taken it."""
        cdef Consumer consumer
        self.has_autos = False
        for subscription in list(self.session.subscriptions.values()):
            if isinstance(subscription, Subscription):
                consumer = <Consumer> subscription
                while consumer.queue is not None and consumer.own.first != NO_SLOT:
                    (<Queue> consumer.queue).settle(consumer, consumer.own.first)
        return 0

    cdef int _wake_stalled(self) except -1:
        cdef Consumer consumer
        self.has_stalled = False
        for subscription in list(self.session.subscriptions.values()):
            if isinstance(subscription, LogReader):
                if (<LogReader> subscription).stalled:
                    (<LogReader> subscription).pump()
                continue
            consumer = <Consumer> subscription
            if consumer.stalled and consumer.queue is not None:
                (<Queue> consumer.queue).room_again(consumer)
        return 0


cdef class Outlet:
    def __init__(self, Sender sender not None, bytes destination not None, filter):
        self.sender, self.destination, self.filter = sender, destination, filter
        self.compared_ms = sender.queues.now_ms  # who subscribes again and again gets no more for it

    cdef bint room(self) noexcept:
        """May it look at another message in this turn, and write it?  When not, its subscription is woken when it may.

        One message a turn is always looked at: who comes last among many gets on as well."""
        global comparing_ms, compared_bytes
        cdef int64_t now_ms = self.sender.queues.now_ms
        if comparing_ms != now_ms:
            comparing_ms, compared_bytes = now_ms, 0
        if self.filter is None or compared_bytes < COMPARED_BYTES_PER_TURN or self.compared_ms != now_ms:
            return self.sender.room()
        self.sender.has_stalled = True
        self.sender.session.connection.want_turn()
        return False

    cdef int write(self, const message_view *m, int32_t consumer, int32_t slot) except -1:
        """Write a message, or its first frame; WRITTEN, UNDELIVERABLE or UNWANTED.

        The send window remembers it by the consumer's number and its slot, which may be NO_SLOT."""
        global compared_bytes
        cdef Sender sender = self.sender
        cdef uint32_t properties_size = 0, payload_size = 0, sequence = 0
        cdef const uint8_t *properties
        cdef const uint8_t *payload
        cdef uint8_t *out
        if self.filter is not None:
            self.compared_ms = sender.queues.now_ms
            compared_bytes += COMPARED_BYTES_MIN
            if m.is_amqp:
                compared_bytes += <uint64_t> self.filter.count * m.amqp.application_properties_size
            if not self.filter.matches(m):
                return UNWANTED
        payload = payload_of(m, &payload_size)
        properties = properties_of(m, sender.type_data, sender.type_size, sender.dotnet_id != 0, sender.is_sharp,
                                   &properties_size)
        if payload_size > sender.payload_max or properties_size == TOO_LARGE:
            return UNDELIVERABLE
        if sender.dotnet_id:
            self._tell_type(m)
        if slot != NO_SLOT:
            sequence = sender.session.in_flight.slots[slot].sequence
        if payload_size > FRAGMENT_BYTES:
            self.rest, self.rest_at = (<const char *> payload)[:payload_size], FRAGMENT_BYTES
            self.rest_consumer, self.rest_slot, self.rest_sequence = consumer, slot, sequence
            sender.sending = self
            payload_size, slot = FRAGMENT_BYTES, NO_SLOT
        out = sender.session.connection.outbox_reserve(
            message_frame_size(len(self.destination), properties_size, payload_size))
        message_frame_write(out, sender.window.next(), <const char *> self.destination, len(self.destination),
                            properties, properties_size, payload, payload_size, self.rest is not None)
        sender.window.push(consumer, slot, sequence)
        return WRITTEN

    cdef int _tell_type(self, const message_view *m) except -1:
        """The .NET type of the next message, where it is not that of the last one."""
        cdef Sender sender = self.sender
        cdef bytes last = sender.dotnet_type_sent
        cdef amqp_pair type
        if not dotnet_type_of(m, &type):
            if last is None:
                return 0
            type.value.data, type.value.bytes = <const uint8_t *> <const char *> NO_TYPE, <uint32_t> len(NO_TYPE)
        if last is None or <uint32_t> len(last) != type.value.bytes \
                or memcmp(<const char *> last, type.value.data, type.value.bytes) != 0:
            sender.dotnet_type_sent = (<const char *> type.value.data)[:type.value.bytes]
            sender.write_extension(sender.dotnet_id, type.value.data, type.value.bytes)
        return 0

    cdef int go_on(self) except -1:
        """More frames of the message that is going out, as far as there is room."""
        cdef Sender sender = self.sender
        cdef size_t size
        cdef bint is_last
        cdef uint8_t *out
        while self.rest is not None and sender.may_write():
            size = min(<size_t> len(self.rest) - self.rest_at, <size_t> FRAGMENT_BYTES)
            is_last = self.rest_at + size == <size_t> len(self.rest)
            out = sender.session.connection.outbox_reserve(message_frame_size(0, 0, size))
            message_frame_write(out, sender.window.next(), NULL, 0, NULL, 0, <const char *> self.rest + self.rest_at,
                                size, not is_last)
            sender.window.push(self.rest_consumer, self.rest_slot if is_last else NO_SLOT, self.rest_sequence)
            self.rest_at += size
            if is_last:
                self.rest = sender.sending = None
        return 0


cdef dict described(int number, str name, bint active, properties, prefetch=0, in_flight=0):
    """A subscription as the admin side shows it."""
    return {"subscription_id": number, "stream": name, "active": active, "prefetch": prefetch, "in_flight": in_flight,
            "properties": properties}


cdef class Subscription(Consumer):
    def __init__(self, str name, Outlet outlet not None, int number):
        cdef QueueSession session = outlet.sender.session
        self.name, self.outlet, self.number, self.deliveries = name, outlet, number, session.in_flight
        self.peer = peer_key(session.client.user, session.peer_address)

    def __str__(self):
        return self.outlet.sender.session.peer

    def leave(self, bint lost):
        self.says_held = self.outlet.sender.says_held
        if self.queue is not None:
            self.queue.remove_consumer(self, lost)

    cdef bint room(self) noexcept:
        return self.outlet.room()

    cdef int write(self, message_view *m, const uint8_t *id, uint32_t id_size, uint32_t attempts) except -1:
        if self.outlet.sender.window.size == 0:
            self.outlet.sender.has_autos = True
        return self.outlet.write(m, self.number, self.own.last)

    def describe(self) -> dict:
        properties = {"filter": self.outlet.filter.text} if self.outlet.filter is not None else {}
        return described(self.number, self.name, self.queue is not None, properties, self.prefetch, self.own.count)

    cdef int on_deleted(self) except -1:
        self.outlet.sender.session.subscription_ended(self, None)
        return 0

    cdef int failed(self, object problem) except -1:
        self.outlet.sender.session.fail(problem)
        return 0


cdef class TopicReader(LogReader):
    def __init__(self, str name, Outlet outlet not None, int number, Stream stream, uint64_t offset, bint is_plain):
        self.name, self.outlet, self.number, self.is_plain = name, outlet, number, is_plain
        super().__init__(outlet.sender.queues, stream, offset)

    def __str__(self):
        return self.outlet.sender.session.peer

    def leave(self, bint lost):
        self.close()

    cdef bint room(self) noexcept:
        return self.outlet.room()

    cdef int write(self, message_view *m, const uint8_t *id, uint32_t id_size) except -1:
        return self.outlet.write(m, self.number, NO_SLOT)

    def describe(self) -> dict:
        at = self.next_offset
        return described(self.number, self.name, True, {"offset": str(at)}) | {"next_offset": at}

    def ended(self, problem):
        self.outlet.sender.session.subscription_ended(self, problem)

    cdef int failed(self, object problem) except -1:
        self.outlet.sender.session.fail(problem)
        return 0
