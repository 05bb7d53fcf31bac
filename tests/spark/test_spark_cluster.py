# SPDX-License-Identifier: Apache-2.0
"""Executors in JVMs of their own, tasks that fail after all of their rows are staged, and tasks that run twice."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed")

import pyspark

from vibemq.client._streams import read_message

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]


CLUSTER = """
import os
import sys
import time

from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from vibemq.spark.session import ensure_java
from vibemq.spark.sink import JobWriter
from vibemq.spark.source import VibeMQDataSource

endpoints, stream, application = sys.argv[1:]


class Unlucky(JobWriter):
    def write(self, iterator):
        staged = super().write(iterator)
        context = TaskContext.get()
        if context.attemptNumber() == 0 and context.partitionId() == 0:
            raise RuntimeError("the first attempt fails, with all of its rows staged")
        if context.attemptNumber() == 0 and context.partitionId() == 3:
            time.sleep(4)  # so that it is run a second time meanwhile
        return staged


class Source(VibeMQDataSource):
    @classmethod
    def name(cls):
        return "unlucky"

    def writer(self, schema, overwrite):
        return Unlucky(self.options, schema, overwrite)


ensure_java()
os.environ["PYSPARK_PYTHON"] = sys.executable
settings = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.executorEnv.PYTHONPATH": os.environ["PYTHONPATH"],
    "spark.task.maxFailures": "4",
    "spark.speculation": "true",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.3",
    "spark.speculation.interval": "50ms",
    "spark.speculation.minTaskRuntime": "0ms",
}
builder = SparkSession.builder.master("local-cluster[2,1,1024]").appName("cluster")
for name, value in settings.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
spark.dataSource.register(Source)
rows = spark.range(0, 20_000, 1, 4).select(F.col("id").cast("string").alias("value"))
writer = rows.write.format("unlucky").mode("append").option("endpoints", endpoints).option("stream", stream)
writer.option("txnAppId", application).option("txnVersion", "1").save()
print("written")
"""


def test_failed_and_speculated_tasks_in_other_jvms_write_nothing_twice(own_broker, stream, tmp_path):
    own_broker.publish(stream, [])
    script = tmp_path / "cluster.py"
    script.write_text(CLUSTER)
    home = tmp_path / "home"  # the workers' folder is made in Spark's own
    home.mkdir()
    for each in Path(pyspark.__file__).parent.iterdir():
        (home / each.name).symlink_to(each)
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(__file__).resolve().parents[2]),
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    ran = subprocess.run(
        [sys.executable, str(script), own_broker.endpoints, stream, uuid.uuid4().hex],
        capture_output=True, text=True, timeout=200, env=environment, check=False,
    )  # fmt: skip
    assert "written" in ran.stdout, ran.stderr[-3000:]
    assert "the first attempt fails, with all of its rows staged" in ran.stderr
    with own_broker.connect() as connection:
        found = [
            int(read_message(bytes(message))[0])
            for chunk in connection.read_chunks(stream, 0)
            for _, message in chunk.messages()
        ]
    assert sorted(found) == list(range(20_000))
