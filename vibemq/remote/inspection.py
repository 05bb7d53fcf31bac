# SPDX-License-Identifier: Apache-2.0
"""What lies in a bucket, for people: read by its names, with the metadata in a temporary database; no broker is needed.

A broker may be at work meanwhile, so whoever compares takes the listing first and the metadata second: a stream is in
the metadata before it has objects, and one that is listed and not in there any more is gone for good.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlparse

from vibemq.config import Remote
from vibemq.errors import RemoteError, UserError, VibeMQError
from vibemq.remote.bucket import Bucket, Listed
from vibemq.remote.epochs import seals_among
from vibemq.remote.objects import FORMAT_KEY, ON_THEIR_WAY_MAX, PROBE_PREFIX, Kind, Place, from_json, read_place
from vibemq.remote.opening import catch_up, fences_among, newest_snapshot, restore_metadata
from vibemq.remote.stubs import history
from vibemq.storage.metadata import Metadata
from vibemq.storage.records import StreamRecord
from vibemq.storage.transactions import STAGING

_NAMES: tuple[tuple[re.Pattern[str], Kind], ...] = (
    (re.compile(r"meta/(\d{16})"), Kind.CHANGE),
    (re.compile(r"meta/snapshot-(\d{16})"), Kind.SNAPSHOT),
    (re.compile(r"brokers/([A-Za-z0-9_-]+)/(\d{8})(\.sealed)?"), Kind.EPOCH),
    (re.compile(r"retired/([A-Za-z0-9_-]+)/(\d{8})-[0-9a-f]{16}"), Kind.RETIRED),
    (re.compile(r"wal/([A-Za-z0-9_-]+)/(\d{8})/(\d{16})"), Kind.WRITE_AHEAD),
)
OF_SUFFIX = {"segment": Kind.SEGMENT, "index": Kind.INDEX, "tracking": Kind.TRACKING}


@dataclass
class Contents:
    """All objects, by what their names say."""

    all: list[tuple[Listed, Kind]] = field(default_factory=list)
    format: Listed | None = None
    changes: dict[int, Listed] = field(default_factory=dict)
    snapshots: dict[int, Listed] = field(default_factory=dict)
    epochs: dict[str, dict[int, Listed]] = field(default_factory=dict)  # by broker
    sealed: dict[str, int] = field(default_factory=dict)  # by broker: all epochs before this one are
    write_ahead: dict[str, dict[int, dict[int, Listed]]] = field(default_factory=dict)  # by broker, epoch, number
    places: dict[str, dict[Place, dict[str, Listed]]] = field(default_factory=dict)  # by incarnation; by suffix
    #: Fences and seals of earlier epochs, which stay for ever, by their keys; `read_marks` finds them.
    marks: set[str] = field(default_factory=set)
    #: Write-ahead objects of earlier epochs behind one that was never created.
    unconfirmed: set[str] = field(default_factory=set)
    probes: list[Listed] = field(default_factory=list)  # of starts that run, or were killed
    strange: list[Listed] = field(default_factory=list)  # of no name that is ours

    def add(self, found: Listed) -> None:
        if found.key.startswith(PROBE_PREFIX):
            self.probes.append(found)
            return
        kind = self._place(found)
        if kind is None:
            self.strange.append(found)
        else:
            self.all.append((found, kind))

    def _place(self, found: Listed) -> Kind | None:
        if (named := read_place(found.key)) is not None:
            place, suffix = named
            self.places.setdefault(place.incarnation, {}).setdefault(place, {})[suffix] = found
            return OF_SUFFIX[suffix]
        if found.key == FORMAT_KEY:
            self.format = found
            return Kind.FORMAT
        for pattern, kind in _NAMES:
            if (match := pattern.fullmatch(found.key)) is None:
                continue
            if kind is Kind.EPOCH:
                name, epoch = match[1], int(match[2])
                if match[3]:
                    self.sealed[name] = max(epoch, self.sealed.get(name, 0))
                else:
                    self.epochs.setdefault(name, {})[epoch] = found
            elif kind is Kind.RETIRED:
                pass  # the start that takes the next epoch reads it
            elif kind is Kind.WRITE_AHEAD:
                self.write_ahead.setdefault(match[1], {}).setdefault(int(match[2]), {})[int(match[3])] = found
            else:
                (self.changes if kind is Kind.CHANGE else self.snapshots)[int(match[1])] = found
            return kind
        return None

    def segments(self, incarnation: str) -> dict[Place, Listed]:
        """Those that are whole by their names."""
        of_one = self.places.get(incarnation, {})
        return {place: objects["segment"] for place, objects in of_one.items() if "segment" in objects}


def open_to_look(config: Remote) -> Bucket:
    """Makes nothing where there is nothing.  Raises UserError, ConfigError, SetupError."""
    if not config.url:
        raise UserError(
            "there is no object store: remote.url is empty",
            hint="--url, --config or VIBEMQ_REMOTE_URL says where one is",
        )
    if config.url.startswith("file:"):
        folder = unquote(urlparse(config.url).path)
        if not os.path.isdir(folder):
            raise UserError(f"there is no folder {folder}", hint="is remote.url the right one?")
    return Bucket(config)


async def contents_of(bucket: Bucket, prefix: str = "") -> Contents:
    found = Contents()
    for one in await bucket.listed(prefix):
        found.add(one)
    return found


async def read_marks(bucket: Bucket, contents: Contents) -> None:
    """Fill ``contents.marks`` by reading the objects that are small enough.  Raises RemoteError."""
    oldest = min(contents.snapshots, default=0)
    old = [one for number, one in contents.changes.items() if number <= oldest]
    contents.marks |= await fences_among(bucket, old)
    for name, epochs in contents.write_ahead.items():
        for epoch, objects in epochs.items():
            if epoch < contents.sealed.get(name, 0):
                seals = await seals_among(bucket, list(objects.values()))
                contents.marks |= seals
                contents.unconfirmed |= _behind_a_gap([one.key for _, one in sorted(objects.items())], seals)


def _behind_a_gap(keys: list[str], seals: set[str]) -> set[str]:
    """Return the objects of an epoch that cannot have been confirmed.

    A gap before the first object is none, because brokers delete from the front. Behind another gap at most as many
    objects as a broker puts at a time were not confirmed. More are there if what was in the gap was deleted.
    """
    first = next((at for at, key in enumerate(keys) if key not in seals), len(keys))
    gap = next((at for at in range(first, len(keys)) if keys[at] in seals), len(keys))
    behind = set(keys[gap:]) - seals
    return behind if len(behind) <= ON_THEIR_WAY_MAX else set()


@contextlib.asynccontextmanager
async def metadata_of(bucket: Bucket) -> AsyncIterator[Metadata]:
    """As a broker that restores has it.  Raises RemoteError, StorageError; the copy here is gone afterwards."""
    newest = await newest_snapshot(bucket)
    if newest is None:
        raise RemoteError(
            f"there is no metadata in {bucket.url}: no object begins with meta/snapshot-",
            hint="is remote.url the right one, down to its prefix?",
        )
    with tempfile.TemporaryDirectory(prefix="vibemq-remote-") as folder:  # for this account's eyes only
        path = os.path.join(folder, "meta.db")
        await restore_metadata(bucket, newest, path)
        metadata = Metadata(path)
        try:
            if metadata.binding() is None:
                raise RemoteError(f"object meta/snapshot-{newest:016} is the database of no bucket")
            await catch_up(bucket, metadata)
            yield metadata
        finally:
            metadata.close()


async def records_of(bucket: Bucket) -> dict[str, StreamRecord]:
    """All that has a log, by its incarnation; with what transactions stage."""
    async with metadata_of(bucket) as metadata:
        return {record.incarnation: record for record in metadata.logs()}


# ---- vibemq remote list ----


async def described(bucket: Bucket) -> dict[str, Any]:
    """What the bucket has, as JSON.  ``problem`` says why streams have no names, where they have none."""
    contents = await contents_of(bucket)
    problem, records = "", {}
    try:
        records = await records_of(bucket)
    except VibeMQError as met:
        problem = str(met)
    return {
        "url": bucket.url,
        "cluster": await _cluster(bucket, contents),
        "objects": len(contents.all) + len(contents.strange),
        "bytes": sum(one.size for one, _ in contents.all) + sum(one.size for one in contents.strange),
        "brokers": [await _broker(bucket, contents, name) for name in sorted(contents.epochs)],
        "metadata": {
            "snapshots": sorted(contents.snapshots),
            "changes": len(contents.changes),
            "last_change": max([*contents.changes, *contents.snapshots], default=None),
        },
        "problem": problem,
        "streams": [_stream(contents, one, records.get(one)) for one in _in_order(contents, records)],
        "write_ahead": [
            {
                "broker": name,
                "epoch": epoch,
                "objects": len(objects),
                "bytes": sum(one.size for one in objects.values()),
                "first": min(objects),
                "last": max(objects),
            }
            for name, epochs in sorted(contents.write_ahead.items())
            for epoch, objects in sorted(epochs.items())
        ],
        "strange_objects": len(contents.strange),
    }


async def _cluster(bucket: Bucket, contents: Contents) -> str | None:
    if contents.format is None:
        return None
    with contextlib.suppress(RemoteError):  # `verify` says what is wrong with it
        return str(from_json(FORMAT_KEY, await bucket.read(FORMAT_KEY, Kind.FORMAT)).get("cluster"))
    return None


async def _broker(bucket: Bucket, contents: Contents, name: str) -> dict[str, Any]:
    epochs = []
    for epoch, found in sorted(contents.epochs[name].items()):
        said: dict[str, Any] = {}
        with contextlib.suppress(RemoteError):
            said = from_json(found.key, await bucket.read(found.key, Kind.EPOCH))
        epochs.append({"epoch": epoch, "started_ms": said.get("started_ms"), "host": said.get("host")})
    return {
        "name": name,
        "epoch": max(contents.epochs[name]),
        "sealed_before": contents.sealed.get(name),
        "epochs": epochs,
    }


def _in_order(contents: Contents, records: dict[str, StreamRecord]) -> list[str]:
    """Incarnations: streams by their names, and those that are none any more last."""
    shown = {one for one, record in records.items() if record.vhost != STAGING}
    named = sorted(shown, key=lambda one: (records[one].vhost, records[one].name))
    return [*named, *sorted(contents.places.keys() - records.keys())]


def _stream(contents: Contents, incarnation: str, record: StreamRecord | None) -> dict[str, Any]:
    segments = contents.segments(incarnation)
    kept = history(segments)
    return {
        "vhost": record and record.vhost,
        "name": record and record.name,
        "kind": "unknown" if record is None else "stream" if record.queue is None else "queue",
        "durability": record and record.durability,
        "incarnation": incarnation,
        "segments": len(kept),
        "first_offset": kept[0].first if kept else None,
        "next_offset": kept[-1].next if kept else None,
        "bytes": sum(
            found.size for objects in contents.places.get(incarnation, {}).values() for found in objects.values()
        ),
        "newest_ms": kept[-1].newest_ms if kept else None,
    }
