# SPDX-License-Identifier: Apache-2.0
"""Rows become the messages that a plain writer makes of them, in blocks that respect their bounds."""

from __future__ import annotations

import random
import struct

import pytest

pytest.importorskip("pyarrow", reason="pyarrow is not installed")

import pyarrow as pa
from spark_chunks import CODES, data_section, simple

from vibemq.errors import ConfigError, LimitExceeded
from vibemq.spark import _rows
from vibemq.spark._rows import Encoder
from vibemq.spark.codecs import NAMES, decompress

SEED = 20261123
EMPTY_VALUE = b"\x00\x53\x77\x40"


# ---- the reference ----


def variable(code: int, data: bytes) -> bytes:
    if len(data) < 256:
        return bytes([code, len(data)]) + data
    return bytes([code + 0x10]) + struct.pack(">I", len(data)) + data


def text(data: bytes) -> bytes:
    try:
        data.decode()
    except UnicodeDecodeError:
        return variable(0xA0, data)
    return variable(0xA1, data)


def properties(row: dict) -> bytes:
    fields = [b"\x40"] * 11
    if row.get("message_id") is not None:
        fields[0] = text(row["message_id"])
    if row.get("content_type") is not None:
        fields[6] = variable(0xA3, row["content_type"])
    if row.get("timestamp") is not None:
        fields[9] = b"\x83" + struct.pack(">q", row["timestamp"] // 1000)
    if row.get("key") is not None:
        fields[10] = text(row["key"])
    while fields and fields[-1] == b"\x40":
        fields.pop()
    if len(fields) > 1:  # the writer of the doors knows three lengths of the list
        fields += [b"\x40"] * ((7 if len(fields) <= 7 else 10 if len(fields) <= 10 else 11) - len(fields))
    if not fields:
        return b""
    content = b"".join(fields)
    if len(content) + 1 < 256:
        return b"\x00\x53\x73\xc0" + bytes([len(content) + 1, len(fields)]) + content
    return b"\x00\x53\x73\xd0" + struct.pack(">II", len(content) + 4, len(fields)) + content


def message(row: dict) -> bytes:
    headers = row.get("headers") or []
    content = b"".join(text(key) + (b"\x40" if value is None else text(value)) for key, value in headers)
    section = b"\x00\x53\x74\xd1" + struct.pack(">II", len(content) + 4, 2 * len(headers)) + content if headers else b""
    body = EMPTY_VALUE if row.get("value") is None else data_section(row["value"])
    return properties(row) + section + body


# ---- help ----


def encode(encoder: Encoder, columns: dict, rows: int) -> list[tuple[int, bytes]]:
    blocks = [(target, bytes(block)) for target, block in encoder.encode(columns, rows)]
    return blocks + [(target, bytes(block)) for target, block in encoder.finish()]


def messages(block: bytes) -> list[bytes]:
    """The messages of a block, sub-batches opened."""
    found, at = [], 0
    while at < len(block):
        if block[at] & 0x80:
            kind, _, unpacked, size = struct.unpack_from(">BHII", block, at)
            found += messages(decompress(kind >> 4 & 7, block[at + 11 : at + 11 + size], unpacked))
            at += 11 + size
            continue
        size = int.from_bytes(block[at : at + 4], "big")
        found.append(block[at + 4 : at + 4 + size])
        at += 4 + size
    return found


def by_target(blocks, count: int) -> list[list[bytes]]:
    return [[each for at, block in blocks if at == target for each in messages(block)] for target in range(count)]


def some_bytes(random_: random.Random, size_max: int, null: float = 0.2) -> bytes | None:
    if random_.random() < null:
        return None
    size = random_.choice((0, 1, 5, 31, 32, 33, 254, 255, 256, random_.randrange(size_max)))
    return random_.randbytes(size) if random_.random() < 0.3 else b"x" * size


def ascii_of(random_: random.Random) -> bytes | None:
    return random_.choice((None, b"", b"text/plain", b"a" * 300))


def made(random_: random.Random) -> dict:
    headers = [(b"k%d" % at, some_bytes(random_, 300)) for at in range(random_.choice((0, 0, 1, 3)))]
    return {
        "value": some_bytes(random_, 3_000),
        "key": some_bytes(random_, 50),
        "message_id": some_bytes(random_, 400),
        "content_type": ascii_of(random_),
        "timestamp": random_.choice((None, 0, -1, 1_700_000_000_123_456, -62_135_596_800_000_000)),
        "headers": None if random_.random() < 0.2 else headers,
    }


TYPES = {
    "value": pa.binary(),
    "key": pa.binary(),
    "message_id": pa.large_binary(),
    "content_type": pa.string(),
    "timestamp": pa.timestamp("us", "UTC"),
}
KAFKA_HEADERS = pa.list_(pa.struct([("key", pa.binary()), ("value", pa.binary())]))


def arrays(rows: list[dict], names, offset: int = 0, headers=None) -> dict[str, pa.Array]:
    """Columns of the rows; with an offset they are slices of longer ones."""
    found = {}
    before = [rows[at % len(rows)] for at in range(offset)] if rows else []
    for name in names:
        values = [row[name] for row in [*before, *rows]]
        if name == "headers":
            kind = headers or pa.map_(pa.binary(), pa.binary())
            if kind == KAFKA_HEADERS:
                values = [v if v is None else [{"key": k, "value": x} for k, x in v] for v in values]
            array = pa.array(values, kind)
        elif name == "content_type":
            array = pa.array([v if v is None else v.decode() for v in values], TYPES[name])
        else:
            array = pa.array(values, TYPES[name])
        found[name] = array.slice(offset)
    return found


# ---- what the rows become ----


@pytest.mark.parametrize("offset", [0, 1, 7, 8, 13])
@pytest.mark.parametrize("headers", [None, KAFKA_HEADERS], ids=["map", "list"])
@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_rows_of_any_columns_are_the_messages_of_a_plain_writer(offset, headers, compression):
    random_ = random.Random(SEED + offset)
    for names in (["value"], ["value", "key"], ["value", "headers"], ["value", "timestamp"], [*TYPES, "headers"]):
        rows = [made(random_) for _ in range(300)]
        encoder = Encoder(("one",), compression=compression)
        found = by_target(encode(encoder, arrays(rows, names, offset, headers), len(rows)), 1)[0]
        assert found == [message({name: row[name] for name in names}) for row in rows], (names, SEED)
        assert encoder.rows == len(rows)


def test_texts_of_every_arrow_type_are_read():
    for kind in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary()):
        blocks = encode(Encoder(("one",)), {"value": pa.array(["a", None, "grün"], kind)}, 3)
        assert by_target(blocks, 1)[0] == [data_section(b"a"), EMPTY_VALUE, data_section("grün".encode())]
    with pytest.raises(TypeError, match="not of int64"):
        encode(Encoder(("one",)), {"value": pa.array([1])}, 1)
    assert encode(Encoder(("one",)), {"value": pa.array([], pa.string())}, 0) == []


