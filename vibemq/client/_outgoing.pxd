# SPDX-License-Identifier: Apache-2.0
"""What the Core knows of messages on their way out."""

from libc.stdint cimport uint8_t, uint64_t

cdef enum:
    PREFIX_SIZE = 16  # of an id: who we are; as many digits for the number follow
    ID_SIZE = 32
    ID_AT = 9  # in a frame: behind its header, version, type and the id's length


cdef class Fields:
    cdef readonly bytes data
    cdef readonly Py_ssize_t count


cdef class Flow:
    cdef readonly Py_ssize_t submitted, in_flight, acked, forgotten
    cdef readonly list refused
    cdef public Py_ssize_t wake_at
    cdef public list waiters


# Invariant: once submitted, `buffer` is NULL, `data` has the frames, and `pending` counts the zeros in `settled`.
cdef class Batch:
    cdef uint8_t *buffer
    cdef size_t capacity
    cdef Py_ssize_t size
    cdef readonly Py_ssize_t count
    cdef readonly bint sent
    cdef readonly bytes data  # the frames, once submitted
    cdef Py_ssize_t pending
    cdef uint8_t *settled  # for each message 0 or 1, once submitted
    cdef uint64_t first  # number of the first message
    cdef Flow flow
    cdef Py_ssize_t flow_first  # its index in the flow
    cdef dict named  # index to the id that the caller chose; None for none
    cdef bytes queue, blank_id
    cdef bint text_layout
    cdef int kind  # which command its frames are
    cdef Py_ssize_t body_max
    cdef Py_ssize_t body_largest

    cdef int room(self, Py_ssize_t more) except -1
    cdef int append(self, bytes payload, Fields fields, Fields more, bytes name) except -1
    cdef int add_one(self, payload, Fields fields, bint raw, bytes name) except -1
