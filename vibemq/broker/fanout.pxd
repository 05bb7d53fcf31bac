# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport int64_t, uint32_t, uint64_t
from vibemq.broker.home cimport Home, Member


cdef class FanOut(Home):
    cdef uint64_t _lowest(self, Member m)
    cdef int _pass(self, Member to, bint came_back) except -1
    cdef int _copies(self, Member to, int *budget) except -1
    cdef int _pass_on(self, Member to, uint64_t offset, uint32_t attempts, uint32_t strikes) except -1
    cdef int _all_left(self, Member gone) except -1
