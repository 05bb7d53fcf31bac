# SPDX-License-Identifier: Apache-2.0
"""The streams codec against golden frames, against every cut of them, against itself and against garbage.

Every decoder is fed three ways: whole, cut at every length, and with a tail. The invariant of the last part is one
sentence: whatever the bytes, a decoder gives a value or raises MalformedFrame.
"""

import json
import pickle
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vibemq.protocols.streams import codec, spec
from vibemq.protocols.streams.layout import Field, Items, Layout
from vibemq.protocols.streams.spec import COMMANDS, RESPONSE_BIT, Code, Key

VECTORS = json.loads((Path(__file__).parent / "vectors.json").read_text())

SUB_BATCH = codec.SubBatch(0, 2, 10, bytes.fromhex("00000001610000000162"))
CHUNK_OF_SUB_BATCH = codec.Chunk(
    0x50, 0, 1, 2, 1_700_000_000_000, 1, 41, 0x5DDB9D35, 21, 0, 0, 0,
    bytes.fromhex("8000020000000a0000000a00000001610000000162"), b"",
)  # fmt: skip
CHUNK_OF_A = codec.Chunk(
    0x50, 0, 1, 1, 1_700_000_000_000, 1, 40, 0xE58C9792, 5, 0, 0, 0, bytes.fromhex("0000000161"), b""
)  # fmt: skip

# (frame, what it decodes to, how it is encoded)
EXAMPLES = {
    "publish a sub-batch": (
        "0000002600020001010000000100000000000000078000020000000a0000000a00000001610000000162",
        codec.Publish(1, [codec.PublishedMessage(7, None, SUB_BATCH)]),
        lambda: codec.encode_request(Key.PUBLISH, publisher_id=1, messages=[(7, SUB_BATCH)]),
    ),
    "deliver a sub-batch": (
        "0000004a000800010250000001000000020000018bcfe56800000000000000000100000000000000295ddb9d350000001500000000"
        "000000008000020000000a0000000a00000001610000000162",
        codec.Deliver(2, None, CHUNK_OF_SUB_BATCH),
        lambda: codec.encode_server_frame(Key.DELIVER, subscription_id=2, chunk=CHUNK_OF_SUB_BATCH),
    ),
    "deliver v2": (
        "000000420008000202000000000000002850000001000000010000018bcfe5680000000000000000010000000000000028e58c9792"
        "0000000500000000000000000000000161",
        codec.Deliver(2, 40, CHUNK_OF_A),
        lambda: codec.encode_server_frame(
            Key.DELIVER, version=2, subscription_id=2, committed_chunk_id=40, chunk=CHUNK_OF_A
        ),
    ),
    "subscribe with a filter": (
        "0000002a000700010000000b0200017300040000000000000028000a00000001000866696c7465722e3000026575",
        codec.Subscribe(11, 2, "s", 4, 40, 10, {"filter.0": "eu"}),
        lambda: codec.encode_request(
            Key.SUBSCRIBE,
            11,
            subscription_id=2,
            stream="s",
            offset_type=4,
            offset_value=40,
            credit=10,
            properties={"filter.0": "eu"},
        ),
    ),
    "credit error": (
        "0000000780090001000409",
        codec.CreditResponse(4, 9),
        lambda: codec.encode_server_frame(Key.CREDIT, code=4, subscription_id=9),
    ),
    "metadata update": (
        "00000009001000010006000173",
        codec.MetadataUpdate(6, "s"),
        lambda: codec.encode_server_frame(Key.METADATA_UPDATE, code=6, stream="s"),
    ),
    "metadata of an unknown stream": (
        "0000001b800f00010000000500000000000000010001730002ffff00000000",
        codec.MetadataResponse(5, [], [codec.StreamMetadata("s", 2, 0xFFFF, [])]),
        lambda: codec.encode_response(
            Key.METADATA, 5, None, brokers=[], streams=[("s", Code.STREAM_DOES_NOT_EXIST, spec.LEADER_NONE, [])]
        ),
    ),
    "open refused": (
        "0000000a8015000100000004000c",
        codec.OpenResponse(4, 12, None),
        lambda: codec.encode_response(Key.OPEN, 4, Code.VIRTUAL_HOST_ACCESS_FAILURE),
    ),
    "close from the server": (
        "000000190016000100000001000d000d756e6b6e6f776e206672616d65",
        codec.Close(1, 13, "unknown frame"),
        lambda: codec.encode_server_frame(Key.CLOSE, correlation_id=1, code=Code.UNKNOWN_FRAME, reason="unknown frame"),
    ),
    "consumer update": (
        "0000000a001a0001000000000201",
        codec.ConsumerUpdate(0, 2, 1),
        lambda: codec.encode_server_frame(Key.CONSUMER_UPDATE, correlation_id=0, subscription_id=2, active=1),
    ),
    "consumer update answered with none": (
        "0000000c801a00010000000000010000",
        codec.ConsumerUpdateResponse(0, 1, 0, None),
        lambda: codec.encode_response(Key.CONSUMER_UPDATE, 0, Code.OK, offset_type=0),
    ),
    "consumer update answered with an offset": (
        "00000014801a000100000000000100040000000000000029",
        codec.ConsumerUpdateResponse(0, 1, 4, 41),
        lambda: codec.encode_response(Key.CONSUMER_UPDATE, 0, Code.OK, offset_type=4, offset_value=41),
    ),
    "exchange of no versions": (
        "0000000c001b00010000000500000000",
        codec.ExchangeCommandVersions(5, []),
        lambda: codec.encode_request(Key.EXCHANGE_COMMAND_VERSIONS, 5),
    ),
    "statistics": (
        "00000026801c000100000006000100000001000e66697273745f6368756e6b5f6964ffffffffffffffff",
        codec.StreamStatsResponse(6, 1, {"first_chunk_id": -1}),
        lambda: codec.encode_response(Key.STREAM_STATS, 6, Code.OK, statistics={"first_chunk_id": -1}),
    ),
    "resolve an offset": (
        "0000000d001f00010000000d0001730003",
        codec.ResolveOffsetSpec(13, "s", 3, None, {}),
        lambda: codec.encode_request(Key.RESOLVE_OFFSET_SPEC, 13, stream="s", offset_type=3, properties=None),
    ),
    "offset resolved": (
        "00000014801f00010000000d00010004000000000000002a",
        codec.ResolveOffsetSpecResponse(13, 1, 4, 42),
        lambda: codec.encode_response(Key.RESOLVE_OFFSET_SPEC, 13, Code.OK, offset=42),
    ),
}


