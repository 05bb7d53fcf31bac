# SPDX-License-Identifier: Apache-2.0
"""Publishing with the native client: what became of messages, and publishers that do not wait for each of them.

Waiting is where the two faces differ, so each does it by itself: AsyncPublisher in the caller's event loop, Publisher
by `call`, which has the client's loop do it. What they share never waits, and nothing in it locks.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from vibemq.client._engine import Engine
from vibemq.client._failures import refusal
from vibemq.client._native import BATCH_BYTES_MAX, NO_FIELDS, Batch, Core, Fields, Flow
from vibemq.client.queues import member_of
from vibemq.errors import InvalidType, InvalidValue, VibeMQError
from vibemq.protocols.native import spec

WINDOW_DEFAULT = 1_000  # messages without an acknowledgement: hides the round trip, little to send again
BATCHES_IN_A_WINDOW = 4  # so that one is written while others are on their way
BATCH_COUNT_MAX = 4_096

LINGER_S = 0.002  # how long a Publisher's batch that is not full waits for more

Headers = Mapping[str, str] | None
Priority = int | str | None
Call = Callable[[Coroutine[Any, Any, Any]], Any]  # has the client's event loop do it, and waits
F = TypeVar("F", bound=Callable[..., Any])


def told_as(twin: Callable[..., Any], more: str = "") -> Callable[[F], F]:
    """Gives a method without asyncio the docstring of its twin with asyncio; `more` goes before the example."""
    text = twin.__doc__ or ""
    for theirs, ours in (("await anext", "next"), ("await ", ""), ("async ", ""), ("docs-async", "docs")):
        text = text.replace(theirs, ours)

    def tell(method: F) -> F:
        method.__doc__ = text.replace(">>>", f"{more}\n\n        >>>", 1) if more else text
        return method

    return tell


@dataclass(frozen=True, slots=True)
class Refused:
    """A message that the broker did not take. `index` counts the messages of the call or publisher, from 0."""

    index: int
    id: str
    error: VibeMQError


@dataclass(frozen=True, slots=True)
class Summary:
    """What became of many messages: how many the broker has, and those that it refused."""

    published: int
    failed: list[Refused] = field(default_factory=list)

    def raise_failed(self) -> Summary:
        """Raises the first error, if there is one.

        >>> client.publish_many("docs", [1, 2]).raise_failed().published
        2
        """
        if self.failed:
            raise self.failed[0].error
        return self


def summary(flow: Flow, queue: str, acked_before: int = 0) -> Summary:
    refused, flow.refused = flow.refused, []
    failed = [
        Refused(index, id, refusal(f"queue {queue}: publishing message {id}", code, message))
        for index, id, code, message in refused
    ]
    return Summary(flow.acked - acked_before, failed)


def fields_of(headers: Headers, priority: Priority) -> Fields:
    if not headers and priority is None:
        return NO_FIELDS
    given = dict(headers or {})
    for name, value in given.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise InvalidType(f"headers are texts: needed str, had {name!r}: {value!r:.60}")
    if priority is not None:
        given[spec.Header.PRIORITY.value] = spec.wire_name(member_of(spec.Priority, priority, "priority", InvalidValue))
    return Fields(given)


def batch_count(window: int) -> int:
    if window < 1:
        raise ValueError(f"window: needed 1 message or more, had {window}")
    return min(max(1, window // BATCHES_IN_A_WINDOW), BATCH_COUNT_MAX)


def batches(
    core: Core, queue: str, payloads: Iterable[Any], window: int, headers: Headers, priority: Priority, raw: bool
) -> Iterator[Batch]:
    """All of them, so many in each that some are written while others are on their way."""
    fields, count, iterator, more = fields_of(headers, priority), batch_count(window), iter(payloads), True
    while more:
        batch = Batch(core, queue)
        more = batch.extend(iterator, count, fields, raw)
        yield batch


# ---- publishers ----


class _Publisher:
    """The batch that is being filled, and what became of those before it."""

    def __init__(self, engine: Engine, queue: str, window: int, raw: bool, stored: bool = False) -> None:
        self.queue = queue
        self._engine, self._window, self._raw, self._stored = engine, window, raw, stored
        self._count = batch_count(window)
        self._flow = Flow()
        self._batch = Batch(engine.core, queue, stored)
        self._acked_before = 0

    @property
    def in_flight(self) -> int:
        """How many messages the broker has not yet acknowledged.

        >>> client.publisher("docs").in_flight
        0
        """
        return self._flow.in_flight + self._batch.count

    def _add(self, payload: Any, headers: Headers, id: str | None, priority: Priority) -> bool:
        """Puts a message into the batch. True: it is time to send it, and to wait for room."""
        self._batch.add(payload, fields_of(headers, priority), self._raw, id)
        full = self._batch.count >= self._count or self._batch.size >= BATCH_BYTES_MAX
        return full or self.in_flight >= self._window

    def _take(self) -> Batch:
        batch, self._batch = self._batch, Batch(self._engine.core, self.queue, self._stored)
        return batch

    def _summary(self) -> Summary:
        """What became of the messages since the last time."""
        found = summary(self._flow, self.queue, self._acked_before)
        self._acked_before += found.published
        return found


class AsyncPublisher(_Publisher, AbstractAsyncContextManager["AsyncPublisher"]):
    """Publishes to one queue, pipelined; made by AsyncClient.publisher. Leaving `async with` flushes."""

    async def publish(
        self,
        payload: Any,
        *,
        headers: Headers = None,
        id: str | None = None,
        priority: Priority = None,
        timeout_s: float | None = None,
    ) -> None:
        """Publishes without waiting for the broker, unless the window is full.

        PublishTimeout when it stays full for timeout_s: no message that is not acknowledged by then is sent any more.

        >>> async with client.publisher("docs-async") as publisher:
        ...     await publisher.publish({"number": 1}, headers={"source": "docs"})
        """
        if self._add(payload, headers, id, priority):
            await self._engine.send_batch(self._take(), self._flow, self._window, timeout_s)
        elif self._batch.count == 1:
            self._engine.loop.call_soon(self._send, self._batch)

    def _send(self, batch: Batch) -> None:
        if self._batch is batch and not self._engine.is_over:  # else flush says so
            self._engine.submit(self._take(), self._flow)

    async def flush(self, timeout_s: float | None = None) -> Summary:
        """Waits until every message is acknowledged or refused: what happened since the last flush.

        PublishTimeout, which says what may be stored, when nothing was acknowledged for timeout_s.

        >>> await client.publisher("docs-async").flush()
        Summary(published=0, failed=[])
        """
        self._engine.submit(self._take(), self._flow)
        await self._engine.room(self._flow, 0, timeout_s)
        return self._summary()

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            (await self.flush()).raise_failed()
        else:
            self._engine.forget(self._flow)


class Publisher(_Publisher, AbstractContextManager["Publisher"]):
    """Publishes to one queue, pipelined; made by Client.publisher. Leaving `with` flushes. Threads may share it."""

    def __init__(self, call: Call, engine: Engine, queue: str, window: int, raw: bool, stored: bool) -> None:
        super().__init__(engine, queue, window, raw, stored)
        self._call = call
        self._lock = threading.Lock()  # around the batch; the loop's thread never waits for it

    @told_as(AsyncPublisher.publish)
    def publish(
        self,
        payload: Any,
        *,
        headers: Headers = None,
        id: str | None = None,
        priority: Priority = None,
        timeout_s: float | None = None,
    ) -> None:
        with self._lock:
            if self._add(payload, headers, id, priority):
                self._call(self._engine.send_batch(self._take(), self._flow, self._window, timeout_s))
            elif self._batch.count == 1:
                loop = self._engine.loop
                loop.call_soon_threadsafe(loop.call_later, LINGER_S, self._send, self._batch)

    def _send(self, batch: Batch) -> None:
        """In the loop's thread: the batch has waited long enough, if it is still the one that is filled."""
        if self._engine.is_over:
            return
        if not self._lock.acquire(blocking=False):
            self._engine.loop.call_later(LINGER_S, self._send, batch)
            return
        try:
            if self._batch is batch:
                self._engine.submit(self._take(), self._flow)
        finally:
            self._lock.release()

    @told_as(AsyncPublisher.flush)
    def flush(self, timeout_s: float | None = None) -> Summary:
        with self._lock:
            batch = self._take()
            self._call(self._engine.send_batch(batch, self._flow, self._window + batch.count, timeout_s))
        self._call(self._engine.room(self._flow, 0, timeout_s))
        return self._summary()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            self.flush().raise_failed()
        else:
            self._engine.forget(self._flow)
