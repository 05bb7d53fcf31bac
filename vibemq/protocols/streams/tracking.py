# SPDX-License-Identifier: Apache-2.0
"""StoreOffset and QueryOffset.

StoreOffset has no answer, so whatever stops one is logged.  A connection that has stored or asked for an offset
holds the stream from then on (a Tracking), so that it hears of the stream's end as publishers and subscribers do.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any

from vibemq.errors import LimitExceeded, StorageError, StreamNotFound
from vibemq.once_a_minute import OnceAMinute
from vibemq.protocols.streams import spec
from vibemq.protocols.streams.replies import answer
from vibemq.protocols.streams.rights import find_with
from vibemq.protocols.streams.spec import Code, Key

if TYPE_CHECKING:
    from vibemq.protocols.streams.session import StreamsSession

logger = logging.getLogger(__name__)
not_stored = OnceAMinute(logger)


def store_offset(session: StreamsSession, request: Any) -> None:
    reference = request.reference.encode()
    problem = _not_stored(session, request.stream, reference, request.offset)
    if problem:
        not_stored.say(
            (request.stream, reference),
            "%s: offset %d of %r on %s not stored: %s",
            session.peer,
            request.offset,
            request.reference[: spec.REFERENCE_SIZE_MAX_BYTES],
            request.stream,
            problem,
        )


def _not_stored(session: StreamsSession, name: str, reference: bytes, offset: int) -> str:
    """Store it; why it could not be, or "" when it is."""
    if len(reference) > spec.REFERENCE_SIZE_MAX_BYTES:
        return f"the reference has {len(reference)} bytes, at most {spec.REFERENCE_SIZE_MAX_BYTES} allowed"
    if not session.rights.read(name):
        return f"user {session.client.user!r} may not read it"
    try:
        stream = session.door.table.find(session.virtual_host, name)
        session.track(stream)
        stored = session.door.offsets.of(stream.log.directory)
        session.door.alarms.reserve.retry(partial(stored.store, reference, offset))
    except StreamNotFound:
        return "there is no such stream"
    except (LimitExceeded, StorageError) as problem:
        return str(problem)
    return ""


def query_offset(session: StreamsSession, request: Any) -> None:
    key = Key.QUERY_OFFSET
    stream = find_with(session, request, key, "read")
    if stream is None:
        return
    session.track(stream)
    try:
        offset = session.door.offsets.of(stream.log.directory).get(request.reference.encode())
    except StorageError as problem:
        logger.error("%s: offsets of %s: %s", session.peer, request.stream, problem)
        answer(session, request, key, Code.STREAM_NOT_AVAILABLE)
        return
    if offset is None:
        answer(session, request, key, Code.NO_OFFSET)
    else:
        answer(session, request, key, offset=offset)
