# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from vibemq.broker.stream cimport Stream, StreamUser
from vibemq.net.connection cimport iovec
from vibemq.net.door cimport Session
from vibemq.storage.core cimport err, fault, reader


# A declared publisher: which ids of this turn's batch are its own, and which wait for a sync.
cdef class Publisher(StreamUser):
    cdef StreamsSession session
    cdef readonly int publisher_id
    cdef readonly bytes reference
    cdef uint32_t reference_index     # in the stream's batch, while ids are staged
    cdef uint8_t *ids                 # in this turn's batch, big-endian as they came
    cdef size_t id_count, id_capacity
    cdef list unsynced                # (ids, first offset, next offset) of each batch that waits for a sync
    cdef bint deleted                 # confirms still to come are dropped
    cdef readonly uint64_t published, confirmed, errored

    cdef int reserve(self, size_t count) except -1
    cdef int begin(self) except -1
    cdef int _confirm(self, const uint8_t *ids, size_t count) except -1
    cdef int _refuse(self, const uint8_t *ids, size_t count, int code) except -1


# A subscription: where it reads, how much it may be sent, and how far a frame is out already.
cdef class Subscription(StreamUser):
    cdef StreamsSession session
    cdef readonly int subscription_id
    cdef reader reader
    cdef bint attached                # `reader` is open
    cdef readonly int64_t credit      # chunks; clients add 1,000 at a time, so wider than the wire's i16
    cdef size_t partial               # bytes already sent of the frame at the reader's place
    cdef uint64_t partial_committed   # the committed chunk id that frame began with (Deliver 2)
    cdef bint cold                    # a helper thread reads ahead for it
    cdef bint queued                  # in its session's `ready`
    cdef readonly dict properties
    cdef readonly uint64_t delivered_chunks, delivered_records

    cdef bint wants(self) noexcept
    cdef int close_reader(self) except -1


cdef class StreamsSession(Session):
    cdef readonly object door          # protocols.streams.door.StreamsDoor: what all its sessions share
    cdef public str state              # a key of commands.STATES
    cdef public str user
    cdef public str virtual_host
    cdef public dict peer_properties
    cdef public uint32_t frame_max     # bytes; 0 is no limit
    cdef public uint32_t negotiated_frame_max  # holds from Open on
    cdef public uint32_t heartbeat_s
    cdef public bint deliver_v2
    cdef readonly dict publishers      # id -> Publisher
    cdef Publisher publisher_cached
    cdef readonly dict subscriptions   # id -> Subscription
    cdef list ready                    # subscriptions with credit and perhaps something to read, in turn
    cdef Subscription partial          # whose frame is half out: nothing else may be sent first
    cdef readonly size_t unconfirmed   # entries waiting for a sync
    cdef bint throttled                # not read because of them
    cdef public int64_t deadline_ms    # of the handshake step, of the answer to our Close; 0: none
    cdef public object at_deadline     # what happens then
    cdef int64_t beat_checked_ms, silence_checked_ms
    cdef uint64_t beat_bytes_out, silence_bytes_in
    cdef int silent_checks
    cdef bint shutting_down

    cdef int _frame(self, const uint8_t *p, size_t size) except -1
    cdef int _publish(self, const uint8_t *p, const uint8_t *end, int version) except -1
    cdef int _credit(self, const uint8_t *p, const uint8_t *end) except -1
    cdef int _want(self, Subscription subscription) except -1
    cdef Py_ssize_t _deliver_from(self, Subscription subscription) except -2
    cdef Py_ssize_t _read_failed(self, Subscription subscription, err error, const fault *f) except -2
    cdef int _finish_partial(self, Subscription subscription) except -1
    cdef int _refuse_from(self, int publisher_id, int code, const uint8_t *p, const uint8_t *end, int version) except -1
    cdef int _beat(self, int64_t now_ms) except -1
    cdef int _throttle(self) except -1
