# SPDX-License-Identifier: Apache-2.0
"""Hub messages against vectors of both dialects and encodings, every cut of them, themselves, and garbage.

Every decoder is fed three ways: whole, byte by byte, and with the next record behind. What is tolerated and what closes
a connection is spelled out; all the rest is one sentence: whatever the bytes, a decoder gives a value or raises.
"""

import binascii
import json
import math
import re
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from peers import hub_messages as messages
from peers.hub_messages import Message, UnencodableValue

from vibemq.errors import LimitExceeded
from vibemq.protocols.signalr import records, spec
from vibemq.protocols.signalr.records import Handshake, MalformedFrame
from vibemq.protocols.signalr.spec import NOTHING, Dialect, Encoding, MessageType

VECTORS = json.loads((Path(__file__).parent / "vectors.json").read_text())
JSON, MESSAGEPACK = Encoding
KINDS = {
    "Invocation": MessageType.INVOCATION,
    "StreamItem": MessageType.STREAM_ITEM,
    "Completion": MessageType.COMPLETION,
    "StreamInvocation": MessageType.STREAM_INVOCATION,
    "CancelInvocation": MessageType.CANCEL_INVOCATION,
    "Ping": MessageType.PING,
    "Close": MessageType.CLOSE,
    "Ack": MessageType.ACK,
    "Sequence": MessageType.SEQUENCE,
    "StreamCompletion": MessageType.STREAM_COMPLETION,
}


def packed(value) -> bytes:
    return msgspec.msgpack.encode(value)


def framed(body: bytes, encoding: Encoding) -> bytes:
    """A record around a body, however long the body is."""
    if encoding == JSON:
        return body + b"\x1e"
    size, prefix = len(body), b""
    while size >= 0x80:
        prefix, size = prefix + bytes([size & 0x7F | 0x80]), size >> 7
    return prefix + bytes([size]) + body


def vectors(name: str):
    """The vectors of both dialects, and of version 2, that are called `name`, each with its dialect and encoding."""
    encoding = JSON if "json" in name else MESSAGEPACK
    for section, dialect in (("early", Dialect.EARLY), ("v1", Dialect.V1), ("v2_stateful", Dialect.V1)):
        for vector in VECTORS[section].get(name, ()):
            yield pytest.param(vector, encoding, dialect, id=vector["id"])


def wire_of(vector, encoding: Encoding) -> bytes:
    if encoding == JSON:
        return vector["wire"].encode()
    wire = framed(bytes.fromhex(vector["body_hex"]), MESSAGEPACK)
    assert vector.get("framed_hex", wire.hex()) == wire.hex()
    return wire


def meant(vector, dialect: Dialect) -> Message:
    """The Message that a vector describes."""
    m = vector["message"]
    payload = m.get("item", m.get("result", NOTHING))
    if "item_bytes_hex" in m:
        payload = bytes.fromhex(m["item_bytes_hex"])
    if "item_timestamp_seconds" in m:
        payload = datetime.fromtimestamp(m["item_timestamp_seconds"], UTC)
    kind = KINDS[m["kind"]]
    return Message(
        kind,
        m.get("invocationId"),
        m.get("target"),
        m.get("arguments", []),
        m.get("streamIds", []),
        m.get("nonBlocking", kind == MessageType.INVOCATION and "invocationId" not in m),
        payload,
        m.get("error"),
        m.get("allowReconnect", False),
        m.get("sequenceId", 0),
    )


def only_record(wire: bytes, encoding: Encoding) -> bytes:
    records, used = envelope_records(wire, encoding)
    assert used == len(wire) and len(records) == 1
    return records[0]


def envelope_records(wire: bytes, encoding: Encoding, record_max: int = spec.RECORD_BYTES_MAX_DEFAULT):
    return messages.split_records(wire, encoding, record_max)


def fault(body: bytes, encoding: Encoding, dialect: Dialect = Dialect.V1) -> str:
    """Where the record is wrong."""
    with pytest.raises(MalformedFrame) as error:
        messages.decode(body, encoding, dialect)
    return error.value.where


# ---- vectors ----


@pytest.mark.parametrize("vector, encoding, dialect", [*vectors("json"), *vectors("msgpack")])
def test_a_vector_is_read_and_written_back(vector, encoding, dialect):
    wire = wire_of(vector, encoding)
    assert messages.decode(only_record(wire, encoding), encoding, dialect) == meant(vector, dialect)
    if vector["use"] == "both":
        assert messages.encode(meant(vector, dialect), encoding, dialect) == wire


