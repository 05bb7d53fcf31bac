# SPDX-License-Identifier: Apache-2.0
"""How much of a hub connection may wait here before nothing more is read from its peer: messages for a sync, messages
for room in full queues, invocations and uploads for a method.  Each goes on well below its limit, so nothing flutters.

Whoever pauses asks who will lift it, and whether that is still read.  A sync and a helper thread end by themselves.
Room in a full queue may come by this very peer's Acks, so one that has subscriptions is read on, and refused more
messages for full queues.  And calls that wait because a stateful peer has acknowledged too little go on with its next
Ack, so it is read on too, up to HELD_BACK_BYTES_MAX of calls, or of answers that it never acknowledges.
"""

cdef enum:
    PARKED_BYTES_MAX = 16 << 20
    WAITING_BYTES_MAX = 1 << 20


cdef class Limits:
    def __init__(self, Py_ssize_t unconfirmed_max):
        self.unconfirmed_max = unconfirmed_max

    cdef bint wants_pause(self, bint is_held_back) noexcept:
        return self.throttled or (self.blocked and not self.consumers) or (self.crowded and not is_held_back)

    cdef bint parks_no_more(self) noexcept:
        return self.blocked and self.consumers > 0

    cdef int count_unconfirmed(self, Py_ssize_t more) except -1:
        self.unconfirmed += more
        if self.throttled:
            self.throttled = self.unconfirmed * 4 > self.unconfirmed_max * 3
        else:
            self.throttled = self.unconfirmed >= self.unconfirmed_max
        return 0

    cdef int count_parked(self, Py_ssize_t more) except -1:
        self.parked_bytes += more
        self.blocked = self.parked_bytes > (PARKED_BYTES_MAX // 2 if self.blocked else PARKED_BYTES_MAX)
        return 0

    cdef int count_waiting(self, Py_ssize_t more) except -1:
        self.waiting_bytes += more
        self.crowded = self.waiting_bytes > (WAITING_BYTES_MAX // 2 if self.crowded else WAITING_BYTES_MAX)
        return 0
