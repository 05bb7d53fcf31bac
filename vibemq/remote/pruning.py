# SPDX-License-Identifier: Apache-2.0
"""`vibemq remote prune`: deletes what nothing refers to, and says what it leaves.

A broker deletes what it has no use for; what stays is of brokers that were killed or cut off just then. Only what is
provably superseded goes: a stream that the metadata does not have is never made again under the same incarnation, a
change that is part of the oldest snapshot is never applied, and a file beside no segment is read by nobody.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from vibemq.remote.bucket import LISTED_AT_A_TIME, Bucket, Listed
from vibemq.remote.inspection import Contents, contents_of, records_of
from vibemq.remote.objects import Kind
from vibemq.remote.opening import fences_among
from vibemq.remote.stubs import history

#: A segment follows its index and its tracking table when it was sent up; the largest on a slow line takes this long.
ALONE_S_MIN = 3600.0


@dataclass
class Superfluous:
    """What goes, by its reason, and what stays for which."""

    goes: dict[str, list[Listed]] = field(default_factory=dict)
    stays: dict[str, list[Listed]] = field(default_factory=dict)

    @property
    def keys(self) -> list[str]:
        """Segments first: a segment that is listed is whole."""
        found = [one.key for some in self.goes.values() for one in some]
        return sorted(found, key=lambda key: (not key.endswith(".segment"), key))


async def superfluous(bucket: Bucket) -> Superfluous:
    """Raises RemoteError or StorageError where the metadata cannot be read: then nothing is known to be superfluous."""
    contents = await contents_of(bucket)  # before the metadata: see inspection.py
    records = await records_of(bucket)
    found = Superfluous()
    oldest = min(contents.snapshots, default=0)
    if oldest in contents.snapshots:
        await bucket.read(contents.snapshots[oldest].key, Kind.SNAPSHOT)  # or the changes before it are all there is
    old = [one for number, one in contents.changes.items() if number <= oldest]
    fences = await fences_among(bucket, old)
    _put(found.goes, "changes that are part of the oldest snapshot", [one for one in old if one.key not in fences])
    now_s = _now(contents)
    for incarnation, places in contents.places.items():
        objects = [one for parts in places.values() for one in parts.values()]
        if incarnation not in records:
            _put(found.goes, "of streams that were deleted", objects)
            continue
        segments = contents.segments(incarnation)
        alone = [one for place, parts in places.items() if place not in segments for one in parts.values()]
        _put(found.goes, "files beside no segment", [one for one in alone if now_s - one.written_s > ALONE_S_MIN])
        _put(found.stays, "files beside no segment yet, not an hour older than what was written last",
             [one for one in alone if now_s - one.written_s <= ALONE_S_MIN])  # fmt: skip
        doubles = segments.keys() - set(history(segments))
        _put(found.stays, "segments whose offsets another one has: the broker's disk may refer to either",
             [segments[place] for place in doubles])  # fmt: skip
    _put(found.goes, "objects with which a killed start tested the store",
         [one for one in contents.probes if now_s - one.written_s > ALONE_S_MIN])  # fmt: skip
    _put(found.stays, "objects whose names are none of VibeMQ's", contents.strange)
    return found


async def delete(bucket: Bucket, keys: list[str], progress: Callable[[int, int], object] | None = None) -> None:
    for at in range(0, len(keys), LISTED_AT_A_TIME):
        await bucket.delete(keys[at : at + LISTED_AT_A_TIME])
        if progress is not None:
            progress(min(at + LISTED_AT_A_TIME, len(keys)), len(keys))


def _now(contents: Contents) -> float:
    """By the store's clock, when it wrote something last: no clock of ours is trusted with what is deleted."""
    return max((one.written_s for one, _ in contents.all), default=0.0)


def _put(into: dict[str, list[Listed]], why: str, found: list[Listed]) -> None:
    if found:
        into.setdefault(why, []).extend(found)