def versions(command: spec.Command) -> range:
    return range(1, command.version_max + 1)


def has_correlation_id(layout: Layout) -> bool:
    return [field.name for field in layout.fields[:1]] == ["correlation_id"]


def has_code(layout: Layout) -> bool:
    return "code" in [field.name for field in layout.fields[:2]]


def split(frame: bytes) -> tuple[int, int, bytes]:
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    return int.from_bytes(frame[4:6], "big"), int.from_bytes(frame[6:8], "big"), frame[8:]


def decoder(key: int):
    """The decoder of the side that receives a frame with this key."""
    sent_by = spec.COMMAND_BY_KEY[key & ~RESPONSE_BIT].sent_by
    if len(sent_by) == 2:
        return codec.decode_request
    from_client = ("client" in sent_by) != bool(key & RESPONSE_BIT)
    return codec.decode_request if from_client else codec.decode_response


def encode(layout: Layout, is_response: bool, key: int, version: int, value) -> bytes:
    fields = {name: item for name, item in value._asdict().items() if item is not None}
    if is_response:
        correlation_id, code = fields.pop("correlation_id", None), None
        if has_code(layout):
            code = fields.pop("code")
        return codec.encode_response(key, correlation_id, code, version=version, **fields)
    sent_by = spec.COMMAND_BY_KEY[key].sent_by
    encoder = codec.encode_request if "client" in sent_by else codec.encode_server_frame
    return encoder(key, version=version, **fields)


def decode_frame(frame: bytes):
    key, version, body = split(frame)
    return decoder(key)(key, version, body)


def layouts():
    """Every frame of the table: (command, its layout, whether it is the response, version)."""
    for command in COMMANDS:
        for version in versions(command):
            yield pytest.param(command, command.request, False, version, id=f"{command.name} v{version}")
        if command.response is not None:
            yield pytest.param(command, command.response, True, 1, id=f"{command.name} answered")


READ_TO_THE_END = (Key.PEER_PROPERTIES, Key.SUBSCRIBE, Key.RESOLVE_OFFSET_SPEC)  # their last field is properties


