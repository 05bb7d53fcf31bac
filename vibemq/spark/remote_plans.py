# SPDX-License-Identifier: Apache-2.0
"""Planning without a broker: the bucket answers what a connection to one would.

Streams by name are those of the metadata, which is restored from the bucket and brought up to date at each look; what a
stream has, the listings say. Cuts lie where chunks begin: inside of a segment by its index, of what is not in a segment
yet at the beginnings of its pieces. As a broker's they are counted from the end.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from vibemq.client.plans import NOT_SAID, WantedRange
from vibemq.errors import StreamNotFound
from vibemq.remote.bucket import Missing
from vibemq.remote.objects import Kind
from vibemq.spark import remote_logs
from vibemq.spark.remote import ATTEMPTS, Store
from vibemq.spark.remote_logs import Piece, WriteAhead

if TYPE_CHECKING:
    from vibemq.spark.client import Facts
    from vibemq.spark.options import Options
    from vibemq.spark.ranges import Range
    from vibemq.storage.metadata import Metadata
    from vibemq.storage.records import StreamRecord

LISTED_AGAIN_S = 10.0  # of a stream that a broker plans: what is closed meanwhile the broker has, too


class Named(NamedTuple):
    """As a broker lists one."""

    name: str


class Boundary(NamedTuple):
    """Where a log may be cut: an offset, and how many bytes of chunks lie before it."""

    offset: int
    at: int


class Log:
    """One stream's pieces, and how many bytes lie before each."""

    def __init__(self, store: Store, pieces: list[Piece]) -> None:
        self.store, self.pieces = store, pieces
        self._firsts = [piece.first for piece in pieces]
        self._before = [0, *accumulate(piece.bytes for piece in pieces)]

    @property
    def bytes(self) -> int:
        return self._before[-1]

    def overlapping(self, start: int, end: int) -> list[Piece]:
        return [piece for piece in self.pieces if piece.first < end and piece.next > start]

    def covers(self, part: Range) -> bool:
        return bool(self.pieces) and self.pieces[0].first <= part.start and part.end <= self.pieces[-1].next

    async def floor(self, offset: int) -> Boundary:
        """The last one that is not behind an offset; of one at or behind the end, the end."""
        number = bisect_right(self._firsts, offset) - 1
        if number < 0:
            return Boundary(self._firsts[0], 0)
        piece = self.pieces[number]
        if offset >= piece.next:
            return Boundary(piece.next, self._before[number + 1])
        if offset > piece.first and piece.kind == Kind.SEGMENT:
            found = await remote_logs.index(self.store, piece)
            if found is not None and (record := found.holding(offset)) is not None:
                return Boundary(record.chunk_id, self._before[number] + record.position - piece.begin)
        return Boundary(piece.first, self._before[number])

    async def least(self, offset: int, at: int) -> Boundary:
        """The first one that is not before an offset, nor before a number of bytes; or the end."""
        for number, piece in enumerate(self.pieces):
            before = self._before[number]
            if piece.first >= offset and before >= at:
                return Boundary(piece.first, before)
            if piece.kind != Kind.SEGMENT or piece.next <= offset or self._before[number + 1] <= at:
                continue
            found = await remote_logs.index(self.store, piece)
            if found is None:
                continue
            by_offset = found.least("chunk_id", offset)
            by_bytes = found.least("position", at - before + piece.begin)
            if by_offset is not None and by_bytes is not None:
                record = max(by_offset, by_bytes)
                return Boundary(record.chunk_id, before + record.position - piece.begin)
        return Boundary(self.pieces[-1].next, self.bytes)

    async def cuts(self, start: int, end: int, bytes_max: int, records_max: int) -> tuple[int, ...]:
        """Where [start, end) is parted so that no part has more, but one chunk, or piece, at least."""
        found: list[int] = []
        last = await self.floor(end)
        while last.offset > start:
            offset = last.offset - records_max if records_max else 0
            cut = await self.least(max(offset, 0), last.at - bytes_max if bytes_max else 0)
            if cut.offset >= last.offset:  # more than that in one chunk
                cut = await self.floor(last.offset - 1)
            if not start < cut.offset < last.offset:
                break
            found.append(cut.offset)
            last = cut
        return tuple(reversed(found))

    async def limit(self, start: int, bytes_max: int) -> int:
        """The end of at most so many bytes of chunks from `start` on, of one chunk, or piece, at least."""
        begin = await self.floor(start)
        if self.bytes - begin.at <= bytes_max:
            return self.pieces[-1].next
        after = await self.least(start + 1, begin.at + 1)  # behind the first chunk
        beyond = await self.least(start + 1, begin.at + bytes_max + 1)
        last = await self.floor(beyond.offset - 1)
        return max(after.offset, last.offset)

    async def at_timestamp(self, time_ms: int) -> int:
        """The first offset of a chunk that is not older."""
        for piece in self.pieces:
            if piece.kind == Kind.SEGMENT:
                if piece.newest_ms < time_ms:
                    continue
                found = await remote_logs.index(self.store, piece)
                record = None if found is None else found.least("timestamp_ms", time_ms)
                return piece.first if record is None else record.chunk_id
            data = await self.store.part(piece.key, piece.kind, piece.begin, piece.end)
            for header in remote_logs.headers(data):
                if header.timestamp_ms >= time_ms:
                    return header.chunk_id
        return self.pieces[-1].next


