# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from vibemq.storage.core cimport doorbell_board


cdef uint8_t *address_of(object memory) except NULL


cdef class Board:
    cdef doorbell_board *raw
    cdef readonly uint32_t index, workers
    cdef readonly int doorbell_fd       # this worker's own
    cdef int fds[64]
    cdef object memory

    cdef void mark(self, uint64_t workers, uint32_t slot) noexcept nogil
