# SPDX-License-Identifier: Apache-2.0
"""A rolling restart: workers are replaced one after the other, each once the one before it lets people in.

No listener is closed: who connects to the one that ends waits in the kernel for its successor.  A worker that does not
end in time is killed, as at a stop; one whose successor does not come up holds up the rest, which serve.
"""

import logging
import signal

from vibemq.broker.alarms import Conditions
from vibemq.server.processes import Process

log = logging.getLogger("vibemq.server")


class RollingRestart:
    """The supervisor's; it is wanted by a number in the page that all processes share."""

    def __init__(self, conditions: Conditions, workers: list[Process], timeout_s: float) -> None:
        self._conditions, self._workers, self._timeout_s = conditions, workers, timeout_s
        self._left: list[Process] = []
        self._pid = 0  # that ends now
        self._number = 0
        self.due: float | None = None  # when the one that ends is killed

    def look(self, now_s: float) -> None:
        """After anything has happened, and some times a second."""
        if not self._left:
            if self._conditions.restarts_wanted == self._conditions.restarts_done:
                return
            self._number = self._conditions.restarts_wanted
            self._left = list(self._workers)
            log.info("a rolling restart of %d workers begins", len(self._left))
            self._replace(now_s)
            return
        worker = self._left[0]
        if worker.alive and worker.pid == self._pid:
            if self.due is not None and now_s >= self.due:
                late = "%s, pid %d, is killed: it did not end within %g s"
                log.error(late, worker.label, worker.pid, self._timeout_s)
                worker.tell(signal.SIGKILL)
                self.due = None
        elif worker.ready:
            self._left.pop(0)
            self._replace(now_s)
        else:
            self.due = None

    def _replace(self, now_s: float) -> None:
        """The next one, if any is left."""
        if not self._left:
            self.due = None
            self._conditions.restarts_done = self._number
            log.info("the rolling restart is done")
            return
        worker = self._left[0]
        self._pid, self.due = worker.pid, now_s + self._timeout_s
        worker.replace()
