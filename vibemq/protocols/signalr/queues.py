# SPDX-License-Identifier: Apache-2.0
"""The hub methods that are about queues, topics and streams themselves, and not about their messages."""

from __future__ import annotations

import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import vibemq
from vibemq.access.glob import Glob, fold
from vibemq.access.permissions import Operation
from vibemq.broker.arguments import stream_arguments
from vibemq.broker.audit import author
from vibemq.broker.limits import count_refused
from vibemq.broker.options import letters_named
from vibemq.errors import LimitExceeded, StorageError, StreamExists, StreamNotFound
from vibemq.protocols.signalr.commands import (
    METHODS,
    asking,
    find,
    find_for,
    is_stream,
    needed,
    not_found,
    optional,
    require,
    stream_right,
    text,
    whole,
)
from vibemq.protocols.signalr.invocations import LATER, Call, HubError
from vibemq.protocols.signalr.options import (
    any_text,
    created_options,
    differing,
    flag,
    queue_name,
    read_options,
    shown_options,
    type_of,
    whole_from,
)
from vibemq.protocols.signalr.spec import ErrorCode
from vibemq.storage.vhosts import DEFAULT_VHOST

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from vibemq.protocols.signalr.hub import HubConnection
    from vibemq.storage.records import StreamRecord

LIST_DEFAULT, LIST_MAX = 100, 1000  # queues in one answer; each is some microseconds, or a log to open
DESCRIBE_NS = 500_000  # of one turn, for all those
WATCHED_MAX = 1000  # queues that one StreamQueues looks at
WATCHES_MAX = 16  # StreamQueues of one connection: each looks at all queues, again and again
INTERVAL_MS_DEFAULT, INTERVAL_MS_MIN, INTERVAL_MS_MAX = 1000, 100, 3_600_000


def record_of(hub: HubConnection, name: str) -> StreamRecord:
    record = find(hub, name)
    if record is None:
        raise not_found(name)
    return record


def may_see(hub: HubConnection, record: StreamRecord) -> bool:
    if record.queue is not None:
        return bool(hub.client.access.sees(record.name))
    return any(stream_right(hub, right, record.name) for right in ("configure", "write", "read"))


def described(hub: HubConnection, record: StreamRecord) -> dict[str, Any]:
    """QueueInfo of what is there now.  Raises StreamNotFound, StorageError."""
    broker = hub.door.broker
    info: dict[str, Any] = {"name": record.name, "createdAt": record.created_ms}
    if record.queue is None:
        stream = broker.streams.find(DEFAULT_VHOST, record.name)
        stats = stream.log.stats()
        broker.streams.release_if_unused(stream)
        info |= {"type": "stream", "messages": stats.confirmed_offset - stats.first_offset}
        info |= {"consumers": 0, "unacked": 0, "durable": True, "durability": record.durability}
    else:
        queue = broker.queues.find(DEFAULT_VHOST, record.name)
        waiting, in_flight, consumers = queue.counts()
        stats = queue.stream.log.stats()
        info |= {"type": type_of(queue.options), "messages": waiting, "consumers": consumers, "unacked": in_flight}
        holding = broker.queues.metadata.effective_options(record)
        info |= shown_options(record.name, holding, record.durability, broker.queues.defaults)
        queue.close_if_unused()
    return info | {"bytes": stats.size_bytes, "firstOffset": stats.first_offset, "nextOffset": stats.confirmed_offset}


