# SPDX-License-Identifier: Apache-2.0
"""What the handlers of all commands answer with: replies, refusals and what failed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vibemq.broker.admission import log_closing, what_failed
from vibemq.protocols.native import compression
from vibemq.protocols.native.codec import Message, encode_body, frame_of
from vibemq.protocols.native.spec import COMPRESSION_BY_NAME, Command, ErrorCode

if TYPE_CHECKING:
    from vibemq.access.permissions import Operation
    from vibemq.protocols.native.session import NativeSession

#: The id of a frame that answers none.
FRESH_ID = b"server"


def reply(
    session: NativeSession,
    request: Message,
    command: Command,
    *,
    queue: str | None = None,
    payload: bytes | None = None,
    headers: dict[str, str] | None = None,
) -> None:
    """The answer to a request, compressed when that was agreed and is worth it; never larger than clients read."""
    body = encode_body(
        command, request.id, queue=queue, payload=payload, headers=headers, text_layout=session.text_layout
    )
    if session.compression and len(body) >= session.compression_threshold:
        packed = compression.compress(session.compression, body)
        if packed is not None and len(packed) <= session.frame_max:
            session.write(frame_of(packed, COMPRESSION_BY_NAME[session.compression]))
            return
    if len(body) > session.frame_max:
        text = f"The answer has {len(body)} bytes, more than the {session.frame_max} that clients read."
        error(session, request, ErrorCode.SERVER_ERROR, text)
        return
    session.write(frame_of(body))


def error(session: NativeSession, request: Message, code: str, text: str) -> None:
    session.refuse_frame(request.id, str(code).encode(), text.encode(errors="replace")[:65_535])


def not_authorized(session: NativeSession, request_id: bytes, operation: Operation, queue: str) -> None:
    """All that it tells, the peer has said itself: nobody has looked whether there is such a queue."""
    user = session.client.user
    text = f"Access denied. User '{user}' lacks the permission {operation.name} for queue '{queue}'."
    session.refuse_frame(request_id, ErrorCode.NOT_AUTHORIZED.encode(), text.encode(errors="replace"))


def refuse_framing(session: NativeSession, problem: Exception, request_id: bytes = b"") -> None:
    """Bytes that are no frame: say so, and close, because nobody knows where the next one begins."""
    log_closing(session, "frame", "refused: %s", problem)
    session.refuse_frame(request_id or FRESH_ID, ErrorCode.INVALID_MESSAGE.encode(), str(problem).encode()[:65_535])
    session.finish()


def failed(session: NativeSession, request: Message, problem: BaseException) -> None:
    """A handler or the disk failed: the peer is told, and goes on."""
    error(session, request, ErrorCode.SERVER_ERROR, what_failed(session.peer, problem))
