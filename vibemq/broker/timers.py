# SPDX-License-Identifier: Apache-2.0
"""Things to do at a time: one heap for each worker, asked once in every turn of its loop.

A timer belongs to whoever made it and has one due time, which may be moved as often as
one likes: an earlier one goes into the heap, a later one is noticed when the old one comes up.
"""

from __future__ import annotations

import heapq
import itertools
import logging
from collections.abc import Callable

from vibemq.once_a_minute import OnceAMinute

NEVER = 2**63 - 1
OVER_MIN = 64  # so many timers that are over may stay in the heap: less is not worth a look at all of it

logger = logging.getLogger(__name__)
faults = OnceAMinute(logger, logging.ERROR)


def _nothing(now_ms: int) -> None:
    """What a timer does that is over."""


class Timer:
    """Calls ``do(now_ms)`` once the loop's clock has passed ``due_ms``; set it again to go on."""

    __slots__ = ("_queued_ms", "_timers", "do", "due_ms", "is_over")

    def __init__(self, timers: Timers, do: Callable[[int], None]) -> None:
        self._timers = timers
        self.do = do
        self.due_ms = NEVER
        self._queued_ms = NEVER
        self.is_over = False

    def set(self, due_ms: int) -> None:
        """Move it; NEVER switches it off."""
        self.due_ms = due_ms
        if due_ms < self._queued_ms:
            self._queued_ms = due_ms
            self._timers.push(self, due_ms)

    def at_most(self, due_ms: int) -> None:
        """Move it if that makes it earlier."""
        if due_ms < self.due_ms:
            self.set(due_ms)

    def cancel(self) -> None:
        self.due_ms = NEVER

    def end(self) -> None:
        """Off for good: whoever made it is done, and is not kept in memory until the time it was set to."""
        self.due_ms = NEVER
        self.do = _nothing
        if not self.is_over:
            self.is_over = True
            if self._queued_ms != NEVER:
                self._timers.count_over()

    def ring(self, queued_ms: int, now_ms: int) -> None:
        if queued_ms != self._queued_ms:
            return  # an earlier place in the heap has taken over
        self._queued_ms = NEVER
        if self.due_ms <= now_ms:
            self.due_ms = NEVER
            self.do(now_ms)
        elif self.due_ms != NEVER:
            self.set(self.due_ms)


class Timers:
    """All timers of one worker."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Timer]] = []
        self._numbers = itertools.count()
        self._over = 0  # at most so many of them are over, before their time

    def timer(self, do: Callable[[int], None]) -> Timer:
        """One that is off until it is set."""
        return Timer(self, do)

    def push(self, timer: Timer, due_ms: int) -> None:
        heapq.heappush(self._heap, (due_ms, next(self._numbers), timer))

    def count_over(self) -> None:
        """One that is in the heap is over: when half of them are, they are taken out."""
        self._over += 1
        if self._over >= OVER_MIN and 2 * self._over >= len(self._heap):
            self._heap = [entry for entry in self._heap if not entry[2].is_over]
            heapq.heapify(self._heap)
            self._over = 0

    @property
    def next_ms(self) -> int:
        """When run() has something to look at; NEVER when it has not."""
        return self._heap[0][0] if self._heap else NEVER

    def run(self, now_ms: int) -> None:
        """Ring what is due.  A timer that is set again for a time that has passed waits for the next turn."""
        due = []
        while self._heap and self._heap[0][0] <= now_ms:
            due.append(heapq.heappop(self._heap))
        for queued_ms, _, timer in due:
            try:
                timer.ring(queued_ms, now_ms)
            except Exception as problem:
                faults.say_fault(problem, "after a timer")  # an error of one queue must not end the worker
