# SPDX-License-Identifier: Apache-2.0
"""A thread that runs a worker's loop while the main thread is in a slow write.

The main thread runs the loop.  A stalled write to a log keeps it in a system call, and it cannot know that beforehand
(broker/appends.pyx).  The substitute thread looks ten times a second, without the interpreter's lock.  If the main
thread is in a slow append then, the substitute runs the next turns.  When the system call returns, the main thread
leaves its turn (Displaced).  It gets the loop back at the end of a turn of the substitute.

Only appends at the end of a turn, and between the inputs of two connections, are handed over in this way: there no
other work of the turn is half done.  Input that is not read yet is read in the next turn.
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
    """The substitute thread of one worker."""

    def __init__(self, disk: Any, turn: Callable[[], None], wake: Callable[[], None], lock_wait_ms: int) -> None:
        """``turn``: runs one turn of the loop; ``wake``: ends its wait; ``lock_wait_ms``: as in the main thread."""
        self._disk, self._turn, self._wake, self._lock_wait_ms = disk, turn, wake, lock_wait_ms
        self._is_wanted = False  # the main thread waits for the loop
        self._is_given_back = threading.Event()
        self._problem: BaseException | None = None

    def start(self) -> None:
        """Start the thread.  If the machine refuses it, the first slow write stops the worker."""
        try:
            threading.Thread(target=self._run, name="substitute", daemon=True).start()
        except (RuntimeError, MemoryError) as problem:
            said = "a thread for %s was refused (%d run): %s; raise pids.max, `ulimit -u` or the limit of memory"
            refused.say("substitute", said, "the loop of a worker whose disk stalls", 0, problem)

    def turn(self) -> None:
        """Run a turn in the main thread; if the substitute took the loop over, wait until it gives it back."""
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
