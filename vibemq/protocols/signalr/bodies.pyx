# SPDX-License-Identifier: Apache-2.0
"""A hub client's body and options as the message that is stored: an AMQP 1.0 message, the same for all doors.

A JSON client's body is stored as the JSON text that it came as, undecoded.  With another `contentType` a string is
that text, and with `encoding` "base64" the bytes in it.  A MessagePack client's bin is bytes, its str is text, and
anything else is stored as JSON.
"""

import binascii
import math

import msgspec

from libc.stdint cimport uint64_t
from libc.string cimport memcmp, memset
from vibemq.broker.payload cimport scratch_room
from vibemq.protocols.signalr.codec cimport ENCODING_JSON, RECORD_DEPTH_MAX, text_of
from vibemq.storage cimport core
from vibemq.storage.core cimport (
    AMQP_BOOL, AMQP_DOUBLE, AMQP_INT, AMQP_STRING, AMQP_UINT, amqp_map, amqp_properties, amqp_value, bytes_store32,
    json_check, writer_bytes,
)

from vibemq.protocols.signalr.errors import HubError
from vibemq.protocols.signalr.spec import MESSAGE_OPTIONS, NUMBER_MAX, ErrorCode
from vibemq.protocols.signalr.values import value_of

cdef enum:
    CONTENT_TYPE_BYTES_MAX = 255   # it is in each delivery
    HEADERS_MAX = 1000             # each is some microseconds of the loop, and is in each delivery
    PRIORITY_MAX = 255             # an AMQP 1.0 ubyte

cdef bytes JSON_TYPE = b"application/json"
cdef bytes BINARY_TYPE = b"application/octet-stream"
cdef bytes TEXT_TYPE = b"text/plain; charset=utf-8"


cdef class Wanted:
    def __cinit__(self):
        self.priority, self.headers = -1, []


cdef Wanted NOTHING_WANTED = Wanted()


def refusal(name, needed, had):
    return HubError(ErrorCode.INVALID_ARGUMENT, f"Option '{name}' must be {needed}, had {had!r:.60}.")


cdef bytes text_option(dict options, str name, size_t bytes_max):
    value = options.get(name)
    if value is None:
        return None
    if not isinstance(value, str) or not 0 < len(value) <= <Py_ssize_t> bytes_max:
        raise refusal(name, f"a string of 1 to {bytes_max} bytes", value)
    text = (<str> value).encode(errors="replace")
    if len(text) > <Py_ssize_t> bytes_max:
        raise refusal(name, f"a string of 1 to {bytes_max} bytes", value)
    return text


cdef object number_option(dict options, str name, number_max):
    value = options.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value \
            or not 0 <= value <= number_max or value != int(value):
        raise refusal(name, f"a whole number from 0 to {number_max}", value)
    return int(value)


cdef Wanted wanted_of(object options):
    """Raises HubError."""
    cdef Wanted w
    if options is None:
        return NOTHING_WANTED
    if not isinstance(options, dict):
        raise HubError(ErrorCode.INVALID_ARGUMENT, f"Options must be an object, had {options!r:.60}.")
    if not options:
        return NOTHING_WANTED
    unknown = set(options) - MESSAGE_OPTIONS
    if unknown:
        raise HubError(ErrorCode.INVALID_ARGUMENT,
                       f"Option '{min(map(str, unknown)):.60}' is not known; there are "
                       f"{', '.join(sorted(MESSAGE_OPTIONS))}.")
    w = Wanted()
    w.id = text_option(options, "messageId", GIVEN_ID_BYTES_MAX)
    w.key = text_option(options, "key", GIVEN_ID_BYTES_MAX)
    w.content_type = text_option(options, "contentType", CONTENT_TYPE_BYTES_MAX)
    if w.content_type is not None and not (options["contentType"].isascii() and options["contentType"].isprintable()):
        raise refusal("contentType", "ASCII", options["contentType"])
    priority = number_option(options, "priority", PRIORITY_MAX)
    w.priority = -1 if priority is None else priority
    w.ttl_ms = number_option(options, "ttlMs", NUMBER_MAX)
    encoding = options.get("encoding")
    if encoding is not None and encoding != "base64":
        raise refusal("encoding", "'base64' or missing", encoding)
    w.is_base64 = encoding is not None
    w.bytes = sum([len(text) for text in (w.id, w.key, w.content_type) if text is not None])
    headers = options.get("headers")
    if headers is not None:
        take_headers(w, headers)
    return w


cdef int take_headers(Wanted w, headers) except -1:
    if not isinstance(headers, dict) or len(headers) > HEADERS_MAX:
        raise refusal("headers", f"an object with at most {HEADERS_MAX} members", headers)
    for name, value in headers.items():
        if not isinstance(name, str) or not name:
            raise refusal("headers", "an object whose names are not empty", name)
        if isinstance(value, str):
            value = (<str> value).encode(errors="replace")
            w.bytes += len(<bytes> value)
        elif isinstance(value, float):
            if not math.isfinite(value):
                raise refusal(f"headers.{name}", "a finite number", value)
        elif isinstance(value, int):  # bool, too
            if not -2**63 <= value < 2**64:
                raise refusal(f"headers.{name}", "a number of 64 bits", value)
        else:
            raise refusal(f"headers.{name}", "a string, a number or a boolean", value)
        text = (<str> name).encode(errors="replace")
        w.bytes += len(text)
        w.headers.append((text, value))
    return 0


