# SPDX-License-Identifier: Apache-2.0
"""JSON and MessagePack in place: finding one's way in what was checked, and writing values.

No allocation, no Python object.  In JSON that json_check has found good, strings end at the next quote and brackets at
their partners; MessagePack is checked by the walk itself.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memchr, memcmp, memcpy
from vibemq.storage.core cimport bytes_store16, bytes_store32, bytes_store64

cdef enum:
    ENCODING_JSON = 0
    ENCODING_MESSAGEPACK = 1

cdef enum:
    RECORD_DEPTH_MAX = 64
    BODY_DEPTH_MAX = 60       # of a body, which stands in an item: peers read no more than 64 levels of it all

cdef extern from *:
    """
    enum { KIND_NONE, KIND_NULL, KIND_FALSE, KIND_TRUE, KIND_INTEGER, KIND_FLOAT, KIND_TEXT, KIND_BYTES, KIND_EXT,
           KIND_ARRAY, KIND_MAP };
    /* By the first byte of a value of JSON: a number is an integer until integer_of() has looked at it. */
    static const unsigned char vibemq_json_kinds[256] = {
        ['n'] = KIND_NULL, ['f'] = KIND_FALSE, ['t'] = KIND_TRUE, ['"'] = KIND_TEXT, ['['] = KIND_ARRAY,
        ['{'] = KIND_MAP, ['-'] = KIND_INTEGER, ['0' ... '9'] = KIND_INTEGER,
    };
    /* What a walk over an array or object of JSON stops at. */
    enum { MARK_QUOTE = 1, MARK_OPEN, MARK_CLOSE };
    static const unsigned char vibemq_json_marks[256] = {
        ['"'] = MARK_QUOTE, ['['] = MARK_OPEN, ['{'] = MARK_OPEN, [']'] = MARK_CLOSE, ['}'] = MARK_CLOSE,
    };
    /* Of MessagePack by the first byte, from 0xc0 to 0xdf: the kind, the bytes of the length that follows, and those
       that follow in any case, of which ext has its type. */
    static const struct mp_form { unsigned char kind, width, more; } vibemq_mp_forms[32] = {
        {KIND_NULL, 0, 0}, {KIND_NONE, 0, 0}, {KIND_FALSE, 0, 0}, {KIND_TRUE, 0, 0},
        {KIND_BYTES, 1, 0}, {KIND_BYTES, 2, 0}, {KIND_BYTES, 4, 0}, {KIND_EXT, 1, 1}, {KIND_EXT, 2, 1}, {KIND_EXT, 4, 1},
        {KIND_FLOAT, 0, 4}, {KIND_FLOAT, 0, 8},
        {KIND_INTEGER, 0, 1}, {KIND_INTEGER, 0, 2}, {KIND_INTEGER, 0, 4}, {KIND_INTEGER, 0, 8},
        {KIND_INTEGER, 0, 1}, {KIND_INTEGER, 0, 2}, {KIND_INTEGER, 0, 4}, {KIND_INTEGER, 0, 8},
        {KIND_EXT, 0, 2}, {KIND_EXT, 0, 3}, {KIND_EXT, 0, 5}, {KIND_EXT, 0, 9}, {KIND_EXT, 0, 17},
        {KIND_TEXT, 1, 0}, {KIND_TEXT, 2, 0}, {KIND_TEXT, 4, 0},
        {KIND_ARRAY, 2, 0}, {KIND_ARRAY, 4, 0}, {KIND_MAP, 2, 0}, {KIND_MAP, 4, 0},
    };
    """
    struct mp_form:
        uint8_t kind, width, more

    const uint8_t vibemq_json_kinds[256]
    const uint8_t vibemq_json_marks[256]
    const mp_form vibemq_mp_forms[32]
    enum:
        KIND_NONE, KIND_NULL, KIND_FALSE, KIND_TRUE, KIND_INTEGER, KIND_FLOAT, KIND_TEXT, KIND_BYTES, KIND_EXT
        KIND_ARRAY, KIND_MAP
        MARK_QUOTE, MARK_OPEN, MARK_CLOSE


cdef struct span:
    const uint8_t *data
    uint32_t size


cdef inline span span_of(const void *data, size_t size) noexcept nogil:
    cdef span out
    out.data, out.size = <const uint8_t *> data, <uint32_t> size
    return out


cdef inline bytes bytes_of(span data):
    return (<const char *> data.data)[:data.size]


# ---- reading ----


cdef inline const uint8_t *space_skip(const uint8_t *p, const uint8_t *end) noexcept nogil:
    while p < end and p[0] <= c' ':
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


cdef inline const uint8_t *json_end(const uint8_t *p, const uint8_t *end) noexcept nogil:
    """Behind the value that begins at p."""
    cdef uint32_t depth = 0
    cdef uint8_t mark = vibemq_json_marks[p[0]] if p < end else 0
    if mark == 0:
        while p < end and not (p[0] == c',' or p[0] == c'}' or p[0] == c']' or p[0] <= c' '):
            p += 1
        return p
    while p < end:
        mark = vibemq_json_marks[p[0]]
        if mark:
            if mark == MARK_QUOTE:
                p = string_end(p + 1, end)
            else:
                depth += 1 if mark == MARK_OPEN else -1
            if depth == 0:
                return p + 1 if p < end else end
        p += 1
    return end


cdef inline const uint8_t *mp_head(const uint8_t *p, const uint8_t *end, int *kind, uint64_t *size) noexcept nogil:
    """Behind the head of the value at p, with all of its bytes there, or NULL: cut short, or no value.

    `size`: the bytes behind the head, or the values in an array or map, keys included."""
    cdef uint8_t first
    cdef const mp_form *form
    cdef uint64_t length = 0
    cdef int width
    if p >= end:
        return NULL
    first = p[0]
    p += 1
    if first < 0x80 or first >= 0xE0:
        kind[0], size[0] = KIND_INTEGER, 0
        return p
    if first >= 0xC0:
        form = &vibemq_mp_forms[first - 0xC0]
        if form.kind == KIND_NONE or end - p < form.width:
            return NULL
        for width in range(form.width):
            length = length << 8 | p[width]
        p += form.width
        kind[0], size[0] = form.kind, form.more + (2 * length if form.kind == KIND_MAP else length)
    elif first >= 0xA0:
        kind[0], size[0] = KIND_TEXT, first & 0x1F
    elif first >= 0x90:
        kind[0], size[0] = KIND_ARRAY, first & 0xF
    else:
        kind[0], size[0] = KIND_MAP, 2 * (first & 0xF)
    return p if size[0] <= <uint64_t> (end - p) else NULL


cdef inline const uint8_t *mp_nested_end(const uint8_t *p, const uint8_t *end, bint *is_deep) noexcept nogil:
    """As mp_end."""
    cdef uint64_t left[RECORD_DEPTH_MAX]
    cdef uint64_t size = 0
    cdef int kind = 0, depth = 0
    while True:
        p = mp_head(p, end, &kind, &size)
        if p == NULL:
            return NULL
        if kind < KIND_ARRAY:
            p += size
        elif depth == RECORD_DEPTH_MAX - 1:
            is_deep[0] = True
            return NULL
        else:
            depth += 1
            left[depth] = size
        while depth and left[depth] == 0:
            depth -= 1
        if depth == 0:
            return p
        left[depth] -= 1


cdef inline const uint8_t *mp_end(const uint8_t *p, const uint8_t *end, bint *is_deep) noexcept nogil:
    """Behind the value that begins at p in a record's array, or NULL: it is cut short, or too deep."""
    if p < end and 0xA0 <= p[0] < 0xC0:  # a short text
        p += 1 + (p[0] & 0x1F)
        return p if p <= end else NULL
    return mp_nested_end(p, end, is_deep)


