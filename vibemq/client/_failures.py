# SPDX-License-Identifier: Apache-2.0
"""What went wrong, for people: the error that fits a broker's answer, and a hint what to do about it."""

import contextlib
from collections.abc import Iterator

from vibemq import errors
from vibemq.errors import ProtocolError, RequestFailed, VibeMQError
from vibemq.protocols.micromsg2.spec import PORT_DEFAULT as MICROMSG2_PORT
from vibemq.protocols.native.spec import PORT_DEFAULT as NATIVE_PORT
from vibemq.protocols.native.spec import PORT_TLS_DEFAULT as NATIVE_PORT_TLS
from vibemq.protocols.native.spec import ErrorCode
from vibemq.protocols.streams.spec import PORT_DEFAULT as STREAMS_PORT
from vibemq.protocols.streams.spec import Code, code_name

# ---- what was refused: by the native door, whose codes are names, or by the streams door, whose codes are numbers ----

#: All other codes are a RequestFailed.
CODES_OF: dict[type[VibeMQError], tuple[str | int, ...]] = {
    errors.QueueNotFound: (ErrorCode.QUEUE_NOT_FOUND,),
    errors.NotAQueue: (ErrorCode.NOT_A_QUEUE,),
    errors.QueueExists: (ErrorCode.QUEUE_EXISTS,),
    errors.QueueFull: (ErrorCode.QUEUE_FULL,),
    errors.NotAuthorized: (ErrorCode.NOT_AUTHORIZED,),
    errors.InvalidRequest: (
        *(ErrorCode.INVALID_MESSAGE, ErrorCode.INVALID_QUEUE, ErrorCode.INVALID_PAYLOAD, ErrorCode.UNKNOWN_COMMAND),
    ),
    errors.RateLimited: (ErrorCode.RATE_LIMITED,),
    errors.AccountRefused: (ErrorCode.USER_EXISTS, ErrorCode.USER_NOT_FOUND, ErrorCode.FORBIDDEN),
    errors.ServerFailed: (ErrorCode.SERVER_ERROR,),
    errors.ConnectionClosed: (ErrorCode.CONNECTION_LIMIT,),
    errors.AuthenticationFailed: (
        *(ErrorCode.AUTH_FAILED, ErrorCode.AUTH_REQUIRED, ErrorCode.NOT_AUTHENTICATED),
        *(Code.AUTHENTICATION_FAILURE, Code.AUTHENTICATION_FAILURE_LOOPBACK),
        *(Code.SASL_ERROR, Code.SASL_MECHANISM_NOT_SUPPORTED),
    ),
    errors.StreamNotFound: (Code.STREAM_DOES_NOT_EXIST, Code.STREAM_NOT_AVAILABLE),
    errors.StreamExists: (Code.STREAM_ALREADY_EXISTS,),
}
ALARM = " alarm)"  # how a broker names one that keeps a message out
ERROR_OF = {code: kind for kind, codes in CODES_OF.items() for code in codes}
HINTS: dict[str | int, str] = {
    ErrorCode.QUEUE_NOT_FOUND: "`vibemq queues list` shows all, `vibemq queues create NAME` makes one; so does "
    "consuming with create=True, or --create.",
    ErrorCode.NOT_A_QUEUE: "Read it as a stream: with `vibemq streams tail NAME`, a stream client, or Spark. "
    "create=True, or --create, makes a queue of it for good, which keeps what the stream's retention keeps and has no "
    "limit of messages.",
    ErrorCode.QUEUE_EXISTS: "Use it as it is, or choose another name.",
    ErrorCode.QUEUE_FULL: "Its consumers do not keep up: add some, or let more messages wait in the queue.",
    ErrorCode.NOT_AUTHORIZED: "A superuser can grant the operation: `vibemq users grant NAME PATTERN OPERATION`.",
    ErrorCode.UNKNOWN_COMMAND: "The broker is too old for this, or users are not managed by commands there.",
    ErrorCode.RATE_LIMITED: "Send more slowly or use fewer, or have the limit raised (`vibemq ctl set_user_limits`).",
    ErrorCode.SERVER_ERROR: "The broker's log says what went wrong.",
    ErrorCode.AUTH_FAILED: "Check user name and password.",
    ErrorCode.AUTH_REQUIRED: "Give a user name and a password: vibemq://USER:PASSWORD@HOST, or --user NAME on the "
    "command line.",
    ErrorCode.CONNECTION_LIMIT: "Close connections that are not needed, or have the broker's limit raised.",
    Code.STREAM_DOES_NOT_EXIST: "Check its name and the virtual host (`vibemq streams list` shows what is there), or "
    "create it (`vibemq streams create NAME`, or `vibemq queues create NAME` as a queue).",
    Code.STREAM_NOT_AVAILABLE: "The stream's leader is changing or down; try again in a few seconds.",
    Code.STREAM_ALREADY_EXISTS: "Use it as it is, or choose another name.",
    Code.ACCESS_REFUSED: "Give the user the permission (configure, write or read) for this stream.",
    Code.PRECONDITION_FAILED: "A name, an argument, a limit, or a disk or memory alarm is in the way: the broker's log "
    "says which, and `vibemq ctl check_alarms` whether it is an alarm.",
    Code.VIRTUAL_HOST_ACCESS_FAILURE: "Check that the virtual host exists and that the user may use it.",
    Code.AUTHENTICATION_FAILURE: "Check user name and password.",
    Code.AUTHENTICATION_FAILURE_LOOPBACK: "This user may only connect from the broker's own machine; use another user.",
    Code.SASL_MECHANISM_NOT_SUPPORTED: "The broker does not offer this mechanism here; EXTERNAL needs a certificate.",
}


