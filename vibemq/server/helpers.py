# SPDX-License-Identifier: Apache-2.0
"""Helper threads of a worker: what may block runs here and comes back through the doorbell.

A job is two functions: ``work()`` runs in a thread, ``done(result, error)`` in the loop's thread
at the beginning of its next turn.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from vibemq.once_a_minute import OnceAMinute

logger = logging.getLogger(__name__)
faults = OnceAMinute(logger, logging.ERROR)

Work = Callable[[], Any]
Done = Callable[[Any, BaseException | None], None]
Submit = Callable[[Work, Done], None]


class Helpers:
    """Pools of threads, so that what waits for one thing delays nothing that waits for another."""

    def __init__(self, ring: Callable[[], None]) -> None:
        self._ring = ring
        self._pools: list[ThreadPoolExecutor] = []
        self._finished: deque[tuple[Done, Any, BaseException | None]] = deque()
        self.running = 0  # jobs whose `done` has not run yet
        #: Commands, and what else is rare; with a bucket, changes of the metadata wait for its answer here.
        self.submit = self._pool("helper", 8)
        #: fdatasync of several logs at once; more only queue up in the device.
        self.submit_sync = self._pool("sync", 8)
        #: Reads from a cold disk, or from the object store, which may be slow or away.
        self.submit_read = self._pool("read", 8)
        #: What costs processor time by design: a flood of logins may take this much of the machine.
        self.submit_hash = self._pool("hash", 2)
        #: Tokens: their keys may have to be fetched from a provider that is slow or away.
        self.submit_token = self._pool("token", 2)
        #: Indexes of large logs, perhaps from a cold disk: plans of large reads.
        self.submit_plan = self._pool("plan", 2)
        #: Commits of transactions, which wait for each other in any case and take as long as there is to copy.
        self.submit_commit = self._pool("commit", 1)

    def _pool(self, name: str, threads_max: int) -> Submit:
        pool = ThreadPoolExecutor(threads_max, thread_name_prefix=name)
        self._pools.append(pool)

        def submit(work: Work, done: Done) -> None:
            self.running += 1
            pool.submit(self._run, work, done)

        return submit

    def _run(self, work: Work, done: Done) -> None:
        try:
            outcome: tuple[Any, BaseException | None] = (work(), None)
        except BaseException as error:  # carried to the loop, which answers for it
            outcome = (None, error)
        self._finished.append((done, *outcome))
        self._ring()

    def take_finished(self) -> None:
        """In the loop: finish the jobs that have come back."""
        while self._finished:
            done, result, error = self._finished.popleft()
            self.running -= 1
            try:
                done(result, error)
            except Exception as problem:
                faults.say_fault(problem, "after a helper thread's work")

    def close(self) -> None:
        for pool in self._pools:
            pool.shutdown(wait=True)
