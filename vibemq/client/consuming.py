# SPDX-License-Identifier: Apache-2.0
"""Consuming with the native client: the messages of a queue one after another, and handlers that are called with them.

As with publishers, the two faces share what never waits, and each waits in its own way.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import threading
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

from vibemq.client._engine import Engine, Feed
from vibemq.client._failures import cleaning_up
from vibemq.client._native import Message
from vibemq.client.publishing import Call, told_as
from vibemq.errors import VibeMQError

log = logging.getLogger("vibemq.client")

Handler = Callable[[Message], object]
AsyncHandler = Callable[[Message], Awaitable[object]]


class AnyConsumer:
    """The delivered messages that were not yet handed out, and the one that was handed out last.

    The program holds that one until it settles it or asks for the next one. If it goes back to its queue unsettled,
    only its delivery has failed. So the broker gets a report of it when the consumer ends. For a redelivered message
    the report is sent before the program gets it, because it may kill the program.
    """

    looks_only = False  # messages go back on purpose, so none of them has failed

    def __init__(
        self,
        engine: Engine,
        queue: str,
        prefetch: int | None,
        auto_ack: bool,
        create: bool,
        timeout_s: float | None,
        stored: bool = False,
        subscriber: str = "",
        subscriber_ttl_s: int = 0,
    ) -> None:
        self.queue = queue
        self._engine, self._auto_ack, self._timeout_s = engine, auto_ack, timeout_s
        self._feed = Feed(self, queue, prefetch, create, stored, subscriber, subscriber_ttl_s)
        self._messages: deque[Message] = deque()
        self._open = self._over = self._stopped = False
        self._why: VibeMQError | None = None
        self._last: Message | None = None
        self._youngest: Message | None = None  # of those handed out
        self._news: asyncio.Event | threading.Event = asyncio.Event()

    def _arrived(self, messages: list[Message]) -> None:
        """This and the next in the engine's thread."""
        self._messages.extend(messages)
        self._news.set()

    def _ended(self, why: VibeMQError | None) -> None:
        self._over, self._why = True, why
        self._news.set()

    def stop(self) -> None:
        """The iteration ends; what was not handed out is dropped here, and goes back to the queue with `close`.

        Of a Consumer any thread may call it.

        >>> client.consume("docs").stop()
        """
        self._over = self._stopped = True
        self._messages.clear()
        self._news.set()

    def _next_here(self) -> Message | None:
        try:
            while not self._stopped:  # until it is closed, more may come
                message = self._messages.popleft()
                if not message.stale:  # else it comes again
                    self._last = self._youngest = message
                    return message
        except IndexError:
            pass
        return None

    def _settle_last(self) -> None:
        """Note that the program is done with its message, because it asks for the next one."""
        if self._auto_ack and self._last is not None:
            self._last.ack()
        self._last = None

    def _say_held(self) -> None:
        """Report the message that the program holds to the broker, or else the last one that it has seen."""
        last, self._last = self._last, None
        youngest, self._youngest = self._youngest, None
        if youngest is not None:
            youngest.hold(youngest is last and not self.looks_only)

    def _leave(self, error: BaseException | None) -> None:
        """End the block. An error makes the message in hand failed, unless the error ends the program."""
        if error is None and self._auto_ack:
            self._settle_last()
        elif error is not None and not isinstance(error, Exception):
            self._last = None
        elif self._auto_ack and self._last is not None and not self._engine.takes_holding:
            self._last.nack()  # an older broker counts it as failed by this


@contextlib.contextmanager
def _handled(message: Message) -> Iterator[None]:
    """A handler at work: it returns = ack, it raises = nack."""
    try:
        yield
    except Exception:
        log.exception("handler of queue %s failed with %r", message.queue, message)
        message.nack()
    else:
        message.ack()


# ---- for asyncio ----


