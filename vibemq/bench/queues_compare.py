# SPDX-License-Identifier: Apache-2.0
"""Queue servers side by side, started here and measured in alternation under one load generator.

As with streams (compare.py), a median of the rounds is reported with the smallest and the largest beside it, and what
each server promises with a confirm. The null server shows where the generator itself ends, the bare TCP round trip what
any answer costs on this machine.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vibemq.bench.compare import ROUNDS_DEFAULT_COUNT, machine, rotated, summary
from vibemq.bench.queues import QueueLoad, run
from vibemq.bench.servers import SERVERS, Server
from vibemq.errors import UserError, VibeMQError

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

    @property
    def less_is_better(self) -> bool:
        return "_us." in self.figure


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
                "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
                "machine": machine(),
                "rounds": self.rounds,
                "baseline": self.baseline,
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
        runs: dict[str, list[dict[str, Any]]] = {server.name: [] for server in servers}
        for turn in range(self.rounds):
            for server in rotated(servers, turn):
                tell(f"{scenario.name}: round {turn + 1} of {self.rounds}, {server.name}")
                try:
                    runs[server.name].append(run(self.load(scenario, server)).figures())
                except VibeMQError as error:
                    tell(f"{scenario.name}: {server.name} failed: {error}")
                    runs[server.name].append({"error": str(error)})
        results = {name: summary(figures) for name, figures in runs.items()}
        return {
            "name": scenario.name,
            "title": scenario.title,
            "figure": scenario.figure,
            "percentiles": scenario.percentiles,
            "results": results,
            "ratio": self._ratios(scenario, results),
        }

    def _ratios(self, scenario: QueueScenario, results: dict[str, Any]) -> dict[str, float | None]:
        """How many times better than the baseline."""
        medians = {name: result["median"].get(scenario.figure) for name, result in results.items()}
        base = medians.get(self.baseline)
        if not base:
            return dict.fromkeys(medians)
        return {
            name: None if not value else round(base / value if scenario.less_is_better else value / base, 2)
            for name, value in medians.items()
        }


def installed(names: Sequence[str], folder: Path, tell: Callable[[str], None]) -> list[Server]:
    """Those of the named servers that can be started here; of the others the reason is told."""
    found = []
    for name in names:
        if why := SERVERS[name].missing():
            tell(f"{name} is not measured: {why}")
        else:
            found.append(SERVERS[name](folder / name))
    return found


def markdown(report: dict[str, Any]) -> str:
    """The report for people."""
    lines = [
        f"Measured {report['created']} on {report['machine']['system']}, {report['machine']['cores']} cores; "
        f"median of {report['rounds']} rounds in alternation, smallest and largest in parentheses.",
        "",
        "| server | version | durability of a confirm |",
        "|---|---|---|",
        *(f"| {each['name']} | {each['version']} | {each['durability']} |" for each in report["servers"]),
        "",
        f"| load | server | msg/s | broker CPU us/msg | p50 us | p99 us | p99.9 us | x {report['baseline']} |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for scenario in report["scenarios"]:
        for name, result in scenario["results"].items():
            lines.append(f"| {scenario['title']} | {name} | " + " | ".join(_cells(scenario, name, result)) + " |")
    return "\n".join(lines) + "\n"


def _cells(scenario: dict[str, Any], name: str, result: dict[str, Any]) -> list[str]:
    rate = "consume_msg_s" if result["median"].get("consume_msg_s") else "publish_msg_s"
    names = [rate, "broker_cpu_us_per_msg", *(f"{scenario['percentiles']}.{p}" for p in ("p50", "p99", "p999"))]
    cells = [_cell(result, figure) for figure in names]
    ratio = scenario["ratio"][name]
    cells.append("" if ratio is None else f"{ratio:g}")
    if result["failed"]:
        cells[0] += f" **{result['failed']} failed**"
    return cells


def _cell(result: dict[str, Any], figure: str) -> str:
    if figure not in result["median"]:
        return ""
    numbers = (result["median"][figure], *result["spread"][figure])
    middle, low, high = (f"{number:,.0f}" if abs(number) >= 100 else f"{number:.3g}" for number in numbers)
    return f"{middle} ({low}..{high})"
