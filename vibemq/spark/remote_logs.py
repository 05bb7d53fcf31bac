# SPDX-License-Identifier: Apache-2.0
"""A stream's log as the bucket has it: closed segments, and behind them chunks of write-ahead objects.

What is listed is durable, so it is all that may be planned. Write-ahead objects are listed before segments: who deletes
one has made its segment before, so whatever is in neither listing was never there, or retention has taken it. Of each
epoch only the run of objects up to its seal, or to the first number that is missing, counts: what lies behind that
was not confirmed.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from vibemq.remote.objects import (
    Chunks,
    Damaged,
    Kind,
    LedgerState,
    Place,
    Seal,
    SegmentBegins,
    read_place,
    sections,
)
from vibemq.storage.tail import crc32

if TYPE_CHECKING:
    from vibemq.spark.remote import Store

log = logging.getLogger("vibemq.spark")

READS_AT_A_TIME = 16
INDEXES_KEPT_BYTES = 256 << 20  # of one process: of segments with 16 GB in chunks of 2 KB
# csrc/log/FORMAT.md
SEGMENT_HEADER_BYTES = 64
SEED = struct.Struct(">24xI")
INDEX_HEADER_BYTES = 32
RECORD = struct.Struct(">QqIIII")
CHUNK = struct.Struct(">BBHIqIIQIIIB")
CHUNK_HEADER_BYTES = 48


class Piece(NamedTuple):
    """Bytes [begin, end) of an object's body: whole chunks with the offsets [first, next).

    It travels to the task that reads it. `size`: of the object, with what follows the body.
    """

    key: str
    kind: Kind
    size: int
    seed: int  # of the chunks' checks
    first: int
    next: int
    begin: int
    end: int
    newest_ms: int = -1  # of the last chunk, where the name says it

    @property
    def bytes(self) -> int:
        return self.end - self.begin


class Record(NamedTuple):
    """What an index says of a chunk."""

    chunk_id: int
    timestamp_ms: int
    position: int
    size: int
    records: int


class Index:
    """Of one segment: a record for each chunk. They are hints: each is looked at before it is believed."""

    def __init__(self, body: memoryview, seed: int) -> None:
        self.body, self.check = body, crc32(struct.pack(">I", seed))
        self.count = max(0, len(body) - INDEX_HEADER_BYTES) // RECORD.size

    def __getitem__(self, number: int) -> Record:
        """IndexError: there is none, or it is damaged."""
        if not 0 <= number < self.count:
            raise IndexError(number)
        raw = self.body[INDEX_HEADER_BYTES + number * RECORD.size :][: RECORD.size]
        *record, check = RECORD.unpack(raw)
        if crc32(raw[:-4], self.check) != check:
            raise IndexError(number)
        return Record(*record)

    def least(self, field: str, value: int) -> Record | None:
        """The first record whose field (they all rise) is not below a value; None: none, or the index is damaged."""
        try:
            return self[self._number(field, value)]
        except IndexError:
            return None

    def holding(self, offset: int) -> Record | None:
        """That of the chunk which has an offset."""
        try:
            return self[self._number("chunk_id", offset + 1) - 1]
        except IndexError:
            return None

    def _number(self, field: str, value: int) -> int:
        low, high = 0, self.count
        while low < high:
            middle = (low + high) // 2
            if getattr(self[middle], field) < value:
                low = middle + 1
            else:
                high = middle
        return low


def headers(data: memoryview) -> Iterator[Record]:
    """Of the chunks in bytes that begin with one; they are believed, for a plan only."""
    at = 0
    while at + CHUNK_HEADER_BYTES <= len(data):
        _, _, _, records, timestamp, _, _, chunk_id, _, size, trailer, bloom = CHUNK.unpack_from(data, at)
        whole = CHUNK_HEADER_BYTES + bloom + size + trailer
        yield Record(chunk_id, timestamp, at, whole, records)
        at += whole


async def index(store: Store, piece: Piece) -> Index | None:
    """Of a segment; None where it is damaged, or gone: then there are no cuts in it."""
    kept: dict[str, Index] = store.kept.setdefault("indexes", {})
    found = kept.pop(piece.key, None)
    if found is None:
        key = piece.key.removesuffix("segment") + "index"
        try:
            found = Index(await store.bucket.read(key, Kind.INDEX), piece.seed)
        except Damaged as problem:
            log.warning("segment %s is not cut into parts: %s", piece.key, problem)
            return None
        while kept and sum(len(each.body) for each in kept.values()) + len(found.body) > INDEXES_KEPT_BYTES:
            kept.pop(next(iter(kept)))
    kept[piece.key] = found  # the newest is the last
    return found


# ---- write-ahead objects ----


class Sent(NamedTuple):
    """A section of a write-ahead object, without its bytes: one of these four."""

    incarnation: str
    segment: int = 0
    seed: int | None = None  # a segment begins
    piece: Piece | None = None  # chunks of it, without its seed
    settled: int | None = None  # of a queue: all below it is


class WriteAhead:
    """What was confirmed of each stream and may not be in a segment yet."""

    def __init__(self) -> None:
        self._read: dict[str, tuple[list[Sent], bool]] = {}  # by key; whether it is a seal
        self.pieces: dict[str, list[Piece]] = {}  # by incarnation
        self.settled: dict[str, int] = {}  # of queues: all below it is

    async def look(self, store: Store, fail: bool) -> None:
        """Be as of now. Raises Damaged if `fail`, else goes on without such an object; Missing: look again."""
        runs = _runs([(one.key, one.size) for one in await store.bucket.listed("wal/")])
        there = {key for run in runs for key, _ in run}
        self._read = {key: known for key, known in self._read.items() if key in there}
        places = asyncio.Semaphore(READS_AT_A_TIME)

        async def read(key: str, size: int) -> None:
            async with places:
                self._read[key] = await _sections(store, key, size, fail)

        await asyncio.gather(*(read(*one) for run in runs for one in run if one[0] not in self._read))
        self.pieces, self.settled = {}, {}
        seeds: dict[tuple[str, int], int] = {}
        for run in runs:
            for key, _ in run:
                sent, is_seal = self._read[key]
                for each in sent:
                    self._lay(each, seeds)
                if is_seal:
                    break

    def _lay(self, sent: Sent, seeds: dict[tuple[str, int], int]) -> None:
        place = sent.incarnation, sent.segment
        if sent.settled is not None:
            self.settled[sent.incarnation] = sent.settled
        elif sent.seed is not None:
            seeds[place] = sent.seed
        elif sent.piece is not None and place in seeds:
            self.pieces.setdefault(sent.incarnation, []).append(sent.piece._replace(seed=seeds[place]))


def _runs(listed: Iterable[tuple[str, int]]) -> list[list[tuple[str, int]]]:
    """Of each epoch, in their order, the objects whose numbers have no gap before them."""
    by_epoch: dict[tuple[str, int], list[tuple[int, str, int]]] = {}
    for key, size in listed:
        parts = key.split("/")
        if len(parts) == 4 and parts[2].isdigit() and parts[3].isdigit():
            by_epoch.setdefault((parts[1], int(parts[2])), []).append((int(parts[3]), key, size))
    found = []
    for _, objects in sorted(by_epoch.items()):
        objects.sort()
        first = objects[0][0]
        found.append([(key, size) for at, (number, key, size) in enumerate(objects) if number == first + at])
    return found


async def _sections(store: Store, key: str, size: int, fail: bool) -> tuple[list[Sent], bool]:
    found, is_seal = [], False
    try:
        for each in sections(key, await store.bucket.read(key, Kind.WRITE_AHEAD)):
            if isinstance(each, Seal):
                is_seal = True
            elif isinstance(each, SegmentBegins):
                found.append(Sent(each.incarnation, each.first, seed=SEED.unpack_from(each.header)[0]))
            elif isinstance(each, LedgerState):
                found.append(Sent(each.incarnation, settled=each.base))
            elif isinstance(each, Chunks) and each.first < each.next:
                end = each.at + len(each.data)
                piece = Piece(key, Kind.WRITE_AHEAD, size, 0, each.first, each.next, each.at, end)
                found.append(Sent(each.incarnation, each.segment, piece=piece))
    except (Damaged, struct.error) as problem:
        if fail:
            raise
        log.warning("what this object alone has is lost: %s", problem)
        return [], False
    return found, is_seal


# ---- a log ----


async def places(store: Store, incarnation: str) -> list[Piece]:
    """The closed segments of a stream, rising."""
    from vibemq.remote.stubs import history  # with all that a restore needs: tasks mostly do without

    listed = {}
    for one in await store.bucket.listed(f"streams/{incarnation}/"):
        named = read_place(one.key)
        if named is not None and named[1] == "segment" and named[0].first < named[0].next:
            listed[named[0]] = one.size
    room = asyncio.Semaphore(READS_AT_A_TIME)

    async def piece(place: Place) -> Piece:
        key = place.key()
        async with room:  # where objects may be encrypted, each says how long it is
            end = await store.bucket.plain_size(key, Kind.SEGMENT, listed[place])
        begin = SEGMENT_HEADER_BYTES
        return Piece(
            key, Kind.SEGMENT, listed[place], place.seed, place.first, place.next, begin, end, place.newest_ms
        )  # fmt: skip

    return await asyncio.gather(*map(piece, history(listed)))


def covered(closed: list[Piece], sent: Iterable[Piece]) -> list[Piece]:
    """The pieces of a log, rising: segments, then of the chunks behind them as few sections as there need be."""
    found = list(closed)
    at = found[-1].next if found else 0
    left = sorted((piece for piece in sent if piece.next > at), key=lambda piece: (piece.first, -piece.next))
    number = 0
    while number < len(left):
        best, at = left[number], max(at, left[number].first)
        while number < len(left) and left[number].first <= at:
            best = max(best, left[number], key=lambda piece: piece.next)
            number += 1
        if best.next > at:
            found.append(best)
            at = best.next
    return found
