# SPDX-License-Identifier: Apache-2.0
"""Makes an archive of the classes that Spark loads for tests like these, which halves what each further Java costs to
start (tests/conftest.py):

    python spark_classes.py FILE

A Java that makes none, as one that was linked without its own archive, leaves an empty file, which nobody uses.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession
from running import Running, broker

from vibemq.client.streams import StreamsConnection
from vibemq.spark import local_session

ROWS = 100
AS_IN_TESTS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def work(spark: SparkSession, running: Running, folder: Path) -> None:
    """One of each: a batch to the broker and back, and a query into Parquet."""
    with StreamsConnection.connect(running.host, running.port) as connection:
        connection.create("classes")
    options = {"endpoints": f"{running.host}:{running.port}", "stream": "classes"}
    rows = spark.range(ROWS).selectExpr("cast(id as string) as value")
    rows.write.format("vibemq").mode("append").options(**options).save()
    found = spark.read.format("vibemq").options(**options).load().groupBy("stream").count().collect()
    assert [row["count"] for row in found] == [ROWS]
    read = spark.readStream.format("vibemq").options(**options, startingOffsets="earliest").load()
    writer = read.writeStream.format("parquet").partitionBy("stream").option("checkpointLocation", str(folder / "done"))
    writer.trigger(availableNow=True).start(str(folder / "lake")).awaitTermination()
    assert spark.read.parquet(str(folder / "lake")).count() == ROWS


def main(archive: Path) -> None:
    archive.parent.mkdir(exist_ok=True)
    archive.unlink(missing_ok=True)
    # As in the tests.  What cannot be in an archive, as what was compiled at run time, is not worth a word.
    silent = "-Xlog:disable -Xlog:all=error:stderr"
    os.environ["SPARK_SUBMIT_OPTS"] = f"{AS_IN_TESTS} {silent} -XX:ArchiveClassesAtExit={archive}"
    with tempfile.TemporaryDirectory() as name, broker(Path(name) / "data") as running:
        spark = local_session("classes", cores=2, log_file=Path(name) / "java.log")
        java = spark.sparkContext._gateway.proc
        work(spark, running, Path(name))
        spark.stop()
        java.stdin.close()  # by which it knows that its driver has ended
        java.wait()
    archive.touch()


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
