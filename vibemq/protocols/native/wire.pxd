# SPDX-License-Identifier: Apache-2.0
"""Native frames, read and written in place: no allocation, no Python object, no I/O.

A frame is `u32 body size, u8 compression flags, body`. A body is
    u8 version, u8 type, str16 id, str16 queue, str32 payload, u16 header count, then that many (str16 key, str16 value)
and, on type 99 always and on others in the text layout, `str16 error code, str16 error message`.
str16 and str32 are a big-endian length and the bytes; length 0 means absent.

frame_parse compares every length with what is left of the body before it is used, headers included, so whoever holds a
parsed native_frame may walk it without another check. Its pointers borrow the body: they live as long as the body does.
Writers trust their caller: sizes come from the *_size function beside them, and no str16 is above 65,535 bytes.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy, memset

from vibemq.storage.core cimport (
    OK, bytes_load16, bytes_load32, bytes_store16, bytes_store32, err, json_check,
)

cdef enum:
    TYPE_CONNECT = 0
    TYPE_CONNECT_ACK = 1
    TYPE_DISCONNECT = 2
    TYPE_PING = 10
    TYPE_PONG = 11
    TYPE_PUBLISH = 20
    TYPE_PUBLISH_ACK = 21
    TYPE_SUBSCRIBE = 22
    TYPE_SUBSCRIBE_ACK = 23
    TYPE_DELIVER = 26
    TYPE_PUBLISH_STORED = 27   # our addition, as 31
    TYPE_ACK = 30
    TYPE_NACK = 31             # our addition: only between peers that asked for it
    TYPE_HOLDING = 32          # likewise
    TYPE_QUEUE_INFO = 42
    TYPE_ERROR = 99

cdef enum:
    FRAME_HEADER_BYTES = 5
    BODY_BYTES_MIN = 2         # version and type: below this the length itself is wrong
    BODY_FIXED_BYTES = 12      # version, type and the lengths of id, queue, payload and headers
    TEXT_TAIL_BYTES = 4        # two empty error strings
    WIRE_VERSION = 1
    QUEUE_NAME_UNITS_MAX = 256
    HEADERS_MAX = 50
    DELIVER_ADDED_BYTES = 4 + 16 + 4   # "deliveryAttempts" and the longest number: a Deliver has more than its Publish
    HEADER_VALUE_UNITS_MAX = 4096
    DECIMAL_BYTES_MAX = 10
    JSON_DEPTH_MAX = 64

# What frame_header and frame_parse find. spec.FRAME_FAULTS has the sentence for each negative one.
cdef enum:
    FRAME_NEEDS_MORE = 1
    FRAME_OK = 0
    FRAME_TOO_SMALL = -1
    FRAME_TOO_LARGE = -2
    FRAME_UNKNOWN_FLAGS = -3
    FRAME_SHORT_HEAD = -4      # FRAME_SHORT_x: the body ends inside x
    FRAME_SHORT_ID = -5
    FRAME_EMPTY_ID = -6
    FRAME_SHORT_QUEUE = -7
    FRAME_SHORT_PAYLOAD = -8
    FRAME_SHORT_HEADERS = -9
    FRAME_SHORT_ERROR = -10

# What frame_check finds in a frame that was parsed. spec.CHECK_FAULTS has the sentence for each positive one.
cdef enum:
    CHECK_OK = 0
    CHECK_QUEUE_NAME_LONG = 1
    CHECK_QUEUE_NAME_CHARACTER = 2
    CHECK_HEADERS_COUNT = 3
    CHECK_HEADER_VALUE_LONG = 4
    CHECK_PAYLOAD_JSON = 5
    CHECK_BY_TABLES = -1       # needs Unicode's tables or a count without duplicates: codec.fault_text knows

# Zero-length fields have size 0; then the pointer is not to be followed.
cdef struct native_frame:
    uint8_t type
    bint text_layout           # exactly two strings follow the headers of a type other than 99
    const uint8_t *id
    uint32_t id_size
    const uint8_t *queue
    uint32_t queue_size
    const uint8_t *payload
    uint32_t payload_size
    const uint8_t *headers     # the first header, behind the count
    uint32_t headers_size      # up to the end of the last header
    uint32_t header_count      # as on the wire, with the empty and the repeated ones
    const uint8_t *error_code
    uint32_t error_code_size
    const uint8_t *error_message
    uint32_t error_message_size
    size_t needed              # after a failure: how many bytes the field needed ...
    size_t had                 # ... and how many were left

# ---- reading ----

cdef inline int frame_header(
    const uint8_t *p, size_t left, uint32_t body_max, uint8_t flags_max, uint32_t *body_size, uint8_t *flags
) noexcept nogil:
    """FRAME_OK when the frame at p is whole, FRAME_NEEDS_MORE, or a fault that is told as early as possible.

    `flags_max`: 2, or 3 on a connection that negotiated zstd. `body_size` is set as soon as it is known.
    """
    if left < 4:
        return FRAME_NEEDS_MORE
    cdef uint32_t size = bytes_load32(p)
    if size < BODY_BYTES_MIN:
        return FRAME_TOO_SMALL
    if size > body_max:
        return FRAME_TOO_LARGE
    body_size[0] = size
    if left < FRAME_HEADER_BYTES:
        return FRAME_NEEDS_MORE
    if p[4] > flags_max:
        return FRAME_UNKNOWN_FLAGS
    flags[0] = p[4]
    return FRAME_OK if left - FRAME_HEADER_BYTES >= size else FRAME_NEEDS_MORE

cdef inline int is_short(size_t needed, size_t had, int fault, native_frame *out) noexcept nogil:
    out.needed, out.had = needed, had
    return fault

cdef inline bint take_str16(
    const uint8_t **at, const uint8_t *end, const uint8_t **out, uint32_t *out_size, native_frame *frame
) noexcept nogil:
    """The string at `at`, or False with what was needed and what there was."""
    cdef size_t left = end - at[0]
    cdef uint32_t size
    if left < 2:
        return is_short(2, left, False, frame)
    size = bytes_load16(at[0])
    if size > left - 2:
        return is_short(size, left - 2, False, frame)
    out[0] = at[0] + 2
    out_size[0] = size
    at[0] += 2 + size
    return True

cdef inline int frame_parse(const uint8_t *body, size_t size, native_frame *out) noexcept nogil:
    """FRAME_OK or a fault; `out.id` is set, for the Error that answers, when the fault lies behind it."""
    cdef const uint8_t *at = body
    cdef const uint8_t *end = body + size
    cdef const uint8_t *skipped
    cdef uint32_t skipped_size, i
    memset(out, 0, sizeof(native_frame))
    if size < 2:
        return is_short(2, size, FRAME_SHORT_HEAD, out)
    out.type = at[1]  # behind the version
    at += 2
    if not take_str16(&at, end, &out.id, &out.id_size, out):
        return FRAME_SHORT_ID
    if out.id_size == 0:
        return is_short(1, 0, FRAME_EMPTY_ID, out)
    if not take_str16(&at, end, &out.queue, &out.queue_size, out):
        return FRAME_SHORT_QUEUE
    if end - at < 4:
        return is_short(4, end - at, FRAME_SHORT_PAYLOAD, out)
    if bytes_load32(at) > <size_t> (end - at) - 4:
        return is_short(bytes_load32(at), end - at - 4, FRAME_SHORT_PAYLOAD, out)
    out.payload_size = bytes_load32(at)
    out.payload = at + 4
    at += 4 + <size_t> out.payload_size
    if end - at < 2:
        return is_short(2, end - at, FRAME_SHORT_HEADERS, out)
    out.header_count = bytes_load16(at)
    at += 2
    out.headers = at
    for i in range(2 * out.header_count):
        if not take_str16(&at, end, &skipped, &skipped_size, out):
            return FRAME_SHORT_HEADERS
    out.headers_size = <uint32_t> (at - out.headers)
    if at == end and out.type != TYPE_ERROR:
        return FRAME_OK
    if not (
        take_str16(&at, end, &out.error_code, &out.error_code_size, out)
        and take_str16(&at, end, &out.error_message, &out.error_message_size, out)
    ):
        if out.type == TYPE_ERROR:
            return FRAME_SHORT_ERROR
        out.error_code_size = 0
    elif out.type != TYPE_ERROR:
        out.text_layout = at == end
        if not out.text_layout:
            out.error_code_size = out.error_message_size = 0
    return FRAME_OK

cdef inline bint header_next(
    const uint8_t **at, const uint8_t *end,
    const uint8_t **key, uint32_t *key_size, const uint8_t **value, uint32_t *value_size,
) noexcept nogil:
    """The next header that counts: one with an empty key or value does not. False at the end."""
    cdef const uint8_t *p = at[0]
    while end - p >= 4:
        key_size[0] = bytes_load16(p)
        key[0] = p + 2
        if <size_t> (end - p) < 4 + <size_t> key_size[0]:
            return False
        p += 2 + key_size[0]
        value_size[0] = bytes_load16(p)
        value[0] = p + 2
        if <size_t> (end - p) < 2 + <size_t> value_size[0]:
            return False
        p += 2 + value_size[0]
        at[0] = p
        if key_size[0] and value_size[0]:
            return True
    return False

cdef inline bint header_find(
    const uint8_t *at, const uint8_t *end, const void *name, size_t name_size,
    const uint8_t **value, uint32_t *value_size,
) noexcept nogil:
    """The value of header `name`; of several the last."""
    cdef const uint8_t *key
    cdef const uint8_t *text
    cdef uint32_t key_size = 0, text_size = 0
    cdef bint found = False
    while header_next(&at, end, &key, &key_size, &text, &text_size):
        if key_size == name_size and memcmp(key, name, name_size) == 0:
            value[0], value_size[0] = text, text_size
            found = True
    return found

# ---- validation ----

cdef inline size_t utf16_units(const uint8_t *p, size_t size) noexcept nogil:
    """UTF-16 code units of a UTF-8 text: one for each lead byte, two for a lead of four bytes."""
    cdef size_t i, units = 0
    for i in range(size):
        units += <size_t> ((p[i] & 0xC0) != 0x80) + <size_t> (p[i] >= 0xF0)
    return units

cdef inline int queue_name_check(const uint8_t *p, size_t size) noexcept nogil:
    """CHECK_OK, a fault, or CHECK_BY_TABLES when all that is left to ask is whether Unicode calls them letters."""
    cdef size_t i
    cdef uint8_t c
    cdef bint ascii = True
    if size > QUEUE_NAME_UNITS_MAX and utf16_units(p, size) > QUEUE_NAME_UNITS_MAX:
        return CHECK_QUEUE_NAME_LONG
    for i in range(size):
        c = p[i]
        if c >= 0x80:
            ascii = False
        elif not (
            <uint8_t> ((c | 0x20) - 0x61) < 26 or <uint8_t> (c - 0x30) < 10 or c == 0x2D or c == 0x2E or c == 0x5F
        ):
            return CHECK_QUEUE_NAME_CHARACTER
    return CHECK_OK if ascii else CHECK_BY_TABLES

cdef inline bint json_is_valid(const uint8_t *p, size_t size) noexcept nogil:
    """One JSON value in UTF-8, nested no deeper than .NET peers read."""
    cdef uint64_t position = 0
    return json_check(p, size, JSON_DEPTH_MAX, &position) == OK

# A header of Publish between a client of ours and us: sent once more.  It is not part of the message.
cdef inline bint is_resend(const uint8_t *key, uint32_t key_size) noexcept nogil:
    return key_size == 13 and memcmp(key, b"vibemq-resend", 13) == 0

cdef inline int frame_check(const native_frame *frame) noexcept nogil:
    """The limits of a frame, and of a Publish that its payload is JSON, which would else kill its readers."""
    cdef const uint8_t *at = frame.headers
    cdef const uint8_t *end = frame.headers + frame.headers_size
    cdef const uint8_t *key
    cdef const uint8_t *value
    cdef uint32_t key_size = 0, value_size = 0
    cdef int result = queue_name_check(frame.queue, frame.queue_size)
    if result > 0:
        return result
    if frame.headers_size > HEADER_VALUE_UNITS_MAX:
        while header_next(&at, end, &key, &key_size, &value, &value_size):
            if value_size > HEADER_VALUE_UNITS_MAX and utf16_units(value, value_size) > HEADER_VALUE_UNITS_MAX:
                return CHECK_HEADER_VALUE_LONG
    if frame.header_count > HEADERS_MAX:
        result = CHECK_BY_TABLES
    if frame.type == TYPE_PUBLISH and frame.payload_size:
        if not json_is_valid(frame.payload, frame.payload_size):
            return CHECK_PAYLOAD_JSON
    return result

# ---- writing ----

cdef inline uint8_t *put_bytes(uint8_t *p, const void *data, size_t size) noexcept nogil:
    if size:
        memcpy(p, data, size)
    return p + size

cdef inline uint8_t *put_str16(uint8_t *p, const void *data, size_t size) noexcept nogil:
    bytes_store16(p, <uint32_t> size)
    return put_bytes(p + 2, data, size)

cdef inline size_t header_size(size_t key_size, size_t value_size) noexcept nogil:
    return 4 + key_size + value_size

cdef inline uint8_t *put_header(
    uint8_t *p, const void *key, size_t key_size, const void *value, size_t value_size
) noexcept nogil:
    return put_str16(put_str16(p, key, key_size), value, value_size)

cdef inline size_t frame_size(
    size_t id_size, size_t queue_size, size_t payload_size, size_t headers_size, bint text_layout
) noexcept nogil:
    """Of a whole frame other than Error, with its 5 byte header. `headers_size` is without their count."""
    return (
        FRAME_HEADER_BYTES + BODY_FIXED_BYTES + id_size + queue_size + payload_size + headers_size
        + (TEXT_TAIL_BYTES if text_layout else 0)
    )

cdef inline bint deliver_fits(const native_frame *frame, size_t added, size_t limit) noexcept nogil:
    """Is the body of this Publish's Deliver, with `added` bytes of headers, within `limit`?"""
    cdef size_t size = frame_size(frame.id_size, frame.queue_size, frame.payload_size, frame.headers_size, True) \
        - FRAME_HEADER_BYTES + DELIVER_ADDED_BYTES + added
    cdef const uint8_t *value
    cdef uint32_t value_size = 0
    if size > limit and header_find(frame.headers, frame.headers + frame.headers_size, b"vibemq-resend", 13,
                                    &value, &value_size):
        size -= header_size(13, value_size)
    return size <= limit

