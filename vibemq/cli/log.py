# SPDX-License-Identifier: Apache-2.0
"""``vibemq log``: the files of streams and queues."""

import contextlib
import json
import os
import re
from functools import partial

import click

from vibemq.cli.data import DataDir, json_data_options
from vibemq.cli.groups import Commands
from vibemq.errors import StorageError, UserError
from vibemq.storage.transactions import STAGING

DAMAGE_SHOWN_MAX = 1000  # lines of one segment; a disk that lost more has lost the file
DAMAGE = re.compile(r"\s*([0-9]+: )?DAMAGED ?")  # as csrc/log/dump.c writes it; the names of peers are in quotes


@click.group(cls=Commands)
def log() -> None:
    """Find and look into the files of streams and queues."""


@log.command("list")
@json_data_options
def log_list(as_json: bool, data: DataDir) -> None:
    """Show which directory has the log of which stream or queue, also while the broker runs.

    Sizes are those of the segments, with all that retention has not yet removed.
    """
    found = []
    for record in data.open().logs():
        segments, size = _segments(record.directory)
        about = {"name": record.name, "vhost": record.vhost, "kind": "stream" if record.queue is None else "queue"}
        if record.vhost == STAGING:  # what a transaction has staged so far
            about = {"name": record.name, "vhost": record.arguments["vhost"], "kind": "staged"}
        found.append({**about, "segments": segments, "bytes": size, "directory": record.directory})
    if as_json:
        click.echo(json.dumps(found))
        return
    if not found:
        click.echo("there are no streams and no queues")
    for each in sorted(found, key=lambda each: str(each["name"])):
        # The path last and never broken, so that it can be copied.
        click.echo(f"{each['kind']:<6}  {each['bytes']:>15,} bytes  {each['name']:<24}  {each['directory']}")


def _segments(directory: str) -> tuple[int, int]:
    """How many segments are in a log's directory, and their bytes; what goes meanwhile is not counted."""
    count = size = 0
    with contextlib.suppress(FileNotFoundError), os.scandir(directory) as files:
        for file in files:
            if file.name.endswith(".segment"):
                with contextlib.suppress(FileNotFoundError):
                    size += file.stat().st_size
                    count += 1
    return count, size


@log.command("dump")
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@click.option("--entries", is_flag=True, help="Show each entry of each chunk, too.")
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    default=0,
    metavar="N",
    help="Stop after N chunks, records or ledger entries.",
)
def log_dump(file: str, entries: bool, limit: int) -> None:
    """Print a segment, index, tracking, control, stub or ledger file; `vibemq log list` says where they lie."""
    from vibemq.storage import log

    log.dump(file, entries, limit, click.echo)


@log.command("verify")
@click.argument("directory", type=click.Path(exists=True, file_okay=False))
def log_verify(directory: str) -> None:
    """Check every chunk of the log in DIRECTORY against its checksum.

    Each damage is a line with the byte of the file: the exact one where one bit has flipped, else the first.
    """
    from vibemq.storage import log

    names = sorted(name for name in os.listdir(directory) if name.endswith(".segment"))
    if not names:
        raise UserError(f"{directory} holds no segment", hint="a stream's log is a folder below DATA/streams")
    damaged = 0
    for name in names:
        found: list[str] = []
        try:
            log.dump(os.path.join(directory, name), False, 0, partial(_keep_damage, found))
            click.echo(f"{name}: intact")
        except StorageError as problem:
            damaged += 1
            click.echo(f"{name}: {problem}")
            for line in found:
                click.echo(f"{name}: {line}")
    if damaged:
        raise UserError(f"{damaged} of {len(names)} segments are damaged")


def _keep_damage(found: list[str], line: str) -> None:
    if DAMAGE.match(line) and len(found) < DAMAGE_SHOWN_MAX:
        found.append(line.strip())
