# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport uint8_t, uint64_t
from vibemq.storage.core cimport chunk, err, fault, log, reader


cdef class ChunkReader:
    cdef log *raw
    cdef reader at
    cdef fault fault
    cdef bytes path
    cdef str directory
    cdef int fd
    cdef bint attached
    cdef uint8_t *data
    cdef size_t capacity
    cdef uint64_t filled, used
    cdef chunk chunk
    cdef const uint8_t *entries

    cdef err next(self) noexcept nogil
    cdef object problem(self, err code)
