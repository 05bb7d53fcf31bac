# SPDX-License-Identifier: Apache-2.0
"""A demonstration that needs nothing prepared: a broker, this host's telemetry, and Spark reading and writing it.

    python examples/ingest/ingest.py

For streams of your own there is `vibemq ingest`. It needs "vibemq[spark-local]" and, for the plot, what stands in
requirements.txt.
"""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import click
from demo import broker
from job import Job, Progress, prepare, run
from report import Line, plot, show

from vibemq.errors import VibeMQError
from vibemq.spark import local_session

DEMO_SECONDS = 15.0
DEMO_MESSAGES = 220_000
DEMO_WORKERS = 2
MISMATCH_EXIT_CODE = 3


@click.command()
@click.option("--output", type=click.Path(path_type=Path), help="Folder for Parquet, checkpoints and plot.")
@click.option("--seconds", type=click.FloatRange(1), default=DEMO_SECONDS, show_default=True, help="Publish so long.")
@click.option("--messages", type=click.IntRange(0), default=DEMO_MESSAGES, show_default=True, help="And so many.")
@click.option("--lose-machine", is_flag=True, help="With a bucket in a folder: lose the broker and its data half-way.")
def ingest(output: Path | None, seconds: float, messages: int, lose_machine: bool) -> None:
    """Publish this host's telemetry into a broker of its own, let Spark read it, write it to Parquet, transform it and
    write that back, and check that each message is there exactly once, both ways."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(_ended_by_terminate())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="vibemq-ingest-")))
        served = stack.enter_context(broker(folder, DEMO_WORKERS, folder / "bucket" if lose_machine else None))
        doors = served.doors
        kept = (output or Path(tempfile.mkdtemp(prefix="vibemq-telemetry-"))).absolute()
        job = Job({"endpoints": doors.streams}, kept, seconds, messages, doors.native)
        if lose_machine:
            job = dataclasses.replace(job, lose_machine=served.lose_machine)
        clean = _run(folder, job)
    sys.exit(0 if clean else MISMATCH_EXIT_CODE)


def _run(folder: Path, job: Job) -> bool:
    """Do the job in a session of its own; whether what was found is what must be."""
    prepare(job)
    progress = Progress()
    with Line(progress) as line:
        line.tell("starting Spark")
        with _session(folder) as spark:
            outcome = run(job, spark, progress, line.tell)
            line.tell("plotting")
            picture = plot(job, spark, progress)
            line.tell("stopping")
    show(job, progress, outcome, picture)
    return not outcome.mismatches


@contextlib.contextmanager
def _session(folder: Path) -> Iterator:
    """A quiet Spark that is gone at the end; what it says lies in a file, shown only when it fails."""
    config = {
        "spark.local.dir": str(folder),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.sql.streaming.numRecentProgressUpdates": "100000",
    }
    spark = local_session("vibemq ingest", log_file=folder / "spark.log", config=config)
    try:
        yield spark
    finally:
        # First, or it may see Spark hang up on it and print that as an error.
        spark.sparkContext._accumulatorServer.shutdown()
        spark.stop()


@contextlib.contextmanager
def _ended_by_terminate() -> Iterator[None]:
    """Let SIGTERM unwind as Ctrl-C does, so that Spark and the broker are stopped."""

    def end(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


if __name__ == "__main__":
    try:
        ingest()
    except VibeMQError as failed:
        sys.exit(f"ingest: {failed}" + (f"\n  hint: {failed.hint}" if failed.hint else ""))
