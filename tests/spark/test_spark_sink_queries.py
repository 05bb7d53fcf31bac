# SPDX-License-Identifier: Apache-2.0
"""Streaming queries that write: restarts, replays in another order, and partitions."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed")

from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F
from pyspark.sql import types
from spark_jobs import forget_last_commit, several_batches

from vibemq.client._streams import read_message, write_message
from vibemq.errors import ConfigError
from vibemq.spark import sink

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]


class Pipeline:
    """A query from one stream into another that can be run to its end again and again."""

    def __init__(self, spark, broker, folder, stream):
        self.spark, self.broker, self.checkpoint = spark, broker, folder / "checkpoint"
        self.source, self.target = f"{stream}-source", f"{stream}-target"
        self.rows = 0
        broker.publish(self.target, [])
        broker.publish(self.source, [])

    def publish(self, count):
        self.broker.publish(self.source, [write_message(b"%d" % at) for at in range(self.rows, self.rows + count)])
        self.rows += count

    def read(self, **more):
        reader = self.spark.readStream.format("vibemq").option("endpoints", self.broker.endpoints)
        options = {"stream": self.source, "startingOffsets": "earliest", "maxOffsetsPerTrigger": 400, **more}
        for name, value in options.items():
            reader = reader.option(name, value)
        return reader.load().select("value")

    def start(self, frame, **more):
        writer = frame.writeStream.format("vibemq").option("endpoints", self.broker.endpoints)
        options = {"stream": self.target, "checkpointLocation": str(self.checkpoint), **more}
        for name, value in options.items():
            writer = writer.option(name, value)
        return writer.trigger(availableNow=True).start()

    def run(self, frame, **more):
        query = self.start(frame, **more)
        try:
            assert query.awaitTermination(150), "the query did not end"
        finally:
            query.stop()

    def written(self, *streams):
        found = []
        with self.broker.connect() as connection:
            for stream in streams or (self.target,):
                for chunk in connection.read_chunks(stream, 0):
                    found += [int(read_message(bytes(message))[0]) for _, message in chunk.messages()]
        return sorted(found)


@pytest.fixture
def pipeline(spark, own_broker, tmp_path, stream):
    return Pipeline(spark, own_broker, tmp_path, stream)


def shuffled(frame):
    """In other tasks and in another order each time."""
    return frame.withColumn("chance", F.rand()).repartition(3, "chance").select("value")


@several_batches
def test_restarts_and_replays_in_another_order_write_each_row_once(pipeline):
    pipeline.publish(1_000)
    pipeline.run(shuffled(pipeline.read()))
    assert pipeline.written() == list(range(1_000))
    forget_last_commit(pipeline.checkpoint)
    pipeline.publish(500)
    for _ in range(3):  # before 4.2 a run is one batch, and the first one only ends the batch that was begun
        pipeline.run(shuffled(pipeline.read()))
    assert pipeline.written() == list(range(1_500))
    forget_last_commit(pipeline.checkpoint)
    pipeline.run(shuffled(pipeline.read()))
    assert pipeline.written() == list(range(1_500))


def test_a_query_is_refused_another_target_under_its_checkpoint(pipeline):
    pipeline.publish(100)
    pipeline.run(pipeline.read())
    pipeline.publish(100)
    other = f"{pipeline.target}-other"
    pipeline.broker.publish(other, [])
    query = pipeline.start(pipeline.read(), stream=other)
    with pytest.raises(StreamingQueryException, match=f"was written to {pipeline.target}, and .* to go to {other}"):
        query.awaitTermination(150)
    assert pipeline.written(other) == []
    pipeline.run(pipeline.read())
    assert pipeline.written() == list(range(200))


@several_batches
def test_a_union_that_is_restarted_with_its_sides_swapped_is_refused_and_reads_nothing_twice(pipeline):
    other = f"{pipeline.source}-other"
    pipeline.publish(22)
    pipeline.broker.publish(other, [write_message(b"%d" % at) for at in range(22, 44)])
    left, right = pipeline.read(), pipeline.read(stream=other)
    pipeline.run(left.union(right))
    pipeline.broker.publish(other, [write_message(b"44")])
    query = pipeline.start(right.union(left))
    said = f"the checkpoint has positions of '{pipeline.source}', and this source reads '{other}'"
    with pytest.raises(StreamingQueryException, match=said):
        query.awaitTermination(150)
    pipeline.run(left.union(right))
    assert pipeline.written() == list(range(45))


def test_a_batch_that_failed_is_run_again(pipeline):
    pipeline.publish(300)
    pipeline.broker.delete(pipeline.target)
    with pytest.raises(StreamingQueryException, match="createStream=true makes it"):
        pipeline.run(shuffled(pipeline.read()))
    pipeline.run(shuffled(pipeline.read()), createStream="true")
    assert pipeline.written() == list(range(300))


def test_a_stream_cannot_be_written_anew_with_each_batch(pipeline):
    counts = pipeline.read().groupBy().count()
    writer = counts.writeStream.format("vibemq").outputMode("complete").option("valueFormat", "json")
    writer = writer.option("endpoints", pipeline.broker.endpoints).option("stream", pipeline.target)
    pipeline.publish(10)
    query = writer.option("checkpointLocation", str(pipeline.checkpoint)).trigger(availableNow=True).start()
    with pytest.raises(StreamingQueryException, match=r"outputMode\('append'\)"):
        query.awaitTermination(150)


def test_options_of_jobs_are_refused_to_a_query():
    schema = types.StructType().add("value", "string")
    with pytest.raises(ConfigError, match="a query is known by its checkpoint"):
        sink.QueryWriter({"endpoints": "here:1", "stream": "s", "txnAppId": "a", "txnVersion": "1"}, schema, False)


def test_a_super_stream_gets_each_row_in_the_partition_of_its_key(pipeline, stream):
    name = f"{stream}-super"
    with pipeline.broker.connect() as connection:
        from vibemq.protocols.streams.spec import Key

        partitions = [f"{name}-{part}" for part in (2, 0, 1)]
        connection.request(
            Key.CREATE_SUPER_STREAM, name=name, partitions=partitions, binding_keys=["2", "0", "1"], arguments={}
        )
    pipeline.publish(600)
    frame = shuffled(pipeline.read()).select("value", F.col("value").cast("string").alias("key"))
    writer = frame.writeStream.format("vibemq").option("endpoints", pipeline.broker.endpoints)
    query = (
        writer.option("superStream", name)
        .option("checkpointLocation", str(pipeline.checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(150)
    mmh3 = pytest.importorskip("mmh3", reason="mmh3 is not installed")
    for index, partition in enumerate(partitions):
        wanted = [at for at in range(600) if mmh3.hash(str(at), 104729, signed=False) % 3 == index]
        assert pipeline.written(partition) == wanted


def test_the_row_writer_of_spark_4_0_makes_the_same_of_rows(spark):
    from pyspark.sql import Row, types

    schema = spark.sql(
        "select '' as value, cast('' as binary) as key, map('', '') as headers, current_timestamp() as timestamp"
    ).schema
    at = [Row(value=f"{number}", key=b"k", headers={"a": "b"}, timestamp=None) for number in range(10)]
    schema = types.StructType([types.StructField(field.name, field.dataType) for field in schema.fields])
    batches = list(sink.record_batches(iter(at), schema))
    assert [row["value"] for batch in batches for row in batch.to_pylist()] == [f"{number}" for number in range(10)]
    assert batches[0].column("headers").to_pylist()[0] == [("a", "b")]
    assert list(sink.record_batches(iter([]), schema)) == []
    large = [Row(value="x" * 1_000_000, key=None, headers=None, timestamp=None)] * 50
    sizes = [batch.num_rows for batch in sink.record_batches(iter(large), schema)]
    assert sum(sizes) == 50 and max(sizes) * 1_000_000 < sink.BYTES_AT_ONCE + 1_000_000
