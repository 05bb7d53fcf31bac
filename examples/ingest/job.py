# SPDX-License-Identifier: Apache-2.0
"""The job: streams into Parquet with Spark, and proof that nothing is missing or twice.

One query reads the streams and writes Parquet with a checkpoint. It runs for as long as
is asked, is stopped, and is started again from its checkpoint with Trigger.AvailableNow until
it has everything: so every run also shows a restart. Then the Parquet is read back.

With `sample`, this host's telemetry is published meanwhile, by a thread that notes for each
metric how many messages were confirmed and the sums of their checksums; the Parquet must give
the same numbers. Where the broker's native door is known, every other sweep goes through it, into
the queue of the stream's name, and says so in a header; the numbers must hold for each door.
Without, the rows that Spark says it wrote must be there, no offset twice.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from telemetry import SPARK_SCHEMA, Sampler

from vibemq.client.streams import StreamsConnection
from vibemq.errors import SetupError, VibeMQError
from vibemq.spark.options import Options, parse

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row, SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from vibemq.client import Client

TRIGGER_SECONDS = 2  # each trigger writes a file for each partition: more often means more and smaller files
POLL_SECONDS = 0.25
SAMPLE_SECONDS_MAX_FACTOR = 4  # a slow machine may take longer to reach the number of messages, not for ever
DRAIN_SECONDS_MAX = 600.0
FIRST_BATCH_SECONDS_MAX = 30.0
STREAMS, NATIVE = "streams", "native"
DOOR_HEADER = "door"  # of what comes through the native door


@dataclass(frozen=True)
class Job:
    """What is to be done. `options` are those of format("vibemq"), without the streams."""

    options: Mapping[str, str]
    streams: tuple[str, ...]
    output: Path
    seconds: float = 0.0
    sample: bool = False
    sample_count_min: int = 0
    partition_by: str = ""
    native: str = ""  # host:port of the native door, to publish the sample through as well

    @property
    def data(self) -> Path:
        return self.output / "data"

    @property
    def source_options(self) -> dict[str, str]:
        asked = {**self.options, "subscribe": ",".join(self.streams)}
        return {**asked, "includeHeaders": "true"} if self.sample else asked


@dataclass
class Progress:
    """How far the job is. One thread writes each field."""

    started: float = field(default_factory=time.monotonic)
    started_at: float = field(default_factory=time.time)  # the same moment, as messages tell the time
    published_at: float = 0.0  # seconds from the beginning to the first message
    sent: int = 0
    confirmed_by: dict[str, int] = field(default_factory=dict)  # door -> messages
    bytes: int = 0
    publish_seconds: float = 0.0
    batches: dict[int, int] = field(default_factory=dict)  # batch number -> rows
    history: list[tuple[float, int, int]] = field(default_factory=list)  # seconds, confirmed, written

    @property
    def confirmed(self) -> int:
        return sum(self.confirmed_by.copy().values())

    @property
    def written(self) -> int:
        return sum(self.batches.values())

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started


@dataclass
class Outcome:
    """What was found in the Parquet, and every way in which it differs from what it must be."""

    rows: int
    bytes: int
    mismatches: list[str]
    metrics: list[tuple[str, int, float, float, float]]  # name, messages, min, mean, max; busiest first
    doors: Mapping[str, int] = field(default_factory=dict)  # door -> rows that came through it


class Publisher(threading.Thread):
    """Samples this host and publishes with confirms until both the time and the number of messages are reached."""

    def __init__(self, job: Job, progress: Progress) -> None:
        super().__init__(name="vibemq-telemetry", daemon=True)
        self.job = job
        self.progress = progress
        self.sampler = Sampler()
        self.failed: BaseException | None = None
        self.stop = threading.Event()
        self.go = threading.Event()

    def run(self) -> None:
        try:
            with contextlib.ExitStack() as stack:
                streams = stack.enter_context(connect(parse(self.job.source_options)))
                client = None
                if self.job.native:
                    from vibemq.client import connect as connect_native

                    client = stack.enter_context(connect_native(f"vibemq://{self.job.native}", reconnect=False))
                self._publish(streams, client)
        except VibeMQError as failed:
            self.failed = failed
        finally:
            self.sampler.close()

    def _publish(self, connection: StreamsConnection, client: Client | None) -> None:
        progress, seconds = self.progress, self.job.seconds
        with connection.publisher(self.job.streams[0]) as publisher:
            progress.published_at = progress.seconds
            # One sweep wakes the query, whose first batch is the slow one; the clock runs from its end.
            publisher.publish(self.sampler.sweep(STREAMS))
            publisher.flush()
            self._note(publisher.confirmed, 0)
            self.go.wait(FIRST_BATCH_SECONDS_MAX)
            due = started = time.monotonic()
            through_native = False
            while not self.stop.is_set():
                taken = time.monotonic() - started
                enough = self.sampler.count >= self.job.sample_count_min
                if taken >= seconds and (enough or taken >= seconds * SAMPLE_SECONDS_MAX_FACTOR):
                    break
                through_native = client is not None and not through_native
                messages = self.sampler.sweep(NATIVE if through_native else STREAMS)
                acknowledged = 0
                if through_native and client is not None:
                    summary = client.publish_many(
                        self.job.streams[0], messages, headers={DOOR_HEADER: NATIVE}, raw=True
                    )
                    acknowledged = summary.raise_failed().published
                else:
                    publisher.publish(messages)
                self._note(publisher.confirmed, acknowledged)
                # The pace that reaches the number in time, with a tenth to spare; at least ten sweeps a second.
                sweeps = 1.1 * self.job.sample_count_min / len(messages)
                due += min(0.1, seconds / sweeps) if sweeps else 0.1
                time.sleep(max(0.0, due - time.monotonic()))
            publisher.flush()
            self._note(publisher.confirmed, 0)
        progress.publish_seconds = time.monotonic() - started

    def _note(self, confirmed: int, acknowledged: int) -> None:
        """`confirmed` is all of the streams door so far, `acknowledged` what the native door has taken since."""
        progress = self.progress
        progress.sent, progress.bytes = self.sampler.count, self.sampler.bytes
        progress.confirmed_by[STREAMS] = confirmed
        if self.job.native:
            progress.confirmed_by[NATIVE] = progress.confirmed_by.get(NATIVE, 0) + acknowledged


def connect(options: Options) -> StreamsConnection:
    """A connection to the first endpoint that answers."""
    failed: VibeMQError | None = None
    for host, port in options.endpoints:
        try:
            return StreamsConnection.connect(
                host,
                port,
                user=options.username,
                password=options.secret(),
                virtual_host=options.vhost,
                timeout_s=options.fetch_timeout_ms / 1000,
                client_properties={"product": "VibeMQ", "connection_name": "vibemq-ingest"},
            )
        except VibeMQError as refused:
            failed = refused
    assert failed is not None  # there is at least one endpoint
    raise failed


def prepare(job: Job) -> None:
    """Make the stream that is sampled into; others must be there."""
    with connect(parse(job.source_options)) as connection:
        if job.sample:
            connection.create(job.streams[0], exist_ok=True)
        for stream in job.streams:
            if not connection.exists(stream):
                raise SetupError(f"there is no stream {stream!r}", hint="--sample would create it and publish into it.")


def run(job: Job, spark: SparkSession, progress: Progress, tell: Callable[[str], None]) -> Outcome:
    """Do the job; `tell` is called about four times a second with what is being done."""
    before = spark.read.parquet(str(job.data)).count() if _has_rows(job) else 0
    publisher = Publisher(job, progress) if job.sample else None
    query = None
    try:
        if job.seconds:
            query = start(job, spark, {"processingTime": f"{TRIGGER_SECONDS} seconds"})
            if publisher:
                publisher.start()
            _watch(progress, query, tell, publisher, job.seconds)
            query.stop()
        tell("draining")
        query = start(job, spark, {"availableNow": True})
        _drain(progress, query, tell)
    finally:
        if publisher:
            publisher.stop.set()
            publisher.go.set()
        if query is not None:
            query.stop()
    tell("checking")
    return check_telemetry(job, spark, publisher) if publisher else check_rows(job, spark, before, progress)


def start(job: Job, spark: SparkSession, trigger: dict[str, Any]) -> StreamingQuery:
    frame = spark.readStream.format("vibemq").options(**{"startingOffsets": "earliest", **job.source_options}).load()
    shaped, partition = shape(job, frame)
    writer = shaped.writeStream.format("parquet").partitionBy(partition)
    writer = writer.option("checkpointLocation", str(job.output / "checkpoint"))
    return writer.trigger(**trigger).start(str(job.data))


def shape(job: Job, frame: DataFrame) -> tuple[DataFrame, str]:
    """The columns of the Parquet, and the one that it is partitioned by."""
    from pyspark.sql import functions as F

    text = F.col("value").cast("string")
    if job.sample:
        door = F.coalesce(F.col("headers")[DOOR_HEADER], F.lit(STREAMS)).alias("door")
        message = F.from_json(text, SPARK_SCHEMA).alias("m")
        body = frame.select("offset", door, F.crc32("value").alias("checksum"), message)
        time_column = F.timestamp_micros("m.timestamp").alias("time")
        labels: list[str | Column] = ["m.metric", time_column, "m.host", "m.labels.device", "m.labels.field"]
        return body.select(*labels, "m.value", "m.sequence", "door", "offset", "checksum"), "metric"
    if job.partition_by:
        key = F.get_json_object(text, f"$['{job.partition_by}']").alias(job.partition_by)
        return frame.select(key, "stream", "offset", "timestamp", "value"), job.partition_by
    return frame.select("stream", "offset", "timestamp", "value"), "stream"


def _watch(
    progress: Progress,
    query: StreamingQuery,
    tell: Callable[[str], None],
    publisher: Publisher | None,
    seconds: float,
) -> None:
    """Until the publisher is done, or the time is up; the query must stay alive."""
    end = time.monotonic() + seconds
    while publisher.is_alive() if publisher else time.monotonic() < end:
        _note(progress, query)
        if publisher and progress.written:
            publisher.go.set()
        tell("ingesting" if progress.written or not publisher else "first batch")
        if not query.isActive:
            query.awaitTermination()  # raises what ended it
            raise SetupError("the query ended by itself")
        time.sleep(POLL_SECONDS)
    _note(progress, query)
    if publisher and publisher.failed:
        raise publisher.failed


def _drain(progress: Progress, query: StreamingQuery, tell: Callable[[str], None]) -> None:
    end = time.monotonic() + DRAIN_SECONDS_MAX
    while query.isActive:
        _note(progress, query)
        tell("draining")
        if time.monotonic() > end:
            raise SetupError(f"the streams were not read to their end within {DRAIN_SECONDS_MAX:.0f} s")
        time.sleep(POLL_SECONDS)
    query.awaitTermination()  # raises what ended it, if it was an error
    _note(progress, query)


def _note(progress: Progress, query: StreamingQuery) -> None:
    for batch in query.recentProgress:
        if batch.numInputRows:
            progress.batches[batch.batchId] = batch.numInputRows
    progress.history.append((progress.seconds, progress.confirmed, progress.written))


# ---- reading back ----


def _has_rows(job: Job) -> bool:
    return any(job.data.glob("_spark_metadata/*"))


def _parquet_files(folder: Path) -> Iterator[Path]:
    return folder.rglob("*.parquet")


def check_telemetry(job: Job, spark: SparkSession, publisher: Publisher) -> Outcome:
    """Every confirmed message is in the Parquet exactly once: counts, sequences and two sums, by metric and door."""
    from pyspark.sql import functions as F

    sampler = publisher.sampler
    rows = []
    if _has_rows(job):
        own = F.col("sequence").between(sampler.first_sequence, sampler.sequence - 1)
        frame = spark.read.parquet(str(job.data)).where(own)
        rows = (
            frame.groupBy("metric", "door")
            .agg(
                F.count("*").alias("count"),
                F.countDistinct("sequence").alias("distinct"),
                F.sum("checksum").alias("checksums"),
                F.sum(F.col("sequence") - sampler.first_sequence).alias("sequences"),
                F.min("value").alias("least"),
                F.avg("value").alias("mean"),
                F.max("value").alias("most"),
            )
            .collect()
        )
    found = {(row.metric, row.door): row for row in rows}
    mismatches = []
    confirmed = publisher.progress.confirmed
    if confirmed != sampler.count:
        mismatches.append(f"{sampler.count} messages were sent, {confirmed} confirmed")
    for key in sorted(sampler.tallies.keys() | found.keys(), key=str):
        sent, row = sampler.tallies.get(key), found.get(key)
        wanted = (
            (sent.count, sent.count, sent.checksums, sent.sequences - sent.count * sampler.first_sequence)
            if sent
            else (0, 0, 0, 0)
        )
        has = (row["count"], row.distinct, row.checksums, row.sequences) if row else (0, 0, 0, 0)
        if wanted != has:
            mismatches.append(
                f"{key[0]} through {key[1]}: "
                f"confirmed {wanted[0]}, in Parquet {has[0]} of which {has[1]} are distinct; "
                f"checksums {wanted[2]} and {has[2]}, sequences {wanted[3]} and {has[3]}"
            )
    doors = Counter[str]()
    for row in rows:
        doors[row.door] += row["count"]
    return Outcome(doors.total(), _bytes(job), mismatches, _by_metric(rows), doors)


def _by_metric(rows: list[Row]) -> list[tuple[str, int, float, float, float]]:
    """Name, messages, min, mean and max of each metric through all doors, the busiest first."""
    grouped: dict[str, list[Row]] = {}
    for row in rows:
        grouped.setdefault(row.metric, []).append(row)
    metrics = []
    for name, each in grouped.items():
        count = sum(row["count"] for row in each)
        mean = sum(row["count"] * row.mean for row in each) / count
        metrics.append((name, count, min(row.least for row in each), mean, max(row.most for row in each)))
    return sorted(metrics, key=lambda metric: -metric[1])


def check_rows(job: Job, spark: SparkSession, before: int, progress: Progress) -> Outcome:
    """What Spark says it wrote is there, and no offset of a stream is there twice."""
    from pyspark.sql import functions as F

    if not _has_rows(job):
        mismatches = [f"{progress.written} rows were written, there is no Parquet"] if progress.written else []
        return Outcome(0, 0, mismatches, [])
    frame = spark.read.parquet(str(job.data))
    rows = (
        frame.groupBy("stream").agg(F.count("*").alias("count"), F.countDistinct("offset").alias("distinct")).collect()
    )
    total = sum(row["count"] for row in rows)
    mismatches = [
        f"stream {row.stream}: {row['count']} rows, but only {row.distinct} different offsets"
        for row in rows
        if row["count"] != row.distinct
    ]
    if total < before + progress.written:  # more: Spark does not count a batch again that a restart found written
        mismatches.append(f"{before} rows were there and {progress.written} written, now there are {total}")
    return Outcome(total - before, _bytes(job), mismatches, [])


def _bytes(job: Job) -> int:
    return sum(file.stat().st_size for file in _parquet_files(job.data))
