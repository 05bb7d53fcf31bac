# SPDX-License-Identifier: Apache-2.0
"""`vibemq bench`: one run over the streams protocol; `vibemq bench queues`: one over the native protocol.

An option is a field of the load: each command has those of its own load, with that load's defaults.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import fields
from itertools import chain
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from vibemq.addresses import host_port
from vibemq.bench.load import Load, Result
from vibemq.bench.queues import QueueLoad
from vibemq.bench.run import run
from vibemq.bench.streams import StreamsLoad
from vibemq.units import example_of, of_option


class RunByDefault(click.Group):
    """`vibemq bench --mode pub` means `vibemq bench run --mode pub`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ("-h", "--help"):
            args = ["run", *args]
        return super().parse_args(ctx, args)


class WithUnit(click.ParamType):
    """A number, or one with a unit, of a field whose name ends with its own (vibemq.units)."""

    def __init__(self, field: str, kind: type) -> None:
        self.field, self.kind, self.name = field, kind, f"number, nor one with a unit such as {example_of(field)}"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        found = of_option(self.field, value) if isinstance(value, str) else None
        try:
            return self.kind(value if found is None else found)
        except ValueError:
            self.fail(f"{value!r} is not a {self.name}", param, ctx)


def pairs(_: click.Context, option: click.Parameter, values: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    if any("=" not in value for value in values):
        raise click.BadParameter("needed NAME=VALUE", param=option)
    return tuple((name, value) for name, _, value in (value.partition("=") for value in values))


def option_of(name: str, default: Any, flags: str, help: str) -> Callable[[Any], Any]:
    about: dict[str, Any] = {"default": default, "help": help}
    if isinstance(default, bool):
        about["is_flag"] = True
    elif isinstance(default, tuple):
        about |= {"multiple": True, "callback": pairs, "metavar": "NAME=VALUE"}
    elif name == "mode":
        about |= {"type": click.Choice(sorted(Load.modes)), "show_default": True}
    else:
        kind = WithUnit(name, type(default)) if example_of(name) else type(default)
        about |= {"type": kind, "show_default": default not in ("", 0, 0.0) and name != "password"}
    if name == "password":
        about["envvar"] = "VIBEMQ_PASSWORD"
    return click.option(*(flags or f"--{name.replace('_', '-')}").split(), name, **about)


def options_of(kind: type[Load]) -> Callable[[Any], Any]:
    """One decorator for the options of a load, which --help shows in the order of its fields."""
    kinds = [each for each in kind.__mro__ if issubclass(each, Load)]
    options = {each.name: each.metadata for each in chain(*map(fields, kinds)) if each.metadata}

    def decorate(command: Any) -> Any:
        for each in reversed(fields(kind)):
            if each.name in options:
                command = option_of(each.name, each.default, **options[each.name])(command)
        return command

    return decorate


def one_run(
    kind: type[Load], as_json: bool, run: Callable[[Load], Result] = run, protocols: Sequence[str] = ()
) -> Callable[[Any], Any]:
    """Makes a command of a function, which is only its --help: one run, and its figures."""

    def decorate(about: Any) -> Any:
        @click.option("--protocol", type=click.Choice(protocols or [kind.protocol]), default=kind.protocol)
        @options_of(kind)
        @click.option("--json/--table", "as_json", default=as_json, help="One line of JSON, or a table.")
        def command(as_json: bool, **options: Any) -> None:
            if options["mode"] == "rtt":
                options |= {name: 1 for name in ("window", "group", "batch") if name in options}
            result = run(kind(**options))
            if as_json:
                click.echo(json.dumps(result.figures() | result.encoded()))
            else:
                show(result)

        command.__name__, command.__doc__ = about.__name__, about.__doc__
        return command

    return decorate


def show(result: Result) -> None:
    load = result.load
    table = Table(
        title=f"{load.mode}, {host_port(load.host, load.port)}: {load.modes[load.mode]}", title_justify="left"
    )
    table.add_column("figure")
    table.add_column("value", justify="right")
    for name, value in result.figures().items():
        if name in ("protocol", "mode") or value in (0, 0.0):
            continue
        if isinstance(value, dict):
            value = "  ".join(f"{percentile} {number:,}" for percentile, number in value.items())
        table.add_row(name, f"{value:,}" if isinstance(value, int | float) else value)
    Console().print(table)


@click.group(cls=RunByDefault, no_args_is_help=True)
def bench() -> None:
    """Measure a broker, ours or another, over the streams protocol; `queues` measures queues.

    Without a command it runs once: `vibemq bench --mode pubsub`.
    """


@bench.command(name="run")
@one_run(StreamsLoad, as_json=False)
def run_streams() -> None:
    """One run against one broker."""


@bench.group(cls=RunByDefault, no_args_is_help=True)
def queues() -> None:
    """Measure queues: publish, deliver and acknowledge.

    Without a command it runs once: `vibemq bench queues --mode both`.
    """


@queues.command(name="run")
@one_run(QueueLoad, as_json=True)
def run_queues() -> None:
    """One run against one server."""
