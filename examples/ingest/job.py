# SPDX-License-Identifier: Apache-2.0
"""The job: a stream to Parquet and, transformed, back into a stream; and proof that nothing is lost or twice.

This host's telemetry is published by a thread that notes for each metric how many messages were confirmed and the
sums of their checksums. Every other sweep goes through the native door, into the queue of the stream's name, and says
so in a header; the numbers must hold for each door.

Two queries read the stream meanwhile: one writes Parquet, the other makes a reading of each message and writes it
back into a second stream, with the exactly-once sink. Both are stopped, and started again from their checkpoints with
Trigger.AvailableNow until they have everything: so every run also shows a restart. Then the Parquet and the second
stream are read, and each must give the numbers of what was confirmed.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from telemetry import SPARK_SCHEMA, Sampler

from vibemq.client import connect as connect_native
from vibemq.client.streams import StreamsConnection
from vibemq.errors import SetupError, VibeMQError
from vibemq.spark.logins import arguments
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
PARQUET, BACK = "Parquet", "the second stream"  # the queries, by where they write
READING_SCHEMA = "value DOUBLE, checksum BIGINT"  # what is compared of a reading


@dataclass(frozen=True)
class Job:
    """What is to be done. `options` are those of format("vibemq"), without the stream; `native` is host:port."""

    options: Mapping[str, str]
    output: Path
    seconds: float
    count_min: int
    native: str
    stream: str = "telemetry"
    lose_machine: Callable[[], None] | None = None  # called when half of it is published

    @property
    def data(self) -> Path:
        return self.output / "data"

    @property
    def back(self) -> str:
        """The stream that is written back into."""
        return f"{self.stream}.readings"

    @property
    def source_options(self) -> dict[str, str]:
        return {"startingOffsets": "earliest", **self.options, "stream": self.stream, "includeHeaders": "true"}


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
    batches: dict[tuple[str, int], int] = field(default_factory=dict)  # name of the query, batch number -> rows
    history: list[tuple[float, int, int]] = field(default_factory=list)  # seconds, confirmed, written to Parquet

    @property
    def confirmed(self) -> int:
        return sum(self.confirmed_by.copy().values())

    def rows(self, query: str) -> int:
        return sum(count for (name, _), count in self.batches.items() if name == query)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started


@dataclass
class Outcome:
    """What was found in the Parquet and in the second stream, and every way in which either is not what it must be."""

    rows: Mapping[str, int]  # of which query's
    bytes: int  # of Parquet
    mismatches: list[str]
    metrics: list[tuple[str, int, float, float, float]]  # name, messages, min, mean, max; busiest first
    doors: Mapping[str, int]  # door -> rows that came through it


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
            if self.job.lose_machine is None:
                self._publish(self.job.seconds, self.job.count_min)
            else:
                self._publish(self.job.seconds / 2, self.job.count_min // 2)
                self.job.lose_machine()
                self._publish(self.job.seconds / 2, self.job.count_min)
        except VibeMQError as failed:
            self.failed = failed
        finally:
            self.sampler.close()

    def _publish(self, seconds: float, count_min: int) -> None:
        """For so long, and until there are so many in all."""
        with contextlib.ExitStack() as stack:
            streams = stack.enter_context(connect(parse(self.job.source_options)))
            client = stack.enter_context(connect_native(f"vibemq://{self.job.native}", reconnect=False))
            self._publish_by(streams, client, seconds, count_min)

    def _publish_by(self, connection: StreamsConnection, client: Client, seconds: float, count_min: int) -> None:
        progress, before = self.progress, self.progress.confirmed_by.get(STREAMS, 0)
        with connection.publisher(self.job.stream) as publisher:
            progress.published_at = progress.published_at or progress.seconds
            # One sweep wakes the query, whose first batch is the slow one; the clock runs from its end.
            publisher.publish(self.sampler.sweep(STREAMS))
            publisher.flush()
            self._note(before + publisher.confirmed, 0)
            self.go.wait(FIRST_BATCH_SECONDS_MAX)
            due = started = time.monotonic()
            through_native = False
            while not self.stop.is_set():
                taken = time.monotonic() - started
                enough = self.sampler.count >= count_min
                if taken >= seconds and (enough or taken >= seconds * SAMPLE_SECONDS_MAX_FACTOR):
                    break
                through_native = not through_native
                messages = self.sampler.sweep(NATIVE if through_native else STREAMS)
                acknowledged = 0
                if through_native:
                    summary = client.publish_many(self.job.stream, messages, headers={DOOR_HEADER: NATIVE}, raw=True)
                    acknowledged = summary.raise_failed().published
                else:
                    publisher.publish(messages)
                self._note(before + publisher.confirmed, acknowledged)
                # The pace that reaches the number in time, with a tenth to spare; at least ten sweeps a second.
                sweeps = 1.1 * count_min / len(messages)
                due += min(0.1, seconds / sweeps) if sweeps else 0.1
                time.sleep(max(0.0, due - time.monotonic()))
            publisher.flush()
            self._note(before + publisher.confirmed, 0)
        progress.publish_seconds += time.monotonic() - started

    def _note(self, confirmed: int, acknowledged: int) -> None:
        """`confirmed` is all of the streams door so far, `acknowledged` what the native door has taken since."""
        progress = self.progress
        progress.sent, progress.bytes = self.sampler.count, self.sampler.bytes
        progress.confirmed_by[STREAMS] = confirmed
        progress.confirmed_by[NATIVE] = progress.confirmed_by.get(NATIVE, 0) + acknowledged


def connect(options: Options) -> StreamsConnection:
    """A connection to the first endpoint that answers."""
    failed: VibeMQError | None = None
    for host, port in options.endpoints:
        try:
            return StreamsConnection.connect(
                host,
                port,
                **arguments(options),
                virtual_host=options.vhost,
                timeout_s=options.fetch_timeout_ms / 1000,
                client_properties={"product": "VibeMQ", "connection_name": "vibemq-ingest"},
            )
        except VibeMQError as refused:
            failed = refused
    assert failed is not None  # there is at least one endpoint
    raise failed


def prepare(job: Job) -> None:
    """Make both streams."""
    with connect(parse(job.source_options)) as connection:
        connection.create(job.stream, exist_ok=True)
        connection.create(job.back, exist_ok=True)


def run(job: Job, spark: SparkSession, progress: Progress, tell: Callable[[str], None]) -> Outcome:
    """Do the job; `tell` is called about four times a second with what is being done."""
    publisher = Publisher(job, progress)
    queries = [start(job, spark, {"processingTime": f"{TRIGGER_SECONDS} seconds"}) for start in STARTS]
    try:
        publisher.start()
        _watch(progress, queries, tell, publisher)
        for query in queries:
            query.stop()
        queries = []
        for start in STARTS:
            queries.append(start(job, spark, {"availableNow": True}))
            _drain(progress, queries[-1], tell)
    finally:
        publisher.stop.set()
        publisher.go.set()
        for query in queries:
            query.stop()
    tell("checking")
    return check(job, spark, publisher)


def read(job: Job, spark: SparkSession) -> DataFrame:
    """The stream's messages as columns."""
    from pyspark.sql import functions as F

    frame = spark.readStream.format("vibemq").options(**job.source_options).load()
    door = F.coalesce(F.col("headers")[DOOR_HEADER], F.lit(STREAMS)).alias("door")
    message = F.from_json(F.col("value").cast("string"), SPARK_SCHEMA).alias("m")
    body = frame.select("offset", door, F.crc32("value").alias("checksum"), message)
    time_column = F.timestamp_micros("m.timestamp").alias("time")
    labels: list[str | Column] = ["m.metric", time_column, "m.host", "m.labels.device", "m.labels.field"]
    return body.select(*labels, "m.value", "m.sequence", "door", "offset", "checksum")


