# SPDX-License-Identifier: Apache-2.0
"""Reading ranges of a bucket's objects in tasks: blocks are fetched ahead of the decoder, which checks every chunk.

What a plan has named may be gone when it is read, since a segment takes the place of write-ahead objects, and retention
takes segments: then the bucket is looked at again. What is damaged is never used: its name fails the query, or with
failOnDataLoss=false it costs itself. Where there is a broker beside, that is asked for what the bucket does not give.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import Future
from typing import TYPE_CHECKING

from vibemq.errors import RemoteError, StorageError
from vibemq.remote.bucket import Away, Missing
from vibemq.remote.objects import Damaged, Kind, damaged
from vibemq.spark import remote, remote_logs, remote_plans
from vibemq.spark.client import BrokerAway, Patience, patiently
from vibemq.spark.ranges import Range, lost, span
from vibemq.spark.remote import ATTEMPTS, Store, in_words
from vibemq.spark.remote_logs import Piece
from vibemq.storage.reading import SegmentBytes

if TYPE_CHECKING:
    import pyarrow as pa

    from vibemq.spark._arrow import Decoder
    from vibemq.spark.options import Options

log = logging.getLogger("vibemq.spark")

BLOCK_BYTES = 4 << 20  # a whole number of the pieces that are encrypted by themselves
AHEAD_BYTES = 16 << 20  # of a task: 1.6 GB/s at 10 ms a request
AHEAD_REQUESTS = 16  # small objects, one for each interval of a broker, are waited for together
#: An object of which so large a part is wanted is read whole: one request, and its CRC is seen.
WHOLE_PART, WHOLE_BYTES_MAX = 8, 1 << 20


def planned(options: Options, parts: Iterable[Range]) -> list[Range]:
    """The tasks of a plan with the objects of the bucket that they are to read."""
    parts = list(parts)
    if not options.endpoints:
        return patiently(options, lambda catalog: catalog.with_pieces(parts))  # type: ignore[attr-defined, no-any-return]
    if options.read_mode != "auto":
        return parts
    try:
        return remote_plans.closed_pieces(remote.store(options), parts)
    except (Away, Missing) as problem:
        log.warning("the broker is asked for all, since the bucket does not answer: %s", problem)
        return parts


def read(options: Options, decoder: Decoder, wanted: Range) -> Generator[pa.RecordBatch, None, tuple[int, int]]:
    """Yield what the bucket has of a range.

    Returns where it had to stop, which is its end unless there is a broker to ask, and how many records there were.
    """
    reading, patience = Reading(options, decoder, wanted), Patience(options)
    pieces, missed = wanted.pieces or _again(options, wanted), 0
    while True:
        before = reading.at
        try:
            yield from reading.all_of(pieces)
            break
        except (Away, Missing, Damaged) as problem:
            if options.endpoints:
                log.warning("stream %r: the broker is asked from offset %d on: %s", wanted.stream, reading.at, problem)
                break
            if reading.at > before:
                patience.well()
                missed = 0
            if isinstance(problem, Away):
                patience.wait(BrokerAway(str(problem)))
                continue
            missed += 1
            if isinstance(problem, Damaged) or missed == ATTEMPTS:
                raise
        pieces = _again(options, wanted._replace(start=reading.at, pieces=()))
    return reading.at, reading.due


def _again(options: Options, wanted: Range) -> tuple[Piece, ...]:
    """Where the bucket has these records now."""
    [found] = patiently(options, lambda catalog: catalog.with_pieces([wanted], anew=True))  # type: ignore[attr-defined]
    return found.pieces  # type: ignore[no-any-return]


class BadChunk(Damaged):
    """A chunk is not what was written; the rest of its object may be."""


class Reading:
    """`at` is the next record; `due` is how many there were before it in this range."""

    def __init__(self, options: Options, decoder: Decoder, wanted: Range) -> None:
        self.options, self.decoder, self.wanted = options, decoder, wanted
        self.store = remote.store(options)
        self.at, self.due = wanted.start, 0
        self._chunks = SegmentBytes(0, 0)

    def all_of(self, pieces: Iterable[Piece]) -> Iterator[pa.RecordBatch]:
        """The range, as far as pieces have it. Raises RemoteError: `at` is where it has come to."""
        end = self.wanted.end
        left = deque(piece for piece in pieces if piece.next > self.at and piece.first < end)
        while left:
            try:
                yield from self._some(left)
            except Damaged as problem:
                if self.options.fail_on_data_loss or self.options.endpoints:
                    raise
                log.warning("stream %r: records are lost: %s", self.wanted.stream, problem)
                piece = left.popleft()
                rest = self._behind(piece) if isinstance(problem, BadChunk) else None
                if rest is not None:
                    left.appendleft(rest)
                else:
                    self._over_gap(min(piece.next, end))
        self._over_gap(end)

    def _some(self, left: deque[Piece]) -> Iterator[pa.RecordBatch]:
        """One piece after the other; who is done leaves."""
        blocks = Blocks(self.store, left)
        try:
            while left:
                self._over_gap(min(left[0].first, self.wanted.end))
                yield from self._piece(left[0], blocks)
                left.popleft()
        finally:
            blocks.close()

    def _over_gap(self, to: int) -> None:
        """Records that no object has: retention took them, or who deleted the stream."""
        if self.at >= to:
            return
        if self.options.endpoints:  # the broker knows
            raise Missing(f"no object has {span(self.at, to)}")
        if not self.wanted.from_first:
            why = "retention has passed the reader, or the stream was deleted, or records inside it are missing"
            lost(self.options, self.wanted.stream, span(self.at, to, self.wanted.incarnation), "no object of it", why)
        self.at = to

    def _piece(self, piece: Piece, blocks: Blocks) -> Iterator[pa.RecordBatch]:
        end = min(piece.next, self.wanted.end)
        self._chunks = chunks = SegmentBytes(piece.seed, piece.begin)
        for block in blocks.of(piece):
            chunks.feed(block)
            problem = yield from self._decode(chunks, end)
            if problem is not None and problem.code != "ERR_TRUNCATED":
                raise BadChunk(damaged(piece.key, problem.message).message)
            if self.at >= end:
                blocks.drop(piece)
                return
        raise damaged(piece.key, f"its chunks end at offset {self.at}, not {piece.next}")

    def _decode(self, chunks: SegmentBytes, end: int) -> Generator[pa.RecordBatch, None, StorageError | None]:
        """What a block has; returns why there is no more of it."""
        while True:
            began = self.at
            at, problem = yield from self.decoder.decode_log(chunks, began, end)
            self.at, self.due = at, self.due + at - began
            if problem is not None or at >= end:
                return problem
            self._over_gap(min(chunks.chunk_id, end))  # the chunk that came lies behind it
            chunks.back()

    def _behind(self, piece: Piece) -> Piece | None:
        """What is left of it behind a damaged chunk, whose end its header or the index says; None: nothing."""
        position, after = self._chunks.position, self._chunks.after
        if not after and piece.kind == Kind.SEGMENT:
            try:
                index = self.store.run(remote_logs.index(self.store, piece))
            except Missing:
                index = None
            record = None if index is None else index.least("position", position + 1)
            after = 0 if record is None else record.position
        return piece._replace(begin=after) if position < after < piece.end else None


class Blocks:
    """Blocks of pieces in their order, some of them on their way."""

    def __init__(self, store: Store, pieces: Iterable[Piece]) -> None:
        self.store = store
        self._left = deque(block for piece in pieces for block in _spans(piece))
        self._sent: deque[tuple[Piece, int, Future[memoryview]]] = deque()
        self._sent_bytes = 0

    def of(self, piece: Piece) -> Iterator[memoryview]:
        """Those of the piece at the front. Raises RemoteError."""
        while True:
            self._send()
            if not self._sent or self._sent[0][0] != piece:
                return
            coming = self._pop()
            try:
                block = coming.result()
            except RemoteError as problem:
                raise in_words(problem) from None
            yield block

    def _send(self) -> None:
        while self._left and len(self._sent) < AHEAD_REQUESTS and (self._sent_bytes < AHEAD_BYTES or not self._sent):
            piece, begin, end = self._left.popleft()
            self._sent.append((piece, end - begin, self.store.begin(_fetched(self.store, piece, begin, end))))
            self._sent_bytes += end - begin

    def _pop(self) -> Future[memoryview]:
        _, size, coming = self._sent.popleft()
        self._sent_bytes -= size
        return coming

    def drop(self, piece: Piece) -> None:
        """Nothing more of the piece at the front."""
        while self._sent and self._sent[0][0] == piece:
            self._pop().cancel()
        while not self._sent and self._left and self._left[0][0] == piece:
            self._left.popleft()

    def close(self) -> None:
        while self._sent:
            self._pop().cancel()


def _spans(piece: Piece) -> list[tuple[Piece, int, int]]:
    """Its blocks; inside of an object they begin at whole blocks, at which encrypted pieces begin."""
    if _is_whole(piece):
        return [(piece, piece.begin, piece.end)]
    found, begin = [], piece.begin
    while begin < piece.end:
        end = min(piece.end, (begin // BLOCK_BYTES + 1) * BLOCK_BYTES)
        found.append((piece, begin, end))
        begin = end
    return found


def _is_whole(piece: Piece) -> bool:
    small = piece.size <= WHOLE_BYTES_MAX or piece.size <= piece.bytes * WHOLE_PART
    return piece.kind == Kind.WRITE_AHEAD and small


async def _fetched(store: Store, piece: Piece, begin: int, end: int) -> memoryview:
    if _is_whole(piece):
        return (await store.bucket.read(piece.key, piece.kind))[begin:end]
    data = await store.part(piece.key, piece.kind, begin, end)
    if len(data) < end - begin:
        raise damaged(piece.key, f"it ends before position {end}")
    return data
