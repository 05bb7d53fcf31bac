# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from vibemq.storage.core cimport chunk, err, fault, log, reader


cdef class Chunks:
    cdef chunk chunk
    cdef const uint8_t *entries

    cdef err next(self) noexcept nogil
    cdef object problem(self, err code)


cdef class ChunkReader(Chunks):
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


cdef class SegmentBytes(Chunks):
    cdef Py_buffer view
    cdef size_t used
    cdef uint8_t *carry
    cdef size_t capacity, carried
    cdef uint64_t size
    cdef uint32_t seed
    cdef bint has_block, is_carried, is_again
    cdef readonly uint64_t position, after

    cdef err _look(self, const uint8_t *data, uint64_t size) noexcept nogil
    cdef err _assemble(self) noexcept nogil
