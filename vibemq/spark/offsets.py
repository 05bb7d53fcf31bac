# SPDX-License-Identifier: Apache-2.0
"""Where a query stands in its streams, as Spark's checkpoint holds it.

Spark compares two offsets as strings, so there is one way to write one: keys sorted, one function. A position is the
next offset to read, together with the incarnation of the stream it counts in, because a stream that was deleted and
made again counts from 0 and an old position would silently mean other records.

    {"v":1,"s":{"orders":{"i":"5f2c9b","o":1200345}}}

The end of a query's first batch also holds where that batch began, under "b" in the same shape as under "s". Spark logs
only ends, and asks a new query anew where it begins when it replays its first batch; by then the end of a stream, or
ten minutes ago, is another place.

All functions are pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from vibemq.errors import ConfigError

VERSION = 1
OFFSET_MAX = (1 << 63) - 1  # Spark's BIGINT


class Position(NamedTuple):
    """The next offset to read, and the incarnation it counts in ("" where the broker names none)."""

    incarnation: str
    offset: int


Positions = dict[str, Position]


def to_dict(positions: Mapping[str, Position], began: Mapping[str, Position] | None = None) -> dict[str, Any]:
    """The canonical form: what is equal is written in the same bytes. `began`: where the query's first batch did."""
    written = {"v": VERSION, "s": _streams(positions)}
    return written if began is None else {**written, "b": _streams(began)}


def _streams(positions: Mapping[str, Position]) -> dict[str, Any]:
    return {name: {"i": positions[name].incarnation, "o": positions[name].offset} for name in sorted(positions)}


def from_dict(written: Any) -> Positions:
    """Read what `to_dict` wrote. ConfigError says what is wrong with anything else."""
    if not isinstance(written, dict) or not isinstance(written.get("v"), int):
        raise ConfigError(f"a checkpoint offset must be an object with a version, not {written!r:.200}")
    if written["v"] > VERSION:
        raise ConfigError(
            f"the checkpoint was written by a newer VibeMQ (offset version {written['v']}, this one knows {VERSION})"
        )
    streams = written.get("s")
    if written["v"] != VERSION or not isinstance(streams, dict):
        raise ConfigError(f"a checkpoint offset must hold version {VERSION} and streams, not {written!r:.200}")
    return {name: _position(name, streams[name]) for name in sorted(streams)}


def began(written: Any) -> Positions | None:
    """Where the first batch of a query began, from the offset that it ends at; None in any other."""
    return from_dict({"v": written["v"], "s": written["b"]}) if "b" in written else None


def _position(name: str, written: Any) -> Position:
    match written:
        case {"i": str(incarnation), "o": int(offset)} if not isinstance(offset, bool) and 0 <= offset <= OFFSET_MAX:
            return Position(incarnation, offset)
    raise ConfigError(f"position of stream {name!r} in the checkpoint must hold i and o, not {written!r:.200}")


def backlog(start: Mapping[str, Position], tail: Mapping[str, Position]) -> dict[str, int]:
    """How many records lie between two positions, for each stream of `tail`; never negative."""
    return {name: max(0, tail[name].offset - start[name].offset) for name in tail}


def limited(start: Mapping[str, Position], tail: Mapping[str, Position], rows_max: int) -> Positions:
    """The end of a batch of at most `rows_max` records that starts at `start`.

    The limit is shared in proportion to each stream's backlog, and every stream with a
    backlog gets at least one record, so a small one is never starved by a large one. With
    fewer rows than streams the batch is one record from each: progress before the limit.
    """
    waiting = {name: count for name, count in backlog(start, tail).items() if count}
    total = sum(waiting.values())
    if total <= rows_max:
        return dict(tail)
    shares = {name: max(1, count * rows_max // total) for name, count in waiting.items()}
    over = sum(shares.values()) - rows_max
    for name in sorted(shares, key=lambda name: (-shares[name], name)):
        if over <= 0:
            break
        given_back = min(over, shares[name] - 1)
        shares[name] -= given_back
        over -= given_back
    ends = {name: Position(tail[name].incarnation, start[name].offset + share) for name, share in shares.items()}
    return {**tail, **ends}
