# SPDX-License-Identifier: Apache-2.0
"""A client of the broker, whatever door it came through: who it is, what it may do, how much of it waits, and when it is
read on.

Its owner, the session or what outlives one, has a `peer` (for the log), `ending`, ``hold(reason, holds)``, ``fail``,
``send_off(why)`` (an admission.Ended) and ``rights_changed()``.  What is decided about a client is in admission.py.

It is not read while too much of what it sent waits here, while a helper thread works on its last command, or after its
share of a turn.  Each limit goes on well below itself, so nothing flutters.  A disk or memory alarm is no such reason:
a client may also consume, and its acknowledgements make room; its publishes are refused (admission.py).
"""

import logging
import os
import time
import zlib
from itertools import islice

from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcmp, memcpy

from vibemq.broker.messages cimport MESSAGE_ID_BYTES_MAX, id_of
from vibemq.broker.queue cimport FAILURES_UNREADABLE, MODE_FAN_OUT_WITH_ACK, MODE_FAN_OUT_WITHOUT_ACK, Queue
from vibemq.grow cimport grow
from vibemq.net.connection cimport Connection
from vibemq.net.door cimport PAUSE_COMMAND, PAUSE_PARKED, PAUSE_RATE, PAUSE_TURN, PAUSE_UNCONFIRMED
from vibemq.storage cimport core
from vibemq.storage.core cimport ERR_NOT_CACHED, OK, err, fault
from vibemq.storage.log cimport storage_error
from vibemq.storage.meters cimport METER_DELIVER_QUEUE, Meters
from vibemq.storage.shm cimport Usage

from vibemq.net.hosts import host_of
from vibemq.once_a_minute import OnceAMinute
from vibemq.storage.vhosts import DEFAULT_VHOST

logger = logging.getLogger(__name__)
failing = OnceAMinute(logger)

cdef enum:
    CAPACITY_FIRST = 64
    PARKED_BYTES_MAX = 16 << 20   # before full queues
    DESCRIBED_MAX = 128           # publishers, and subscriptions, of one connection: about a microsecond each


