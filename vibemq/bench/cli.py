# SPDX-License-Identifier: Apache-2.0
"""`vibemq bench`: one run over the streams protocol; `vibemq bench queues`: one over the native protocol."""

from __future__ import annotations

import json
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from vibemq.bench.commands import RunByDefault, all_of, broker_pid_option, load_options, timeout_option
from vibemq.bench.load import MODES, Load, Result, run
from vibemq.bench.queues_cli import queues

DEFAULTS = Load()


@click.group(cls=RunByDefault, no_args_is_help=True)
def bench() -> None:
    """Measure a broker, ours or another, over the streams protocol; `queues` measures queues.

    Without a command it runs once: `vibemq bench --mode pubsub`.
    """


bench.add_command(queues)


common_options = all_of(
    click.option("--verify", is_flag=True, help="Check that each producer's messages come in order, all of them."),
    timeout_option(DEFAULTS),
    click.option("--stream", default=DEFAULTS.stream, show_default=True, help="Deleted before and after a run."),
    click.option("--user", default=DEFAULTS.user, show_default=True),
    click.option("--password", default=DEFAULTS.password, envvar="VIBEMQ_PASSWORD", help="Default: guest."),
    click.option("--virtual-host", default=DEFAULTS.virtual_host, show_default=True),
)


def _pairs(_: click.Context, option: click.Parameter, values: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    pairs = tuple(value.partition("=") for value in values)
    if any(not separator for _, separator, _ in pairs):
        raise click.BadParameter("needed NAME=VALUE", param=option)
    return tuple((name, value) for name, _, value in pairs)


@bench.command(name="run")
@click.option("--host", default=DEFAULTS.host, show_default=True)
@click.option("--port", type=int, default=DEFAULTS.port, show_default=True)
@click.option(
    "--tls-ca", default=DEFAULTS.tls_ca, metavar="FILE", help="Speak TLS with a server that FILE vouches for."
)
@load_options(DEFAULTS, MODES)
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
@click.option(
    "--sub-batch", type=click.IntRange(0), default=DEFAULTS.sub_batch, help="Messages in a sub-entry batch; 0: none."
)
@click.option("--reference", default=DEFAULTS.reference, help="Publishers have names, so they are deduplicated.")
@click.option("--filter-value", default=DEFAULTS.filter_value, help="Of each message, and wanted by each consumer.")
@click.option("--append", is_flag=True, help="Publish to the streams that an earlier run left (--keep).")
@click.option("--keep", is_flag=True, help="Leave the streams, for a later --mode con.")
@click.option(
    "--argument", "arguments", multiple=True, callback=_pairs, metavar="NAME=VALUE", help="For Create; repeatable."
)
@broker_pid_option
@click.option("--json", "as_json", is_flag=True, help="One line of JSON instead of a table.")
@common_options
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
