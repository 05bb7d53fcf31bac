# SPDX-License-Identifier: Apache-2.0
"""What features of the streams door cost: each beside the plain load of the same direction, in alternation.

A broker of its own with two workers and the durability `os`; the load generator on the same cores:

    python -m benchmarks features --rounds 5 --warm-mb 20000
"""

from __future__ import annotations

import os
import random
import shutil
import statistics
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from benchmarks.report import ROUNDS_DEFAULT_COUNT, keep_warm, warm_memory
from benchmarks.servers import VibeMQ
from vibemq.bench.load import Result
from vibemq.bench.run import run
from vibemq.bench.streams import StreamsLoad as Load
from vibemq.errors import SetupError

PUBLISH = Load(mode="pub", messages=10_000_000, group=8)
CONSUME = Load(mode="con", messages=20_000_000)
BOTH = Load(mode="pubsub", messages=5_000_000)
SMALL_CHUNKS = 1_000_000
LAST = 100
EC_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256")


def published(result: Result) -> float:
    return result.confirmed / result.publish_s


def consumed(result: Result) -> float:
    return result.consumed / result.consume_s


def seconds(result: Result) -> float:
    return result.wall_s


def scaled(load: Load, scale: float) -> Load:
    """At least one frame for each connection, and never more than the few that a filter is to find."""
    fewest = max(load.publishers, load.consumers) * load.batch
    return load if load.messages == LAST else replace(load, messages=max(fewest, round(load.messages * scale)))


Rows = dict[str, tuple[Load, Callable[[Result], float]]]


class Tables:
    """One broker, and the loads to put on it."""

    def __init__(self, server: VibeMQ, authority: Path, rounds: int, scale: float) -> None:
        self.rounds, self.scale = rounds, scale
        self.here: dict[str, Any] = {"port": server.streams_port, "broker_pid": server.pid, "timeout_s": 300.0}
        self.secret = self.here | {"port": server.ports["streams-tls"], "tls_ca": str(authority)}

    def table(self, title: str, rows: Rows) -> None:
        """The first row is the one that the others are compared with."""
        figures: dict[str, list[float]] = {name: [] for name in rows}
        cpu: dict[str, list[float]] = {name: [] for name in rows}
        for turn in range(self.rounds):
            # Shuffled: a row that always followed the one that writes most would pay for it.
            for name in random.Random(turn).sample(list(rows), len(rows)):
                load, figure = rows[name]
                keep_warm()
                os.sync()  # what the run before has written is not written back during this one
                result = run(self.scaled(load))
                figures[name].append(figure(result))
                cpu[name].append(result.broker_cpu_s * 1e6 / result.handled)
        base = statistics.median(next(iter(figures.values())))
        print(f"\n| {title} | median (smallest to largest) | ratio | broker CPU, us a message |\n|---|---|---|---|")
        for name, values in figures.items():
            middle = statistics.median(values)
            spread = f"{middle:,.4g} ({min(values):,.4g} to {max(values):,.4g})"
            print(f"| {name} | {spread} | {middle / base:.2f} | {statistics.median(cpu[name]):.3f} |", flush=True)

    def scaled(self, load: Load) -> Load:
        return scaled(load, self.scale)

    def publishing(self) -> None:
        plain = replace(PUBLISH, **self.here)
        self.table(
            "publish, msg/s",
            {
                "plain": (plain, published),
                "sub-batches of 100": (replace(plain, sub_batch=100, batch=1000, messages=40_000_000), published),
                "deduplication": (replace(plain, reference="writer"), published),
                "filter values": (replace(plain, filter_value="red"), published),
                "TLS": (replace(PUBLISH, **self.secret), published),
            },
        )

    def both_ways(self) -> None:
        plain = replace(BOTH, **self.here)
        hundred = replace(plain, spread=True, window=20_000, publishers=100, consumers=100)
        self.table(
            "publish and consume, msg/s",
            {
                "plain": (plain, consumed),
                "TLS": (replace(BOTH, **self.secret), consumed),
                "100 streams at once": (hundred, consumed),
                "1,000 connections": (replace(hundred, window=10_000, publishers=500, consumers=500), consumed),
            },
        )

    def consuming(self) -> None:
        plain = replace(CONSUME, **self.here)
        run(self.scaled(replace(plain, mode="pub", group=8, keep=True)))
        self.table(
            "consume a backlog, msg/s",
            {
                "plain": (plain, consumed),
                "TLS": (replace(CONSUME, **self.secret), consumed),
                "8 consumers of it, in all": (replace(plain, consumers=8), consumed),
            },
        )

    def filtering(self) -> None:
        red = replace(CONSUME, **self.here, stream="red")
        run(self.scaled(replace(red, mode="pub", group=8, filter_value="red", keep=True)))
        run(replace(red, mode="pub", messages=LAST, filter_value="blue", append=True, keep=True))
        self.table(
            "the last 100 of a backlog of 20 M, s",
            {
                "without a filter: all of it": (red, seconds),
                "with the filter": (replace(red, messages=LAST, filter_value="blue"), seconds),
            },
        )


def small_chunks(port: int, rounds: int, scale: float) -> None:
    load = scaled(
        Load(mode="con", messages=SMALL_CHUNKS, size_bytes=1024, credit=1000, port=port, timeout_s=300.0), scale
    )
    run(replace(load, mode="pub", sub_batch=1, keep=True))
    rates = [consumed(run(load)) for _ in range(rounds)]
    print(
        f"\none-message chunks of 1 KiB: {statistics.median(rates):,.0f} msg/s ({min(rates):,.0f} to {max(rates):,.0f})"
    )


def certificate(folder: Path) -> tuple[Path, Path]:
    made, key = folder / "certificate.pem", folder / "key.pem"
    options = ["-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    if shutil.which("openssl") is None:
        raise SetupError("the openssl command is needed to make a certificate, and is not installed")
    command = ["openssl", "req", "-x509", "-nodes", *EC_KEY, *options, "-keyout", str(key), "-out", str(made)]
    subprocess.run(command, check=True, capture_output=True)
    return made, key


@click.command()
@click.option("--rounds", default=ROUNDS_DEFAULT_COUNT, show_default=True)
@click.option("--scale", default=1.0, show_default=True, help="Of messages.")
@click.option("--warm-mb", default=0, show_default=True, help="Keep so much memory in use.")
def features(rounds: int, scale: float, warm_mb: int) -> None:
    """What features of the streams door cost, each beside the plain load."""
    warm_memory(warm_mb)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        made, key = certificate(folder)
        extra = ("--set", f"tls.certificate={made}", "--set", f"tls.key={key}")
        for door in ("streams", "native", "admin"):
            extra += ("--set", f"{door}.tls_port=0")
        server = VibeMQ(folder / "plain", workers=2, extra=extra)
        server.start()
        try:
            tables = Tables(server, made, rounds, scale)
            for table in (tables.publishing, tables.both_ways, tables.consuming, tables.filtering):
                table()
        finally:
            server.stop()
        server = VibeMQ(folder / "small", workers=2, extra=("--set", "streams.one_sub_batch_per_chunk=true"))
        server.start()
        try:
            small_chunks(server.streams_port, rounds, scale)
        finally:
            server.stop()
