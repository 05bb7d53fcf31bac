# SPDX-License-Identifier: Apache-2.0
"""PlanReads, a command of our own: all that a reader of ranges needs to plan its tasks, in one round trip.

The answer names chunk boundaries, found in the index files by a helper thread, so it never waits for the disk in a
worker's loop. Who comes from this machine is told where the streams' files lie: whoever can open them may read them
there (DATA/identity says whether it is this broker's directory that they see).
"""

from __future__ import annotations

import logging
import os
import time
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any

from vibemq.broker.arguments import DURABILITIES
from vibemq.errors import StorageError
from vibemq.net.hosts import host_of
from vibemq.once_a_minute import OnceAMinute
from vibemq.protocols.streams import spec
from vibemq.protocols.streams.handshake import advertised
from vibemq.protocols.streams.replies import OFFSET_MAX, Later, Outcome, Refused, readable
from vibemq.protocols.streams.spec import SPANS_COUNT_MAX, Code
from vibemq.protocols.streams.streams import partitions
from vibemq.storage import identity
from vibemq.storage.cuts import FILTER_VALUES_MAX, look, matches
from vibemq.storage.offsets import StoredOffsets

if TYPE_CHECKING:
    from vibemq.protocols.streams.session import StreamsSession

logger = logging.getLogger(__name__)
refusing = OnceAMinute(logger)
_unusable = OnceAMinute(logger, logging.ERROR)  # a query asks many times a second

NOT_SAID = -1
GONE = ("ERR_NOT_FOUND", "ERR_DELETED")  # errors of a log that was deleted meanwhile


def plan_reads(session: StreamsSession, request: Any) -> Outcome:
    wanted = {each.stream: each for each in request.ranges}
    names = list(wanted)
    if request.super_stream:
        found = partitions(session, request)
        if not isinstance(found, dict):
            return found
        names = found["streams"]
    if len(names) > spec.PLANNED_STREAMS_COUNT_MAX:
        said = "%s: PlanReads of %d streams, at most %d at once"
        most = spec.PLANNED_STREAMS_COUNT_MAX
        refusing.say(host_of(session.peer_address), said, session.peer, len(names), most)
        return Code.PRECONDITION_FAILED
    store, virtual_host, may_read = session.door.table.metadata, session.virtual_host, session.rights.read
    reference, (host, port) = request.reference.encode(), advertised(session)
    is_here = session.is_loopback or session.peer_address == session.local_address[0]

    def one(name: str, cuts_most: int) -> dict[str, Any]:
        if not may_read(name):
            raise Refused(Code.ACCESS_REFUSED)
        record = store.find_stream(virtual_host, name)
        if record is None:
            raise Refused(Code.STREAM_DOES_NOT_EXIST)
        each = wanted.get(name)
        asked = each[1:] if each else (NOT_SAID, NOT_SAID, NOT_SAID, 0, 0, 0)
        seen = look(record.directory, *asked, cuts_most, time.time_ns() // 1_000_000)
        durability = DURABILITIES.index(record.durability)
        told = {"incarnation": record.incarnation, "durability": durability, **seen._asdict()}
        return {**told, "stored": _stored(record.directory, reference)}

    def work() -> dict[str, Any]:
        rows = []
        left = spec.CUTS_COUNT_MAX
        for name in names:
            row: dict[str, Any] = {"stream": name, "code": Code.OK, "host": host, "port": port}
            try:
                row |= one(name, left)
                left -= len(row["cuts"])
            except Refused as refused:
                row["code"] = refused.code
            except StorageError as problem:
                row["code"] = Code.STREAM_DOES_NOT_EXIST if problem.code in GONE else Code.STREAM_NOT_AVAILABLE
                if problem.code not in GONE:
                    _unusable.say(name, "stream %s cannot be planned: %s", name, problem)
            rows.append(row)
        directory = store.streams_dir if is_here else ""
        return {"store": identity.read(os.path.dirname(store.streams_dir)), "directory": directory, "streams": rows}

    return Later(work, lambda answer: answer, submit=session.door.helpers.submit_plan)


def filter_range(session: StreamsSession, request: Any) -> Outcome:
    """As far as one answer reaches; who wants more asks for what is behind `until`."""
    with readable(session, request) as stream:
        directory = stream.log.directory
    values = [value.encode() for value in request.values]
    if len(values) > FILTER_VALUES_MAX:
        return Code.PRECONDITION_FAILED
    end = min(request.end, OFFSET_MAX)
    work = partial(
        matches, directory, min(request.start, end), end, values, bool(request.match_unfiltered), SPANS_COUNT_MAX
    )
    return Later(
        work,
        lambda found: {"until": found[0], "spans": found[1]},
        failure=Code.STREAM_NOT_AVAILABLE,
        submit=session.door.helpers.submit_plan,
    )


def _stored(directory: str, reference: bytes) -> int:
    """With a handle of its own: those of the worker belong to its thread."""
    if not reference:
        return NOT_SAID
    with closing(StoredOffsets(directory)) as offsets:
        offset = offsets.get(reference)
    return NOT_SAID if offset is None else offset
