# SPDX-License-Identifier: Apache-2.0
"""Executors in JVMs of their own: tasks that fail after all of their rows are staged, tasks that run twice, and what
`vibemq spark-check` finds there.

All of it where nobody has pandas: whoever imports it there fails as if it were not installed.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed")

import pyspark

from vibemq.client._streams import read_message

pytestmark = [pytest.mark.spark, pytest.mark.timeout(480)]

ROWS = 20_000
CLUSTER = """
import json
import os
import sys
import time

from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from vibemq.spark.check import in_session
from vibemq.spark.java import ensure_java
from vibemq.spark.sink import JobWriter, QueryWriter
from vibemq.spark.source import VibeMQDataSource

endpoints, stream, application, checkpoint = sys.argv[1:]


class Unlucky:
    def write(self, iterator):
        staged = super().write(iterator)
        context = TaskContext.get()
        if context.attemptNumber() == 0 and context.partitionId() == 0:
            raise RuntimeError(f"the first attempt of {type(self).__name__} fails, with all of its rows staged")
        if context.attemptNumber() == 0 and context.partitionId() == 3:
            time.sleep(4)  # so that it is run a second time meanwhile
        return staged


class UnluckyJob(Unlucky, JobWriter):
    pass


class UnluckyQuery(Unlucky, QueryWriter):
    pass


class Source(VibeMQDataSource):
    @classmethod
    def name(cls):
        return "unlucky"

    def writer(self, schema, overwrite):
        return UnluckyJob(self.options, schema, overwrite)

    def streamWriter(self, schema, overwrite):
        return UnluckyQuery(self.options, schema, overwrite)


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
source = {"endpoints": endpoints, "stream": stream, "startingOffsets": "earliest", "minPartitions": "4"}
batch = spark.read.format("unlucky").options(**source).load()
print("read", batch.rdd.getNumPartitions() > 1, *batch.agg(F.count("*"), F.sum(F.col("value").cast("string"))).first())
copied = spark.readStream.format("unlucky").options(**source).load().select("value").repartition(4)
writer = copied.writeStream.format("unlucky").option("endpoints", endpoints).option("stream", stream + "-copy")
writer = writer.option("createStream", "true").option("checkpointLocation", checkpoint)
print("copied", writer.trigger(availableNow=True).start().awaitTermination(300))
found = []
in_session(spark, {"endpoints": endpoints}, stream, True, found.append)
print(json.dumps(found))
"""


def test_failed_and_speculated_tasks_in_other_jvms_write_nothing_twice_and_every_executor_connects(
    own_broker, stream, tmp_path
):
    own_broker.publish(stream, [])
    script = tmp_path / "cluster.py"
    script.write_text(CLUSTER)
    home = tmp_path / "home"  # the workers' folder is made in Spark's own
    home.mkdir()
    for each in Path(pyspark.__file__).parent.iterdir():
        (home / each.name).symlink_to(each)
    no_pandas = tmp_path / "no_pandas"
    no_pandas.mkdir()
    (no_pandas / "pandas.py").write_text("raise ImportError('nobody has pandas here')\n")
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(
            [str(no_pandas), str(Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH", "")]
        ),
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    arguments = [own_broker.endpoints, stream, uuid.uuid4().hex, str(tmp_path / "checkpoint")]
    ran = subprocess.run(
        [sys.executable, str(script), *arguments],
        capture_output=True, text=True, timeout=450, env=environment, check=False,
    )  # fmt: skip
    *said, checked = ran.stdout.splitlines() or [""]
    assert said == ["written", f"read True {ROWS} {float(sum(range(ROWS)))}", "copied True"], ran.stderr[-3000:]
    findings = json.loads(checked)
    assert all(works is not False for works, _, _ in findings), findings
    found = {check: text for works, check, text in findings if works}
    assert found.keys() >= {"session", "driver", f"read {stream}", "write", "read over TCP", "read locally", "delete"}
    (executors,) = (text for check, text in found.items() if check.startswith("executors on "))
    connected = re.match(r"(\d+) tasks in (\d+) processes, connected", executors)
    assert connected and int(connected[1]) == 4 and int(connected[2]) >= 2, executors
    assert found[f"read {stream}"] == f"{ROWS:,} records"
    for kind in ("UnluckyJob", "UnluckyQuery"):
        assert f"the first attempt of {kind} fails, with all of its rows staged" in ran.stderr
    with own_broker.connect() as connection:
        for name in (stream, f"{stream}-copy"):
            found = [
                int(read_message(bytes(message))[0])
                for chunk in connection.read_chunks(name, 0)
                for _, message in chunk.messages()
            ]
            assert sorted(found) == list(range(ROWS))
