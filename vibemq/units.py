# SPDX-License-Identifier: Apache-2.0
"""Sizes and times as people write them: `30MB`, `1.5GiB`, `250ms`, `1h`.

A unit belongs to the text; which unit a bare number has, the option says.
"""

import re
from fractions import Fraction

SIZES = {"b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
         "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}  # fmt: skip
TIMES_MS = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
#: What an option's name ends with, the units that it takes, how many of theirs make one of its own, and an example.
OF_OPTIONS = {"_bytes": (SIZES, 1, "64MB"), "_ms": (TIMES_MS, 1, "500ms"), "_s": (TIMES_MS, 1000, "30s")}
_WRITTEN = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,9})?)\s*([A-Za-z]+)", re.ASCII)


def in_units(text: str, units: dict[str, int], one: int = 1) -> int | None:
    """Return how many times `one` a text such as 30MB is; None: it is not written so, or not a whole number of them."""
    match = _WRITTEN.fullmatch(text.strip())
    if match is None or match[2].lower() not in units:
        return None
    found = Fraction(match[1]) * units[match[2].lower()] / one
    return int(found) if found.denominator == 1 else None


def of_option(name: str, text: str) -> int | None:
    """Return the number that a text with a unit means for an option whose name ends with its own unit, or None."""
    for ending, (units, one, _) in OF_OPTIONS.items():
        if name.endswith(ending):
            return in_units(text, units, one)
    return None


def example_of(name: str) -> str:
    """Return how a value with a unit is written for such an option; empty: it has none."""
    return next((example for ending, (_, _, example) in OF_OPTIONS.items() if name.endswith(ending)), "")
