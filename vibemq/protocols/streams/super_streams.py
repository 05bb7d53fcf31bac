# SPDX-License-Identifier: Apache-2.0
"""Route, Partitions, CreateSuperStream and DeleteSuperStream.

A super stream is an exchange of its name, bound to one stream for each partition (storage.routing).  Whoever asks
for a route or for partitions needs rights on all of them, so that nobody learns names by asking.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any

from vibemq.broker.arguments import BadArgument
from vibemq.broker.catalog import checked_name
from vibemq.broker.helping import in_helper
from vibemq.errors import ExchangeNotFound, LimitExceeded, StreamExists
from vibemq.protocols.streams.replies import answer
from vibemq.protocols.streams.rights import refused
from vibemq.protocols.streams.spec import Code, Key

if TYPE_CHECKING:
    from vibemq.protocols.streams.session import StreamsSession

logger = logging.getLogger(__name__)


def route(session: StreamsSession, request: Any) -> None:
    key, name = Key.ROUTE, request.super_stream
    if refused(session, request, key, "write", name):
        return
    streams = session.door.table.metadata.route(session.virtual_host, name, request.routing_key)
    if streams is None:
        answer(session, request, key, Code.STREAM_DOES_NOT_EXIST)
    elif not refused(session, request, key, "write", *streams):
        answer(session, request, key, streams=streams)


def partitions(session: StreamsSession, request: Any) -> None:
    key, name, rights = Key.PARTITIONS, request.super_stream, session.rights

    def sees(name: str) -> bool:
        return bool(rights.read(name) or rights.write(name))

    streams = session.door.table.metadata.partitions(session.virtual_host, name)
    if not sees(name) or not all(map(sees, streams or ())):
        logger.info("%s: user %r may not see all of super stream %r", session.peer, session.client.user, name)
        answer(session, request, key, Code.ACCESS_REFUSED)
    elif streams is None:
        answer(session, request, key, Code.STREAM_DOES_NOT_EXIST)
    else:
        answer(session, request, key, streams=streams)


def create_super_stream(session: StreamsSession, request: Any) -> None:
    key, door = Key.CREATE_SUPER_STREAM, session.door
    try:
        name, streams = checked_name(request.name), [checked_name(stream) for stream in request.partitions]
    except BadArgument as problem:
        logger.info("%s: super stream %r refused: %s", session.peer, request.name, problem)
        answer(session, request, key, Code.PRECONDITION_FAILED)
        return
    if _may_not_change(session, request, key, name) or _may_not_change_all(session, request, key, streams):
        return

    def done(_: Any, error: BaseException | None) -> None:
        code = Code.OK
        if isinstance(error, StreamExists):
            code = Code.STREAM_ALREADY_EXISTS
        elif isinstance(error, LimitExceeded | BadArgument):
            logger.warning("super stream %s: %s", name, error)
            code = Code.PRECONDITION_FAILED
        elif error is not None:
            logger.error("super stream %s: %s", name, error)
            code = Code.INTERNAL_ERROR
        answer(session, request, key, code)

    make = door.catalog.create_super_stream
    in_helper(
        session, partial(make, session.virtual_host, name, streams, request.binding_keys, request.arguments), done
    )


def delete_super_stream(session: StreamsSession, request: Any) -> None:
    key, name = Key.DELETE_SUPER_STREAM, request.name
    if _may_not_change(session, request, key, name):
        return
    door = session.door
    streams = door.table.metadata.partitions(session.virtual_host, name)
    if streams is None:
        answer(session, request, key, Code.STREAM_DOES_NOT_EXIST)
        return
    if _may_not_change_all(session, request, key, streams):
        return

    def done(deleted: Any, error: BaseException | None) -> None:
        if isinstance(error, ExchangeNotFound):
            answer(session, request, key, Code.STREAM_DOES_NOT_EXIST)
        elif error is not None:
            logger.error("delete super stream %s: %s", name, error)
            answer(session, request, key, Code.INTERNAL_ERROR)
        else:
            answer(session, request, key)
            tell(deleted)  # after the answer: MetadataUpdate follows it

    def tell(deleted: Any) -> None:
        for gone in deleted:
            door.catalog.deleted(gone)

    in_helper(session, partial(door.catalog.delete_super_stream, session.virtual_host, name), done, left=tell)


def _may_not_change(session: StreamsSession, request: Any, key: Key, name: str) -> bool:
    return refused(session, request, key, "configure", name) or refused(session, request, key, "read", name)


def _may_not_change_all(session: StreamsSession, request: Any, key: Key, streams: list[str]) -> bool:
    return refused(session, request, key, "configure", *streams) or refused(session, request, key, "write", *streams)
