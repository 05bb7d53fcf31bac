# SPDX-License-Identifier: Apache-2.0
"""Bytes to commands and back, for both sides of the native door; no I/O and no state.

wire.pxd does the work in place; this is its face for Python: tests, the client and commands that come once in a while.
A decoder gives a Message or raises MalformedFrame, and nothing else, whatever the bytes. An encoder gives a whole body
or frame, or raises UnencodableValue.

Text is UTF-8. A queue name must be valid; in headers and error strings, bytes that are no UTF-8 come and go as
surrogates (PEP 383), because a peer's odd header is no reason to drop its connection. Ids are bytes: they are opaque.
Empty and absent are one thing on this wire, so a header with an empty key or value is not written at all.
"""

import unicodedata
from typing import NamedTuple

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport uint8_t, uint32_t

from vibemq.errors import ProtocolError, VibeMQError
from vibemq.protocols.native.wire cimport (
    CHECK_BY_TABLES, CHECK_HEADERS_COUNT, CHECK_OK, CHECK_QUEUE_NAME_CHARACTER, FRAME_HEADER_BYTES, FRAME_NEEDS_MORE,
    FRAME_OK, FRAME_TOO_LARGE, FRAME_TOO_SMALL, HEADERS_MAX, TYPE_ERROR, WIRE_VERSION, deliver_size,
    deliver_write, error_size, error_write, frame_check, frame_header, frame_parse, frame_payload,
    header_next, header_size, headers_copy_without, headers_size_without, json_is_valid, native_frame, pong_size,
    pong_write, publish_ack_size, publish_ack_write, put_header, put_str16, queue_name_check, utf16_units,
)

from vibemq.protocols.native import spec


class MalformedFrame(ProtocolError, ValueError):
    """The peer's bytes are not the command they claim to be: where, what was needed there, what there was."""

    def __init__(self, where, needed, had):
        super().__init__(f"{where}: needed {needed}, had {had}")
        self.where, self.needed, self.had = where, needed, had


class UnencodableValue(VibeMQError, ValueError):
    """Our own caller gave a value that the wire cannot carry: where, what was needed there, what there was."""

    def __init__(self, where, needed, had):
        super().__init__(f"{where}: needed {needed}, had {had}")
        self.where, self.needed, self.had = where, needed, had


class Message(NamedTuple):
    """One frame's body. What was absent is None; `text_layout` says that two strings followed the headers."""

    type: int
    id: bytes
    queue: str | None = None
    payload: bytes | None = None
    headers: dict[str, str] = {}
    error_code: str | None = None
    error_message: str | None = None
    text_layout: bool = False


cdef frozenset LETTERS_AND_DIGITS = frozenset(("Lu", "Ll", "Lt", "Lm", "Lo", "Nd"))  # what .NET calls letter or digit

# ---- reading ----


cdef object malformed(int fault, size_t needed, size_t had):
    where, what = spec.FRAME_FAULTS[fault]
    return MalformedFrame(where, what.format(needed=needed), f"{had}")


cdef str text_of(const uint8_t *p, uint32_t size):
    return PyUnicode_DecodeUTF8(<const char *>p, size, "surrogateescape")


cdef dict headers_dict(const native_frame *frame):
    cdef const uint8_t *at = frame.headers
    cdef const uint8_t *end = frame.headers + frame.headers_size
    cdef const uint8_t *key
    cdef const uint8_t *value
    cdef uint32_t key_size = 0, value_size = 0
    cdef dict headers = {}
    while header_next(&at, end, &key, &key_size, &value, &value_size):
        headers[text_of(key, key_size)] = text_of(value, value_size)
    return headers


cdef int parse(const uint8_t[::1] body, native_frame *frame) except -1:
    cdef int fault = frame_parse(&body[0] if body.shape[0] else NULL, body.shape[0], frame)
    if fault != FRAME_OK:
        raise malformed(fault, frame.needed, frame.had)
    return 0


