# SPDX-License-Identifier: Apache-2.0
"""Ranges of offsets to Spark partitions.

Planning is a pure function of its arguments, so a batch that Spark replays after a crash
is cut in the same way. One range is one task now; where a range is to be read by several
tasks, `split` is the one place that decides.

A range travels to the executors and into Spark's logs: it holds no secret and is small.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from pyspark.sql.datasource import InputPartition


class Range(NamedTuple):
    """The records [start, end) of one incarnation of a stream.

    `from_first`: the range begins at whatever the first retained record is, because the
    records asked for belonged to a stream that is gone and the user said to go on.
    """

    stream: str
    incarnation: str
    start: int
    end: int
    from_first: bool = False


def split(wanted: Range) -> Iterator[Range]:
    """The parts of a range that are read by tasks of their own; together they are the range."""
    if wanted.start < wanted.end:
        yield wanted


def plan(ranges: Iterable[Range]) -> list[InputPartition]:
    """The tasks for these ranges, in the order of stream names; empty ranges need none."""
    ordered = sorted(ranges, key=lambda each: (each.stream, each.start))
    return [InputPartition(part) for each in ordered for part in split(each)]
