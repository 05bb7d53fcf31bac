# SPDX-License-Identifier: Apache-2.0
"""The MicroMsg2 door under load: messages in, out, and both at once with batch-ack of 1,000; latencies; fan-out.

Beside it the native protocol with the same windows; and for each of them a null server that shows where the load
generator ends.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click

from benchmarks import fanout
from benchmarks.compare import Scenario, comparison, waiting
from benchmarks.fanout import DIGITS, FanOut
from benchmarks.servers import Null, NullMicromsg2, Server, VibeMQ, VibeMQMicromsg2
from vibemq.bench.queues import QueueLoad

SERVERS: tuple[type[Server], ...] = (VibeMQMicromsg2, VibeMQ, NullMicromsg2, Null)
SUBSCRIBERS = 100
WINDOWS: dict[str, Any] = {"window": 1_000, "prefetch": 1_000, "group": 500}
TO_MANY = FanOut(mode="pub", messages=20_000, subscribers=SUBSCRIBERS, **WINDOWS)


def is_micromsg2(server: Server) -> bool:
    return server.protocol == "micromsg2"


def filters(server: Server) -> bool:
    return isinstance(server, VibeMQMicromsg2)


def keeps(server: Server) -> bool:
    """Something, for a consumer that comes later; the native null server forgets."""
    return type(server) is not Null


SCENARIOS = (
    Scenario("publish", "publish 100 B", QueueLoad(mode="pub", messages=3_000_000, **WINDOWS)),
    Scenario(
        "consume",
        "consume what waits",
        QueueLoad(mode="con", messages=3_000_000, **WINDOWS),
        "consume_msg_s",
        waiting,
        keeps,
    ),
    Scenario("both", "publish and consume", QueueLoad(mode="both", messages=2_000_000, **WINDOWS), "consume_msg_s"),
    Scenario(
        "latency",
        "the same at 50,000 msg/s, open loop",
        QueueLoad(mode="lat", rate=50_000.0, messages=150_000, **WINDOWS),
        "latency_us.p99",
    ),
    Scenario(
        "fan-out",
        f"one publisher to {SUBSCRIBERS} subscribers, deliveries in all",
        TO_MANY,
        "consume_msg_s",
        fanout.run,
        is_micromsg2,
    ),
    Scenario(
        "fan-out-filter",
        "the same with filters of two conditions that all messages pass",
        replace(TO_MANY, one_in=1),
        "consume_msg_s",
        fanout.run,
        is_micromsg2,
    ),
    Scenario(
        "fan-out-some",
        f"the same with filters that one message in {DIGITS} passes",
        replace(TO_MANY, messages=100_000, one_in=DIGITS),
        "consume_msg_s",
        fanout.run,
        filters,
    ),
)


@click.command()
@comparison(SERVERS, SCENARIOS, "vibemq")
def micromsg2() -> None:
    """The MicroMsg2 door, beside the native one."""
