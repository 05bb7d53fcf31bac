# SPDX-License-Identifier: Apache-2.0
"""Which messages a subscriber wants, said by their properties: `age>=N18;first_name<Tto`.

Every condition must hold. An operator means for a number, for a date and for a text:

    =  !=       equal, not equal
    <  >        less, greater; of a text: starts with, ends with
    <= >=       less or equal, greater or equal; not for texts
    &  ~        not for numbers and dates; contains, does not contain

What is compared is what properties_of would write: headers of other doors count with the type that they have there,
and what has none (true, false, nan) and what was sent without one is text. Numbers are compared exactly, whole ones
with others, too; dates in milliseconds. A condition on a property that is missing or of another type does not hold,
but for != and ~, which then do. `message-id` and `content-type` are the message's own, and texts.

A filter is compiled once and then only read; matches() makes no Python object.
"""

import re

from libc.stdint cimport int64_t, uint8_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp, memcpy
from vibemq.protocols.micromsg2.properties cimport content_type_of, id_of, is_content_type, is_message_id, view_of
from vibemq.protocols.micromsg2.values cimport is_text, is_untyped, value_parse
from vibemq.protocols.micromsg2.wire cimport percent_decode
from vibemq.storage cimport core
from vibemq.storage.core cimport (
    AMQP_DOUBLE, AMQP_FLOAT, AMQP_INT, AMQP_STRING, AMQP_TEXT_MAX_BYTES, AMQP_TIMESTAMP,
    AMQP_UINT, AMQP_UUID, amqp_pair, amqp_pairs, amqp_value,
)


cdef extern from "string.h" nogil:
    void *memmem(const void *haystack, size_t haystack_size, const void *needle, size_t needle_size)


cdef extern from *:
    int __builtin_ctzll(unsigned long long bits) nogil


cdef enum operator:
    EQUAL
    NOT_EQUAL
    LESS
    LESS_OR_EQUAL
    GREATER
    GREATER_OR_EQUAL
    CONTAINS
    CONTAINS_NOT

cdef struct condition:
    const uint8_t *key
    uint32_t key_size
    operator op
    amqp_value value               # INT, UINT, DOUBLE, TIMESTAMP or STRING

OPERATORS = {
    "=": EQUAL, "!=": NOT_EQUAL, "<": LESS, "<=": LESS_OR_EQUAL, ">": GREATER, ">=": GREATER_OR_EQUAL,
    "&": CONTAINS, "~": CONTAINS_NOT,
}
FILTER_BYTES_MAX = 16384           # each message is compared with all of it
CONDITIONS_MAX = 64                # a bit for each in a word
SHOWN_CHARACTERS = 60              # of a condition in what is said about it
CONDITION = re.compile(r"([^!<>=~&]*)(!=|<=|>=|=|<|>|&|~)(.*)", re.DOTALL)
UNENCODED = re.compile(r"[\x00-\x20\x7f]")


class BadFilter(ValueError):
    """The text says what, where, and what to do."""


# ---- comparing ----


cdef int order_of_naturals(uint64_t a, uint64_t b) noexcept:
    return (a > b) - (a < b)


cdef int order_of_reals(double a, double b) noexcept:
    return (a > b) - (a < b)


cdef int order_with_real(const amqp_value *whole, double real) noexcept:
    """Exactly, though not every whole number of 64 bits is a double."""
    cdef int64_t cut
    if whole.kind == AMQP_UINT:
        if real < 0:
            return 1
        if real >= 18446744073709551616.0:
            return -1
        if whole.natural != <uint64_t> real:
            return order_of_naturals(whole.natural, <uint64_t> real)
        return order_of_reals(0, real - <double> <uint64_t> real)
    if real < -9223372036854775808.0:
        return 1
    if real >= 9223372036854775808.0:
        return -1
    cut = <int64_t> real
    if whole.integer != cut:
        return 1 if whole.integer > cut else -1
    return order_of_reals(0, real - <double> cut)


