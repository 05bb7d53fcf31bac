# SPDX-License-Identifier: Apache-2.0
"""DeclarePublisher, DeletePublisher and QueryPublisherSequence; Publish itself is the session's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vibemq.broker.admission import refusal_now
from vibemq.protocols.streams import spec
from vibemq.protocols.streams.replies import answer, find
from vibemq.protocols.streams.rights import find_with, refused
from vibemq.protocols.streams.spec import Code, Key

if TYPE_CHECKING:
    from vibemq.protocols.streams.session import StreamsSession


def declare_publisher(session: StreamsSession, request: Any) -> None:
    key = Key.DECLARE_PUBLISHER
    reference = request.reference.encode()
    refused_now = refusal_now(session.door.broker, session.peer)
    if refused_now or len(session.publishers) >= spec.PUBLISHERS_PER_CONNECTION_COUNT_MAX:
        answer(session, request, key, Code.PRECONDITION_FAILED)
        return
    if refused(session, request, key, "write", request.stream):
        return
    if len(reference) > spec.REFERENCE_SIZE_MAX_BYTES or request.publisher_id in session.publishers:
        answer(session, request, key, Code.PRECONDITION_FAILED)
        return
    stream = find(session, request, key)
    if stream is None:
        return
    if reference and session.publishes_as(stream, reference):
        answer(session, request, key, Code.PRECONDITION_FAILED)
        return
    session.add_publisher(stream, request.publisher_id, reference)
    answer(session, request, key)


def delete_publisher(session: StreamsSession, request: Any) -> None:
    known = session.remove_publisher(request.publisher_id)
    answer(session, request, Key.DELETE_PUBLISHER, Code.OK if known else Code.PUBLISHER_DOES_NOT_EXIST)


def query_publisher_sequence(session: StreamsSession, request: Any) -> None:
    key = Key.QUERY_PUBLISHER_SEQUENCE
    stream = find_with(session, request, key, "read")
    if stream is not None:
        answer(session, request, key, sequence=stream.log.publisher_sequence(request.reference))
        session.door.table.release_if_unused(stream)
