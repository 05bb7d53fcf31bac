# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from vibemq.broker.consumer cimport Consumer
from vibemq.broker.inflight cimport InFlight
from vibemq.broker.messages cimport message_view
from vibemq.broker.reader cimport LogReader
from vibemq.protocols.signalr.hub cimport HubConnection
from vibemq.protocols.signalr.bodies cimport item


# Where deliveries go: items of a stream, or calls of a method of the peer's.
cdef class Outlet:
    cdef HubConnection hub
    cdef readonly bytes call_id       # of the stream; None: calls
    cdef bint wants_result            # of the method that is called
    cdef readonly bytes queue
    cdef bytes begin, middle, end     # of each record: around the id of a call, and behind the delivery
    cdef bint has_number              # of each call, as its id
    cdef uint32_t called
    cdef size_t record_max

    # Write one; UNDELIVERABLE: it is larger than the peer reads.
    cdef int write(self, const message_view *m, uint64_t key, const uint8_t *id, uint32_t id_size, bint redelivered,
                   uint64_t tag) except -1
    cdef size_t _number(self, uint8_t *out, uint64_t tag) noexcept


cdef class HubSubscription(Consumer):
    cdef HubConnection hub
    cdef readonly Outlet outlet
    cdef readonly bint is_auto        # settled when the transport has sent it
    cdef object when_deleted

    # The transport has sent all that was written.
    cdef int sent(self) except -1


cdef class HubReader(LogReader):
    cdef HubConnection hub
    cdef readonly Outlet outlet
    cdef object when_over


cdef class Subscriptions:
    cdef HubConnection hub
    cdef readonly InFlight in_flight
    cdef readonly dict by_id          # id -> message_methods.Subscribed
    cdef list by_number               # HubSubscription or None, by the number that its deliveries bear
    cdef list free_numbers            # whose place there is None
    cdef list autos                   # HubSubscriptions whose deliveries count as settled once they are sent
    cdef list pulls                   # Subscribeds of messages that were pulled, until these are settled

    cdef int new_number(self) except -1
    cdef int room_again(self) except -1
    # The transport has sent all that was written.
    cdef int sent(self) except -1
    cdef int end_pulls(self) except -1
    # An Ack or Nack of one tag without options; how many deliveries those were.
    cdef int settle_one(self, int64_t tag, bint nack) except -1
