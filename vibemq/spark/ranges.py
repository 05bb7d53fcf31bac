# SPDX-License-Identifier: Apache-2.0
"""What a range of records means against what the broker has, and reading one.

Three things can part them, and each is data loss with a name of its own: retention has passed the range, the stream was
deleted and made again, or its tail is gone. With failOnDataLoss=true each is an error with both ranges; else reading
goes on with what is there, and a warning says what is missing.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Generator, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from vibemq.client.streams import StreamsConnection
from vibemq.errors import ConfigError, ProtocolError, StreamNotFound, VibeMQError
from vibemq.spark import local, places
from vibemq.spark.client import BrokerAway, Facts, Patience, connection, facts
from vibemq.spark.offsets import Position, Positions
from vibemq.spark.options import LOCAL, RAW, TCP, Options
from vibemq.spark.places import Place

if TYPE_CHECKING:
    import pyarrow as pa

    from vibemq.spark._arrow import Decoder
    from vibemq.spark.remote_logs import Piece

log = logging.getLogger("vibemq.spark")

REMEDY = (
    "Start the query with a new checkpoint, or set failOnDataLoss=false to go on with what is there; "
    "longer retention on the stream keeps it from happening again"
)
OTHER_REMEDY = (
    "Give each source of the query the streams that it had, in the same order, or start with a new checkpoint; "
    "failOnDataLoss=false continues without these positions, and reads streams without one from their first record"
)
RECREATED = "it was deleted and created again"
TRUNCATED = "its tail is gone"


class Range(NamedTuple):
    """The records [start, end) of one incarnation of a stream, which is read by one task.

    It travels to the executors and into Spark's logs: it holds no secret and is small. `from_first`: it begins at
    whatever the first retained record is, because the records asked for belonged to a stream that is gone and the user
    said to go on. `store` and `directory` are where a broker of ours has its files, for a task on the same machine;
    `pieces` are the objects of a bucket that have these records.
    """

    stream: str
    incarnation: str
    start: int
    end: int
    from_first: bool = False
    store: str = ""
    directory: str = ""
    pieces: tuple[Piece, ...] = ()


class DataLost(VibeMQError):
    """Records that were asked for are not in the stream (any more). Spark shows the message only, so it says it all."""

    def __init__(self, stream: str, wanted: str, there: str, why: str) -> None:
        super().__init__(f"stream {stream!r}: {why}: wanted {wanted}, the stream has {there}. {REMEDY}", hint=REMEDY)
        self.stream = stream


def lost(options: Options, stream: str, wanted: str, there: str, why: str) -> None:
    """Raise or warn, as the user has chosen."""
    problem = DataLost(stream, wanted, there, why)
    if options.fail_on_data_loss:
        raise problem
    log.warning("%s", problem)


class OtherStreams(VibeMQError):
    """A checkpoint has positions of streams that its source does not read."""

    def __init__(self, options: Options, others: list[str]) -> None:
        said = f"the checkpoint has positions of {', '.join(map(repr, others))}, and this source reads {reads(options)}"
        super().__init__(f"{said}. {OTHER_REMEDY}", hint=OTHER_REMEDY)


def reads(options: Options) -> str:
    """Return words for the streams that the options select."""
    if options.super_stream:
        return f"the partitions of super stream {options.super_stream!r}"
    if options.pattern:
        return f"streams with names that match {options.pattern!r}"
    return ", ".join(map(repr, options.streams))


def read_positions(options: Options, checkpoint: Positions) -> Positions:
    """Return the positions of streams that the source reads.

    Raises OtherStreams if the checkpoint has others: the query's sources are in another order, or one has another
    stream, so records would be read twice or never. With failOnDataLoss=false that is a warning. Partitions of a super
    stream are known to the broker only: see `advance`."""
    if options.streams:
        found = {name: position for name, position in checkpoint.items() if name in options.streams}
    elif options.pattern:
        found = {name: position for name, position in checkpoint.items() if re.fullmatch(options.pattern, name)}
    else:
        return checkpoint
    if others := sorted(checkpoint.keys() - found.keys()):
        problem = OtherStreams(options, others)
        if options.fail_on_data_loss:
            raise problem
        log.warning("%s", problem)
    return found


def span(start: int, end: int, incarnation: str = "") -> str:
    return f"offsets {start} to {end}" + (f" of incarnation {incarnation}" if incarnation else "")


def _there(has: Facts) -> str:
    return span(has.first, has.next, has.incarnation)


# ---- where to begin and to end ----


def start_position(
    options: Options, taken: StreamsConnection, stream: str, has: Facts, default: Place, now_ms: int
) -> Position:
    """Where a new query begins."""
    place = options.start_of(stream, default)
    offset = places.resolve(place, has.first, has.next, partial(_offset_of_time, taken, stream, has), now_ms)
    if place.kind == "time" and offset >= has.next and not options.timestamp_strategy_latest:
        raise ConfigError(
            f"option startingTimestamp or startingOffsetsByTimestamp: stream {stream!r} has no record as young as "
            f"{place.value} ms; "
            "startingOffsetsByTimestampStrategy=latest begins at the end"
        )
    return Position(has.incarnation, offset)


def end_offset(options: Options, taken: StreamsConnection, stream: str, has: Facts, now_ms: int) -> int:
    """Where a batch read ends; where no record is as young as it says, at the end of the stream."""
    place = options.end_of(stream)
    return places.resolve(place, has.first, has.next, partial(_offset_of_time, taken, stream, has), now_ms)


def _offset_of_time(taken: StreamsConnection, stream: str, has: Facts, time_ms: int) -> int:
    if has.at_timestamp is None:
        return offset_for_time(taken, stream, has, time_ms)
    return min(has.at_timestamp, has.next)  # the broker was asked for this very time


def offset_for_time(taken: StreamsConnection, stream: str, has: Facts, timestamp_ms: int) -> int:
    """The offset of the first record that is not older than `timestamp_ms`; `has.next` where there is none.

    A bisection by chunks, which all carry their time: about 20 short reads, on any broker.
    """
    low, high = has.first, has.next
    while low < high:
        middle = (low + high) // 2
        with contextlib.closing(taken.read_chunks(stream, middle, middle + 1)) as chunks:
            chunk = next(chunks, None)
        if chunk is None or chunk.chunk_id >= high:
            high = middle
        elif chunk.timestamp_ms >= timestamp_ms:
            high = max(low, chunk.chunk_id)
        else:
            low = chunk.chunk_id + chunk.records
    return low


def batch_range(options: Options, stream: str, start: int, end: int, has: Facts) -> Range:
    """The range of a batch read, checked against what is there."""
    if start > end:
        raise ConfigError(f"stream {stream!r}: startingOffsets {start} is beyond the end, {end}")
    wanted = Range(stream, has.incarnation, start, end, store=has.store, directory=has.directory)
    if start < end:
        start, end = check(options, wanted, start, has)
    return wanted._replace(start=start, end=end)


def between(options: Options, stream: str, start: Position | None, end: Position) -> Range:
    """The range of a micro-batch. A function of the logged offsets alone, so that a replay is the same.

    A stream that the query did not know before begins at its first record.
    A batch that ends in another incarnation than it began in (or, where the broker names none,
    before it began) holds what the new stream has: only failOnDataLoss=false plans one.
    """
    if start is None:
        return Range(stream, end.incarnation, 0, end.offset, from_first=True)
    recreated = start.incarnation not in ("", end.incarnation)
    if recreated or (not end.incarnation and end.offset < start.offset):
        wanted = span(start.offset, end.offset, start.incarnation)
        if options.fail_on_data_loss:
            lost(options, stream, wanted, span(0, end.offset, end.incarnation), RECREATED)
        return Range(stream, end.incarnation, 0, end.offset, from_first=True)
    if end.offset < start.offset:  # Spark before 4.2 does not say where it stands until now
        wanted, there = span(start.offset, start.offset, start.incarnation), span(0, end.offset, end.incarnation)
        lost(options, stream, wanted, there, TRUNCATED)
    return Range(stream, end.incarnation, start.offset, end.offset)


def advance(options: Options, here: Positions, tail: Mapping[str, Facts]) -> tuple[Positions, Positions]:
    """From where, and to where at most, the next batch goes."""
    begin: Positions = {}
    end: Positions = {}
    for stream in sorted(here.keys() - tail.keys()):
        at = here[stream]
        why = f"it is not read any more, the source reads {reads(options)}"
        lost(options, stream, span(at.offset, at.offset, at.incarnation), "nothing", why)
    for stream, has in tail.items():
        end[stream] = Position(has.incarnation, has.next)
        first = Position(has.incarnation, has.first)
        at = here.get(stream, first)
        gone = ""
        if at.incarnation not in ("", has.incarnation):
            gone, begin[stream] = RECREATED, first
        elif has.next >= at.offset:
            skip_to = at.offset if options.fail_on_data_loss else max(at.offset, has.first)
            begin[stream] = Position(has.incarnation, skip_to)
        elif has.is_partial:
            begin[stream] = end[stream] = at
        elif has.incarnation:
            gone, begin[stream] = TRUNCATED, end[stream]
        else:
            gone, begin[stream] = f"{RECREATED}, or {TRUNCATED}", first
        if gone:
            lost(options, stream, span(at.offset, max(at.offset, has.next), at.incarnation), _there(has), gone)
    return begin, end


def check(options: Options, wanted: Range, at: int, has: Facts) -> tuple[int, int]:
    """What of [at, wanted.end) can be read. DataLost when that is not all of it and the user wants to know."""
    if wanted.incarnation and has.incarnation != wanted.incarnation:
        lost(options, wanted.stream, span(at, wanted.end, wanted.incarnation), _there(has), RECREATED)
        return wanted.end, wanted.end
    if has.first > at:
        if not wanted.from_first:
            lost(options, wanted.stream, span(at, wanted.end), _there(has), "retention has passed the start")
        at = min(has.first, wanted.end)
    if has.next < wanted.end:
        lost(options, wanted.stream, span(at, wanted.end), _there(has), TRUNCATED)
        return at, max(at, has.next)
    return at, wanted.end


def deleted(options: Options, wanted: Range) -> None:
    """The stream of a range is not there at all."""
    lost(options, wanted.stream, span(wanted.start, wanted.end, wanted.incarnation), "nothing", "it was deleted")


# ---- reading ----


def read(options: Options, schema: pa.Schema, wanted: Range) -> Iterator[pa.RecordBatch]:
    """Yield exactly the records of a range, as Arrow batches, or raise.

    From a bucket, if that was planned; from the broker's files where that can be; else from the broker.
    """
    from vibemq.spark._arrow import Decoder  # compiled, and needs pyarrow: only tasks do

    decoder = Decoder(
        wanted.stream,
        schema,
        raw=options.value_format == RAW,
        batch_bytes=options.batch_bytes,
        batch_rows=options.batch_rows,
    )
    at, due = wanted.start, 0
    if wanted.pieces or not options.endpoints:
        from vibemq.spark import remote_reading

        at, due = yield from remote_reading.read(options, decoder, wanted)
    elif options.read_mode != TCP:
        at = yield from local.read(decoder, wanted, must=options.read_mode == LOCAL)
        due = at - wanted.start
    if at < wanted.end:
        due += yield from _read_broker(options, wanted, at, decoder)
    last = decoder.finish()
    if last is not None:
        yield last
    if decoder.given != due:
        gave = f"gave {decoder.given} rows, not {due}"
        raise ProtocolError(f"stream {wanted.stream!r}: {span(wanted.start, wanted.end)} {gave}")


def _read_broker(options: Options, wanted: Range, at: int, decoder: Decoder) -> Generator[pa.RecordBatch, None, int]:
    """What is left of a range from `at` on, from the broker; returns how many records there were.

    A lost connection is made again and reading continues at the next record: what was decoded stays in the decoder.
    """
    patience = Patience(options)
    end, due = wanted.end, 0
    while at < end:
        try:
            with connection(options, (wanted.stream,)) as taken:
                at, end = check(options, wanted, at, facts(taken, wanted.stream, end))
                began = at
                with contextlib.closing(taken.read_chunks(wanted.stream, at, end)) as chunks:
                    for chunk in chunks if at < end else ():
                        if chunk.chunk_id > at:
                            at = _over_gap(options, wanted, at, min(chunk.chunk_id, end))
                        yield from decoder.decode(
                            chunk.chunk_id, chunk.timestamp_ms, chunk.entries, chunk.records, chunk.data, at, end
                        )
                        reached = max(at, min(end, chunk.chunk_id + chunk.records))
                        due += reached - at
                        at = reached
                        patience.well()
                        if at >= end:
                            break
            if began == at < end:
                raise BrokerAway(f"stream {wanted.stream!r} gave nothing from offset {at}")
        except StreamNotFound as gone:
            lost(options, wanted.stream, span(at, end, wanted.incarnation), "nothing", f"it was deleted ({gone})")
            break
        except BrokerAway as failed:
            patience.wait(failed)
    return due


def _over_gap(options: Options, wanted: Range, at: int, to: int) -> int:
    """Decide what a jump in the offsets means.

    RabbitMQ gives offsets to records of its own, which are not delivered; ours never does.
    Everywhere retention may pass a slow reader.
    """
    with connection(options) as other:
        has = facts(other, wanted.stream)
    if has.first > at:
        if not wanted.from_first:
            lost(options, wanted.stream, span(at, to), _there(has), "retention has passed the reader")
    elif has.incarnation:
        lost(options, wanted.stream, span(at, to), _there(has), "records inside it are missing")
    return to
