# SPDX-License-Identifier: Apache-2.0
"""The numbers of the RabbitMQ Streams protocol and the layout of each of its 31 commands, and of two of our own.

COMMANDS is the only description of the wire in this tree: the codec compiles its plans from it, the
exhaustive tests walk it and the table in README.md is printed from it, so the three cannot disagree.

A field is written as on the wire, in wire order. Its type is one of
  u8 u16 u32 u64 i16 i32 i64      big-endian integers
  string                          i16 length and UTF-8; length -1 reads as the empty string
  nullable_string                 the same, but -1 reads as None (a filter value)
  bytes                           i32 length and data; -1 reads as empty
  map                             i32 count of string pairs
  map_to_end                      the same as the last field, but read to the end of the frame whatever the count says:
                                  one client writes the map's size in bytes there
  statistics                      i32 count of pairs (string, i64)
  array<T>                        i32 count of T
  offset_type, offset_type_or_none   u16, an OffsetType
  offset                          u64, or i64 after OffsetType.TIMESTAMP
  entry                           what a publisher sends and a chunk holds: a message or a SubBatch
  chunk                           CHUNK_HEADER, then the entries
or an Items, an i32 count of small records.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

# ---- ports and framing ----

PORT_DEFAULT = 5552

RESPONSE_BIT = 0x8000
FRAME_HEADER_SIZE_BYTES = 8  # size u32, key u16, version u16
FRAME_SIZE_MIN_BYTES = 4  # the value of the size field of a heartbeat: key and version only

TLS_CLIENT_HELLO_FIRST_BYTE = 0x16  # as first byte on the plain port: the peer speaks TLS, worth a clear log line

# ---- limits: each with its unit in its name and its reason beside it ----

FRAME_SIZE_DEFAULT_BYTES = 1_048_576  # what clients ask for in Tune unless told otherwise, and cut their batches to
STRING_SIZE_MAX_BYTES = 32_767  # the length is an i16 for most clients
COMMAND_SIZE_MAX_BYTES = 262_144  # of what is decoded in one go, and nobody has a turn meanwhile; Publish is not
PROPERTIES_COUNT_MAX = 4096  # of a map_to_end; they are kept as long as their connection or subscription
METADATA_STREAMS_COUNT_MAX = 4096  # the answer is made in one go; several times the partitions of a large super stream
REFERENCE_SIZE_MAX_BYTES = 255  # a reference is written with a one-byte size into chunk trailers
PUBLISHERS_PER_CONNECTION_COUNT_MAX = 256  # the id is a u8
SUBSCRIPTIONS_PER_CONNECTION_COUNT_MAX = 256  # the id is a u8
HEARTBEAT_DEFAULT_S = 60  # what a server proposes in Tune
CLOSE_WAIT_S = 10  # time a peer has to answer our Close
SUB_BATCH_UNCOMPRESSED_SIZE_MAX_BYTES = 67_108_864  # a consumer allocates this much on our word

LIST_STREAMS_COUNT_MAX = 256  # in one answer, which is made in one go: some 100 KB with the longest names
LIST_STREAMS_SIZE_MAX_BYTES = 524_288  # of one answer: arguments may have as much as a Create; half a default frame

OWN_PRODUCT = "VibeMQ"  # what our clients name themselves in their peer properties
LEADER_NONE = 0xFFFF  # leaderRef in Metadata: there is none


class Key(IntEnum):
    """Which command a frame is. A response carries RESPONSE_BIT as well."""

    DECLARE_PUBLISHER = 0x0001
    PUBLISH = 0x0002
    PUBLISH_CONFIRM = 0x0003
    PUBLISH_ERROR = 0x0004
    QUERY_PUBLISHER_SEQUENCE = 0x0005
    DELETE_PUBLISHER = 0x0006
    SUBSCRIBE = 0x0007
    DELIVER = 0x0008
    CREDIT = 0x0009
    STORE_OFFSET = 0x000A
    QUERY_OFFSET = 0x000B
    UNSUBSCRIBE = 0x000C
    CREATE = 0x000D
    DELETE = 0x000E
    METADATA = 0x000F
    METADATA_UPDATE = 0x0010
    PEER_PROPERTIES = 0x0011
    SASL_HANDSHAKE = 0x0012
    SASL_AUTHENTICATE = 0x0013
    TUNE = 0x0014
    OPEN = 0x0015
    CLOSE = 0x0016
    HEARTBEAT = 0x0017
    ROUTE = 0x0018
    PARTITIONS = 0x0019
    CONSUMER_UPDATE = 0x001A
    EXCHANGE_COMMAND_VERSIONS = 0x001B
    STREAM_STATS = 0x001C
    CREATE_SUPER_STREAM = 0x001D
    DELETE_SUPER_STREAM = 0x001E
    RESOLVE_OFFSET_SPEC = 0x001F


class ExtensionKey(IntEnum):
    """Commands of our own.

    A server announces them to clients that call themselves OWN_PRODUCT, and to nobody else: another client may
    stumble over keys that it does not know. A client sends them only where they were announced.
    """

    LIST_STREAMS = 0x7001
    LIST_OFFSETS = 0x7002


AnyKey = Key | ExtensionKey


class Code(IntEnum):
    """Response codes. UNKNOWN_FRAME and FRAME_TOO_LARGE are seen in Close only."""

    OK = 1
    STREAM_DOES_NOT_EXIST = 2
    SUBSCRIPTION_ID_ALREADY_EXISTS = 3
    SUBSCRIPTION_ID_DOES_NOT_EXIST = 4
    STREAM_ALREADY_EXISTS = 5
    STREAM_NOT_AVAILABLE = 6
    SASL_MECHANISM_NOT_SUPPORTED = 7
    AUTHENTICATION_FAILURE = 8
    SASL_ERROR = 9
    SASL_CHALLENGE = 10
    AUTHENTICATION_FAILURE_LOOPBACK = 11
    VIRTUAL_HOST_ACCESS_FAILURE = 12
    UNKNOWN_FRAME = 13
    FRAME_TOO_LARGE = 14
    INTERNAL_ERROR = 15
    ACCESS_REFUSED = 16
    PRECONDITION_FAILED = 17
    PUBLISHER_DOES_NOT_EXIST = 18
    NO_OFFSET = 19
    SASL_CANNOT_CHANGE_MECHANISM = 20
    SASL_CANNOT_CHANGE_USERNAME = 21


def code_name(code: int) -> str:
    """For people: `STREAM_DOES_NOT_EXIST (2)`, or `unknown code (99)`, since peers may be newer than we are."""
    try:
        return f"{Code(code).name} ({code})"
    except ValueError:
        return f"unknown code ({code})"


class OffsetType(IntEnum):
    """Where a reader attaches. NONE is legal only in the answer to ConsumerUpdate: keep what Subscribe said."""

    NONE = 0
    FIRST = 1
    LAST = 2
    NEXT = 3
    OFFSET = 4
    TIMESTAMP = 5


class ChunkType(IntEnum):
    USER = 0
    TRACKING_DELTA = 1
    TRACKING_SNAPSHOT = 2


class Compression(IntEnum):
    """Of a sub-batch. 5 and 6 are reserved and 7 is user-defined; a broker refuses these three."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


