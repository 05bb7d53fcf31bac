# SPDX-License-Identifier: Apache-2.0
"""Who consumes what on one client, and on which connection.

The protocol has one subscription for a queue on a connection. So the first consumer of a queue uses the client's own
connection, and each further one, while the first is there, one of its own: to the broker they are two consumers, each
with its own prefetch, as if two clients had made them. Such a connection ends with its consumer or with the client.

A consumer that is dropped without a word is unsubscribed behind its back; whoever consumes its queue next waits for
that, and gets what it had not settled.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import TYPE_CHECKING

from vibemq.client._link import Feed
from vibemq.client._native import Message
from vibemq.errors import (
    ConnectionClosed,
    NotAQueue,
    NotAuthorized,
    QueueNotFound,
    RequestFailed,
    TimeoutExceeded,
    VibeMQError,
)
from vibemq.protocols.native.spec import FORM_STORED, Command, Header

if TYPE_CHECKING:
    from vibemq.client._engine import Engine

log = logging.getLogger("vibemq.client")


class Subscriptions:
    """Invariant: a Feed is in `feeds`, or in `_beside` with its connection, or has ended."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.feeds: dict[str, Feed] = {}
        self._beside: dict[Feed, Engine] = {}
        self._begun: set[str] = set()  # queues whose subscription was asked for on a connection that is being opened
        self._tasks: set[asyncio.Task[None]] = set()

    async def add(self, feed: Feed, timeout_s: float | None = None) -> None:
        """Messages go to the feed from now on, also after a reconnect; they may come before the answer."""
        engine = self._engine
        end = engine.loop.time() + engine.patience_s(timeout_s)
        await engine.ready(timeout_s, f"the subscription to queue {feed.queue}")
        while (other := self.feeds.get(feed.queue)) is not None:
            if not other.leaving:
                await self._add_beside(feed, end)
                return
            async with self._until(end, feed.queue):
                await other.left.wait()
        self.feeds[feed.queue] = feed
        try:
            await self._subscribe(feed, end - engine.loop.time())
        except BaseException as error:
            self.feeds.pop(feed.queue, None)
            if not isinstance(error, RequestFailed):  # it may be made all the same, and nobody would take its messages
                engine.post(Command.UNSUBSCRIBE, feed.queue)
            raise

    @contextlib.asynccontextmanager
    async def _until(self, end: float, queue: str) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(max(0.0, end - self._engine.loop.time())) as scope:
                yield
        except TimeoutError:
            if not scope.expired():
                raise
            raise TimeoutExceeded(
                f"{self._engine.settings.peer}: the subscription to queue {queue} was not made in time",
                hint="Is the broker overloaded? A longer timeout_s waits longer.",
            ) from None

    async def _add_beside(self, feed: Feed, end: float) -> None:
        engine = type(self._engine)(replace(self._engine.settings, queues=()))
        self._beside[feed] = engine
        try:
            async with self._until(end, feed.queue):
                await engine.open()
                await engine.subscriptions.add(feed, end - engine.loop.time())
        except BaseException:
            self._beside.pop(feed, None)
            await engine.close(0.0)
            raise

    async def _subscribe(self, feed: Feed, timeout_s: float | None = None) -> None:
        headers = {Header.CREATE.value: "true" if feed.create else "false"}
        if feed.stored:
            headers[Header.FORM.value] = FORM_STORED
        if feed.prefetch is not None:
            headers["prefetch"] = str(feed.prefetch)
        await self._engine.exchange(Command.SUBSCRIBE, feed.queue, headers=headers, timeout_s=timeout_s)

    async def begin_again(self) -> None:
        """After a reconnect: a queue that one may not consume any more ends its consumer, and nobody else."""
        self._begun.clear()
        for feed in list(self.feeds.values()):
            if self.feeds.get(feed.queue) is not feed:
                continue  # removed meanwhile
            self._begun.add(feed.queue)
            try:
                await self._subscribe(feed)
            except (QueueNotFound, NotAQueue, NotAuthorized) as gone:
                self.feeds.pop(feed.queue, None)
                feed.end(gone)

    def give(self, queue: str, messages: list[Message]) -> None:
        if (feed := self.feeds.get(queue)) is not None:  # else it was on its way while we unsubscribed
            feed.give(messages)

    async def remove(self, feed: Feed, timeout_s: float | None = None) -> None:
        """What is not settled goes back to the queue."""
        engine = self._engine
        if (beside := self._beside.pop(feed, None)) is not None:
            await beside.close(engine.patience_s(timeout_s))
            return
        if self.feeds.get(feed.queue) is not feed:
            return
        feed.leaving = True
        engine.flush_settled()
        try:
            if engine.is_connected:
                await engine.exchange(Command.UNSUBSCRIBE, feed.queue, timeout_s=engine.patience_s(timeout_s))
            elif feed.queue in self._begun:
                engine.post(Command.UNSUBSCRIBE, feed.queue)
        except ConnectionClosed:
            return  # then the subscription is gone as well
        finally:
            if self.feeds.get(feed.queue) is feed:
                del self.feeds[feed.queue]
            feed.left.set()

    def abandon(self, feed: Feed) -> None:
        """Unsubscribes without anybody waiting for it. From any thread."""
        feed.leaving = True
        with contextlib.suppress(RuntimeError):  # the loop has ended, and everything with it
            self._engine.loop.call_soon_threadsafe(self._abandon, feed)

    def _abandon(self, feed: Feed) -> None:
        if self._engine.is_over:
            return
        task = self._engine.loop.create_task(self._remove_quietly(feed))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _remove_quietly(self, feed: Feed) -> None:
        try:
            await self.remove(feed)
        except VibeMQError as error:
            log.warning("queue %s: unsubscribing failed: %s", feed.queue, error)

    async def close(self, timeout_s: float) -> None:
        """The connections beside the client's own say goodbye."""
        beside, self._beside = self._beside, {}
        await asyncio.gather(*(engine.close(timeout_s) for engine in beside.values()))

    def end(self, why: VibeMQError | None) -> None:
        """The client is over: all consumers are told."""
        feeds, self.feeds = self.feeds, {}
        for feed in feeds.values():
            feed.left.set()
            feed.end(why)
        beside, self._beside = self._beside, {}
        for engine in beside.values():
            engine.end(why)
