# SPDX-License-Identifier: Apache-2.0
"""Finding one's way in JSON text that json_check has found good: no allocation, no Python object.

Nothing is judged here again, so a string is left at the next quote and a bracket at its partner. Every function has the
end of the text all the same and stops there, so that a mistake of ours reads nothing that is not the text's.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t
from libc.string cimport memchr, memcmp, memcpy

from vibemq.protocols.signalr.envelope cimport BOUNDS, hub_message, span

cdef enum:
    MEMBER_TYPE = 0
    MEMBER_ID
    MEMBER_TARGET
    MEMBER_ARGUMENTS
    MEMBER_ITEM
    MEMBER_RESULT
    MEMBER_ERROR
    MEMBER_STREAM_IDS
    MEMBER_HEADERS
    MEMBER_SEQUENCE
    MEMBER_NONBLOCKING
    MEMBER_ALLOW_RECONNECT
    MEMBERS
    MEMBER_UNKNOWN = MEMBERS

cdef enum:
    MEMBER_NAME_BYTES_MAX = 14   # "allowReconnect"
    INTEGER_DIGITS_MAX = 18      # all of them fit into 63 bits


cdef inline const uint8_t *space_skip(const uint8_t *p, const uint8_t *end) noexcept nogil:
    while p < end and (p[0] == c' ' or p[0] == c'\n' or p[0] == c'\r' or p[0] == c'\t'):
        p += 1
    return p


cdef inline const uint8_t *string_end(const uint8_t *p, const uint8_t *end) noexcept nogil:
    """The closing quote of the string whose opening quote lies before p."""
    cdef const uint8_t *quote
    cdef const uint8_t *run
    while True:
        quote = <const uint8_t *> memchr(p, c'"', end - p)
        if quote == NULL:
            return end
        run = quote
        while (run - 1)[0] == c'\\':  # the opening quote ends it at the latest
            run -= 1
        if (quote - run) % 2 == 0:
            return quote
        p = quote + 1


cdef inline const uint8_t *nested_end(const uint8_t *p, const uint8_t *end, hub_message *bounds) noexcept nogil:
    """Behind the array or object that opens at p. With `bounds`: of an array of arguments, which are noted there."""
    cdef uint32_t depth = 0, commas = 0
    cdef const uint8_t *opened = p
    while p < end:
        if p[0] == c'"':
            p = string_end(p + 1, end)
        elif p[0] == c'[' or p[0] == c'{':
            depth += 1
        elif p[0] == c']' or p[0] == c'}':
            depth -= 1
            if depth == 0:
                break
        elif p[0] == c',' and depth == 1:
            commas += 1
            if bounds != NULL and commas < BOUNDS:
                bounds.bounds[commas] = p
        p += 1
    if bounds != NULL:
        bounds.bounds[0] = opened
        bounds.argument_count = commas + 1 if commas or space_skip(opened + 1, end) < p else 0
        if commas + 1 < BOUNDS:
            bounds.bounds[commas + 1] = p
    return p + 1 if p < end else end


cdef inline const uint8_t *value_end(const uint8_t *p, const uint8_t *end) noexcept nogil:
    """Behind the value that begins at p."""
    if p < end and p[0] == c'"':
        p = string_end(p + 1, end)
        return p + 1 if p < end else end
    if p < end and (p[0] == c'[' or p[0] == c'{'):
        return nested_end(p, end, NULL)
    while p < end and not (p[0] == c',' or p[0] == c'}' or p[0] == c']' or p[0] <= c' '):
        p += 1
    return p


cdef inline int member_named(const uint8_t *name, size_t size) noexcept nogil:
    if size == 4:
        if memcmp(name, b"type", 4) == 0:
            return MEMBER_TYPE
        if memcmp(name, b"item", 4) == 0:
            return MEMBER_ITEM
    elif size == 5:
        if memcmp(name, b"error", 5) == 0:
            return MEMBER_ERROR
    elif size == 6:
        if memcmp(name, b"target", 6) == 0:
            return MEMBER_TARGET
        if memcmp(name, b"result", 6) == 0:
            return MEMBER_RESULT
    elif size == 7:
        if memcmp(name, b"headers", 7) == 0:
            return MEMBER_HEADERS
    elif size == 9:
        if memcmp(name, b"arguments", 9) == 0:
            return MEMBER_ARGUMENTS
        if memcmp(name, b"streamIds", 9) == 0:
            return MEMBER_STREAM_IDS
    elif size == 10:
        if memcmp(name, b"sequenceId", 10) == 0:
            return MEMBER_SEQUENCE
    elif size == 11:
        if memcmp(name, b"nonblocking", 11) == 0 or memcmp(name, b"nonBlocking", 11) == 0:
            return MEMBER_NONBLOCKING
    elif size == 12:
        if memcmp(name, b"invocationId", 12) == 0:
            return MEMBER_ID
    elif size == 14:
        if memcmp(name, b"allowReconnect", 14) == 0:
            return MEMBER_ALLOW_RECONNECT
    return MEMBER_UNKNOWN


# ---- text ----


cdef inline uint32_t hex4(const uint8_t *p) noexcept nogil:
    cdef uint32_t value = 0
    cdef int i
    for i in range(4):
        value = value << 4 | ((p[i] & 0xF) + (9 if p[i] > c'9' else 0))
    return value


cdef inline uint8_t *utf8_put(uint8_t *out, uint32_t c) noexcept nogil:
    if c < 0x80:
        out[0] = <uint8_t> c
        return out + 1
    if c < 0x800:
        out[0] = <uint8_t> (0xC0 | c >> 6)
        out[1] = <uint8_t> (0x80 | (c & 0x3F))
        return out + 2
    if c < 0x10000:
        out[0] = <uint8_t> (0xE0 | c >> 12)
        out[1] = <uint8_t> (0x80 | (c >> 6 & 0x3F))
        out[2] = <uint8_t> (0x80 | (c & 0x3F))
        return out + 3
    out[0] = <uint8_t> (0xF0 | c >> 18)
    out[1] = <uint8_t> (0x80 | (c >> 12 & 0x3F))
    out[2] = <uint8_t> (0x80 | (c >> 6 & 0x3F))
    out[3] = <uint8_t> (0x80 | (c & 0x3F))
    return out + 4


cdef inline uint8_t *text_decode(const uint8_t *p, const uint8_t *end, uint8_t *out) noexcept nogil:
    """What lies between two quotes, without its escapes, which is never longer. NULL when half a surrogate pair is in it:
    then it is no text."""
    cdef const uint8_t *escape
    cdef uint32_t c, low
    while True:
        escape = <const uint8_t *> memchr(p, c'\\', end - p)
        if escape == NULL:
            escape = end
        memcpy(out, p, escape - p)
        out += escape - p
        if end - escape < 2:
            return out
        c = escape[1]
        p = escape + 2
        if c == c'u':
            if end - p < 4:
                return NULL
            c = hex4(p)
            p += 4
            if 0xD800 <= c < 0xE000:
                if c >= 0xDC00 or end - p < 6 or p[0] != c'\\' or p[1] != c'u':
                    return NULL
                low = hex4(p + 2)
                if not 0xDC00 <= low < 0xE000:
                    return NULL
                c = 0x10000 + ((c - 0xD800) << 10) + (low - 0xDC00)
                p += 6
        elif c == c'b':
            c = 8
        elif c == c'f':
            c = 12
        elif c == c'n':
            c = 10
        elif c == c'r':
            c = 13
        elif c == c't':
            c = 9
        out = utf8_put(out, c)


cdef inline int member_at(const uint8_t *name, const uint8_t *end) noexcept nogil:
    """Which member has the name between two quotes, escaped or not."""
    cdef uint8_t plain[6 * MEMBER_NAME_BYTES_MAX]
    cdef uint8_t *plain_end
    cdef int member = member_named(name, end - name)
    if member != MEMBER_UNKNOWN or <size_t> (end - name) > sizeof(plain) or memchr(name, c'\\', end - name) == NULL:
        return member
    plain_end = text_decode(name, end, plain)
    return MEMBER_UNKNOWN if plain_end == NULL else member_named(plain, plain_end - plain)


cdef inline bint is_null(span raw) noexcept nogil:
    return raw.size == 0 or raw.data[0] == c'n'


cdef inline bint integer_of(span raw, int64_t *out) noexcept nogil:
    """A number without a fraction or an exponent that fits into 63 bits."""
    cdef const uint8_t *p = raw.data
    cdef const uint8_t *end = raw.data + raw.size
    cdef bint negative = raw.size and p[0] == c'-'
    cdef int64_t value = 0
    p += negative
    if p == end or end - p > INTEGER_DIGITS_MAX:
        return False
    while p < end:
        if <uint8_t> (p[0] - c'0') > 9:
            return False
        value = 10 * value + (p[0] - c'0')
        p += 1
    out[0] = -value if negative else value
    return True


cdef inline void members_find(const uint8_t *record, const uint8_t *end, span *members, hub_message *out) noexcept nogil:
    """The raw members of a record that is an object; of those that come twice the last. `out` gets the bounds of arguments."""
    cdef const uint8_t *p = space_skip(record, end) + 1
    cdef const uint8_t *name
    cdef const uint8_t *value
    cdef int member
    while True:
        p = space_skip(p, end)
        if p < end and p[0] == c',':
            p = space_skip(p + 1, end)
        if p >= end or p[0] != c'"':
            return
        name = p + 1
        p = string_end(name, end)
        member = member_at(name, p)
        value = space_skip(space_skip(p + 1, end) + 1, end)  # over the colon
        if member == MEMBER_ARGUMENTS and value < end and value[0] == c'[':
            p = nested_end(value, end, out)
        else:
            p = value_end(value, end)
        if member != MEMBER_UNKNOWN:
            members[member].data = value
            members[member].size = <uint32_t> (p - value)
