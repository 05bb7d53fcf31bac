# SPDX-License-Identifier: Apache-2.0
"""The home of a queue: the one place where it is decided who gets which message.

Every turn that brings news (messages, acknowledgements, consumers) ends with one ``dispatch``:
what is too much, too old or purged is taken out first (backlog.pyx); then messages go to whoever has room,
in the manner of the queue's mode (rotation.pyx, fanout.pyx); then `base` moves over what is settled.

What is in flight at consumers of this worker is settled by this worker, at others by theirs, in the
ledger itself (queue.pyx).  So a new home needs only to ask the other workers what they have: it says
HELLO, and hands nothing out until each of them has answered or has died.
"""

from libc.string cimport memset

from vibemq.broker.backlog cimport RETRY_MS
from vibemq.broker.inflight cimport NO_SLOT
from vibemq.broker.queue cimport MODE_FAN_OUT_WITHOUT_ACK, UNSUITED, Queue
from vibemq.storage cimport core
from vibemq.storage.core cimport (
    LEDGER_DEAD, LEDGER_DELAYED, LEDGER_IN_FLIGHT, LEDGER_READY, LEDGER_SETTLED, ledger_each,
)
from vibemq.storage.mail cimport (
    LETTER_HAND, LETTER_HELLO, LETTER_JOIN, LETTER_KEPT, LETTER_LEAVE, LETTER_RETURNED, LETTER_SETTLED, LETTER_TOLD,
)

from vibemq.broker.timers import NEVER


cdef class Member:
    def __cinit__(self):
        self.again, self.inherited, self.owed = [], [], ()
        self.reported = <uint64_t> -1


cdef Member NOBODY = Member()
NOBODY.gone = True


