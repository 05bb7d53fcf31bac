# SPDX-License-Identifier: Apache-2.0
"""What is staged, all in all: how much it is and may be, and what of it nobody will decide any more.

One worker looks after it: what a killed one has decided is finished within seconds, and orphans go within minutes.
"""

from __future__ import annotations

import fcntl
import logging
import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import vibemq.storage.clock as clock
import vibemq.storage.log as logs
from vibemq.broker.decisions import Decisions
from vibemq.broker.limits import count_refused
from vibemq.config import Config
from vibemq.errors import StorageError
from vibemq.once_a_minute import OnceAMinute

if TYPE_CHECKING:
    from vibemq.broker.timers import Timers
    from vibemq.storage.metadata import Metadata
    from vibemq.storage.records import StreamRecord
    from vibemq.storage.transactions import Application

logger = logging.getLogger(__name__)
faults = OnceAMinute(logger, logging.ERROR)

OPEN_MAX = 4096  # transactions: a stream each, of 65,536; as many tasks as any cluster runs at once
USER_PERCENT = 75  # of the limits, for one user: the rest is there for others, whatever one does
EPHEMERAL_KEPT_S = 86_400  # a commit whose answer was lost is asked for again within a day
MEASURED_FOR_S = 0.5  # what is staged was added up so long ago at most; it costs microseconds a file
LOOK_EVERY_MS = 2000  # for decisions that a killed worker has left
ORPHANS_EVERY_LOOKS = 30


def size_bytes(records: Iterable[StreamRecord]) -> int:
    """On disk, of all files of these streams."""
    size = 0
    for record in records:
        with suppress(FileNotFoundError), os.scandir(record.directory) as files:  # it may go meanwhile
            for file in files:
                with suppress(FileNotFoundError):
                    size += file.stat().st_size
    return size


def is_held(record: StreamRecord) -> bool:
    """Does a connection stage there now?"""
    try:
        fd = os.open(record.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def hold(directory: str) -> int:
    """A descriptor that says, while it is open, that somebody stages there: the kernel lets go of a killed worker's.

    BlockingIOError: somebody is just looking, and this is the loop's thread.
    """
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BaseException:
        os.close(fd)
        raise
    return fd


class Staged:
    """Of one worker; blocks."""

    def __init__(self, config: Config, metadata: Metadata, decisions: Decisions) -> None:
        self.options = config.transactions
        self.metadata = metadata
        self.decisions = decisions
        self._measured: tuple[float, dict[str, tuple[int, int]]] = 0.0, {}  # when; by user how many, and bytes

    def excess(self, user: str) -> str:
        """Why this user may stage nothing more now; "" where one may."""
        when, by_user = self._measured
        if time.monotonic() - when > MEASURED_FOR_S:
            by_user = self._measure()
            self._measured = time.monotonic(), by_user
        every = sum(count for count, _ in by_user.values()), sum(size for _, size in by_user.values())
        own = by_user.get(user, (0, 0))
        for whose, (count, size), percent in (("", every, 100), (f" by user {user!r}", own, USER_PERCENT)):
            count_max, size_max = OPEN_MAX * percent // 100, self.options.staged_size_max_bytes * percent // 100
            why = ""
            if count >= count_max:
                why = f"{count} transactions are open{whose}, of at most {count_max}"
            elif size >= size_max:
                why = f"{size} bytes are staged{whose}, of at most {size_max}"
            if why:
                count_refused()
                return why
        return ""

    def _measure(self) -> dict[str, tuple[int, int]]:
        by_application: dict[tuple[str, str], list[StreamRecord]] = {}
        for record in self.metadata.staging():
            of = record.arguments["vhost"], record.arguments["application"]
            by_application.setdefault(of, []).append(record)
        by_user: dict[str, tuple[int, int]] = {}
        for of, records in by_application.items():
            known = self.metadata.application(*of)
            user = "" if known is None else known.user
            count, size = by_user.get(user, (0, 0))
            by_user[user] = count + len(records), size + size_bytes(records)
        return by_user

    def needed(self) -> set[str]:
        """Staging streams that a decision stands for."""
        return {incarnation for decision in self.metadata.decisions() for _, incarnation, _ in decision.staged}

    def sweep(self, virtual_host: str, application: str) -> None:
        """Throw away what one application has staged and can be decided no more."""
        self._throw_away(self.metadata.staging_of(virtual_host, application))

    def finish(self) -> None:
        """Append what was decided and left, unless somebody is at it."""
        with self.decisions.locked(wait=False) as is_mine:
            if is_mine:
                self.decisions.finish_all()

    def look(self) -> None:
        """Throw away all that nobody can or will decide, and forget applications that will not come again."""
        self._throw_away(self.metadata.staging())
        for known in self.metadata.applications():
            age_ms = clock.age_ms(max(known.seen_ms, known.decided_ms)) if known.is_ephemeral else None
            is_old = age_ms is not None and age_ms > EPHEMERAL_KEPT_S * 1000
            if is_old and not self.metadata.staging_of(known.vhost, known.name):
                with self.metadata.writing():
                    self.metadata.forget_application(known)

    def _throw_away(self, records: list[StreamRecord]) -> None:
        needed = self.needed() if records else set()
        known: dict[tuple[str, str], Application | None] = {}
        for record in records:
            of = record.arguments["vhost"], record.arguments["application"]
            if of not in known:
                known[of] = self.metadata.application(*of)
            if record.incarnation in needed or not self._is_over(record, known[of]):
                continue
            try:
                self.decisions.remove(record)
            except StorageError as problem:  # the next look tries again
                logger.warning("what is staged in %s cannot be removed now: %s", record.directory, problem)

    def _is_over(self, record: StreamRecord, known: Application | None) -> bool:
        if known is None or int(record.arguments["version"]) <= known.version:
            return True
        if record.arguments["run"] in known.past_runs or not os.path.isdir(record.directory):
            return True
        age_ms = logs.age_ms(record.directory)
        if age_ms is None or age_ms <= self.options.staged_age_max_s * 1000 or is_held(record):
            return False
        said = "transaction %s of application %r is older than %d s and not decided: thrown away"
        logger.warning(said, record.name, known.name, self.options.staged_age_max_s)
        return True


class Upkeep:
    """The one worker's timer."""

    def __init__(self, staged: Staged, timers: Timers, submit: Callable[..., None]) -> None:
        self.staged = staged
        self.submit = submit
        self.looks = 0
        self.timer = timers.timer(self._due)

    def start(self) -> None:
        """In the loop; at once for what the last worker or broker has left."""
        self._due(0)

    def _due(self, now_ms: int) -> None:
        is_for_orphans = self.looks % ORPHANS_EVERY_LOOKS == 0
        self.looks += 1

        def work() -> None:
            try:
                if self.staged.metadata.has_decisions():
                    self.staged.finish()
            finally:
                if is_for_orphans:
                    self.staged.look()

        self.submit(work, self._done)

    def _done(self, _: Any, problem: BaseException | None) -> None:
        if problem is not None:
            faults.say_fault(problem, "transactions cannot be looked after: %s", problem)
        self.staged.decisions.look_after_queues()
        self.timer.set(time.monotonic_ns() // 1_000_000 + LOOK_EVERY_MS)
