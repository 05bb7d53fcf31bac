# SPDX-License-Identifier: Apache-2.0
"""Spark writes rows into streams and queues, and each row of a batch that was committed is there once."""

from __future__ import annotations

import json
import uuid

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed")

from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import functions as F
from pyspark.sql import types

from vibemq.client._streams import read_message
from vibemq.spark import sink

pytestmark = [pytest.mark.spark, pytest.mark.timeout(180)]


def write(frame, broker, **options):
    """A job that writes all of the frame."""
    writer = frame.write.format("vibemq").mode("append").option("endpoints", broker.endpoints)
    for name, value in options.items():
        writer = writer.option(name, value)
    writer.save()


def stored(broker, stream) -> list[tuple]:
    """(body, id, headers) of everything in a stream."""
    with broker.connect() as connection:
        return [
            read_message(bytes(message))
            for chunk in connection.read_chunks(stream, 0)
            for _, message in chunk.messages()
        ]


def bodies(broker, stream) -> list[bytes]:
    return [body for body, _, _ in stored(broker, stream)]


@pytest.fixture
def there(own_broker, stream):
    own_broker.publish(stream, [])
    return stream


# ---- jobs ----


def test_a_job_writes_each_row_once(spark, own_broker, there):
    frame = spark.range(50_000).select(F.col("id").cast("string").alias("value")).repartition(4)
    write(frame, own_broker, stream=there)
    assert sorted(map(int, bodies(own_broker, there))) == list(range(50_000))


def test_every_column_arrives_where_the_readme_says(spark, own_broker, there):
    frame = spark.createDataFrame(
        [
            ("one", b"k", {"a": "1", "b": None}, "id-1", "text/plain", 1_700_000_000),
            (None, None, None, None, None, None),
        ],
        "value string, key binary, headers map<string,string>, message_id string, content_type string, t long",
    ).select("*", F.timestamp_seconds("t").alias("timestamp"))
    write(frame.drop("t").coalesce(1), own_broker, stream=there)
    assert stored(own_broker, there) == [(b"one", "id-1", {"a": "1", "b": None}), (b"", None, {})]
    rows = (
        spark.read.format("vibemq")
        .option("endpoints", own_broker.endpoints)
        .option("stream", there)
        .option("includeHeaders", "true")
        .load()
        .orderBy("offset")
        .collect()
    )
    assert [(bytes(row.value), row.message_id, row.headers) for row in rows] == [
        (b"one", "id-1", {"a": "1", "b": None}),
        (b"", None, {}),
    ]
    assert [(row.key and bytes(row.key), row.content_type) for row in rows] == [(b"k", "text/plain"), (None, None)]


def test_columns_become_json(spark, own_broker, there):
    frame = spark.sql("select 1 as a, 'x' as b, struct(array(1.5D) as d) as c, 'id' as message_id, null as n")
    write(frame, own_broker, stream=there, valueFormat="json")
    [(body, identity, _)] = stored(own_broker, there)
    assert (json.loads(body), identity) == ({"a": 1, "b": "x", "c": {"d": [1.5]}}, "id")


def test_a_version_of_an_application_is_written_once(spark, own_broker, there):
    application = uuid.uuid4().hex

    def run(version, text):
        frame = spark.createDataFrame([(text,)], "value string")
        write(frame, own_broker, stream=there, txnAppId=application, txnVersion=version)

    run(3, "first")
    run(3, "again")
    run(2, "older")
    run(4, "next")
    assert bodies(own_broker, there) == [b"first", b"next"]


def test_a_job_that_names_no_version_says_once_what_that_means(own_broker, there, caplog):
    sink._say_once.cache_clear()
    schema = types.StructType().add("value", "string")
    given = {"endpoints": own_broker.endpoints, "stream": there}
    sink.JobWriter({**given, "txnAppId": uuid.uuid4().hex, "txnVersion": "1"}, schema, False)
    assert not caplog.records
    for _ in range(3):
        sink.JobWriter(given, schema, False)
    assert [record.getMessage().split(" writes")[0] for record in caplog.records] == [
        "a job without txnAppId and txnVersion"
    ]


def test_rows_go_where_the_column_says(spark, own_broker, stream):
    names = [f"{stream}-{part}" for part in "ab"]
    frame = spark.createDataFrame([(name, name) for name in names * 10], "value string, stream string")
    write(frame, own_broker, stream=",".join(names), createStream="true")
    for name in names:
        assert bodies(own_broker, name) == [name.encode()] * 10
    with pytest.raises(PySparkException, match="a row names 'other', which option stream does not"):
        write(spark.sql("select 'x' as value, 'other' as stream"), own_broker, stream=",".join(names))


@pytest.mark.parametrize("compression", ["gzip", "snappy", "lz4", "zstd"])
def test_compressed_rows_are_read_again(spark, own_broker, there, compression):
    frame = spark.range(20_000).select(F.col("id").cast("string").alias("value"))
    write(frame, own_broker, stream=there, compression=compression)
    rows = spark.read.format("vibemq").option("endpoints", own_broker.endpoints).option("stream", there).load()
    found = rows.agg(F.count("*"), F.countDistinct("value"), F.sum(F.col("value").cast("string").cast("long"))).first()
    assert tuple(found) == (20_000, 20_000, sum(range(20_000)))


def test_mistakes_are_told_with_their_remedy(spark, own_broker, there):
    one = spark.createDataFrame([("x", 1)], "value string, number int")
    keyed = spark.createDataFrame([("x", "k")], "value string, key string")
    with pytest.raises(PySparkException, match=r"createStream=true cannot make one.*ctl add_super_stream"):
        write(keyed, own_broker, superStream=f"{there}-gone", createStream="true")
    for options, says in (
        ({"stream": there}, "number cannot be part of a message.*ignoreUnknownColumns=true"),
        ({"stream": there, "compresion": "gzip"}, "did you mean compression"),
        ({"stream": f"{there}-gone", "ignoreUnknownColumns": "true"}, "does not exist; createStream=true makes it"),
        ({"stream": there, "txnAppId": "x"}, "both together"),
        ({"stream": there, "path": "/data/out"}, "'/data/out': rows go to a broker"),
        ({"stream": there, "txnAppId": " ", "txnVersion": "1"}, "txnAppId: it is empty"),
        ({}, "exactly one of them"),
    ):
        with pytest.raises(PySparkException, match=says):
            write(one, own_broker, **options)
    with pytest.raises(PySparkException, match=r"mode\('append'\)"):
        one.select("value").write.format("vibemq").mode("overwrite").option("endpoints", own_broker.endpoints).option(
            "stream", there
        ).save()
    with pytest.raises(PySparkException, match=r"message size.*streams\.frame_max_bytes, or write smaller"):
        write(spark.sql("select repeat('x', 9 * 1024 * 1024) as value"), own_broker, stream=there)
    for column, says in (("parse_json('1')", "v: .* no form for variant"), ("array(interval 1 day)", "v, its items: ")):
        with pytest.raises(AnalysisException, match=says):  # by the driver, before a task runs
            write(spark.sql(f"select {column} as v"), own_broker, stream=there, valueFormat="json")
    write(one, own_broker, stream=there, ignoreUnknownColumns="true")
    assert bodies(own_broker, there) == [b"x"]