def to_parquet(job: Job, spark: SparkSession, trigger: dict[str, Any]) -> StreamingQuery:
    writer = read(job, spark).writeStream.queryName(PARQUET).format("parquet").partitionBy("metric")
    writer = writer.option("checkpointLocation", str(job.output / "checkpoint"))
    return writer.trigger(**trigger).start(str(job.data))


def to_stream(job: Job, spark: SparkSession, trigger: dict[str, Any]) -> StreamingQuery:
    """A reading of each message, written back: fewer fields, the metric as header, the sequence as message id."""
    from pyspark.sql import functions as F

    readings = read(job, spark).select(
        F.to_json(F.struct("time", "device", "field", "value", "checksum")).alias("value"),
        F.col("sequence").cast("string").alias("message_id"),
        F.create_map(F.lit("metric"), F.col("metric"), F.lit(DOOR_HEADER), F.col("door")).alias("headers"),
    )
    writer = readings.writeStream.queryName(BACK).format("vibemq").options(**job.options).option("stream", job.back)
    writer = writer.option("checkpointLocation", str(job.output / "checkpoint-back"))
    return writer.trigger(**trigger).start()


STARTS = (to_parquet, to_stream)


def _watch(
    progress: Progress, queries: list[StreamingQuery], tell: Callable[[str], None], publisher: Publisher
) -> None:
    """Until the publisher is done; the queries must stay alive."""
    while publisher.is_alive():
        _note(progress, *queries)
        if all(progress.rows(query.name) for query in queries):
            publisher.go.set()
        tell("ingesting" if publisher.go.is_set() else "first batch")
        for query in queries:
            if not query.isActive:
                query.awaitTermination()  # raises what ended it
                raise SetupError(f"the query {query.name!r} ended by itself")
        time.sleep(POLL_SECONDS)
    _note(progress, *queries)
    if publisher.failed:
        raise publisher.failed


