# SPDX-License-Identifier: Apache-2.0
"""How much a batch takes, and of which streams: limits, super streams and patterns, against a broker made of a list."""

from __future__ import annotations

import itertools
import time

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed")
pytest.importorskip("pyarrow", reason="pyarrow is not installed")

from hypothesis import given
from hypothesis import strategies as st
from spark_fakes import FakeBroker, FakeStream, installed, offsets_of

from vibemq.errors import ConfigError, StreamNotFound, VibeMQError
from vibemq.spark import plans, source
from vibemq.spark.offsets import Position
from vibemq.spark.options import parse
from vibemq.spark.ranges import DataLost
from vibemq.spark.source import VibeMQDataSource

LEAST = {"endpoints": "here:1", "latestOffsetPollMs": "0"}


@pytest.fixture
def broker(monkeypatch):
    return installed(monkeypatch)


def made(broker, *names, incarnation=7, count=0):
    for name in names:
        broker.streams[name] = FakeStream(incarnation)
        broker.streams[name].add(count)


def make(kind, **options):
    known = VibeMQDataSource({**LEAST, **options})
    return getattr(known, kind)(known.schema())


def drain(reader, start=None):
    """The batches until there is nothing new, each as what was read."""
    here, batches = start or reader.initialOffset(), []
    while (there := reader.latestOffset(here, reader.getDefaultReadLimit())) is not here:
        batches.append(offsets_of(reader, reader.partitions(here, there)))
        here = there
        assert len(batches) < 100
    return batches


def positions(offset):
    return {name: each["o"] for name, each in offset["s"].items()}


# ---- limits ----


@pytest.mark.parametrize("incarnation", [7, None])
@pytest.mark.parametrize("available_now", [False, True])
def test_bytes_of_a_batch(broker, incarnation, available_now):
    made(broker, "s", incarnation=incarnation, count=95)
    size = len(broker.streams["s"].chunks[1].data)
    reader = make("streamReader", stream="s", startingOffsets="earliest", maxBytesPerTrigger=str(3 * size))
    assert reader.getDefaultReadLimit().max_bytes == 3 * size
    if available_now:
        reader.prepareForTriggerAvailableNow()
    start = reader.initialOffset()
    broker.streams["s"].add(40)
    batches = drain(reader, start)
    assert list(itertools.chain(*batches)) == list(range(95 if available_now else 135))
    if incarnation:
        assert [len(batch) for batch in batches][:3] == [30, 30, 30], "whole chunks"
    assert len(batches) >= 3


def test_one_chunk_is_read_however_small_the_limit(broker):
    made(broker, "a", "b", count=30)
    batches = drain(make("streamReader", subscribe="a,b", startingOffsets="earliest", maxBytesPerTrigger="1"))
    assert [len(batch) for batch in batches] == [20, 20, 20]


def test_a_first_batch_from_earliest_is_limited_unless_told_otherwise():
    assert parse({**LEAST, "stream": "s", "startingOffsets": "earliest"}).bytes_per_trigger == 1 << 30
    for said in ({}, {"startingOffsets": "latest"}, {"startingOffsets": "earliest", "maxBytesPerTrigger": "0"}):
        assert parse({**LEAST, "stream": "s", **said}).bytes_per_trigger == 0
    rows = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "5"}
    assert parse({**LEAST, "stream": "s", **rows}).bytes_per_trigger == 0


def test_a_limit_in_bytes_costs_no_further_round_trip_for_one_stream(broker):
    made(broker, "s", count=95)
    reader = make("streamReader", stream="s", maxBytesPerTrigger="100")
    here = {"v": 1, "s": {"s": {"i": "7", "o": 0}}}
    for rounds in range(1, 5):
        here = reader.latestOffset(here, reader.getDefaultReadLimit())
        assert broker.plans == rounds


sizes = st.dictionaries(st.sampled_from("abcd"), st.lists(st.integers(1, 40), max_size=20), min_size=1)


@given(sizes, st.integers(1, 2000))
def test_bytes_are_shared_and_nobody_starves(sizes, most):
    broker = FakeBroker()
    for name, chunks in sizes.items():
        broker.streams[name] = FakeStream(7)
        for size in chunks:
            broker.streams[name].add(size, size)
    options = parse({**LEAST, "subscribe": ",".join(sizes), "maxBytesPerTrigger": str(most)})
    taken = broker.connect("here", 1)
    begin = {name: Position("7", 0) for name in sizes}
    end = {name: Position("7", there.next) for name, there in broker.streams.items()}
    for _ in range(1000):
        if begin == end:
            return
        limited = plans.within_bytes(options, taken, begin=begin, end=end, has=None)
        total = 0
        for name, there in broker.streams.items():
            inside = [c for c in there.chunks if begin[name].offset <= c.chunk_id < limited[name].offset]
            assert bool(inside) == (begin[name] != end[name]), "a stream with a backlog was left out"
            assert limited[name].offset in {there.next, *(c.chunk_id for c in there.chunks)}
            total += sum(len(c.data) for c in inside[1:])  # one chunk of each is its due
        assert total <= most
        begin = limited
    raise AssertionError("no end after 1000 batches")


