# SPDX-License-Identifier: Apache-2.0
"""What the handlers of all commands share: answers, refusals, work in helper threads and the ends of a session.

Codes and delays: the RabbitMQ Streams protocol.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from vibemq.broker.admission import log_closing
from vibemq.errors import ConnectionClosed, LimitExceeded, ProtocolError, StorageError, StreamNotFound
from vibemq.once_a_minute import OnceAMinute
from vibemq.protocols.streams import spec
from vibemq.protocols.streams.codec import MalformedFrame, encode_response, encode_server_frame
from vibemq.protocols.streams.spec import AnyKey, Code, Key

if TYPE_CHECKING:
    from vibemq.broker.stream import Stream
    from vibemq.protocols.streams.session import StreamsSession

logger = logging.getLogger(__name__)
_unusable = OnceAMinute(logger, logging.ERROR)  # a client tries again for as long as it runs

HEARTBEAT = encode_server_frame(Key.HEARTBEAT)
#: Of our Close, as RabbitMQ numbers it.
SERVER_CORRELATION_ID = 1
OFFSET_MAX = 2**63 - 1


# ---- answers ----


def answer(session: StreamsSession, request: Any, key: AnyKey, code: Code = Code.OK, **fields: Any) -> None:
    session.write(encode_response(key, request.correlation_id, code, **fields))


def find(session: StreamsSession, request: Any, key: AnyKey) -> Stream | None:
    """The stream a request names; None after the error has been answered."""
    try:
        stream: Stream = session.door.table.find(session.virtual_host, request.stream)
        return stream
    except StreamNotFound:
        answer(session, request, key, Code.STREAM_DOES_NOT_EXIST)
    except StorageError as problem:
        _unusable.say(request.stream, "stream %s cannot be opened: %s", request.stream, problem)
        answer(session, request, key, Code.STREAM_NOT_AVAILABLE)
    return None


def offset_value(request: Any) -> int:
    """The offset or time a request names; an offset beyond every log is as good as the last one there can be."""
    return min(request.offset_value or 0, OFFSET_MAX)


# ---- peers that do not keep to the protocol ----


def malformed(session: StreamsSession, problem: MalformedFrame) -> None:
    refuse(session, str(problem))


def refuse(session: StreamsSession, why: str) -> None:
    """Before Open the socket closes without a word; afterwards with Close 13."""
    log_closing(session, "frame", "refused: %s", why)
    if session.state == "open":
        close(session, Code.UNKNOWN_FRAME, "unknown frame")
    else:
        session.finish()


def frame_too_large(session: StreamsSession, size: int, first: bytes) -> None:
    if session.state != "open" and first[:1] == bytes([spec.TLS_CLIENT_HELLO_FIRST_BYTE]):
        log_closing(session, "tls", "speaks TLS to the plain port, closed")
        session.finish()
        return
    log_closing(session, "size", "a frame of %d bytes, at most %d allowed", size, session.frame_max)
    if session.state == "open":
        close(session, Code.FRAME_TOO_LARGE, "frame too large")
    else:
        session.finish()


# ---- the ends of a session, and of its streams ----


def internal_error(session: StreamsSession, problem: BaseException) -> None:
    """What nobody expected is our fault, and the peer is told so, unless the connection has to end anyway."""
    if isinstance(problem, ConnectionClosed | LimitExceeded | ProtocolError):
        session.fail(problem)
        return
    logger.error("%s: closed by an error of ours", session.peer, exc_info=problem)
    if session.state == "open":
        close(session, Code.INTERNAL_ERROR, "internal error")
    else:
        session.finish()


def step_begins(session: StreamsSession) -> None:
    """Each step of the handshake has its own deadline; an open session has none."""
    door = session.door
    if session.state == "open":
        session.deadline_ms = 0
    else:
        session.deadline_ms = door.now_ms() + door.config.handshake_timeout_s * 1000
        session.at_deadline = _handshake_too_slow


def _handshake_too_slow(session: StreamsSession) -> None:
    log_closing(session, "slow", "no progress in state %s, closed", session.state)
    session.finish()


def close(session: StreamsSession, code: int, reason: str) -> None:
    """Our Close; the peer has CLOSE_WAIT_S for its answer."""
    session.write(encode_server_frame(Key.CLOSE, correlation_id=SERVER_CORRELATION_ID, code=code, reason=reason))
    session.state = "closing"
    session.deadline_ms = session.door.now_ms() + spec.CLOSE_WAIT_S * 1000
    session.at_deadline = _finish


def _finish(session: StreamsSession) -> None:
    session.finish()


def fail_later(session: StreamsSession, frame: bytes) -> None:
    """Hold the answer back, ignore all input, then close: guessing gets slow, nobody else does."""
    session.state = "refused"
    # One ms more: the clock's fraction was cut off, and the delay is a promise.
    session.deadline_ms = session.door.now_ms() + session.door.config.login_failure_delay_s * 1000 + 1
    session.at_deadline = lambda s: (s.write(frame), s.finish())


def stream_gone(session: StreamsSession, stream: Stream) -> None:
    """After the last publisher and subscription on a deleted stream is gone: once per connection."""
    if not session.uses(stream):
        stream_unavailable(session, stream.name)


def stream_unavailable(session: StreamsSession, name: str) -> None:
    session.write(encode_server_frame(Key.METADATA_UPDATE, code=Code.STREAM_NOT_AVAILABLE, stream=name))
