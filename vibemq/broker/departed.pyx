# SPDX-License-Identifier: Apache-2.0
# cython: nonecheck=True
"""Members of a fan-out that vanished, and the copies that the queue keeps for them.

A member vanishes when its connection, its worker or the broker ends without its own goodbye.  Its
unacknowledged copies are kept as ranges of offsets, also of messages that other members have acknowledged.  The next
member that subscribes takes them over, by its name first.  A name with a time to live also collects later messages.  At
the end of the time, `lapse` dead-letters or drops the copies.

Each member has a record in a mapped file (storage/members.pyx), so a new home finds members that no worker
reports, with their positions.  In a range in which a member was alone, the ledger shows its acknowledgements, and only
the other messages are redelivered.  Elsewhere acknowledged copies above its lowest open one are redelivered too.
"""

import heapq
import logging
from collections import deque

from libc.stdint cimport uint32_t
from vibemq.broker.backlog cimport BUDGET, DEAD_MAX, RETRY_MS
from vibemq.broker.messages cimport NOWHERE
from vibemq.broker.queue cimport MODE_FAN_OUT_WITH_ACK
from vibemq.storage cimport core
from vibemq.storage.core cimport LEDGER_SETTLED, OK, fault, ledger_entry

from vibemq.broker.options import FailureReason
from vibemq.broker.ranges import fewer, joined, length, without
from vibemq.broker.timers import NEVER
from vibemq.once_a_minute import OnceAMinute
from vibemq.storage import clock
from vibemq.storage.members import AWAY, LEFT, SUBSCRIBED

logger = logging.getLogger(__name__)
crowding = OnceAMinute(logger)
lapsing = OnceAMinute(logger)
damaged = OnceAMinute(logger, logging.ERROR)

cdef enum:
    EARLY_MS = 5000          # a client may return so early before its worker's end is known
    LATER_COMERS_MS = 2000   # so long a member that comes after that goes before one that was back early
    # Absent unnamed members of one queue: some kilobytes each. Beyond it the first to vanish loses its copies.
    AWAY_MAX = 1024
    # Ranges and counted attempts of one of them: 100 KB. Beyond it neighbouring ranges are joined.
    RANGES_KEPT_MAX = 1024
    # Entries that are inspected for one vanished member, some milliseconds: later ones are redelivered.
    LOOKED_AT_MAX = 1_048_576
    AGE_LOOK_MS = 2000       # how often to ask whether the wall clock is believed by now


