# SPDX-License-Identifier: Apache-2.0
"""The first record of a peer: which encoding, and by having a version or not, which dialect."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vibemq.protocols.signalr import spec
from vibemq.protocols.signalr.envelope import parse_handshake
from vibemq.protocols.signalr.errors import refusing
from vibemq.protocols.signalr.spec import ENCODING_BY_NAME, PROTOCOL_VERSION_MAX, Dialect, Encoding

if TYPE_CHECKING:
    from vibemq.protocols.signalr.hub import HubConnection

STATEFUL_VERSION = 2


def take(hub: HubConnection, record: bytes) -> None:
    """Open the connection, or end it.  Raises ProtocolError when this is no handshake."""
    shake = parse_handshake(record)
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
    what = (hub.address, "handshake")
    refusing.say(what, "%s: closed in the handshake: %s", hub.peer, error or "not supported")
    if error is not None:
        hub.answer_handshake(error)
    hub.end_in_handshake(error)
