# SPDX-License-Identifier: Apache-2.0
"""Jobs that read super streams, patterns and parts of streams, in batches and tasks of a size one chooses."""

from __future__ import annotations

import time

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed")

from peers.streams import connected
from pyspark.sql import functions as F
from running import Running
from spark_brokers import VibeMQ
from spark_chunks import data_section
from spark_fakes import offsets_of
from spark_jobs import Job, batch, expected, messages, sums

from vibemq.client.plans import WantedRange
from vibemq.protocols.streams.codec import encode_request
from vibemq.protocols.streams.spec import Key
from vibemq.spark.source import VibeMQDataSource

pytestmark = [pytest.mark.spark, pytest.mark.timeout(120)]


@pytest.fixture
def job(spark, tmp_path):
    return Job(spark, tmp_path)


@pytest.fixture
def super_stream(own_broker, stream):
    """Of two partitions, to which more can be added by a binding."""
    with own_broker.connect() as connection:
        names = [f"{stream}-{number}" for number in range(2)]
        connection.request(Key.CREATE_SUPER_STREAM, name=stream, partitions=names, binding_keys=["0", "1"])
    for number, name in enumerate(names):
        own_broker.publish(name, messages(1_000, 1_000 * number))
    return stream


def test_one_stream_is_read_by_several_tasks(spark, job, broker, stream):
    sent = messages(20_000)
    for first in range(0, 20_000, 1_000):
        broker.publish(stream, sent[first : first + 1_000])
    frame = batch(spark, broker, stream, minPartitions=6).load()
    assert frame.rdd.getNumPartitions() >= 6
    assert sums(frame) == expected(sent)
    rows = job.run(broker, stream, maxRecordsPerPartition=3_000, maxOffsetsPerTrigger=15_000)
    assert rows == [15_000, 5_000]
    assert sums(job.result()) == expected(sent)


def test_available_now_with_a_limit_in_bytes(job, broker, stream):
    sent = messages(20_000)
    for first in range(0, 20_000, 1_000):
        broker.publish(stream, sent[first : first + 1_000])
    rows = job.run(broker, stream, maxBytesPerTrigger=300_000)
    assert len(rows) >= 3
    assert sums(job.result()) == expected(sent)


def test_available_now_with_a_least_number_of_records(job, broker, stream):
    broker.publish(stream, messages(500))
    assert job.run(broker, stream, minOffsetsPerTrigger=10_000, maxTriggerDelay="1h") == [500]


def test_a_super_stream_and_a_partition_that_comes_later(spark, job, own_broker, super_stream):
    frame = batch(spark, own_broker, None, superStream=super_stream).load()
    assert frame.groupBy("stream").count().orderBy("stream").collect() == [
        (f"{super_stream}-0", 1_000),
        (f"{super_stream}-1", 1_000),
    ]
    assert sum(job.run(own_broker, None, superStream=super_stream)) == 2_000
    with own_broker.connect() as connection:
        connection.request(Key.DELETE_SUPER_STREAM, name=super_stream)
        names = [f"{super_stream}-{number}" for number in range(3)]
        connection.request(Key.CREATE_SUPER_STREAM, name=super_stream, partitions=names, binding_keys=["0", "1", "2"])
    own_broker.publish(names[2], messages(700, 2_000))
    assert job.run(own_broker, None, superStream=super_stream, failOnDataLoss="false") == [700]
    found = job.result().agg(F.count("*"), F.sum(F.crc32("value"))).first()
    assert tuple(found) == (2_700, sum(expected(messages(2_700))[2:3]))


def test_streams_by_a_pattern(spark, own_broker, super_stream):
    frame = batch(spark, own_broker, None, subscribePattern=f"{super_stream}-[01]").load()
    assert frame.select("stream").distinct().count() == 2 and frame.count() == 2_000


def test_from_a_number_of_records_or_a_time_before_the_end(spark, broker, stream):
    broker.publish(stream, messages(1_000))
    time.sleep(0.05)  # chunks count time in ms
    assert batch(spark, broker, stream, startingOffsets="last:30").load().agg(F.min("offset")).first()[0] == 970
    assert batch(spark, broker, stream, startingOffsets="-10m").load().count() == 1_000
    assert batch(spark, broker, stream, endingOffsets="-10m").load().count() == 0


def test_filter_values_leave_the_chunks_that_may_hold_them(own_broker, stream):
    with connected(Running("127.0.0.1", own_broker.port, own_broker.process)) as peer:
        peer.create(stream)
        peer.declare(stream, 0)
        for number, value in enumerate(("eu", "us", None, "eu", "eu", "us")):  # a chunk each
            frame = [(10 * number + each, value, data_section(b"%d" % number)) for each in range(10)]
            peer.send(encode_request(Key.PUBLISH, version=2, publisher_id=0, messages=frame))
            peer.confirmed(10, 0)
    options = {"endpoints": own_broker.endpoints, "stream": stream, "maxRecordsPerPartition": "20"}

    def read(kind, **more):
        known = VibeMQDataSource({**options, **more})
        reader = getattr(known, kind)(known.schema())
        plan = reader.partitions(reader.initialOffset(), reader.latestOffset()) if more else reader.partitions()
        return sorted(offsets_of(reader, plan))

    def chunks(*numbers):
        return [offset for number in numbers for offset in range(10 * number, 10 * number + 10)]

    assert read("reader") == chunks(*range(6))
    for mode in ("tcp", "local"):
        more = {"startingOffsets": "earliest", "readMode": mode}
        assert read("streamReader", **more, filterValues="eu") == chunks(0, 3, 4)
        assert read("streamReader", **more, filterValues="eu", filterMatchUnfiltered="true") == chunks(0, 2, 3, 4)
        assert read("streamReader", **more, filterValues="us, nobody") == chunks(1, 5)
        assert read("streamReader", **more, filterValues="nobody") == []


def test_what_a_killed_broker_has_not_synced_is_planned_once_it_is(tmp_path_factory, stream):
    """Nobody publishes again, so nobody else would have it synced."""
    mortal = VibeMQ(tmp_path_factory.mktemp("mortal")).start()
    try:
        connection = mortal.connect()
        connection.create(stream, {"durability": "disk"})
        connection.publisher(stream).publish(messages(20_000))  # and does not wait
        mortal.kill()
        mortal.start()
        deadline = time.monotonic() + 60
        with mortal.connect() as connection:
            while (there := connection.plan_reads([WantedRange(stream)]).streams[stream]).durable < there.next:
                assert time.monotonic() < deadline
                time.sleep(0.05)
    finally:
        mortal.kill()
