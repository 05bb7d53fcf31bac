# SPDX-License-Identifier: Apache-2.0
"""Stored messages as hub clients get them.

A delivery is ``{tag, id, queue, body, headers?, offset, timestamp, redelivered, key?, contentType?, encoding?}``.  All
but the tag is the same for every consumer, so it is made once and copied for the rest: a thousand subscribers of one
message cost a thousand copies, behind heads that their subscriptions keep ready (subscriptions.pyx).

`timestamp` is in milliseconds since 1970; `contentType` is left out if it is JSON and the body is that value.
A body whose content type is JSON, or that has none, is its value if it is JSON.  A body of `application/msgpack` that
is one value is delivered in MessagePack byte for byte, and in JSON as csrc/message/msgpack.h converts it.  Any other body,
unless its content type says bytes, is a string if it is UTF-8.  The rest is bytes: bin in MessagePack, base64 with
``"encoding":"base64"`` in JSON.  JSON that MessagePack cannot carry (an integer of more than 64 bits, a number
beyond a double) is a string of its text, with its content type.
"""

import msgspec
from libc.stdint cimport int64_t
from libc.stdlib cimport free
from libc.string cimport memcmp
from vibemq.broker.messages cimport MESSAGE_ID_BYTES_MAX, VALUE_TEXT_BYTES, id_of, payload_of
from vibemq.protocols.signalr.values cimport (
    add, add_bin, add_flag, add_name, add_number, add_text, add_word, room_in,
)
from vibemq.protocols.signalr.wire cimport (
    BODY_DEPTH_MAX, ENCODING_JSON, ENCODING_MESSAGEPACK, is_json_type, is_plain_json_type,
)
from vibemq.storage cimport core
from vibemq.storage.core cimport (
    AMQP_BINARY, AMQP_BOOL, AMQP_CONTENT_TYPE, AMQP_DOUBLE, AMQP_FLOAT, AMQP_GROUP_ID, AMQP_INT, AMQP_STRING,
    AMQP_SYMBOL, AMQP_TIMESTAMP, AMQP_UINT, OK, amqp_pair, amqp_pairs, amqp_value, bytes_store16, bytes_store64,
    json_check, utf8_is_valid, writer_bytes,
)

cdef enum:
    BYTES_KEPT = 1 << 20          # a larger message's memory is given back
    HEADERS_MAX = 65535           # the count is a u16

cdef enum:
    BODY_NULL, BODY_JSON, BODY_MESSAGEPACK, BODY_TEXT, BODY_BINARY

cdef uint64_t NO_OFFSET = <uint64_t> -1
cdef item made[2]                 # one for each encoding
made[0].offset = made[1].offset = NO_OFFSET
made[1].out.encoding = ENCODING_MESSAGEPACK


# ---- a delivery, piece by piece ----


cdef int add_value(output *out, const amqp_value *v) except -1:
    cdef char text[VALUE_TEXT_BYTES]
    cdef bint is_whole = v.kind == AMQP_INT or v.kind == AMQP_UINT or v.kind == AMQP_TIMESTAMP
    cdef bint is_real = v.kind == AMQP_FLOAT or v.kind == AMQP_DOUBLE
    cdef double real
    cdef size_t size
    cdef uint8_t *p
    if v.kind == AMQP_STRING or v.kind == AMQP_SYMBOL or v.kind == AMQP_BINARY:
        return add_text(out, v.data, v.bytes)
    if v.kind == AMQP_BOOL:
        return add_flag(out, v.truth)
    if out.encoding != ENCODING_JSON and is_whole and (v.kind == AMQP_UINT or v.integer >= 0):
        return add_number(out, v.natural)
    if out.encoding != ENCODING_JSON and (is_whole or is_real):
        p, real = room_in(out, 9), v.real
        p[0] = 0xCB if is_real else 0xD3
        bytes_store64(p + 1, (<uint64_t *> &real)[0] if is_real else <uint64_t> v.integer)
        out.size += 9
        return 0
    size = core.amqp_value_text(v, text, VALUE_TEXT_BYTES)
    if is_whole or is_real and v.real - v.real == 0:
        return add(out, text, size)
    # A UUID, or a number that JSON has no word for.
    return add_text(out, <const uint8_t *> text, <uint32_t> size)


cdef int body_kind(const uint8_t *body, uint32_t size, const amqp_value *type) noexcept:
    cdef uint64_t position = 0
    if type.bytes == 0 or is_json_type(type.data, type.bytes):
        if size == 0:
            return BODY_NULL
        if json_check(body, size, BODY_DEPTH_MAX, &position) == OK:
            return BODY_JSON
    elif type.bytes == 24 and memcmp(type.data, b"application/octet-stream", 24) == 0:
        return BODY_BINARY
    elif core.msgpack_is_type(type.data, type.bytes):
        return BODY_MESSAGEPACK if core.msgpack_check(body, size, BODY_DEPTH_MAX) == OK else BODY_BINARY
    return BODY_TEXT if utf8_is_valid(body, size) else BODY_BINARY


cdef int add_messagepack(output *out, const uint8_t *body, uint32_t size) except -1:
    cdef writer_bytes w
    cdef size_t most
    if out.encoding != ENCODING_JSON:
        return add(out, body, size)
    most = core.MSGPACK_JSON_SIZE_MAX(size)
    w = core.bytes_writer(room_in(out, most), most)
    if core.msgpack_json_write(&w, body, size) != OK:
        raise AssertionError("MSGPACK_JSON_SIZE_MAX was too small")
    out.size = w.at - out.data
    return 0


