# SPDX-License-Identifier: Apache-2.0
"""Subscribe, Unsubscribe and the answers to our ConsumerUpdate."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from vibemq.errors import StorageError
from vibemq.protocols.streams import spec
from vibemq.protocols.streams.replies import answer, find, offset_value
from vibemq.protocols.streams.spec import Code, Key

if TYPE_CHECKING:
    from vibemq.protocols.streams.session import StreamsSession

logger = logging.getLogger(__name__)


def subscribe(session: StreamsSession, request: Any) -> None:
    properties = request.properties
    if len(session.subscriptions) >= spec.SUBSCRIPTIONS_PER_CONNECTION_COUNT_MAX:
        answer(session, request, Key.SUBSCRIBE, Code.PRECONDITION_FAILED)
        return
    if len(properties.get("name", "").encode()) > spec.REFERENCE_SIZE_MAX_BYTES:
        answer(session, request, Key.SUBSCRIBE, Code.PRECONDITION_FAILED)
        return
    stream = find(session, request, Key.SUBSCRIBE)
    if stream is None:
        return
    code = Code.OK
    if request.subscription_id in session.subscriptions:
        code = Code.SUBSCRIPTION_ID_ALREADY_EXISTS
    elif properties.get("single-active-consumer") == "true":
        # Refused rather than ignored: two consumers that both believe to be the active one do harm.
        logger.warning("%s: single active consumers are not offered by this version", session.peer)
        code = Code.PRECONDITION_FAILED
    else:
        try:
            session.deliveries.add(
                stream, request.subscription_id, request.offset_type, offset_value(request), request.credit
            )
        except StorageError as problem:
            logger.error("%s: subscribe to %s: %s", session.peer, request.stream, problem)
            code = Code.STREAM_NOT_AVAILABLE
    session.door.table.release_if_unused(stream)
    answer(session, request, Key.SUBSCRIBE, code)


def unsubscribe(session: StreamsSession, request: Any) -> None:
    known = session.deliveries.remove(request.subscription_id)
    answer(session, request, Key.UNSUBSCRIBE, Code.OK if known else Code.SUBSCRIPTION_ID_DOES_NOT_EXIST)


def consumer_update(session: StreamsSession, request: Any) -> None:
    """To a question nobody asked: nothing to do."""
