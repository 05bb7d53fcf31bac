# SPDX-License-Identifier: Apache-2.0
"""Each message to one consumer: RoundRobin, and PriorityBased, which only chooses the message differently.

Members that have room stand in a rotation, and the first gets the next message.  What came back is ready
again and goes first, being older.  PriorityBased looks ahead: it makes an entry with its priority
for every new message, and each of the four levels is served from its lowest ready entry on.
"""

import heapq
import logging
from collections import deque

cimport cython
from libc.stdint cimport int64_t, uint32_t, uint64_t
from vibemq.broker.backlog cimport BUDGET, LEVELS, PRIORITY_NORMAL, RETRY_MS, Backlog, Member
from vibemq.broker.messages cimport message_view
from vibemq.storage cimport core
from vibemq.storage.core cimport (
    ERR_END, ERR_NOT_CACHED, LEDGER_DELAYED, LEDGER_IN_FLIGHT, LEDGER_READY, OK, amqp_pair, amqp_pairs, err,
    fault, ledger_each, ledger_entry, ledger_state, ledger_word,
)

from vibemq.broker.options import FailureReason
from vibemq.once_a_minute import OnceAMinute

logger = logging.getLogger(__name__)
stuck = OnceAMinute(logger)

cdef enum:
    # Waiting messages with an entry, so that their priority is known: 64 MiB of the ledger, mapped.  Of a longer backlog
    # the oldest so many are served by priority.
    AHEAD_MAX = 4_194_304
    # Messages that one consumer could not be given and another perhaps can: looked through for each consumer that comes.
    ASIDE_MAX = 1000
    ASIDE_AGAIN_MS = 60_000   # what is more than that is offered again so often
    REFUSALS_MAX = 100_000    # of all messages by all consumers: some 100 bytes each


