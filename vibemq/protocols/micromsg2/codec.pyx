# SPDX-License-Identifier: Apache-2.0
"""Bytes to frames and back, for both sides of the MicroMsg2 door; no I/O and no state.

wire.pxd does the work in place; this is its face for Python: handshakes, commands, the client and tests. A decoder
gives a value, None when more bytes are needed, or raises MalformedFrame, whatever the bytes. An encoder gives a whole
handshake or frame, or raises UnencodableValue. What is read is read tolerantly; what is written is the strict form.

Names of commands and keys are ASCII and fold to lower case. Identities, destinations, raw properties and payloads are
bytes: they are handed on as they came.
"""

import re
from datetime import UTC, datetime, timedelta
from math import isfinite
from typing import NamedTuple

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport INT64_MIN, UINT64_MAX, uint8_t, uint16_t, uint32_t

from vibemq import errors
from vibemq.errors import UnencodableValue
from vibemq.protocols.micromsg2.values cimport TYPE_DATE, TYPE_NUMBER, TYPE_TEXT
from vibemq.protocols.micromsg2.wire cimport (
    ACK_FRAME_BYTES, FRAME_COMMAND, FRAME_ERROR, FRAME_EXTENSION, FRAME_KIND_BITS, PARSE_NEEDS_MORE, PARSE_OK,
    PARSE_TOO_LARGE, SEQUENCE_MAX, ack_frame_write, ack_number, frame_parse, message_frame_size, message_frame_write,
    mm_frame, mm_property, property_next,
)
from vibemq.protocols.micromsg2.wire cimport percent_decode as decode_to
from vibemq.protocols.micromsg2.wire cimport percent_encode as encode_to

from vibemq.protocols.micromsg2 import spec
from vibemq.protocols.micromsg2.spec import ErrorCode


class MalformedFrame(errors.MalformedFrame):
    """`error_code` is for the ERROR that answers; the connection closes."""

    error_code = ErrorCode.PROTOCOL_ERROR


class MalformedHandshake(MalformedFrame):
    """It will not become a handshake, whatever follows."""


class UnsupportedVersion(MalformedHandshake):
    """It may be a handshake of another major version, whose layout nobody here knows."""

    error_code = ErrorCode.UNSUPPORTED_VERSION


class BadCommand(MalformedFrame):
    """The text of a COMMAND does not follow the grammar."""

    error_code = ErrorCode.BAD_COMMAND


class Handshake(NamedTuple):
    """C1, S1 or C2. Both lists are text of the form that extensions.parse_list reads; empty and absent are one."""

    major: int = spec.MAJOR
    minor: int = spec.MINOR
    flags: int = 0
    identity: bytes = spec.IDENTITY
    required: bytes = b""
    optional: bytes = b""


class Message(NamedTuple):
    """A MESSAGE or SEND; `continued`: the payload goes on in the next one."""

    sequence: int
    destination: bytes
    properties: bytes
    payload: bytes
    continued: bool = False


class Command(NamedTuple):
    """Name and keys in lower case, values decoded, repeated keys and their order kept."""

    name: str
    pairs: list[tuple[str, str]]


class ExtensionFrame(NamedTuple):
    id: int
    payload: bytes


class ErrorFrame(NamedTuple):
    text: str


class Untyped(str):
    """The text of a property that bears no type."""

    __slots__ = ()


# ---- the handshake ----


def decode_handshake(data):
    """(Handshake or ErrorFrame, bytes used), or None while it is not whole; a wrong major is told by the first byte."""
    size, at = len(data), spec.HANDSHAKE_HEAD_BYTES
    if size and data[0] & FRAME_ERROR:
        try:
            return decode_frame(data)
        except MalformedFrame as error:
            raise MalformedHandshake(error.where, error.needed, error.had) from None
    if size and data[0] != spec.MAJOR:
        raise UnsupportedVersion("major version", f"{spec.MAJOR}", f"{data[0]}")
    if size < at:
        return None
    parts = []
    for length_bytes in (0, 2, 2):
        length = data[3]
        if length_bytes:
            if size < at + 2:
                return None
            length = data[at] << 8 | data[at + 1]
            at += 2
        if size < at + length:
            return None
        parts.append(bytes(data[at:at + length]))
        at += length
    return Handshake(data[0], data[1], data[2], *parts), at


