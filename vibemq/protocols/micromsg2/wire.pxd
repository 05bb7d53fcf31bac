# SPDX-License-Identifier: Apache-2.0
"""MicroMsg2 frames, properties and percent-encoding, read and written in place: no allocation, no Python object.

    MESSAGE             flags, u16 sequence, str8 destination, str16 properties, length, payload
    EXTENSION           flags, u8 id, length, payload
    COMMAND and ERROR   flags, length, payload

A length is a u8, or a u32 with FLAG_LARGE_PAYLOAD. All numbers are big-endian.

frame_parse compares every length with its limit as soon as the length is there, and sets pointers only in a frame that
is whole; they borrow the caller's bytes. A writer fills exactly what the *_size function beside it says and trusts its
caller for the limits of spec.py. An iterator or decoder carries the end of its bytes and never reads at it.
"""

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t
from libc.string cimport memcpy, memset

from vibemq.storage.core cimport bytes_load16, bytes_load32, bytes_store16, bytes_store32

cdef enum:
    FRAME_MESSAGE = 0
    FRAME_COMMAND = 1
    FRAME_EXTENSION = 2
    FRAME_ERROR = 4
    FRAME_KIND_BITS = 7
    FLAG_LARGE_PAYLOAD = 8
    FLAG_CONTINUED = 16
    FLAGS_RESERVED = 0xE0

cdef enum:
    SHORT_LENGTH_MAX = 255
    CONTROL_BYTES_MAX = 65536      # of a COMMAND, an EXTENSION or an ERROR
    FRAGMENT_BYTES = 1048576
    SEQUENCE_MAX = 65535
    PROPERTIES_BYTES_MAX = 65535
    ACK_FRAME_BYTES = 5

# What frame_parse finds. spec.FRAME_FAULTS has the sentence for each negative one.
cdef enum:
    PARSE_OK = 0
    PARSE_NEEDS_MORE = 1
    PARSE_BAD_FLAGS = -1           # two kinds, or a reserved bit
    PARSE_TOO_LARGE = -2           # `payload_size` says how large

cdef struct mm_frame:
    int kind
    bint continued
    uint16_t sequence              # of a MESSAGE
    uint8_t extension              # the id of an EXTENSION
    const uint8_t *destination
    const uint8_t *properties
    const uint8_t *payload
    uint32_t destination_size
    uint32_t properties_size
    uint32_t payload_size
    size_t size                    # of the whole frame; 0 while that is unknown

# ---- reading ----

cdef inline int frame_parse(const uint8_t *data, size_t size, uint32_t payload_max, mm_frame *out) noexcept nogil:
    """PARSE_OK, a fault that is told as early as possible, or PARSE_NEEDS_MORE with the whole size where it is known.

    `payload_max` is for a MESSAGE; the other kinds have CONTROL_BYTES_MAX.
    """
    cdef size_t at = 1
    cdef size_t destination_at = 0, properties_at = 0
    cdef size_t length_bytes
    cdef uint8_t flags
    memset(out, 0, sizeof(mm_frame))
    if size < 1:
        return PARSE_NEEDS_MORE
    flags = data[0]
    out.kind = flags & FRAME_KIND_BITS
    if flags & FLAGS_RESERVED or out.kind & (out.kind - 1):
        return PARSE_BAD_FLAGS
    out.continued = flags & FLAG_CONTINUED != 0
    length_bytes = 4 if flags & FLAG_LARGE_PAYLOAD else 1
    if out.kind == FRAME_MESSAGE:
        if size < 4:
            return PARSE_NEEDS_MORE
        out.sequence = bytes_load16(data + 1)
        out.destination_size = data[3]
        destination_at = 4
        properties_at = destination_at + out.destination_size + 2
        if size < properties_at:
            return PARSE_NEEDS_MORE
        out.properties_size = bytes_load16(data + properties_at - 2)
        at = properties_at + out.properties_size
    else:
        payload_max = CONTROL_BYTES_MAX
        if out.kind == FRAME_EXTENSION:
            if size < 2:
                return PARSE_NEEDS_MORE
            out.extension = data[1]
            at = 2
    if size < at + length_bytes:
        return PARSE_NEEDS_MORE
    out.payload_size = bytes_load32(data + at) if flags & FLAG_LARGE_PAYLOAD else data[at]
    if out.payload_size > payload_max:
        return PARSE_TOO_LARGE
    at += length_bytes
    out.size = at + out.payload_size
    if size < out.size:
        return PARSE_NEEDS_MORE
    out.payload = data + at
    if out.kind == FRAME_MESSAGE:
        out.destination = data + destination_at
        out.properties = data + properties_at
    return PARSE_OK

cdef inline int64_t ack_number(const mm_frame *frame) noexcept nogil:
    """The sequence number in an EXTENSION of an ack extension, of 2, 4 or 1 octets; -1: it has another size."""
    if frame.payload_size == 2:
        return bytes_load16(frame.payload)
    if frame.payload_size == 4:
        return bytes_load32(frame.payload)
    if frame.payload_size == 1:
        return frame.payload[0]
    return -1

# ---- writing ----

cdef inline size_t length_size(size_t payload_size) noexcept nogil:
    return 4 if payload_size > SHORT_LENGTH_MAX else 1

cdef inline uint8_t *put_bytes(uint8_t *p, const void *data, size_t size) noexcept nogil:
    if size:
        memcpy(p, data, size)
    return p + size

