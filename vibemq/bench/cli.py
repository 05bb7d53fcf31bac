# SPDX-License-Identifier: Apache-2.0
"""`vibemq bench`: one run over the streams protocol; `vibemq bench queues`: one over the native protocol.

An option is a field of the load: each command has those of its own load, with that load's defaults.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import MISSING, fields
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from vibemq.bench.load import Load, Result
from vibemq.bench.queues import QueueLoad
from vibemq.bench.run import run
from vibemq.bench.streams import StreamsLoad

MODES = "; ".join(f"{mode}: {meaning}" for mode, meaning in Load.modes.items())
# Of each field of a load: its options, and what it is for.
OPTIONS = {
    "host": ("--host", ""),
    "port": ("--port", "0: the protocol's own."),
    "tls_ca": ("--tls-ca", "Speak TLS with a server that this file vouches for."),
    "user": ("--user", ""),
    "password": ("--password", "Or in VIBEMQ_PASSWORD."),
    "virtual_host": ("--virtual-host", ""),
    "stream": ("--stream", "Deleted before and after a run."),
    "queue": ("--queue", "Deleted before and after a run."),
    "mode": ("--mode", f"{MODES}."),
    "messages": ("-n --messages", "In all."),
    "size_bytes": ("--size", "Of a body, bytes."),
    "batch": ("--batch", "Messages in a frame."),
    "group": ("--group", "Frames in a send (closed loop)."),
    "publishers": ("--publishers --producers", "Connections that publish."),
    "consumers": ("--consumers", "Connections that consume."),
    "window": ("--window", "Unconfirmed per publisher; 1 for --mode rtt."),
    "credit": ("--credit", "Chunks on the way per consumer."),
    "prefetch": ("--prefetch", "Unacknowledged per consumer."),
    "rate": ("--rate", "Messages/s of all publishers, scheduled: open loop."),
    "spread": ("--spread", "One stream for each producer and consumer."),
    "queues": ("--queues", "Messages go to each in turn."),
    "sub_batch": ("--sub-batch", "Messages in a sub-entry batch; 0: none."),
    "reference": ("--reference", "Publishers have names, so they are deduplicated."),
    "filter_value": ("--filter-value", "Of each message, and wanted by each consumer."),
    "append": ("--append", "Publish to the streams that an earlier run left (--keep)."),
    "arguments": ("--argument", "For Create; repeatable."),
    "durability": ("--durability", "Of the queue."),
    "verify": ("--verify", "Check that messages come in order, all of them."),
    "keep": ("--keep", "Leave what was published, for a later --mode con."),
    "timeout_s": ("--timeout", "s"),
    "broker_pid": ("--broker-pid", "Also report the CPU of this process and its descendants."),
    "apart": ("--apart", "That process on the last core, the load on the first."),
}


class RunByDefault(click.Group):
    """`vibemq bench --mode pub` means `vibemq bench run --mode pub`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ("-h", "--help"):
            args = ["run", *args]
        return super().parse_args(ctx, args)


def pairs(_: click.Context, option: click.Parameter, values: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    if any("=" not in value for value in values):
        raise click.BadParameter("needed NAME=VALUE", param=option)
    return tuple((name, value) for name, _, value in (value.partition("=") for value in values))


def option_of(name: str, default: Any) -> Callable[[Any], Any]:
    flags, help = OPTIONS[name]
    about: dict[str, Any] = {"default": default, "help": help}
    if isinstance(default, bool):
        about["is_flag"] = True
    elif isinstance(default, tuple):
        about |= {"multiple": True, "callback": pairs, "metavar": "NAME=VALUE"}
    elif name == "mode":
        about |= {"type": click.Choice(sorted(Load.modes)), "show_default": True}
    else:
        about |= {"type": type(default), "show_default": default not in ("", 0, 0.0) and name != "password"}
    if name == "password":
        about["envvar"] = "VIBEMQ_PASSWORD"
    return click.option(*flags.split(), name, **about)


def options_of(kind: type[Load]) -> Callable[[Any], Any]:
    """One decorator for the options of a load, which --help shows in the order of OPTIONS."""
    defaults = {each.name: each.default for each in fields(kind) if each.default is not MISSING}

    def decorate(command: Any) -> Any:
        for name in reversed([name for name in OPTIONS if name in defaults]):
            command = option_of(name, defaults[name])(command)
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
    table = Table(title=f"{load.mode}, {load.host}:{load.port}: {load.modes[load.mode]}", title_justify="left")
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