cdef bint is_plain_json_type(const uint8_t *text, uint32_t size) noexcept:
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
    return is_plain_json_type(text, size) or size > 5 and (<const char *> text)[size - 5:size] == b"+json"


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


cdef tuple body_of(span body, int encoding, bint has_escapes, Wanted wanted, span *payload):
    """Sets payload; (content type, what payload points into or None).  Raises HubError."""
    cdef uint8_t first = body.data[0]
    cdef bytes given = wanted.content_type
    cdef bint is_json = given is None or is_json_type(<const uint8_t *> <char *> given, <uint32_t> len(given))
    cdef bint is_text = (encoding != ENCODING_JSON or not is_json or wanted.is_base64) and text_of(body, encoding, payload)
    cdef uint32_t header
    cdef uint64_t position = 0
    if wanted.is_base64:
        if not is_text:
            raise HubError(ErrorCode.INVALID_BODY, "A body with encoding 'base64' must be a string.")
        try:
            made = binascii.a2b_base64((<const char *> payload.data)[:payload.size], strict_mode=True)
        except binascii.Error as problem:
            raise HubError(ErrorCode.INVALID_BODY, f"The body is not base64: {problem}.") from None
        type = given or BINARY_TYPE
    elif encoding == ENCODING_JSON and is_json:
        if has_escapes and core.json_has_lone_surrogate(body.data, body.size):
            raise HubError(ErrorCode.INVALID_BODY, "The body has half a surrogate pair, as of a string that was cut "
                                                   "inside an emoji, which many clients cannot read.")
        payload[0] = body
        return given or JSON_TYPE, None
    elif is_text:
        if given is not None and is_json and json_check(payload.data, payload.size, RECORD_DEPTH_MAX,
                                                          &position) != core.OK:
            raise HubError(ErrorCode.INVALID_BODY, "The body is a text, but no JSON as its contentType says.")
        return given or TEXT_TYPE, None
    elif encoding != ENCODING_JSON and 0xC4 <= first <= 0xC6:
        header = 2 if first == 0xC4 else 3 if first == 0xC5 else 5
        payload.data, payload.size = body.data + header, body.size - header
        return given or BINARY_TYPE, None
    elif not is_json:
        raise HubError(ErrorCode.INVALID_BODY, f"A body with contentType '{given.decode()}' must be a string, or bytes "
                                               "as base64 with encoding 'base64'.")
    else:
        try:
            value = value_of((<const char *> body.data)[:body.size], encoding)
            if not is_finite(value):
                raise ValueError("it has no word for NaN and infinity")
            made = msgspec.json.encode(value)
        except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as problem:
            raise HubError(ErrorCode.INVALID_BODY, f"The body cannot be stored as JSON: {problem}.") from None
        type = given or JSON_TYPE
    payload.data, payload.size = <const uint8_t *> <char *> made, <uint32_t> len(<bytes> made)
    return type, made


cdef int write_headers(writer_bytes *w, Wanted wanted) except -1:
    cdef amqp_map map
    cdef amqp_value v
    cdef bytes name
    core.amqp_map_begin(w, &map)
    for name, value in wanted.headers:
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


cdef size_t entry_write(span body, int encoding, bint has_escapes, Wanted wanted, uint8_t **out) except 0:
    cdef writer_bytes w
    cdef amqp_properties properties
    cdef span payload
    cdef bytes type, kept
    cdef size_t room
    cdef uint8_t *data
    type, kept = body_of(body, encoding, has_escapes, wanted, &payload)  # kept: what payload points into
    room = 4 + core.amqp_size_max(<uint32_t> len(wanted.headers),
                                   <uint64_t> payload.size + wanted.bytes + len(type))
    data = scratch_room(room)
    w = core.bytes_writer(data + 4, room - 4)
    if wanted.priority >= 0:
        core.amqp_write_header(&w, <uint8_t> wanted.priority)
    memset(&properties, 0, sizeof(properties))
    if wanted.id is not None:
        properties.id, properties.id_bytes = <const uint8_t *> <char *> wanted.id, <uint32_t> len(wanted.id)
    if wanted.key is not None:
        properties.key, properties.key_bytes = <const uint8_t *> <char *> wanted.key, <uint32_t> len(wanted.key)
    properties.content_type, properties.content_type_bytes = <char *> type, <uint32_t> len(type)
    core.amqp_write_properties(&w, &properties)
    if wanted.headers:
        write_headers(&w, wanted)
    core.amqp_write_data(&w, payload.data, payload.size)
    if w.failed:
        raise AssertionError("amqp_size_max was too small")
    bytes_store32(data, <uint32_t> (w.at - data - 4))
    out[0] = data
    return w.at - data


def encode_message(bytes body not None, int encoding, options=None) -> bytes:
    """The AMQP 1.0 message that is stored, for tests and whoever has a raw body."""
    cdef uint8_t *entry = NULL
    cdef span raw
    cdef size_t size
    raw.data, raw.size = <const uint8_t *> <char *> body, <uint32_t> len(body)
    size = entry_write(raw, encoding, True, wanted_of(options), &entry)
    return (<char *> entry)[4:size]
