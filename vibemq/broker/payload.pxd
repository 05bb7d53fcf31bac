# SPDX-License-Identifier: Apache-2.0
"""The parts of a stored message as doors need them whose messages are a payload with headers.

A body may come from any door or client: bytes in a data section, text in a value section, or something that is no
AMQP 1.0 at all and then is the payload as a whole.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from vibemq.broker.messages cimport message_view
from vibemq.storage.core cimport (
    AMQP_BINARY, AMQP_BODY_DATA, AMQP_BODY_VALUE, AMQP_STRING, AMQP_SYMBOL, amqp_message_id, amqp_pair, amqp_value,
    amqp_value_text,
)

cdef enum:
    MESSAGE_ID_BYTES_MAX = 64         # of an id that the broker makes up or turns into text
    VALUE_TEXT_BYTES = 64             # of a header that is no text; enough for all of them
    HEADER_TEXT_BYTES_MAX = 65535
    AMQP_BINARY_8 = 0xA0
    AMQP_BINARY_32 = 0xB0
    AMQP_STRING_8 = 0xA1
    AMQP_STRING_32 = 0xB1
    AMQP_NULL_CODE = 0x40


cdef inline const uint8_t *payload_of(const message_view *m, uint32_t *size) noexcept:
    """The message's body as bytes; size 0: it has none."""
    cdef const uint8_t *p
    size[0] = 0
    if not m.is_amqp:
        size[0] = m.size
        return m.data
    if m.amqp.body_kind == AMQP_BODY_DATA:
        size[0] = m.amqp.body_size
        return m.amqp.body
    if m.amqp.body_kind == AMQP_BODY_VALUE and m.amqp.body_size:
        p = m.amqp.body
        if (p[0] == AMQP_STRING_8 or p[0] == AMQP_BINARY_8) and m.amqp.body_size >= 2:
            size[0] = m.amqp.body_size - 2
            return p + 2
        if (p[0] == AMQP_STRING_32 or p[0] == AMQP_BINARY_32) and m.amqp.body_size >= 5:
            size[0] = m.amqp.body_size - 5
            return p + 5
        if p[0] != AMQP_NULL_CODE:
            size[0] = m.amqp.body_size
        return p
    return NULL


cdef inline const uint8_t *value_of(const amqp_pair *pair, char *text, uint32_t *size) noexcept:
    """The value as a header's text, which may stand in `text`; size 0: it has none, and then it is no header."""
    size[0] = 0
    if pair.value.kind == AMQP_STRING or pair.value.kind == AMQP_SYMBOL or pair.value.kind == AMQP_BINARY:
        if pair.value.bytes <= HEADER_TEXT_BYTES_MAX:
            size[0] = pair.value.bytes
        return pair.value.data
    size[0] = <uint32_t> amqp_value_text(&pair.value, text, VALUE_TEXT_BYTES)
    if size[0] > VALUE_TEXT_BYTES:
        size[0] = 0
    return <const uint8_t *> text


cdef inline const uint8_t *id_of(const message_view *m, uint8_t *made, uint32_t *size) noexcept:
    """What a message is called; its offset when its publisher has given it no id.  May stand in `made`."""
    cdef amqp_value value
    cdef uint64_t rest = m.offset
    cdef uint32_t digits = 1
    size[0] = 0
    if m.is_amqp and amqp_message_id(&m.amqp, &value):
        if value.kind == AMQP_STRING or value.kind == AMQP_BINARY:
            if 0 < value.bytes <= 65535:
                size[0] = value.bytes
                return value.data
        else:
            size[0] = <uint32_t> amqp_value_text(&value, <char *> made, MESSAGE_ID_BYTES_MAX)
            if 0 < size[0] <= MESSAGE_ID_BYTES_MAX:
                return made
    while rest >= 10:
        rest //= 10
        digits += 1
    size[0], rest = digits, m.offset
    while digits:
        digits -= 1
        made[digits] = <uint8_t> (c"0" + rest % 10)
        rest //= 10
    return made


# Payload as a JSON string, and whether that is base64.
cdef tuple as_json(const uint8_t *payload, uint32_t size)
# Memory for one message that is being written, shared by all publishers of the worker.
cdef uint8_t *scratch_room(size_t size) except NULL
