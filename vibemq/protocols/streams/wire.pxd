# SPDX-License-Identifier: Apache-2.0
"""Publish frames, walked in place: lengths are checked before anything is used.

A first walk finds the whole entries, and only these are acted upon.  It also brings the lines into the
cache that the second walk copies.
Layouts: the RabbitMQ Streams protocol.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from vibemq.storage.core cimport bytes_load16, bytes_load32

cdef enum:
    KEY_PUBLISH = 0x0002
    KEY_PUBLISH_CONFIRM = 0x0003
    KEY_PUBLISH_ERROR = 0x0004
    KEY_DELIVER = 0x0008
    KEY_CREDIT = 0x0009
    SUB_BATCH_HEADER_BYTES = 11
    MESSAGE_HEADER_BYTES = 4
    PUBLISHING_ID_BYTES = 8
    FILTER_SIZE_BYTES = 2  # of a filter value's length

cdef inline Py_ssize_t entry_bytes(const uint8_t *p, const uint8_t *end) noexcept nogil:
    """Size of the entry at p with its header, or -1 when it does not end before `end`."""
    cdef uint32_t size
    cdef size_t left = end - p
    if left < MESSAGE_HEADER_BYTES:
        return -1
    if not p[0] & 0x80:
        size = bytes_load32(p)
        return -1 if size > left - MESSAGE_HEADER_BYTES else <Py_ssize_t> size + MESSAGE_HEADER_BYTES
    if left < SUB_BATCH_HEADER_BYTES:
        return -1
    size = bytes_load32(p + 7)
    return -1 if size > left - SUB_BATCH_HEADER_BYTES else <Py_ssize_t> size + SUB_BATCH_HEADER_BYTES

cdef inline Py_ssize_t filter_bytes(const uint8_t *p, const uint8_t *end) noexcept nogil:
    """Size of the filter value at p (Publish 2) with its length, or -1; length -1 is none."""
    cdef uint32_t size
    if end - p < 2:
        return -1
    size = bytes_load16(p)
    if size == 0xFFFF:
        return 2
    return -1 if <size_t> (end - p) - 2 < size else <Py_ssize_t> size + 2

cdef inline uint32_t publish_walk(const uint8_t **at, const uint8_t *end, int version) noexcept nogil:
    """Move `at` behind the last whole item before `end`, and return the number of items passed."""
    cdef const uint8_t *p = at[0]
    cdef Py_ssize_t size
    cdef uint32_t count = 0
    while end - p >= PUBLISHING_ID_BYTES:
        p += PUBLISHING_ID_BYTES
        if version == 2:
            size = filter_bytes(p, end)
            if size < 0:
                break
            p += size
            if end - p < MESSAGE_HEADER_BYTES or p[0] & 0x80:
                break  # no sub-batches in version 2
        size = entry_bytes(p, end)
        if size < 0:
            break
        p += size
        at[0] = p
        count += 1
    return count

cdef inline bint sub_batch_is_valid(const uint8_t *p, uint64_t uncompressed_max) noexcept nogil:
    """The declared values of a sub-batch, in the order of the RabbitMQ Streams protocol."""
    cdef uint32_t compression = (p[0] >> 4) & 7
    cdef uint32_t records = bytes_load16(p + 1)
    cdef uint32_t uncompressed = bytes_load32(p + 3)
    cdef uint32_t size = bytes_load32(p + 7)
    if uncompressed > uncompressed_max or records == 0 or <uint64_t> records * 4 > uncompressed:
        return False
    return compression <= 4 and not (size == 0 and compression != 0)
