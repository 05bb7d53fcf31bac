# SPDX-License-Identifier: Apache-2.0
"""`vibemq bench queues`: one run against a server that is there, or `compare` for servers that it starts itself."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import click

from vibemq.bench.commands import (
    RunByDefault,
    broker_pid_option,
    extent_options,
    load_options,
    output_option,
    scenario_option,
    show,
    tell,
    timeout_option,
)
from vibemq.bench.peers import PEERS
from vibemq.bench.queues import MODES, QueueLoad, run
from vibemq.bench.queues_compare import QUEUE_SCENARIOS, QueueComparison, QueueScenario, installed, markdown
from vibemq.bench.report import warm_memory
from vibemq.bench.servers import NAMED, SERVERS

DEFAULTS = QueueLoad()


@click.group(cls=RunByDefault, no_args_is_help=True)
def queues() -> None:
    """Measure queues: publish, deliver and acknowledge, at VibeMQ or another server.

    Without a command it runs once: `vibemq bench queues --mode both`.
    """


def _count(flags: str, name: str, default: int, help: str) -> Any:
    return click.option(flags, name, type=int, default=default, show_default=True, help=help)


@queues.command(name="run")
@click.option("--protocol", type=click.Choice(sorted(PEERS)), default=DEFAULTS.protocol, show_default=True)
@click.option("--host", default=DEFAULTS.host, show_default=True)
@_count("--port", "port", 0, "0: the protocol's own.")
@click.option("--user", default=DEFAULTS.user)
@click.option("--password", default=DEFAULTS.password, envvar="VIBEMQ_PASSWORD")
@click.option("--queue", default=DEFAULTS.queue, show_default=True, help="Deleted before and after a run.")
@load_options(DEFAULTS, MODES)
@_count("--size", "size_bytes", DEFAULTS.size_bytes, "Of a body, bytes.")
@_count("--window", "window", DEFAULTS.window, "Unacknowledged per publisher; 1 for --mode rtt.")
@_count("--group", "group", DEFAULTS.group, "Frames in a send (closed loop).")
@_count("--prefetch", "prefetch", DEFAULTS.prefetch, "Unacknowledged per consumer.")
@_count("--publishers", "publishers", DEFAULTS.publishers, "Connections that publish.")
@_count("--consumers", "consumers", DEFAULTS.consumers, "Connections that consume.")
@_count("--queues", "queues", DEFAULTS.queues, "Messages go to each in turn (native).")
@click.option("--rate", type=float, default=DEFAULTS.rate, help="Messages/s of all publishers, scheduled: open loop.")
@click.option("--durability", default=DEFAULTS.durability, help="Of the queue (native, SignalR, MicroMsg2).")
@click.option("--verify", is_flag=True, help="Check that each message comes once and in order, and each ack's id.")
@click.option("--keep", is_flag=True, help="Leave the queues, for a later --mode con.")
@timeout_option(DEFAULTS)
@broker_pid_option
@click.option("--apart", is_flag=True, help="That process on the last core, the load on the first.")
def run_command(**options: Any) -> None:
    """One run against one server; prints a line of JSON."""
    if options["mode"] == "rtt":
        options["window"] = options["group"] = 1
    click.echo(json.dumps(run(QueueLoad(**options)).figures()))


@queues.command()
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
def compare(
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
    show(measured, markdown(measured), output)
