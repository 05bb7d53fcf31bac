# SPDX-License-Identifier: Apache-2.0
"""Raw JSON and MessagePack as values of Python and back, and the records that a hub writes of them, without their
framing; confirms and deliveries are written in place elsewhere.

Records obey the strictest client: absent members are left out, headers too, and an error is never empty nor beside a
result.
"""

from __future__ import annotations

import binascii
from typing import Any, NamedTuple

import msgspec
from msgspec import Raw

from vibemq.errors import LimitExceeded
from vibemq.protocols.signalr import spec
from vibemq.protocols.signalr.codec import is_json
from vibemq.protocols.signalr.spec import NOTHING, Dialect, Encoding, MalformedFrame, MessageType, ResultKind

# Of JSON and of MessagePack, as Encoding numbers them.
VALUES = (msgspec.json.Decoder(), msgspec.msgpack.Decoder())
ENCODERS = (msgspec.json.Encoder(), msgspec.msgpack.Encoder())
HOLE = b"\0hole\0"  # in the place of what is written later


def value_of(raw: bytes, encoding: int) -> Any:
    """Extension types come as msgspec.msgpack.Ext, timestamps as datetime.  Raises MalformedFrame."""
    try:
        return VALUES[encoding].decode(raw)
    except (ValueError, RecursionError, TypeError, OverflowError) as error:  # msgspec's own are ValueErrors
        raise MalformedFrame("value", "one value that can be read", f"{error}") from None


def raw_of(value: object, encoding: int) -> bytes:
    """Bytes are base64 in JSON."""
    return ENCODERS[encoding].encode(value)


# ---- text groups: what is around MessagePack records on a text transport of the early dialect ----


def group_encode(records: bytes) -> bytes:
    """One group, which is one event."""
    text = binascii.b2a_base64(records, newline=False)
    return b"%d:%b;" % (len(text), text)


def group_decode(data: bytes, record_max: int = spec.RECORD_BYTES_MAX_DEFAULT) -> tuple[bytes, int]:
    """The records in the whole groups at the beginning of `data`, joined, and the bytes that the groups took."""
    parts: list[bytes] = []
    text_max = (record_max + spec.VARINT_BYTES_MAX + 2) // 3 * 4
    at = 0
    while True:
        colon = data.find(b":", at, at + spec.GROUP_DIGITS_MAX + 1)
        digits = data[at:colon] if colon >= 0 else data[at:]
        if colon < 0 and len(digits) <= spec.GROUP_DIGITS_MAX and (digits.isdigit() or not digits):
            return b"".join(parts), at
        if not digits.isdigit() or len(digits) > spec.GROUP_DIGITS_MAX:
            raise MalformedFrame("length of a group", "decimal digits and a colon", f"{digits[:16]!r}")
        if int(digits) > text_max:
            raise LimitExceeded("characters of a group", int(digits), text_max)
        end = colon + 1 + int(digits)
        if len(data) <= end:
            return b"".join(parts), at
        if data[end] != 0x3B:
            raise MalformedFrame("group", f"a semicolon after {int(digits)} characters", f"{data[end : end + 1]!r}")
        try:
            parts.append(binascii.a2b_base64(data[colon + 1 : end], strict_mode=True))
        except binascii.Error as error:
            raise MalformedFrame("group", "base64", f"{error}") from None
        at = end + 1


# ---- handshakes: which encoding, and by having a version or not, which dialect ----


class Handshake(NamedTuple):
    """The first record of a client. Without a version it speaks the early dialect."""

    protocol: str
    version: int | None = None


def parse_handshake(record: bytes) -> Handshake:
    """What a client's first record says, which comes without its separator.  Raises MalformedFrame, LimitExceeded."""
    if len(record) > spec.HANDSHAKE_BYTES_MAX:
        raise LimitExceeded("bytes of a handshake", len(record), spec.HANDSHAKE_BYTES_MAX)
    if not is_json(record):
        raise MalformedFrame("handshake", "a JSON object in UTF-8", "something else")
    members = value_of(record, Encoding.JSON)
    if not isinstance(members, dict):
        raise MalformedFrame("handshake", "a JSON object", "another value")
    protocol = members.get("protocol")
    if not isinstance(protocol, str):
        raise MalformedFrame("handshake", "a protocol", "none")
    if "version" not in members:
        return Handshake(protocol)
    if type(members["version"]) is not int:
        raise MalformedFrame("handshake", "an integer as version", "another value")
    return Handshake(protocol, members["version"])


