# SPDX-License-Identifier: Apache-2.0
"""Where records begin and end, and the small things that are written into them in place."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy
from vibemq.protocols.signalr.codec cimport span

cdef enum:
    RECORD_SEPARATOR = 0x1E   # ends a JSON record
    VARINT_BYTES_MAX = 5

# The bytes of the MessagePack record that begins here, with its length; 0: that has not come as a whole.
cdef size_t framed_size(const uint8_t *data, size_t size) noexcept
# The bytes of the first record with its framing, 0 when more are needed; raises MalformedFrame or LimitExceeded.
cdef Py_ssize_t next_record(const uint8_t *data, size_t size, int encoding, size_t record_max, span *body) except -2


cdef inline uint8_t *put(uint8_t *p, const void *data, size_t size) noexcept nogil:
    if size:
        memcpy(p, data, size)
    return p + size


cdef inline size_t decimal_size(uint64_t value) noexcept nogil:
    cdef size_t size = 1
    while value >= 10:
        value //= 10
        size += 1
    return size


cdef inline uint8_t *decimal_put(uint8_t *p, uint64_t value) noexcept nogil:
    cdef uint8_t *end = p + decimal_size(value)
    cdef uint8_t *digit = end
    while True:
        digit -= 1
        digit[0] = <uint8_t> (c'0' + value % 10)
        value //= 10
        if value == 0:
            return end


cdef inline size_t varint_size(size_t value) noexcept nogil:
    return 1 if value < 0x80 else 2 if value < 0x4000 else 3 if value < 0x200000 else 4 if value < 0x10000000 else 5


cdef inline uint8_t *varint_put(uint8_t *p, size_t value) noexcept nogil:
    while value >= 0x80:
        p[0] = <uint8_t> (value | 0x80)
        value >>= 7
        p += 1
    p[0] = <uint8_t> value
    return p + 1


# The longest that they write: 5 and 9 bytes, before the text's own.
cdef uint8_t *mp_text_put(uint8_t *p, span text) noexcept
cdef uint8_t *mp_unsigned_put(uint8_t *p, uint64_t value) noexcept
# A text of UTF-8 with its quotes and escapes, 2 + 6 * its size at most.
cdef uint8_t *json_text_put(uint8_t *p, span text) noexcept