def decode_body(const uint8_t[::1] body not None):
    """The Message in an uncompressed body."""
    cdef native_frame frame
    parse(body, &frame)
    queue = payload = error_code = error_message = None
    if frame.queue_size:
        try:
            queue = PyUnicode_DecodeUTF8(<const char *>frame.queue, frame.queue_size, NULL)
        except UnicodeDecodeError as error:
            raise MalformedFrame("queue", "UTF-8", f"{error.reason} at byte {error.start}") from None
    if frame.payload_size:
        payload = PyBytes_FromStringAndSize(<const char *>frame.payload, frame.payload_size)
    if frame.error_code_size:
        error_code = text_of(frame.error_code, frame.error_code_size)
    if frame.error_message_size:
        error_message = text_of(frame.error_message, frame.error_message_size)
    return Message(
        frame.type,
        PyBytes_FromStringAndSize(<const char *>frame.id, frame.id_size),
        queue,
        payload,
        headers_dict(&frame),
        error_code,
        error_message,
        bool(frame.text_layout),
    )


def split_frames(
    const uint8_t[::1] data not None, uint32_t body_max=spec.FRAME_BODY_BYTES_MAX_DEFAULT,
    uint8_t flags_max=spec.FLAGS_MAX_DEFAULT,
):
    """The whole frames at the beginning of `data`: a list of (flags, body as on the wire), and the bytes they took.

    A frame that cannot become legal raises as soon as that is known; frames before it are then lost, which is right for
    a connection that has to be closed.
    """
    cdef list frames = []
    cdef size_t at = 0
    cdef size_t size = data.shape[0]
    cdef uint32_t body_size = 0
    cdef uint8_t flags = 0
    cdef int result
    cdef const uint8_t *p = &data[0] if size else NULL
    while at < size:
        result = frame_header(p + at, size - at, body_max, flags_max, &body_size, &flags)
        if result == FRAME_NEEDS_MORE:
            break
        if result == FRAME_TOO_SMALL or result == FRAME_TOO_LARGE:
            where, needed = spec.FRAME_FAULTS[result]
            had = int.from_bytes(data[at:at + 4], "big")
            raise MalformedFrame(where, needed if result == FRAME_TOO_SMALL else f"at most {body_max} bytes", f"{had}")
        if result != FRAME_OK:
            raise malformed(result, 0, p[at + 4])
        at += FRAME_HEADER_BYTES
        frames.append((flags, PyBytes_FromStringAndSize(<const char *>(p + at), body_size)))
        at += body_size
    return frames, at


# ---- validation ----


cdef bint queue_name_valid(const uint8_t *name, size_t size) except -1:
    cdef int check = queue_name_check(name, size)
    if check != CHECK_BY_TABLES:
        return check == CHECK_OK and size > 0
    try:
        text = PyUnicode_DecodeUTF8(<const char *>name, size, NULL)
    except UnicodeDecodeError:
        return False
    # Each UTF-16 half of a character beyond the basic plane is no letter to .NET.
    return all(
        c in "-_." or (c <= "\uffff" and unicodedata.category(c) in LETTERS_AND_DIGITS) for c in text
    )


cdef object fault_text(const native_frame *frame, int check):
    if check == CHECK_OK:
        return None
    if check == CHECK_BY_TABLES:
        if frame.queue_size and not queue_name_valid(frame.queue, frame.queue_size):
            check = CHECK_QUEUE_NAME_CHARACTER
        elif frame.header_count > HEADERS_MAX and len(headers_dict(frame).keys() - {"vibemq-resend"}) > HEADERS_MAX:
            check = CHECK_HEADERS_COUNT
        else:
            return None
    return spec.CHECK_FAULTS[check]


cdef object frame_fault(const native_frame *frame):
    return fault_text(frame, frame_check(frame))


def validate(const uint8_t[::1] body not None):
    """What is wrong with the body of a legal frame by the limits of the protocol, as text for an Error, or None."""
    cdef native_frame frame
    parse(body, &frame)
    return frame_fault(&frame)