# ---- layouts ----


@dataclass(frozen=True, slots=True)
class Items:
    """An i32 count of records; `name` is that of the tuple a decoder gives for each."""

    name: str
    fields: tuple[Field, ...]

    def __str__(self) -> str:
        texts = (f"{f.name} {f.type}" + (f" since version {f.since}" if f.since > 1 else "") for f in self.fields)
        return "array<{ " + ", ".join(texts) + " }>"


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a frame.

    since: the first version of the command that has it.
    only_if: (an earlier field, its values with which this one is on the wire at all).
    may_be_absent: as the last field it may be missing, which reads as its default.
    default: what an encoder writes when the caller says nothing; None means that it must be said.
    on_error: what an encoder writes in a response whose code is not OK: the field is there all the same.
    """

    name: str
    type: str | Items
    since: int = 1
    only_if: tuple[str, tuple[int, ...]] | None = None
    may_be_absent: bool = False
    default: object = None
    on_error: object = None


@dataclass(frozen=True, slots=True)
class Layout:
    """One frame's body. `ignored_tail_size_bytes`: a tail of exactly this size is tolerated and dropped."""

    name: str
    fields: tuple[Field, ...]
    ignored_tail_size_bytes: int = 0

    @property
    def has_correlation_id(self) -> bool:
        return bool(self.fields) and self.fields[0].name == "correlation_id"

    @property
    def has_code(self) -> bool:
        return any(field is CODE for field in self.fields[:2])