def test_a_usual_content_type_is_of_rows_with_a_value_and_gives_way_to_the_column():
    columns = {"value": pa.array(["{}", None, "{}"]), "content_type": pa.array([None, None, "text/x"])}
    found = by_target(encode(Encoder(("one",), content_type="application/json"), columns, 3), 1)[0]
    assert found == [
        message({"value": b"{}", "content_type": b"application/json"}),
        EMPTY_VALUE,
        message({"value": b"{}", "content_type": b"text/x"}),
    ]
    with pytest.raises(ConfigError, match="ASCII"):
        encode(Encoder(("one",)), {"value": pa.array(["x"]), "content_type": pa.array(["é"])}, 1)


# ---- where they go ----


def test_the_key_chooses_the_partition_that_other_clients_choose():
    mmh3 = pytest.importorskip("mmh3", reason="mmh3 is not installed")
    keys = [f"key {number}" * (number % 4) for number in range(1_000)]
    partitions = (2, 0, 1)  # the index of each partition in the sorted list of targets
    encoder = Encoder(("a", "b", "c"), partitions=partitions)
    found = by_target(encode(encoder, {"value": pa.array(keys), "key": pa.array(keys)}, len(keys)), 3)
    wanted: list[list[bytes]] = [[], [], []]
    for key in keys:
        target = partitions[mmh3.hash(key.encode(), 104729, signed=False) % 3]
        wanted[target].append(message({"value": key.encode(), "key": key.encode()}))
    assert found == wanted and all(wanted)


def test_rows_without_a_key_are_spread():
    columns = {"value": pa.array([b"x"] * 90), "key": pa.array([None] * 90, pa.string())}
    found = by_target(encode(Encoder(("a", "b", "c"), partitions=(0, 1, 2)), columns, 90), 3)
    assert [len(each) for each in found] == [30, 30, 30]


