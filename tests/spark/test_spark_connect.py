# SPDX-License-Identifier: Apache-2.0
"""Over Spark Connect a job writes, and a query reads and writes: the package is on the server alone.

The server is Spark's own, in the JVM of the session that all tests share. What its clients need besides, pandas among
it, lies in a folder that only they look into.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed")

from vibemq.client._streams import read_message

ROOT = Path(__file__).resolve().parents[2]
CLIENT = ROOT / "build" / "connect"
ROWS = 1000

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not CLIENT.is_dir(), reason=f"{CLIENT} is missing, which `make build/connect` fetches"),
]

PROGRAM = """
import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

server, endpoints, stream, checkpoint, count = sys.argv[1:]
spark = SparkSession.builder.remote(server).getOrCreate()
rows = spark.range(int(count)).select(F.col("id").cast("string").alias("value"))
writer = rows.write.format("vibemq").mode("append").option("endpoints", endpoints).option("stream", stream)
writer.option("createStream", "true").save()
reader = spark.readStream.format("vibemq").option("endpoints", endpoints).option("stream", stream)
query = (
    reader.option("startingOffsets", "earliest").load().select("value")
    .writeStream.format("vibemq").option("endpoints", endpoints).option("stream", stream + "-copy")
    .option("createStream", "true").option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
)
print("ended", query.awaitTermination(200), type(spark).__module__, any("vibemq" in name for name in sys.modules))
spark.stop()
"""


@pytest.fixture
def connect_server(spark):
    """Its address; nobody else's, on a port that is free."""
    jvm, context = spark._jvm, spark.sparkContext._jsc.sc()
    for name, value in {"port": "0", "address": "127.0.0.1"}.items():
        context.conf().set(f"spark.connect.grpc.binding.{name}", value)
    service = getattr(getattr(jvm, "org.apache.spark.sql.connect.service.SparkConnectService$"), "MODULE$")
    service.start(context)
    try:
        yield f"sc://127.0.0.1:{service.localPort()}"
    finally:
        nothing = jvm.scala.Option.empty()
        service.stop(nothing, nothing)


def test_a_job_and_a_query_write_each_row_once(connect_server, own_broker, stream, tmp_path):
    command = [sys.executable, "-c", PROGRAM, connect_server, own_broker.endpoints, stream]
    command += [str(tmp_path / "checkpoint"), str(ROWS)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(CLIENT), os.environ.get("PYTHONPATH", "")])}
    ran = subprocess.run(
        command, capture_output=True, text=True, timeout=280, env=environment, cwd=tmp_path, check=False
    )
    assert ran.stdout == "ended True pyspark.sql.connect.session False\n", ran.stderr[-3000:]
    with own_broker.connect() as connection:
        for name in (stream, f"{stream}-copy"):
            found = [
                int(read_message(bytes(message))[0])
                for chunk in connection.read_chunks(name, 0)
                for _, message in chunk.messages()
            ]
            assert sorted(found) == list(range(ROWS))
