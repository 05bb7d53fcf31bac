# SPDX-License-Identifier: Apache-2.0
"""Queues as one worker holds them: its consumers, what they have in flight, and the way to the home.

A queue's decisions are taken by one worker, its home (home.pyx): who gets which message, when it is
dead-lettered, what overflows.  A ``Queue`` is any worker's hold on it.  It keeps what belongs
to the consumers of this worker: a message in flight is theirs, and it is this worker that settles it or
gives it back, directly in the shared ledger, so that an acknowledgement that was read is never lost
with the home.  The home is then told, by a call when it is here and by letter when it is not.
"""

import logging
import os

from libc.stdint cimport INT64_MAX
from libc.string cimport memset
from vibemq.broker.home cimport Home, departed_now, home_is_alive, home_of, introduce_consumers
from vibemq.broker.client cimport NO_SLOT, delivery
from vibemq.broker.messages cimport Probe
from vibemq.broker.stream cimport Stream
from vibemq.storage cimport core
from vibemq.storage.core cimport (
    LEDGER_DELAYED, LEDGER_IN_FLIGHT, LEDGER_READY, LEDGER_SETTLED, OK, commit, err, fault,
    ledger_entry, ledger_home, ledger_word,
)
from vibemq.storage.log cimport storage_error
from vibemq.storage.shm cimport (
    LETTER_HAND, LETTER_HELLO, LETTER_JOIN, LETTER_LEAVE, LETTER_RETURNED, LETTER_SETTLED, LETTER_YOURS,
)

from vibemq.broker.limits import count_refused
from vibemq.broker.options import options_of
from vibemq.errors import StorageError
from vibemq.once_a_minute import OnceAMinute
from vibemq.storage.members import MEMBERS_MAX

logger = logging.getLogger(__name__)
faults = OnceAMinute(logger, logging.ERROR)
unrecorded = OnceAMinute(logger)
slow = OnceAMinute(logger, logging.INFO)

cdef enum:
    OVERDUE_BUDGET = 4096    # messages given back in one turn because no acknowledgement came
    # A message that kills its consumer, but is never the oldest delivery, would be redelivered for ever. The ledger has
    # this count, so it holds for each worker and over restarts.
    UNCOUNTED_RETURNS_MAX = 10  # a message may go back so often without a failure; each later return is one