cdef inline uint8_t *frame_begin(
    uint8_t *p, size_t whole_size, uint8_t type, const void *id, size_t id_size, const void *queue, size_t queue_size
) noexcept nogil:
    """Header, version, type, id and queue of a frame of `whole_size` bytes; the payload is next."""
    bytes_store32(p, <uint32_t> (whole_size - FRAME_HEADER_BYTES))
    p[4] = 0
    p[5] = WIRE_VERSION
    p[6] = type
    return put_str16(put_str16(p + 7, id, id_size), queue, queue_size)

cdef inline uint8_t *frame_payload(
    uint8_t *p, const void *payload, size_t payload_size, uint32_t header_count
) noexcept nogil:
    """The payload and the count of the headers, which are next."""
    bytes_store32(p, <uint32_t> payload_size)
    p = put_bytes(p + 4, payload, payload_size)
    bytes_store16(p, header_count)
    return p + 2

cdef inline uint8_t *frame_end(uint8_t *p, bint text_layout) noexcept nogil:
    if text_layout:
        bytes_store32(p, 0)
        return p + TEXT_TAIL_BYTES
    return p

cdef inline size_t pong_size(size_t id_size, bint text_layout) noexcept nogil:
    return frame_size(id_size, 0, 0, 0, text_layout)

