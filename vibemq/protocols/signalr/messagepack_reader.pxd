# SPDX-License-Identifier: Apache-2.0
"""MessagePack, read in place, and hub messages in it: no allocation, no Python object, no recursion.

A cursor goes over a body element by element. Every length is compared with what is left before it is used, a count too,
since each value takes a byte at least. Once a cursor has a fault it keeps it.
"""

from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from vibemq.protocols.signalr.envelope cimport (
    BOUNDS, DIALECT_V1, FAULT_ALLOW_RECONNECT, FAULT_ARGUMENTS, FAULT_DEPTH, FAULT_ERROR, FAULT_HEADERS, FAULT_ID,
    FAULT_LENGTH, FAULT_NONBLOCKING, FAULT_RESULT_KIND, FAULT_SEQUENCE, FAULT_SHORT, FAULT_STREAM_IDS, FAULT_TARGET,
    FAULT_TARGET_LONG, ID_BYTES_MAX, RECORD_DEPTH_MAX, RESULT_ERROR, RESULT_VALUE, RESULT_VOID, STREAM_IDS_MAX,
    TARGET_BYTES_MAX, TYPE_CLOSE, TYPE_COMPLETION, TYPE_INVOCATION, TYPE_PING, TYPE_STREAM_COMPLETION,
    TYPE_STREAM_INVOCATION, TYPE_STREAM_ITEM, hub_message, id_check, span,
)
from vibemq.storage.core cimport bytes_load16, bytes_load32, bytes_load64, utf8_is_valid

cdef enum:
    MP_NIL
    MP_FALSE
    MP_TRUE
    MP_INTEGER
    MP_FLOAT
    MP_STR
    MP_BIN
    MP_EXT
    MP_ARRAY
    MP_MAP


# One value's head.
cdef struct mp_head:
    int kind
    uint64_t size             # MP_FLOAT, STR, BIN, EXT: bytes behind the head; ARRAY, MAP: values in it, keys included
    int64_t integer
    bint too_large            # an unsigned integer above 63 bits


cdef inline const uint8_t *number_head(const uint8_t *p, const uint8_t *end, mp_head *out) noexcept nogil:
    """The integers of 0xcc to 0xd3, whose size is a power of two."""
    cdef uint8_t first = p[0]
    cdef int width = 1 << (first & 3)
    p += 1
    if end - p < width:
        return NULL
    out.kind = MP_INTEGER
    if first == 0xCC:
        out.integer = p[0]
    elif first == 0xCD:
        out.integer = bytes_load16(p)
    elif first == 0xCE:
        out.integer = bytes_load32(p)
    elif first == 0xCF:
        out.integer = <int64_t> bytes_load64(p)
        out.too_large = out.integer < 0
    elif first == 0xD0:
        out.integer = <int8_t> p[0]
    elif first == 0xD1:
        out.integer = <int16_t> bytes_load16(p)
    elif first == 0xD2:
        out.integer = <int32_t> bytes_load32(p)
    else:
        out.integer = <int64_t> bytes_load64(p)
    return p + width


cdef inline const uint8_t *sized_head(const uint8_t *p, const uint8_t *end, mp_head *out) noexcept nogil:
    """All whose length is a number of its own, of 1, 2 or 4 bytes: ext, bin, str, array, map."""
    cdef uint8_t first = p[0]
    cdef int width
    if first >= 0xDC:
        out.kind = MP_ARRAY if first < 0xDE else MP_MAP
        width = 2 << (first & 1)
    else:
        out.kind = MP_BIN if first < 0xC7 else MP_EXT if first < 0xD0 else MP_STR
        width = 1 << ((first - (0xC4 if first < 0xC7 else 0xC7 if first < 0xD0 else 0xD9)))
    p += 1
    if end - p < width:
        return NULL
    out.size = p[0] if width == 1 else bytes_load16(p) if width == 2 else bytes_load32(p)
    if out.kind == MP_EXT:
        out.size += 1  # its type
    elif out.kind == MP_MAP:
        out.size *= 2
    return p + width


