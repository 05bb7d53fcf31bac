# SPDX-License-Identifier: Apache-2.0
"""The processes of the broker: forked, watched by pidfd, started again when one dies.

Workers are forked, not spawned: everything is imported before, so a new one accepts after a
few milliseconds and shares the supervisor's memory.  That is only sound while the supervisor
has one thread, which it keeps to.

A worker that dies is replaced at once.  Only one that keeps dying by itself soon after its
start is made to wait, longer each time up to RESTART_DELAY_S_MAX, and the log says so each time.
Being killed from outside (SIGKILL after it was ready) is no sign of a broken worker and
never makes it wait.
"""

import contextlib
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
class Process:
    """One that is started again when it dies.  Invariant: pid, pidfd and started_s are set together."""

    label: str = field(default="", kw_only=True)  # which it is, in the log
    pid: int = field(default=0, kw_only=True)
    pidfd: int = field(default=-1, kw_only=True)
    started_s: float = field(default=0.0, kw_only=True)
    quick_deaths: int = field(default=0, kw_only=True)
    # When to start it again; None: it runs, or never again.
    restart_at_s: float | None = field(default=None, kw_only=True)

    @property
    def alive(self) -> bool:
        return self.pid != 0

    def fork(
        self,
        name: str,
        selector: selectors.BaseSelector,
        prepare: Callable[[], None],
        life: Callable[[], int],
        on_death: Callable[[], None],
    ) -> bool:
        """Start it, to log as ``name``; False when the machine cannot: then it is tried again later."""
        self.restart_at_s = None
        try:
            self.pid = fork(name, prepare, life)
        except OSError as problem:
            self.quick_deaths += QUICK_DEATHS_FREE
            self._restart_later(f"cannot be started: {problem.strerror}")
            return False
        self.pidfd, self.started_s = os.pidfd_open(self.pid), time.monotonic()
        selector.register(self.pidfd, selectors.EVENT_READ, on_death)
        return True

    def reap(self, selector: selectors.BaseSelector, *, stopping: bool, served: bool) -> bool:
        """Take note of its death; False when it dies so often that it is made to wait now.

        ``served``: being killed from outside is no sign that it is broken.
        """
        _, status = os.waitpid(self.pid, 0)
        code = os.waitstatus_to_exitcode(status)
        lived_s = time.monotonic() - self.started_s
        pid, self.pid = self.pid, 0
        selector.unregister(self.pidfd)
        os.close(self.pidfd)
        self.pidfd = -1
        if stopping:
            level = logging.INFO if code == 0 else logging.WARNING
            log.log(level, "%s, pid %d, %s", self.label, pid, ending(code))
            return True
        log.error("%s, pid %d, %s after %.1f s", self.label, pid, ending(code), lived_s)
        broken = lived_s <= QUICK_DEATH_S and not (code == -signal.SIGKILL and served)
        self.quick_deaths = self.quick_deaths + 1 if broken else 0
        if self.quick_deaths <= QUICK_DEATHS_FREE:
            self.restart_at_s = time.monotonic()
            return True
        self._restart_later(f"ended {self.quick_deaths} times in a row right after its start")
        return False

    def _restart_later(self, why: str) -> None:
        doublings = max(self.quick_deaths - QUICK_DEATHS_FREE - 1, 0)
        delay_s = min(RESTART_DELAY_S_MIN * 2**doublings, RESTART_DELAY_S_MAX)
        self.restart_at_s = time.monotonic() + delay_s
        log.error("%s %s; it is started again in %.1f s", self.label, why, delay_s)

    def tell(self, number: signal.Signals) -> None:
        """Send a signal to it, if it lives; the pidfd makes sure that no stranger gets it."""
        if self.alive:
            with contextlib.suppress(ProcessLookupError):  # it has just ended; its pidfd tells the loop
                signal.pidfd_send_signal(self.pidfd, number)


@dataclass(slots=True)
class Worker(Process):
    """One seat and the process on it, if any."""

    index: int
    listeners: dict[str, socket.socket]
    ready_fd: int = -1  # read end; -1 once the worker is ready
    ready: bool = False

    def __post_init__(self) -> None:
        self.label = f"worker {self.index}"


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
        ready_read, ready_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

        def prepare() -> None:
            os.close(ready_read)
            self.in_child(worker)
            self.close_all(but=worker)

        def life() -> int:
            return self.run(self.context(worker, ready_write))

        started = worker.fork(worker.label, self.selector, prepare, life, lambda: self._on_death(worker))
        os.close(ready_write)
        if not started:
            os.close(ready_read)
            self.on_broken(worker)
            return
        worker.ready_fd, worker.ready = ready_read, False
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
            log.info("%s is ready, pid %d, after %.0f ms", worker.label, worker.pid, took_ms)
            self.on_ready()

    def _on_death(self, worker: Worker) -> None:
        self._close_ready(worker)
        served, worker.ready = worker.ready, False
        if not worker.reap(self.selector, stopping=self.stopping, served=served):
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
        for worker in self.seats:
            worker.tell(number)

    def replace(self, index: int, why: str) -> None:
        """Kill the worker on that seat; its death brings another."""
        worker = self.seats[index]
        log.error("%s, pid %d, is killed and replaced: %s", worker.label, worker.pid, why)
        worker.tell(signal.SIGKILL)

    def stop(self) -> None:
        self.stopping = True
        for worker in self.seats:
            worker.restart_at_s = None
        self.tell(signal.SIGTERM)

    def kill(self, why: str) -> None:
        for worker in self.seats:
            if worker.alive:
                log.error("%s, pid %d, is killed: %s", worker.label, worker.pid, why)
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
