# SPDX-License-Identifier: Apache-2.0
"""`vibemq remote verify`: is every object what was written, and is there every object that should be?

What the names say is looked at first (sequences.py), and again a moment later where something seems to be wrong,
because a broker may be at work. Then every object is read, several at a time, large ones in pieces, so that memory is
bounded.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from vibemq.errors import RemoteError, StorageError, VibeMQError
from vibemq.remote.bucket import Bucket, Listed, Missing
from vibemq.remote.coverage import Coverage
from vibemq.remote.indexes import index_fault, tracking_fault
from vibemq.remote.inspection import Contents, contents_of, read_marks, records_of
from vibemq.remote.objects import Damaged, Kind, Place, Seal, Trailer, from_json, read_place, sections
from vibemq.remote.sequences import Finding, findings_in, streams_named, what_it_means
from vibemq.remote.stubs import history
from vibemq.storage.records import StreamRecord
from vibemq.storage.walk import Walk

OBJECTS_AT_A_TIME = 16
#: Of objects that are looked at whole: a write-ahead object may have a message of 256 MiB, and is alone then.
MEMORY_MAX_BYTES = 256 << 20
LOOK_AGAIN_S = 2.0
#: A store that does not answer is asked again so often.
TRIES, RETRY_S = 4, 2.0
NEEDED_IN_JSON = {Kind.FORMAT: "cluster", Kind.CHANGE: "changes", Kind.EPOCH: "writer", Kind.RETIRED: "keys"}


@dataclass
class Verdict:
    """What was found; ``keys``: how many objects are encrypted with which key, 0 for none."""

    objects: int = 0
    bytes: int = 0
    findings: list[Finding] = field(default_factory=list)
    keys: Counter[int] = field(default_factory=Counter)
    chunks: int = 0
    gone: int = 0  # deleted by a broker meanwhile

    @property
    def problems(self) -> int:
        return sum(finding.is_problem for finding in self.findings)


class _Memory:
    """Bytes that all together may have at a time; who needs more than there are has them alone."""

    def __init__(self, most: int) -> None:
        self._most, self._used = most, 0
        self._freed = asyncio.Condition()

    @contextlib.asynccontextmanager
    async def of(self, size: int) -> AsyncIterator[None]:
        size = min(size, self._most)
        async with self._freed:
            await self._freed.wait_for(lambda: self._used + size <= self._most)
            self._used += size
        try:
            yield
        finally:
            async with self._freed:
                self._used -= size
                self._freed.notify_all()


async def verify(bucket: Bucket, is_quick: bool, progress: Callable[[int, int], object] | None = None) -> Verdict:
    """Raises RemoteError where not even a listing can be had."""
    check = _Check(bucket, is_quick)
    await check.run(progress or (lambda done, total: None))
    check.verdict.findings.sort(key=lambda finding: (not finding.is_problem, finding.key))
    return check.verdict


class _Check:
    def __init__(self, bucket: Bucket, is_quick: bool) -> None:
        self.bucket, self.is_quick = bucket, is_quick
        self.verdict = Verdict()
        self.contents = Contents()
        self.records: dict[str, StreamRecord] | None = None
        self._memory = _Memory(MEMORY_MAX_BYTES)
        self._walks: dict[Place, Walk] = {}  # of segments that were walked to their ends
        self._indexed: dict[Place, int] = {}  # how many chunks an index knows
        self._seals: set[str] = set()
        self._coverage = Coverage()
        self._unreadable: Counter[int] = Counter()  # objects of keys that are not here

    async def run(self, progress: Callable[[int, int], object]) -> None:
        self.contents = await contents_of(self.bucket)
        try:
            self.records = await records_of(self.bucket)
        except VibeMQError as problem:
            means = "a lost machine cannot be restored, and prune refuses to delete anything"
            do = problem.hint or "restore the objects below meta/ from a copy or from their versions"
            self._find("meta/", str(problem), means, do)
        try:
            await read_marks(self.bucket, self.contents)
        except RemoteError as problem:
            self._find(
                "wal/", f"seals cannot be told from other objects: {problem}", "gaps may be no loss", problem.hint
            )
        await self._names()
        left = iter(self.contents.all)
        total, done = len(self.contents.all), 0

        async def work() -> None:
            nonlocal done
            for found, kind in left:
                await self._object(found, kind)
                done += 1
                progress(done, total)

        async with asyncio.TaskGroup() as group:
            for _ in range(OBJECTS_AT_A_TIME):
                group.create_task(work())
        self._ends()
        await self._holes()
        for number, count in sorted(self._unreadable.items()):
            self._find(
                f"encryption key {number}", f"{count} objects are encrypted with it, and it is not there",
                "nobody can read them: what is in them is lost without the key",
                "put the key back into the file that remote.encryption_keys names, or name that file",
            )  # fmt: skip

    def _find(self, key: str, wrong: str, means: str, do: str, is_problem: bool = True) -> None:
        self.verdict.findings.append(Finding(key, wrong, means, do, is_problem))

    # ---- names ----

    async def _names(self) -> None:
        """What is wrong twice is wrong: the first look may have met a broker between two objects."""
        found = findings_in(self.contents, self.records)
        if any(finding.is_problem for finding in found):
            await asyncio.sleep(LOOK_AGAIN_S)
            now = await contents_of(self.bucket)
            now.marks = self.contents.marks
            again = {finding.key for finding in findings_in(now, self.records)}
            found = [finding for finding in found if finding.key in again]
        self.verdict.findings += found

    def _ends(self) -> None:
        """What only all objects together say: seals at the ends of sequences, segments that join."""
        if self.is_quick:
            return
        for name, epochs in self.contents.write_ahead.items():
            sealed_before = self.contents.sealed.get(name, 0)
            for epoch, objects in epochs.items():
                last = objects[max(objects)]
                of_epoch = {one.key for one in objects.values()} & self._seals
                if epoch < sealed_before and last.key not in of_epoch:
                    self._find(
                        last.key, f"the sequence of epoch {epoch} of broker {name} does not end with a seal",
                        "a broker of that epoch that has slept could go on with it, and confirm what nobody reads",
                        f"end every broker {name} but one, and start that one: it seals what is before it",
                    )  # fmt: skip
                if last.key not in of_epoch:
                    for key in sorted(of_epoch):
                        self._find(key, "objects follow this seal, and no later seal follows them",
                                   "a start ended while it sealed the sequence, or they came late and were never "
                                   "confirmed", f"start broker {name} again: it seals them")  # fmt: skip
        by_first = {(place.incarnation, place.first): walk for place, walk in self._walks.items()}
        for place, walk in self._walks.items():
            if (known := self._indexed.get(place)) is not None and known != walk.chunks:
                self._about(
                    Listed(place.key("index"), 0),
                    Kind.INDEX,
                    f"it knows {known} chunks, and the segment has {walk.chunks}",
                )
            if walk.next == place.next:
                continue
            wrong = f"its last chunk ends before offset {walk.next}, its name says {place.next}"
            behind = by_first.get((place.incarnation, place.next))
            if walk.next > place.next or (behind is not None and not behind.suspect_position):
                self._about(Listed(place.key(), 0), Kind.SEGMENT, wrong)
            elif behind is None:
                means = "either the disk refused a sync then, and nothing of it was confirmed, or it is missing"
                do = "`vibemq log verify` on the broker's directory of this stream says which"
                self._find(place.key(), wrong, means, do, is_problem=False)

    async def _holes(self) -> None:
        """What neither segments nor write-ahead objects have of streams of durability remote."""
        for incarnation, record in sorted((self.records or {}).items()):
            if record.durability != "remote" or not self._hole(incarnation, self.contents):
                continue
            # What was in objects then may have gone into segments while they were read.
            wrong = self._hole(incarnation, await contents_of(self.bucket, f"streams/{incarnation}/"))
            if not wrong:
                continue
            moves = "; or a broker has just moved it: verify again" if self.verdict.gone else ""
            self._find(
                f"streams/{incarnation}/",
                wrong,
                f"on a new machine {streams_named(incarnation, self.records)} ends there, whatever was confirmed",
                f"keep the broker's disk, and let it run for twice remote.segment_age_s{moves}",
                is_problem=not self.verdict.gone,
            )

    def _hole(self, incarnation: str, contents: Contents) -> str:
        kept = history(contents.segments(incarnation))
        return self._coverage.hole(incarnation, kept[-1].next if kept else 0)

    # ---- one object ----

    async def _object(self, found: Listed, kind: Kind) -> None:
        self.verdict.objects += 1
        self.verdict.bytes += found.size
        for left in reversed(range(TRIES)):
            try:
                await self._look(found, kind)
                return
            except Missing:
                self.verdict.gone += 1
                return
            except (Damaged, StorageError) as problem:
                self._about(found, kind, _why(found.key, problem))
                return
            except RemoteError as problem:
                if not left:
                    self._about(found, kind, f"it cannot be read: {problem}")
                    return
            await asyncio.sleep(RETRY_S)

    def _about(self, found: Listed, kind: Kind, wrong: str) -> None:
        means, do = what_it_means(found.key, kind, self.contents, self.records)
        self._find(found.key, wrong, means, do)

    async def _look(self, found: Listed, kind: Kind) -> None:
        trailer = await self.bucket.trailer(found.key, kind, found.size)
        keys, number = self.bucket.keys, trailer.key_number
        is_readable = not number or (keys is not None and number in keys)
        if not self.is_quick:
            if not is_readable:
                async for _ in self.bucket.pieces(found.key, trailer, is_raw=True):
                    pass
            elif kind is Kind.SEGMENT:
                await self._segment(found, trailer)
            elif kind is not Kind.SNAPSHOT:
                async with self._memory.of(2 * trailer.size):
                    self._body(found, kind, await self._whole(found, trailer))
            else:
                async for _ in self.bucket.pieces(found.key, trailer):
                    pass
        self.verdict.keys[number] += 1
        self._unreadable[number] += not is_readable
        if not self._unreadable[number]:
            del self._unreadable[number]

    async def _whole(self, found: Listed, trailer: Trailer) -> memoryview:
        room = bytearray()
        async for piece in self.bucket.pieces(found.key, trailer):
            room += piece
        return memoryview(room)

    async def _segment(self, found: Listed, trailer: Trailer) -> None:
        named = read_place(found.key)
        assert named is not None
        place = named[0]
        walk = Walk(place.first, found.key)
        async with self._memory.of(16 << 20):  # a piece as it came and as it is
            async for piece in self.bucket.pieces(found.key, trailer):
                await asyncio.to_thread(walk.take, piece)
        walk.end()
        self.verdict.chunks += walk.chunks
        if walk.seed != place.seed:
            self._about(found, Kind.SEGMENT, "it is another segment than its name says (seed)")
        elif walk.damaged:
            more = f", and {walk.damaged - 1} more chunks" if walk.damaged > 1 else ""
            self._about(found, Kind.SEGMENT, walk.first_damage + more)
        self._walks[place] = walk

    def _body(self, found: Listed, kind: Kind, body: memoryview) -> None:
        """Raises Damaged."""
        if kind is Kind.WRITE_AHEAD:
            for section in sections(found.key, body):
                if found.key not in self.contents.unconfirmed:
                    self._coverage.add(section)
                if isinstance(section, Seal):
                    self._seals.add(found.key)
        elif kind in NEEDED_IN_JSON:
            said = from_json(found.key, body)
            needed = NEEDED_IN_JSON[kind]
            if needed not in said:
                self._about(found, kind, f"its JSON has no {needed}")
        else:
            named = read_place(found.key)
            assert named is not None
            if kind is Kind.INDEX:
                fault, known = index_fault(named[0], body)
                if not fault:
                    self._indexed[named[0]] = known
            else:
                fault = tracking_fault(named[0], body)
            if fault:
                self._about(found, kind, fault)


def _why(key: str, problem: Exception) -> str:
    """Without what the line begins with anyway."""
    said = str(problem)
    for before in (f"object {key} in the bucket is damaged: ", f"{key}: "):
        said = said.removeprefix(before)
    return said


def summary(verdict: Verdict, is_quick: bool) -> str:
    """In one line."""
    how = "names, sizes and trailers of" if is_quick else "every byte of"
    keys = ", ".join(
        f"{count} with key {number}" if number else f"{count} not encrypted"
        for number, count in sorted(verdict.keys.items())
    )
    gone = f"; {verdict.gone} were deleted by a broker meanwhile" if verdict.gone else ""
    chunks = "" if is_quick else f", {verdict.chunks} chunks in segments"
    notes = len(verdict.findings) - verdict.problems
    said = f"{verdict.problems} problems" if verdict.problems else "all is well"
    said += f", {notes} notes" if notes else ""
    return (
        f"{said}: looked at {how} {verdict.objects} objects of {verdict.bytes} bytes ({keys or 'none'}){chunks}{gone}"
    )