cdef int add_body(output *out, const uint8_t *body, uint32_t size, int *kind) except -1:
    """Sets `kind` to BODY_TEXT if MessagePack cannot carry the JSON."""
    cdef bytes packed
    if kind[0] == BODY_NULL:
        return add_word(out, b"null", b"\xc0")
    if kind[0] == BODY_TEXT:
        return add_text(out, body, size)
    if kind[0] == BODY_BINARY:
        return add_bin(out, body, size)
    if kind[0] == BODY_MESSAGEPACK:
        return add_messagepack(out, body, size)
    if out.encoding == ENCODING_JSON:
        return add(out, body, size)
    try:
        packed = msgspec.msgpack.encode(msgspec.json.decode((<const char *> body)[:size]))
    except (ValueError, OverflowError, RecursionError, msgspec.MsgspecError):
        kind[0] = BODY_TEXT
        return add_text(out, body, size)
    return add(out, <char *> packed, len(packed))


cdef int add_headers(output *out, const message_view *m) except -1:
    cdef amqp_pairs it
    cdef amqp_pair pair
    cdef size_t count_at = 0
    cdef uint32_t count = 0
    core.amqp_pairs_begin(&it, m.amqp.application_properties, m.amqp.application_properties_size)
    while count < HEADERS_MAX and core.amqp_pairs_next(&it, &pair):
        if not utf8_is_valid(pair.key, pair.key_bytes) or pair.value.kind == core.AMQP_NULL \
                or pair.value.kind == core.AMQP_OTHER:
            continue
        if count:
            add_word(out, b",", b"")
        else:
            add_name(out, b"headers")
            add_word(out, b"{", b"\xde")
            count_at = out.size
            add_word(out, b"", b"\xff\xff")  # their count, once it is known
        count += 1
        add_text(out, pair.key, pair.key_bytes)
        add_word(out, b":", b"")
        add_value(out, &pair.value)
    if count and out.encoding == ENCODING_JSON:
        add(out, b"}", 1)
    elif count:
        bytes_store16(out.data + count_at, count)
    return 0


cdef int make(output *out, const message_view *m, bytes queue, const uint8_t *id, uint32_t id_size,
              bint redelivered) except -1:
    cdef amqp_value type, key
    cdef uint32_t size = 0
    cdef const uint8_t *body = payload_of(m, &size)
    cdef int kind
    if not m.is_amqp or not core.amqp_property(&m.amqp, AMQP_CONTENT_TYPE, &type) \
            or type.kind != AMQP_SYMBOL and type.kind != AMQP_STRING:
        type.bytes = 0
    kind = body_kind(body, size, &type)
    out.size, out.members = 0, 1  # the tag
    add_name(out, b"id")
    add_text(out, id, id_size)
    add_name(out, b"queue")
    add_text(out, <const uint8_t *> <char *> queue, <uint32_t> len(queue))
    add_name(out, b"body")
    add_body(out, body, size, &kind)
    if m.is_amqp and m.amqp.application_properties_size:
        add_headers(out, m)
    add_name(out, b"offset")
    add_number(out, m.offset)
    add_name(out, b"timestamp")
    add_number(out, <uint64_t> max(m.timestamp_ms, <int64_t> 0))
    add_name(out, b"redelivered")
    add_flag(out, redelivered)
    if m.is_amqp and core.amqp_property(&m.amqp, AMQP_GROUP_ID, &key):
        add_name(out, b"key")
        add_value(out, &key)
    if type.bytes and not (is_plain_json_type(type.data, type.bytes) and kind <= BODY_JSON):
        add_name(out, b"contentType")
        add_value(out, &type)
    return add_word(out, b',"encoding":"base64"}' if kind == BODY_BINARY else b"}", b"")


cdef const item *item_of(const message_view *m, uint64_t key, bytes queue, const uint8_t *id, uint32_t id_size,
                         bint redelivered, int encoding) except NULL:
    cdef item *of = &made[encoding]
    if of.offset == m.offset and of.key == key and of.redelivered == redelivered:
        return of
    if of.out.capacity > BYTES_KEPT:
        free(of.out.data)
        of.out.data, of.out.capacity = NULL, 0
    of.offset = NO_OFFSET
    make(&of.out, m, queue, id, id_size, redelivered)
    of.key, of.offset, of.redelivered = key, m.offset, redelivered
    return of


cdef bytes delivery_of(const item *of, uint64_t tag):
    cdef uint8_t head[TAG_BYTES_MAX]
    cdef size_t head_size = tag_put(head, of, tag)
    return (<char *> head)[:head_size] + (<char *> of.out.data)[:of.out.size]


def encode_delivery(bytes message not None, int encoding, *, bytes queue=b"q", uint64_t tag=1, uint64_t offset=0,
                    int64_t timestamp_ms=0, int attempts=1) -> bytes:
    """A stored message as a client gets it, for tests."""
    cdef message_view m
    cdef uint8_t text[MESSAGE_ID_BYTES_MAX]
    cdef uint32_t id_size = 0
    cdef const uint8_t *id
    m.data, m.size = <const uint8_t *> <char *> message, <uint32_t> len(message)
    m.is_amqp = core.amqp_parse(m.data, m.size, &m.amqp) == OK
    m.offset, m.timestamp_ms = offset, timestamp_ms
    id = id_of(&m, text, &id_size)
    made[encoding].offset = NO_OFFSET
    out = delivery_of(item_of(&m, 0, queue, id, id_size, attempts > 1, encoding), tag)
    made[encoding].offset = NO_OFFSET
    return out
