# SPDX-License-Identifier: Apache-2.0
"""The processes of the broker: forked, watched by pidfd, started again when one dies.

They are forked, not spawned: everything is imported before, so a new one accepts after a few milliseconds and shares
the supervisor's memory.  That is only sound while no other thread of the supervisor holds a lock that they need.  The
threads that renew the lease (lease.py) and write a line of the log to a file (log_output.py) hold no such lock.

Who dies is replaced at once.  Only one that keeps dying by itself soon after its start is made to wait, longer each
time up to RESTART_DELAY_S_MAX, and the log says so each time.  Being killed from outside (SIGKILL after it was ready)
is no sign of a broken worker and never makes it wait.
"""

import asyncio
import contextlib
import logging
import os
import selectors
import signal
import socket
import time
import warnings
from collections.abc import Callable, Container
from dataclasses import dataclass, field

from vibemq.errors import SetupError
from vibemq.server import logs

QUICK_DEATH_S = 1.0  # who ends by itself sooner than this after its start counts as broken
QUICK_DEATHS_FREE = 3  # so many times in a row it is still replaced at once
RESTART_DELAY_S_MIN = 0.1
RESTART_DELAY_S_MAX = 5.0
ORPHAN_LOOK_S = 0.5
OUR_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

#: A wait that takes so much longer than planned is a pause of the process: on a busy machine the excess is smaller.
PAUSE_MIN_S = 1.0

log = logging.getLogger("vibemq.server")


def require_calls() -> None:
    """Raise SetupError if the kernel, or a filter of its calls, lacks a system call that the broker needs."""
    name = ""
    try:
        name = "memfd_create"
        os.close(os.memfd_create("vibemq-tried", os.MFD_CLOEXEC))
        name = "pidfd_open"
        fd = os.pidfd_open(os.getpid())
        try:
            name = "pidfd_send_signal"
            signal.pidfd_send_signal(fd, 0)
        finally:
            os.close(fd)
    except OSError as problem:
        raise SetupError(
            f"the broker needs the system call {name}, and it is refused here: {problem.strerror}",
            hint="it is in Linux since 5.3; allow it in the seccomp profile of the container or service",
        ) from None


def paused_s(took_s: float, planned_s: float) -> float:
    """Return the seconds of a pause in a wait that took `took_s` instead of `planned_s`; 0.0: there was none.

    Pauses are a stopped process, a frozen control group and a suspended machine.
    """
    more_s = took_s - planned_s
    return more_s if more_s > PAUSE_MIN_S else 0.0


def reap_strangers(ours: Container[int]) -> None:
    """Where the broker is process 1, orphans are given to it: those that have ended must not stay as zombies."""
    while os.getpid() == 1:
        try:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:  # there is none at all
            return
        if ended is None or ended.si_pid in ours:  # ours is about to be told by its pidfd; the next look sees the rest
            return
        os.waitpid(ended.si_pid, 0)


def _pidfd_of(pid: int) -> int:
    """Return a descriptor of a new child.  Raises OSError after ending the child, if no descriptor can be had."""
    try:
        return os.pidfd_open(pid)
    except OSError:  # no descriptor is left, and without one nobody would notice the child's end
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise


