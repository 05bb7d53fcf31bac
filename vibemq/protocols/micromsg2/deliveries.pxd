# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport int32_t, uint8_t, uint32_t
from vibemq.broker.consumer cimport Consumer
from vibemq.broker.messages cimport message_view
from vibemq.protocols.micromsg2.filters cimport Filter
from vibemq.protocols.micromsg2.session cimport Micromsg2Session


# What a connection has subscribed to.  Invariant: `rest` is None or holds more than `rest_at` bytes, and then it is the
# session's `sending`.
cdef class Subscription(Consumer):
    cdef Micromsg2Session session
    cdef readonly str name            # of the queue
    cdef readonly bytes destination   # as messages bear it: the peer's own word for it
    cdef readonly Filter filter       # None: every message
    cdef readonly bint is_auto        # settled when the socket has taken it
    cdef bytes rest                   # the payload of a message that goes out in frames
    cdef size_t rest_at
    cdef int32_t rest_slot            # what the last frame is remembered with
    cdef uint32_t rest_sequence

    # More frames of the message that is going out, as far as there is room.
    cdef int go_on(self) except -1
    cdef int settle_all(self) except -1
    cdef int _tell_type(self, const message_view *m) except -1
