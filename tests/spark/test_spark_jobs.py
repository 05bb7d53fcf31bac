# SPDX-License-Identifier: Apache-2.0
"""Spark reads what was published: batch reads, micro-batches, restarts, and what it says when data is gone.

Each job runs against our broker and, where it is installed, against RabbitMQ.
"""

from __future__ import annotations

import json
import shutil
import time

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed")

from pyspark.errors import PySparkException
from pyspark.sql import functions as F
from spark_brokers import VibeMQ
from spark_jobs import Job, batch, expected, forget_last_commit, messages, several_batches, source, sums

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]  # more than the waits within, which say what did not come


@pytest.fixture
def job(spark, tmp_path):
    return Job(spark, tmp_path)


# ---- batch ----


def test_a_batch_read_is_what_was_published(spark, broker, stream):
    sent = messages(30_000)
    broker.publish(stream, sent)
    frame = batch(spark, broker, stream, batchBytes=100_000).load()
    assert sums(frame) == expected(sent)
    assert len(frame.limit(5).collect()) == 5, "a task that is cut short"
    ends = frame.agg(F.min("timestamp"), F.max("timestamp"), F.countDistinct("stream"), F.first("stream")).first()
    assert ends[0] is not None and (ends[1] - ends[0]).total_seconds() < 60 and ends[2:] == (1, stream)


def test_ranges_one_record_and_none(spark, broker, stream):
    sent = messages(1_000)
    broker.publish(stream, sent)

    def part(start, end):
        return batch(
            spark, broker, stream, startingOffsets=json.dumps({stream: start}), endingOffsets=json.dumps({stream: end})
        ).load()

    assert sums(part(123, 877)) == expected(sent[123:877], 123)
    assert [(row.offset, bytes(row.value)) for row in part(500, 501).collect()] == [(500, sent[500])]
    assert part(500, 500).count() == 0
    assert part(-2, -1).count() == 1_000
    with pytest.raises(PySparkException, match=r"offsets 900 to 1500.*offsets 0 to 1000"):
        part(900, 1500).count()
    with pytest.raises(PySparkException, match="beyond the end"):
        part(5, 3).count()


def test_sql_reads_a_temporary_view_and_a_table_is_answered_with_it(spark, broker, stream):
    broker.publish(stream, messages(100))
    given = f"USING vibemq OPTIONS (endpoints '{broker.endpoints}', stream '{stream}')"
    with pytest.raises(PySparkException, match="CREATE TEMPORARY VIEW NAME USING vibemq OPTIONS"):
        spark.sql(f"CREATE TABLE records {given}")
    spark.sql(f"CREATE TEMPORARY VIEW records {given}")
    try:
        assert spark.sql("SELECT count(*) FROM records").first()[0] == 100
    finally:
        spark.catalog.dropTempView("records")


def test_an_empty_stream_has_no_rows(spark, broker, stream):
    broker.publish(stream, [])
    assert batch(spark, broker, stream).load().count() == 0


def test_a_start_by_time(spark, broker, stream):
    broker.publish(stream, messages(500))
    later = batch(spark, broker, stream).load().agg(F.max("timestamp")).first()[0].timestamp()
    while True:  # until the clock of the broker has moved on
        broker.publish(stream, messages(500, 500))
        frame = batch(spark, broker, stream, startingTimestamp=int(later * 1000) + 2).option(
            "startingOffsetsByTimestampStrategy", "latest"
        )
        first = frame.load().agg(F.min("offset")).first()[0]
        if first is not None:
            break
    assert first % 500 == 0 and first >= 500
    with pytest.raises(PySparkException, match="no record as young"):
        batch(spark, broker, stream, startingTimestamp=int(later * 1000) + 10**9).load().count()


def test_columns_by_option_and_by_schema(spark, broker, stream):
    sent = messages(10)
    broker.publish(stream, sent)
    lean = batch(spark, broker, stream, columns="offset,value").load()
    assert lean.columns == ["offset", "value"]
    assert [bytes(row.value) for row in lean.orderBy("offset").collect()] == sent
    chosen = batch(spark, broker, stream).schema("value BINARY, stream STRING").load()
    assert sorted(bytes(row.value) for row in chosen.collect()) == sorted(sent)
    for schema, says in (("size INT", "no column 'size'"), ("value STRING", "value is binary, not string")):
        with pytest.raises(PySparkException, match=says):
            batch(spark, broker, stream).schema(schema).load().count()


def test_the_body_of_amqp_messages_and_the_stored_bytes(spark, broker, stream):
    stored = [b"\x00\x53\x75\xa0\x05hello", b"\x00\x53\x77\xa1\x02hi", b"plain"]
    broker.publish(stream, stored)
    bodies = batch(spark, broker, stream).load().orderBy("offset").collect()
    assert [bytes(row.value) for row in bodies] == [b"hello", b"hi", b"plain"]
    raw = batch(spark, broker, stream, valueFormat="raw").load().orderBy("offset").collect()
    assert [bytes(row.value) for row in raw] == stored


