# SPDX-License-Identifier: Apache-2.0
"""The supervisor's watch over the wall clock: only a believed clock decides that something is too old.

The clock is not believed for ``retention.clock_grace_s`` after a start of the broker and after a step.  The grace ends
early if the kernel calls the clock synchronised and the last known time lies less than a day back.  The last known time
is the wall clock at a moment when it was believed.  Worker 0 keeps it in the file ``clock`` for the next start.
"""

from __future__ import annotations

import logging
import os
import time
from typing import TYPE_CHECKING, Any

import vibemq.storage.clock as clock

if TYPE_CHECKING:
    from vibemq.broker.timers import Timers

LOOK_EACH_S = 1.0
#: A synchronised clock is believed if the known time lies at most so far back.
KNOWN_MAX_MS = 86_400_000
KEPT_EACH_MS = 60_000
FILE_NAME = "clock"
_DIGITS_MAX = 16

log = logging.getLogger("vibemq.server")


class ClockWatch:
    """Looks once in LOOK_EACH_S; ``due`` is the next time by the monotonic clock."""

    def __init__(self, data_dir: str, grace_s: int) -> None:
        """Read the last known time.  Call it after ``clock.share`` and before the first fork."""
        self._grace_ms = grace_s * 1000
        now_ms = clock.boot_ms()
        self._offset_ms = clock.wall_ms() - now_ms
        self._held_until_ms = now_ms + self._grace_ms
        known_ms = read_known(data_dir)
        # Known time less time since boot, as `_offset_ms`.
        self._known_offset_ms = None if known_ms is None else known_ms - now_ms
        self.due = 0.0
        self.look()

    def look(self) -> None:
        self.due = time.monotonic() + LOOK_EACH_S
        now_ms = clock.boot_ms()
        offset_ms = clock.wall_ms() - now_ms
        step_ms, self._offset_ms = offset_ms - self._offset_ms, offset_ms
        if abs(step_ms) > clock.STEP_MS:
            self._held_until_ms = now_ms + self._grace_ms
            clock.note_step(step_ms)
            log.warning(
                "the wall clock was set %s by %.0f s: nothing is removed for its age by this clock for %.0f s, unless "
                "the kernel says that it is synchronised (`timedatectl`) and it is less than a day ahead",
                "forward" if step_ms > 0 else "back", abs(step_ms) / 1000, self._grace_ms / 1000,
            )  # fmt: skip
        if now_ms < self._held_until_ms and self._is_confirmed(now_ms):
            self._held_until_ms = now_ms
        if now_ms >= self._held_until_ms:
            self._known_offset_ms = offset_ms
        clock.publish(offset_ms, self._held_until_ms)

    def _is_confirmed(self, now_ms: int) -> bool:
        if self._known_offset_ms is None or not clock.is_synchronised():
            return False
        return 0 <= self._offset_ms - self._known_offset_ms < KNOWN_MAX_MS


class KnownTime:
    """One worker's timer, which keeps the time for the next start of the broker."""

    def __init__(self, data_dir: str, timers: Timers, helpers: Any) -> None:
        self._data_dir, self._submit = data_dir, helpers.submit
        self._timer = timers.timer(self._keep)
        self._timer.set(0)

    def _keep(self, now_ms: int) -> None:
        self._timer.set(now_ms + KEPT_EACH_MS)
        if clock.is_believed():
            self._submit(lambda: keep_known(self._data_dir), self._kept)

    def _kept(self, _: Any, problem: BaseException | None) -> None:
        if problem is not None:
            log.warning("%s cannot be written: after the next start the clock is not believed at once: %s",
                        os.path.join(self._data_dir, FILE_NAME), problem)  # fmt: skip


def keep_known(data_dir: str) -> None:
    """Write the wall clock's time into the file.  Raises OSError."""
    path = os.path.join(data_dir, FILE_NAME)
    with open(path + ".tmp", "w", encoding="ascii") as file:
        file.write(f"{clock.wall_ms()}\n")
    os.replace(path + ".tmp", path)


def read_known(data_dir: str) -> int | None:
    """Return the last known time, in ms since 1970.  None: there is none."""
    try:
        with open(os.path.join(data_dir, FILE_NAME), encoding="ascii", errors="replace") as file:
            text = file.read(_DIGITS_MAX + 1).strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() and len(text) < _DIGITS_MAX else None
