# SPDX-License-Identifier: Apache-2.0
"""A body and its options as a stored message: AMQP 1.0, the same for all doors.

A JSON client's body is stored as its JSON text, undecoded.  With another `contentType` a string is that
text, and with `encoding` "base64" the bytes in it.  A MessagePack client's bin is bytes and its str is text.  Any other
value is stored as JSON if JSON carries it exactly, else as the sender's MessagePack, unchanged, with the content type
`application/msgpack`.
"""

import binascii

import msgspec
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memset
from vibemq.broker.messages cimport scratch_room
from vibemq.protocols.signalr.codec cimport text_of
from vibemq.protocols.signalr.wire cimport (
    BODY_DEPTH_MAX, ENCODING_JSON, RECORD_DEPTH_MAX, bytes_of, is_json_type, span, span_of,
)
from vibemq.storage cimport core
from vibemq.storage.core cimport (
    AMQP_BOOL, AMQP_DOUBLE, AMQP_INT, AMQP_STRING, AMQP_UINT, OK, amqp_map, amqp_properties, amqp_value, bytes_store32,
    json_check, writer_bytes,
)

from vibemq.protocols.signalr.options import message_options
from vibemq.protocols.signalr.records import ENCODERS, VALUES
from vibemq.protocols.signalr.spec import Encoding, ErrorCode, HubError

cdef bytes JSON_TYPE = b"application/json"
cdef bytes BINARY_TYPE = b"application/octet-stream"
cdef bytes TEXT_TYPE = b"text/plain; charset=utf-8"
cdef bytes MESSAGEPACK_TYPE = b"application/msgpack"

cdef object unpack = VALUES[Encoding.MESSAGEPACK].decode
cdef object pack_json = ENCODERS[Encoding.JSON].encode

# What the payload of the message that is written lies in, where that is not the record.
cdef bytes made = None


cdef int invalid_body(str text) except -1:
    raise HubError(ErrorCode.INVALID_BODY, text)


cdef bytes kept(span body, bytes type, span *payload):
    """Store a value as MessagePack, which every reader of that type must be able to read; return its content type."""
    if core.msgpack_check(body.data, body.size, BODY_DEPTH_MAX) != OK:
        invalid_body(f"The body has a str that is no UTF-8, or arrays and maps more than {BODY_DEPTH_MAX} deep.")
    payload[0] = body
    return type


cdef bytes payload_of(span body, int encoding, bint has_escapes, bytes given, bint is_base64, span *payload):
    """Sets payload; the content type.  `given`: that of the options, if there is one."""
    global made
    cdef uint8_t first = body.data[0]
    cdef bint is_json = given is None or is_json_type(<const uint8_t *> <char *> given, len(given))
    cdef bint is_text
    cdef uint32_t header
    cdef uint64_t position = 0
    if encoding == ENCODING_JSON and is_json and not is_base64:
        if has_escapes and core.json_has_lone_surrogate(body.data, body.size):
            invalid_body("The body has half a surrogate pair, as of a string that was cut inside an emoji, which many "
                         "clients cannot read.")
        payload[0] = body
        return JSON_TYPE if given is None else given
    if given is not None and core.msgpack_is_type(<const uint8_t *> <char *> given, <uint32_t> len(given)) \
            and not is_base64 and not 0xC4 <= first <= 0xC6:
        if encoding == ENCODING_JSON:
            invalid_body("A JSON client's body with contentType 'application/msgpack' must be its bytes as base64, with "
                         "encoding 'base64'.")
        return kept(body, given, payload)
    is_text = text_of(body, encoding, payload)
    if is_base64:
        if not is_text:
            invalid_body("A body with encoding 'base64' must be a string.")
        try:
            made = binascii.a2b_base64(bytes_of(payload[0]), strict_mode=True)
        except binascii.Error as problem:
            invalid_body(f"The body is not base64: {problem}.")
        type = BINARY_TYPE
    elif is_text:
        if given is not None and is_json and json_check(payload.data, payload.size, RECORD_DEPTH_MAX, &position) != OK:
            invalid_body("The body is a text, but no JSON as its contentType says.")
        return given or TEXT_TYPE
    elif encoding != ENCODING_JSON and 0xC4 <= first <= 0xC6:
        header = 2 if first == 0xC4 else 3 if first == 0xC5 else 5
        payload[0] = span_of(body.data + header, body.size - header)
        return given or BINARY_TYPE
    elif not is_json:
        invalid_body(f"A body with contentType '{given.decode()}' must be a string, or bytes as base64 with encoding "
                     "'base64'.")
    elif not core.msgpack_is_json(body.data, body.size):
        if given is not None:
            invalid_body("JSON cannot carry this body (it has bytes, an extension type, NaN, infinity, or a key that is no "
                         f"string), but its contentType is '{given.decode()}'. Publish it without a contentType.")
        return kept(body, MESSAGEPACK_TYPE, payload)
    else:
        try:
            made = pack_json(unpack(bytes_of(body)))
        except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as problem:
            invalid_body(f"The body cannot be stored as JSON: {problem}.")
        type = JSON_TYPE
    payload[0] = span_of(<const char *> made, len(made))
    return given or type


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
    global made
    cdef writer_bytes w
    cdef amqp_properties properties
    cdef span payload
    cdef bytes type, id = None, key = None, given = None
    cdef list headers = []
    cdef size_t room = 0
    cdef int priority = -1
    cdef bint is_base64 = False
    cdef uint8_t *data
    if options is not None:
        id, key, given, headers = options.id, options.key, options.content_type, options.headers
        priority, is_base64 = options.priority, options.is_base64
        room = options.size
    type = payload_of(body, encoding, has_escapes, given, is_base64, &payload)
    room = 4 + core.amqp_size_max(len(headers), payload.size + room + len(type))
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
    if made is not None:
        made = None
    out[0] = data
    return w.at - data


def encode_message(bytes body not None, int encoding, options=None) -> bytes:
    """The AMQP 1.0 message that is stored, for tests."""
    cdef uint8_t *entry = NULL
    cdef size_t size = entry_write(span_of(<char *> body, len(body)), encoding, True, message_options(options), &entry)
    return (<char *> entry)[4:size]
