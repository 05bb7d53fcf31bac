# SPDX-License-Identifier: Apache-2.0
"""Messages in and out: a hub client's body and options as the AMQP 1.0 message that is stored, the same for all doors,
and a stored message as hub clients get it.

In.  A JSON client's body is stored as the JSON text that it came as, undecoded.  With another `contentType` a string is
that text, and with `encoding` "base64" the bytes in it.  A MessagePack client's bin is bytes, its str is text, and
anything else is stored as JSON.

Out: ``{tag, id, queue, body, headers?, offset, timestamp, redelivered, key?, contentType?, encoding?}``.  All but the
tag is the same for every consumer, so it is made once and copied for the rest: a thousand subscribers of one message
cost a thousand copies.  `headers` keep their types; `timestamp` is in milliseconds since 1970; `contentType` is left out
where the body is JSON and says so.  What claims to be JSON, or claims nothing, and is JSON, is that value.  Else, unless
it claims to be bytes, what is UTF-8 is a string.  Anything else is bytes: bin in MessagePack, base64 with
``"encoding":"base64"`` in JSON.
"""

import binascii
import math

import msgspec
from libc.stdint cimport int64_t
from libc.stdlib cimport free
from libc.string cimport memcmp, memset, strlen
from vibemq.broker.payload cimport MESSAGE_ID_BYTES_MAX, VALUE_TEXT_BYTES, id_of, payload_of, scratch_room
from vibemq.grow cimport grow
from vibemq.protocols.signalr.codec cimport ENCODING_JSON, RECORD_DEPTH_MAX, bytes_of, span_of, text_of
from vibemq.protocols.signalr.framing cimport decimal_put, decimal_size, mp_text_put, mp_unsigned_put, put
from vibemq.storage cimport core
from vibemq.storage.core cimport (
    AMQP_BINARY, AMQP_BOOL, AMQP_CONTENT_TYPE, AMQP_DOUBLE, AMQP_FLOAT, AMQP_GROUP_ID, AMQP_INT, AMQP_STRING,
    AMQP_SYMBOL, AMQP_TIMESTAMP, AMQP_UINT, OK, amqp_map, amqp_pair, amqp_pairs, amqp_properties, amqp_value,
    bytes_store16, bytes_store32, bytes_store64, json_check, utf8_is_valid, writer_bytes,
)

from vibemq.protocols.signalr.errors import HubError
from vibemq.protocols.signalr.options import message_options
from vibemq.protocols.signalr.spec import ErrorCode
from vibemq.protocols.signalr.records import value_of

cdef enum:
    MEMBER_BYTES = 32             # a name or number around what is the message's own
    BYTES_KEPT = 1 << 20          # a larger message's memory is given back
    DEPTH_MAX = 60                # of a body, which stands in an item: peers read no more than 64 levels of it all
    HEADERS_MAX = 65535           # the count is a u16
    BODY_NULL = 0
    BODY_JSON = 1
    BODY_TEXT = 2
    BODY_BINARY = 3

cdef bytes JSON_TYPE = b"application/json"
cdef bytes BINARY_TYPE = b"application/octet-stream"
cdef bytes TEXT_TYPE = b"text/plain; charset=utf-8"


cdef bint is_plain_json_type(const uint8_t *text, uint32_t size) noexcept:
    """application/json and nothing else."""
    return size == 16 and memcmp(text, b"application/json", 16) == 0


cdef bint is_json_type(const uint8_t *text, uint32_t size) noexcept:
    """application/json, or anything+json; parameters do not count."""
    cdef uint32_t i
    for i in range(size):
        if text[i] == c";":
            size = i
            break
    while size and text[size - 1] == c" ":
        size -= 1
    return is_plain_json_type(text, size) or size > 5 and memcmp(text + size - 5, b"+json", 5) == 0


# ---- in ----


cdef bint is_finite(value) except -1:
    """Is every number in a decoded value one that JSON can write?  Others would become null without a word."""
    cdef object kind = type(value)
    if kind is float:
        return math.isfinite(value)
    if kind is list or kind is tuple:
        for each in value:
            if not is_finite(each):
                return False
    elif kind is dict:
        for name, each in (<dict> value).items():
            if not is_finite(name) or not is_finite(each):
                return False
    return True


cdef int invalid_body(str text) except -1:
    raise HubError(ErrorCode.INVALID_BODY, text)


