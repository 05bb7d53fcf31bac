# SPDX-License-Identifier: Apache-2.0
"""Commands about streams and super streams: to make, delete and list them, and to ask what is in one.

A super stream is an exchange of its name, bound to one stream for each partition (storage.routing).  Whoever asks
for a route or for partitions needs rights on all of them, so that nobody learns names by asking.
ListStreams and ListOffsets are commands of our own, for who may come through this door only: the protocol itself
answers about streams whose names one knows.
"""

from __future__ import annotations

import logging
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any

from vibemq.broker.arguments import stream_arguments
from vibemq.broker.audit import author
from vibemq.broker.catalog import checked_name
from vibemq.errors import StorageError, StreamExists
from vibemq.once_a_minute import OnceAMinute
from vibemq.protocols.streams import spec
from vibemq.protocols.streams.codec import MalformedFrame
from vibemq.protocols.streams.handshake import advertised
from vibemq.protocols.streams.replies import Later, Outcome, Refused, code_of, is_ours, need, offset_value, readable
from vibemq.protocols.streams.spec import Code, OffsetType
from vibemq.storage.offsets import StoredOffsets

if TYPE_CHECKING:
    from vibemq.protocols.streams.session import StreamsSession

logger = logging.getLogger(__name__)
lacking = OnceAMinute(logger, logging.INFO)
unreadable = OnceAMinute(logger, logging.ERROR)

OFFSET_NONE_SET = -1
LOOKUPS_IN_LOOP_MAX = 64  # of streams in one command: some microseconds each, in a loop that may not stop for one ms
LIST_ANSWER_BYTES = 18  # of an answer without rows: size, key, version, correlation id, code, count
NAME_AFTER = "\0"  # a name with this behind it is the very next one


def sees(rights: Any, name: str) -> bool:
    return bool(rights.read(name) or rights.write(name))


# ---- to make and delete ----


def create(session: StreamsSession, request: Any) -> Outcome:
    door, name = session.door, checked_name(request.stream)
    need(session, "configure", name)
    wanted = stream_arguments(request.arguments, door.store)

    by = author(session.client)

    def make() -> None:
        try:
            door.catalog.create_stream(session.virtual_host, name, wanted, by=by)
        except StreamExists as there:
            same = wanted.same_as(there.record.arguments, there.record.durability, door.store)  # type: ignore[attr-defined]
            raise Refused(Code.STREAM_ALREADY_EXISTS if same else Code.PRECONDITION_FAILED) from None

    return Later(make)


def delete(session: StreamsSession, request: Any) -> Outcome:
    need(session, "configure", request.stream)
    catalog = session.door.catalog
    # MetadataUpdate follows the answer.
    delete_it = partial(catalog.delete, session.virtual_host, request.stream, by=author(session.client))
    return Later(delete_it, after=catalog.deleted)


def create_super_stream(session: StreamsSession, request: Any) -> Outcome:
    name, streams = checked_name(request.name), [checked_name(stream) for stream in request.partitions]
    _need_to_change(session, "read", name)
    _need_to_change(session, "write", *streams)
    make = partial(session.door.catalog.create_super_stream, by=author(session.client))
    return Later(partial(make, session.virtual_host, name, streams, request.binding_keys, request.arguments))


def delete_super_stream(session: StreamsSession, request: Any) -> Outcome:
    catalog, name = session.door.catalog, request.name
    _need_to_change(session, "read", name)
    streams = session.door.table.metadata.partitions(session.virtual_host, name)
    if streams is None:
        return Code.STREAM_DOES_NOT_EXIST
    _need_to_change(session, "write", *streams)

    def tell(deleted: Any) -> None:
        for gone in deleted:
            catalog.deleted(gone)

    delete_it = partial(catalog.delete_super_stream, session.virtual_host, name, by=author(session.client))
    return Later(delete_it, after=tell)


def _need_to_change(session: StreamsSession, right: str, *names: str) -> None:
    need(session, "configure", *names)
    need(session, right, *names)


# ---- which there are ----


def route(session: StreamsSession, request: Any) -> Outcome:
    need(session, "write", request.super_stream)
    streams = session.door.table.metadata.route(session.virtual_host, request.super_stream, request.routing_key)
    if streams is None:
        return Code.STREAM_DOES_NOT_EXIST
    need(session, "write", *streams)
    return {"streams": streams}


def partitions(session: StreamsSession, request: Any) -> Outcome:
    name, rights = request.super_stream, session.rights
    streams = session.door.table.metadata.partitions(session.virtual_host, name)
    if not all(sees(rights, each) for each in (name, *(streams or ()))):
        said = "%s: user %r may not see all of super stream %r"
        lacking.say(session.client.user, said, session.peer, session.client.user, name)
        return Code.ACCESS_REFUSED
    return Code.STREAM_DOES_NOT_EXIST if streams is None else {"streams": streams}


