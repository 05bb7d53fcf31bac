# SPDX-License-Identifier: Apache-2.0
"""Create, Delete, Metadata, StreamStats and ResolveOffsetSpec."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any

from vibemq.broker.arguments import BadArgument, stream_arguments
from vibemq.errors import LimitExceeded, StreamExists, StreamNotFound
from vibemq.protocols.streams import spec
from vibemq.protocols.streams.codec import MalformedFrame, encode_response
from vibemq.protocols.streams.handshake import advertised
from vibemq.protocols.streams.replies import answer, find, in_helper, malformed, offset_value
from vibemq.protocols.streams.spec import Code, Key, OffsetType

if TYPE_CHECKING:
    from vibemq.protocols.streams.session import StreamsSession

logger = logging.getLogger(__name__)

OWN_PRODUCT = "VibeMQ"  # our own clients name themselves so in their peer properties
OFFSET_NONE_SET = -1
LOOKUPS_IN_LOOP_MAX = 64  # of streams in one command: some microseconds each, in a loop that may not stop for one ms


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