cdef tuple body_of(span body, int encoding, bint has_escapes, bytes given, bint is_base64, span *payload):
    """Sets payload; (content type, what payload points into or None).  `given`: the content type, if there is one."""
    cdef uint8_t first = body.data[0]
    cdef bint is_json = given is None or is_json_type(<const uint8_t *> <char *> given, <uint32_t> len(given))
    cdef uint32_t header
    cdef uint64_t position = 0
    if encoding == ENCODING_JSON and is_json and not is_base64:
        if has_escapes and core.json_has_lone_surrogate(body.data, body.size):
            invalid_body("The body has half a surrogate pair, as of a string that was cut inside an emoji, which many "
                         "clients cannot read.")
        payload[0] = body
        return given or JSON_TYPE, None
    cdef bint is_text = text_of(body, encoding, payload)
    if is_base64:
        if not is_text:
            invalid_body("A body with encoding 'base64' must be a string.")
        try:
            made = binascii.a2b_base64(bytes_of(payload[0]), strict_mode=True)
        except binascii.Error as problem:
            invalid_body(f"The body is not base64: {problem}.")
        type = given or BINARY_TYPE
    elif is_text:
        if given is not None and is_json and json_check(payload.data, payload.size, RECORD_DEPTH_MAX, &position) != OK:
            invalid_body("The body is a text, but no JSON as its contentType says.")
        return given or TEXT_TYPE, None
    elif encoding != ENCODING_JSON and 0xC4 <= first <= 0xC6:
        header = 2 if first == 0xC4 else 3 if first == 0xC5 else 5
        payload[0] = span_of(body.data + header, body.size - header)
        return given or BINARY_TYPE, None
    elif not is_json:
        invalid_body(f"A body with contentType '{given.decode()}' must be a string, or bytes as base64 with encoding "
                     "'base64'.")
    else:
        try:
            value = value_of(bytes_of(body), encoding)
            if not is_finite(value):
                raise ValueError("it has no word for NaN and infinity")
            made = msgspec.json.encode(value)
        except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as problem:
            invalid_body(f"The body cannot be stored as JSON: {problem}.")
        type = given or JSON_TYPE
    payload[0] = span_of(<char *> made, len(<bytes> made))
    return type, made


cdef int write_headers(writer_bytes *w, list headers) except -1:
    cdef amqp_map map
    cdef amqp_value v
    cdef bytes name
    core.amqp_map_begin(w, &map)
    for name, value in headers:
        memset(&v, 0, sizeof(v))
        if isinstance(value, bytes):
            v.kind, v.bytes = AMQP_STRING, <uint32_t> len(<bytes> value)
            v.data = <const uint8_t *> <char *> (<bytes> value)
        elif isinstance(value, bool):
            v.kind, v.truth = AMQP_BOOL, value
        elif isinstance(value, float):
            v.kind, v.real = AMQP_DOUBLE, value
        elif value >= 2**63:
            v.kind, v.natural = AMQP_UINT, value
        else:
            v.kind, v.integer = AMQP_INT, value
        core.amqp_map_add_value(w, &map, <const uint8_t *> <char *> name, <uint32_t> len(name), &v)
    core.amqp_map_end(w, &map)
    return 0


cdef size_t entry_write(span body, int encoding, bint has_escapes, object options, uint8_t **out) except 0:
    cdef writer_bytes w
    cdef amqp_properties properties
    cdef span payload
    cdef bytes type, kept, id = None, key = None, given = None
    cdef list headers = None
    cdef size_t room = 0
    cdef int priority = -1
    cdef bint is_base64 = False
    cdef uint8_t *data
    if options is not None:
        id, key, given, headers = options.id, options.key, options.content_type, options.headers
        priority, is_base64 = options.priority, options.is_base64
        room = options.size
    type, kept = body_of(body, encoding, has_escapes, given, is_base64, &payload)  # kept: what payload points into
    room = 4 + core.amqp_size_max(len(headers) if headers is not None else 0, payload.size + room + len(type))
    data = scratch_room(room)
    w = core.bytes_writer(data + 4, room - 4)
    if priority >= 0:
        core.amqp_write_header(&w, <uint8_t> priority)
    memset(&properties, 0, sizeof(properties))
    if id is not None:
        properties.id, properties.id_bytes = <const uint8_t *> <char *> id, <uint32_t> len(id)
    if key is not None:
        properties.key, properties.key_bytes = <const uint8_t *> <char *> key, <uint32_t> len(key)
    properties.content_type, properties.content_type_bytes = <char *> type, <uint32_t> len(type)
    core.amqp_write_properties(&w, &properties)
    if headers:
        write_headers(&w, headers)
    core.amqp_write_data(&w, payload.data, payload.size)
    if w.failed:
        raise AssertionError("amqp_size_max was too small")
    bytes_store32(data, <uint32_t> (w.at - data - 4))
    out[0] = data
    return w.at - data


