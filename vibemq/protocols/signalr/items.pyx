# SPDX-License-Identifier: Apache-2.0
"""A stored message as hub clients get it: ``{tag, id, queue, body, headers?, offset, timestamp, redelivered, key?,
contentType?, encoding?}``.

All but the tag is the same for every consumer, so it is made once and copied for the rest: a thousand subscribers
of one message cost a thousand copies.  `headers` keep their types; `timestamp` is in milliseconds since 1970;
`contentType` is left out where the body is JSON and says so.

Bodies.  What claims to be JSON, or claims nothing, and is JSON, is that value.  Else, unless it claims to be bytes,
what is UTF-8 is a string.  Anything else is bytes: bin in MessagePack, base64 with ``"encoding":"base64"`` in JSON.
"""

import msgspec

from libc.stdlib cimport free, realloc
from libc.string cimport memcmp
from vibemq.broker.payload cimport MESSAGE_ID_BYTES_MAX, VALUE_TEXT_BYTES, id_of, payload_of
from vibemq.protocols.signalr.bodies cimport is_json_type, is_plain_json_type
from vibemq.protocols.signalr.codec cimport ENCODING_JSON, ENCODING_MESSAGEPACK, span_of
from vibemq.protocols.signalr.framing cimport decimal_put, decimal_size, mp_text_put, mp_unsigned_put, put
from vibemq.storage cimport core
from vibemq.storage.core cimport (
    AMQP_BINARY, AMQP_BOOL, AMQP_CONTENT_TYPE, AMQP_DOUBLE, AMQP_FLOAT, AMQP_GROUP_ID, AMQP_INT, AMQP_STRING,
    AMQP_SYMBOL, AMQP_TIMESTAMP, AMQP_UINT, OK, amqp_pair, amqp_pairs, amqp_value, bytes_store16, bytes_store32,
    bytes_store64, json_check, utf8_is_valid, writer_bytes,
)

cdef enum:
    FIXED_BYTES = 256             # names and numbers around what is the message's own
    BYTES_KEPT = 1 << 20          # a larger message's memory is given back
    DEPTH_MAX = 60                # of a body, which stands in an item: peers read no more than 64 levels of it all
    HEADERS_MAX = 65535           # the count is a u16
    BODY_NULL = 0
    BODY_JSON = 1
    BODY_TEXT = 2
    BODY_BINARY = 3

cdef item made[2]                 # one for each encoding
made[0].offset = made[1].offset = <uint64_t> -1


cdef uint8_t *room(item *of, size_t size) except NULL:
    """So many more bytes at the end."""
    cdef size_t need = of.size + size
    cdef uint8_t *grown
    if need > of.capacity:
        need += need // 2
        grown = <uint8_t *> realloc(of.data, need)
        if grown == NULL:
            raise MemoryError
        of.data, of.capacity = grown, need
    return of.data + of.size


cdef int add(item *of, const char *text, size_t size) except -1:
    put(room(of, size), text, size)
    of.size += size
    return 0


# ---- values ----


cdef int add_json_text(item *of, const uint8_t *text, uint32_t size) except -1:
    """A string; of base64 where it is not UTF-8.  1: it is."""
    cdef size_t most = max(core.JSON_STRING_SIZE_MAX(size), core.JSON_BASE64_SIZE(size))
    cdef writer_bytes w = core.bytes_writer(room(of, most), most)
    cdef bint is_text = core.json_string_write(&w, text, size) == OK
    if not is_text:
        core.json_base64_write(&w, text, size)
    of.size = w.at - of.data
    return not is_text


cdef int add_mp_text(item *of, const uint8_t *text, uint32_t size) except -1:
    if not utf8_is_valid(text, size):
        return add_mp_bin(of, text, size)
    of.size = mp_text_put(room(of, <size_t> size + 5), span_of(text, size)) - of.data
    return 0


cdef int add_mp_bin(item *of, const uint8_t *data, uint32_t size) except -1:
    cdef uint8_t *p = room(of, <size_t> size + 5)
    p[0] = 0xC6
    bytes_store32(p + 1, size)
    of.size = put(p + 5, data, size) - of.data
    return 0