def lengths_that_are_frames(frame: bytes) -> dict[int, dict[str, str]]:
    """Where a body may be cut and still is one, with what it holds: before each of the properties, or all of them."""
    key = split(frame)[0]
    if key not in READ_TO_THE_END:
        return {}
    fields = {name: value for name, value in decode_frame(frame)._asdict().items() if value is not None}
    pairs = list(fields["properties"].items())
    parts: list = [dict(pairs[:count]) for count in range(len(pairs))]
    if key != Key.PEER_PROPERTIES:
        parts.append(None)  # absent, as they may be
    header = spec.FRAME_HEADER_SIZE_BYTES
    return {len(codec.encode_request(key, **fields | {"properties": part})) - header: part or {} for part in parts}


# ---- golden frames ----


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["frame"])
def test_vectors_both_directions(vector):
    frame = bytes.fromhex(vector["hex"])
    key, version, body = split(frame)
    command = spec.COMMAND_BY_KEY[key & ~RESPONSE_BIT]
    is_response = bool(key & RESPONSE_BIT)
    value = decoder(key)(key, version, body)
    assert type(value).__name__ == vector["frame"].removesuffix(" v2")
    layout = command.response if is_response else command.request
    assert encode(layout, is_response, command.key, version, value) == frame


def test_vectors_mean_what_they_say():
    """The independent encoder's own rendering, for the frames with the most structure."""
    by_name = {vector["frame"]: decode_frame(bytes.fromhex(vector["hex"])) for vector in VECTORS}
    assert by_name["SaslAuthenticate"] == (3, "PLAIN", b"\x00guest\x00guest")
    assert by_name["SaslHandshakeResponse"].mechanisms == ["PLAIN", "AMQPLAIN"]
    assert by_name["MetadataResponse"].brokers == [(0, "localhost", 5552)]
    assert by_name["MetadataResponse"].streams == [("mystream", 1, 0, [])]
    assert by_name["Subscribe"] == (7, 1, "mystream", 1, None, 10, {})
    assert by_name["Publish v2"].messages == [(294, "filter_value", b"hello")]
    chunk = by_name["Deliver"].chunk
    assert (chunk.chunk_id, chunk.crc, chunk.trailer_size, chunk.data) == (239, 3486439553, 30, b"\0\0\0\6msg: 9")


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_both_directions(name):
    text, value, encoder = EXAMPLES[name]
    frame = bytes.fromhex(text)
    assert decode_frame(frame) == value
    assert encoder() == frame


GOLDEN = [bytes.fromhex(vector["hex"]) for vector in VECTORS] + [bytes.fromhex(e[0]) for e in EXAMPLES.values()]


@pytest.mark.parametrize("frame", GOLDEN, ids=lambda frame: frame[4:12].hex())
def test_every_cut_is_malformed(frame):
    key, version, body = split(frame)
    whole = lengths_that_are_frames(frame)
    for length in range(len(body)):
        if length in whole:
            assert decoder(key)(key, version, body[:length]).properties == whole[length]
        else:
            with pytest.raises(codec.MalformedFrame):
                decoder(key)(key, version, body[:length])


@pytest.mark.parametrize("frame", GOLDEN, ids=lambda frame: frame[4:12].hex())
def test_every_tail_is_malformed(frame):
    key, version, body = split(frame)
    is_tolerated = key == Key.CONSUMER_UPDATE | RESPONSE_BIT
    for size in (1, 7, 8, 9, 100):
        tail = bytes(size)
        more_pairs = key in READ_TO_THE_END and size % 4 == 0  # of empty strings
        is_trailer = key == Key.DELIVER and size == decode_frame(frame).chunk.trailer_size
        if (is_tolerated and size == 8) or is_trailer or more_pairs:
            decoder(key)(key, version, body + tail)
        else:
            with pytest.raises(codec.MalformedFrame):
                decoder(key)(key, version, body + tail)


@pytest.mark.parametrize("frame", GOLDEN, ids=lambda frame: frame[4:12].hex())
def test_any_buffer_will_do(frame):
    key, version, body = split(frame)
    value = decoder(key)(key, version, body)
    assert decoder(key)(key, version, bytearray(body)) == value
    assert decoder(key)(key, version, memoryview(b"xx" + body)[2:]) == value


# ---- the table ----


def test_the_table_has_all_commands_in_order():
    assert [command.key for command in COMMANDS] == list(Key) == list(range(1, 0x20))


