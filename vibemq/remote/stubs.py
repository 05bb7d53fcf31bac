# SPDX-License-Identifier: Apache-2.0
"""What stands in a log's directory for segments of the store, and what the bucket says of it.

A stub that was damaged says nothing, and its segment may be nowhere but in the store: then the bucket's listing says
what it did. Where that does not know the segment either, the stub is put aside, and nothing of that log is deleted
from the bucket as long as it lies there.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Iterable, Mapping

import vibemq.storage.cold as cold
from vibemq.remote.bucket import Bucket, Missing
from vibemq.remote.cipher import plain_size
from vibemq.remote.objects import Damaged, Kind, Place, read_place, tail_bytes
from vibemq.storage.log import SEGMENT_HEADER_BYTES

SUFFIX = ".remote"
DIGITS = 20  # of a segment's number in its files' names

log = logging.getLogger("vibemq.remote")


async def places_of_all(bucket: Bucket) -> dict[str, dict[Place, int]]:
    """The segments in the store, by incarnation, with the sizes of their objects in bytes; in no order."""
    found: dict[str, dict[Place, int]] = {}
    for one in await bucket.listed("streams/"):
        named = read_place(one.key)
        if named is not None and named[1] == "segment":
            found.setdefault(named[0].incarnation, {})[named[0]] = one.size
    return found


def history(places: Iterable[Place]) -> list[Place]:
    """Return the segments of one log, rising; none has an offset of another.

    Invariant (`Tier._upload` keeps it): the brokers' epochs rise along a log. So a segment that ends behind the first
    offset of a newer broker's segment is late, also if it lies behind that one and overlaps none.  A deposed broker
    uploaded it, and clients of the newer one were given other messages at these offsets.
    """
    of_broker: dict[int, list[Place]] = {}
    for place in places:
        of_broker.setdefault(place.broker_epoch, []).append(place)
    runs: list[list[Place]] = []  # falling
    for _, sent in sorted(of_broker.items(), reverse=True):
        newer = runs[-1][0] if runs else None
        if run := _disjoint(place for place in sent if newer is None or place.next <= newer.first):
            runs.append(run)
    return [place for run in reversed(runs) for place in run]


def late(places: Iterable[Place], kept: list[Place]) -> list[Place]:
    """Return the late segments, which deposed brokers uploaded, rising.  ``kept``: `history` of the places.

    A segment that a restarted archiver of the same broker uploaded again is not late.
    """
    there = {(place.first, place.next, place.seed) for place in kept}
    return sorted(
        place
        for place in set(places) - set(kept)
        if (place.first, place.next, place.seed) not in there
        and any(place.broker_epoch < one.broker_epoch and place.next > one.first for one in kept)
    )


def _disjoint(places: Iterable[Place]) -> list[Place]:
    """Choose among overlapping segments the one of the log's newest epoch, and among those the longest."""
    kept: list[Place] = []
    some: list[Place] = []  # each overlaps an earlier one of them
    end = 0
    for place in sorted(places, key=lambda place: (place.first, place.next)):
        if some and place.first >= end:
            kept += _newest(some)
            some = []
        some.append(place)
        end = place.next if len(some) == 1 else max(end, place.next)
    return kept + _newest(some)


def _newest(places: list[Place]) -> list[Place]:
    if len(places) < 2:
        return places
    kept: list[Place] = []
    for place in sorted(places, key=lambda one: (-one.epoch, one.first, -one.next)):
        if all(place.next <= one.first or one.next <= place.first for one in kept):
            kept.append(place)
    return sorted(kept)


async def segment_bytes(bucket: Bucket, place: Place, object_bytes: int) -> int:
    """Of the segment in an object of that size.  A damaged one gets a stub, too: who reads it is told which it is."""
    try:
        return await bucket.plain_size(place.key(), Kind.SEGMENT, object_bytes)
    except (Damaged, Missing) as problem:
        log.error("the size of a segment is not known for sure: %s", problem)
        return max(SEGMENT_HEADER_BYTES + 1, plain_size(object_bytes - tail_bytes(place.key())))


def stub_of(place: Place, size_bytes: int) -> cold.Stub:
    """What stands for a segment of the store in the log's directory."""
    return cold.Stub(
        place.first, place.next, size_bytes, place.oldest_ms, place.newest_ms, place.seed, place.epoch,
        place.broker_epoch,
    )  # fmt: skip


def place_of(incarnation: str, stub: cold.Stub) -> Place:
    times = stub.oldest_ms, stub.newest_ms
    return Place(incarnation, stub.first, stub.next, stub.epoch, stub.seed, *times, stub.broker_epoch)


def damaged(directory: str) -> list[int]:
    """First offsets of the segments whose stubs say nothing, rising.  Raises StorageError, OSError."""
    names = [name for name in os.listdir(directory) if name[DIGITS:] == SUFFIX and name[:DIGITS].isdigit()]
    whole = {stub.first for stub in cold.stubs(directory)}
    return sorted(first for first in map(int, (name[:DIGITS] for name in names)) if first not in whole)


async def mend(bucket: Bucket, directory: str, places: Mapping[Place, int]) -> None:
    """Make damaged stubs again.  ``places``: this log's, of `places_of_all`.  Raises RemoteError, StorageError.

    Before recovery, which would begin the log behind them.
    """
    there = {place.first: place for place in history(places)}
    for first in await asyncio.to_thread(damaged, directory):
        path = os.path.join(directory, f"{first:0{DIGITS}}{SUFFIX}")
        place = there.get(first)
        if place is not None:
            size = await segment_bytes(bucket, place, places[place])
            await asyncio.to_thread(cold.write_stub, directory, stub_of(place, size))
            log.warning("%s was damaged: it is made again from the name of object %s", path, place.key())
        elif os.path.exists(path):  # else retention has just taken it
            aside = f"{path}.{int(time.time())}.quarantine"
            os.rename(path, aside)
            log.error("%s is damaged, and the bucket has no such segment; kept as %s", path, aside)
