# SPDX-License-Identifier: Apache-2.0
"""Queue servers side by side, started here and measured in alternation under one load generator.

report.py says how. The null server shows where the generator itself ends, the bare TCP round trip what any answer costs
on this machine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.peers import run
from benchmarks.report import ROUNDS_DEFAULT_COUNT
from benchmarks.servers import NAMED, SERVERS, Server
from vibemq.bench.queues import QueueLoad
from vibemq.errors import UserError

RATE_20K = 20_000.0
MESSAGES_MIN = 100  # below this there is no percentile to speak of


@dataclass(frozen=True, slots=True)
class QueueScenario:
    """One line of the report. `figure` is the one that ratios are made of."""

    name: str
    title: str
    load: QueueLoad
    figure: str

    @property
    def percentiles(self) -> str:
        """Which latencies are shown."""
        return "confirm_us" if self.load.mode == "rtt" else "latency_us"


QUEUE_SCENARIOS = (
    QueueScenario(
        "publish",
        "publish 100 B, 10,000 unacknowledged",
        QueueLoad(mode="pub", messages=3_000_000),
        figure="publish_msg_s",
    ),
    QueueScenario(
        "both",
        "publish, deliver and acknowledge 100 B, one queue",
        QueueLoad(mode="both", messages=2_000_000),
        figure="consume_msg_s",
    ),
    QueueScenario(
        "round-trip",
        "one message at a time, from publish to its ack",
        QueueLoad(mode="rtt", messages=20_000, window=1, group=1),
        figure="confirm_us.p50",
    ),
    QueueScenario(
        "round-trip-apart",
        "the same with server and generator on different cores",
        QueueLoad(mode="rtt", messages=20_000, window=1, group=1, apart=True),
        figure="confirm_us.p50",
    ),
    QueueScenario(
        "latency",
        "publish to delivery at 20,000 msg/s, open loop",
        QueueLoad(mode="lat", messages=100_000, rate=RATE_20K),
        figure="latency_us.p99",
    ),
)


@dataclass(frozen=True, slots=True)
class QueueComparison:
    """Every scenario on every server, `rounds` times; a server that is not installed is named with the reason."""

    servers: Sequence[Server]
    scenarios: tuple[QueueScenario, ...] = QUEUE_SCENARIOS
    baseline: str = "nats"
    rounds: int = ROUNDS_DEFAULT_COUNT
    scale: float = 1.0
    verify: bool = False
    timeout_s: float = 120.0

    def run(self, tell: Callable[[str], None]) -> dict[str, Any]:
        if self.baseline not in {server.name for server in self.servers}:
            raise UserError(f"baseline: needed the name of a server that is measured, had {self.baseline}")
        with ExitStack() as stack:
            for server in self.servers:
                tell(f"starting {server.name}")
                stack.callback(server.start().stop)
            return {
                **report.head(self.rounds, self.baseline),
                "servers": [
                    {"name": each.name, "version": each.version(), "durability": each.durability}
                    for each in self.servers
                ],
                "scenarios": [self._scenario(scenario, tell) for scenario in self.scenarios],
            }

    def load(self, scenario: QueueScenario, server: Server) -> QueueLoad:
        # A rate makes the run as long as it is meant to be, however slow the server.
        scale = self.scale if scenario.load.rate else self.scale * server.scale
        return replace(
            scenario.load,
            protocol=server.protocol,
            port=server.port,
            broker_pid=server.pid,
            messages=max(MESSAGES_MIN, round(scenario.load.messages * scale)),
            verify=self.verify,
            timeout_s=self.timeout_s,
        )

    def _scenario(self, scenario: QueueScenario, tell: Callable[[str], None]) -> dict[str, Any]:
        servers = [server for server in self.servers if server.protocol != "echo" or scenario.load.mode == "rtt"]
        results = report.alternate(
            scenario.name, self.rounds, servers, lambda server: run(self.load(scenario, server)).figures(), tell
        )
        return {
            "name": scenario.name,
            "title": scenario.title,
            "figure": scenario.figure,
            "percentiles": scenario.percentiles,
            "results": results,
            "ratio": report.ratios(results, scenario.figure, self.baseline),
        }


def installed(names: Sequence[str], folder: Path, tell: Callable[[str], None]) -> list[Server]:
    """Those of the named servers that can be started here; of the others the reason is told."""
    found = []
    for name in names:
        kind = (SERVERS | NAMED)[name]
        if why := kind.missing():
            tell(f"{name} is not measured: {why}")
        else:
            found.append(kind(folder / name))
    return found


def markdown(measured: dict[str, Any]) -> str:
    """The report for people."""
    servers = [(each["name"], each["version"], each["durability"]) for each in measured["servers"]]
    return report.markdown(
        measured,
        [("server", "version", "durability of a confirm"), *servers],
        ("msg/s", "broker CPU us/msg", "p50 us", "p99 us", "p99.9 us"),
        lambda scenario, rate: (
            rate,
            "broker_cpu_us_per_msg",
            *(f"{scenario['percentiles']}.{percentile}" for percentile in ("p50", "p99", "p999")),
        ),
    )