def test_command_versions_are_those_of_the_reference_in_its_order():
    keys = [key for key, _, _ in spec.COMMAND_VERSIONS]
    assert keys == [1, 2, 5, 6, 7, 9, 0xA, 0xB, 0xC, 0xD, 0xE, 0xF, 0x16, 0x17, 0x18, 0x19, 0x1C, 0x1D, 0x1E, 0x1F]
    assert spec.COMMAND_VERSIONS[1] == (Key.PUBLISH, 1, 2)  # one client looks it up by position
    assert all(versions[1:] == (1, 1) for versions in spec.COMMAND_VERSIONS if versions[0] != Key.PUBLISH)


def test_frames_without_a_correlation_id():
    without = {c.key for c in COMMANDS if not has_correlation_id(c.request)}
    assert without == {
        Key.PUBLISH, Key.PUBLISH_CONFIRM, Key.PUBLISH_ERROR, Key.DELIVER, Key.CREDIT, Key.STORE_OFFSET,
        Key.METADATA_UPDATE, Key.TUNE, Key.HEARTBEAT,
    }  # fmt: skip
    assert {c.key for c in COMMANDS if c.response and not has_correlation_id(c.response)} == {Key.CREDIT, Key.TUNE}
    assert {c.key for c in COMMANDS if c.response and not has_code(c.response)} == {Key.METADATA, Key.TUNE}


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_errors_have_no_byte_too_many(command):
    """An error answer is written from its code alone, and holds exactly the fields that are there on errors."""
    if command.response is None or not has_code(command.response) or command.key == Key.CREDIT:
        return
    frame = codec.encode_response(command.key, 3, Code.ACCESS_REFUSED)
    fixed = {
        Key.QUERY_PUBLISHER_SEQUENCE: bytes(8),
        Key.QUERY_OFFSET: bytes(8),
        Key.STREAM_STATS: bytes(4),
        Key.ROUTE: bytes(4),
        Key.PARTITIONS: bytes(4),
        Key.PEER_PROPERTIES: bytes(4),
        Key.SASL_HANDSHAKE: bytes(4),
        Key.EXCHANGE_COMMAND_VERSIONS: bytes(4),
        Key.CONSUMER_UPDATE: bytes(2),
        Key.RESOLVE_OFFSET_SPEC: b"\0\4" + bytes(8),
    }.get(command.key, b"")
    assert split(frame) == (command.key | RESPONSE_BIT, 1, b"\0\0\0\3\0\x10" + fixed)


# ---- tolerances, and where they end ----


def test_a_null_string_reads_as_empty():
    assert codec.decode_request(Key.OPEN, 1, b"\0\0\0\4\xff\xff").virtual_host == ""


def test_null_data_reads_as_empty():
    body = bytes.fromhex("00000003 0005 504c41494e ffffffff")
    assert codec.decode_request(Key.SASL_AUTHENTICATE, 1, body).data == b""


def test_a_null_filter_value_reads_as_none():
    body = bytes.fromhex("01 00000001 0000000000000007 ffff 00000001 61")
    assert codec.decode_request(Key.PUBLISH, 2, body).messages == [(7, None, b"a")]


def test_a_long_string_reads_as_unsigned_but_is_not_written():
    text = "a" * 40_000
    body = b"\0\0\0\4" + (40_000).to_bytes(2, "big") + text.encode()
    assert codec.decode_request(Key.DELETE, 1, body).stream == text
    with pytest.raises(codec.UnencodableValue, match=r"Delete\.stream: needed at most 32767 bytes, had 40000"):
        codec.encode_request(Key.DELETE, 4, stream=text)


def test_absent_properties_read_as_empty():
    with_map = codec.encode_request(Key.SUBSCRIBE, 1, subscription_id=0, stream="s", offset_type=1, credit=1)
    without = codec.encode_request(
        Key.SUBSCRIBE, 1, subscription_id=0, stream="s", offset_type=1, credit=1, properties=None
    )
    assert len(with_map) == len(without) + 4
    assert decode_frame(with_map) == decode_frame(without)


