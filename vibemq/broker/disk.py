# SPDX-License-Identifier: Apache-2.0
"""Is there room left where the data lies?  Looked at on a timer, in a helper thread: a file system may hang.

On a disk that is full not even retention could do its work, so publishers have to stop while
some room is left.  Every worker looks for itself: all see the same disk.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vibemq.broker.timers import Timers

logger = logging.getLogger(__name__)

#: A disk fills by some GB a second at most; an idle worker wakes up for nothing else that often.
LOOK_EACH_MS = 1000


class DiskWatch:
    """``is_full`` while fewer than ``free_min_bytes`` are free; 0: never."""

    def __init__(self, path: str, free_min_bytes: int, timers: Timers, helpers: Any) -> None:
        self.is_full = False
        self._path, self._free_min_bytes = path, free_min_bytes
        self._helpers = helpers
        self._listeners: list[Callable[[bool], None]] = []
        self._timer = timers.timer(self._look)
        if free_min_bytes:
            self._timer.set(0)

    def listen(self, changed: Callable[[bool], None]) -> None:
        """Call ``changed(is_full)`` in the worker's loop whenever that has changed."""
        self._listeners.append(changed)

    def _look(self, now_ms: int) -> None:
        def back(free: int | None, error: BaseException | None) -> None:
            self._timer.set(now_ms + LOOK_EACH_MS)
            if error is not None:
                logger.error("free space at %s cannot be asked: %s", self._path, error)
            elif free is not None:
                self._found(free)

        self._helpers.submit(self._free_bytes, back)

    def _free_bytes(self) -> int:
        found = os.statvfs(self._path)
        return found.f_bavail * found.f_frsize

    def _found(self, free: int) -> None:
        is_full = free < self._free_min_bytes
        if is_full == self.is_full:
            return
        self.is_full = is_full
        if is_full:
            logger.error(
                "%d bytes are free at %s, %d are needed: publishers have to wait (store.disk_free_min_bytes)",
                free,
                self._path,
                self._free_min_bytes,
            )
        else:
            logger.warning("%d bytes are free at %s: publishers go on", free, self._path)
        for changed in self._listeners:
            changed(is_full)
