# SPDX-License-Identifier: Apache-2.0
"""A copy of each message to every consumer that was there when it came: FanOutWithAck and FanOutWithoutAck.

Each member has its own place in the log, so a slow one delays nobody.  Members at the end get a new message
together, read once; those behind are served from the entries.  An entry is settled by the first
acknowledgement of any copy: from then on nobody new is given the message.  It leaves the queue when every
member that owed it has settled its copy or is gone; if they all went without a word it is given
to those who are there, or waits for the next to come.
"""

import heapq
import logging

from vibemq.broker.home cimport BUDGET
from vibemq.broker.messages cimport message_view
from vibemq.broker.queue cimport MODE_FAN_OUT_WITHOUT_ACK, Queue
from vibemq.broker.rotation cimport reason_of
from vibemq.storage cimport core
from vibemq.storage.core cimport (
    ERR_NOT_CACHED, LEDGER_IN_FLIGHT, LEDGER_READY, LEDGER_SETTLED, OK, commit, err, fault, ledger_entry, ledger_word,
)
from vibemq.storage.log cimport storage_error

from vibemq.broker.policy import Overflow
from vibemq.broker.timers import NEVER

cdef enum:
    # What a turn may give each of many members: a send to one costs as much as eight deliveries to it.
    MESSAGES_PER_MEMBER = 16

logger = logging.getLogger(__name__)