@pytest.mark.parametrize("vector, encoding, dialect", [*vectors("json"), *vectors("msgpack")])
def test_a_vector_is_found_byte_by_byte_and_with_a_tail(vector, encoding, dialect):
    wire = wire_of(vector, encoding)
    body = only_record(wire, encoding)
    for cut in range(len(wire)):
        assert envelope_records(wire[:cut], encoding) == ([], 0)
        assert envelope_records(wire + wire[:cut], encoding) == ([body], len(wire))
    assert envelope_records(wire + wire, encoding) == ([body, body], 2 * len(wire))


@pytest.mark.parametrize("vector, encoding, dialect", [*vectors("json_reject"), *vectors("msgpack_reject")])
def test_what_must_be_refused_is_refused(vector, encoding, dialect):
    with pytest.raises(MalformedFrame):
        messages.decode(only_record(wire_of(vector, encoding), encoding), encoding, dialect)


@pytest.mark.parametrize("vector, encoding, dialect", [*vectors("msgpack")])
def test_a_messagepack_record_that_is_cut_short_is_refused(vector, encoding, dialect):
    body = bytes.fromhex(vector["body_hex"])
    for cut in range(len(body)):
        with pytest.raises(MalformedFrame):
            messages.decode(body[:cut], MESSAGEPACK, dialect)
    assert fault(body + b"\xc0", MESSAGEPACK, dialect) == "record"


@pytest.mark.parametrize("vector, encoding, dialect", [*vectors("flows_json"), *vectors("flows_msgpack")])
def test_every_record_of_a_flow_is_read(vector, encoding, dialect):
    for step in vector["steps"]:
        wire = step["wire"].encode() if encoding == JSON else bytes.fromhex(step["framed_hex"])
        assert messages.decode(only_record(wire, encoding), encoding, dialect)


# ---- framing ----


@pytest.mark.parametrize("vector", VECTORS["varint"]["valid"], ids=lambda vector: vector["hex"])
def test_a_length_is_read(vector):
    prefix, length = bytes.fromhex(vector["hex"]), vector["value"]
    assert framed(b"", MESSAGEPACK) == b"\0"
    if length < 100_000:
        assert envelope_records(prefix + bytes(length), MESSAGEPACK) == ([bytes(length)], len(prefix) + length)
    else:
        assert envelope_records(prefix, MESSAGEPACK, length) == ([], 0)
        with pytest.raises(LimitExceeded):
            envelope_records(prefix, MESSAGEPACK, length - 1)


@pytest.mark.parametrize("vector", VECTORS["varint"]["reject"], ids=lambda vector: vector["hex"])
def test_a_length_that_is_too_long_is_refused(vector):
    with pytest.raises(MalformedFrame, match="record length"):
        envelope_records(bytes.fromhex(vector["hex"]), MESSAGEPACK, 0x7FFFFFFF)


@pytest.mark.parametrize("vector", VECTORS["varint"]["need_more"], ids=lambda vector: vector["hex"])
def test_a_length_that_is_cut_short_waits(vector):
    assert envelope_records(bytes.fromhex(vector["hex"]), MESSAGEPACK) == ([], 0)


def test_messagepack_records_are_found_at_every_split():
    stream = bytes.fromhex(VECTORS["binary_framing"]["stream_hex"])
    bodies = [bytes.fromhex(body) for body in VECTORS["binary_framing"]["bodies_hex"]]
    for cut in range(len(stream) + 1):
        first, used = envelope_records(stream[:cut], MESSAGEPACK)
        rest, _ = envelope_records(stream[used:], MESSAGEPACK)
        assert first + rest == bodies


def test_a_json_record_beyond_the_limit_is_refused_without_its_end():
    assert envelope_records(b" " * 100, JSON, 100) == ([], 0)
    assert envelope_records(b" " * 100 + b"\x1e", JSON, 100) == ([b" " * 100], 101)
    for beyond in (b" " * 101, b" " * 101 + b"\x1e"):
        with pytest.raises(LimitExceeded):
            envelope_records(beyond, JSON, 100)


# ---- the text groups of the early dialect ----