@dataclass(frozen=True, slots=True)
class Command:
    """`sent_by` says who originates the frame without RESPONSE_BIT; `response` travels the other way, with it."""

    key: AnyKey
    sent_by: frozenset[str]
    request: Layout
    response: Layout | None = None
    version_max: int = 1
    exchanged: bool = False  # listed in the server's answer to ExchangeCommandVersions

    @property
    def name(self) -> str:
        return self.request.name

    @property
    def versions(self) -> range:
        return range(1, self.version_max + 1)


CORRELATION_ID = Field("correlation_id", "u32")
CODE = Field("code", "u16")
STREAM = Field("stream", "string")
NAME = Field("name", "string")
PUBLISHER_ID = Field("publisher_id", "u8")
SUBSCRIPTION_ID = Field("subscription_id", "u8")
PROPERTIES = Field("properties", "map_to_end", may_be_absent=True, default={})
OFFSET_TYPE = Field("offset_type", "offset_type")
OFFSET_VALUE = Field("offset_value", "offset", only_if=("offset_type", (4, 5)), default=0)
STREAMS = Field("streams", "array<string>", on_error=())
VERSIONS = Field(
    "versions",
    Items("CommandVersions", (Field("key", "u16"), Field("version_min", "u16"), Field("version_max", "u16"))),
    default=(),
    on_error=(),
)

CLIENT, SERVER, BOTH = frozenset({"client"}), frozenset({"server"}), frozenset({"client", "server"})


def _request(name: str, *fields: Field) -> Layout:
    return Layout(name, (CORRELATION_ID, *fields))


def _response(name: str, *fields: Field) -> Layout:
    return Layout(name + "Response", (CORRELATION_ID, CODE, *fields))


def _exchange(
    key: AnyKey, name: str, *fields: Field, answer: tuple[Field, ...] = (), exchanged: bool = True
) -> Command:
    """The common shape: the client asks with a correlation id and the server answers with a code."""
    return Command(key, CLIENT, _request(name, *fields), _response(name, *answer), exchanged=exchanged)


_TUNE = Layout("Tune", (Field("frame_max", "u32"), Field("heartbeat", "u32")))