@cython.final
cdef class Rotation(Backlog):
    cdef object able                  # deque of members that may be given something, in their turn
    cdef dict tried                   # offset -> keys of the peers that could not be given it; it is or was set aside
    cdef int64_t refusals             # in the members' `refused`: no fewer
    cdef dict aside                   # offset -> None, of those that wait for somebody else; delayed in the ledger
    cdef uint64_t aside_version       # rises with each that is set aside

    def __init__(self, queue, generation):
        super().__init__(queue, generation)
        self.able, self.tried, self.aside = deque(), {}, {}

    # ---- members ----

    cdef int has_room(self, Member m) except -1:
        if not m.able and not m.gone and not m.failed and m.outstanding < m.window:
            m.able = True
            self.able.append(m)
        return 0

    cdef int came_back(self, Member m, uint64_t offset, uint32_t attempts, uint32_t strikes, int64_t due_ms) except -1:
        cdef ledger_entry *entry = core.ledger_entry_of(self.raw, offset, NULL)
        cdef ledger_word w
        if entry == NULL:
            self.ready += 1
            return 0
        w = core.ledger_unpack(core.word_load(&entry.word))
        if w.state != LEDGER_READY and w.state != LEDGER_DELAYED:
            # It was found ready before its letter came, and taken on the account of another that still waits.
            self.ready += 1
            return 0
        if w.strikes >= self.queue.failures_max:
            return self.bury_exhausted(offset, w.attempts, w.strikes)
        self.failed_again(offset, w.strikes)
        if w.state == LEDGER_DELAYED and due_ms and offset >= self.expired:
            heapq.heappush(self.delayed, (due_ms, offset))
            return 0
        return self.make_ready(offset, entry)

    # ---- what one consumer cannot be given and another perhaps can ----

    cdef int unsuited(self, Member m, uint64_t offset, uint32_t attempts) except -1:
        cdef ledger_entry *entry = core.ledger_entry_of(self.raw, offset, NULL)
        cdef Py_ssize_t most = self.queue.options.attempts_max or 0  # None: no dead-letter queue, so attempts are not counted
        if entry == NULL or core.ledger_state_of(core.word_load(&entry.word)) != LEDGER_DELAYED:
            return 0
        if offset < self.expired:
            return self.make_ready(offset, entry)
        who = self.tried.get(offset)
        if who is None:
            who = set()
            if len(self.tried) < ASIDE_MAX:
                self.tried[offset] = who
        if len(who) < most:
            who.add(m.peer)
        # Without a dead-letter queue it stays: somebody who can be given it may still come.
        if len(who) >= most and self.queue.options.dead_letter:
            self.tried.pop(offset, None)
            return self.bury(offset, FailureReason.UNDELIVERABLE, attempts)
        if offset not in self.tried or self.refusals >= REFUSALS_MAX:
            heapq.heappush(self.delayed, (self.queue.table.now_ms + ASIDE_AGAIN_MS, offset))
            return 0
        # By member and not by peer: the same user may come by a door that can carry it.
        if m.refused is None:
            m.refused = set()
        m.refused.add(offset)
        self.refusals += 1
        self.aside[offset] = None
        self.aside_version += 1
        return 0

    cdef int tick(self) except -1:
        """Forget what has left the queue, and say what has not: `base` cannot pass it, nor its room on disk be given back."""
        cdef Member m
        cdef ledger_entry *entry
        cdef uint64_t base = core.word_load(&self.control.base)
        cdef uint64_t offset
        cdef ledger_state state
        cdef Py_ssize_t before = len(self.tried)
        Backlog.tick(self)
        if not before:
            return 0
        for offset in list(self.tried):
            if offset >= base:
                entry = core.ledger_entry_of(self.raw, offset, NULL)
                state = core.ledger_state_of(core.word_load(&entry.word)) if entry != NULL else LEDGER_DELAYED
                if state == LEDGER_DELAYED or state == LEDGER_IN_FLIGHT:
                    continue
            del self.tried[offset]
        self.refusals = 0
        for m in self.members.values():
            if m.refused is not None:
                if len(self.tried) < before:
                    m.refused.intersection_update(self.tried)
                self.refusals += len(m.refused)
        if self.aside:
            stuck.say(self.queue.key, "queue %s: messages that could be given to none of the consumers that tried wait for one "
                      "that can take them: %d, from message %d on; the disk keeps what came after it until then",
                      self.queue.name, len(self.aside), min(self.aside), count=0)
        return 0

    cdef bint _give_aside(self, Member m) except -1:
        """Give it a message that another could not be given; False when none is for it."""
        cdef message_view v
        cdef fault f
        cdef uint64_t offset
        cdef err e
        for offset in self.aside:
            if m.refused is not None and offset in m.refused:
                continue
            if not self.take_up(offset, &f) and f.code != OK:
                return False  # no memory or no descriptors to map it now
            if self.entry == NULL or self.word.state != LEDGER_DELAYED:
                del self.aside[offset]
                return True
            e = self.look(offset, &v)
            if e == ERR_NOT_CACHED:
                return False
            del self.aside[offset]
            if e != OK:
                self.bury(offset, FailureReason.DESERIALIZATION_ERROR, self.word.attempts)
            else:
                self.give(m, &v, self.word.attempts + 1, self.word.strikes)
            return True
        m.aside_seen = self.aside_version
        return False

    cdef bint clear(self, uint64_t upto, object reason) except -1:
        cdef uint64_t offset
        cdef ledger_entry *entry
        if self.aside:
            for offset in [at for at in self.aside if at < upto]:
                del self.aside[offset]
                entry = core.ledger_entry_of(self.raw, offset, NULL)
                if entry != NULL and core.ledger_state_of(core.word_load(&entry.word)) == LEDGER_DELAYED:
                    self.make_ready(offset, entry)
        return Backlog.clear(self, upto, reason)

    cdef uint64_t departed(self) except? 0:
        cdef uint64_t departed = Backlog.departed(self)
        return departed - min(departed, <uint64_t> len(self.aside))

    cdef int workers_died(self, set dead) except -1:
        cdef ledger_word w
        cdef ledger_each each = core.ledger_each_of(self.raw, core.word_load(&self.control.base), self.next,
                                                    LEDGER_IN_FLIGHT)
        while core.ledger_each_next(&each):
            w = core.ledger_unpack(core.word_load(&each.entry.word))
            if (w.worker, w.life) in dead:
                core.ledger_set_state(each.entry, LEDGER_READY)
        return self._recount()

    cdef int _recount(self) except -1:
        """A worker that died may have given something back without its letter's getting here."""
        cdef ledger_word w
        cdef uint64_t base = core.word_load(&self.control.base)
        cdef ledger_each each = core.ledger_each_of(self.raw, base, self.next, LEDGER_DELAYED)
        held = {item[1] for item in self.delayed} | self.aside.keys()
        while core.ledger_each_next(&each):
            if each.offset not in held:
                core.ledger_set_state(each.entry, LEDGER_READY)
        # What has no attempt left does not wait for a consumer with room.
        each = core.ledger_each_of(self.raw, base, self.next, LEDGER_READY)
        while core.ledger_each_next(&each):
            w = core.ledger_unpack(core.word_load(&each.entry.word))
            if w.strikes >= self.queue.failures_max:
                self.bury_exhausted(each.offset, w.attempts, w.strikes)
            else:
                self.failed_again(each.offset, w.strikes)
        self.ready_from_base()
        self.ready = core.ledger_count(self.raw, base, self.next, LEDGER_READY)
        return 0

    cdef int taken_over(self, set kept) except -1:
        cdef ledger_each each = core.ledger_each_of(self.raw, core.word_load(&self.control.base), self.next,
                                                    LEDGER_IN_FLIGHT)
        while core.ledger_each_next(&each):
            if each.offset not in kept:
                core.ledger_set_state(each.entry, LEDGER_READY)
        return self._recount()

    # ---- one turn ----

    cdef bint hand_out(self) except -1:
        cdef Member m = None
        cdef message_view v
        cdef err e
        cdef int budget = BUDGET
        cdef bint more = False
        if self.by_priority:
            more = self._take_in()
        if self.aside:
            for m in list(self.able):
                while budget > 0 and m.aside_seen != self.aside_version and self.can(m) and self._give_aside(m):
                    budget -= 1
                if self.reading.fetching:
                    return more
            m = None
        while budget > 0:
            # A member that is alone in the rotation keeps its turn as long as it has room.
            if m is None or len(<object> self.able) or not self.can(m):
                if m is not None:
                    self.has_room(m)
                m = self._turn_of()
                if m is None:
                    return more
            e = self._pick(&v)
            if e != OK:
                m.able = True
                self.able.appendleft(m)
                return more
            self.give(m, &v, self.word.attempts + 1, self.word.strikes)
            budget -= 1
        if m is not None:
            self.has_room(m)
        return True

    cdef Member _turn_of(self):
        """The next of the rotation that can take a message, or None."""
        cdef Member m
        while self.able:
            m = <Member> self.able.popleft()
            m.able = False
            if self.can(m):
                return m
        return None

    cdef err _pick(self, message_view *m) except *:
        """The next message to hand out, with its entry in hand.  ERR_END, ERR_NOT_CACHED: none now."""
        cdef err e
        if self.ready > 0:
            e = self._pick_ready(m)
            if e != ERR_END:
                return e
        return ERR_END if self.by_priority else self.pick_new(m)

    cdef uint64_t _find_ready(self) noexcept:
        """The ready entry that is served next, or `next` when there is none."""
        cdef uint64_t offset = self.next
        cdef int level
        for level in range(LEVELS - 1 if self.by_priority else 0, -1, -1):
            offset = core.ledger_find(self.raw, self.ready_from_level[level], self.next, LEDGER_READY,
                                      1 << level if self.by_priority else 0)
            self.ready_from_level[level] = min(offset + 1, self.next)
            if offset < self.next:
                break
        return offset

    cdef err _pick_ready(self, message_view *m) except *:
        cdef uint64_t offset
        cdef err e
        while self.ready > 0:
            offset = self._find_ready()
            if offset >= self.next:
                self.ready = 0
                return ERR_END
            if not self.take_up(offset, NULL):  # its block cannot be mapped now: no memory or no descriptors
                self.ready_from_base()
                self.timer.at_most(self.queue.table.now_ms + RETRY_MS)
                return ERR_NOT_CACHED
            self.ready -= 1
            if offset < self.expired:
                self.bury(offset, FailureReason.MESSAGE_EXPIRED, self.word.attempts)
                continue
            if self.word.strikes >= self.queue.failures_max:
                self.bury_exhausted(offset, self.word.attempts, self.word.strikes)
                continue
            e = self.look(offset, m)
            if e == OK:
                return OK
            if e == ERR_NOT_CACHED:
                self.add_ready(offset, self.word)
                return e
            self.bury(offset, FailureReason.DESERIALIZATION_ERROR, self.word.attempts)
        return ERR_END

    cdef bint _take_in(self) except -1:
        """An entry with its priority for each new message; True when there are more."""
        cdef message_view v
        cdef int budget = BUDGET
        while budget > 0:
            if self.reading.fetching or self.ready >= AHEAD_MAX or self.pick_new(&v) != OK:
                return False
            self.word.priority = priority_of(&v)
            core.ledger_put(self.entry, self.word)
            self.add_ready(v.offset, self.word)
            budget -= 1
        return True


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