cdef int add_text(item *of, const uint8_t *text, uint32_t size, int encoding) except -1:
    if encoding == ENCODING_JSON:
        add_json_text(of, text, size)
        return 0
    return add_mp_text(of, text, size)


cdef int add_value(item *of, const amqp_value *v, int encoding) except -1:
    """A header's value."""
    cdef char text[VALUE_TEXT_BYTES]
    cdef uint8_t *p
    cdef size_t size
    cdef double real
    if v.kind == AMQP_STRING or v.kind == AMQP_SYMBOL or v.kind == AMQP_BINARY:
        return add_text(of, v.data, v.bytes, encoding)
    if v.kind == AMQP_BOOL and encoding != ENCODING_JSON:
        return add(of, b"\xc3" if v.truth else b"\xc2", 1)
    if encoding != ENCODING_JSON and (v.kind == AMQP_FLOAT or v.kind == AMQP_DOUBLE):
        p, real = room(of, 9), v.real
        p[0] = 0xCB
        bytes_store64(p + 1, (<uint64_t *> &real)[0])
        of.size += 9
        return 0
    if encoding != ENCODING_JSON and (v.kind == AMQP_INT or v.kind == AMQP_TIMESTAMP) and v.integer < 0:
        p = room(of, 9)
        p[0] = 0xD3
        bytes_store64(p + 1, <uint64_t> v.integer)
        of.size += 9
        return 0
    if encoding != ENCODING_JSON and (v.kind == AMQP_INT or v.kind == AMQP_TIMESTAMP or v.kind == AMQP_UINT):
        of.size = mp_unsigned_put(room(of, 9), v.natural) - of.data
        return 0
    size = core.amqp_value_text(v, text, VALUE_TEXT_BYTES)
    if v.kind == AMQP_BOOL or v.kind == AMQP_INT or v.kind == AMQP_UINT or v.kind == AMQP_TIMESTAMP \
            or (v.kind == AMQP_FLOAT or v.kind == AMQP_DOUBLE) and v.real - v.real == 0:
        return add(of, text, size)
    # A UUID, or a number that JSON has no word for.
    return add_text(of, <const uint8_t *> text, <uint32_t> size, encoding)


# ---- parts ----


cdef int content_type_of(const message_view *m, amqp_value *out) noexcept:
    """Its bytes are 0 where there is none."""
    if not m.is_amqp or not core.amqp_property(&m.amqp, AMQP_CONTENT_TYPE, out) \
            or out.kind != AMQP_SYMBOL and out.kind != AMQP_STRING:
        out.bytes = 0
    return 0


cdef int body_kind(const uint8_t *body, uint32_t size, const amqp_value *type) noexcept:
    cdef uint64_t position = 0
    if type.bytes == 0 or is_json_type(type.data, type.bytes):
        if size == 0:
            return BODY_NULL
        if json_check(body, size, DEPTH_MAX, &position) == OK:
            return BODY_JSON
    elif type.bytes == 24 and memcmp(type.data, b"application/octet-stream", 24) == 0:
        return BODY_BINARY
    return BODY_TEXT if utf8_is_valid(body, size) else BODY_BINARY


cdef int add_mp_json(item *of, const uint8_t *body, uint32_t size) except -1:
    """JSON as the MessagePack value that it is; what MessagePack has no form for stays text."""
    cdef bytes packed
    try:
        packed = msgspec.msgpack.encode(msgspec.json.decode((<const char *> body)[:size]))
    except (ValueError, OverflowError, RecursionError, msgspec.MsgspecError):
        return add_mp_text(of, body, size)
    return add(of, <char *> packed, len(packed))


