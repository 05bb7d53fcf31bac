# SPDX-License-Identifier: Apache-2.0
"""Bytes of a segment to chunks, an index to places, listings to a log: without a broker, and with what is damaged."""

from __future__ import annotations

import random
import struct
from types import SimpleNamespace

import pytest

pytest.importorskip("pyarrow", reason="pyarrow is not installed")
pytest.importorskip("pyspark", reason="pyspark is not installed")

import asyncio
import zlib

import pyarrow as pa
from spark_chunks import simple

from vibemq.remote.objects import Kind
from vibemq.spark import remote_logs
from vibemq.spark._arrow import Decoder
from vibemq.spark.remote_logs import Index, Piece, covered
from vibemq.spark.remote_plans import Log
from vibemq.storage.reading import SegmentBytes

SEED, HEADER = 0x01020304, 64
SCHEMA = pa.schema([pa.field("value", pa.binary(), False), pa.field("offset", pa.int64(), False)])


def chunk(first: int, count: int, timestamp_ms: int = 0) -> bytes:
    """As csrc/log/FORMAT.md has it."""
    data = b"".join(simple(b"%d" % number) for number in range(first, first + count))
    head = struct.pack(">BBHIqIIQIII", 0x50, 0, count, count, timestamp_ms, 0, 1, first, zlib.crc32(data), len(data), 0)
    check = zlib.crc32(head + bytes(4), zlib.crc32(struct.pack(">I", SEED))) >> 8
    return head + struct.pack(">I", check) + data


def segment(first: int = 0, chunks: int = 30, count: int = 7) -> tuple[bytes, bytes]:
    """Its chunks, and its index."""
    body, records = b"", b""
    for at in range(first, first + chunks * count, count):
        made = chunk(at, count, 1000 * at)
        record = struct.pack(">QqIII", at, 1000 * at, HEADER + len(body), len(made), count)
        records += record + struct.pack(">I", zlib.crc32(record, zlib.crc32(struct.pack(">I", SEED))))
        body += made
    return body, bytes(32) + records


def decoded(blocks: list[bytes], end: int = 1 << 40) -> tuple[list[int], str]:
    """The offsets of the rows whose values are right, and why there are no more."""
    decoder, chunks, at, problem = Decoder("s", SCHEMA), SegmentBytes(SEED, HEADER), 0, None
    batches = []
    for block in blocks:
        chunks.feed(block)
        reading = decoder.decode_log(chunks, at, end)
        while True:
            try:
                batches.append(next(reading))
            except StopIteration as done:
                at, problem = done.value
                break
        if problem is None or problem.code != "ERR_TRUNCATED":
            break
    last = decoder.finish()
    rows = [row for batch in [*batches, *([last] if last else [])] for row in batch.to_pylist()]
    assert all(row["value"] == b"%d" % row["offset"] for row in rows)
    return [row["offset"] for row in rows], problem.code if problem else ""


@pytest.mark.parametrize("size", [1, 2, 47, 48, 49, 100, 1000, 1 << 20])
def test_blocks_may_be_cut_anywhere(size):
    body, _ = segment()
    rows, why = decoded([body[at : at + size] for at in range(0, len(body), size)])
    assert rows == list(range(210)) and why == "ERR_TRUNCATED", "more may come"
    assert decoded([body[at : at + size] for at in range(0, len(body), size)], end=100)[0] == list(range(100))


def test_what_is_damaged_is_never_given():
    body, _ = segment()
    chance = random.Random(1)
    for _ in range(300):
        flipped = bytearray(body)
        flipped[chance.randrange(len(body))] ^= 1 << chance.randrange(8)
        size = chance.choice([10, 60, 500, 5000])
        rows, why = decoded([bytes(flipped[at : at + size]) for at in range(0, len(body), size)])
        assert rows == list(range(len(rows))) and len(rows) % 7 == 0
        assert len(rows) < 210 and why == "ERR_CORRUPT"


