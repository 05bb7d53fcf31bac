# SPDX-License-Identifier: Apache-2.0
"""What the supervisor hands to the processes that it forks: everything they may use of the world, made before the fork.

Descriptors are named, never numbers by convention, and a process gets only its own
listeners; what others and the supervisor hold was closed before ``run`` is called.
"""

from __future__ import annotations

import mmap
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vibemq.broker.alarms import Conditions
from vibemq.config import Config
from vibemq.errors import Superseded
from vibemq.server.datadir import metadata_path
from vibemq.server.handover import Channel
from vibemq.server.hangs import Beats
from vibemq.storage.shm import Usage

#: The archiver's exit code, and then the broker's, when another broker has the bucket: it must not be started again.
DEPOSED = Superseded.exit_code

if TYPE_CHECKING:
    from vibemq.net.certificates import Certificates


def seats(worker_count: int) -> dict[str, int]:
    """Where each process counts, by its name: the workers by their index."""
    names = [*(f"worker {index}" for index in range(worker_count)), "supervisor", "admin", "archiver", "recovery"]
    return {name: seat for seat, name in enumerate(names)}


@dataclass(frozen=True, kw_only=True)
class World:
    """What all of them share."""

    config: Config
    data_dir: str  # absolute
    board_fd: int  # memfd with the board of doorbells (csrc/shm/doorbell.h), already laid out
    mail_fd: int  # memfd with the rings of letters between workers (vibemq.storage.shm), already laid out
    groups_fd: int  # memfd with the single-active-consumer groups (csrc/shm/groups.h), already laid out
    doorbell_fds: list[int]  # one eventfd for each worker, by index, and the archiver's behind them; non-blocking
    archiver_seat: int  # on the board, behind the workers'; -1: there is no object store
    supervisor_pid: int  # when os.getppid() is another, the supervisor is dead
    beats: Beats  # each worker counts its own up BEATS_PER_S times a second: else it is taken for one that hangs
    meters: mmap.mmap  # what each process counts (vibemq.storage.meters), at the seats that `seats` says
    calls: mmap.mmap  # file system calls of each process (vibemq.storage.calls), at the same seats
    handovers: list[Channel]  # by index of the worker: how connections go to it from another (server/handover.py)
    # By index of the worker: its end and the admin process's, for questions; empty where there is no such process.
    inquiries: list[tuple[socket.socket, socket.socket]]
    conditions: Conditions
    usage: Usage  # what those use who have limits
    certificates: Certificates | None  # of the listeners that speak TLS
    addresses: dict[str, str]  # door name -> HOST:PORT as shown in the ready line
    started_ms: int  # when the broker started, by vibemq.storage.clock.boot_ms

    @property
    def metadata_path(self) -> str:
        return metadata_path(self.data_dir)

    @property
    def worker_count(self) -> int:
        """As the broker started: the processor cores that config.worker_count goes by may be others by now."""
        return len(self.doorbell_fds) - (self.archiver_seat >= 0)


@dataclass(frozen=True, kw_only=True)
class Context(World):
    """One process's part of it."""

    index: int  # 0 .. worker_count - 1: the seat on the board, kept over restarts; -1: another process
    # Door name ("streams", "streams-tls", "admin", "ctl") -> listening socket, non-blocking, of this process alone.
    # The supervisor keeps a copy, so connections that wait in it survive the process.
    listeners: dict[str, socket.socket]
    ready_fd: int  # a worker writes one byte when every listener accepts, then closes it
    epoch: int = 0  # of the first archiver: the one that the start has taken; 0: it takes its own


#: A process's entry: returns its exit code once it has finished what was in flight.
Run = Callable[[Context], int]