def test_mistakes_are_told_at_load(spark, broker, stream):
    with pytest.raises(PySparkException, match="did you mean startingOffsets"):
        batch(spark, broker, stream, startingOffset="earliest").load()
    with pytest.raises(PySparkException, match=stream):
        batch(spark, broker, stream).load().count()  # there is no such stream


def test_a_virtual_host_that_is_closed_is_named_with_its_user_and_a_remedy(spark, broker, stream):
    broker.publish(stream, messages(1))
    with pytest.raises(PySparkException) as raised:
        batch(spark, broker, stream, vhost="sales").load().count()
    said = str(raised.value)
    assert "opening virtual host 'sales' as user 'guest'" in said and "VIRTUAL_HOST_ACCESS_FAILURE (12)" in said
    assert "vibemq ctl set_permissions --vhost sales guest" in said


@pytest.mark.parametrize("option", ["stream", "subscribe"])
def test_several_streams_at_once(spark, broker, stream, option):
    for part in "ab":
        broker.publish(f"{stream}-{part}", messages(100))
    reader = spark.read.format("vibemq").option("endpoints", broker.endpoints)
    frame = reader.option(option, f"{stream}-a, {stream}-b").load()
    counts = {row["stream"]: row["count"] for row in frame.groupBy("stream").count().collect()}
    assert counts == {f"{stream}-a": 100, f"{stream}-b": 100}


# ---- streaming ----


@several_batches
def test_limited_batches_and_restarts_read_each_record_once(job, broker, stream):
    sent = messages(1_000)
    broker.publish(stream, sent)
    assert job.run(broker, stream, maxOffsetsPerTrigger=400) == [400, 400, 200]
    assert sums(job.result()) == expected(sent)

    assert job.run(broker, stream) == [], "nothing new"
    sent += messages(500, 1_000)
    broker.publish(stream, sent[1_000:])
    assert job.run(broker, stream) == [500]
    assert sums(job.result()) == expected(sent)

    forget_last_commit(job.checkpoint)
    sent += messages(70, 1_500)
    broker.publish(stream, sent[1_500:])
    job.run(broker, stream)
    assert sums(job.result()) == expected(sent)


def test_offsets_that_consumers_store_are_no_records(spark, job, broker, stream):
    """RabbitMQ writes them into the stream, where they take up offsets."""
    sent = messages(100)
    broker.publish(stream, sent)
    with broker.connect() as connection:
        for offset in (10, 20):
            connection.store_offset("reader", stream, offset)
            while connection.query_offset("reader", stream) != offset:
                time.sleep(0.01)
    assert batch(spark, broker, stream).load().count() == 100
    assert sum(job.run(broker, stream)) == 100
    sent += messages(50, 100)
    broker.publish(stream, sent[100:])
    assert sum(job.run(broker, stream)) == 50
    values = sorted(int(row[0].split(b":")[0]) for row in job.result().select("value").collect())
    assert values == list(range(150))


def test_a_query_that_starts_at_the_end_sees_only_what_comes_then(spark, job, broker, stream):
    broker.publish(stream, messages(100))
    frame = source(spark.readStream, broker, stream).load()
    query = job.write(frame).start(job.output)
    try:
        query.processAllAvailable()
        broker.publish(stream, messages(50, 100))
        query.processAllAvailable()
    finally:
        query.stop()
    assert sums(job.result()) == expected(messages(50, 100), 100)


def test_a_first_batch_that_is_replayed_begins_where_it_began(job, own_broker, stream):
    sent = messages(300)
    own_broker.publish(stream, sent[:100])
    assert job.run(own_broker, stream, startingOffsets="last:50") == [50]
    forget_last_commit(job.checkpoint)
    shutil.rmtree(job.output)
    own_broker.publish(stream, sent[100:])
    for _ in range(2):  # before 4.2 a run is one batch
        job.run(own_broker, stream, startingOffsets="last:50")
    assert sums(job.result()) == expected(sent[50:], 50)


def test_a_stream_made_anew_is_never_mistaken_for_the_old_one(job, broker, stream):
    broker.publish(stream, messages(300))
    job.run(broker, stream)
    broker.delete(stream)
    broker.publish(stream, messages(120, 5_000))
    with pytest.raises(PySparkException, match=r"deleted and created again.*failOnDataLoss=false"):
        job.run(broker, stream)
    job.run(broker, stream, failOnDataLoss="false")
    rows = job.result()
    assert rows.count() == 420
    assert rows.where("cast(value as string) like '5%' and offset < 120").count() >= 120


