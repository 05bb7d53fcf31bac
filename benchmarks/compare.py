# SPDX-License-Identifier: Apache-2.0
"""Servers side by side under one load generator: every load on every server, in alternation; report.py says how.

The null servers show where the generator itself ends, the bare TCP round trip what any answer costs on this machine.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import click

from benchmarks import report
from benchmarks.peers import PEERS, run
from benchmarks.servers import Server
from vibemq.bench.load import Load, Result
from vibemq.errors import UserError

STEP = 16  # messages of a run are a multiple of it: a fan-out with filters needs that
STEPS_MIN = 7  # with fewer messages there is no percentile to speak of


@dataclass(frozen=True, slots=True)
class Scenario:
    """One line of the report. `figure` is the one that ratios are made of; `is_for` says which servers can do it."""

    name: str
    title: str
    load: Load
    figure: str = "publish_msg_s"
    run: Callable[[Load], Result] = run
    is_for: Callable[[Server], bool] = lambda server: True

    @property
    def percentiles(self) -> str:
        """Which latencies are shown."""
        return "confirm_us" if self.load.mode == "rtt" else "latency_us"


def waiting(load: Load) -> Result:
    """The messages lie there already."""
    run(replace(load, mode="pub", keep=True, verify=False))
    result = run(load)
    peer = PEERS[load.protocol](replace(load, mode="pub"))
    peer.delete()
    peer.close()
    return result


@dataclass(frozen=True, slots=True)
class Comparison:
    """Every scenario on every server that it is for, `rounds` times."""

    servers: Sequence[Server]
    scenarios: Sequence[Scenario]
    baseline: str
    rounds: int = report.ROUNDS_DEFAULT_COUNT
    scale: float = 1.0  # of the number of messages
    common: dict[str, Any] = field(default_factory=dict)  # of every load

    def run(self, tell: Callable[[str], None]) -> dict[str, Any]:
        """The report. A run that fails is reported as failed; the others go on."""
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

    def load(self, scenario: Scenario, server: Server) -> Load:
        # A rate makes the run as long as it is meant to be, however slow the server.
        scale = self.scale if scenario.load.rate else self.scale * server.scale
        messages = max(STEPS_MIN, round(scenario.load.messages * scale / STEP)) * STEP
        return replace(scenario.load, messages=messages, **server.place(), **self.common)

    def _scenario(self, scenario: Scenario, tell: Callable[[str], None]) -> dict[str, Any]:
        servers = [server for server in self.servers if scenario.is_for(server)]
        results = report.alternate(
            scenario.name,
            self.rounds,
            servers,
            lambda server: scenario.run(self.load(scenario, server)).figures(),
            tell,
        )
        return {
            "name": scenario.name,
            "title": scenario.title,
            "figure": scenario.figure,
            "percentiles": scenario.percentiles,
            "results": results,
            "ratio": report.ratios(results, scenario.figure, self.baseline),
        }


# ---- the command of each comparison ----


def options(scenarios: Sequence[Scenario]) -> Callable[[Any], Any]:
    """What every comparison can be told."""
    names = [scenario.name for scenario in scenarios]

    def chosen(_: click.Context, __: click.Parameter, wanted: tuple[str, ...]) -> list[Scenario]:
        return [scenario for scenario in scenarios if not wanted or scenario.name in wanted]

    decorators = [
        click.option(
            "--scenario",
            "scenarios",
            multiple=True,
            type=click.Choice(names),
            callback=chosen,
            help="Repeatable; default: all.",
        ),
        click.option("--baseline", help="Ratios are against this server."),
        click.option("--rounds", type=click.IntRange(1), default=report.ROUNDS_DEFAULT_COUNT, show_default=True),
        click.option("--scale", type=click.FloatRange(0, min_open=True), default=1.0, help="Of messages."),
        click.option("--warm-mb", type=click.IntRange(0), default=0, help="Keep so much memory in use."),
        click.option("--verify", is_flag=True, help="Check every message and every ack."),
        click.option("--timeout", "timeout_s", type=float, default=120.0, show_default=True, help="Of a run, s."),
        click.option("--output", type=click.Path(path_type=Path), help="Writes OUTPUT.json and OUTPUT.md."),
    ]

    def decorate(command: Any) -> Any:
        for decorator in reversed(decorators):
            command = decorator(command)
        return command

    return decorate


def compare(
    servers: Sequence[Server],
    scenarios: Sequence[Scenario],
    baseline: str,
    rounds: int,
    scale: float,
    warm_mb: int,
    output: Path | None,
    **common: Any,
) -> None:
    """Measures, and writes the report."""
    if len({server.name for server in servers}) != len(servers):
        raise UserError("servers: needed a name of its own for each")
    report.warm_memory(warm_mb)
    show(Comparison(servers, scenarios, baseline, rounds, scale, common).run(tell), output)


def comparison(
    kinds: Sequence[type[Server]], scenarios: Sequence[Scenario], baseline: str, by_default: int = 0
) -> Callable[[Any], Any]:
    """Makes a command of a function, which is only its --help: the servers that are started for it, side by side.

    by_default: so many of the first servers unless some are named; 0: all.
    """
    by_name = {kind.name: kind for kind in kinds}

    def decorate(about: Any) -> Any:
        @click.option("--server", "names", multiple=True, type=click.Choice(list(by_name)), help="Repeatable.")
        @click.option("--folder", type=click.Path(path_type=Path), help="For the servers' data.")
        @options(scenarios)
        def command(names: tuple[str, ...], folder: Path | None, baseline: str | None, **how: Any) -> None:
            with tempfile.TemporaryDirectory(dir=folder) as data:
                wanted = names or list(by_name)[: by_default or None]
                servers = installed([by_name[name] for name in wanted], Path(data), tell)
                compare(servers, baseline=baseline or baseline_of(servers), **how)

        def baseline_of(servers: Sequence[Server]) -> str:
            names = [server.name for server in servers]
            return baseline if baseline in names else names[-1]

        command.__name__, command.__doc__ = about.__name__, about.__doc__
        return command

    return decorate


def installed(kinds: Sequence[type[Server]], folder: Path, tell: Callable[[str], None]) -> list[Server]:
    """Those that can be started here; of the others the reason is told."""
    found = []
    for kind in kinds:
        if why := kind.missing():
            tell(f"{kind.name} is not measured: {why}")
        else:
            found.append(kind(folder / kind.name))
    return found


def tell(line: str) -> None:
    """Progress, beside the report that may go elsewhere."""
    click.echo(line, err=True)


def show(measured: dict[str, Any], output: Path | None) -> None:
    """The report in the terminal and in files; a failed run is an exit code of 1."""
    text = report.markdown(measured)
    if output is not None:
        output.with_name(output.name + ".json").write_text(json.dumps(measured, indent=1) + "\n", encoding="utf-8")
        output.with_name(output.name + ".md").write_text(text, encoding="utf-8")
    click.echo(text, nl=False)
    if any(result["failed"] for scenario in measured["scenarios"] for result in scenario["results"].values()):
        raise click.exceptions.Exit(1)
