# SPDX-License-Identifier: Apache-2.0
"""A consumer as the broker sees it, whatever door it came through."""

import logging
import zlib

from libc.stdlib cimport free

from vibemq.broker.inflight cimport NO_SLOT
from vibemq.broker.payload cimport MESSAGE_ID_BYTES_MAX, id_of
from vibemq.broker.queue cimport MODE_FAN_OUT_WITH_ACK, MODE_FAN_OUT_WITHOUT_ACK, Queue
from vibemq.grow cimport grow
from vibemq.storage cimport core
from vibemq.storage.core cimport ERR_NOT_CACHED, OK, err, fault
from vibemq.storage.log cimport storage_error

from vibemq.net.hosts import host_of
from vibemq.once_a_minute import OnceAMinute

logger = logging.getLogger(__name__)
failing = OnceAMinute(logger)


cdef uint32_t peer_key(str user, str address) except? 0:
    return zlib.crc32(f"{user}@{host_of(address)}".encode("utf-8", "surrogateescape"))


cdef class Consumer:
    def __cinit__(self):
        self.own.first = self.own.last = NO_SLOT
        self.returned = {}

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
        if m.offset >= self.seen:
            self.seen, self.fresh = m.offset + 1, False
        else:
            self.unordered = True
        if queue.mode == MODE_FAN_OUT_WITHOUT_ACK:
            if self.write(m, id, id_size, attempts) == UNDELIVERABLE:
                core.word_add(&queue.control.dropped, 1)
                self._say_unsuited(m.offset, "and is dropped for it, and for no other")
            return 0
        slot = self.deliveries.add(&self.own, self.number, m.offset, id, id_size, attempts, strikes,
                                   queue.table.now_ms)
        if slot == self.own.first:
            queue.ack_timer.at_most(queue.table.now_ms + queue.options.ack_timeout_ms)
        what = self.write(m, id, id_size, attempts)
        if what == UNDELIVERABLE:
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
                queue.table.messages.read_ahead(queue.probe.raw.fd, queue.probe.raw.position, self._fetched)
                self.fetching = True
                return 0
            self.pending_head += 1
            if e != OK:
                logger.error("queue %s: message %d cannot be read: %s", queue.name, what.offset, storage_error(e, &f))
                queue.give_back_message(self, what.offset, what.attempts, core.LEDGER_ATTEMPTS_MAX, 0)
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
