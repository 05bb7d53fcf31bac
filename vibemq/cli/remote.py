# SPDX-License-Identifier: Apache-2.0
"""``vibemq remote``: inspects, cleans and tests an object store; it needs the configuration and no broker."""

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from vibemq.cli.data import config_option, settings_option, settings_overrides
from vibemq.cli.groups import Commands
from vibemq.cli.terminal import json_option, options_as, print_table, progress_bar
from vibemq.errors import UserError

if TYPE_CHECKING:
    from vibemq.remote.bucket import Bucket


def _store(config_path: str | None, settings: tuple[str, ...], url: str | None) -> Callable[[], "Bucket"]:
    """Opened within an event loop."""

    def opened() -> "Bucket":
        from vibemq.config import load
        from vibemq.remote.inspection import open_to_look

        overrides = settings_overrides(settings)
        if url is not None:
            overrides["remote", "url"] = (url, "--url")
        return open_to_look(load(config_path, overrides=overrides).remote)

    return opened


_store_options = options_as(
    "store",
    _store,
    config_option,
    settings_option,
    click.option("--url", metavar="URL", help="The bucket: short for --set remote.url=URL."),
)


@click.group(cls=Commands)
def remote() -> None:
    """List, verify and prune the objects of a store, or test a store."""


@remote.command("list")
@json_option
@_store_options
def remote_list(as_json: bool, store: Callable[[], "Bucket"]) -> None:
    """Show brokers, streams and what is on its way into segments, also while a broker runs."""
    from vibemq.remote.inspection import described

    async def look() -> dict[str, Any]:
        return await described(store())

    found = asyncio.run(look())
    if as_json:
        click.echo(json.dumps(found))
        return
    click.echo(f"{found['url']}: cluster {found['cluster']}, {found['objects']} objects, {found['bytes']:,} bytes")
    _table(
        ("broker", "epoch", "started", "host"),
        [
            (broker["name"], epoch["epoch"], _time(epoch["started_ms"]), epoch["host"])
            for broker in found["brokers"]
            for epoch in broker["epochs"]
        ],
    )
    _table(
        ("vhost", "stream", "kind", "durability", "segments", "first", "next", "bytes", "newest"),
        [
            (one["vhost"], one["name"] or one["incarnation"], one["kind"], one["durability"], one["segments"],
             one["first_offset"], one["next_offset"], f"{one['bytes']:,}", _time(one["newest_ms"]))
            for one in found["streams"]
        ],
    )  # fmt: skip
    _table(
        ("write-ahead of", "epoch", "objects", "bytes", "first", "last"),
        [
            (one["broker"], one["epoch"], one["objects"], f"{one['bytes']:,}", one["first"], one["last"])
            for one in found["write_ahead"]
        ],
    )
    meta = found["metadata"]
    click.echo(f"metadata: change {meta['last_change']}, snapshots {', '.join(map(str, meta['snapshots'])) or 'none'}")
    if found["strange_objects"]:
        click.echo(f"{found['strange_objects']} objects have names that are none of VibeMQ's")
    if found["problem"]:
        raise UserError(f"the metadata cannot be read, so streams have no names here: {found['problem']}")


@remote.command("verify")
@click.option("--quick", "is_quick", is_flag=True, help="Names, sizes and trailers only: nothing large is read.")
@_store_options
def remote_verify(is_quick: bool, store: Callable[[], "Bucket"]) -> None:
    """Check every object, and that none is missing; reads all of the bucket, also while a broker runs.

    Each problem is a line: which object, what is wrong, what that means for whom, what to do. Fails where there is one.
    """
    from vibemq.remote.verifying import summary, verify

    with progress_bar("verifying objects") as progress:
        verdict = asyncio.run(_within(store, lambda bucket: verify(bucket, is_quick, progress)))
    for finding in verdict.findings:
        click.echo(("" if finding.is_problem else "note: ") + finding.line())
    click.echo(summary(verdict, is_quick))
    if verdict.problems:
        raise click.exceptions.Exit(1)


@remote.command("prune")
@click.option("--yes", "is_sure", is_flag=True, help="Delete it; without this it is only shown.")
@_store_options
def remote_prune(is_sure: bool, store: Callable[[], "Bucket"]) -> None:
    """Show, or delete, what nothing refers to: objects of deleted streams, files without a segment, old changes."""
    from vibemq.remote import pruning

    async def prune(bucket: "Bucket") -> pruning.Superfluous:
        found = await pruning.superfluous(bucket)
        if is_sure:
            with progress_bar("deleting objects", len(found.keys)) as progress:
                await pruning.delete(bucket, found.keys, progress)
        return found

    found = asyncio.run(_within(store, prune))
    for why, objects in found.goes.items():
        click.echo(f"{'deleted' if is_sure else 'would delete'}: {_sum(objects)}: {why}")
    for why, objects in found.stays.items():
        click.echo(f"left: {_sum(objects)}: {why}")
    if not found.goes:
        click.echo("nothing is superfluous")
    elif not is_sure:
        click.echo("nothing was deleted: --yes does it")


@remote.command("check")
@click.argument("address", metavar="[URL]", required=False)
@json_option
@config_option
@settings_option
def remote_check(address: str | None, as_json: bool, config_path: str | None, settings: tuple[str, ...]) -> None:
    """Test each property that VibeMQ needs of an object store, with objects below probe/ that are deleted again.

    Writes 17 MB. Fails if the store lacks one of them: do not use it then. URL is short for --set
    remote.url=URL; options and credentials are those of the broker.
    """
    from vibemq.remote.probing import check_store

    results = asyncio.run(_within(_store(config_path, settings, address), check_store))
    if as_json:
        found = [{"check": one.check, "passed": one.is_passed, "detail": one.detail} for one in results]
        click.echo(json.dumps(found))
    else:
        rows = [(one.check, "pass" if one.is_passed else "FAIL", one.detail) for one in results]
        _table(("check", "result", "detail"), rows)
    if not all(one.is_passed for one in results):
        raise click.exceptions.Exit(1)


async def _within(store: Callable[[], "Bucket"], work: Callable[["Bucket"], Any]) -> Any:
    return await work(store())


def _sum(objects: Sequence[Any]) -> str:
    return f"{len(objects)} objects, {sum(one.size for one in objects):,} bytes"


def _time(ms: int | None) -> str | None:
    """UTC, as the store's times are."""
    return None if ms is None else time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(ms / 1000))


def _table(columns: tuple[str, ...], rows: Sequence[Sequence[object]]) -> None:
    if rows:
        print_table(columns, [["" if cell is None else str(cell) for cell in row] for row in rows])
