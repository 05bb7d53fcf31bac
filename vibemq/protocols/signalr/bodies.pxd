# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport uint8_t, uint32_t
from vibemq.protocols.signalr.codec cimport span

cdef enum:
    GIVEN_ID_BYTES_MAX = 1024  # of a message id or a key: they are in each delivery


# What a message's options say, checked.
cdef class Wanted:
    cdef readonly bytes id, key, content_type
    cdef readonly int priority        # -1: none
    cdef readonly object ttl_ms       # None: none
    cdef bint is_base64
    cdef list headers                 # (name, value): bytes, bool, int or float
    cdef size_t bytes                 # of all these texts


cdef Wanted wanted_of(object options)
# The entry of a message, with its four bytes of length, in the worker's scratch memory; its size.  `has_escapes`: JSON
# that may have any.
cdef size_t entry_write(span body, int encoding, bint has_escapes, Wanted wanted, uint8_t **out) except 0
cdef bint is_json_type(const uint8_t *text, uint32_t size) noexcept
# application/json and nothing else.
cdef bint is_plain_json_type(const uint8_t *text, uint32_t size) noexcept