COMMANDS: tuple[Command, ...] = (
    _exchange(
        Key.DECLARE_PUBLISHER, "DeclarePublisher", PUBLISHER_ID, Field("reference", "string", default=""), STREAM
    ),
    Command(
        Key.PUBLISH,
        CLIENT,
        Layout(
            "Publish",
            (
                PUBLISHER_ID,
                Field(
                    "messages",
                    Items(
                        "PublishedMessage",
                        (
                            Field("publishing_id", "u64"),
                            Field("filter_value", "nullable_string", since=2),
                            Field("data", "entry"),
                        ),
                    ),
                ),
            ),
        ),
        version_max=2,
        exchanged=True,
    ),
    Command(
        Key.PUBLISH_CONFIRM, SERVER, Layout("PublishConfirm", (PUBLISHER_ID, Field("publishing_ids", "array<u64>")))
    ),
    Command(
        Key.PUBLISH_ERROR,
        SERVER,
        Layout(
            "PublishError",
            (
                PUBLISHER_ID,
                Field("errors", Items("PublishingError", (Field("publishing_id", "u64"), Field("code", "u16")))),
            ),
        ),
    ),
    _exchange(
        Key.QUERY_PUBLISHER_SEQUENCE,
        "QueryPublisherSequence",
        Field("reference", "string"),
        STREAM,
        answer=(Field("sequence", "u64", on_error=0),),
    ),
    _exchange(Key.DELETE_PUBLISHER, "DeletePublisher", PUBLISHER_ID),
    _exchange(
        Key.SUBSCRIBE,
        "Subscribe",
        SUBSCRIPTION_ID,
        STREAM,
        OFFSET_TYPE,
        OFFSET_VALUE,
        Field("credit", "u16"),
        PROPERTIES,
    ),
    Command(
        Key.DELIVER,
        SERVER,
        Layout("Deliver", (SUBSCRIPTION_ID, Field("committed_chunk_id", "u64", since=2), Field("chunk", "chunk"))),
        version_max=2,
    ),
    Command(
        Key.CREDIT,
        CLIENT,
        Layout("Credit", (SUBSCRIPTION_ID, Field("credit", "i16"))),
        Layout("CreditResponse", (CODE, SUBSCRIPTION_ID)),  # only on error, and without a correlation id
        exchanged=True,
    ),
    Command(
        Key.STORE_OFFSET,
        CLIENT,
        Layout("StoreOffset", (Field("reference", "string"), STREAM, Field("offset", "u64"))),
        exchanged=True,
    ),
    _exchange(
        Key.QUERY_OFFSET,
        "QueryOffset",
        Field("reference", "string"),
        STREAM,
        answer=(Field("offset", "u64", on_error=0),),
    ),
    _exchange(Key.UNSUBSCRIBE, "Unsubscribe", SUBSCRIPTION_ID),
    _exchange(Key.CREATE, "Create", STREAM, Field("arguments", "map", default={})),
    _exchange(Key.DELETE, "Delete", STREAM),
    Command(
        Key.METADATA,
        CLIENT,
        _request("Metadata", STREAMS),
        Layout(  # no code for the frame: each stream has its own
            "MetadataResponse",
            (
                CORRELATION_ID,
                Field(
                    "brokers",
                    Items("Broker", (Field("ref", "u16"), Field("host", "string"), Field("port", "u32"))),
                ),
                Field(
                    "streams",
                    Items(
                        "StreamMetadata",
                        (STREAM, CODE, Field("leader_ref", "u16"), Field("replica_refs", "array<u16>")),
                    ),
                ),
            ),
        ),
        exchanged=True,
    ),
    Command(Key.METADATA_UPDATE, SERVER, Layout("MetadataUpdate", (CODE, STREAM))),
    _exchange(
        Key.PEER_PROPERTIES,
        "PeerProperties",
        Field("properties", "map_to_end", default={}),
        answer=(Field("properties", "map", on_error={}),),
        exchanged=False,
    ),
    _exchange(
        Key.SASL_HANDSHAKE,
        "SaslHandshake",
        answer=(Field("mechanisms", "array<string>", on_error=()),),
        exchanged=False,
    ),
    _exchange(
        Key.SASL_AUTHENTICATE,
        "SaslAuthenticate",
        Field("mechanism", "string"),
        Field("data", "bytes", default=b""),
        answer=(Field("challenge", "bytes", only_if=("code", (Code.SASL_CHALLENGE,)), default=b"", on_error=b""),),
        exchanged=False,
    ),
    Command(Key.TUNE, BOTH, _TUNE, _TUNE),  # clients answer with either key
    _exchange(
        Key.OPEN,
        "Open",
        Field("virtual_host", "string", default="/"),
        answer=(Field("properties", "map", only_if=("code", (Code.OK,)), default={}, on_error={}),),
        exchanged=False,
    ),
    Command(Key.CLOSE, BOTH, _request("Close", CODE, Field("reason", "string")), _response("Close"), exchanged=True),
    Command(Key.HEARTBEAT, BOTH, Layout("Heartbeat", ()), exchanged=True),
    _exchange(Key.ROUTE, "Route", Field("routing_key", "string"), Field("super_stream", "string"), answer=(STREAMS,)),
    _exchange(Key.PARTITIONS, "Partitions", Field("super_stream", "string"), answer=(STREAMS,)),
    Command(
        Key.CONSUMER_UPDATE,
        SERVER,
        _request("ConsumerUpdate", SUBSCRIPTION_ID, Field("active", "u8")),
        Layout(
            "ConsumerUpdateResponse",
            (CORRELATION_ID, CODE, Field("offset_type", "offset_type_or_none", on_error=0), OFFSET_VALUE),
            ignored_tail_size_bytes=8,  # one client writes an offset after every type
        ),
    ),
    _exchange(Key.EXCHANGE_COMMAND_VERSIONS, "ExchangeCommandVersions", VERSIONS, answer=(VERSIONS,), exchanged=False),
    _exchange(Key.STREAM_STATS, "StreamStats", STREAM, answer=(Field("statistics", "statistics", on_error={}),)),
    _exchange(
        Key.CREATE_SUPER_STREAM,
        "CreateSuperStream",
        NAME,
        Field("partitions", "array<string>"),
        Field("binding_keys", "array<string>"),
        Field("arguments", "map", default={}),
    ),
    _exchange(Key.DELETE_SUPER_STREAM, "DeleteSuperStream", NAME),
    _exchange(
        Key.RESOLVE_OFFSET_SPEC,
        "ResolveOffsetSpec",
        STREAM,
        OFFSET_TYPE,
        OFFSET_VALUE,
        PROPERTIES,
        answer=(
            Field("offset_type", "offset_type", default=OffsetType.OFFSET, on_error=OffsetType.OFFSET),
            Field("offset", "u64", on_error=0),
        ),
    ),
)

