# SPDX-License-Identifier: Apache-2.0
"""What the supervisor hands to a worker: everything it may use of the world, made before the fork.

Descriptors are named, never numbers by convention, and a worker gets only its own
listeners; what other workers and the supervisor hold was closed before ``run`` is called.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from vibemq.broker.alarms import Conditions
from vibemq.config import Config
from vibemq.server.datadir import metadata_path

if TYPE_CHECKING:
    from vibemq.net.certificates import Certificates
    from vibemq.server.hangs import Beats


@dataclass(frozen=True, slots=True)
class WorkerContext:
    """One worker's part of the world; see vibemq.server.supervisor for who makes it."""

    index: int  # 0 .. worker_count - 1: the seat on the board, kept over restarts
    worker_count: int
    config: Config
    data_dir: str  # absolute
    board_fd: int  # memfd with the board of doorbells (csrc/shm/doorbell.h), already laid out
    mail_fd: int  # memfd with the rings of letters between workers (vibemq.storage.shm), already laid out
    groups_fd: int  # memfd with the single-active-consumer groups (csrc/shm/groups.h), already laid out
    doorbell_fds: list[int]  # one eventfd for each worker, by index; non-blocking
    ready_fd: int  # write one byte when every listener accepts, then close it
    supervisor_pid: int  # when os.getppid() is another, the supervisor is dead
    beats: Beats  # to be counted up BEATS_PER_S times a second: else this worker is taken for one that hangs
    # door name ("streams", "streams-tls") -> listening socket, non-blocking, of this worker alone.
    # The supervisor keeps a copy, so connections that wait in it survive the worker.
    listeners: dict[str, socket.socket] = field(default_factory=dict)
    certificates: Certificates | None = None  # of the listeners that speak TLS
    # One for each worker, by index: how connections go from one to another (server/handover.py).
    handovers: list[tuple[socket.socket, socket.socket]] = field(default_factory=list)
    # This worker's end of the socket for questions of the admin process; None when there is no such process.
    inquiry: socket.socket | None = None
    conditions: Conditions = field(default_factory=Conditions)  # shared by all processes

    @property
    def metadata_path(self) -> str:
        return metadata_path(self.data_dir)


@dataclass(frozen=True, slots=True)
class AdminContext:
    """The admin process's part of the world; see vibemq.server.admin_process."""

    config: Config
    data_dir: str  # absolute
    http: socket.socket | None  # listening, non-blocking; None: admin.enabled is false
    ctl: socket.socket  # listening at DATA/ctl.sock, non-blocking
    inquiries: list[socket.socket]  # one for each worker, by index
    addresses: dict[str, str]  # door name -> HOST:PORT as shown in the ready line
    started_ms: int  # when the broker started, by the wall clock
    supervisor_pid: int
    conditions: Conditions = field(default_factory=Conditions)

    @property
    def metadata_path(self) -> str:
        return metadata_path(self.data_dir)


#: The worker's entry: returns its exit code once it has finished what was in flight.
WorkerRun = Callable[[WorkerContext], int]
