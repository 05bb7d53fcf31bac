# SPDX-License-Identifier: Apache-2.0
"""The first record of a peer: which encoding, and by having a version or not, which dialect."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from vibemq.errors import LimitExceeded
from vibemq.protocols.signalr import spec
from vibemq.protocols.signalr.codec import is_json
from vibemq.protocols.signalr.records import MalformedFrame, raw_of, value_of
from vibemq.protocols.signalr.spec import ENCODING_BY_NAME, PROTOCOL_VERSION_MAX, Dialect, Encoding, refusing

if TYPE_CHECKING:
    from vibemq.protocols.signalr.hub import HubConnection

STATEFUL_VERSION = 2


class Handshake(NamedTuple):
    """The first record of a client. Without a version it speaks the early dialect."""

    protocol: str
    version: int | None = None


def parse(record: bytes) -> Handshake:
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


def answer(error: str | None = None) -> bytes:
    """The record that answers a handshake of version 1 or 2; early clients get none."""
    return raw_of({} if error is None else {"error": error}, Encoding.JSON) + spec.RECORD_SEPARATOR


def take(hub: HubConnection, record: bytes) -> None:
    """Open the connection, or end it.  Raises ProtocolError when this is no handshake."""
    shake = parse(record)
    encoding = ENCODING_BY_NAME.get(shake.protocol)
    if encoding is None:
        reject(hub, None if shake.version is None else spec.protocol_not_supported(shake.protocol))
    elif shake.version is None:
        hub.opened(Dialect.ALPHA2 if hub.is_alpha2 else Dialect.EARLY, encoding, False)
    elif not 0 <= shake.version <= PROTOCOL_VERSION_MAX:
        reject(hub, spec.version_not_supported(shake.protocol, shake.version))
    elif encoding == Encoding.MESSAGEPACK and not hub.carries_binary:
        reject(hub, spec.transport_not_binary(shake.protocol))
    else:
        hub.answer_handshake()
        hub.opened(Dialect.V1, encoding, shake.version == STATEFUL_VERSION and hub.wants_stateful)


def reject(hub: HubConnection, error: str | None) -> None:
    """A handshake that comes to nothing; early peers (None) read no answer."""
    what = (hub.host, "handshake")
    refusing.say(what, "%s: closed in the handshake: %s", hub.peer, error or "not supported")
    if error is not None:
        hub.answer_handshake(error)
    hub.end_in_handshake(error)
