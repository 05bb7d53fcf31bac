# SPDX-License-Identifier: Apache-2.0
"""What went wrong, for people: the error that fits a broker's answer, and a hint what to do about it."""

from vibemq.errors import (
    AccountRefused,
    AuthenticationFailed,
    ConnectionClosed,
    InvalidRequest,
    NotAQueue,
    NotAuthorized,
    ProtocolError,
    QueueExists,
    QueueFull,
    QueueNotFound,
    RateLimited,
    RequestFailed,
    ServerFailed,
    StreamExists,
    StreamNotFound,
    VibeMQError,
)
from vibemq.protocols.micromsg2.spec import PORT_DEFAULT as MICROMSG2_PORT
from vibemq.protocols.native.spec import PORT_DEFAULT as NATIVE_PORT
from vibemq.protocols.native.spec import ErrorCode
from vibemq.protocols.streams.spec import PORT_DEFAULT as STREAMS_PORT
from vibemq.protocols.streams.spec import Code, code_name

# ---- refused by the native door ----

QUEUE_REFUSALS: dict[str, tuple[type[VibeMQError], str]] = {
    ErrorCode.QUEUE_NOT_FOUND: (
        QueueNotFound,
        "`vibemq queues list` shows all, `vibemq queues create NAME` makes one; so does consuming with create=True, or "
        "--create.",
    ),
    ErrorCode.NOT_A_QUEUE: (
        NotAQueue,
        "Read it as a stream: with `vibemq streams tail NAME`, a stream client, or Spark. create=True, or --create, "
        "makes a queue of it for good, which keeps what the stream's retention keeps and has no limit of messages.",
    ),
    ErrorCode.QUEUE_EXISTS: (QueueExists, "Use it as it is, or delete it first."),
    ErrorCode.QUEUE_FULL: (
        QueueFull,
        "Its consumers do not keep up: add some, or let more messages wait in the queue.",
    ),
    ErrorCode.NOT_AUTHORIZED: (
        NotAuthorized,
        "A superuser can grant the operation: `vibemq users grant NAME PATTERN OPERATION`.",
    ),
    ErrorCode.INVALID_MESSAGE: (InvalidRequest, ""),
    ErrorCode.INVALID_QUEUE: (InvalidRequest, ""),
    ErrorCode.INVALID_PAYLOAD: (InvalidRequest, ""),
    ErrorCode.UNKNOWN_COMMAND: (
        InvalidRequest,
        "The broker is too old for this, or users are not managed by commands there.",
    ),
    ErrorCode.RATE_LIMITED: (RateLimited, "Send more slowly, or have the limit raised in the broker's configuration."),
    ErrorCode.USER_EXISTS: (AccountRefused, ""),
    ErrorCode.USER_NOT_FOUND: (AccountRefused, ""),
    ErrorCode.FORBIDDEN: (AccountRefused, ""),
    ErrorCode.SERVER_ERROR: (ServerFailed, "The broker's log says what went wrong."),
    ErrorCode.AUTH_FAILED: (AuthenticationFailed, "Check user name and password."),
    ErrorCode.AUTH_REQUIRED: (
        AuthenticationFailed,
        "Give a user name and a password: vibemq://USER:PASSWORD@HOST, or --user NAME on the command line.",
    ),
    ErrorCode.NOT_AUTHENTICATED: (AuthenticationFailed, ""),
    ErrorCode.CONNECTION_LIMIT: (
        ConnectionClosed,
        "Close connections that are not needed, or have the broker's limit raised.",
    ),
}


def refusal(where: str, code: str | None, message: str | None) -> VibeMQError:
    """The error for an Error frame of the native protocol."""
    code = code or ErrorCode.SERVER_ERROR.value
    kind, hint = QUEUE_REFUSALS.get(code, (RequestFailed, ""))
    text = f"{where}: {message or 'the broker refused'} ({code})"
    return kind(text, code=code, hint=hint) if issubclass(kind, RequestFailed) else kind(text, hint=hint)


