# SPDX-License-Identifier: Apache-2.0
"""Spark reads a queue by offset, which takes nothing from its consumers: JSON, ids and headers as published."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed")

import vibemq.client

pytestmark = [pytest.mark.spark, pytest.mark.timeout(120)]

COUNT = 2_000


@pytest.fixture
def client(own_broker):
    with vibemq.client.connect(f"vibemq://127.0.0.1:{own_broker.native_port}") as connected:
        yield connected


@pytest.fixture
def queue(client, stream):
    """A queue with COUNT messages of which half were consumed and acknowledged."""
    client.create_queue(stream, max_messages=COUNT)
    with client.publisher(stream) as publisher:
        for number in range(COUNT):
            publisher.publish({"number": number, "text": "\xe9\u20ac"}, headers=headers_of(number), id=f"id-{number}")
    with client.consume(stream) as consumer:
        for _ in range(COUNT // 2):
            next(consumer).ack()
    return stream


def headers_of(number):
    return {"source": "shop", "number": str(number)} if number % 2 else {}


def expected(number):
    return number, {"number": number, "text": "\xe9\u20ac"}, f"id-{number}", headers_of(number)


def found(frame):
    ordered = frame.orderBy("offset").collect()
    return [(row.offset, json.loads(bytes(row.value)), row.message_id, row.headers) for row in ordered]


def source(reader, broker, queue):
    return reader.format("vibemq").option("endpoints", broker.endpoints).option("stream", queue)


def test_a_batch_read_sees_every_message_settled_or_not(spark, own_broker, client, queue):
    frame = source(spark.read, own_broker, queue).option("includeHeaders", "true").load()
    assert found(frame) == [expected(number) for number in range(COUNT)]
    assert frame.where("headers['source'] = 'shop'").count() == COUNT // 2
    assert client.queue_info(queue).messages == COUNT // 2  # all that were not acknowledged are still there


def test_the_columns_are_asked_for(spark, own_broker, queue):
    assert source(spark.read, own_broker, queue).load().columns == ["value", "offset", "timestamp", "stream"]
    picked = source(spark.read, own_broker, queue).schema("headers MAP<STRING, STRING>, message_id STRING").load()
    assert picked.where("message_id = 'id-7'").collect() == [({"source": "shop", "number": "7"}, "id-7")]
    as_kafka = source(spark.read, own_broker, queue).option("includeHeaders", "true").option("headersFormat", "kafka")
    [row] = as_kafka.load().where("message_id = 'id-7'").collect()
    assert [(pair.key, bytes(pair.value)) for pair in row.headers] == [("source", b"shop"), ("number", b"7")]
    assert (row.key, row.content_type) == (None, "application/json")
    ours = source(spark.read, own_broker, queue).schema("headers ARRAY<STRUCT<key: STRING, value: BINARY>>").load()
    assert ours.where("exists(headers, pair -> pair.value = cast('7' as binary))").count() == 1


def test_a_streaming_query_follows_a_queue(spark, own_broker, client, queue, tmp_path):
    def run():
        frame = source(spark.readStream, own_broker, queue).option("startingOffsets", "earliest")
        frame = frame.option("columns", "value,offset,message_id,headers").load()
        writer = frame.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = writer.trigger(availableNow=True).start(str(tmp_path / "data"))
        try:
            assert query.awaitTermination(90), "the query did not end"
        finally:
            query.stop()

    run()
    client.publish(queue, {"number": COUNT, "text": "\xe9\u20ac"}, headers=headers_of(COUNT), id=f"id-{COUNT}")
    run()
    assert found(spark.read.parquet(str(tmp_path / "data"))) == [expected(number) for number in range(COUNT + 1)]


def test_what_a_stream_client_wrote_is_read_beside_it(spark, own_broker, client, stream):
    own_broker.publish(stream, [b'{"by": "streams"}'])
    client.publish(stream, {"by": "native"}, id="n-1")
    frame = source(spark.read, own_broker, stream).option("includeHeaders", "true").load()
    assert found(frame) == [(0, {"by": "streams"}, None, {}), (1, {"by": "native"}, "n-1", {})]
