# SPDX-License-Identifier: Apache-2.0
"""Create, Delete, Metadata, StreamStats and ResolveOffsetSpec."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any

from vibemq.broker.arguments import BadArgument, stream_arguments
from vibemq.broker.catalog import checked_name
from vibemq.broker.helping import in_helper
from vibemq.errors import LimitExceeded, StorageError, StreamExists, StreamNotFound
from vibemq.protocols.streams import spec
from vibemq.protocols.streams.codec import MalformedFrame, encode_response
from vibemq.protocols.streams.handshake import advertised
from vibemq.protocols.streams.replies import answer, malformed, offset_value
from vibemq.protocols.streams.rights import find_with, refused
from vibemq.protocols.streams.spec import Code, Key, OffsetType

if TYPE_CHECKING:
    from vibemq.protocols.streams.session import StreamsSession

logger = logging.getLogger(__name__)

OFFSET_NONE_SET = -1
LOOKUPS_IN_LOOP_MAX = 64  # of streams in one command: some microseconds each, in a loop that may not stop for one ms


def create(session: StreamsSession, request: Any) -> None:
    key = Key.CREATE
    door = session.door
    try:
        name = checked_name(request.stream)
        if refused(session, request, key, "configure", name):
            return
        wanted = stream_arguments(request.arguments, door.store)
    except BadArgument as problem:
        logger.info("%s: create refused: %s", session.peer, problem)
        answer(session, request, key, Code.PRECONDITION_FAILED)
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
        answer(session, request, key, code)

    in_helper(session, partial(door.catalog.create_stream, session.virtual_host, name, wanted), done)


def delete(session: StreamsSession, request: Any) -> None:
    key = Key.DELETE
    if refused(session, request, key, "configure", request.stream):
        return
    door = session.door

    def done(deleted: Any, error: BaseException | None) -> None:
        if isinstance(error, StreamNotFound):
            answer(session, request, key, Code.STREAM_DOES_NOT_EXIST)
        elif error is not None:
            logger.error("delete %s: %s", request.stream, error)
            answer(session, request, key, Code.INTERNAL_ERROR)
        else:
            answer(session, request, key)
            door.catalog.deleted(deleted)  # after the answer: MetadataUpdate follows it

    work = partial(door.catalog.delete, session.virtual_host, request.stream)
    in_helper(session, work, done, left=door.catalog.deleted)


def metadata(session: StreamsSession, request: Any) -> None:
    names = list(dict.fromkeys(request.streams))
    if len(names) > spec.METADATA_STREAMS_COUNT_MAX:
        needed = f"{spec.METADATA_STREAMS_COUNT_MAX} streams or fewer"
        malformed(session, MalformedFrame("Metadata", needed, str(len(names))))
        return
    if any(len(name.encode()) > spec.STRING_SIZE_MAX_BYTES for name in names):
        needed = f"{spec.STRING_SIZE_MAX_BYTES} bytes or fewer"  # the answer repeats it
        malformed(session, MalformedFrame("Metadata, stream name", needed, "more"))
        return

    def done(codes: list[Code], error: BaseException | None) -> None:
        if error is not None:
            raise error
        host, port = advertised(session)
        streams = [
            (name, code, 0 if code == Code.OK else spec.LEADER_NONE, ())
            for name, code in zip(names, codes, strict=True)
        ]
        brokers = [(0, host, port)]
        session.write(encode_response(Key.METADATA, request.correlation_id, None, brokers=brokers, streams=streams))

    look = partial(_codes, session.door.table.metadata, session.virtual_host, session.rights, names)
    if len(names) > LOOKUPS_IN_LOOP_MAX:
        in_helper(session, look, done)
    else:
        done(look(), None)


def _codes(store: Any, virtual_host: str, rights: Any, names: list[str]) -> list[Code]:
    """What Metadata says of each name."""

    def code(name: str) -> Code:
        if not rights.read(name) and not rights.write(name):
            return Code.ACCESS_REFUSED
        try:
            found = store.find_stream(virtual_host, name)
        except StorageError as problem:
            logger.error("metadata of stream %s cannot be read: %s", name, problem)
            return Code.STREAM_NOT_AVAILABLE
        return Code.STREAM_DOES_NOT_EXIST if found is None else Code.OK

    return [code(name) for name in names]


def stream_stats(session: StreamsSession, request: Any) -> None:
    key = Key.STREAM_STATS
    stream = find_with(session, request, key, "read")
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
    if session.peer_properties.get("product") == spec.OWN_PRODUCT:
        # Which stream of this name it is: a checkpoint must not go on in a recreated one.
        identity = int(stream.incarnation, 16)
        statistics["incarnation"] = identity - (1 << 64) if identity >= 1 << 63 else identity
        statistics["segments"], statistics["size_bytes"] = stats.segment_count, stats.size_bytes
    answer(session, request, key, statistics=statistics)
    session.door.table.release_if_unused(stream)


def resolve_offset_spec(session: StreamsSession, request: Any) -> None:
    """Filters say which chunks are sent from there on, not where a subscription attaches."""
    key = Key.RESOLVE_OFFSET_SPEC
    stream = find_with(session, request, key, "read")
    if stream is None:
        return
    try:
        offset = stream.log.attach_offset(request.offset_type, offset_value(request))
        answer(session, request, key, offset_type=OffsetType.OFFSET, offset=offset)
    except StorageError as problem:
        logger.error("%s: offset of %s: %s", session.peer, request.stream, problem)
        answer(session, request, key, Code.NO_OFFSET)
    session.door.table.release_if_unused(stream)