# ---- refused by the streams door ----

STREAM_HINTS: dict[int, str] = {
    Code.STREAM_DOES_NOT_EXIST: (
        "Check its name and the virtual host (`vibemq streams list` shows what is there), or create it "
        "(`vibemq streams create NAME`, or `vibemq queues create NAME` as a queue)."
    ),
    Code.STREAM_NOT_AVAILABLE: "The stream's leader is changing or down; try again in a few seconds.",
    Code.ACCESS_REFUSED: "Give the user the permission (configure, write or read) for this stream.",
    Code.PRECONDITION_FAILED: "An argument is not allowed, differs from the existing object's, or a limit is reached.",
    Code.VIRTUAL_HOST_ACCESS_FAILURE: "Check that the virtual host exists and that the user may use it.",
    Code.AUTHENTICATION_FAILURE: "Check user name and password.",
    Code.AUTHENTICATION_FAILURE_LOOPBACK: "This user may only connect from the broker's own machine; use another user.",
    Code.SASL_MECHANISM_NOT_SUPPORTED: "The broker does not offer this mechanism here; EXTERNAL needs a certificate.",
}
STREAM_LOGIN_CODES = frozenset(
    (
        Code.AUTHENTICATION_FAILURE,
        Code.AUTHENTICATION_FAILURE_LOOPBACK,
        Code.SASL_ERROR,
        Code.SASL_MECHANISM_NOT_SUPPORTED,
    )
)


def failure(where: str, code: int) -> VibeMQError:
    """The error that fits a response code of the streams protocol."""
    message, hint = f"{where}: the broker answered {code_name(code)}", STREAM_HINTS.get(code, "")
    if code in (Code.STREAM_DOES_NOT_EXIST, Code.STREAM_NOT_AVAILABLE):
        return StreamNotFound(message, hint=hint)
    if code in STREAM_LOGIN_CODES:
        return AuthenticationFailed(message, hint=hint)
    if code == Code.STREAM_ALREADY_EXISTS:
        return StreamExists(message, hint="Use it as it is, or delete it first.")
    return RequestFailed(message, code=code, hint=hint)


# ---- another door than was meant ----

# how answers begin, who gives them, and which doors of a broker do
SPEAKERS = (
    (b"HTTP", "an HTTP server", "HTTP is spoken by the management API (2926) and the SignalR door (2927)."),
    (b"\x04\x33UN", "a MicroMsg2 peer", f"MicroMsg2 is spoken on port {MICROMSG2_PORT}."),
    (b"\x15\x03", "a TLS server", "TLS is spoken on ports of its own: streams 5551, SignalR 2937, MicroMsg2 2938."),
)
PORTS = {
    "native": f"native {NATIVE_PORT}",
    "streams": f"streams {STREAMS_PORT} (TLS 5551)",
    "MicroMsg2": f"MicroMsg2 {MICROMSG2_PORT} (TLS 2938)",
    "SignalR": "SignalR 2927 (TLS 2937)",
    "management": "management 2926",
}


def wrong_door(wanted: str, heard: bytes = b"") -> str:
    """A hint for whoever wanted one door and `heard` this from another, or nothing at all."""
    found = next((where for begin, _, where in SPEAKERS if heard.startswith(begin)), "")
    doors = ", ".join(PORTS.values())
    return f"Is this the {wanted} port? {found or f'The doors of a broker, unless configured otherwise: {doors}.'}" + (
        f" The {wanted} door: {PORTS[wanted]}, unless configured otherwise." if found else ""
    )


def not_a_broker(peer: str, wanted: str, heard: bytes, problem: VibeMQError) -> ProtocolError:
    """What came from there is nothing that the wanted door of a broker says."""
    who = next((who for begin, who, _ in SPEAKERS if heard.startswith(begin)), "something else")
    return ProtocolError(
        f"{peer}: {who} answers there, not a broker's {wanted} door: {problem}", hint=wrong_door(wanted, heard)
    )
