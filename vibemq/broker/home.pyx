# SPDX-License-Identifier: Apache-2.0
"""The home of a queue: the one place where it is decided who gets which message.

Every turn that brings news (messages, acknowledgements, consumers) ends with one ``dispatch``:
what is too much, too old or purged is taken out first; then messages go to whoever has room, in
order; then `base` moves over what is settled.  Waiting messages cost nothing: the log holds them, and
an entry in the ledger is made when a message is handed out.  Only PriorityBased looks ahead, and
keeps an entry for each waiting message, because its order is not the log's.

Round robin and priorities: a member of the rotation has credit and room, and gets the next message; what
comes back is ready again and goes first, being older.  Fan-out: each member has its own place in the
log, so a slow one delays nobody; a message is settled when every member that was there when it
came has settled it or is gone, and if nobody has acknowledged it by then, it is given to those who are there.

What is in flight at consumers of this worker is settled by this worker, at others by theirs, in the
ledger itself (queue.pyx).  So a new home needs only to ask the other workers what they have.
"""

import bisect
import heapq
import logging
import os
from collections import deque
from functools import partial

from libc.string cimport memset

from vibemq.broker.inflight cimport NO_SLOT
from vibemq.broker.queue cimport (
    MODE_FAN_OUT_WITH_ACK, MODE_FAN_OUT_WITHOUT_ACK, MODE_PRIORITY_BASED, MODE_ROUND_ROBIN,
)
from vibemq.storage cimport core
from vibemq.storage.core cimport (
    ERR_CORRUPT, ERR_END, ERR_LIMIT, ERR_NOT_CACHED, ERR_NOT_FOUND, LEDGER_DEAD, LEDGER_DELAYED, LEDGER_IN_FLIGHT,
    LEDGER_READY, LEDGER_SETTLED, OK, amqp_pair, amqp_pairs, commit, fault,
)
from vibemq.storage.log cimport storage_error
from vibemq.storage.mail cimport (
    LETTER_HAND, LETTER_HELLO, LETTER_JOIN, LETTER_KEPT, LETTER_LEAVE, LETTER_RETURNED, LETTER_SETTLED, LETTER_TOLD,
)

from vibemq.broker.expiry import Expiry
from vibemq.broker.policy import FailureReason, Overflow
from vibemq.broker.timers import NEVER
from vibemq.errors import StorageError, StreamNotFound
from vibemq.storage.log import drop_before, segments

logger = logging.getLogger(__name__)

cdef enum:
    BUDGET = 4096            # messages of one queue in one turn: about two milliseconds with everything around them
    BLOCKS_PER_TURN = 4
    RETRY_MS = 1000          # after a failed dead-lettering: the disk may have room again
    PRIORITIES_ALL = 15
    PRIORITY_NORMAL = 1
    NO_OFFSET = -1

cdef uint64_t NOWHERE = <uint64_t> -1


cdef class Member:
    def __cinit__(self):
        self.again = []
        self.reported = NOWHERE

    cdef uint64_t lowest(self) noexcept:
        """Nothing below is owed to it any more."""
        cdef uint64_t low = self.cursor
        if self.consumer is not None:
            low = min(low, self.consumer.lowest())
        elif self.received < self.handed:
            return self.low  # something is on its way: what it has reported is not all
        else:
            low = min(low, self.reported)
        for item in self.again:
            low = min(low, <uint64_t> item[1])
        self.low = low
        return low