def handshake_answer(error: str | None = None) -> bytes:
    """The record that answers a handshake of version 1 or 2; early clients get none."""
    return raw_of({} if error is None else {"error": error}, Encoding.JSON) + spec.RECORD_SEPARATOR


# ---- records ----


def _record(dialect: int, encoding: int, members: dict[str, Any], *more: Any) -> bytes:
    """Members by their names in JSON; in MessagePack type and id in their places, and `more` behind them."""
    if encoding == Encoding.JSON:
        return raw_of(members, encoding)
    headers: list[Any] = [{}] if dialect == Dialect.V1 else []
    return raw_of([members["type"], *headers, members["invocationId"], *more], encoding)


def completion(dialect: int, encoding: int, id: str, value: Any = NOTHING, error: str | None = None) -> bytes:
    """The answer to a call; NOTHING: it has no result."""
    members: dict[str, Any] = {"type": MessageType.COMPLETION, "invocationId": id}
    if error is not None:
        members["error"] = error or spec.UNSPECIFIED_ERROR
        return _record(dialect, encoding, members, ResultKind.ERROR, members["error"])
    if value is NOTHING:
        return _record(dialect, encoding, members, ResultKind.VOID)
    raw = value if isinstance(value, Raw) else Raw(raw_of(value, encoding))
    if dialect == Dialect.V1 or bytes(raw) != b"null":  # which an early JSON peer reads as void
        members["result"] = raw
    return _record(dialect, encoding, members, ResultKind.VALUE, raw)


def stream_item(dialect: int, encoding: int, id: str, value: Any) -> bytes:
    return _record(dialect, encoding, {"type": MessageType.STREAM_ITEM, "invocationId": id, "item": value}, value)


def stream_end(dialect: int, encoding: int, id: str, error: str | None = None, is_modern: bool = False) -> bytes:
    """A Completion, but in the early dialect a StreamCompletion, unless it was called as a stream (`is_modern`)."""
    if dialect != Dialect.EARLY or is_modern:
        return completion(dialect, encoding, id, error=error or None)
    members: dict[str, Any] = {"type": MessageType.STREAM_INVOCATION, "invocationId": id}
    if not error:
        return _record(dialect, encoding, members)
    return _record(dialect, encoding, members | {"error": error}, error)


def ping(encoding: int) -> bytes:
    return raw_of({"type": MessageType.PING} if encoding == Encoding.JSON else [MessageType.PING], encoding)


def close(encoding: int, error: str | None = None, allow_reconnect: bool = False) -> bytes:
    """Early peers know none."""
    again = {"allowReconnect": True} if allow_reconnect else {}
    if encoding == Encoding.JSON:
        return raw_of({"type": MessageType.CLOSE} | ({"error": error} if error else {}) | again, encoding)
    return raw_of([MessageType.CLOSE, error or None, *again.values()], encoding)


def sequence(encoding: int, type: MessageType, number: int) -> bytes:
    """An Ack or a Sequence."""
    return raw_of({"type": type, "sequenceId": number} if encoding == Encoding.JSON else [type, number], encoding)


def item_parts(dialect: int, encoding: int, id: str) -> tuple[bytes, bytes]:
    """A stream item: what stands before its value, and what behind."""
    head, _, tail = stream_item(dialect, encoding, id, Raw(HOLE)).rpartition(HOLE)
    return head, tail


def call_parts(
    dialect: int, encoding: int, *, has_id: bool, is_answered: bool, target: str, queue: str
) -> tuple[bytes, bytes, bytes]:
    """A call of a peer's method with two arguments, the queue's name first: what stands before its id (a text of digits
    behind a letter), between that and the second argument, and behind it."""
    is_modern = dialect == Dialect.V1
    names = raw_of(target, encoding), raw_of(queue, encoding)
    if encoding == Encoding.JSON:
        flag = b"" if is_modern or is_answered else b',"nonblocking":true'
        begin = b'{"type":1,"invocationId":"' if has_id else b'{"type":1'
        return begin, b'%b%b,"target":%b,"arguments":[%b,' % (b'"' if has_id else b"", flag, *names), b"]}"
    begin = b"\x96\x01\x80" if is_modern else b"\x95\x01"
    flag = b"" if is_modern else b"\xc2" if is_answered else b"\xc3"
    return (begin if has_id else begin + b"\xc0"), flag + b"%b\x92%b" % names, b"\x90" if is_modern else b""
