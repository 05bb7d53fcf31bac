# SPDX-License-Identifier: Apache-2.0
"""The worker processes: forked, watched by pidfd, started again when one dies.

Workers are forked, not spawned: everything is imported before, so a new one accepts after a
few milliseconds and shares the supervisor's memory.  That is only sound while the supervisor
has one thread, which it keeps to.

A worker that dies is replaced at once.  Only one that keeps dying by itself soon after its
start is made to wait, longer each time up to RESTART_DELAY_S_MAX, and the log says so each time.
Being killed from outside (SIGKILL after it was ready) is no sign of a broken worker and
never makes it wait.
"""

import logging
import os
import selectors
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NoReturn

from vibemq.server import logs
from vibemq.server.context import WorkerContext, WorkerRun

QUICK_DEATH_S = 1.0  # a worker that ends by itself sooner than this after its start counts as broken
QUICK_DEATHS_FREE = 3  # so many times in a row it is still replaced at once
RESTART_DELAY_S_MIN = 0.1
RESTART_DELAY_S_MAX = 5.0
OUR_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

log = logging.getLogger("vibemq.server")


@dataclass(slots=True)
class Worker:
    """One seat and the process on it, if any.  Invariant: pid, pidfd and started_s are set together."""

    index: int
    listeners: dict[str, socket.socket]
    pid: int = 0
    pidfd: int = -1
    ready_fd: int = -1  # read end; -1 once the worker is ready
    started_s: float = 0.0
    ready: bool = False
    quick_deaths: int = 0
    restart_at_s: float | None = None  # when to start it again; None: it runs, or never again

    @property
    def alive(self) -> bool:
        return self.pid != 0


