# SPDX-License-Identifier: Apache-2.0
"""Control commands of the streams door: plain Python, once per connection or command.

STATES is the whole state machine: for each state the commands it allows, who handles them
and which state follows.  What is not in the table is refused.  A command that must touch
the disk or hash a password runs in a helper thread; its session is busy until then, so
replies leave in the order of requests.  Codes and delays: the RabbitMQ Streams protocol.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from vibemq.broker.arguments import BadArgument, stream_arguments
from vibemq.errors import LimitExceeded, StorageError, StreamExists, StreamNotFound
from vibemq.protocols.streams import spec
from vibemq.protocols.streams.codec import MalformedFrame, decode_request, encode_response, encode_server_frame
from vibemq.protocols.streams.spec import Code, Key, OffsetType

if TYPE_CHECKING:
    from vibemq.broker.stream import Stream
    from vibemq.protocols.streams.session import StreamsSession

logger = logging.getLogger(__name__)

HEARTBEAT = encode_server_frame(Key.HEARTBEAT)
#: Of our Close, as RabbitMQ numbers it.
SERVER_CORRELATION_ID = 1
PRODUCT = "RabbitMQ"  # tools check it; `information` says who this is
OWN_PRODUCT = "VibeMQ"  # our own clients name themselves so in their peer properties
OFFSET_NONE_SET = -1
OFFSET_MAX = 2**63 - 1
LOOKUPS_IN_LOOP_MAX = 64  # of streams in one command: some microseconds each, in a loop that may not stop for one ms


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
    try:
        request = decode_request(key, version, payload)
    except MalformedFrame as problem:
        malformed(session, problem)
        return
    state = session.state
    step.do(session, request)
    if step.then and session.state == state:
        session.state = step.then
        step_begins(session)


def step_begins(session: StreamsSession) -> None:
    """Each step of the handshake has its own deadline; an open session has none."""
    door = session.door
    if session.state == "open":
        session.deadline_ms = 0
    else:
        session.deadline_ms = door.now_ms() + door.config.handshake_timeout_s * 1000
        session.at_deadline = _handshake_too_slow


def _handshake_too_slow(session: StreamsSession) -> None:
    logger.info("%s: no progress in state %s, closed", session.peer, session.state)
    session.finish()


# ---- peers that do not keep to the protocol ----


def malformed(session: StreamsSession, problem: MalformedFrame) -> None:
    refuse(session, str(problem))


def refuse(session: StreamsSession, why: str) -> None:
    """Before Open the socket closes without a word; afterwards with Close 13."""
    logger.info("%s: refused: %s", session.peer, why)
    if session.state == "open":
        close(session, Code.UNKNOWN_FRAME, "unknown frame")
    else:
        session.finish()


def frame_too_large(session: StreamsSession, size: int, first: bytes) -> None:
    if session.state != "open" and first[:1] == bytes([spec.TLS_CLIENT_HELLO_FIRST_BYTE]):
        logger.warning("%s: speaks TLS to the plain port, closed", session.peer)
        session.finish()
        return
    logger.info("%s: a frame of %d bytes, at most %d allowed", session.peer, size, session.frame_max)
    if session.state == "open":
        close(session, Code.FRAME_TOO_LARGE, "frame too large")
    else:
        session.finish()


def close(session: StreamsSession, code: int, reason: str) -> None:
    """Our Close; the peer has CLOSE_WAIT_S for its answer."""
    session.write(encode_server_frame(Key.CLOSE, correlation_id=SERVER_CORRELATION_ID, code=code, reason=reason))
    session.state = "closing"
    session.deadline_ms = session.door.now_ms() + spec.CLOSE_WAIT_S * 1000
    session.at_deadline = _finish


def say_goodbye(session: StreamsSession) -> None:
    """The broker shuts down."""
    if session.state == "open":
        close(session, Code.OK, "the broker is shutting down")
    else:
        session.finish()


def _finish(session: StreamsSession) -> None:
    session.finish()


def fail_later(session: StreamsSession, frame: bytes) -> None:
    """Hold the answer back, ignore all input, then close: guessing gets slow, nobody else does."""
    session.state = "refused"
    # One ms more: the clock's fraction was cut off, and the delay is a promise.
    session.deadline_ms = session.door.now_ms() + session.door.config.login_failure_delay_s * 1000 + 1
    session.at_deadline = lambda s: (s.write(frame), s.finish())


# ---- handshake ----


def peer_properties(session: StreamsSession, request: Any) -> None:
    session.peer_properties = request.properties
    answer(session, request, Key.PEER_PROPERTIES, properties=session.door.properties)


def sasl_handshake(session: StreamsSession, request: Any) -> None:
    answer(session, request, Key.SASL_HANDSHAKE, mechanisms=["PLAIN"])


def sasl_authenticate(session: StreamsSession, request: Any) -> None:
    if request.mechanism != "PLAIN":
        answer(session, request, Key.SASL_AUTHENTICATE, Code.SASL_MECHANISM_NOT_SUPPORTED)
        session.finish()
        return
    parts = request.data.split(b"\0")
    try:
        if len(parts) != 3 or parts[0]:
            raise ValueError("not three parts with an empty first one")
        user, password = parts[1].decode(), parts[2].decode()
    except ValueError:
        answer(session, request, Key.SASL_AUTHENTICATE, Code.SASL_ERROR)
        session.finish()
        return
    door = session.door
    verdict = door.authenticator.check_cached(user, password, session.is_loopback)
    if verdict is not None:
        _authenticated(session, request, user, verdict)
        return
    loopback = session.is_loopback

    def done(verdict: Any, error: BaseException | None) -> None:
        if error is not None:
            logger.error("%s: login could not be checked: %s", session.peer, error)
            answer(session, request, Key.SASL_AUTHENTICATE, Code.INTERNAL_ERROR)
            session.finish()
        else:
            _authenticated(session, request, user, verdict)

    work = partial(door.authenticator.check, user, password, loopback)
    in_helper(session, work, done, submit=door.helpers.submit_hash)


def _authenticated(session: StreamsSession, request: Any, user: str, verdict: Any) -> None:
    if verdict.name == "OK":
        answer(session, request, Key.SASL_AUTHENTICATE)
        config = session.door.config
        # The very next frame: one client insists on it.
        session.write(
            encode_server_frame(Key.TUNE, frame_max=config.frame_max_bytes, heartbeat=config.heartbeat_s)
        )
        session.state = "tuning"
        step_begins(session)
    elif verdict.name == "LOOPBACK_ONLY":
        answer(session, request, Key.SASL_AUTHENTICATE, Code.AUTHENTICATION_FAILURE_LOOPBACK)
        session.finish()
    else:
        logger.warning("%s: login refused for user %r", session.peer, user)
        fail_later(
            session,
            encode_response(Key.SASL_AUTHENTICATE, request.correlation_id, Code.AUTHENTICATION_FAILURE),
        )


def tune(session: StreamsSession, request: Any) -> None:
    ours, theirs = session.door.config.frame_max_bytes, request.frame_max
    session.negotiated_frame_max = min(ours, theirs) if ours and theirs else ours or theirs
    session.heartbeat_s = request.heartbeat  # verbatim: a client that answers 0 never sends any


def open_(session: StreamsSession, request: Any) -> None:
    if request.virtual_host != "/":
        logger.warning("%s: virtual host %r does not exist", session.peer, request.virtual_host)
        fail_later(session, encode_response(Key.OPEN, request.correlation_id, Code.VIRTUAL_HOST_ACCESS_FAILURE))
        return
    session.virtual_host = request.virtual_host
    session.frame_max = session.negotiated_frame_max
    host, port = advertised(session)
    answer(session, request, Key.OPEN, properties={"advertised_host": host, "advertised_port": str(port)})
    session.start_heartbeats(session.door.now_ms())


def advertised(session: StreamsSession) -> tuple[str, int]:
    """The address the client evidently reached us by, unless configured."""
    config = session.door.config
    host = config.advertised_host or ("localhost" if session.is_loopback else session.local_host)
    return host, config.advertised_port or session.local_port


# ---- an open session ----


def exchange_versions(session: StreamsSession, request: Any) -> None:
    for key, _, version_max in request.versions:
        if key == Key.DELIVER and version_max >= 2:
            session.announce_deliver_v2()
    answer(session, request, Key.EXCHANGE_COMMAND_VERSIONS, versions=spec.COMMAND_VERSIONS)


def close_requested(session: StreamsSession, request: Any) -> None:
    session.persist()  # clients stop reading at the answer: what they published is confirmed before it
    session.write(encode_response(Key.CLOSE, request.correlation_id, Code.OK))
    session.state = "closed"
    session.finish()


def close_answered(session: StreamsSession, request: Any) -> None:
    session.finish()


def ignore(session: StreamsSession, request: Any) -> None:
    """Legal, and nothing to do."""


def create(session: StreamsSession, request: Any) -> None:
    name = request.stream.replace("\r", "").replace("\n", "")
    door = session.door
    try:
        if not name or name.startswith("amq.") or len(name.encode()) > spec.STREAM_NAME_SIZE_MAX_BYTES:
            most = spec.STREAM_NAME_SIZE_MAX_BYTES
            raise BadArgument(f"stream name {name!r} is empty, reserved or longer than {most} bytes")
        wanted = stream_arguments(request.arguments, door.store)
    except BadArgument as problem:
        logger.info("%s: create refused: %s", session.peer, problem)
        answer(session, request, Key.CREATE, Code.PRECONDITION_FAILED)
        return

    def done(_: Any, error: BaseException | None) -> None:
        code = Code.OK
        if isinstance(error, StreamExists):
            same = wanted.same_as(error.record.arguments, error.record.durability, door.store)  # type: ignore[attr-defined]
            code = Code.STREAM_ALREADY_EXISTS if same else Code.PRECONDITION_FAILED
        elif isinstance(error, LimitExceeded):
            logger.warning("create %s: %s", name, error)
            code = Code.PRECONDITION_FAILED
        elif error is not None:
            logger.error("create %s: %s", name, error)
            code = Code.INTERNAL_ERROR
        answer(session, request, Key.CREATE, code)

    in_helper(session, partial(door.catalog.create_stream, session.virtual_host, name, wanted), done)


def delete(session: StreamsSession, request: Any) -> None:
    door = session.door

    def done(deleted: Any, error: BaseException | None) -> None:
        if isinstance(error, StreamNotFound):
            answer(session, request, Key.DELETE, Code.STREAM_DOES_NOT_EXIST)
        elif error is not None:
            logger.error("delete %s: %s", request.stream, error)
            answer(session, request, Key.DELETE, Code.INTERNAL_ERROR)
        else:
            answer(session, request, Key.DELETE)
            door.catalog.deleted(deleted)  # after the answer: MetadataUpdate follows it

    in_helper(session, partial(door.catalog.delete, session.virtual_host, request.stream), done)


def metadata(session: StreamsSession, request: Any) -> None:
    names = list(dict.fromkeys(request.streams))
    if any(len(name.encode()) > spec.STRING_SIZE_MAX_BYTES for name in names):
        needed = f"{spec.STRING_SIZE_MAX_BYTES} bytes or fewer"  # the answer repeats it
        malformed(session, MalformedFrame("Metadata, stream name", needed, "more"))
        return
    store, virtual_host = session.door.table.metadata, session.virtual_host

    def look() -> list[bool]:
        return [store.find_stream(virtual_host, name) is not None for name in names]

    def done(found: list[bool] | None, error: BaseException | None) -> None:
        if found is None:
            logger.error("%s: metadata cannot be read: %s", session.peer, error)
            found = [False] * len(names)
        host, port = advertised(session)
        streams = [
            (name, Code.OK, 0, ()) if exists else (name, Code.STREAM_DOES_NOT_EXIST, spec.LEADER_NONE, ())
            for name, exists in zip(names, found, strict=True)
        ]
        brokers = [(0, host, port)]
        session.write(encode_response(Key.METADATA, request.correlation_id, None, brokers=brokers, streams=streams))

    if len(names) > LOOKUPS_IN_LOOP_MAX:
        in_helper(session, look, done)
    else:
        done(look(), None)


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


def stream_stats(session: StreamsSession, request: Any) -> None:
    stream = find(session, request, Key.STREAM_STATS)
    if stream is None:
        return
    stats = stream.log.stats()
    empty = stats.last_chunk < 0
    statistics = {
        "first_chunk_id": OFFSET_NONE_SET if empty else stats.first_offset,
        "last_chunk_id": OFFSET_NONE_SET if empty else stats.last_chunk,
        "committed_chunk_id": OFFSET_NONE_SET if empty else stats.last_chunk,
        "committed_offset": OFFSET_NONE_SET if empty else stats.next_offset - 1,
    }
    if session.peer_properties.get("product") == OWN_PRODUCT:
        # Which stream of this name it is: a checkpoint must not go on in a recreated one.
        identity = int(stream.incarnation, 16)
        statistics["incarnation"] = identity - (1 << 64) if identity >= 1 << 63 else identity
    answer(session, request, Key.STREAM_STATS, statistics=statistics)
    session.door.table.release_if_unused(stream)


def resolve_offset_spec(session: StreamsSession, request: Any) -> None:
    stream = find(session, request, Key.RESOLVE_OFFSET_SPEC)
    if stream is not None:
        offset = stream.log.attach_offset(request.offset_type, offset_value(request))
        answer(session, request, Key.RESOLVE_OFFSET_SPEC, offset_type=OffsetType.OFFSET, offset=offset)
        session.door.table.release_if_unused(stream)


# ---- what this version leaves out: an answer, never silence ----


def store_offset(session: StreamsSession, request: Any) -> None:
    # The protocol has no answer for it; QueryOffset will truthfully say that nothing is stored.
    logger.warning("%s: offset of %r on %s not stored: not offered by this version", session.peer, request.reference,
                   request.stream)


def query_offset(session: StreamsSession, request: Any) -> None:
    if find(session, request, Key.QUERY_OFFSET) is not None:
        answer(session, request, Key.QUERY_OFFSET, Code.NO_OFFSET)


def no_super_stream(key: Key) -> Callable[[Any, Any], None]:
    def refused(session: StreamsSession, request: Any) -> None:
        answer(session, request, key, Code.STREAM_DOES_NOT_EXIST)

    return refused


def create_super_stream(session: StreamsSession, request: Any) -> None:
    logger.warning("%s: super streams are not offered by this version", session.peer)
    answer(session, request, Key.CREATE_SUPER_STREAM, Code.PRECONDITION_FAILED)


# ---- shared by the above ----


def in_helper(
    session: StreamsSession,
    work: Callable[[], Any],
    done: Callable[[Any, BaseException | None], None],
    submit: Callable[..., None] | None = None,
) -> None:
    """Do `work` in a helper thread and answer in `done`; the session takes no frames until then."""

    def back(result: Any, error: BaseException | None) -> None:
        try:
            done(result, error)
        except Exception:
            logger.exception("%s: closed by an error of ours", session.peer)
            session.finish()
        finally:
            session.resume()

    session.set_busy()
    (submit or session.door.helpers.submit)(work, back)


def offset_value(request: Any) -> int:
    """The offset or time a request names; an offset beyond every log is as good as the last one there can be."""
    return min(request.offset_value or 0, OFFSET_MAX)


def answer(session: StreamsSession, request: Any, key: Key, code: Code = Code.OK, **fields: Any) -> None:
    session.write(encode_response(key, request.correlation_id, code, **fields))


def find(session: StreamsSession, request: Any, key: Key) -> Stream | None:
    """The stream a request names; None after the error has been answered."""
    try:
        stream: Stream = session.door.table.find(session.virtual_host, request.stream)
        return stream
    except StreamNotFound:
        answer(session, request, key, Code.STREAM_DOES_NOT_EXIST)
    except StorageError as problem:
        logger.error("stream %s cannot be opened: %s", request.stream, problem)
        answer(session, request, key, Code.STREAM_NOT_AVAILABLE)
    return None


def stream_gone(session: StreamsSession, stream: Stream) -> None:
    """After the last publisher and subscription on a deleted stream is gone: once per connection."""
    if not session.uses(stream):
        stream_unavailable(session, stream.name)


def stream_unavailable(session: StreamsSession, name: str) -> None:
    session.write(encode_server_frame(Key.METADATA_UPDATE, code=Code.STREAM_NOT_AVAILABLE, stream=name))


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
        Key.ROUTE: Step(no_super_stream(Key.ROUTE)),
        Key.PARTITIONS: Step(no_super_stream(Key.PARTITIONS)),
        Key.CONSUMER_UPDATE | spec.RESPONSE_BIT: Step(ignore),  # to a question nobody asked
        Key.EXCHANGE_COMMAND_VERSIONS: Step(exchange_versions),
        Key.STREAM_STATS: Step(stream_stats),
        Key.CREATE_SUPER_STREAM: Step(create_super_stream),
        Key.DELETE_SUPER_STREAM: Step(no_super_stream(Key.DELETE_SUPER_STREAM)),
        Key.RESOLVE_OFFSET_SPEC: Step(resolve_offset_spec),
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