cdef int add_body(item *of, const uint8_t *body, uint32_t size, int kind, int encoding) except -1:
    cdef size_t most
    cdef writer_bytes w
    if kind == BODY_NULL:
        return add(of, b"null", 4) if encoding == ENCODING_JSON else add(of, b"\xc0", 1)
    if kind == BODY_TEXT:
        return add_text(of, body, size, encoding)
    if kind == BODY_JSON:
        return add(of, <const char *> body, size) if encoding == ENCODING_JSON else add_mp_json(of, body, size)
    if encoding != ENCODING_JSON:
        return add_mp_bin(of, body, size)
    most = core.JSON_BASE64_SIZE(size)
    w = core.bytes_writer(room(of, most), most)
    core.json_base64_write(&w, body, size)
    of.size = w.at - of.data
    return 0


cdef int add_headers(item *of, const message_view *m, int encoding) except -1:
    cdef amqp_pairs it
    cdef amqp_pair pair
    cdef size_t count_at = 0
    cdef uint32_t count = 0
    core.amqp_pairs_begin(&it, m.amqp.application_properties, m.amqp.application_properties_size)
    while count < HEADERS_MAX and core.amqp_pairs_next(&it, &pair):
        if not utf8_is_valid(pair.key, pair.key_bytes) or pair.value.kind == core.AMQP_NULL \
                or pair.value.kind == core.AMQP_OTHER:
            continue
        if count == 0:
            of.pairs += 1
            if encoding == ENCODING_JSON:
                add(of, b',"headers":{', 12)
            else:
                add(of, b"\xa7headers\xde\0\0", 11)
                count_at = of.size - 2
        elif encoding == ENCODING_JSON:
            add(of, b",", 1)
        count += 1
        add_text(of, pair.key, pair.key_bytes, encoding)
        if encoding == ENCODING_JSON:
            add(of, b":", 1)
        add_value(of, &pair.value, encoding)
    if count and encoding == ENCODING_JSON:
        add(of, b"}", 1)
    elif count:
        bytes_store16(of.data + count_at, count)
    return 0


cdef int add_property(item *of, const char *name, size_t name_size, const amqp_value *v, int encoding) except -1:
    """`name`: with what stands around it."""
    of.pairs += 1
    add(of, name, name_size)
    return add_value(of, v, encoding)


# ---- the whole ----


cdef int make_json(item *of, const message_view *m, bytes queue, const uint8_t *id, uint32_t id_size) except -1:
    cdef amqp_value type, key
    cdef uint32_t size = 0
    cdef const uint8_t *body = payload_of(m, &size)
    cdef bint has_key = False
    cdef int kind
    cdef uint8_t *p
    content_type_of(m, &type)
    if m.is_amqp:
        has_key = core.amqp_property(&m.amqp, AMQP_GROUP_ID, &key)
    kind = body_kind(body, size, &type)
    add(of, b',"id":', 6)
    add_json_text(of, id, id_size)
    add(of, b',"queue":', 9)
    add_json_text(of, <const uint8_t *> <char *> queue, <uint32_t> len(queue))
    add(of, b',"body":', 8)
    add_body(of, body, size, kind, ENCODING_JSON)
    if m.is_amqp and m.amqp.application_properties_size:
        add_headers(of, m, ENCODING_JSON)
    p = put(room(of, FIXED_BYTES), b',"offset":', 10)
    p = put(decimal_put(p, m.offset), b',"timestamp":', 13)
    p = decimal_put(p, <uint64_t> max(m.timestamp_ms, <int64_t> 0))
    p = put(p, b',"redelivered":', 15)
    p = put(p, b"true", 4) if of.redelivered else put(p, b"false", 5)
    of.size = p - of.data
    if has_key:
        add_property(of, b',"key":', 7, &key, ENCODING_JSON)
    if type.bytes and not is_plain_json_type(type.data, type.bytes):
        add_property(of, b',"contentType":', 15, &type, ENCODING_JSON)
    if kind == BODY_BINARY:
        add(of, b',"encoding":"base64"', 20)
    return add(of, b"}", 1)


