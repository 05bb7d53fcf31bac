# SPDX-License-Identifier: Apache-2.0
"""Retention on a timer: drop what is too old or too much, also where nobody publishes any more.

Whoever changes a policy applies it (broker/catalog.py); when any has changed, the next look sets the limits of every
stream anew, because a stream does not say whether a policy was ever meant for it.  A thread of the admin process does
this: a file system may take long to remove a segment, and nobody waits for that process.
"""

import logging
import threading
import time

import vibemq.storage.log as logs
from vibemq.errors import StorageError, VibeMQError
from vibemq.once_a_minute import OnceAMinute
from vibemq.storage.arguments import CHUNK_MESSAGES_MAX, has_retention, log_options
from vibemq.storage.metadata import Metadata
from vibemq.storage.policies import HeldPolicies
from vibemq.storage.records import StreamRecord

SLICE_S = 0.02
_GONE = ("ERR_NOT_FOUND", "ERR_DELETED")  # deleted since it was listed

log = logging.getLogger("vibemq.server")
faults = OnceAMinute(log, logging.ERROR)


class Housekeeper:
    """Looks at every stream with a retention limit once in each interval."""

    def __init__(
        self, metadata: Metadata, interval_s: float, segment_size_bytes: int,
        chunk_messages_max: int = CHUNK_MESSAGES_MAX, local_limits: tuple[int, int] = (0, 0), *, is_first: bool = True,
    ) -> None:  # fmt: skip
        """The last three are for streams without own limits.  ``is_first``: recovery has just set the limits; otherwise
        an earlier admin process has set them."""
        self._metadata = metadata
        self._interval_s = interval_s
        self._local_limits = local_limits
        self._defaults = segment_size_bytes, chunk_messages_max, *local_limits
        self._page: list[tuple[StreamRecord, dict[str, str]]] = []  # with the arguments that hold
        self._slot = -1
        self._policies_now = metadata.held_policies()  # at the beginning of this look
        #: All limits are as they were with these; None: unknown.
        self._policies: HeldPolicies | None = self._policies_now if is_first else None
        self._unset: set[str] = set()  # streams whose limits could not be set, by incarnation: the next look does
        metadata.close()
        self.due = time.monotonic() + interval_s  # when run_slice wants to be called

    def start(self) -> None:
        """Work in a thread of its own until the process ends."""
        threading.Thread(target=self._run, name="retention", daemon=True).start()

    def _run(self) -> None:
        while True:
            time.sleep(max(0.0, self.due - time.monotonic()))
            try:
                self.run_slice()
            except Exception as problem:  # a mistake of ours: the other streams are looked at in the next interval
                faults.say_fault(problem, "retention failed by an error of ours")
                self.due = time.monotonic() + self._interval_s

    def run_slice(self) -> None:
        """Work for about SLICE_S; afterwards ``due`` says when to come back (at once, if there is more)."""
        end = time.monotonic() + SLICE_S
        try:
            while time.monotonic() < end:
                if self._page:
                    self._look_at(*self._page.pop())
                elif not self._next_page():
                    self._slot, self._policies = -1, self._policies_now
                    self.due = time.monotonic() + self._interval_s
                    return
        except StorageError as problem:  # the metadata cannot be read: try again in the next interval
            log.warning("retention was not applied: %s", problem)
            self._page, self._slot = [], -1
            self.due = time.monotonic() + self._interval_s

    def _next_page(self) -> bool:
        """Read one page of streams, of which none may be of interest; False at the end of the list."""
        try:
            if self._slot < 0:
                self._policies_now = self._metadata.held_policies()
            found = self._metadata.streams_after(self._slot)
        finally:
            self._metadata.close()
        if not found:
            return False
        self._slot = found[-1].slot
        # What recovery refused, the log has told: not again in each interval.
        usable = [record for record in found if not logs.is_refused(record.directory)]
        held = [(record, self._policies_now.arguments(record)) for record in usable]
        self._page = [
            entry for entry in held if self._is_changed(entry[0]) or has_retention(entry[1], *self._local_limits)
        ]
        return True

    def _is_changed(self, record: StreamRecord) -> bool:
        has_news = self._policies is not self._policies_now or record.incarnation in self._unset
        return has_news and record.queue is None

    def _look_at(self, record: StreamRecord, arguments: dict[str, str]) -> None:
        segments = size = 0
        is_changed = self._is_changed(record)
        self._unset.discard(record.incarnation)
        try:
            if is_changed:
                options = log_options(arguments, record.durability, *self._defaults)
                logs.set_limits(record.directory, **options)
                is_changed = False
            if has_retention(arguments, *self._local_limits):
                segments, size = logs.housekeep(record.directory)
        except VibeMQError as problem:  # arguments that mean nothing, too: no stream keeps the others from theirs
            if not isinstance(problem, StorageError) or problem.code not in _GONE:
                log.warning("retention of stream %r failed: %s", record.name, problem)
                if is_changed:
                    self._unset.add(record.incarnation)
            return
        if segments:
            log.info("stream %r: retention dropped %d segments, %d bytes", record.name, segments, size)
