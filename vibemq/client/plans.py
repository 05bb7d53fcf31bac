# SPDX-License-Identifier: Apache-2.0
"""What a broker of ours tells somebody who plans to read ranges of streams (StreamsConnection.plan_reads)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

NOT_SAID = -1
RANGES_COUNT_MAX = 512  # of one question: with the longest names still well below the size of a command


class WantedRange(NamedTuple):
    """The offsets [start, end) of a stream, and in what parts; NOT_SAID is what the broker has, 0 no limit."""

    stream: str
    start: int = NOT_SAID
    end: int = NOT_SAID
    timestamp: int = NOT_SAID  # ms since 1970: `at_timestamp` is wanted
    bytes_max: int = 0  # `limit` is wanted
    split_bytes: int = 0
    split_records: int = 0


class PlannedStream(NamedTuple):
    """One stream: it has the offsets [first, next); a power cut or a lost machine may take those from `durable` on.

    `limit` is the end of at most bytes_max bytes of chunks from the start on, of one chunk at least. `cuts` rise, each
    is the offset of a chunk's first message: they depend on the end, the limits and the chunks alone.
    """

    stream: str
    code: int
    incarnation: str = ""
    is_disk_durable: bool = False
    first: int = 0
    next: int = 0
    durable: int = 0
    stored: int | None = None
    at_timestamp: int = 0
    limit: int = 0
    waiting_bytes: int = 0  # from the start to `next`
    size_bytes: int = 0
    address: tuple[str, int] = ("", 0)
    cuts: tuple[int, ...] = ()


class Plan(NamedTuple):
    """`directory` is where the streams' logs lie, by incarnation, for who is on the broker's machine; else "".

    `store` is what the file `identity` beside that directory holds, if it is the broker's.
    """

    store: str
    directory: str
    streams: dict[str, PlannedStream]


def plan(ask: Callable[..., Any], ranges: list[WantedRange], reference: str, super_stream: str) -> Plan:
    """Ask, in pieces of RANGES_COUNT_MAX, and again where there were more cuts than go into one answer."""
    found: dict[str, PlannedStream] = {}
    told: Any = None
    for begin in range(0, max(len(ranges), 1), RANGES_COUNT_MAX):
        asked = ranges[begin : begin + RANGES_COUNT_MAX]
        answer = ask(ranges=asked, reference=reference, super_stream="" if told else super_stream)
        told = told or answer
        found |= {item.stream: _planned(item) for item in answer.streams}
        while again := _uncut(asked, answer):
            asked, answer = again, ask(ranges=again, reference="", super_stream="")
            for item in answer.streams:
                had = found[item.stream]
                found[item.stream] = had._replace(cuts=(*item.cuts, *had.cuts))
    return Plan(told.store, told.directory, found)


def _uncut(asked: list[WantedRange], answer: Any) -> list[WantedRange]:
    """What is left to be cut of the ranges asked for."""
    wanted = {each.stream: each for each in asked if each.split_bytes or each.split_records}
    again = []
    for item in answer.streams:
        each = wanted.get(item.stream)
        if each is not None and item.uncut > (start := max(each.start, item.first)):
            again.append(each._replace(start=start, end=item.uncut))
    return again


def _planned(item: Any) -> PlannedStream:
    said = {name: getattr(item, name) for name in PlannedStream._fields if hasattr(item, name)}
    said |= {"stored": None if item.stored == NOT_SAID else item.stored, "cuts": tuple(item.cuts)}
    return PlannedStream(is_disk_durable=bool(item.durability), address=(item.host, item.port), **said)