def encode_handshake(handshake):
    """The whole of it, which has to go out in a single write: the .NET implementation looks at each chunk anew."""
    major, minor, flags, identity, required, optional = handshake
    check_size("identity", len(identity), spec.IDENTITY_BYTES_MAX)
    check_size("required extensions", len(required), spec.HANDSHAKE_LIST_BYTES_MAX)
    check_size("optional extensions", len(optional), spec.HANDSHAKE_LIST_BYTES_MAX)
    return b"%c%c%c%c%b%b%b%b%b" % (
        major, minor, flags, len(identity), identity,
        len(required).to_bytes(2, "big"), required, len(optional).to_bytes(2, "big"), optional,
    )


# ---- frames ----


def decode_frame(data, uint32_t payload_max=spec.PAYLOAD_BYTES_MAX_DEFAULT):
    """(Message, Command, ExtensionFrame or ErrorFrame; bytes used), or None while the frame is not whole."""
    cdef Py_buffer view
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        return frame_in(<const uint8_t *>view.buf, view.len, payload_max)
    finally:
        PyBuffer_Release(&view)


cdef object frame_in(const uint8_t *data, size_t size, uint32_t payload_max):
    cdef mm_frame frame
    cdef int found = frame_parse(data, size, payload_max, &frame)
    if found == PARSE_NEEDS_MORE:
        return None
    if found != PARSE_OK:
        raise malformed(found, data[0], frame.payload_size, payload_max)
    payload = (<const char *>frame.payload)[:frame.payload_size]
    if frame.kind == FRAME_ERROR:
        return ErrorFrame(payload.decode("utf-8", "replace")), frame.size
    if frame.kind == FRAME_EXTENSION:
        return ExtensionFrame(frame.extension, payload), frame.size
    if frame.kind == FRAME_COMMAND:
        return parse_command(payload), frame.size
    destination = (<const char *>frame.destination)[:frame.destination_size]
    properties = (<const char *>frame.properties)[:frame.properties_size]
    return Message(frame.sequence, destination, properties, payload, bool(frame.continued)), frame.size


def malformed(int fault, int flags, size, payload_max):
    """The MalformedFrame for what frame_parse has found in a frame with these flags and a payload of this size."""
    where, needed = spec.FRAME_FAULTS[fault]
    if fault == PARSE_TOO_LARGE:
        limit = spec.CONTROL_BYTES_MAX if flags & FRAME_KIND_BITS else payload_max
        return MalformedFrame(where, needed.format(limit=limit), f"{size}")
    return MalformedFrame(where, needed, f"{flags:#04x}")


def last_error(data):
    """The ErrorFrame in the bytes that were left when a connection ended, or None.

    An early release of the .NET implementation sets LARGE_PAYLOAD on an ERROR with a length of one octet, and only
    there; what follows tells the two apart when nothing more can come.
    """
    if len(data) >= 2 and data[0] == (FRAME_ERROR | spec.Flag.LARGE_PAYLOAD) and len(data) == 2 + data[1]:
        return ErrorFrame(bytes(data[2:]).decode("utf-8", "replace"))
    return None


def ack_sequence(bytes payload not None):
    """The number in an acknowledgement's payload of 2, 4 or 1 octets; -1: it is none."""
    cdef mm_frame frame
    frame.payload = <const uint8_t *>PyBytes_AS_STRING(payload)
    frame.payload_size = <uint32_t>min(len(payload), spec.CONTROL_BYTES_MAX)
    return ack_number(&frame)


cdef int check_size(str where, Py_ssize_t size, Py_ssize_t limit) except -1:
    if size > limit:
        raise UnencodableValue(where, f"at most {limit} bytes", f"{size}")
    return 0


def encode_message(
    uint32_t sequence, bytes destination not None, payload, bytes properties=b"", bint continued=False
):
    """One frame. Whoever has more than spec.FRAGMENT_BYTES of payload cuts it himself."""
    cdef Py_buffer view
    cdef bytes out
    if sequence > SEQUENCE_MAX:
        raise UnencodableValue("sequence", f"at most {SEQUENCE_MAX}", f"{sequence}")
    check_size("destination", len(destination), spec.DESTINATION_BYTES_MAX)
    check_size("properties", len(properties), spec.PROPERTIES_BYTES_MAX)
    PyObject_GetBuffer(payload, &view, PyBUF_SIMPLE)
    try:
        check_size("payload", view.len, 0xFFFFFFFF)
        out = PyBytes_FromStringAndSize(NULL, message_frame_size(len(destination), len(properties), view.len))
        message_frame_write(<uint8_t *>PyBytes_AS_STRING(out), <uint16_t>sequence, PyBytes_AS_STRING(destination),
                            len(destination), PyBytes_AS_STRING(properties), len(properties), view.buf, view.len,
                            continued)
        return out
    finally:
        PyBuffer_Release(&view)


