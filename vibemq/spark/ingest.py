# SPDX-License-Identifier: Apache-2.0
"""Streams into files or tables with Spark: one query with a checkpoint, and how far it is.

`start` makes the query of an `Ingest`; `Watch` reads the query's own progress, which is all that is shown
to people and at the metrics port. Nothing here keeps state: what must survive a restart is in Spark's checkpoint.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vibemq.errors import SetupError
from vibemq.spark import offsets

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

#: What each format needs on Spark's classpath: a class of it, and where it is found.
NEEDED = {
    "delta": ("org.apache.spark.sql.delta.sources.DeltaDataSource", "io.delta:delta-spark_{spark}_{scala}:VERSION"),
    "iceberg": (
        "org.apache.iceberg.spark.source.IcebergSource",
        "org.apache.iceberg:iceberg-spark-runtime-{spark}_{scala}:VERSION",
    ),
}
FORMATS = ("parquet", *NEEDED)
RATE_SECONDS = 30.0  # over what an estimate looks back: some batches, and not the pause before them
SAMPLES_MAX = 1000
NOWHERE = offsets.to_dict({})


@dataclass(frozen=True)
class Ingest:
    """What is to be done. `options` are those of format("vibemq"); `output` is a folder, of Iceberg a table."""

    options: Mapping[str, str]
    output: str
    checkpoint: str
    format: str = "parquet"
    partition_by: tuple[str, ...] = ()
    trigger: Mapping[str, Any] = field(default_factory=dict)


def require_format(spark: SparkSession, name: str) -> None:
    """SetupError, with the command that adds it, where what the format needs is not on Spark's classpath."""
    needed = NEEDED.get(name)
    jvm = getattr(spark, "_jvm", None)
    if needed is None or jvm is None:  # over Spark Connect the server answers, when the query starts
        return
    if jvm.org.apache.spark.util.Utils.classIsLoadable(needed[0]):
        return
    scala = ".".join(jvm.scala.util.Properties.versionNumberString().split(".")[:2])
    package = needed[1].format(scala=scala, spark=".".join(spark.version.split(".")[:2]))
    raise SetupError(
        f"format {name} needs a package that is not on Spark's classpath",
        hint=f"Add `--package {package}`, with its version for Spark {spark.version}; Spark fetches it once.",
    )


def start(job: Ingest, spark: SparkSession) -> StreamingQuery:
    """Begin, or go on from the checkpoint. SetupError: a column to partition by that is not there."""
    require_format(spark, job.format)
    frame = spark.readStream.format("vibemq").options(**{"startingOffsets": "earliest", **job.options}).load()
    if job.options.get("valueFormat") == "json":  # its fields, and of the source's columns those of other names
        taken = {"value", *(name.lower() for name in frame.select("value.*").columns)}  # names are alike in any case
        frame = frame.select("value.*", *(name for name in frame.columns if name not in taken))
    if missing := [name for name in job.partition_by if name not in frame.columns]:
        raise SetupError(
            f"there is no column {missing[0]!r} to partition by",
            hint=f"There are {', '.join(frame.columns)}. --schema makes columns of the messages' fields.",
        )
    writer = frame.writeStream.format(job.format).option("checkpointLocation", job.checkpoint)
    if job.partition_by:
        writer = writer.partitionBy(*job.partition_by)
    writer = writer.trigger(**job.trigger) if job.trigger else writer
    return writer.toTable(job.output) if job.format == "iceberg" else writer.start(job.output)


# ---- how far it is ----


@dataclass(frozen=True)
class State:
    """How far a query is; `lag` is the number of records by stream that are there and not yet written."""

    rows: int
    batch: int
    batch_seconds: float
    rows_per_second: float
    lag: Mapping[str, int]
    caught_up_in_seconds: float | None  # None: nobody knows, or it falls behind

    @property
    def behind(self) -> int:
        return sum(self.lag.values())


