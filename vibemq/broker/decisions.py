# SPDX-License-Identifier: Apache-2.0
"""What was decided is appended to its targets, whoever is killed meanwhile, and what is staged goes in its time.

A batch is decided by one transaction of the database (storage.transactions).  From then on the walk over what is staged
is done again until it has come to its end, and the targets' own deduplication drops what is there
(csrc/log/apply.h).  The numbers of a batch in a target begin behind those that the target's log knows; so a target
that is not done with one decision takes no other.

All of this blocks: it runs in helper threads, one at a time over all workers (DATA/transactions.lock), on handles of
its own.
"""

from __future__ import annotations

import fcntl
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import vibemq.storage.log as logs
from vibemq.broker.durable import remote_deadline, wait_durable
from vibemq.errors import StorageError, VibeMQError
from vibemq.once_a_minute import OnceAMinute
from vibemq.storage.apply import Apply
from vibemq.storage.transactions import Decision

if TYPE_CHECKING:
    from vibemq.broker.stream import StreamTable
    from vibemq.config import Config
    from vibemq.storage.records import StreamRecord

logger = logging.getLogger(__name__)
waits = OnceAMinute(logger, logging.ERROR)

LOCK = "transactions.lock"
UNREADABLE_S = 600  # a disk that does not give what was staged is asked for so long: others wait for the same targets
UNREADABLE = ("ERR_IO", "ERR_CORRUPT")
GONE = ("ERR_NOT_FOUND", "ERR_DELETED")


class _Target(NamedTuple):
    log: logs.Log | None  # None: nothing goes there
    slot: int
    problem: StorageError | None  # why it cannot be opened

    def settle(self, rolled: bool, until: float) -> StorageError | None:
        """Everything is appended: keep what was promised, and no more than is kept.  Why that could not be."""
        try:
            if self.log is not None:
                wait_durable(self.log, until)
            if self.log is not None and rolled:
                self.log.apply_retention()
        except StorageError as problem:
            return problem
        return None


