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
import warnings
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Generator, Iterable
from types import TracebackType
from typing import Any

import msgspec

from vibemq.client._engine import GOODBYE_TIMEOUT_S, Engine, StateCallback
from vibemq.client._faces import ClientFace, ConsumerFace, PublisherFace
from vibemq.client._link import Feed
from vibemq.client._moving import DRY_RUN_COUNT_MAX, IDLE_S, PREFETCH_COUNT, Moved, Mover, Progress
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
    changes_payload,
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
    timeout_s: float | None = None,
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
    if timeout_s is not None:
        settings["connect_timeout_s"] = timeout_s
    return Connecting(parse(url, **settings), options)


class AsyncClient(ClientFace):
    """A client that is connected, and connects again by itself. Made by `aconnect`."""

    must_be_closed = True

    async def close(self, timeout_s: float = GOODBYE_TIMEOUT_S) -> None:
        """Says goodbye, for at most timeout_s. What was published and not awaited may or may not have arrived.

        >>> other = await aconnect("vibemq://localhost:2925")
        >>> await other.close()
        """
        await self._engine.close(timeout_s)

    def __del__(self, warn: Callable[..., None] = warnings.warn) -> None:
        if self.must_be_closed and not self._engine.is_over:
            warn(f"unclosed {self!r} of {self._engine.settings.peer}", ResourceWarning, source=self)

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
        timeout_s: float | None = None,
    ) -> str:
        """Publishes one message and waits until the broker has it; gives its id.

        `payload` is anything that JSON can say (bytes go as base64 and come out as bytes), or with `raw` JSON text.
        PublishTimeout, which says whether it may be stored, when the broker has not taken it in timeout_s.

        >>> id = await client.publish("docs-async", {"number": 1}, headers={"source": "docs"}, priority="high")
        """
        flow, batch = Flow(), Batch(self._engine.core, queue)
        batch.add(payload, fields_of(headers, priority), raw, id)
        self._engine.submit(batch, flow)
        try:
            await self._engine.room(flow, 0, timeout_s)
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
        timeout_s: float | None = None,
    ) -> Summary:
        """Publishes all of them, with at most `window` messages on their way; waits until the broker has them.

        PublishTimeout when none of them is acknowledged for timeout_s; those that were are stored.

        >>> summary = await client.publish_many("docs-async", ({"number": n} for n in range(100)))
        >>> summary.published, summary.failed
        (100, [])
        """
        flow, fields, count = Flow(), fields_of(headers, priority), batch_count(window)
        try:
            if isinstance(payloads, AsyncIterable):
                publisher = AsyncPublisher(self._engine, queue, window, raw, flow)
                async for payload in payloads:
                    await publisher.publish(payload, headers=headers, priority=priority, timeout_s=timeout_s)
                return await publisher.flush(timeout_s)
            iterator, more = iter(payloads), True
            while more:
                batch = Batch(self._engine.core, queue)
                more = batch.extend(iterator, count, fields, raw)
                await self._engine.send_batch(batch, flow, window, timeout_s)
            await self._engine.room(flow, 0, timeout_s)
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
        self,
        queue: str,
        *,
        prefetch: int | None = None,
        auto_ack: bool = False,
        create: bool = False,
        timeout_s: float | None = None,
    ) -> AsyncConsumer:
        """The messages of a queue, one after another, without an end; each is to be settled with its ack or nack.

        At most `prefetch` are here unsettled at a time. With `auto_ack` a message is acknowledged when the next one is
        asked for. `timeout_s` ends the iteration when nothing came for so long.

        A queue may have any number of consumers on one client: each but the first has a connection of its own.
        QueueNotFound where there is no queue, NotAQueue where there is a stream instead; `create` makes the queue, of a
        stream for good: it keeps what the stream's retention keeps, and has no limit of messages.

        >>> id = await client.publish("docs-async-consume", "hello")
        >>> async for message in client.consume("docs-async-consume"):
        ...     print(message.payload)
        ...     message.ack()
        ...     break
        hello
        """
        return AsyncConsumer(self._engine, queue, prefetch, auto_ack, create, timeout_s)

    async def subscribe(
        self,
        queue: str,
        handler: Handler,
        *,
        prefetch: int | None = None,
        create: bool = False,
        timeout_s: float | None = None,
    ) -> AsyncSubscription:
        """Calls the coroutine `handler` with each message, one after another: it returns = ack, it raises = nack.

        >>> seen = asyncio.Event()
        >>> async def handler(message):
        ...     seen.set()
        >>> subscription = await client.subscribe("docs-async-handled", handler, create=True)
        >>> id = await client.publish("docs-async-handled", "hello")
        >>> waited = await seen.wait()
        >>> await subscription.close()
        """
        consumer = AsyncConsumer(self._engine, queue, prefetch, False, create, None)
        await consumer.open(timeout_s)
        return AsyncSubscription(consumer, handler)

    async def move_messages(
        self,
        source: str,
        target: str | None = None,
        *,
        count: int | None = None,
        dry_run: bool = False,
        progress: Progress | None = None,
        timeout_s: float | None = None,
    ) -> Moved:
        """Moves the messages that wait in a queue to another, or without `target` dead letters to where they came from.

        vibemq.client.Client.move_messages explains the arguments.

        >>> await client.create_queue("docs-async-other")
        >>> id = await client.publish("docs-async-some", {"number": 1})
        >>> (await client.move_messages("docs-async-some", "docs-async-other")).total
        1
        """
        info = await self.queue_info(source, timeout_s=timeout_s)
        wanted = info.messages if count is None else min(count, info.messages)
        prefetch = min(DRY_RUN_COUNT_MAX if dry_run else PREFETCH_COUNT, info.raw.get("prefetchMax", DRY_RUN_COUNT_MAX))
        if dry_run:  # nothing that it looks at is acknowledged
            wanted = min(wanted, prefetch)
        mover = Mover(self._engine, source, target, prefetch, timeout_s)

        def consume() -> AsyncConsumer:
            consumer = AsyncConsumer(self._engine, source, prefetch, False, False, IDLE_S)
            consumer._feed.stored = True
            return consumer

        return await mover.run(consume, wanted, dry_run, progress)

    # ---- queues ----

    async def create_queue(
        self, name: str, options: QueueOptions | None = None, *, timeout_s: float | None = None, **changes: Any
    ) -> None:
        """Makes a queue; if there is one already, it stays as it is.

        >>> await client.create_queue("docs-async-new", mode="priority_based", max_messages=500)
        """
        wanted = QueueDeclaration(name, make_options(options, changes), declared=frozenset(changes))
        payload = options_payload(wanted)
        await self._engine.request(Command.CREATE_QUEUE, name, payload=payload, timeout_s=timeout_s)

    async def declare_queue(
        self,
        name: str,
        options: QueueOptions | None = None,
        *,
        on_conflict: OnConflict | str = OnConflict.IGNORE,
        timeout_s: float | None = None,
        **changes: Any,
    ) -> None:
        """Makes a queue, or compares what is declared with the one that is there; once more after each reconnect.

        >>> await client.declare_queue("docs-async-declared", max_messages=500, on_conflict="fail")
        """
        wanted = QueueDeclaration(name, make_options(options, changes), OnConflict(on_conflict), frozenset(changes))
        await self._engine.declare(wanted, wanted.on_conflict, timeout_s=timeout_s)
        kept = [other for other in self._engine.declarations if other.name != name]
        self._engine.declarations = [*kept, wanted]

    async def delete_queue(self, name: str, *, missing_ok: bool = False, timeout_s: float | None = None) -> None:
        """Deletes a queue with all its messages; QueueNotFound if there is none, unless `missing_ok`.

        >>> await client.create_queue("docs-async-short")
        >>> await client.delete_queue("docs-async-short")
        """
        self._engine.declarations = [other for other in self._engine.declarations if other.name != name]
        is_there = missing_ok or await self._engine.is_there(name, timeout_s)
        try:  # also if there is none: who may not is refused, whatever there is
            await self._engine.request(Command.DELETE_QUEUE, name, timeout_s=timeout_s)
        except QueueNotFound:
            is_there = missing_ok
        if not is_there:
            raise QueueNotFound(
                f"there is no queue {name} to delete",
                code=ErrorCode.QUEUE_NOT_FOUND.value,
                hint="Look at its name, or say missing_ok=True where it need not be there.",
            )

    async def purge_queue(self, name: str, *, timeout_s: float | None = None) -> None:
        """Drops the messages that wait in a queue. Only brokers of ours know how.

        >>> await client.create_queue("docs-async-purge")
        >>> await client.purge_queue("docs-async-purge")
        """
        await self._engine.ready(timeout_s, f"the command to purge queue {name}")
        if "purge" not in self._engine.features:
            raise InvalidRequest(
                f"{self._engine.settings.peer}: this broker cannot purge a queue",
                code=ErrorCode.UNKNOWN_COMMAND.value,
                hint="Delete the queue and create it again.",
            )
        await self._engine.request(Command.PURGE_QUEUE, name, timeout_s=timeout_s)

    async def alter_queue(self, name: str, *, timeout_s: float | None = None, **changes: Any) -> None:
        """Changes options of a queue that is there; its messages stay. Only brokers of ours know how.

        Options are the fields of QueueOptions but for `mode` and `durability`, which cannot change; what is not named
        stays as it is, and None is what the broker's configuration says. A smaller limit or time drops messages
        at once, so who may alter a queue is who may
        create and delete it.

        >>> await client.create_queue("docs-async-altered", max_messages=500)
        >>> await client.alter_queue("docs-async-altered", max_messages=700, overflow="block_publisher")
        """
        payload = changes_payload(changes)
        await self._engine.ready(timeout_s, f"the command to alter queue {name}")
        if "alter" not in self._engine.features:
            raise InvalidRequest(
                f"{self._engine.settings.peer}: this broker cannot alter a queue",
                code=ErrorCode.UNKNOWN_COMMAND.value,
                hint="Delete the queue and create it again; its messages are lost by that.",
            )
        await self._engine.request(Command.ALTER_QUEUE, name, payload=payload, timeout_s=timeout_s)

    async def queue_info(self, name: str, *, timeout_s: float | None = None) -> QueueInfo:
        """How many messages are in a queue, and its options. QueueNotFound if there is none.

        >>> await client.create_queue("docs-async-info", max_messages=7)
        >>> info = await client.queue_info("docs-async-info")
        >>> info.messages, info.options.max_messages
        (0, 7)
        """
        info = await self._engine.find_queue(name, timeout_s=timeout_s)
        if info is None:
            raise QueueNotFound(
                f"{self._engine.settings.peer}: there is no queue {name}",
                code=ErrorCode.QUEUE_NOT_FOUND.value,
                hint="`vibemq queues list` shows all.",
            )
        return info

    async def list_queues(self, *, timeout_s: float | None = None) -> list[str]:
        """The names of the queues that the user may see.

        >>> await client.create_queue("docs-async-listed")
        >>> "docs-async-listed" in await client.list_queues()
        True
        """
        return names_of((await self._engine.request(Command.LIST_QUEUES, timeout_s=timeout_s)).payload)

    # ---- users; brokers answer these while authorization is on, and mostly to superusers ----

    async def _users(self, command: Command, timeout_s: float | None, **members: Any) -> bytes | None:
        payload = msgspec.json.encode(members)
        return (await self._engine.request(command, payload=payload, timeout_s=timeout_s)).payload

    async def create_user(self, name: str, password: str, *, timeout_s: float | None = None) -> None:
        """Makes a user, who may do nothing until something is granted.

        >>> await client.create_user("docs-ada", "lovelace 1843")  # doctest: +SKIP
        """
        await self._users(Command.ADMIN_CREATE_USER, timeout_s, username=name, password=password)

    async def delete_user(self, name: str, *, timeout_s: float | None = None) -> None:
        """Removes a user and what was granted.

        >>> await client.delete_user("docs-ada")  # doctest: +SKIP
        """
        await self._users(Command.ADMIN_DELETE_USER, timeout_s, username=name)

    async def change_password(self, name: str, password: str, *, timeout_s: float | None = None) -> None:
        """Gives a user another password.

        >>> await client.change_password("docs-ada", "babbage 1791")  # doctest: +SKIP
        """
        await self._users(Command.ADMIN_CHANGE_PASSWORD, timeout_s, username=name, newPassword=password)

    async def grant(
        self, name: str, pattern: str, *operations: str | QueueOperation, timeout_s: float | None = None
    ) -> None:
        """Lets a user do these operations with the queues that the pattern matches; replaces what it said before.

        >>> await client.grant("docs-ada", "orders.*", "Publish", "Subscribe")  # doctest: +SKIP
        """
        members = {"username": name, "queuePattern": pattern, "operations": operation_names(operations)}
        await self._users(Command.ADMIN_GRANT_PERMISSION, timeout_s, **members)

    async def revoke(self, name: str, pattern: str, *, timeout_s: float | None = None) -> None:
        """Takes back what was granted by exactly this pattern.

        >>> await client.revoke("docs-ada", "orders.*")  # doctest: +SKIP
        """
        await self._users(Command.ADMIN_REVOKE_PERMISSION, timeout_s, username=name, queuePattern=pattern)

    async def list_users(self, *, timeout_s: float | None = None) -> list[User]:
        """All users, by name.

        >>> [user.name for user in await client.list_users()]  # doctest: +SKIP
        ['docs-ada', 'vibemq']
        """
        return users_of((await self._engine.request(Command.ADMIN_LIST_USERS, timeout_s=timeout_s)).payload)

    async def permissions(self, name: str, *, timeout_s: float | None = None) -> list[Permission]:
        """What a user may do.

        >>> await client.permissions("docs-ada")  # doctest: +SKIP
        [Permission(pattern='orders.*', operations=('Publish', 'Subscribe'))]
        """
        return permissions_of(await self._users(Command.ADMIN_GET_USER_PERMISSIONS, timeout_s, username=name))


