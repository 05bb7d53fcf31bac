# SPDX-License-Identifier: Apache-2.0
"""What a bucket's names say: numbers without gaps, segments without holes, nothing left alone; and what damage means.

Each finding says which object, what is wrong, what that means for whom, and what to do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import NamedTuple

from vibemq.remote.inspection import Contents
from vibemq.remote.objects import (
    FORMAT_KEY,
    ON_THEIR_WAY_MAX,
    Kind,
    Place,
    change_key,
    read_place,
    snapshot_key,
    write_ahead_key,
    write_ahead_prefix,
)
from vibemq.remote.stubs import history, late
from vibemq.storage.records import StreamRecord

Records = Mapping[str, StreamRecord] | None

_COPY = "restore it from a copy of the bucket, or from its versions"
_KEEP = (
    f"{_COPY}; until then keep it on the broker's disk, if it is there (local-max-length-bytes and local-max-age of "
    "the stream 0): readers are served from that"
)


class Finding(NamedTuple):
    """``is_problem`` False: it is said, and all is well."""

    key: str
    wrong: str
    means: str
    do: str
    is_problem: bool = True

    def line(self) -> str:
        return (
            f"{self.key}: {self.wrong}; {self.means}; {self.do}"
            if self.do
            else f"{self.key}: {self.wrong}; {self.means}"
        )


def findings_in(contents: Contents, records: Records) -> list[Finding]:
    """``records``: the streams that there are, by incarnation; None where the metadata cannot be read."""
    found = [*_format(contents), *_metadata(contents), *_write_ahead(contents)]
    for incarnation in sorted(contents.places):
        found += _stream(contents, incarnation, records)
    if contents.strange:
        keys = ", ".join(one.key for one in contents.strange[:3])
        found.append(
            Finding(
                keys,
                f"{len(contents.strange)} objects have names that are none of VibeMQ's",
                "nobody reads them",
                "give them a bucket or prefix of their own",
                False,
            )
        )
    return found


def _format(contents: Contents) -> Iterator[Finding]:
    if contents.format is None:
        yield Finding(FORMAT_KEY, "it is missing", "no broker knows whose bucket this is: the next start takes it for "
                      "another cluster's and refuses", _COPY)  # fmt: skip


def _metadata(contents: Contents) -> Iterator[Finding]:
    if not contents.snapshots:
        yield Finding(
            snapshot_key(0), "there is no snapshot of the metadata", "a lost machine cannot be restored", _COPY
        )
        return
    oldest, newest = min(contents.snapshots), max(contents.snapshots)
    numbers = sorted({oldest, newest, *(number for number in contents.changes if number > oldest)})
    # A snapshot stands for its change, so at the newest one the numbers go on even where that is missing.
    for before, after in pairwise(numbers):
        end = after - 1 if after in contents.changes else after
        if end <= before:
            continue
        key = change_key(before + 1) + (f" to {change_key(end)}" if end > before + 1 else "")
        if end > newest:
            means = (
                "a restore, and the next start on another disk, ends before it: what was changed of streams, users and "
                "rights since then is lost"
            )
        else:
            means = f"only a restore from a snapshot before number {newest} would need it"
        yield Finding(key, "missing, and there are later changes", means, _COPY)
    old = [number for number, one in contents.changes.items() if number <= oldest and one.key not in contents.marks]
    if old:
        yield Finding(change_key(min(old)), f"{len(old)} changes are part of the oldest snapshot, {oldest}",
                      "nobody reads them", "`vibemq remote prune` deletes them", False)  # fmt: skip


def _write_ahead(contents: Contents) -> Iterator[Finding]:
    for name, epochs in contents.write_ahead.items():
        for epoch, objects in epochs.items():
            # A broker deletes from the front, and seals stay, so only a gap between two other objects is a loss.
            others = sorted(number for number, one in objects.items() if one.key not in contents.marks)
            for before, after in pairwise(others):
                missing = [number for number in range(before + 1, after) if number not in objects]
                if not missing:
                    continue
                key = write_ahead_key(name, epoch, missing[0])
                wrong = f"missing, {len(missing)} in all, and {write_ahead_key(name, epoch, after)} is there"
                behind = sum(number >= after for number in objects)
                lost = "what it held of streams of durability remote is missing after a lost machine"
                doubt = (
                    " (or, if the broker was killed just then, it was on its way, and nothing from it on was confirmed)"
                )
                yield Finding(key, wrong, lost + (doubt if behind <= ON_THEIR_WAY_MAX else ""),
                              f"keep the disk of broker {name}, and let it run until `vibemq remote list` shows that "
                              f"{write_ahead_prefix(name, epoch)} has gone; else {_COPY}")  # fmt: skip
            if epoch > max(contents.epochs.get(name, {}), default=epoch):
                yield Finding(write_ahead_prefix(name, epoch), f"broker {name} never took epoch {epoch}",
                              "it was deleted by hand, or this is another bucket's", _COPY)  # fmt: skip


def _stream(contents: Contents, incarnation: str, records: Records) -> Iterator[Finding]:
    prefix, objects = f"streams/{incarnation}/", contents.places[incarnation]
    whose = streams_named(incarnation, records)
    if records is not None and incarnation not in records:
        yield Finding(prefix, f"{sum(map(len, objects.values()))} objects of a stream that was deleted",
                      "nobody reads them", "`vibemq remote prune` deletes them", False)  # fmt: skip
        return
    segments = contents.segments(incarnation)
    for place, parts in objects.items():
        if place not in segments:
            yield Finding(place.key(min(parts)), "there is no segment with it",
                          "nobody reads it: it is on its way up, or down, or was left by a broker that was killed",
                          "`vibemq remote prune` deletes it when it is an hour old", False)  # fmt: skip
            continue
        for suffix in ("index", "tracking"):
            if suffix not in parts:
                means, do = _of_segment(place, suffix, whose)
                yield Finding(place.key(suffix), "missing, and its segment is there", means, do)
    yield from _joints(segments, whose)


def _joints(segments: Iterable[Place], whose: str) -> Iterator[Finding]:
    kept = history(segments)
    for before, after in pairwise(kept):
        if after.first != before.next:
            yield Finding(after.key(), f"offsets {before.next} to {after.first - 1} before it are in no segment",
                          f"on a new machine {whose} begins behind the hole", _KEEP)  # fmt: skip
    chosen, too_late = set(kept), set(late(segments, kept))
    for place in segments:
        if place in chosen:
            continue
        if place in too_late:
            yield Finding(place.key(), "a segment of a newer broker begins before it ends",
                          "it is not read: a deposed broker uploaded it",
                          "none; retention takes both", False)  # fmt: skip
            continue
        end = max(one.next for one in kept if one.first < place.next and place.first < one.next)
        if place.next > end:
            yield Finding(place.key(), f"it overlaps another segment, which ends before offset {end}",
                          f"it is not read, and what of {whose} is in it alone cannot be",
                          "look which of the two the broker's disk has; keep that one")  # fmt: skip
        else:
            yield Finding(place.key(), "another segment has the same offsets",
                          "one of the two is read; a broker was killed while it sent this one",
                          "none; retention takes both", False)  # fmt: skip


# ---- what it means ----


def streams_named(incarnation: str, records: Records) -> str:
    """A stream in words."""
    record = (records or {}).get(incarnation)
    if record is None:
        return f"stream {incarnation}"
    return f"{'stream' if record.queue is None else 'queue'} {record.name!r} in vhost {record.vhost!r}"


def what_it_means(key: str, kind: Kind, contents: Contents, records: Records) -> tuple[str, str]:
    """That an object cannot be used: for whom, and what to do."""
    if (named := read_place(key)) is not None:
        place, suffix = named
        return _of_segment(place, suffix, streams_named(place.incarnation, records))
    if kind is Kind.FORMAT:
        return "no broker starts with this bucket", _COPY
    if kind is Kind.EPOCH:
        return "nothing: it is for people, and its name is what counts", ""
    if kind is Kind.WRITE_AHEAD:
        return (
            "what it holds of streams of durability remote, and is in no segment yet, is missing after a lost machine",
            f"keep the broker's disk and let it run till this has gone, twice remote.segment_age_s; else {_COPY}",
        )
    if kind is Kind.RETIRED:
        return "objects that retention deleted may remain below streams/", "`vibemq remote prune`"
    newest, number = max(contents.snapshots, default=0), int(key[-16:])
    if kind is Kind.SNAPSHOT and number == newest:
        older = sorted(contents.snapshots)[-2:-1]
        return (
            "a lost machine cannot be restored",
            f"move it away: a restore takes snapshot {older[0]} then, and the changes behind it" if older else _COPY,
        )
    if kind is Kind.CHANGE and number > newest:
        return "a restore, and the next start on another disk, is refused", _COPY
    return f"nothing while snapshot {newest} is whole", ""


def _of_segment(place: Place, suffix: str, whose: str) -> tuple[str, str]:
    if suffix == "tracking":
        when = f"whose last message lies before offset {place.next}"
        return f"after a lost machine, publishers of {whose} {when} may store one twice", _KEEP
    what = "some or all of the" if suffix == "segment" else "the"
    offsets = f"offsets {place.first} to {place.next - 1}"
    return f"consumers of {whose} cannot read {what} {offsets} from the store", _KEEP
