# SPDX-License-Identifier: Apache-2.0
"""What the commands of a comparison have in common: options, progress, and the report at the end."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from benchmarks.report import ROUNDS_DEFAULT_COUNT
from vibemq.bench.commands import all_of


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