class Decisions:
    def __init__(self, config: Config, table: StreamTable, adopt: Callable[[str, str, bool], None]) -> None:
        """``adopt``: of the QueueTable."""
        self.table = table
        self.adopt = adopt
        self._fed: deque[tuple[str, str]] = deque()  # queues that were given messages
        self._unreadable: dict[tuple[int, int], float] = {}  # since when by our clock, by id and time of the decision
        self.metadata = table.metadata
        self._how = {
            "uncompressed_max": config.streams.sub_batch_uncompressed_max_bytes,
            "parts_kinds": config.streams.one_sub_batch_per_chunk,
        }
        self._lock_path = os.path.join(config.data_path, LOCK)

    @contextmanager
    def locked(self, *, wait: bool = True) -> Iterator[bool]:
        """Be the only one who decides and appends; False, only without ``wait``: somebody else is."""
        fd = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
            else:
                yield True
        finally:
            os.close(fd)

    def look_after_queues(self) -> None:
        """In the loop: what is too much for a queue, or too old, leaves it although nobody here has it open."""
        while self._fed:
            virtual_host, name = self._fed.popleft()
            try:
                self.adopt(virtual_host, name, True)  # a new home looks for excess that came before it
            except VibeMQError as problem:
                logger.error("queue %s: has no home now, so nothing leaves it by itself: %s", name, problem)

    # ---- to append ----

    def finish_all(self) -> list[tuple[Decision, str]]:
        """Append what is decided; those that could not be finished, and why.  With the lock held."""
        waiting = []
        for decision in self.metadata.decisions():
            of = decision.version, decision.application
            try:
                messages = self.finish(decision)
            except StorageError as problem:
                said = "batch %d of application %r is decided and not all of it is appended yet: %s"
                waits.say((decision.id,), said, *of, problem)
                waiting.append((decision, str(problem)))
            else:
                logger.info(
                    "batch %d of application %r, which was decided before, is appended: %d messages", *of, messages
                )
        return [(self.metadata.decision(decision.id), why) for decision, why in waiting]

    def finish(self, decision: Decision) -> int:
        """Append all of a decision; how many messages it has.  With the lock held.  StorageError: some waits."""
        problem: StorageError | None = None
        places = [list(place) for place in decision.targets]
        with ExitStack() as held:
            targets = [self._target(decision, name, incarnation, held) for name, incarnation, _ in places]
            walk = Apply(
                [(target.log, first) for target, (_, _, first) in zip(targets, places, strict=True)], **self._how
            )
            is_stuck = all(target.log is None for target in targets) and any(target.problem for target in targets)
            for name, incarnation, blocks in () if is_stuck else decision.staged:
                self._walk(decision, walk, name, incarnation, blocks, targets)
            until = remote_deadline()
            for i, target in enumerate(targets):
                failure = target.problem or walk.problem(i) or target.settle(walk.rolled(i), until)
                if target.log is not None and target.slot >= 0 and target.log.is_disk_durable:
                    self.table.tell(target.log.readers(), target.slot)  # readers end at the newest sync
                if failure is None or failure.code in GONE:
                    places[i][1] = ""
                else:
                    problem = problem or failure
            if walk.malformed:
                said = "batch %d of application %r: %d places of what was staged are no messages, and are left out"
                logger.warning(said, decision.version, decision.application, walk.malformed)
            messages = sum(walk.messages)
        if problem is not None:
            if places != [list(place) for place in decision.targets]:
                self.metadata.settle_targets(decision, places)
            raise problem
        self._unreadable.pop((decision.id, decision.decided_ms), None)
        self.metadata.end_decision(decision, messages)
        return messages

    def _target(self, decision: Decision, name: str, incarnation: str, held: ExitStack) -> _Target:
        if not incarnation:
            return _Target(None, -1, None)
        record = self.metadata.stream_of(incarnation)
        slot = -1 if record is None else record.slot
        if record is not None and record.queue is not None:
            self._fed.append((record.vhost, record.name))
        try:
            log = self._open(incarnation, held)
        except StorageError as problem:  # the others get theirs
            return _Target(None, slot, problem)
        if log is None:
            said = "stream %r was deleted after batch %d of application %r was decided for it"
            logger.warning(said, name, decision.version, decision.application)
        return _Target(log, slot, None)

    def _walk(
        self, decision: Decision, walk: Apply, name: str, incarnation: str, blocks: int, targets: list[_Target]
    ) -> None:
        """One transaction.  Raises StorageError where it cannot be read now."""
        try:
            with ExitStack() as held:
                staged = self._open(incarnation, held)
                if staged is None:
                    raise StorageError("ERR_NOT_FOUND", f"{incarnation} is gone")
                walk.begin(staged, blocks)
                more = True
                while more:
                    more = walk.step()
                    for target in targets:
                        if target.log is None or target.slot < 0:
                            continue
                        if (readers := target.log.readers()) or target.log.is_remote:
                            self.table.tell(readers, target.slot)
        except StorageError as problem:
            since = self._unreadable.setdefault((decision.id, decision.decided_ms), time.monotonic())
            gives_up = problem.code in UNREADABLE and time.monotonic() - since > UNREADABLE_S
            if problem.code not in GONE and not gives_up:
                raise
            said = "batch %d of application %r: the rest of transaction %s, of %d blocks, is lost: %s"
            logger.error(said, decision.version, decision.application, name, blocks, problem)

    def count(self, parts: Iterable[list[Any]], targets: int) -> list[int]:
        """How many messages are staged for each of so many targets; ``parts``: as in a Decision.  StorageError."""
        walk = Apply([(None, 1)] * targets, counts_only=True, **self._how)
        for _, incarnation, blocks in parts:
            with ExitStack() as held:
                staged = self._open(incarnation, held)
                if staged is not None:
                    walk.begin(staged, blocks)
                    while walk.step():
                        continue
        return walk.messages

    def _open(self, incarnation: str, held: ExitStack) -> logs.Log | None:
        """The log, closed with ``held``; None where it is gone.  Raises StorageError."""
        try:
            log = logs.Log(os.path.join(self.metadata.streams_dir, incarnation))
        except StorageError as problem:
            if problem.code in GONE:
                return None
            raise
        held.callback(log.close)
        return None if log.is_deleted else log

    # ---- staging streams ----

    def remove(self, record: StreamRecord) -> None:
        """Throw away what is staged there, unless a decision stands for it, perhaps since a moment ago.

        The files go before the record: what a kill leaves is found again.
        """
        if not self.metadata.condemn_staging(record):
            return
        try:
            with closing(logs.Log(record.directory)) as log:
                log.mark_deleted()
                self.table.tell(log.holders(), record.slot)
        except StorageError as problem:
            # Some of its files are gone already, or nobody has it open because the start refused it.
            if problem.code not in (*GONE, "ERR_STALE") and not logs.is_refused(record.directory):
                raise
        logs.remove(record.directory)
        self.metadata.forget_staging(record)
