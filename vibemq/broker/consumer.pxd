# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport int32_t, uint8_t, uint32_t, uint64_t
from vibemq.broker.inflight cimport InFlight, delivery_list
from vibemq.broker.messages cimport message_view
from vibemq.storage.shm cimport letter

cdef enum:
    WRITTEN = 0                    # what a consumer's write() returns
    UNDELIVERABLE = 1
    UNWANTED = 2


# Of a host and a user: the same whenever they reconnect, in every worker.  Those that share one count as the same peer.
cdef uint32_t peer_key(str user, str address) except? 0


# Somebody on this worker who gets a queue's messages.  The last four methods are the door's; none may block.
cdef class Consumer:
    cdef object queue                 # the broker.queue.Queue; None once it is removed
    cdef readonly uint32_t consumer_id  # among this worker's
    cdef readonly int32_t number      # among its connection's
    cdef InFlight deliveries          # its connection's
    cdef delivery_list own            # its part of them
    cdef readonly uint32_t prefetch   # how many may be in flight
    cdef bint follows                 # it said nothing of that: as many as its queue says
    cdef uint32_t peer                # whose it is: peer_key() of its connection
    cdef object member                # the home's broker.home.Member of it, while the home is on this worker
    cdef bint stalled                 # had no room when there was something for it
    # From a home on another worker: what was handed over and is not written yet, and what it is told.
    cdef letter *pending
    cdef size_t pending_head, pending_size, pending_capacity
    cdef uint64_t received
    cdef uint64_t seen                # one more than the highest offset it was given; before: the log's end when it came
    cdef bint fresh, unordered        # was given nothing so far; something after what came later
    cdef dict returned                # of a fan-out with a home elsewhere: copies given back that come again
    cdef uint32_t settled_count
    cdef bint queued, fetching

    cdef int take(self, message_view *m, uint32_t attempts, uint32_t strikes) except -1
    cdef uint64_t lowest(self) noexcept
    cdef int push_pending(self, const letter *what) except -1
    cdef int write_pending(self) except -1
    # May another message be written now?  When not: call queue.room_again(self) once there is.
    cdef bint room(self) noexcept
    # Write a Deliver for message `m`, whose id is `id`.  The bytes are only valid during the call.
    # UNDELIVERABLE: this consumer can never be given it, but others may.  UNWANTED: this consumer does not want it, and
    # its copy is settled; only consumers of a fan-out may say so.
    cdef int write(self, message_view *m, const uint8_t *id, uint32_t id_size, uint32_t attempts) except -1
    # The queue was deleted; this consumer is already detached from it.
    cdef int on_deleted(self) except -1
    # One of the above raised: end this consumer's connection, later, and nobody else's.
    cdef int failed(self, object problem) except -1