cdef class Home(Backlog):
    def __init__(self, Queue queue, uint32_t generation, make_dead_letter_queue):
        super().__init__(queue, make_dead_letter_queue)
        self.generation = generation
        self.members, self.awaited, self.kept = {}, set(), set()
        queue.read_news()
        self._take_over()

    cdef int stop(self) except -1:
        Backlog.stop(self)
        for m in self.members.values():
            if (<Member> m).consumer is not None:
                (<Member> m).consumer.member = None
        return 0

    cdef bint is_idle(self) except -1:
        return not self.members and not self.awaited and not self.letters_waiting and not self.fetching \
            and not self.overflows()

    # ---- what the two kinds of home do in their own way ----

    cdef int admit(self, Member m, bint fresh, uint64_t seen) except -1:
        """A consumer has come; `fresh`: it was given nothing yet, else it has seen everything below `seen`."""
        return 0

    cdef int came_back(self, Member m, uint64_t offset, uint32_t attempts, uint32_t strikes, int64_t due_ms) except -1:
        """A message was given back and may go out again at `due_ms` (0: at once)."""
        return 0

    cdef int unsuited(self, Member m, uint64_t offset, uint32_t attempts) except -1:
        """A member that still is there cannot be given this message."""
        return 0

    cdef int has_room(self, Member m) except -1:
        """A member may be given something again."""
        return 0

    cdef int inherit(self, Member gone) except -1:
        """A member has left; it has given back before what it had in flight, unless its worker died."""
        return 0

    cdef int worker_died(self, set dead) except -1:
        """What was in flight at these (worker, life) will not be settled by anybody."""
        return 0

    cdef int taken_over(self, uint64_t base) except -1:
        """All members are known, and so is what they have: ``kept``."""
        return 0

    cdef bint hand_out(self) except -1:
        """Give messages to whoever has room; True when the budget was used up."""
        return False

    cdef uint64_t departed(self) except? 0:
        """The log's next offset less this is how many messages wait."""
        return self.next - <uint64_t> max(self.ready + <int64_t> len(self.delayed), 0)

    cdef object next_due(self):
        """When something besides the backlog falls due, in ms."""
        return NEVER

    # ---- taking over ----

    def _take_over(self):
        """Make the states that another home left right, and ask the other workers what they have."""
        cdef uint64_t base = core.word_load(&self.control.base)
        cdef ledger_each each
        cdef uint64_t offset
        cdef uint32_t worker
        cdef Consumer consumer
        cdef Queue queue = self.queue
        cdef uint64_t others = core.word_load(&self.control.workers) & ~(<uint64_t> 1 << queue.worker)
        cdef size_t i
        for state in (LEDGER_DEAD, LEDGER_DELAYED):  # nobody is left to finish what that home had begun
            each = core.ledger_each_of(self.raw, base, self.next, state)
            while core.ledger_each_next(&each):
                core.ledger_set_state(each.entry, LEDGER_READY)
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
            returned, consumer.returned = consumer.returned, {}
            for offset, (due_ms, attempts, strikes) in returned.items():
                self.kept.add(offset)
                self.came_back(<Member> consumer.member, offset, attempts, strikes, due_ms)
            for i in range(consumer.pending_head, consumer.pending_size):
                # Handed over by the last home and not written yet: it goes out anew, in its order.
                queue._give_back(consumer, consumer.pending[i].offset, max(consumer.pending[i].attempts, 1) - 1,
                                 consumer.pending[i].strikes, 0)
            consumer.pending_head = consumer.pending_size = 0
        if not self.awaited:
            self._taken_over()

    cdef int _has_told(self, uint32_t worker, uint32_t epoch) except -1:
        if (worker, epoch) in self.awaited:
            self.awaited.discard((worker, epoch))
            if not self.awaited:
                self._taken_over()
        return 0

    cdef int _taken_over(self) except -1:
        cdef uint64_t base = core.word_load(&self.control.base)
        cdef uint64_t offset
        self.ready = 0
        self._ready_from_base()
        self.taken_over(base)
        self.kept = set()
        self.settling = True
        return self.queue.mark()

    # ---- members ----

    cdef int join(self, Consumer consumer) except -1:
        cdef Member m = Member()
        m.consumer, m.worker, m.life = consumer, self.queue.worker, self.queue.life
        m.consumer_id, m.prefetch, m.outstanding = consumer.consumer_id, consumer.prefetch, consumer.own.count
        m.follows, m.peer = consumer.follows, consumer.peer
        self.in_flight += m.outstanding
        consumer.member = m
        self.members[m.worker, m.consumer_id] = m
        self.admit(m, consumer.fresh, consumer.seen)
        return self.queue.mark()

    cdef int leave(self, Consumer consumer) except -1:
        if consumer.member is not None:
            self._leave(<Member> consumer.member)
            consumer.member = None
        return 0

    cdef int _leave(self, Member m) except -1:
        m.gone = True
        self.in_flight -= m.outstanding
        m.outstanding = 0
        self.members.pop((m.worker, m.consumer_id), None)
        self.inherit(m)
        self.settling = True
        return self.queue.mark()

    cdef bint _can(self, Member m) noexcept:
        """May it be given one more now?"""
        if m.gone or m.failed or m.outstanding >= m.prefetch:
            return False
        if m.consumer is not None and not m.consumer.room():
            m.consumer.stalled = True
            return False
        return True

    cdef int altered(self, object had) except -1:
        cdef Member m
        Backlog.altered(self, had)
        for m in self.members.values():
            if m.follows:
                m.prefetch = self.queue.prefetch()
                self.has_room(m)
        return self.queue.mark()

    cdef int room_again(self, Consumer consumer) except -1:
        if consumer.member is not None:
            self.has_room(<Member> consumer.member)
            self.queue.mark()
        return 0

    cdef int seats_changed(self) except -1:
        """Members on workers that died are gone, and what they had in flight goes to others."""
        cdef Member m
        cdef Queue queue = self.queue
        dead = set()
        for m in list(self.members.values()):
            if m.life != core.ledger_life(core.doorbell_epoch(queue.table.board.raw, m.worker)):
                dead.add((m.worker, m.life))
                self._leave(m)
        for worker, epoch in list(self.awaited):
            if core.doorbell_epoch(queue.table.board.raw, worker) != epoch:
                self._has_told(worker, epoch)
        if dead:
            self.worker_died(dead)
        return 0

    # ---- what they say ----

    cdef int settled(self, Consumer consumer, uint64_t offset) except -1:
        cdef Member m
        core.word_add(&self.control.acked, 1)
        self.settling = True
        if consumer.member is not None:
            m = <Member> consumer.member
            m.outstanding -= 1
            self.in_flight -= 1
            self.has_room(m)
        return self.queue.mark()

    cdef int returned(self, Consumer consumer, uint64_t offset, uint32_t attempts, uint32_t strikes, int64_t delay_ms) except -1:
        if consumer.member is not None:
            return self._returned(<Member> consumer.member, offset, attempts, strikes, delay_ms)
        self.came_back(NOBODY, offset, attempts, strikes, 0)  # its consumer has left meanwhile
        return self.queue.mark()

    cdef int _returned(self, Member m, uint64_t offset, uint32_t attempts, uint32_t strikes, int64_t delay_ms) except -1:
        cdef int64_t due_ms = self.queue.table.now_ms + delay_ms if delay_ms > 0 else 0
        m.outstanding -= 1
        self.in_flight -= 1
        if delay_ms == UNSUITED:
            self.unsuited(m, offset, attempts)
        else:
            self.came_back(m, offset, attempts, strikes, due_ms)
        self.has_room(m)
        if due_ms:
            self.timer.at_most(due_ms)
        return self.queue.mark()

    cdef int letter_from(self, const letter *what) except -1:
        """A worker with consumers says something."""
        cdef Member m
        if what.generation != self.generation or self.stopped:
            return 0
        if what.kind == LETTER_TOLD:
            return self._has_told(what.sender, core.doorbell_epoch(self.queue.table.board.raw, what.sender))
        if what.kind == LETTER_JOIN:
            return self._join_letter(what)
        found = self.members.get((what.sender, what.consumer))
        if found is None:
            if what.kind == LETTER_RETURNED:  # handed to one who had left: never sent
                self.came_back(NOBODY, what.offset, max(what.attempts, 1) - 1, what.strikes, 0)
                self.queue.mark()
            return 0
        m = <Member> found
        if what.kind == LETTER_KEPT:
            self.kept.add(what.offset)
            m.reported = min(m.reported, what.offset)
            m.low = min(m.low, what.offset)
            m.outstanding += 1
            self.in_flight += 1
        elif what.kind == LETTER_LEAVE:
            self._leave(m)
        elif what.kind == LETTER_SETTLED:
            m.outstanding -= what.count
            self.in_flight -= what.count
            m.received, m.reported = what.received, what.low
            core.word_add(&self.control.acked, what.count)
            self.settling = True
            self.has_room(m)
            self.queue.mark()
        elif what.kind == LETTER_RETURNED:
            m.received, m.reported = what.received, what.low
            if what.index:
                self._returned(m, what.offset, what.attempts, what.strikes, UNSUITED)
            else:
                self._returned(m, what.offset, what.attempts, what.strikes, what.count)
        return 0

    cdef int _join_letter(self, const letter *what) except -1:
        cdef Member m
        if self.is_idle() and not self.queue.consumers:
            self.queue.hand_over(what.sender)  # its only consumers are there: so shall be its decisions
            return 0
        m = Member()
        m.worker, m.consumer_id, m.prefetch, m.follows = what.sender, what.consumer, what.count, what.index != 0
        m.life = core.ledger_life(core.doorbell_epoch(self.queue.table.board.raw, what.sender))
        m.peer = what.attempts
        self.members[m.worker, m.consumer_id] = m
        self.admit(m, what.received != 0, what.low)
        return self.queue.mark()

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
        more = self._bury_due(now_ms) or more
        if not self.fetching and (self.expiry is None or self.next >= self.expired):
            more = self.hand_out() or more  # but nothing that has expired, while that cannot be taken out
        more = self._overflow() or more  # afterwards: what a consumer has room for is not too much
        if self.settling:
            self._settle_base()
        self._publish()
        due = self.next_due()
        if self.graves:
            due = min(due, max(self.graves[0][0], now_ms + (RETRY_MS if self.queue.table.holds_copies else 1)))
        if self.delayed:
            due = min(due, self.delayed[0][0])
        if self.expiry is not None:
            due = min(due, self.expiry.due_ms(now_ms, self._oldest()))
        if due < NEVER:
            self.timer.at_most(due)
        return more

    cdef int _give(self, Member to, message_view *m, uint32_t attempts, uint32_t strikes) except -1:
        """The message in hand is in flight at `to` from here on; its entry says so before any byte of it leaves."""
        cdef letter l
        self.word.state, self.word.worker, self.word.life = LEDGER_IN_FLIGHT, to.worker, to.life
        self.word.attempts = min(attempts, <uint32_t> core.LEDGER_ATTEMPTS_MAX)
        self.word.strikes = strikes
        if self.entries_are_owned or (self.queue.mode != MODE_FAN_OUT_WITHOUT_ACK
                                      and core.ledger_state_of(core.word_load(&self.entry.word)) != LEDGER_SETTLED):
            core.word_store(&self.entry.word, core.ledger_pack(self.word))
        core.word_add(&self.control.delivered, 1)
        self.moved = True
        if attempts > 1:
            core.word_add(&self.control.redelivered, 1)
        if to.consumer is not None:
            if self.queue.mode != MODE_FAN_OUT_WITHOUT_ACK:
                to.outstanding += 1
                self.in_flight += 1
            try:
                to.consumer.take(m, attempts, strikes)
            except Exception as problem:
                to.failed = True
                to.consumer.failed(problem)
            return 0
        to.handed += 1
        to.outstanding += 1  # of a fan-out without acknowledgement too: it bounds what is on its way
        self.in_flight += 1
        memset(&l, 0, sizeof(l))
        l.kind, l.sender, l.slot, l.tag = LETTER_HAND, self.queue.worker, self.queue.stream.slot, self.queue.tag
        l.generation, l.consumer, l.attempts, l.strikes = self.generation, to.consumer_id, attempts, strikes
        l.offset, l.segment, l.place, l.index = m.offset, m.segment, m.place, m.index
        self.queue.table.mail.send(to.worker, &l)
        return 0

    cdef int _publish(self) except -1:
        """What other workers see: how much waits, is in flight, and who may publish again."""
        cdef uint64_t blocked
        cdef uint64_t here = <uint64_t> 1 << self.queue.worker
        core.word_store(&self.control.departed, self.departed())
        core.word_store(&self.control.looked, self.arrived + 1)
        core.word_store(&self.control.in_flight, <uint64_t> max(self.in_flight, 0))
        core.word_store(&self.control.consumers, len(self.members))
        if not self.queue.is_full:
            blocked = core.word_take(&self.control.blocked)
            if blocked & here:
                self.queue.mark()
            if blocked & ~here:
                self.queue.table.board.mark(blocked & ~here, self.queue.stream.slot)
        return 0
