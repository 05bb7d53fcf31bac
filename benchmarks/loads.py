# SPDX-License-Identifier: Apache-2.0
"""What the scripts have in common that put one of our doors under load, beside null servers and peers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from benchmarks import peers, report
from benchmarks.commands import tell
from benchmarks.servers import Server
from vibemq.bench.queues import QueueLoad

WORKERS = 2
MESSAGES_MIN = 16


@dataclass(frozen=True, slots=True)
class DoorLoad:
    """One line of the report: what `run` does to a server, and which of them it is for."""

    name: str
    title: str
    load: QueueLoad
    run: Callable[[QueueLoad], dict[str, Any]]
    is_for: Callable[[Server], bool] = lambda server: True


def one_queue(load: QueueLoad) -> dict[str, Any]:
    return peers.run(load).figures()


def measured(load: DoorLoad, servers: Sequence[Server], rounds: int, scale: float, baseline: str) -> dict[str, Any]:
    def figures(server: Server) -> dict[str, Any]:
        count = load.load.messages * scale * (1.0 if load.load.rate else server.scale)
        # A fan-out with filters needs a multiple of MESSAGES_MIN.
        messages = max(1, round(count / MESSAGES_MIN)) * MESSAGES_MIN
        here = {"protocol": server.protocol, "port": server.port, "broker_pid": server.pid}
        return load.run(replace(load.load, messages=messages, **here))

    chosen = [server for server in servers if load.is_for(server)]
    results = report.alternate(load.name, rounds, chosen, figures, tell)
    # With a rate the figure is a time.
    figure = "latency_us.p99" if load.load.rate else f"{'publish' if load.name == 'publish' else 'consume'}_msg_s"
    return {"title": load.title, "results": results, "ratio": report.ratios(results, figure, baseline)}


def table(found: dict[str, Any], servers: Sequence[Server], durability: str) -> str:
    """The loads for people; `durability`: of what."""
    about = [(each.name, each.version(), each.durability) for each in servers]
    return report.markdown(
        found,
        [("server", "version", f"durability of {durability}"), *about],
        ("msg/s", "broker CPU us/msg", "p50 us", "p99 us", "p99.9 us"),
        lambda _, rate: (rate, "broker_cpu_us_per_msg", *(f"latency_us.{p}" for p in ("p50", "p99", "p999"))),
    )
