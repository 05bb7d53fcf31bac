# SPDX-License-Identifier: Apache-2.0
"""Servers side by side: the only figure of speed that means anything is a ratio from one run on one machine.

Targets take turns, and who begins changes with each round, so that whatever else the machine does falls on all of
them. What is reported is the median of the rounds with the smallest and the largest beside it, and each target's
durability, because a confirm that promises less is cheaper.
"""

from __future__ import annotations

import datetime
import os
import platform
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from vibemq.bench.load import Load, connect, run
from vibemq.errors import UserError, VibeMQError

ROUNDS_DEFAULT_COUNT = 5  # the fewest that give a median with something on both sides of it
WARM_BLOCK_SIZE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Target:
    """A server to measure. `durability` is what it promises with a confirm, in its owner's words."""

    name: str
    host: str
    port: int
    pid: int = 0
    durability: str = "not stated"
    arguments: tuple[tuple[str, str], ...] = ()

    @classmethod
    def parse(cls, text: str) -> Target:
        """NAME=HOST:PORT[,pid=N][,durability=TEXT][,KEY=VALUE for Create]..."""
        address, *options = text.split(",")
        name, _, place = address.partition("=")
        host, _, port = place.rpartition(":")
        pairs = [option.partition("=")[::2] for option in options]
        fields = dict(pairs)
        if not name or not host or not port.isdigit() or not fields.get("pid", "0").isdigit():
            raise UserError(
                f"target: needed NAME=HOST:PORT[,pid=N][,durability=TEXT], had {text}",
                hint="For example rabbitmq=127.0.0.1:5552,pid=4711,durability=os.",
            )
        arguments = tuple((key, value) for key, value in pairs if key not in ("pid", "durability"))
        return cls(name, host, int(port), int(fields.get("pid", 0)), fields.get("durability", "not stated"), arguments)


@dataclass(frozen=True, slots=True)
class Scenario:
    """One line of the report. `figure` is the one that ratios are made of."""

    name: str
    title: str
    load: Load
    figure: str = "publish_msg_s"

    @property
    def less_is_better(self) -> bool:
        return self.figure.startswith("latency_us")


SCENARIOS = (
    Scenario("pub-100", "publish 100 B, frames of 100", Load(mode="pub", messages=5_000_000)),
    Scenario("pub-1000", "publish 1000 B, frames of 100", Load(mode="pub", messages=1_000_000, size_bytes=1000)),
    Scenario(
        "pubsub-100", "publish and consume 100 B", Load(mode="pubsub", messages=5_000_000), figure="consume_msg_s"
    ),
    Scenario(
        "pubsub-1000",
        "publish and consume 1000 B",
        Load(mode="pubsub", messages=1_000_000, size_bytes=1000),
        figure="consume_msg_s",
    ),
    Scenario("con-100", "consume a backlog of 100 B", Load(mode="con", messages=5_000_000), figure="consume_msg_s"),
    Scenario(
        "single-100",
        "one message a frame, 64 frames a send, publish and consume 100 B",
        Load(mode="pubsub", messages=2_000_000, batch=1, group=64),
        figure="consume_msg_s",
    ),
    Scenario(
        "lat-50k",
        "end to end at 50,000 msg/s, open loop, frames of 10",
        Load(mode="lat", messages=250_000, rate=50_000, batch=10),
        figure="latency_us.p99",
    ),
)