@METHODS.add("CreateQueue", needed("name"), optional("options"))
def create_queue(call: Call, name: str, options: dict[str, Any] | None) -> Any:
    hub = call.hub
    kind, stored, arguments = created_options(options or {})
    name = queue_name("name", name)
    catalog = hub.door.broker.catalog
    if kind == "stream":
        require(hub, "configure", name)
        wanted = stream_arguments(arguments, catalog.config.store)
        work = partial(catalog.create_stream, DEFAULT_VHOST, name, wanted, by=author(hub.client))
    else:
        require(hub, Operation.CreateQueue, name)
        letters = letters_named(name, stored)
        if letters is not None:
            if letters == name:
                raise HubError(ErrorCode.INVALID_ARGUMENT, "deadLetter: needed the name of another queue.")
            # Or its dead letters would go where its maker may not publish.
            require(hub, Operation.Publish, letters)
        if is_stream(find(hub, name)):  # it would become one
            raise HubError(
                ErrorCode.PRECONDITION_FAILED, f"'{name}' exists as a stream; choose another name."
            )
        work = partial(catalog.create_queue, DEFAULT_VHOST, name, stored, by=author(hub.client))

    def done(made: Any) -> dict[str, Any]:
        if isinstance(made, StreamExists):
            _check_same(record_of(hub, name))
        elif isinstance(made, LimitExceeded):
            count_refused()
            raise HubError(ErrorCode.LIMIT_EXCEEDED, str(made))
        elif isinstance(made, BaseException):
            raise made
        return described(hub, record_of(hub, name))

    def _check_same(record: StreamRecord) -> None:
        other: str | None = "type"
        if kind == "stream" and record.queue is None:
            same = wanted.same_as(record.arguments, record.durability, catalog.config.store)
            other = None if same else "maxBytes, maxAgeMs or durability"
        elif kind != "stream" and record.queue is not None:
            other = differing(record.queue, stored, record.durability, hub.queues.defaults)
        if other is not None:
            raise HubError(
                ErrorCode.PRECONDITION_FAILED,
                f"Queue '{name}' exists with another {other}; QueueInfo says which. Give that, or choose another name.",
            )

    return call.in_helper(work, done)


@METHODS.add("DeleteQueue", needed("name"), asking({"ifEmpty": flag, "ifUnused": flag}))
def delete_queue(call: Call, name: str, wanted: dict[str, Any]) -> Any:
    hub, catalog = call.hub, call.hub.door.broker.catalog
    record = find_for(hub, name, "configure", Operation.DeleteQueue)
    if record is None:
        return False
    info = described(hub, record)
    if wanted.get("ifEmpty") and (info["messages"] or info["unacked"]):
        raise HubError(ErrorCode.PRECONDITION_FAILED, f"Queue '{name}' is not empty; purge it first.")
    if wanted.get("ifUnused") and info["consumers"]:
        raise HubError(ErrorCode.PRECONDITION_FAILED, f"Queue '{name}' has consumers; have them unsubscribe first.")

    def done(gone: Any) -> bool:
        if isinstance(gone, StreamNotFound):
            return False
        if isinstance(gone, BaseException):
            raise gone
        catalog.deleted(gone)
        return True

    return call.in_helper(partial(catalog.delete, DEFAULT_VHOST, name, by=author(call.hub.client)), done)


@METHODS.add("PurgeQueue", needed("name"))
def purge_queue(call: Call, name: str) -> Any:
    hub = call.hub
    require(hub, Operation.PurgeQueue, name)
    if record_of(hub, name).queue is None:
        raise HubError(ErrorCode.NOT_SUPPORTED, f"'{name}' is a stream, which keeps what it has; delete it instead.")
    queue = hub.queues.find(DEFAULT_VHOST, name)
    count: int = queue.purge()
    queue.close_if_unused()

    def done(said: Any) -> int:
        if isinstance(said, BaseException):
            raise said
        return count

    say = partial(hub.door.broker.catalog.say_purged, DEFAULT_VHOST, name, count, by=author(hub.client))
    return call.in_helper(say, done)


@METHODS.add("QueueInfo", needed("name"))
def queue_info(call: Call, name: str) -> dict[str, Any]:
    hub = call.hub
    record = find(hub, name)
    if record is None or record.queue is not None:
        require(hub, Operation.GetQueueInfo, name)
    elif not may_see(hub, record):
        require(hub, "read", name)
    return described(hub, record_of(hub, name))


@METHODS.add("ListQueues", optional("pattern", text), asking({"limit": whole_from(1, LIST_MAX), "after": any_text}))
def list_queues(call: Call, pattern: str | None, wanted: dict[str, Any]) -> Any:
    """By name, those that the user may see; ``after`` is the last name of the page before."""
    hub = call.hub
    glob = Glob(pattern or "*")
    limit, after = wanted.get("limit", LIST_DEFAULT), wanted.get("after", "")

    def fits(record: StreamRecord) -> bool:
        return record.name > after and glob.matches(fold(record.name))

    return call.busy(partial(describe_all, hub, limit, lambda: hub.closed, fits), lambda found: found)