cdef int make_messagepack(item *of, const message_view *m, bytes queue, const uint8_t *id, uint32_t id_size) except -1:
    cdef amqp_value type, key
    cdef uint32_t size = 0
    cdef const uint8_t *body = payload_of(m, &size)
    cdef bint has_key = False
    cdef uint8_t *p
    content_type_of(m, &type)
    if m.is_amqp:
        has_key = core.amqp_property(&m.amqp, AMQP_GROUP_ID, &key)
    of.pairs = 7
    add(of, b"\xa2id", 3)
    add_mp_text(of, id, id_size)
    add(of, b"\xa5queue", 6)
    add_mp_text(of, <const uint8_t *> <char *> queue, <uint32_t> len(queue))
    add(of, b"\xa4body", 5)
    add_body(of, body, size, body_kind(body, size, &type), ENCODING_MESSAGEPACK)
    if m.is_amqp and m.amqp.application_properties_size:
        add_headers(of, m, ENCODING_MESSAGEPACK)
    p = mp_unsigned_put(put(room(of, FIXED_BYTES), b"\xa6offset", 7), m.offset)
    p = mp_unsigned_put(put(p, b"\xa9timestamp", 10), <uint64_t> max(m.timestamp_ms, <int64_t> 0))
    p = put(p, b"\xabredelivered", 12)
    p[0] = 0xC3 if of.redelivered else 0xC2
    of.size = p + 1 - of.data
    if has_key:
        add_property(of, b"\xa3key", 4, &key, ENCODING_MESSAGEPACK)
    if type.bytes and not is_plain_json_type(type.data, type.bytes):
        add_property(of, b"\xabcontentType", 12, &type, ENCODING_MESSAGEPACK)
    return 0


cdef const item *item_of(const message_view *m, uint64_t key, bytes queue, const uint8_t *id, uint32_t id_size,
                         bint redelivered, int encoding) except NULL:
    cdef item *of = &made[encoding]
    if of.offset == m.offset and of.key == key and of.redelivered == redelivered:
        return of
    if of.capacity > BYTES_KEPT:
        free(of.data)
        of.data, of.capacity = NULL, 0
    of.offset, of.size, of.pairs, of.redelivered = <uint64_t> -1, 0, 0, redelivered
    if encoding == ENCODING_JSON:
        make_json(of, m, queue, id, id_size)
    else:
        make_messagepack(of, m, queue, id, id_size)
    of.key, of.offset = key, m.offset
    return of


cdef size_t delivery_size(const item *of, uint64_t tag, int encoding) noexcept:
    cdef uint8_t number[9]
    return of.size + (7 + decimal_size(tag) if encoding == ENCODING_JSON else 5 + (mp_unsigned_put(number, tag) - number))


cdef uint8_t *delivery_write(uint8_t *p, const item *of, uint64_t tag, int encoding) noexcept:
    if encoding == ENCODING_JSON:
        p = decimal_put(put(p, b'{"tag":', 7), tag)
    else:
        p[0] = <uint8_t> (0x80 + of.pairs)
        p = mp_unsigned_put(put(p + 1, b"\xa3tag", 4), tag)
    return put(p, of.data, of.size)


def encode_delivery(bytes message not None, int encoding, *, bytes queue=b"q", uint64_t tag=1, uint64_t offset=0,
                    int64_t timestamp_ms=0, int attempts=1) -> bytes:
    """A stored message as a client gets it, for tests."""
    cdef message_view m
    cdef uint8_t text[MESSAGE_ID_BYTES_MAX]
    cdef uint32_t id_size = 0
    cdef const uint8_t *id
    cdef const item *of
    cdef bytes out
    m.data, m.size = <const uint8_t *> <char *> message, <uint32_t> len(message)
    m.is_amqp = core.amqp_parse(m.data, m.size, &m.amqp) == OK
    m.offset, m.timestamp_ms = offset, timestamp_ms
    id = id_of(&m, text, &id_size)
    made[encoding].offset = <uint64_t> -1
    of = item_of(&m, 0, queue, id, id_size, attempts > 1, encoding)
    made[encoding].offset = <uint64_t> -1
    out = bytes(delivery_size(of, tag, encoding))
    delivery_write(<uint8_t *> <char *> out, of, tag, encoding)
    return out
