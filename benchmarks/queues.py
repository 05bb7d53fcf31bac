# SPDX-License-Identifier: Apache-2.0
"""Loads of queues: VibeMQ beside NATS JetStream, Redis Streams and RabbitMQ."""

from __future__ import annotations

import click

from benchmarks.compare import Scenario, comparison
from benchmarks.servers import EchoServer, Nats, Null, RabbitMQ, Redis, Server, VibeMQ
from vibemq.bench.queues import QueueLoad

SERVERS: tuple[type[Server], ...] = (VibeMQ, Nats, Redis, RabbitMQ, Null, EchoServer)


def keeps_messages(server: Server) -> bool:
    return server.protocol != "echo"


SCENARIOS = (
    Scenario(
        "publish",
        "publish 100 B, 10,000 unacknowledged",
        QueueLoad(mode="pub", messages=3_000_000),
        is_for=keeps_messages,
    ),
    Scenario(
        "both",
        "publish, deliver and acknowledge 100 B, one queue",
        QueueLoad(mode="both", messages=2_000_000),
        "consume_msg_s",
        is_for=keeps_messages,
    ),
    Scenario(
        "round-trip",
        "one message at a time, from publish to its ack",
        QueueLoad(mode="rtt", messages=20_000, window=1, group=1),
        "confirm_us.p50",
    ),
    Scenario(
        "round-trip-apart",
        "the same with server and generator on different cores",
        QueueLoad(mode="rtt", messages=20_000, window=1, group=1, apart=True),
        "confirm_us.p50",
    ),
    Scenario(
        "latency",
        "publish to delivery at 20,000 msg/s, open loop",
        QueueLoad(mode="lat", messages=100_000, rate=20_000.0),
        "latency_us.p99",
        is_for=keeps_messages,
    ),
)


@click.command()
@comparison(SERVERS, SCENARIOS, "nats")
def queues() -> None:
    """Queues: VibeMQ, NATS JetStream, Redis Streams and RabbitMQ, whichever are installed."""
