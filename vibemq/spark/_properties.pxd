# SPDX-License-Identifier: Apache-2.0
"""The message ids and headers of a batch's rows, as Arrow lays them out; see _properties.pyx."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t


cdef extern from "message/amqp.h" nogil:
    ctypedef enum amqp_body:
        AMQP_BODY_NONE
        AMQP_BODY_DATA
        AMQP_BODY_VALUE
    cdef struct amqp_message:
        amqp_body body_kind
        const uint8_t *body
        const uint8_t *application_properties
        uint32_t body_size, application_properties_size


cdef class Growing:
    cdef uint8_t *data
    cdef size_t size, capacity

    cdef bint room(self, size_t more) noexcept nogil


cdef class Texts:
    cdef Growing ends, bytes, valid
    cdef uint32_t count, nulls

    cdef bint add(self, const uint8_t *text, size_t size, bint null) noexcept nogil
    cdef bint _mend(self, const uint8_t *at, const uint8_t *end) noexcept nogil
    cdef buffers(self)


cdef class Properties:
    cdef bint want_ids, want_headers
    cdef Texts ids, keys, values
    cdef Growing pair_ends

    cdef bint add(self, const amqp_message *message) noexcept nogil
    cdef size_t size(self) noexcept nogil
    cdef ids_array(self, kind)
    cdef headers_array(self, kind, rows)
