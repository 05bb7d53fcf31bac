# SPDX-License-Identifier: Apache-2.0
"""All queues that one worker has open: found by name, dispatched once a turn, reached by letters."""

import logging
import time

from libc.stdint cimport int64_t, uint32_t

from vibemq.broker.client cimport Consumer
from vibemq.broker.queue cimport NOBODY_MAY_PUBLISH
from vibemq.broker.publisher cimport QueuePublisher
from vibemq.storage.shm cimport LETTER_HAND, LETTER_HELLO, LETTER_JOIN, LETTER_TOLD, LETTER_YOURS

from vibemq.broker.options import CHANGEABLE, options_of, shown
from vibemq.broker.timers import Timers
from vibemq.errors import StorageError, StreamNotFound, VibeMQError
from vibemq.once_a_minute import OnceAMinute

logger = logging.getLogger(__name__)
faults = OnceAMinute(logger, logging.ERROR)
failing = OnceAMinute(logger, logging.ERROR)
altering = OnceAMinute(logger, logging.INFO)
refusing = OnceAMinute(logger, logging.INFO)

cdef enum:
    LOOKS_PER_TICK = 1000  # under a millisecond
    ALTERED_PER_TURN = 200 # some ten microseconds each where a policy changes nothing
    ALTER_AGAIN_MS = 500   # before another attempt with those that failed