cdef class Client:
    def __init__(self, owner, broker, Py_ssize_t unconfirmed_max):
        self.owner, self.broker, self.unconfirmed_max = owner, broker, unconfirmed_max
        self.user, self.counted = "", ()

    cdef int count_unconfirmed(self, Py_ssize_t more) except -1:
        """Not read while too much waits for a sync; on at three quarters of the limit."""
        self.unconfirmed += more
        if self.unconfirmed >= self.unconfirmed_max:
            self.hold(PAUSE_UNCONFIRMED, True)
        elif self.unconfirmed * 4 <= self.unconfirmed_max * 3:
            self.hold(PAUSE_UNCONFIRMED, False)
        return 0

    cdef int count_parked(self, Py_ssize_t more) except -1:
        self.parked_bytes += more
        return self._look_at_parked()

    cdef int count_consumers(self, Py_ssize_t more) except -1:
        self.consumers += more
        return self._look_at_parked()

    cdef int _look_at_parked(self) except -1:
        """Not read while too much is parked before full queues; on with half of that.

        But who consumes is always read: its acknowledgements may be what makes room."""
        self.parks_much = self.parked_bytes > (PARKED_BYTES_MAX // 2 if self.parks_much else PARKED_BYTES_MAX)
        return self.hold(PAUSE_PARKED, self.parks_much and not self.consumers)

    cdef bint parks_no_more(self) noexcept:
        return self.parked_bytes > PARKED_BYTES_MAX and self.consumers > 0

    cdef int count_burying(self, Py_ssize_t more) except -1:
        self.burying += more
        return self.hold(PAUSE_COMMAND, self.burying > 0)

    def meter(self, Usage usage, meters):
        """What it publishes is counted from now on for these: (row, number of the rate, messages a second)."""
        self.meters, self.usage = 0, usage
        for row, change, rate in meters[:METERS_MAX]:
            self.rates[self.meters].row = row
            self.rates[self.meters].change = change
            self.rates[self.meters].message_us = 1e6 / rate
            self.rates[self.meters].left_us = 0
            self.meters += 1
        self.spend(0)  # an old limit holds it no longer

    def stop_metering(self):
        self.meters = 0
        if self.rate_timer is not None:
            self.rate_timer.end()
            self.rate_timer = None

    cdef int spend(self, uint64_t count) except -1:
        cdef uint64_t now_us = time.monotonic_ns() // 1000, wait_us = 0, cost_us
        cdef meter_of *rate
        cdef int i
        for i in range(self.meters):
            rate = &self.rates[i]
            rate.left_us += count * rate.message_us
            cost_us = <uint64_t> rate.left_us
            rate.left_us -= cost_us
            wait_us = max(wait_us, self.usage.spend(rate.row, rate.change, cost_us, now_us))
        return self._hold_for(wait_us, now_us)

    cdef int _hold_for(self, uint64_t wait_us, uint64_t now_us) except -1:
        """Not read until what was published is paid for."""
        if not wait_us:
            return self.hold(PAUSE_RATE, False)
        if self.rate_timer is None:
            self.rate_timer = self.broker.timers.timer(self._paid)
        self.rate_timer.set((now_us + wait_us) // 1000 + 1)
        return self.hold(PAUSE_RATE, True)

    def _paid(self, now_ms):
        """Unless others of the same user have published meanwhile."""
        self.spend(0)

    cdef int hold(self, unsigned int reason, bint holds) except -1:
        if holds != (self.held & reason != 0):
            self.held ^= reason
            self.owner.hold(reason, holds)
        return 0


cdef class ClientSession(Session):
    def __init__(self, Connection connection, door):
        super().__init__(connection)
        self.door, self.client = door, Client(self, door.broker, door.config.unconfirmed_max)
        self.publishers = {}
        self.connected_ms = time.time_ns() // 1_000_000

    cdef int yield_turn(self) except -1:
        if not self.pauses & PAUSE_TURN:
            self.pause(PAUSE_TURN)
            self.connection.want_turn()
        return 0

    cdef int go_on_after_turn(self) except -1:
        if self.pauses & PAUSE_TURN:
            self.go_on(PAUSE_TURN)
        return 0

    cdef bint look_at_deadline(self, int64_t now_ms) except -1:
        if not self.deadline_ms or now_ms < self.deadline_ms:
            return False
        self.deadline_ms = 0
        self.at_deadline(self)
        return True

    def hold(self, unsigned int reason, bint holds):
        if holds:
            self.pause(reason)
        else:
            self.go_on(reason)

    def forget_publisher(self, key, publisher):
        if self.publishers.get(key) is publisher:
            del self.publishers[key]
        if self.publisher_cached is publisher:
            self.publisher_cached = None

    cdef bint has_confirmed_all(self) except -1:
        """Or refused; but for what is parked."""
        for publisher in self.publishers.values():
            if not publisher.is_idle:
                return False
        return True

    cdef int close_publishers(self) except -1:
        for publisher in list(self.publishers.values()):
            publisher.close()
        self.publishers.clear()
        self.publisher_cached = None
        return 0

    def set_deadline(self, int64_t at_ms, then):
        self.deadline_ms, self.at_deadline = at_ms, then

    def wait_until(self, int64_t at_ms, then):
        """Nothing is read before, so that guessing gets slow; ``then(session)`` answers."""
        self.set_busy()
        self.set_deadline(at_ms, then)

    @property
    def working(self) -> bool:
        return self.pauses & PAUSE_COMMAND != 0

    def set_busy(self):
        """A helper thread works on a command; the next one waits for its reply."""
        self.pause(PAUSE_COMMAND)

    def set_idle(self):
        """The helper thread has finished; what it was for comes now, then ``read_on``."""
        self.pauses &= ~<unsigned int> PAUSE_COMMAND

    def read_on(self):
        """Unless something still forbids it."""
        self.go_on(0)

    def command_failed(self, problem):
        """What followed the work of a helper thread raised this."""
        self.fail(problem)

    def write(self, bytes frame):
        """Queue a whole frame."""
        self.connection.write_bytes(frame)

    def described(self, **more) -> dict:
        """What the admin side shows of any connection, and ``more``."""
        return {
            "user": self.client.user,
            "peer_host": self.peer_address,
            "peer_port": self.connection.peer_port,
            "is_tls": self.connection.is_tls,
            "connected_at": self.connected_ms,
            "state": self.shown_state,
            **more,
        }


cdef class QueueSession(ClientSession):
    def __init__(self, Connection connection, door):
        super().__init__(connection, door)
        self.subscriptions, self.by_number, self.in_flight = {}, [], InFlight()

    def free_number(self) -> int:
        """For one subscription more."""
        if len(self.subscriptions) < len(self.by_number):
            return self.by_number.index(None)
        self.by_number.append(None)
        return len(self.by_number) - 1

    def remember_subscription(self, name, subscription):
        self.by_number[subscription.number] = self.subscriptions[name] = subscription
        self.client.count_consumers(1)

    def forget_subscription(self, name):
        self.by_number[self.subscriptions.pop(name).number] = None
        self.client.count_consumers(-1)

    def remove_subscription(self, name, bint lost=False) -> bool:
        """`lost`: without a goodbye, so what was in flight may have been what went wrong."""
        subscription = self.subscriptions.get(name)
        if subscription is None:
            return False
        subscription.leave(lost)
        self.forget_subscription(name)
        return True

    def described(self, **more) -> dict:
        """Of very many queues only the first."""
        return ClientSession.described(
            self,
            vhost=DEFAULT_VHOST,
            publishers=[{"stream": one.stream.name} for one in islice(self.publishers.values(), DESCRIBED_MAX)],
            subscriptions=[one.describe() for one in islice(self.subscriptions.values(), DESCRIBED_MAX)],
            **more,
        )

    cdef int close(self) except -1:
        self.state = "closed"
        self.client.broker.limits.leave(self.client)
        self.close_publishers()
        for name in list(self.subscriptions):
            self.remove_subscription(name, lost=True)
        return 0


# ---- consumers ----

cdef uint32_t peer_key(str user, str address) except? 0:
    return zlib.crc32(f"{user}@{host_of(address)}".encode("utf-8", "surrogateescape"))


cdef class Consumer:
    def __cinit__(self):
        self.own.first = self.own.last = NO_SLOT
        self.returned, self.subscriber = {}, ""

    def __dealloc__(self):
        free(self.pending)

    cdef bint room(self) noexcept:
        return True

    cdef int write(self, message_view *m, const uint8_t *id, uint32_t id_size, uint32_t attempts) except -1:
        raise TypeError(f"{type(self).__name__} does not say how to write")

    cdef int on_deleted(self) except -1:
        return 0

    cdef int failed(self, object problem) except -1:
        raise problem

    @property
    def in_flight(self) -> int:
        return self.own.count

    cdef int take(self, message_view *m, uint32_t attempts, uint32_t strikes) except -1:
        """Write a message that the home gave to this consumer, and remember it until it is settled."""
        cdef uint8_t made[MESSAGE_ID_BYTES_MAX]
        cdef uint32_t id_size = 0
        cdef const uint8_t *id = id_of(m, made, &id_size)
        cdef int32_t slot
        cdef int what
        cdef Queue queue = <Queue> self.queue
        cdef Meters meters = queue.stream.table.meters
        if m.offset >= self.seen:
            self.seen, self.fresh = m.offset + 1, False
        else:
            self.unordered = True
        if queue.mode == MODE_FAN_OUT_WITHOUT_ACK:
            what = self.write(m, id, id_size, attempts)
            if what == UNDELIVERABLE:
                core.word_add(&queue.control.dropped, 1)
                self._say_unsuited(m.offset, "and is dropped for it, and for no other")
            elif what == WRITTEN:
                meters.add(METER_DELIVER_QUEUE, (meters.turn_wall_ms - m.timestamp_ms) * 1000, 1)
            return 0
        slot = self.deliveries.add(&self.own, self.number, m.offset, id, id_size, attempts, strikes,
                                   queue.table.now_ms)
        if slot == self.own.first:
            queue.ack_timer.at_most(queue.table.now_ms + queue.options.ack_timeout_ms)
        what = self.write(m, id, id_size, attempts)
        if what == WRITTEN:
            meters.add(METER_DELIVER_QUEUE, (meters.turn_wall_ms - m.timestamp_ms) * 1000, 1)
        elif what == UNDELIVERABLE:
            self._say_unsuited(m.offset, "which the others still get" if queue.mode == MODE_FAN_OUT_WITH_ACK
                               else "and waits for one that can take it")
            queue.refuse(self, slot)
        elif what == UNWANTED:
            queue.settle(self, slot)
        return 0

    def _say_unsuited(self, uint64_t offset, str then):
        door = type(self).__module__.rsplit(".", 2)[1]
        failing.say(((<Queue> self.queue).key, door), "queue %s: message %d cannot be given to a consumer of the %s door, "
                    "for which it is too large or has a form that cannot be had there, %s", self.queue.name, offset,
                    door, then)

    cdef uint64_t lowest(self) noexcept:
        """The lowest offset that this consumer has not settled; 2^64-1 when it has settled all it was given."""
        cdef uint64_t low = <uint64_t> -1
        cdef int32_t slot = self.own.first
        cdef size_t i
        if slot == NO_SLOT:
            self.unordered = False
        while slot != NO_SLOT:
            low = min(low, self.deliveries.slots[slot].offset)
            if not self.unordered:
                break  # handed out in order: the first is the lowest
            slot = self.deliveries.slots[slot].next
        for i in range(self.pending_head, self.pending_size):
            low = min(low, self.pending[i].offset)
        return low

    cdef bint is_any_held(self) noexcept:
        """Did the peer name a delivery as in its program's hand?"""
        cdef int32_t slot = self.own.first
        while slot != NO_SLOT and not self.deliveries.slots[slot].held:
            slot = self.deliveries.slots[slot].next
        return slot != NO_SLOT

    cdef int32_t last_seen(self) noexcept:
        """Return the youngest delivery that the peer's program has had, or NO_SLOT: those behind it are unseen."""
        cdef int32_t slot = self.own.last
        while slot != NO_SLOT and not self.deliveries.slots[slot].held and not self.deliveries.slots[slot].seen:
            slot = self.deliveries.slots[slot].previous
        return slot

    cdef void note_seen(self, int32_t slot) noexcept:
        """The peer settles this delivery before older ones: its program has had these, because clients work in order."""
        cdef int32_t older = self.deliveries.slots[slot].previous
        if older != NO_SLOT:
            self.deliveries.slots[older].seen = True

    cdef int push_pending(self, const letter *what) except -1:
        if self.pending_head == self.pending_size:
            self.pending_head = self.pending_size = 0
        grow(&self.pending, &self.pending_capacity, self.pending_size + 1, sizeof(letter))
        self.pending[self.pending_size] = what[0]
        self.pending_size += 1
        return 0

    cdef int write_pending(self) except -1:
        """Write what a home elsewhere has handed over, while there is room."""
        cdef Queue queue = <Queue> self.queue
        cdef letter *what
        cdef message_view m
        cdef fault f
        cdef err e
        while self.pending_head < self.pending_size and not self.fetching and not queue.closed:
            if not self.room():
                self.stalled = True
                return 0
            what = &self.pending[self.pending_head]
            e = queue.probe.look(what.offset, what.segment, what.place, what.index, &m, &f)
            if e == ERR_NOT_CACHED:
                queue.table.messages.read_ahead(queue.probe, self._fetched)
                self.fetching = True
                return 0
            self.pending_head += 1
            if e != OK:
                logger.error("queue %s: message %d cannot be read: %s", queue.name, what.offset, storage_error(e, &f))
                queue.give_back_message(self, what.offset, what.attempts, FAILURES_UNREADABLE, 0)
                continue
            try:
                self.take(&m, what.attempts, what.strikes)
            except Exception as problem:
                self.failed(problem)
                return 0
            if queue.mode == MODE_FAN_OUT_WITHOUT_ACK:
                queue.count_settled(self)
        return 0

    def _fetched(self):
        self.fetching = False
        if self.queue is not None:
            self.write_pending()


# ---- in flight ----

cdef inline uint32_t _hash(uint64_t key, const uint8_t *p, uint32_t size) noexcept:
    """Multiply and fold eight bytes at a time, with a secret to begin with."""
    cdef uint64_t h = key ^ (<uint64_t> size * <uint64_t> 0x9E3779B97F4A7C15)
    cdef uint64_t word
    cdef uint32_t left = size
    while left >= 8:
        memcpy(&word, p, 8)
        h = (h ^ word) * <uint64_t> 0xD6E8FEB86659FD93
        h ^= h >> 32
        p += 8
        left -= 8
    word = 0
    memcpy(&word, p, left)
    h = (h ^ word ^ (key >> 7)) * <uint64_t> 0xD6E8FEB86659FD93
    h ^= h >> 29
    h *= <uint64_t> 0xA0761D6478BD642F
    return <uint32_t> (h >> 32)


cdef inline const uint8_t *_id_of(const delivery *d) noexcept:
    return <const uint8_t *> d.id_long if d.id_long != NULL else <const uint8_t *> &d.id[0]


cdef class InFlight:
    """What one connection has been handed and has not settled, found by message id or in order.

    Clients name messages by ids that publishers chose, so ids repeat: an acknowledgement means the
    oldest delivery that bears it.  Each bucket of the hash table is therefore a list in order of delivery.
    The hash is keyed, so nobody can choose ids that all fall into one bucket.  Memory grows with
    what is in flight, which each consumer's prefetch bounds; an idle connection has none.

    Invariant: a slot with consumer != NO_SLOT lies in exactly one bucket and in exactly one consumer's list.
    """

    def __cinit__(self):
        self.free_slot = NO_SLOT
        self.key = int.from_bytes(os.urandom(8), "little") | 1

    def __dealloc__(self):
        cdef uint32_t i
        for i in range(self.capacity):
            if self.slots[i].consumer != NO_SLOT:
                free(self.slots[i].id_long)
        free(self.slots)
        free(self.heads)
        free(self.tails)

    cdef int _grow(self) except -1:
        """Twice the slots, and buckets to match; everything in flight is hung in anew."""
        cdef uint32_t capacity = max(<uint32_t> CAPACITY_FIRST, self.capacity * 2)
        cdef int32_t i, bucket, at, following
        cdef int32_t *heads = <int32_t *> malloc(capacity * sizeof(int32_t))
        cdef int32_t *tails = <int32_t *> malloc(capacity * sizeof(int32_t))
        cdef delivery *slots = <delivery *> realloc(self.slots, capacity * sizeof(delivery))
        if slots != NULL:
            self.slots = slots
        if slots == NULL or heads == NULL or tails == NULL:
            free(heads)
            free(tails)
            raise MemoryError
        for i in range(<int32_t> capacity):
            heads[i] = tails[i] = NO_SLOT
        old_mask = self.bucket_mask
        # Bucket by bucket, each in its order: deliveries that share an id share a bucket before and after.
        for bucket in range(<int32_t> self.capacity):
            at = self.heads[bucket]
            while at != NO_SLOT:
                following = slots[at].bucket_next
                i = <int32_t> (slots[at].hash & (capacity - 1))
                slots[at].bucket_previous = tails[i]
                slots[at].bucket_next = NO_SLOT
                if tails[i] == NO_SLOT:
                    heads[i] = at
                else:
                    slots[tails[i]].bucket_next = at
                tails[i] = at
                at = following
        for i in range(<int32_t> capacity - 1, <int32_t> self.capacity - 1, -1):
            slots[i].consumer = NO_SLOT
            slots[i].next = self.free_slot
            self.free_slot = i
        free(self.heads)
        free(self.tails)
        self.heads, self.tails, self.capacity, self.bucket_mask = heads, tails, capacity, capacity - 1
        return 0

    cdef int32_t add(self, delivery_list *own, int32_t consumer, uint64_t offset, const uint8_t *id, uint32_t id_size,
                     uint32_t attempts, uint32_t strikes, int64_t now_ms) except -2:
        cdef int32_t slot
        cdef delivery *d
        cdef uint32_t bucket
        if self.free_slot == NO_SLOT:
            self._grow()
        slot = self.free_slot
        d = &self.slots[slot]
        d.id_long = NULL
        if id_size <= ID_BYTES_INLINE:
            memcpy(d.id, id, id_size)
        else:
            d.id_long = <uint8_t *> malloc(id_size)
            if d.id_long == NULL:
                raise MemoryError
            memcpy(d.id_long, id, id_size)
        self.free_slot = d.next
        d.offset, d.sent_ms, d.attempts, d.strikes, d.consumer = offset, now_ms, attempts, strikes, consumer
        d.held = d.seen = False
        self.sequence += 1 + (self.sequence == <uint32_t> -1)
        d.sequence = self.sequence
        d.hash, d.id_size = _hash(self.key, id, id_size), id_size
        bucket = d.hash & self.bucket_mask
        d.bucket_next, d.bucket_previous = NO_SLOT, self.tails[bucket]
        if d.bucket_previous == NO_SLOT:
            self.heads[bucket] = slot
        else:
            self.slots[d.bucket_previous].bucket_next = slot
        self.tails[bucket] = slot
        d.next, d.previous = NO_SLOT, own.last
        if own.last == NO_SLOT:
            own.first = slot
        else:
            self.slots[own.last].next = slot
        own.last = slot
        own.count += 1
        self.count += 1
        return slot

    cdef int32_t find(self, const uint8_t *id, uint32_t id_size) noexcept:
        """The oldest delivery with this id, or NO_SLOT."""
        cdef uint32_t h
        cdef int32_t at
        if self.count == 0:
            return NO_SLOT
        h = _hash(self.key, id, id_size)
        at = self.heads[h & self.bucket_mask]
        while at != NO_SLOT and not self._is(at, h, id, id_size):
            at = self.slots[at].bucket_next
        return at

    cdef int32_t next_same(self, int32_t slot) noexcept:
        """The next younger delivery with the same id, or NO_SLOT."""
        cdef delivery *d = &self.slots[slot]
        cdef const uint8_t *id = _id_of(d)
        cdef int32_t at = d.bucket_next
        while at != NO_SLOT and not self._is(at, d.hash, id, d.id_size):
            at = self.slots[at].bucket_next
        return at

    cdef bint _is(self, int32_t slot, uint32_t hash, const uint8_t *id, uint32_t id_size) noexcept:
        cdef delivery *d = &self.slots[slot]
        if d.hash != hash or d.id_size != id_size:
            return False
        return memcmp(_id_of(d), id, id_size) == 0

    cdef void remove(self, delivery_list *own, int32_t slot) noexcept:
        cdef delivery *d = &self.slots[slot]
        cdef uint32_t bucket = d.hash & self.bucket_mask
        if d.bucket_previous == NO_SLOT:
            self.heads[bucket] = d.bucket_next
        else:
            self.slots[d.bucket_previous].bucket_next = d.bucket_next
        if d.bucket_next == NO_SLOT:
            self.tails[bucket] = d.bucket_previous
        else:
            self.slots[d.bucket_next].bucket_previous = d.bucket_previous
        if d.previous == NO_SLOT:
            own.first = d.next
        else:
            self.slots[d.previous].next = d.next
        if d.next == NO_SLOT:
            own.last = d.previous
        else:
            self.slots[d.next].previous = d.previous
        own.count -= 1
        self.count -= 1
        free(d.id_long)
        d.id_long = NULL
        d.consumer = NO_SLOT
        d.next = self.free_slot
        self.free_slot = slot
