# SPDX-License-Identifier: Apache-2.0
"""`python -m benchmarks`: servers side by side, and one run against a server of another protocol."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import click

from benchmarks.commands import extent_options, output_option, scenario_option, show, tell
from benchmarks.compare import SCENARIOS, Comparison, Scenario, Target, markdown
from benchmarks.queues_compare import QUEUE_SCENARIOS, QueueComparison, QueueScenario, installed
from benchmarks.queues_compare import markdown as queues_markdown
from benchmarks.report import warm_memory
from benchmarks.servers import NAMED, SERVERS
from vibemq.bench.cli import common_options
from vibemq.bench.load import Load
from vibemq.errors import UserError


@click.group(help=__doc__)
def main() -> None:
    """Set by the decorator."""


@main.command()
@click.option(
    "--target",
    "targets",
    multiple=True,
    required=True,
    metavar="NAME=HOST:PORT[,pid=N][,durability=TEXT][,tls_ca=FILE][,ARGUMENT=VALUE]",
    help="A server; repeatable. Arguments are for Create.",
)
@scenario_option(SCENARIOS)
@click.option("--baseline", help="Ratios are against this target. Default: the last one.")
@extent_options
@output_option
@common_options
def compare(
    targets: tuple[str, ...],
    scenarios: tuple[Scenario, ...],
    baseline: str | None,
    rounds: int,
    scale: float,
    warm_mb: int,
    output: Path | None,
    **common: Any,
) -> None:
    """Several servers in alternation: medians, spread and ratios."""
    parsed = tuple(Target.parse(target) for target in targets)
    if len({target.name for target in parsed}) != len(parsed):
        raise UserError("targets: needed a name of its own for each")
    comparison = Comparison(
        parsed,
        scenarios,
        baseline or parsed[-1].name,
        rounds,
        scale,
        Load(**common),
    )
    warm_memory(warm_mb)
    measured = comparison.run(tell)
    show(measured, markdown(measured), output)


@main.command()
@click.option(
    "--server",
    "names",
    multiple=True,
    type=click.Choice([*SERVERS, *NAMED]),
    help=f"Started for this; repeatable. Default: of {', '.join(SERVERS)} all that are installed.",
)
@scenario_option(QUEUE_SCENARIOS)
@click.option("--baseline", help="Ratios are against this server. Default: nats, or the last one without it.")
@extent_options
@click.option("--verify", is_flag=True, help="Check every message and every ack.")
@click.option("--folder", type=click.Path(path_type=Path), help="For the servers' data. Default: a temporary one.")
@output_option
def queues(
    names: tuple[str, ...],
    scenarios: tuple[QueueScenario, ...],
    baseline: str | None,
    rounds: int,
    scale: float,
    verify: bool,
    warm_mb: int,
    folder: Path | None,
    output: Path | None,
) -> None:
    """Starts servers and measures them in alternation: medians, spread and ratios."""
    with tempfile.TemporaryDirectory(dir=folder) as data:
        servers = installed(names or tuple(SERVERS), Path(data), tell)
        known = [server.name for server in servers]
        comparison = QueueComparison(
            servers,
            scenarios,
            baseline or ("nats" if "nats" in known else known[-1]),
            rounds,
            scale,
            verify,
        )
        warm_memory(warm_mb)
        measured = comparison.run(tell)
    show(measured, queues_markdown(measured), output)


if __name__ == "__main__":
    main()
