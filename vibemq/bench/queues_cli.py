# SPDX-License-Identifier: Apache-2.0
"""`vibemq bench queues`: one run against a server that is there, or `compare` for servers that it starts itself."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import click

from vibemq.bench.compare import ROUNDS_DEFAULT_COUNT, warm_memory
from vibemq.bench.peers import PEERS
from vibemq.bench.queues import MODES, QueueLoad, run
from vibemq.bench.queues_compare import QUEUE_SCENARIOS, QueueComparison, installed, markdown
from vibemq.bench.run_by_default import RunByDefault
from vibemq.bench.servers import SERVERS

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
@click.option(
    "--mode",
    type=click.Choice(sorted(MODES)),
    default=DEFAULTS.mode,
    show_default=True,
    help="; ".join(f"{mode}: {meaning}" for mode, meaning in MODES.items()) + ".",
)
@click.option("-n", "--messages", type=int, default=DEFAULTS.messages, show_default=True, help="In all.")
@_count("--size", "size_bytes", DEFAULTS.size_bytes, "Of a body, bytes.")
@_count("--window", "window", DEFAULTS.window, "Unacknowledged per publisher; 1 for --mode rtt.")
@_count("--group", "group", DEFAULTS.group, "Frames in a send (closed loop).")
@_count("--prefetch", "prefetch", DEFAULTS.prefetch, "Unacknowledged per consumer.")
@_count("--publishers", "publishers", DEFAULTS.publishers, "Connections that publish.")
@_count("--consumers", "consumers", DEFAULTS.consumers, "Connections that consume.")
@_count("--queues", "queues", DEFAULTS.queues, "Messages go to each in turn (native).")
@click.option("--rate", type=float, default=DEFAULTS.rate, help="Messages/s of all publishers, scheduled: open loop.")
@click.option("--durability", default=DEFAULTS.durability, help="For CreateQueue (native).")
@click.option("--verify", is_flag=True, help="Check that each message comes once and in order, and each ack's id.")
@click.option("--keep", is_flag=True, help="Leave the queues, for a later --mode con.")
@click.option("--timeout", "timeout_s", type=float, default=DEFAULTS.timeout_s, show_default=True, help="s")
@click.option("--broker-pid", type=int, default=0, help="Also report the CPU of this process and its descendants.")
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
    type=click.Choice(list(SERVERS)),
    help="Started for this; repeatable. Default: all that are installed.",
)
@click.option(
    "--scenario",
    "scenarios",
    multiple=True,
    type=click.Choice([scenario.name for scenario in QUEUE_SCENARIOS]),
    help="Repeatable; default: all.",
)
@click.option("--baseline", help="Ratios are against this server. Default: nats, or the last one without it.")
@click.option("--rounds", type=click.IntRange(1), default=ROUNDS_DEFAULT_COUNT, show_default=True)
@click.option("--scale", type=click.FloatRange(0, min_open=True), default=1.0, show_default=True, help="Of messages.")
@click.option("--verify", is_flag=True, help="Check every message and every ack.")
@click.option("--warm-mb", type=click.IntRange(0), default=0, help="First touch this much memory; on fresh machines.")
@click.option("--folder", type=click.Path(path_type=Path), help="For the servers' data. Default: a temporary one.")
@click.option("--output", type=click.Path(path_type=Path), help="Writes OUTPUT.json and OUTPUT.md.")
def compare(
    names: tuple[str, ...],
    scenarios: tuple[str, ...],
    baseline: str | None,
    rounds: int,
    scale: float,
    verify: bool,
    warm_mb: int,
    folder: Path | None,
    output: Path | None,
) -> None:
    """Starts servers and measures them in alternation: medians, spread and ratios."""

    def tell(line: str) -> None:
        click.echo(line, err=True)

    with tempfile.TemporaryDirectory(dir=folder) as data:
        servers = installed(names or tuple(SERVERS), Path(data), tell)
        known = [server.name for server in servers]
        comparison = QueueComparison(
            servers,
            tuple(scenario for scenario in QUEUE_SCENARIOS if not scenarios or scenario.name in scenarios),
            baseline or ("nats" if "nats" in known else known[-1]),
            rounds,
            scale,
            verify,
        )
        warm_memory(warm_mb)
        report = comparison.run(tell)
    text = markdown(report)
    if output is not None:
        output.with_name(output.name + ".json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
        output.with_name(output.name + ".md").write_text(text, encoding="utf-8")
    click.echo(text, nl=False)
    if any(result["failed"] for scenario in report["scenarios"] for result in scenario["results"].values()):
        raise click.exceptions.Exit(1)