cdef class Departed:
    def __init__(self, Queue queue, uint64_t base, uint64_t next):
        """`next`: the home's. Members in the table that no worker has reported are processed in `taken_over`."""
        self.queue, self.away, self.lapsed, self.unjoined, self.due_ms = queue, {}, [], {}, NEVER
        self.unaged = {}
        self.by_record, self.by_name, self.unnamed, self.short_lived, self.were_alone = {}, {}, {}, {}, []
        if queue.members is None:
            try:
                queue.members = MemberTable(queue.record.directory, False)
            except FileNotFoundError:
                return
        for record in queue.members.all():
            if record.state == LEFT:
                queue.members.free(record.index)
            elif record.state == SUBSCRIBED:
                self.unjoined[record.index] = record
            elif record.state == AWAY:
                self._restore(record, base)
        self._tell()

    def _restore(self, record, uint64_t base):
        """Keep the copies of a member that vanished under another home."""
        cdef Member gone = Member()
        cdef uint64_t end = self.queue.log_end()
        gone.gone = gone.vanished = True
        gone.record, gone.subscriber, gone.ttl_ms = record.index, record.name, record.ttl_s * 1000
        gone.start, gone.skip_below = record.start, record.skip_below
        gone.cursor = gone.tried_below = max(base, min(record.cursor, end))
        gone.copies, gone.owed = deque(without(record.copies, [(0, base)])), deque(without(record.shared, [(0, base)]))
        if not record.is_whole:
            damaged.say(self.queue.key, "queue %s: the record of an absent member is damaged, so all messages from %d "
                        "on are delivered to it again", self.queue.name, base)
            gone.copies, gone.owed, gone.skip_below = deque([(base, end)]), deque(), 0
        away_ms = clock.age_ms(record.since_ms, record.since_stamp)
        gone.due_ms = self.queue.table.now_ms + max(self._grace_ms(None), gone.ttl_ms - (away_ms or 0))
        self._put(gone)
        self.due_ms = min(self.due_ms, gone.due_ms)
        if away_ms is None and gone.ttl_ms:  # its time begins anew, until the clock is believed
            self.unaged[gone] = record.since_ms, record.since_stamp
            self.due_ms = min(self.due_ms, self.queue.table.now_ms + AGE_LOOK_MS)

    cdef int64_t _due_ms(self, Member gone):
        if gone.died and not gone.subscriber:
            return min(gone.due_ms, gone.came_ms + LATER_COMERS_MS)
        return gone.due_ms

    cdef int64_t _grace_ms(self, Member m):
        return m.ttl_ms if m is not None and m.ttl_ms else self.queue.table.defaults.member_grace_s * 1000

    cdef int _tell(self) except -1:
        core.word_store(&self.queue.control.away, <uint64_t> len(self.away))
        return 0

    # ---- the index of vanished members: each departure and each arrival costs the same, however many there are ----

    cdef int _put(self, Member gone) except -1:
        self._measure(gone)
        if gone.record:
            self.by_record[gone.record] = gone
        if gone.subscriber:
            self.by_name.setdefault(gone.subscriber, []).append(gone)
        else:
            self.unnamed[gone] = None
        if not gone.ttl_ms:
            self.short_lived[gone] = None
        if gone.was_alone:
            self.were_alone.append(gone)
        return 0

    cdef int _drop(self, Member gone) except -1:
        if gone not in self.away:
            return 0
        del self.away[gone]
        self.is_summed = False
        self.unaged.pop(gone, None)
        self.unnamed.pop(gone, None)
        self.short_lived.pop(gone, None)
        if gone.record and self.by_record.get(gone.record) is gone:
            del self.by_record[gone.record]
        if gone.subscriber:
            self.by_name[gone.subscriber].remove(gone)
            if not self.by_name[gone.subscriber]:
                del self.by_name[gone.subscriber]
        return 0

    cdef int _measure(self, Member gone) except -1:
        """Note the lowest offset that it is owed, the number of its copies, and the end of the last one."""
        cdef uint64_t low = gone.cursor if gone.ttl_ms else NOWHERE
        # A name with a time to live is owed each message from its cursor on.
        cdef uint64_t end = gone.cursor if gone.ttl_ms else 0
        if gone.copies:
            low = min(low, <uint64_t> gone.copies[0][0])
            end = end if gone.ttl_ms else <uint64_t> gone.copies[len(gone.copies) - 1][1]
        if gone.owed:
            low = min(low, <uint64_t> gone.owed[0][0])
        for each in gone.again:
            low = min(low, <uint64_t> each[1])
        self.away[gone] = (low, length(gone.copies) + len(gone.again), end, gone.ttl_ms != 0)
        self.is_summed = False
        return 0

    cdef int _sum_up(self, uint64_t next) except -1:
        """Sum up the figures of `_measure` until a member comes or goes, or `next` passes the end of one's copies."""
        cdef uint64_t low, count, end
        cdef bint collects
        self.is_summed, self.summed_at = True, next
        self.away_low = self.sum_ends = self.open_departed = NOWHERE
        self.closed_count = 0
        for low, count, end, collects in self.away.values():
            self.away_low = min(self.away_low, low)
            if collects or end > next:
                self.open_departed = min(self.open_departed, max(end, count) - count)
                if not collects:
                    self.sum_ends = min(self.sum_ends, end)
            else:
                self.closed_count = max(self.closed_count, count)
        return 0

    # ---- connected members ----

    cdef int admitted(self, Member m) except -1:
        """Store a member's start, and the ranges that it has taken over."""
        if m.record:
            self.queue.members.keep(m.record, m.start, m.skip_below, m.debts, m.inherited)
            self.place(m)
        return 0

    cdef int came(self, Member m, bint is_first) except -1:
        """Note that a member subscribed or took copies over, so copies are shared; `is_first`: it is the only member."""
        cdef Member gone
        self.first = m if is_first else None
        for gone in self.were_alone:
            gone.was_alone = False
        self.were_alone.clear()
        if self.alone is not None and self.alone is not m:
            self._store_alone(self.alone, self.alone.alone_from, min(self.alone.alone_end, m.start, m.low))
            self.alone = None
        return 0

    cdef int remains(self, dict members) except -1:
        """Note the offset from which the only member is alone: from there on only its Ack settles an entry."""
        cdef Member m
        if self.alone is not None and self.alone.gone:
            self.alone = None
        if self.alone is not None or len(members) != 1:
            return 0
        m = next(iter(members.values()))
        self.alone = m
        # No member had acknowledged messages of the first member when it subscribed.
        return self._store_alone(m, 0 if m is self.first and (not m.debts or m.was_alone) else self.queue.log_end(), NOWHERE)

    cdef int _store_alone(self, Member m, uint64_t first, uint64_t end) except -1:
        m.alone_from, m.alone_end = first, end
        if m.record:
            self.queue.members.keep_alone(m.record, first, end)
        return 0

    cdef list _without_acknowledged(self, Backlog of, Member gone, list copies):
        """Remove the copies that `gone` has acknowledged by the ledger: those of ranges in which it was alone."""
        if gone.alone_from >= gone.alone_end or self.queue.mode != MODE_FAN_OUT_WITH_ACK:
            return copies
        settled, _ = self._states(of, without(copies, without(copies, [(gone.alone_from, gone.alone_end)])))
        return without(copies, settled)

    cdef tuple _states(self, Backlog of, list ranges):
        """Return the ranges of settled messages and those of all others; messages behind LOOKED_AT_MAX are in neither."""
        cdef uint64_t offset, since, last
        cdef int64_t looks = LOOKED_AT_MAX
        cdef ledger_entry *entry
        cdef fault f
        cdef bint is_settled, was_settled
        found = ([], [])  # by `not is_settled`
        for first, end in ranges:
            offset = since = first
            last = min(<uint64_t> end, of.next)
            was_settled = True
            while offset < last:
                entry = core.ledger_entry_of(of.raw, offset, &f)
                looks -= 1
                if looks < 0 or (entry == NULL and f.code != OK):
                    found[not was_settled].append((since, offset))
                    return joined(found[0]), joined(found[1])
                is_settled = entry == NULL or core.ledger_state_of(core.word_load(&entry.word)) == LEDGER_SETTLED
                if is_settled != was_settled:
                    found[not was_settled].append((since, offset))
                    since, was_settled = offset, is_settled
                offset += 1
            found[not was_settled].append((since, offset))
            found[1].append((max(offset, <uint64_t> first), end))  # they have no entry yet
        return joined(found[0]), joined(found[1])

    cdef list unsettled(self, Backlog of, list ranges):
        """Return the messages of those ranges that nobody has acknowledged: connected members get copies of them."""
        return self._states(of, ranges)[1]

    cdef tuple _without_passed_on(self, Member gone, list copies, list shared):
        """Remove copies that connected members have got as well: they count as shared.

        A name keeps its own copies nevertheless.  An unnamed member cannot be distinguished from the others, so their
        acknowledgements count for it.  Messages that were settled before were not passed on: they stay its own.
        """
        if gone.subscriber:
            return copies, shared
        own = joined(copies, [(each[1], each[1] + 1) for each in gone.again])
        gone.again = [each for each in gone.again if without([(each[1], each[1] + 1)], gone.passed_on)]
        return without(copies, gone.passed_on), joined(shared, without(own, without(own, gone.passed_on)))

    cdef int place(self, Member m) except -1:
        if m.record:
            self.queue.members.place(m.record, min(m.low, m.cursor), m.cursor)
        return 0

    cdef int forget(self, Member m) except -1:
        if m.record:
            self.queue.members.free(m.record)
            m.record = 0
        return 0

    cdef Member find(self, Member m):
        """Return the vanished member whose copies a new one takes over, or None: by record, by name, or unnamed."""
        cdef Member gone = self.by_record.get(m.record) if m.record else None
        if gone is None and m.subscriber in self.by_name:
            return self.by_name[m.subscriber][0]
        return gone if gone is not None else next(iter(self.unnamed), None)

    cdef int give_to_early(self, Member gone, dict members, uint64_t next) except -1:
        """Give the copies of `gone` to a member that returned before the loss of its connection was known."""
        cdef Member m
        cdef bint is_unnamed = not gone.subscriber
        for m in members.values():
            if (m.record and m.record == gone.record) or (is_unnamed and m.early) or (
                    not is_unnamed and m.subscriber == gone.subscriber):
                return self._give(m, gone, next)
        return 0

    cdef int give_all_to_early(self, dict members, uint64_t next) except -1:
        """Do the same for all vanished members of which a new home learned."""
        cdef Member m, gone
        early = deque()
        by_record, by_name = {}, {}
        for m in members.values():
            if m.record:
                by_record.setdefault(m.record, m)
            if m.subscriber:
                by_name.setdefault(m.subscriber, m)
            if m.early:
                early.append(m)
        for gone in list(self.away):
            while early and not (<Member> early[0]).early:
                early.popleft()
            m = by_record.get(gone.record)
            if m is None and gone.subscriber:
                m = by_name.get(gone.subscriber)
            elif m is None and early:
                m = early[0]
            if m is not None:
                self._give(m, gone, next)
        return 0

    cdef int _give(self, Member m, Member gone, uint64_t next) except -1:
        m.early = False
        self.take(m, gone, next)
        return self.came(m, m is self.first)

    cdef int take(self, Member m, Member gone, uint64_t next) except -1:
        """Move the copies of `gone` to `m`, and remove `gone`."""
        cdef uint64_t end = NOWHERE if gone.ttl_ms else 0
        if gone.copies:
            end = max(end, <uint64_t> gone.copies[len(gone.copies) - 1][1])
        if end > next and m.start > next:
            m.start = m.cursor = next  # messages without an entry are delivered to it as new ones
        own = [(max(m.start, m.skip_below), NOWHERE)]  # delivered by its cursor, settled or not
        copies, shared = list(gone.copies), list(gone.owed)
        m.was_alone = gone.was_alone and not m.debts
        if gone.ttl_ms:
            copies = joined(copies, [(max(gone.cursor, gone.skip_below), next)])
            shared = joined(shared, [(gone.cursor, min(gone.skip_below, next))])
        copies = without(without(copies, [(next, NOWHERE)]), own)
        came_back = [each for each in gone.again if without([(each[1], each[1] + 1)], own)]
        again = joined([(each[1], each[1] + 1) for each in came_back])
        copies = without(copies, joined(m.debts, again))
        # Its cursor passes all messages from `start` on that no member has acknowledged.
        shared = without(without(shared, [(m.start, NOWHERE)]), joined(m.inherited, m.debts, copies, again))
        m.again = m.again + came_back
        heapq.heapify(m.again)
        m.debts = joined(m.debts, copies, again)
        m.inherited = joined(m.inherited, shared)
        m.copies = deque(joined(m.copies, copies))
        m.owed = deque(joined(without(m.owed, joined(copies, again)), shared))
        if m.start < m.skip_below:
            m.taken = joined(m.taken, copies, again)
        m.tried_below = max(m.tried_below, gone.tried_below)
        if m.debts:
            m.low = min(m.low, <uint64_t> m.debts[0][0])
        if m.inherited:
            m.low = min(m.low, <uint64_t> m.inherited[0][0])
        self.admitted(m)
        if m.alone_end:
            self._store_alone(m, 0, 0)  # other members may have acknowledged messages that it has taken over
        if self.alone is m:
            self.alone = None
        self._drop(gone)
        if gone.record != m.record:
            self.forget(gone)
        return self._tell()

    # ---- vanished members ----

    cdef bint keep(self, Backlog of, Member gone, uint64_t low, uint64_t next, bint with_ack) except -1:
        """Keep the copies of `gone`, all at or above `low`; False when there are none."""
        cdef uint64_t end = self.queue.log_end()
        # Messages in transit to a worker, or at one that ended, are not known one by one.
        cdef bint exact = not with_ack or gone.consumer is not None or (not gone.died and gone.received == gone.handed)
        cdef list own = [(max(gone.cursor, gone.skip_below), end)] if not gone.ttl_ms else []
        cdef list backlog = [(gone.cursor, min(gone.skip_below, next))] if not gone.ttl_ms else []
        if exact:
            copies, shared = joined(gone.copies, own), joined(gone.owed, backlog)
        else:
            copies = joined(gone.debts, [(max(gone.start, gone.skip_below), gone.cursor)], own)
            shared = joined(gone.inherited, [(gone.start, min(gone.skip_below, gone.cursor))], backlog)
            copies = self._without_acknowledged(of, gone, without(copies, [(0, low)]))
            shared = without(shared, [(0, low)])
        if not with_ack:
            gone.again = []
        if gone.passed_on:
            copies, shared = self._without_passed_on(gone, copies, shared)
        gone.again.sort(key=lambda each: (-each[3], each[1]))
        counted, others = gone.again[:RANGES_KEPT_MAX], gone.again[RANGES_KEPT_MAX:]
        came_back = joined([(each[1], each[1] + 1) for each in counted])
        copies = without(joined(copies, [(each[1], each[1] + 1) for each in others]), came_back)
        gone.again = counted
        gone.copies = deque(fewer(copies, RANGES_KEPT_MAX))
        gone.owed = deque(fewer(without(shared, joined(copies, came_back)), RANGES_KEPT_MAX))
        # More ranges than fit are joined over acknowledged messages, which the ledger shows too.
        gone.was_alone = not gone.alone_from and gone.alone_end == NOWHERE and len(copies) <= RANGES_KEPT_MAX \
            and not gone.passed_on
        gone.tried_below = gone.cursor
        if not gone.ttl_ms and not gone.copies and not gone.owed and not gone.again:
            self.forget(gone)
            return False
        gone.gone, gone.came_ms = True, self.queue.table.now_ms
        gone.due_ms = gone.came_ms + self._grace_ms(gone)
        self._store(gone)
        self._put(gone)
        self.due_ms = min(self.due_ms, self._due_ms(gone))
        if len(self.away) > AWAY_MAX:
            self._crowded()
        self._tell()
        return True

    def _crowded(self):
        if len(self.short_lived) > AWAY_MAX:
            crowding.say(self.queue.key, "queue %s: more than %d members are away: the copies of those that vanished first "
                         "leave it", self.queue.name, AWAY_MAX)
            self._end(next(iter(self.short_lived)))

    cdef int _store(self, Member gone) except -1:
        cdef uint64_t low
        if gone.record:
            copies = joined(gone.copies, [(each[1], each[1] + 1) for each in gone.again])
            self.queue.members.keep(gone.record, gone.start, gone.skip_below, copies, list(gone.owed), True)
            low = min([first for first, _ in [*copies, *gone.owed]], default=gone.cursor)
            self.queue.members.place(gone.record, min(low, gone.cursor), gone.cursor)
        return 0

    cdef int taken_over(self, Backlog of, uint64_t base, list passed_on) except -1:
        """Treat members in the table that no worker has reported as vanished, after all workers have reported.

        `passed_on`: ranges in which connected members get messages that no member has acknowledged.
        """
        cdef Member gone
        cdef uint32_t epoch
        cdef uint64_t next = of.next, end = self.queue.log_end()
        passed_on = self.unsettled(of, passed_on) if self.unjoined else []
        for record in self.unjoined.values():
            if not record.is_admitted:
                epoch = core.doorbell_epoch(self.queue.table.board.raw, record.worker) \
                    if record.worker < self.queue.table.mail.workers else 0
                if record.life != core.ledger_life(epoch):
                    self.queue.members.free(record.index)
                continue
            gone = Member()
            gone.gone = gone.vanished = gone.died = True
            gone.record, gone.subscriber, gone.ttl_ms = record.index, record.name, record.ttl_s * 1000
            gone.start, gone.skip_below, gone.passed_on = record.start, record.skip_below, passed_on
            gone.cursor = max(base, min(record.cursor, end))
            gone.debts, gone.inherited = record.copies, record.shared
            gone.alone_from, gone.alone_end = record.alone
            if not record.is_whole:
                damaged.say(self.queue.key, "queue %s: the record of an absent member is damaged, so all messages from "
                            "%d on are delivered to it again", self.queue.name, base)
                gone.start, gone.skip_below, gone.debts, gone.inherited = base, 0, [], []
                gone.alone_from = gone.alone_end = 0
            # The last home may have handed out more than it had stored.
            if gone.ttl_ms and gone.cursor < next:
                gone.debts = joined(gone.debts, [(max(gone.cursor, gone.skip_below), next)])
                gone.inherited = joined(gone.inherited, [(gone.cursor, min(gone.skip_below, next))])
                gone.cursor = next
            self.keep(of, gone, max(base, record.low), next, True)
        self.unjoined = {}
        return 0

    cdef uint64_t lowest(self) except? 0:
        """Return the offset below which no absent member has copies."""
        cdef Member gone
        cdef uint64_t low
        if not self.is_summed:
            self._sum_up(self.summed_at)
        low = self.away_low
        for gone in self.lapsed:
            if gone.copies:
                low = min(low, <uint64_t> gone.copies[0][0])
            if gone.owed:
                low = min(low, <uint64_t> gone.owed[0][0])
        return low

    cdef uint64_t departed(self, uint64_t departed, uint64_t next) except? 0:
        """Return the number by which the log's next offset exceeds the waiting messages, those of absent members included."""
        if not self.away:
            return departed
        if not self.is_summed or next >= self.sum_ends or next < self.summed_at:
            self._sum_up(next)
        return min(departed, self.open_departed, max(next, self.closed_count) - self.closed_count)

    def owed_below(self, uint64_t below):
        """Return the ranges below an offset in which an absent member has a copy of each message."""
        cdef Member gone
        found = []
        for gone in self.away:
            found += [*gone.copies, *[(each[1], each[1] + 1) for each in gone.again]]
            if gone.ttl_ms:
                found.append((max(gone.cursor, gone.skip_below), below))
        return without(joined(found), [(below, NOWHERE)])

    cdef uint64_t cut(self, uint64_t below) except? 0:
        """Remove the messages below an offset for all members; return the number of absent members' copies removed."""
        cdef Member gone
        cdef uint64_t count = 0
        if not self.is_summed:
            self._sum_up(self.summed_at)
        if below <= self.away_low:
            return 0
        for gone in [gone for gone, figures in self.away.items() if figures[0] < below]:
            before = length(gone.copies) + len(gone.again)
            gone.copies = deque(without(gone.copies, [(0, below)]))
            gone.owed = deque(without(gone.owed, [(0, below)]))
            gone.again = [each for each in gone.again if each[1] >= below]
            count += before - length(gone.copies) - len(gone.again)
            if gone.ttl_ms and gone.cursor < below:
                count += below - gone.cursor
                gone.cursor = below
            if before > length(gone.copies) + len(gone.again):
                self._store(gone)
            self._measure(gone)
        return count

    cdef int end_some(self, Backlog of, int64_t now_ms) except -1:
        """End the time of members for which it is over, and the time for members after an early one."""
        cdef Member gone
        cdef int64_t due_ms
        if now_ms < self.due_ms:
            return 0
        self.due_ms = NEVER
        if self.unaged:
            self._age(now_ms)
        for gone in list(self.away):
            due_ms = self._due_ms(gone)
            if due_ms > now_ms:
                self.due_ms = min(self.due_ms, due_ms)
            elif self._give_late(of, gone):
                continue
            elif gone.due_ms <= now_ms:
                self._end(gone)
            else:
                gone.died = False  # no early one is there
                self.due_ms = min(self.due_ms, gone.due_ms)
        return 0

    cdef int _age(self, int64_t now_ms) except -1:
        """Once the clock is believed, count the time that members were away before this home began."""
        cdef Member gone
        if not clock.is_believed():
            self.due_ms = now_ms + AGE_LOOK_MS
            return 0
        for gone, since in self.unaged.items():
            away_ms = clock.age_ms(*since) or 0  # not known: the clock was set back
            gone.due_ms = min(gone.due_ms, now_ms + max(self._grace_ms(None), gone.ttl_ms - away_ms))
        self.unaged = {}
        return 0

    cdef int _end(self, Member gone) except -1:
        cdef uint64_t end = self.queue.log_end()
        self._drop(gone)
        copies = joined(gone.copies, [(each[1], each[1] + 1) for each in gone.again])
        if gone.ttl_ms:
            copies = joined(copies, [(max(gone.cursor, gone.skip_below), end)])
        gone.copies, gone.again, gone.owed, gone.ttl_ms = deque(without(copies, gone.passed_on)), [], deque(), 0
        self.lapsed.append(gone)
        return self._tell()

    # ---- copies that leave the queue ----

    cdef int shed(self, list copies, list shared, uint64_t below) except -1:
        """Dead-letter members' copies that a length limit drops, like those of a member that did not return.

        `shared`: ranges in which only messages that no member has acknowledged are copies.  The record is stored before
        members continue, so a kill leaves the copies to the next subscriber.
        """
        cdef Member m = self.shed_by_limit
        copies, shared = without(copies, [(below, NOWHERE)]), without(shared, [(below, NOWHERE)])
        if not copies and not shared:
            return 0
        if m is None or m not in self.lapsed or m.skip_below == NOWHERE:
            m = self.shed_by_limit = Member()
            m.gone, m.copies, m.owed = True, deque(), deque()
            if self.queue.members is not None:
                m.record = self.queue.members.add(self.queue.worker, self.queue.life, "", 0)
            self.lapsed.append(m)
        m.copies = deque(joined(m.copies, copies))
        m.owed = deque(without(joined(m.owed, shared), list(m.copies)))
        self._store(m)
        return self.queue.mark()

    cdef bint _give_late(self, Backlog of, Member gone) except -1:
        """Give copies to an unnamed member that returned before its worker's end was known, if none came later."""
        cdef Member m
        if gone.died and not gone.subscriber:
            for m in reversed(of.members.values()):  # the last to subscribe most likely came after the worker's end
                if not m.subscriber and not m.debts and gone.came_ms - EARLY_MS < m.came_ms <= gone.came_ms:
                    self.take(m, gone, of.next)
                    self.came(m, False)
                    self.remains(of.members)
                    return True
        return False

    cdef int lapse(self, Backlog of) except -1:
        """Dead-letter, or drop and count, a part of the copies that no member has taken over."""
        cdef Member gone = <Member> self.lapsed[0]
        cdef uint64_t offset, first, end, count = 0
        cdef ledger_entry *entry
        cdef fault f
        cdef int budget = BUDGET
        cdef bint buries = self.queue.options.dead_letter
        cdef bint is_shed = gone is self.shed_by_limit
        cdef bint waits = False
        cdef bint is_settled
        while gone.copies and budget > 0 and not waits:
            first, end = gone.copies[0]
            if not of.members:
                end = min(end, of.next)  # messages that no member was given yet still wait
            elif not buries:
                count += end - first  # other members have copies of their own
                gone.copies.popleft()
                continue
            offset = first
            while offset < end and budget > 0:
                budget -= 1
                entry = core.ledger_entry_of(of.raw, offset, &f)
                # No memory to map it, not handed out to other members yet, or too many in transfer.
                waits = (entry == NULL and f.code != OK) or offset >= of.next or (buries and len(of.dead) >= DEAD_MAX)
                if waits:
                    of.timer.at_most(self.queue.table.now_ms + RETRY_MS)
                    break
                is_settled = entry == NULL or core.ledger_state_of(core.word_load(&entry.word)) == LEDGER_SETTLED
                # In a queue without members the message itself waits, unless a member has acknowledged it.
                if entry != NULL and (not is_settled if gone.skip_below == NOWHERE else of.members or is_settled):
                    count += 1
                    if buries:
                        of.bury(offset, FailureReason.MAXLEN if is_shed else FailureReason.MEMBER_GONE, 1)
                offset += 1
            if offset >= end:
                gone.copies.popleft()
            else:
                gone.copies[0] = (offset, gone.copies[0][1])
        gone.lapsed_count += count
        if count and not buries:
            core.word_add(&self.queue.control.dropped, count)
        if not gone.copies and gone.owed:
            gone.copies, gone.owed, gone.skip_below = gone.owed, deque(), NOWHERE  # of these only unsettled messages
        elif not gone.copies:
            if gone.lapsed_count and not is_shed:
                lapsing.say((self.queue.key, gone.subscriber), "queue %s: subscriber %s did not return in time, and %d of "
                            "its copies are %s", self.queue.name, gone.subscriber or "(unnamed)", gone.lapsed_count,
                            "dead-lettered" if buries else "dropped; with a dead-letter queue they would be kept",
                            count=gone.lapsed_count)
            self.forget(gone)
            self.lapsed.pop(0)
            of.settling = True
        return 0 if waits else self.queue.mark()
