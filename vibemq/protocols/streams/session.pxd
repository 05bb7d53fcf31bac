# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from vibemq.broker.client cimport ClientSession
from vibemq.broker.stream cimport Stream, StreamUser
from vibemq.protocols.streams.deliveries cimport Deliveries


# That a connection has stored or asked for an offset of a stream: held open, and the connection is told of its end.
cdef class Tracking(StreamUser):
    cdef StreamsSession session


# Its publishers go by their ids.
cdef class StreamsSession(ClientSession):
    cdef public str virtual_host
    cdef public str mechanism          # by which it has
    cdef public object rights          # access.rights.VhostRights: what it may do here; None: nothing yet
    cdef public int64_t rights_generation  # of the rights, when they were last looked at
    cdef public dict pending           # correlation id -> subscribing.Question: ConsumerUpdates without an answer
    cdef public uint32_t asked         # how many there were
    cdef readonly dict tracked         # Stream -> Tracking: those whose offsets it has stored or asked for
    cdef public bint counted           # by the door, as one that has a virtual host
    cdef public dict peer_properties
    cdef public uint32_t frame_max     # bytes; 0 is no limit
    cdef public uint32_t negotiated_frame_max  # holds from Open on
    cdef public uint32_t heartbeat_s
    cdef bint parts_kinds              # a sub-batch shares its chunk with nothing
    cdef readonly Deliveries deliveries
    cdef int64_t beat_checked_ms, silence_checked_ms
    cdef uint64_t beat_bytes_out, silence_bytes_in
    cdef int silent_checks
    cdef size_t skip                   # bytes of a refused frame that are still to come

    cdef int _frame(self, const uint8_t *p, size_t size) except -1
    cdef int _publish(self, const uint8_t *p, const uint8_t *end, int version) except -1
    cdef int _credit(self, const uint8_t *p, const uint8_t *end) except -1
    cdef int _refuse_from(self, int publisher_id, int code, const uint8_t *p, const uint8_t *end, int version) except -1
    cdef int _beat(self, int64_t now_ms) except -1
