# SPDX-License-Identifier: Apache-2.0
"""``vibemq backup`` and ``vibemq restore``: a data directory, copied while a broker serves from it, and back."""

import os
import shlex
import time

import click

from vibemq.cli.data import DataDir, data_options
from vibemq.errors import UserError

SHOWN_MAX = 20  # damaged chunks
folder = click.Path(file_okay=False)
copy_option = click.option(
    "--copy", "copies", is_flag=True, help="Copy all, where files that do not change any more would be linked."
)


@click.command()
@click.argument("target", type=folder)
@copy_option
@data_options
def backup(target: str, copies: bool, data: DataDir) -> None:
    """Copy the data directory to TARGET, a new folder, also while the broker runs.

    On one file system closed segments are linked and take no room; that does not outlive the disk, so copy TARGET on to
    another, or name a folder there.  Streams of durability remote are in the object store as well.

    Spark's sinks wait while the end of each log is looked up, and commit while the rest is copied; it takes the batches
    that were committed before.
    """
    from vibemq.server.backup import back_up

    metadata, began_s = data.open(), time.monotonic()
    try:
        about = back_up(metadata, data.path, os.path.abspath(target), links=not copies)
    finally:
        metadata.close()
    took_s = time.monotonic() - began_s
    click.echo(f"{about.streams} streams and queues, {about.size_bytes:,} bytes, in {took_s:.1f} s: {target}")


@click.command()
@click.argument("source", type=click.Path(exists=True, file_okay=False))
@copy_option
@click.option("--damaged", "takes_damaged", is_flag=True, help="Restore although some chunks are damaged.")
@data_options
def restore(source: str, copies: bool, takes_damaged: bool, data: DataDir) -> None:
    """Check a backup, and make the data directory, which must be new or empty, of it.

    Every chunk is read.  What is damaged is named, and with --damaged kept: readers are told where they meet it.

    The directory gets an identity of its own, so the broker's old bucket refuses it.  What is in the bucket is newer:
    to go on from there, start with an empty directory and the same [remote].
    """
    from vibemq.server import backup

    source = os.path.abspath(source)
    backup.read_about(source)
    found = 0
    for found, what in enumerate(backup.damage(source), 1):
        if found <= SHOWN_MAX:
            click.echo(what, err=True)
    if found and not takes_damaged:
        raise UserError(
            f"{found} segments of {source} are damaged; nothing is restored",
            hint=f"the rest of it is whole: `vibemq restore {shlex.quote(source)} --damaged --data-dir "
            f"{shlex.quote(os.path.abspath(data.path))}` restores that; another backup may have it all",
        )
    about = backup.restore(source, os.path.abspath(data.path), links=not copies)
    made = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(about.made_ms / 1000))
    click.echo(
        f"{about.streams} streams and queues as of {made}; `vibemq serve --data-dir {shlex.quote(data.path)}` goes on "
        "from there"
    )