@pytest.mark.parametrize("count", [0, 1, 184, 0xFFFF_FFFF])
def test_properties_are_read_to_the_end_whatever_their_count_says(count):
    """The C client writes the size in bytes of its properties where their count belongs."""
    pairs = bytes.fromhex("0007 70726f64756374 0001 63 0008 66696c7465722e30 0002 6575")
    read = {"product": "c", "filter.0": "eu"}
    head = bytes.fromhex("00000001")
    given = count.to_bytes(4, "big") + pairs
    assert codec.decode_request(Key.PEER_PROPERTIES, 1, head + given).properties == read
    assert (
        codec.decode_request(Key.SUBSCRIBE, 1, head + bytes.fromhex("00 0001 73 0001 000a") + given).properties == read
    )


def test_properties_have_a_limit():
    pairs = [f"{number:04}".encode() for number in range(spec.PROPERTIES_COUNT_MAX + 1)]
    body = bytes(8) + b"".join(b"\0\4" + name + b"\0\0" for name in pairs)
    with pytest.raises(codec.MalformedFrame, match=r"PeerProperties\.properties: needed 4096 pairs or fewer"):
        codec.decode_request(Key.PEER_PROPERTIES, 1, body)
    assert len(codec.decode_request(Key.PEER_PROPERTIES, 1, body[:-8]).properties) == spec.PROPERTIES_COUNT_MAX


