# SPDX-License-Identifier: Apache-2.0
"""AMQP 1.0 messages, as every client of the streams protocol writes them, for people: body, id and headers.

`read` is for tools that show single messages, `write` makes what they may publish. Data in bulk goes neither way.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport uint8_t, uint32_t

from vibemq.errors import LimitExceeded


cdef extern from *:
    """
    #include <stdbool.h>
    """
    ctypedef bint boolean "bool"


cdef extern from "message/amqp.h" nogil:
    ctypedef enum amqp_body:
        AMQP_BODY_NONE
        AMQP_BODY_DATA
        AMQP_BODY_VALUE
    cdef struct amqp_message:
        amqp_body body_kind
        const uint8_t *body
        const uint8_t *application_properties
        uint32_t body_size, application_properties_size
    int amqp_parse(const uint8_t *data, uint32_t size, amqp_message *out)


cdef extern from "message/amqp_read.h" nogil:
    cdef enum:
        AMQP_NULL
        AMQP_OTHER
        AMQP_TEXT_MAX_BYTES
    cdef struct amqp_value:
        int kind
        uint32_t bytes
        const uint8_t *data
    cdef struct amqp_pair:
        const uint8_t *key
        uint32_t key_bytes
        amqp_value value
    cdef struct amqp_pairs:
        pass
    void amqp_pairs_begin(amqp_pairs *it, const uint8_t *data, uint32_t size)
    boolean amqp_pairs_next(amqp_pairs *it, amqp_pair *out)
    boolean amqp_message_id(const amqp_message *m, amqp_value *out)
    size_t amqp_value_text(const amqp_value *v, char *out, size_t size)


cdef Py_ssize_t SIZE_MAX = 0xffff_ffff - 8  # what a 32-bit size can say, with what is before it


cdef str _text(const amqp_value *value):
    """As text, as the doors that know only text hand it on; None for what has no text."""
    cdef char room[64]  # AMQP_TEXT_MAX_BYTES are enough for what is no text itself
    cdef size_t size
    if value.kind == AMQP_NULL or value.kind == AMQP_OTHER:
        return None
    size = amqp_value_text(value, room, AMQP_TEXT_MAX_BYTES)
    if size <= AMQP_TEXT_MAX_BYTES:
        return room[:size].decode("utf-8", "replace")
    return (<const char *>value.data)[:value.bytes].decode("utf-8", "replace")


def read(bytes message not None):
    """(body, id or None, headers) of a stored message; what is no AMQP 1.0 message is all body, without either.

    Of several data sections the first is the body. A body that is no bytes and no text (a list, a map) is given as it
    is encoded.
    """
    cdef amqp_message parts
    cdef amqp_pairs pairs
    cdef amqp_pair pair
    cdef amqp_value value
    cdef const uint8_t *data = <const uint8_t *>PyBytes_AS_STRING(message)
    cdef const uint8_t *at
    cdef Py_ssize_t size = PyBytes_GET_SIZE(message)
    if size == 0 or size > SIZE_MAX or data[0] != 0 or amqp_parse(data, <uint32_t>size, &parts) != 0:
        return message, None, {}
    headers = {}
    amqp_pairs_begin(&pairs, parts.application_properties, parts.application_properties_size)
    while amqp_pairs_next(&pairs, &pair):
        headers[(<const char *>pair.key)[:pair.key_bytes].decode("utf-8", "replace")] = _text(&pair.value)
    identity = _text(&value) if amqp_message_id(&parts, &value) else None
    if parts.body_kind == AMQP_BODY_NONE:
        return b"", identity, headers
    body = (<const char *>parts.body)[:parts.body_size]
    if parts.body_kind == AMQP_BODY_VALUE:
        at = parts.body
        if at[0] == 0x40:  # null
            body = b""
        elif at[0] in (0xa0, 0xa1):  # binary and string with one byte of size
            body = body[2:]
        elif at[0] in (0xb0, 0xb1):  # and with four
            body = body[5:]
    return body, identity, headers


def write(bytes body not None):
    """A message of one data section, which is what most clients send."""
    cdef Py_ssize_t size = PyBytes_GET_SIZE(body)
    if size > SIZE_MAX:
        raise LimitExceeded("size of a message in bytes", size, SIZE_MAX)
    if size < 256:
        return b"\x00\x53\x75\xa0" + size.to_bytes(1, "big") + body
    return b"\x00\x53\x75\xb0" + size.to_bytes(4, "big") + body