cdef inline const uint8_t *head_read(const uint8_t *p, const uint8_t *end, mp_head *out) noexcept nogil:
    """Behind the head of the value at p, with all of its bytes there, or NULL: cut short, or no value."""
    cdef uint8_t first
    out.size = 0
    out.too_large = False
    if p >= end:
        return NULL
    first = p[0]
    if first < 0x80 or first >= 0xE0:
        out.kind = MP_INTEGER
        out.integer = <int8_t> first
        return p + 1
    if first < 0xC0:
        out.kind = MP_MAP if first < 0x90 else MP_ARRAY if first < 0xA0 else MP_STR
        out.size = first & 0x1F if first >= 0xA0 else first & 0xF if first >= 0x90 else 2 * (first & 0xF)
        p += 1
    elif first <= 0xC3:
        if first == 0xC1:
            return NULL
        out.kind = MP_NIL if first == 0xC0 else MP_FALSE if first == 0xC2 else MP_TRUE
        return p + 1
    elif first == 0xCA or first == 0xCB:
        out.kind = MP_FLOAT
        out.size = 4 if first == 0xCA else 8
        p += 1
    elif 0xCC <= first <= 0xD3:
        return number_head(p, end, out)
    elif 0xD4 <= first <= 0xD8:
        out.kind = MP_EXT
        out.size = 1 + (1 << (first - 0xD4))
        p += 1
    else:
        p = sized_head(p, end, out)
        if p == NULL:
            return NULL
    return p if out.size <= <uint64_t> (end - p) else NULL


# Over the elements of a record's array.
cdef struct mp_cursor:
    const uint8_t *at
    const uint8_t *end
    uint32_t left             # elements of the record that have not been taken
    int fault


cdef inline const uint8_t *contents_skip(
    const uint8_t *p, const uint8_t *end, uint64_t count, int level, int *fault
) noexcept nogil:
    """Behind `count` values in an array or map, or NULL with a fault. `level`: how deep that one is; the record is 1."""
    cdef uint64_t left[RECORD_DEPTH_MAX]
    cdef int depth = 0
    cdef mp_head head
    left[0] = count
    while True:
        while left[depth] == 0:
            if depth == 0:
                return p
            depth -= 1
        left[depth] -= 1
        p = head_read(p, end, &head)
        if p == NULL:
            fault[0] = FAULT_LENGTH
            return NULL
        if head.kind < MP_ARRAY:
            p += head.size
        elif depth == RECORD_DEPTH_MAX - level:
            fault[0] = FAULT_DEPTH
            return NULL
        else:
            depth += 1
            left[depth] = head.size


cdef inline bint head_take(mp_cursor *c, mp_head *head) noexcept nogil:
    """The head of the next element, the cursor behind it; the caller takes or skips what the head says follows."""
    cdef const uint8_t *p
    if c.fault:
        return False
    if c.left == 0:
        c.fault = FAULT_SHORT
        return False
    p = head_read(c.at, c.end, head)
    if p == NULL:
        c.fault = FAULT_LENGTH
        return False
    c.at = p
    c.left -= 1
    return True


cdef inline void body_skip(mp_cursor *c, const mp_head *head, int level) noexcept nogil:
    """What follows a head that was taken; `level`: how deep that value is."""
    cdef const uint8_t *p
    if head.kind < MP_ARRAY:
        c.at += head.size
    elif head.size:
        p = contents_skip(c.at, c.end, head.size, level, &c.fault)
        if p != NULL:
            c.at = p


cdef inline int kind_next(const mp_cursor *c) noexcept nogil:
    """What the next element is, which stays; -1 when there is none that is whole."""
    cdef mp_head head
    if c.fault or c.left == 0 or head_read(c.at, c.end, &head) == NULL:
        return -1
    return head.kind


cdef inline bint raw_take(mp_cursor *c, span *out) noexcept nogil:
    """The next element whole."""
    cdef const uint8_t *begin = c.at
    cdef mp_head head
    if not head_take(c, &head):
        return False
    body_skip(c, &head, 2)
    out.data = begin
    out.size = <uint32_t> (c.at - begin)
    return c.fault == 0


