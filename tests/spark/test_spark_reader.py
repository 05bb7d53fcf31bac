# SPDX-License-Identifier: Apache-2.0
"""The readers against a broker made of a list: what Spark is told, in the order in which Spark asks."""

from __future__ import annotations

import json
import pickle
import time

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed")
pytest.importorskip("pyarrow", reason="pyarrow is not installed")

import pyarrow as pa
from spark_fakes import FakeStream, installed, offsets_of

from vibemq.errors import ConfigError, ConnectionClosed, ProtocolError, StreamNotFound, TimeoutExceeded
from vibemq.spark import client, ranges
from vibemq.spark.columns import arrow_schema
from vibemq.spark.options import parse
from vibemq.spark.ranges import DataLost, Range
from vibemq.spark.source import VibeMQDataSource

LEAST = {"endpoints": "here:1", "stream": "s", "latestOffsetPollMs": "0"}


@pytest.fixture
def broker(monkeypatch):
    fake = installed(monkeypatch)
    fake.streams["s"] = FakeStream(incarnation=7)
    return fake


def make(kind, **options):
    source = VibeMQDataSource({**LEAST, **options})
    return getattr(source, kind)(source.schema())


def stream_reader(**options):
    return make("streamReader", **options)


def at(offset, incarnation="7", began=None):
    found = {"v": 1, "s": {"s": {"i": incarnation, "o": offset}}}
    return found if began is None else {**found, "b": at(began, incarnation)["s"]}


# ---- a stream, in Spark's order of calls ----


def test_the_initial_offset_is_the_same_twice_though_the_stream_grows(broker):
    broker.streams["s"].add(30)
    reader = stream_reader()
    first = reader.initialOffset()
    broker.streams["s"].add(30)
    assert reader.initialOffset() == first == at(30)


def test_nothing_new_gives_back_the_very_object(broker):
    broker.streams["s"].add(5)
    reader = stream_reader()
    for start in (at(5), json.loads(json.dumps(at(5)))):
        assert reader.latestOffset(start, None) is start
    assert json.dumps(reader.reportLatestOffset()) == json.dumps(at(5))


def test_batches_are_limited_and_complete(broker):
    broker.streams["s"].add(25)
    reader = stream_reader(maxOffsetsPerTrigger="10", startingOffsets="earliest")
    assert reader.getDefaultReadLimit().max_rows == 10
    here, read = reader.initialOffset(), []
    while (there := reader.latestOffset(here, reader.getDefaultReadLimit())) is not here:
        read.append(offsets_of(reader, reader.partitions(here, there)))
        reader.commit(there)
        here = there
    assert read == [list(range(10)), list(range(10, 20)), list(range(20, 25))]
    reader.stop()


def test_spark_before_admission_control(broker):
    """It calls latestOffset without arguments: the reader must know where it is."""
    broker.streams["s"].add(25)
    reader = stream_reader(maxOffsetsPerTrigger="10", startingOffsets="earliest")
    reader.initialOffset()
    end = reader.latestOffset()
    reader.partitions(at(0), end)
    assert (end, reader.latestOffset()) == (at(10, began=0), at(20))


def test_spark_before_admission_control_asks_for_the_end_first(broker):
    """A restart, and Trigger.AvailableNow: where the batch starts Spark knows, and says it to `partitions` only."""
    broker.streams["s"].add(25)
    reader = stream_reader(maxOffsetsPerTrigger="10", startingOffsets="earliest")
    assert reader.latestOffset() == at(25, began=0)
    assert offsets_of(reader, reader.partitions(at(5), at(25, began=0))) == list(range(5, 25))


def test_available_now_ends_where_the_stream_ended_when_it_began(broker):
    broker.streams["s"].add(20)
    reader = stream_reader(startingOffsets="earliest")
    reader.prepareForTriggerAvailableNow()
    start = reader.initialOffset()
    broker.streams["s"].add(20)
    end = reader.latestOffset(start, None)
    assert end == at(20, began=0)
    assert reader.latestOffset(end, None) is end
    latest = stream_reader()
    latest.prepareForTriggerAvailableNow()
    broker.streams["s"].add(20)
    start = latest.initialOffset()
    assert latest.latestOffset(start, None) is start


