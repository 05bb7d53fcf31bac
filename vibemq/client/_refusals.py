# SPDX-License-Identifier: Apache-2.0
"""The error that fits an error code of the native protocol, with a hint for whoever reads it."""

from vibemq.errors import (
    AccountRefused,
    AuthenticationFailed,
    ConnectionClosed,
    InvalidRequest,
    NotAQueue,
    NotAuthorized,
    QueueExists,
    QueueFull,
    QueueNotFound,
    RateLimited,
    RequestFailed,
    ServerFailed,
    VibeMQError,
)
from vibemq.protocols.native.spec import ErrorCode

KINDS: dict[str, type[RequestFailed]] = {
    ErrorCode.QUEUE_NOT_FOUND: QueueNotFound,
    ErrorCode.NOT_A_QUEUE: NotAQueue,
    ErrorCode.QUEUE_EXISTS: QueueExists,
    ErrorCode.QUEUE_FULL: QueueFull,
    ErrorCode.NOT_AUTHORIZED: NotAuthorized,
    ErrorCode.INVALID_MESSAGE: InvalidRequest,
    ErrorCode.INVALID_QUEUE: InvalidRequest,
    ErrorCode.INVALID_PAYLOAD: InvalidRequest,
    ErrorCode.UNKNOWN_COMMAND: InvalidRequest,
    ErrorCode.RATE_LIMITED: RateLimited,
    ErrorCode.USER_EXISTS: AccountRefused,
    ErrorCode.USER_NOT_FOUND: AccountRefused,
    ErrorCode.FORBIDDEN: AccountRefused,
    ErrorCode.SERVER_ERROR: ServerFailed,
}
AUTHENTICATION = frozenset((ErrorCode.AUTH_FAILED, ErrorCode.AUTH_REQUIRED, ErrorCode.NOT_AUTHENTICATED))
HINTS: dict[str, str] = {
    ErrorCode.QUEUE_NOT_FOUND: (
        "`vibemq queues list` shows all, `vibemq queues create NAME` makes one; so does consuming with create=True, or "
        "--create."
    ),
    ErrorCode.NOT_A_QUEUE: (
        "Read it as a stream: with `vibemq streams tail NAME`, a stream client, or Spark. create=True, or --create, "
        "makes a queue of it for good, which keeps what the stream's retention keeps and has no limit of messages."
    ),
    ErrorCode.QUEUE_EXISTS: "Use it as it is, or delete it first.",
    ErrorCode.QUEUE_FULL: "Its consumers do not keep up: add some, or let more messages wait in the queue.",
    ErrorCode.NOT_AUTHORIZED: "A superuser can grant the operation: `vibemq users grant NAME PATTERN OPERATION`.",
    ErrorCode.RATE_LIMITED: "Send more slowly, or have the limit raised in the broker's configuration.",
    ErrorCode.AUTH_FAILED: "Check user name and password.",
    ErrorCode.AUTH_REQUIRED: (
        "Give a user name and a password: vibemq://USER:PASSWORD@HOST, or --user NAME on the command line."
    ),
    ErrorCode.CONNECTION_LIMIT: "Close connections that are not needed, or have the broker's limit raised.",
    ErrorCode.UNKNOWN_COMMAND: "The broker is too old for this, or users are not managed by commands there.",
    ErrorCode.SERVER_ERROR: "The broker's log says what went wrong.",
}


def refusal(where: str, code: str | None, message: str | None) -> VibeMQError:
    """The error for an Error frame."""
    code = code or ErrorCode.SERVER_ERROR.value
    text, hint = f"{where}: {message or 'the broker refused'} ({code})", HINTS.get(code, "")
    if code in AUTHENTICATION:
        return AuthenticationFailed(text, hint=hint)
    if code == ErrorCode.CONNECTION_LIMIT:
        return ConnectionClosed(text, hint=hint)
    return KINDS.get(code, RequestFailed)(text, code=code, hint=hint)
