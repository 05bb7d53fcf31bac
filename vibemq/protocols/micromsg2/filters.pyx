# SPDX-License-Identifier: Apache-2.0
"""What a subscriber says of the messages that it wants: `age>=N18;first_name<Tto`.

Every condition must hold. An operator means for a number, for a date and for a text:

    =  !=       equal, not equal
    <  >        less, greater; of a text: starts with, ends with
    <= >=       less or equal, greater or equal; not for texts
    &  ~        not for numbers and dates; contains, does not contain

What is compared is what properties_of would write: headers of other doors count with the type that they have there,
and what has none (true, false, nan) and what was sent without one is text. Numbers are compared exactly, whole ones
with others, too; dates in milliseconds. A condition on a property that is missing or of another type does not hold,
but for != and ~, which then do. A filter is compiled once and then only read; comparing makes no Python object.
"""

import re

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp, memcpy
from vibemq.broker.messages cimport message_view
from vibemq.protocols.micromsg2.properties cimport CONTENT_TYPE, MESSAGE_ID, content_type_of, id_of, is_own, view_of
from vibemq.protocols.micromsg2.values cimport is_number, is_text, is_untyped, order_of_numbers, value_parse
from vibemq.protocols.micromsg2.wire cimport percent_decode
from vibemq.storage cimport core
from vibemq.storage.core cimport (
    AMQP_STRING, AMQP_TEXT_MAX_BYTES, AMQP_TIMESTAMP, AMQP_UUID, amqp_pair, amqp_pairs, amqp_value,
)

cdef extern from "string.h" nogil:
    void *memmem(const void *haystack, size_t haystack_size, const void *needle, size_t needle_size)

cdef extern from *:
    int __builtin_ctzll(unsigned long long bits) nogil

# For which orders of two values an operator holds, a bit each for less, equal and greater.
cdef enum operator:
    LESS = 1
    EQUAL = 2
    LESS_OR_EQUAL = 3
    GREATER = 4
    NOT_EQUAL = 5
    GREATER_OR_EQUAL = 6
    CONTAINS = 8
    CONTAINS_NOT = 16

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
            return text_holds(c, <const uint8_t *> text, <uint32_t> core.amqp_value_text(v, text, AMQP_TEXT_MAX_BYTES))
    elif c.value.kind == AMQP_TIMESTAMP:
        if v.kind == AMQP_TIMESTAMP:
            return c.op >> ((v.integer > c.value.integer) - (v.integer < c.value.integer) + 1) & 1
    elif is_number(v):
        return c.op >> (order_of_numbers(v, &c.value) + 1) & 1
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
        cdef uint64_t left = self.all
        if left and m.is_amqp:
            if self.is_on_own and id_of(m, text, &pair.value) and not self.allows(MESSAGE_ID, &pair, &left):
                return False
            if self.is_on_own and content_type_of(m, &pair.value) and not self.allows(CONTENT_TYPE, &pair, &left):
                return False
            core.amqp_pairs_begin(&it, m.amqp.application_properties, m.amqp.application_properties_size)
            while left and core.amqp_pairs_next(&it, &pair):
                if not self.allows(None, &pair, &left):
                    return False
        return left & ~self.true_without == 0

    cdef bint allows(self, bytes name, amqp_pair *pair, uint64_t *left) noexcept:
        """Do the conditions hold that are on this property, which is called `name` if that is given?

        They are taken out of `left`, those that are not decided."""
        cdef uint64_t bit, undecided = left[0]
        cdef const condition *c
        if name is not None:
            pair.key, pair.key_bytes = <const uint8_t *> <char *> name, <uint32_t> len(name)
        while undecided:
            bit = undecided & (0 - undecided)
            c = &self.conditions[__builtin_ctzll(bit)]
            undecided ^= bit
            if c.key_size == pair.key_bytes and memcmp(c.key, pair.key, c.key_size) == 0:
                if not holds(c, &pair.value):
                    return False
                left[0] ^= bit
        return True

    def matches_bytes(self, bytes message not None) -> bool:
        cdef message_view m
        view_of(message, &m)
        return self.matches(&m)


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
        made.is_on_own |= is_own(c.key, c.key_size)
        made.count += 1
    return made
