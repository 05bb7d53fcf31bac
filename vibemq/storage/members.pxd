# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport uint8_t, uint32_t, uint64_t


cdef class MemberTable:
    cdef readonly str path
    cdef uint8_t *memory
    cdef size_t mapped                   # records, the header included

    cdef uint64_t *_record(self, uint32_t index) except NULL
    # The member owes no acknowledgement below `low`, and gets `cursor` next.
    cdef int place(self, uint32_t index, uint64_t low, uint64_t cursor) except -1
