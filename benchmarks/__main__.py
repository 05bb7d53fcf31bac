# SPDX-License-Identifier: Apache-2.0
"""`python -m benchmarks`: VibeMQ beside others, what its parts cost, and how large it becomes."""

from __future__ import annotations

import click

from benchmarks import features, micromsg2, queues, queues_scale, remote, scale, signalr, start, streams
from benchmarks.peers import PEERS, run
from benchmarks.spark.pipeline import spark
from vibemq.bench.cli import one_run
from vibemq.bench.queues import QueueLoad
from vibemq.cli.commands import Group


@click.group(cls=Group)
def main() -> None:
    """VibeMQ beside others, what its parts cost, and how large it becomes."""


@main.command(name="run")
@one_run(QueueLoad, as_json=True, run=run, protocols=[name for name in PEERS if name != "streams"])
def one() -> None:
    """One run against one server that is there, of any protocol but streams (`vibemq bench`)."""


for command in (
    streams.streams,
    streams.targets,
    queues.queues,
    signalr.signalr,
    signalr.signalr_idle,
    micromsg2.micromsg2,
    features.features,
    scale.scale,
    start.start,
    queues_scale.queues_scale,
    remote.remote_command,
    spark,
):
    main.add_command(command)

if __name__ == "__main__":
    main()