class AsyncConsumer(AnyConsumer):
    """The messages of one queue; made by AsyncClient.consume. It subscribes when the first is asked for."""

    _news: asyncio.Event

    async def open(self, timeout_s: float | None = None) -> None:
        """Subscribes now.

        >>> consumer = client.consume("docs-async")
        >>> await consumer.open()
        >>> await consumer.close()
        """
        await self._engine.subscribe(self._feed, timeout_s)
        self._open = True

    def __aiter__(self) -> AsyncIterator[Message]:
        return self

    async def __anext__(self) -> Message:
        self._settle_last()
        if not self._open and not self._over:
            await self.open()
        while True:
            if (message := self._next_here()) is not None:
                if message.redelivered and not self.looks_only:
                    message.hold()
                    await self._engine.flush()
                return message
            if self._why is not None:
                raise self._why
            if self._over:
                raise StopAsyncIteration
            self._news.clear()
            try:
                async with asyncio.timeout(self._timeout_s):
                    await self._news.wait()
            except TimeoutError:
                raise StopAsyncIteration from None

    async def _some(self, count: int) -> list[Message]:
        """The next messages, at most so many, and none when none came within the consumer's timeout_s."""
        first = await anext(self, None)
        messages = [] if first is None else [first]
        while messages and len(messages) < count and (message := self._next_here()) is not None:
            messages.append(message)
        return messages

    async def close(self, timeout_s: float | None = None) -> None:
        """Unsubscribes; messages that are not settled go back to the queue.

        >>> async with client.consume("docs-async", timeout_s=0.1) as consumer:
        ...     pass
        """
        self.stop()
        await self._engine.unsubscribe(self._feed, timeout_s)

    async def __aenter__(self) -> AsyncConsumer:
        if not self._open:
            await self.open()
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._leave(error)
        with cleaning_up(error):
            await self.close()

    def __del__(self) -> None:
        if self._open and not self._over:
            self._say_held()
            self._engine.abandon(self._feed)


class AsyncSubscription:
    """A handler at work; made by AsyncClient.subscribe."""

    def __init__(self, consumer: AsyncConsumer, handler: AsyncHandler) -> None:
        self._consumer = consumer
        self._task = asyncio.get_running_loop().create_task(self._run(handler))

    async def _run(self, handler: AsyncHandler) -> None:
        try:
            async for message in self._consumer:
                with _handled(message):
                    await handler(message)
        except VibeMQError as error:
            log.warning("subscription to queue %s ended: %s", self._consumer.queue, error)

    async def close(self, timeout_s: float | None = None) -> None:
        """Unsubscribes once the message at hand is done, however long that takes. The handler itself may call it.

        timeout_s is for the broker's answer.

        >>> subscription = await client.subscribe("docs-async-closed", print, create=True)
        >>> await subscription.close()
        """
        self._consumer.stop()
        if asyncio.current_task() is not self._task:
            await self._task
        await self._consumer.close(timeout_s)


# ---- without asyncio ----


class Consumer(AnyConsumer):
    """The messages of one queue; made by Client.consume. It subscribes when the first is asked for.

    One thread iterates; messages may be settled in any. Dropping it, as `break` out of a loop does, unsubscribes.
    """

    _news: threading.Event

    def __init__(self, call: Call, *options: Any) -> None:
        super().__init__(*options)
        self._call, self._news = call, threading.Event()

    @told_as(AsyncConsumer.open)
    def open(self, timeout_s: float | None = None) -> None:
        self._call(self._engine.subscribe(self._feed, timeout_s))
        self._open = True

    def __iter__(self) -> Iterator[Message]:
        return self

    def __next__(self) -> Message:
        self._settle_last()
        if not self._open and not self._over:
            self.open()
        if (message := self._next_here()) is not None:
            return self._handed_out(message)
        while True:
            self._news.clear()  # before the look, which what comes now would be too late for
            if (message := self._next_here()) is not None:
                return self._handed_out(message)
            if self._why is not None:
                why, self._why = self._why, None
                raise why
            if self._over or not self._news.wait(None if self._timeout_s == math.inf else self._timeout_s):
                raise StopIteration

    def _handed_out(self, message: Message) -> Message:
        """Report a redelivered message before the program gets it: it may end this process."""
        if message.redelivered and not self.looks_only:
            message.hold()
            if not self._engine.is_over:
                self._call(self._engine.flush())
        return message

    @told_as(AsyncConsumer.close)
    def close(self, timeout_s: float | None = None) -> None:
        self.stop()
        if not self._engine.loop.is_closed():
            self._call(self._engine.unsubscribe(self._feed, timeout_s))
        self._open = False

    def __enter__(self) -> Consumer:
        if not self._open:
            self.open()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._leave(error)
        with cleaning_up(error):
            self.close()

    def __del__(self) -> None:
        if self._open:
            self._say_held()
            self._engine.abandon(self._feed)


class Subscription:
    """A handler at work in a thread; made by Client.subscribe."""

    def __init__(self, consumer: Consumer, handler: Handler, timeout_s: float | None = None) -> None:
        self._consumer, self._handler = consumer, handler
        consumer.open(timeout_s)
        self._thread = threading.Thread(target=self._run, name=f"vibemq {consumer.queue}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            for message in self._consumer:
                with _handled(message):
                    self._handler(message)
        except VibeMQError as error:
            log.warning("subscription to queue %s ended: %s", self._consumer.queue, error)

    @told_as(AsyncSubscription.close)
    def close(self, timeout_s: float | None = None) -> None:
        self._consumer.stop()
        if threading.current_thread() is not self._thread:
            self._thread.join()
        self._consumer.close(timeout_s)