class Watch:
    """Sums up a query's progress; `look` is to be called more often than the query keeps batches (100)."""

    def __init__(self) -> None:
        self.rows = 0
        self.seen = -1  # the number of the last batch that ran
        self.batch_seconds = 0.0  # of that batch
        self.last: Any = None  # the newest report, which tells the tail
        self.samples: deque[tuple[float, int, int]] = deque(maxlen=SAMPLES_MAX)  # seconds, rows, behind

    def look(self, query: StreamingQuery, now: float | None = None) -> State:
        for progress in query.recentProgress:
            number, ran = progress["batchId"], "addBatch" in progress["durationMs"]
            if ran and number > self.seen:
                self.rows += max(0, progress["numInputRows"])
                self.batch_seconds = progress["batchDuration"] / 1000
            # While it is idle Spark reports, too, by the number of the batch that will be next.
            self.seen = max(self.seen, number if ran else number - 1)
            self.last = progress
        return self.state(time.monotonic() if now is None else now)

    def state(self, now: float) -> State:
        # By its JSON: the offsets of PySpark's own objects are in Python's notation in Spark 4.0.
        lag = lag_of(json.loads(self.last.json)["sources"]) if self.last is not None else {}
        behind = sum(lag.values())
        self.samples.append((now, self.rows, behind))
        while len(self.samples) > 2 and self.samples[1][0] < now - RATE_SECONDS:
            self.samples.popleft()
        began, rows, was_behind = self.samples[0]
        seconds = max(now - began, 1e-9)
        closing = (was_behind - behind) / seconds  # records a second by which the lag becomes less
        return State(
            rows=self.rows,
            batch=self.seen,
            batch_seconds=self.batch_seconds,
            rows_per_second=(self.rows - rows) / seconds,
            lag=lag,
            caught_up_in_seconds=0.0 if not behind else behind / closing if closing > 0 else None,
        )


def lag_of(sources: Any) -> dict[str, int]:
    """For each stream, how many records lie between what is written and its end, by a batch's own report as JSON."""
    lag: dict[str, int] = {}
    for source in sources:
        end, tail = (offsets.from_dict(source[name] or NOWHERE) for name in ("endOffset", "latestOffset"))
        for stream, there in tail.items():
            done = end.get(stream)
            lag[stream] = max(0, there.offset - done.offset) if done is not None else there.offset
    return lag


# ---- for people, and for Prometheus ----


def line(state: State) -> str:
    """
    >>> line(State(1200, 3, 0.5, 400.0, {"orders": 50}, 61.0))
    '1,200 rows, 400 rows/s, 50 behind, caught up in 1:01'
    """
    if state.batch < 0:
        return "waiting for the first batch"
    parts = [rows_text(state.rows), f"{rows_text(round(state.rows_per_second))}/s"]
    if state.behind:
        left = state.caught_up_in_seconds
        parts += [f"{state.behind:,} behind", "falling behind" if left is None else f"caught up in {_clock(left)}"]
    else:
        parts.append("caught up")
    return ", ".join(parts)


def rows_text(count: int) -> str:
    return f"{count:,} row{'' if count == 1 else 's'}"


def _clock(seconds: float) -> str:
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"


def metrics(state: State) -> str:
    """The state in Prometheus's text format."""
    lag = {f"{{stream={json.dumps(stream, ensure_ascii=False)}}}": count for stream, count in sorted(state.lag.items())}
    families: list[tuple[str, str, str, Mapping[str, float]]] = [  # the last are values by their label
        ("vibemq_ingest_rows_total", "counter", "Rows written since this process began.", {"": state.rows}),
        ("vibemq_ingest_batch", "gauge", "Number of the last batch; -1 before the first.", {"": state.batch}),
        ("vibemq_ingest_batch_seconds", "gauge", "How long the last batch took.", {"": state.batch_seconds}),
        ("vibemq_ingest_rows_per_second", "gauge", "Over the last half minute.", {"": state.rows_per_second}),
        ("vibemq_ingest_lag_records", "gauge", "Records that are there and not yet written.", lag),
    ]
    lines = []
    for name, kind, about, values in families:
        if values:
            lines += [f"# HELP {name} {about}", f"# TYPE {name} {kind}"]
        lines += [f"{name}{label} {value}" for label, value in values.items()]
    return "".join(f"{each}\n" for each in lines)
