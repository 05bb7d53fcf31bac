# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport uint8_t, uint32_t
from vibemq.client._core cimport amqp_message

cdef enum:
    COLUMNS_KEPT = 32  # of a batch there are sixteen, and two at a time


cdef inline const uint8_t *address(buffer) except? NULL:
    """Of one of an Arrow array's buffers; NULL of one that is not there."""
    if buffer is None:
        return NULL
    return <const uint8_t *><size_t>buffer.address


cdef struct Pool:
    int count, most
    uint8_t *data[COLUMNS_KEPT]
    size_t capacity[COLUMNS_KEPT]


cdef class Memory:
    cdef uint8_t *data
    cdef size_t size, capacity
    cdef Pool *pool
    cdef int begin(self, Pool *pool, size_t room) except -1
    cdef bint room(self, size_t more) noexcept nogil


cdef class Slab(Memory):
    pass


cdef class Growing(Memory):
    pass


cdef class Texts:
    cdef bint is_binary
    cdef Growing ends, bytes, valid
    cdef uint32_t count, nulls
    cdef bint add(self, const uint8_t *text, size_t size, bint null) noexcept nogil
    cdef bint _mend(self, const uint8_t *at, const uint8_t *end) noexcept nogil
    cdef array(self, kind)


cdef class Properties:
    cdef Texts key, message_id, content_type, header_keys, header_values
    cdef Growing header_ends
    cdef bint add(self, const amqp_message *message) noexcept nogil
    cdef size_t size(self) noexcept nogil
    cdef array(self, field, rows)
    cdef _headers(self, kind, rows)