def test_a_first_batch_is_replayed_from_where_it_began_though_the_end_has_moved(broker):
    broker.streams["s"].add(30)
    reader = stream_reader()
    start = reader.initialOffset()
    broker.streams["s"].add(10)
    end = reader.latestOffset(start, None)
    broker.streams["s"].add(50)
    again = stream_reader()
    assert again.initialOffset() == at(90)
    assert offsets_of(again, again.partitions(again.initialOffset(), end)) == list(range(30, 40))
    assert again.latestOffset(end, None) == at(90)


def test_a_reader_can_be_pickled_after_use(broker):
    reader = stream_reader()
    reader.initialOffset()
    assert pickle.loads(pickle.dumps(reader)).initialOffset() == at(0)


# ---- a broker that is away ----


def test_away_means_nothing_new_until_it_has_lasted_too_long(broker, caplog):
    broker.streams["s"].add(5)
    reader = stream_reader(brokerDownTimeoutMs="60")
    assert reader.latestOffset(at(3), None) == at(5)
    broker.away = True
    start = at(5)
    with pytest.raises(TimeoutExceeded, match=r"here:1 has been away .*brokerDownTimeoutMs allows 60"):
        for _ in range(1000):
            assert reader.latestOffset(start, None) is start
    assert sum("is away" in record.message for record in caplog.records) == 1, "warned once a minute"


def test_each_endpoint_that_refuses_is_named_once(monkeypatch):
    def refuse(host, port, **settings):
        raise ConnectionClosed(f"{host}:{port}: could not connect: Connection refused")

    monkeypatch.setattr(client.StreamsConnection, "connect", refuse)
    reader = stream_reader(endpoints="here:1,there:2", brokerDownTimeoutMs="0")
    with pytest.raises(TimeoutExceeded) as caught:
        reader.initialOffset()
    reasons = str(caught.value).partition("allows 0: ")[2]
    assert reasons == "here:1: could not connect: Connection refused; there:2: could not connect: Connection refused"


def test_a_batch_that_was_logged_is_not_cut_without_it(broker):
    broker.away = True
    with pytest.raises(TimeoutExceeded):
        stream_reader(brokerDownTimeoutMs="50").partitions(at(2), at(5))


def test_an_idle_query_costs_one_round_trip_a_poll(broker):
    broker.streams["s"].add(5)
    reader = stream_reader()
    for _ in range(10):
        reader.latestOffset(at(5), None)
        reader.reportLatestOffset()
    assert broker.plans == 10


def test_one_stream_is_read_by_many_tasks(broker):
    broker.streams["s"].add(95)
    reader = stream_reader(maxRecordsPerPartition="20")
    partitions = reader.partitions(at(3), at(91))
    expected = [(3, 20), (20, 40), (40, 60), (60, 80), (80, 91)]
    assert [(each.value.start, each.value.end) for each in partitions] == expected
    assert {(each.value.store, each.value.directory) for each in partitions} == {("store", "/streams")}
    assert offsets_of(reader, partitions) == list(range(3, 91))
    assert len(make("reader", minPartitions="4").partitions()) >= 4


def test_what_a_power_cut_could_take_back_is_not_planned(broker):
    broker.streams["s"].add(50)
    broker.streams["s"].lost_by_power_cut = 20
    reader = stream_reader()
    assert reader.latestOffset(at(0), None) == at(30)
    assert offsets_of(make("reader"), make("reader").partitions()) == list(range(30))


def test_a_start_waits_for_it_and_gives_up_in_the_end(broker):
    broker.away = True
    started = time.monotonic()
    with pytest.raises(TimeoutExceeded):
        stream_reader(brokerDownTimeoutMs="50").initialOffset()
    assert time.monotonic() - started < 5


def test_a_task_that_loses_its_connection_goes_on_at_its_next_record(broker):
    broker.streams["s"].add(95)
    broker.drop_after_chunks = 2
    reader = stream_reader(batchRows="7")
    assert offsets_of(reader, reader.partitions(at(3), at(91))) == list(range(3, 91))
    assert broker.connections >= 4


