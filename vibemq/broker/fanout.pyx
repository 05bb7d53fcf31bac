# SPDX-License-Identifier: Apache-2.0
"""A copy of each message to every consumer that was there when it came: FanOutWithAck and FanOutWithoutAck.

Each member has its own place in the log, so a slow one delays nobody.  Members at the end get a new message
together, read once; those behind are served from the entries.  An entry is settled by the first
acknowledgement of any copy: from then on nobody new is given the message.  It leaves the queue when every
member that owed it has settled its copy or is gone; if they all went without a word it is given
to those who are there, or waits for the next to come.

What is passed on may be millions of messages, so it is never listed: a member has a few ranges of offsets that
it inherited, and looks at each entry when its turn comes.  How often a message was tried is in its entry.
"""

import heapq
from collections import deque

cimport cython
from libc.stdint cimport int64_t, uint32_t, uint64_t
from vibemq.broker.backlog cimport BUDGET, GOES_ON, RETRY_MS, WAITS, WORKED_OFF, Backlog, Member
from vibemq.broker.departed cimport Departed
from vibemq.broker.messages cimport NOWHERE, message_view
from vibemq.broker.queue cimport MODE_FAN_OUT_WITHOUT_ACK
from vibemq.storage cimport core
from vibemq.storage.core cimport ERR_NOT_CACHED, LEDGER_READY, LEDGER_SETTLED, OK, err, fault, ledger_entry, ledger_word

from vibemq.broker.options import OF_ONE_MEMBER, FailureReason
from vibemq.broker.ranges import joined, length, without
from vibemq.storage.members import SUBSCRIBED, MemberTable

# The source of a member's next message.
cdef enum:
    OWN
    CAME_BACK
    COPIES
    SHARED

cdef enum:
    # What a turn may give each of many members: a send to one costs as much as eight deliveries to it.
    MESSAGES_PER_MEMBER = 16
    # Entries that are only looked at in one turn, and that base moves over (which costs a file for every 16,384 of
    # them): one to two milliseconds.
    SEARCHED_PER_TURN = 262_144
    SETTLED_PER_TURN = 524_288
    HEARD_AGAIN_MS = 20  # before another look at a member whose time is over while input is unread


