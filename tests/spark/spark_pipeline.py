# SPDX-License-Identifier: Apache-2.0
"""A driver to be killed: one query from a stream through a shuffle into another one, as a program of its own.

    python spark_pipeline.py ENDPOINTS SOURCE TARGET CHECKPOINT [available-now]

It says `batch N` on standard output when one is done. The shuffle is by chance, so that a batch that is run again has
its rows in other tasks and in another order.
"""

from __future__ import annotations

import sys

from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQueryListener

from vibemq.spark import local_session

ROWS_A_BATCH = 4_000


class Told(StreamingQueryListener):
    def onQueryStarted(self, event):
        print("started", flush=True)

    def onQueryProgress(self, event):
        if event.progress.numInputRows:
            print("batch", event.progress.batchId, flush=True)

    def onQueryIdle(self, event):
        pass

    def onQueryTerminated(self, event):
        pass


def main(endpoints: str, source: str, target: str, checkpoint: str, how: str = "") -> None:
    spark = local_session("pipeline", cores=2, config={"spark.sql.shuffle.partitions": "3"})
    spark.streams.addListener(Told())
    rows = (
        spark.readStream.format("vibemq")
        .option("endpoints", endpoints)
        .option("stream", source)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", ROWS_A_BATCH)
        .load()
    )
    writer = (
        rows.select("value")
        .withColumn("chance", F.rand())
        .repartition(3, "chance")
        .select("value")
        .writeStream.format("vibemq")
        .option("endpoints", endpoints)
        .option("stream", target)
        .option("checkpointLocation", checkpoint)
    )
    if how == "available-now":
        writer = writer.trigger(availableNow=True)
    writer.start().awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