def test_a_batch_waits_for_enough_records_or_for_the_delay(broker):
    made(broker, "s", count=5)
    reader = make("streamReader", stream="s", minOffsetsPerTrigger="10", maxTriggerDelay="1h")
    assert reader.getDefaultReadLimit().min_rows == 10
    here = {"v": 1, "s": {"s": {"i": "7", "o": 0}}}
    there = reader.latestOffset(here, reader.getDefaultReadLimit())
    assert positions(there) == {"s": 5}, "the first does not wait"
    broker.streams["s"].add(9)
    assert reader.latestOffset(there, reader.getDefaultReadLimit()) is there
    broker.streams["s"].add(1)
    after = reader.latestOffset(there, reader.getDefaultReadLimit())
    assert positions(after) == {"s": 15}
    broker.streams["s"].add(1)
    assert reader.latestOffset(after, None) is after
    reader.planned_at = time.monotonic() - 3601
    assert positions(reader.latestOffset(after, None)) == {"s": 16}


def test_available_now_takes_what_is_there_though_it_is_less_than_the_least(broker):
    made(broker, "s", count=25)
    limits = {"minOffsetsPerTrigger": "20", "maxOffsetsPerTrigger": "20"}
    reader = make("streamReader", stream="s", startingOffsets="earliest", **limits)
    reader.prepareForTriggerAvailableNow()
    assert [len(batch) for batch in drain(reader)] == [20, 5]


# ---- which streams ----


@pytest.mark.parametrize("incarnation", [7, None])
def test_the_partitions_of_a_super_stream(broker, incarnation):
    made(broker, "o-0", "o-1", incarnation=incarnation, count=20)
    broker.super_streams["o"] = ["o-0", "o-1"]
    assert sorted(offsets_of(make("reader", superStream="o"), make("reader", superStream="o").partitions())) == sorted(
        [*range(20), *range(20)]
    )
    reader = make("streamReader", superStream="o")
    start = reader.initialOffset()
    assert positions(start) == {"o-0": 20, "o-1": 20}
    with pytest.raises(StreamNotFound, match="super stream 'nothing' does not exist; `vibemq ctl add_super_stream`"):
        make("streamReader", superStream="nothing").initialOffset()


@pytest.mark.parametrize("incarnation", [7, None])
@pytest.mark.parametrize("fails", ["true", "false"])
def test_a_partition_that_is_added_during_a_query_begins_at_its_first_offset(broker, incarnation, fails):
    made(broker, "o-0", incarnation=incarnation, count=20)
    broker.super_streams["o"] = ["o-0"]
    reader = make("streamReader", superStream="o", failOnDataLoss=fails)
    start = reader.initialOffset()
    broker.super_streams["o"] = ["o-0", "o-1"]
    made(broker, "o-1", incarnation=incarnation)
    assert reader.latestOffset(start, None) is start, "an empty one makes no batch"
    broker.streams["o-1"].add(30)
    broker.streams["o-1"].first, broker.streams["o-1"].chunks = 10, broker.streams["o-1"].chunks[1:]
    end = reader.latestOffset(start, None)
    assert positions(end) == {"o-0": 20, "o-1": 30}
    assert offsets_of(reader, reader.partitions(start, end)) == list(range(10, 30))
    assert reader.latestOffset(end, None) is end


def test_available_now_reads_the_partitions_that_there_were(broker):
    made(broker, "o-0", "o-1", count=20)
    broker.super_streams["o"] = ["o-0"]
    reader = make("streamReader", superStream="o", startingOffsets="earliest", maxBytesPerTrigger="50")
    reader.prepareForTriggerAvailableNow()
    broker.super_streams["o"] = ["o-0", "o-1"]
    assert list(itertools.chain(*drain(reader))) == list(range(20))


def test_a_partition_that_is_gone(broker):
    made(broker, "o-0", "o-1", count=20)
    broker.super_streams["o"] = ["o-0", "o-1"]
    reader = make("streamReader", superStream="o")
    start = reader.initialOffset()
    broker.super_streams["o"] = ["o-0"]
    with pytest.raises(DataLost, match="'o-1': it is not read any more"):
        reader.latestOffset(start, None)
    lenient = make("streamReader", superStream="o", failOnDataLoss="false")
    end = lenient.latestOffset(start, None)
    assert positions(end) == {"o-0": 20}
    assert lenient.latestOffset(end, None) is end


