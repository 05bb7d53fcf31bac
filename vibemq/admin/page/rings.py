# SPDX-License-Identifier: Apache-2.0
"""The last hour, a point every few seconds: rings of numbers whose size is known before the first one comes.

All rings turn together: point ``n`` lies in each at ``n % POINTS``, and its time is kept once. A series that began
later has no points before that.
"""

from __future__ import annotations

import math
import secrets
from array import array
from collections.abc import Mapping, Set
from typing import Any

POINT_S = 5.0  # between two points
POINTS = 720  # an hour of them
STREAMS_MAX = 256  # of which an hour is remembered, those that were used or looked at last: 12 KB each, 3 MB in all
_NOTHING = math.nan


class Series:
    """Some figures over time, by name."""

    def __init__(self, names: tuple[str, ...], begun: int) -> None:
        self._values = {name: array("f", [_NOTHING]) * POINTS for name in names}
        self._begun = begun  # the first point

    def put(self, point: int, values: Mapping[str, float]) -> None:
        for name, ring in self._values.items():
            ring[point % POINTS] = values.get(name, _NOTHING)

    def since(self, point: int, end: int) -> dict[str, list[float | None]]:
        """Of each the points from there up to ``end``; None where nothing was measured."""
        return {
            name: [
                None if at < self._begun or math.isnan(value := ring[at % POINTS]) else round(value, 2)
                for at in range(point, end)
            ]
            for name, ring in self._values.items()
        }


class History:
    """The broker's series, and those of the streams that were used last. For one writer; readers hold its lock."""

    def __init__(self, broker: tuple[str, ...], stream: tuple[str, ...]) -> None:
        self._times = array("d", [0.0]) * POINTS
        self.end = 0  # of the points that there are
        self._began = secrets.token_hex(8)  # of another history the same numbers are other points
        self._broker, self._stream_names = Series(broker, 0), stream
        self._streams: dict[str, Series] = {}  # by incarnation; the one that was of use last comes last

    def put(self, at_s: float, values: Mapping[str, float], streams: Mapping[str, Mapping[str, float]]) -> None:
        """One point more; ``streams`` has those that are remembered, and those where something happened."""
        point = self.end
        self._times[point % POINTS] = at_s
        self._broker.put(point, values)
        for incarnation, figures in streams.items():
            if any(figures[name] for name in ("published", "delivered", "acked", "lost")):
                self.want(incarnation)
        for incarnation, series in self._streams.items():
            series.put(point, streams.get(incarnation, {}))
        self.end = point + 1

    @property
    def remembered(self) -> Set[str]:
        return self._streams.keys()

    def want(self, incarnation: str) -> None:
        """Remember this stream from now on; the one that was of no use for longest is forgotten for it."""
        found = self._streams.pop(incarnation, None)
        if found is None and len(self._streams) >= STREAMS_MAX:
            del self._streams[next(iter(self._streams))]
        self._streams[incarnation] = found or Series(self._stream_names, self.end)

    def broker_since(self, point: int) -> dict[str, Any]:
        return self._since(self._broker, point)

    def stream_since(self, incarnation: str, point: int) -> dict[str, Any]:
        """Nothing of a stream that is not remembered."""
        return self._since(self._streams.get(incarnation), point)

    def _since(self, series: Series | None, point: int) -> dict[str, Any]:
        first = min(max(point, self.end - POINTS, 0), self.end)
        return {
            "began": self._began,
            "end": self.end,
            "times": [round(self._times[at % POINTS], 1) for at in range(first, self.end)],
            "series": {} if series is None else series.since(first, self.end),
        }
