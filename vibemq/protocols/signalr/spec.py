# SPDX-License-Identifier: Apache-2.0
"""The numbers, names and texts of the SignalR hub protocol: the early dialect of 2017, version 1, and 2 on top of it.

Existing clients match on some of the texts, so they are written once, here. codec.pxd and wire.pxd repeat the numbers
that inline C needs; a test compares them.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum

import msgspec

from vibemq.errors import ProtocolError

# ---- framing ----

PORT_DEFAULT = 2927
RECORD_SEPARATOR = b"\x1e"  # ends a JSON record; control characters are escaped in JSON, so it is in none
VARINT_BYTES_MAX = 5  # of a length before a MessagePack record
VARINT_MAX = 0x7FFFFFFF
PROTOCOL_VERSION_MAX = STATEFUL_VERSION = 2  # 2 is 1 with Ack and Sequence
NEGOTIATE_VERSION_MAX = 1

# ---- limits: each with its unit in its name and its reason beside it ----

RECORD_BYTES_MAX_DEFAULT = 1_048_576  # as the other doors' frames, so what comes in here can leave there
RECORD_DEPTH_MAX = 64  # arrays and maps inside each other; no body gets deeper than native peers read
HANDSHAKE_BYTES_MAX = 4_096  # it is two members; whoever sends more has not yet said who he is
ID_BYTES_MAX = 256  # of an invocation or an upload: kept until it ends
TARGET_BYTES_MAX = 1_024  # of a method's name: an error repeats it
GROUP_DIGITS_MAX = 10  # of a length in the early text framing
STREAM_IDS_MAX = 64  # uploads that one invocation may open: each is kept until it ends
CONNECTION_ID_BYTES = 16  # random: what others may see of a hub connection, and no two have
CLOSE_TIMEOUT_S = 5  # for the peer's half of a WebSocket close
LAST_POLL_WAIT_S = 2  # for a peer that polls to fetch its Close, while the broker ends
STATEFUL_BUFFER_BYTES_MAX = 100_000  # not acknowledged, kept for a stateful reconnect; what clients keep too

NUMBER_MAX = 2**53 - 1  # what every client's numbers reach
GIVEN_ID_BYTES_MAX = 1024  # of a message id or a key: they are in each delivery

# Transports, as negotiating lists them.
WEB_SOCKETS, SERVER_SENT_EVENTS, LONG_POLLING = "WebSockets", "ServerSentEvents", "LongPolling"

NOTHING = msgspec.UNSET  # no value, where None is one

# ---- what a record is ----


class Dialect(IntEnum):
    """How the hub speaks on a connection. ALPHA2 is EARLY, but its streams end with a Completion."""

    V1 = 0
    EARLY = 1
    ALPHA2 = 2


class Encoding(IntEnum):
    JSON = 0
    MESSAGEPACK = 1


ENCODING_BY_NAME = {"json": Encoding.JSON, "messagepack": Encoding.MESSAGEPACK}


class MessageType(IntEnum):
    """The first thing in a record. The early dialect writes its STREAM_COMPLETION as 4, without a target."""

    INVOCATION = 1
    STREAM_ITEM = 2
    COMPLETION = 3
    STREAM_INVOCATION = 4
    CANCEL_INVOCATION = 5
    PING = 6
    CLOSE = 7
    ACK = 8
    SEQUENCE = 9
    STREAM_COMPLETION = 10


class ResultKind(IntEnum):
    """What a Completion brings, as MessagePack numbers it."""

    ERROR = 1
    VOID = 2
    VALUE = 3


# ---- errors of hub methods ----


class ErrorCode(StrEnum):
    """What stands before the colon in an error of a hub method. Codes never change; the words behind may."""

    INVALID_ARGUMENT = "INVALID_ARGUMENT"
    INVALID_BODY = "INVALID_BODY"
    INVALID_NAME = "INVALID_NAME"
    QUEUE_NOT_FOUND = "QUEUE_NOT_FOUND"
    QUEUE_FULL = "QUEUE_FULL"
    PRECONDITION_FAILED = "PRECONDITION_FAILED"
    NOT_AUTHORIZED = "NOT_AUTHORIZED"
    LIMIT_EXCEEDED = "LIMIT_EXCEEDED"
    NOT_SUPPORTED = "NOT_SUPPORTED"
    SERVER_ERROR = "SERVER_ERROR"


class MalformedFrame(ProtocolError, ValueError):
    """The peer's bytes are not the record they claim to be: where, what was needed there, what there was."""

    def __init__(self, where: str, needed: str, had: str) -> None:
        super().__init__(f"{where}: needed {needed}, had {had}")
        self.where, self.needed, self.had = where, needed, had


class HubError(Exception):
    """A method refuses: a stable code for programs, and for people what to do."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


def lacks_right(user: str, right: str, queue: str) -> str:
    return f"User '{user}' lacks the permission {right} for '{queue}'; ask an administrator."


def hub_exception(where: str, text: str, dialect: Dialect) -> str:
    """The error of a method as a client gets it: a HubException, or bare on an early connection."""
    return f"{where} HubException: {text}" if dialect == Dialect.V1 else text


STREAMING = "An error occurred on the server while streaming results."  # after a stream has begun
# Texts around what fills them, in this order.
invoking = "An unexpected error occurred invoking '{}' on the server.".format
unknown_method = "Unknown hub method '{}'".format
binding_failed = "Failed to invoke '{}' due to an error on the server. InvalidDataException: {}".format
streaming_method_invoked = (
    "The client attempted to invoke the streaming '{}' method with a non-streaming invocation.".format
)
method_streamed = "The client attempted to invoke the non-streaming '{}' method with a streaming invocation.".format
id_in_use = "Invocation ID '{}' is already in use.".format


def closed_with_error(detail: str = "") -> str:
    """For a Close; `detail` as in "ProtocolError: record: needed ...", or nothing."""
    return f"Connection closed with an error. {detail}".rstrip()


SERVER_SHUTTING_DOWN = "Server shutting down"
HANDSHAKE_CANCELED = "Handshake was canceled."
UNSPECIFIED_ERROR = "Unspecified error"  # in the place of an empty one, which clients read as success

# ---- answers to a handshake ----

protocol_not_supported = "The protocol '{}' is not supported.".format
version_not_supported = "The server does not support version {1} of the '{0}' protocol.".format
transport_not_binary = (
    "Cannot use the '{}' protocol on the current transport. The transport does not support 'Binary' transfer format."
).format
