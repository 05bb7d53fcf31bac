# SPDX-License-Identifier: Apache-2.0
"""How fast one core turns chunks into Arrow batches: the budget is 50 ns a row at 100 bytes."""

from __future__ import annotations

import struct

import pytest

pytest.importorskip("pyarrow", reason="pyarrow is not installed")

import pyarrow as pa

from vibemq.spark._arrow import Decoder

SCHEMA = pa.schema(
    [
        pa.field("value", pa.binary(), False),
        pa.field("offset", pa.int64(), False),
        pa.field("timestamp", pa.timestamp("us", "UTC"), False),
        pa.field("stream", pa.string(), False),
    ]
)
CHUNK_RECORDS = 2_000
CHUNKS = 500


def wrapped(body: bytes) -> bytes:
    """An AMQP 1.0 message of one data section, as our doors write it."""
    size = bytes([0xA0, len(body)]) if len(body) < 256 else b"\xb0" + struct.pack(">I", len(body))
    return b"\x00\x53\x75" + size + body


@pytest.mark.parametrize("size", [100, 1000])
@pytest.mark.parametrize("message", [bytes, wrapped], ids=["plain", "amqp"])
def test_decode(benchmark, size, message):
    stored = message(b"x" * size)
    data = (struct.pack(">I", len(stored)) + stored) * CHUNK_RECORDS

    def run() -> int:
        decoder, rows = Decoder("bench", SCHEMA), 0
        for number in range(CHUNKS):
            first = number * CHUNK_RECORDS
            for batch in decoder.decode(first, 0, CHUNK_RECORDS, CHUNK_RECORDS, data, first, first + CHUNK_RECORDS):
                rows += batch.num_rows
        last = decoder.finish()
        return rows + (last.num_rows if last else 0)

    assert benchmark.pedantic(run, rounds=5, warmup_rounds=1) == CHUNKS * CHUNK_RECORDS
    if not benchmark.disabled:
        benchmark.extra_info["ns_per_row"] = benchmark.stats["median"] / (CHUNKS * CHUNK_RECORDS) * 1e9
