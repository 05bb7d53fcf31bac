# SPDX-License-Identifier: Apache-2.0
"""Reading a log from a place on, for doors whose peers get messages and no chunks.

It is paced by the door's room, and writes when there is some, when the log has grown, and when a helper thread has
brought what was only on disk.  What is passed over needs no room, and is bounded by turns.  Nothing is settled.
"""

import logging

from libc.stdint cimport int64_t
from vibemq.broker.consumer cimport UNDELIVERABLE, WRITTEN
from vibemq.broker.messages cimport NOWHERE
from vibemq.broker.payload cimport MESSAGE_ID_BYTES_MAX, id_of
from vibemq.broker.queue_table cimport QueueTable
from vibemq.broker.stream cimport Stream
from vibemq.storage cimport core
from vibemq.storage.core cimport ERR_CORRUPT, ERR_END, ERR_NOT_CACHED, ERR_NOT_FOUND, OK, commit, err, fault
from vibemq.storage.log cimport storage_error

from vibemq.errors import StreamNotFound

logger = logging.getLogger(__name__)

cdef enum:
    PASSED_OVER_BYTES_PER_TURN = 256 * 1024   # of messages that are not written: half a millisecond
    PASSED_OVER_BYTES_MIN = 256               # what a small one costs

NO_MAX = 0


def offset_of_word(Stream stream, str word) -> int | None:
    """The offset that "first", "last" or "next" means now; None: it is none of these."""
    cdef commit committed
    core.control_committed(stream.log.control, &committed)
    if word == "next":
        return committed.next_offset
    if word == "first":
        return 0
    if word == "last":
        return committed.next_offset - 1 if committed.next_offset else 0
    return None


def offset_of_time(Stream stream, int64_t ms) -> int:
    """That of the first chunk that is not older than `ms` since 1970.  Raises StorageError."""
    return stream.log.attach_offset(core.READER_TIMESTAMP, ms)


cdef class LogReader(StreamUser):
    def __init__(self, QueueTable queues, Stream stream not None, uint64_t offset, uint64_t most=NO_MAX,
                 bint follows=True):
        """``ended(problem)`` is called once when it ends by itself, with None after the last of `most` messages.

        Call ``pump`` when it is known to those who may end it."""
        self.follows = follows
        self.left = most if most else <uint64_t> -1
        self.unreadable_end = NOWHERE
        self.key = <uint64_t> stream.slot << 32 | <uint64_t> int(stream.incarnation[:8], 16)
        self.queues = queues
        self.cursor = Cursor(queues.messages, stream.log, self.key)
        self.cursor.seek(offset)
        stream.attach(self)
        stream.attach_reader(self)

    def close(self):
        """It is not wanted any more."""
        if not self.closed:
            self.closed = True
            self.cursor.close()
            if self.next_turn is not None:
                self.next_turn.cancel()
            if self.stream.log.raw != NULL:
                self.stream.detach(self)

    def _end(self, problem=None):
        if not self.closed:
            self.close()
            self.ended(problem)

    @property
    def next_offset(self) -> int:
        return self.cursor.offset

    cpdef pump(self):
        if self.closed or self.waiting or self.writing:
            return
        self.writing = True
        try:
            self._write()
        finally:
            self.writing = False

    cdef int _write(self) except -1:
        cdef message_view m
        cdef fault f
        cdef err e
        cdef uint8_t made[MESSAGE_ID_BYTES_MAX]
        cdef uint32_t id_size = 0
        cdef const uint8_t *id
        cdef bint looked_again = False
        cdef size_t passed_over = 0
        cdef int what
        self.stalled = False
        while not self.closed:
            if not self.room():
                self.stalled = True
                return 0
            if passed_over >= PASSED_OVER_BYTES_PER_TURN:
                return self._wait_a_turn()
            e = self.cursor.next(&m, &f)
            if e == OK:
                looked_again = False
                id = id_of(&m, made, &id_size)
                what = self.write(&m, id, id_size)
                if what != WRITTEN:
                    passed_over += max(m.size, <uint32_t> PASSED_OVER_BYTES_MIN)
                if what == UNDELIVERABLE and not self.told:
                    self.told = True
                    logger.warning("message %d of %s is larger than what %s is sent, and passed over, as all such will be",
                                   m.offset, self.stream.name, self)
                self.left -= 1
                if self.left == 0:
                    self._end()
            elif e == ERR_END:
                if not self.follows:
                    self._end()
                return 0
            elif e == ERR_NOT_CACHED:
                self.waiting = True
                self.cursor.messages.read_ahead(self.cursor.raw.fd, self.cursor.raw.position, self._go_on)
                return 0
            elif e == ERR_CORRUPT and m.offset != NOWHERE:
                # A sub-batch that cannot be unpacked may say that it has 65,535 of them.
                if m.offset != self.unreadable_end:
                    logger.error("stream %s: passed over: message %d and those behind it that cannot be read either",
                                 self.stream.name, m.offset)
                self.unreadable_end = m.offset + 1
                passed_over += PASSED_OVER_BYTES_MIN
            elif e == ERR_CORRUPT:
                logger.error("stream %s: passed over: %s", self.stream.name, storage_error(e, &f))
                passed_over = PASSED_OVER_BYTES_PER_TURN
                e = self.cursor.pass_damage(&f)
                if e != OK:
                    self._end_unread(e, &f)
            elif e == ERR_NOT_FOUND and not looked_again:
                looked_again = True  # retention took the segment: what is left begins behind it
                self.cursor.close()
            else:
                self._end_unread(e, &f)
        return 0

    cdef int _end_unread(self, err e, fault *f) except -1:
        problem = storage_error(e, f)
        logger.error("stream %s: cannot be read: %s", self.stream.name, problem)
        self._end(problem)
        return 0

    cdef int _wait_a_turn(self) except -1:
        self.waiting = True
        if self.next_turn is None:
            self.next_turn = self.queues.timers.timer(self._go_on)
        self.next_turn.set(self.queues.now_ms)
        return 0

    def _go_on(self, now_ms=None):
        self.waiting = False
        try:
            self.pump()
        except Exception as problem:
            self.failed(problem)

    cdef int on_news(self) except -1:
        self.pump()
        return 0

    cdef int on_deleted(self) except -1:
        self._end(StreamNotFound(self.stream.name))
        return 0

    # ---- the door's ----

    cdef bint room(self) noexcept:
        return True

    cdef int write(self, message_view *m, const uint8_t *id, uint32_t id_size) except -1:
        raise TypeError(f"{type(self).__name__} does not say how to write")

    def ended(self, problem):
        """StreamNotFound: the stream was deleted; StorageError: it cannot be read here, as the log says."""
