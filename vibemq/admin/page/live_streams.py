# SPDX-License-Identifier: Apache-2.0
"""Streams and queues as the page shows them: a list, filtered, sorted and cut here, and one with all there is."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from operator import attrgetter
from typing import Any

from vibemq.admin.api.calls import MONITORING, Call, bad_request, not_found
from vibemq.admin.api.connections import protocol_of
from vibemq.admin.api.service import Api
from vibemq.admin.api.streams import find, tool_arguments
from vibemq.admin.page.live import number, paged, sampler_of, seen_by, shown, stored_offsets
from vibemq.admin.page.sampler import Seen
from vibemq.broker.options import CHANGEABLE, options_of
from vibemq.errors import StorageError
from vibemq.storage.apply import REFERENCE as TRANSACTIONS
from vibemq.storage.cold import stubs
from vibemq.storage.log import Log
from vibemq.storage.patterns import pattern
from vibemq.storage.records import StreamRecord

USERS_SHOWN_MAX = 500  # publishers, consumers, stored offsets and publishers' numbers of one stream, each
SEGMENTS_SHOWN_MAX = 200  # the newest
KINDS = ("stream", "queue")
#: What a column is sorted by; that of consumers takes the workers' answer.
VALUES: dict[str, Callable[[Seen], Any]] = {
    "name": lambda seen: seen.record.name,
    "vhost": lambda seen: seen.record.vhost,
    "kind": lambda seen: seen.record.queue is not None,
    "durability": lambda seen: seen.record.durability,
    "written_ms": lambda seen: seen.log.written_ms,
    "published": attrgetter("published_rate"),
    "delivered": attrgetter("delivered_rate"),
    "acked": attrgetter("acked_rate"),
    "lost": attrgetter("lost_rate"),
    **{name: attrgetter(name) for name in ("ready", "unacked", "size_bytes", "segments")},
}
SORTABLE = (*VALUES, "consumers")


def list_streams(api: Api, call: Call) -> Any:
    """``name`` is part of a name, or a pattern with ``use_regex``; ``kind`` and ``vhost`` choose as well."""
    sampler = sampler_of(api)
    everything = seen_by(api, call, sampler.watch())
    vhost, kind, wanted = (call.query.get(name, "") for name in ("vhost", "kind", "name"))
    if kind and kind not in KINDS:
        raise bad_request(f"kind is {kind!r}: {' or '.join(KINDS)} is needed")
    if call.query.get("use_regex") == "true":
        matches = pattern(wanted).matches  # in linear time, whatever the pattern is
    else:
        part = wanted.casefold()
        matches = lambda name: part in name.casefold()  # noqa: E731
    readers = sampler.readers.get()

    def consumers(seen: Seen) -> int:
        record = seen.record
        return readers[record.vhost, record.name] if seen.queue is None else seen.queue.consumers

    def value(seen: Seen, column: str) -> Any:
        return consumers(seen) if column == "consumers" else VALUES[column](seen)

    found = [
        seen
        for seen in everything
        if vhost in ("", seen.record.vhost)
        and kind in ("", KINDS[seen.record.queue is not None])
        and matches(seen.record.name)
    ]
    return paged(
        call, found, len(everything), value, lambda seen: shown(seen) | {"consumers": consumers(seen)}, SORTABLE
    )


def one_stream(api: Api, call: Call) -> Any:
    """All there is to know of one; ``history`` from the point ``after`` on."""
    record = find(api, call)
    sampler = sampler_of(api)
    seen = sampler.watch().streams.get(record.incarnation)
    sessions = [
        session
        for session in sampler.sessions.get()
        if session.get("vhost") == record.vhost
        and (call.caller.level >= MONITORING or session.get("user") == call.caller.name)
    ]
    applied = api.metadata.policy_of(record.vhost, record.name, is_queue=record.queue is not None)
    end = _end(record) if seen is None else seen.log.next_offset
    return {
        # Made just now, it has not been looked at yet.
        "row": {"vhost": record.vhost, "name": record.name, "kind": KINDS[record.queue is not None],
                "durability": record.durability, "first_offset": 0, "next_offset": end, "confirmed_offset": end}
        if seen is None else shown(seen),
        "created_ms": record.created_ms,
        "counts": None if seen is None or seen.queue is None else seen.queue._asdict(),
        "arguments": tool_arguments(record.arguments),
        "options": None if record.queue is None else _options(api, record),
        "policy": None if applied is None else {"name": applied.name, "definition": applied.definition},
        "publishers": _publishers(sessions, record)[:USERS_SHOWN_MAX],
        "consumers": _consumers(sessions, record)[:USERS_SHOWN_MAX],
        "stored_offsets": _stored(record, end),
        "writers": _writers(record),
        "segments": _segments(record),
        "history": sampler.stream_history(record.incarnation, number(call, "after", 0, 2**53)),
    }  # fmt: skip


def _end(record: StreamRecord) -> int:
    try:
        with closing(Log(record.directory)) as opened:
            return opened.stats().next_offset
    except StorageError as problem:
        if problem.code in ("ERR_NOT_FOUND", "ERR_DELETED"):
            raise not_found() from None
        raise


def _options(api: Api, record: StreamRecord) -> dict[str, Any]:
    """Those that hold, as the management API names them."""
    queue = options_of(api.metadata.effective_options(record), api.config.queues)
    values = {name: getattr(queue, name) for name in CHANGEABLE}
    return {"mode": queue.mode.name.lower(), **values, "overflow": queue.overflow.name.lower()}


def _whose(session: dict[str, Any]) -> dict[str, Any]:
    return {"connection": session["name"], "user": session.get("user", ""), "protocol": protocol_of(session)}


def _publishers(sessions: list[dict[str, Any]], record: StreamRecord) -> list[dict[str, Any]]:
    told = ("reference", "published", "confirmed", "errored")
    return [
        {**_whose(session), **{name: one.get(name) for name in told}}
        for session in sessions
        for one in session.get("publishers", ())
        if one["stream"] == record.name
    ]


def _consumers(sessions: list[dict[str, Any]], record: StreamRecord) -> list[dict[str, Any]]:
    """Of a queue's consumers what they have in flight; of a stream's how far they are and what is behind that."""
    told = ("active", "activity_status", "offset", "offset_lag", "consumed", "credits", "prefetch", "in_flight")
    found = [
        {
            **_whose(session),
            "name": str(one.get("properties", {}).get("name", "")),
            **{name: one.get(name) for name in told},
        }
        for session in sessions
        for one in session.get("subscriptions", ())
        if one["stream"] == record.name
    ]
    return sorted(found, key=lambda row: -(row["offset_lag"] or row["in_flight"] or 0))


def _stored(record: StreamRecord, end: int) -> list[dict[str, Any]]:
    """Those that lag most come first."""
    found = sorted((at, name) for name, at in stored_offsets(record.directory).items())
    return [{"name": name, "offset": at, "lag": max(0, end - 1 - at)} for at, name in found[:USERS_SHOWN_MAX]]


def _writers(record: StreamRecord) -> list[dict[str, Any]]:
    """Publishers whose duplicates are dropped, and their last numbers."""
    try:
        with closing(Log(record.directory)) as opened:
            found = opened.publisher_sequences()
    except StorageError:  # the log says why
        return []
    named = sorted((name, number) for name, number in found.items() if name != TRANSACTIONS)
    return [{"name": name, "number": number} for name, number in named[:USERS_SHOWN_MAX]]


def _segments(record: StreamRecord) -> list[dict[str, Any]]:
    """The newest first; ``place`` says where its messages lie: on the disk, in the object store, or both."""
    found: dict[int, dict[str, Any]] = {}
    try:
        for stub in stubs(record.directory):
            found[stub.first] = {"first_offset": stub.first, "size_bytes": stub.size_bytes,
                                 "written_ms": stub.newest_ms, "place": "object store"}  # fmt: skip
        with os.scandir(record.directory) as entries:
            for entry in entries:
                first, dot, kind = entry.name.partition(".")
                if not (dot and kind == "segment" and first.isdigit()):
                    continue
                try:
                    about = entry.stat()
                except FileNotFoundError:  # retention has just taken it
                    continue
                place = "disk and object store" if int(first) in found else "disk"
                found[int(first)] = {"first_offset": int(first), "size_bytes": about.st_size,
                                     "written_ms": about.st_mtime_ns // 1_000_000, "place": place}  # fmt: skip
    except (OSError, StorageError):  # it is being deleted
        return []
    return [found[first] for first in sorted(found, reverse=True)[:SEGMENTS_SHOWN_MAX]]
