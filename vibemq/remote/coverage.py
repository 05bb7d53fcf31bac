# SPDX-License-Identifier: Apache-2.0
"""Would a restore find every chunk of a stream that is in no segment of the store yet?

Write-ahead objects are given in any order, and may hold the same bytes more than once.
"""

from bisect import bisect_left
from dataclasses import dataclass, field

from vibemq.remote.objects import Chunks, Sections, SegmentBegins
from vibemq.storage.log import SEGMENT_HEADER_BYTES

#: The suspect position in a segment's header, by the header's version: not 0 where the segment before it was
#: given up (csrc/log/FORMAT.md).
_VERSION = slice(4, 8)
_SUSPECT = {1: slice(48, 56), 2: slice(44, 48)}


@dataclass
class _Segment:
    has_begin: bool = False
    follows_suspect: bool = False
    next: int = 0
    spans: list[tuple[int, int]] = field(default_factory=list)  # of its bytes, rising, none touches another

    def cover(self, start: int, end: int) -> None:
        at = bisect_left(self.spans, (start, start))
        if at and self.spans[at - 1][1] >= start:
            at -= 1
        upto = at
        while upto < len(self.spans) and self.spans[upto][0] <= end:
            start, end = min(start, self.spans[upto][0]), max(end, self.spans[upto][1])
            upto += 1
        self.spans[at:upto] = [(start, end)]

    def fault(self) -> str:
        if not self.has_begin:
            return "its beginning"
        if self.spans and self.spans[0][0] != SEGMENT_HEADER_BYTES:
            return f"its bytes before {self.spans[0][0]}"
        return f"its bytes {self.spans[0][1]} to {self.spans[1][0] - 1}" if len(self.spans) > 1 else ""


class Coverage:
    """Of all streams, by their incarnations."""

    def __init__(self) -> None:
        self._segments: dict[str, dict[int, _Segment]] = {}

    def add(self, section: Sections) -> None:
        if isinstance(section, SegmentBegins):
            found = self._segment(section.incarnation, section.first)
            found.has_begin = True
            suspect = _SUSPECT.get(int.from_bytes(section.header[_VERSION]), _SUSPECT[2])
            found.follows_suspect = any(section.header[suspect])
        elif isinstance(section, Chunks):
            found = self._segment(section.incarnation, section.segment)
            found.cover(section.position, section.position + len(section.data))
            found.next = max(found.next, section.next)

    def _segment(self, incarnation: str, first: int) -> _Segment:
        return self._segments.setdefault(incarnation, {}).setdefault(first, _Segment())

    def hole(self, incarnation: str, in_store: int) -> str:
        """What is missing first of a stream whose segments of the store end before offset ``in_store``; "": nothing."""
        of_one = self._segments.get(incarnation, {})
        expected = in_store  # 0: whatever retention has left
        for first in sorted(first for first in of_one if first >= in_store):
            segment = of_one[first]
            if expected and first > expected and not segment.follows_suspect:
                return f"offsets {expected} to {first - 1} are in no segment of the store and in no write-ahead object"
            if fault := segment.fault():
                return f"of the segment that begins at offset {first}, {fault} are in no write-ahead object"
            expected = segment.next or first
        return ""
