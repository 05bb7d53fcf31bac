# SPDX-License-Identifier: Apache-2.0
"""The same rows in every place that is measured: our streams, a Kafka topic, Parquet; and the clocks beside them.

A row is half random letters, half a constant, out of a pool that is gone through again and again; the pool is larger
than what snappy looks back at. Parquet is written with snappy and without dictionaries, which would else hold the whole
pool. Everything is read back and compared by count and checksum before anything is timed.
"""

from __future__ import annotations

import os
import random
import shutil
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.servers import VibeMQ
from benchmarks.spark.kafka import Kafka
from vibemq.bench.run import tree_pids
from vibemq.client.streams import StreamsConnection
from vibemq.errors import VibeMQError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from benchmarks.spark.mapped import Sender

POOL_COUNT = 20_000
LETTERS = b"abcdefghijklmnopqrstuvwxyz0123456789"
COLUMNS = ("value", "offset", "timestamp")
BUCKET_SEGMENT_BYTES = 64 << 20  # so that most of it lies in closed segments, as what is old does
Summary = tuple[int, int]  # of rows: how many, and the sum of their CRC-32


def pool(size: int) -> list[bytes]:
    chance = random.Random(1)
    constant = b"=" * (size - size // 2)
    return [bytes(chance.choices(LETTERS, k=size // 2)) + constant for _ in range(POOL_COUNT)]


def blocks(size: int, rows: int) -> Iterator[list[bytes]]:
    """The rows of one stream, a frame's worth at a time."""
    bodies = pool(size)
    for at in range(0, rows, POOL_COUNT):
        yield bodies[: rows - at]


def counted() -> tuple[Column, Column]:
    """What makes a Summary of rows, as aggregates."""
    from pyspark.sql import functions as F

    return F.count("*").alias("count"), F.sum(F.crc32("value")).alias("checksum")


def summary(frame: DataFrame) -> Summary:
    count, checksum = frame.agg(*counted()).first()
    return count, checksum or 0


@dataclass
class Bed:
    """One Spark session and the brokers beside it, on the same cores."""

    spark: SparkSession
    folder: Path
    broker: VibeMQ
    kafka: Kafka | None
    sender: Sender | None
    tell: Callable[[str], None]
    peers: frozenset[str]
    expected: dict[str, Summary] = field(default_factory=dict)  # by stream and topic

    # ---- places ----

    def connect(self, broker: VibeMQ | None = None) -> StreamsConnection:
        return StreamsConnection.connect("127.0.0.1", (broker or self.broker).streams_port, timeout_s=60)

    def reader(self, streaming: bool) -> Any:
        return self.spark.readStream if streaming else self.spark.read  # a new one each time

    def ours(self, streams: str, streaming: bool = False, **options: Any) -> DataFrame:
        options = {"endpoints": self.address, "subscribe": streams, "columns": ",".join(COLUMNS), **options}
        return self.reader(streaming).format("vibemq").options(**options).load()

    def theirs(self, topic: str, streaming: bool = False, **options: Any) -> DataFrame:
        options = {"kafka.bootstrap.servers": self.kafka_address, "subscribe": topic, **options}
        return self.reader(streaming).format("kafka").options(**options).load().select(*COLUMNS)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.broker.streams_port}"

    @property
    def kafka_address(self) -> str:
        if self.kafka is None:
            raise VibeMQError("kafka does not run")
        return self.kafka.address

    def parquet(self, size: int) -> Path:
        return self.folder / f"parquet-{size}"

    def scan_parquet(self, size: int) -> DataFrame:
        return self.spark.read.parquet(str(self.parquet(size)))

    def mapped(self, size: int) -> Path:
        return self.folder / f"mapped-{size}"

    def scan_mapped(self, size: int, port: int = 0) -> DataFrame:
        return self.spark.read.format("mapped").options(folder=str(self.mapped(size)), port=port).load()

    def bucket(self, size: int) -> str:
        """A folder as an object store, whose broker has ended."""
        return f"file://{self.folder}/bucket-{size}"

    # ---- the same rows everywhere ----

    def fill(self, size: int, rows: int) -> None:
        """Streams `rows-SIZE-0` and `-1` with half of the rows each, here and in a bucket, Parquet, a topic of two
        partitions.

        All of them are also in a stream, and a topic of one partition, `one-SIZE`.
        """
        halves = f"rows-{size}-0,rows-{size}-1"
        for name in halves.split(","):
            self.publish(name, size, rows // 2)
        if "bucket" in self.peers:
            self.to_bucket(halves, size, rows // 2)
        self.expected[halves] = self.sum_of(halves)
        self.publish(f"one-{size}", size, rows // 2 * 2)
        self.tell(f"{size} B: to Parquet")
        self.write_parquet(self.ours(halves).coalesce(2), self.parquet(size))
        if self.peers & {"mapped", "sendfile"}:
            from benchmarks.spark import mapped  # which imports Spark

            mapped.write(self.parquet(size), self.mapped(size))
            self.spark.dataSource.register(mapped.Mapped)
        if self.kafka:
            self.to_kafka(halves, f"rows-{size}", 2)
            self.to_kafka(f"one-{size}", f"one-{size}", 1)
        os.sync()  # else what the kernel has yet to write falls upon whoever is measured first

    def to_bucket(self, streams: str, size: int, rows: int) -> None:
        """By a broker of its own, which is not there any more when the bucket is read."""
        settings = {"remote.url": self.bucket(size), "store.durability": "remote"}
        settings["store.segment_size_bytes"] = str(BUCKET_SEGMENT_BYTES)
        flags = tuple(word for pair in settings.items() for word in ("--set", "=".join(pair)))
        folder = self.folder / f"remote-{size}"
        folder.mkdir()
        broker = VibeMQ(folder, extra=flags)
        broker.start()
        try:
            for name in streams.split(","):
                self.publish(name, size, rows, broker)
        finally:
            broker.stop()
            shutil.rmtree(folder)

    def publish(self, stream: str, size: int, rows: int, broker: VibeMQ | None = None) -> None:
        checksum, began = 0, time.monotonic()
        with self.connect(broker) as connection:
            connection.create(stream)
            with connection.publisher(stream) as publisher:
                for bodies in blocks(size, rows):
                    publisher.publish(bodies)
                publisher.flush()
        took = time.monotonic() - began
        each = [zlib.crc32(body) for body in pool(size)]
        checksum = rows // POOL_COUNT * sum(each) + sum(each[: rows % POOL_COUNT])
        self.expected[stream] = (rows, checksum)
        self.tell(f"{size} B: {rows:,} rows to stream {stream}, {rows / took / 1e6:.2f} M rows/s from Python")

    def sum_of(self, streams: str) -> Summary:
        both = [self.expected[name] for name in streams.split(",")]
        return sum(count for count, _ in both), sum(checksum for _, checksum in both)

    def to_kafka(self, streams: str, topic: str, partitions: int) -> None:
        """A task for each partition, so that each has as many rows as each stream."""
        assert self.kafka is not None
        self.tell(f"{streams} to Kafka's topic {topic}")
        self.kafka.create(topic, partitions)
        last = streams.rpartition(",")[2]
        frame = self.ours(streams, columns="value,stream")
        frame = frame.selectExpr("value", f"int(stream = '{last}') * {partitions - 1} AS partition")
        self.write_kafka(frame, topic)
        self.expected[topic] = self.expected[streams]

    @staticmethod
    def write_parquet(frame: DataFrame, path: Path) -> None:
        options = {"compression": "snappy", "parquet.enable.dictionary": "false"}
        frame.write.options(**options).mode("overwrite").parquet(str(path))

    def write_kafka(self, frame: DataFrame, topic: str) -> None:
        options = {"kafka.bootstrap.servers": self.kafka_address, "topic": topic}
        frame.write.format("kafka").options(**options).save()

    def drop(self, size: int) -> None:
        """Room on the disk, and in the page cache, for the next size."""
        with self.connect() as connection:
            for name in (f"rows-{size}-0", f"rows-{size}-1", f"one-{size}"):
                connection.delete(name, missing_ok=True)
        shutil.rmtree(self.parquet(size), ignore_errors=True)
        shutil.rmtree(self.mapped(size), ignore_errors=True)
        shutil.rmtree(self.folder / f"bucket-{size}", ignore_errors=True)
        if self.kafka:
            for name in (f"rows-{size}", f"one-{size}"):
                self.kafka.delete(name)

    # ---- clocks ----

    def processes(self) -> dict[str, dict[int, float]]:
        """The seconds that each process of Spark (the JVM and its Python workers) and of the brokers has used."""
        others = [each for each in (self.kafka, self.sender) if each]
        brokers = {pid: used for each in (self.broker, *others) for pid, used in tree_pids(each.pid).items()}
        return {"spark_cpu_s": tree_pids(self.spark.sparkContext._gateway.proc.pid), "broker_cpu_s": brokers}

    @contextmanager
    def clock(self, figures: dict[str, float]) -> Iterator[None]:
        """Wall time, and processor time of Spark and of the brokers, while this lasts."""
        before = self.processes()
        began = time.monotonic()
        yield
        figures["wall_s"] = time.monotonic() - began
        for name, after in self.processes().items():  # of one that has ended meanwhile nobody knows
            figures[name] = sum(used - before[name].get(process, 0.0) for process, used in after.items())
