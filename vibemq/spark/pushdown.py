# SPDX-License-Identifier: Apache-2.0
"""What a batch query's conditions on `offset`, `timestamp` and `stream` leave of its ranges, where Spark says them.

They only make ranges smaller: Spark applies each condition again to the rows that it gets, so a range may have more
than they ask for. Times narrow only where chunks never go back in time, which ours do not; another broker's clock may.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

from vibemq.client.plans import WantedRange
from vibemq.spark.client import Facts, ask
from vibemq.spark.ranges import Range

EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
MS = datetime.timedelta(milliseconds=1)


class Span(NamedTuple):
    """Whole numbers from the least up to below the end; None: no bound."""

    least: int | None = None
    end: int | None = None

    def meet(self, other: Span) -> Span:
        """What is in both."""
        leasts = [each.least for each in (self, other) if each.least is not None]
        ends = [each.end for each in (self, other) if each.end is not None]
        return Span(max(leasts, default=None), min(ends, default=None))


class Bounds(NamedTuple):
    """Of offsets, and of times in ms; a stream's name has to pass all of `names`."""

    offsets: Span = Span()
    times_ms: Span = Span()
    names: tuple[Callable[[str], bool], ...] = ()

    def take(self, stream: str) -> bool:
        return all(holds(stream) for holds in self.names)


NAMES: dict[str, Callable[[Any, str], bool]] = {
    "EqualTo": lambda value, name: name == value,
    "In": lambda value, name: name in value,
    "StringStartsWith": lambda value, name: name.startswith(value),
    "StringEndsWith": lambda value, name: name.endswith(value),
    "StringContains": lambda value, name: value in name,
}


def bounds(filters: Iterable[Any]) -> Bounds:
    """What all the filters of pyspark.sql.datasource ask for together; what says nothing here is passed over."""
    found = Bounds()
    for each in filters:
        column, value = getattr(each, "attribute", None), getattr(each, "value", None)
        kind = type(each).__name__.replace("EqualNullSafe", "EqualTo")
        if value is None:
            continue
        if column == ("stream",) and kind in NAMES:
            found = found._replace(names=(*found.names, partial(NAMES[kind], value)))
        elif column == ("offset",):
            found = found._replace(offsets=found.offsets.meet(_span(kind, value, lambda offset: (offset, offset + 1))))
        elif column == ("timestamp",):
            found = found._replace(times_ms=found.times_ms.meet(_span(kind, value, _around)))
    return found


def _around(time: datetime.datetime) -> tuple[int, int]:
    """The first whole ms that is not before a time, and the first that is after it."""
    since = (time if time.tzinfo else time.astimezone()) - EPOCH
    return -(-since // MS), since // MS + 1


def _span(kind: str, value: Any, around: Callable[[Any], tuple[int, int]]) -> Span:
    """`around` gives the first whole number that is not below a value, and the first above it."""
    if kind == "In":
        values = [around(each) for each in value if each is not None]
        return Span(min(least for least, _ in values), max(end for _, end in values)) if values else Span()
    least, above = around(value)
    return {
        "EqualTo": Span(least, above),
        "GreaterThan": Span(above),
        "GreaterThanOrEqual": Span(least),
        "LessThan": Span(None, least),
        "LessThanOrEqual": Span(None, above),
    }.get(kind, Span())


def narrowed(taken: Any, wanted: Iterable[Range], asked: Bounds, has: Mapping[str, Facts]) -> list[Range]:
    """The ranges within the bounds; a round trip for each bound of the time."""
    found = {each.stream: each for each in wanted if asked.take(each.stream)}
    for bound, is_start in ((asked.times_ms.least, True), (asked.times_ms.end, False)):
        timed = [name for name in found if bound is not None and has[name].incarnation]
        told = ask(taken, [WantedRange(name, timestamp=max(0, bound or 0)) for name in timed]) if timed else {}
        for name, there in told.items():
            at = there.at_timestamp
            found[name] = _within(found[name], Span(at) if is_start else Span(None, at))
    return [_within(each, asked.offsets) for each in found.values()]


def _within(each: Range, span: Span) -> Range:
    start = each.start if span.least is None else min(max(each.start, span.least), each.end)
    return each._replace(start=start, end=each.end if span.end is None else max(start, min(each.end, span.end)))
