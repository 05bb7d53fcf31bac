# SPDX-License-Identifier: Apache-2.0
"""What the jobs of the Spark tests share: messages, frames, checksums, and a query that can be run again."""

from __future__ import annotations

import zlib

import pyspark
import pytest
from pyspark.sql import functions as F

SPARK = tuple(int(number) for number in pyspark.__version__.split(".")[:2])
several_batches = pytest.mark.skipif(
    SPARK < (4, 2), reason="before Spark 4.2 AvailableNow is one batch: after a crash the one that was logged"
)


def messages(count, first=0):
    return [b"%d:%s" % (number, b"payload" * (number % 20)) for number in range(first, first + count)]


def source(reader, broker, stream, **options):
    """`stream` None: an option says which are read."""
    reader = reader.format("vibemq").option("endpoints", broker.endpoints)
    if stream is not None:
        reader = reader.option("stream", stream)
    for name, value in options.items():
        reader = reader.option(name, value)
    return reader


def batch(spark, broker, stream, **options):
    return source(spark.read, broker, stream, **options)


def sums(frame):
    """Count, sum of offsets and sum of checksums: equal only for the same records."""
    row = frame.agg(F.count("*"), F.sum("offset"), F.sum(F.crc32("value")), F.countDistinct("offset")).first()
    return tuple(value or 0 for value in row)


def expected(sent, first=0):
    return (
        len(sent),
        sum(range(first, first + len(sent))),
        sum(zlib.crc32(message) for message in sent),
        len(sent),
    )


def forget_last_commit(checkpoint):
    """As if the driver had died after the batch was written and before it was noted as done."""
    newest = max((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    newest.unlink()
    newest.with_name(f".{newest.name}.crc").unlink()


class Job:
    """A streaming query into Parquet that can be run to its end again and again."""

    def __init__(self, spark, folder):
        self.spark = spark
        self.folder = folder
        self.checkpoint = folder / "checkpoint"
        self.output = str(folder / "output")

    def write(self, frame):
        return frame.writeStream.format("parquet").option("checkpointLocation", str(self.checkpoint))

    def run(self, broker, stream, **options):
        """Everything there is now; gives the rows of each batch."""
        frame = source(self.spark.readStream, broker, stream, **{"startingOffsets": "earliest", **options}).load()
        query = self.write(frame).trigger(availableNow=True).start(self.output)
        try:
            assert query.awaitTermination(90), "the query did not end"
        finally:
            query.stop()
        return [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]

    def result(self):
        return self.spark.read.parquet(self.output)
