# SPDX-License-Identifier: Apache-2.0
"""The names of a stream's connected publishers, whose highest publishing ids the log keeps.

A name is pinned in the log's table of names under the log's lock, which another process or thread may hold in a slow file
system call.  The loop waits for it once, for log_lock_patience.  For BUSY_US after a wait in vain it does not wait again:
`declare` fails at once, and a helper thread releases the name.
"""

import logging
from functools import partial

from libc.stdint cimport uint32_t

from vibemq.storage cimport core
from vibemq.storage.core cimport ERR_BUSY, ERR_LIMIT, PUBLISHER_NAMES_MAX, fault
from vibemq.storage.log cimport check
from vibemq.storage.meters cimport METER_NAMES_EVICTED, METER_NAMES_REFUSED, now_us

from vibemq.errors import StorageError
from vibemq.once_a_minute import OnceAMinute
from vibemq.storage.log import release_publisher

logger = logging.getLogger(__name__)
warns = OnceAMinute(logger, logging.WARNING)

GONE = ("ERR_NOT_FOUND", "ERR_DELETED")  # errors of a log that was deleted meanwhile

cdef enum:
    BUSY_US = 1_000_000


cdef class PublisherNames:
    def __init__(self, str stream, Log log, Board board, Meters meters, helpers):
        self.stream, self.log, self.board, self.meters = stream, log, board, meters
        self.helpers = helpers
        self.connected, self.released = {}, {}

    cdef int declare(self, bytes name) except -1:
        """Raises StorageError: ERR_LIMIT if connected publishers have all the names that a stream keeps; ERR_BUSY."""
        cdef core.boolean evicted = False
        cdef fault f
        cdef err e
        if name in self.connected:
            self.connected[name] += 1
            return 0
        # A release that comes later would unpin the name of the new publisher.
        if self._is_busy() or name in self.released:
            raise StorageError("ERR_BUSY", f"{self.log.directory}: another process or thread is in a slow call on it")
        e = core.log_publisher_declare(self.log.raw, self.board.raw, self.board.index, name, <uint32_t> len(name), &evicted, &f)
        self._note_busy(e)
        if e == ERR_LIMIT:
            self.meters.count(METER_NAMES_REFUSED, 1)
            warns.say((self.stream, "refused"), "stream %s: publisher %r is refused: %d publisher names are kept, and "
                       "all are names of connected publishers", self.stream, name, PUBLISHER_NAMES_MAX)
        check(e, &f)
        self.connected[name] = 1
        if evicted:
            self.meters.count(METER_NAMES_EVICTED, 1)
            warns.say((self.stream, "evicted"), "stream %s: %d publisher names are kept; the one that published longest "
                       "ago was evicted for %r", self.stream, PUBLISHER_NAMES_MAX, name)
        return 0

    cdef int undeclare(self, bytes name) except -1:
        cdef fault f
        cdef err e
        self.connected[name] -= 1
        if self.connected[name]:
            return 0
        del self.connected[name]
        if self.log.raw == NULL or core.control_is_deleted(self.log.control):
            return 0
        if not self._is_busy():
            e = core.log_publisher_release(self.log.raw, self.board.index, name, <uint32_t> len(name), &f)
            if self._note_busy(e) != ERR_BUSY:
                check(e, &f)
                return 0
        self.released[name] = self.released.get(name, 0) + 1
        release = partial(release_publisher, self.log.directory, self.board.index, name)
        self.helpers.submit_release(release, partial(self._released, name))
        return 0

    def _released(self, bytes name, _, error):
        self.released[name] -= 1
        if not self.released[name]:
            del self.released[name]
        if error is not None and getattr(error, "code", "") not in GONE:
            raise error

    cdef bint _is_busy(self) noexcept:
        return self.busy_until_us != 0 and now_us() < self.busy_until_us

    cdef err _note_busy(self, err e) noexcept:
        if e == ERR_BUSY:
            self.busy_until_us = now_us() + BUSY_US
        return e
