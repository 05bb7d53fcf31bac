# SPDX-License-Identifier: Apache-2.0
"""Over Spark Connect a job writes, and a query reads and writes: the package is on the server."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed")
pytest.importorskip("grpc", reason="grpcio is not installed, which Spark Connect needs")
pytest.importorskip("grpc_status", reason="grpcio-status is not installed, which Spark Connect needs")
pytest.importorskip("pandas", reason="pandas is not installed, which Spark Connect needs")

from vibemq.client._streams import read_message

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

PROGRAM = """
import os
import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from vibemq.spark.java import ensure_java

ensure_java()
os.environ["PYSPARK_PYTHON"] = sys.executable
endpoints, stream, checkpoint = sys.argv[1:]
spark = SparkSession.builder.remote("local[2]").getOrCreate()
rows = spark.range(1000).select(F.col("id").cast("string").alias("value"))
writer = rows.write.format("vibemq").mode("append").option("endpoints", endpoints).option("stream", stream)
writer.option("createStream", "true").save()
reader = spark.readStream.format("vibemq").option("endpoints", endpoints).option("stream", stream)
query = (
    reader.option("startingOffsets", "earliest").load().select("value")
    .writeStream.format("vibemq").option("endpoints", endpoints).option("stream", stream + "-copy")
    .option("createStream", "true").option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
)
print("ended", query.awaitTermination(200), type(spark).__module__)
spark.stop()
"""


def test_a_job_and_a_query_write_each_row_once(own_broker, stream, tmp_path):
    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-c", PROGRAM, own_broker.endpoints, stream, str(tmp_path / "checkpoint")]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=280, env=environment, check=False)
    assert ran.stdout == "ended True pyspark.sql.connect.session\n", ran.stderr[-3000:]
    with own_broker.connect() as connection:
        for name in (stream, f"{stream}-copy"):
            found = [
                int(read_message(bytes(message))[0])
                for chunk in connection.read_chunks(name, 0)
                for _, message in chunk.messages()
            ]
            assert sorted(found) == list(range(1000))
