# SPDX-License-Identifier: Apache-2.0
cimport cython
from libc.stdint cimport int64_t, uint32_t, uint64_t
from vibemq.broker.home cimport Member, Mode


@cython.final
cdef class FanOut(Mode):
    # What members left behind is worked off a part in each turn; until all of it is, nothing is handed out.
    cdef list past                    # ranges to settle: given, by a fan-out without acknowledgement
    cdef list unsearched              # ranges of which it is not known what in them nobody owes any more
    cdef bint deserted                # what is found there waits for the next who comes; else all members get it
    cdef bint taking_over             # what is ready there has no owner either
    cdef set spared                   # offsets there that are in flight at consumers that outlived the last home
    cdef bint unmapped                # the search waits for memory or descriptors
    cdef int64_t looks                # at entries that may be settled, left in this turn

    cdef uint64_t _lowest(self, Member m)
    cdef list _unclaimed(self, list ranges)
    cdef int _pass_on(self, list ranges) except -1
    cdef int _wait_again(self, uint64_t offset, uint32_t attempts, uint32_t strikes) except -1
    cdef int _all_left(self, Member gone) except -1
    cdef int _settle_past(self) except -1
    cdef int _search(self) except -1
    cdef uint64_t _unsettled(self, uint64_t offset, uint64_t end) except? 0
    cdef int _copies(self, Member to, int *budget) except -1
    cdef bint _is_leaving(self, uint64_t offset) except -1
    cdef int _passed(self, uint64_t upto) except -1
    cdef uint64_t _floor(self) except? 0
    cdef int _pass(self, Member to, bint came_back, uint64_t offset) except -1
    cdef int _go_on(self, Member to, uint64_t offset) except -1
