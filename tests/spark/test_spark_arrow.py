# SPDX-License-Identifier: Apache-2.0
"""The decoder gives the same rows as a plain one, whatever the cut, and refuses what is broken."""

import gc
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("pyarrow", reason="pyarrow is not installed")

import pyarrow as pa
from spark_chunks import CODES, Built, data_section, simple, sub_batch

from vibemq.errors import ProtocolError
from vibemq.spark._arrow import Decoder

FIELDS = {
    "value": pa.field("value", pa.binary(), False),
    "offset": pa.field("offset", pa.int64(), False),
    "timestamp": pa.field("timestamp", pa.timestamp("us", "UTC"), False),
    "stream": pa.field("stream", pa.string(), False),
}
SCHEMA = pa.schema(list(FIELDS.values()))


def decode(chunks, start=0, end=1 << 60, schema=SCHEMA, **options):
    decoder = Decoder("orders", schema, **options)
    batches = []
    for chunk in chunks:
        batches += decoder.decode(
            chunk.chunk_id, chunk.timestamp_ms, chunk.entries, chunk.records, memoryview(chunk.data), start, end
        )
    last = decoder.finish()
    return batches + ([last] if last is not None else [])


def rows(batches):
    for batch in batches:
        batch.validate(full=True)
    return [row for batch in batches for row in batch.to_pylist()]


payloads = st.binary(max_size=200).map(lambda data: b"\x01" + data)  # never AMQP 1.0


@st.composite
def streams(draw):
    """A run of chunks with simple entries and sub-batches of every kind."""
    chunks, offset = [], draw(st.integers(0, 1 << 40))
    for _ in range(draw(st.integers(1, 5))):
        chunk = Built(offset, draw(st.integers(0, 1 << 41)))
        for _ in range(draw(st.integers(0, 6))):
            if draw(st.booleans()):
                chunk.add(draw(payloads))
            else:
                chunk.add_batch(draw(st.lists(payloads, min_size=1, max_size=8)), draw(st.sampled_from(sorted(CODES))))
        offset += chunk.records
        chunks.append(chunk)
    return chunks, offset


@settings(deadline=None)
@given(streams(), st.integers(-5, 60), st.integers(-5, 60), st.integers(1, 600), st.integers(1, 12))
def test_any_stream_any_range_any_batch_size(built, skip, length, batch_bytes, batch_rows):
    chunks, next_offset = built
    start = max(0, chunks[0].chunk_id + skip)
    end = min(next_offset, start + max(0, length))
    expected = [
        {"value": message, "offset": chunk.chunk_id + index, "stream": "orders", "ms": chunk.timestamp_ms}
        for chunk in chunks
        for index, message in enumerate(chunk.messages)
        if start <= chunk.chunk_id + index < end
    ]
    batches = decode(chunks, start, end, batch_bytes=batch_bytes, batch_rows=batch_rows)
    found = rows(batches)
    for row in found:
        row["ms"] = int(row.pop("timestamp").timestamp() * 1000 + 0.5)
    assert [{**row, "ms": row["ms"]} for row in found] == expected
    assert all(batch.num_rows <= batch_rows for batch in batches)
    assert all(batch.num_rows == 1 or batch["value"].nbytes <= batch_bytes + 4 * (batch_rows + 1) for batch in batches)


@settings(deadline=None, max_examples=300)
@given(st.binary(max_size=300), st.integers(0, 20), st.integers(0, 20))
def test_garbage_never_crashes(data, entries, records):
    decoder = Decoder("orders", SCHEMA)
    try:
        list(decoder.decode(0, 0, entries, records, data, 0, 1 << 60))
    except ProtocolError as refused:
        assert "orders" in str(refused)


@settings(deadline=None)
@given(streams(), st.data())
def test_truncated_chunks_are_refused(built, data):
    chunks, _ = built
    chunk = chunks[0]
    if not chunk.data:
        return
    cut = data.draw(st.integers(0, len(chunk.data) - 1))
    with pytest.raises(ProtocolError):
        list(
            Decoder("orders", SCHEMA).decode(
                chunk.chunk_id, 0, chunk.entries, chunk.records, chunk.data[:cut], 0, 1 << 60
            )
        )


@pytest.mark.parametrize("names", [("value",), ("offset",), ("stream", "value"), ("timestamp", "stream", "offset")])
def test_columns_are_as_asked(names):
    schema = pa.schema([FIELDS[name] for name in names])
    (batch,) = decode([Built(7).add(b"a", b"bc")], schema=schema)
    assert batch.schema.equals(schema)
    whole = {"value": [b"a", b"bc"], "offset": [7, 8], "stream": ["orders"] * 2, "timestamp": [1_700_000_000_000] * 2}
    for name in names:
        found = batch[name].cast(pa.timestamp("ms", "UTC")).cast(pa.int64()) if name == "timestamp" else batch[name]
        assert found.to_pylist() == whole[name]


