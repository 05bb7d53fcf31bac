# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from vibemq.broker.queue_table cimport QueueTable
from vibemq.broker.client cimport QueueSession
from vibemq.protocols.micromsg2.window cimport ReceiveWindow, SendWindow
from vibemq.protocols.micromsg2.wire cimport mm_frame


# Its publishers go by destinations, its subscriptions (Subscription or TopicReader) by the name of the queue or stream.
cdef class Micromsg2Session(QueueSession):
    cdef public object shake           # handshake.Shake, until the connection is open
    cdef readonly object agreed        # extensions.Agreed, from then on
    cdef public str identity           # what the peer calls itself
    cdef public int errors_told        # by the peer
    cdef readonly bytes content_type   # of the serializer; None: payloads are opaque
    cdef const char *type_data         # the same; NULL
    cdef uint32_t type_size
    cdef readonly bint is_sharp        # the peer is SharpMessaging, which reads less than the protocol allows
    cdef readonly uint8_t ack_id, dotnet_id, heartbeat_id
    cdef QueueTable queues
    # What comes in.
    cdef readonly uint32_t message_max # of one message, in one frame or in several
    cdef ReceiveWindow received
    cdef int64_t ack_delay_ms          # SharpMessaging: how long an incomplete window waits for its acknowledgement
    cdef object ack_timer
    cdef uint64_t ack_timer_index      # of the newest message when it was set
    cdef bytes dotnet_type             # of the messages that come; None: none was told
    cdef bytearray part                # of a message whose last frame has not come; None: there is none
    cdef bytes part_destination, part_properties, part_dotnet_type
    # What goes out.
    cdef SendWindow sent
    cdef object sending                # the Outlet whose message has frames to come; None: there is none
    cdef bytes dotnet_type_sent
    cdef uint32_t payload_max          # SharpMessaging: of what it can read
    cdef bint has_autos                # something is settled as soon as the socket has taken it
    cdef bint has_stalled              # some subscription was told that there is no room
    # Signs of life.
    cdef readonly int64_t heartbeat_ms # 0: none agreed
    cdef uint64_t heard_bytes, told_bytes
    cdef int64_t heard_ms, told_ms

    cdef int _frame(self, const mm_frame *frame) except -1
    cdef int _message(self, const mm_frame *frame) except -1
    cdef int _fragment(self, const mm_frame *frame, uint64_t index) except -1
    cdef int _publish(self, const uint8_t *destination, uint32_t destination_size, const uint8_t *properties,
                      uint32_t properties_size, const uint8_t *payload, uint32_t payload_size, uint64_t index) except -1
    cdef int _extension(self, const mm_frame *frame) except -1
    cdef int _acknowledged(self, int64_t number) except -1
    cdef int _acknowledge(self) except -1
    cdef int _ack_write(self, int64_t number) except -1
    cdef int kept(self, uint64_t index) except -1
    cdef bint may_write(self) noexcept
    cdef bint room(self) noexcept
    cdef int _settle_autos(self) except -1
    cdef int _wake_stalled(self) except -1
    cdef bint _has_done_its_work(self) except -1
    cdef int _keep_alive(self, int64_t now_ms) except -1