cdef class Home(Decider):
    def __init__(self, Queue queue, uint32_t generation, make_dead_letter_queue):
        cdef commit committed
        cdef fault f
        cdef int i
        self.queue, self.generation = queue, generation
        self.make_dead_letter_queue = make_dead_letter_queue
        self.raw, self.control, self.mode = queue.raw, queue.control, queue.mode
        self.is_fan_out = self.mode == MODE_FAN_OUT_WITH_ACK or self.mode == MODE_FAN_OUT_WITHOUT_ACK
        self.members, self.able = {}, deque()
        self.delayed, self.burying, self.awaited, self.kept = [], set(), set(), set()
        self.timer = queue.table.timers.timer(self._on_time)
        self.cursor = Cursor(queue.table.messages, queue.stream.log, queue.key)
        self.probe = Probe(queue.table.messages, queue.stream.log, queue.key)
        self.segments = segments(queue.stream.log.directory)
        core.control_committed(queue.stream.log.control, &committed)
        self._skip_dropped()
        self.next = core.ledger_next(self.control)
        self.cursor.seek(self.next)
        for i in range(4):
            self.ready_from[i] = core.ledger_base(self.control)
        if queue.policy.message_ttl_ms:
            self.expiry = Expiry(queue.policy.message_ttl_ms, queue.table.now_ms, committed.next_offset,
                                 self._first_after)
        self.dropped_to = core.ledger_base(self.control)
        queue.stream.attach_reader(queue)
        self._take_over()

    cdef int stop(self) except -1:
        self.stopped = True
        self.timer.cancel()
        self.cursor.close()
        self.probe.close()
        if self.letters is not None:
            self.letters.close()
        for m in self.members.values():
            if (<Member> m).consumer is not None:
                (<Member> m).consumer.member = None
        if not self.queue.waiting_publishers and self.queue.stream.log.raw != NULL:
            self.queue.stream.detach_reader(self.queue)
        return 0

    cdef bint is_idle(self) except -1:
        return not self.members and not self.awaited and not self.letters_waiting and not self.fetching

    # ---- taking over ----

    def _skip_dropped(self):
        """What retention has taken is settled."""
        first = self.queue.stream.log.stats().first_offset
        if first > core.ledger_base(self.control):
            core.ledger_skip(self.raw, first)

    def _take_over(self):
        """Make the states of a home before this one right: nobody is left to finish what it had begun."""
        cdef uint64_t base = core.ledger_base(self.control)
        cdef uint64_t offset
        cdef uint32_t worker
        cdef Consumer consumer
        cdef ledger_word w
        cdef Queue queue = self.queue
        cdef uint64_t others = core.ledger_workers(self.control) & ~(<uint64_t> 1 << queue.worker)
        for state in (LEDGER_DEAD, LEDGER_DELAYED):
            offset = core.ledger_find(self.raw, base, self.next, state, 0)
            while offset < self.next:
                self._set_ready(offset)
                offset = core.ledger_find(self.raw, offset + 1, self.next, state, 0)
        for worker in range(queue.table.mail.workers):
            if others & (<uint64_t> 1 << worker):
                self.awaited.add((worker, core.doorbell_epoch(queue.table.board.raw, worker)))
                queue._send(worker, LETTER_HELLO, self.generation, None, 0)
        for consumer in queue.consumers.values():
            self.join(consumer)
            slot = consumer.own.first
            while slot != NO_SLOT:
                self.kept.add(consumer.deliveries.slots[slot].offset)
                slot = consumer.deliveries.slots[slot].next
            for i in range(consumer.pending_head, consumer.pending_size):
                # Handed over by the last home and not written yet: given anew, in its order.
                queue._give_back(consumer, consumer.pending[i].offset, max(consumer.pending[i].attempts, 1) - 1,
                                 consumer.pending[i].strikes, 0)
            consumer.pending_head = consumer.pending_size = 0
        if not self.awaited:
            self._taken_over()

    cdef _set_ready(self, uint64_t offset):
        cdef ledger_entry *entry = core.ledger_entry_of(self.raw, offset, NULL)
        if entry != NULL:
            core.ledger_word_set(entry, (core.ledger_word_get(entry) & ~<uint64_t> 7) | LEDGER_READY)

    def _taken_over(self):
        """Everybody has said what it has: whatever else was in flight is ready again."""
        cdef uint64_t base = core.ledger_base(self.control)
        cdef uint64_t offset, lowest_cursor
        cdef Member m
        cdef int i
        if self.is_fan_out and self.members:
            self._take_over_fan_out(base)
        else:
            offset = core.ledger_find(self.raw, base, self.next, LEDGER_IN_FLIGHT, 0)
            while offset < self.next:
                if offset not in self.kept:
                    self._set_ready(offset)
                offset = core.ledger_find(self.raw, offset + 1, self.next, LEDGER_IN_FLIGHT, 0)
        self.in_flight = len(self.kept)
        self.kept = set()
        self.awaited = set()
        self.ready = 0
        for i in range(4):
            self.ready_from[i] = base
        if not self.is_fan_out or not self.members:
            offset = core.ledger_find(self.raw, base, self.next, LEDGER_READY, 0)
            while offset < self.next:
                self.ready += 1
                offset = core.ledger_find(self.raw, offset + 1, self.next, LEDGER_READY, 0)
        self.settling = True
        self.queue.mark()

    cdef _take_over_fan_out(self, uint64_t base):
        """Copies whose owners are gone, and that nobody else owes or has acknowledged, are given to all."""
        cdef uint64_t lowest_cursor = self.next
        cdef uint64_t offset = base
        cdef Member m
        if all((<Member> m).cursor == base and (<Member> m).skip_below for m in self.members.values()):
            return  # all are new: they begin at base and pass over what is settled
        for m in self.members.values():
            lowest_cursor = min(lowest_cursor, m.cursor)
        while offset < lowest_cursor:
            offset = core.ledger_find(self.raw, offset, lowest_cursor, LEDGER_IN_FLIGHT, 0)
            if offset < lowest_cursor and offset not in self.kept:
                for m in self.members.values():
                    heapq.heappush(m.again, (0, offset, 1, 0))
            offset += 1

    # ---- members ----

    cdef int join(self, Consumer consumer) except -1:
        cdef Member m = Member()
        m.consumer, m.worker, m.life = consumer, self.queue.worker, self.queue.life
        m.consumer_id, m.credit = consumer.consumer_id, <int64_t> consumer.prefetch - consumer.own.count
        consumer.member = m
        self._admit(m, consumer.fresh, consumer.seen)
        return 0

    def _admit(self, Member m, bint fresh, uint64_t seen):
        if self.is_fan_out:
            if fresh and not self.members:
                m.start = m.cursor = core.ledger_base(self.control)
                m.skip_below = self.next
            else:
                m.start = m.cursor = seen
            m.low = m.cursor
        self.members[m.worker, m.consumer_id] = m
        self._able_again(m)
        self.queue.mark()

    cdef int leave(self, Consumer consumer) except -1:
        if consumer.member is not None:
            self._leave(consumer.member)
            consumer.member = None
        return 0

    def _leave(self, Member m):
        m.gone, m.credit = True, 0
        self.members.pop((m.worker, m.consumer_id), None)
        if self.is_fan_out:
            self._inherit(m)
        self.settling = True
        self.queue.mark()

    def _inherit(self, Member gone):
        """What a member of a fan-out that left still owed."""
        cdef uint64_t offset
        cdef Member m
        cdef ledger_entry *entry
        if not self.members:
            self.ready = 0
            for offset in range(core.ledger_base(self.control), self.next):
                entry = core.ledger_entry_of(self.raw, offset, NULL)
                if entry == NULL or core.ledger_word_get(entry) & 7 == LEDGER_SETTLED:
                    continue
                if self.mode == MODE_FAN_OUT_WITHOUT_ACK and offset < gone.cursor:
                    core.ledger_word_set(entry, (core.ledger_word_get(entry) & ~<uint64_t> 7) | LEDGER_SETTLED)
                    continue
                if offset not in self.burying:
                    self._set_ready(offset)
                    self.ready += 1
            return
        first_start = min((<Member> other).start for other in self.members.values())
        owed = [(offset, attempts, strikes) for _, offset, attempts, strikes in gone.again if offset < first_start]
        owed += [(offset, 1, 0) for offset in range(gone.cursor, min(self.next, first_start))]
        for offset, attempts, strikes in owed:
            entry = core.ledger_entry_of(self.raw, offset, NULL)
            if entry != NULL and core.ledger_word_get(entry) & 7 != LEDGER_SETTLED:
                for m in self.members.values():
                    heapq.heappush(m.again, (0, offset, attempts, strikes))

    cdef bint _can(self, Member m) noexcept:
        """May it be given one more now?"""
        if m.gone or m.credit <= 0:
            return False
        if m.consumer is not None and not m.consumer.room():
            m.consumer.stalled = True
            return False
        return True

    cdef int _able_again(self, Member m) except -1:
        if not m.able and not m.gone and m.credit > 0 and not self.is_fan_out:
            m.able = True
            self.able.append(m)
        return 0

    cdef Member _turn_of(self):
        """The next of the rotation that can take a message, or None."""
        cdef Member m
        while self.able:
            m = <Member> self.able.popleft()
            m.able = False
            if self._can(m):
                return m
        return None

    cdef int room_again(self, Consumer consumer) except -1:
        if consumer.member is not None:
            self._able_again(<Member> consumer.member)
            self.queue.mark()
        return 0

    # ---- what happens ----

    cdef int news(self) except -1:
        cdef commit committed
        if self.expiry is not None:
            core.control_committed(self.queue.stream.log.control, &committed)
            self.expiry.arrived(committed.next_offset, self.queue.table.now_ms)
        return self.queue.mark()

    cdef int settled(self, Consumer consumer, uint64_t offset) except -1:
        cdef Member m = <Member> consumer.member
        core.ledger_acked_add(self.control, 1)
        self.in_flight -= 1
        self.settling = True
        if m is not None:
            m.credit += 1
            self._able_again(m)
        return self.queue.mark()

    cdef int returned(self, Consumer consumer, uint64_t offset, uint32_t attempts, uint32_t strikes, int64_t delay_ms) except -1:
        if consumer.member is not None:
            self._returned(<Member> consumer.member, offset, attempts, strikes, delay_ms)
        return 0

    def _returned(self, Member m, uint64_t offset, uint32_t attempts, uint32_t strikes, int64_t delay_ms):
        cdef int64_t due = self.queue.table.now_ms + delay_ms if delay_ms else 0
        cdef ledger_entry *entry
        self.in_flight -= 1
        m.credit += 1
        self._able_again(m)
        if self.is_fan_out:
            heapq.heappush(m.again, (due, offset, attempts, strikes))
        elif delay_ms:
            heapq.heappush(self.delayed, (due, offset))
        else:
            entry = core.ledger_entry_of(self.raw, offset, NULL)
            if entry != NULL:
                self._ready(offset, core.ledger_word_get(entry) >> 3 & 3)
        if due:
            self.timer.at_most(due)
        self.queue.mark()

    cdef int _ready(self, uint64_t offset, uint32_t priority) except -1:
        cdef uint32_t p = priority if self.mode == MODE_PRIORITY_BASED else 0
        self.ready += 1
        self.ready_from[p] = min(self.ready_from[p], offset)
        return 0

    cdef int letter_from(self, const letter *what) except -1:
        cdef Member m
        if what.generation != self.generation or self.stopped:
            return 0
        if what.kind == LETTER_TOLD:
            epoch = core.doorbell_epoch(self.queue.table.board.raw, what.sender)
            self._has_told(what.sender, epoch)
            return 0
        if what.kind == LETTER_JOIN:
            m = Member()
            m.worker, m.consumer_id, m.credit = what.sender, what.consumer, what.count
            m.life = core.doorbell_epoch(self.queue.table.board.raw, what.sender) & core.LEDGER_LIFE_MASK
            if not self.members and not self.queue.consumers and not self.awaited and not self.burying \
                    and not self.letters_waiting:
                self.queue.hand_over(what.sender)  # all its consumers are there
                return 0
            self._admit(m, what.received != 0, what.low)
            return 0
        found = self.members.get((what.sender, what.consumer))
        if found is None:
            return 0
        m = <Member> found
        if what.kind == LETTER_KEPT:
            self.kept.add(what.offset)
            m.credit -= 1
            if not self.awaited:
                self.in_flight += 1
        elif what.kind == LETTER_LEAVE:
            self._leave(m)
        elif what.kind == LETTER_SETTLED:
            m.credit += what.count
            m.received, m.reported = what.received, what.low
            core.ledger_acked_add(self.control, what.count)
            self.in_flight -= what.count
            self.settling = True
            self._able_again(m)
            self.queue.mark()
        elif what.kind == LETTER_RETURNED:
            self._returned(m, what.offset, what.attempts, what.strikes, what.count)
        return 0

    def _has_told(self, uint32_t worker, uint32_t epoch):
        if self.awaited:
            self.awaited.discard((worker, epoch))
            if not self.awaited:
                self._taken_over()

    cdef int seats_changed(self) except -1:
        """Members on workers that died are gone, and what they had in flight is ready again."""
        cdef Member m
        cdef uint64_t offset
        cdef ledger_entry *entry
        cdef ledger_word w
        cdef Queue queue = self.queue
        dead = set()
        for m in list(self.members.values()):
            if m.life != core.doorbell_epoch(queue.table.board.raw, m.worker) & core.LEDGER_LIFE_MASK:
                dead.add((m.worker, m.life))
                self.in_flight -= max(0, <int64_t> m.handed - <int64_t> m.received)
                self._leave(m)
        for worker, epoch in list(self.awaited):
            if core.doorbell_epoch(queue.table.board.raw, worker) != epoch:
                self._has_told(worker, epoch)
        if dead and not self.is_fan_out:
            offset = core.ledger_find(self.raw, core.ledger_base(self.control), self.next, LEDGER_IN_FLIGHT, 0)
            while offset < self.next:
                entry = core.ledger_entry_of(self.raw, offset, NULL)
                w = core.ledger_unpack(core.ledger_word_get(entry))
                if (w.worker, w.life) in dead:
                    self._set_ready(offset)
                    self._ready(offset, w.priority)
                    self.in_flight -= 1
                offset = core.ledger_find(self.raw, offset + 1, self.next, LEDGER_IN_FLIGHT, 0)
        return 0

    # ---- one turn ----

    cdef bint dispatch(self) except -1:
        cdef bint more = False
        cdef int64_t now_ms = self.queue.table.now_ms
        if self.stopped or self.awaited:
            return False
        self._wake_delayed(now_ms)
        if self.expiry is not None:
            more = self._expire(now_ms)
        more = self._purge() or more
        more = self._overflow() or more
        if self.mode == MODE_PRIORITY_BASED:
            more = self._take_in(BUDGET) or more
        if not self.fetching:
            more = (self._fan_out(BUDGET) if self.is_fan_out else self._round_robin(BUDGET)) or more
        if self.settling:
            self._settle_base()
        self._publish()
        self._set_timer(now_ms)
        return more

    def _on_time(self, now_ms):
        self.queue.mark()

    cdef bint _round_robin(self, int budget) except -1:
        cdef Member m
        cdef message_view v
        cdef err e
        while budget > 0:
            m = self._turn_of()
            if m is None:
                return False
            e = self._pick(&v)
            if e != OK:
                m.able = True
                self.able.appendleft(m)
                return False
            self._give(m, &v, self.word.attempts + 1, self.word.strikes)
            self._able_again(m)
            budget -= 1
        return True

    cdef err _pick(self, message_view *m) except *:
        """The next message to hand out, with its entry in ``entry`` and ``word``.  ERR_END, ERR_NOT_CACHED: none now."""
        cdef err e
        if self.ready > 0:
            e = self._pick_ready(m)
            if e != ERR_END:
                return e
        if self.mode == MODE_PRIORITY_BASED:
            return ERR_END
        return self._pick_new(m)

    cdef err _pick_ready(self, message_view *m) except *:
        cdef uint64_t offset
        cdef int p = 0
        cdef err e
        cdef fault f
        while self.ready > 0:
            offset = self.next
            if self.mode == MODE_PRIORITY_BASED:
                for p in range(3, -1, -1):
                    offset = core.ledger_find(self.raw, self.ready_from[p], self.next, LEDGER_READY, 1 << p)
                    self.ready_from[p] = min(offset + 1, self.next)
                    if offset < self.next:
                        break
            else:
                offset = core.ledger_find(self.raw, self.ready_from[0], self.next, LEDGER_READY, 0)
                self.ready_from[0] = min(offset + 1, self.next)
            if offset >= self.next:
                self.ready = 0
                return ERR_END
            self.entry = core.ledger_entry_of(self.raw, offset, NULL)
            if self.entry == NULL:  # its block cannot be mapped now: no memory or no descriptors
                self.ready_from[0 if self.mode != MODE_PRIORITY_BASED else p] = offset
                self.timer.at_most(self.queue.table.now_ms + RETRY_MS)
                return ERR_NOT_CACHED
            self.ready -= 1
            self.word = core.ledger_unpack(core.ledger_word_get(self.entry))
            if offset < self.expired:
                self._bury_at(offset, FailureReason.MESSAGE_EXPIRED)
                continue
            if self.word.strikes >= <uint32_t> self.queue.policy.attempts_max:
                self._bury_at(offset, FailureReason.MAX_RETRIES_EXCEEDED)
                continue
            e = self.probe.look(offset, self._segment_of(offset), self.entry.place, <unsigned short> self.word.index, m, &f)
            if e == OK:
                m.offset = offset
                core.ledger_redelivered_add(self.control, 1 if self.word.attempts else 0)
                return OK
            if e == ERR_NOT_CACHED:
                self._ready(offset, self.word.priority)
                return self._failed_read(e, m, self.probe)
            logger.error("queue %s: message %d cannot be read: %s", self.queue.name, offset, storage_error(e, &f))
            self._bury(NULL, offset, FailureReason.DESERIALIZATION_ERROR, self.word.attempts)
        return ERR_END

    cdef err _pick_new(self, message_view *m) except *:
        cdef err e
        cdef fault f
        while True:
            e = self.cursor.next(m, &f)
            if e == OK:
                if self._make_entry(m) < 0:
                    self.cursor.seek(m.offset)
                    return ERR_END
                return OK
            if e == ERR_END:
                return e
            if e == ERR_CORRUPT and m.offset != NOWHERE:
                logger.error("queue %s: message %d cannot be read", self.queue.name, m.offset)
                if self._make_entry(m) < 0:
                    self.cursor.seek(m.offset)
                    return ERR_END
                self._bury(NULL, m.offset, FailureReason.DESERIALIZATION_ERROR, 0)
                continue
            if e == ERR_NOT_CACHED:
                return self._failed_read(e, m, self.cursor)
            if e == ERR_CORRUPT:
                logger.error("queue %s: %s: its messages are passed over", self.queue.name, storage_error(e, &f))
                self.cursor.pass_damage()
                continue
            if e == ERR_NOT_FOUND:
                self._skip_dropped()
                self.next = max(self.next, core.ledger_next(self.control))
                self.cursor.seek(self.next)
            logger.error("queue %s: cannot be read: %s", self.queue.name, storage_error(e, &f))
            self.timer.at_most(self.queue.table.now_ms + RETRY_MS)
            return ERR_END

    cdef err _failed_read(self, err e, message_view *m, object place) except *:
        """It is on disk only: go on once a helper thread has read it."""
        self.fetching = True
        if place is self.cursor:
            self.queue.table.messages.read_ahead(self.cursor.raw.fd, self.cursor.raw.position, self._fetched)
        else:
            self.queue.table.messages.read_ahead(self.probe.raw.fd, self.probe.raw.position, self._fetched)
        return ERR_NOT_CACHED

    def _fetched(self):
        self.fetching = False
        self.queue.mark()

    cdef int _make_entry(self, message_view *m) except -2:
        """An entry for the message at `next` or, after a gap, beyond it; -1 when there is no room for one."""
        cdef fault f
        cdef err e
        cdef uint64_t offset = self.next
        cdef ledger_entry *entry
        if m.offset > self.next and core.ledger_base(self.control) == self.next:
            core.ledger_skip(self.raw, m.offset)
            self.next = offset = m.offset
        while offset <= m.offset:
            e = core.ledger_reserve(self.raw, offset + 1, &f)
            entry = core.ledger_entry_of(self.raw, offset, &f) if e == OK else NULL
            if entry == NULL:
                if e != ERR_LIMIT:
                    logger.error("queue %s: nothing can be handed out now: %s", self.queue.name, storage_error(e, &f))
                self.timer.at_most(self.queue.table.now_ms + RETRY_MS)
                return -1
            if offset < m.offset:  # there is no such message: retention or damage has taken it
                core.ledger_word_set(entry, LEDGER_SETTLED)
                self.settling = True
            self.next = offset + 1
            offset += 1
        memset(&self.word, 0, sizeof(self.word))
        self.word.state, self.word.priority, self.word.index = LEDGER_READY, PRIORITY_NORMAL, m.index
        self.entry = entry
        entry.place = m.place
        core.ledger_word_set(entry, core.ledger_pack(self.word))
        core.ledger_next_set(self.control, self.next)
        if m.segment > <uint64_t> self.segments[len(self.segments) - 1]:
            self.segments.append(m.segment)
        return 0

    cdef uint64_t _segment_of(self, uint64_t offset):
        return self.segments[max(0, bisect.bisect_right(self.segments, offset) - 1)]

    cdef int _give(self, Member to, message_view *m, uint32_t attempts, uint32_t strikes) except -1:
        """The message is in flight at `to` from here on; its entry says so before any byte of it leaves."""
        cdef letter l
        self.word.state, self.word.worker, self.word.life = LEDGER_IN_FLIGHT, to.worker, to.life
        self.word.attempts = min(attempts, <uint32_t> core.LEDGER_ATTEMPTS_MAX)
        self.word.strikes = strikes
        if self.mode != MODE_FAN_OUT_WITHOUT_ACK:
            if not self.is_fan_out or core.ledger_word_get(self.entry) & 7 != LEDGER_SETTLED:
                core.ledger_word_set(self.entry, core.ledger_pack(self.word))
            to.credit -= 1
            self.in_flight += 1
        core.ledger_delivered_add(self.control, 1)
        if to.consumer is not None:
            try:
                to.consumer.take(m, attempts, strikes)
            except Exception as problem:
                to.gone = True
                to.consumer.failed(problem)
            return 0
        to.handed += 1
        if self.mode == MODE_FAN_OUT_WITHOUT_ACK:
            to.credit -= 1
            self.in_flight += 1
        memset(&l, 0, sizeof(l))
        l.kind, l.sender, l.slot, l.tag = LETTER_HAND, self.queue.worker, self.queue.stream.slot, self.queue.tag
        l.generation, l.consumer, l.attempts, l.strikes = self.generation, to.consumer_id, attempts, strikes
        l.offset, l.segment, l.place, l.index = m.offset, m.segment, m.place, m.index
        self.queue.table.mail.send(to.worker, &l)
        return 0

    # ---- fan-out ----

    cdef bint _fan_out(self, int budget) except -1:
        cdef Member m
        cdef message_view v
        cdef err e
        cdef int able = 0
        cdef list members = list(self.members.values())
        for m in members:
            self._again(m, &budget)
            if self.fetching:
                return False
        while budget > 0:
            able = 0
            for m in members:
                able += m.cursor <= self.next and self._can(m)
            if not able:
                return False
            e = self._pick_new(&v)
            if e != OK:
                return False
            for m in members:
                if m.cursor <= v.offset and m.cursor >= v.offset and self._can(m):
                    m.cursor = v.offset + 1
                    self._give(m, &v, 1, 0)
                    budget -= 1
                elif m.cursor == v.offset or m.gone:
                    continue
            self.settling = True
        return True

    cdef int _again(self, Member to, int *budget) except -1:
        """Copies that came back, and those that a member has no one ahead of."""
        cdef message_view v
        cdef fault f
        cdef err e
        cdef uint64_t offset
        cdef uint32_t attempts, strikes
        cdef bint came_back
        while budget[0] > 0 and self._can(to):
            came_back = bool(to.again) and to.again[0][0] <= self.queue.table.now_ms
            if came_back:
                offset, attempts, strikes = to.again[0][1], to.again[0][2], to.again[0][3]
            elif to.cursor < self.next:
                offset, attempts, strikes = to.cursor, 0, 0
            else:
                return 0
            self.entry = core.ledger_entry_of(self.raw, offset, NULL)
            if self.entry != NULL:
                self.word = core.ledger_unpack(core.ledger_word_get(self.entry))
            if self.entry == NULL or offset < self.expired or offset in self.burying or (
                    not came_back and offset < to.skip_below and self.word.state == LEDGER_SETTLED):
                self._pass(to, came_back)
                continue
            if came_back and strikes >= <uint32_t> self.queue.policy.attempts_max:
                heapq.heappop(to.again)
                if self.word.state != LEDGER_SETTLED or self.queue.policy.dead_letter:
                    self._bury_at(offset, FailureReason.MAX_RETRIES_EXCEEDED)
                continue
            e = self.probe.look(offset, self._segment_of(offset), self.entry.place, <unsigned short> self.word.index, &v, &f)
            if e == ERR_NOT_CACHED:
                self._failed_read(e, &v, self.probe)
                return 0
            if e != OK:
                logger.error("queue %s: message %d cannot be read: %s", self.queue.name, offset, storage_error(e, &f))
                self._pass(to, came_back)
                continue
            v.offset = offset
            if self.word.state == LEDGER_READY:
                self.ready -= 1
                attempts, strikes = self.word.attempts, self.word.strikes
            self._pass(to, came_back)
            if attempts:
                core.ledger_redelivered_add(self.control, 1)
            self._give(to, &v, attempts + 1, strikes)
            budget[0] -= 1
        return 0

    cdef int _pass(self, Member to, bint came_back) except -1:
        if came_back:
            heapq.heappop(to.again)
        else:
            to.cursor += 1
        self.settling = True
        return 0

    # ---- priorities ----

    cdef int _take_in(self, int budget) except -1:
        """An entry for each new message, with its priority."""
        cdef message_view v
        cdef uint32_t p
        while budget > 0 and not self.fetching:
            if self._pick_new(&v) != OK:
                return 0
            p = priority_of(&v)
            self.word.priority = p
            core.ledger_word_set(self.entry, core.ledger_pack(self.word))
            self._ready(v.offset, p)
            budget -= 1
        return 1

    # ---- what does not wait any longer ----

    def _wake_delayed(self, int64_t now_ms):
        cdef ledger_entry *entry
        cdef uint64_t word
        while self.delayed and self.delayed[0][0] <= now_ms:
            offset = heapq.heappop(self.delayed)[1]
            entry = core.ledger_entry_of(self.raw, offset, NULL)
            if entry == NULL:
                continue
            word = core.ledger_word_get(entry)
            if word & 7 == LEDGER_DELAYED:
                core.ledger_word_set(entry, (word & ~<uint64_t> 7) | LEDGER_READY)
                self._ready(offset, word >> 3 & 3)

    def _first_after(self, int64_t timestamp_ms):
        return self.queue.stream.log.attach_offset(core.READER_TIMESTAMP, timestamp_ms)

    def _head_timestamp(self):
        cdef message_view v
        cdef fault f
        cdef uint64_t offset = self._oldest()
        if self.probe.look(offset, 0, 0, 0, &v, &f) != OK:
            return None
        return v.timestamp_ms

    cdef uint64_t _oldest(self):
        """The oldest message that waits; the log's end when none does."""
        cdef uint64_t offset = self.next
        cdef int p
        if self.ready > 0:
            start = min([self.ready_from[p] for p in range(4)]) if self.mode == MODE_PRIORITY_BASED else self.ready_from[0]
            offset = core.ledger_find(self.raw, start, self.next, LEDGER_READY, 0)
        return offset

    cdef bint _expire(self, int64_t now_ms) except -1:
        cdef commit committed
        core.control_committed(self.queue.stream.log.control, &committed)
        self.expiry.arrived(committed.next_offset, now_ms)
        self.expired = self.expiry.expired_below(now_ms)
        return self._clear(self.expired, FailureReason.MESSAGE_EXPIRED)

    cdef bint _purge(self) except -1:
        cdef uint64_t upto = core.ledger_purge(self.control)
        if upto <= self.purged:
            return False
        if self._clear(upto, None):
            return True
        self.purged = upto
        return False

    cdef bint _overflow(self) except -1:
        """DropOldest: as many of the oldest as are too many."""
        cdef uint64_t most = self.queue.max_messages
        cdef uint64_t excess, offset
        cdef commit committed
        cdef Member m
        cdef int budget = BUDGET
        if not most or self.queue.policy.overflow is not Overflow.DROP_OLDEST:
            return False
        core.control_committed(self.queue.stream.log.control, &committed)
        if self.is_fan_out and self.members:
            if committed.next_offset > most:
                for m in self.members.values():
                    if m.cursor < committed.next_offset - most and m.cursor < self.next:
                        core.ledger_dropped_add(self.control, 1)
                        m.cursor = min(self.next, committed.next_offset - most)
                        self.settling = True
            return False
        while self.ready + <int64_t> (committed.next_offset - self.next) > <int64_t> most:
            if budget == 0:
                return True
            budget -= 1
            offset = self._oldest()
            if offset >= self.next:
                excess = self.ready + (committed.next_offset - self.next) - most
                core.ledger_dropped_add(self.control, excess)
                self._skip_new(self.next + excess)
                return False
            self.ready -= 1
            core.ledger_dropped_add(self.control, 1)
            self._settle_one(offset)
        return False

    cdef bint _clear(self, uint64_t upto, object reason) except -1:
        """Take every waiting message below `upto` out of the queue; True when that is not finished."""
        cdef message_view v
        cdef uint64_t offset
        cdef Member m
        cdef int budget = BUDGET
        cdef bint bury = reason is not None and self.queue.policy.dead_letter
        cdef commit committed
        core.control_committed(self.queue.stream.log.control, &committed)
        upto = min(upto, committed.next_offset)
        if self.is_fan_out:
            for m in self.members.values():
                if m.cursor < upto and m.cursor < self.next:
                    m.cursor = min(upto, self.next)
                    self.settling = True
        while self.ready > 0:
            offset = self._oldest()
            if offset >= upto or offset >= self.next:
                break
            if budget == 0:
                return True
            budget -= 1
            self.entry = core.ledger_entry_of(self.raw, offset, NULL)
            if self.entry == NULL:
                break
            self.ready -= 1
            self.word = core.ledger_unpack(core.ledger_word_get(self.entry))
            if bury:
                if not self._bury_at(offset, reason):
                    return self.making  # its queue is being made
            else:
                self._count_out(reason, 1)
                self._settle_one(offset)
        if self.next >= upto:
            return False
        if not bury:
            self._count_out(reason, upto - self.next)
            self._skip_new(upto)
            return False
        while self.next < upto:
            if budget == 0:
                return True
            budget -= 1
            if self.fetching or self._pick_new(&v) != OK:
                return False
            for m in self.members.values():
                m.cursor = max(m.cursor, self.next)
            if not self._bury(&v, v.offset, reason, 0):
                return False
        return False

    def _count_out(self, reason, uint64_t count):
        if reason is FailureReason.MESSAGE_EXPIRED:
            core.ledger_expired_add(self.control, count)
        else:
            core.ledger_dropped_add(self.control, count)

    cdef int _skip_new(self, uint64_t upto) except -1:
        """Settle messages that were never handed out, unread."""
        cdef message_view v
        cdef Member m
        if core.ledger_base(self.control) == self.next or core.ledger_settle(self.raw, BLOCKS_PER_TURN) == self.next:
            core.ledger_skip(self.raw, upto)
            self.next = upto
        else:
            v.offset, v.index, v.place, v.segment = upto - 1, 0, 0, 0
            if self._make_entry(&v) == 0:
                core.ledger_word_set(self.entry, LEDGER_SETTLED)
        self.cursor.seek(self.next)
        for m in self.members.values():
            m.cursor = max(m.cursor, self.next) if self.is_fan_out else 0
        self.settling = True
        return 0

    cdef int _settle_one(self, uint64_t offset) except -1:
        cdef ledger_entry *entry = core.ledger_entry_of(self.raw, offset, NULL)
        if entry != NULL:
            core.ledger_word_set(entry, (core.ledger_word_get(entry) & ~<uint64_t> 7) | LEDGER_SETTLED)
        self.settling = True
        return 0

    # ---- dead letters ----

    cdef bint _bury_at(self, uint64_t offset, object reason) except -1:
        """Dead-letter the message in hand (``entry``, ``word``), or drop it where there is no such queue."""
        cdef message_view v
        cdef fault f
        cdef err e
        if not self.queue.policy.dead_letter:
            self._count_out(reason, 1)
            self._settle_one(offset)
            return True
        e = self.probe.look(offset, self._segment_of(offset), self.entry.place, <unsigned short> self.word.index, &v, &f)
        if e == ERR_NOT_CACHED:
            self._delay(offset, 0)
            self._failed_read(e, &v, self.probe)
            return False
        v.offset = offset
        return self._bury(&v if e == OK else NULL, offset, reason, self.word.attempts)

    cdef int _delay(self, uint64_t offset, int64_t delay_ms) except -1:
        """Look at it again later."""
        cdef ledger_entry *entry = core.ledger_entry_of(self.raw, offset, NULL)
        if entry == NULL:
            return 0
        core.ledger_word_set(entry, (core.ledger_word_get(entry) & ~<uint64_t> 7) | LEDGER_DELAYED)
        due = self.queue.table.now_ms + delay_ms
        heapq.heappush(self.delayed, (due, offset))
        self.timer.at_most(due)
        return 0

    cdef bint _bury(self, message_view *m, uint64_t offset, object reason, uint32_t attempts) except -1:
        """Copy the message to the dead-letter queue; it is settled once its copy is kept.  False: not now."""
        cdef ledger_entry *entry = core.ledger_entry_of(self.raw, offset, NULL)
        if not self.queue.policy.dead_letter:
            self._count_out(reason, 1)
            self._settle_one(offset)
            return True
        if self.letters is None or self.letters.closed:
            self.letters = None
            if not self.making:
                self._open_letters()
            if self.letters is None:
                self._delay(offset, RETRY_MS // 20 if self.making else RETRY_MS)
                return False
        if entry != NULL and not self.is_fan_out:
            core.ledger_word_set(entry, (core.ledger_word_get(entry) & ~<uint64_t> 7) | LEDGER_DEAD)
        self.burying.add(offset)
        self._count_out(reason, 1 if reason is FailureReason.MESSAGE_EXPIRED else 0)
        self.letters.add(m, offset, self.queue.name.encode(), reason.value.encode(), attempts)
        return True

    def _open_letters(self):
        cdef Queue queue = self.queue
        name = queue.policy.dead_letter_name(queue.name)
        try:
            self.letters = DeadLetters(self, queue.table.streams.find(queue.stream.virtual_host, name))
        except StreamNotFound:
            self.making = True
            queue.table.helpers.submit(
                partial(self.make_dead_letter_queue, queue.stream.virtual_host, name, queue.policy), self._made
            )
        except StorageError as problem:
            logger.error("queue %s: its dead-letter queue %s cannot be opened: %s", queue.name, name, problem)

    def _made(self, result, error):
        self.making = False
        if error is not None:
            logger.error("queue %s: its dead-letter queue cannot be made: %s", self.queue.name, error)
        if not self.stopped:
            self.queue.mark()

    @property
    def letters_waiting(self) -> bool:
        return self.making or bool(self.burying)

    def letters_kept(self, offsets, bint ok):
        """The copies are in the dead-letter queue (or, not `ok`, are not)."""
        for offset in offsets:
            self.burying.discard(offset)
            if self.stopped:
                continue  # the next home finds them as they are
            if ok:
                core.ledger_dead_lettered_add(self.control, 1)
                self._settle_one(offset)
            else:
                self._delay(offset, RETRY_MS)
        if not self.stopped:
            self.queue.mark()

    def letters_failed(self, problem):
        logger.error("queue %s: while dead-lettering", self.queue.name, exc_info=problem)

    # ---- the end of a turn ----

    cdef int _settle_base(self) except -1:
        cdef uint64_t floor, offset, base
        cdef Member m
        cdef ledger_entry *entry
        self.settling = False
        if self.is_fan_out and self.members:
            floor = self.next
            for m in self.members.values():
                floor = min(floor, m.lowest())
            for held in self.burying:
                floor = min(floor, <uint64_t> held)
            for _, held in self.delayed:
                floor = min(floor, <uint64_t> held)
            offset = core.ledger_base(self.control)
            while offset < floor:
                entry = core.ledger_entry_of(self.raw, offset, NULL)
                if entry != NULL:
                    core.ledger_word_set(entry, (core.ledger_word_get(entry) & ~<uint64_t> 7) | LEDGER_SETTLED)
                offset += 1
        base = core.ledger_settle(self.raw, BLOCKS_PER_TURN)
        if not self.queue.policy.keep and len(self.segments) > 1 and <uint64_t> self.segments[1] <= base:
            while len(self.segments) > 1 and <uint64_t> self.segments[1] <= base:
                del self.segments[0]
            self.queue.table.helpers.submit(partial(drop_before, self.queue.stream.log.directory, base), self._segments_dropped)
        return 0

    def _segments_dropped(self, result, error):
        if error is not None and not self.stopped:
            logger.error("queue %s: settled segments cannot be dropped: %s", self.queue.name, error)

    cdef int _publish(self) except -1:
        """What other workers see: how much waits, is in flight, and who may publish again."""
        cdef uint64_t departed = self.next - <uint64_t> max(self.ready, 0)
        cdef uint64_t blocked
        cdef Member m
        if self.is_fan_out and self.members:
            departed = self.next
            for m in self.members.values():
                departed = min(departed, m.cursor)
        core.ledger_departed_set(self.control, departed)
        core.ledger_in_flight_set(self.control, <uint64_t> max(self.in_flight, 0))
        core.ledger_consumers_set(self.control, len(self.members))
        if not self.queue.is_full:
            blocked = core.ledger_blocked_take(self.control)
            if blocked & (<uint64_t> 1 << self.queue.worker):
                self.queue.mark()
            if blocked & ~(<uint64_t> 1 << self.queue.worker):
                self.queue.table.board.mark(blocked & ~(<uint64_t> 1 << self.queue.worker), self.queue.stream.slot)
        return 0

    cdef _set_timer(self, int64_t now_ms):
        cdef Member m
        due = self.delayed[0][0] if self.delayed else NEVER
        if self.is_fan_out:
            for m in self.members.values():
                if m.again and m.again[0][0] > now_ms:
                    due = min(due, m.again[0][0])
        if self.expiry is not None:
            due = min(due, self.expiry.due_ms(now_ms, self._oldest(), self._head_timestamp))
        if due < NEVER:
            self.timer.at_most(due)


cdef uint32_t priority_of(message_view *m) noexcept:
    """0 low to 3 critical: the header `priority` as a word or a number, else AMQP's own (4 is normal)."""
    cdef amqp_pairs it
    cdef amqp_pair pair
    cdef unsigned char own
    cdef char text[16]
    cdef size_t size
    if not m.is_amqp:
        return PRIORITY_NORMAL
    core.amqp_pairs_begin(&it, m.amqp.application_properties, m.amqp.application_properties_size)
    while core.amqp_pairs_next(&it, &pair):
        if pair.key_bytes != 8 or (<char *> pair.key)[:8] != b"priority":
            continue
        size = core.amqp_value_text(&pair.value, text, sizeof(text))
        if 0 < size <= sizeof(text):
            return _priority_text(text[:size])
        return PRIORITY_NORMAL
    if core.amqp_header_priority(&m.amqp, &own):
        return 1 if own == 4 else 0 if own < 4 else 2 if own < 8 else 3
    return PRIORITY_NORMAL


cdef dict PRIORITY_WORDS = {b"low": 0, b"normal": 1, b"high": 2, b"critical": 3}


cdef uint32_t _priority_text(bytes text) noexcept:
    found = PRIORITY_WORDS.get(text.strip().lower())
    if found is not None:
        return found
    try:
        return min(max(int(text), 0), 3)
    except ValueError:
        return PRIORITY_NORMAL
