# SPDX-License-Identifier: Apache-2.0
"""What waits in a queue, who is given what, and what becomes of messages without a consumer: a home's decisions.

Here is what all modes share; Rotation and FanOut say who is given a message.

Waiting messages cost nothing: the log holds them, and an entry in the ledger is made when a message is handed
out or given up.  What comes back is ready again, and being older goes first; what shall wait before its next
attempt is delayed.  Expired, purged and overflowing messages leave from the front.  A message for
the dead-letter queue is settled when its copy there is kept, so a crash in between leaves two and never none.
"""

import errno
import heapq
import logging
from functools import partial

from libc.string cimport memset

from vibemq.broker.messages cimport NOWHERE
from vibemq.broker.queue cimport FAILURES_UNREADABLE, MODE_FAN_OUT_WITHOUT_ACK, MODE_PRIORITY_BASED, UNLIMITED
from vibemq.storage cimport core
from vibemq.storage.core cimport (
    ERR_CORRUPT, ERR_DISK_FULL, ERR_END, ERR_IO, ERR_LIMIT, ERR_NO_MEMORY, ERR_NOT_CACHED, ERR_NOT_FOUND, LEDGER_DEAD, LEDGER_DELAYED,
    LEDGER_IN_FLIGHT, LEDGER_READY, LEDGER_SETTLED, OK, fault,
)
from vibemq.storage.log cimport storage_error
from vibemq.storage.meters cimport now_us
from vibemq.storage.shm cimport LETTER_HAND, letter

from vibemq.broker.expiry import Expiry
from vibemq.broker.options import DROPPED, FAILING_FROM, FailureReason, Overflow
from vibemq.errors import LimitExceeded, StorageError, StreamNotFound
from vibemq.once_a_minute import OnceAMinute
from vibemq.storage.log import drop_before

logger = logging.getLogger(__name__)
faults = OnceAMinute(logger, logging.ERROR)
failing = OnceAMinute(logger)
expiring = OnceAMinute(logger, logging.INFO)
retrying = OnceAMinute(logger)
OUT_OF_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)

cdef enum:
    CLEAR_BUDGET = 4096      # messages taken out in one turn
    BLOCKS_PER_TURN = 4
    UNREADABLE_AT_ONCE = 256  # messages of sub-batches that cannot be unpacked, of 65,535 each at worst
    MAKING_MS = 50           # until a dead-letter queue that is being made is asked for again
    FAILING_MAX = 1000       # messages that are reported as failing, some 100 bytes each

cdef int OVERFLOW_DROP_OLDEST = int(Overflow.DROP_OLDEST)


cdef class Member:
    def __cinit__(self):
        self.again, self.inherited, self.owed, self.copies = [], [], (), ()
        self.debts, self.taken, self.passed_on, self.subscriber = [], [], [], ""
        self.reported = <uint64_t> -1


