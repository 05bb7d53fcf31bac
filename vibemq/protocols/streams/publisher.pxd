# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from vibemq.broker.stream cimport StreamUser
from vibemq.net.connection cimport Connection


cdef class Publisher(StreamUser):
    cdef object session               # told of what is rare: a deleted stream, waiting for a sync
    cdef Connection connection
    cdef readonly int publisher_id
    cdef object queue                 # broker.queue.Queue when the stream is one: held, so that its bounds are kept
    cdef readonly bytes reference
    cdef readonly uint64_t published, confirmed, errored  # entries
    cdef uint32_t reference_index     # in the stream's batch, while ids are staged
    cdef uint8_t *ids                 # in this turn's batch, big-endian as they came
    cdef size_t id_count, id_capacity
    cdef list unsynced                # (ids, first offset, next offset) of each batch that waits for a sync
    cdef bint deleted                 # confirms still to come are dropped

    cdef int reserve(self, size_t count) except -1
    cdef int begin(self) except -1
    cdef size_t _part_duplicates(self, size_t count) except? 0
    cdef int _await_sync(self, const uint8_t *ids, size_t count, uint64_t first_offset, uint64_t next_offset) except -1
    cdef int _confirm(self, const uint8_t *ids, size_t count) except -1
    cdef int _refuse(self, const uint8_t *ids, size_t count, int code) except -1


cdef int publish_error(Connection connection, int publisher_id, const uint8_t *ids, size_t count, int code) except -1
