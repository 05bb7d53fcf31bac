# SPDX-License-Identifier: Apache-2.0
"""The tasks of a plan are its ranges, each record once, cut where the broker says, in an order of their own."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyspark", reason="pyspark is not installed")

from spark_fakes import FakeBroker, FakeStream

from vibemq.spark import plans
from vibemq.spark.client import Facts, ask
from vibemq.spark.options import parse
from vibemq.spark.ranges import Range

wanted = st.builds(
    Range, st.sampled_from("abcdef"), st.just("i"), st.integers(0, 1000), st.integers(0, 1000), st.booleans()
)
cuts = st.lists(st.integers(0, 1100), max_size=8).map(lambda found: tuple(sorted(found)))


@given(st.lists(wanted, unique_by=lambda each: each.stream), cuts)
def test_the_union_is_what_was_asked_and_the_order_is_fixed(ranges, cuts):
    has = {each.stream: Facts("i", 0, 1000, cuts) for each in ranges}
    parts = plans.parts(ranges, has)
    assert parts == plans.parts(list(reversed(ranges)), has)
    for each in ranges:
        own = [(part.start, part.end) for part in parts if part.stream == each.stream]
        assert own == sorted(own)
        covered = [offset for start, end in own for offset in range(start, end)]
        assert covered == list(range(each.start, each.end))
    assert all(part.start < part.end for part in parts)


sizes = st.lists(st.integers(1, 30), min_size=1, max_size=30)
limits = st.fixed_dictionaries(
    {},
    optional={
        "minPartitions": st.integers(1, 50),
        "maxRecordsPerPartition": st.integers(1, 200),
        "maxBytesPerPartition": st.integers(0, 500),
    },
)


@given(sizes, limits, st.booleans(), st.data())
def test_a_range_is_cut_at_chunks_alone_and_the_same_when_its_beginning_is_gone(sizes, limits, is_ours, data):
    options = parse({"endpoints": "here:1", "stream": "s", **{name: str(value) for name, value in limits.items()}})
    stream = FakeStream(incarnation=7 if is_ours else None)
    for size in sizes:
        stream.add(size, size)
    broker = FakeBroker()
    broker.streams["s"] = stream
    taken = broker.connect("here", 1)
    start = data.draw(st.integers(0, stream.next - 1))
    end = data.draw(st.integers(start + 1, stream.next))
    asked = [Range("s", "7", start, end)]
    parts = plans.parts(asked, ask(taken, plans.with_cuts(options, asked)))
    assert parts == plans.parts(asked, ask(taken, plans.with_cuts(options, asked)))
    assert [part.start for part in parts] == [start, *(part.end for part in parts[:-1])] and parts[-1].end == end
    records_max = options.max_records_per_partition or stream.next
    if is_ours:
        boundaries = {chunk.chunk_id for chunk in stream.chunks}
        assert all(part.start in boundaries for part in parts[1:])
        assert all(part.end - part.start <= max(records_max, max(sizes)) for part in parts)
        gone = data.draw(st.integers(0, len(stream.chunks) - 1))
        stream.first, stream.chunks = stream.chunks[gone].chunk_id, stream.chunks[gone:]
        after = plans.parts(asked, ask(taken, plans.with_cuts(options, asked)))
        assert [part for part in after if part.start > stream.first] == [p for p in parts if p.start > stream.first]
    else:
        assert all(part.end - part.start <= records_max for part in parts)
        assert len(parts) >= min(options.min_partitions or 1, end - start) // 2


def test_a_partition_is_small_and_holds_no_secret():
    (part,) = plans.parts([Range("s" * 255, "f" * 16, 0, 1 << 62, False, "5" * 32, "/d" * 100)], {})
    assert len(pickle.dumps(part)) < 1024
    assert "password" not in repr(part)
