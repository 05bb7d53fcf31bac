# SPDX-License-Identifier: Apache-2.0
"""Helper threads of a worker: what may block runs here and comes back through the doorbell.

A job is two functions: ``work()`` runs in a thread, ``done(result, error)`` in the loop's thread
at the beginning of its next turn.

A thread may be refused (`pids.max`, RLIMIT_NPROC, memory).  So each pool has its first thread from the start on, and
a job whose thread was refused waits in its pool until one of its threads is free or another can be started.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any

from vibemq.once_a_minute import OnceAMinute

logger = logging.getLogger(__name__)
faults = OnceAMinute(logger, logging.ERROR)
refused = OnceAMinute(logger)

Work = Callable[[], Any]
Done = Callable[[Any, BaseException | None], None]
Submit = Callable[[Work, Done], None]


class Helpers:
    """Pools of threads, so that what waits for one thing delays nothing that waits for another."""

    def __init__(self, ring: Callable[[], None]) -> None:
        self._ring = ring
        self._pools: list[Pool] = []
        self._finished: deque[tuple[Pool, Done, Any, BaseException | None]] = deque()
        #: Commands, and what else is rare; with a bucket, changes of the metadata wait for its answer here.
        self.submit = self._pool("helper", 8)
        #: fdatasync of several logs at once; more only queue up in the device.
        self.submit_sync = self._pool("sync", 8)
        #: Appends to logs while the disk is slow: one of each log, so other logs wait only when 8 logs stall.
        self.submit_append = self._pool("append", 8)
        self._appends = self._pools[-1]
        #: Names and offsets of a log whose lock is held in a slow call: appends to other logs do not wait for them.
        self.submit_release = self._pool("release", 4)
        #: Removals of files: a file system may take long, and confirms do not wait for it.
        self.submit_remove = self._pool("remove", 2)
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

    @property
    def running(self) -> int:
        """Return the number of jobs whose `done` has not run yet, without jobs of pools that have no thread."""
        return sum(pool.jobs for pool in self._pools if pool.threads)

    def _pool(self, name: str, threads_max: int) -> Submit:
        pool = Pool(name, threads_max)
        self._pools.append(pool)

        def submit(work: Work, done: Done) -> None:
            pool.jobs += 1
            pool.submit(lambda: self._run(pool, work, done))

        return submit

    def _run(self, pool: Pool, work: Work, done: Done) -> None:
        try:
            outcome: tuple[Any, BaseException | None] = (work(), None)
        except BaseException as error:  # carried to the loop, which answers for it
            outcome = (None, error)
        self._finished.append((pool, done, *outcome))
        self._ring()

    def count_append(self) -> None:
        """Count an append of a thread outside of the pools, which calls ``finish`` after it."""
        self._appends.jobs += 1

    def finish(self, done: Done) -> None:
        """Have the loop call ``done(None, None)``; called by that thread."""
        self._finished.append((self._appends, done, None, None))
        self._ring()

    def take_finished(self) -> None:
        """In the loop: finish the jobs that have come back."""
        while self._finished:
            pool, done, result, error = self._finished.popleft()
            pool.jobs -= 1
            try:
                done(result, error)
            except Exception as problem:
                faults.say_fault(problem, "after a helper thread's work")

    def start_refused(self) -> None:
        """Start the threads that were refused.  The loop calls this with each tick."""
        for pool in self._pools:
            if pool.was_refused:
                pool.start_thread()

    def close(self) -> None:
        for pool in self._pools:
            pool.close()


class Pool:
    """Threads that are started when they are needed, up to a number.  Only the loop's thread submits jobs."""

    def __init__(self, name: str, threads_max: int) -> None:
        self._name, self._threads_max = name, threads_max
        self._queue: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._threads: list[threading.Thread] = []
        self.jobs = 0  # jobs whose `done` has not run yet
        self.was_refused = False
        self.start_thread()

    @property
    def threads(self) -> int:
        return len(self._threads)

    def submit(self, job: Callable[[], None]) -> None:
        self._queue.put(job)
        if not self._idle.acquire(blocking=False) and len(self._threads) < self._threads_max:
            self.start_thread()

    def start_thread(self) -> None:
        """Start one more thread, or log that it was refused."""
        thread = threading.Thread(target=self._work, name=f"{self._name}_{len(self._threads)}", daemon=True)
        try:
            thread.start()
        except (RuntimeError, MemoryError) as problem:
            self.was_refused = True
            said = "a thread for %s was refused (%d run): %s; raise pids.max, `ulimit -u` or the limit of memory"
            refused.say(self._name, said, self._name, len(self._threads), problem)
        else:
            self._threads.append(thread)
            self.was_refused = False

    def _work(self) -> None:
        while True:
            try:
                job = self._queue.get_nowait()
            except Empty:
                self._idle.release()
                job = self._queue.get()
            if job is None:
                return
            job()

    def close(self) -> None:
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()