cdef class Queue(StreamUser):
    def __init__(self, QueueTable table, Stream stream, record):
        cdef fault f
        cdef err e
        self.table, self.name = table, stream.name
        self.record = record
        self._use(options_of(table.metadata.effective_options(record), table.defaults))
        self.mode = int(self.options.mode)
        self.tag = int(record.incarnation[:8], 16)
        self.key = <uint64_t> stream.slot << 32 | self.tag
        self.worker = table.worker
        self.life = core.ledger_life(core.doorbell_epoch(table.board.raw, table.worker))
        self.consumers, self.users, self.waiting_publishers, self.put_off = {}, set(), [], []
        directory = os.fsencode(record.directory)
        e = core.ledger_open(directory, &self.raw, &f)
        if e != OK:
            raise storage_error(e, &f)
        self.control = self.raw.control
        self.probe = Probe(table.messages, stream.log, self.key)
        self.ack_timer = table.deadlines.timer(self._acks_overdue)
        stream.attach(self)

    cdef int _use(self, object options) except -1:
        """Take these options; numbers that each message is compared with are also kept as C integers."""
        self.options, self.max_messages, self.overflow = options, options.max_messages, int(options.overflow)
        self.failures_max = UNLIMITED if options.attempts_max is None else options.attempts_max
        return 0

    def __dealloc__(self):
        if self.raw != NULL:
            core.ledger_close(self.raw)

    def __repr__(self):
        return f"<Queue {self.name}>"

    # ---- who uses it ----

    def hold(self, user):
        """Keep the queue open for somebody who publishes to it."""
        self.users.add(user)
        self.check_home()  # what overflows and what expires needs one, with or without consumers

    def release(self, user):
        self.users.discard(user)
        self.close_if_unused()

    def close_if_unused(self):
        if not self.consumers and not self.users and self.home is None and not self.waiting_publishers \
                and not self.put_off:
            self.close()

    def close(self):
        """Let go of it on this worker; its messages and their states stay, of course."""
        if self.closed:
            return
        self.closed = True
        self.ack_timer.end()
        if self.home is not None:
            self._give_up_home()
        self.table.forget(self)
        self.probe.close()
        if self.stream.log.raw != NULL:
            self.stream.detach(self)

    cdef uint64_t log_end(self) noexcept:
        """Return the end for consumers: one more than the offset of the last message with a confirmed publisher."""
        return core.control_confirmed_offset(self.stream.log.control)

    cdef uint64_t waiting(self) noexcept:
        """Return the number of messages that wait for a consumer or their confirm, this turn's batch included."""
        cdef uint64_t departed = core.word_load(&self.control.departed)
        cdef commit committed
        core.control_committed(self.stream.log.control, &committed)
        cdef uint64_t there = committed.next_offset
        if self.stream.is_disk_durable:  # the home passes over messages whose sync failed
            there -= core.control_failed_within(self.stream.log.control, core.word_load(&self.control.next), there)
        there += self.stream.handed_records
        if self.stream.batch != NULL:
            there += self.stream.batch.records
        return there - departed if there > departed else 0

    @property
    def is_full(self) -> bool:
        return self.max_messages != 0 and self.waiting() >= self.max_messages

    def make_room(self) -> bool:
        """Full: but perhaps consumers have room for what this turn has brought.  True when it is not full any more."""
        if self.home is None or self.stream.batch == NULL or self.closed:
            return False
        self.stream.persist()
        if self.home is not None:  # else the stream was found deleted
            self.home.dispatch()
        return not self.closed and not self.is_full

    def counts(self):
        """(waiting, in flight, consumers)."""
        if not home_is_alive(self, core.ledger_home_unpack(core.word_load(&self.control.home))):
            self.check_home()
            if self.home is not None:
                self.home.dispatch()  # what the last home had published may be of another life
        return self.waiting(), core.word_load(&self.control.in_flight), core.word_load(&self.control.consumers)

    def losses(self):  # dropped and refused
        return core.word_load(&self.control.dropped), core.word_load(&self.control.refused)

    def purge(self) -> int:
        """Have the home settle everything that waits now; returns how many that is."""
        self.stream.persist()
        end = self.log_end()  # unconfirmed messages are not purged
        departed = departed_now(self)
        count = end - departed if end > departed else 0
        core.ledger_order_purge(self.control, end)
        self.call_home()
        return count

    def call_home(self):
        """Make the home look at this queue, wherever it is."""
        cdef uint32_t worker
        self.check_home()
        if self.home is not None:
            self.mark()
            return
        worker = core.ledger_home_unpack(core.word_load(&self.control.home)).worker
        if worker < self.table.mail.workers:
            self.table.board.mark(<uint64_t> 1 << worker, self.stream.slot)

    def wait_for_room(self, publisher):
        """``publisher.retry()`` is called when a full queue may have room again."""
        self.waiting_publishers.append(publisher)
        self.read_news()
        core.word_bit_set(&self.control.room_wanted, self.worker)
        self.call_home()

    def stop_waiting(self, publisher):
        if publisher in self.waiting_publishers:
            self.waiting_publishers.remove(publisher)
            self._no_more_waiting()

    def _no_more_waiting(self):
        if not self.waiting_publishers:
            self.read_news()
            self.close_if_unused()

    def read_news(self):
        """Be told of news from now on, or not, as it is needed."""
        wanted = self.home is not None or bool(self.waiting_publishers) or self.becoming
        if wanted and not self.reading:
            self.stream.attach_reader(self)
        elif self.reading and not wanted and self.stream.log.raw != NULL:
            self.stream.detach_reader(self)
        self.reading = wanted

    # ---- consumers ----

    def add_consumer(self, Consumer consumer, uint32_t prefetch, str subscriber=None, uint32_t subscriber_ttl_s=0,
                     answer=None):
        """Add a consumer, which gets messages through its write().  `prefetch` 0: the queue's, also after a change.

        `subscriber`: its name as a member of a fan-out, with `subscriber_ttl_s` to live after its connection; None:
        unchanged.  `answer()` is called after all limits were checked, before its first message.  Raises LimitExceeded
        if the queue has too many such names.
        """
        cdef letter l
        if subscriber is not None:
            consumer.subscriber, consumer.subscriber_ttl_s = subscriber, subscriber_ttl_s if subscriber else 0
        consumer.record = self._add_member(consumer)
        self.table.next_consumer += 1
        consumer.follows = prefetch == 0
        prefetch = self.prefetch() if consumer.follows else min(prefetch, <uint32_t> self.table.defaults.prefetch_max)
        consumer.queue, consumer.consumer_id, consumer.prefetch = self, self.table.next_consumer, prefetch
        consumer.seen, consumer.fresh, consumer.unordered = self.log_end(), True, False
        self.consumers[consumer.consumer_id] = consumer
        core.word_bit_set(&self.control.workers, self.worker)
        told = self.told
        try:
            if answer is not None:
                answer()
            self.check_home()
            if self.home is not None and consumer.member is None:
                self.home.join(consumer)
        except BaseException:
            self.remove_consumer(consumer)
            raise
        if self.home is None and told and self.told == told:  # else the home has just been told of all
            l = self.letter_of(LETTER_JOIN, told, consumer)
            self._send_home(&l)

    def prefetch(self) -> int:  # of a consumer that asks for no other
        return min(self.options.prefetch or self.table.defaults.prefetch, self.table.defaults.prefetch_max)

    cdef uint32_t _add_member(self, Consumer consumer) except? 0:
        """Create the record with which a member keeps its copies after it vanished; 0: this member gets none."""
        if self.mode != MODE_FAN_OUT_WITH_ACK and not (self._is_fan_out() and consumer.subscriber_ttl_s):
            return 0
        try:
            if self.members is None:
                self.members = MemberTable(self.record.directory, True)
            record = self.members.add(self.worker, self.life, consumer.subscriber, consumer.subscriber_ttl_s)
        except StorageError as problem:
            if consumer.subscriber_ttl_s:
                raise
            unrecorded.say(self.key, "queue %s: a member has no record, so it loses its copies if a worker ends: %s",
                           self.name, problem)
            return 0
        if not record:
            count_refused()
            unrecorded.say(self.key, "queue %s: more than %d members: those beyond lose their copies if a worker ends",
                           self.name, MEMBERS_MAX)
        return record

    def remove_consumer(self, Consumer consumer, bint lost=False):
        """Remove a consumer: its deliveries are ready again, in their old order.

        A delivery counts as failed if the peer reported that its program holds the message, or if the message went back
        too often before (UNCOUNTED_RETURNS_MAX).  `lost`: the connection was lost.  Clients work in order, so then the
        oldest delivery counts if the peer reported none.  When this worker ends, none counts.
        If it `says_held` and leaves in good order, messages that its program has not seen go back as never delivered.
        """
        cdef letter l
        cdef delivery *d
        cdef bint failed, counts = not self.table.ending, vanished = lost or self.table.ending
        cdef bint oldest_counts = lost and counts and not consumer.is_any_held()
        cdef int32_t slot, last_seen = consumer.last_seen()
        cdef bint knows_seen = consumer.says_held and not vanished, unseen = knows_seen and last_seen == NO_SLOT
        if consumer.queue is not self:
            return
        self.check_home()
        self.report(consumer)
        while consumer.own.first != NO_SLOT:
            slot = consumer.own.first
            d = &consumer.deliveries.slots[slot]
            d.attempts = max(d.attempts, <uint32_t> unseen) - unseen
            failed = counts and not unseen and (oldest_counts or d.held or d.attempts > UNCOUNTED_RETURNS_MAX)
            oldest_counts = False
            unseen |= knows_seen and slot == last_seen
            self._return(consumer, slot, failed, 0)
        self._return_pending(consumer)
        del self.consumers[consumer.consumer_id]
        if consumer.record and not vanished and not consumer.subscriber_ttl_s:
            self.members.leave(consumer.record)
        if self.home is not None:
            self.home.leave(consumer, vanished)
        elif self.told:
            l = self.letter_of(LETTER_LEAVE, self.told, consumer)
            l.received, l.strikes = consumer.received, vanished
            self._send_home(&l)
        consumer.queue = None
        if not self.consumers:
            core.word_bit_clear(&self.control.workers, self.worker)
            self.told = 0
        self.close_if_unused()

    cdef int _return_pending(self, Consumer consumer) except -1:
        """Give back messages that a home on another worker handed over and that were never written: no attempts."""
        cdef letter l
        cdef size_t i
        for i in range(consumer.pending_head, consumer.pending_size):
            l = consumer.pending[i]
            self.give_back_message(consumer, l.offset, max(l.attempts, 1) - 1, l.strikes, 0)
        consumer.pending_head = consumer.pending_size = 0
        return 0

    cdef int room_again(self, Consumer consumer) except -1:
        """A consumer that had no room has some now."""
        consumer.stalled = False
        if self.home is not None:
            self.home.room_again(consumer)
        else:
            consumer.write_pending()
        return 0

    # ---- what consumers say ----

    cdef int settle(self, Consumer consumer, int32_t slot) except -1:
        """The consumer has acknowledged this delivery."""
        cdef uint64_t offset = consumer.deliveries.slots[slot].offset
        self._settle(offset)
        if slot == consumer.own.first:
            consumer.clock_ms = self.table.now_ms  # the next one's timeout starts here
        else:
            consumer.note_seen(slot)
        consumer.deliveries.remove(&consumer.own, slot)
        self._heard(consumer)
        return self.home.acked(consumer) if self.home is not None else self.count_settled(consumer)

    cdef int count_settled(self, Consumer consumer) except -1:
        """A home on another worker is told at the end of the turn, of all at once."""
        consumer.settled_count += 1
        if not consumer.queued:
            consumer.queued = True
            self.table.reports.append(consumer)
        return 0

    cdef int _settle(self, uint64_t offset) except -1:
        cdef fault f
        cdef ledger_entry *entry = core.ledger_entry_of(self.raw, offset, &f)
        cdef uint64_t word
        if entry != NULL:
            word = core.word_load(&entry.word)
            if self._is_ours(word):
                core.ledger_swap_state(entry, word, LEDGER_SETTLED)
        elif f.code != OK:
            self._put_off(offset, &f, None)
        return 0

    cdef int _put_off(self, uint64_t offset, const fault *f, object returned) except -1:
        """An entry cannot be mapped now (no memory, no descriptors): its change waits for the next tick."""
        if not self.put_off:
            logger.error("queue %s: what consumers say of message %d waits: %s", self.name, offset,
                         storage_error(f.code, f))
        self.put_off.append((offset, returned))
        return 0

    def _catch_up(self):
        put_off, self.put_off = self.put_off, []
        for offset, returned in put_off:
            if returned is None:
                self._settle(offset)
            else:
                self.give_back_message(returned[0], offset, returned[1], returned[2], 0)

    cdef bint _is_fan_out(self) noexcept:
        return self.mode == MODE_FAN_OUT_WITH_ACK or self.mode == MODE_FAN_OUT_WITHOUT_ACK

    cdef bint _is_ours(self, uint64_t word) noexcept:
        """In flight at a consumer of this worker?  A copy of a fan-out is everybody's."""
        if self.mode == MODE_FAN_OUT_WITH_ACK:  # ready: another copy was given back, to a new home that does not know ours
            return core.ledger_state_of(word) == LEDGER_IN_FLIGHT or core.ledger_state_of(word) == LEDGER_READY
        return core.ledger_is_held_by(word, self.worker, self.life)

    cdef int give_back(self, Consumer consumer, int32_t slot, bint strike, int64_t delay_ms) except -1:
        """Refuse this delivery for its consumer: the message is ready again, after `delay_ms` or the back-off."""
        self._heard(consumer)
        consumer.note_seen(slot)
        return self._return(consumer, slot, strike, delay_ms)

    cdef int _heard(self, Consumer consumer) except -1:
        """Note that the consumer settled a delivery, so it is at work."""
        consumer.heard_ms = self.table.now_ms
        if consumer.overdue:
            consumer.overdue = consumer.returning = False
            if self.home is not None:  # a home on another worker gets this with the delivery
                self.home.narrowed(consumer)
        return 0

    cdef int _return(self, Consumer consumer, int32_t slot, bint failed, int64_t delay_ms) except -1:
        """Give a delivery back; `failed`: it counts towards the limit."""
        cdef delivery d = consumer.deliveries.slots[slot]
        cdef uint32_t strikes = d.strikes
        if slot == consumer.own.first:
            consumer.clock_ms = self.table.now_ms
        consumer.deliveries.remove(&consumer.own, slot)
        if failed:
            strikes = min(strikes + 1, <uint32_t> FAILURES_MOST)
            delay_ms = max(delay_ms, <int64_t> self.options.backoff_after_failure(strikes))
        return self.give_back_message(consumer, d.offset, d.attempts, strikes, delay_ms)

    cdef int refuse(self, Consumer consumer, int32_t slot) except -1:
        """This consumer cannot be given the message; it was no attempt, and the home looks for another."""
        consumer.deliveries.slots[slot].attempts = max(consumer.deliveries.slots[slot].attempts, 1) - 1
        return self._return(consumer, slot, False, UNSUITED)

    cdef int give_back_message(self, Consumer consumer, uint64_t offset, uint32_t attempts, uint32_t strikes,
                               int64_t delay_ms) except -1:
        cdef ledger_entry *entry
        cdef uint64_t word
        cdef ledger_word w
        cdef letter l
        cdef fault f
        if self.mode != MODE_FAN_OUT_WITH_ACK:
            entry = core.ledger_entry_of(self.raw, offset, &f)
            if entry == NULL:
                return self._put_off(offset, &f, (consumer, attempts, strikes)) if f.code != OK else 0
            word = core.word_load(&entry.word)
            if not self._is_ours(word):
                return 0
            w = core.ledger_unpack(word)
            w.state = LEDGER_DELAYED if delay_ms else LEDGER_READY
            w.attempts, w.strikes = min(attempts, <uint32_t> core.LEDGER_ATTEMPTS_MAX), strikes
            if not core.ledger_swap(entry, word, w):
                return 0
        if self.home is not None:
            return self.home.returned(consumer, offset, attempts, strikes, delay_ms)
        if self.told:
            l = self.letter_of(LETTER_RETURNED, self.told, consumer)
            l.offset, l.attempts, l.strikes = offset, attempts, strikes
            l.count = <uint32_t> min(max(delay_ms, 0), 0x7FFFFFFF)
            l.index = (delay_ms == UNSUITED) | consumer.overdue << 1
            l.received, l.low = consumer.received, consumer.lowest() if self._is_fan_out() else 0
            self._send_home(&l)
            if self.mode == MODE_FAN_OUT_WITH_ACK and delay_ms != UNSUITED \
                    and strikes < self.failures_max:
                # The entry does not show whose copy came back: should the home die, its successor is told.
                consumer.returned[offset] = (self.table.now_ms + delay_ms if delay_ms else 0, attempts, strikes)
        return 0

    def _acks_overdue(self, now_ms):
        """Fail the oldest delivery of a consumer that did not settle it within the ack timeout.  A timer calls this.

        The clock starts again when the oldest delivery is settled.  A consumer that settled later ones meanwhile is at
        work and keeps them.  One that settled none is stuck: all others are ready again without a count, for consumers
        with room.  Until it settles one it has a small window (Member.window).
        """
        cdef Consumer consumer
        cdef int64_t due = INT64_MAX
        cdef int64_t timeout_ms = self.options.ack_timeout_ms
        cdef delivery *d
        cdef uint32_t strikes
        cdef int64_t began
        cdef int budget = OVERDUE_BUDGET
        for consumer in list(self.consumers.values()):
            while consumer.own.first != NO_SLOT:
                d = &consumer.deliveries.slots[consumer.own.first]
                began = max(d.sent_ms, consumer.clock_ms)
                if not consumer.returning and began + timeout_ms > now_ms:
                    due = min(due, began + timeout_ms)
                    break
                if budget == 0:
                    due = now_ms  # on with the next turn
                    break
                budget -= 1
                if consumer.returning:
                    self._return(consumer, consumer.own.first, d.attempts > UNCOUNTED_RETURNS_MAX, 0)
                    continue
                if consumer.heard_ms <= began:
                    slow.say(self.key, "queue %s: a consumer did not settle message %d within %d ms; that delivery counts "
                             "as failed, and %d others go to other consumers uncounted", self.name, d.offset, timeout_ms,
                             consumer.own.count - 1 + consumer.pending_size - consumer.pending_head)
                    consumer.overdue = consumer.returning = True
                    if self.home is not None:
                        self.home.narrowed(consumer)
                strikes = d.strikes + 1
                delay_ms = 0 if strikes >= self.failures_max else self.options.backoff_after(strikes)
                self._return(consumer, consumer.own.first, True, delay_ms)
            if consumer.returning and consumer.own.first == NO_SLOT:
                consumer.returning = False
                self._return_pending(consumer)
        if due != INT64_MAX:
            self.ack_timer.set(due)

    # ---- the home ----

    cdef int mark(self) except -1:
        """Have dispatch() called in this turn or the next."""
        if not self.dirty and not self.closed:
            self.dirty = True
            self.table.dirty.append(self)
        return 0

    cdef int check_home(self) except -1:
        """See to it that the queue has a home, and that it knows our consumers."""
        cdef ledger_home home
        if self.closed or core.control_is_deleted(self.stream.log.control):
            return 0
        home = home_of(self)
        if self.home is not None and (home.worker != self.worker or home.generation != self.home.generation):
            self._leave_home()
        if home.worker == self.worker:
            if self.home is None:
                self._become_home(home.generation)
        elif self.consumers and self.told != home.generation:
            introduce_consumers(self, home)
        return 0

    def _become_home(self, uint32_t generation):
        self.told = 0
        core.ledger_trim(self.raw)  # another home may have dropped blocks that are mapped here
        self.becoming = True
        try:
            self.home = Home(self, generation, self.table.modes[self.options.mode])
        except (OSError, StorageError):
            if not core.control_is_deleted(self.stream.log.control):
                raise
            return  # while this was under way: on_deleted comes next
        finally:
            self.becoming = False
        self.mark()

    cdef int move_home(self, uint32_t worker) except -1:
        """Make another worker the home: all consumers are there."""
        cdef uint64_t word = core.word_load(&self.control.home)
        cdef letter l
        self._leave_home()
        if core.ledger_home_claim(&self.control.home, &word, worker, core.doorbell_epoch(self.table.board.raw, worker)):
            l = self.letter_of(LETTER_YOURS, core.ledger_home_unpack(word).generation, None)
            self.table.mail.send(worker, &l)
        self.close_if_unused()
        return 0

    def _leave_home(self):
        self.home.stop()
        self.home = None
        self.read_news()

    def _give_up_home(self):
        """Nobody uses the queue here: whoever wants it next claims it."""
        self._leave_home()
        core.ledger_home_leave(&self.control.home, self.worker)

    cdef letter letter_of(self, int kind, uint32_t generation, Consumer consumer) noexcept:
        """A letter about this queue; to or of a consumer it says what a JOIN does, else `consumer` is None."""
        cdef letter l
        memset(&l, 0, sizeof(l))
        l.kind, l.sender, l.slot, l.tag, l.generation = kind, self.worker, self.stream.slot, self.tag, generation
        if consumer is not None:
            l.consumer, l.count = consumer.consumer_id, consumer.prefetch
            l.index = consumer.follows | consumer.overdue << 1
            l.low, l.received, l.attempts, l.offset = consumer.seen, consumer.fresh, consumer.peer, consumer.record
        return l

    cdef int _send_home(self, const letter *what) except -1:
        cdef uint32_t worker = core.ledger_home_unpack(core.word_load(&self.control.home)).worker
        if worker < self.table.mail.workers:  # else whoever claims it next is told of everything
            self.table.mail.send(worker, what)
        return 0

    cdef int report(self, Consumer consumer) except -1:
        """Tell a home elsewhere what a consumer has settled since the last time."""
        cdef letter l
        if self.home is None and self.told and consumer.settled_count:
            l = self.letter_of(LETTER_SETTLED, self.told, consumer)
            l.count, l.received = consumer.settled_count, consumer.received
            l.low = consumer.lowest() if self._is_fan_out() else 0
            self._send_home(&l)
        consumer.settled_count = 0
        return 0

    cdef int on_letter(self, const letter *what) except -1:
        if what.kind == LETTER_HELLO or what.kind == LETTER_YOURS:
            return self.check_home()
        if what.kind == LETTER_HAND:
            return self._hand(what)
        if self.home is None:
            self.check_home()
        if self.home is not None:
            return self.home.on_letter(what)
        return 0

    cdef int _hand(self, const letter *what) except -1:
        """A home elsewhere gives a message to one of our consumers."""
        cdef Consumer consumer
        if what.generation != core.ledger_home_unpack(core.word_load(&self.control.home)).generation:
            return 0  # from a home that is gone; its successor makes the message ready again
        found = self.consumers.get(what.consumer)
        if found is None:
            return self._hand_back(what)
        consumer = <Consumer> found
        consumer.received += 1
        if consumer.returned:
            consumer.returned.pop(what.offset, None)
        consumer.push_pending(what)
        return consumer.write_pending()

    cdef int _hand_back(self, const letter *what) except -1:
        """The consumer had left before the home knew: as if the message had never been handed out."""
        cdef ledger_entry *entry = core.ledger_entry_of(self.raw, what.offset, NULL)
        cdef uint64_t word
        cdef ledger_word w
        cdef letter l = what[0]
        if entry != NULL and self.mode != MODE_FAN_OUT_WITH_ACK:
            word = core.word_load(&entry.word)
            if self._is_ours(word):
                w = core.ledger_unpack(word)
                w.state, w.attempts = LEDGER_READY, max(w.attempts, 1) - 1
                core.ledger_swap(entry, word, w)
        l.kind, l.sender, l.count = LETTER_RETURNED, self.worker, 0
        self.table.mail.send(what.sender, &l)
        self.close_if_unused()
        return 0

    # ---- the turn ----

    cdef int on_news(self) except -1:
        if self.home is not None:
            self.home.news()
        if self.waiting_publishers:
            self.mark()
        return 0

    cdef bint dispatch(self) except -1:
        cdef bint more = False
        if self.closed:
            return False
        if self.home is not None:
            more = self.home.dispatch()
        # Under an alarm they wait, whatever room there is: set_alarms() marks the queue when it is over.
        if self.waiting_publishers and not self.closed and self.table.access_generation != NOBODY_MAY_PUBLISH:
            waiting, self.waiting_publishers = self.waiting_publishers, []
            for publisher in waiting:
                try:
                    if not publisher.retry():
                        self.waiting_publishers.append(publisher)
                except Exception as problem:
                    (<StreamUser> publisher).failed(problem)
            if self.waiting_publishers:
                core.word_bit_set(&self.control.room_wanted, self.worker)
                # Room that came between the last look and the joining is seen by nobody else.
                if not self.is_full and self.home is None:
                    self.mark()
            else:
                self._no_more_waiting()
        return more

    cdef int on_deleted(self) except -1:
        cdef Consumer consumer
        cdef size_t slot
        self.closed = True
        self.ack_timer.end()
        if self.home is not None:
            self.home.stop()
            self.home = None
        self.table.forget(self)
        self.probe.close()
        self.members = None
        consumers, self.consumers = self.consumers, {}
        for consumer in consumers.values():
            while consumer.own.first != NO_SLOT:
                consumer.deliveries.remove(&consumer.own, consumer.own.first)
            consumer.pending_head = consumer.pending_size = 0
            consumer.queue, consumer.member = None, None
            try:
                consumer.on_deleted()
            except Exception as problem:
                consumer.failed(problem)
        self.waiting_publishers = []  # they are told by the stream themselves
        return 0

    cdef int failed(self, object problem) except -1:
        faults.say_fault(problem, "queue %s: while telling it of its log", self.name)
        return 0

    def tick(self):
        """Twice a second: a home that died without anybody's telling."""
        cdef Consumer consumer
        if self.put_off:
            self._catch_up()
        for consumer in self.consumers.values():
            if consumer.returned:  # whatever left the queue meanwhile
                base = core.word_load(&self.control.base)
                consumer.returned = {at: what for at, what in consumer.returned.items() if at >= base}
        if self.consumers or self.users or self.home is not None:
            self.check_home()
        if self.home is not None:
            self.home.tick()
            if self.waiting():
                self.mark()  # whatever should have told the home and was killed before it could
            if not self.consumers and not self.users and not self.options.message_ttl_ms and self.home.is_idle():
                self._give_up_home()
                self.close_if_unused()
        else:
            self.probe.close()
        core.ledger_trim(self.raw)
