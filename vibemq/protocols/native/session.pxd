# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from vibemq.broker.queue_table cimport QueueTable
from vibemq.broker.client cimport QueueSession
from vibemq.protocols.native.wire cimport native_frame


# Its publishers and subscriptions go by the names of their queues, in bytes.
cdef class NativeSession(QueueSession):
    cdef public str connection_id
    cdef public str client_version
    cdef public bint text_layout       # what is written: mirrors the peer
    cdef public bint layout_fixed
    cdef public str compression        # negotiated name, None: nothing is compressed
    cdef public uint8_t flags_max      # highest compression flag that this peer may use
    cdef public frozenset features
    cdef public bytes id_digits        # with which its numbered ids begin; None: not said
    cdef public bint dedup             # one of them, asked for each message
    cdef public uint32_t frame_max
    cdef uint32_t read_max             # of a frame that comes: with the feature `stored` a little more
    cdef public uint32_t compression_threshold
    cdef public bint dormant           # some subscription waits for its queue to be made
    cdef uint64_t heard_bytes
    cdef int64_t heard_ms
    cdef QueueTable queues
    cdef int64_t rate
    cdef double tokens                 # messages that the rate limit allows now
    cdef int64_t tokens_ms

    cdef int _body(self, const uint8_t *body, size_t size) except -1
    cdef int _checked_publish(self, const native_frame *frame, const uint8_t *body, size_t size) except -1
    cdef int _publish(self, const native_frame *frame, const uint8_t *body, size_t size) except -1
    cdef int _ack(self, const native_frame *frame, bint nack) except -1
    cdef int _refuse(self, const native_frame *frame, bytes code, bytes text) except -1
    cdef int32_t _find(self, const native_frame *frame, const uint8_t *id, uint32_t id_size) except -2
    cdef bint _is_of(self, int32_t slot, const native_frame *frame) except -1
    cdef bint _limited(self) noexcept
    cdef bint _has_done_its_work(self)
    cdef int _end_when_done(self) except -1
    cdef int _keep_alive(self, int64_t now_ms) except -1
