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

from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport uint8_t, uint32_t

from vibemq.errors import MalformedFrame, UnencodableValue
from vibemq.protocols.native.wire cimport (
    CHECK_BY_TABLES, CHECK_HEADERS_COUNT, CHECK_OK, CHECK_QUEUE_NAME_CHARACTER, FRAME_HEADER_BYTES, FRAME_NEEDS_MORE,
    FRAME_OK, FRAME_UNKNOWN_FLAGS, HEADERS_MAX, TYPE_ERROR, WIRE_VERSION, frame_check, frame_header,
    frame_parse, header_next, json_is_valid, native_frame, queue_name_check,
)
from vibemq.storage.core cimport bytes_load32, bytes_store32

from vibemq.protocols.native import spec


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


cdef int parse(bytes body, native_frame *frame) except -1:
    cdef int fault = frame_parse(<const uint8_t *><const char *>body, len(body), frame)
    if fault != FRAME_OK:
        raise malformed(fault, frame.needed, frame.had)
    return 0


def decode_body(bytes body not None):
    """The Message in an uncompressed body."""
    cdef native_frame frame
    parse(body, &frame)
    queue = None
    if frame.queue_size:
        try:
            queue = PyUnicode_DecodeUTF8(<const char *>frame.queue, frame.queue_size, NULL)
        except UnicodeDecodeError as error:
            raise MalformedFrame("queue", "UTF-8", f"{error.reason} at byte {error.start}") from None
    return Message(
        frame.type,
        (<const char *>frame.id)[:frame.id_size],
        queue,
        (<const char *>frame.payload)[:frame.payload_size] if frame.payload_size else None,
        headers_dict(&frame),
        text_of(frame.error_code, frame.error_code_size) if frame.error_code_size else None,
        text_of(frame.error_message, frame.error_message_size) if frame.error_message_size else None,
        bool(frame.text_layout),
    )


def split_frames(
    bytes data not None, uint32_t body_max=spec.FRAME_BODY_BYTES_MAX_DEFAULT, uint8_t flags_max=spec.FLAGS_MAX_DEFAULT
):
    """The whole frames at the beginning of `data`: a list of (flags, body as on the wire), and the bytes they took.

    A frame that cannot become legal raises as soon as that is known; frames before it are then lost, which is right for
    a connection that has to be closed.
    """
    cdef list frames = []
    cdef size_t at = 0
    cdef size_t size = len(data)
    cdef uint32_t body_size = 0
    cdef uint8_t flags = 0
    cdef int found
    cdef const uint8_t *p = <const uint8_t *><const char *>data
    while at < size:
        found = frame_header(p + at, size - at, body_max, flags_max, &body_size, &flags)
        if found == FRAME_NEEDS_MORE:
            break
        if found != FRAME_OK:
            raise malformed(found, body_max, p[at + 4] if found == FRAME_UNKNOWN_FLAGS else bytes_load32(p + at))
        at += FRAME_HEADER_BYTES
        frames.append((flags, data[at:at + body_size]))
        at += body_size
    return frames, at


# ---- validation ----


def is_queue_name(name):
    """May a queue bear this name (str or bytes)?  Unicode's tables decide where queue_name_check cannot."""
    cdef bytes data = name.encode("utf-8", "surrogatepass") if isinstance(name, str) else name
    cdef int check = queue_name_check(<const uint8_t *><const char *>data, len(data))
    if check != CHECK_BY_TABLES:
        return check == CHECK_OK and len(data) > 0
    try:
        text = data.decode()
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
        if frame.queue_size and not is_queue_name((<const char *>frame.queue)[:frame.queue_size]):
            check = CHECK_QUEUE_NAME_CHARACTER
        elif frame.header_count > HEADERS_MAX and len(headers_dict(frame).keys() - {"vibemq-resend"}) > HEADERS_MAX:
            check = CHECK_HEADERS_COUNT
        else:
            return None
    return spec.CHECK_FAULTS[check]


def validate(bytes body not None):
    """What is wrong with the body of a legal frame by the limits of the protocol, as text for an Error, or None."""
    cdef native_frame frame
    parse(body, &frame)
    return fault_text(&frame, frame_check(&frame))


def is_json(bytes text not None):
    """One JSON value in UTF-8, nested no deeper than peers read?"""
    return bool(json_is_valid(<const uint8_t *><const char *>text, len(text)))


# ---- writing ----


cdef bytes number(uint32_t value, int size):
    cdef uint8_t data[4]
    bytes_store32(data, value)
    return (<const char *>data)[4 - size:4]


cdef bytes str16(value, str where):
    """A string with its length in front; None is the empty one."""
    cdef bytes data
    if value is None:
        return b"\0\0"
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
    return number(<uint32_t>len(data), 2) + data


def encode_body(
    int type, id, *, queue=None, payload=None, headers=None, error_code=None, error_message=None, bint text_layout=False
):
    """The uncompressed body of a frame. The error strings are written on type 99 and in the text layout only."""
    cdef bint has_tail = text_layout or type == TYPE_ERROR
    cdef bytes head = str16(id, "id") + str16(queue, "queue")
    cdef bytes tail = str16(error_code, "error_code") + str16(error_message, "error_message")
    cdef bytes key, value
    cdef list pairs = []
    if not 0 <= type <= 255:
        raise UnencodableValue("type", "0 to 255", f"{type}")
    if not id:
        raise UnencodableValue("id", "at least one byte", "none")
    if len(tail) > 4 and not has_tail:
        raise UnencodableValue("error_code", "type 99 or the text layout", f"type {type}")
    if payload is not None and len(payload) > 0xFFFFFFFF:
        raise UnencodableValue("payload", "a size that fits into 32 bits", f"{len(payload)}")
    for name, text in (headers or {}).items():
        key, value = str16(name, "header name"), str16(text, f"header {name!r}")
        if len(key) > 2 and len(value) > 2:
            pairs.append(key + value)
    if len(pairs) > <Py_ssize_t>spec.HEADERS_COUNT_MAX_ON_WIRE:
        raise UnencodableValue("headers", f"at most {spec.HEADERS_COUNT_MAX_ON_WIRE}", f"{len(pairs)}")
    payload = payload or b""
    return b"".join([
        number(WIRE_VERSION << 8 | type, 2), head, number(len(payload), 4), payload,
        number(<uint32_t>len(pairs), 2), *pairs, tail if has_tail else b"",
    ])


def frame_of(body, int flags=0):
    """A whole frame around a body that is compressed as `flags` says."""
    if not spec.FRAME_BODY_BYTES_MIN <= len(body) <= 0xFFFFFFFF:
        raise UnencodableValue("body", f"{spec.FRAME_BODY_BYTES_MIN} bytes or more", f"{len(body)}")
    return b"%b%c%b" % (len(body).to_bytes(4, "big"), flags, body)


def encode_frame(int type, id, **fields):
    """A whole uncompressed frame; the fields are those of encode_body."""
    return frame_of(encode_body(type, id, **fields))