class Catalog:
    """Stands where a connection to a broker does; of one bucket, for one reader's options."""

    has_plans = True

    def __init__(self, store: Store, options: Options) -> None:
        self.store, self.options = store, options
        self._write_ahead: WriteAhead = store.kept.setdefault("write-ahead", WriteAhead())
        self._logs_seen: dict[str, Log] = store.kept.setdefault("logs", {})  # by incarnation

    def exists(self, stream: str) -> bool:
        async def found() -> bool:
            return (await self.store.metadata()).find_stream(self.options.vhost, stream) is not None

        return self.store.run(found())

    def list_streams(self) -> list[Named]:
        async def listed() -> list[Named]:
            metadata = await self.store.metadata()
            return [Named(one.name) for one in metadata.streams() if one.vhost == self.options.vhost]

        return self.store.run(listed())

    def partitions(self, super_stream: str) -> list[str]:
        async def found() -> list[str]:
            return self._partitions(await self.store.metadata(), super_stream)

        return self.store.run(found())

    def _partitions(self, metadata: Metadata, super_stream: str) -> list[str]:
        found = metadata.partitions(self.options.vhost, super_stream)
        if found is None:
            raise StreamNotFound(f"there is no super stream {super_stream!r} in the bucket {self.store.url}")
        return found

    # ---- plans ----

    def ask(self, wanted: Iterable[WantedRange], super_stream: str = "") -> dict[str, Facts]:
        """What the bucket says about streams, as client.ask gives it. Raises StreamNotFound, RemoteError."""
        return self.store.run(self._ask(list(wanted), super_stream))

    async def _ask(self, wanted: list[WantedRange], super_stream: str) -> dict[str, Facts]:
        ranges = {each.stream: each for each in wanted}
        metadata = await self.store.metadata()
        names = self._partitions(metadata, super_stream) if super_stream else list(ranges)
        records = {name: self._record(metadata, name) for name in names}
        has_sent = any(record.durability == "remote" for record in records.values())
        logs = await self._logs([record.incarnation for record in records.values()], has_sent)
        facts = (
            self._facts(record, logs[record.incarnation], ranges.get(name, WantedRange(name)))
            for name, record in records.items()
        )
        return dict(zip(records, await asyncio.gather(*facts), strict=True))

    def _record(self, metadata: Metadata, name: str) -> StreamRecord:
        record = metadata.find_stream(self.options.vhost, name)
        if record is None:
            raise StreamNotFound(
                f"there is no stream {name!r} in virtual host {self.options.vhost!r} of the bucket {self.store.url}"
            )
        return record

    async def _logs(self, incarnations: Sequence[str], has_sent: bool = True) -> dict[str, Log]:
        for again in range(ATTEMPTS):
            try:
                if has_sent:
                    await self._write_ahead.look(self.store, self.options.fail_on_data_loss)
                closed = await asyncio.gather(*(remote_logs.places(self.store, each) for each in incarnations))
                break
            except Missing:  # it was deleted behind the listing
                if again == ATTEMPTS - 1:
                    raise
        sent = self._write_ahead.pieces if has_sent else {}
        found = {
            incarnation: Log(self.store, remote_logs.covered(pieces, sent.get(incarnation, ())))
            for incarnation, pieces in zip(incarnations, closed, strict=True)
        }
        self._logs_seen.update(found)
        return found

    async def _facts(self, record: StreamRecord, log: Log, wanted: WantedRange) -> Facts:
        from vibemq.spark.client import Facts

        has_all = record.durability == "remote"
        incarnation = f"{int(record.incarnation, 16):x}"
        if not log.pieces:
            settled = self._write_ahead.settled.get(record.incarnation, 0) if has_all else 0
            return Facts(incarnation, settled, settled, at_timestamp=settled, limit=settled, is_partial=not has_all)
        first, after = log.pieces[0].first, log.pieces[-1].next
        start = max(wanted.start, first)
        end = after if wanted.end == NOT_SAID else min(wanted.end, after)
        cuts: tuple[int, ...] = ()
        if start < end and (wanted.split_bytes or wanted.split_records):
            cuts = await log.cuts(start, end, wanted.split_bytes, wanted.split_records)
        at_timestamp = None if wanted.timestamp == NOT_SAID else await log.at_timestamp(wanted.timestamp)
        limit = waiting = 0
        if wanted.bytes_max and start < after:
            limit = await log.limit(start, wanted.bytes_max)
            waiting = log.bytes - (await log.floor(start)).at
        return Facts(incarnation, first, after, cuts, at_timestamp, limit, waiting, is_partial=not has_all)

    def with_pieces(self, parts: Iterable[Range], anew: bool = False) -> list[Range]:
        """The tasks of a plan with the objects that have their records: as they were seen last, or `anew`."""
        return self.store.run(self._with_pieces(list(parts), anew))

    async def _with_pieces(self, parts: Sequence[Range], anew: bool) -> list[Range]:
        named = {part: f"{int(part.incarnation, 16):016x}" for part in parts}
        seen = {} if anew else self._logs_seen
        unknown = {named[part] for part in parts if named[part] not in seen or not seen[named[part]].covers(part)}
        logs = {**seen, **(await self._logs(sorted(unknown)) if unknown else {})}
        return [
            part._replace(pieces=tuple(logs[named[part]].overlapping(part.start, part.end))) for part in parts
        ]  # fmt: skip