# ---- out: pieces of a delivery ----

cdef item made[2]                 # one for each encoding
made[0].offset = made[1].offset = <uint64_t> -1


cdef uint8_t *room_in(item *of, size_t size) except NULL:
    """So many more bytes at the end."""
    grow(&of.data, &of.capacity, of.size + size, 1)
    return of.data + of.size


cdef int add(item *of, const void *data, size_t size) except -1:
    put(room_in(of, size), data, size)
    of.size += size
    return 0


cdef int add_name(item *of, const char *name, int encoding) except -1:
    """A member's, behind others."""
    cdef size_t size = strlen(name)
    cdef uint8_t *p = room_in(of, MEMBER_BYTES)
    of.pairs += 1
    if encoding == ENCODING_JSON:
        p = put(put(put(p, b',"', 2), name, size), b'":', 2)
    else:
        p[0] = <uint8_t> (0xA0 | size)
        p = put(p + 1, name, size)
    of.size = p - of.data
    return 0


cdef int add_number(item *of, uint64_t value, int encoding) except -1:
    cdef uint8_t *p = room_in(of, MEMBER_BYTES)
    of.size = (decimal_put(p, value) if encoding == ENCODING_JSON else mp_unsigned_put(p, value)) - of.data
    return 0


cdef int add_flag(item *of, bint value, int encoding) except -1:
    if encoding != ENCODING_JSON:
        return add(of, b"\xc3" if value else b"\xc2", 1)
    return add(of, b"true", 4) if value else add(of, b"false", 5)


cdef int add_bin(item *of, const uint8_t *data, uint32_t size, int encoding) except -1:
    """Bytes: bin, or base64 in JSON."""
    cdef size_t most = core.JSON_BASE64_SIZE(size) if encoding == ENCODING_JSON else <size_t> size + 5
    cdef uint8_t *p = room_in(of, most)
    cdef writer_bytes w = core.bytes_writer(p, most)
    if encoding == ENCODING_JSON:
        core.json_base64_write(&w, data, size)
        p = w.at
    else:
        p[0] = 0xC6
        bytes_store32(p + 1, size)
        p = put(p + 5, data, size)
    of.size = p - of.data
    return 0


cdef int add_text(item *of, const uint8_t *text, uint32_t size, int encoding) except -1:
    """A string; bytes where it is not UTF-8."""
    cdef size_t most
    cdef writer_bytes w
    if encoding == ENCODING_JSON:
        most = core.JSON_STRING_SIZE_MAX(size)
        w = core.bytes_writer(room_in(of, most), most)
        if core.json_string_write(&w, text, size) != OK:
            return add_bin(of, text, size, encoding)
        of.size = w.at - of.data
        return 0
    if not utf8_is_valid(text, size):
        return add_bin(of, text, size, encoding)
    of.size = mp_text_put(room_in(of, <size_t> size + 5), span_of(text, size)) - of.data
    return 0


cdef int add_value(item *of, const amqp_value *v, int encoding) except -1:
    """A header's value."""
    cdef char text[VALUE_TEXT_BYTES]
    cdef bint is_whole = v.kind == AMQP_INT or v.kind == AMQP_UINT or v.kind == AMQP_TIMESTAMP
    cdef bint is_real = v.kind == AMQP_FLOAT or v.kind == AMQP_DOUBLE
    cdef double real
    cdef size_t size
    cdef uint8_t *p
    if v.kind == AMQP_STRING or v.kind == AMQP_SYMBOL or v.kind == AMQP_BINARY:
        return add_text(of, v.data, v.bytes, encoding)
    if v.kind == AMQP_BOOL:
        return add_flag(of, v.truth, encoding)
    if encoding != ENCODING_JSON and is_whole and (v.kind == AMQP_UINT or v.integer >= 0):
        return add_number(of, v.natural, encoding)
    if encoding != ENCODING_JSON and (is_whole or is_real):
        p, real = room_in(of, 9), v.real
        p[0] = 0xCB if is_real else 0xD3
        bytes_store64(p + 1, (<uint64_t *> &real)[0] if is_real else <uint64_t> v.integer)
        of.size += 9
        return 0
    size = core.amqp_value_text(v, text, VALUE_TEXT_BYTES)
    if is_whole or is_real and v.real - v.real == 0:
        return add(of, text, size)
    # A UUID, or a number that JSON has no word for.
    return add_text(of, <const uint8_t *> text, <uint32_t> size, encoding)


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


