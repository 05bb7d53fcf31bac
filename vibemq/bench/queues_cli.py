# SPDX-License-Identifier: Apache-2.0
"""`vibemq bench queues`: one run against a server that is there."""

from __future__ import annotations

import json
from typing import Any

import click

from vibemq.bench.commands import RunByDefault, broker_pid_option, load_options, timeout_option
from vibemq.bench.queues import MODES, PEERS, QueueLoad, run

DEFAULTS = QueueLoad()


@click.group(cls=RunByDefault, no_args_is_help=True)
def queues() -> None:
    """Measure queues: publish, deliver and acknowledge.

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
