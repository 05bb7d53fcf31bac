# SPDX-License-Identifier: Apache-2.0
"""The native client for asyncio programs.

    async with vibemq.client.aconnect("vibemq://localhost:2925") as client:
        await client.publish("orders", {"number": 1})
        async for message in client.consume("orders"):
            print(message.payload)
            message.ack()

The examples below run as in `python -m asyncio`, with a `client` that is connected. One event loop uses a client; any
number of its tasks may.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Generator, Iterable
from types import TracebackType
from typing import Any

import msgspec

from vibemq.client._engine import Engine, StateCallback
from vibemq.client._faces import ClientFace, ConsumerFace, PublisherFace
from vibemq.client._link import Feed
from vibemq.client._native import Message
from vibemq.client._outgoing import Batch, Flow
from vibemq.client.publishing import (
    WINDOW_DEFAULT,
    Headers,
    Priority,
    Summary,
    batch_count,
    fields_of,
    summary,
)
from vibemq.client.queues import (
    OnConflict,
    Permission,
    QueueDeclaration,
    QueueInfo,
    QueueOptions,
    User,
    make_options,
    names_of,
    operation_names,
    options_payload,
    permissions_of,
    users_of,
)
from vibemq.client.settings import Settings, parse
from vibemq.errors import InvalidRequest, QueueNotFound, VibeMQError
from vibemq.protocols.native.spec import Command, ErrorCode, QueueOperation

log = logging.getLogger("vibemq.client")

Handler = Callable[[Message], Awaitable[object]]


class Connecting:
    """What `aconnect` gives: await it for an AsyncClient, or use it with `async with`."""

    def __init__(self, settings: Settings, options: dict[str, Any]) -> None:
        self._settings, self._options = settings, options
        self._client: AsyncClient | None = None

    async def open(self) -> AsyncClient:
        engine = Engine(self._settings, **self._options)
        try:
            await engine.open()
        except VibeMQError as error:
            raise error from None  # it says all that the socket's own error did
        self._client = AsyncClient(engine)
        return self._client

    def __await__(self) -> Generator[Any, None, AsyncClient]:
        return self.open().__await__()

    async def __aenter__(self) -> AsyncClient:
        return await self.open()

    async def __aexit__(self, *_: object) -> None:
        if self._client is not None:
            await self._client.close()


def aconnect(
    url: str = "vibemq://localhost",
    *,
    declare: Iterable[QueueDeclaration] = (),
    fail_on_provisioning_error: bool = True,
    on_connection: StateCallback | None = None,
    **settings: Any,
) -> Connecting:
    """An AsyncClient for the broker at `url`; vibemq.client.connect explains the arguments.

    >>> from vibemq.client import aconnect
    >>> async with aconnect("vibemq://localhost:2925") as other:
    ...     print(other.state.value)
    connected
    """
    options = {
        "declare": declare,
        "fail_on_provisioning_error": fail_on_provisioning_error,
        "on_connection": on_connection,
    }
    return Connecting(parse(url, **settings), options)


class AsyncClient(ClientFace):
    """A client that is connected, and connects again by itself. Made by `aconnect`."""

    async def close(self) -> None:
        """Says goodbye. What was published and not awaited may or may not have arrived.

        >>> other = await aconnect("vibemq://localhost:2925")
        >>> await other.close()
        """
        await self._engine.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # ---- publishing ----

    async def publish(
        self,
        queue: str,
        payload: Any,
        *,
        headers: Headers = None,
        id: str | None = None,
        priority: Priority = None,
        raw: bool = False,
    ) -> str:
        """Publishes one message and waits until the broker has it; gives its id.

        `payload` is anything that JSON can say (bytes go as base64 and come out as bytes), or with `raw` JSON text.

        >>> id = await client.publish("docs-async", {"number": 1}, headers={"source": "docs"}, priority="high")
        """
        flow, batch = Flow(), Batch(self._engine.core, queue)
        batch.add(payload, fields_of(headers, priority), raw, id)
        self._engine.submit(batch, flow)
        try:
            await self._engine.room(flow, 0)
        except BaseException:
            self._engine.forget(flow)
            raise
        summary(flow, queue).raise_failed()
        return id if id is not None else batch.id_of(0)

    async def publish_many(
        self,
        queue: str,
        payloads: Iterable[Any] | AsyncIterable[Any],
        *,
        window: int = WINDOW_DEFAULT,
        headers: Headers = None,
        priority: Priority = None,
        raw: bool = False,
    ) -> Summary:
        """Publishes all of them, with at most `window` messages on their way; waits until the broker has them.

        >>> summary = await client.publish_many("docs-async", ({"number": n} for n in range(100)))
        >>> summary.published, summary.failed
        (100, [])
        """
        flow, fields, count = Flow(), fields_of(headers, priority), batch_count(window)
        try:
            if isinstance(payloads, AsyncIterable):
                publisher = AsyncPublisher(self._engine, queue, window, raw, flow)
                async for payload in payloads:
                    await publisher.publish(payload, headers=headers, priority=priority)
                return await publisher.flush()
            iterator, more = iter(payloads), True
            while more:
                batch = Batch(self._engine.core, queue)
                more = batch.extend(iterator, count, fields, raw)
                await self._engine.send_batch(batch, flow, window)
            await self._engine.room(flow, 0)
        except BaseException:
            self._engine.forget(flow)
            raise
        return summary(flow, queue)

    def publisher(self, queue: str, *, window: int = WINDOW_DEFAULT, raw: bool = False) -> AsyncPublisher:
        """An object whose `publish` does not wait for the broker, but for room in the window.

        >>> async with client.publisher("docs-async") as publisher:
        ...     for number in range(10):
        ...         await publisher.publish({"number": number})
        ...     print((await publisher.flush()).published)
        10
        """
        return AsyncPublisher(self._engine, queue, window, raw, Flow())

    # ---- consuming ----

    def consume(
        self, queue: str, *, prefetch: int | None = None, auto_ack: bool = False, timeout_s: float | None = None
    ) -> AsyncConsumer:
        """The messages of a queue, one after another, without an end; each is to be settled with its ack or nack.

        At most `prefetch` are here unsettled at a time. With `auto_ack` a message is acknowledged when the next one is
        asked for. `timeout_s` ends the iteration when nothing came for so long.

        >>> id = await client.publish("docs-async-consume", "hello")
        >>> async for message in client.consume("docs-async-consume"):
        ...     print(message.payload)
        ...     message.ack()
        ...     break
        hello
        """
        return AsyncConsumer(self._engine, queue, prefetch, auto_ack, timeout_s)

    async def subscribe(self, queue: str, handler: Handler, *, prefetch: int | None = None) -> AsyncSubscription:
        """Calls the coroutine `handler` with each message, one after another: it returns = ack, it raises = nack.

        >>> seen = asyncio.Event()
        >>> async def handler(message):
        ...     seen.set()
        >>> subscription = await client.subscribe("docs-async-handled", handler)
        >>> id = await client.publish("docs-async-handled", "hello")
        >>> waited = await seen.wait()
        >>> await subscription.close()
        """
        consumer = AsyncConsumer(self._engine, queue, prefetch, False, None)
        await consumer.open()
        return AsyncSubscription(consumer, handler)

    # ---- queues ----

    async def create_queue(self, name: str, options: QueueOptions | None = None, **changes: Any) -> None:
        """Makes a queue; if there is one already, it stays as it is.

        >>> await client.create_queue("docs-async-new", mode="priority_based", max_messages=500)
        """
        wanted = QueueDeclaration(name, make_options(options, changes))
        await self._engine.request(Command.CREATE_QUEUE, name, payload=options_payload(wanted.options))

    async def declare_queue(
        self,
        name: str,
        options: QueueOptions | None = None,
        *,
        on_conflict: OnConflict | str = OnConflict.IGNORE,
        **changes: Any,
    ) -> None:
        """Makes a queue, or compares what is declared with the one that is there; once more after each reconnect.

        >>> await client.declare_queue("docs-async-declared", max_messages=500, on_conflict="fail")
        """
        wanted = QueueDeclaration(name, make_options(options, changes), OnConflict(on_conflict), frozenset(changes))
        await self._engine.declare(wanted, wanted.on_conflict)
        kept = [other for other in self._engine.declarations if other.name != name]
        self._engine.declarations = [*kept, wanted]

    async def delete_queue(self, name: str) -> None:
        """Deletes a queue with all its messages; also if there is none.

        >>> await client.create_queue("docs-async-short")
        >>> await client.delete_queue("docs-async-short")
        """
        self._engine.declarations = [other for other in self._engine.declarations if other.name != name]
        await self._engine.request(Command.DELETE_QUEUE, name)

    async def purge_queue(self, name: str) -> None:
        """Drops the messages that wait in a queue. Only brokers of ours know how.

        >>> await client.create_queue("docs-async-purge")
        >>> await client.purge_queue("docs-async-purge")
        """
        await self._engine.ready()
        if "purge" not in self._engine.features:
            raise InvalidRequest(
                f"{self._engine.settings.peer}: this broker cannot purge a queue",
                code=ErrorCode.UNKNOWN_COMMAND.value,
                hint="Delete the queue and create it again.",
            )
        await self._engine.request(Command.PURGE_QUEUE, name)

    async def queue_info(self, name: str) -> QueueInfo:
        """How many messages are in a queue, and its options. QueueNotFound if there is none.

        >>> await client.create_queue("docs-async-info", max_messages=7)
        >>> info = await client.queue_info("docs-async-info")
        >>> info.messages, info.options.max_messages
        (0, 7)
        """
        info = await self._engine.find_queue(name)
        if info is None:
            raise QueueNotFound(
                f"{self._engine.settings.peer}: there is no queue {name}",
                code=ErrorCode.QUEUE_NOT_FOUND.value,
                hint="`vibemq queues list` shows all.",
            )
        return info

    async def list_queues(self) -> list[str]:
        """The names of the queues that the user may see.

        >>> await client.create_queue("docs-async-listed")
        >>> "docs-async-listed" in await client.list_queues()
        True
        """
        return names_of((await self._engine.request(Command.LIST_QUEUES)).payload)

    # ---- users; brokers answer these while authorization is on, and mostly to superusers ----

    async def _users(self, command: Command, **members: Any) -> bytes | None:
        return (await self._engine.request(command, payload=msgspec.json.encode(members))).payload

    async def create_user(self, name: str, password: str) -> None:
        """Makes a user, who may do nothing until something is granted.

        >>> await client.create_user("docs-ada", "lovelace 1843")  # doctest: +SKIP
        """
        await self._users(Command.ADMIN_CREATE_USER, username=name, password=password)

    async def delete_user(self, name: str) -> None:
        """Removes a user and what was granted.

        >>> await client.delete_user("docs-ada")  # doctest: +SKIP
        """
        await self._users(Command.ADMIN_DELETE_USER, username=name)

    async def change_password(self, name: str, password: str) -> None:
        """Gives a user another password.

        >>> await client.change_password("docs-ada", "babbage 1791")  # doctest: +SKIP
        """
        await self._users(Command.ADMIN_CHANGE_PASSWORD, username=name, newPassword=password)

    async def grant(self, name: str, pattern: str, *operations: str | QueueOperation) -> None:
        """Lets a user do these operations with the queues that the pattern matches; replaces what it said before.

        >>> await client.grant("docs-ada", "orders.*", "Publish", "Subscribe")  # doctest: +SKIP
        """
        members = {"username": name, "queuePattern": pattern, "operations": operation_names(operations)}
        await self._users(Command.ADMIN_GRANT_PERMISSION, **members)

    async def revoke(self, name: str, pattern: str) -> None:
        """Takes back what was granted by exactly this pattern.

        >>> await client.revoke("docs-ada", "orders.*")  # doctest: +SKIP
        """
        await self._users(Command.ADMIN_REVOKE_PERMISSION, username=name, queuePattern=pattern)

    async def list_users(self) -> list[User]:
        """All users, by name.

        >>> [user.name for user in await client.list_users()]  # doctest: +SKIP
        ['docs-ada', 'vibemq']
        """
        return users_of((await self._engine.request(Command.ADMIN_LIST_USERS)).payload)

    async def permissions(self, name: str) -> list[Permission]:
        """What a user may do.

        >>> await client.permissions("docs-ada")  # doctest: +SKIP
        [Permission(pattern='orders.*', operations=('Publish', 'Subscribe'))]
        """
        return permissions_of(await self._users(Command.ADMIN_GET_USER_PERMISSIONS, username=name))


class AsyncPublisher(PublisherFace):
    """Publishes to one queue, pipelined; made by AsyncClient.publisher. Leaving `async with` flushes."""

    def __init__(self, engine: Engine, queue: str, window: int, raw: bool, flow: Flow) -> None:
        super().__init__(engine, queue, window, raw, flow)
        self._soon: asyncio.Handle | None = None

    async def publish(
        self, payload: Any, *, headers: Headers = None, id: str | None = None, priority: Priority = None
    ) -> None:
        """Publishes without waiting for the broker, unless the window is full.

        >>> async with client.publisher("docs-async") as publisher:
        ...     await publisher.publish({"number": 1}, headers={"source": "docs"})
        """
        if self._add(payload, headers, id, priority):
            await self._engine.send_batch(self._take(), self._flow, self._window)
        elif self._soon is None:
            self._soon = self._engine.loop.call_soon(self._send)

    def _take(self) -> Batch:
        if self._soon is not None:
            self._soon.cancel()
            self._soon = None
        return super()._take()

    def _send(self) -> None:
        if self._engine.state.value != "closed":  # else flush says so
            self._engine.submit(self._take(), self._flow)

    async def flush(self) -> Summary:
        """Waits until every message is acknowledged or refused: what happened since the last flush.

        >>> await client.publisher("docs-async").flush()
        Summary(published=0, failed=[])
        """
        self._engine.submit(self._take(), self._flow)
        await self._engine.room(self._flow, 0)
        return self._summary()

    async def __aenter__(self) -> AsyncPublisher:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            (await self.flush()).raise_failed()
        else:
            self._engine.forget(self._flow)


class AsyncConsumer(ConsumerFace):
    """The messages of one queue; made by AsyncClient.consume. It subscribes when the first is asked for."""

    def __init__(
        self, engine: Engine, queue: str, prefetch: int | None, auto_ack: bool, timeout_s: float | None
    ) -> None:
        super().__init__(queue, auto_ack, timeout_s)
        self._engine = engine
        self._feed = Feed(queue, prefetch, self._arrived, self._ended)
        self._news = asyncio.Event()
        self._why: VibeMQError | None = None

    async def open(self) -> None:
        """Subscribes now.

        >>> consumer = client.consume("docs-async")
        >>> await consumer.open()
        >>> await consumer.close()
        """
        await self._engine.subscribe(self._feed)
        self._open = True

    def _arrived(self, messages: list[Message]) -> None:
        self._messages.extend(messages)
        self._news.set()

    def _ended(self, why: VibeMQError | None) -> None:
        self._over, self._why = True, why
        self._news.set()

    def __aiter__(self) -> AsyncIterator[Message]:
        return self

    async def __anext__(self) -> Message:
        self._settle_last()
        if not self._open and not self._over:
            await self.open()
        while True:
            if (message := self._next_here()) is not None:
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

    async def close(self) -> None:
        """Unsubscribes; messages that are not settled go back to the queue.

        >>> async with client.consume("docs-async", timeout_s=0.1) as consumer:
        ...     pass
        """
        self.stop()
        await self._engine.unsubscribe(self._feed)

    def stop(self) -> None:
        """The iteration ends; what was not handed out is dropped here, and goes back to the queue with `close`.

        >>> client.consume("docs-async").stop()
        """
        self._over = True
        self._messages.clear()
        self._news.set()

    async def __aenter__(self) -> AsyncConsumer:
        if not self._open:
            await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._settle_last(failed=error is not None)
        await self.close()

    def __del__(self) -> None:
        if self._open and not self._over:
            self._engine.abandon(self._feed)


class AsyncSubscription:
    """A handler at work; made by AsyncClient.subscribe."""

    def __init__(self, consumer: AsyncConsumer, handler: Handler) -> None:
        self._consumer = consumer
        self._task = asyncio.get_running_loop().create_task(self._run(handler))

    async def _run(self, handler: Handler) -> None:
        try:
            async for message in self._consumer:
                try:
                    await handler(message)
                except Exception:
                    log.exception("handler of queue %s failed with %r", self._consumer.queue, message)
                    message.nack()
                else:
                    message.ack()
        except VibeMQError as error:
            log.warning("subscription to queue %s ended: %s", self._consumer.queue, error)

    async def close(self) -> None:
        """Unsubscribes once the message at hand is done.

        >>> subscription = await client.subscribe("docs-async", print)
        >>> await subscription.close()
        """
        self._consumer.stop()
        if asyncio.current_task() is not self._task:
            await self._task
        await self._consumer.close()
