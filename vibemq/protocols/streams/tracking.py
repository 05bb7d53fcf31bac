# SPDX-License-Identifier: Apache-2.0
"""How far a consumer or a publisher is, as the broker keeps it for them: stored offsets and publishing ids.

A connection that has stored or asked for an offset holds the stream from then on (session.Tracking), so that it hears
of the stream's end as publishers and subscribers do.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any

from vibemq.errors import LimitExceeded, StorageError, StreamNotFound
from vibemq.once_a_minute import OnceAMinute
from vibemq.protocols.streams.replies import Busy, Later, Outcome, answer, code_of, readable
from vibemq.protocols.streams.spec import REFERENCE_SIZE_MAX_BYTES, Code, Key
from vibemq.storage.offsets import StoredOffsets

if TYPE_CHECKING:
    from vibemq.protocols.streams.session import StreamsSession

not_stored = OnceAMinute(logging.getLogger(__name__))


def query_publisher_sequence(session: StreamsSession, request: Any) -> Outcome:
    """Answer with the sequence that a publisher may continue behind, when its message is confirmed.

    A power cut could take back an unconfirmed sequence, and new messages behind a lower one would be duplicates.
    """
    session.persist()  # its own messages of this turn count
    with readable(session, request) as stream:
        if stream.has_pending(request.reference):  # a helper thread appends them: a lower number would be given twice
            raise Busy
        sequence, chunk = stream.log.publisher_last(request.reference)
        if chunk >= 0 and session.tell_sequence_later(request, stream, sequence, chunk):
            return None
    return {"sequence": sequence}


def tell_sequence(session: StreamsSession, request: Any, sequence: int | None, *, is_gone: bool = False) -> None:
    """Give the answer that had to wait; None: the sync of the highest message failed, or the stream was deleted."""
    if sequence is None:
        outcome: Outcome = Code.STREAM_DOES_NOT_EXIST if is_gone else Code.INTERNAL_ERROR
    else:
        outcome = {"sequence": sequence}
    answer(session, Key.QUERY_PUBLISHER_SEQUENCE, request, outcome)


def store_offset(session: StreamsSession, request: Any) -> Outcome:
    """Store an offset, in a helper thread while the disk is slow.  The command has no answer: failures are logged."""
    reference = request.reference.encode()
    directory, problem = _where_to_store(session, request.stream, reference)
    if directory and session.door.table.disk.slow:
        work = partial(_store, session, partial(StoredOffsets, directory), reference, request.offset)
        tell = partial(_say_not_stored, session, request)
        return Later(work, tell, submit=session.door.helpers.submit_release)
    if directory:
        problem = _store(session, partial(session.door.offsets.of, directory), reference, request.offset)
    _say_not_stored(session, request, problem)
    return None


def _where_to_store(session: StreamsSession, name: str, reference: bytes) -> tuple[str, str]:
    """Return the directory of the stream and "", or "" and the reason why the offset cannot be stored."""
    if len(reference) > REFERENCE_SIZE_MAX_BYTES:
        return "", f"the reference has {len(reference)} bytes, at most {REFERENCE_SIZE_MAX_BYTES} allowed"
    if not session.rights.read(name):
        return "", f"user {session.client.user!r} may not read it"
    try:
        stream = session.door.table.find(session.virtual_host, name)
    except StreamNotFound:
        return "", "there is no such stream"
    except StorageError as problem:
        return "", str(problem)
    session.track(stream)
    return stream.log.directory, ""


def _store(session: StreamsSession, open_it: Callable[[], StoredOffsets], reference: bytes, offset: int) -> str:
    """Store the offset; return the reason of a failure, or ""."""
    try:
        session.door.broker.alarms.reserve.retry(partial(open_it().store, reference, offset))
    except (LimitExceeded, StorageError) as problem:
        return str(problem)
    return ""


def _say_not_stored(session: StreamsSession, request: Any, problem: str) -> None:
    if problem:
        reference = request.reference.encode()
        not_stored.say(
            (request.stream, reference),
            "%s: offset %d of %r on %s not stored: %s",
            session.peer,
            request.offset,
            request.reference[:REFERENCE_SIZE_MAX_BYTES],
            request.stream,
            problem,
        )


def query_offset(session: StreamsSession, request: Any) -> Outcome:
    with readable(session, request) as stream:
        session.track(stream)
        reference, directory = request.reference.encode(), stream.log.directory
        if session.door.table.disk.slow:  # the lock of the file may be held in a slow write
            work = partial(_stored, directory, reference)
            return Later(
                work, _of_offset, failure=Code.STREAM_NOT_AVAILABLE, submit=session.door.helpers.submit_release
            )
        try:
            offset = session.door.offsets.of(directory).get(reference)
        except StorageError as problem:
            return code_of(session, request, problem, Code.STREAM_NOT_AVAILABLE)
    return _of_offset(offset)


def _stored(directory: str, reference: bytes) -> int | None:
    with closing(StoredOffsets(directory)) as stored:
        return stored.get(reference)


def _of_offset(offset: int | None) -> Outcome:
    return Code.NO_OFFSET if offset is None else {"offset": offset}
