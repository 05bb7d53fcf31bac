# SPDX-License-Identifier: Apache-2.0
"""How a session of the streams door ends, by the peer's fault or ours or too late, and that a stream has gone."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from vibemq.broker.admission import log_closing
from vibemq.errors import ConnectionClosed, LimitExceeded, ProtocolError
from vibemq.once_a_minute import OnceAMinute
from vibemq.protocols.streams import spec
from vibemq.protocols.streams.codec import encode_server_frame
from vibemq.protocols.streams.spec import Code, Key

if TYPE_CHECKING:
    from vibemq.broker.stream import Stream
    from vibemq.protocols.streams.session import StreamsSession

logger = logging.getLogger(__name__)
faults = OnceAMinute(logger, logging.ERROR)

#: Of our Close, as RabbitMQ numbers it.
SERVER_CORRELATION_ID = 1


def refuse(session: StreamsSession, why: object) -> None:
    """Before Open the socket closes without a word; afterwards with Close 13."""
    log_closing(session, "frame", "refused: %s", why)
    close(session, Code.UNKNOWN_FRAME, "unknown frame")


def frame_too_large(session: StreamsSession, size: int, first: bytes) -> None:
    if session.state != "open" and first[:1] == bytes([spec.TLS_CLIENT_HELLO_FIRST_BYTE]):
        log_closing(session, "tls", "speaks TLS to the plain port, closed")
    else:
        log_closing(session, "size", "a frame of %d bytes, at most %d allowed", size, session.frame_max)
    close(session, Code.FRAME_TOO_LARGE, "frame too large")


def internal_error(session: StreamsSession, problem: BaseException) -> None:
    """What nobody expected is our fault, and the peer is told so, unless the connection has to end anyway."""
    if isinstance(problem, ConnectionClosed | LimitExceeded | ProtocolError):
        session.fail(problem)
        return
    faults.say_fault(problem, "%s: closed by an error of ours", session.peer)
    close(session, Code.INTERNAL_ERROR, "internal error")


def step_begins(session: StreamsSession) -> None:
    """Each step of the handshake has its own deadline; an open session has none."""
    door = session.door
    if session.state == "open":
        session.deadline_ms = 0
    else:
        session.set_deadline(door.now_ms() + door.config.handshake_timeout_s * 1000, _handshake_too_slow)


def _handshake_too_slow(session: StreamsSession) -> None:
    log_closing(session, "slow", "no progress in state %s, closed", session.state)
    session.finish()


def close(session: StreamsSession, code: int, reason: str) -> None:
    """Our Close, where the connection is open; the peer has CLOSE_WAIT_S for its answer."""
    if session.state != "open":
        session.finish()
        return
    session.write(encode_server_frame(Key.CLOSE, correlation_id=SERVER_CORRELATION_ID, code=code, reason=reason))
    session.state = "closing"
    session.set_deadline(session.door.now_ms() + spec.CLOSE_WAIT_S * 1000, lambda s: s.finish())


def fail_later(session: StreamsSession, frame: bytes) -> None:
    """Hold the answer back, ignore all input, then close: guessing gets slow, nobody else does."""
    session.state = "refused"
    # One ms more: the clock's fraction was cut off, and the delay is a promise.
    at_ms = session.door.now_ms() + session.door.config.login_failure_delay_s * 1000 + 1
    session.set_deadline(at_ms, lambda s: (s.write(frame), s.finish()))


def expel(session: StreamsSession) -> None:
    """Take everything from a session whose virtual host is closed to its user, and end it after EXPELLED_WAIT_S.

    Meanwhile a SaslAuthenticate is answered: a client that renews its secret learns the reason.  Any other command
    ends the session at once.
    """
    session.drop_all()
    session.state = "expelled"
    session.set_deadline(session.door.now_ms() + spec.EXPELLED_WAIT_S * 1000, lambda s: s.finish())


def stream_gone(session: StreamsSession, stream: Stream) -> None:
    """After the last publisher and subscription on a deleted stream is gone: once per connection."""
    if not session.uses(stream):
        stream_unavailable(session, stream.name)


def stream_unavailable(session: StreamsSession, name: str) -> None:
    session.write(encode_server_frame(Key.METADATA_UPDATE, code=Code.STREAM_NOT_AVAILABLE, stream=name))
