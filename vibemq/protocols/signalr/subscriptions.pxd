# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from vibemq.broker.client cimport Consumer, InFlight
from vibemq.broker.messages cimport LogReader, message_view
from vibemq.protocols.signalr.hub cimport HubConnection


# What a hub connection has subscribed to: it has a consumer of a queue, or a reader of a log.
cdef class Subscription:
    cdef readonly HubConnection hub
    cdef readonly str name            # of the queue or stream
    cdef readonly object call         # that its deliveries are items of; None: they are calls
    cdef readonly int64_t id
    cdef public bint is_stream        # of the broker's streams: other rights count
    cdef readonly HubSubscription consumer
    cdef readonly HubReader reader
    cdef bytes queue
    cdef bint wants_result            # of the method that is called
    cdef bytes head, middle, tail     # of each record: around the id of a call, and behind the delivery
    cdef bint has_number              # of each call, as its id
    cdef uint32_t called
    cdef size_t record_max

    # Write one delivery; UNDELIVERABLE: it is larger than the peer reads.
    cdef int write(self, const message_view *m, uint64_t key, const uint8_t *id, uint32_t id_size, bint redelivered,
                   uint64_t tag) except -1


cdef class HubSubscription(Consumer):
    cdef Subscription way
    cdef readonly bint is_auto        # settled when the transport has sent it


cdef class HubReader(LogReader):
    cdef Subscription way


cdef class Subscriptions:
    cdef HubConnection hub
    cdef readonly InFlight in_flight
    cdef readonly dict by_id          # id -> Subscription
    cdef list by_number               # HubSubscription or None, by the number that its deliveries bear
    cdef list free_numbers            # whose place there is None
    cdef list autos                   # HubSubscriptions whose deliveries count as settled once they are sent
    cdef list pulls                   # Subscriptions of messages that were pulled, until these are settled

    # Whoever had no room goes on.
    cdef int room_again(self) except -1
    # The transport has sent all that was written: deliveries that nobody acknowledges are settled.
    cdef int sent(self) except -1
    cdef int end_pulls(self) except -1
