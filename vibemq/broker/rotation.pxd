# SPDX-License-Identifier: Apache-2.0
from vibemq.broker.home cimport Home, Member
from vibemq.broker.messages cimport message_view
from vibemq.storage.core cimport err
from libc.stdint cimport int64_t, uint32_t, uint64_t


cdef object reason_of(uint32_t strikes)


cdef class Rotation(Home):
    cdef object able                  # deque of members that may be given something, in their turn
    cdef bint by_priority

    cdef int _recount(self) except -1
    cdef Member _turn_of(self)
    cdef err _pick(self, message_view *m) except *
    cdef err _pick_ready(self, message_view *m) except *
    cdef uint64_t _find_ready(self) noexcept
    cdef bint _take_in(self) except -1