cdef bytes control_frame(int kind, bytes head, bytes payload):
    """`head`: what is between the flags and the length."""
    if len(payload) > spec.SHORT_LENGTH_MAX:
        return b"%c%b%b%b" % (kind | spec.Flag.LARGE_PAYLOAD, head, len(payload).to_bytes(4, "big"), payload)
    return b"%c%b%c%b" % (kind, head, len(payload), payload)


def encode_extension(uint8_t id, bytes payload=b""):
    check_size("extension payload", len(payload), spec.CONTROL_BYTES_MAX)
    return control_frame(FRAME_EXTENSION, bytes((id,)), payload)


def encode_ack(uint8_t id, uint16_t sequence):
    """An EXTENSION of the ack extension with this id: everything up to and including `sequence` has arrived."""
    cdef uint8_t out[ACK_FRAME_BYTES]
    ack_frame_write(out, id, sequence)
    return (<const char *>out)[:ACK_FRAME_BYTES]


def encode_error(str text not None):
    """An ERROR; of a text that is too long the beginning."""
    cdef bytes data = text.encode("utf-8", "replace")[:spec.ERROR_BYTES_MAX].decode("utf-8", "ignore").encode("utf-8")
    return control_frame(FRAME_ERROR, b"", data)


# ---- commands ----

COMMAND_WORD = re.compile(r"[A-Za-z0-9_-]+")


def parse_command(bytes payload not None):
    """The Command in a COMMAND's payload: `name;key=value,key=value`; the `;` behind either part may be there."""
    try:
        name, _, rest = payload.decode("utf-8").partition(";")
    except UnicodeDecodeError as error:
        raise BadCommand("command", "UTF-8", f"{error.reason} at byte {error.start}") from None
    rest = rest.removesuffix(";")
    if rest.count(",") >= spec.COMMAND_PAIRS_MAX:
        raise BadCommand("command", f"at most {spec.COMMAND_PAIRS_MAX} pairs", f"{rest.count(',') + 1}")
    pairs = []
    for item in rest.split(",") if rest else ():
        key, equals, value = item.partition("=")
        if not equals or ";" in value:
            raise BadCommand("command", "key=value pairs with commas between them", repr(item[:80]))
        try:
            pairs.append((command_word("key of the command", key), percent_decode(value).decode("utf-8")))
        except UnicodeDecodeError as error:
            raise BadCommand(f"value of {key}", "percent-encoded UTF-8", f"{error.reason} there") from None
    return Command(command_word("name of the command", name), pairs)


cdef str command_word(str where, str word, type error=BadCommand):
    if COMMAND_WORD.fullmatch(word) is None:
        raise error(where, "letters, digits, '-' and '_'", repr(word[:80]))
    return word.lower()


def encode_command(str name not None, pairs=()):
    """A COMMAND; `pairs` is a mapping or (key, value) tuples, and keys and values come as text."""
    cdef list items = []
    for key, value in pairs.items() if hasattr(pairs, "items") else pairs:
        items.append(f"{command_word('key of the command', key, UnencodableValue)}={percent_encode(str(value))}")
    name = command_word("name of the command", name, UnencodableValue)
    data = (name + (";" + ",".join(items) if items else "")).encode("ascii")
    check_size("command", len(data), spec.CONTROL_BYTES_MAX)
    return control_frame(FRAME_COMMAND, b"", data)


# ---- properties ----

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
INTEGER = re.compile(r"[+-]?[0-9]{1,20}")
DECIMAL = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
SECONDS = re.compile(r"([+-]?)([0-9]{1,12})(?:\.([0-9]*))?")
TYPE_LETTERS = frozenset(map(chr, (TYPE_NUMBER, TYPE_DATE, TYPE_TEXT)))