cdef int order_of_numbers(const amqp_value *a, const amqp_value *b) noexcept:
    """`a` is any number, `b` one of a filter.  -1, 0 or 1."""
    if a.kind == AMQP_FLOAT and b.kind == AMQP_DOUBLE:  # its shortest text names no other float, but another double
        return order_of_reals(a.real, <double> <float> b.real)
    if a.kind == AMQP_FLOAT or a.kind == AMQP_DOUBLE:
        return order_of_reals(a.real, b.real) if b.kind == AMQP_DOUBLE else -order_with_real(b, a.real)
    if b.kind == AMQP_DOUBLE:
        return order_with_real(a, b.real)
    if a.kind == b.kind:
        return order_of_naturals(a.natural, b.natural) if a.kind == AMQP_UINT \
            else (a.integer > b.integer) - (a.integer < b.integer)
    if a.kind == AMQP_UINT:
        return 1 if b.integer < 0 else order_of_naturals(a.natural, b.natural)
    return -1 if a.integer < 0 else order_of_naturals(a.natural, b.natural)


cdef bint order_holds(operator op, int order) noexcept:
    if op == EQUAL:
        return order == 0
    if op == NOT_EQUAL:
        return order != 0
    if op == LESS:
        return order < 0
    if op == LESS_OR_EQUAL:
        return order <= 0
    if op == GREATER:
        return order > 0
    return order >= 0


cdef bint text_holds(const condition *c, const uint8_t *text, uint32_t size) noexcept:
    cdef const uint8_t *wanted = c.value.data
    cdef uint32_t wanted_size = c.value.bytes
    if c.op == EQUAL:
        return size == wanted_size and memcmp(text, wanted, size) == 0
    if c.op == NOT_EQUAL:
        return size != wanted_size or memcmp(text, wanted, size) != 0
    if c.op == CONTAINS:
        return memmem(text, size, wanted, wanted_size) != NULL
    if c.op == CONTAINS_NOT:
        return memmem(text, size, wanted, wanted_size) == NULL
    if size < wanted_size:
        return False
    return memcmp(text if c.op == LESS else text + size - wanted_size, wanted, wanted_size) == 0


cdef bint is_negative(operator op) noexcept:
    return op == NOT_EQUAL or op == CONTAINS_NOT


cdef bint holds(const condition *c, const amqp_value *v) noexcept:
    cdef char text[AMQP_TEXT_MAX_BYTES]
    if c.value.kind == AMQP_STRING:
        if is_text(v):
            return text_holds(c, v.data, v.bytes)
        if v.kind == AMQP_UUID or is_untyped(v):
            return text_holds(c, <const uint8_t *> text,
                              <uint32_t> core.amqp_value_text(v, text, AMQP_TEXT_MAX_BYTES))
    elif c.value.kind == AMQP_TIMESTAMP:
        if v.kind == AMQP_TIMESTAMP:
            return order_holds(c.op, (v.integer > c.value.integer) - (v.integer < c.value.integer))
    elif v.kind == AMQP_INT or v.kind == AMQP_UINT \
            or (v.kind == AMQP_DOUBLE or v.kind == AMQP_FLOAT) and not is_untyped(v):
        return order_holds(c.op, order_of_numbers(v, &c.value))
    return is_negative(c.op)


