# SPDX-License-Identifier: Apache-2.0
"""Retention on a timer: drop what is too old or too much, also where nobody publishes any more.

The supervisor does this between its other work, so it is cut into slices: a worker that dies
meanwhile is started again without waiting for thousands of streams to be looked at.
Nothing is held open between slices, because a fork may come in between.
"""

import logging
import time

import vibemq.storage.log as logs
from vibemq.errors import StorageError
from vibemq.storage.arguments import has_retention
from vibemq.storage.metadata import Metadata, StreamRecord

SLICE_S = 0.02
_GONE = ("ERR_NOT_FOUND", "ERR_DELETED")  # deleted since it was listed

log = logging.getLogger("vibemq.server")


class Housekeeper:
    """Looks at every stream with a retention limit once in each interval."""

    def __init__(self, metadata: Metadata, interval_s: float) -> None:
        self._metadata = metadata
        self._interval_s = interval_s
        self._page: list[StreamRecord] = []
        self._slot = -1
        self.due = time.monotonic() + interval_s  # when run_slice wants to be called

    def run_slice(self) -> None:
        """Work for about SLICE_S; afterwards ``due`` says when to come back (at once, if there is more)."""
        end = time.monotonic() + SLICE_S
        try:
            while time.monotonic() < end:
                if self._page:
                    _apply(self._page.pop())
                elif not self._next_page():
                    self._slot = -1
                    self.due = time.monotonic() + self._interval_s
                    return
        except StorageError as problem:  # the metadata cannot be read: try again in the next interval
            log.warning("retention was not applied: %s", problem)
            self._page, self._slot = [], -1
            self.due = time.monotonic() + self._interval_s

    def _next_page(self) -> bool:
        """Read one page of streams, of which none may have a limit; False at the end of the list."""
        try:
            found = self._metadata.streams_after(self._slot)
        finally:
            self._metadata.close()
        if not found:
            return False
        self._slot = found[-1].slot
        self._page = [record for record in found if has_retention(record.arguments)]
        return True


def _apply(record: StreamRecord) -> None:
    try:
        segments, size = logs.housekeep(record.directory)
    except StorageError as problem:
        if problem.code not in _GONE:
            log.warning("retention of stream %r failed: %s", record.name, problem)
        return
    if segments:
        log.info("stream %r: retention dropped %d segments, %d bytes", record.name, segments, size)