def test_the_column_stream_says_which_and_must_name_one_that_is_known():
    names = ["a", "b", "b", "a", "c"]
    columns = {"value": pa.array(names), "stream": pa.array(names)}
    found = by_target(encode(Encoder(("a", "b", "c"), by_name=True), columns, 5), 3)
    assert found == [[data_section(b"a")] * 2, [data_section(b"b")] * 2, [data_section(b"c")]]
    with pytest.raises(ConfigError, match=r"names 'c', which option stream does not; it names a, b"):
        encode(Encoder(("a", "b"), by_name=True), columns, 5)
    with pytest.raises(ConfigError, match="null"):
        encode(Encoder(("a",), by_name=True), {"value": pa.array(["x"]), "stream": pa.array([None], pa.string())}, 1)


# ---- bounds ----


def test_blocks_are_full_and_never_over_their_bound():
    values = [b"v" * (number % 500) for number in range(5_000)]
    blocks = encode(Encoder(("one",)), {"value": pa.array(values)}, len(values))
    assert by_target(blocks, 1)[0] == [data_section(value) for value in values]
    assert len(blocks) > 3
    assert all(_rows.BLOCK_BYTES - 600 < len(block) <= _rows.BLOCK_BYTES for _, block in blocks[:-1])


def test_many_targets_have_smaller_blocks():
    targets = tuple(f"{number:05}" for number in range(500))
    values = [b"v" * 1_000] * 20_000
    columns = {"value": pa.array(values), "stream": pa.array([targets[at % 500] for at in range(len(values))])}
    blocks = encode(Encoder(targets, by_name=True), columns, len(values))
    assert max(len(block) for _, block in blocks) <= _rows.OPEN_BYTES_MAX // 500
    assert [len(each) for each in by_target(blocks, 500)] == [40] * 500


@pytest.mark.parametrize("with_key", [False, True])
def test_a_large_message_has_a_block_of_its_own_up_to_the_limit(with_key):
    limit = 1_000_000
    around = len(message({"value": b"v" * 70_000, "key": b"k"} if with_key else {"value": b"v" * 70_000})) - 70_000 + 4
    largest = [b"small", b"v" * (limit - around), b"small"]
    columns = {"value": pa.array(largest)}
    if with_key:
        columns["key"] = pa.array(["k"] * 3)
    blocks = encode(Encoder(("one",), block_max=limit), columns, 3)
    assert [len(block) for _, block in blocks][1] == limit
    assert [len(each) for _, block in blocks for each in messages(block)][1] == limit - 4
    columns["value"] = pa.array([b"small", b"v" * (limit - around + 1)])
    columns = {name: array.slice(0, 2) for name, array in columns.items()}
    with pytest.raises(LimitExceeded, match="message size") as raised:
        encode(Encoder(("one",), block_max=limit), columns, 2)
    assert "frame_max" in raised.value.hint
    with pytest.raises(LimitExceeded):
        encode(Encoder(("one",), block_max=limit), {"value": pa.array([b"v" * (limit + 1)])}, 1)


def test_small_limits_hold_too():
    values = [b"v" * (number % 60) for number in range(1_000)]
    columns = {"value": pa.array(values), "key": pa.array(values)}
    blocks = encode(Encoder(("one",), block_max=200), columns, len(values))
    assert by_target(blocks, 1)[0] == [message({"value": value, "key": value}) for value in values]
    assert max(len(block) for _, block in blocks) <= 200


def test_a_header_without_a_key_is_an_error():
    headers = pa.array([[{"key": None, "value": b"x"}]], KAFKA_HEADERS)
    with pytest.raises(ConfigError, match="has no key"):
        encode(Encoder(("one",)), {"value": pa.array(["x"]), "headers": headers}, 1)


def test_what_does_not_get_smaller_is_not_compressed():
    blocks = encode(Encoder(("one",), compression="gzip"), {"value": pa.array([b"a"])}, 1)
    assert blocks == [(0, simple(data_section(b"a")))]
    random_ = random.Random(SEED)
    noise = [random_.randbytes(100_000)]
    blocks = encode(Encoder(("one",), compression="zstd"), {"value": pa.array(noise)}, 1)
    assert blocks == [(0, simple(data_section(noise[0])))]


def test_the_codecs_are_those_of_the_reader():
    assert {name: code for code, name in NAMES.items()} == {name: code for name, code in CODES.items() if code}
    assert _rows.crc32c(b"123456789") == 0xE3069283