@pytest.mark.parametrize(
    ("key", "body", "where"),
    [
        (Key.DELETE, "00000001 0002 c328", "Delete.stream"),
        (Key.CREATE, "00000001 0001 73 7fffffff", "Create.arguments"),
        (Key.CREATE, "00000001 0001 73 ffffffff", "Create.arguments"),
        (Key.METADATA, "00000001 40000000 0001 73", "Metadata.streams.item"),
        (Key.EXCHANGE_COMMAND_VERSIONS, "00000001 00000002 000100010001", "ExchangeCommandVersions.versions"),
        (Key.SASL_AUTHENTICATE, "00000001 0000 fffffffe", "SaslAuthenticate.data"),
        (Key.SUBSCRIBE, "00000001 00 0001 73 0000 0001", "Subscribe.offset_type"),
        (Key.SUBSCRIBE, "00000001 00 0001 73 0006 0001", "Subscribe.offset_type"),
        (Key.PUBLISH, "01 7fffffff", "Publish.messages"),
        (Key.PEER_PROPERTIES, "00000001 000000", "PeerProperties.properties"),
        (Key.PEER_PROPERTIES, "00000001 00000001 0001 61", "PeerProperties.properties"),
        (Key.SUBSCRIBE, "00000001 00 0001 73 0001 000a 00000009 0001 61 0002 62", "Subscribe.properties"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_malformed_frames_say_where(key, body, where):
    with pytest.raises(codec.MalformedFrame) as caught:
        codec.decode_request(key, 1, bytes.fromhex(body))
    assert caught.value.where.startswith(where.removesuffix(".item"))
    assert isinstance(caught.value, ValueError) and caught.value.code == Code.UNKNOWN_FRAME
    assert pickle.loads(pickle.dumps(caught.value)).where == caught.value.where


@pytest.mark.parametrize(
    ("decode", "key", "version"),
    [
        (codec.decode_request, 0x20, 1),
        (codec.decode_request, 0, 1),
        (codec.decode_request, -1, 1),
        (codec.decode_request, 0x1000D, 1),
        (codec.decode_request, Key.CREATE, 0),
        (codec.decode_request, Key.CREATE, 2),
        (codec.decode_request, Key.PUBLISH, 3),
        (codec.decode_request, Key.DELIVER, 1),
        (codec.decode_request, Key.CREATE | RESPONSE_BIT, 1),
        (codec.decode_response, Key.PUBLISH, 1),
        (codec.decode_response, Key.CONSUMER_UPDATE | RESPONSE_BIT, 1),
    ],
)
def test_unknown_keys_and_versions_are_malformed(decode, key, version):
    with pytest.raises(codec.MalformedFrame):
        decode(key, version, bytes(64))


def test_no_sub_batch_in_version_2():
    with pytest.raises(codec.UnencodableValue):
        codec.encode_request(Key.PUBLISH, version=2, publisher_id=1, messages=[(1, None, SUB_BATCH)])
    body = bytes.fromhex("01 00000001 0000000000000007 ffff 8000010000000400000004 00000000")
    with pytest.raises(codec.MalformedFrame, match="sub-batch"):
        codec.decode_request(Key.PUBLISH, 2, body)


def test_filter_values_need_version_2():
    with pytest.raises(codec.UnencodableValue):
        codec.encode_request(Key.PUBLISH, publisher_id=1, messages=[(1, "eu", b"a")])


def test_a_timestamp_is_signed_and_an_offset_is_not():
    def subscribe(offset_type, value):
        return codec.encode_request(
            Key.SUBSCRIBE, 1, subscription_id=0, stream="s", offset_type=offset_type, offset_value=value, credit=1
        )

    assert decode_frame(subscribe(5, -1)).offset_value == -1
    assert decode_frame(subscribe(4, 2**64 - 1)).offset_value == 2**64 - 1
    with pytest.raises(codec.UnencodableValue):
        subscribe(4, -1)
    with pytest.raises(codec.UnencodableValue):
        subscribe(5, 2**63)


@pytest.mark.parametrize(
    "encoder",
    [
        lambda: codec.encode_request(Key.CREATE, 1),  # a field is missing
        lambda: codec.encode_request(Key.CREATE, 1, stream="s", color="red"),  # a field too many
        lambda: codec.encode_request(Key.CREATE, stream="s"),  # no correlation id
        lambda: codec.encode_request(Key.CREATE, 2**32, stream="s"),
        lambda: codec.encode_request(Key.CREATE, 1, stream=b"s"),
        lambda: codec.encode_request(Key.CREATE, 1, stream="\ud800"),
        lambda: codec.encode_request(Key.CREATE, 1, stream="s", arguments={"max-age": 1}),
        lambda: codec.encode_request(Key.CREATE, 1, version=2, stream="s"),
        lambda: codec.encode_request(Key.METADATA, 1, streams=5),
        lambda: codec.encode_request(Key.DELIVER, subscription_id=1),  # a server's frame
        lambda: codec.encode_request(0x99),
        lambda: codec.encode_request(Key.CREDIT, subscription_id=256, credit=1),
        lambda: codec.encode_request(Key.CREDIT, subscription_id=1, credit=40_000),
        lambda: codec.encode_request(Key.PUBLISH, publisher_id=1, messages=[(1,)]),
        lambda: codec.encode_request(Key.PUBLISH, publisher_id=1, messages=[(1, "text")]),
        lambda: codec.encode_server_frame(Key.CREATE, correlation_id=1, stream="s"),  # a client's frame
        lambda: codec.encode_server_frame(
            Key.DELIVER, subscription_id=1, chunk=CHUNK_OF_A._replace(data=b"another size")
        ),
        lambda: codec.encode_response(Key.STORE_OFFSET, None, 1),  # never answered
        lambda: codec.encode_response(Key.METADATA, 1, Code.ACCESS_REFUSED, brokers=[], streams=[]),  # has no code
        lambda: codec.encode_response(Key.QUERY_OFFSET, 1, Code.OK),  # needs its offset
    ],
)
def test_what_the_wire_cannot_carry_is_refused(encoder):
    with pytest.raises(codec.UnencodableValue) as caught:
        encoder()
    assert isinstance(caught.value, ValueError) and caught.value.where


# ---- round trips of everything in the table ----

TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
DATA = st.binary(max_size=40)
SUB_BATCHES = st.builds(
    codec.SubBatch, st.integers(0, 7), st.integers(0, 2**16 - 1), st.integers(0, 2**32 - 1), st.binary(max_size=40)
)


@st.composite
def chunks(draw):
    data, trailer = draw(DATA), draw(st.sampled_from((b"", b"trailer")))
    header = [draw(INTEGERS[field.type]) for field in spec.CHUNK_HEADER]
    chunk = codec.Chunk(*header, data, trailer)
    return chunk._replace(
        magic_version=spec.CHUNK_MAGIC_VERSION, data_size=len(data), trailer_size=len(trailer) or chunk.trailer_size
    )


INTEGERS = {f"u{bits}": st.integers(0, 2**bits - 1) for bits in (8, 16, 24, 32, 64)}
INTEGERS |= {f"i{bits}": st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (16, 32, 64)}
SIMPLE = INTEGERS | {
    "string": TEXT,
    "nullable_string": st.none() | TEXT,
    "bytes": DATA,
    "map": st.dictionaries(TEXT, TEXT, max_size=4),
    "map_to_end": st.dictionaries(TEXT, TEXT, max_size=4),
    "statistics": st.dictionaries(TEXT, INTEGERS["i64"], max_size=4),
    "offset_type": st.integers(1, 5),
    "offset_type_or_none": st.integers(0, 5),
    "chunk": chunks(),
}


def values(field: Field, version: int):
    if isinstance(field.type, Items):
        tuple_of = getattr(codec, field.type.name)
        items = [st.none() if f.since > version else values(f, version) for f in field.type.fields]
        return st.lists(st.builds(tuple_of, *items), max_size=4)
    if field.type.startswith("array<"):
        return st.lists(SIMPLE[field.type[len("array<") : -1]], max_size=4)
    if field.type == "entry":
        return DATA if version > 1 else DATA | SUB_BATCHES
    return SIMPLE[field.type]


@st.composite
def commands(draw, layout: Layout, version: int):
    drawn: dict[str, object] = {}
    for field in layout.fields:
        if field.since > version or (field.only_if and drawn[field.only_if[0]] not in field.only_if[1]):
            drawn[field.name] = None
        elif field.type == "offset":
            drawn[field.name] = draw(INTEGERS["i64" if drawn["offset_type"] == 5 else "u64"])
        elif field.name == "code":
            drawn[field.name] = draw(st.sampled_from(sorted(Code)))
        else:
            drawn[field.name] = draw(values(field, version))
    return getattr(codec, layout.name)(**drawn)


@pytest.mark.parametrize(("command", "layout", "is_response", "version"), list(layouts()))
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_round_trip(command, layout, is_response, version, data):
    value = data.draw(commands(layout, version))
    frame = encode(layout, is_response, command.key, version, value)
    key, seen_version, body = split(frame)
    assert (key, seen_version) == (command.key | (RESPONSE_BIT if is_response else 0), version)
    decode = decoder(key)
    assert decode(key, version, body) == value
    if value and not (layout.name == "Deliver" and value.chunk.trailer == b""):  # where any trailer would be one
        with pytest.raises(codec.MalformedFrame):
            decode(key, version, body + b"\0")
    if layout.name not in ("PeerProperties", "Subscribe", "ResolveOffsetSpec", "Deliver"):
        cut = data.draw(st.integers(0, max(0, len(body) - 1)))
        if body:
            with pytest.raises(codec.MalformedFrame):
                decode(key, version, body[:cut])


# ---- garbage ----


def mutations(body: bytes, random_: random.Random):
    """Bit flips, interesting numbers, cuts, repeats: the mistakes that broken and hostile peers make."""
    mutated = bytearray(body)
    for _ in range(random_.randint(1, 4)):
        at = random_.randrange(len(mutated) + 1)
        kind = random_.randrange(5)
        if kind == 0 and mutated:
            mutated[at % len(mutated)] ^= 1 << random_.randrange(8)
        elif kind == 1:
            number = random_.choice(
                (b"\xff" * 4, b"\x7f\xff\xff\xff", b"\x80\0\0\0", b"\0\0\0\0", b"\xff\xff", b"\x80")
            )
            mutated[at : at + len(number)] = number
        elif kind == 2:
            del mutated[at : at + random_.randint(1, 9)]
        elif kind == 3:
            mutated[at:at] = random_.randbytes(random_.randint(1, 9))
        else:
            mutated[at:at] = mutated[at : at + random_.randint(1, 30)]
    return bytes(mutated)


@pytest.mark.parametrize("seed", range(8))
def test_garbage_gives_a_value_or_malformed_frame(seed):
    random_ = random.Random(seed)
    outcomes = {"value": 0, "malformed": 0}
    for _ in range(4_000):
        key, version, body = split(random_.choice(GOLDEN))
        if random_.random() < 0.1:
            key, version = random_.randrange(0x40) | random_.choice((0, RESPONSE_BIT)), random_.randint(0, 3)
        body = mutations(body, random_)
        for decode in (codec.decode_request, codec.decode_response):
            try:
                value = decode(key, version, body)
            except codec.MalformedFrame:
                outcomes["malformed"] += 1
            else:
                outcomes["value"] += 1
                assert type(value).__name__ in dir(codec)
    assert min(outcomes.values()) > 100, "the mutations no longer reach both sides"


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(Key)), st.booleans(), st.integers(0, 3), st.binary(max_size=120))
def test_noise_gives_a_value_or_malformed_frame(key, is_response, version, body):
    for decode in (codec.decode_request, codec.decode_response):
        try:
            decode(key | (RESPONSE_BIT if is_response else 0), version, body)
        except codec.MalformedFrame as error:
            assert error.where and error.needed and error.had
