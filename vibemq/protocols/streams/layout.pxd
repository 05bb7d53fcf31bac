# SPDX-License-Identifier: Apache-2.0
"""What the codec sees of the compiled layouts."""

cdef enum Op:
    UNSIGNED
    SIGNED
    STRING
    NULLABLE_STRING
    BYTES
    MAP
    MAP_TO_END
    STATISTICS
    ARRAY
    ITEMS
    OFFSET_TYPE
    OFFSET_TYPE_OR_NONE
    OFFSET
    ENTRY
    CHUNK


cdef class Step:
    cdef readonly str name
    cdef readonly str where  # as in "Create.stream", for errors
    cdef Op op
    cdef int width  # bytes, of a number
    cdef int since  # first version that has it
    cdef int size_min  # bytes on the wire that it takes at least
    cdef int condition_index  # the earlier field that decides whether it is there; -1: it always is
    cdef frozenset condition_values
    cdef bint may_be_absent
    cdef object default
    cdef object on_error
    cdef Plan items  # ITEMS: the plan of one record; ARRAY: a plan of one step


cdef class Plan:
    cdef readonly str name
    cdef readonly object type
    cdef list steps
    cdef set names
    cdef readonly int size_min
    cdef int ignored_tail_size
