# SPDX-License-Identifier: Apache-2.0
"""What the commands of `vibemq bench` have in common: a default command, options, and the end of a comparison."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from vibemq.bench.report import ROUNDS_DEFAULT_COUNT


class RunByDefault(click.Group):
    """`vibemq bench --mode pub` means `vibemq bench run --mode pub`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ("-h", "--help"):
            args = ["run", *args]
        return super().parse_args(ctx, args)


def all_of(*options: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """One decorator for several options, which --help shows in this order."""

    def decorate(command: Any) -> Any:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def load_options(defaults: Any, modes: dict[str, str]) -> Callable[[Any], Any]:
    """--mode and --messages."""
    return all_of(
        click.option(
            "--mode",
            type=click.Choice(sorted(modes)),
            default=defaults.mode,
            show_default=True,
            help="; ".join(f"{mode}: {meaning}" for mode, meaning in modes.items()) + ".",
        ),
        click.option("-n", "--messages", type=int, default=defaults.messages, show_default=True, help="In all."),
    )


def timeout_option(defaults: Any) -> Callable[[Any], Any]:
    return click.option("--timeout", "timeout_s", type=float, default=defaults.timeout_s, show_default=True, help="s")


broker_pid_option = click.option(
    "--broker-pid", type=int, default=0, help="Also report the CPU of this process and its descendants."
)


def scenario_option(scenarios: tuple[Any, ...]) -> Callable[[Any], Any]:
    """--scenario, which becomes the scenarios that it names."""

    def chosen(_: click.Context, __: click.Parameter, names: tuple[str, ...]) -> tuple[Any, ...]:
        return tuple(scenario for scenario in scenarios if not names or scenario.name in names)

    return click.option(
        "--scenario",
        "scenarios",
        multiple=True,
        type=click.Choice([scenario.name for scenario in scenarios]),
        callback=chosen,
        help="Repeatable; default: all.",
    )


extent_options = all_of(
    click.option("--rounds", type=click.IntRange(1), default=ROUNDS_DEFAULT_COUNT, show_default=True),
    click.option(
        "--scale", type=click.FloatRange(0, min_open=True), default=1.0, show_default=True, help="Of messages."
    ),
    click.option(
        "--warm-mb", type=click.IntRange(0), default=0, help="First touch this much memory; on fresh machines."
    ),
)
output_option = click.option("--output", type=click.Path(path_type=Path), help="Writes OUTPUT.json and OUTPUT.md.")


def tell(line: str) -> None:
    """Progress, beside the report that may go elsewhere."""
    click.echo(line, err=True)


def show(measured: dict[str, Any], text: str, output: Path | None) -> None:
    """The report in the terminal and in files; a failed run is an exit code of 1."""
    if output is not None:
        output.with_name(output.name + ".json").write_text(json.dumps(measured, indent=1) + "\n", encoding="utf-8")
        output.with_name(output.name + ".md").write_text(text, encoding="utf-8")
    click.echo(text, nl=False)
    if any(result["failed"] for scenario in measured["scenarios"] for result in scenario["results"].values()):
        raise click.exceptions.Exit(1)
