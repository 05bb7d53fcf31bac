# SPDX-License-Identifier: Apache-2.0
"""The value of a MicroMsg2 property, which is text, as the AMQP 1.0 value that is stored, and any such value as text.

    Tanna%20b  string      anna  string      N42  long, or ulong      N1.5  double      D1413198000.5  timestamp

A number has at most 64 bits; with a point or an exponent, or if it is greater, it is a double, and finite. A date is
in seconds since 1970, and has milliseconds; what is beyond is cut. What claims to be a number or date and is none is
text, with its letter.

The other way round each value has one strict form: percent-encoded as percent_encode does, whole numbers in decimal,
others in the fewest digits that read as the same, dates with at least one digit behind the point. What has no type
here (true, false, nan, inf) goes out without a letter; null, lists and maps do not go out.
"""

from libc.stdint cimport INT64_MAX, UINT64_MAX, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport strtod
from libc.string cimport memcmp, memcpy, memset
from vibemq.protocols.micromsg2.wire cimport is_escape, is_unreserved, percent_decode, percent_encode
from vibemq.storage cimport core
from vibemq.storage.core cimport (
    AMQP_BINARY, AMQP_BOOL, AMQP_DOUBLE, AMQP_FLOAT, AMQP_INT, AMQP_NULL, AMQP_OTHER, AMQP_STRING, AMQP_SYMBOL,
    AMQP_TEXT_MAX_BYTES, AMQP_TIMESTAMP, AMQP_UINT, AMQP_UUID, amqp_value,
)

cdef extern from *:
    """
    #include <float.h>
    _Static_assert(LDBL_MANT_DIG >= 64, "whole numbers of 64 bits are compared as long doubles");
    """

cdef enum:
    TYPED_BYTES_MAX = 64               # what value_put writes at most of a value that is no text
    NUMBER_BYTES_MAX = 64              # of one that is no whole number; a double needs 24
    SECONDS_MAX = 9223372036854774     # so that milliseconds fit
    TYPE_NUMBER = 0x4E
    TYPE_DATE = 0x44
    TYPE_TEXT = 0x54

cdef inline bint is_text(const amqp_value *v) noexcept:
    """Is it text, whatever that means: string, symbol, binary?"""
    return v.kind == AMQP_STRING or v.kind == AMQP_SYMBOL or v.kind == AMQP_BINARY

cdef inline bint is_untyped(const amqp_value *v) noexcept:
    """Has it a text, but no type in MicroMsg2: true, false, nan, inf?"""
    return v.kind == AMQP_BOOL or (v.kind == AMQP_DOUBLE or v.kind == AMQP_FLOAT) and v.real - v.real != 0

cdef inline bint is_number(const amqp_value *v) noexcept:
    return v.kind == AMQP_INT or v.kind == AMQP_UINT \
        or (v.kind == AMQP_DOUBLE or v.kind == AMQP_FLOAT) and not is_untyped(v)

# ---- from text ----

cdef inline bint is_digit(uint8_t c) noexcept:
    return <uint8_t> (c - 0x30) < 10

cdef inline bint has_sign(const uint8_t *p, uint32_t size) noexcept:
    return size > 0 and (p[0] == c"-" or p[0] == c"+")

cdef inline const uint8_t *digits_end(const uint8_t *p, const uint8_t *end) noexcept:
    while p < end and is_digit(p[0]):
        p += 1
    return p

cdef inline bint natural_parse(const uint8_t *p, const uint8_t *end, uint64_t *out) noexcept:
    """At least one digit and nothing else, and a number that fits."""
    cdef uint64_t digit
    out[0] = 0
    if p == end:
        return False
    while p < end:
        digit = <uint8_t> (p[0] - 0x30)
        if digit > 9 or out[0] > (UINT64_MAX - digit) // 10:
            return False
        out[0] = out[0] * 10 + digit
        p += 1
    return True

cdef inline bint real_parse(const uint8_t *p, uint32_t size, double *out) noexcept:
    """A finite number of the form -1.5e-3, in which one of the two sides of the point may be empty."""
    cdef char text[NUMBER_BYTES_MAX + 1]
    cdef char *end
    cdef uint32_t i
    if not 0 < size <= NUMBER_BYTES_MAX:
        return False
    for i in range(size):  # strtod knows more: spaces, inf, nan and hexadecimal ones
        if not is_digit(p[i]) and p[i] != c"." and p[i] | 0x20 != c"e" and p[i] != c"+" and p[i] != c"-":
            return False
    memcpy(text, p, size)
    text[size] = 0
    out[0] = strtod(text, &end)
    return end == text + size and out[0] - out[0] == 0

cdef inline bint number_parse(const uint8_t *p, uint32_t size, amqp_value *out) noexcept:
    cdef bint negative = size > 0 and p[0] == c"-"
    cdef uint64_t natural
    cdef double real
    if natural_parse(p + has_sign(p, size), p + size, &natural):
        if not negative and natural > <uint64_t> INT64_MAX:
            out.kind, out.natural = AMQP_UINT, natural
            return True
        if natural <= <uint64_t> INT64_MAX + negative:
            out.kind, out.natural = AMQP_INT, 0 - natural if negative else natural
            return True
    if not real_parse(p, size, &real):
        return False
    out.kind, out.real = AMQP_DOUBLE, real
    return True