EXTENSIONS: tuple[Command, ...] = (
    _exchange(  # in the order of their names, from the first that is not before `first`; none is the end
        ExtensionKey.LIST_STREAMS,
        "ListStreams",
        Field("first", "string"),
        Field("count", "u16"),
        answer=(
            Field(
                "streams",
                Items("ListedStream", (NAME, Field("is_queue", "u8"), Field("arguments", "map"))),
                on_error=(),
            ),
        ),
        exchanged=False,
    ),
    _exchange(
        ExtensionKey.LIST_OFFSETS,
        "ListOffsets",
        STREAM,
        answer=(
            Field(
                "offsets",
                Items("StoredOffset", (Field("reference", "string"), Field("offset", "u64"))),
                on_error=(),
            ),
        ),
        exchanged=False,
    ),
)

COMMAND_BY_KEY: dict[int, Command] = {int(command.key): command for command in COMMANDS + EXTENSIONS}


def markdown_table(commands: tuple[Command, ...] = COMMANDS) -> str:
    """Commands for README.md: one row for each frame."""
    rows = ["| key | frame | from | versions | fields |", "|---|---|---|---|---|"]
    for command in commands:
        versions = "1" if command.version_max == 1 else f"1 to {command.version_max}"
        rows.append(_row(int(command.key), command.request, command.sent_by, versions))
        if command.response is not None:
            answers = command.sent_by if len(command.sent_by) == 2 else BOTH - command.sent_by
            rows.append(_row(command.key | RESPONSE_BIT, command.response, answers, "1"))
    return "\n".join(rows) + "\n"


def _row(key: int, layout: Layout, sent_by: frozenset[str], versions: str) -> str:
    fields = []
    for field in layout.fields:
        condition = (
            f" if {field.only_if[0]} is {' or '.join(map(str, map(int, field.only_if[1])))}" if field.only_if else ""
        )
        since = f" since version {field.since}" if field.since > 1 else ""
        absent = ", may be absent" if field.may_be_absent else ""
        fields.append(f"`{field.name}` {field.type}{condition}{since}{absent}")
    return (
        f"| {key:#06x} | {layout.name} | {' and '.join(sorted(sent_by))} | {versions} | {'; '.join(fields) or 'none'} |"
    )


# The server's answer to ExchangeCommandVersions. One client looks Publish up by position, so the order is part of it.
COMMAND_VERSIONS: tuple[tuple[int, int, int], ...] = tuple(
    (int(command.key), 1, command.version_max) for command in COMMANDS if command.exchanged
)
#: What our own clients are told besides.
EXTENSION_VERSIONS: tuple[tuple[int, int, int], ...] = tuple((int(command.key), 1, 1) for command in EXTENSIONS)

# ---- chunks: the same 48 bytes on disk and on the wire ----

CHUNK_MAGIC_VERSION = 0x50
CHUNK_HEADER: tuple[Field, ...] = (
    Field("magic_version", "u8", default=CHUNK_MAGIC_VERSION),
    Field("chunk_type", "u8", default=ChunkType.USER),
    Field("entries", "u16"),  # a sub-batch counts 1
    Field("records", "u32"),  # messages: a sub-batch counts all of its own
    Field("timestamp_ms", "i64"),
    Field("epoch", "u64", default=1),
    Field("chunk_id", "u64"),  # offset of the first record
    Field("crc", "u32"),  # CRC-32 (IEEE) of the entries alone
    Field("data_size", "u32"),
    Field("trailer_size", "u32", default=0),
    Field("bloom_size", "u8", default=0),
    Field("reserved", "u24", default=0),
)
CHUNK_HEADER_SIZE_BYTES = 48

ENTRY_SUB_BATCH_BIT = 0x8000_0000  # set: a sub-batch; clear: the other 31 bits are the message's size
SUB_BATCH_HEADER_SIZE_BYTES = 11  # flags u8, records u16, uncompressed size u32, size u32