async def _closed_pieces(store: Store, parts: Sequence[Range]) -> list[Range]:
    listed = {each: await _closed(store, each) for each in {part.incarnation for part in parts} if each}
    found = []
    for part in parts:
        closed = listed.get(part.incarnation, [])
        border = min(part.end, closed[-1].next) if closed else part.start
        if closed and closed[0].first <= part.start < border:
            pieces = tuple(piece for piece in closed if piece.first < border and piece.next > part.start)
            found.append(part._replace(end=border, pieces=pieces))
            part = part._replace(start=border)
        if part.start < part.end:
            found.append(part)
    return found


async def _closed(store: Store, incarnation: str) -> list[Piece]:
    """A stream's segments as they were a moment ago: who follows its end need not list them for each batch."""
    kept: dict[str, tuple[float, list[Piece]]] = store.kept.setdefault("closed", {})
    known = kept.get(incarnation)
    if known is None or time.monotonic() - known[0] > LISTED_AGAIN_S:
        known = time.monotonic(), await remote_logs.places(store, f"{int(incarnation, 16):016x}")
        kept[incarnation] = known
    return known[1]


def closed_pieces(store: Store, parts: Iterable[Range]) -> list[Range]:
    """The tasks of a broker's plan, where what lies in closed segments of the bucket is to be read there."""
    return store.run(_closed_pieces(store, list(parts)))