cdef inline bint date_parse(const uint8_t *p, uint32_t size, amqp_value *out) noexcept:
    """Seconds since 1970; what is beyond milliseconds is cut."""
    cdef const uint8_t *end = p + size
    cdef const uint8_t *point
    cdef bint negative = size > 0 and p[0] == c"-"
    cdef uint64_t seconds
    cdef int64_t ms = 0
    cdef int i
    p += has_sign(p, size)
    point = digits_end(p, end)
    if not natural_parse(p, point, &seconds) or seconds > SECONDS_MAX:
        return False
    if point < end and (point[0] != c"." or digits_end(point + 1, end) != end):
        return False
    for i in range(1, 4):
        ms = ms * 10 + (point[i] - 0x30 if point + i < end else 0)
    ms += <int64_t> seconds * 1000
    out.kind, out.integer = AMQP_TIMESTAMP, -ms if negative else ms
    return True

cdef inline bint is_strict(const uint8_t *p, uint32_t size, bint *escaped) noexcept:
    """Is the text encoded as percent_encode does?  `escaped`: it is not its own decoded form."""
    cdef const uint8_t *end = p + size
    cdef uint8_t c
    cdef uint8_t again[3]
    cdef bint strict = True
    escaped[0] = False
    while p < end:
        c = p[0]
        if is_unreserved(c):
            p += 1
        elif is_escape(p, end):
            escaped[0] = True
            percent_decode(&c, p, 3)
            strict = strict and percent_encode(again, &c, 1) == again + 3 and memcmp(again, p, 3) == 0
            p += 3
        else:
            strict = False
            p += 1
    return strict

# ---- to text ----

cdef inline uint8_t *date_put(uint8_t *out, int64_t ms) noexcept:
    cdef uint64_t size = 0 - <uint64_t> ms if ms < 0 else <uint64_t> ms
    cdef uint64_t fraction = size % 1000
    cdef amqp_value seconds
    out[0] = TYPE_DATE
    out += 1
    if ms < 0:
        out[0] = c"-"
        out += 1
    seconds.kind, seconds.natural = AMQP_UINT, size // 1000
    out += core.amqp_value_text(&seconds, <char *> out, AMQP_TEXT_MAX_BYTES)
    out[0] = c"."
    out += 1
    while True:
        out[0] = <uint8_t> (0x30 + fraction // 100)
        out += 1
        fraction = fraction % 100 * 10
        if fraction == 0:
            return out

cdef inline uint8_t *number_put(uint8_t *out, const char *text, size_t size, bint is_real) noexcept:
    """A number that is no whole one keeps a point or an exponent; its + would have to be encoded."""
    cdef size_t i
    out[0] = TYPE_NUMBER
    out += 1
    for i in range(size):
        if text[i] == c"." or text[i] == c"e":
            is_real = False
        if text[i] != c"+":
            out[0] = <uint8_t> text[i]
            out += 1
    if is_real:
        out[0], out[1] = c".", c"0"
        out += 2
    return out

cdef inline uint8_t *value_put(uint8_t *out, const amqp_value *v) noexcept:
    """The end of the value, with its letter and encoded; NULL: MicroMsg2 has no word for it."""
    cdef char text[AMQP_TEXT_MAX_BYTES]
    cdef size_t size
    if is_text(v):
        out[0] = TYPE_TEXT
        return percent_encode(out + 1, v.data, v.bytes)
    if v.kind == AMQP_NULL or v.kind == AMQP_OTHER:
        return NULL
    if v.kind == AMQP_TIMESTAMP:
        return date_put(out, v.integer)
    size = core.amqp_value_text(v, text, AMQP_TEXT_MAX_BYTES)
    if is_number(v):
        return number_put(out, text, size, v.kind == AMQP_DOUBLE or v.kind == AMQP_FLOAT)
    if v.kind == AMQP_UUID:
        out[0] = TYPE_TEXT
        out += 1
    memcpy(out, text, size)
    return out + size

cdef inline bint value_parse(const uint8_t *text, uint32_t size, uint8_t *room, amqp_value *out) noexcept:
    """A value as it stands in a property: INT, UINT, DOUBLE, TIMESTAMP or STRING.  True: value_put writes it like this.

    `room` is for its text decoded, as many bytes, and may be `text`; out.data is that text behind the type's letter.
    An encoded letter is no type.
    """
    cdef bint escaped
    cdef bint strict = is_strict(text, size, &escaped)
    cdef uint8_t type = text[0] if size else 0
    cdef uint8_t again[TYPED_BYTES_MAX]
    memset(out, 0, sizeof(amqp_value))
    out.kind, out.data, out.bytes = AMQP_STRING, text, size
    if escaped:
        out.data, out.bytes = room, <uint32_t> (percent_decode(room, text, size) - room)
    if type != TYPE_TEXT and type != TYPE_NUMBER and type != TYPE_DATE:
        return False
    out.data += 1
    out.bytes -= 1
    if type == TYPE_TEXT:
        return strict
    if type == TYPE_NUMBER and number_parse(out.data, out.bytes, out) \
            or type == TYPE_DATE and date_parse(out.data, out.bytes, out):
        return not escaped and value_put(again, out) == again + size and memcmp(again, text, size) == 0
    out.data -= 1
    out.bytes += 1
    return False

# ---- comparing ----

cdef inline long double exact(const amqp_value *v) noexcept:
    if v.kind == AMQP_INT:
        return <long double> v.integer
    if v.kind == AMQP_UINT:
        return <long double> v.natural
    return <long double> v.real

cdef inline int order_of_numbers(const amqp_value *a, const amqp_value *b) noexcept:
    """-1, 0 or 1.  `a` is any number, `b` one of a filter."""
    cdef long double x = exact(a), y = exact(b)
    if a.kind == AMQP_FLOAT and b.kind == AMQP_DOUBLE:  # its shortest text names no other float, but another double
        y = <float> b.real
    return (x > y) - (x < y)
