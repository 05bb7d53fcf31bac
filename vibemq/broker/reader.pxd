# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from vibemq.broker.messages cimport Cursor, message_view
from vibemq.broker.queue_table cimport QueueTable
from vibemq.broker.stream cimport StreamUser
from vibemq.storage.core cimport err, fault


# Goes over a log, a queue's or a stream's, and takes nothing away from anybody.  The last four methods are the door's.
cdef class LogReader(StreamUser):
    cdef QueueTable queues
    cdef Cursor cursor
    cdef object next_turn             # the timer, once it was needed
    cdef uint64_t key
    cdef uint64_t left                # messages until it ends
    cdef uint64_t unreadable_end      # of the last messages that cannot be read
    cdef bint follows                 # new messages, once it is at the end
    cdef bint told                    # that something is too large: only once, or the log would be as long as this one
    cdef bint waiting                 # for a helper thread, or for the next turn
    cdef bint writing
    cdef readonly bint stalled        # had no room when there may have been something for it: then pump() it again
    cdef readonly bint closed

    # Write as much as there is room for: after the start, and whenever there is room again.
    cpdef pump(self)
    cdef int _write(self) except -1
    cdef int _end_unread(self, err e, fault *f) except -1
    cdef int _wait_a_turn(self) except -1
    cdef bint room(self) noexcept
    # UNDELIVERABLE: it is passed over.  `id` is what the message is called; the bytes are only valid during the call.
    cdef int write(self, message_view *m, const uint8_t *id, uint32_t id_size) except -1