def test_a_pattern_finds_streams_that_come_later(broker, monkeypatch):
    made(broker, "in.a", "in.b", "out", count=10)
    reader = make("streamReader", subscribePattern=r"in\..*", startingOffsets="earliest")
    start = reader.initialOffset()
    assert positions(start) == {"in.a": 0, "in.b": 0}
    made(broker, "in.c", count=10)
    assert positions(reader.latestOffset(start, None)) == {"in.a": 10, "in.b": 10}
    monkeypatch.setattr(source, "LOOK_UP_SECONDS", 0)
    assert positions(reader.latestOffset(start, None)) == {"in.a": 10, "in.b": 10, "in.c": 10}
    del broker.streams["in.b"]
    monkeypatch.setattr(source, "LOOK_UP_SECONDS", 100)
    with pytest.raises(DataLost, match=r"'in\.b'"):
        reader.latestOffset(start, None)


# ---- a checkpoint of other streams ----


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        ({"stream": "a"}, {"stream": "b"}, r"positions of 'a', and this source reads 'b'\. Give each source"),
        ({"subscribe": "a,b"}, {"subscribe": "b"}, r"positions of 'a', and this source reads 'b'\."),
        ({"stream": "a"}, {"subscribePattern": "b.*"}, r"positions of 'a', and this source reads .* match 'b\.\*'\."),
        ({"stream": "a"}, {"superStream": "o"}, r"'a': it is not read any more, .* the partitions of super stream 'o'"),
    ],
)
def test_a_checkpoint_of_streams_that_the_source_does_not_read_is_refused_and_both_are_named(broker, before, now, said):
    made(broker, "a", "b", count=10)
    broker.super_streams["o"] = ["b"]
    first = make("streamReader", startingOffsets="earliest", **before)
    start = first.initialOffset()
    end = first.latestOffset(start, None)
    after = make("streamReader", startingOffsets="earliest", **now)
    with pytest.raises(VibeMQError, match=said):
        after.latestOffset(end, None)
    with pytest.raises(VibeMQError, match=said.replace("'a': it is not read any more", "positions of 'a'")):
        make("streamReader", startingOffsets="earliest", **now).partitions(start, end)
    broker.streams["b"].add(5)
    lenient = make("streamReader", startingOffsets="earliest", failOnDataLoss="false", **now)
    assert positions(lenient.latestOffset(end, None)) == {"b": 15}


def test_a_stream_that_is_named_later_begins_at_its_first_record(broker):
    made(broker, "a", "b", count=10)
    start = make("streamReader", stream="a", startingOffsets="earliest").initialOffset()
    end = make("streamReader", stream="a").latestOffset(start, None)
    reader = make("streamReader", subscribe="a,b")
    further = reader.latestOffset(end, None)
    assert positions(further) == {"a": 10, "b": 10}
    assert offsets_of(reader, reader.partitions(end, further)) == list(range(10))


# ---- where they begin and end ----


@pytest.mark.parametrize("incarnation", [7, None])
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"startingOffsets": "last:25"}, range(75, 100)),
        ({"startingOffsets": "last:1000"}, range(100)),
        ({"startingOffsets": '{"s": "last:7"}'}, range(93, 100)),
        ({"startingOffsetsByTimestamp": '{"s": 40000}'}, range(40, 100)),
        ({"endingTimestamp": "40000"}, range(40)),
        ({"endingTimestamp": "40001"}, range(50)),
        ({"endingTimestamp": "999999999"}, range(100)),
        ({"endingOffsetsByTimestamp": '{"s": 20000}', "startingTimestamp": "10000"}, range(10, 20)),
        ({"startingOffsets": "-10m"}, range(40, 100)),
        ({"startingOffsets": "-10s"}, range(100, 100)),
        ({"endingOffsets": "-10m"}, range(40)),
    ],
)
def test_places(broker, monkeypatch, incarnation, options, expected):
    made(broker, "s", incarnation=incarnation, count=100)
    monkeypatch.setattr(time, "time_ns", lambda: (40_000 + 600_000) * 1_000_000)
    reader = make("reader", stream="s", **options)
    assert offsets_of(reader, reader.partitions()) == list(expected)


def test_a_stream_that_is_named_in_vain(broker):
    made(broker, "o-0", count=10)
    broker.super_streams["o"] = ["o-0"]
    for option in ({"startingOffsets": '{"o-1": 3}'}, {"endingOffsetsByTimestamp": '{"o-1": 3}'}):
        with pytest.raises(ConfigError, match="'o-1' is no stream that is read; o-0 is"):
            make("reader", superStream="o", **option).partitions()
