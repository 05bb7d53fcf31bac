# SPDX-License-Identifier: Apache-2.0
"""Control commands of the streams door: plain Python, once per connection or command.

STATES is the whole state machine: for each state the commands it allows, who handles them
and which state follows.  What is not in the table is refused.  A command that must touch
the disk or hash a password runs in a helper thread; its session is busy until then, so
replies leave in the order of requests.  Codes and delays: the RabbitMQ Streams protocol.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from vibemq.protocols.streams import spec
from vibemq.protocols.streams.codec import MalformedFrame, decode_request, encode_response
from vibemq.protocols.streams.handshake import (
    open_,
    peer_properties,
    sasl_authenticate,
    sasl_handshake,
    tune,
    update_secret,
)
from vibemq.protocols.streams.listing import list_offsets, list_streams
from vibemq.protocols.streams.publishing import declare_publisher, delete_publisher, query_publisher_sequence
from vibemq.protocols.streams.replies import answer, malformed, refuse, step_begins
from vibemq.protocols.streams.rights import changed as rights_changed
from vibemq.protocols.streams.spec import Code, ExtensionKey, Key
from vibemq.protocols.streams.streams import create, delete, metadata, resolve_offset_spec, stream_stats
from vibemq.protocols.streams.subscribing import consumer_update, subscribe, unsubscribe
from vibemq.protocols.streams.super_streams import create_super_stream, delete_super_stream, partitions, route
from vibemq.protocols.streams.tracking import query_offset, store_offset

if TYPE_CHECKING:
    from vibemq.protocols.streams.session import StreamsSession


class Step(NamedTuple):
    """One cell of the table: what to do, and the state afterwards ("" stays)."""

    do: Callable[[Any, Any], None]
    then: str = ""


def handle(session: StreamsSession, key: int, version: int, payload: bytes) -> None:
    """One frame that is not a data frame of an open session."""
    allowed = STATES[session.state]
    if allowed is IGNORED:
        return
    step = allowed.get(key)
    if step is None:
        if key == Key.HEARTBEAT or session.state == "closing":
            return
        refuse(session, f"command {key:#06x} in state {session.state}")
        return
    if len(payload) > spec.COMMAND_SIZE_MAX_BYTES:
        malformed(
            session, MalformedFrame("command", f"{spec.COMMAND_SIZE_MAX_BYTES} bytes or fewer", str(len(payload)))
        )
        return
    try:
        request = decode_request(key, version, payload)
    except MalformedFrame as problem:
        malformed(session, problem)
        return
    state = session.state
    # A secret that is renewed looks the rights up itself, and says so when they are gone.
    is_stale = state == "open" and session.rights_generation != session.door.rights.generation
    if is_stale and key != Key.SASL_AUTHENTICATE and not rights_changed(session):
        return
    step.do(session, request)
    if step.then and session.state == state:
        session.state = step.then
        step_begins(session)


def exchange_versions(session: StreamsSession, request: Any) -> None:
    for key, _, version_max in request.versions:
        if key == Key.DELIVER and version_max >= 2:
            session.announce_deliver_v2()
    is_ours = session.peer_properties.get("product") == spec.OWN_PRODUCT
    versions = spec.COMMAND_VERSIONS + spec.EXTENSION_VERSIONS if is_ours else spec.COMMAND_VERSIONS
    answer(session, request, Key.EXCHANGE_COMMAND_VERSIONS, versions=versions)


def close_requested(session: StreamsSession, request: Any) -> None:
    session.persist()  # clients stop reading at the answer: what they published is confirmed before it
    session.write(encode_response(Key.CLOSE, request.correlation_id, Code.OK))
    session.state = "closed"
    session.finish()


def close_answered(session: StreamsSession, request: Any) -> None:
    session.finish()


def ignore(session: StreamsSession, request: Any) -> None:
    """Legal, and nothing to do."""


IGNORED: dict[int, Step] = {}

STATES: dict[str, dict[int, Step]] = {
    "greeting": {Key.PEER_PROPERTIES: Step(peer_properties, "mechanisms")},
    "mechanisms": {Key.SASL_HANDSHAKE: Step(sasl_handshake, "authenticating")},
    "authenticating": {Key.SASL_AUTHENTICATE: Step(sasl_authenticate)},  # on success: tuning
    "tuning": {
        Key.TUNE: Step(tune, "opening"),
        Key.TUNE | spec.RESPONSE_BIT: Step(tune, "opening"),
    },
    "opening": {Key.OPEN: Step(open_, "open")},
    "open": {
        Key.HEARTBEAT: Step(ignore),
        Key.SASL_AUTHENTICATE: Step(update_secret),
        Key.DECLARE_PUBLISHER: Step(declare_publisher),
        Key.DELETE_PUBLISHER: Step(delete_publisher),
        Key.QUERY_PUBLISHER_SEQUENCE: Step(query_publisher_sequence),
        Key.SUBSCRIBE: Step(subscribe),
        Key.UNSUBSCRIBE: Step(unsubscribe),
        Key.STORE_OFFSET: Step(store_offset),
        Key.QUERY_OFFSET: Step(query_offset),
        Key.CREATE: Step(create),
        Key.DELETE: Step(delete),
        Key.METADATA: Step(metadata),
        Key.CLOSE: Step(close_requested),
        Key.ROUTE: Step(route),
        Key.PARTITIONS: Step(partitions),
        Key.CONSUMER_UPDATE | spec.RESPONSE_BIT: Step(consumer_update),
        Key.EXCHANGE_COMMAND_VERSIONS: Step(exchange_versions),
        Key.STREAM_STATS: Step(stream_stats),
        Key.CREATE_SUPER_STREAM: Step(create_super_stream),
        Key.DELETE_SUPER_STREAM: Step(delete_super_stream),
        Key.RESOLVE_OFFSET_SPEC: Step(resolve_offset_spec),
        ExtensionKey.LIST_STREAMS: Step(list_streams),
        ExtensionKey.LIST_OFFSETS: Step(list_offsets),
    },
    # We have sent Close: only the answer counts, and a Close that crossed it.
    "closing": {
        Key.CLOSE | spec.RESPONSE_BIT: Step(close_answered),
        Key.CLOSE: Step(close_requested),
    },
    "refused": IGNORED,  # a login or Open failed; its answer is held back
    "closed": IGNORED,
}
FIRST_STATE = "greeting"
