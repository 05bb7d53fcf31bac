# SPDX-License-Identifier: Apache-2.0
"""What may happen for every message or connection, in the log: at once first, then once a minute with the count.

A flood of events must not become a flood of lines: the disk that is full would be filled by saying so.  Everybody may
use this.  ``say_fault`` logs an unexpected exception in the same way, because a peer may cause it repeatedly.
Nothing is kept back for ever: whoever runs a loop calls ``say_due`` now and then (worker, supervisor and admin process
do), and ``say_rest`` before it ends.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Callable
from typing import ClassVar

MINUTE_S = 60.0
#: Lines of one reporter in a minute, one for each subject: a screen or two.  Of all other subjects one line tells.
LINES_MAX = 100
#: Of these others so many are told apart, by their hashes (some 100 bytes each); of more it says that they are more.
OTHERS_MAX = 10_000


class _Subject:
    __slots__ = ("args", "count", "message", "said_s")

    def __init__(self, said_s: float) -> None:
        self.said_s = said_s
        self.count = 0  # since then
        self.message = ""
        self.args: tuple[object, ...] = ()


class OnceAMinute:
    """``dropping = OnceAMinute(logger, logging.WARNING)``, then for every event
    ``dropping.say(queue.name, "queue %s is full and drops", queue.name)``."""

    all: ClassVar[weakref.WeakSet[OnceAMinute]] = weakref.WeakSet()

    def __init__(
        self, logger: logging.Logger, level: int = logging.WARNING, *, event: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        """``event``: the name of all that is said (server/events.py), where it does not follow from the words."""
        self._logger, self._level, self._event, self._clock = logger, level, event, clock
        self._subjects: dict[object, _Subject] = {}  # said longest ago first
        self._others: set[int] = set()  # hashes of subjects that got no line of their own
        self._unsaid = _Subject(0.0)  # their events, since the first one
        self._lock = threading.Lock()
        self.all.add(self)

    def say(self, subject: object, message: str, *args: object, count: int = 1) -> bool:
        """``count`` more events of what `subject` stands for; True when the log was told now."""
        with self._lock:
            return self._say(subject, message, args, count)

    def say_fault(self, problem: BaseException | None, message: str, *args: object) -> bool:
        """Log an unexpected exception; return True when it was logged now.

        The subject is `message` with the exception's type and the place that raised it."""
        at = None if problem is None else problem.__traceback__
        while at is not None and at.tb_next is not None:
            at = at.tb_next
        place = None if at is None else (at.tb_frame.f_code.co_filename, at.tb_lineno)
        with self._lock:
            return self._say((message, type(problem), place), message, args, 1, problem)

    def _say(
        self, subject: object, message: str, args: tuple[object, ...], count: int, problem: BaseException | None = None
    ) -> bool:
        now_s = self._clock()
        known = self._subjects.get(subject)
        is_due = known is None or now_s - known.said_s >= MINUTE_S
        if known is not None and (known.count or not is_due):
            known.count += count
            known.message, known.args = message, args
            if is_due:
                self._say_count(known, now_s)
                self._subjects[subject] = self._subjects.pop(subject)  # said last: it is forgotten last
            return is_due
        if known is None and len(self._subjects) >= LINES_MAX:
            self._say_due(now_s)
            if len(self._subjects) >= LINES_MAX:
                self._add_other(subject, message, args, count, now_s)
                return False
        self._subjects.pop(subject, None)
        self._subjects[subject] = _Subject(now_s)
        self._log(message, f" ({count:,} times)" if count > 1 else "", args, problem)
        return True

    def say_due(self) -> None:
        """Whatever has happened again and was said a minute ago; what has not is forgotten."""
        with self._lock:
            self._say_due(self._clock())

    def _say_due(self, now_s: float) -> None:
        if self._others and now_s - self._unsaid.said_s >= MINUTE_S:
            self._say_others(now_s)
        while self._subjects:
            subject, known = next(iter(self._subjects.items()))
            if now_s - known.said_s < MINUTE_S:
                return  # the others were said later
            del self._subjects[subject]
            if known.count:
                self._say_count(known, now_s)
                self._subjects[subject] = known

    def say_rest(self) -> None:
        """There is no later time for what has happened since."""
        now_s = self._clock()
        with self._lock:
            for known in self._subjects.values():
                self._say_count(known, now_s)
            self._subjects.clear()
            if self._others:
                self._say_others(now_s)

    def _add_other(self, subject: object, message: str, args: tuple[object, ...], count: int, now_s: float) -> None:
        if not self._others:
            self._unsaid = _Subject(now_s)
        if len(self._others) < OTHERS_MAX:
            self._others.add(hash(subject))
        self._unsaid.count += count
        self._unsaid.message, self._unsaid.args = message, args

    def _say_others(self, now_s: float) -> None:
        unsaid, subjects = self._unsaid, len(self._others)
        more = " or more" if subjects >= OTHERS_MAX else ""
        events = f"{unsaid.count:,} such events of {subjects:,}{more} others"
        since = f" (the last of {events} in the last {now_s - unsaid.said_s:.0f} s)"
        self._others.clear()
        self._log(unsaid.message, since, unsaid.args)

    def _log(self, message: str, more: str, args: tuple[object, ...], problem: BaseException | None = None) -> None:
        named = {"template": message, "event": self._event}
        self._logger.log(self._level, message + more, *args, extra=named, exc_info=problem)

    def _say_count(self, known: _Subject, now_s: float) -> None:
        if known.count:
            since = f" ({known.count:,} more in the last {now_s - known.said_s:.0f} s; said once a minute)"
            self._log(known.message, since, known.args)
            known.count, known.said_s = 0, now_s


def say_due() -> None:
    """For the loop of a process, now and then: see above."""
    for reporter in list(OnceAMinute.all):
        reporter.say_due()


def say_rest() -> None:
    """For a process that ends."""
    for reporter in list(OnceAMinute.all):
        reporter.say_rest()
