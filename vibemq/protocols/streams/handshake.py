# SPDX-License-Identifier: Apache-2.0
"""The handshake: from PeerProperties to Open, one step after the other.

Codes and delays: the RabbitMQ Streams protocol.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any

from vibemq.protocols.streams.codec import encode_response, encode_server_frame
from vibemq.protocols.streams.replies import answer, fail_later, in_helper, step_begins
from vibemq.protocols.streams.spec import Code, Key

if TYPE_CHECKING:
    from vibemq.protocols.streams.session import StreamsSession

logger = logging.getLogger(__name__)


def peer_properties(session: StreamsSession, request: Any) -> None:
    session.peer_properties = request.properties
    answer(session, request, Key.PEER_PROPERTIES, properties=session.door.properties)


def sasl_handshake(session: StreamsSession, request: Any) -> None:
    answer(session, request, Key.SASL_HANDSHAKE, mechanisms=["PLAIN"])


def sasl_authenticate(session: StreamsSession, request: Any) -> None:
    if request.mechanism != "PLAIN":
        answer(session, request, Key.SASL_AUTHENTICATE, Code.SASL_MECHANISM_NOT_SUPPORTED)
        session.finish()
        return
    parts = request.data.split(b"\0")
    try:
        if len(parts) != 3 or parts[0]:
            raise ValueError("not three parts with an empty first one")
        user, password = parts[1].decode(), parts[2].decode()
    except ValueError:
        answer(session, request, Key.SASL_AUTHENTICATE, Code.SASL_ERROR)
        session.finish()
        return
    door = session.door
    verdict = door.authenticator.check_cached(user, password, session.is_loopback)
    if verdict is not None:
        _authenticated(session, request, user, verdict)
        return
    loopback = session.is_loopback

    def done(verdict: Any, error: BaseException | None) -> None:
        if error is not None:
            logger.error("%s: login could not be checked: %s", session.peer, error)
            answer(session, request, Key.SASL_AUTHENTICATE, Code.INTERNAL_ERROR)
            session.finish()
        else:
            _authenticated(session, request, user, verdict)

    work = partial(door.authenticator.check, user, password, loopback)
    in_helper(session, work, done, submit=door.helpers.submit_hash)


def _authenticated(session: StreamsSession, request: Any, user: str, verdict: Any) -> None:
    if verdict.name == "OK":
        answer(session, request, Key.SASL_AUTHENTICATE)
        config = session.door.config
        # The very next frame: one client insists on it.
        session.write(encode_server_frame(Key.TUNE, frame_max=config.frame_max_bytes, heartbeat=config.heartbeat_s))
        session.state = "tuning"
        step_begins(session)
    elif verdict.name == "LOOPBACK_ONLY":
        answer(session, request, Key.SASL_AUTHENTICATE, Code.AUTHENTICATION_FAILURE_LOOPBACK)
        session.finish()
    else:
        logger.warning("%s: login refused for user %r", session.peer, user)
        fail_later(
            session,
            encode_response(Key.SASL_AUTHENTICATE, request.correlation_id, Code.AUTHENTICATION_FAILURE),
        )


def tune(session: StreamsSession, request: Any) -> None:
    ours, theirs = session.door.config.frame_max_bytes, request.frame_max
    session.negotiated_frame_max = min(ours, theirs) if ours and theirs else ours or theirs
    session.heartbeat_s = request.heartbeat  # verbatim: a client that answers 0 never sends any


def open_(session: StreamsSession, request: Any) -> None:
    if request.virtual_host != "/":
        logger.warning("%s: virtual host %r does not exist", session.peer, request.virtual_host)
        fail_later(session, encode_response(Key.OPEN, request.correlation_id, Code.VIRTUAL_HOST_ACCESS_FAILURE))
        return
    session.virtual_host = request.virtual_host
    session.frame_max = session.negotiated_frame_max
    host, port = advertised(session)
    answer(session, request, Key.OPEN, properties={"advertised_host": host, "advertised_port": str(port)})
    session.start_heartbeats(session.door.now_ms())


def advertised(session: StreamsSession) -> tuple[str, int]:
    """The address the client evidently reached us by, unless configured."""
    config = session.door.config
    host = config.advertised_host or ("localhost" if session.is_loopback else session.local_host)
    return host, config.advertised_port or session.local_port
