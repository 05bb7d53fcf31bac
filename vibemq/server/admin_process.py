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
from collections.abc import Callable
from dataclasses import dataclass, field

from vibemq.config import Admin
from vibemq.server import listeners, processes
from vibemq.server.context import AdminRun
from vibemq.server.datadir import CTL_SOCKET, OWN_FILES

NAME = "admin"
BACKLOG = 128

log = logging.getLogger("vibemq.server")


@dataclass(slots=True)
class AdminProcess(processes.Process):
    """The sockets and the process, if any."""

    run: AdminRun
    http: socket.socket | None  # None: admin.enabled is false
    ctl: socket.socket
    ctl_path: str
    #: for each worker (its end, the admin process's end)
    inquiries: list[tuple[socket.socket, socket.socket]] = field(default_factory=list)
    stopping: bool = False

    def start(self, selector: selectors.BaseSelector, in_child: Callable[[], None], life: Callable[[], int]) -> None:
        """Fork it; when the machine cannot, try again later."""

        def prepare() -> None:
            in_child()
            for theirs, _ in self.inquiries:
                theirs.close()

        def on_death() -> None:
            self.reap(selector, stopping=self.stopping, served=False)

        self.fork(NAME, selector, prepare, life, on_death)

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
    return AdminProcess(run, http, _bind_ctl(data_dir), path, pairs, label="the admin process")


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
