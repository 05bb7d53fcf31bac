# SPDX-License-Identifier: Apache-2.0
"""Transactions: rows that tasks stage in streams that nobody can name, and that one commit decides for all of them.

An application numbers its batches; a run is one life of its driver.  Only one run at a time may stage and decide, and
each batch is decided once.  What becomes of it then is the business of decisions.py.

Everything here blocks: helper threads.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import vibemq.storage.clock as clock
import vibemq.storage.log as logs
from vibemq.broker.arguments import DURABILITIES
from vibemq.broker.decisions import GONE, Decisions
from vibemq.broker.durable import wait_durable
from vibemq.broker.limits import count_refused
from vibemq.broker.options import Overflow, options_of
from vibemq.broker.staged import Staged, is_held
from vibemq.errors import LimitExceeded, PreconditionFailed, StorageError, StreamNotFound
from vibemq.storage.apply import REFERENCE
from vibemq.storage.arguments import log_options
from vibemq.storage.ledger import queue_stats
from vibemq.storage.transactions import STAGING, Application, Decision, staging_arguments

if TYPE_CHECKING:
    from vibemq.broker.stream import StreamTable
    from vibemq.config import Config
    from vibemq.storage.records import StreamRecord

logger = logging.getLogger(__name__)

RUN_ALIVE_S = 5.0  # a run that was heard of so long ago still lives
RUNS_REMEMBERED_MAX = 64  # of an application, that were taken over: a driver that hung for days learns it
APPLICATIONS_MAX = 10_000  # a kilobyte each
TARGETS_MAX = 1024  # of one transaction: a large super stream; two descriptors each while it is applied
VERSION_MAX = 2**63 - 1


class State(enum.Enum):
    """What becomes of a request."""

    OK = enum.auto()
    ALREADY = enum.auto()  # this version is decided
    BUSY = enum.auto()  # another run of the application lives
    SUPERSEDED = enum.auto()  # another run has taken over
    FULL = enum.auto()  # later there may be room
    CHANGED = enum.auto()  # a target is another one than was staged for, or a staging stream is not there


class Result(NamedTuple):
    state: State
    holder: str = ""  # who or what is in the way, in words
    messages: int = 0


class Run(NamedTuple):
    """Who asks."""

    virtual_host: str
    application: str
    run: str
    user: str
    peer: str
    is_ephemeral: bool
    is_superuser: bool
    keeps_targets: bool = False  # every batch of the application goes to the streams of the last one, or to more


class _Refused(Exception):
    """The request ends with this result."""

    def __init__(self, state: State, holder: str, messages: int = 0) -> None:
        super().__init__(holder)
        self.result = Result(state, holder, messages)


class Transactions:
    def __init__(self, config: Config, table: StreamTable, adopt: Callable[[str, str, bool], None]) -> None:
        self.config = config
        self.metadata = table.metadata
        self.decisions = Decisions(config, table, adopt)
        self.staged = Staged(config, self.metadata, self.decisions)

    # ---- to begin ----

    def begin(self, run: Run, name: str, version: int, targets: Sequence[str]) -> Result:
        """Let the run stage into the stream ``name`` of STAGING, made if need be.

        Raises StreamNotFound, PreconditionFailed, StorageError.
        """
        draft = there = None
        result = Result(State.OK)
        try:
            self._let_in(run, version, targets)  # first: a decided batch needs neither room nor its targets
            if why := self.staged.excess(run.user):
                raise _Refused(State.FULL, why)
            found = [self._target(run.virtual_host, target) for target in targets]
            incarnations = [target.incarnation for target in found]
            arguments = staging_arguments(run.virtual_host, run.application, version, run.run, incarnations)
            if self.metadata.find_stream(STAGING, name) is None:  # before others have to wait for us: it may take syncs
                draft = self.metadata.draft_staging(name, arguments, _durability(found))
                logs.create(draft.directory, **log_options({}, draft.durability, self.config.store.segment_size_bytes))
            with self.metadata.writing():
                known = self._enter(run, version, targets)
                there = self.metadata.find_stream(STAGING, name)
                if there is None and draft is not None:
                    self.metadata.add_staging(draft)
                elif there is None or there.arguments != arguments:
                    raise _Refused(State.CHANGED, f"transaction {name}, which was begun for something else or is over")
        except _Refused as refused:
            result = refused.result
        except LimitExceeded as problem:
            count_refused()
            result = Result(State.FULL, str(problem))
        except BaseException:
            if draft is not None:
                with suppress(StorageError):  # the problem that is told is the first one
                    logs.remove(draft.directory)
            raise
        if draft is not None and (result.state is not State.OK or there is not None):
            logs.remove(draft.directory)
        if result.state is State.OK and known.past and known.past[-1][1] == run.run:
            self.staged.sweep(run.virtual_host, run.application)
        return result

    def _target(self, virtual_host: str, name: str) -> StreamRecord:
        record: StreamRecord | None = self.metadata.find_stream(virtual_host, name)
        if record is None:
            raise StreamNotFound(name)
        return record

    def _known(self, run: Run) -> Application | None:
        """The run's application.  Raises PreconditionFailed where it is another user's."""
        known: Application | None = self.metadata.application(run.virtual_host, run.application)
        if known is not None and known.user != run.user and not run.is_superuser:
            raise PreconditionFailed(f"application {known.name!r} is user {known.user!r}'s, and not {run.user!r}'s")
        return known

    def _let_in(self, run: Run, version: int, targets: Sequence[str]) -> Application | None:
        """The application, if there is one and the run may decide this version of it.  Raises _Refused."""
        known = self._known(run)
        if known is None:
            return None
        if run.keeps_targets or version == known.version:
            self._require_targets(known, targets)
        if version <= known.version:
            raise _Refused(State.ALREADY, "", known.messages if version == known.version else 0)
        for past, by, peer in known.past:
            if past == run.run:
                said = f"run {past} of application {known.name} was taken over by run {by} from {peer}"
                raise _Refused(State.SUPERSEDED, said)
        if known.run and known.run != run.run:
            # Also where the wall clock was set since then.
            is_alive = any(abs(now_ms - known.seen_ms) < RUN_ALIVE_S * 1000 for now_ms in clock.wall_ms_by_both())
            if is_alive or self._is_staging(known):
                raise _Refused(State.BUSY, f"run {known.run} of application {known.name} from {known.peer}")
        return known

    def _require_targets(self, known: Application, targets: Sequence[str]) -> None:
        """Require the streams of the application's last batch, except deleted ones; others may be added.

        If a query continued with another target, its rows would be missing here, and a decided batch would count as
        written there.  Raises _Refused.
        """
        missing = [name for name in known.targets if name not in targets]
        if not missing:
            return
        all_new = len(missing) == len(known.targets)
        if all_new or any(self.metadata.find_stream(known.vhost, name) is not None for name in missing):
            before, now = (", ".join(names) for names in (known.targets, targets))
            raise _Refused(
                State.CHANGED,
                f"batch {known.version} of application {known.name} was written to {before}, and this one is to go to "
                f"{now}. Write to another target with another checkpoint (or txnAppId)",
            )

    def _enter(self, run: Run, version: int, targets: Sequence[str]) -> Application:
        """Let the run be its application's, which is made if need be; within ``writing``.  Raises _Refused."""
        known = self._let_in(run, version, targets)
        if known is None:
            self._make_room_for(run)
            of = run.virtual_host, run.application, run.user
            known = Application(*of, run.run, run.peer, 0, (), -1, 0, 0, run.is_ephemeral)
        if known.run and known.run != run.run:
            past = (*known.past, [known.run, run.run, run.peer])
            known = replace(known, past=past[-RUNS_REMEMBERED_MAX:])
        known = replace(known, run=run.run, peer=run.peer, seen_ms=clock.wall_ms())
        self.metadata.put_application(known)
        return known

    def _make_room_for(self, run: Run) -> None:
        goes = self.metadata.application_to_forget(run.user, APPLICATIONS_MAX)
        if goes is None:
            return
        if not goes.is_ephemeral:
            count_refused()
            said = "more than %d applications: %r in vhost %r makes room for %r, and its last batch %d is forgotten"
            logger.warning(said, APPLICATIONS_MAX, goes.name, goes.vhost, run.application, goes.version)
        self.metadata.forget_application(goes)

    def _is_staging(self, application: Application) -> bool:
        """Does a connection stage for the application's run now?"""
        records = self.metadata.staging_of(application.vhost, application.name)
        return any(is_held(record) for record in records if record.arguments["run"] == application.run)

    # ---- to decide ----

    def commit(
        self, run: Run, version: int, targets: Sequence[str], staged: Sequence[tuple[str, int]], *, is_last: bool
    ) -> Result:
        """Decide a batch and append it; ``staged``: the transactions and how many blocks of each count.

        Raises StreamNotFound, PreconditionFailed and StorageError: nothing was decided.
        """
        try:
            with self.decisions.locked():
                waiting = self.decisions.finish_all()
                decision = self._decide(run, version, targets, staged, waiting)
                result = Result(State.OK, "", self._finish(decision))
        except _Refused as refused:
            result = refused.result
        if result.state in (State.OK, State.ALREADY):
            self.staged.sweep(run.virtual_host, run.application)
            if is_last:
                self._release(run)
        return result

    def _decide(
        self, run: Run, version: int, targets: Sequence[str], staged: Sequence[tuple[str, int]],
        waiting: Iterable[tuple[Decision, str]],
    ) -> Decision | None:  # fmt: skip
        """None: there is nothing to append.  With the lock held."""
        self._require_done(run, waiting)
        self._let_in(run, version, targets)  # before the targets are opened: they may be deleted by now
        found = [self._target(run.virtual_host, target) for target in targets]
        for decision, why in waiting:
            for name, incarnation, _ in decision.targets:
                if any(target.incarnation == incarnation for target in found):
                    of = decision.application
                    raise _Refused(State.FULL, f"stream {name}: a batch of application {of} goes before: {why}")
        records = [self._staged(run, version, name, blocks, found) for name, blocks in staged]
        parts = [[record.name, record.incarnation, blocks] for record, (_, blocks) in zip(records, staged, strict=True)]
        self._require_room(found, parts)
        places = [[target.name, target.incarnation, _next_number(target)] for target in found]
        is_durable = _durability(found) != "os"
        with self.metadata.writing(synced=is_durable):
            known = self._enter(run, version, targets)
            for target in found:
                now = self.metadata.find_stream(run.virtual_host, target.name)
                if now is None or now.incarnation != target.incarnation:
                    raise _Refused(State.CHANGED, f"stream {target.name}, which was deleted")
            for record in records:
                if self.metadata.find_stream(STAGING, record.name) != record:
                    raise _Refused(State.CHANGED, f"transaction {record.name}, which was thrown away")
            decided = replace(known, version=version, messages=0, decided_ms=clock.wall_ms(), targets=tuple(targets))
            self.metadata.put_application(decided)
            if not records:
                return None
            return self.metadata.add_decision(known, version, is_durable, places, parts)

    def _require_room(self, targets: Sequence[StreamRecord], parts: Sequence[list[Any]]) -> None:
        """Queues that would not take all of it refuse; those that drop their oldest do that."""
        policies, defaults = self.metadata.held_policies(), self.config.queues
        bounded = {}
        for i, target in enumerate(targets):
            options = options_of(policies.options(target), defaults)
            if target.queue is not None and options.max_messages and options.overflow is not Overflow.DROP_OLDEST:
                bounded[i] = options.max_messages
        counts = self.decisions.count(parts, len(targets)) if bounded else []
        for i, most in bounded.items():
            with closing(logs.Log(targets[i].directory)) as log:
                waiting = queue_stats(targets[i].directory, log.stats().next_offset).waiting
            if waiting + counts[i] > most:
                said = f"queue {targets[i].name}: {waiting} messages wait of at most {most}, and {counts[i]} more would"
                raise _Refused(State.FULL, said)

    def _finish(self, decision: Decision | None) -> int:
        if decision is None:
            return 0
        try:
            return self.decisions.finish(decision)
        except StorageError as problem:
            logger.error("batch %d of application %r: %s", decision.version, decision.application, problem)
            raise _unfinished(decision, str(problem)) from problem

    def _require_done(self, run: Run, waiting: Iterable[tuple[Decision, str]]) -> None:
        for decision, why in waiting:
            if (decision.vhost, decision.application) == (run.virtual_host, run.application):
                raise _unfinished(decision, why)

    def _staged(
        self, run: Run, version: int, name: str, blocks: int, targets: Sequence[StreamRecord]
    ) -> StreamRecord:  # fmt: skip
        """What is staged under this name, whole and for these targets.  Raises _Refused, StorageError."""
        record: StreamRecord | None = self.metadata.find_stream(STAGING, name)
        if record is None:
            raise _Refused(State.CHANGED, f"transaction {name}, of which nothing is staged")
        incarnations = [target.incarnation for target in targets]
        wanted = staging_arguments(run.virtual_host, run.application, version, run.run, incarnations)
        if record.arguments != wanted:
            raise _Refused(State.CHANGED, f"transaction {name}: it was staged for something else, or a target is new")
        try:
            staging = logs.Log(record.directory)
        except StorageError as problem:
            if problem.code not in GONE:
                raise
            raise _Refused(State.CHANGED, f"transaction {name}, of which nothing is staged any more") from problem
        with closing(staging) as log:
            had = wait_durable(log)
            if had < blocks or log.sync_failed(blocks):
                raise _Refused(State.CHANGED, f"transaction {name}, of which {had} blocks of {blocks} are staged")
        return record

    # ---- to end ----

    def abort(self, run: Run, names: Sequence[str], *, is_last: bool) -> None:
        """Throw away what the run has staged; without ``names``, all of it."""
        known = self._known(run)
        needed = self.staged.needed()
        for record in self.metadata.staging_of(run.virtual_host, run.application):
            is_meant = record.arguments["run"] == run.run and (not names or record.name in names)
            if is_meant and record.incarnation not in needed:
                self.decisions.remove(record)
        if is_last and known is not None:
            self._release(run)

    def _release(self, run: Run) -> None:
        """Another run need not wait."""
        with self.metadata.writing():
            known = self._known(run)
            if known is not None and known.run == run.run:
                self.metadata.put_application(replace(known, run=""))


def _unfinished(decision: Decision, why: str) -> _Refused:
    return _Refused(State.FULL, f"batch {decision.version}, which is decided and not all appended yet: {why}")


def _durability(targets: Iterable[StreamRecord]) -> str:
    """The strongest: what is staged and decided for all must be as safe as what any of them promises."""
    return max((target.durability for target in targets), key=DURABILITIES.index, default="os")


def _next_number(target: StreamRecord) -> int:
    with closing(logs.Log(target.directory)) as log:
        return log.publisher_sequence(REFERENCE) + 1
