# SPDX-License-Identifier: Apache-2.0
"""The admin process: the management API beside the workers, so that no question of it can slow a message.

The supervisor makes everything before the first fork and keeps it: the two listening sockets (HTTP,
and a Unix socket in the data directory for `vibemq ctl`), and for each worker a pair of sockets for questions
(server/inquiry.py).  So nobody who connects while this process is being replaced is refused, and a worker
that dies is asked again through the same socket.  It is never waited for and never stops the
broker: when it keeps dying, it is started again ever later.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from vibemq.config import Admin
from vibemq.server import listeners, processes
from vibemq.server.context import AdminContext
from vibemq.server.datadir import CTL_SOCKET, OWN_FILES

NAME = "admin"
BACKLOG = 128

log = logging.getLogger("vibemq.server")

#: The process's entry: returns its exit code once it is told to stop.
AdminRun = Callable[[AdminContext], int]


@dataclass(slots=True)
class AdminProcess:
    """The sockets and the process, if any.  Invariant: pid, pidfd and started_s are set together."""

    run: AdminRun
    http: socket.socket | None  # None: admin.enabled is false
    ctl: socket.socket
    ctl_path: str
    #: for each worker (its end, the admin process's end)
    inquiries: list[tuple[socket.socket, socket.socket]] = field(default_factory=list)
    pid: int = 0
    pidfd: int = -1
    started_s: float = 0.0
    quick_deaths: int = 0
    restart_at_s: float | None = None
    stopping: bool = False

    @property
    def alive(self) -> bool:
        return self.pid != 0

    def start(
        self,
        selector: selectors.BaseSelector,
        in_child: Callable[[], None],
        context: Callable[[], AdminContext],
    ) -> None:
        """Fork it; when the machine cannot, try again later."""
        self.restart_at_s = None

        def prepare() -> None:
            in_child()
            for theirs, _ in self.inquiries:
                theirs.close()

        try:
            self.pid = processes.fork(NAME, prepare, lambda: self.run(context()))
        except OSError as problem:
            self.quick_deaths += 1
            self._restart_later(f"cannot be started: {problem.strerror}")
            return
        self.pidfd, self.started_s = os.pidfd_open(self.pid), time.monotonic()
        selector.register(self.pidfd, selectors.EVENT_READ, lambda: self._on_death(selector))

    def _on_death(self, selector: selectors.BaseSelector) -> None:
        _, status = os.waitpid(self.pid, 0)
        selector.unregister(self.pidfd)
        os.close(self.pidfd)
        pid, self.pid, self.pidfd = self.pid, 0, -1
        ending = processes.ending(os.waitstatus_to_exitcode(status))
        if self.stopping:
            log.info("the admin process, pid %d, %s", pid, ending)
            return
        log.error("the admin process, pid %d, %s", pid, ending)
        quick = time.monotonic() - self.started_s < processes.QUICK_DEATH_S
        self.quick_deaths = self.quick_deaths + 1 if quick else 0
        if self.quick_deaths <= processes.QUICK_DEATHS_FREE:
            self.restart_at_s = time.monotonic()
        else:
            self._restart_later(f"ended {self.quick_deaths} times in a row right after its start")

    def _restart_later(self, why: str) -> None:
        delay_s = processes.restart_delay_s(self.quick_deaths)
        self.restart_at_s = time.monotonic() + delay_s
        log.error("the admin process %s; it is started again in %.1f s", why, delay_s)

    def tell(self, number: signal.Signals) -> None:
        if self.alive:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, number)

    def stop(self) -> None:
        """Nobody new gets in from now on."""
        self.stopping, self.restart_at_s = True, None
        self.close_listeners()
        with contextlib.suppress(OSError):
            os.unlink(self.ctl_path)
        self.tell(signal.SIGTERM)

    def kill(self) -> None:
        """It did not end by itself; nothing is lost with it."""
        if self.alive:
            log.warning("the admin process, pid %d, is killed: it has not ended yet", self.pid)
        self.tell(signal.SIGKILL)

    def listen(self) -> None:
        for listener in self._listeners:
            listener.listen(BACKLOG)

    @property
    def _listeners(self) -> list[socket.socket]:
        return [self.ctl] if self.http is None else [self.ctl, self.http]

    def close_listeners(self) -> None:
        for listener in self._listeners:
            listener.close()

    def close_for_worker(self, index: int) -> None:
        """In a new worker: only its own end of its own pair stays open."""
        self.close_listeners()
        if self.alive:
            os.close(self.pidfd)
        for number, (theirs, ours) in enumerate(self.inquiries):
            ours.close()
            if number != index:
                theirs.close()


def make(run: AdminRun, config: Admin, data_dir: str, worker_count: int) -> AdminProcess:
    """Bind and pair, before root is given up.  Raises ConfigError."""
    http = listeners.bind(NAME, config.host, config.port, 1)[0] if config.enabled else None
    path = os.path.join(data_dir, CTL_SOCKET)
    pairs = [
        socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK) for _ in range(worker_count)
    ]
    return AdminProcess(run, http, _bind_ctl(data_dir), path, pairs)


def _bind_ctl(data_dir: str) -> socket.socket:
    """The Unix socket, for this account only; the lock on the directory is ours, so an old one is nobody's."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    folder = os.open(data_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(CTL_SOCKET, dir_fd=folder)
        # Through the descriptor, because an address has room for 107 bytes and paths are longer.
        made.bind(f"{OWN_FILES}/{folder}/{CTL_SOCKET}")
        os.chmod(CTL_SOCKET, 0o600, dir_fd=folder)
    finally:
        os.close(folder)
    return made