cdef int add_body(item *of, const uint8_t *body, uint32_t size, int kind, int encoding) except -1:
    cdef bytes packed
    if kind == BODY_NULL:
        return add(of, b"null", 4) if encoding == ENCODING_JSON else add(of, b"\xc0", 1)
    if kind == BODY_TEXT:
        return add_text(of, body, size, encoding)
    if kind == BODY_BINARY:
        return add_bin(of, body, size, encoding)
    if encoding == ENCODING_JSON:
        return add(of, body, size)
    try:
        packed = msgspec.msgpack.encode(msgspec.json.decode((<const char *> body)[:size]))
    except (ValueError, OverflowError, RecursionError, msgspec.MsgspecError):  # MessagePack has no form for it
        return add_text(of, body, size, encoding)
    return add(of, <char *> packed, len(packed))


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
            add_name(of, b"headers", encoding)
            if encoding == ENCODING_JSON:
                add(of, b"{", 1)
            else:
                add(of, b"\xde\0\0", 3)
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


# ---- out: the whole ----


cdef int make(item *of, const message_view *m, bytes queue, const uint8_t *id, uint32_t id_size,
              int encoding) except -1:
    cdef amqp_value type, key
    cdef uint32_t size = 0
    cdef const uint8_t *body = payload_of(m, &size)
    cdef int kind
    if not m.is_amqp or not core.amqp_property(&m.amqp, AMQP_CONTENT_TYPE, &type) \
            or type.kind != AMQP_SYMBOL and type.kind != AMQP_STRING:
        type.bytes = 0
    kind = body_kind(body, size, &type)
    of.size, of.pairs = 0, 1
    add_name(of, b"id", encoding)
    add_text(of, id, id_size, encoding)
    add_name(of, b"queue", encoding)
    add_text(of, <const uint8_t *> <char *> queue, <uint32_t> len(queue), encoding)
    add_name(of, b"body", encoding)
    add_body(of, body, size, kind, encoding)
    if m.is_amqp and m.amqp.application_properties_size:
        add_headers(of, m, encoding)
    add_name(of, b"offset", encoding)
    add_number(of, m.offset, encoding)
    add_name(of, b"timestamp", encoding)
    add_number(of, <uint64_t> max(m.timestamp_ms, <int64_t> 0), encoding)
    add_name(of, b"redelivered", encoding)
    add_flag(of, of.redelivered, encoding)
    if m.is_amqp and core.amqp_property(&m.amqp, AMQP_GROUP_ID, &key):
        add_name(of, b"key", encoding)
        add_value(of, &key, encoding)
    if type.bytes and not is_plain_json_type(type.data, type.bytes):
        add_name(of, b"contentType", encoding)
        add_value(of, &type, encoding)
    if encoding != ENCODING_JSON:
        return 0
    return add(of, b',"encoding":"base64"}', 21) if kind == BODY_BINARY else add(of, b"}", 1)


cdef const item *item_of(const message_view *m, uint64_t key, bytes queue, const uint8_t *id, uint32_t id_size,
                         bint redelivered, int encoding) except NULL:
    cdef item *of = &made[encoding]
    if of.offset == m.offset and of.key == key and of.redelivered == redelivered:
        return of
    if of.capacity > BYTES_KEPT:
        free(of.data)
        of.data, of.capacity = NULL, 0
    of.offset, of.redelivered = <uint64_t> -1, redelivered
    make(of, m, queue, id, id_size, encoding)
    of.key, of.offset = key, m.offset
    return of


cdef size_t delivery_size(const item *of, uint64_t tag, int encoding) noexcept:
    cdef uint8_t number[9]
    if encoding == ENCODING_JSON:
        return of.size + 7 + decimal_size(tag)
    return of.size + 5 + (mp_unsigned_put(number, tag) - number)


cdef uint8_t *delivery_write(uint8_t *p, const item *of, uint64_t tag, int encoding) noexcept:
    if encoding == ENCODING_JSON:
        p = decimal_put(put(p, b'{"tag":', 7), tag)
    else:
        p[0] = <uint8_t> (0x80 + of.pairs)
        p = mp_unsigned_put(put(p + 1, b"\xa3tag", 4), tag)
    return put(p, of.data, of.size)


# ---- for tests ----


def encode_message(bytes body not None, int encoding, options=None) -> bytes:
    """The AMQP 1.0 message that is stored."""
    cdef uint8_t *entry = NULL
    cdef size_t size = entry_write(span_of(<char *> body, len(body)), encoding, True, message_options(options), &entry)
    return (<char *> entry)[4:size]


def encode_delivery(bytes message not None, int encoding, *, bytes queue=b"q", uint64_t tag=1, uint64_t offset=0,
                    int64_t timestamp_ms=0, int attempts=1) -> bytes:
    """A stored message as a client gets it."""
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
