# SPDX-License-Identifier: Apache-2.0
"""ListStreams and ListOffsets, commands of our own: what is there, for who may come through this door only.

The protocol itself has no word for either, and answers about streams whose names one knows.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any

from vibemq.broker.helping import in_helper
from vibemq.protocols.streams import spec
from vibemq.protocols.streams.replies import answer
from vibemq.protocols.streams.rights import find_with
from vibemq.protocols.streams.spec import Code, ExtensionKey
from vibemq.storage.log import StoredOffsets

if TYPE_CHECKING:
    from vibemq.protocols.streams.session import StreamsSession

logger = logging.getLogger(__name__)

ANSWER_BYTES = 18  # of an answer without rows: size, key, version, correlation id, code, count
NAME_AFTER = "\0"  # a name with this behind it is the very next one


def list_streams(session: StreamsSession, request: Any) -> None:
    """Those that the user may read or write, as Metadata has it."""
    key = ExtensionKey.LIST_STREAMS
    count = min(request.count, spec.LIST_STREAMS_COUNT_MAX)

    def done(found: list[tuple[str, int, dict[str, str]]], error: BaseException | None) -> None:
        if error is not None:
            logger.error("%s: streams cannot be listed: %s", session.peer, error)
            answer(session, request, key, Code.INTERNAL_ERROR)
        else:
            answer(session, request, key, streams=found)

    store = session.door.table.metadata
    bytes_max = min(spec.LIST_STREAMS_SIZE_MAX_BYTES, session.negotiated_frame_max or spec.LIST_STREAMS_SIZE_MAX_BYTES)
    page = partial(_page, store, session.virtual_host, session.rights, request.first, count, bytes_max)
    in_helper(session, page, done)


def _page(
    store: Any, virtual_host: str, rights: Any, first: str, count: int, bytes_max: int
) -> list[tuple[str, int, dict[str, str]]]:
    """Until one more would be too many or too large; the first one always, for an empty page is the end."""
    found: list[tuple[str, int, dict[str, str]]] = []
    left = bytes_max - ANSWER_BYTES
    while len(found) < count and (records := store.streams_from(virtual_host, first)):
        for record in records:
            if not (rights.read(record.name) or rights.write(record.name)):
                continue
            left -= _row_bytes(record.name, record.arguments)
            if len(found) == count or (found and left < 0):
                return found
            found.append((record.name, record.queue is not None, record.arguments))
        first = records[-1].name + NAME_AFTER
    return found


def _row_bytes(name: str, arguments: dict[str, str]) -> int:
    """As spec.py lays a ListedStream out."""
    pairs = sum(4 + len(key.encode()) + len(value.encode()) for key, value in arguments.items())
    return 2 + len(name.encode()) + 1 + 4 + pairs


def list_offsets(session: StreamsSession, request: Any) -> None:
    key = ExtensionKey.LIST_OFFSETS
    stream = find_with(session, request, key, "read")
    if stream is None:
        return

    def done(found: list[tuple[str, int]], error: BaseException | None) -> None:
        if error is not None:
            logger.error("%s: offsets of %s: %s", session.peer, request.stream, error)
            answer(session, request, key, Code.STREAM_NOT_AVAILABLE)
        else:
            answer(session, request, key, offsets=found)

    directory = stream.log.directory
    session.door.table.release_if_unused(stream)
    in_helper(session, partial(_offsets, directory), done)


def _offsets(directory: str) -> list[tuple[str, int]]:
    """With a handle of its own: those of the worker belong to its thread."""
    offsets = StoredOffsets(directory)
    try:
        return sorted((reference.decode(errors="replace"), offset) for reference, offset in offsets.all().items())
    finally:
        offsets.close()
