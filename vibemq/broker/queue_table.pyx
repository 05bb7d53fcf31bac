# SPDX-License-Identifier: Apache-2.0
"""All queues that one worker has open: found by name, dispatched once a turn, reached by letters."""

import logging
import time

from libc.stdint cimport int64_t, uint32_t

from vibemq.broker.consumer cimport Consumer
from vibemq.broker.messages cimport Messages
from vibemq.broker.stream cimport StreamTable
from vibemq.storage.mail cimport LETTER_HAND, LETTER_HELLO, LETTER_JOIN, LETTER_TOLD, LETTER_YOURS, Mail

from vibemq.errors import StorageError, StreamNotFound

logger = logging.getLogger(__name__)

cdef enum:
    LOOKS_PER_TICK = 1000  # under a millisecond


cdef class QueueTable(QueueParts):
    """The queues that this worker has open."""

    def __init__(self, StreamTable streams, Mail mail, Messages messages, timers, defaults, make_home):
        self.streams, self.mail, self.messages, self.timers = streams, mail, messages, timers
        self.metadata, self.helpers, self.board = streams.metadata, streams.helpers, streams.board
        self.worker = streams.worker
        self.defaults, self.make_home = defaults, make_home
        self.by_name, self.by_slot, self.dirty, self.reports = {}, {}, [], []
        self.now_ms = time.monotonic_ns() // 1_000_000

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

    cdef Queue _addressee(self, const letter *what):
        """The queue that a letter is about, opened if this worker must answer for it; or None."""
        found = self.by_slot.get(what.slot)
        if found is not None and (<Queue> found).tag == what.tag:
            return <Queue> found
        if what.kind != LETTER_YOURS and what.kind != LETTER_JOIN and what.kind != LETTER_HAND:
            return None
        # This worker has let go of it meanwhile, but is its home by name, or is handed its messages.
        record = self.metadata.stream_at(what.slot)
        if record is None or int(record.incarnation[:8], 16) != what.tag:
            return None
        try:
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
                except Exception:
                    logger.exception("queue %s: a letter from worker %d", queue.name, sender)
        return 0

    cdef int seats_changed(self) except -1:
        """A worker was replaced: what was its home, and what its consumers had, is looked after."""
        cdef Queue queue
        for queue in list(self.by_name.values()):
            try:
                if queue.home is not None:
                    queue.home.seats_changed()
                queue.check_home()
            except Exception:
                logger.exception("queue %s: after a worker was replaced", queue.name)
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
            try:
                if queue.dispatch():
                    again.append(queue)
            except Exception:
                logger.exception("queue %s: while dispatching", queue.name)
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

    def tick(self, int64_t now_ms):
        """A look at each queue in its turn: at all of them twice a second while they are few."""
        cdef list queues = list(self.by_name.values())
        self.ticked = self.ticked if self.ticked < len(queues) else 0
        part = queues[self.ticked:self.ticked + LOOKS_PER_TICK]
        self.ticked += LOOKS_PER_TICK
        for queue in part:
            try:
                queue.tick()
            except Exception:
                logger.exception("queue %s", queue.name)