cdef inline int kind_of(span raw, int encoding) noexcept nogil:
    """Of a value that was checked; KIND_NONE: there is none."""
    cdef uint8_t first
    if raw.size == 0:
        return KIND_NONE
    first = raw.data[0]
    if encoding == ENCODING_JSON:
        return vibemq_json_kinds[first]
    if 0x80 <= first < 0xC0:
        return KIND_TEXT if first >= 0xA0 else KIND_ARRAY if first >= 0x90 else KIND_MAP
    return KIND_INTEGER if first < 0x80 or first >= 0xE0 else vibemq_mp_forms[first - 0xC0].kind


# ---- content types ----


cdef inline bint is_plain_json_type(const uint8_t *text, uint32_t size) noexcept nogil:
    """application/json and nothing else."""
    return size == 16 and memcmp(text, b"application/json", 16) == 0


cdef inline bint is_json_type(const uint8_t *text, uint32_t size) noexcept nogil:
    """application/json, or anything+json; parameters do not count."""
    cdef const uint8_t *parameters = <const uint8_t *> memchr(text, c";", size)
    if parameters != NULL:
        size = <uint32_t> (parameters - text)
    while size and text[size - 1] == c" ":
        size -= 1
    return is_plain_json_type(text, size) or size > 5 and memcmp(text + size - 5, b"+json", 5) == 0


# ---- writing in place: each function returns where the next one goes on ----


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


cdef inline uint8_t *mp_sized_put(uint8_t *p, uint8_t first, uint64_t value) noexcept nogil:
    """A number in the fewest bytes; `first` says that it is one byte, and those after it two, four and eight."""
    if value < 0x100:
        p[0], p[1] = first, <uint8_t> value
        return p + 2
    if value < 0x10000:
        p[0] = first + 1
        bytes_store16(p + 1, <unsigned int> value)
        return p + 3
    if value <= 0xFFFFFFFFu:
        p[0] = first + 2
        bytes_store32(p + 1, <uint32_t> value)
        return p + 5
    p[0] = first + 3
    bytes_store64(p + 1, value)
    return p + 9


cdef inline uint8_t *mp_text_put(uint8_t *p, span text) noexcept nogil:
    """Five bytes more than the text's own at most."""
    if text.size < 32:
        p[0] = <uint8_t> (0xA0 | text.size)
        return put(p + 1, text.data, text.size)
    return put(mp_sized_put(p, 0xD9, text.size), text.data, text.size)


cdef inline uint8_t *mp_unsigned_put(uint8_t *p, uint64_t value) noexcept nogil:
    """As clients write and expect it: nine bytes at most."""
    if value < 0x80:
        p[0] = <uint8_t> value
        return p + 1
    return mp_sized_put(p, 0xCC, value)