def test_connections_are_kept_and_used_again(broker):
    broker.streams["s"].add(50)
    reader = stream_reader()
    for _ in range(20):
        offsets_of(reader, reader.partitions(at(0), at(50)))
    assert broker.connections == 1


# ---- data that is gone ----


def test_recreated(broker):
    broker.streams["s"] = FakeStream(incarnation=8)
    broker.streams["s"].add(40)
    with pytest.raises(DataLost, match=r"deleted and created again.*incarnation 7.*incarnation 8.*failOnDataLoss"):
        stream_reader().latestOffset(at(30), None)
    reader = stream_reader(failOnDataLoss="false")
    end = reader.latestOffset(at(30), None)
    assert end == at(40, "8")
    assert offsets_of(reader, reader.partitions(at(30), end)) == list(range(40))
    # A batch that was planned before and is replayed now: its records are gone.
    with pytest.raises(DataLost):
        stream_reader().partitions(at(30), at(35))
    assert offsets_of(reader, reader.partitions(at(30), at(35))) == []


def test_recreated_where_the_broker_names_no_incarnation(broker):
    broker.streams["s"] = FakeStream(incarnation=None)
    broker.streams["s"].add(20)
    with pytest.raises(DataLost, match="created again, or its tail is gone"):
        stream_reader().latestOffset(at(30, ""), None)
    reader = stream_reader(failOnDataLoss="false")
    end = reader.latestOffset(at(30, ""), None)
    assert offsets_of(reader, reader.partitions(at(30, ""), end)) == list(range(20))


def test_retention(broker):
    stream = broker.streams["s"]
    stream.add(100)
    stream.first, stream.chunks = 60, stream.chunks[6:]
    with pytest.raises(DataLost, match=r"retention.*offsets 30 to 100.*offsets 60 to 100"):
        stream_reader().partitions(at(30), at(100))
    lenient = stream_reader(failOnDataLoss="false")
    assert offsets_of(lenient, lenient.partitions(at(30), at(100))) == list(range(60, 100))
    assert offsets_of(lenient, lenient.partitions(at(30), at(50))) == []


def test_a_tail_that_is_gone(broker):
    broker.streams["s"].add(20)
    with pytest.raises(DataLost, match="tail is gone"):
        stream_reader().latestOffset(at(30), None)
    with pytest.raises(DataLost, match="tail is gone"):
        stream_reader().partitions(at(10), at(30))
    lenient = stream_reader(failOnDataLoss="false")
    assert offsets_of(lenient, lenient.partitions(at(10), at(30))) == list(range(10, 20))


def test_a_hole_is_loss_with_us_and_a_habit_of_others(broker):
    for incarnation, reads in ((7, False), (None, True)):
        stream = broker.streams["s"] = FakeStream(incarnation)
        stream.add(30)
        del stream.chunks[1]
        wanted = at(0, "7" if incarnation else ""), at(30, "7" if incarnation else "")
        reader = stream_reader()
        if reads:
            assert offsets_of(reader, reader.partitions(*wanted)) == [*range(10), *range(20, 30)]
        else:
            with pytest.raises(DataLost, match="records inside it are missing"):
                offsets_of(reader, reader.partitions(*wanted))


def test_a_deleted_stream(broker):
    reader = stream_reader()
    partitions = reader.partitions(at(0), at(0)) or [type("P", (), {"value": Range("s", "7", 0, 5)})]
    del broker.streams["s"]
    with pytest.raises(DataLost, match="it was deleted"):
        list(reader.read(partitions[0]))
    with pytest.raises(StreamNotFound, match=r"no s\. Create it\."):  # the hint, too: Spark shows only the message
        stream_reader().initialOffset()


def test_a_stream_that_is_deleted_before_available_now_goes_on(broker):
    def going_on(**options):
        reader = stream_reader(**options)
        reader.prepareForTriggerAvailableNow()
        return reader

    broker.streams["s"].add(10)
    gone = broker.streams.pop("s")
    with pytest.raises(DataLost, match="'s': it was deleted: wanted offsets 4 to 4 of incarnation 7"):
        going_on().latestOffset(at(4), None)
    assert going_on(failOnDataLoss="false").latestOffset(at(4), None) == {"v": 1, "s": {}}
    for lenient in ("true", "false"):
        with pytest.raises(StreamNotFound):
            going_on(failOnDataLoss=lenient).initialOffset()
    broker.streams["s"] = gone
    assert going_on(failOnDataLoss="false").latestOffset({"v": 1, "s": {}}, None) == at(10)


