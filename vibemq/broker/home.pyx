# SPDX-License-Identifier: Apache-2.0
"""The home of a queue: the one place where it is decided who gets which message.

Every turn that brings news (messages, acknowledgements, consumers) ends with one ``dispatch``: what is too old or
purged is taken out of what waits (backlog.pyx); then messages go to whoever has room, in the manner of the queue's
mode (rotation.pyx or fanout.pyx); what is too much overflows; then `base` moves over what is settled.

WHO IS HOME.  The ledger's page names worker, seat epoch and a generation that each claim raises.  Whoever needs a
home and finds none (or a dead one) claims it by compare-and-swap.  Letters of older generations are dropped.

What is in flight at consumers of this worker is settled by this worker, at others by theirs, in the
ledger itself (queue.pyx).  So a new home needs only to ask the other workers what they have: it says
HELLO, and hands nothing out until each of them has answered or has died.  What a dead home had handed over too late
for anybody to tell of is ready again then.
"""

import heapq
import logging
from functools import partial

from vibemq.broker.backlog cimport GOES_ON, RETRY_MS, WORKED_OFF
from vibemq.broker.client cimport NO_SLOT
from vibemq.broker.queue cimport UNSUITED
from vibemq.storage cimport core
from vibemq.storage.core cimport LEDGER_DEAD, LEDGER_DELAYED, LEDGER_READY, commit, ledger_damage, ledger_each
from vibemq.storage.meters cimport now_us
from vibemq.storage.shm cimport (
    LETTER_HELLO, LETTER_JOIN, LETTER_KEPT, LETTER_LEAVE, LETTER_RETURNED, LETTER_SETTLED, LETTER_TOLD, Board,
)

from vibemq.broker.options import FailureReason
from vibemq.broker.timers import NEVER
from vibemq.storage.log import drop_settled, ledger_sync

logger = logging.getLogger(__name__)

cdef enum:
    SEATS_LOOKED_AT_MAX = 1000  # for each new member: some microseconds
    OVERDUE_WINDOW = 2       # the message that it does not settle, and one that it may settle
    SYNC_EVERY_MS = 10_000   # of a queue with durability `disk`: what was settled since then comes again after a power cut


cdef bint home_is_alive(Queue queue, ledger_home home) noexcept:
    if home.worker >= queue.table.mail.workers:  # or nobody
        return False
    return core.ledger_home_sits(home, core.doorbell_epoch(queue.table.board.raw, home.worker))


cdef ledger_home home_of(Queue queue) noexcept:
    cdef uint64_t word = core.word_load(&queue.control.home)
    while not home_is_alive(queue, core.ledger_home_unpack(word)):
        core.ledger_home_claim(&queue.control.home, &word, queue.worker,
                               core.doorbell_epoch(queue.table.board.raw, queue.worker))
    return core.ledger_home_unpack(word)


cdef uint64_t departed_now(Queue queue) except? 0:
    cdef uint64_t base, next
    if queue.home is not None:
        return queue.home.backlog.departed()
    if queue._is_fan_out():
        return core.word_load(&queue.control.departed)  # only the home knows the members' copies
    next = core.word_load(&queue.control.next)
    base = min(core.word_load(&queue.control.base), next)
    return next - core.ledger_count(queue.raw, base, next, LEDGER_READY) \
        - core.ledger_count(queue.raw, base, next, LEDGER_DELAYED)


cdef int introduce_consumers(Queue queue, ledger_home home) except -1:
    """Tell a home elsewhere that does not know them of all consumers of this worker, and of what they have."""
    cdef Consumer consumer
    cdef letter join, kept
    cdef int32_t slot
    cdef size_t i
    queue.told = home.generation
    for consumer in queue.consumers.values():
        consumer.received = 0
        consumer.settled_count = 0
        join = queue.letter_of(LETTER_JOIN, queue.told, consumer)
        kept = queue.letter_of(LETTER_KEPT, queue.told, consumer)
        queue.table.mail.send(home.worker, &join)
        slot = consumer.own.first
        while slot != NO_SLOT:
            kept.offset = consumer.deliveries.slots[slot].offset
            queue.table.mail.send(home.worker, &kept)
            slot = consumer.deliveries.slots[slot].next
        for i in range(consumer.pending_head, consumer.pending_size):
            kept.offset = consumer.pending[i].offset
            queue.table.mail.send(home.worker, &kept)
        returned, consumer.returned = consumer.returned, {}
        for offset, (due_ms, attempts, strikes) in returned.items():
            kept.offset = offset
            queue.table.mail.send(home.worker, &kept)
            queue.give_back_message(consumer, offset, attempts, strikes, max(<int64_t> due_ms - queue.table.now_ms, 0))
    join = queue.letter_of(LETTER_TOLD, queue.told, None)
    queue.table.mail.send(home.worker, &join)
    return 0


