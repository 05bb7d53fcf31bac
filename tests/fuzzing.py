# SPDX-License-Identifier: Apache-2.0
"""How tests feed random input: so many steps, and where VIBEMQ_FUZZ_SECONDS is set as many more as there is time for.

    random_ = seeded()
    for step in steps(300):
        ...

A count is what a slow machine does as well as a fast one, only later.  VIBEMQ_FUZZ_SEED repeats a run that failed.
"""

from __future__ import annotations

import itertools
import os
import random
import time
from collections.abc import Iterator

SECONDS = float(os.environ.get("VIBEMQ_FUZZ_SECONDS", "0"))
LIMIT_S = SECONDS * 3 + 120  # for the timeout of such a test; the steps are counted to take some two seconds


def seeded() -> random.Random:
    seed = int(os.environ.get("VIBEMQ_FUZZ_SEED", time.time_ns() % 2**32))
    print(f"VIBEMQ_FUZZ_SEED={seed}")  # pytest shows it when the test fails
    return random.Random(seed)


def steps(count: int) -> Iterator[int]:
    """Counts from 1 on."""
    end = time.monotonic() + SECONDS
    for step in itertools.count(1):
        if step > count and time.monotonic() >= end:
            return
        yield step
