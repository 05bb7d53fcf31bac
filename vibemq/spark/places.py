# SPDX-License-Identifier: Apache-2.0
"""Where in a stream a read begins or ends, as options say it: a word, an offset, a time, or so far before the end.

All functions are pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from vibemq.errors import ConfigError

OFFSET_MAX = (1 << 63) - 1
TIME_MAX_MS = 1 << 62
UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION = re.compile(r"(\d{1,12})\s*(ms|s|m|h|d)")


class Place(NamedTuple):
    """`kind` is earliest, latest, offset, last (so many records before the end), time (ms since 1970) or ago (ms)."""

    kind: str
    value: int = 0

    def time_ms(self, now_ms: int) -> int | None:
        """The time it means, if it means one."""
        if self.kind == "ago":
            return max(0, now_ms - self.value)
        return self.value if self.kind == "time" else None


EARLIEST, LATEST = Place("earliest"), Place("latest")
NUMBERS = {-2: EARLIEST, -1: LATEST}  # Kafka's, in offset JSON
ALL = "*"  # instead of a stream's name
Places = dict[str, Place]


def duration_ms(name: str, text: str) -> int:
    """`500ms`, `10s`, `15m`, `2h`, `1d`."""
    found = _DURATION.fullmatch(text.strip().lower())
    if found is None:
        raise ConfigError(f"option {name}: {text!r} is not a number with ms, s, m, h or d behind it, such as 15m")
    return int(found[1]) * UNITS_MS[found[2]]


def offsets(name: str, text: str, streams: tuple[str, ...], *, start: bool) -> Places:
    """Kafka's forms, a word for all streams or an object with an offset for each; and `last:N` and `-10m`.

    `streams`: those that are read, where they are known.
    """
    if (place := _word(name, text, start)) is not None:
        return {ALL: place}
    words = "earliest, latest, last:1000, -10m" if start else "latest, -10m"
    example = json.dumps({streams[0] if streams else "orders-0": 0})
    given = _object(name, text, streams, f"{words} or an object such as {example}")

    def read(stream: str, value: Any) -> Place:
        if isinstance(value, str) and (place := _word(name, value, start)) is not None:
            return place
        if type(value) is int and (0 <= value <= OFFSET_MAX):
            return Place("offset", value)
        if type(value) is int and value in NUMBERS and (start or NUMBERS[value] is LATEST):
            return NUMBERS[value]
        raise ConfigError(f"option {name}: {value!r} is not an offset of stream {stream!r}")

    return {stream: read(stream, value) for stream, value in given.items()}


def times(name: str, text: str, streams: tuple[str, ...]) -> Places:
    """An object with a time for each stream, in ms since 1970."""
    example = json.dumps({streams[0] if streams else "orders-0": 1700000000000})
    given = _object(name, text, streams, f"an object such as {example}")
    for stream, value in given.items():
        if type(value) is not int or not 0 <= value <= TIME_MAX_MS:
            raise ConfigError(f"option {name}: {value!r} is not a time in milliseconds for stream {stream!r}")
    return {stream: Place("time", value) for stream, value in given.items()}


def _word(name: str, text: str, start: bool) -> Place | None:
    word = text.strip().lower()
    if word == "latest" or (word == "earliest" and start):
        return Place(word)
    if word.startswith("last:") and start:
        if not word[5:].isdecimal() or not 0 < int(word[5:]) <= OFFSET_MAX:
            raise ConfigError(f"option {name}: {text!r} needs a number of records from 1 on, such as last:1000")
        return Place("last", int(word[5:]))
    if word.startswith("-") and not word[1:].isdecimal():
        return Place("ago", duration_ms(name, word[1:]))
    return None


def _object(name: str, text: str, streams: tuple[str, ...], wanted: str) -> Mapping[str, Any]:
    try:
        given: Any = json.loads(text)
    except json.JSONDecodeError:
        raise ConfigError(f"option {name}: {text!r} is not {wanted}") from None
    if not isinstance(given, dict):
        raise ConfigError(f"option {name}: {text!r} is not {wanted}")
    if streams and set(given) != set(streams):
        odd = ", ".join(sorted(set(given) ^ set(streams)))
        raise ConfigError(f"option {name}: it must name exactly the streams that are read; look at {odd}")
    return given


def resolve(place: Place, first: int, end: int, offset_of_time: Callable[[int], int], now_ms: int) -> int:
    """The offset it means in a stream that has [first, end); `offset_of_time` gives `end` where none is that young."""
    time_ms = place.time_ms(now_ms)
    if time_ms is not None:
        return offset_of_time(time_ms)
    return {"earliest": first, "latest": end, "last": max(first, end - place.value)}.get(place.kind, place.value)
