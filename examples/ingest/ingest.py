# SPDX-License-Identifier: Apache-2.0
"""Streams into Parquet with Spark on this machine; with `--demo` it needs nothing prepared.

    python examples/ingest/ingest.py --demo
    python examples/ingest/ingest.py --endpoints localhost:5552 --stream orders --output orders-parquet

It needs "vibemq[spark-local]" and, for the plot, what stands in requirements.txt.
"""

from __future__ import annotations

import contextlib
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

from vibemq.errors import SetupError, VibeMQError
from vibemq.spark import local_session

DEMO_SECONDS = 15.0
DEMO_MESSAGES = 220_000
DEMO_WORKERS = 2
MISMATCH_EXIT_CODE = 3


@click.command()
@click.option(
    "--demo", is_flag=True, help="Start a broker of its own and ingest this host's telemetry, through two doors."
)
@click.option("--endpoints", metavar="HOST:PORT,…", help="The streams doors of your brokers.")
@click.option(
    "--stream", "streams", multiple=True, metavar="NAME", help="A stream to read; may be given several times."
)
@click.option("--output", type=click.Path(path_type=Path), help="Folder for Parquet, checkpoint and plot.")
@click.option("--seconds", type=click.FloatRange(0), help="Follow the streams so long; 0: until their end now.")
@click.option("--sample", is_flag=True, help="Publish this host's telemetry into the stream meanwhile.")
@click.option("--messages", type=click.IntRange(0), help="Sample at the pace that gives at least so many messages.")
@click.option("--partition-by", default="", metavar="FIELD", help="Partition by this field of JSON messages.")
@click.option("--starting-offsets", default="earliest", show_default=True, help="Where a new checkpoint begins.")
@click.option("--username", default="guest", show_default=True)
@click.option("--password-env", metavar="NAME", help="The environment variable that holds the password.")
@click.option("--password-file", metavar="FILE", help="The file that holds the password.")
@click.option("--vhost", default="/", show_default=True)
@click.option(
    "--no-data-loss-check", is_flag=True, help="Go on where retention has removed records (failOnDataLoss=false)."
)
def ingest(
    demo: bool,
    endpoints: str | None,
    streams: tuple[str, ...],
    output: Path | None,
    seconds: float | None,
    sample: bool,
    messages: int | None,
    partition_by: str,
    starting_offsets: str,
    username: str,
    password_env: str | None,
    password_file: str | None,
    vhost: str,
    no_data_loss_check: bool,
) -> None:
    """Read streams into Parquet with Spark, check the result, and plot it.

    \b
    ingest.py --demo
    ingest.py --endpoints localhost:5552 --stream orders --output orders-parquet
    """
    if demo and (endpoints or streams):
        raise click.UsageError("--demo starts a broker of its own: leave --endpoints and --stream out")
    if not demo and not (endpoints and streams and output):
        raise click.UsageError("give --endpoints, --stream and --output, or --demo")
    if sample and len(streams) > 1:
        raise click.UsageError("--sample publishes into one stream")
    if "'" in partition_by:
        raise click.UsageError("--partition-by takes the name of a field, without quotes")
    options = {"username": username, "vhost": vhost, "startingOffsets": starting_offsets}
    if password_env:
        options["passwordEnv"] = password_env
    if password_file:
        options["passwordFile"] = password_file
    if no_data_loss_check:
        options["failOnDataLoss"] = "false"
    sampling = demo or sample
    with contextlib.ExitStack() as stack:
        stack.enter_context(_ended_by_terminate())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="vibemq-ingest-")))
        native = ""
        if demo:
            endpoints, native = stack.enter_context(broker(folder, DEMO_WORKERS))
            streams = ("telemetry",)
        assert endpoints is not None
        clean = _run(
            folder,
            {**options, "endpoints": endpoints},
            streams,
            output or Path(tempfile.mkdtemp(prefix="vibemq-telemetry-")),
            seconds if seconds is not None else (DEMO_SECONDS if sampling else 0.0),
            sampling,
            messages if messages is not None else (DEMO_MESSAGES if demo else 0),
            partition_by,
            native,
        )
    sys.exit(0 if clean else MISMATCH_EXIT_CODE)


def _run(
    folder: Path,
    options: dict[str, str],
    streams: tuple[str, ...],
    output: Path,
    seconds: float,
    sample: bool,
    messages: int,
    partition_by: str,
    native: str,
) -> bool:
    """Do the job in a session of its own; whether what was found is what must be."""
    if sample and not seconds:
        raise SetupError("--sample needs a time", hint="for example --seconds 15")
    job = Job(options, streams, output.absolute(), seconds, sample, messages, partition_by, native)
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
