# SPDX-License-Identifier: Apache-2.0
"""Named members and their values, in JSON or MessagePack, into memory that grows: what deliveries and completions are
made of.

Who begins a map writes what stands before its first member: in MessagePack that counts them, as ``members`` does."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport strlen
from vibemq.grow cimport grow
from vibemq.protocols.signalr.wire cimport ENCODING_JSON, decimal_put, mp_sized_put, mp_text_put, mp_unsigned_put, put, span_of
from vibemq.storage cimport core
from vibemq.storage.core cimport OK, utf8_is_valid, writer_bytes

cdef enum:
    MEMBER_BYTES = 32  # a name or number around what is the message's own


cdef struct output:
    int encoding
    uint8_t *data
    size_t size, capacity
    uint32_t members       # of the map that is written


cdef inline uint8_t *room_in(output *out, size_t size) except NULL:
    if out.capacity - out.size < size:
        grow(&out.data, &out.capacity, out.size + size, 1)
    return out.data + out.size


cdef inline int add(output *out, const void *data, size_t size) except -1:
    put(room_in(out, size), data, size)
    out.size += size
    return 0


cdef inline int add_name(output *out, const char *name) except -1:
    cdef size_t size = strlen(name)
    cdef uint8_t *p = room_in(out, MEMBER_BYTES)
    if out.encoding == ENCODING_JSON:
        p = put(p, b',"', 2) if out.members else put(p, b'"', 1)
        p = put(put(p, name, size), b'":', 2)
    else:
        p[0] = <uint8_t> (0xA0 | size)
        p = put(p + 1, name, size)
    out.members += 1
    out.size = p - out.data
    return 0


cdef inline int add_number(output *out, uint64_t value) except -1:
    cdef uint8_t *p = room_in(out, MEMBER_BYTES)
    out.size = (decimal_put(p, value) if out.encoding == ENCODING_JSON else mp_unsigned_put(p, value)) - out.data
    return 0


cdef inline int add_word(output *out, const char *json, const char *packed) except -1:
    """Of each encoding its own, none of them with a zero in it."""
    return add(out, json, strlen(json)) if out.encoding == ENCODING_JSON else add(out, packed, strlen(packed))


cdef inline int add_flag(output *out, bint value) except -1:
    return add_word(out, b"true", b"\xc3") if value else add_word(out, b"false", b"\xc2")


cdef inline int add_bin(output *out, const uint8_t *data, uint32_t size) except -1:
    """Bytes: bin, or base64 in JSON."""
    cdef size_t most = core.JSON_BASE64_SIZE(size) if out.encoding == ENCODING_JSON else <size_t> size + 5
    cdef uint8_t *p = room_in(out, most)
    cdef writer_bytes w = core.bytes_writer(p, most)
    if out.encoding == ENCODING_JSON:
        core.json_base64_write(&w, data, size)
        p = w.at
    else:
        p = put(mp_sized_put(p, 0xC4, size), data, size)
    out.size = p - out.data
    return 0


cdef inline int add_text(output *out, const uint8_t *text, uint32_t size) except -1:
    """A string; bytes where it is not UTF-8."""
    cdef size_t most
    cdef writer_bytes w
    if out.encoding == ENCODING_JSON:
        most = core.JSON_STRING_SIZE_MAX(size)
        w = core.bytes_writer(room_in(out, most), most)
        if core.json_string_write(&w, text, size) != OK:
            return add_bin(out, text, size)
        out.size = w.at - out.data
        return 0
    if not utf8_is_valid(text, size):
        return add_bin(out, text, size)
    out.size = mp_text_put(room_in(out, <size_t> size + 5), span_of(text, size)) - out.data
    return 0