@dataclass(slots=True)
class Workers:
    """All seats.  ``context`` makes a worker's context from its seat and the ready descriptor; ``in_child``
    runs first in each new process and closes what only the supervisor may hold; ``on_broken``
    is told when a worker has died so often that it is now made to wait."""

    run: WorkerRun
    selector: selectors.BaseSelector
    context: Callable[[Worker, int], WorkerContext]
    in_child: Callable[[Worker], None]
    on_ready: Callable[[], None]
    on_broken: Callable[[Worker], None]
    seats: list[Worker] = field(default_factory=list)
    stopping: bool = False
    killed: int = 0  # workers that had to be killed at shutdown

    # ---- starting ----

    def start(self, worker: Worker) -> None:
        """Fork a worker on a free seat; when the machine cannot, try again later."""
        worker.restart_at_s = None
        ready_read, ready_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

        def prepare() -> None:
            os.close(ready_read)
            self.in_child(worker)
            self.close_all(but=worker)

        try:
            pid = fork(f"worker {worker.index}", prepare, lambda: self.run(self.context(worker, ready_write)))
        except OSError as problem:
            os.close(ready_read)
            os.close(ready_write)
            worker.quick_deaths += QUICK_DEATHS_FREE
            self._restart_later(worker, f"cannot be started: {problem.strerror}")
            return
        os.close(ready_write)
        worker.pid, worker.pidfd, worker.ready_fd = pid, os.pidfd_open(pid), ready_read
        worker.started_s, worker.ready = time.monotonic(), False
        self.selector.register(worker.pidfd, selectors.EVENT_READ, lambda: self._on_death(worker))
        self.selector.register(worker.ready_fd, selectors.EVENT_READ, lambda: self._on_ready(worker))

    def close_all(self, but: Worker | None = None) -> None:
        """In a new process: let go of the listeners and descriptors of other workers."""
        for other in self.seats:
            if other is not but:
                for listener in other.listeners.values():
                    listener.close()
            if other.alive:
                os.close(other.pidfd)
            if other.ready_fd >= 0:
                os.close(other.ready_fd)

    # ---- what happens to them ----

    def _on_ready(self, worker: Worker) -> None:
        if worker.ready_fd < 0:  # it has died, which was told at the same time and is known already
            return
        try:
            said = os.read(worker.ready_fd, 1)
        except BlockingIOError:
            return
        self._close_ready(worker)
        if said:
            worker.ready = True
            took_ms = (time.monotonic() - worker.started_s) * 1000
            log.info("worker %d is ready, pid %d, after %.0f ms", worker.index, worker.pid, took_ms)
            self.on_ready()

    def _on_death(self, worker: Worker) -> None:
        _, status = os.waitpid(worker.pid, 0)
        code = os.waitstatus_to_exitcode(status)
        lived_s = time.monotonic() - worker.started_s
        pid, was_ready = worker.pid, worker.ready
        self.selector.unregister(worker.pidfd)
        os.close(worker.pidfd)
        self._close_ready(worker)
        worker.pid, worker.pidfd, worker.ready = 0, -1, False
        if self.stopping:
            level = logging.INFO if code == 0 else logging.WARNING
            log.log(level, "worker %d, pid %d, %s", worker.index, pid, ending(code))
            return
        log.error("worker %d, pid %d, %s after %.1f s", worker.index, pid, ending(code), lived_s)
        if lived_s > QUICK_DEATH_S or (code == -signal.SIGKILL and was_ready):
            worker.quick_deaths = 0
        else:
            worker.quick_deaths += 1
        if worker.quick_deaths <= QUICK_DEATHS_FREE:
            self.start(worker)
        else:
            self._restart_later(worker, f"ended {worker.quick_deaths} times in a row right after its start")

    def _restart_later(self, worker: Worker, why: str) -> None:
        delay_s = restart_delay_s(worker.quick_deaths)
        worker.restart_at_s = time.monotonic() + delay_s
        log.error("worker %d %s; it is started again in %.1f s", worker.index, why, delay_s)
        self.on_broken(worker)

    def start_due(self, now_s: float) -> None:
        for worker in self.seats:
            if worker.restart_at_s is not None and worker.restart_at_s <= now_s:
                self.start(worker)

    def next_start_s(self) -> float | None:
        """When start_due has something to do."""
        return min((w.restart_at_s for w in self.seats if w.restart_at_s is not None), default=None)

    # ---- ending ----

    def tell(self, number: signal.Signals) -> None:
        """Send a signal to every worker; the pidfd makes sure that no stranger gets it."""
        for worker in self.seats:
            if worker.alive:
                try:
                    signal.pidfd_send_signal(worker.pidfd, number)
                except ProcessLookupError:  # it has just ended; its pidfd tells the loop
                    continue

    def replace(self, index: int, why: str) -> None:
        """Kill the worker on that seat; its death brings another."""
        worker = self.seats[index]
        log.error("worker %d, pid %d, is killed and replaced: %s", index, worker.pid, why)
        try:
            signal.pidfd_send_signal(worker.pidfd, signal.SIGKILL)
        except ProcessLookupError:  # it has just ended; its pidfd tells the loop
            return

    def stop(self) -> None:
        self.stopping = True
        for worker in self.seats:
            worker.restart_at_s = None
        self.tell(signal.SIGTERM)

    def kill(self, why: str) -> None:
        for worker in self.seats:
            if worker.alive:
                log.error("worker %d, pid %d, is killed: %s", worker.index, worker.pid, why)
                self.killed += 1
        self.tell(signal.SIGKILL)

    @property
    def any_alive(self) -> bool:
        return any(worker.alive for worker in self.seats)

    @property
    def all_ready(self) -> bool:
        return all(worker.ready for worker in self.seats)

    def _close_ready(self, worker: Worker) -> None:
        if worker.ready_fd >= 0:
            self.selector.unregister(worker.ready_fd)
            os.close(worker.ready_fd)
            worker.ready_fd = -1


def ending(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    return f"was killed by {signal.Signals(-code).name}"


def restart_delay_s(quick_deaths: int) -> float:
    """How long a process waits that has died so many times in a row right after its start."""
    return min(RESTART_DELAY_S_MIN * 2 ** max(quick_deaths - QUICK_DEATHS_FREE - 1, 0), RESTART_DELAY_S_MAX)


def fork(name: str, prepare: Callable[[], None], life: Callable[[], int]) -> int:
    """Start a process that logs as ``name``; returns its pid.  OSError when the machine cannot.

    In the child ``prepare()`` lets go of what is the supervisor's, then ``life()`` is its whole life; neither
    ever returns into the supervisor's code.
    """
    # A signal between fork and the child's own handlers would reach the supervisor's wake-up
    # socket from the wrong process: hold signals back until each side is ready for them.
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, OUR_SIGNALS)
    try:
        pid = os.fork()
    except OSError:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        raise
    if pid == 0:
        _live(name, prepare, life, blocked)
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    return pid


def _live(
    name: str, prepare: Callable[[], None], life: Callable[[], int], unblocked: set[int | signal.Signals]
) -> NoReturn:
    code = 1
    try:
        logs.set_process(name)
        prepare()
        signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
        code = life()
    except BaseException:
        log.exception("%s failed", name)
    finally:
        logging.shutdown()
        os._exit(code)
