# SPDX-License-Identifier: Apache-2.0
"""`vibemq bench`: one run by default, `vibemq bench compare` for servers side by side."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from vibemq.bench.compare import (
    ROUNDS_DEFAULT_COUNT,
    SCENARIOS,
    Comparison,
    Target,
    markdown,
    warm_memory,
)
from vibemq.bench.load import MODES, Load, Result, run
from vibemq.bench.queues_cli import queues
from vibemq.bench.run_by_default import RunByDefault
from vibemq.errors import UserError

DEFAULTS = Load()


@click.group(cls=RunByDefault, no_args_is_help=True)
def bench() -> None:
    """Measure a broker, ours or another, over the streams protocol; `queues` measures queues.

    Without a command it runs once: `vibemq bench --mode pubsub`.
    """


bench.add_command(queues)


def _login(command: Any) -> Any:
    for option in (
        click.option("--virtual-host", default=DEFAULTS.virtual_host, show_default=True),
        click.option("--password", default=DEFAULTS.password, envvar="VIBEMQ_PASSWORD", help="Default: guest."),
        click.option("--user", default=DEFAULTS.user, show_default=True),
        click.option("--stream", default=DEFAULTS.stream, show_default=True, help="Deleted before and after a run."),
        click.option("--timeout", "timeout_s", type=float, default=DEFAULTS.timeout_s, show_default=True, help="s"),
        click.option("--verify", is_flag=True, help="Check that each producer's messages come in order, all of them."),
    ):
        command = option(command)
    return command


def _pairs(_: click.Context, option: click.Parameter, values: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    pairs = tuple(value.partition("=") for value in values)
    if any(not separator for _, separator, _ in pairs):
        raise click.BadParameter("needed NAME=VALUE", param=option)
    return tuple((name, value) for name, _, value in pairs)


@bench.command(name="run")
@click.option("--host", default=DEFAULTS.host, show_default=True)
@click.option("--port", type=int, default=DEFAULTS.port, show_default=True)
@click.option(
    "--mode",
    type=click.Choice(sorted(MODES)),
    default=DEFAULTS.mode,
    show_default=True,
    help="; ".join(f"{mode}: {meaning}" for mode, meaning in MODES.items()) + ".",
)
@click.option("-n", "--messages", type=int, default=DEFAULTS.messages, show_default=True, help="In all.")
@click.option(
    "--size", "size_bytes", type=int, default=DEFAULTS.size_bytes, show_default=True, help="Of a body, bytes."
)
@click.option("--batch", type=int, default=DEFAULTS.batch, show_default=True, help="Messages in a frame.")
@click.option("--group", type=int, default=DEFAULTS.group, show_default=True, help="Frames in a send (closed loop).")
@click.option("--producers", type=int, default=DEFAULTS.producers, show_default=True)
@click.option("--consumers", type=int, default=DEFAULTS.consumers, show_default=True)
@click.option("--window", type=int, default=DEFAULTS.window, show_default=True, help="Unconfirmed per producer.")
@click.option("--credit", type=int, default=DEFAULTS.credit, show_default=True, help="Chunks on the way per consumer.")
@click.option("--rate", type=float, default=DEFAULTS.rate, help="Messages/s of all producers, scheduled: open loop.")
@click.option("--spread", is_flag=True, help="One stream for each producer and consumer.")
@click.option("--keep", is_flag=True, help="Leave the streams, for a later --mode con.")
@click.option(
    "--argument", "arguments", multiple=True, callback=_pairs, metavar="NAME=VALUE", help="For Create; repeatable."
)
@click.option("--broker-pid", type=int, default=0, help="Also report the CPU of this process and its descendants.")
@click.option("--json", "as_json", is_flag=True, help="One line of JSON instead of a table.")
@_login
def run_command(as_json: bool, **options: Any) -> None:
    """One run against one broker."""
    result = run(Load(**options))
    if as_json:
        figures = result.figures()
        for name, histogram in (("latency_hdr", result.latencies), ("confirm_hdr", result.confirms)):
            if histogram.total and (encoded := histogram.encode()):
                figures[name] = encoded
        click.echo(json.dumps(figures))
    else:
        _show(result)


def _show(result: Result) -> None:
    load = result.load
    table = Table(title=f"{load.mode}, {load.host}:{load.port}: {MODES[load.mode]}", title_justify="left")
    table.add_column("figure")
    table.add_column("value", justify="right")
    for name, value in result.figures().items():
        if name == "mode" or value in (0, 0.0):
            continue
        if isinstance(value, dict):
            value = "  ".join(f"{percentile} {number:,}" for percentile, number in value.items())
        table.add_row(name, f"{value:,}" if isinstance(value, int | float) else value)
    Console().print(table)


@bench.command()
@click.option(
    "--target",
    "targets",
    multiple=True,
    required=True,
    metavar="NAME=HOST:PORT[,pid=N][,durability=TEXT][,ARGUMENT=VALUE]",
    help="A server; repeatable. Arguments are for Create.",
)
@click.option(
    "--scenario",
    "names",
    multiple=True,
    type=click.Choice([scenario.name for scenario in SCENARIOS]),
    help="Repeatable; default: all.",
)
@click.option("--baseline", help="Ratios are against this target. Default: the last one.")
@click.option("--rounds", type=click.IntRange(1), default=ROUNDS_DEFAULT_COUNT, show_default=True)
@click.option("--scale", type=click.FloatRange(0, min_open=True), default=1.0, show_default=True, help="Of messages.")
@click.option("--warm-mb", type=click.IntRange(0), default=0, help="First touch this much memory; on fresh machines.")
@click.option("--output", type=click.Path(path_type=Path), help="Writes OUTPUT.json and OUTPUT.md.")
@_login
def compare(
    targets: tuple[str, ...],
    names: tuple[str, ...],
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
        tuple(scenario for scenario in SCENARIOS if not names or scenario.name in names),
        baseline or parsed[-1].name,
        rounds,
        scale,
        Load(**common),
    )
    warm_memory(warm_mb)
    report = comparison.run(lambda line: click.echo(line, err=True))
    text = markdown(report)
    if output is not None:
        output.with_name(output.name + ".json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
        output.with_name(output.name + ".md").write_text(text, encoding="utf-8")
    click.echo(text, nl=False)
    if any(result["failed"] for scenario in report["scenarios"] for result in scenario["results"].values()):
        raise click.exceptions.Exit(1)