def describe_all(
    hub: HubConnection,
    most: int,
    is_over: Callable[[], bool],
    fits: Callable[[StreamRecord], bool],
    done: Callable[[Any, Any], None],
) -> None:
    """Call ``done(the QueueInfos, by name, of those that fit and that the user may see, or None, error)``.

    There may be thousands of rows, which a helper thread goes through.  To open a log takes as long as many messages,
    so everybody else has a turn after every few.  What is deleted meanwhile is left out.
    """
    found: list[dict[str, Any]] = []
    left: Iterator[StreamRecord] = iter(())

    def rows() -> list[StreamRecord]:
        fitting = (record for record in hub.queues.metadata.streams() if record.vhost == DEFAULT_VHOST and fits(record))
        return sorted(fitting, key=lambda record: record.name)

    def listed(records: Any, problem: BaseException | None) -> None:
        nonlocal left
        if problem is None:
            left = iter(records)
            some(0)
        else:
            done(None, problem)

    def some(_: int) -> None:
        if is_over():
            return
        try:
            until = time.monotonic_ns() + DESCRIBE_NS
            for record in left:
                if may_see(hub, record):
                    with suppress(StreamNotFound, StorageError):
                        found.append(described(hub, record))
                if len(found) == most:
                    break
                if time.monotonic_ns() >= until:
                    timer.set(0)
                    return
        except Exception as problem:
            done(None, problem)
        else:
            done(found, None)

    timer = hub.queues.timers.timer(some)
    hub.door.broker.helpers.submit(rows, listed)


class Watch:
    """One StreamQueues: looks at intervals, and sends what has changed."""

    def __init__(self, call: Call, interval_ms: int) -> None:
        self.call, self.hub, self.interval_ms = call, call.hub, interval_ms
        self.known: dict[str, dict[str, Any]] = {}
        self.timer = call.hub.queues.timers.timer(self.look)
        call.on_cancel = call.end
        call.on_over = self.timer.cancel
        self.look(0)

    def is_over(self) -> bool:
        return self.call.state == "over"

    def look(self, _: int) -> None:
        if self.hub.has_room():
            describe_all(self.hub, WATCHED_MAX, self.is_over, lambda record: True, self.show)
        else:
            self.timer.set(self.hub.queues.now_ms + self.interval_ms)

    def show(self, infos: Any, problem: BaseException | None) -> None:
        if self.is_over():
            return
        self.timer.set(self.hub.queues.now_ms + self.interval_ms)
        if problem is not None:
            return
        now = {info["name"]: info for info in infos}
        for name, info in now.items():
            if self.known.get(name) != info:
                self.call.item(info)
        for name in self.known.keys() - now.keys():
            self.call.item({"name": name, "deleted": True})
        self.known = now


@METHODS.add("StreamQueues", optional("intervalMs", whole), is_stream=True)
def stream_queues(call: Call, interval_ms: int | None) -> Any:
    """QueueInfo of all queues, then of those that change; one that is gone comes with ``deleted``."""
    running = [one for one in call.hub.calls.open.values() if one.state == "running"]
    if sum(one.name.lower() == "streamqueues" for one in running) > WATCHES_MAX:
        raise HubError(ErrorCode.LIMIT_EXCEEDED, f"At most {WATCHES_MAX} StreamQueues at once on one connection.")
    given = {"intervalMs": INTERVAL_MS_DEFAULT if interval_ms is None else interval_ms}
    Watch(call, read_options(given, {"intervalMs": whole_from(INTERVAL_MS_MIN, INTERVAL_MS_MAX)})["intervalMs"])
    return LATER


@METHODS.add("ServerInfo")
def server_info(call: Call) -> dict[str, Any]:
    config, queues = call.hub.door.config, call.hub.queues
    return {
        "name": "VibeMQ",
        "version": vibemq.__version__,
        "protocols": ["json", "messagepack"],
        "connectionId": call.hub.connection_id,
        "user": call.hub.client.user,
        "limits": {
            "messageBytes": config.message_max_bytes,
            "prefetch": queues.defaults.prefetch_max,
            "listedQueues": LIST_MAX,
            "unconfirmed": config.unconfirmed_max,
        },
    }
