# SPDX-License-Identifier: Apache-2.0
"""When messages expire, by a clock that never jumps.

A message's age counts from its arrival.  For messages that arrive while the home watches, that is
when it heard of them, by the monotonic clock: a sparse list of marks (so many messages
existed at that time) is enough, and it is bounded however many messages wait.  The log says which of the
messages that were there before are older than the time to live (csrc/log/upkeep.h): in the boot in which they were
stored whatever the wall clock says, after another boot while the wall clock is believed.  They are at least as old as
the home, so they expire then at the latest.  So setting the machine's clock neither expires messages early nor keeps
them.

No message expires early.  A caller reads the end of the log first and the clock afterwards, and rounds up: the
time of a mark is no earlier than the arrival of any message below it.  The clock of a loop's turn is too early: other
workers append while the turn runs.
"""

from __future__ import annotations

import bisect
from collections import deque
from collections.abc import Callable

MARKS = 1024  # a message may live longer than its time by one part in so many
GRAIN_MS_MIN = 10

NEVER = 2**63 - 1


class Expiry:
    """For one queue with a time to live.

    ``older_end(start, age_ms)`` gives the end of the messages from ``start`` on that are known to be older.
    """

    def __init__(self, ttl_ms: int, now_ms: int, next_offset: int, older_end: Callable[[int, int], int]) -> None:
        self.ttl_ms = ttl_ms
        self.grain_ms = max(GRAIN_MS_MIN, ttl_ms // MARKS)
        self.before = next_offset  # messages below were there when the home began
        self.older_end = older_end
        self.marks = deque([(next_offset, now_ms)])  # (next offset, monotonic ms), both rising
        self.mark_began_ms = self.looked_ms = now_ms
        self.expired = 0

    def arrived(self, next_offset: int, now_ms: int) -> None:
        """Messages up to ``next_offset`` exist now."""
        if next_offset <= (self.marks[-1][0] if self.marks else self.expired):
            return
        if self.marks and self.marks[-1][0] > self.before and now_ms - self.mark_began_ms < self.grain_ms:
            self.marks[-1] = (next_offset, now_ms)
        else:
            self.marks.append((next_offset, now_ms))
            self.mark_began_ms = self.looked_ms = now_ms

    def expired_below(self, now_ms: int) -> int:
        """Every message with a lower offset has expired."""
        if self.expired < self.before and now_ms >= self.looked_ms:
            self.looked_ms = now_ms + self.grain_ms
            old = self.older_end(self.expired, self.ttl_ms)
            self.expired = max(self.expired, min(old, self.before))
        while self.marks and self.marks[0][1] + self.ttl_ms <= now_ms:
            self.expired = max(self.expired, self.marks.popleft()[0])
        return self.expired

    def due_ms(self, now_ms: int, oldest: int) -> int:
        """When to look again, if ``oldest`` is the first message that waits."""
        if oldest < self.before:
            return self.looked_ms
        first = bisect.bisect_right(self.marks, oldest, key=lambda mark: mark[0])
        return self.marks[first][1] + self.ttl_ms if first < len(self.marks) else NEVER
