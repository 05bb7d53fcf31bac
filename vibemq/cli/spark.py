# SPDX-License-Identifier: Apache-2.0
"""``vibemq ingest`` and ``vibemq spark-check``: jobs for a user's own streams, without code.

Both run in a Spark session of their own, on this machine unless ``--master`` says otherwise.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vibemq.cli import EXIT_INTERRUPTED, EXIT_TERMINATED
from vibemq.cli.connection import StreamsBroker, streams_options
from vibemq.cli.following import follow
from vibemq.cli.terminal import named_values, print_table
from vibemq.errors import SetupError, UserError, VibeMQError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: The variable in which Spark's workers on this machine find the password: options show up in plans and checkpoints.
PASSWORD_VARIABLE = "VIBEMQ_SPARK_PASSWORD"
INFER = "infer"
LOG_END_BYTES = 65_536  # of Spark's log, where it says why it has not started
UNRESOLVED = re.compile(r"(?:unresolved dependency|download failed): ([^#\s]+)#([^;\s]+);([^:!\s]+)")


# ---- what both share ----


def _source_options(broker: StreamsBroker) -> dict[str, str]:
    """Where the broker is and who comes, as options of format("vibemq"); the password goes by the environment."""
    where = broker.address()
    if where.tls and where.skip_cert_validation:
        raise click.UsageError("skipCertValidation: Spark checks the broker's certificate: add --ca-file")
    os.environ[PASSWORD_VARIABLE] = where.password or ""
    options = {
        "endpoints": where.peer,
        "username": where.user or "",
        "passwordEnv": PASSWORD_VARIABLE,
        "vhost": where.virtual_host,
    }
    if where.tls:
        files = {
            "tlsCa": broker.ca_file or where.tls_ca,
            "tlsCert": broker.certificate or where.tls_cert,
            "tlsKey": broker.key or ("" if broker.certificate else where.tls_key),
        }
        options |= {"tls": "true", **{name: os.path.abspath(file) for name, file in files.items() if file}}
    return options


def _with(options: dict[str, str], more: dict[str, str]) -> dict[str, str]:
    """What is given by name wins, also another way to log in: executors elsewhere have not our environment."""
    if {"password", "passwordfile", "tokenprovider", "login"} & {name.lower() for name in more}:
        options = {name: value for name, value in options.items() if name != "passwordEnv"}
    return options | more


@contextlib.contextmanager
def _session(name: str, master: str, config: dict[str, str], packages: tuple[str, ...]) -> Iterator[SparkSession]:
    """A Spark that is gone at the end; what it logs lies in a file, which stays when Spark itself fails.

    What its exceptions wrap of ours is raised as an error of ours.
    """
    from vibemq.spark import failures, local_session

    folder = tempfile.mkdtemp(prefix="vibemq-spark-")
    log_file = Path(folder, "spark.log")
    click.echo(f"vibemq: until this ends, Spark's log is {log_file}", err=True)
    settings = {"spark.local.dir": folder, "spark.sql.warehouse.dir": f"{folder}/warehouse"}
    if packages:
        settings["spark.jars.packages"] = ",".join(packages)
    try:
        spark = local_session(name, master=master, log_file=log_file, config=settings | config)
        try:
            yield spark
        finally:
            spark.stop()
    except (UserError, click.ClickException, SystemExit):
        _remove(folder)
        raise
    except Exception as failed:
        if missing := [":".join(names) for names in UNRESOLVED.findall(_end_of(log_file))]:
            raise SetupError(
                f"Spark cannot fetch {missing[0]}; where it looked is in {log_file}",
                hint="Look at Maven Central which name and version there are for this Spark. Where Spark is to look "
                "elsewhere, --spark-config spark.jars.ivySettings=FILE says so.",
            ) from failed
        if not failures.is_of_spark(failed):
            click.echo(f"vibemq: what Spark said is in {log_file}", err=True)
            raise
        if problem := failures.ours(failed):
            _remove(folder)
            raise problem from failed
        with log_file.open("a", encoding="utf-8") as file:
            traceback.print_exception(failed, file=file)
        raise VibeMQError(
            f"Spark failed: {failures.last_line(failed)}", hint=f"All that it said is in {log_file}"
        ) from failed
    _remove(folder)


def _end_of(log_file: Path) -> str:
    if not log_file.exists():  # it was not even started
        return ""
    with log_file.open("rb") as file:
        file.seek(max(0, log_file.stat().st_size - LOG_END_BYTES))
        return file.read().decode(errors="replace")


def _remove(folder: str) -> None:
    shutil.rmtree(folder, ignore_errors=True)  # what is left of a folder for temporary files harms nobody


_MASTER = click.option("--master", default="local[*]", show_default=True, help="Spark's master; a cluster has its own.")
_NAMED: dict[str, Any] = {"multiple": True, "metavar": "NAME=VALUE", "callback": named_values}
_CONFIG = click.option("--spark-config", "config", **_NAMED, help="Of Spark; repeatable.")
_PACKAGE = click.option("--package", "packages", multiple=True, metavar="GROUP:NAME:VERSION", help="For its classpath.")
_OPTION = click.option("--option", "more", **_NAMED, help="Of the source; repeatable.")


# ---- ingest ----


@click.command("ingest")
@click.argument("streams", nargs=-1, metavar="[STREAM]...")
@click.option("--super-stream", metavar="NAME", help="All partitions of a super stream, instead of streams.")
@click.option("--output", required=True, metavar="PATH", help="The folder to write to; with --format iceberg a table.")
@click.option("--format", "form", type=click.Choice(["parquet", "delta", "iceberg"]), default="parquet")
@click.option(
    "--schema", metavar="DDL", help="Make columns of JSON's fields, as in 'id BIGINT, name STRING', or 'infer' them."
)
@click.option("--partition-by", multiple=True, metavar="COLUMN", help="A folder for each value; repeatable.")
@click.option("--checkpoint", metavar="PATH", help="Where the query remembers how far it is [OUTPUT.checkpoint].")
@click.option("--trigger", metavar="TIME", help="A batch this often, as in '10 seconds'; else as soon as there is any.")
@click.option("--available-now", is_flag=True, help="Read what is there now, then end.")
@click.option("--starting-offsets", default="earliest", show_default=True, help="Where a new checkpoint begins.")
@click.option("--metrics-port", type=click.IntRange(0, 65_535), help="Serve /metrics for Prometheus, on loopback.")
@_OPTION
@_PACKAGE
@_CONFIG
@_MASTER
@streams_options
def ingest(
    streams: tuple[str, ...], super_stream: str | None, output: str, form: str, schema: str | None,
    partition_by: tuple[str, ...], checkpoint: str | None, trigger: str | None, available_now: bool,
    starting_offsets: str, metrics_port: int | None, more: dict[str, str], packages: tuple[str, ...],
    config: dict[str, str], master: str, as_json: bool, broker: StreamsBroker,
) -> None:  # fmt: skip
    """Write streams into Parquet, Delta or Iceberg with Spark, each message once, and go on after a restart.

    \b
    vibemq ingest orders clicks --output lake/events --partition-by stream
    vibemq ingest orders --schema infer --partition-by country --output lake/orders --available-now
    """
    from vibemq.spark.session import require_pyspark

    require_pyspark()
    from vibemq.spark.columns import spark_schema
    from vibemq.spark.ingest import Ingest, start
    from vibemq.spark.options import parse

    if bool(streams) == bool(super_stream):
        raise click.UsageError("name streams, or one --super-stream")
    if trigger and available_now:
        raise click.UsageError("--trigger and --available-now exclude each other")
    options = _source_options(broker) | {"startingOffsets": starting_offsets}
    names = ",".join(name.replace("\\", "\\\\").replace(",", "\\,") for name in streams)
    options |= {"superStream": super_stream} if super_stream else {"subscribe": names}
    options = _with(options, more)
    checkpoint = checkpoint or f"{output.rstrip('/')}.checkpoint"
    if schema:
        found = _inferred(options, checkpoint) if schema == INFER else schema
        options |= {"valueFormat": "json", "valueSchema": found}
    spark_schema(parse(options).for_stream())  # what is wrong with them is told before Spark is started
    with _session("vibemq ingest", master, config, packages) as spark:
        job = Ingest(
            options,
            output,
            checkpoint,
            form,
            partition_by,
            {"availableNow": True} if available_now else {"processingTime": trigger} if trigger else {},
        )
        heard = follow(start(job, spark), metrics_port, as_json, checkpoint)
    if heard == signal.SIGINT:
        sys.exit(EXIT_INTERRUPTED)
    if heard == signal.SIGTERM and available_now:  # not all of it is read; else that is how a service ends
        sys.exit(EXIT_TERMINATED)


def _inferred(options: dict[str, str], checkpoint: str) -> str:
    """As it was found the first time: what was written so far has these columns."""
    from vibemq.spark import infer_schema

    if "://" in checkpoint:
        raise click.UsageError("--schema infer needs a checkpoint in a folder of this machine: list the fields instead")
    kept = Path(f"{checkpoint.rstrip('/')}.schema")
    if kept.exists():
        return kept.read_text(encoding="utf-8")
    seen: dict[str, Any] = {**options, "startingOffsets": "earliest"}
    schema = infer_schema(**seen)
    click.echo(f"vibemq: fields as found, and kept in {kept}: {schema.simpleString()}", err=True)
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(schema.json(), encoding="utf-8")
    except OSError as problem:
        raise SetupError(
            f"{kept} cannot be written: {problem.strerror}", hint="--checkpoint says where else."
        ) from problem
    return schema.json()


# ---- spark-check ----


@click.command("spark-check")
@click.option("--stream", metavar="NAME", help="Read this one, too.")
@click.option("--read-only", is_flag=True, help="Make no stream to try writing with.")
@_OPTION
@_CONFIG
@_MASTER
@streams_options
def spark_check(
    stream: str | None, read_only: bool, more: dict[str, str], config: dict[str, str], master: str, as_json: bool,
    broker: StreamsBroker,
) -> None:  # fmt: skip
    """Try what Spark needs of this machine, its executors and the broker, and print what works and what does not."""
    from vibemq.spark.check import Finding, environment, in_session

    found: list[Finding] = []
    shown: Callable[[Finding], None] = found.append
    options = _with(_source_options(broker), more)
    if environment(shown):
        with _session("vibemq spark-check", master, config, ()) as spark:
            in_session(spark, options, stream, not read_only, shown)
    if as_json:
        click.echo(json.dumps([each._asdict() for each in found]))
    else:
        print_table(("", "check", "what was found"), [(each.mark, each.check, each.text) for each in found])
    if any(each.works is False for each in found):
        sys.exit(1)