def test_an_index_finds_chunks_and_is_not_believed_where_it_is_damaged():
    _, records = segment(first=70)
    index = Index(memoryview(records), SEED)
    assert index.holding(70).chunk_id == 70 and index.holding(76).chunk_id == 70 and index.holding(77).chunk_id == 77
    assert index.least("chunk_id", 71).chunk_id == 77 and index.least("timestamp_ms", 77_001).chunk_id == 84
    assert index.least("chunk_id", 10_000) is None and index.holding(10_000).chunk_id == 70 + 29 * 7
    for position in range(len(records)):
        damaged = bytearray(records)
        damaged[position] ^= 1
        found = Index(memoryview(damaged), SEED).holding(100)
        assert found is None or found == index.holding(100)
    assert Index(memoryview(b""), SEED).holding(1) is None


def piece(first: int, after: int, key: str = "wal") -> Piece:
    return Piece(key, Kind.WRITE_AHEAD, 0, SEED, first, after, 0, 10 * (after - first))


def test_a_log_is_covered_by_as_few_pieces_as_need_be():
    closed = [piece(0, 100)._replace(kind=Kind.SEGMENT)]
    sent = [
        piece(50, 90),
        piece(90, 110),
        piece(100, 120),
        piece(100, 150, "longest"),
        piece(150, 160),
        piece(155, 170),
    ]
    found = covered(closed, sent)
    assert [(each.first, each.next) for each in found] == [(0, 100), (100, 150), (150, 160), (155, 170)]
    assert covered([], []) == []
    gap = covered([], [piece(10, 20), piece(30, 40)])
    assert [(each.first, each.next) for each in gap] == [(10, 20), (30, 40)], "who reads says what is missing"


def test_only_runs_without_gaps_count():
    keys = ["wal/a/00000001/0000000000000003", "wal/a/00000001/0000000000000004", "wal/a/00000001/0000000000000006"]
    keys += ["wal/a/00000002/0000000000000000", "wal/b/00000001/0000000000000000", "wal/a/else/7", "wal/nothing"]
    runs = remote_logs._runs([(key, 1) for key in keys])
    assert [[key for key, _ in run] for run in runs] == [keys[:2], keys[3:4], keys[4:5]]


@pytest.mark.parametrize("bytes_max", [0, 1, 150, 500, 3000])
@pytest.mark.parametrize("records_max", [0, 1, 10, 50])
def test_cuts_obey_both_limits_and_are_counted_from_the_end(bytes_max, records_max):
    if not bytes_max and not records_max:
        return
    body, records = segment()
    closed = Piece("x.segment", Kind.SEGMENT, 0, SEED, 0, 210, HEADER, HEADER + len(body))
    store = SimpleNamespace(kept={"indexes": {"x.segment": Index(memoryview(records), SEED)}})
    log = Log(store, [closed, piece(210, 217), piece(217, 224)])
    places = [*range(0, 210, 7), 210, 217]
    for start, end in ((0, 224), (15, 200), (3, 5), (211, 224)):
        cuts = asyncio.run(log.cuts(start, end, bytes_max, records_max))
        assert list(cuts) == sorted(set(cuts)) and set(cuts) <= set(places)
        for begin, after in zip((max((p for p in places if p <= start)), *cuts), (*cuts, end), strict=True):
            inside = [place for place in places if begin <= place < after]
            if len(inside) > 1 and after in cuts:
                size = (asyncio.run(log.floor(after)).at) - asyncio.run(log.floor(begin)).at
                assert not bytes_max or size <= bytes_max
                assert not records_max or after - begin <= records_max
        assert set(asyncio.run(log.cuts(start + 1, end, bytes_max, records_max))) <= set(cuts), "whatever is gone"
    for start in range(0, 224, 11):
        limit = asyncio.run(log.limit(start, max(bytes_max, 1)))
        assert start < limit <= 224 and limit in (*places, 224)