def test_available_now_ends_though_its_stream_was_away_when_it_began(broker):
    reader = stream_reader()
    gone = broker.streams.pop("s")
    reader.prepareForTriggerAvailableNow()
    gone.add(10)
    broker.streams["s"] = gone
    end = reader.latestOffset(at(4), None)
    gone.add(10)
    assert end == at(10) and reader.latestOffset(end, None) == end


def test_a_stream_that_is_deleted_under_a_query(broker):
    broker.streams["s"].add(10)
    reader = stream_reader()
    reader.initialOffset()
    del broker.streams["s"]
    with pytest.raises(DataLost, match=r"'s': it was deleted: wanted offsets 4 to 4 of incarnation 7.*failOnDataLoss"):
        reader.latestOffset(at(4), None)


def test_a_chunk_that_lies_about_itself_fails_the_task(broker):
    broker.streams["s"].add(10)
    broker.streams["s"].chunks[0].entries = 11
    reader = stream_reader()
    with pytest.raises(ProtocolError, match="chunk 0"):
        offsets_of(reader, reader.partitions(at(0), at(10)))


# ---- batch ----


def test_batch_ranges(broker):
    broker.streams["s"].add(50)
    for options, expected in (
        ({}, range(50)),
        ({"startingOffsets": '{"s": 12}', "endingOffsets": '{"s": 13}'}, range(12, 13)),
        ({"startingOffsets": '{"s": -2}', "endingOffsets": '{"s": -1}'}, range(50)),
        ({"startingOffsets": '{"s": 50}'}, range(0)),
        ({"startingTimestamp": "20000"}, range(20, 50)),
        ({"startingTimestamp": "20001"}, range(30, 50)),
        ({"startingTimestamp": "0"}, range(50)),
        ({"startingTimestamp": "99999", "startingOffsetsByTimestampStrategy": "latest"}, range(0)),
    ):
        reader = make("reader", **options)
        assert offsets_of(reader, reader.partitions()) == list(expected)
    with pytest.raises(ConfigError, match="no record as young"):
        make("reader", startingTimestamp="99999").partitions()
    with pytest.raises(ConfigError, match="beyond the end"):
        make("reader", startingOffsets='{"s": 60}').partitions()
    with pytest.raises(DataLost, match="offsets 0 to 60"):
        make("reader", endingOffsets='{"s": 60}').partitions()


def test_no_partition_at_all_reads_nothing(broker):
    reader = make("reader")
    assert list(reader.read(type("P", (), {"value": None}))) == []


@pytest.mark.parametrize("incarnation", [None, 7])
def test_bisection_by_time_finds_each_chunk(broker, incarnation):
    stream = broker.streams["s"] = FakeStream(incarnation)
    stream.add(100, size=9)
    taken = broker.connect("here", 1)
    has = client.facts(taken, "s")
    for timestamp in range(-1000, 101_000, 500):
        expected = next((c.chunk_id for c in stream.chunks if c.timestamp_ms >= timestamp), stream.next)
        assert ranges.offset_for_time(taken, "s", has, timestamp) == expected


# ---- schema ----


def test_the_arrow_schema_is_what_spark_will_compare_with():
    schema = arrow_schema(VibeMQDataSource(LEAST).schema(), parse(LEAST))
    assert schema.field("timestamp").type == pa.timestamp("us", "UTC")
    assert [(field.name, field.nullable) for field in schema] == [
        ("value", False),
        ("offset", False),
        ("timestamp", False),
        ("stream", False),
    ]


def test_a_fork_leaves_the_parents_connections_alone(broker, monkeypatch):
    broker.streams["s"].add(5)
    reader = stream_reader()
    reader.latestOffset(at(0), None)
    (idle,) = next(iter(client._pool.values()))
    monkeypatch.setattr(client.os, "getpid", lambda: -1)
    reader.latestOffset(at(0), None)
    assert broker.connections == 2 and idle[0].open
