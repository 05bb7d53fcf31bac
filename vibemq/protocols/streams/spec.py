# SPDX-License-Identifier: Apache-2.0
"""The numbers of the RabbitMQ Streams protocol and the layout of each of its 31 commands, and of some of our own.

COMMANDS is the only description of the wire in this tree, in the words of layout.py: the codec compiles its plans from
it, the exhaustive tests walk it and the table in README.md is printed from it, so the three cannot disagree.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum

from vibemq.protocols.streams.layout import Layout, fields_of

# ---- ports and framing ----

PORT_DEFAULT = 5552
PORT_TLS_DEFAULT = 5551

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
EXPELLED_WAIT_S = 3  # time a peer has to renew its secret after its virtual host was closed to its user
SUB_BATCH_UNCOMPRESSED_SIZE_MAX_BYTES = 67_108_864  # a consumer allocates this much on our word

PLANNED_STREAMS_COUNT_MAX = 1024  # in one answer, some 100 bytes each with their names
SPANS_COUNT_MAX = 4096  # in one answer, two numbers each
CUTS_COUNT_MAX = 8192  # in one answer, for all its streams: some tens of microseconds each in a helper thread

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
    PLAN_READS = 0x7003
    BEGIN_TRANSACTION = 0x7004
    COMMIT_TRANSACTIONS = 0x7005
    ABORT_TRANSACTIONS = 0x7006
    FILTER_RANGE = 0x7007


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


class TransactionState(IntEnum):
    """What has become of BeginTransaction or CommitTransactions; where it is not OK, `holder` says who or what."""

    OK = 0
    ALREADY = 1  # this version of the application is decided
    BUSY = 2  # another run of the application lives
    SUPERSEDED = 3  # another run has taken over
    FULL = 4  # there is no room now
    CHANGED = 5  # a target is another one than was staged for or than the last batch's, or something staged is missing


class TransactionFlag(IntEnum):
    EPHEMERAL = 1  # the application's name will not come again
    LAST = 2  # of its run: another one need not wait
    KEEPS_TARGETS = 4  # the application writes each batch to the streams of its last one, or to more


class Compression(IntEnum):
    """Of a sub-batch. 5 and 6 are reserved and 7 is user-defined; a broker refuses these three."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


# ---- layouts ----


@dataclass(frozen=True, slots=True)
class Command:
    """`sent_by` says who originates the frame without RESPONSE_BIT; `response` travels the other way, with it."""

    key: AnyKey
    sent_by: frozenset[str]
    request: Layout
    response: Layout | None
    version_max: int

    @property
    def name(self) -> str:
        return self.request.name

    @property
    def answered_by(self) -> frozenset[str]:
        return BOTH if self.sent_by == BOTH else BOTH - self.sent_by


CLIENT, SERVER, BOTH = frozenset({"client"}), frozenset({"server"}), frozenset({"client", "server"})


def _one_way(
    sent_by: frozenset[str], name: str, text: str, response: Layout | None = None, versions: int = 1
) -> Command:
    constant = re.sub("(?<=[a-z])(?=[A-Z])", "_", name).upper()
    key: AnyKey = ExtensionKey[constant] if constant in ExtensionKey.__members__ else Key[constant]
    return Command(key, sent_by, Layout(name, text), response, versions)


def _exchange(
    name: str, text: str, answer: str = "", sent_by: frozenset[str] = CLIENT, ignored_tail_size_bytes: int = 0
) -> Command:
    """The common shape: one side asks with a correlation id and the other answers with a code."""
    answer = "; ".join(filter(None, ("correlation_id u32; code u16", answer)))
    response = Layout(name + "Response", answer, ignored_tail_size_bytes)
    return _one_way(sent_by, name, "; ".join(filter(None, ("correlation_id u32", text))), response)


_ATTACH = "offset_type offset_type; offset_value offset if offset_type is 4 or 5 = 0"
_PROPERTIES = "properties map_to_end, may be absent = {}"
_VERSIONS = "versions array<CommandVersions{ key u16, version_min u16, version_max u16 }> = ()"
_TUNE = "frame_max u32; heartbeat u32"