@pytest.mark.parametrize("vector", VECTORS["base64_over_text"]["valid"], ids=lambda vector: vector["text"])
def test_a_text_group_is_read_and_written_back(vector):
    text, payload = vector["text"].encode(), bytes.fromhex(vector["payload_hex"])
    assert records.group_encode(payload) == text
    for cut in range(len(text)):
        assert records.group_decode(text[:cut]) == (b"", 0)
        assert records.group_decode(text + text[:cut]) == (payload, len(text))
    assert records.group_decode(text + text) == (payload * 2, 2 * len(text))


def test_two_text_groups_may_come_together():
    vector = VECTORS["base64_over_text"]["two_groups_in_one_body"]
    text = vector["text"].encode()
    assert records.group_decode(text) == (bytes.fromhex("".join(vector["payloads_hex"])), len(text))


@pytest.mark.parametrize("vector", VECTORS["base64_over_text"]["reject"], ids=lambda vector: vector["why"])
def test_a_text_group_that_is_none_is_refused(vector):
    with pytest.raises(MalformedFrame):
        records.group_decode(vector["text"].encode())


@pytest.mark.parametrize("vector", VECTORS["base64_over_text"]["need_more"], ids=lambda vector: vector["text"])
def test_a_text_group_that_is_cut_short_waits(vector):
    assert records.group_decode(vector["text"].encode()) == (b"", 0)


def test_a_text_group_beyond_the_limit_is_refused_before_it_has_come():
    record = 100
    most = (record + spec.VARINT_BYTES_MAX + 2) // 3 * 4
    assert records.group_decode(b"%d:" % most, record) == (b"", 0)
    for length in (most + 1, 10**spec.GROUP_DIGITS_MAX - 1):
        with pytest.raises(LimitExceeded):
            records.group_decode(b"%d:" % length, record)
    for digits in (b"99999999999:", b"99999999999", b"-1:", b" 4:EJUB;"):
        with pytest.raises(MalformedFrame):
            records.group_decode(digits)


# ---- handshakes ----


@pytest.mark.parametrize("section", ["early", "v1"])
def test_handshakes_tell_the_dialects_apart_and_are_answered(section):
    for vector in VECTORS[section]["handshake"]:
        record = vector["wire"].encode().removesuffix(b"\x1e")
        if vector.get("action", "").startswith("close the connection:") or record == b"[]":
            with pytest.raises(MalformedFrame):
                records.parse_handshake(record)
            continue
        shake = records.parse_handshake(record)
        assert shake == Handshake(**{k: v for k, v in json.loads(record).items() if k in ("protocol", "version")})
        assert (shake.version is None) == (section == "early")
        if "reply" in vector:
            assert records.handshake_answer(refusal(shake, vector)) == vector["reply"].encode()


def refusal(shake: Handshake, vector) -> str | None:
    if shake.protocol not in spec.ENCODING_BY_NAME:
        return spec.protocol_not_supported(shake.protocol)
    if not 0 <= shake.version <= spec.PROTOCOL_VERSION_MAX:
        return spec.version_not_supported(shake.protocol, shake.version)
    return spec.transport_not_binary(shake.protocol) if vector.get("transport") == "ServerSentEvents" else None


@pytest.mark.parametrize("vector", VECTORS["dialect_detection"], ids=lambda vector: vector["first_record"])
def test_the_version_tells_the_dialect(vector):
    version = records.parse_handshake(vector["first_record"].encode()).version
    assert vector["dialect"] == ("early" if version is None else "v2" if version == 2 else "v1")


@pytest.mark.parametrize(
    "record",
    [
        b"",
        b"{}",
        b"null",
        b'{"protocol":1}',
        b'{"protocol":"json","version":"1"}',
        b'{"protocol":"json","version":null}',
        b'{"protocol":"json","version":true}',
        b'{"protocol":"json","version":1.5}',
        b'{"protocol":"\xff"}',
        b'{"protocol":"json"}{',
        b'{"x":' + b"[" * 100 + b"]" * 100 + b',"protocol":"json"}',
    ],
)
def test_what_is_no_handshake_is_refused(record):
    with pytest.raises(MalformedFrame):
        records.parse_handshake(record)


def test_a_handshake_has_a_limit():
    with pytest.raises(LimitExceeded):
        records.parse_handshake(b" " * spec.HANDSHAKE_BYTES_MAX + b'{"protocol":"json"}')


@pytest.mark.parametrize("record", [[2, 0x80, "1", 7], [3, 0x80, "1", 2], [5, 0x80, "1"]])
def test_a_number_may_stand_for_empty_headers(record):
    """As aiosignalr writes them."""
    assert messages.decode(packed(record), MESSAGEPACK) == messages.decode(
        packed([record[0], {}, *record[2:]]), MESSAGEPACK
    )