def is_queue_name(name):
    """May a queue bear this name (str or bytes)?"""
    cdef bytes data = name.encode("utf-8", "surrogatepass") if isinstance(name, str) else bytes(name)
    return bool(queue_name_valid(<const uint8_t *>PyBytes_AS_STRING(data), len(data)))


def is_json(const uint8_t[::1] text not None):
    """One JSON value in UTF-8, nested no deeper than peers read?"""
    return bool(json_is_valid(&text[0] if text.shape[0] else NULL, text.shape[0]))


def utf16_length(const uint8_t[::1] text not None):
    """How many UTF-16 code units a UTF-8 text has."""
    return utf16_units(&text[0] if text.shape[0] else NULL, text.shape[0])


# ---- writing ----


cdef bytes wire_bytes(value, str where):
    """The bytes of a str16, its length checked."""
    cdef bytes data
    if value is None:
        return b""
    if isinstance(value, str):
        try:
            data = value.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError as error:
            raise UnencodableValue(where, "a text that UTF-8 can carry", f"{error.reason} at {error.start}") from None
    elif isinstance(value, (bytes, bytearray, memoryview)):
        data = bytes(value)
    else:
        raise UnencodableValue(where, "str or bytes", type(value).__name__)
    if len(data) > <Py_ssize_t>spec.STRING_BYTES_MAX:
        raise UnencodableValue(where, f"at most {spec.STRING_BYTES_MAX} bytes", f"{len(data)}")
    return data


def encode_body(
    int type, id, *, queue=None, payload=None, headers=None, error_code=None, error_message=None, bint text_layout=False
):
    """The uncompressed body of a frame. The error strings are written on type 99 and in the text layout only."""
    cdef bytes id_bytes = wire_bytes(id, "id")
    cdef bytes queue_bytes = wire_bytes(queue, "queue")
    cdef bytes code_bytes = wire_bytes(error_code, "error_code")
    cdef bytes message_bytes = wire_bytes(error_message, "error_message")
    cdef bytes key, value, body
    cdef bint tail = text_layout or type == TYPE_ERROR
    cdef size_t payload_size = 0 if payload is None else len(payload)
    cdef size_t size = 12 + len(id_bytes) + len(queue_bytes) + payload_size
    cdef list pairs = []
    cdef uint8_t *p
    if not 0 <= type <= 255:
        raise UnencodableValue("type", "0 to 255", f"{type}")
    if not id_bytes:
        raise UnencodableValue("id", "at least one byte", "none")
    if (code_bytes or message_bytes) and not tail:
        raise UnencodableValue("error_code", "type 99 or the text layout", f"type {type}")
    if payload_size > 0xFFFFFFFFu:
        raise UnencodableValue("payload", "a size that fits into 32 bits", f"{payload_size}")
    for name, text in (headers or {}).items():
        key = wire_bytes(name, "header name")
        value = wire_bytes(text, f"header {name!r}")
        if key and value:
            pairs.append((key, value))
            size += header_size(len(key), len(value))
    if len(pairs) > <Py_ssize_t>spec.HEADERS_COUNT_MAX_ON_WIRE:
        raise UnencodableValue("headers", f"at most {spec.HEADERS_COUNT_MAX_ON_WIRE}", f"{len(pairs)}")
    if tail:
        size += 4 + len(code_bytes) + len(message_bytes)
    body = PyBytes_FromStringAndSize(NULL, size)
    p = <uint8_t *>PyBytes_AS_STRING(body)
    p[0] = WIRE_VERSION
    p[1] = type
    p = put_str16(p + 2, PyBytes_AS_STRING(id_bytes), len(id_bytes))
    p = put_str16(p, PyBytes_AS_STRING(queue_bytes), len(queue_bytes))
    p = put_payload(p, payload, payload_size, len(pairs))
    for key, value in pairs:
        p = put_header(p, PyBytes_AS_STRING(key), len(key), PyBytes_AS_STRING(value), len(value))
    if tail:
        p = put_str16(p, PyBytes_AS_STRING(code_bytes), len(code_bytes))
        p = put_str16(p, PyBytes_AS_STRING(message_bytes), len(message_bytes))
    return body