cdef class Filter:
    def __init__(self):
        raise TypeError("A Filter is made by compile_filter.")

    def __dealloc__(self):
        free(self.conditions)

    cdef bint matches(self, const message_view *m) noexcept:
        cdef amqp_pairs it
        cdef amqp_pair pair
        cdef char text[AMQP_TEXT_MAX_BYTES]
        cdef const condition *c
        cdef uint64_t undecided, left = self.all
        cdef uint64_t bit
        if left and m.is_amqp:
            if self.on_id and id_of(m, text, &pair.value):
                if not self.all_hold(self.on_id, &pair.value):
                    return False
                left &= ~self.on_id
            if self.on_content_type and content_type_of(m, &pair.value):
                if not self.all_hold(self.on_content_type, &pair.value):
                    return False
                left &= ~self.on_content_type
            core.amqp_pairs_begin(&it, m.amqp.application_properties, m.amqp.application_properties_size)
            while left and core.amqp_pairs_next(&it, &pair):
                undecided = left
                while undecided:
                    bit = undecided & (0 - undecided)
                    c = &self.conditions[__builtin_ctzll(bit)]
                    undecided ^= bit
                    if c.key_size == pair.key_bytes and memcmp(c.key, pair.key, c.key_size) == 0:
                        if not holds(c, &pair.value):
                            return False
                        left ^= bit
        return left & ~self.true_without == 0

    cdef bint all_hold(self, uint64_t which, const amqp_value *v) noexcept:
        while which:
            if not holds(&self.conditions[__builtin_ctzll(which)], v):
                return False
            which &= which - 1
        return True

    def matches_bytes(self, bytes message not None) -> bool:
        cdef message_view m
        view_of(message, &m)
        return self.matches(&m)


# ---- compiling ----


def problem(number, text, what):
    return BadFilter(f"Condition {number} of the filter, '{text:.{SHOWN_CHARACTERS}}', {what}.")


def split(number, text):
    """(key, operator, value), as they stand there."""
    if UNENCODED.search(text):
        raise problem(number, text, "has a space or control character; write it as %XX, a space as %20")
    found = CONDITION.fullmatch(text)
    if found is None:
        raise problem(number, text, "has no operator; write a property, one of = != < <= > >= & ~, and a value")
    key, operator, value = found.groups()
    if not key:
        raise problem(number, text, "names no property; write one before the operator")
    if not value:
        raise problem(number, text, "has no value; write one behind the operator, T for an empty text")
    if value[0] in "!<>=~&":
        raise problem(number, text, f"has the operator '{operator}{value[0]}', which there is not; "
                                    "the operators are = != < <= > >= & ~, and in a value they are %XX")
    return key.encode(), operator, value.encode()


def compile_filter(str text not None) -> Filter:
    """Raises BadFilter."""
    cdef Filter made = Filter.__new__(Filter)
    cdef uint8_t *room
    cdef condition *c
    cdef bytes key, value
    cdef uint64_t bit
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise BadFilter("A filter must be UTF-8.") from None
    if size > FILTER_BYTES_MAX:
        raise BadFilter(f"A filter has at most {FILTER_BYTES_MAX} bytes, had {size}.")
    parts = [part for part in text.split(";") if part]
    if len(parts) > CONDITIONS_MAX:
        raise BadFilter(f"A filter has at most {CONDITIONS_MAX} conditions, had {len(parts)}.")
    made.text = text
    made.conditions = <condition *> malloc(len(parts) * sizeof(condition) + <size_t> size + 1)
    if made.conditions == NULL:
        raise MemoryError
    room = <uint8_t *> (made.conditions + len(parts))
    for number, part in enumerate(parts, 1):
        key, operator, value = split(number, part)
        bit = <uint64_t> 1 << made.count
        c = &made.conditions[made.count]
        c.op = OPERATORS[operator]
        c.key, c.key_size = room, <uint32_t> (percent_decode(room, <uint8_t *> <char *> key, len(key)) - room)
        room += c.key_size
        memcpy(room, <char *> value, len(value))
        value_parse(room, <uint32_t> len(value), room, &c.value)
        room += len(value)
        if c.value.kind == AMQP_STRING and (c.op == LESS_OR_EQUAL or c.op == GREATER_OR_EQUAL):
            raise problem(number, part, f"compares a text by {operator}, which is for numbers (N1) and dates (D0.0)")
        if c.value.kind != AMQP_STRING and (c.op == CONTAINS or c.op == CONTAINS_NOT):
            raise problem(number, part, f"compares a number or a date by {operator}, which is for texts (Tabc)")
        made.all |= bit
        if is_negative(c.op):
            made.true_without |= bit
        if is_message_id(c.key, c.key_size):
            made.on_id |= bit
        if is_content_type(c.key, c.key_size):
            made.on_content_type |= bit
        made.count += 1
    return made