# ---- writing ----


def test_streams_end_as_each_dialect_has_it():
    end, failed = Message(MessageType.STREAM_COMPLETION, "1"), Message(MessageType.STREAM_COMPLETION, "1", error="x")
    assert messages.encode(end, JSON, Dialect.EARLY) == b'{"type":4,"invocationId":"1"}\x1e'
    assert messages.encode(failed, MESSAGEPACK, Dialect.EARLY) == b"\x06" + packed([4, "1", "x"])
    assert messages.encode(end, JSON, Dialect.ALPHA2) == b'{"type":3,"invocationId":"1"}\x1e'
    assert messages.encode(failed, MESSAGEPACK, Dialect.ALPHA2) == b"\x07" + packed([3, "1", 1, "x"])


def test_an_early_json_peer_gets_a_null_result_as_void():
    nothing = Message(MessageType.COMPLETION, "1", payload=None)
    assert messages.encode(nothing, JSON, Dialect.EARLY) == b'{"type":3,"invocationId":"1"}\x1e'
    assert messages.encode(nothing, JSON) == b'{"type":3,"invocationId":"1","result":null}\x1e'


def test_an_error_is_never_empty():
    for encoding in Encoding:
        record = messages.encode(Message(MessageType.COMPLETION, "1", error=""), encoding)
        assert messages.decode(only_record(record, encoding), encoding).error == spec.UNSPECIFIED_ERROR


@pytest.mark.parametrize(
    "message, dialect",
    [
        (Message(MessageType.COMPLETION, "1", payload=1, error="x"), Dialect.V1),
        (Message(MessageType.STREAM_ITEM, "1"), Dialect.V1),
        (Message(MessageType.STREAM_INVOCATION, None, "T"), Dialect.V1),
        (Message(MessageType.COMPLETION, None), Dialect.V1),
        (Message(MessageType.COMPLETION, "i" * 257), Dialect.V1),
        (Message(MessageType.INVOCATION, "1", "T" * 1025), Dialect.V1),
        (Message(MessageType.INVOCATION, "1", None), Dialect.V1),
        (Message(MessageType.ACK, sequence=-1), Dialect.V1),
        (Message(MessageType.STREAM_COMPLETION, "1"), Dialect.V1),
        (Message(MessageType.INVOCATION, None, "T"), Dialect.EARLY),
        (Message(MessageType.PING), Dialect.EARLY),
        (Message(MessageType.CLOSE), Dialect.ALPHA2),
        (Message(0), Dialect.V1),
        (Message(11), Dialect.V1),
    ],
)
def test_what_a_dialect_cannot_say_is_not_written(message, dialect):
    for encoding in Encoding:
        with pytest.raises(UnencodableValue):
            messages.encode(message, encoding, dialect)


def test_values_that_are_none_raise():
    for raw, encoding in ((b"", JSON), (b"{", JSON), (b'"\\ud800"', JSON), (b"", MESSAGEPACK), (b"\xc1", MESSAGEPACK)):
        with pytest.raises(MalformedFrame, match="value"):
            records.value_of(raw, encoding)


# ---- itself ----

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
IDS = TEXTS.filter(bool)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS,
    lambda inner: st.lists(inner, max_size=7) | st.dictionaries(TEXTS, inner, max_size=5),
    max_leaves=20,
)
ARGUMENTS = st.lists(VALUES, max_size=8)
UPLOADS = st.lists(TEXTS, max_size=3)
SEQUENCES = st.integers(0, 10**18 - 1)


def of(kind: MessageType, **fields):
    return st.fixed_dictionaries(fields).map(lambda given: Message(kind, **given))


