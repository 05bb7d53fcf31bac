# SPDX-License-Identifier: Apache-2.0
"""What is timed once the rows are in place: batch scans, a backlog drained by micro-batches, sinks.

A case is one way to do a work. Scans and drains end in Spark's `noop`, which materialises every column in the JVM and
writes nothing; all have the same three columns. What a sink writes is read from Parquet, whatever the sink.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks.spark.bed import Bed, Summary, counted, summary

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

DRAIN_BATCH_ROWS = 1_000_000
DRAIN_TIMEOUT_S = 600
OURS, LOCAL, PARQUET, KAFKA = "vibemq", "vibemq, local reads", "snappy Parquet", "kafka"
BUCKET = "vibemq, from the bucket"
MAPPED = "mapped Arrow batches, a Python source"
SENDFILE = "the same batches by sendfile over TCP"
ONE_TASK, TWO_TASKS = "vibemq, one stream, one task", "vibemq, one stream, two tasks"
_numbers = itertools.count()


def nothing() -> None:
    """What a case does before and after that is not timed, unless it says otherwise."""


@dataclass(frozen=True)
class Case:
    """run: the figures that it has itself, if any. check: one run that warms up and is not timed; what has gone through
    is compared with `expected`.
    """

    name: str
    run: Callable[[], dict[str, Any]]
    check: Callable[[], Summary]
    expected: Summary
    prepare: Callable[[], None] = nothing
    clear: Callable[[], None] = nothing


# ---- batch scans ----


def scans(bed: Bed, size: int) -> Iterator[Case]:
    halves, one = f"rows-{size}-0,rows-{size}-1", f"one-{size}"
    frames: dict[str, Callable[[], DataFrame]] = {
        OURS: partial(bed.ours, halves, readMode="tcp"),
        LOCAL: partial(bed.ours, halves, readMode="local"),
    }
    if "bucket" in bed.peers:
        frames[BUCKET] = partial(bed.ours, halves, endpoints="", remote=bed.bucket(size))
    if "parquet" in bed.peers:
        frames[PARQUET] = partial(bed.scan_parquet, size)
    if "mapped" in bed.peers:
        frames[MAPPED] = partial(bed.scan_mapped, size)
    if bed.sender:
        frames[SENDFILE] = partial(bed.scan_mapped, size, bed.sender.port)
    if bed.kafka:
        frames[KAFKA] = partial(bed.theirs, f"rows-{size}")
    whole: dict[str, Any] = {"readMode": "tcp", "maxBytesPerPartition": 0}
    frames[ONE_TASK] = partial(bed.ours, one, **whole)
    frames[TWO_TASKS] = partial(bed.ours, one, minPartitions=2, **whole)
    for name, frame in frames.items():
        expected = bed.expected[one if name in (ONE_TASK, TWO_TASKS) else halves]
        yield Case(name, partial(scan, frame), partial(scanned, frame), expected)


def scan(frame: Callable[[], DataFrame]) -> dict[str, Any]:
    frame().write.format("noop").mode("overwrite").save()
    return {}


def scanned(frame: Callable[[], DataFrame]) -> Summary:
    from pyspark.sql import Observation

    seen = Observation()
    scan(lambda: frame().observe(seen, *counted()))
    return seen.get["count"], seen.get["checksum"] or 0


# ---- a backlog, by micro-batches ----


def drains(bed: Bed, size: int) -> Iterator[Case]:
    """One stream, one topic of one partition, from the first row to the last; each batch is cut for both cores."""
    one = f"one-{size}"
    options = {"maxOffsetsPerTrigger": DRAIN_BATCH_ROWS, "startingOffsets": "earliest", "minPartitions": 2}
    frames: dict[str, Callable[[], DataFrame]] = {
        OURS: lambda: bed.ours(one, streaming=True, readMode="tcp", **options),
        LOCAL: lambda: bed.ours(one, streaming=True, readMode="local", **options),
    }
    if bed.kafka:
        frames[KAFKA] = lambda: bed.theirs(one, streaming=True, **options)
    for name, frame in frames.items():
        yield Case(name, partial(drain, bed, frame), partial(drained, bed, frame), bed.expected[one])


def drain(bed: Bed, frame: Callable[[], DataFrame]) -> dict[str, Any]:
    """From the start of the query to its end, with a checkpoint. What its batches took, in the mean."""
    batches = [batch for batch in drain_of(bed, frame) if batch.numInputRows]
    took = {part: sum(batch.durationMs[part] for batch in batches) / len(batches) for part in batches[0].durationMs}
    seconds = sum(batch.durationMs["triggerExecution"] for batch in batches) / 1000
    return {"batches_rows_s": sum(batch.numInputRows for batch in batches) / seconds, "batch_ms": took}


def drain_of(bed: Bed, frame: Callable[[], DataFrame]) -> list[Any]:
    """Spark's progress, batch by batch."""
    checkpoint = bed.folder / f"checkpoint-{next(_numbers)}"
    writer = frame().writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    if not query.awaitTermination(DRAIN_TIMEOUT_S):
        query.stop()
        raise TimeoutError(f"a drain was not done within {DRAIN_TIMEOUT_S} s")
    progress = query.recentProgress
    shutil.rmtree(checkpoint)
    return progress