cdef inline bint text_take(mp_cursor *c, int wrong, span *out) noexcept nogil:
    """The next element, which is a str of UTF-8, or the fault `wrong`."""
    cdef mp_head head
    if not head_take(c, &head):
        return False
    if head.kind != MP_STR or not utf8_is_valid(c.at, head.size):
        c.fault = wrong
        return False
    out.data = c.at
    out.size = <uint32_t> head.size
    c.at += head.size
    return True


cdef inline bint bool_take(mp_cursor *c, int wrong, bint *out) noexcept nogil:
    cdef mp_head head
    if not head_take(c, &head):
        return False
    if head.kind != MP_TRUE and head.kind != MP_FALSE:
        c.fault = wrong
        return False
    out[0] = head.kind == MP_TRUE
    return True


cdef inline bint integer_take(mp_cursor *c, int wrong, int64_t *out) noexcept nogil:
    cdef mp_head head
    if not head_take(c, &head):
        return False
    if head.kind != MP_INTEGER or head.too_large:
        c.fault = wrong
        return False
    out[0] = head.integer
    return True


cdef inline const uint8_t *value_skip(const uint8_t *p, const uint8_t *end) noexcept nogil:
    """Behind the value at p, of an array that was checked already."""
    cdef int fault = 0
    p = contents_skip(p, end, 1, 2, &fault)
    return end if p == NULL else p


# ---- what the elements of a message are ----


cdef inline void mp_id(mp_cursor *c, int dialect, bint needed, hub_message *out) noexcept nogil:
    cdef mp_head head
    if kind_next(c) == MP_NIL and not needed:
        head_take(c, &head)
    elif text_take(c, FAULT_ID, &out.id):
        c.fault = id_check(dialect, needed, out)


cdef inline void mp_target(mp_cursor *c, hub_message *out) noexcept nogil:
    if text_take(c, FAULT_TARGET, &out.target) and out.target.size > TARGET_BYTES_MAX:
        c.fault = FAULT_TARGET_LONG


cdef inline void mp_arguments(mp_cursor *c, hub_message *out) noexcept nogil:
    """The array, each argument's bounds noted while it is skipped."""
    cdef const uint8_t *begin = c.at
    cdef mp_head head
    cdef mp_head each
    cdef uint32_t i
    if not head_take(c, &head):
        return
    if head.kind != MP_ARRAY:
        c.fault = FAULT_ARGUMENTS
        return
    out.argument_count = <uint32_t> head.size
    c.left += out.argument_count  # head_take counts them as it counts elements
    for i in range(out.argument_count):
        if i < BOUNDS:
            out.bounds[i] = c.at
        if not head_take(c, &each):
            return
        body_skip(c, &each, 3)
    if out.argument_count < BOUNDS:
        out.bounds[out.argument_count] = c.at
    out.arguments.data, out.arguments.size = begin, <uint32_t> (c.at - begin)


cdef inline void mp_stream_ids(mp_cursor *c, hub_message *out) noexcept nogil:
    cdef const uint8_t *begin = c.at
    cdef mp_head head
    cdef span text
    cdef uint32_t i
    if not head_take(c, &head):
        return
    if head.kind == MP_NIL:
        return
    if head.kind != MP_ARRAY or head.size > STREAM_IDS_MAX:
        c.fault = FAULT_STREAM_IDS
        return
    out.stream_id_count = <uint32_t> head.size
    c.left += out.stream_id_count
    for i in range(out.stream_id_count):
        if text_take(c, FAULT_STREAM_IDS, &text) and text.size > ID_BYTES_MAX:
            c.fault = FAULT_STREAM_IDS
        if c.fault:
            return
    out.stream_ids.data, out.stream_ids.size = begin, <uint32_t> (c.at - begin)


cdef inline void mp_error(mp_cursor *c, hub_message *out) noexcept nogil:
    out.has_error = text_take(c, FAULT_ERROR, &out.error)