def parse_properties(bytes properties not None):
    """The (key, value) pairs in order: int or float, datetime, str (bytes where it is no UTF-8), or Untyped.

    A number or date that is none is untyped text, with the letter before it.
    """
    cdef const uint8_t *at = <const uint8_t *>PyBytes_AS_STRING(properties)
    cdef const uint8_t *end = at + len(properties)
    cdef mm_property item
    cdef list pairs = []
    while property_next(&at, end, &item):
        kind = item.value[0] if item.value_size else 0
        name = decoded(item.key, item.key_size).decode("utf-8", "surrogateescape")
        pairs.append((name, typed(kind, decoded(item.value, item.value_size))))
    return pairs


cdef object typed(int kind, bytes data):
    """`kind`: the octet before decoding, since an encoded letter is no type."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return data[1:] if kind == TYPE_TEXT else data
    rest = text[1:]
    if kind == TYPE_TEXT:
        return rest
    if kind == TYPE_NUMBER and DECIMAL.fullmatch(rest):
        if INTEGER.fullmatch(rest) and INT64_MIN <= int(rest) <= UINT64_MAX:
            return int(rest)
        if isfinite(float(rest)):
            return float(rest)
    if kind == TYPE_DATE and (match := SECONDS.fullmatch(rest)):
        sign, seconds, fraction = match.groups(default="")
        since = timedelta(seconds=int(seconds), microseconds=int(fraction[:6].ljust(6, "0")))
        try:
            return EPOCH - since if sign == "-" else EPOCH + since
        except OverflowError:  # beyond the years that a datetime has
            pass
    return Untyped(text)


def encode_properties(properties):
    """The wire form of a mapping or of (key, value) pairs: `key:Tvalue;` and so on.

    str and bytes are text, int and float are numbers, a datetime is a date; Untyped is written without a type (a first
    letter that would be one is encoded), as are bool, and float that is no number. None leaves the property out.
    """
    cdef list items = []
    for key, value in properties.items() if hasattr(properties, "items") else properties:
        if not key:
            raise UnencodableValue("property", "a key", "none")
        if value is not None:
            items.append(f"{percent_encode(key)}:{property_text(key, value)};")
    out = "".join(items).encode("ascii")
    check_size("properties", len(out), spec.PROPERTIES_BYTES_MAX)
    return out


cdef str property_text(key, value):
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Untyped):
        text = percent_encode(value)
        return f"%{ord(text[0]):X}{text[1:]}" if text[:1] in TYPE_LETTERS else text
    if isinstance(value, (str, bytes)):
        return "T" + percent_encode(value)
    if isinstance(value, int):
        if not INT64_MIN <= value <= UINT64_MAX:
            raise UnencodableValue(f"property {key!r}", "a number of 64 bits", f"{value:#x}")
        return f"N{value}"
    if isinstance(value, float):
        return ("N" if isfinite(value) else "") + percent_encode(repr(value))
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise UnencodableValue(f"property {key!r}", "a datetime with a time zone", "one without")
        since = (value - EPOCH) // MICROSECOND
        seconds, fraction = divmod(abs(since), 1_000_000)
        digits = f"{fraction:06}".rstrip("0") or "0"
        return f"D{'-' if since < 0 else ''}{seconds}.{digits}"
    raise UnencodableValue(f"property {key!r}", "str, bytes, int, float, bool, datetime or None", type(value).__name__)


# ---- percent-encoding ----


cdef bytes decoded(const uint8_t *p, size_t size):
    cdef bytes out = PyBytes_FromStringAndSize(NULL, size)
    cdef uint8_t *begin = <uint8_t *>PyBytes_AS_STRING(out)
    cdef size_t used = decode_to(begin, p, size) - begin
    return out if used == size else out[:used]


cdef bytes bytes_of(text):
    return text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text


def percent_decode(text):
    """The bytes of a text (str or bytes) with its %XX decoded; `+` stays, as does a `%` that begins no %XX."""
    cdef bytes data = bytes_of(text)
    return decoded(<const uint8_t *>PyBytes_AS_STRING(data), len(data))


def percent_encode(text):
    """A str or bytes with everything but A-Z a-z 0-9 - . _ ~ as %XX."""
    cdef bytes data = bytes_of(text)
    cdef bytes out = PyBytes_FromStringAndSize(NULL, 3 * len(data))
    cdef uint8_t *begin = <uint8_t *>PyBytes_AS_STRING(out)
    cdef uint8_t *end = encode_to(begin, <const uint8_t *>PyBytes_AS_STRING(data), len(data))
    return (<const char *>begin)[:end - begin].decode("ascii")