def drained(bed: Bed, frame: Callable[[], DataFrame]) -> Summary:
    progress = drain_of(bed, lambda: frame().observe("rows", *counted()))
    each = [batch.observedMetrics["rows"] for batch in progress if "rows" in batch.observedMetrics]
    return sum(row["count"] for row in each), sum(row["checksum"] or 0 for row in each)


# ---- sinks ----


@dataclass
class Target:
    """A place of its own for each run of a sink."""

    bed: Bed
    name: str = ""

    def frame(self, size: int) -> DataFrame:
        return self.bed.scan_parquet(size).select("value")

    def next(self) -> str:
        self.name = f"sink-{next(_numbers)}"
        return self.name


class OurTarget(Target):
    """Exactly once: staged by the tasks, decided and applied by the commit."""

    def prepare(self) -> None:
        with self.bed.connect() as connection:
            connection.create(self.next())

    def write(self, size: int) -> dict[str, Any]:
        writer = self.frame(size).write.format("vibemq").options(endpoints=self.bed.address, stream=self.name)
        writer.options(txnAppId=self.name, txnVersion=1).mode("append").save()
        return {}

    def written(self) -> Summary:
        return summary(self.bed.ours(self.name))

    def clear(self) -> None:
        with self.bed.connect() as connection:
            connection.delete(self.name)


class KafkaTarget(Target):
    """At least once, which is what Spark's Kafka sink promises."""

    def prepare(self) -> None:
        assert self.bed.kafka
        self.bed.kafka.create(self.next(), 2)

    def write(self, size: int) -> dict[str, Any]:
        self.bed.write_kafka(self.frame(size), self.name)
        return {}

    def written(self) -> Summary:
        return summary(self.bed.theirs(self.name))

    def clear(self) -> None:
        assert self.bed.kafka
        self.bed.kafka.delete(self.name)


class ParquetTarget(Target):
    def prepare(self) -> None:
        self.next()

    def write(self, size: int) -> dict[str, Any]:
        self.bed.write_parquet(self.frame(size), self.bed.folder / self.name)
        return {}

    def written(self) -> Summary:
        return summary(self.bed.spark.read.parquet(str(self.bed.folder / self.name)))

    def clear(self) -> None:
        shutil.rmtree(self.bed.folder / self.name)


def sinks(bed: Bed, size: int) -> Iterator[Case]:
    kinds: dict[str, type[Any]] = {OURS: OurTarget, PARQUET: ParquetTarget} | (
        {KAFKA: KafkaTarget} if bed.kafka else {}
    )
    for name, kind in kinds.items():
        target = kind(bed)

        def check(target: Any = target) -> Summary:
            target.prepare()
            try:
                target.write(size)
                return target.written()
            finally:
                target.clear()

        run = partial(target.write, size)
        expected = bed.expected[f"rows-{size}-0,rows-{size}-1"]
        yield Case(name, run, check, expected, target.prepare, target.clear)


# ---- measuring ----


def verify(case: Case) -> None:
    """ValueError when what came through is not what was put in."""
    found = case.check()
    if found != case.expected:
        raise ValueError(f"{case.name}: needed rows and checksum {case.expected}, had {found}")


def measured(bed: Bed, case: Case, size: int) -> dict[str, Any]:
    rows, figures = case.expected[0], {}
    case.prepare()
    try:
        with bed.clock(figures):
            own = case.run()
    finally:
        case.clear()
    rate = rows / figures["wall_s"]
    return {"rows_s": rate, "mb_s": rate * size / 1e6, **figures, **own}
