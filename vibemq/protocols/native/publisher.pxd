# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from vibemq.broker.publisher cimport QueuePublisher
from vibemq.protocols.native.session cimport NativeSession
from vibemq.protocols.native.wire cimport native_frame


cdef class NativePublisher(QueuePublisher):  # its notes are PublishAcks, as they will be sent
    cdef NativeSession session
    cdef size_t letter_bytes          # what becoming a dead letter may add to a Deliver; 0: none becomes one
    cdef bytes reference              # of a client whose duplicates are dropped: the first digits of its ids

    cdef int publish(self, const native_frame *frame, const uint8_t *body, size_t body_size) except -1
    cdef int _append(self, const native_frame *frame) except -1
    cdef bint _number_of(self, const native_frame *frame, uint64_t *number) except -1
    cdef int _refuse(self, const native_frame *frame, bytes code, bytes text) except -1
    cdef int _refuse_body(self, const uint8_t *body, size_t size, bytes code, bytes text) except -1
