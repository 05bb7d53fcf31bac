# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport uint8_t, uint64_t
from vibemq.broker.publisher cimport Publisher
from vibemq.net.connection cimport Connection
from vibemq.protocols.streams.session cimport StreamsSession


# A declared publisher.  Its notes are the ids of this turn's batch, big-endian as they came.
cdef class StreamsPublisher(Publisher):
    cdef StreamsSession session
    cdef Connection connection
    cdef readonly int publisher_id
    cdef readonly bytes reference     # empty: its duplicates are kept
    cdef readonly uint64_t published, confirmed, errored  # entries

    cdef int begin(self) except -1
    cdef size_t _part_duplicates(self, uint8_t *ids, size_t count) except? 0


cdef int publish_error(Connection connection, int publisher_id, const uint8_t *ids, size_t count, int code) except -1