def _drain(progress: Progress, query: StreamingQuery, tell: Callable[[str], None]) -> None:
    end = time.monotonic() + DRAIN_SECONDS_MAX
    while query.isActive:
        _note(progress, query)
        tell("draining")
        if time.monotonic() > end:
            raise SetupError(f"the stream was not read to its end within {DRAIN_SECONDS_MAX:.0f} s")
        time.sleep(POLL_SECONDS)
    query.awaitTermination()  # raises what ended it, if it was an error
    _note(progress, query)


def _note(progress: Progress, *queries: StreamingQuery) -> None:
    for query in queries:
        for batch in query.recentProgress:
            if batch.numInputRows:
                progress.batches[query.name, batch.batchId] = batch.numInputRows
    progress.history.append((progress.seconds, progress.confirmed, progress.rows(PARQUET)))


# ---- reading back ----


def check(job: Job, spark: SparkSession, publisher: Publisher) -> Outcome:
    """Every confirmed message is in the Parquet exactly once, and so is its reading in the second stream."""
    mismatches = []
    confirmed, sampler = publisher.progress.confirmed, publisher.sampler
    if confirmed != sampler.count:
        mismatches.append(f"{sampler.count} messages were sent, {confirmed} confirmed")
    frames = {PARQUET: spark.read.parquet(str(job.data)), BACK: written_back(job, spark)}
    tallies = {where: _tally(frame, sampler) for where, frame in frames.items()}
    for where, rows in tallies.items():
        mismatches += compare(where, rows, sampler)
    doors = Counter[str]()
    for row in tallies[PARQUET]:
        doors[row.door] += row["count"]
    rows_found = {where: sum(row["count"] for row in rows) for where, rows in tallies.items()}
    return Outcome(rows_found, _bytes(job), mismatches, _by_metric(tallies[PARQUET]), doors)


def written_back(job: Job, spark: SparkSession) -> DataFrame:
    """The readings with the columns that the Parquet has, as far as they are compared."""
    from pyspark.sql import functions as F

    frame = spark.read.format("vibemq").options(**job.source_options).option("stream", job.back).load()
    reading = F.from_json(F.col("value").cast("string"), READING_SCHEMA).alias("r")
    headers = [F.col("headers")[name].alias(name) for name in ("metric", DOOR_HEADER)]
    return frame.select(*headers, F.col("message_id").cast("bigint").alias("sequence"), reading).select(
        "metric", "door", "sequence", "r.value", "r.checksum"
    )


def _tally(frame: DataFrame, sampler: Sampler) -> list[Row]:
    """By metric and door, what a message that is missing, twice or another one would change."""
    from pyspark.sql import functions as F

    own = F.col("sequence").between(sampler.first_sequence, sampler.sequence - 1)
    sums = (
        F.count("*").alias("count"),
        F.countDistinct("sequence").alias("distinct"),
        F.sum("checksum").alias("checksums"),
        F.sum(F.col("sequence") - sampler.first_sequence).alias("sequences"),
        F.min("value").alias("least"),
        F.avg("value").alias("mean"),
        F.max("value").alias("most"),
    )
    return frame.where(own).groupBy("metric", "door").agg(*sums).collect()


def compare(where: str, rows: list[Row], sampler: Sampler) -> list[str]:
    """What is not as it was sent."""
    found = {(row.metric, row.door): row for row in rows}
    mismatches = []
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
                f"confirmed {wanted[0]}, in {where} {has[0]} of which {has[1]} are distinct; "
                f"checksums {wanted[2]} and {has[2]}, sequences {wanted[3]} and {has[3]}"
            )
    return mismatches


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


def _bytes(job: Job) -> int:
    return sum(file.stat().st_size for file in job.data.rglob("*.parquet"))