ANSWERS = [
    of(MessageType.STREAM_ITEM, id=IDS, payload=VALUES),
    of(MessageType.COMPLETION, id=IDS, payload=VALUES),
    of(MessageType.COMPLETION, id=IDS, error=IDS),
    of(MessageType.COMPLETION, id=IDS),
    of(MessageType.CANCEL_INVOCATION, id=IDS),
]
V1_MESSAGES = st.one_of(
    *ANSWERS,
    of(MessageType.INVOCATION, id=IDS, target=TEXTS, arguments=ARGUMENTS, stream_ids=UPLOADS),
    of(MessageType.INVOCATION, target=TEXTS, arguments=ARGUMENTS, nonblocking=st.just(True)),
    of(MessageType.STREAM_INVOCATION, id=IDS, target=TEXTS, arguments=ARGUMENTS, stream_ids=UPLOADS),
    of(MessageType.PING),
    of(MessageType.CLOSE, error=st.none() | IDS, allow_reconnect=st.booleans()),
    of(MessageType.ACK, sequence=SEQUENCES),
    of(MessageType.SEQUENCE, sequence=SEQUENCES),
)
EARLY_MESSAGES = st.one_of(
    *ANSWERS,
    of(MessageType.INVOCATION, id=TEXTS, target=TEXTS, arguments=ARGUMENTS, nonblocking=st.booleans()),
    of(MessageType.STREAM_COMPLETION, id=TEXTS, error=st.none() | IDS),
)


@given(V1_MESSAGES, st.sampled_from(Encoding))
def test_a_message_is_what_was_written(message, encoding):
    record = messages.encode(message, encoding)
    assert messages.decode(only_record(record, encoding), encoding) == message


@given(EARLY_MESSAGES, st.sampled_from(Encoding))
def test_an_early_message_is_what_was_written(message, encoding):
    record = messages.encode(message, encoding, Dialect.EARLY)
    if message.payload is None and message.type == MessageType.COMPLETION and encoding == JSON:
        message = message._replace(payload=NOTHING)
    assert messages.decode(only_record(record, encoding), encoding, Dialect.EARLY) == message


@given(V1_MESSAGES)
def test_json_of_python_reads_as_ours(message):
    """Blanks, another order of members and escapes for all that is not ASCII change nothing."""
    record = only_record(messages.encode(message, JSON), JSON)
    members = json.loads(record)
    for spelled in (json.dumps(members, indent=1), json.dumps(dict(reversed(members.items())))):
        assert messages.decode(spelled.encode(), JSON) == message


@pytest.mark.parametrize("size", [31, 32, 127, 128, 255, 256, 16383, 16384, 65535, 65536, 2_097_152])
@pytest.mark.parametrize("encoding", Encoding)
def test_texts_of_every_width_come_through(size, encoding):
    message = Message(MessageType.COMPLETION, "1", error="é" + "x" * (size - 2))
    record = messages.encode(message, encoding)
    records, _ = envelope_records(record, encoding, 1 << 22)
    assert messages.decode(records[0], encoding) == message


# ---- garbage ----


@given(st.binary(max_size=80), st.sampled_from(Encoding), st.sampled_from(Dialect))
@example(b'{"type":1,"target":"T","arguments":[', JSON, Dialect.V1)
def test_any_bytes_are_a_message_or_refused(body, encoding, dialect):
    try:
        message = messages.decode(body, encoding, dialect)
    except MalformedFrame as error:
        assert error.where and error.needed
    else:
        assert message is None or message.type in set(MessageType)


@given(st.binary(max_size=60))
def test_any_bytes_are_groups_or_refused(text):
    try:
        payload, used = records.group_decode(text)
    except (MalformedFrame, LimitExceeded):
        return
    assert used <= len(text) and (used > 0 or payload == b"")
    assert binascii.b2a_base64(payload, newline=False).count(b"\n") == 0


# ---- the table ----


def test_every_number_of_codec_pxd_is_that_of_spec():
    folder = Path(spec.__file__).parent
    text = (folder / "codec.pxd").read_text() + (folder / "wire.pxd").read_text()
    numbers = {name: int(value, 0) for name, value in re.findall(r"^    ([A-Z_\d]+) = (\w+)", text, re.M)}

    def named(prefix: str) -> dict[str, int]:
        return {name.removeprefix(prefix): value for name, value in numbers.items() if name.startswith(prefix)}

    for prefix, enumeration in (
        ("DIALECT_", Dialect),
        ("ENCODING_", Encoding),
        ("TYPE_", MessageType),
        ("RESULT_", spec.ResultKind),
    ):
        assert named(prefix) == {member.name: member.value for member in enumeration}
    for name in ("RECORD_DEPTH_MAX", "ID_BYTES_MAX", "TARGET_BYTES_MAX", "STREAM_IDS_MAX", "VARINT_MAX"):
        assert numbers[name] == getattr(spec, name)
    assert math.ceil(spec.VARINT_MAX.bit_length() / 7) == spec.VARINT_BYTES_MAX
