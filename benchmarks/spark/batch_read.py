# SPDX-License-Identifier: Apache-2.0
"""A full read of a stream by Spark, beside a full scan of the same rows in snappy Parquet, in alternation.

    python benchmarks/spark/batch_read.py --rows 4000000 --size 100

It starts a broker of its own unless --endpoints names one. "noop" materialises every column
in the JVM and writes nothing. Rows are verified by count and checksum before they are timed.
"""

from __future__ import annotations

import contextlib
import os
import random
import statistics
import tempfile
import time
import zlib
from pathlib import Path

import click

from benchmarks.servers import VibeMQ
from vibemq.client.streams import StreamsConnection
from vibemq.spark import local_session

PUBLISH_COUNT = 20_000
LETTERS = b"abcdefghijklmnopqrstuvwxyz0123456789"


def payloads(rows: int, size: int) -> list[bytes]:
    """Half random letters, half a constant; a pool that is gone through again and again."""
    chance = random.Random(1)
    constant = b"=" * (size - size // 2)
    pool = [bytes(chance.choices(LETTERS, k=size // 2)) + constant for _ in range(min(rows, PUBLISH_COUNT))]
    return (pool * (rows // len(pool) + 1))[:rows]


def publish(endpoints: str, stream: str, messages: list[bytes]) -> float:
    host, _, port = endpoints.rpartition(":")
    with StreamsConnection.connect(host, int(port), timeout_s=60) as connection:
        connection.create(stream)
        started = time.monotonic()
        with connection.publisher(stream) as publisher:
            for at in range(0, len(messages), PUBLISH_COUNT):
                publisher.publish(messages[at : at + PUBLISH_COUNT])
            publisher.flush()
        return time.monotonic() - started


@click.command()
@click.option("--endpoints", default="", help="A broker that runs; none starts one.")
@click.option("--rows", default=4_000_000, show_default=True)
@click.option("--size", default=100, show_default=True, help="Bytes of a message.")
@click.option("--streams", default=2, show_default=True, help="Read by as many tasks.")
@click.option("--rounds", default=3, show_default=True)
def main(endpoints: str, rows: int, size: int, streams: int, rounds: int) -> None:
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="vibemq-bench-")))
        if not endpoints:
            server = VibeMQ(folder / "broker", workers=2)
            stack.callback(server.stop)
            endpoints = f"127.0.0.1:{server.start().streams_port}"
        names = [f"bench-{os.getpid()}-{number}" for number in range(streams)]
        messages = payloads(rows // streams, size)
        checksum = streams * sum(zlib.crc32(message) for message in messages)
        for name in names:
            seconds = publish(endpoints, name, messages)
        print(f"publish: {len(messages) / seconds / 1e6:.2f} M messages/s from Python, confirmed")
        spark = local_session("bench", log_file=folder / "spark.log", config={"spark.local.dir": str(folder)})
        stack.callback(spark.stop)
        _measure(spark, endpoints, names, folder / "parquet", rows // streams * streams, size, checksum, rounds)


def _measure(spark, endpoints, names, parquet, rows, size, checksum, rounds) -> None:
    from pyspark.sql import functions as F

    def source():
        frame = spark.read.format("vibemq").option("endpoints", endpoints).option("subscribe", ",".join(names)).load()
        return frame.select("value", "offset", "timestamp")

    lean = {"columns": "value"}
    found = source().agg(F.count("*"), F.sum(F.crc32("value"))).first()
    if tuple(found) != (rows, checksum):
        raise SystemExit(f"{rows} rows with checksum {checksum} were published, {tuple(found)} were read")
    source().write.option("compression", "snappy").parquet(str(parquet))

    cases = {
        "vibemq": source,
        "vibemq, value only": lambda: (
            spark.read.format("vibemq").options(endpoints=endpoints, subscribe=",".join(names), **lean).load()
        ),
        "snappy Parquet": lambda: spark.read.parquet(str(parquet)),
    }
    times: dict[str, list[float]] = {name: [] for name in cases}
    for number in range(rounds + 1):
        for name, frame in cases.items():
            started = time.monotonic()
            frame().write.format("noop").mode("overwrite").save()
            if number:  # the first round warms up
                times[name].append(time.monotonic() - started)
    base = statistics.median(times["snappy Parquet"])
    for name, each in times.items():
        median = statistics.median(each)
        spread = (max(each) - min(each)) / median
        print(
            f"{name:20} {rows / median / 1e6:6.2f} M rows/s {rows * size / median / 1e6:7.0f} MB/s "
            f"{base / median:5.2f} x Parquet  spread {spread:.0%}"
        )


if __name__ == "__main__":
    main()
