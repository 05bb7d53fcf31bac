# SPDX-License-Identifier: Apache-2.0
"""The tasks of a plan: ranges, cut where the broker says that they may be.

Cuts are counted from the end of a range and depend on that, the options and the stream's chunks alone, so a batch that
is replayed has the same tasks, even where retention has removed its beginning meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

from vibemq.client.plans import NOT_SAID, WantedRange
from vibemq.errors import ConfigError
from vibemq.spark import ranges
from vibemq.spark.client import Facts, ask, names
from vibemq.spark.offsets import Positions
from vibemq.spark.options import Options
from vibemq.spark.places import ALL, EARLIEST, Place
from vibemq.spark.pushdown import Bounds, narrowed
from vibemq.spark.ranges import Range

NAMES_SAID_MAX = 10  # in an error


def parts(wanted: Iterable[Range], has: Mapping[str, Facts]) -> list[Range]:
    """What each range is cut into, in an order that does not depend on the order asked; empty ones are left out."""
    found = []
    for each in sorted(wanted):
        there = has.get(each.stream)
        begin = each.start
        for cut in (*(there.cuts if there else ()), each.end):
            if begin < cut <= each.end:
                found.append(each._replace(start=begin, end=cut))
                begin = cut
    return found


def filtered(options: Options, taken: Any, some: Iterable[Range]) -> list[list[Range]]:
    """Of each part what lies in chunks that may hold messages of the `filterValues`; parts without any are left out."""
    found = []
    for part in some:
        spans = taken.filter_range(
            part.stream,
            part.start,
            part.end,
            options.filter_values,
            match_unfiltered=options.filter_match_unfiltered,
        )
        found.append([part._replace(start=start, end=end) for start, end in spans])
    return [spans for spans in found if spans]


def with_cuts(options: Options, wanted: Iterable[Range]) -> list[WantedRange]:
    """The question that finds their cuts."""
    some = [each for each in wanted if each.start < each.end]
    records = _records_most(options, sum(each.end - each.start for each in some))
    return [
        WantedRange(
            each.stream,
            each.start,
            each.end,
            split_bytes=options.max_bytes_per_partition,
            split_records=records,
        )
        for each in some
    ]


def _records_most(options: Options, total: int) -> int:
    """How many records a part may have; 0: any number."""
    even = -(-total // options.min_partitions) if options.min_partitions else 0
    return min(filter(None, (options.max_records_per_partition, even)), default=0)


def _check_names(named: Iterable[str], has: Mapping[str, Facts], option: str) -> None:
    for name in named:
        if name != ALL and name not in has:
            some = ", ".join(list(has)[:NAMES_SAID_MAX]) + (", ..." if len(has) > NAMES_SAID_MAX else "")
            raise ConfigError(f"option {option}: {name!r} is no stream that is read; {some or 'none'} is")


def starts(options: Options, taken: Any, has: Mapping[str, Facts], default: Place, now_ms: int) -> Positions:
    """Where a new query begins in each stream. ConfigError: an option names a stream that is not there."""
    _check_names(options.starting, has, "startingOffsets or startingOffsetsByTimestamp")
    return {
        stream: ranges.start_position(options, taken, stream, there, default, now_ms) for stream, there in has.items()
    }


def questions_at(options: Options, streams: Iterable[str], default: Place, now_ms: int) -> list[WantedRange]:
    """The question about streams from which it can be told where a query begins."""
    found = []
    for stream in streams:
        time_ms = options.start_of(stream, default).time_ms(now_ms)
        found.append(WantedRange(stream, timestamp=NOT_SAID if time_ms is None else time_ms))
    return found


def batch(options: Options, taken: Any, asked: Bounds | None = None) -> list[Range]:
    """The tasks of a batch read, checked against what is there, within the bounds that are asked for.

    One round trip; with a super stream or a pattern one more for the names, with `minPartitions`, an end in time or
    bounds one more for the cuts.
    """
    now_ms = time.time_ns() // 1_000_000
    records = options.max_records_per_partition or 0
    streams = names(taken, options)
    questions = []
    for question in questions_at(options, streams, EARLIEST, now_ms):
        end = options.end_of(question.stream)
        questions.append(
            question._replace(
                end=end.value if end.kind == "offset" else NOT_SAID,
                split_bytes=options.max_bytes_per_partition,
                split_records=records,
            )
        )
    has = ask(taken, questions)
    begin = starts(options, taken, has, EARLIEST, now_ms)
    ends, cut_again = _ends(options, taken, has, now_ms)
    wanted = [
        ranges.batch_range(options, stream, begin[stream].offset, ends[stream], there) for stream, there in has.items()
    ]
    if asked:
        wanted = narrowed(taken, wanted, asked, has)
    if options.min_partitions or cut_again or asked:
        has |= ask(taken, with_cuts(options, wanted))
    return parts(wanted, has)


def _ends(options: Options, taken: Any, has: Mapping[str, Facts], now_ms: int) -> tuple[dict[str, int], bool]:
    """Where a batch read ends in each stream, and whether one of them is a time."""
    _check_names(options.ending, has, "endingOffsets or endingOffsetsByTimestamp")
    timed = {stream: time_ms for stream in has if (time_ms := options.end_of(stream).time_ms(now_ms)) is not None}
    asked = ask(taken, [WantedRange(stream, timestamp=time_ms) for stream, time_ms in timed.items()]) if timed else {}
    told = {**has, **asked}
    return {stream: ranges.end_offset(options, taken, stream, told[stream], now_ms) for stream in has}, bool(timed)


def within_bytes(
    options: Options, taken: Any, *, begin: Positions, end: Positions, has: Mapping[str, Facts] | None
) -> Positions:
    """The end of a batch of at most `bytes_per_trigger` bytes of chunks, at a chunk's end.

    `has`: the broker's answer to that limit and this beginning, where it was asked. Each stream gets a share in
    proportion to what waits in it, and one chunk at least.
    """
    most = options.bytes_per_trigger
    waiting = [stream for stream in sorted(end) if begin[stream].offset < end[stream].offset]
    if not most or not waiting:
        return end

    def limits(shares: Mapping[str, int]) -> dict[str, Facts]:
        return ask(
            taken,
            [
                WantedRange(stream, begin[stream].offset, end[stream].offset, bytes_max=share)
                for stream, share in shares.items()
            ],
        )

    has = has or limits(dict.fromkeys(waiting, most))
    total = sum(has[stream].waiting_bytes for stream in waiting)
    if len(waiting) > 1:
        if total <= most:
            return end
        has = limits({stream: max(1, has[stream].waiting_bytes * most // total) for stream in waiting})
    limits_of = {stream: max(has[stream].limit, begin[stream].offset + 1) for stream in waiting}
    return end | {stream: end[stream]._replace(offset=min(end[stream].offset, limits_of[stream])) for stream in waiting}
