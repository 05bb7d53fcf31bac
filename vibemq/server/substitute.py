# SPDX-License-Identifier: Apache-2.0
"""A thread that runs a worker's loop while the main thread is in a slow write.

The main thread runs the loop.  A write to a log that stalls keeps it in a system call, and nothing can tell beforehand
(broker/appends.pyx).  This thread looks ten times a second, without the interpreter's lock.  If the main thread is in a
slow append at the end of a turn, this thread runs the next turns.  The main thread leaves its turn (Displaced) when the
system call returns, and gets the loop back at the end of a turn of this one.

Only an append at the end of a turn is left in this way: there nothing else of the turn is half done.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

from vibemq.broker.appends import Displaced
from vibemq.once_a_minute import OnceAMinute
from vibemq.storage.log import wait_for_locks

refused = OnceAMinute(logging.getLogger(__name__))


class Substitute:
    """Of one worker."""

    def __init__(self, disk: Any, turn: Callable[[], None], wake: Callable[[], None], lock_wait_ms: int) -> None:
        """``turn``: one turn of the loop; ``wake``: ends its wait; ``lock_wait_ms``: as of the main thread."""
        self._disk, self._turn, self._wake, self._lock_wait_ms = disk, turn, wake, lock_wait_ms
        self._is_wanted = False  # by the main thread: the loop
        self._is_given_back = threading.Event()
        self._problem: BaseException | None = None

    def start(self) -> None:
        """Without the thread, if the machine refuses it, the first slow write stops the worker."""
        try:
            threading.Thread(target=self._run, name="substitute", daemon=True).start()
        except (RuntimeError, MemoryError) as problem:
            said = "a thread for %s was refused (%d run): %s; raise pids.max, `ulimit -u` or the limit of memory"
            refused.say("substitute", said, "the loop of a worker whose disk stalls", 0, problem)

    def turn(self) -> None:
        """By the main thread: a turn, or the part of one that was left to the other thread."""
        try:
            self._turn()
        except Displaced:
            self._is_wanted = True
            self._wake()
            self._is_given_back.wait()
            self._is_given_back.clear()
            self._is_wanted = False
            if self._problem is not None:
                raise self._problem from None

    def _run(self) -> None:
        wait_for_locks(self._lock_wait_ms)
        while self._problem is None:
            try:
                if not self._disk.take_over():
                    continue
                while not self._is_wanted:
                    self._turn()
            except BaseException as problem:  # ends the worker, as in the main thread
                self._problem = problem
            self._disk.give_back()
            self._is_given_back.set()