@cython.final
cdef class FanOut(Backlog):
    # What members left behind is worked off a part in each turn; until all of it is, nothing is handed out.
    cdef list past                    # ranges to settle: given, by a fan-out without acknowledgement
    cdef list unsearched              # ranges of which it is not known what in them nobody owes any more
    cdef bint deserted                # what is found there waits for the next who comes; else all members get it
    cdef bint taking_over             # what is ready there has no owner either
    cdef set spared                   # offsets there that are in flight at consumers that outlived the last home
    cdef bint unmapped                # the search waits for memory or descriptors
    cdef Departed departures          # members that vanished, and their copies
    cdef bint begins                  # not all members were reported to this home
    cdef int64_t looks                # at entries that may be settled, left in this turn
    cdef list orphans                 # ranges that only members of a dead worker owed; all other members get them


    def __init__(self, queue, generation):
        super().__init__(queue, generation)
        self.past, self.unsearched, self.orphans, self.spared = [], [], [], set()
        self.begins = True
        self.departures = Departed(self.queue, core.word_load(&self.control.base), self.next)

    cdef bint is_idle(self) except -1:
        if self.departures.away or self.departures.lapsed:
            return False  # a home has to end their time
        return not self.past and not self.unsearched and Backlog.is_idle(self)

    # ---- members ----

    cdef int admit(self, Member m, bint fresh, uint64_t seen) except -1:
        cdef Member gone
        if m.record and self.queue.members is None:  # its worker has created the file since this home began
            try:
                self.queue.members = MemberTable(self.queue.record.directory, False)
            except FileNotFoundError:  # the queue has just been deleted
                m.record = 0
        if m.record:
            record = self.queue.members.read(m.record)
            m.subscriber, m.ttl_ms = record.name, record.ttl_s * 1000
            self.departures.unjoined.pop(m.record, None)
            if record.is_admitted and record.state == SUBSCRIBED:
                self._admit_again(m, record, fresh, seen)
                return self.departures.came(m, False)
        if fresh and len(self.members) == 1:
            m.start = m.cursor = core.word_load(&self.control.base)  # nobody was there: the backlog is its own
            m.skip_below = self.next
        else:
            m.start = m.cursor = seen
        m.low = m.cursor
        self.departures.admitted(m)
        m.came_ms, m.early = self.queue.table.now_ms, self.begins
        gone = self.departures.find(m) if fresh else None
        if gone is not None:
            self.departures.take(m, gone, self.next)
        self.departures.came(m, fresh and len(self.members) == 1)
        return 0 if self.begins else self.departures.remains(self.members)

    cdef int _admit_again(self, Member m, object record, bint fresh, uint64_t seen) except -1:
        """Add a member of another home's time, from the position in its record."""
        cdef uint64_t base = core.word_load(&self.control.base)
        m.start, m.skip_below, m.restored = max(base, <uint64_t> record.start), record.skip_below, record
        if fresh or not record.is_whole:
            m.cursor = m.start
        elif record.cursor < record.skip_below:
            m.cursor = max(base, <uint64_t> record.cursor)  # it was among the messages that waited before it subscribed
        else:
            m.cursor = max(m.start, seen)
        m.low = min(m.cursor, max(base, <uint64_t> record.low))
        if record.is_whole:
            m.alone_from, m.alone_end = record.alone
            if m.alone_end == NOWHERE and len(self.members) == 1:
                self.departures.alone = m
            elif m.alone_end == NOWHERE:
                self.departures._store_alone(m, 0, 0)
        return 0

    cdef int _restore(self, Member m) except -1:
        """Note that its deliveries in flight are known: other unacknowledged copies that it took over are redelivered."""
        holds = joined([(each, each + 1) for each in (m.holds or set()) | {item[1] for item in m.again}])
        below = [(0, max(<uint64_t> m.restored.low, core.word_load(&self.control.base)))]
        m.debts, m.inherited = m.restored.copies, m.restored.shared
        m.copies = deque(without(without(m.debts, below), holds))
        m.owed = deque(without(without(without(m.inherited, below), holds), list(m.copies)))
        if m.cursor < m.skip_below:
            m.taken = joined(m.debts, holds)
        m.tried_below = m.cursor
        m.restored = m.holds = None
        return 0

    cdef int came_back(self, Member m, uint64_t offset, uint32_t attempts, uint32_t strikes, int64_t due_ms) except -1:
        if strikes >= self.queue.failures_max:
            return self.bury_exhausted(offset, attempts, strikes)
        self.failed_again(offset, strikes)
        if not m.gone:  # else: left() has looked after it
            heapq.heappush(m.again, (due_ms, offset, attempts, strikes))
        return 0

    cdef int unsuited(self, Member m, uint64_t offset, uint32_t attempts) except -1:
        """Only this copy is given up: the entry stays as it is, for the others."""
        self.settling = True
        if self.queue.options.dead_letter:
            return self.bury(offset, FailureReason.UNDELIVERABLE, attempts)
        self.dropped(FailureReason.UNDELIVERABLE, 1, offset, attempts)
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
        if m.owed:
            low = min(low, <uint64_t> m.owed[0][0])
        if m.copies:
            low = min(low, <uint64_t> m.copies[0][0])
        m.low = low
        return low

    cdef int left(self, Member gone) except -1:
        """Give messages that only it owed to all members; keep its copies if it vanished instead of unsubscribing."""
        cdef bint with_ack = self.queue.mode != MODE_FAN_OUT_WITHOUT_ACK
        cdef uint64_t low = self._lowest(gone)
        cdef list claims = self._claims()
        if self.members:
            gone.passed_on = self._unclaimed(joined(gone.copies, gone.owed, [(max(gone.start, low), self.queue.log_end())]),
                                             claims)
        self._left(gone, low, claims)
        if not gone.ttl_ms and not (gone.vanished and with_ack):
            self.departures.forget(gone)
            return 0 if self.begins else self.departures.remains(self.members)
        gone.passed_on = self.departures.unsettled(self, gone.passed_on)
        if self.departures.keep(self, gone, low, self.next, with_ack):
            self.timer.at_most(self.departures.due_ms)
            self.departures.give_to_early(gone, self.members, self.next)
        return 0 if self.begins else self.departures.remains(self.members)

    cdef int _left(self, Member gone, uint64_t low, list claims) except -1:
        cdef Member m
        cdef uint64_t first_start
        cdef uint64_t next = self.next
        came_back = joined([(offset, offset + 1) for _, offset, _, _ in gone.again])
        orphans = {offset for first, end in self._unclaimed(came_back, claims) for offset in range(first, end)}
        for _, offset, attempts, strikes in gone.again:
            if offset in orphans:
                self._wait_again(offset, attempts, strikes)
        if not self.members:
            return self._all_left(gone)
        first_start = claims[0][0][0]
        if first_start > next:
            # Messages that nobody has been given yet, and that only it was there for.
            for m in self.members.values():
                if m.start == first_start:
                    m.start = m.cursor = next
                    m.low = min(m.low, m.start)
        on_its_way = [(low, min(gone.cursor, next))] if gone.consumer is None else []
        if self.queue.mode == MODE_FAN_OUT_WITHOUT_ACK:
            return self._orphaned(gone, joined(gone.owed, gone.copies, [(gone.cursor, next)], on_its_way), claims)
        self._orphaned(gone, joined(gone.owed, gone.copies, [(gone.cursor, next)], came_back), claims)
        if on_its_way:  # perhaps its worker died: then nothing was given back
            self.unsearched = joined(self.unsearched, self._unclaimed(joined(on_its_way), claims))
            self.spared = set()
        return 0

    cdef list _claims(self):
        """Return lists of ranges of which members have, had or will get a copy: all from their lowest `start` on first."""
        cdef Member m
        cdef uint64_t first_start = NOWHERE
        cdef list last = None
        cdef list found = [None, self.orphans]
        seen = set()
        for m in self.members.values():  # for each departure: cheap even with 16,384 members
            if m.start < first_start:
                first_start = m.start
            if m.inherited and m.inherited is not last:  # most have inherited the same
                last = m.inherited
                if id(last) not in seen:
                    seen.add(id(last))
                    found.append(last)
            if m.debts:
                found.append(m.debts)
        found[0] = [(first_start, NOWHERE)]
        return found

    cdef list _unclaimed(self, list ranges, list claims):
        """What of it no member has a copy of, or had."""
        for claimed in claims:
            if not ranges:
                break
            ranges = without(ranges, claimed)
        return ranges

    cdef int _orphaned(self, Member gone, list ranges, list claims) except -1:
        """Pass on what only `gone` owed: once for all members of a dead worker."""
        ranges = self._unclaimed(ranges, claims)
        if not ranges:
            return 0
        if not gone.died:
            return self._pass_on(ranges)
        self.orphans = joined(self.orphans, ranges)
        return 0

    cdef int workers_died(self, set dead) except -1:
        cdef list ranges = self.orphans
        self.orphans = []
        return self._pass_on(self._unclaimed(ranges, self._claims())) if ranges else 0

    cdef int _pass_on(self, list ranges) except -1:
        """All members get these ranges, of which none of them has a copy."""
        cdef Member m
        cdef dict made = {}
        cdef list had
        if not ranges:
            return 0
        for m in self.members.values():
            had = m.inherited
            if id(had) not in made:
                made[id(had)] = (had, joined(had, ranges))
            m.inherited = made[id(had)][1]
            self.departures.admitted(m)
            m.owed = deque(joined(m.owed, ranges))
            m.low = min(m.low, <uint64_t> ranges[0][0])
        return 0

    cdef int _wait_again(self, uint64_t offset, uint32_t attempts, uint32_t strikes) except -1:
        """Its last owner gave it back: the entry says so to who is given it next."""
        cdef ledger_entry *entry = core.ledger_entry_of(self.raw, offset, NULL)
        cdef uint64_t word
        cdef ledger_word w
        if entry == NULL:
            return 0
        word = core.word_load(&entry.word)
        w = core.ledger_unpack(word)
        if w.state != LEDGER_SETTLED:
            w.state = LEDGER_READY
            w.attempts = min(max(w.attempts, attempts), <uint32_t> core.LEDGER_ATTEMPTS_MAX)
            w.strikes = max(w.strikes, strikes)
            core.ledger_swap(entry, word, w)
        return 0

    cdef int _all_left(self, Member gone) except -1:
        """Whatever nobody has acknowledged waits for the next who comes."""
        cdef uint64_t base = core.word_load(&self.control.base)
        if self.queue.mode == MODE_FAN_OUT_WITHOUT_ACK:
            given = without([(base, min(gone.cursor, self.next))], joined(gone.owed, gone.copies, self.orphans))
            self.past = joined(self.past, without(given, [(offset, offset + 1) for offset in sorted(self.dead)]))
        self.ready, self.orphans = 0, []
        self.ready_from_base()
        self.unsearched, self.spared, self.deserted = joined([(base, self.next)]), set(), True
        return 0

    cdef int taken_over(self, set kept) except -1:
        """Copies whose owners died, and that nobody owes or has acknowledged, are given to all."""
        cdef Member m
        self.workers_died(None)
        for m in self.members.values():
            if m.restored is not None:
                self._restore(m)
            m.holds = None
        self.departures.taken_over(self, core.word_load(&self.control.base), self._unclaimed(
            [(core.word_load(&self.control.base), self.next)], self._claims()) if self.members else [])
        self.begins = False
        self.departures.give_all_to_early(self.members, self.next)
        self.departures.remains(self.members)
        for m in self.members.values():
            m.early = False
        self.timer.at_most(self.departures.due_ms)
        self.unsearched, self.spared = joined([(core.word_load(&self.control.base), self.next)]), kept
        self.deserted = not self.members
        self.taking_over = not self.deserted
        return 0

    # ---- what members left behind ----

    cdef int work_off(self) except -1:
        self.workers_died(None)
        if self.departures.away:
            self.departures.end_some(self, self.queue.table.heard_ms)
            # One that is due waits for input that is not read yet.
            self.timer.at_most(max(<int64_t> self.departures.due_ms, self.queue.table.now_ms + HEARD_AGAIN_MS))
        if self.departures.lapsed and not self.unsearched:
            self.departures.lapse(self)
        if not self.past and not self.unsearched:
            return WORKED_OFF
        self.unmapped = False
        if self.past:
            self._settle_past()
        else:
            self._search()
            if not self.unsearched:
                self.spared, self.deserted, self.taking_over = set(), False, False
                self.arrived = 0  # now it is known what waits, and whether that is too much
                self.settling = True
        if self.past or self.unsearched:
            return WAITS if self.unmapped else GOES_ON
        return WORKED_OFF

    cdef int _settle_past(self) except -1:
        cdef uint64_t first = self.past[0][0]
        cdef uint64_t upto = self.past[0][1]
        cdef uint64_t base = core.word_load(&self.control.base)
        cdef uint64_t offset
        if first <= base and not self.departures.away and not self.departures.lapsed:
            upto = min(upto, base + SETTLED_PER_TURN)
            core.ledger_skip(self.raw, upto)
        else:
            upto = min(upto, first + SEARCHED_PER_TURN)
            for offset in range(first, upto):
                self.settle(offset)
        self.past = without(self.past, [(0, upto)])
        return 0

    cdef int _search(self) except -1:
        """What is in flight at nobody who lives is ready again, for all members or for who comes next."""
        cdef uint64_t offset = max(<uint64_t> self.unsearched[0][0], core.word_load(&self.control.base))
        cdef uint64_t upto = min(<uint64_t> self.unsearched[0][1], offset + SEARCHED_PER_TURN)
        cdef uint64_t first = 0, end = 0
        cdef uint64_t first_start = NOWHERE
        cdef uint64_t word
        cdef ledger_entry *entry
        cdef fault f
        cdef bint orphaned
        cdef bint passes_on = not self.deserted and self.queue.mode != MODE_FAN_OUT_WITHOUT_ACK
        cdef list found = []
        if not self.deserted:  # what lies behind is owed by somebody
            first_start = min([(<Member> other).start for other in self.members.values()])
        while offset < upto:
            entry = core.ledger_entry_of(self.raw, offset, &f)
            if entry == NULL and f.code != OK:
                self.unmapped = True
                self.timer.at_most(self.queue.table.now_ms + RETRY_MS)
                break
            word = core.word_load(&entry.word) if entry != NULL else <uint64_t> LEDGER_SETTLED
            if core.ledger_state_of(word) != LEDGER_SETTLED and not (self.dead and self._is_leaving(offset)):
                if core.ledger_state_of(word) == LEDGER_READY:
                    orphaned = self.deserted or self.taking_over  # else it was taken out of the queue
                else:
                    orphaned = offset < first_start and not (self.spared and offset in self.spared) and \
                        core.ledger_swap_state(entry, word, LEDGER_READY)
                self.ready += orphaned
                if orphaned and passes_on and offset < first_start:
                    if offset != end:
                        found.append((first, end))
                        first = offset
                    end = offset + 1
            offset += 1
        self.unsearched = without(self.unsearched, [(0, offset)])
        found.append((first, end))
        return self._pass_on(self._unclaimed(joined(found), self._claims()))

    # ---- one turn ----

    cdef bint hand_out(self) except -1:
        cdef Member m
        cdef message_view v
        cdef int budget
        cdef bint able
        cdef uint64_t end
        cdef list members = list(self.members.values())
        self.looks = SEARCHED_PER_TURN
        budget = max(<int> BUDGET, MESSAGES_PER_MEMBER * <int> len(members))
        for m in members:
            self._copies(m, &budget)
            if self.reading.fetching:
                return False
            if m.again and m.again[0][0] > self.queue.table.now_ms:
                self.timer.at_most(m.again[0][0])
        end = self.queue.log_end()
        while budget > 0:
            able = False
            for m in members:
                able = able or (m.cursor < end and self.can(m))
            if not able or self.pick_new(&v) != OK:
                return self.looks <= 0
            budget -= 1
            for m in members:
                if m.cursor == v.offset and self.can(m):
                    m.cursor += 1
                    self.give(m, &v, 1, 0)
                    budget -= 1
            self.settling = True
        return True

    cdef int _copies(self, Member to, int *budget) except -1:
        """What came back from this member, what it inherited, and what it is behind with."""
        cdef message_view v
        cdef fault f
        cdef err e
        cdef uint64_t offset
        cdef uint64_t end, first
        cdef uint32_t attempts, strikes
        cdef int source
        while budget[0] > 0 and self.looks > 0 and self.can(to):
            attempts = strikes = 0
            end = 0  # unless it was there before all members: then what is settled is no copy of theirs
            source, first = OWN, NOWHERE
            if to.copies:
                source, first = COPIES, to.copies[0][0]
            if to.owed and to.owed[0][0] < first:
                source, first = SHARED, to.owed[0][0]
            if to.again and to.again[0][0] <= self.queue.table.now_ms and (source == OWN or to.again[0] < (0, first)):
                source = CAME_BACK
                _, offset, attempts, strikes = to.again[0]
            elif source == COPIES:
                offset = first
            elif source == SHARED:
                offset, end = to.owed[0]
            elif to.cursor < self.next:
                offset, end = to.cursor, min(to.skip_below, self.next)
                if to.taken and offset < end:
                    first, last = to.taken[0]
                    if first <= offset:
                        to.cursor = max(offset, <uint64_t> last)
                        to.taken = to.taken[1:]
                        self.settling = True
                        continue
                    end = min(end, first)
            else:
                return 0
            if offset < end:
                offset = self._unsettled(offset, end)
                self._go_on(to, source, offset)
                if offset == end or self.looks <= 0:
                    continue
            if not self.take_up(offset, &f) and f.code != OK:
                self.timer.at_most(self.queue.table.now_ms + RETRY_MS)  # no memory or no descriptors to map it now
                return 0
            if self.entry == NULL or offset < self.expired:
                self.looks -= 1
                self._pass(to, source, offset)
                continue
            e = self.look(offset, &v)
            if e == ERR_NOT_CACHED:
                return 0
            if e != OK:
                self._pass(to, source, offset)
                continue
            if offset < end:
                # Its last owners are gone: another attempt, which is one and the same for all who inherited it.
                attempts, strikes = self.word.attempts, self.word.strikes
                if self.word.state == LEDGER_READY:
                    self.ready -= self.ready > 0
                elif source == SHARED:
                    attempts = max(attempts, 1) - 1
            elif self.word.state == LEDGER_READY and source != OWN:
                self.ready -= self.ready > 0  # no other member could have it
                if source == COPIES:
                    attempts, strikes = self.word.attempts, self.word.strikes
            elif source == COPIES:
                attempts = offset < to.tried_below
            self._pass(to, source, offset)
            self.give(to, &v, attempts + 1, strikes)
            budget[0] -= 1
        return 0

    cdef uint64_t _unsettled(self, uint64_t offset, uint64_t end) except? 0:
        """The first message that is not settled or on its way to be, or how far this turn's looks go."""
        cdef ledger_entry *entry
        cdef fault f
        while offset < end and self.looks > 0:
            entry = core.ledger_entry_of(self.raw, offset, &f)
            if entry == NULL and f.code != OK:
                break
            if entry != NULL and core.ledger_state_of(core.word_load(&entry.word)) != LEDGER_SETTLED \
                    and not (self.dead and self._is_leaving(offset)):
                break
            offset += 1
            self.looks -= 1
        return offset

    cdef bint _is_leaving(self, uint64_t offset) except -1:
        """True if it leaves the queue for all members, and not only one member's copy of it."""
        return self.dead.get(offset, FailureReason.UNDELIVERABLE) not in OF_ONE_MEMBER

    cdef int _pass(self, Member to, int source, uint64_t offset) except -1:
        if source == CAME_BACK:
            heapq.heappop(to.again)
            self.settling = True
            return 0
        return self._go_on(to, source, offset + 1)

    cdef int _go_on(self, Member to, int source, uint64_t offset) except -1:
        """Continue its own part, or the part that it has taken over or inherited, from here."""
        cdef object ranges = to.copies if source == COPIES else to.owed
        if source == OWN:
            to.cursor = offset
        elif offset < <uint64_t> ranges[0][1]:
            ranges[0] = (offset, ranges[0][1])
        else:
            ranges.popleft()
        self.settling = True
        return 0

    # ---- what does not wait any longer ----

    cdef bint clear(self, uint64_t upto, object reason) except -1:
        cdef bint more
        cdef uint64_t began = self.next
        if upto <= core.word_load(&self.control.base):
            return False
        self._passed(upto)
        more = Backlog.clear(self, upto, reason)
        # Behind a gap in the log, what was taken out last may lie above `upto`.
        self._passed(self.next if self.next > began else upto)
        return more

    cdef int _passed(self, uint64_t upto) except -1:
        """Who has not been given the messages below, which leave the queue, goes on behind them."""
        cdef Member m
        upto = min(upto, self.next)
        self.departures.cut(upto)
        for m in self.members.values():
            if m.cursor < upto:
                m.cursor = upto
                self.settling = True
            if m.again and min([item[1] for item in m.again]) < upto:
                m.again = [item for item in m.again if item[1] >= upto]
                heapq.heapify(m.again)
                self.settling = True
            if m.copies and m.copies[0][0] < upto:
                m.copies = deque(without(m.copies, [(0, upto)]))
                self.settling = True
            if m.owed and m.owed[0][0] < upto:
                m.owed = deque(without(m.owed, [(0, upto)]))
                self.settling = True
        return 0

    cdef bint overflow(self) except -1:
        """With members, who is too far behind loses what is too much for the queue."""
        cdef uint64_t most = self.queue.max_messages
        cdef uint64_t first, end
        cdef uint64_t dropped
        cdef Member m
        cdef bint more
        if not self.members and not (self.departures.away and self.overflows()):
            return Backlog.overflow(self)
        if not self.members:
            end = self.queue.log_end()
            dropped = core.word_load(&self.control.dropped)
            more = Backlog.overflow(self)
            if end > most:
                first = min(end - most, self.next)
                if self.queue.options.dead_letter:
                    self.departures.shed(self.departures.owed_below(first), [], first)
                # Messages that no member has acknowledged were counted themselves.
                dropped = core.word_load(&self.control.dropped) - dropped
                first = self.departures.cut(first)
                if not self.queue.options.dead_letter:
                    self.count_out(FailureReason.QUEUE_FULL, max(first, dropped) - dropped)
            return more
        if not self.overflows():
            return False
        end = self.queue.log_end()
        if end <= most:
            return False
        self.arrived = end
        first = min(end - most, self.next)
        if self.queue.options.dead_letter:
            self.departures.shed(joined(self.departures.owed_below(first),
                              *[(*m.copies, (max(m.cursor, m.skip_below), first)) for m in self.members.values()]),
                       joined(*[(*m.owed, (m.cursor, min(m.skip_below, first))) for m in self.members.values()]), first)
            self.departures.cut(first)
            for m in self.members.values():
                m.cursor = max(m.cursor, first)
                m.copies, m.owed = deque(without(m.copies, [(0, first)])), deque(without(m.owed, [(0, first)]))
                self.settling = True
            return False
        self.count_out(FailureReason.QUEUE_FULL, self.departures.cut(first))
        for m in self.members.values():
            if m.cursor < first:
                self.count_out(FailureReason.QUEUE_FULL, first - m.cursor)
                m.cursor = first
                self.settling = True
            if m.copies and m.copies[0][0] < first:
                left = deque(without(m.copies, [(0, first)]))
                self.count_out(FailureReason.QUEUE_FULL, length(m.copies) - length(left))
                m.copies = left
                self.settling = True
            if m.owed and m.owed[0][0] < first:
                left = deque(without(m.owed, [(0, first)]))
                self.count_out(FailureReason.QUEUE_FULL, length(m.owed) - length(left))
                m.owed = left
                self.settling = True
        return False

    # ---- the end of a turn ----

    cdef uint64_t floor(self) except? 0:
        cdef uint64_t floor = min(self.next, core.word_load(&self.control.base) + SETTLED_PER_TURN)
        cdef Member m
        for m in self.members.values():
            floor = min(floor, self._lowest(m))
            self.departures.place(m)
        if self.departures.away or self.departures.lapsed:
            floor = min(floor, self.departures.lowest())
        if self.dead:
            floor = min(floor, <uint64_t> min(self.dead))
        return floor

    cdef int settle_base(self, uint64_t floor) except -1:
        cdef uint64_t began = core.word_load(&self.control.base)
        cdef Member m
        if self.members:
            core.ledger_skip(self.raw, floor)
            for m in self.members.values():
                if m.inherited and <uint64_t> m.inherited[0][1] <= floor:
                    m.inherited = without(m.inherited, [(0, floor)])
                if m.debts and <uint64_t> m.debts[0][1] <= floor:
                    m.debts = without(m.debts, [(0, floor)])
        Backlog.settle_base(self, floor)
        if floor == began + SETTLED_PER_TURN:
            self.settling = True  # and perhaps further
            self.queue.mark()
        return 0

    cdef uint64_t departed(self) except? 0:
        cdef uint64_t lowest = self.next
        cdef Member m
        if not self.members:
            return self.departures.departed(Backlog.departed(self), self.next)
        for m in self.members.values():
            lowest = min(lowest, m.cursor)
            if m.owed or m.copies:
                lowest = min(lowest, m.cursor - min(m.cursor, <uint64_t> (length(m.owed) + length(m.copies))))
        return self.departures.departed(lowest, self.next) if self.departures.away else lowest
