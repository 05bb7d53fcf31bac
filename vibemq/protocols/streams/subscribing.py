# SPDX-License-Identifier: Apache-2.0
"""Subscribe, Unsubscribe, and ConsumerUpdate: single active consumers.

A consumer in a group (vibemq.broker.groups) is delivered nothing until its group makes it the active one, its client
has been told so and has answered where it wants to begin.  What our questions wait for stands in
``session.pending``, oldest first; the session ends when the oldest is too old.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, NamedTuple

from vibemq.errors import LimitExceeded, PreconditionFailed, StorageError
from vibemq.protocols.streams import spec
from vibemq.protocols.streams.codec import encode_server_frame
from vibemq.protocols.streams.replies import OFFSET_MAX, answer, find, offset_value, stream_unavailable
from vibemq.protocols.streams.rights import refused
from vibemq.protocols.streams.spec import Code, Key

if TYPE_CHECKING:
    from vibemq.broker.stream import Stream
    from vibemq.protocols.streams.deliveries import Subscription
    from vibemq.protocols.streams.session import StreamsSession

logger = logging.getLogger(__name__)

#: Of our questions: no client counts its own so far.
CORRELATION_ID_FIRST = 0x4000_0000
PARTITION_NONE = -1


class Question(NamedTuple):
    """A ConsumerUpdate that is not answered yet."""

    deadline_ms: int
    subscription: Subscription
    active: bool


def subscribe(session: StreamsSession, request: Any) -> None:
    key, properties = Key.SUBSCRIBE, request.properties
    if len(session.subscriptions) >= spec.SUBSCRIPTIONS_PER_CONNECTION_COUNT_MAX:
        answer(session, request, key, Code.PRECONDITION_FAILED)
        return
    if refused(session, request, key, "read", request.stream):
        return
    if len(properties.get("name", "").encode()) > spec.REFERENCE_SIZE_MAX_BYTES:
        answer(session, request, key, Code.PRECONDITION_FAILED)
        return
    stream = find(session, request, key)
    if stream is None:
        return
    code = Code.OK
    if request.subscription_id in session.subscriptions:
        code = Code.SUBSCRIPTION_ID_ALREADY_EXISTS
    else:
        try:
            _subscribe(session, stream, request)
        except (LimitExceeded, PreconditionFailed) as problem:
            logger.warning("%s: subscribe to %s: %s", session.peer, request.stream, problem)
            code = Code.PRECONDITION_FAILED
        except StorageError as problem:
            logger.error("%s: subscribe to %s: %s", session.peer, request.stream, problem)
            code = Code.STREAM_NOT_AVAILABLE
    session.door.table.release_if_unused(stream)
    answer(session, request, key, code)


def _subscribe(session: StreamsSession, stream: Stream, request: Any) -> None:
    properties = request.properties
    group, partition = "", PARTITION_NONE
    if properties.get("single-active-consumer") == "true":
        group = properties.get("name", "")
        if not group:
            raise PreconditionFailed("a single active consumer needs a name", hint="its group is called so")
        partition = _partition(session, stream, properties.get("super-stream", ""))
    elif "single-active-consumer" in properties:
        logger.warning(
            "%s: single-active-consumer is %r, and only 'true' switches it on",
            session.peer,
            properties["single-active-consumer"],
        )
    subscription = session.deliveries.add(
        stream,
        request.subscription_id,
        request.offset_type,
        offset_value(request),
        request.credit,
        properties,
        bool(group),
    )
    if group:
        try:
            session.door.groups.join(
                (stream.slot, stream.incarnation),
                group,
                partition,
                subscription,
                f"{session.peer} #{request.subscription_id}",
            )
        except BaseException:
            session.deliveries.remove(request.subscription_id)
            raise


def _partition(session: StreamsSession, stream: Stream, super_stream: str) -> int:
    """Which of the members of the groups on this stream is the active one: its number within the super stream."""
    if not super_stream:
        return PARTITION_NONE
    number = session.door.table.metadata.partition_of(session.virtual_host, super_stream, stream.name)
    return PARTITION_NONE if number is None else number


def unsubscribe(session: StreamsSession, request: Any) -> None:
    known = session.deliveries.remove(request.subscription_id)
    answer(session, request, Key.UNSUBSCRIBE, Code.OK if known else Code.SUBSCRIPTION_ID_DOES_NOT_EXIST)


# ---- members of groups ----


def ask_consumer(session: StreamsSession, subscription: Subscription, active: bool) -> None:
    """Tell the client what its consumer has become, and wait for the answer."""
    correlation_id = CORRELATION_ID_FIRST + session.asked
    session.asked = (session.asked + 1) % CORRELATION_ID_FIRST
    deadline_ms = session.door.now_ms() + session.door.config.request_timeout_s * 1000
    session.pending[correlation_id] = Question(deadline_ms, subscription, active)
    session.write(
        encode_server_frame(
            Key.CONSUMER_UPDATE,
            correlation_id=correlation_id,
            subscription_id=subscription.subscription_id,
            active=active,
        )
    )


def consumer_left(session: StreamsSession, subscription: Subscription) -> None:
    """It is gone, with whatever its client has not answered."""
    for correlation_id in [key for key, question in session.pending.items() if question.subscription is subscription]:
        del session.pending[correlation_id]
    session.door.groups.leave(subscription)


def consumer_update(session: StreamsSession, request: Any) -> None:
    """The answer to ask_consumer: where an active consumer goes on, or that it has stopped."""
    question = session.pending.pop(request.correlation_id, None)
    if question is None:
        logger.info("%s: an answer to no question of ours, %#x", session.peer, request.correlation_id)
        return
    subscription = question.subscription
    if request.code != Code.OK:
        logger.warning("%s: ConsumerUpdate answered with %s", session.peer, spec.code_name(request.code))
    asked_again = any(other.subscription is subscription for other in session.pending.values())
    if question.active and not asked_again:  # else it has been told to stop meanwhile
        try:
            session.deliveries.begin(subscription, request.offset_type, min(request.offset_value or 0, OFFSET_MAX))
        except StorageError as problem:
            logger.error("%s: consumer of %s: %s", session.peer, subscription.stream.name, problem)
            session.deliveries.remove(subscription.subscription_id)
            stream_unavailable(session, subscription.stream.name)
            return
    session.door.groups.answered(subscription, question.active)