cdef uint8_t *put_payload(uint8_t *p, payload, size_t size, uint32_t header_count) except NULL:
    cdef const uint8_t[::1] view
    if size == 0:
        return frame_payload(p, NULL, 0, header_count)
    view = payload
    return frame_payload(p, &view[0], size, header_count)


def frame_of(body, int flags=0):
    """A whole frame around a body that is compressed as `flags` says."""
    if not spec.FRAME_BODY_BYTES_MIN <= len(body) <= 0xFFFFFFFF:
        raise UnencodableValue("body", f"{spec.FRAME_BODY_BYTES_MIN} bytes or more", f"{len(body)}")
    return b"%b%c%b" % (len(body).to_bytes(4, "big"), flags, body)


def encode_frame(int type, id, **fields):
    """A whole uncompressed frame; the fields are those of encode_body."""
    return frame_of(encode_body(type, id, **fields))


# ---- the frames that a broker writes without Python, for whoever wants to look at them ----


def publish_ack_frame(bytes id not None, bytes queue not None, bint text_layout=False):
    cdef bytes out = PyBytes_FromStringAndSize(NULL, publish_ack_size(len(id), len(queue), text_layout))
    cdef uint8_t *p = <uint8_t *>PyBytes_AS_STRING(out)
    p = publish_ack_write(p, PyBytes_AS_STRING(id), len(id), PyBytes_AS_STRING(queue), len(queue), text_layout)
    return whole(out, p)


def pong_frame(bytes id not None, bint text_layout=False):
    cdef bytes out = PyBytes_FromStringAndSize(NULL, pong_size(len(id), text_layout))
    return whole(out, pong_write(<uint8_t *>PyBytes_AS_STRING(out), PyBytes_AS_STRING(id), len(id), text_layout))


def error_frame(bytes id not None, bytes queue not None, bytes code not None, bytes message not None):
    cdef bytes out = PyBytes_FromStringAndSize(NULL, error_size(len(id), len(queue), len(code), len(message)))
    cdef uint8_t *p = <uint8_t *>PyBytes_AS_STRING(out)
    p = error_write(
        p, PyBytes_AS_STRING(id), len(id), PyBytes_AS_STRING(queue), len(queue),
        PyBytes_AS_STRING(code), len(code), PyBytes_AS_STRING(message), len(message),
    )
    return whole(out, p)


def deliver_frame(const uint8_t[::1] publish_body not None, uint32_t attempts, bint text_layout=False):
    """The Deliver of a Publish: its id, queue, payload and headers, and how often it has been sent."""
    cdef native_frame frame
    parse(publish_body, &frame)
    cdef const uint8_t *end = frame.headers + frame.headers_size
    cdef uint32_t count = 0
    cdef size_t kept = headers_size_without(frame.headers, end, <const char *>b"deliveryAttempts", 16, &count)
    cdef bytes headers = PyBytes_FromStringAndSize(NULL, kept)
    headers_copy_without(
        <uint8_t *>PyBytes_AS_STRING(headers), frame.headers, end, <const char *>b"deliveryAttempts", 16
    )
    cdef bytes out = PyBytes_FromStringAndSize(
        NULL, deliver_size(frame.id_size, frame.queue_size, frame.payload_size, kept, attempts, text_layout)
    )
    cdef uint8_t *p = deliver_write(
        <uint8_t *>PyBytes_AS_STRING(out), frame.id, frame.id_size, frame.queue, frame.queue_size,
        frame.payload, frame.payload_size, PyBytes_AS_STRING(headers), kept, count, attempts, text_layout,
    )
    return whole(out, p)


cdef bytes whole(bytes out, const uint8_t *end):
    """A writer ended where its size function said, or memory has been written that is not ours."""
    if end != <const uint8_t *>PyBytes_AS_STRING(out) + len(out):
        raise SystemError("a frame's writer and its size function disagree")
    return out