cdef inline uint8_t *pong_write(uint8_t *p, const void *id, size_t id_size, bint text_layout) noexcept nogil:
    p = frame_begin(p, pong_size(id_size, text_layout), TYPE_PONG, id, id_size, NULL, 0)
    return frame_end(frame_payload(p, NULL, 0, 0), text_layout)

cdef inline size_t publish_ack_size(size_t id_size, size_t queue_size, bint text_layout) noexcept nogil:
    return frame_size(id_size, queue_size, 0, header_size(9, id_size) + header_size(9, queue_size), text_layout)

cdef inline uint8_t *publish_ack_write(
    uint8_t *p, const void *id, size_t id_size, const void *queue, size_t queue_size, bint text_layout
) noexcept nogil:
    """With queue field and both headers, so that it is right for every kind of peer."""
    cdef size_t size = publish_ack_size(id_size, queue_size, text_layout)
    p = frame_begin(p, size, TYPE_PUBLISH_ACK, id, id_size, queue, queue_size)
    p = frame_payload(p, NULL, 0, 2)
    p = put_header(p, <const char *> b"messageId", 9, id, id_size)
    p = put_header(p, <const char *> b"queueName", 9, queue, queue_size)
    return frame_end(p, text_layout)

cdef inline size_t error_size(size_t id_size, size_t code_size, size_t message_size) noexcept nogil:
    return frame_size(id_size, 0, 0, 0, True) + code_size + message_size

cdef inline uint8_t *error_write(
    uint8_t *p, const void *id, size_t id_size, const void *code, size_t code_size, const void *message,
    size_t message_size,
) noexcept nogil:
    """An Error is the same in both layouts."""
    p = frame_begin(p, error_size(id_size, code_size, message_size), TYPE_ERROR, id, id_size, NULL, 0)
    p = frame_payload(p, NULL, 0, 0)
    return put_str16(put_str16(p, code, code_size), message, message_size)

cdef inline uint8_t *decimal_before(uint8_t *end, uint32_t number) noexcept nogil:
    """The first of its digits, of which there are at most DECIMAL_BYTES_MAX."""
    while True:
        end -= 1
        end[0] = <uint8_t> (0x30 + number % 10)
        number = number // 10
        if number == 0:
            return end
