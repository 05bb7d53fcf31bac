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
from vibemq.net.hosts import host_of
from vibemq.once_a_minute import OnceAMinute
from vibemq.protocols.streams import spec
from vibemq.protocols.streams.codec import encode_server_frame
from vibemq.protocols.streams.endings import stream_unavailable
from vibemq.protocols.streams.replies import Outcome, code_of, found, need, offset_value
from vibemq.protocols.streams.spec import Code, Key

if TYPE_CHECKING:
    from vibemq.broker.stream import Stream
    from vibemq.protocols.streams.deliveries import Subscription
    from vibemq.protocols.streams.session import StreamsSession

logger = logging.getLogger(__name__)
unasked = OnceAMinute(logger, logging.INFO)
misused = OnceAMinute(logger)
unreadable = OnceAMinute(logger, logging.ERROR)

#: Of our questions: no client counts its own so far.
CORRELATION_ID_FIRST = 0x4000_0000
PARTITION_NONE = -1


class Question(NamedTuple):
    """A ConsumerUpdate that is not answered yet."""

    deadline_ms: int
    subscription: Subscription
    active: bool


def subscribe(session: StreamsSession, request: Any) -> Outcome:
    if len(session.deliveries.by_id) >= spec.SUBSCRIPTIONS_PER_CONNECTION_COUNT_MAX:
        return Code.PRECONDITION_FAILED
    need(session, "read", request.stream)
    if len(request.properties.get("name", "").encode()) > spec.REFERENCE_SIZE_MAX_BYTES:
        return Code.PRECONDITION_FAILED
    with found(session, request) as stream:
        if request.subscription_id in session.deliveries.by_id:
            return Code.SUBSCRIPTION_ID_ALREADY_EXISTS
        try:
            _subscribe(session, stream, request)
        except (LimitExceeded, PreconditionFailed, StorageError) as problem:
            return code_of(session, request, problem, Code.STREAM_NOT_AVAILABLE)
    return Code.OK


def _subscribe(session: StreamsSession, stream: Stream, request: Any) -> None:
    properties, subscription_id = request.properties, request.subscription_id
    group, partition = "", None
    wanted = properties.get("single-active-consumer")
    if wanted == "true":
        group, super_stream = properties.get("name", ""), properties.get("super-stream", "")
        if not group:
            raise PreconditionFailed("a single active consumer needs a name", hint="its group is called so")
        if super_stream:  # which of the members of its groups is the active one: its number within the super stream
            partition = session.door.table.metadata.partition_of(session.virtual_host, super_stream, stream.name)
    elif wanted is not None:
        said = "%s: single-active-consumer is %r, and only 'true' switches it on"
        misused.say((host_of(session.peer_address), "group"), said, session.peer, wanted)
    subscription = session.deliveries.add(
        stream, subscription_id, request.offset_type, offset_value(request), request.credit, properties, bool(group)
    )
    if group:
        key, member = (stream.slot, stream.incarnation), f"{session.peer} #{subscription_id}"
        number = PARTITION_NONE if partition is None else partition
        try:
            session.door.broker.groups.join(key, group, number, subscription, member)
        except BaseException:
            session.deliveries.remove(subscription_id)
            raise


def unsubscribe(session: StreamsSession, request: Any) -> Outcome:
    known = session.deliveries.remove(request.subscription_id)
    return Code.OK if known else Code.SUBSCRIPTION_ID_DOES_NOT_EXIST


# ---- members of groups ----


def ask_consumer(session: StreamsSession, subscription: Subscription, active: bool) -> None:
    """Tell the client what its consumer has become, and wait for the answer."""
    correlation_id = CORRELATION_ID_FIRST + session.asked
    session.asked = (session.asked + 1) % CORRELATION_ID_FIRST
    deadline_ms = session.door.now_ms() + session.door.config.request_timeout_s * 1000
    session.pending[correlation_id] = Question(deadline_ms, subscription, active)
    fields = {"subscription_id": subscription.subscription_id, "active": active}
    session.write(encode_server_frame(Key.CONSUMER_UPDATE, correlation_id=correlation_id, **fields))


def consumer_left(session: StreamsSession, subscription: Subscription) -> None:
    """It is gone, with whatever its client has not answered."""
    for correlation_id in [key for key, question in session.pending.items() if question.subscription is subscription]:
        del session.pending[correlation_id]
    session.door.broker.groups.leave(subscription)


def consumer_update(session: StreamsSession, request: Any) -> None:
    """The answer to ask_consumer: where an active consumer goes on, or that it has stopped."""
    question = session.pending.pop(request.correlation_id, None)
    if question is None:
        said = "%s: an answer to no question of ours, %#x"
        unasked.say(host_of(session.peer_address), said, session.peer, request.correlation_id)
        return
    subscription = question.subscription
    if request.code != Code.OK:
        code = spec.code_name(request.code)
        misused.say((host_of(session.peer_address), code), "%s: ConsumerUpdate answered with %s", session.peer, code)
    asked_again = any(other.subscription is subscription for other in session.pending.values())
    if question.active and not asked_again:  # else it has been told to stop meanwhile
        try:
            session.deliveries.begin(subscription, request.offset_type, offset_value(request))
        except StorageError as problem:
            unreadable.say(
                subscription.stream.name, "%s: consumer of %s: %s", session.peer, subscription.stream.name, problem
            )
            session.deliveries.remove(subscription.subscription_id)
            stream_unavailable(session, subscription.stream.name)
            return
    session.door.broker.groups.answered(subscription, question.active)
