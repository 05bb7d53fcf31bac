# SPDX-License-Identifier: Apache-2.0
"""A home's places in the log of its queue: at new messages and at those that have an entry, and what is read ahead.

An entry says where in a segment its message lies, but not in which: for that the segments are kept here.
"""

import bisect

from vibemq.storage.core cimport ERR_NOT_CACHED

from vibemq.storage.log import segments


cdef class Reading:
    def __init__(self, Queue queue):
        self.queue = queue
        self.cursor = Cursor(queue.table.messages, queue.stream.log, queue.key)
        self.probe = Probe(queue.table.messages, queue.stream.log, queue.key)
        self.segments = segments(queue.stream.log.directory)

    cdef err look(self, uint64_t offset, uint64_t place, uint16_t index, message_view *m, fault *f) except *:
        cdef uint64_t segment = self.segments[max(0, bisect.bisect_right(self.segments, offset) - 1)]
        cdef err e = self.probe.look(offset, segment, place, index, m, f)
        if e == ERR_NOT_CACHED:
            self.ahead(self.probe)
        return e

    cdef int ahead(self, Place place) except -1:
        self.queue.table.messages.read_ahead(place, self._fetched)
        self.fetching = True
        return 0

    def _fetched(self):
        self.fetching = False
        self.queue.mark()

    cdef int came_to(self, uint64_t segment) except -1:
        if segment > <uint64_t> self.segments[len(self.segments) - 1]:
            self.segments.append(segment)
        return 0

    cdef bint leaves(self, uint64_t base) except -1:
        cdef bint is_left = False
        while len(self.segments) > 1 and <uint64_t> self.segments[1] <= base:
            del self.segments[0]
            is_left = True
        return is_left

    cdef void close(self) noexcept:
        self.cursor.close()
        self.probe.close()