COMMANDS: tuple[Command, ...] = (
    _exchange("DeclarePublisher", 'publisher_id u8; reference string = ""; stream string'),
    _one_way(
        CLIENT,
        "Publish",
        "publisher_id u8; messages array<PublishedMessage{"
        " publishing_id u64, filter_value nullable_string since version 2, data entry }>",
        versions=2,
    ),
    _one_way(SERVER, "PublishConfirm", "publisher_id u8; publishing_ids array<u64>"),
    _one_way(SERVER, "PublishError", "publisher_id u8; errors array<PublishingError{ publishing_id u64, code u16 }>"),
    _exchange("QueryPublisherSequence", "reference string; stream string", "sequence u64"),
    _exchange("DeletePublisher", "publisher_id u8"),
    _exchange("Subscribe", f"subscription_id u8; stream string; {_ATTACH}; credit u16; {_PROPERTIES}"),
    _one_way(SERVER, "Deliver", "subscription_id u8; committed_chunk_id u64 since version 2; chunk chunk", versions=2),
    # Answered only on error, and without a correlation id.
    _one_way(
        CLIENT, "Credit", "subscription_id u8; credit i16", Layout("CreditResponse", "code u16; subscription_id u8")
    ),
    _one_way(CLIENT, "StoreOffset", "reference string; stream string; offset u64"),
    _exchange("QueryOffset", "reference string; stream string", "offset u64"),
    _exchange("Unsubscribe", "subscription_id u8"),
    _exchange("Create", "stream string; arguments map = {}"),
    _exchange("Delete", "stream string"),
    _one_way(
        CLIENT,
        "Metadata",
        "correlation_id u32; streams array<string>",
        Layout(  # no code for the frame: each stream has its own
            "MetadataResponse",
            "correlation_id u32; brokers array<Broker{ ref u16, host string, port u32 }>; "
            "streams array<StreamMetadata{ stream string, code u16, leader_ref u16, replica_refs array<u16> }>",
        ),
    ),
    _one_way(SERVER, "MetadataUpdate", "code u16; stream string"),
    _exchange("PeerProperties", "properties map_to_end = {}", "properties map"),
    _exchange("SaslHandshake", "", "mechanisms array<string>"),
    _exchange("SaslAuthenticate", "mechanism string; data bytes = b''", "challenge bytes if code is 10 = b''"),
    _one_way(BOTH, "Tune", _TUNE, Layout("Tune", _TUNE)),  # clients answer with either key
    _exchange("Open", "virtual_host string = '/'", "properties map if code is 1 = {}"),
    _exchange("Close", "code u16; reason string", sent_by=BOTH),
    _one_way(BOTH, "Heartbeat", ""),
    _exchange("Route", "routing_key string; super_stream string", "streams array<string>"),
    _exchange("Partitions", "super_stream string", "streams array<string>"),
    _exchange(
        "ConsumerUpdate",
        "subscription_id u8; active u8",
        "offset_type offset_type_or_none; offset_value offset if offset_type is 4 or 5 = 0",
        sent_by=SERVER,
        ignored_tail_size_bytes=8,  # one client writes an offset after every type
    ),
    _exchange("ExchangeCommandVersions", _VERSIONS, _VERSIONS),
    _exchange("StreamStats", "stream string", "statistics statistics"),
    _exchange(
        "CreateSuperStream", "name string; partitions array<string>; binding_keys array<string>; arguments map = {}"
    ),
    _exchange("DeleteSuperStream", "name string"),
    _exchange(
        "ResolveOffsetSpec", f"stream string; {_ATTACH}; {_PROPERTIES}", "offset_type offset_type = 4; offset u64"
    ),
)

EXTENSIONS: tuple[Command, ...] = (
    # In the order of their names, from the first that is not before `first`; none is the end.
    _exchange(
        "ListStreams",
        "first string; count u16",
        "streams array<ListedStream{ name string, is_queue u8, arguments map }>",
    ),
    _exchange("ListOffsets", "stream string", "offsets array<StoredOffset{ reference string, offset u64 }>"),
    # Numbers of -1 are not said, limits of 0 are none. What is below `uncut` may be cut once more: ask again for it.
    _exchange(
        "PlanReads",
        "reference string = ''; super_stream string = ''; "
        "ranges array<WantedRange{ stream string, start i64, end i64, timestamp i64, bytes_max u64, split_bytes u64,"
        " split_records u64 }> = ()",
        "store string; directory string; "
        "streams array<PlannedStream{ stream string, code u16, incarnation string = '', durability u8 = 0,"
        " first u64 = 0, next u64 = 0, durable u64 = 0, stored i64 = -1, at_timestamp i64 = -1, limit u64 = 0,"
        " waiting_bytes u64 = 0, size_bytes u64 = 0, host string, port u32, uncut u64 = 0, cuts array<u64> = () }>",
    ),
    # Publish to this publisher stages blocks: u16 index of the target, then entries as they lie in a chunk.
    _exchange(
        "BeginTransaction",
        "publisher_id u8; transaction string; application string; batch u64; run string; flags u8 = 0; "
        "targets array<string>",
        "state u8; sequence u64; holder string",
    ),
    _exchange(
        "CommitTransactions",
        "application string; batch u64; run string; flags u8 = 0; targets array<string>; "
        "transactions array<StagedTransaction{ name string, blocks u64 }>",
        "state u8; rows u64; holder string",
    ),
    _exchange("AbortTransactions", "application string; run string; flags u8 = 0; transactions array<string>"),
    # Which offsets lie in chunks that may hold messages of these filter values: pairs of a first one and an end.
    _exchange(
        "FilterRange",
        "stream string; start u64; end u64; match_unfiltered u8; values array<string>",
        "until u64; spans array<u64>",
    ),
)

COMMAND_BY_KEY: dict[int, Command] = {int(command.key): command for command in COMMANDS + EXTENSIONS}


# The server's answer to ExchangeCommandVersions: what clients send, but for the handshake and the exchange itself.
# One client looks Publish up by position, so the order is part of it.
_NOT_EXCHANGED = (*range(Key.PEER_PROPERTIES, Key.OPEN + 1), Key.EXCHANGE_COMMAND_VERSIONS)
COMMAND_VERSIONS: tuple[tuple[int, int, int], ...] = tuple(
    (int(command.key), 1, command.version_max)
    for command in COMMANDS
    if "client" in command.sent_by and command.key not in _NOT_EXCHANGED
)
#: What our own clients are told besides.
EXTENSION_VERSIONS: tuple[tuple[int, int, int], ...] = tuple((int(command.key), 1, 1) for command in EXTENSIONS)

# ---- chunks: the same 48 bytes on disk and on the wire ----

CHUNK_MAGIC_VERSION = 0x50
# A sub-batch counts as one entry, and each of its messages as a record; the CRC-32 (IEEE) is that of the entries alone.
CHUNK_HEADER = fields_of(
    "magic_version u8 = 0x50; chunk_type u8 = 0; entries u16; records u32; timestamp_ms i64; epoch u64 = 1; "
    "chunk_id u64; crc u32; data_size u32; trailer_size u32 = 0; bloom_size u8 = 0; reserved u24 = 0"
)
CHUNK_HEADER_SIZE_BYTES = 48

ENTRY_SUB_BATCH_BIT = 0x8000_0000  # set: a sub-batch; clear: the other 31 bits are the message's size
