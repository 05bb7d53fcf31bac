# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport int64_t, uint64_t
from vibemq.broker.stream cimport Stream, StreamUser
from vibemq.net.connection cimport Connection
from vibemq.storage.core cimport chunk, err, fault, filter_t, reader


# Where one subscription reads, how much it may be sent, and how far a frame is out already.
cdef class Subscription(StreamUser):
    cdef Deliveries owner
    cdef readonly int subscription_id
    cdef reader reader
    cdef bint reading                 # `reader` is open; not while a group has another consumer active
    cdef int offset_type              # where it begins, and begins again when it becomes active
    cdef int64_t offset_value
    cdef filter_t *filter             # which chunks it takes; NULL: all
    cdef readonly bint grouped        # it is a member of a group with a single active consumer
    cdef readonly int64_t credit      # chunks; clients add 1,000 at a time, so wider than the wire's i16
    cdef readonly dict properties     # as its Subscribe gave them
    cdef bint with_trailers           # chunk_selector `all`: a chunk is followed by its trailer
    cdef uint64_t chunk_bytes         # the largest of the last send: how much the next one fetches
    cdef readonly uint64_t consumed   # messages sent
    cdef readonly int64_t offset      # of the last chunk sent; -1: none yet
    cdef size_t frame_sent            # bytes already sent of the frame at the reader's place
    cdef chunk frame_chunk            # what that frame delivers: verified when it began, its rest not again
    cdef bint frame_v2                # it is a Deliver 2,
    cdef uint64_t frame_committed     # and began with this committed chunk id
    cdef bint cold                    # nothing is sent yet: a helper thread reads for it, or its answer goes first
    cdef bint queued                  # in its owner's `ready`

    cdef bint wants(self) noexcept
    cdef int _take_filter(self) except -1
    cdef int close_reader(self) except -1


cdef class Deliveries:
    cdef object session               # told of what is rare
    cdef Connection connection
    cdef object helpers, timers
    cdef readonly dict by_id          # id -> Subscription
    cdef list ready                   # subscriptions with credit and perhaps something to read, in turn
    cdef Subscription half_sent       # whose frame is half out: nothing else may be sent first
    cdef public bint deliver_v2       # its client has announced that it knows version 2
    cdef Py_ssize_t share             # bytes that are left to send, or to pass over, in this turn

    # What it waited for is over.
    cdef int go_on(self, Subscription subscription) except -1
    # There may be something to send for this subscription.
    cdef int want(self, Subscription subscription) except -1
    # Send the outbox and what subscriptions have credit for; True when there is more to send at once.
    cdef bint send(self) except -1
    # Nothing more is sent for it, but for the rest of a frame that is half out.
    cdef int stop(self, Subscription subscription) except -1
    # Take it out of everything here; its stream is left to the caller.
    cdef int forget(self, Subscription subscription) except -1
    cdef Py_ssize_t _send_chunks(self, Subscription subscription) except -2
    cdef Py_ssize_t _send_rest(self, Subscription subscription, size_t head) except -2
    cdef void _sent(self, Subscription subscription, const chunk *header) noexcept
    cdef Py_ssize_t _read_failed(self, Subscription subscription, err error, const fault *f, uint64_t wanted) except -2
    cdef int _finish_frame(self, Subscription subscription) except -1
