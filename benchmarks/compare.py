# SPDX-License-Identifier: Apache-2.0
"""Servers of the streams protocol that run already, side by side; report.py says how."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from benchmarks import report
from benchmarks.report import ROUNDS_DEFAULT_COUNT
from vibemq.bench.load import Load, connect, run
from vibemq.errors import UserError


@dataclass(frozen=True, slots=True)
class Target:
    """A server to measure. `durability` is what it promises with a confirm, in its owner's words."""

    name: str
    host: str
    port: int
    pid: int = 0
    durability: str = "not stated"
    arguments: tuple[tuple[str, str], ...] = ()
    tls_ca: str = ""

    @classmethod
    def parse(cls, text: str) -> Target:
        """NAME=HOST:PORT[,pid=N][,durability=TEXT][,tls_ca=FILE][,KEY=VALUE for Create]..."""
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
        arguments = tuple((key, value) for key, value in pairs if key not in ("pid", "durability", "tls_ca"))
        return cls(
            name,
            host,
            int(port),
            int(fields.get("pid", 0)),
            fields.get("durability", "not stated"),
            arguments,
            fields.get("tls_ca", ""),
        )


@dataclass(frozen=True, slots=True)
class Scenario:
    """One line of the report. `figure` is the one that ratios are made of."""

    name: str
    title: str
    load: Load
    figure: str = "publish_msg_s"


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
            **report.head(self.rounds, self.baseline),
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
            tls_ca=target.tls_ca,
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
        with_backlog = scenario.load.mode == "con"
        if with_backlog:
            for target in self.targets:
                tell(f"{scenario.name}: filling {target.name}")
                run(replace(self._load(scenario, target), mode="pub", keep=True, verify=False))
        results = report.alternate(
            scenario.name, self.rounds, self.targets, lambda target: run(self._load(scenario, target)).figures(), tell
        )
        if with_backlog:
            for target in self.targets:
                with connect(self._load(scenario, target)) as connection:
                    connection.delete(self.common.stream, missing_ok=True)
        return {
            "name": scenario.name,
            "title": scenario.title,
            "figure": scenario.figure,
            "messages": max(1, round(scenario.load.messages * self.scale)),
            "results": results,
            "ratio": report.ratios(results, scenario.figure, self.baseline),
        }


def markdown(measured: dict[str, Any]) -> str:
    """The report for people."""
    targets = [(t["name"], f"{t['product']} {t['version']}", t["durability"]) for t in measured["targets"]]
    return report.markdown(
        measured,
        [("target", "server", "durability of a confirm"), *targets],
        ("msg/s", "MB/s", "broker CPU us/msg", "p50 us", "p99 us", "p99.9 us"),
        lambda _, rate: (
            rate,
            rate.replace("_msg_", "_mb_"),
            "broker_cpu_us_per_msg",
            *(f"latency_us.{percentile}" for percentile in ("p50", "p99", "p999")),
        ),
    )