@dataclass(frozen=True, slots=True)
class Comparison:
    """What to measure: every scenario on every target, `rounds` times."""

    targets: tuple[Target, ...]
    scenarios: tuple[Scenario, ...]
    baseline: str
    rounds: int = ROUNDS_DEFAULT_COUNT
    scale: float = 1.0  # of the number of messages
    common: Load = field(default_factory=Load)  # user, timeout and the like

    def run(self, tell: Callable[[str], None]) -> dict[str, Any]:
        """The report. A run that fails is reported as failed; the others go on."""
        if self.baseline not in {target.name for target in self.targets}:
            raise UserError(f"baseline: needed the name of a target, had {self.baseline}")
        return {
            "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "machine": machine(),
            "rounds": self.rounds,
            "baseline": self.baseline,
            "targets": [self._describe(target) for target in self.targets],
            "scenarios": [self._scenario(scenario, tell) for scenario in self.scenarios],
        }

    def _load(self, scenario: Scenario, target: Target) -> Load:
        return replace(
            scenario.load,
            host=target.host,
            port=target.port,
            broker_pid=target.pid,
            arguments=target.arguments,
            messages=max(1, round(scenario.load.messages * self.scale)),
            user=self.common.user,
            password=self.common.password,
            virtual_host=self.common.virtual_host,
            stream=self.common.stream,
            timeout_s=self.common.timeout_s,
            verify=self.common.verify,
        )

    def _describe(self, target: Target) -> dict[str, Any]:
        with connect(self._load(self.scenarios[0], target)) as connection:
            properties = connection.server_properties
        return {
            "name": target.name,
            "address": f"{target.host}:{target.port}",
            "product": properties.get("product", ""),
            "version": properties.get("version", ""),
            "durability": target.durability,
        }

    def _scenario(self, scenario: Scenario, tell: Callable[[str], None]) -> dict[str, Any]:
        runs: dict[str, list[dict[str, Any]]] = {target.name: [] for target in self.targets}
        with_backlog = scenario.load.mode == "con"
        if with_backlog:
            for target in self.targets:
                tell(f"{scenario.name}: filling {target.name}")
                run(replace(self._load(scenario, target), mode="pub", keep=True, verify=False))
        for turn in range(self.rounds):
            for target in rotated(self.targets, turn):
                tell(f"{scenario.name}: round {turn + 1} of {self.rounds}, {target.name}")
                runs[target.name].append(self._one(scenario, target))
        if with_backlog:
            for target in self.targets:
                with connect(self._load(scenario, target)) as connection:
                    connection.delete(self.common.stream, missing_ok=True)
        results = {name: summary(figures) for name, figures in runs.items()}
        return {
            "name": scenario.name,
            "title": scenario.title,
            "figure": scenario.figure,
            "messages": max(1, round(scenario.load.messages * self.scale)),
            "results": results,
            "ratio": self._ratios(scenario, results),
        }

    def _one(self, scenario: Scenario, target: Target) -> dict[str, Any]:
        try:
            return run(self._load(scenario, target)).figures()
        except VibeMQError as error:
            return {"error": str(error)}

    def _ratios(self, scenario: Scenario, results: dict[str, Any]) -> dict[str, float | None]:
        """How many times better than the baseline."""
        medians = {name: result["median"].get(scenario.figure) for name, result in results.items()}
        base = medians[self.baseline]
        if scenario.less_is_better:
            return {name: round(base / value, 2) if base and value else None for name, value in medians.items()}
        return {name: round(value / base, 2) if base and value else None for name, value in medians.items()}


def rotated(targets: Sequence[Any], turn: int) -> Sequence[Any]:
    first = turn % len(targets)
    return [*targets[first:], *targets[:first]]


def flat(figures: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """The numbers of a run by name, inner ones as `latency_us.p99`."""
    for name, value in figures.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{name}.")
        elif isinstance(value, int | float):
            yield prefix + name, value


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Median, smallest and largest of each figure over the runs that succeeded, and the runs themselves."""
    numbers: dict[str, list[float]] = {}
    for figures in runs:
        for name, value in flat(figures):
            numbers.setdefault(name, []).append(value)
    return {
        "median": {name: statistics.median(values) for name, values in numbers.items()},
        "spread": {name: [min(values), max(values)] for name, values in numbers.items()},
        "failed": sum("error" in figures for figures in runs),
        "runs": runs,
    }


def machine() -> dict[str, Any]:
    """What the figures depend on and nobody remembers a month later."""
    return {
        "system": f"{platform.system()} {platform.release()}",
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "load_average_1_min": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
    }


def warm_memory(size_mb: int) -> None:
    """Touches memory by writing a file and deleting it.

    On a fresh virtual machine a page that the guest never used costs ten times as much to write as any later time,
    and the first broker to be measured would pay for it.
    """
    block = os.urandom(WARM_BLOCK_SIZE_BYTES)
    with tempfile.TemporaryFile() as file:
        for _ in range(size_mb):
            file.write(block)


def markdown(report: dict[str, Any]) -> str:
    """The report for people."""
    targets = {target["name"]: target for target in report["targets"]}
    lines = [
        f"Measured {report['created']} on {report['machine']['system']}, {report['machine']['cores']} cores; "
        f"median of {report['rounds']} rounds in alternation, smallest and largest in parentheses.",
        "",
        "| target | server | durability of a confirm |",
        "|---|---|---|",
        *(f"| {t['name']} | {t['product']} {t['version']} | {t['durability']} |" for t in targets.values()),
        "",
        f"| load | target | msg/s | MB/s | broker CPU us/msg | p50 us | p99 us | p99.9 us | x {report['baseline']} |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for scenario in report["scenarios"]:
        for name, result in scenario["results"].items():
            lines.append(f"| {scenario['title']} | {name} | " + " | ".join(_cells(scenario, name, result)) + " |")
    return "\n".join(lines) + "\n"


def _cells(scenario: dict[str, Any], name: str, result: dict[str, Any]) -> list[str]:
    rate = "consume_msg_s" if result["median"].get("consume_msg_s") else "publish_msg_s"
    ratio = scenario["ratio"][name]
    cells = [_cell(result, rate), _cell(result, rate.replace("_msg_", "_mb_")), _cell(result, "broker_cpu_us_per_msg")]
    cells += [_cell(result, f"latency_us.{percentile}") for percentile in ("p50", "p99", "p999")]
    cells.append("" if ratio is None else f"{ratio:g}")
    if result["failed"]:
        cells[0] += f" **{result['failed']} failed**"
    return cells


def _cell(result: dict[str, Any], figure: str) -> str:
    if figure not in result["median"]:
        return ""
    low, high = result["spread"][figure]
    return f"{_number(result['median'][figure])} ({_number(low)}..{_number(high)})"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