@pytest.mark.parametrize("option", ["subscribe", "subscribePattern"])
def test_a_batch_that_is_replayed_without_one_of_its_streams_says_so_or_goes_on(job, own_broker, stream, option):
    gone, left = f"{stream}-gone", f"{stream}-left"
    selected = {option: f"{gone},{left}" if option == "subscribe" else f"{stream}-.*"}
    sent = messages(200)
    own_broker.publish(gone, sent[:100])
    own_broker.publish(left, sent[100:])
    assert job.run(own_broker, None, **selected) == [200]
    forget_last_commit(job.checkpoint)
    shutil.rmtree(job.output)
    own_broker.delete(gone)
    with pytest.raises(PySparkException, match=rf"{gone}.*(STREAM_DOES_NOT_EXIST|it was deleted)"):
        job.run(own_broker, None, **selected)
    job.run(own_broker, None, **selected, failOnDataLoss="false")
    assert sums(job.result()) == expected(sent[100:])


def test_a_query_ends_by_name_where_a_stream_is_deleted_under_it(spark, job, own_broker, stream):
    own_broker.publish(stream, messages(100))
    query = job.write(source(spark.readStream, own_broker, stream, startingOffsets="earliest").load()).start(job.output)
    try:
        query.processAllAvailable()
        own_broker.delete(stream)
        with pytest.raises(PySparkException, match=r"it was deleted: wanted offsets 100 to 100.*failOnDataLoss=false"):
            query.awaitTermination(60)
    finally:
        query.stop()
    assert sums(job.result()) == expected(messages(100))


def test_a_query_goes_on_without_a_stream_that_is_deleted_under_it_where_it_may(spark, job, own_broker, stream):
    gone, left = f"{stream}-gone", f"{stream}-left"
    own_broker.publish(gone, messages(100))
    own_broker.publish(left, messages(100))
    options = {"subscribe": f"{gone},{left}", "startingOffsets": "earliest", "failOnDataLoss": "false"}
    query = job.write(source(spark.readStream, own_broker, None, **options).load()).start(job.output)
    try:
        query.processAllAvailable()
        own_broker.delete(gone)
        own_broker.publish(left, messages(50, 100))
        query.processAllAvailable()
        assert query.exception() is None
    finally:
        query.stop()
    assert job.result().groupBy("stream").count().orderBy("stream").collect() == [(gone, 100), (left, 150)]


def test_what_retention_removed_is_told_or_skipped(job, broker, stream):
    limits = {"max-length-bytes": 200_000, "stream-max-segment-size-bytes": 50_000}
    broker.publish(stream, messages(10), limits)
    job.run(broker, stream)
    for _ in range(100):
        broker.publish(stream, [bytes(1_000)] * 100, limits)
        with broker.connect() as connection:
            if connection.first_offset(stream) > 10:
                break
    with pytest.raises(PySparkException, match="retention has passed"):
        job.run(broker, stream)
    (rows,) = job.run(broker, stream, failOnDataLoss="false")
    found = job.result().agg(F.count("*"), F.countDistinct("offset"), F.max("offset")).first()
    assert found[0] == found[1] == 10 + rows
    with broker.connect() as connection:
        assert found[2] == connection.next_offset(stream) - 1


# ---- a broker that goes away ----


@pytest.fixture
def mortal(tmp_path_factory):
    """A broker of this test's own, to be killed."""
    broker = VibeMQ(tmp_path_factory.mktemp("mortal")).start()
    yield broker
    broker.kill()


def test_a_query_survives_kill_9_of_the_broker(spark, job, mortal, stream):
    sent = messages(40_000)
    mortal.publish(stream, sent[:20_000])
    frame = source(spark.readStream, mortal, stream, startingOffsets="earliest", maxOffsetsPerTrigger=3_000).load()
    query = job.write(frame).start(job.output)
    try:
        deadline = time.monotonic() + 90
        while not any(progress.numInputRows for progress in query.recentProgress):
            assert query.isActive and time.monotonic() < deadline
            time.sleep(0.05)
        mortal.kill()  # in the midst of the batches that are left
        time.sleep(1.5)
        assert query.isActive
        mortal.start()
        mortal.publish(stream, sent[20_000:])
        # Until the source has found the broker again it reports nothing new, and Spark takes that for the end.
        deadline = time.monotonic() + 90
        while sums(job.result())[0] < len(sent):
            assert query.exception() is None and time.monotonic() < deadline
            query.processAllAvailable()
    finally:
        query.stop()
    assert sums(job.result()) == expected(sent)


def test_it_is_known_to_spark_without_a_call(spark):
    import pyspark_vibemq
    from vibemq.spark.source import VibeMQDataSource

    assert pyspark_vibemq.DefaultSource is VibeMQDataSource
