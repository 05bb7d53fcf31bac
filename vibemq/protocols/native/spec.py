# SPDX-License-Identifier: Apache-2.0
"""The numbers and names of the VibeMQ protocol, version 1.1, and the table of its commands.

COMMANDS is the only description of who sends what, what answers it and which permission it needs: the session compiles
its dispatch from it and the tests walk it. wire.pxd repeats the numbers that inline C needs; a test compares the two.
VibeMQ's additions to the protocol (NACK, HOLDING, PURGE_QUEUE, zstd) are sent only to a peer that named them in its
Connect.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum

# ---- ports and framing ----

PORT_DEFAULT = 2925
PORT_TLS_DEFAULT = 2935
WIRE_VERSION = 1  # written always, never checked: 1.1 added the flags byte and left this number alone

# ---- limits: each with its unit in its name and its reason beside it ----

FRAME_BODY_BYTES_MIN = 2  # version and type
FRAME_BODY_BYTES_MAX_DEFAULT = 1_048_576  # fixed in .NET clients: one larger frame ends their read loop
DECOMPRESSED_BYTES_MAX_DEFAULT = 67_108_864  # what a .NET peer would inflate; before Connect the frame maximum holds
STRING_BYTES_MAX = 65_535  # the length is a u16
HEADERS_COUNT_MAX_ON_WIRE = 65_535  # the count is a u16
HEADERS_MAX = 50  # of a client's frame; ours come on top
HEADER_VALUE_UNITS_MAX = 4_096  # UTF-16 code units, because .NET counts in them
QUEUE_NAME_UNITS_MAX = 256
JSON_DEPTH_MAX = 64  # .NET peers parse every payload, and no deeper
COMPRESSION_THRESHOLD_BYTES_DEFAULT = 1_024  # below it the saving is not worth the work
KEEP_ALIVE_S = 30  # how often clients ping
COMMAND_TIMEOUT_S = 10


class Command(IntEnum):
    CONNECT = 0
    CONNECT_ACK = 1
    DISCONNECT = 2
    PING = 10
    PONG = 11
    PUBLISH = 20
    PUBLISH_ACK = 21
    SUBSCRIBE = 22
    SUBSCRIBE_ACK = 23
    UNSUBSCRIBE = 24
    UNSUBSCRIBE_ACK = 25
    DELIVER = 26
    PUBLISH_STORED = 27
    ACK = 30
    NACK = 31
    HOLDING = 32
    CREATE_QUEUE = 40
    DELETE_QUEUE = 41
    QUEUE_INFO = 42
    LIST_QUEUES = 43
    PURGE_QUEUE = 44
    ALTER_QUEUE = 45
    ADMIN_CREATE_USER = 50
    ADMIN_DELETE_USER = 51
    ADMIN_CHANGE_PASSWORD = 52
    ADMIN_GRANT_PERMISSION = 53
    ADMIN_REVOKE_PERMISSION = 54
    ADMIN_LIST_USERS = 55
    ADMIN_GET_USER_PERMISSIONS = 56
    ERROR = 99


def command_name(number: int) -> str:
    """For people: `PUBLISH (20)`, or `unknown command (77)`, since peers may be newer than we are."""
    try:
        return f"{Command(number).name} ({number})"
    except ValueError:
        return f"unknown command ({number})"


class Compression(IntEnum):
    """The flags byte of a frame: an enumeration, not bits. ZSTD only where both sides agreed on it."""

    NONE = 0
    GZIP = 1
    BROTLI = 2
    ZSTD = 3


COMPRESSION_BY_NAME = {"gzip": Compression.GZIP, "brotli": Compression.BROTLI, "zstd": Compression.ZSTD}
FLAGS_MAX_DEFAULT = Compression.BROTLI  # a peer that has not negotiated zstd may not send it


class DeliveryMode(IntEnum):
    ROUND_ROBIN = 0
    FAN_OUT_WITH_ACK = 1
    FAN_OUT_WITHOUT_ACK = 2
    PRIORITY_BASED = 3


class OverflowStrategy(IntEnum):
    DROP_OLDEST = 0
    DROP_NEWEST = 1
    BLOCK_PUBLISHER = 2
    REDIRECT_TO_DLQ = 3


class Priority(IntEnum):
    LOW = 0
    NORMAL = 1
    HIGH = 2
    CRITICAL = 3


class QueueOperation(IntEnum):
    """What a permission allows."""

    PUBLISH = 0
    SUBSCRIBE = 1
    CREATE_QUEUE = 2
    DELETE_QUEUE = 3
    PURGE_QUEUE = 4
    GET_QUEUE_INFO = 5
    LIST_QUEUES = 6


def wire_name(member: IntEnum) -> str:
    """FAN_OUT_WITH_ACK -> FanOutWithAck, as the wire spells the members of every enumeration above."""
    return "".join(word.capitalize() for word in member.name.split("_"))


class ErrorCode(StrEnum):
    """The first string of an Error."""

    AUTH_REQUIRED = "AUTH_REQUIRED"
    AUTH_FAILED = "AUTH_FAILED"
    NOT_AUTHENTICATED = "NOT_AUTHENTICATED"
    CONNECTION_LIMIT = "CONNECTION_LIMIT"
    RATE_LIMITED = "RATE_LIMITED"
    INVALID_MESSAGE = "INVALID_MESSAGE"
    INVALID_QUEUE = "INVALID_QUEUE"
    NOT_AUTHORIZED = "NOT_AUTHORIZED"
    INVALID_PAYLOAD = "INVALID_PAYLOAD"
    USER_EXISTS = "USER_EXISTS"
    USER_NOT_FOUND = "USER_NOT_FOUND"
    FORBIDDEN = "FORBIDDEN"
    UNKNOWN_COMMAND = "UNKNOWN_COMMAND"
    QUEUE_NOT_FOUND = "QUEUE_NOT_FOUND"
    QUEUE_EXISTS = "QUEUE_EXISTS"
    QUEUE_FULL = "QUEUE_FULL"
    NOT_A_QUEUE = "NOT_A_QUEUE"  # ours, told only to those who sent the header vibemq-create
    SERVER_ERROR = "SERVER_ERROR"


class Header(StrEnum):
    """Names of headers that a side of ours sets or reads, case-sensitive as all keys are."""

    AUTH_USERNAME = "authUsername"
    AUTH_PASSWORD = "authPassword"
    CLIENT_VERSION = "clientVersion"
    SERVER_VERSION = "serverVersion"
    CONNECTION_ID = "connectionId"
    SUPPORTED_COMPRESSION = "supported-compression"
    NEGOTIATED_COMPRESSION = "negotiated-compression"
    FEATURES = "features"  # ours: names of FEATURES with commas, in Connect those wanted, in ConnectAck those given
    CLIENT = "vibemq-client"  # ours: with which digits the ids begin that are numbers, for the feature dedup
    FORM = "vibemq-form"  # ours: which form of messages Subscribe asks for
    CREATE = "vibemq-create"  # ours: whether Subscribe makes a queue, also of a stream
    SUBSCRIBER = "vibemq-subscriber"  # VibeMQ's: in Subscribe, the name of a fan-out's member
    SUBSCRIBER_TTL = "vibemq-subscriber-ttl"  # VibeMQ's: seconds to live of the name without its connection
    REASON = "reason"
    PRIORITY = "priority"
    MESSAGE_ID = "messageId"
    QUEUE_NAME = "queueName"
    SUBSCRIPTION_ID = "subscriptionId"
    PAYLOAD_ENCODING = "payload-encoding"
    ORIGINAL_QUEUE = "x-original-queue"


REASON_SERVER_SHUTDOWN = "server_shutdown"
PAYLOAD_ENCODING_BASE64 = "base64"
DEAD_LETTER_SUFFIX = ".dlq"  # of the dead-letter queue's name where none was given
FEATURES = {
    "nack": Command.NACK,
    "holding": Command.HOLDING,
    "purge": Command.PURGE_QUEUE,
    "stored": Command.PUBLISH_STORED,
    "alter": Command.ALTER_QUEUE,
}
# With the feature `stored` the payload of a PublishStored is the message as it is stored, and so is that of a Deliver
# to a Subscribe with the header vibemq-form: its id, the types of its headers and all else of it pass as they are.
FORM_STORED = "stored"
STORED_EXTRA_BYTES = 131_072  # by which such a frame may be larger: the id is in it twice, and AMQP adds to it
# A feature that is no command: ids are 16 hexadecimal digits of the client and 16 of a number that rises. A message
# whose number is not above the last stored one of its client and queue is confirmed and not stored again.
FEATURE_DEDUP = "dedup"
LOGIN_FRAME_BYTES_MAX = 16_000  # a Connect has some hundred; strangers may keep no more (net/connection.pyx)
DEDUP_CLIENT_BYTES = 16  # hex digits of a client, before as many of its message numbers (session.pyx)
FEATURE_NAMES = (*FEATURES, FEATURE_DEDUP)

# ---- what a frame may get wrong ----

# Negative results of wire.pxd's frame_header and frame_parse: where, and what was needed there. The connection closes.
FRAME_FAULTS = {
    -1: ("body size", f"{FRAME_BODY_BYTES_MIN} bytes or more"),
    -2: ("body size", "at most {needed} bytes"),
    -3: ("compression flags", "a known and negotiated compression"),
    -4: ("version and type", "{needed} bytes"),
    -5: ("id", "{needed} bytes"),
    -6: ("id", "at least one byte"),
    -7: ("queue", "{needed} bytes"),
    -8: ("payload", "{needed} bytes"),
    -9: ("headers", "{needed} bytes"),
    -10: ("error strings", "{needed} bytes"),
}

# Positive results of wire.pxd's frame_check: the text of the Error INVALID_MESSAGE. The connection stays open.
CHECK_FAULTS = {
    1: f"Queue name exceeds maximum length ({QUEUE_NAME_UNITS_MAX}).",
    2: "Queue name may hold letters, digits, '-', '_' and '.' only.",
    3: f"Message has more than {HEADERS_MAX} headers.",
    4: f"Header value exceeds maximum length ({HEADER_VALUE_UNITS_MAX}).",
    5: f"Payload must be one JSON value in UTF-8, nested no deeper than {JSON_DEPTH_MAX} levels.",
}

# ---- the commands ----


@dataclass(frozen=True, slots=True)
class CommandRule:
    """One command that a frame can be.

    sent_by: who may send the frame with this number.
    reply: the number of the answer when all went well; None where nothing is answered.
    operation: what the user must be allowed for the frame's queue.
    needs_queue: without a queue field the answer is INVALID_QUEUE.
    before_connect: legal before a successful Connect.
    admin: unknown while authorization is off.
    feature: the name with which a peer must have asked for it.
    """

    command: Command
    sent_by: frozenset[str]
    reply: Command | None = None
    operation: QueueOperation | None = None
    needs_queue: bool = False
    before_connect: bool = False
    admin: bool = False
    feature: str | None = None

    @property
    def name(self) -> str:
        return wire_name(self.command)


CLIENT, SERVER, BOTH = frozenset({"client"}), frozenset({"server"}), frozenset({"client", "server"})


def _queue(command: Command, reply: Command, operation: QueueOperation, feature: str | None = None) -> CommandRule:
    """A command on one queue. Reply and request share a number where the protocol says so."""
    sent_by = BOTH if reply == command else CLIENT
    return CommandRule(command, sent_by, reply, operation, needs_queue=True, feature=feature)


COMMANDS: tuple[CommandRule, ...] = (
    CommandRule(Command.CONNECT, CLIENT, Command.CONNECT_ACK, before_connect=True),
    CommandRule(Command.CONNECT_ACK, SERVER),
    CommandRule(Command.DISCONNECT, BOTH, before_connect=True),
    CommandRule(Command.PING, CLIENT, Command.PONG, before_connect=True),
    CommandRule(Command.PONG, SERVER),
    _queue(Command.PUBLISH, Command.PUBLISH_ACK, QueueOperation.PUBLISH),
    CommandRule(Command.PUBLISH_ACK, SERVER),
    _queue(Command.SUBSCRIBE, Command.SUBSCRIBE_ACK, QueueOperation.SUBSCRIBE),
    CommandRule(Command.SUBSCRIBE_ACK, SERVER),
    CommandRule(Command.UNSUBSCRIBE, CLIENT, Command.UNSUBSCRIBE_ACK, needs_queue=True),
    CommandRule(Command.UNSUBSCRIBE_ACK, SERVER),
    CommandRule(Command.DELIVER, SERVER),
    _queue(Command.PUBLISH_STORED, Command.PUBLISH_ACK, QueueOperation.PUBLISH, feature="stored"),
    CommandRule(Command.ACK, CLIENT),
    CommandRule(Command.NACK, CLIENT, feature="nack"),
    CommandRule(Command.HOLDING, CLIENT, feature="holding"),
    _queue(Command.CREATE_QUEUE, Command.CREATE_QUEUE, QueueOperation.CREATE_QUEUE),
    _queue(Command.DELETE_QUEUE, Command.DELETE_QUEUE, QueueOperation.DELETE_QUEUE),
    _queue(Command.QUEUE_INFO, Command.QUEUE_INFO, QueueOperation.GET_QUEUE_INFO),
    CommandRule(Command.LIST_QUEUES, BOTH, Command.LIST_QUEUES),
    _queue(Command.PURGE_QUEUE, Command.PURGE_QUEUE, QueueOperation.PURGE_QUEUE, feature="purge"),
    _queue(Command.ALTER_QUEUE, Command.ALTER_QUEUE, QueueOperation.CREATE_QUEUE, feature="alter"),
    *(CommandRule(command, BOTH, command, admin=True) for command in Command if 50 <= command <= 56),
    CommandRule(Command.ERROR, SERVER),
)
COMMAND_BY_TYPE: dict[int, CommandRule] = {rule.command: rule for rule in COMMANDS}