def metadata(session: StreamsSession, request: Any) -> Outcome:
    """Raises MalformedFrame."""
    names = list(dict.fromkeys(request.streams))
    if len(names) > spec.METADATA_STREAMS_COUNT_MAX:
        raise MalformedFrame("Metadata", f"{spec.METADATA_STREAMS_COUNT_MAX} streams or fewer", str(len(names)))
    if any(len(name.encode()) > spec.STRING_SIZE_MAX_BYTES for name in names):  # the answer repeats it
        raise MalformedFrame("Metadata, stream name", f"{spec.STRING_SIZE_MAX_BYTES} bytes or fewer", "more")

    store, rights, virtual_host = session.door.table.metadata, session.rights, session.virtual_host

    def code(name: str) -> Code:
        if not sees(rights, name):
            return Code.ACCESS_REFUSED
        try:
            found = store.find_stream(virtual_host, name)
        except StorageError as problem:
            unreadable.say(type(problem), "metadata of stream %s cannot be read: %s", name, problem)
            return Code.STREAM_NOT_AVAILABLE
        return Code.STREAM_DOES_NOT_EXIST if found is None else Code.OK

    def told(codes: list[Code]) -> Outcome:
        streams = [
            (name, code, 0 if code == Code.OK else spec.LEADER_NONE, ())
            for name, code in zip(names, codes, strict=True)
        ]
        return {"brokers": [(0, *advertised(session))], "streams": streams}

    if len(names) > LOOKUPS_IN_LOOP_MAX:
        return Later(lambda: [code(name) for name in names], told, failure=None)
    return told([code(name) for name in names])


def list_streams(session: StreamsSession, request: Any) -> Outcome:
    """Those that the user may read or write, as Metadata has it."""
    store, rights, virtual_host = session.door.table.metadata, session.rights, session.virtual_host
    count = min(request.count, spec.LIST_STREAMS_COUNT_MAX)
    bytes_max = min(spec.LIST_STREAMS_SIZE_MAX_BYTES, session.negotiated_frame_max or spec.LIST_STREAMS_SIZE_MAX_BYTES)

    def page() -> list[tuple[str, int, dict[str, str]]]:
        """Until one more would be too many or too large; the first one always, for an empty page is the end."""
        found: list[tuple[str, int, dict[str, str]]] = []
        first, left = request.first, bytes_max - LIST_ANSWER_BYTES
        while len(found) < count and (records := store.streams_from(virtual_host, first)):
            for record in records:
                if not sees(rights, record.name):
                    continue
                # As spec.py lays a ListedStream out.
                pairs = sum(4 + len(key.encode()) + len(value.encode()) for key, value in record.arguments.items())
                left -= 2 + len(record.name.encode()) + 1 + 4 + pairs
                if len(found) == count or (found and left < 0):
                    return found
                found.append((record.name, record.queue is not None, record.arguments))
            first = records[-1].name + NAME_AFTER
        return found

    return Later(page, lambda found: {"streams": found})


# ---- what is in one ----


def stream_stats(session: StreamsSession, request: Any) -> Outcome:
    with readable(session, request) as stream:
        stats = stream.log.stats()
    empty = stats.last_chunk < 0 and stats.confirmed_offset == 0
    statistics = {
        "first_chunk_id": OFFSET_NONE_SET if empty else stats.first_offset,
        "last_chunk_id": OFFSET_NONE_SET if empty else stats.last_chunk,
        "committed_chunk_id": OFFSET_NONE_SET if empty else stats.last_chunk,
        "committed_offset": OFFSET_NONE_SET if empty else stats.confirmed_offset - 1,
    }
    if is_ours(session):
        # Which stream of this name it is: a checkpoint must not go on in a recreated one.
        identity = int(stream.incarnation, 16)
        statistics["incarnation"] = identity - (1 << 64) if identity >= 1 << 63 else identity
        statistics["segments"], statistics["size_bytes"] = stats.segment_count, stats.size_bytes
    return {"statistics": statistics}


def resolve_offset_spec(session: StreamsSession, request: Any) -> Outcome:
    """Filters say which chunks are sent from there on, not where a subscription attaches."""
    with readable(session, request) as stream:
        try:
            offset = stream.log.attach_offset(request.offset_type, offset_value(request))
        except StorageError as problem:
            return code_of(session, request, problem, Code.NO_OFFSET)
    return {"offset_type": OffsetType.OFFSET, "offset": offset}


def list_offsets(session: StreamsSession, request: Any) -> Outcome:
    with readable(session, request) as stream:
        directory = stream.log.directory

    def stored() -> list[tuple[str, int]]:
        """With a handle of its own: those of the worker belong to its thread."""
        with closing(StoredOffsets(directory)) as offsets:
            return sorted((reference.decode(errors="replace"), offset) for reference, offset in offsets.all().items())

    return Later(stored, lambda found: {"offsets": found}, failure=Code.STREAM_NOT_AVAILABLE)
