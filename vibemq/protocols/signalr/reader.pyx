# SPDX-License-Identifier: Apache-2.0
"""Reading a log from a place on: ReadStream, and Subscribe where the stream is no queue.

It is paced by the transport alone, and writes when there is room, when the log has grown, and when a helper thread has
brought what was only on disk.  Nothing is acknowledged: every delivery has the tag 0.
"""

import logging
from datetime import datetime

from vibemq.broker.consumer cimport UNDELIVERABLE
from vibemq.broker.messages cimport message_view
from vibemq.broker.payload cimport MESSAGE_ID_BYTES_MAX, id_of
from vibemq.broker.stream cimport Stream
from vibemq.storage cimport core
from vibemq.storage.core cimport (
    ERR_CORRUPT, ERR_END, ERR_NOT_CACHED, ERR_NOT_FOUND, OK, commit, err, fault,
)
from vibemq.storage.log cimport storage_error
from libc.stdint cimport uint8_t, uint32_t

from vibemq.protocols.signalr.errors import HubError
from vibemq.protocols.signalr.spec import ErrorCode

logger = logging.getLogger(__name__)

cdef enum:
    NO_MAX = 0


def offset_from(Stream stream, place) -> int:
    """The offset that `from` means: "first", "last", "next", an offset, or a time.  Raises HubError, StorageError."""
    cdef commit committed
    core.control_committed(stream.log.control, &committed)
    if place is None or place == "next":
        return committed.next_offset
    if place == "first":
        return 0
    if place == "last":
        return committed.next_offset - 1 if committed.next_offset else 0
    if isinstance(place, dict) and set(place) == {"timestamp"}:
        time = place["timestamp"]
        if isinstance(time, (int, float)) and not isinstance(time, bool) and 0 <= time < 2**53:
            return stream.log.attach_offset(core.READER_TIMESTAMP, int(time))
    elif isinstance(place, str):
        try:
            return stream.log.attach_offset(core.READER_TIMESTAMP,
                                            int(datetime.fromisoformat(place).astimezone().timestamp() * 1000))
        except (ValueError, OverflowError, OSError):
            pass
    elif isinstance(place, (int, float)) and not isinstance(place, bool) and 0 <= place < 2**63 and place == int(place):
        return int(place)
    raise HubError(ErrorCode.INVALID_ARGUMENT,
                   "Option 'from' must be \"first\", \"last\", \"next\", an offset, an ISO 8601 time, or {timestamp: "
                   f"milliseconds since 1970}}, had {place!r:.60}.")


cdef class HubReader(StreamUser):
    def __init__(self, HubConnection hub, Stream stream not None, Outlet outlet not None, uint64_t offset,
                 uint64_t most=NO_MAX, bint follows=True, when_over=None):
        """``when_over(code, text)`` is called once when it ends by itself: None, None after the last message.

        Call ``pump`` when it is known to those who may end it."""
        self.hub, self.outlet, self.follows, self.when_over = hub, outlet, follows, when_over
        self.left = most if most else <uint64_t> -1
        self.key = <uint64_t> stream.slot << 32 | <uint64_t> int(stream.incarnation[:8], 16)
        self.cursor = Cursor(hub.queues.messages, stream.log, self.key)
        self.cursor.seek(offset)
        stream.attach(self)
        stream.attach_reader(self)

    def close(self):
        """It is not wanted any more."""
        if not self.closed:
            self.closed = True
            self.cursor.close()
            if self.stream.log.raw != NULL:
                self.stream.detach(self)

    def _end(self, code=None, text=None):
        if not self.closed:
            self.close()
            if self.when_over is not None:
                self.when_over(code, text)

    @property
    def next_offset(self) -> int:
        return self.cursor.offset

    cpdef pump(self):
        if self.closed or self.fetching or self.writing:
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
        while not self.closed and self.hub.room():
            e = self.cursor.next(&m, &f)
            if e == OK:
                looked_again = False
                id = id_of(&m, made, &id_size)
                if self.outlet.write(&m, self.key, id, id_size, False, 0) == UNDELIVERABLE:
                    logger.warning("%s: message %d of %s is larger than what is sent, and passed over", self.hub.peer,
                                   m.offset, self.stream.name)
                self.left -= 1
                if self.left == 0:
                    self._end()
            elif e == ERR_END:
                if not self.follows:
                    self._end()
                return 0
            elif e == ERR_NOT_CACHED:
                self.fetching = True
                self.cursor.messages.read_ahead(self.cursor.raw.fd, self.cursor.raw.position, self._fetched)
                return 0
            elif e == ERR_CORRUPT:
                logger.error("stream %s: passed over: %s", self.stream.name, storage_error(e, &f))
                if m.offset == <uint64_t> -1:
                    self.cursor.pass_damage()
            elif e == ERR_NOT_FOUND and not looked_again:
                looked_again = True  # retention took the segment: what is left begins behind it
                self.cursor.close()
            else:
                logger.error("stream %s: cannot be read: %s", self.stream.name, storage_error(e, &f))
                self._end(ErrorCode.SERVER_ERROR, "The stream cannot be read here; the broker's log says why.")
        return 0

    def _fetched(self):
        self.fetching = False
        self.pump()

    cdef int on_news(self) except -1:
        self.pump()
        return 0

    cdef int on_deleted(self) except -1:
        self._end(ErrorCode.QUEUE_NOT_FOUND, f"'{self.stream.name}' was deleted.")
        return 0

    cdef int failed(self, object problem) except -1:
        self.hub.fail(problem)
        return 0
