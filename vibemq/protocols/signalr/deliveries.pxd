# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from vibemq.broker.messages cimport message_view
from vibemq.protocols.signalr.values cimport output
from vibemq.protocols.signalr.wire cimport ENCODING_JSON, decimal_put, mp_unsigned_put, put

cdef enum:
    TAG_BYTES_MAX = 32


# A delivery without its tag, which is all of it that consumers of the same message do not share.
cdef struct item:
    output out                # JSON: what follows the tag's number.  MessagePack: the members behind the tag's
    uint64_t key, offset      # which message of which stream; 0 and 2^64-1: none
    bint redelivered


# The worker's only one for this encoding: holds until the next call.  `key`: of the stream, as a Queue has it.
cdef const item *item_of(const message_view *m, uint64_t key, bytes queue, const uint8_t *id, uint32_t id_size,
                         bint redelivered, int encoding) except NULL
cdef bytes delivery_of(const item *of, uint64_t tag)


cdef inline size_t tag_put(uint8_t *out, const item *of, uint64_t tag) noexcept:
    """What stands before the item's data in a delivery, TAG_BYTES_MAX at most; its size."""
    if of.out.encoding == ENCODING_JSON:
        return decimal_put(put(out, b'{"tag":', 7), tag) - out
    out[0] = <uint8_t> (0x80 + of.out.members)
    return mp_unsigned_put(put(out + 1, b"\xa3tag", 4), tag) - out