def test_a_message_larger_than_a_batch_is_one_of_its_own():
    big = b"\x01" * 100_000
    batches = decode([Built(0).add(b"a", big, b"b", b"")], batch_bytes=1000)
    assert [batch.num_rows for batch in batches] == [1, 1, 2]
    assert batches[1]["value"][0].as_py() == big


def test_batches_live_longer_than_their_decoder_and_do_not_share_memory():
    decoder = Decoder("orders", SCHEMA, batch_rows=10)
    chunk = Built(0).add(*[b"\x01%d" % index for index in range(200)])
    batches = list(decoder.decode(0, 0, chunk.entries, chunk.records, chunk.data, 0, 200))
    del decoder
    gc.collect()
    rest = decode([Built(500).add(*[b"zzzz"] * 500)])  # takes slabs that were given back, were there any
    assert [row["value"] for row in rows(batches)] == chunk.messages[: len(batches) * 10]
    assert len(rows(rest)) == 500


VALUE = b"\x00\x53\x77"


@pytest.mark.parametrize(
    ("stored", "body"),
    [
        (data_section(b"hello"), b"hello"),
        (data_section(b""), b""),
        (data_section(b"x" * 300), b"x" * 300),
        (b"\x00\x53\x75\xb0" + struct.pack(">I", 3) + b"abc", b"abc"),
        (b"\x00\x53\x73\xc0\x01\x00" + data_section(b"after properties"), b"after properties"),
        (b"\x00\x53\x74\xc1\x01\x00" + data_section(b"after application properties"), b"after application properties"),
        (data_section(b"first") + data_section(b"second"), b"first"),
        (VALUE + b"\xa1\x05hello", b"hello"),
        (VALUE + b"\xa0\x03\x00\x01\x02", b"\x00\x01\x02"),
        (VALUE + b"\xb1" + struct.pack(">I", 4) + b"long", b"long"),
        (VALUE + b"\xb0" + struct.pack(">I", 2) + b"\xff\xfe", b"\xff\xfe"),
        (VALUE + b"\x41", VALUE + b"\x41"),  # true has no bytes: kept as stored
        (VALUE + b"\x40", b""),  # null: a native message without a body
        (b'{"json": 1}', b'{"json": 1}'),
        (b"", b""),
        (b"\x00", b"\x00"),
        (b"\x00\x53\x75\xa0\x05abc", b"\x00\x53\x75\xa0\x05abc"),  # cut off: opaque
        (b"\x00\x53\x75\xa0\x01abc", b"\x00\x53\x75\xa0\x01abc"),  # a tail: opaque
        (b"\x00\x53\x75", b"\x00\x53\x75"),
    ],
)
def test_value_is_the_body_of_an_amqp_message_or_else_the_bytes(stored, body):
    assert rows(decode([Built(0).add(stored)]))[0]["value"] == body
    assert rows(decode([Built(0).add(stored)], raw=True))[0]["value"] == stored


@pytest.mark.parametrize("name", sorted(set(CODES) - {"none"}))
def test_a_sub_batch_that_does_not_unpack_to_what_it_says(name):
    for announced in (0, 5, 7, 1 << 32 - 1):
        built = Built(0, data=sub_batch([b"ab"], name, announced), entries=1, messages=[b"ab"])
        with pytest.raises(ProtocolError, match=f"{name}|unpacks to"):
            decode([built])
    broken = bytearray(sub_batch([b"abcdefgh" * 20], name))
    broken[14] ^= 0xFF
    with pytest.raises(ProtocolError):
        decode([Built(0, data=bytes(broken), entries=1, messages=[b""])])


def test_a_bomb_costs_no_more_than_it_announces():
    content = simple(b"\x01" * (50 << 20))
    packed = __import__("zlib").compress(content, 9, wbits=31)
    entry = struct.pack(">BHII", 0x90, 1, 100, len(packed)) + packed
    before = pa.total_allocated_bytes()
    with pytest.raises(ProtocolError, match="at least"):
        decode([Built(0, data=entry, entries=1, messages=[b""])])
    assert pa.total_allocated_bytes() - before < 1 << 20


def test_unknown_compression_is_named():
    entry = struct.pack(">BHII", 0xF0, 1, 6, 6) + simple(b"ab")
    with pytest.raises(ProtocolError):
        decode([Built(0, data=entry, entries=1, messages=[b"ab"])])


def test_counts_must_agree():
    with pytest.raises(ProtocolError, match="says 3 entries"):
        decode([Built(0, data=simple(b"a") * 2, entries=3, messages=[b"a"] * 3)])
