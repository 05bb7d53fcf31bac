# SPDX-License-Identifier: Apache-2.0
cimport cython
from libc.stdint cimport int64_t, uint32_t, uint64_t
from vibemq.broker.home cimport Member, Mode
from vibemq.broker.messages cimport message_view
from vibemq.storage.core cimport err


@cython.final
cdef class Rotation(Mode):
    cdef object able                  # deque of members that may be given something, in their turn
    cdef dict tried                   # offset -> keys of the peers that could not be given it; it is or was set aside
    cdef int64_t refusals             # in the members' `refused`: no fewer
    cdef dict aside                   # offset -> None, of those that wait for somebody else; delayed in the ledger
    cdef uint64_t aside_version       # rises with each that is set aside

    cdef int _recount(self) except -1
    cdef Member _turn_of(self)
    cdef err _pick(self, message_view *m) except *
    cdef err _pick_ready(self, message_view *m) except *
    cdef uint64_t _find_ready(self) noexcept
    cdef bint _take_in(self) except -1
    cdef bint _give_aside(self, Member m) except -1
