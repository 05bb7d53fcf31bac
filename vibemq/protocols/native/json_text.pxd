# SPDX-License-Identifier: Apache-2.0
"""Is a text exactly one JSON value (RFC 8259), in valid UTF-8 and not nested too deep? One pass, nothing allocated.

A payload that is not JSON would end the read loop of clients that parse every payload, so it is refused at Publish.
The containers that are open are one bit each in a word, the innermost lowest: that is why depth is at most 64.
Escapes are four hex digits, as in the grammar; a lone surrogate is the reader's business.
"""

from libc.stdint cimport uint8_t, uint64_t
from libc.string cimport memcmp, memcpy

cdef inline bint is_digit(uint8_t c) noexcept nogil:
    return <uint8_t> (c - 0x30) < 10

cdef inline const uint8_t *json_space(const uint8_t *p, const uint8_t *end) noexcept nogil:
    while p < end and (p[0] == 0x20 or p[0] == 0x0A or p[0] == 0x0D or p[0] == 0x09):
        p += 1
    return p

cdef inline int utf8_size(const uint8_t *p, const uint8_t *end) noexcept nogil:
    """Of the character at p, whose first byte is not ASCII; 0 when it is none: overlong, surrogate, cut, too high."""
    cdef uint8_t first = p[0]
    cdef uint8_t second
    if end - p < 2:
        return 0
    second = p[1]
    if second & 0xC0 != 0x80:
        return 0
    if 0xC2 <= first <= 0xDF:
        return 2
    if first & 0xF0 == 0xE0:
        if end - p < 3 or p[2] & 0xC0 != 0x80 or (first == 0xE0 and second < 0xA0) or (first == 0xED and second > 0x9F):
            return 0
        return 3
    if 0xF0 <= first <= 0xF4:
        if end - p < 4 or p[2] & 0xC0 != 0x80 or p[3] & 0xC0 != 0x80:
            return 0
        return 0 if (first == 0xF0 and second < 0x90) or (first == 0xF4 and second > 0x8F) else 4
    return 0

cdef inline bint is_plain_word(uint64_t word) noexcept nogil:
    """Eight bytes of a string that are all ASCII, no quote, no backslash and no control character?"""
    cdef uint64_t ones = 0x0101010101010101u
    cdef uint64_t quote = word ^ 0x2222222222222222u
    cdef uint64_t backslash = word ^ 0x5C5C5C5C5C5C5C5Cu
    return not (
        (word | (word - 0x2020202020202020u) | (quote - ones) | (backslash - ones)) & 0x8080808080808080u
    )

cdef inline const uint8_t *json_string(const uint8_t *p, const uint8_t *end) noexcept nogil:
    """Behind the string whose opening quote is at p, or NULL."""
    cdef uint64_t word
    cdef int size
    p += 1
    while True:
        while end - p >= 8:
            memcpy(&word, p, 8)
            if not is_plain_word(word):
                break
            p += 8
        if p >= end:
            return NULL
        if p[0] == 0x22:
            return p + 1
        if p[0] < 0x20:
            return NULL
        if p[0] >= 0x80:
            size = utf8_size(p, end)
            if size == 0:
                return NULL
            p += size
        elif p[0] != 0x5C:
            p += 1
        else:
            p = json_escape(p, end)
            if p == NULL:
                return NULL

cdef inline const uint8_t *json_escape(const uint8_t *p, const uint8_t *end) noexcept nogil:
    """Behind the escape whose backslash is at p, or NULL."""
    cdef int i
    cdef uint8_t c
    if end - p < 2:
        return NULL
    c = p[1]
    if c == 0x75:
        if end - p < 6:
            return NULL
        for i in range(2, 6):
            if not (is_digit(p[i]) or <uint8_t> ((p[i] | 0x20) - 0x61) < 6):
                return NULL
        return p + 6
    if c == 0x22 or c == 0x5C or c == 0x2F or c == 0x62 or c == 0x66 or c == 0x6E or c == 0x72 or c == 0x74:
        return p + 2
    return NULL

cdef inline const uint8_t *json_digits(const uint8_t *p, const uint8_t *end) noexcept nogil:
    """Behind one digit or more, or NULL."""
    if p >= end or not is_digit(p[0]):
        return NULL
    while p < end and is_digit(p[0]):
        p += 1
    return p

cdef inline const uint8_t *json_number(const uint8_t *p, const uint8_t *end) noexcept nogil:
    """Behind the number at p, or NULL."""
    if p < end and p[0] == 0x2D:
        p += 1
    if p < end and p[0] == 0x30:
        p += 1
    else:
        p = json_digits(p, end)
    if p != NULL and p < end and p[0] == 0x2E:
        p = json_digits(p + 1, end)
    if p != NULL and p < end and (p[0] | 0x20) == 0x65:
        p += 1
        if p < end and (p[0] == 0x2B or p[0] == 0x2D):
            p += 1
        p = json_digits(p, end)
    return p

cdef inline const uint8_t *json_scalar(const uint8_t *p, const uint8_t *end) noexcept nogil:
    """Behind the string, number or word at p, or NULL."""
    cdef size_t left = end - p
    if p[0] == 0x22:
        return json_string(p, end)
    if left >= 4 and (memcmp(p, <const char *> b"true", 4) == 0 or memcmp(p, <const char *> b"null", 4) == 0):
        return p + 4
    if left >= 5 and memcmp(p, <const char *> b"false", 5) == 0:
        return p + 5
    return json_number(p, end)

cdef inline const uint8_t *json_key(const uint8_t *p, const uint8_t *end) noexcept nogil:
    """Behind a member's name and its colon, or NULL."""
    if p >= end or p[0] != 0x22:
        return NULL
    p = json_string(p, end)
    if p == NULL:
        return NULL
    p = json_space(p, end)
    return json_space(p + 1, end) if p < end and p[0] == 0x3A else NULL

cdef inline bint json_is_valid(const uint8_t *p, size_t size, int depth_max) noexcept nogil:
    """`depth_max` is at most 64."""
    cdef const uint8_t *end = p + size
    cdef uint64_t objects = 0  # bit 0: is the innermost container an object?
    cdef int depth = 0
    cdef uint8_t opening
    p = json_space(p, end)
    while True:
        # Here a value begins.
        if p >= end:
            return False
        opening = p[0]
        if opening == 0x7B or opening == 0x5B:
            if depth == depth_max:
                return False
            depth += 1
            objects = (objects << 1) | <uint64_t> (opening == 0x7B)
            p = json_space(p + 1, end)
            if p >= end:
                return False
            if p[0] != opening + 2:  # not empty: ] and } lie two behind [ and {
                if opening == 0x7B:
                    p = json_key(p, end)
                    if p == NULL:
                        return False
                continue
        else:
            p = json_scalar(p, end)
            if p == NULL:
                return False
            p = json_space(p, end)
        # Here a value has ended, or p is at the bracket that ends its container.
        while depth and p < end and p[0] == (0x7D if objects & 1 else 0x5D):
            depth -= 1
            objects >>= 1
            p = json_space(p + 1, end)
        if depth == 0:
            return p == end
        if p >= end or p[0] != 0x2C:
            return False
        p = json_space(p + 1, end)
        if objects & 1:
            p = json_key(p, end)
            if p == NULL:
                return False