cdef Member NOBODY = Member()
NOBODY.gone = True


cdef class Home:
    def __init__(self, Queue queue, uint32_t generation, mode):
        """`mode`: Rotation or FanOut."""
        self.queue, self.generation, self.backlog = queue, generation, mode(queue, generation)
        self.awaited, self.kept = set(), set()
        queue.read_news()
        self._take_over()

    cdef int stop(self) except -1:
        return self.backlog.stop()

    cdef bint is_idle(self) except -1:
        return not self.backlog.members and not self.awaited and self.backlog.is_idle()

    cdef int tick(self) except -1:
        """Sync what was settled, if that is due; make room on a full disk."""
        cdef Queue queue = self.queue
        cdef int64_t now_ms = queue.table.now_ms
        if self.unsynced and queue.stream.is_disk_durable and now_ms - self.synced_ms > SYNC_EVERY_MS:
            self.unsynced, self.synced_ms = False, now_ms
            queue.table.helpers.submit_sync(partial(ledger_sync, queue.stream.log.directory), self._synced)
        if queue.table.makes_room:
            self._make_room()
        return self.backlog.tick()

    def _synced(self, result, error):
        if error is not None and not self.backlog.stopped:
            logger.error("queue %s: its ledger is not synced: %s", self.queue.name, error)

    def _make_room(self):
        """On a full disk: of a queue that is empty nothing need stay, not even the segment that is written to."""
        cdef Queue queue = self.queue
        cdef commit committed
        cdef uint64_t base = core.word_load(&queue.control.base)
        if queue.options.keep or self.backlog.stopped or self.making_room:
            return
        core.control_committed(queue.stream.log.control, &committed)
        if base == committed.next_offset and <uint64_t> committed.segment < base:
            queue.stream.rest()  # its descriptors would keep the room
            drop = partial(drop_settled, queue.stream.log.directory, base)  # which makes a new segment first
            self.making_room = True
            queue.table.helpers.submit_remove(partial(queue.table.reserve.retry, drop), self._made_room)

    def _made_room(self, result, error):
        self.making_room = False
        self.backlog.segments_dropped(result, error)

    # ---- taking over ----

    def _take_over(self):
        """Make the states that another home left right, and ask the other workers what they have."""
        cdef Queue queue = self.queue
        cdef Backlog backlog = self.backlog
        cdef uint64_t others = core.word_load(&queue.control.workers) & ~(<uint64_t> 1 << queue.worker)
        cdef letter hello = queue.letter_of(LETTER_HELLO, self.generation, None)
        cdef ledger_each each
        cdef ledger_damage damage = core.ledger_verify(queue.raw)
        cdef uint32_t worker
        cdef Consumer consumer
        cdef size_t i
        if damage.blocks:
            logger.error("queue %s: %d files of its ledger are missing, the first is %s/%020d.ledger", queue.name,
                         damage.blocks, queue.stream.log.directory, damage.block)
        if damage.entries:
            logger.error("queue %s: its ledger is damaged: %d messages, the first at offset %d, are delivered again",
                         queue.name, damage.entries, damage.offset)
        for state in (LEDGER_DEAD, LEDGER_DELAYED):  # nobody is left to finish what that home had begun
            each = core.ledger_each_of(queue.raw, core.word_load(&queue.control.base), backlog.next, state)
            while core.ledger_each_next(&each):
                core.ledger_set_state(each.entry, LEDGER_READY)
        for worker in range(queue.table.mail.workers):
            if others & (<uint64_t> 1 << worker):
                self.awaited.add((worker, core.doorbell_epoch(queue.table.board.raw, worker)))
                queue.table.mail.send(worker, &hello)
        for consumer in queue.consumers.values():
            self.join(consumer)
            slot = consumer.own.first
            while slot != NO_SLOT:
                self._keep(<Member> consumer.member, consumer.deliveries.slots[slot].offset)
                slot = consumer.deliveries.slots[slot].next
            returned, consumer.returned = consumer.returned, {}
            for offset, (due_ms, attempts, strikes) in returned.items():
                self._keep(<Member> consumer.member, offset)
                self.backlog.came_back(<Member> consumer.member, offset, attempts, strikes, due_ms)
            for i in range(consumer.pending_head, consumer.pending_size):
                # Handed over by the last home and not written yet: it goes out anew, in its order.
                queue.give_back_message(consumer, consumer.pending[i].offset, max(consumer.pending[i].attempts, 1) - 1,
                                        consumer.pending[i].strikes, 0)
            consumer.pending_head = consumer.pending_size = 0
        if not self.awaited:
            self._all_have_told()

    cdef int _keep(self, Member m, uint64_t offset) except -1:
        """Note that a member had this message in flight, or given back, under the last home."""
        self.kept.add(offset)
        if self.backlog.is_fan_out:
            if m.holds is None:
                m.holds = set()
            m.holds.add(offset)
        return 0

    def _has_told(self, uint32_t worker, uint32_t epoch):
        if (worker, epoch) in self.awaited:
            self.awaited.discard((worker, epoch))
            if not self.awaited:
                self._all_have_told()

    def _all_have_told(self):
        self.backlog.ready = 0
        self.backlog.ready_from_base()
        self.backlog.taken_over(self.kept)
        self.kept = set()
        self.backlog.settling = True
        self.queue.mark()

    # ---- members ----

    cdef int join(self, Consumer consumer) except -1:
        cdef letter l = self.queue.letter_of(LETTER_JOIN, self.generation, consumer)
        return self._admit(&l, consumer)

    cdef int _admit(self, const letter *what, Consumer consumer) except -1:
        """As its JOIN says; `consumer`: it is one of this worker's."""
        cdef Member m = Member()
        if self.backlog.is_fan_out and what.received and len(self.backlog.members) <= SEATS_LOOKED_AT_MAX:
            self.seats_changed()  # a member that returns gets the copies that its old connection left with a dead worker
        m.worker, m.consumer_id, m.prefetch, m.follows = what.sender, what.consumer, what.count, what.index & 1
        self._narrow(m, what.index & 2)
        m.life = core.ledger_life(core.doorbell_epoch(self.queue.table.board.raw, what.sender))
        m.peer, m.record = what.attempts, <uint32_t> what.offset
        if consumer is not None:
            m.consumer, m.outstanding, consumer.member = consumer, consumer.own.count, m
        self.backlog.in_flight += m.outstanding
        self.backlog.members[m.worker, m.consumer_id] = m
        try:
            self.backlog.admit(m, what.received != 0, what.low)
        except BaseException:  # a member that was not admitted must not be handed messages
            self.backlog.in_flight -= m.outstanding
            del self.backlog.members[m.worker, m.consumer_id]
            if consumer is not None:
                consumer.member = None
            raise
        return self.queue.mark()

    cdef int narrowed(self, Consumer consumer) except -1:
        if consumer.member is not None:
            self._narrow(<Member> consumer.member, consumer.overdue)
        return 0

    cdef int _narrow(self, Member m, bint overdue) except -1:
        """Set the window of a member: an overdue one gets just enough to show that it works."""
        m.overdue, m.window = overdue, min(m.prefetch, OVERDUE_WINDOW) if overdue else m.prefetch
        return 0

    cdef int leave(self, Consumer consumer, bint vanished) except -1:
        if consumer.member is not None:
            (<Member> consumer.member).vanished = vanished
            self._leave(<Member> consumer.member)
            consumer.member = None
        return 0

    cdef int _leave(self, Member m) except -1:
        m.gone = True
        self.backlog.in_flight -= m.outstanding
        m.outstanding = 0
        self.backlog.members.pop((m.worker, m.consumer_id), None)
        self.backlog.left(m)
        self.backlog.settling = True
        return self.queue.mark()

    cdef int altered(self, object had) except -1:
        cdef Member m
        self.backlog.altered(had)
        for m in self.backlog.members.values():
            if m.follows:
                m.prefetch = self.queue.prefetch()
                self._narrow(m, m.overdue)
                self.backlog.has_room(m)
        return self.queue.mark()

    cdef int room_again(self, Consumer consumer) except -1:
        if consumer.member is not None:
            self.backlog.has_room(<Member> consumer.member)
            self.queue.mark()
        return 0

    cdef int seats_changed(self) except -1:
        """Members on workers that died are gone, and what they had in flight goes to others."""
        cdef Member m
        cdef Queue queue = self.queue
        dead = set()
        for m in list(self.backlog.members.values()):
            if m.life != core.ledger_life(core.doorbell_epoch(queue.table.board.raw, m.worker)):
                dead.add((m.worker, m.life))
                m.vanished = m.died = True
                self._leave(m)
        for worker, epoch in list(self.awaited):
            if core.doorbell_epoch(queue.table.board.raw, worker) != epoch:
                self._has_told(worker, epoch)
        if dead:
            self.backlog.workers_died(dead)
        return 0

    # ---- what they say ----

    cdef int acked(self, Consumer consumer) except -1:
        """A consumer here has settled a message."""
        if consumer.member is not None:
            return self._settled(<Member> consumer.member, 1)
        return self._settled(NOBODY, 1)  # it has left meanwhile

    cdef int _settled(self, Member m, uint32_t count) except -1:
        core.word_add(&self.queue.control.acked, count)
        self.backlog.settling = True
        if m is not NOBODY:
            m.outstanding -= count
            self.backlog.in_flight -= count
            self.backlog.has_room(m)
        return self.queue.mark()

    cdef int returned(self, Consumer consumer, uint64_t offset, uint32_t attempts, uint32_t strikes,
                      int64_t delay_ms) except -1:
        """A consumer here has given a message back, which is ready or delayed (or UNSUITED)."""
        if consumer.member is not None:
            return self._returned(<Member> consumer.member, offset, attempts, strikes, delay_ms)
        self.backlog.came_back(NOBODY, offset, attempts, strikes, 0)  # it has left meanwhile
        return self.queue.mark()

    cdef int _returned(self, Member m, uint64_t offset, uint32_t attempts, uint32_t strikes,
                       int64_t delay_ms) except -1:
        cdef int64_t due_ms = self.queue.table.now_ms + delay_ms if delay_ms > 0 else 0
        m.outstanding -= 1
        self.backlog.in_flight -= 1
        if delay_ms == UNSUITED:
            self.backlog.unsuited(m, offset, attempts)
        else:
            self.backlog.came_back(m, offset, attempts, strikes, due_ms)
        self.backlog.has_room(m)
        if due_ms:
            self.backlog.timer.at_most(due_ms)
        return self.queue.mark()

    cdef int on_letter(self, const letter *what) except -1:
        """A worker with consumers says something."""
        cdef Member m
        if what.generation != self.generation or self.backlog.stopped:
            return 0
        if what.kind == LETTER_TOLD:
            self._has_told(what.sender, core.doorbell_epoch(self.queue.table.board.raw, what.sender))
            return 0
        if what.kind == LETTER_JOIN and self.is_idle() and not self.queue.consumers:
            return self.queue.move_home(what.sender)  # its only consumers are there: so shall be its decisions
        if what.kind == LETTER_JOIN:
            return self._admit(what, None)
        found = self.backlog.members.get((what.sender, what.consumer))
        if found is None:
            if what.kind == LETTER_RETURNED:  # handed to one who had left: never sent
                self.backlog.came_back(NOBODY, what.offset, max(what.attempts, 1) - 1, what.strikes, 0)
                self.queue.mark()
            return 0
        m = <Member> found
        if what.kind == LETTER_KEPT:
            self._keep(m, what.offset)
            m.reported = min(m.reported, what.offset)
            m.low = min(m.low, what.offset)
            m.outstanding += 1
            self.backlog.in_flight += 1
        elif what.kind == LETTER_LEAVE:
            m.received, m.vanished = what.received, what.strikes != 0
            self._leave(m)
        elif what.kind == LETTER_SETTLED:
            m.received, m.reported = what.received, what.low
            self._narrow(m, False)
            self._settled(m, what.count)
        elif what.kind == LETTER_RETURNED:
            m.received, m.reported = what.received, what.low
            self._narrow(m, what.index & 2)
            self._returned(m, what.offset, what.attempts, what.strikes,
                           <int64_t> UNSUITED if what.index & 1 else <int64_t> what.count)
        return 0

    # ---- one turn ----

    cdef int news(self) except -1:
        cdef uint64_t end = self.queue.log_end()
        if end == self.heard and not core.word_load(&self.queue.control.purge):
            return 0  # asked twice a second for the sake of a ringer that was killed
        self.heard = end
        if self.backlog.expiry is not None:
            self.backlog.expiry.arrived(end, now_us() // 1000 + 1)
        return self.queue.mark()

    cdef bint dispatch(self) except -1:
        cdef bint more
        cdef int left_behind
        cdef Backlog backlog = self.backlog
        cdef int64_t now_ms = self.queue.table.now_ms
        if backlog.stopped or self.awaited:
            return False
        left_behind = self.backlog.work_off()
        if left_behind != WORKED_OFF:
            return left_behind == GOES_ON
        if self._purge_is_new():
            return True
        backlog.wake_delayed(now_ms)
        more = self._take_out(now_ms)
        more = backlog.bury_due(now_ms) or more
        if not backlog.reading.fetching and (backlog.expiry is None or backlog.next >= backlog.expired):
            more = self.backlog.hand_out() or more  # but nothing that has expired, while that cannot be taken out
        more = self.backlog.overflow() or more  # afterwards: what a consumer has room for is not too much
        if backlog.settling:
            self.unsynced = True
            backlog.settle_base(backlog.floor())
        self._publish()
        self._set_timer(now_ms)
        return more

    cdef bint _purge_is_new(self) noexcept:
        """True in the first turn with an order to purge: letters that were sent before it are read first, in the next turn."""
        cdef uint64_t ordered = core.word_load(&self.queue.control.purge)
        cdef Board board = self.queue.table.board
        if ordered == self.purge_seen:
            return False
        self.purge_seen = ordered
        if ordered:  # its worker rings only at the end of its own turn
            core.doorbell_request(board.raw, board.index, core.DOORBELL_REQUEST_MAIL, board.fds[board.index])
        return ordered != 0

    cdef bint _take_out(self, int64_t now_ms) except -1:
        """What has expired or is purged; True when that is not finished."""
        cdef bint more = False
        cdef uint64_t ordered, purge, end
        if self.backlog.expiry is not None:
            end = self.queue.log_end()
            self.backlog.expiry.arrived(end, now_us() // 1000 + 1)
            if self.backlog.expiry.expired_below(now_ms) > self.backlog.expired:
                self.backlog.expired = self.backlog.expiry.expired
                self._wake_below(self.backlog.expired)
            more = self.backlog.clear(self.backlog.expired, FailureReason.MESSAGE_EXPIRED)
        ordered = core.word_load(&self.queue.control.purge)
        if ordered:
            purge = core.ledger_offset_unpack(ordered)  # 0 of a damaged word: then nothing is purged
            self._wake_below(purge)
            if self.backlog.clear(purge, None):
                return True
            # Or a later home would take what comes back from consumers.
            core.word_swap(&self.queue.control.purge, ordered, 0)
            self.purge_seen = 0
        return more

    cdef int _wake_below(self, uint64_t upto) except -1:
        """Who leaves the queue does not wait for its next attempt."""
        cdef list delayed = self.backlog.delayed
        if delayed:
            self.backlog.delayed = [(0 if offset < upto else due, offset) for due, offset in delayed]
            heapq.heapify(self.backlog.delayed)
            self.backlog.wake_delayed(self.queue.table.now_ms)
        return 0

    cdef int _publish(self) except -1:
        """What other workers see: how much waits, is in flight, and who may publish again."""
        cdef Queue queue = self.queue
        cdef uint64_t wanting
        cdef uint64_t here = <uint64_t> 1 << queue.worker
        core.word_store(&queue.control.departed, self.backlog.departed())
        core.word_store(&queue.control.looked, core.ledger_offset_pack(self.backlog.arrived + 1))
        core.word_store(&queue.control.in_flight, <uint64_t> max(self.backlog.in_flight, 0))
        core.word_store(&queue.control.consumers, len(self.backlog.members))
        if not queue.is_full:
            wanting = core.word_take(&queue.control.room_wanted)
            if wanting & here:
                queue.mark()
            if wanting & ~here:
                queue.table.board.mark(wanting & ~here, queue.stream.slot)
        return 0

    cdef int _set_timer(self, int64_t now_ms) except -1:
        """For what falls due without any news."""
        cdef Backlog backlog = self.backlog
        due = NEVER
        if backlog.graves:
            due = max(backlog.graves[0][0], now_ms + (RETRY_MS if self.queue.table.holds_copies else 1))
        if backlog.delayed:
            due = min(due, backlog.delayed[0][0])
        if backlog.expiry is not None:
            due = min(due, backlog.expiry.due_ms(now_ms, backlog.oldest()))
        if due < NEVER:
            backlog.timer.at_most(due)
        return 0