cdef inline uint8_t *put_payload(uint8_t *p, const void *payload, size_t size) noexcept nogil:
    """With its length, as frame_flags said."""
    if size > SHORT_LENGTH_MAX:
        bytes_store32(p, <uint32_t> size)
    else:
        p[0] = <uint8_t> size
    return put_bytes(p + length_size(size), payload, size)

cdef inline uint8_t frame_flags(int kind, size_t payload_size) noexcept nogil:
    return <uint8_t> (kind | (FLAG_LARGE_PAYLOAD if payload_size > SHORT_LENGTH_MAX else 0))

cdef inline size_t message_frame_size(
    size_t destination_size, size_t properties_size, size_t payload_size
) noexcept nogil:
    return 6 + destination_size + properties_size + length_size(payload_size) + payload_size

cdef inline uint8_t *message_frame_write(
    uint8_t *p, uint16_t sequence, const void *destination, size_t destination_size,
    const void *properties, size_t properties_size, const void *payload, size_t payload_size, bint continued,
) noexcept nogil:
    p[0] = frame_flags(FRAME_MESSAGE, payload_size) | <uint8_t> (FLAG_CONTINUED if continued else 0)
    bytes_store16(p + 1, sequence)
    p[3] = <uint8_t> destination_size
    p = put_bytes(p + 4, destination, destination_size)
    bytes_store16(p, <uint32_t> properties_size)
    return put_payload(put_bytes(p + 2, properties, properties_size), payload, payload_size)

cdef inline size_t extension_frame_size(size_t size) noexcept nogil:
    return 2 + length_size(size) + size

cdef inline uint8_t *extension_frame_write(uint8_t *p, uint8_t id, const void *data, size_t size) noexcept nogil:
    p[0] = frame_flags(FRAME_EXTENSION, size)
    p[1] = id
    return put_payload(p + 2, data, size)

cdef inline uint8_t *ack_frame_write(uint8_t *p, uint8_t id, uint16_t sequence) noexcept nogil:
    """ACK_FRAME_BYTES."""
    cdef uint8_t number[2]
    bytes_store16(number, sequence)
    return extension_frame_write(p, id, number, 2)

# ---- properties ----

cdef struct mm_property:
    const uint8_t *key
    const uint8_t *value
    uint32_t key_size
    uint32_t value_size

cdef inline bint property_next(const uint8_t **at, const uint8_t *end, mm_property *out) noexcept nogil:
    """The next `key:value;`, as it stands on the wire; the last `;` may be missing. Empty items are skipped.

    A key ends at the first `:` or `=`; an item without either is a key with an empty value. False at the end.
    """
    cdef const uint8_t *p = at[0]
    while p < end and p[0] == 0x3B:
        p += 1
    if p >= end:
        at[0] = end
        return False
    out.key = p
    while p < end and p[0] != 0x3A and p[0] != 0x3D and p[0] != 0x3B:
        p += 1
    out.key_size = <uint32_t> (p - out.key)
    if p < end and p[0] != 0x3B:
        p += 1
    out.value = p
    while p < end and p[0] != 0x3B:
        p += 1
    out.value_size = <uint32_t> (p - out.value)
    at[0] = p + 1 if p < end else end
    return True

# ---- percent-encoding: everything but A-Z a-z 0-9 - . _ ~ is %XX ----

cdef inline int hex_digit(uint8_t c) noexcept nogil:
    """Its value, or -1."""
    if <uint8_t> (c - 0x30) < 10:
        return c - 0x30
    c |= 0x20
    if <uint8_t> (c - 0x61) < 6:
        return c - 0x61 + 10
    return -1

cdef inline bint is_unreserved(uint8_t c) noexcept nogil:
    return (
        <uint8_t> ((c | 0x20) - 0x61) < 26 or <uint8_t> (c - 0x30) < 10
        or c == 0x2D or c == 0x2E or c == 0x5F or c == 0x7E
    )

cdef inline bint is_escape(const uint8_t *p, const uint8_t *end) noexcept nogil:
    """`%XX` at p? A `%` without two hexadecimal digits behind it stands for itself."""
    return p[0] == 0x25 and end - p >= 3 and hex_digit(p[1]) >= 0 and hex_digit(p[2]) >= 0

cdef inline uint8_t *percent_decode(uint8_t *out, const uint8_t *p, size_t size) noexcept nogil:
    """The end of what was written, `size` bytes or fewer; `out` may be `p`."""
    cdef const uint8_t *end = p + size
    while p < end:
        if is_escape(p, end):
            out[0] = <uint8_t> (hex_digit(p[1]) << 4 | hex_digit(p[2]))
            p += 3
        else:
            out[0] = p[0]
            p += 1
        out += 1
    return out

cdef inline uint8_t *percent_encode(uint8_t *out, const uint8_t *p, size_t size) noexcept nogil:
    """The end of what was written, at most three bytes for each."""
    cdef const char *digits = "0123456789ABCDEF"
    cdef size_t i
    for i in range(size):
        if is_unreserved(p[i]):
            out[0] = p[i]
            out += 1
        else:
            out[0] = 0x25
            out[1] = <uint8_t> digits[p[i] >> 4]
            out[2] = <uint8_t> digits[p[i] & 15]
            out += 3
    return out