def refusal(where: str, code: str | None, message: str | None) -> VibeMQError:
    """The error for an Error frame of the native protocol."""
    code = code or ErrorCode.SERVER_ERROR.value
    error = _error(code, f"{where}: {message or 'the broker refused'} ({code})")
    if code == ErrorCode.SERVER_ERROR and ALARM in (message or ""):
        error.hint = ""  # the broker has said why, and when to try again
    return error


def failure(where: str, code: int) -> VibeMQError:
    """The error that fits a response code of the streams protocol."""
    return _error(code, f"{where}: the broker answered {code_name(code)}")


def _error(code: str | int, told: str) -> VibeMQError:
    kind, hint = ERROR_OF.get(code, RequestFailed), HINTS.get(code, "")
    return kind(told, code=code, hint=hint) if issubclass(kind, RequestFailed) else kind(told, hint=hint)


@contextlib.contextmanager
def cleaning_up(error: BaseException | None) -> Iterator[None]:
    """What fails in here is a note of the error that came first, and does not take its place.

    Without one it is raised, also where a reader only stopped early, which ends a generator by an exception.
    """
    try:
        yield
    except VibeMQError as second:
        if error is None or isinstance(error, GeneratorExit):
            raise
        error.add_note(f"Cleaning up after it failed, too: {second}")


# ---- another door than was meant ----

# how answers begin, who gives them, and which doors of a broker do
SPEAKERS = (
    (b"HTTP", "an HTTP server", "HTTP is spoken by the management API (2926) and the SignalR door (2927)."),
    (b"\x04\x33UN", "a MicroMsg2 peer", f"MicroMsg2 is spoken on port {MICROMSG2_PORT}."),
    (
        *(b"\x15\x03", "a TLS server"),
        f"TLS is spoken on ports of its own: native {NATIVE_PORT_TLS}, streams 5551, SignalR 2937, MicroMsg2 2938, "
        "management 2936.",
    ),
)
PORTS = {
    "native": f"native {NATIVE_PORT} (TLS {NATIVE_PORT_TLS})",
    "streams": f"streams {STREAMS_PORT} (TLS 5551)",
    "MicroMsg2": f"MicroMsg2 {MICROMSG2_PORT} (TLS 2938)",
    "SignalR": "SignalR 2927 (TLS 2937)",
    "management": "management 2926 (TLS 2936)",
}


def wrong_door(wanted: str, heard: bytes = b"") -> str:
    """A hint for whoever wanted one door and `heard` this from another, or nothing at all."""
    doors = f"The doors of a broker, unless configured otherwise: {', '.join(PORTS.values())}."
    for begin, _, where in SPEAKERS:
        if heard.startswith(begin):
            doors = f"{where} The {wanted} door: {PORTS[wanted]}, unless configured otherwise."
    return f"Is this the {wanted} port? {doors}"


def no_broker_hint(protocol: str) -> str:
    """Return the questions to ask where nothing takes a connection."""
    return (
        f"Does the broker run, is this its {protocol} port, and can this machine reach it? A broker in maintenance "
        "takes no connection either: `vibemq ctl status`, on its machine, says so."
    )


def is_known(heard: bytes) -> bool:
    """Return whether these first bytes say what answers there, which time does not change."""
    return any(heard.startswith(begin) for begin, _, _ in SPEAKERS)


def not_a_broker(peer: str, wanted: str, heard: bytes, problem: VibeMQError) -> ProtocolError:
    """What came from there is nothing that the wanted door of a broker says."""
    who = next((who for begin, who, _ in SPEAKERS if heard.startswith(begin)), "something else")
    return ProtocolError(
        f"{peer}: {who} answers there, not a broker's {wanted} door: {problem}", hint=wrong_door(wanted, heard)
    )