@dataclass(slots=True, eq=False)
class Process:
    """A seat and the process on it, if any.  Invariant: pid, pidfd and started_s are set together."""

    name: str  # as which it logs
    label: str  # which it is, in the log
    index: int  # of a worker; -1: another
    selector: selectors.BaseSelector
    in_child: Callable[["Process"], None]  # first of all: lets go of what is the supervisor's, and others'
    life: Callable[["Process", int], int]  # with the descriptor that takes a byte when it is ready; its exit code
    on_ready: Callable[[], None]
    on_broken: Callable[["Process"], None]  # it has died so often, or could not be started, that it has to wait now
    #: By exit codes after which another one would be of no use: the broker ends.
    final: dict[int, Callable[[], None]] = field(default_factory=dict)
    #: What asks it to end.  Service managers send SIGTERM to every process at once: who must not end yet has another.
    end_signal: signal.Signals = signal.SIGTERM
    ends_by_itself: bool = False  # its work has an end, and then nobody takes its place
    listeners: dict[str, socket.socket] = field(default_factory=dict)
    pid: int = 0
    pidfd: int = -1
    started_s: float = 0.0
    quick_deaths: int = 0
    restart_at_s: float | None = None  # when to start it again; None: it runs, or never again
    stopping: bool = False
    replacing: bool = False  # it was asked to end, for another to take its place
    ready_fd: int = -1  # read end; -1 once it is ready
    ready: bool = False

    @property
    def alive(self) -> bool:
        return self.pid != 0

    def start(self) -> None:
        """Fork it; when the machine cannot, it is tried again later."""
        self.restart_at_s = None
        ready: list[int] = []

        def prepare() -> None:
            os.close(ready[0])
            self.in_child(self)

        try:
            ready += os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
            pid = fork(self.name, prepare, lambda: self.life(self, ready[1]))
            os.close(ready.pop())
            self.pidfd = _pidfd_of(pid)
        except OSError as problem:
            for fd in ready:
                os.close(fd)
            self.quick_deaths += QUICK_DEATHS_FREE
            self._restart_later(f"cannot be started: {problem.strerror}")
            return
        self.pid, self.started_s = pid, time.monotonic()
        (ready_read,) = ready
        self.ready_fd, self.ready = ready_read, False
        self.selector.register(self.pidfd, selectors.EVENT_READ, self._on_death)
        self.selector.register(self.ready_fd, selectors.EVENT_READ, self._on_ready)

    def stop(self) -> None:
        """Let it finish.  Nobody new gets in: our copies would keep ports open, and newcomers waiting for nobody."""
        self.stopping, self.restart_at_s = True, None
        for listener in self.listeners.values():
            listener.close()
        self.tell(self.end_signal)

    def replace(self) -> None:
        """Let it finish; who connects meanwhile waits for the one that takes its place."""
        self.replacing = self.alive
        self.tell(self.end_signal)

    def tell(self, number: signal.Signals) -> None:
        """Send a signal to it, if it lives; the pidfd makes sure that no stranger gets it."""
        if self.alive:
            with contextlib.suppress(ProcessLookupError):  # it has just ended; its pidfd tells the loop
                signal.pidfd_send_signal(self.pidfd, number)

    def let_go(self) -> None:
        """In another new process."""
        for listener in self.listeners.values():
            listener.close()
        if self.alive:
            os.close(self.pidfd)
        if self.ready_fd >= 0:
            os.close(self.ready_fd)

    def _on_ready(self) -> None:
        if self.ready_fd < 0:  # it has died, which was told at the same time and is known already
            return
        try:
            said = os.read(self.ready_fd, 1)
        except BlockingIOError:
            return
        self._close_ready()
        if said:
            self.ready = True
            took_ms = (time.monotonic() - self.started_s) * 1000
            log.info("%s is ready, pid %d, after %.0f ms", self.label, self.pid, took_ms)
            self.on_ready()

    def _on_death(self) -> None:
        self._close_ready()
        served, self.ready = self.ready, False
        _, status = os.waitpid(self.pid, 0)
        code = os.waitstatus_to_exitcode(status)
        how = f"ended with exit code {code}" if code >= 0 else f"was killed by {signal.Signals(-code).name}"
        lived_s = time.monotonic() - self.started_s
        pid, self.pid = self.pid, 0
        self.selector.unregister(self.pidfd)
        os.close(self.pidfd)
        self.pidfd = -1
        if self.stopping:
            log.log(logging.INFO if code == 0 else logging.WARNING, "%s, pid %d, %s", self.label, pid, how)
            return
        if self.ends_by_itself and code == 0:
            return
        if self.replacing and code == 0:
            self.replacing, self.restart_at_s = False, time.monotonic()
            log.info("%s, pid %d, %s and is replaced", self.label, pid, how)
            return
        self.replacing = False
        log.error("%s, pid %d, %s after %.1f s", self.label, pid, how, lived_s)
        if (end := self.final.get(code)) is not None:
            end()
            return
        is_broken = lived_s <= QUICK_DEATH_S and not (code == -signal.SIGKILL and served)
        self.quick_deaths = self.quick_deaths + 1 if is_broken else 0
        if self.quick_deaths <= QUICK_DEATHS_FREE:
            self.restart_at_s = time.monotonic()
        else:
            self._restart_later(f"ended {self.quick_deaths} times in a row right after its start")

    def _restart_later(self, why: str) -> None:
        doublings = max(self.quick_deaths - QUICK_DEATHS_FREE - 1, 0)
        delay_s = min(RESTART_DELAY_S_MIN * 2**doublings, RESTART_DELAY_S_MAX)
        self.restart_at_s = time.monotonic() + delay_s
        log.error("%s %s; it is started again in %.1f s", self.label, why, delay_s)
        self.on_broken(self)

    def _close_ready(self) -> None:
        if self.ready_fd >= 0:
            self.selector.unregister(self.ready_fd)
            os.close(self.ready_fd)
            self.ready_fd = -1


async def ends_with(parent_pid: int, grace_s: float) -> None:
    """In a child that waits for others: once its parent has died it must not hold the data directory for long."""
    while os.getppid() == parent_pid:
        await asyncio.sleep(ORPHAN_LOOK_S)
    await asyncio.sleep(grace_s)
    log.warning("ends at once: the supervisor has died")
    os._exit(1)


def fork(name: str, prepare: Callable[[], None], life: Callable[[], int]) -> int:
    """Start a process that logs as ``name``; returns its pid.  OSError when the machine cannot.

    In the child ``prepare()`` lets go of what is the supervisor's, then ``life()`` is its whole life; neither
    ever returns into the supervisor's code.
    """
    # A signal between fork and the child's own handlers would reach the supervisor's wake-up
    # socket from the wrong process: hold signals back until each side is ready for them.
    unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, OUR_SIGNALS)
    try:
        with warnings.catch_warnings():  # Python warns if a thread writes the log during the fork
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
    except OSError:
        signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
        raise
    if pid:
        signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
        return pid
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
