# SPDX-License-Identifier: Apache-2.0
cimport cython
from libc.stdint cimport uint16_t, uint64_t
from vibemq.broker.messages cimport Cursor, Place, Probe, message_view
from vibemq.broker.queue cimport Queue
from vibemq.storage.core cimport err, fault


# Where a home is in the log of its queue.
@cython.final
cdef class Reading:
    cdef Queue queue
    cdef Cursor cursor                # over messages that have no entry yet
    cdef Probe probe                  # at messages that have one
    cdef list segments                # first offsets of the log's segments, rising
    cdef bint fetching                # a helper thread reads ahead

    # A message that has an entry.  ERR_NOT_CACHED: a helper fetches it.
    cdef err look(self, uint64_t offset, uint64_t place, uint16_t index, message_view *m, fault *f) except *
    # What is there is on disk only: the queue goes on once a helper thread has read it.
    cdef int ahead(self, Place place) except -1
    # A message of that segment has an entry now.
    cdef int came_to(self, uint64_t segment) except -1
    # Nothing below is needed any more: does that leave a segment behind?
    cdef bint leaves(self, uint64_t base) except -1
    # Hold no descriptors.
    cdef void close(self) noexcept
