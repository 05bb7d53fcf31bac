# SPDX-License-Identifier: Apache-2.0
"""DeclarePublisher, DeletePublisher and QueryPublisherSequence; Publish itself is the session's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vibemq.protocols.streams import spec
from vibemq.protocols.streams.replies import answer, find
from vibemq.protocols.streams.spec import Code, Key

if TYPE_CHECKING:
    from vibemq.protocols.streams.session import StreamsSession


def declare_publisher(session: StreamsSession, request: Any) -> None:
    reference = request.reference.encode()
    too_long = len(reference) > spec.REFERENCE_SIZE_MAX_BYTES
    if too_long or len(session.publishers) >= spec.PUBLISHERS_PER_CONNECTION_COUNT_MAX:
        answer(session, request, Key.DECLARE_PUBLISHER, Code.PRECONDITION_FAILED)
        return
    stream = find(session, request, Key.DECLARE_PUBLISHER)
    if stream is None:
        return
    if request.publisher_id in session.publishers or (reference and session.publishes_as(stream, reference)):
        session.door.table.release_if_unused(stream)
        answer(session, request, Key.DECLARE_PUBLISHER, Code.PRECONDITION_FAILED)
        return
    session.add_publisher(stream, request.publisher_id, reference)
    answer(session, request, Key.DECLARE_PUBLISHER)


def delete_publisher(session: StreamsSession, request: Any) -> None:
    known = session.remove_publisher(request.publisher_id)
    answer(session, request, Key.DELETE_PUBLISHER, Code.OK if known else Code.PUBLISHER_DOES_NOT_EXIST)


def query_publisher_sequence(session: StreamsSession, request: Any) -> None:
    stream = find(session, request, Key.QUERY_PUBLISHER_SEQUENCE)
    if stream is not None:
        sequence = stream.log.publisher_sequence(request.reference)
        answer(session, request, Key.QUERY_PUBLISHER_SEQUENCE, sequence=sequence)
        session.door.table.release_if_unused(stream)