class AsyncPublisher(PublisherFace):
    """Publishes to one queue, pipelined; made by AsyncClient.publisher. Leaving `async with` flushes."""

    def __init__(self, engine: Engine, queue: str, window: int, raw: bool, flow: Flow) -> None:
        super().__init__(engine, queue, window, raw, flow)
        self._soon: asyncio.Handle | None = None

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

    async def flush(self, timeout_s: float | None = None) -> Summary:
        """Waits until every message is acknowledged or refused: what happened since the last flush.

        PublishTimeout, which says what may be stored, when nothing was acknowledged for timeout_s.

        >>> await client.publisher("docs-async").flush()
        Summary(published=0, failed=[])
        """
        self._engine.submit(self._take(), self._flow)
        await self._engine.room(self._flow, 0, timeout_s)
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
        self,
        engine: Engine,
        queue: str,
        prefetch: int | None,
        auto_ack: bool,
        create: bool,
        timeout_s: float | None,
    ) -> None:
        super().__init__(queue, auto_ack, timeout_s)
        self._engine = engine
        self._feed = Feed(queue, prefetch, create, self._arrived, self._ended)
        self._news = asyncio.Event()
        self._why: VibeMQError | None = None

    async def open(self, timeout_s: float | None = None) -> None:
        """Subscribes now.

        >>> consumer = client.consume("docs-async")
        >>> await consumer.open()
        >>> await consumer.close()
        """
        await self._engine.subscriptions.add(self._feed, timeout_s)
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
        await self._engine.subscriptions.remove(self._feed, timeout_s)

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
            self._engine.subscriptions.abandon(self._feed)


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

    async def close(self, timeout_s: float | None = None) -> None:
        """Unsubscribes once the message at hand is done, however long that takes; timeout_s is for the broker's answer.

        >>> subscription = await client.subscribe("docs-async", print)
        >>> await subscription.close()
        """
        self._consumer.stop()
        if asyncio.current_task() is not self._task:
            await self._task
        await self._consumer.close(timeout_s)
