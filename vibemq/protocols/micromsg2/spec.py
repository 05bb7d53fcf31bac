# SPDX-License-Identifier: Apache-2.0
"""The numbers, names and texts of MicroMsg2, version 1.0.

wire.pxd repeats the numbers that inline C needs; a test compares the two. Names of extensions that start with `x-` are
additions to the published protocol, as are the codes before the colon of an ERROR's text: codes never change, the words
behind them may.
"""

from __future__ import annotations

from enum import IntFlag, StrEnum

# ---- ports and versions ----

PORT_DEFAULT = 2928
MAJOR = 1
MINOR = 0
MINOR_SHARP_MESSAGING = 1  # how the .NET implementation numbers itself: it reads less than the protocol allows
IDENTITY = b"vibemq"

# ---- limits: each with its unit in its name and its reason beside it ----

HANDSHAKE_HEAD_BYTES = 4  # major, minor, flags, length of the identity
IDENTITY_BYTES_MAX = 255  # the length is a u8
HANDSHAKE_LIST_BYTES_MAX = 65_535  # the length is a u16
EXTENSIONS_MAX = 255  # an id is a u8, and 0 is none
EXTENSION_COMMAS_MAX = 255  # of a list, between properties: who has not logged in yet must not keep the loop busy
DESTINATION_BYTES_MAX = 255  # the length is a u8
PROPERTIES_BYTES_MAX = 65_535  # the length is a u16
PAYLOAD_BYTES_MAX_DEFAULT = 67_108_864  # of one message, in one frame or in fragments
FRAGMENT_BYTES = 1_048_576  # what is longer is written as several frames
SHORT_LENGTH_MAX = 255  # a longer payload needs LARGE_PAYLOAD
CONTROL_BYTES_MAX = 65_536  # of a COMMAND, an EXTENSION or an ERROR: none of them carries data
COMMAND_PAIRS_MAX = 255  # more would keep the loop busy, and no command needs so many
ERROR_BYTES_MAX = 255  # of a text that we write: the .NET implementation cuts longer ones
SEQUENCE_MAX = 65_535  # a u16; 1 follows
WINDOW_MAX = 10_000  # below half of the sequence numbers, or a number would be ambiguous
ACK_DELAY_MS = 50  # how long an acknowledgement may wait where the peer does not say when it loses patience

# Towards the .NET implementation: what it reads.
SHARP_PROPERTIES_BYTES_MAX = 256
SHARP_PAYLOAD_BYTES_MAX = 16_384
SHARP_PAYLOAD_BYTES_MAX_SERIALIZED = 255  # when its client negotiated a serializer


class Flag(IntFlag):
    """The first octet of a frame. None of COMMAND, EXTENSION, ERROR: a MESSAGE."""

    COMMAND = 1
    EXTENSION = 2
    ERROR = 4
    LARGE_PAYLOAD = 8
    CONTINUED = 16


FLAGS_RESERVED = 0xE0


# ---- what a frame may get wrong ----

# Negative results of wire.pxd's frame_parse: where, and what was needed there. The connection closes.
FRAME_FAULTS = {
    -1: ("flags", "one frame kind at most and no reserved bit"),
    -2: ("payload", "at most {limit} bytes"),
}


class ErrorCode(StrEnum):
    """What stands before the colon in the text of an ERROR."""

    PROTOCOL_ERROR = "PROTOCOL_ERROR"
    UNSUPPORTED_VERSION = "UNSUPPORTED_VERSION"
    UNSUPPORTED_EXTENSIONS = "UNSUPPORTED_EXTENSIONS"
    AUTH_REQUIRED = "AUTH_REQUIRED"
    AUTH_FAILED = "AUTH_FAILED"
    HANDSHAKE_TIMEOUT = "HANDSHAKE_TIMEOUT"
    TOO_SLOW = "TOO_SLOW"
    NO_DESTINATION = "NO_DESTINATION"
    QUEUE_NOT_FOUND = "QUEUE_NOT_FOUND"
    WRONG_KIND = "WRONG_KIND"
    NOT_AUTHORIZED = "NOT_AUTHORIZED"
    QUEUE_FULL = "QUEUE_FULL"
    MESSAGE_TOO_LARGE = "MESSAGE_TOO_LARGE"
    WINDOW_OVERRUN = "WINDOW_OVERRUN"
    BAD_COMMAND = "BAD_COMMAND"
    BAD_FILTER = "BAD_FILTER"
    NOT_SUPPORTED = "NOT_SUPPORTED"
    LIMIT_EXCEEDED = "LIMIT_EXCEEDED"
    SERVER_ERROR = "SERVER_ERROR"
    SHUTTING_DOWN = "SHUTTING_DOWN"
    INVALID_NAME = "INVALID_NAME"


# ---- extensions ----


class ExtensionName(StrEnum):
    JSON = "json"
    XML = "xml"
    PROTOBUF = "protobuf"
    DOTNET = "dotnet"
    ACK = "ack"
    BATCH_ACK = "batch-ack"
    PUB_SUB = "pub-sub"
    MICROAUTH = "microauth"
    REPLY = "x-reply"
    SUBSCRIBE = "x-subscribe"
    HEARTBEAT = "x-heartbeat"


# Other spellings of a name, in lower case.
EXTENSION_ALIASES = {
    "pubsub": ExtensionName.PUB_SUB,
    "pub/sub": ExtensionName.PUB_SUB,
    "publish-subscribe": ExtensionName.PUB_SUB,
}
# Several of these among what a client requires mean any of them. With the content type of the payloads.
SERIALIZERS: dict[str, str] = {
    ExtensionName.JSON: "application/json",
    ExtensionName.XML: "application/xml",
    ExtensionName.PROTOBUF: "application/x-protobuf",
}
# Only one is active. With the window where no count is given.
ACK_WINDOWS: dict[str, int] = {ExtensionName.ACK: 1, ExtensionName.BATCH_ACK: 10}
# What the .NET implementation knows; another name in its C2 breaks it.
SHARP_EXTENSIONS = frozenset((ExtensionName.JSON, ExtensionName.DOTNET, ExtensionName.ACK))

# Keys of extension properties, in lower case.
COUNT_KEY = "max-count"
COUNT_KEYS = frozenset((COUNT_KEY, "count", "batch-max", "batch-count", "messagesperack"))
ACK_EXPIRE_KEY = "ackexpiretime"
HEARTBEAT_KEY = "interval"

DOTNET_TYPE_NONE = "System.Object, mscorlib"  # of a message without a type behind one that had one

# ---- destinations ----

TOPIC_PREFIX = "topic/"
QUEUE_PREFIX = "queue/"
