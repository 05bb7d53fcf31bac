# SPDX-License-Identifier: Apache-2.0
"""Ranges of offsets: (first, end) in rising order, which neither overlap nor touch.

A list of ranges is never changed in place, so several may hold the same one.
"""

from collections.abc import Iterable, Sequence

Range = tuple[int, int]


def joined(*parts: Iterable[Range]) -> list[Range]:
    """What is in any of them; each part may be in any order, and have ranges that are empty."""
    found: list[Range] = []
    for first, end in sorted([each for part in parts for each in part]):
        if first >= end:
            continue
        if found and first <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((first, end))
    return found


def without(ranges: Iterable[Range], taken: Sequence[Range]) -> list[Range]:
    """What is in `ranges` and not in `taken`."""
    found: list[Range] = []
    passed = 0
    for first, end in ranges:
        while passed < len(taken) and taken[passed][1] <= first:
            passed += 1
        at = passed
        while at < len(taken) and taken[at][0] < end:
            if first < taken[at][0]:
                found.append((first, taken[at][0]))
            first = max(first, taken[at][1])
            at += 1
        if first < end:
            found.append((first, end))
    return found


def length(ranges: Iterable[Range]) -> int:
    return sum(end - first for first, end in ranges)


def fewer(ranges: Sequence[Range], most: int) -> list[Range]:
    """Return at most `most` ranges that cover `ranges`: neighbours are joined in pairs until they fit."""
    found = list(ranges)
    while len(found) > most:
        found = [(pair[0][0], pair[-1][1]) for pair in (found[at : at + 2] for at in range(0, len(found), 2))]
    return found
