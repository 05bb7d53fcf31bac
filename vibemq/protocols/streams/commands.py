# SPDX-License-Identifier: Apache-2.0
"""Control commands of the streams door: plain Python, once per connection or command.

STATES is the whole state machine: for each state the commands it allows and who handles them; NEXT is what
follows them.  What is not in the table is refused.  A command that must touch
the disk or hash a password runs in a helper thread; its session is busy until then, so
replies leave in the order of requests.  Codes and delays: the RabbitMQ Streams protocol.

Here are also the commands of publishers; Publish itself is the session's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from vibemq.broker.admission import refusal_now
from vibemq.broker.alarms import Alarm
from vibemq.errors import StorageError
from vibemq.protocols.streams import handshake, planning, spec, streams, subscribing, tracking, transactions
from vibemq.protocols.streams.codec import MalformedFrame, decode_request
from vibemq.protocols.streams.endings import refuse, step_begins
from vibemq.protocols.streams.replies import (
    Outcome,
    answer,
    code_of,
    found,
    is_ours,
    is_stale,
    need,
    obey,
    rights_changed,
)
from vibemq.protocols.streams.spec import REFERENCE_SIZE_MAX_BYTES, RESPONSE_BIT, Code, ExtensionKey, Key
from vibemq.storage.apply import REFERENCE as TRANSACTIONS_REFERENCE

if TYPE_CHECKING:
    from vibemq.protocols.streams.session import StreamsSession


def handle(session: StreamsSession, key: int, version: int, payload: bytes) -> None:
    """One frame that is not a data frame of an open session."""
    allowed = STATES[session.state]
    if allowed is IGNORED:
        return
    command = allowed.get(key)
    if command is None:
        if key != Key.HEARTBEAT and session.state == "expelled":
            session.finish()
        elif key != Key.HEARTBEAT and session.state != "closing":
            refuse(session, f"command {key:#06x} in state {session.state}")
        return
    state = session.state
    try:
        if len(payload) > spec.COMMAND_SIZE_MAX_BYTES:
            raise MalformedFrame("command", f"{spec.COMMAND_SIZE_MAX_BYTES} bytes or fewer", str(len(payload)))
        request = decode_request(key, version, payload)
        # A secret that is renewed looks the rights up itself, and says so when they are gone.
        if state == "open" and key != Key.SASL_AUTHENTICATE and is_stale(session) and not rights_changed(session):
            return
        obey(session, key, request, command)
    except MalformedFrame as problem:
        refuse(session, problem)
        return
    if session.state == state and state in NEXT:
        session.state = NEXT[state]
        step_begins(session)


# ---- the connection ----


def exchange_versions(session: StreamsSession, request: Any) -> Outcome:
    for key, _, version_max in request.versions:
        if key == Key.DELIVER and version_max >= 2:
            session.deliveries.deliver_v2 = True
    return {"versions": spec.COMMAND_VERSIONS + (spec.EXTENSION_VERSIONS if is_ours(session) else ())}


def close_requested(session: StreamsSession, request: Any) -> None:
    session.persist()  # clients stop reading at the answer: what they published is confirmed before it
    answer(session, Key.CLOSE, request, Code.OK)
    session.state = "closed"
    session.finish()


def close_answered(session: StreamsSession, request: Any) -> None:
    session.finish()


def ignore(session: StreamsSession, request: Any) -> None:
    """Legal, and nothing to do."""


# ---- publishers ----


def declare_publisher(session: StreamsSession, request: Any) -> Outcome:
    reference = request.reference.encode()
    alarms = session.door.broker.alarms.in_effect
    refused_now = Alarm.DISK in alarms and refusal_now(session.door.broker, session.peer)
    if refused_now or len(session.publishers) >= spec.PUBLISHERS_PER_CONNECTION_COUNT_MAX:
        return Code.PRECONDITION_FAILED
    need(session, "write", request.stream)
    is_refused = len(reference) > REFERENCE_SIZE_MAX_BYTES or request.reference == TRANSACTIONS_REFERENCE
    if is_refused or request.publisher_id in session.publishers:
        return Code.PRECONDITION_FAILED
    with found(session, request) as stream:
        if reference and session.publishes_as(stream, reference):
            return Code.PRECONDITION_FAILED
        try:
            session.add_publisher(stream, request.publisher_id, reference)
        except StorageError as problem:
            if problem.code != "ERR_LIMIT":
                return code_of(session, request, problem, Code.STREAM_NOT_AVAILABLE)
            return Code.PRECONDITION_FAILED  # the stream has logged the reason
    return Code.OK


def delete_publisher(session: StreamsSession, request: Any) -> Outcome:
    return Code.OK if session.remove_publisher(request.publisher_id) else Code.PUBLISHER_DOES_NOT_EXIST


Command = Callable[[Any, Any], Outcome]
IGNORED: dict[int, Command] = {}
#: The state that follows a command; any other stays.
NEXT = {"greeting": "mechanisms", "mechanisms": "authenticating", "tuning": "opening", "opening": "open"}

STATES: dict[str, dict[int, Command]] = {
    "greeting": {Key.PEER_PROPERTIES: handshake.peer_properties},
    "mechanisms": {Key.SASL_HANDSHAKE: handshake.sasl_handshake},
    "authenticating": {Key.SASL_AUTHENTICATE: handshake.sasl_authenticate},  # on success: tuning
    "tuning": {Key.TUNE: handshake.tune, Key.TUNE | RESPONSE_BIT: handshake.tune},
    "opening": {Key.OPEN: handshake.open_},
    "open": {
        Key.HEARTBEAT: ignore,
        Key.SASL_AUTHENTICATE: handshake.update_secret,
        Key.DECLARE_PUBLISHER: declare_publisher,
        Key.DELETE_PUBLISHER: delete_publisher,
        Key.QUERY_PUBLISHER_SEQUENCE: tracking.query_publisher_sequence,
        Key.SUBSCRIBE: subscribing.subscribe,
        Key.UNSUBSCRIBE: subscribing.unsubscribe,
        Key.STORE_OFFSET: tracking.store_offset,
        Key.QUERY_OFFSET: tracking.query_offset,
        Key.CREATE: streams.create,
        Key.DELETE: streams.delete,
        Key.METADATA: streams.metadata,
        Key.CLOSE: close_requested,
        Key.ROUTE: streams.route,
        Key.PARTITIONS: streams.partitions,
        Key.CONSUMER_UPDATE | RESPONSE_BIT: subscribing.consumer_update,
        Key.EXCHANGE_COMMAND_VERSIONS: exchange_versions,
        Key.STREAM_STATS: streams.stream_stats,
        Key.CREATE_SUPER_STREAM: streams.create_super_stream,
        Key.DELETE_SUPER_STREAM: streams.delete_super_stream,
        Key.RESOLVE_OFFSET_SPEC: streams.resolve_offset_spec,
        ExtensionKey.LIST_STREAMS: streams.list_streams,
        ExtensionKey.LIST_OFFSETS: streams.list_offsets,
        ExtensionKey.PLAN_READS: planning.plan_reads,
        ExtensionKey.FILTER_RANGE: planning.filter_range,
        ExtensionKey.BEGIN_TRANSACTION: transactions.begin,
        ExtensionKey.COMMIT_TRANSACTIONS: transactions.commit,
        ExtensionKey.ABORT_TRANSACTIONS: transactions.abort,
    },
    # Its virtual host is closed to its user.
    "expelled": {Key.SASL_AUTHENTICATE: handshake.update_secret},
    # We have sent Close: only the answer counts, and a Close that crossed it.
    "closing": {Key.CLOSE | RESPONSE_BIT: close_answered, Key.CLOSE: close_requested},
    "refused": IGNORED,  # a login or Open failed; its answer is held back
    "closed": IGNORED,
}
