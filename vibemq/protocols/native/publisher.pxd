# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from vibemq.broker.queue cimport Queue
from vibemq.broker.stream cimport StreamUser
from vibemq.net.connection cimport Connection
from vibemq.protocols.native.session cimport NativeSession
from vibemq.protocols.native.wire cimport native_frame


cdef class Publisher(StreamUser):
    cdef NativeSession session
    cdef Connection connection
    cdef readonly Queue queue
    cdef bytes name                   # of the queue, as frames bear it
    cdef int64_t generation           # of the permissions that allowed it
    cdef int overflow
    cdef size_t letter_bytes          # what becoming a dead letter may add to a Deliver; 0: none becomes one
    cdef uint8_t *acks                # PublishAcks of this turn's batch, as they will be sent
    cdef size_t ack_bytes, ack_capacity
    cdef size_t count
    cdef bytes reference              # of a client whose duplicates are dropped: the first digits of its ids
    cdef uint32_t reference_index     # in this turn's batch, once interned
    cdef bint interned
    cdef list unsynced                # (acks, count, first offset, next offset) of batches that wait for a sync
    cdef list parked                  # (body, when it came) of publishes that a full queue holds back
    cdef object timer
    cdef object redirect              # broker.deadletters.DeadLetters, once something was redirected
    cdef size_t redirected            # on their way into the dead-letter queue
    cdef bint closed

    cdef int publish(self, const native_frame *frame, const uint8_t *body, size_t body_size) except -1
    cdef int _append(self, const native_frame *frame) except -1
    cdef bint _number_of(self, const native_frame *frame, uint64_t *number) except -1
    cdef uint8_t *_ack_room(self, size_t size) except NULL
    cdef int _refuse_acks(self, const uint8_t *acks, size_t size, bytes code, bytes text) except -1
    cdef int _full(self, const native_frame *frame) except -1
    cdef int _park(self, const uint8_t *body, size_t body_size) except -1
    cdef int _redirect(self, const native_frame *frame, const uint8_t *body, size_t body_size) except -1