cdef inline void mp_error_or_nil(mp_cursor *c, hub_message *out) noexcept nogil:
    cdef mp_head head
    if kind_next(c) == MP_NIL:
        head_take(c, &head)
    else:
        mp_error(c, out)


cdef inline void mp_completion(mp_cursor *c, hub_message *out) noexcept nogil:
    cdef int64_t kind = RESULT_VOID
    if c.left == 0:  # one client ends its uploads without a kind
        return
    if not integer_take(c, FAULT_RESULT_KIND, &kind):
        return
    if kind == RESULT_ERROR:
        mp_error(c, out)
    elif kind == RESULT_VALUE:
        out.has_payload = raw_take(c, &out.payload)
    elif kind != RESULT_VOID:
        c.fault = FAULT_RESULT_KIND


cdef inline void mp_v1(mp_cursor *c, hub_message *out) noexcept nogil:
    """Types 1 to 5 of version 1, behind the type: headers first."""
    cdef mp_head head
    cdef mp_cursor ahead
    cdef span skipped
    if not head_take(c, &head):
        return
    # One client has a number there, which is what the byte of an empty map looks like, in all but its calls.
    if head.kind == MP_MAP:
        body_skip(c, &head, 2)
    elif head.kind != MP_INTEGER:
        c.fault = FAULT_HEADERS
        return
    if out.type == TYPE_INVOCATION or out.type == TYPE_STREAM_INVOCATION:
        ahead = c[0]
        # One client leaves the id of an upload's call out: a target, then an array.
        if not (
            out.type == TYPE_INVOCATION and c.left > 2 and kind_next(c) == MP_STR
            and raw_take(&ahead, &skipped) and kind_next(&ahead) == MP_ARRAY
        ):
            mp_id(c, DIALECT_V1, out.type == TYPE_STREAM_INVOCATION, out)
        mp_target(c, out)
        mp_arguments(c, out)
        if c.left and not c.fault:
            mp_stream_ids(c, out)
        out.nonblocking = out.type == TYPE_INVOCATION and not out.has_id
        return
    mp_id(c, DIALECT_V1, True, out)
    if out.type == TYPE_STREAM_ITEM:
        out.has_payload = raw_take(c, &out.payload)
    elif out.type == TYPE_COMPLETION and not c.fault:
        mp_completion(c, out)


cdef inline void mp_early(mp_cursor *c, int dialect, hub_message *out) noexcept nogil:
    """Types 1 to 5 of the early dialect, behind the type; and what preview1 made of them, without the flag."""
    cdef bint is_call = out.type == TYPE_INVOCATION
    if out.type == TYPE_STREAM_INVOCATION and c.left < 3:
        out.type = TYPE_STREAM_COMPLETION
    if is_call or out.type == TYPE_STREAM_INVOCATION:
        mp_id(c, dialect, out.type == TYPE_STREAM_INVOCATION, out)
        if is_call and kind_next(c) != MP_STR:
            bool_take(c, FAULT_NONBLOCKING, &out.nonblocking)
        mp_target(c, out)
        mp_arguments(c, out)
        out.nonblocking = is_call and (out.nonblocking or not out.has_id)
        return
    mp_id(c, dialect, True, out)
    if out.type == TYPE_STREAM_ITEM:
        out.has_payload = raw_take(c, &out.payload)
    elif out.type == TYPE_COMPLETION:
        if not c.fault:
            mp_completion(c, out)
    elif out.type == TYPE_STREAM_COMPLETION and c.left:
        mp_error_or_nil(c, out)


cdef inline void mp_control(mp_cursor *c, hub_message *out) noexcept nogil:
    """Types 6 to 9, which have no headers."""
    if out.type == TYPE_PING:
        return
    if out.type == TYPE_CLOSE:
        mp_error_or_nil(c, out)
        if c.left:
            bool_take(c, FAULT_ALLOW_RECONNECT, &out.allow_reconnect)
    elif integer_take(c, FAULT_SEQUENCE, &out.sequence) and out.sequence < 0:
        c.fault = FAULT_SEQUENCE