cdef class FanOut(Home):
    def __init__(self, Queue queue, generation, make_dead_letter_queue):
        self.entries_are_owned = False
        super().__init__(queue, generation, make_dead_letter_queue)

    # ---- members ----

    cdef int admit(self, Member m, bint fresh, uint64_t seen) except -1:
        if fresh and len(self.members) == 1:
            m.start = m.cursor = core.ledger_base(self.control)  # nobody was there: the backlog is its own
            m.skip_below = self.next
        else:
            m.start = m.cursor = seen
        m.low = m.cursor
        return 0

    cdef int came_back(self, Member m, uint64_t offset, uint32_t attempts, uint32_t strikes, int64_t due_ms) except -1:
        if strikes >= <uint32_t> self.queue.policy.attempts_max:
            return self._bury(offset, reason_of(strikes), attempts)
        if not m.gone:  # else: inherit() has looked after it
            heapq.heappush(m.again, (due_ms, offset, attempts, strikes))
        return 0

    cdef uint64_t _lowest(self, Member m):
        """Nothing below is owed to the member any more."""
        cdef uint64_t low = m.cursor
        if m.consumer is not None:
            low = min(low, m.consumer.lowest())
        elif m.received < m.handed:
            return m.low  # something is on its way: what it has reported is not all
        else:
            low = min(low, m.reported)
        for item in m.again:
            low = min(low, <uint64_t> item[1])
        m.low = low
        return low

    cdef int inherit(self, Member gone) except -1:
        """What it still owed and nobody else does is given to all who are there."""
        cdef Member m
        cdef uint64_t offset, first_start
        if not self.members:
            return self._all_left(gone)
        first_start = min([(<Member> other).start for other in self.members.values()])
        if first_start > self.next:
            # Messages that nobody has been given yet, and that only it was there for.
            for m in self.members.values():
                if m.start == first_start:
                    m.start = m.cursor = self.next
        if gone.low >= first_start and not gone.inherited:
            return 0
        if gone.inherited:
            first_start = max(first_start, <uint64_t> max(gone.inherited) + 1)
        owed = {offset: (attempts, strikes) for _, offset, attempts, strikes in gone.again if offset < first_start}
        if gone.consumer is None:  # perhaps its worker died: then nothing was given back
            owed |= {offset: (1, 0) for offset in range(gone.low, min(gone.cursor, first_start)) if offset not in owed}
        owed |= {offset: (0, 0) for offset in range(gone.cursor, min(self.next, first_start))}
        for offset, (attempts, strikes) in owed.items():
            entry = core.ledger_entry_of(self.raw, offset, NULL)
            if entry == NULL or core.ledger_word_get(entry) & 7 == LEDGER_SETTLED:
                continue
            if any([offset >= (<Member> other).start or offset in (<Member> other).inherited
                    for other in self.members.values()]):
                continue  # somebody still owes it
            for m in self.members.values():
                self._pass_on(m, offset, attempts, strikes)
        return 0

    cdef int _pass_on(self, Member to, uint64_t offset, uint32_t attempts, uint32_t strikes) except -1:
        to.inherited.add(offset)
        to.inherited_below = max(to.inherited_below, offset + 1)
        heapq.heappush(to.again, (0, offset, attempts, strikes))
        return 0

    cdef int _all_left(self, Member gone) except -1:
        """Whatever nobody has acknowledged waits for the next who comes."""
        cdef uint64_t offset
        cdef uint64_t word
        cdef ledger_entry *entry
        cdef ledger_word w
        cdef dict again = {offset: strikes for _, offset, _, strikes in gone.again}
        self.ready = 0
        self._ready_from_base()
        for offset in range(core.ledger_base(self.control), self.next):
            entry = core.ledger_entry_of(self.raw, offset, NULL)
            if entry == NULL or self.dead and offset in self.dead:
                continue
            word = core.ledger_word_get(entry)
            if word & 7 == LEDGER_SETTLED:
                continue
            if self.queue.mode == MODE_FAN_OUT_WITHOUT_ACK and offset < gone.cursor:
                self._settle_one(offset)
            else:
                w = core.ledger_unpack(word)
                w.state, w.strikes = LEDGER_READY, max(w.strikes, <uint32_t> again.get(offset, 0) if again else 0)
                core.ledger_word_set(entry, core.ledger_pack(w))
                self.ready += 1
        return 0

    cdef int taken_over(self, uint64_t base) except -1:
        """Copies whose owners died, and that nobody owes or has acknowledged, are given to all."""
        cdef Member m
        cdef uint64_t offset, first_cursor
        if not self.members:
            offset = core.ledger_find(self.raw, base, self.next, LEDGER_IN_FLIGHT, 0)
            while offset < self.next:
                self._set_ready(offset)
                offset = core.ledger_find(self.raw, offset + 1, self.next, LEDGER_IN_FLIGHT, 0)
        else:
            first_cursor = min(self.next, <uint64_t> min([(<Member> other).cursor for other in self.members.values()]))
            offset = core.ledger_find(self.raw, base, first_cursor, LEDGER_IN_FLIGHT, 0)
            while offset < first_cursor:
                if offset not in self.kept:
                    entry = core.ledger_entry_of(self.raw, offset, NULL)
                    attempts = core.ledger_unpack(core.ledger_word_get(entry)).attempts if entry != NULL else 1
                    for m in self.members.values():
                        self._pass_on(m, offset, attempts, 0)
                offset = core.ledger_find(self.raw, offset + 1, first_cursor, LEDGER_IN_FLIGHT, 0)
        self.ready = core.ledger_count(self.raw, base, self.next, LEDGER_READY)
        return 0

    # ---- one turn ----

    cdef bint hand_out(self) except -1:
        cdef Member m
        cdef message_view v
        cdef int budget
        cdef bint able
        cdef commit committed
        cdef list members = list(self.members.values())
        budget = max(<int> BUDGET, MESSAGES_PER_MEMBER * <int> len(members))
        for m in members:
            self._copies(m, &budget)
            if self.fetching:
                return False
        core.control_committed(self.queue.stream.log.control, &committed)
        while budget > 0:
            able = False
            for m in members:
                able = able or (m.cursor < committed.next_offset and self._can(m))
            if not able or self._pick_new(&v) != OK:
                return False
            budget -= 1
            for m in members:
                if m.cursor == v.offset and self._can(m):
                    m.cursor += 1
                    self._give(m, &v, 1, 0)
                    budget -= 1
            self.settling = True
        return True

    cdef int _copies(self, Member to, int *budget) except -1:
        """What came back from this member, and what it is behind with."""
        cdef message_view v
        cdef fault f
        cdef err e
        cdef uint64_t offset
        cdef uint32_t attempts, strikes
        cdef bint came_back
        while budget[0] > 0 and self._can(to):
            came_back = bool(to.again) and to.again[0][0] <= self.queue.table.now_ms
            if came_back:
                _, offset, attempts, strikes = to.again[0]
            elif to.cursor < self.next:
                offset, attempts, strikes = to.cursor, 0, 0
            else:
                return 0
            self.entry = core.ledger_entry_of(self.raw, offset, NULL)
            if self.entry != NULL:
                self.word = core.ledger_unpack(core.ledger_word_get(self.entry))
            if self.entry == NULL or offset < self.expired or self.dead and offset in self.dead or (
                    not came_back and offset < to.skip_below and self.word.state == LEDGER_SETTLED):
                self._pass(to, came_back)
                continue
            e = self.probe.look(offset, self._segment_of(offset), self.entry.place, <unsigned short> self.word.index, &v, &f)
            if e == ERR_NOT_CACHED:
                self._failed_read(e, &v, self.probe)
                return 0
            if e != OK:
                logger.error("queue %s: message %d cannot be read: %s", self.queue.name, offset, storage_error(e, &f))
                self._pass(to, came_back)
                continue
            if offset < to.skip_below and not came_back:  # its last owners are gone: another attempt
                self.ready -= self.word.state == LEDGER_READY
                attempts, strikes = self.word.attempts, self.word.strikes
            self._pass(to, came_back)
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

    # ---- what does not wait any longer ----

    cdef int passed(self, uint64_t upto) except -1:
        cdef Member m
        for m in self.members.values():
            if m.cursor < upto:
                m.cursor = upto
                self.settling = True
            if m.again and min([item[1] for item in m.again]) < upto:
                m.again = [item for item in m.again if item[1] >= upto]
                heapq.heapify(m.again)
                self.settling = True
        return 0

    cdef bint _overflow(self) except -1:
        """DropOldest with members: who is too far behind loses what is too much for the queue."""
        cdef commit committed
        cdef uint64_t most = self.queue.max_messages
        cdef uint64_t first
        cdef Member m
        if not self.members:
            return Home._overflow(self)
        if not most or self.queue.policy.overflow is not Overflow.DROP_OLDEST:
            return False
        core.control_committed(self.queue.stream.log.control, &committed)
        if committed.next_offset <= most or committed.next_offset == self.arrived:
            return False
        self.arrived = committed.next_offset
        first = min(committed.next_offset - most, self.next)
        for m in self.members.values():
            if m.cursor < first:
                core.ledger_dropped_add(self.control, first - m.cursor)
                m.cursor = first
                self.settling = True
        return False

    # ---- the end of a turn ----

    cdef uint64_t floor(self) except? 0:
        cdef uint64_t floor = self.next
        cdef Member m
        for m in self.members.values():
            floor = min(floor, self._lowest(m))
        if self.dead:
            floor = min(floor, <uint64_t> min(self.dead))
        return floor

    cdef int _settle_base(self) except -1:
        cdef uint64_t floor, offset
        cdef Member m
        if self.members:
            floor = self.floor()
            for offset in range(core.ledger_base(self.control), floor):
                self._settle_one(offset)
            for m in self.members.values():
                if m.inherited_below <= floor:
                    m.inherited.clear()
        return Home._settle_base(self)

    cdef uint64_t departed(self) except? 0:
        cdef uint64_t lowest = self.next
        cdef Member m
        if not self.members:
            return Home.departed(self)
        for m in self.members.values():
            lowest = min(lowest, m.cursor)
        return lowest

    cdef object next_due(self):
        cdef Member m
        due = NEVER
        for m in self.members.values():
            if m.again:
                due = min(due, m.again[0][0]) if m.again[0][0] > self.queue.table.now_ms else due
        return due
