# SPDX-License-Identifier: Apache-2.0
"""Whole hub messages for tests: what the broker reads and writes as values, and what clients write.

Reading is the broker's own; so is the writing of all that it writes itself.  Calls, cancellations and Closes of clients
are written here.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from vibemq.errors import VibeMQError
from vibemq.protocols.signalr import records, spec
from vibemq.protocols.signalr.codec import elements_of, parts_of, split_records, texts_of
from vibemq.protocols.signalr.records import raw_of, value_of
from vibemq.protocols.signalr.spec import NOTHING, Dialect, Encoding, MessageType

__all__ = ["Message", "UnencodableValue", "decode", "encode", "split_records", "type_of"]


class UnencodableValue(VibeMQError, ValueError):
    """A message that the dialect cannot carry: where, what was needed there, what there was."""

    def __init__(self, where: str, needed: str, had: str) -> None:
        super().__init__(f"{where}: needed {needed}, had {had}")


class Message(NamedTuple):
    """One hub message. `payload` is an item or a result; NOTHING where there is none, as None is a value."""

    type: int
    id: str | None = None
    target: str | None = None
    arguments: list[Any] = []  # noqa: RUF012  nobody changes it
    stream_ids: list[str] = []  # noqa: RUF012
    nonblocking: bool = False
    payload: Any = NOTHING
    error: str | None = None
    allow_reconnect: bool = False
    sequence: int = 0


def type_of(record: bytes, encoding: int, dialect: int = Dialect.V1) -> int:
    """The type of a record, which is checked whole, without a look at its values; 0: one that nobody knows."""
    return parts_of(record, encoding, dialect)[0]  # type: ignore[no-any-return]


def decode(record: bytes, encoding: int, dialect: int = Dialect.V1) -> Message | None:
    """The Message in a record that comes without its framing; None: a type that nobody knows, to be ignored."""
    m = parts_of(record, encoding, dialect)
    type, id, target, arguments, count, stream_ids, nonblocking, payload, error, allow_reconnect, number = m
    if type == 0:
        return None
    values = [value_of(each, encoding) for each in elements_of(arguments, encoding)] if arguments else []
    assert len(values) == count
    return Message(
        type,
        None if id is None else id.decode(),
        None if target is None else target.decode(),
        values,
        [id.decode() for id in texts_of(stream_ids, encoding)] if stream_ids else [],
        nonblocking,
        NOTHING if payload is None else value_of(payload, encoding),
        None if error is None else error.decode(),
        allow_reconnect,
        number,
    )


def encode(message: Message, encoding: int, dialect: int = Dialect.V1) -> bytes:
    """A Message as a record with its framing."""
    body = body_of(message, encoding, dialect)
    if encoding == Encoding.JSON:
        return body + spec.RECORD_SEPARATOR
    size, prefix = len(body), b""
    while size >= 0x80:
        prefix, size = prefix + bytes([size & 0x7F | 0x80]), size >> 7
    return prefix + bytes([size]) + body


def body_of(m: Message, encoding: int, dialect: int) -> bytes:
    is_early = dialect != Dialect.V1
    if m.type not in set(MessageType) or (
        m.type >= MessageType.PING and is_early != (m.type == MessageType.STREAM_COMPLETION)
    ):
        raise UnencodableValue("type", "one of the dialect", f"{m.type}")
    if m.type == MessageType.PING:
        return records.ping(encoding)
    if m.type == MessageType.CLOSE:
        return records.close(encoding, m.error, m.allow_reconnect)
    if m.type in (MessageType.ACK, MessageType.SEQUENCE):
        if m.sequence < 0:
            raise UnencodableValue("sequenceId", "a number that is not negative", f"{m.sequence}")
        return records.sequence(encoding, MessageType(m.type), m.sequence)
    if m.type in (MessageType.INVOCATION, MessageType.STREAM_INVOCATION):
        return call_of(m, encoding, dialect)
    id = text_of(m.id, "invocationId", spec.ID_BYTES_MAX)
    if m.error is not None and m.payload is not NOTHING:
        raise UnencodableValue("error", "either a result or an error", "both")
    if m.type == MessageType.STREAM_ITEM:
        if m.payload is NOTHING:
            raise UnencodableValue("item", "a value", "none")
        return records.stream_item(dialect, encoding, id, m.payload)
    if m.type == MessageType.COMPLETION:
        return records.completion(dialect, encoding, id, m.payload, m.error)
    if m.type == MessageType.STREAM_COMPLETION:
        return records.stream_end(dialect, encoding, id, m.error)
    if encoding == Encoding.JSON:
        return raw_of({"type": m.type, "invocationId": id}, encoding)
    return raw_of([m.type, id] if is_early else [m.type, {}, id], encoding)


def call_of(m: Message, encoding: int, dialect: int) -> bytes:
    is_early = dialect != Dialect.V1
    if m.id is None and (is_early or m.type == MessageType.STREAM_INVOCATION):
        raise UnencodableValue("invocationId", "a str", "None")
    id = None if m.id is None else text_of(m.id, "invocationId", spec.ID_BYTES_MAX)
    target = text_of(m.target, "target", spec.TARGET_BYTES_MAX)
    if encoding == Encoding.MESSAGEPACK:
        if is_early:
            return raw_of([m.type, id, m.nonblocking, target, m.arguments], encoding)
        return raw_of([m.type, {}, id, target, m.arguments, m.stream_ids], encoding)
    members: dict[str, Any] = {"type": m.type}
    if id is not None:
        members["invocationId"] = id
    if m.nonblocking and is_early:
        members["nonblocking"] = True
    members |= {"target": target, "arguments": m.arguments}
    if m.stream_ids:
        members["streamIds"] = m.stream_ids
    return raw_of(members, encoding)


def text_of(value: str | None, where: str, size_max: int) -> str:
    if not isinstance(value, str):
        raise UnencodableValue(where, "a str", type(value).__name__)
    if len(value.encode()) > size_max:
        raise UnencodableValue(where, f"at most {size_max} bytes", "more")
    return value