cdef class QueueTable:
    """The queues that this worker has open."""

    def __init__(self, StreamTable streams, Mail mail, Messages messages, timers, defaults, modes,
                 make_dead_letter_queue):
        self.streams, self.mail, self.messages, self.timers = streams, mail, messages, timers
        self.metadata, self.helpers, self.board = streams.metadata, streams.helpers, streams.board
        self.worker = streams.worker
        self.defaults, self.modes, self.make_dead_letter_queue = defaults, modes, make_dead_letter_queue
        self.by_name, self.by_slot, self.dirty, self.reports = {}, {}, [], []
        self.deadlines = Timers()
        self.now_ms = self.heard_ms = time.monotonic_ns() // 1_000_000
        self.options_seen, self.policies_seen = self.metadata.queue_changes(), self.metadata.held_policies()
        self.altering, self.alter_timer = [], timers.timer(self._alter_some)

    def find(self, str virtual_host, str name) -> Queue:
        """The queue of that name, opened if need be.  StreamNotFound also when it is a plain stream: ask
        ``record`` which of the two."""
        queue = self.by_name.get((virtual_host, name))
        if queue is not None and not (<Queue> queue).stream.log.is_deleted:
            return queue
        stream = self.streams.find(virtual_host, name)
        try:
            record = self.metadata.find_stream(virtual_host, name)
            if record is None or record.queue is None or record.incarnation != stream.incarnation:
                raise StreamNotFound(name)
            queue = Queue(self, stream, record)
        except BaseException:
            self.streams.release_if_unused(stream)
            raise
        self.by_name[virtual_host, name] = queue
        self.by_slot[stream.slot] = queue
        return queue

    def forget(self, Queue queue):
        if self.by_name.get((queue.stream.virtual_host, queue.name)) is queue:
            del self.by_name[queue.stream.virtual_host, queue.name]
        if self.by_slot.get(queue.stream.slot) is queue:
            del self.by_slot[queue.stream.slot]

    def adopt(self, str virtual_host, str name, bint altered=False):
        """See to it that somebody is home to a queue; without anybody here who needs that, it is closed again.

        `altered`: its options may be others than its last home had.
        """
        cdef Queue queue = self.find(virtual_host, name)
        cdef bint was_home = queue.home is not None
        try:
            queue.check_home()
            if altered and not was_home and queue.home is not None:
                queue.home.altered(queue.options)
        finally:
            queue.close_if_unused()

    def look_at_options(self):
        """Options of queues may have been changed by anybody: twice a second, and whenever one is told.

        The counters were raised with the changes themselves, so a change whose author was killed before telling holds
        too.  Where policies are others, the HeldPolicies before: queues that are not open may have other options now.
        """
        cdef Queue queue
        try:
            changes, policies = self.metadata.queue_changes(), self.metadata.held_policies()
            changed = self.metadata.queues_altered_since(self.options_seen) if changes != self.options_seen else ()
        except VibeMQError as problem:
            failing.say("options", "options of queues that were changed cannot be looked at: %s", problem)
            return None
        seen = changes
        for record in changed:
            try:
                found = self.by_slot.get(record.slot)
                if found is not None and (<Queue> found).stream.incarnation == record.incarnation:
                    (<Queue> found).record = record
                    self._alter(<Queue> found, policies)
                elif options_of(policies.options(record), self.defaults).drops_waiting:
                    self.adopt(record.vhost, record.name, altered=True)
            except VibeMQError as problem:  # the others have theirs, and this one is tried again
                failing.say((record.vhost, record.name), "queue %s cannot be opened for its changed options: %s",
                            record.name, problem)
                seen = self.options_seen
        self.options_seen = seen
        if policies is self.policies_seen:
            return None
        before, self.policies_seen = self.policies_seen, policies
        if policies.is_for_queues_as(before):
            return None
        self.altering = list(self.by_slot.values())
        self._alter_some(self.now_ms)
        return before

    def _alter_some(self, now_ms):
        """Give some of the queues the options that they have by the policies of now."""
        cdef Queue queue
        part, self.altering = self.altering[:ALTERED_PER_TURN], self.altering[ALTERED_PER_TURN:]
        after_ms = 1 if self.altering else ALTER_AGAIN_MS
        for queue in part:
            if self.by_slot.get(queue.stream.slot) is not queue:
                continue  # closed meanwhile
            try:
                self._alter(queue, self.policies_seen)
            except VibeMQError as problem:
                failing.say(queue.key, "queue %s: a changed policy cannot be applied: %s", queue.name, problem)
                self.altering.append(queue)
        if self.altering:
            self.alter_timer.set(self.now_ms + after_ms)

    cdef int _alter(self, Queue queue, object policies) except -1:
        had, now = queue.options, options_of(policies.options(queue.record), self.defaults)
        if now == had:
            return 0
        queue._use(now)
        try:
            self._take_effect(queue, had)
        except BaseException:  # so that another attempt finds something to do
            queue._use(had)
            raise
        if queue.home is not None:  # once, and not by each worker
            altering.say((queue.key, now), "queue %s: its options are changed: %s", queue.name, ", ".join(
                f"{field} {shown(getattr(had, field))} -> {shown(getattr(now, field))}" for field in CHANGEABLE
                if getattr(had, field) != getattr(now, field)))
        return queue.mark()  # publishers that wait may have room now

    cdef int _take_effect(self, Queue queue, object had) except -1:
        cdef Consumer consumer
        queue.ack_timer.at_most(self.heard_ms)  # it sets itself anew
        for consumer in queue.consumers.values():
            if consumer.follows:
                consumer.prefetch = queue.prefetch()
        for user in queue.users:
            if isinstance(user, QueuePublisher):
                user.altered()
        if queue.options.drops_waiting:
            queue.check_home()
        if queue.home is not None:
            queue.home.altered(had)
        return 0

    cdef Queue _addressee(self, const letter *what):
        """The queue that a letter is about, opened if this worker must answer for it; or None."""
        found = self.by_slot.get(what.slot)
        if found is not None and (<Queue> found).tag == what.tag:
            return <Queue> found
        if what.kind != LETTER_YOURS and what.kind != LETTER_JOIN and what.kind != LETTER_HAND:
            return None
        # This worker has let go of it meanwhile, but is its home by name, or is handed its messages.
        try:
            record = self.metadata.stream_at(what.slot)
            if record is None or int(record.incarnation[:8], 16) != what.tag:
                return None
            return self.find(record.vhost, record.name)
        except (StreamNotFound, StorageError):
            return None

    cdef int take_mail(self) except -1:
        """Read every letter that has come."""
        cdef letter l, answer
        cdef uint32_t sender
        cdef Queue queue
        for sender in range(self.mail.workers):
            while self.mail.take(sender, &l):
                queue = self._addressee(&l)
                if l.kind == LETTER_HELLO and (queue is None or not queue.consumers):
                    answer = l
                    answer.kind, answer.sender = LETTER_TOLD, self.worker
                    self.mail.send(sender, &answer)
                if queue is None:
                    continue
                try:
                    queue.on_letter(&l)
                    queue.close_if_unused()  # it may have been opened for this letter only
                except Exception as problem:
                    faults.say_fault(problem, "queue %s: a letter from worker %d", queue.name, sender)
        return 0

    cdef int seats_changed(self) except -1:
        """A worker was replaced: what was its home, and what its consumers had, is looked after."""
        cdef Queue queue
        for queue in list(self.by_name.values()):
            try:
                if queue.home is not None:
                    queue.home.seats_changed()
                queue.check_home()
            except Exception as problem:
                faults.say_fault(problem, "queue %s: after a worker was replaced", queue.name)
        return 0

    cdef int dispatch(self) except -1:
        """Every queue that has something to decide; then the letters of this turn go out."""
        cdef Queue queue
        cdef Consumer consumer
        cdef list dirty
        cdef list again = []
        dirty, self.dirty = self.dirty, []
        for queue in dirty:
            queue.dirty = False
            if queue.refused:
                refusing.say(queue.key, "queue %s: it is full (max_messages %d), and refuses new messages (%s)", queue.name,
                             queue.max_messages, queue.options.overflow.name.lower(), count=queue.refused)
                queue.refused = 0
            try:
                if queue.dispatch():
                    again.append(queue)
            except Exception as problem:
                faults.say_fault(problem, "queue %s: while dispatching", queue.name)
        for queue in again:
            queue.mark()
        if self.reports:
            reports, self.reports = self.reports, []
            for consumer in reports:
                consumer.queued = False
                if consumer.queue is not None:
                    (<Queue> consumer.queue).report(consumer)
        self.mail.flush()
        return 0

    def set_alarms(self, generation, bint is_full, bint holds_copies):
        """`generation`: of the rights that hold; None: nobody may publish, whatever the rights are."""
        cdef Queue queue
        cdef bint held = self.access_generation == NOBODY_MAY_PUBLISH
        cdef bint held_copies = self.holds_copies
        self.makes_room, self.holds_copies = is_full, holds_copies
        self.access_generation = NOBODY_MAY_PUBLISH if generation is None else generation
        if held == (generation is None) and held_copies == holds_copies:
            return
        for queue in self.by_name.values():
            if queue.waiting_publishers or queue.home is not None:
                queue.mark()

    def tick(self, int64_t now_ms):
        """A look at each queue in its turn: at all of them twice a second while they are few."""
        cdef list queues = list(self.by_name.values())
        self.ticked = self.ticked if self.ticked < len(queues) else 0
        part = queues[self.ticked:self.ticked + LOOKS_PER_TICK]
        self.ticked += LOOKS_PER_TICK
        for queue in part:
            try:
                queue.tick()
            except Exception as problem:
                faults.say_fault(problem, "queue %s: while looking after it", queue.name)
