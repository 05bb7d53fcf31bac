# SPDX-License-Identifier: Apache-2.0
"""Loads of streams: VibeMQ beside RabbitMQ, or servers that run already."""

from __future__ import annotations

from typing import Any

import click

from benchmarks.compare import Scenario, compare, comparison, options, waiting
from benchmarks.servers import RabbitMQStreams, Target, VibeMQStreams
from vibemq.bench.streams import StreamsLoad as Load

SCENARIOS = (
    Scenario("pub-100", "publish 100 B, frames of 100", Load(mode="pub", messages=5_000_000)),
    Scenario("pub-1000", "publish 1000 B, frames of 100", Load(mode="pub", messages=1_000_000, size_bytes=1000)),
    Scenario("pubsub-100", "publish and consume 100 B", Load(mode="pubsub", messages=5_000_000), "consume_msg_s"),
    Scenario(
        "pubsub-1000",
        "publish and consume 1000 B",
        Load(mode="pubsub", messages=1_000_000, size_bytes=1000),
        "consume_msg_s",
    ),
    Scenario("con-100", "consume a backlog of 100 B", Load(mode="con", messages=5_000_000), "consume_msg_s", waiting),
    Scenario(
        "single-100",
        "one message a frame, 64 frames a send, publish and consume 100 B",
        Load(mode="pubsub", messages=2_000_000, batch=1, group=64),
        "consume_msg_s",
    ),
    Scenario(
        "lat-50k",
        "end to end at 50,000 msg/s, open loop, frames of 10",
        Load(mode="lat", messages=250_000, rate=50_000, batch=10),
        "latency_us.p99",
    ),
)


@click.command()
@comparison((VibeMQStreams, RabbitMQStreams), SCENARIOS, "rabbitmq")
def streams() -> None:
    """Streams: VibeMQ, and Debian's RabbitMQ where it is installed."""


@click.command()
@click.option(
    "--target",
    "targets",
    multiple=True,
    required=True,
    metavar="NAME=HOST:PORT[,pid=N][,durability=TEXT][,tls_ca=FILE][,ARGUMENT=VALUE]",
    help="A server; repeatable. Arguments are for Create.",
)
@click.option("--user", default=Load.user, show_default=True)
@click.option("--password", default=Load.password, envvar="VIBEMQ_PASSWORD", help="Default: guest.")
@click.option("--virtual-host", default=Load.virtual_host, show_default=True)
@click.option("--stream", default=Load.stream, show_default=True, help="Deleted before and after a run.")
@options(SCENARIOS)
def targets(targets: tuple[str, ...], baseline: str | None, **how: Any) -> None:
    """Streams of servers that run already; ratios are against the last one."""
    servers = [Target(text) for text in targets]
    compare(servers, baseline=baseline or servers[-1].name, **how)
