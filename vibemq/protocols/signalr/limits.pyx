# SPDX-License-Identifier: Apache-2.0
"""How much of a hub connection may wait here before nothing more is read from its peer: messages for a sync, messages
for room in full queues, invocations and uploads for a method.  Each goes on well below its limit, so nothing flutters."""

cdef enum:
    PARKED_BYTES_MAX = 16 << 20
    WAITING_BYTES_MAX = 1 << 20
    HELD_BACK_BYTES_MAX = 16 << 20


cdef class Limits:
    def __init__(self, Py_ssize_t unconfirmed_max):
        self.unconfirmed_max = unconfirmed_max

    @property
    def wants_pause(self) -> bool:
        return self.throttled or self.blocked or self.crowded

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

    cdef bint count_waiting(self, Py_ssize_t more, bint is_held_back) except *:
        self.waiting_bytes += more
        if is_held_back:  # without reading there would never be the acknowledgements that it waits for
            self.crowded = False
            return self.waiting_bytes <= HELD_BACK_BYTES_MAX
        self.crowded = self.waiting_bytes > (WAITING_BYTES_MAX // 2 if self.crowded else WAITING_BYTES_MAX)
        return True
