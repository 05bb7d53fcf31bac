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

logger = logging.getLogger(__name__)

THREADS_MAX = 8  # fdatasync of several streams at once; more only queue up in the device
HASH_THREADS_MAX = 2  # a flood of logins may take this much of the machine, and delays no fdatasync
PLAN_THREADS_MAX = 2  # indexes of large streams, perhaps from a cold disk
COMMIT_THREADS_MAX = 1  # commits of transactions wait for each other in any case, and delay no fdatasync


class Helpers:
    def __init__(self, ring: Callable[[], None]) -> None:
        self._ring = ring
        self._pool = ThreadPoolExecutor(THREADS_MAX, thread_name_prefix="helper")
        self._hash_pool = ThreadPoolExecutor(HASH_THREADS_MAX, thread_name_prefix="hash")
        self._commit_pool = ThreadPoolExecutor(COMMIT_THREADS_MAX, thread_name_prefix="commit")
        self._plan_pool = ThreadPoolExecutor(PLAN_THREADS_MAX, thread_name_prefix="plan")
        self._finished: deque[tuple[Callable[[Any, BaseException | None], None], Any, BaseException | None]] = deque()
        self.running = 0  # jobs whose `done` has not run yet

    def submit(self, work: Callable[[], Any], done: Callable[[Any, BaseException | None], None]) -> None:
        self.running += 1
        self._pool.submit(self._run, work, done)

    def submit_hash(self, work: Callable[[], Any], done: Callable[[Any, BaseException | None], None]) -> None:
        """As submit, for what costs processor time by design."""
        self.running += 1
        self._hash_pool.submit(self._run, work, done)

    def submit_commit(self, work: Callable[[], Any], done: Callable[[Any, BaseException | None], None]) -> None:
        """As submit, for what waits for others of its kind and takes as long as there is to copy."""
        self.running += 1
        self._commit_pool.submit(self._run, work, done)

    def submit_plan(self, work: Callable[[], Any], done: Callable[[Any, BaseException | None], None]) -> None:
        """As submit, for what reads many indexes: plans of large reads delay no fdatasync."""
        self.running += 1
        self._plan_pool.submit(self._run, work, done)

    def _run(self, work: Callable[[], Any], done: Callable[[Any, BaseException | None], None]) -> None:
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
            except Exception:
                logger.exception("after a helper thread's work")

    def close(self) -> None:
        self._pool.shutdown(wait=True)
        self._hash_pool.shutdown(wait=True)
        self._commit_pool.shutdown(wait=True)
        self._plan_pool.shutdown(wait=True)