cdef class Backlog:
    def __init__(self, Queue queue, generation):
        self.queue, self.generation, self.members = queue, generation, {}
        self.raw, self.control = queue.raw, queue.control
        self.is_fan_out, self.by_priority = queue._is_fan_out(), queue.mode == MODE_PRIORITY_BASED
        self.delayed, self.graves, self.burying, self.dead, self.failing = [], [], {}, {}, {}
        self.unreadable_end = NOWHERE
        self.timer = queue.table.timers.timer(self._on_time)
        self.reading = Reading(queue)
        # What came when nobody was home counts as new.
        self.arrived = (core.ledger_offset_unpack(core.word_load(&self.control.looked)) or queue.log_end() + 1) - 1
        self._skip_dropped()
        self.next = core.word_load(&self.control.next)
        self.reading.cursor.seek(self.next)
        self.ready_from_base()
        self._begin_expiry()
        self.burials = Burials(self, queue)
        self._prepare_letters()

    def _begin_expiry(self):
        self.expiry = None
        if self.queue.options.message_ttl_ms:
            end = self.queue.log_end()
            self.expiry = Expiry(self.queue.options.message_ttl_ms, now_us() // 1000 + 1, end, self.queue.stream.log.older_end)

    def _prepare_letters(self):
        """Make the dead-letter queue early, so that nobody has to wait for it later."""
        cdef Queue queue = self.queue
        if queue.options.dead_letter and not self.burials.making \
                and queue.table.metadata.find_stream(queue.stream.virtual_host, self.burials.name()) is None:
            self.burials.make(self._made)

    cdef int altered(self, object had) except -1:
        if had.message_ttl_ms != self.queue.options.message_ttl_ms:
            self._begin_expiry()
        self.burials.altered()
        self._prepare_letters()
        self.arrived = 0  # a limit that is lower now holds for what waits already
        return 0

    cdef int tick(self) except -1:
        """Close unused descriptors, and report messages that fail repeatedly."""
        if not self.reading.fetching and not self.moved:
            self.reading.close()
        self.moved = False
        return self._tell_failing()

    cdef int failed_again(self, uint64_t offset, uint32_t strikes) except -1:
        """Note a message that goes back after so many failed deliveries, in a queue without a limit."""
        if strikes >= <uint32_t> FAILING_FROM and self.queue.failures_max == UNLIMITED \
                and (len(self.failing) < FAILING_MAX or offset in self.failing):
            self.failing[offset] = strikes
        return 0

    cdef int _tell_failing(self) except -1:
        """Log, and write to the ledger's page, the message that failed most often; remove those that left the queue."""
        cdef ledger_entry *entry
        cdef uint64_t offset, worst = 0, most = 0
        cdef uint64_t base = core.word_load(&self.control.base)
        cdef bint is_limited = self.queue.failures_max != UNLIMITED
        if not self.failing and not core.word_load(&self.control.failing):
            return 0
        for offset in list(self.failing):
            entry = NULL if is_limited or offset < base else core.ledger_entry_of(self.raw, offset, NULL)
            if entry == NULL or core.ledger_state_of(core.word_load(&entry.word)) == LEDGER_SETTLED:
                del self.failing[offset]
            elif <uint64_t> self.failing[offset] > most:
                worst, most = offset, self.failing[offset]
        core.word_store(&self.control.failing, len(self.failing))
        core.word_store(&self.control.failing_offset, worst)
        core.word_store(&self.control.failing_deliveries, most)
        if self.failing:
            retrying.say(self.queue.key, "queue %s: %d deliveries of message %d failed; the queue has no limit (attempts_max), "
                         "so it is delivered again after each back-off; %d such messages in all", self.queue.name, most, worst,
                         len(self.failing), count=0)
        return 0

    cdef bint is_idle(self) except -1:
        return not self.burials.making and not self.dead and not self.reading.fetching and not self.overflows()

    cdef int stop(self) except -1:
        self.stopped = True
        self.timer.end()
        self.reading.close()
        self.burials.close()
        for m in self.members.values():
            if (<Member> m).consumer is not None:
                (<Member> m).consumer.member = None
        return 0

    def say(self, subject, text, *values):
        failing.say((self.queue.key, subject), "queue %s: " + text, self.queue.name, *values)

    def _on_time(self, now_ms):
        self.queue.mark()

    cdef int ready_from_base(self) except -1:
        """Ready entries may lie anywhere."""
        cdef int i
        for i in range(LEVELS):
            self.ready_from_level[i] = core.word_load(&self.control.base)
        return 0

    # ---- states ----

    def _skip_dropped(self):
        """What retention has taken is settled."""
        first = self.queue.stream.log.stats().first_offset
        if first > core.word_load(&self.control.base):
            core.ledger_skip(self.raw, first)

    cdef int make_ready(self, uint64_t offset, ledger_entry *entry) except -1:
        core.ledger_set_state(entry, LEDGER_READY)
        return self.add_ready(offset, core.ledger_unpack(core.word_load(&entry.word)))

    cdef int add_ready(self, uint64_t offset, ledger_word word) except -1:
        """The entry is ready: whoever looks for messages of its level begins at it, at the latest."""
        cdef uint32_t level = word.priority if self.by_priority else 0
        self.ready += 1
        self.ready_from_level[level] = min(self.ready_from_level[level], offset)
        return 0

    cdef int settle(self, uint64_t offset) except -1:
        core.ledger_set_state(core.ledger_entry_of(self.raw, offset, NULL), LEDGER_SETTLED)
        self.settling = True
        return 0

    cdef uint64_t departed(self) except? 0:
        return self.next - <uint64_t> max(self.ready + <int64_t> len(self.delayed), 0)

    cdef int wake_delayed(self, int64_t now_ms) except -1:
        while self.delayed and self.delayed[0][0] <= now_ms:
            offset = heapq.heappop(self.delayed)[1]
            if self.take_up(offset, NULL) and self.word.state == LEDGER_DELAYED:
                self.make_ready(offset, self.entry)
        return 0

    # ---- messages ----

    cdef bint take_up(self, uint64_t offset, fault *f) noexcept:
        """Have the entry of a message in hand; where it cannot be mapped now, `f` says why."""
        self.entry = core.ledger_entry_of(self.raw, offset, f)
        if self.entry == NULL:
            return False
        self.word = core.ledger_unpack(core.word_load(&self.entry.word))
        return True

    cdef err look(self, uint64_t offset, message_view *m) except *:
        """Read the message of the current entry.

        ERR_NOT_CACHED: not now, because a helper fetches it, or memory or descriptors are short.  With any other error the
        message cannot be read, and the reason was logged.
        """
        cdef fault f
        cdef err e = self.reading.look(offset, self.entry.place, <unsigned short> self.word.index, m, &f)
        if e == ERR_NO_MEMORY or (e == ERR_IO and f.sys_errno in OUT_OF_DESCRIPTORS):
            self.say(e, "message %d cannot be read now: %s", offset, storage_error(e, &f))
            self.timer.at_most(self.queue.table.now_ms + RETRY_MS)
            return ERR_NOT_CACHED
        if e != OK and e != ERR_NOT_CACHED:
            logger.error("queue %s: message %d cannot be read: %s", self.queue.name, offset, storage_error(e, &f))
        return e

    cdef err pick_new(self, message_view *m) except *:
        """The next message that has no entry yet, with one that it has from now on in hand.

        ERR_END: none, or none that can be had now.  ERR_NOT_CACHED: a helper fetches it.
        """
        cdef err e
        cdef fault f
        cdef bint unreadable
        cdef int passed_over = 0
        while True:
            e = self.reading.cursor.next(m, &f)
            if e == ERR_END:
                return e
            unreadable = e == ERR_CORRUPT and m.offset != NOWHERE
            if (e == OK or unreadable) and self._make_entry(m) < 0:
                self.reading.cursor.seek(m.offset)
                return ERR_END
            if e == OK:
                return e
            if unreadable:
                if m.offset != self.unreadable_end:
                    logger.error("queue %s: message %d, and those behind it that cannot be read either: %s",
                                 self.queue.name, m.offset, storage_error(e, &f))
                self.unreadable_end = m.offset + 1
                self.bury(m.offset, FailureReason.DESERIALIZATION_ERROR, 0)
                passed_over += 1
                if passed_over == UNREADABLE_AT_ONCE:
                    self.timer.at_most(self.queue.table.now_ms)
                    return ERR_END
                continue
            if e == ERR_NOT_CACHED:
                self.reading.ahead(self.reading.cursor)
                return e
            if e == ERR_CORRUPT:
                logger.error("queue %s: %s: its messages are passed over", self.queue.name, storage_error(e, &f))
                e = self.reading.cursor.pass_damage(&f)
                if e == OK:
                    continue
            if e == ERR_NOT_FOUND:
                self._skip_dropped()
                self.next = max(self.next, core.word_load(&self.control.next))
                self.reading.cursor.seek(self.next)
            self.say(e, "cannot be read: %s", storage_error(e, &f))
            self.timer.at_most(self.queue.table.now_ms + RETRY_MS)
            return ERR_END

    cdef int _make_entry(self, message_view *m) except -2:
        """An entry for the message at `next` or, after a gap, beyond it; -1 when there is no room for one."""
        cdef fault f
        cdef err e
        cdef uint64_t offset = self.next
        cdef ledger_entry *entry = NULL
        if m.offset > self.next and core.word_load(&self.control.base) == self.next:
            core.ledger_skip(self.raw, m.offset)
            self.next = offset = m.offset
        while offset <= m.offset:
            e = core.ledger_reserve(self.raw, offset + 1, &f)
            while e == ERR_DISK_FULL and self.queue.table.reserve.release():
                e = core.ledger_reserve(self.raw, offset + 1, &f)
            entry = core.ledger_entry_of(self.raw, offset, &f) if e == OK else NULL
            if entry == NULL:
                if e != ERR_LIMIT:
                    self.say(e, "nothing can be handed out now: %s", storage_error(e, &f))
                self.timer.at_most(self.queue.table.now_ms + RETRY_MS)
                return -1
            if offset < m.offset:  # there is no such message: retention or damage has taken it
                core.ledger_set_state(entry, LEDGER_SETTLED)
                core.ledger_store_next(self.control, offset + 1)
                self.settling = True
            self.next = offset + 1
            offset += 1
        memset(&self.word, 0, sizeof(self.word))
        self.word.state, self.word.priority, self.word.index = LEDGER_READY, PRIORITY_NORMAL, m.index
        self.entry = entry
        entry.place = m.place
        core.ledger_put(entry, self.word)
        core.ledger_store_next(self.control, self.next)
        self.reading.came_to(m.segment)
        return 0

    # ---- members ----

    cdef bint can(self, Member m) noexcept:
        """May it be given one more now?"""
        if m.gone or m.failed or m.outstanding >= m.window:
            return False
        if m.consumer is not None and not m.consumer.room():
            m.consumer.stalled = True
            return False
        return True

    cdef int give(self, Member to, message_view *m, uint32_t attempts, uint32_t strikes) except -1:
        """The message in hand is in flight at `to` from here on; its entry says so before any byte of it leaves."""
        cdef letter l
        self.word.state, self.word.worker, self.word.life = LEDGER_IN_FLIGHT, to.worker, to.life
        self.word.attempts = min(attempts, <uint32_t> core.LEDGER_ATTEMPTS_MAX)
        self.word.strikes = strikes
        if not self.is_fan_out or (self.queue.mode != MODE_FAN_OUT_WITHOUT_ACK and
                                   core.ledger_state_of(core.word_load(&self.entry.word)) != LEDGER_SETTLED):
            core.ledger_put(self.entry, self.word)
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
        l = self.queue.letter_of(LETTER_HAND, self.generation, None)
        l.consumer, l.attempts, l.strikes = to.consumer_id, attempts, strikes
        l.offset, l.segment, l.place, l.index = m.offset, m.segment, m.place, m.index
        self.queue.table.mail.send(to.worker, &l)
        return 0

    # ---- what does not wait any longer ----

    cdef uint64_t oldest(self):
        """The oldest message that waits; the log's end when none does."""
        cdef uint64_t offset = self.next
        cdef uint64_t start
        cdef int levels = LEVELS if self.by_priority else 1
        cdef int i
        if self.ready > 0:
            start = self.ready_from_level[0]
            for i in range(1, levels):
                start = min(start, self.ready_from_level[i])
            offset = core.ledger_find(self.raw, start, self.next, LEDGER_READY, 0)
            for i in range(levels):
                self.ready_from_level[i] = max(self.ready_from_level[i], offset)
        return offset

    cdef bint overflows(self) noexcept:
        """May more wait than shall, so that the next turn has to look?"""
        return self.queue.max_messages and self.queue.overflow == OVERFLOW_DROP_OLDEST \
            and self.queue.log_end() != self.arrived  # what comes back from consumers pushes nothing out

    cdef bint overflow(self) except -1:
        cdef uint64_t most = self.queue.max_messages
        cdef uint64_t excess, offset, end, dropped = 0
        cdef message_view v
        cdef bint more = False
        cdef bint waits = False
        cdef bint bury = self.queue.options.dead_letter
        cdef int budget = CLEAR_BUDGET
        if not self.overflows():
            return False
        self.arrived = end = self.queue.log_end()
        while self.ready + <int64_t> (end - self.next) + <int64_t> len(self.delayed) > <int64_t> most:
            more = budget == 0
            # While the dead-letter queue is stuck the excess stays in this queue: it is never dropped.
            waits = bury and len(self.dead) >= DEAD_MAX
            if more or waits:
                break
            budget -= 1
            offset = self.oldest()
            if offset < self.next:
                self.ready -= 1
            elif end > self.next and bury:
                self.ready = 0
                waits = self.reading.fetching or self.pick_new(&v) != OK  # either requests another turn when it ends
                if waits:
                    break
                offset = v.offset
            elif end > self.next:
                self.ready = 0
                excess = (end - self.next) + <uint64_t> len(self.delayed) - most
                more = not self._skip_new(self.next + min(excess, end - self.next), FailureReason.QUEUE_FULL)
                if more:
                    break
                continue
            else:
                self.ready = 0
                offset = heapq.heappop(self.delayed)[1]  # only what waits for its next attempt is left
            if bury:
                self._bury_excess(offset)
                continue
            dropped += 1
            self.settle(offset)
        self.count_out(FailureReason.QUEUE_FULL, dropped)
        if more or waits:
            self.arrived = 0
        return more

    def _bury_excess(self, uint64_t offset):
        attempts = self.word.attempts if self.take_up(offset, NULL) else 0
        self.bury(offset, FailureReason.MAXLEN, attempts)
        self._go_past(offset)

    def _go_past(self, uint64_t offset):
        """Continue the search for the oldest behind a fan-out's entry, which stays ready while its copy is in transfer."""
        if self.is_fan_out:
            self.ready_from_level[0] = max(self.ready_from_level[0], offset + 1)

    cdef bint clear(self, uint64_t upto, object reason) except -1:
        cdef message_view v
        cdef uint64_t offset, out = 0
        cdef int budget = CLEAR_BUDGET
        cdef bint bury = reason is not None and self.queue.options.dead_letter
        upto = min(upto, self.queue.log_end())
        while self.ready > 0:
            offset = self.oldest()
            if offset >= upto or offset >= self.next:
                break
            if budget == 0:
                self.count_out(reason, out)
                return True
            if bury and len(self.dead) >= DEAD_MAX:
                return False  # on when some of them are kept
            budget -= 1
            if not self.take_up(offset, NULL):
                break
            self.ready -= 1
            if bury:
                self.bury(offset, reason, self.word.attempts)
                self._go_past(offset)
            else:
                out += 1
                self.settle(offset)
        self.count_out(reason, out)
        if self.next >= upto:
            return False
        if not bury:
            return not self._skip_new(upto, reason)
        while self.next < upto:
            if budget == 0:
                return True
            budget -= 1
            if self.reading.fetching or len(self.dead) >= DEAD_MAX or self.pick_new(&v) != OK:
                return False
            self.bury(v.offset, reason, 0)
        return False

    def count_out(self, reason, uint64_t count):
        """So many messages have left the queue for good; without a reason they were purged."""
        if not count:
            return
        if reason is None:
            core.word_add(&self.control.purged, count)
            return
        if reason is FailureReason.MESSAGE_EXPIRED:
            core.word_add(&self.control.expired, count)
        self.dropped(reason, count, 0, 0)

    def dropped(self, reason, uint64_t count, uint64_t offset, uint32_t attempts):
        """So many were lost for good: where it is one that has failed, `offset`, after `attempts`."""
        core.word_add(&self.control.dropped, count)
        times = "once" if attempts == 1 else f"{attempts} times"
        text = DROPPED[reason].format(queue=self.queue, offset=offset, times=times)
        if reason is FailureReason.MESSAGE_EXPIRED:
            expiring.say((self.queue.key, reason), "queue %s: %s", self.queue.name, text, count=count)
        else:
            failing.say((self.queue.key, reason), "queue %s: %s", self.queue.name, text, count=count)

    cdef bint _skip_new(self, uint64_t upto, object reason) except -1:
        """Settle messages that were never handed out, unread; False when some are left for the next turn."""
        cdef message_view v
        cdef uint64_t began = self.next
        if core.word_load(&self.control.base) == self.next \
                or core.ledger_settle(self.raw, self.floor(), BLOCKS_PER_TURN) == self.next:
            core.ledger_skip(self.raw, upto)
            self.next = upto
        else:
            v.offset, v.index, v.place, v.segment = min(upto, self.next + CLEAR_BUDGET) - 1, 0, 0, 0
            if self._make_entry(&v) == 0:
                core.ledger_set_state(self.entry, LEDGER_SETTLED)
        self.count_out(reason, self.next - began)
        self.reading.cursor.seek(self.next)
        self.settling = True
        return self.next >= upto

    # ---- dead letters ----

    cdef int bury(self, uint64_t offset, object reason, uint32_t attempts) except -1:
        """The message leaves the queue: into its dead-letter queue, or for good where it has none."""
        if reason is FailureReason.MESSAGE_EXPIRED:
            core.word_add(&self.control.expired, 1)
        if not self.queue.options.dead_letter:
            self.dropped(reason, 1, offset, attempts)
            return self.settle(offset)
        if offset in self.dead:
            return 0  # another copy of it is on its way already
        if not self.is_fan_out:
            core.ledger_set_state(core.ledger_entry_of(self.raw, offset, NULL), LEDGER_DEAD)
        self.dead[offset] = reason
        heapq.heappush(self.graves, (0, offset, reason, attempts))
        return self.queue.mark()

    cdef int bury_exhausted(self, uint64_t offset, uint32_t attempts, uint32_t strikes) except -1:
        """The message has no attempt left."""
        is_unreadable = strikes >= <uint32_t> FAILURES_UNREADABLE
        reason = FailureReason.DESERIALIZATION_ERROR if is_unreadable else FailureReason.MAX_RETRIES_EXCEEDED
        return self.bury(offset, reason, attempts)

    cdef bint bury_due(self, int64_t now_ms) except -1:
        """Send copies of the dead on their way; each is settled when its copy is kept.  True: more at once."""
        cdef message_view v
        cdef fault f
        cdef err e
        cdef uint64_t offset
        cdef int budget = CLEAR_BUDGET
        while self.graves and self.graves[0][0] <= now_ms and not self.reading.fetching \
                and not self.queue.table.holds_copies:
            if budget == 0:
                return True
            budget -= 1
            if not self._open_letters():
                due_ms = now_ms + (MAKING_MS if self.burials.making else RETRY_MS)
                heapq.heapreplace(self.graves, (due_ms, *self.graves[0][1:]))
                return False
            _, offset, reason, attempts = self.graves[0]
            e = OK
            if self.take_up(offset, NULL):
                e = self.reading.look(offset, self.entry.place, <unsigned short> self.word.index, &v, &f)
                if e == ERR_NOT_CACHED:
                    return False
            heapq.heappop(self.graves)
            if self.entry == NULL or (not self.is_fan_out and self.word.state != LEDGER_DEAD):
                self.dead.pop(offset, None)
                continue  # settled meanwhile
            self.burying[offset] = (reason, attempts)
            try:
                goes_round = self.burials.letters.add(&v if e == OK else NULL, offset, self.queue.name.encode(),
                                                      reason.value.encode(), attempts)
            except (LimitExceeded, MemoryError, StreamNotFound) as problem:
                self.say("letter", "message %d cannot be dead-lettered now: %s", offset, problem)
                del self.burying[offset]
                heapq.heappush(self.graves, (now_ms + RETRY_MS, offset, reason, attempts))
                return False
            except BaseException:  # it is logged by who called; the message is tried again
                del self.burying[offset]
                heapq.heappush(self.graves, (now_ms + RETRY_MS, offset, reason, attempts))
                raise
            if goes_round:
                del self.burying[offset]
                self.dropped(FailureReason.CYCLE, 1, offset, attempts)
                self._buried(offset, reason)
        return False

    def _buried(self, offset, reason):
        """Note that the message, or only one member's copy of it, has left the queue."""
        self.dead.pop(offset, None)
        if self.is_fan_out and (reason is FailureReason.MEMBER_GONE
                                or (reason is FailureReason.UNDELIVERABLE and self.members)):
            self.settling = True  # when no other copy is owed, base moves over it
        else:
            self.settle(offset)

    def _open_letters(self) -> bool:
        if self.burials.making:
            return False
        try:
            if self.burials.open():
                return True
            self.burials.make(self._made)
        except StorageError as problem:
            self.say("letters", "its dead-letter queue %s cannot be opened: %s", self.burials.name(), problem)
        return False

    def _made(self, problem):
        if problem is not None:
            self.say("letters", "its dead-letter queue cannot be made: %s", problem)
        if not self.stopped:
            self.queue.mark()

    def letters_kept(self, offsets, bint ok):
        """The copies are in the dead-letter queue (or, not `ok`, are not)."""
        for offset in offsets:
            reason, attempts = self.burying.pop(offset)
            if self.stopped:
                continue  # the next home finds them as they are
            if ok:
                core.word_add(&self.control.dead_lettered, 1)
                self._buried(offset, reason)
            else:
                due_ms = self.queue.table.now_ms + RETRY_MS
                heapq.heappush(self.graves, (due_ms, offset, reason, attempts))
                self.timer.at_most(due_ms)
        if not self.stopped:
            self.queue.mark()

    def letters_failed(self, problem):
        faults.say_fault(problem, "queue %s: while dead-lettering", self.queue.name)

    # ---- the end of a turn ----

    cdef int settle_base(self, uint64_t floor) except -1:
        cdef uint64_t base = core.ledger_settle(self.raw, floor, BLOCKS_PER_TURN)
        self.settling = False
        if not self.queue.options.keep and self.reading.leaves(base):
            drop = partial(drop_before, self.queue.stream.log.directory, base)
            self.queue.table.helpers.submit_remove(drop, self.segments_dropped)
        return 0

    def segments_dropped(self, result, error):
        if error is not None and not self.stopped:
            self.say("segments", "settled segments cannot be dropped: %s", error)

    # ---- what each mode does in its own way ----

    cdef int admit(self, Member m, bint fresh, uint64_t seen) except -1:
        return self.has_room(m)

    cdef int left(self, Member gone) except -1:
        return 0

    cdef int workers_died(self, set dead) except -1:
        return 0

    cdef int taken_over(self, set kept) except -1:
        return 0

    cdef int has_room(self, Member m) except -1:
        return 0

    cdef int came_back(self, Member m, uint64_t offset, uint32_t attempts, uint32_t strikes, int64_t due_ms) except -1:
        return 0

    cdef int unsuited(self, Member m, uint64_t offset, uint32_t attempts) except -1:
        return 0

    cdef int work_off(self) except -1:
        return WORKED_OFF

    cdef bint hand_out(self) except -1:
        return False

    cdef uint64_t floor(self) except? 0:
        return self.next
