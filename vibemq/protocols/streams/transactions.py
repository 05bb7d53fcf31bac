# SPDX-License-Identifier: Apache-2.0
"""Commands of our own for who writes batches exactly once: to stage, to decide, to throw away (broker/transactions.py).

Rights are those of publishing: on every target, when a transaction begins, as long as it is staged, and when it is
decided.  Limits come first here; what then is in the way of an application's run is told by a state and not by a code.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from vibemq.broker.admission import refusal_now
from vibemq.broker.staged import OPEN_MAX, hold
from vibemq.broker.transactions import TARGETS_MAX, VERSION_MAX, Result, Run, State
from vibemq.errors import StorageError, StreamNotFound
from vibemq.once_a_minute import OnceAMinute
from vibemq.protocols.streams import spec
from vibemq.protocols.streams.replies import Later, Outcome, Refused, need
from vibemq.protocols.streams.spec import Code, TransactionFlag, TransactionState
from vibemq.storage.transactions import STAGING

if TYPE_CHECKING:
    from vibemq.broker.stream import Stream
    from vibemq.protocols.streams.session import StreamsSession

logger = logging.getLogger(__name__)
unusable = OnceAMinute(logger, logging.ERROR)
excessive = OnceAMinute(logger)

NAME_SIZE_MAX_BYTES = 255  # of an application and a run: as a stream's
HOLDER_CHARACTERS_MAX = 1000  # a sentence
REFERENCE = b"staging"  # of those who stage: what comes twice is dropped
_TRANSACTION = re.compile(r"[0-9a-f]{32}")


def begin(session: StreamsSession, request: Any) -> Outcome:
    door, name, targets = session.door, request.transaction, tuple(request.targets)
    run = _run(session, request)
    _require(
        len(session.publishers) < spec.PUBLISHERS_PER_CONNECTION_COUNT_MAX
        and request.publisher_id not in session.publishers
        and _TRANSACTION.fullmatch(name) is not None
    )
    _look_at(session, request.batch, targets)
    if why := refusal_now(door.broker, session.peer):
        return _told(Result(State.FULL, why), sequence=0)

    def declare(result: Result) -> Outcome:
        if result.state is not State.OK:
            return _told(result, sequence=0)
        try:
            stream = door.table.find(STAGING, name)
            sequence = _declare(session, request, stream)
        except BlockingIOError:
            return _told(Result(State.BUSY, "somebody who looks at what is staged"), sequence=0)
        except (StreamNotFound, FileNotFoundError):
            return _told(Result(State.CHANGED, f"transaction {name}, which was thrown away"), sequence=0)
        except (StorageError, OSError) as problem:
            unusable.say(type(problem), "%s: transaction %s cannot be opened: %s", session.peer, name, problem)
            return Code.STREAM_NOT_AVAILABLE
        return _told(result, sequence=sequence)

    return Later(lambda: door.broker.transactions.begin(run, name, request.batch, targets), declare)


def _declare(session: StreamsSession, request: Any, stream: Stream) -> int:
    """Make the publisher that stages there; the highest block that is there.  OSError, StorageError."""
    try:
        sequence: int = stream.log.publisher_sequence(REFERENCE.decode())
        held = hold(stream.log.directory)
        try:
            session.add_publisher(stream, request.publisher_id, REFERENCE, tuple(request.targets), held)
        except BaseException:
            os.close(held)
            raise
        return sequence
    finally:
        session.door.table.release_if_unused(stream)


def commit(session: StreamsSession, request: Any) -> Outcome:
    door, targets, staged = session.door, tuple(request.targets), [tuple(one) for one in request.transactions]
    run, is_last = _run(session, request), bool(request.flags & TransactionFlag.LAST)
    names = {name for name, _ in staged}
    _require(len(staged) <= OPEN_MAX and len(names) == len(staged) and all(map(_TRANSACTION.fullmatch, names)))
    _require(all(blocks <= VERSION_MAX for _, blocks in staged))
    _look_at(session, request.batch, targets)
    if why := refusal_now(door.broker, session.peer):
        return _told(Result(State.FULL, why), rows=0)

    transactions = door.broker.transactions
    return Later(
        partial(transactions.commit, run, request.batch, targets, staged, is_last=is_last),
        lambda result: _told(result, rows=result.messages),
        after=lambda _: transactions.decisions.look_after_queues(),
        submit=door.helpers.submit_commit,
    )


def abort(session: StreamsSession, request: Any) -> Outcome:
    run, names = _run(session, request), frozenset(request.transactions)
    is_last = bool(request.flags & TransactionFlag.LAST)
    return Later(lambda: session.door.broker.transactions.abort(run, names, is_last=is_last))


def look_at_staged(session: StreamsSession, publisher: Any) -> None:
    """Let who stages end where too much is staged: what comes is refused, and Begin says why."""

    def told(excess: str | None, problem: BaseException | None) -> None:
        if problem is not None:
            unusable.say(type(problem), "staged transactions cannot be inspected: %s", problem)
        elif excess:
            excessive.say("staged", "staged transactions exceed their limit: %s", excess)
            publisher.is_full = True

    door, user = session.door, session.client.user
    door.helpers.submit(lambda: door.broker.transactions.staged.excess(user), told)


def _run(session: StreamsSession, request: Any) -> Run:
    _require(_is_name(request.application) and _is_name(request.run))
    return Run(
        session.virtual_host,
        request.application,
        request.run,
        session.client.user,
        session.peer,
        bool(request.flags & TransactionFlag.EPHEMERAL),
        session.rights.is_superuser,
        bool(request.flags & TransactionFlag.KEEPS_TARGETS),
    )


def _is_name(text: str) -> bool:
    return text.isprintable() and 1 <= len(text.encode()) <= NAME_SIZE_MAX_BYTES


def _look_at(session: StreamsSession, version: int, targets: Sequence[str]) -> None:
    _require(version <= VERSION_MAX and 1 <= len(targets) <= TARGETS_MAX and len(set(targets)) == len(targets))
    need(session, "write", *targets)


def _require(is_so: bool) -> None:
    if not is_so:
        raise Refused(Code.PRECONDITION_FAILED)


def _told(result: Result, **number: int) -> dict[str, Any]:
    holder = result.holder[:HOLDER_CHARACTERS_MAX]
    return {"state": TransactionState[result.state.name], "holder": holder, **number}
