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

import warnings
from collections.abc import AsyncIterable, Callable, Generator, Iterable
from contextlib import AbstractAsyncContextManager
from typing import Any

import msgspec

from vibemq.client import publishing, queues
from vibemq.client._engine import GOODBYE_TIMEOUT_S, Engine, State, StateCallback
from vibemq.client._moving import Moved, Mover, Progress
from vibemq.client._native import Batch
from vibemq.client.consuming import AsyncConsumer, AsyncHandler, AsyncSubscription
from vibemq.client.publishing import WINDOW_DEFAULT, AsyncPublisher, Headers, Priority, Summary
from vibemq.client.queues import OnConflict, Permission, QueueDeclaration, QueueInfo, QueueOptions, User
from vibemq.client.settings import Settings, parse
from vibemq.errors import QueueNotFound, VibeMQError
from vibemq.protocols.native.spec import FORM_STORED, Command, QueueOperation


class ClientFace:
    """What a client knows about its connection."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @property
    def state(self) -> State:
        """Whether there is a connection now; publishing works without one too, and waits.

        >>> client.state.value
        'connected'
        """
        return self._engine.state

    @property
    def server_version(self) -> str:
        """What the broker says that it is; empty where it does not.

        >>> version = client.server_version
        """
        return self._engine.server_version

    @property
    def gives_stored(self) -> bool:
        """Whether the broker hands out and takes messages as they are stored, as brokers of ours do.

        >>> client.gives_stored
        True
        """
        return FORM_STORED in self._engine.features


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


class AsyncClient(ClientFace, AbstractAsyncContextManager["AsyncClient"]):
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

    async def __aexit__(self, *_: object) -> None:
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
        What the broker refuses is raised: QueueFull, QueueNotFound, NotAuthorized and others of RequestFailed.
        PublishTimeout, which says whether it may be stored, when the broker has not taken it in timeout_s.

        >>> id = await client.publish("docs-async", {"number": 1}, headers={"source": "docs"}, priority="high")
        >>> await client.publish("docs-async", '{"number": 2}', id="order-2", raw=True)
        'order-2'
        """
        batch = Batch(self._engine.core, queue)
        batch.add(payload, publishing.fields_of(headers, priority), raw, id)
        with self._engine.flow() as flow:
            self._engine.submit(batch, flow)
            await self._engine.room(flow, 0, timeout_s)
        publishing.summary(flow, queue).raise_failed()
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
        if isinstance(payloads, AsyncIterable):
            async with AsyncPublisher(self._engine, queue, window, raw) as publisher:
                async for payload in payloads:
                    await publisher.publish(payload, headers=headers, priority=priority, timeout_s=timeout_s)
                return await publisher.flush(timeout_s)
        with self._engine.flow() as flow:
            for batch in publishing.batches(self._engine.core, queue, payloads, window, headers, priority, raw):
                await self._engine.send_batch(batch, flow, window, timeout_s)
            await self._engine.room(flow, 0, timeout_s)
        return publishing.summary(flow, queue)

    def publisher(self, queue: str, *, window: int = WINDOW_DEFAULT, raw: bool = False) -> AsyncPublisher:
        """An object whose `publish` does not wait for the broker, but for room in the window.

        >>> async with client.publisher("docs-async") as publisher:
        ...     for number in range(10):
        ...         await publisher.publish({"number": number})
        ...     summary = await publisher.flush()
        >>> summary.published
        10
        """
        return AsyncPublisher(self._engine, queue, window, raw)

    # ---- consuming ----

    def consume(
        self,
        queue: str,
        *,
        prefetch: int | None = None,
        auto_ack: bool = False,
        create: bool = False,
        timeout_s: float | None = None,
        subscriber: str = "",
        subscriber_ttl_s: int = 0,
    ) -> AsyncConsumer:
        """The messages of a queue, one after another, without an end; each is to be settled with its ack or nack.

        At most `prefetch` are here unsettled at a time. With `auto_ack` a message is acknowledged when the next one is
        asked for. `timeout_s` ends the iteration when nothing came for so long.

        A queue may have any number of consumers on one client: each but the first has a connection of its own.
        QueueNotFound where there is no queue, NotAQueue where there is a stream instead; `create` makes the queue, of a
        stream for good: it keeps what the stream's retention keeps, and has no limit of messages.

        `subscriber` names the consumer as a member of a fan-out queue. Its copies then wait for that name when the
        connection is lost, and for `subscriber_ttl_s` seconds the queue collects further copies for it.

        >>> id = await client.publish("docs-async-consume", "hello")
        >>> async for message in client.consume("docs-async-consume"):
        ...     print(message.payload)
        ...     message.ack()
        ...     break
        hello
        """
        return AsyncConsumer(
            self._engine, queue, prefetch, auto_ack, create, timeout_s,
            subscriber=subscriber, subscriber_ttl_s=subscriber_ttl_s,
        )  # fmt: skip

    async def subscribe(
        self,
        queue: str,
        handler: AsyncHandler,
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

        They go as they are stored, with id, headers, priority and content type; where from, a dead letter's header
        x-original-queue says. Each is acknowledged when its new queue has confirmed it. At most `count`; with `dry_run`
        it only says how many would go where, of the first 10,000 (or what the broker's queues.prefetch_max allows).
        `progress` is called with (how many so far, of how many), of a Client in a thread of its own. timeout_s is for
        each wait. A lost connection doubles none. If the program ends meanwhile, at most 320 are in both queues.

        >>> await client.create_queue("docs-async-failing", dead_letter=True, attempts_max=1)
        >>> id = await client.publish("docs-async-failing", {"number": 1})
        >>> async with client.consume("docs-async-failing") as consumer:
        ...     message = await anext(consumer)
        ...     message.nack()
        >>> async with client.consume("docs-async-failing.dlq", create=True) as consumer:
        ...     message = await anext(consumer)
        >>> await client.move_messages("docs-async-failing.dlq")
        Moved(queues={'docs-async-failing': 1}, left=0)
        """
        info = await self.queue_info(source, timeout_s=timeout_s)
        return await Mover(self._engine, info, target, dry_run, timeout_s).run(count, progress)

    # ---- queues ----

    async def create_queue(
        self, name: str, options: QueueOptions | None = None, *, timeout_s: float | None = None, **changes: Any
    ) -> None:
        """Makes a queue; if there is one already, it stays as it is. Options are the fields of QueueOptions.

        >>> await client.create_queue("docs-async-new", mode="priority_based", max_messages=500, message_ttl_ms=60_000)
        """
        wanted = QueueDeclaration(name, queues.make_options(options, changes), declared=frozenset(changes))
        payload = queues.options_payload(wanted)
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
        """Makes a queue, or compares the one that is there; it is declared again after each reconnect.

        Compared is what is given by name, and what in `options` is not the default. Where the queue is otherwise,
        "ignore" logs that, "fail" raises QueueConflict, "override" deletes the queue with its messages and makes it
        anew; what is not given is then the default.

        >>> await client.declare_queue("docs-async-declared", max_messages=500, on_conflict="fail")
        """
        engine, made = self._engine, queues.make_options(options, changes)
        wanted = QueueDeclaration(name, made, OnConflict(on_conflict), frozenset(changes))
        await queues.declare(
            engine.request, wanted, wanted.on_conflict, is_ours=bool(engine.features), timeout_s=timeout_s
        )
        engine.declarations = [*(other for other in engine.declarations if other.name != name), wanted]

    async def delete_queue(self, name: str, *, missing_ok: bool = False, timeout_s: float | None = None) -> None:
        """Deletes a queue with all its messages; QueueNotFound if there is none, unless `missing_ok`.

        >>> await client.create_queue("docs-async-short")
        >>> await client.delete_queue("docs-async-short")
        """
        self._engine.declarations = [other for other in self._engine.declarations if other.name != name]
        found = missing_ok or await queues.is_there(self._engine.request, name, timeout_s)
        try:  # also if there is none: who may not is refused, whatever there is
            await self._engine.request(Command.DELETE_QUEUE, name, timeout_s=timeout_s)
        except QueueNotFound:
            found = missing_ok
        if not found:
            hint = "Look at its name, or say missing_ok=True where it need not be there."
            raise queues.no_such_queue(f"{self._engine.settings.peer}: there is no queue {name} to delete", hint)

    async def purge_queue(self, name: str, *, timeout_s: float | None = None) -> None:
        """Drops the messages that wait in a queue. Only brokers of ours know how.

        >>> await client.create_queue("docs-async-purge")
        >>> await client.purge_queue("docs-async-purge")
        """
        await self._engine.ready(timeout_s, f"the command to purge queue {name}")
        self._engine.need("purge", "cannot purge a queue", "Consume and acknowledge its messages.")
        await self._engine.request(Command.PURGE_QUEUE, name, timeout_s=timeout_s)

    async def alter_queue(self, name: str, *, timeout_s: float | None = None, **changes: Any) -> None:
        """Changes options of a queue that is there; its messages stay. Only brokers of ours know how.

        Options are the fields of QueueOptions but for `mode` and `durability`, which cannot change; what is not named
        stays as it is, and None is what the broker's configuration says. A smaller limit or time drops messages at
        once, so who may alter a queue is who may create and delete it.

        >>> await client.create_queue("docs-async-altered", max_messages=500)
        >>> await client.alter_queue("docs-async-altered", max_messages=700, overflow="block_publisher")
        >>> info = await client.queue_info("docs-async-altered")
        >>> info.options.max_messages
        700
        """
        payload = queues.changes_payload(changes)
        await self._engine.ready(timeout_s, f"the command to alter queue {name}")
        hint = "Create another queue with these options, and move the messages there."
        self._engine.need("alter", "cannot alter a queue", hint)
        await self._engine.request(Command.ALTER_QUEUE, name, payload=payload, timeout_s=timeout_s)

    async def queue_info(self, name: str, *, timeout_s: float | None = None) -> QueueInfo:
        """How many messages are in a queue, and its options. QueueNotFound if there is none.

        >>> await client.create_queue("docs-async-info", max_messages=7)
        >>> info = await client.queue_info("docs-async-info")
        >>> info.messages, info.options.max_messages
        (0, 7)
        """
        info = await queues.find_queue(self._engine.request, name, timeout_s)
        if info is None:
            told = f"{self._engine.settings.peer}: there is no queue {name}"
            raise queues.no_such_queue(told, "`vibemq queues list` shows all.")
        return info

    async def list_queues(self, *, timeout_s: float | None = None) -> list[str]:
        """The names of the queues that the user may see.

        >>> await client.create_queue("docs-async-listed")
        >>> "docs-async-listed" in await client.list_queues()
        True
        """
        return queues.list_of(str, (await self._engine.request(Command.LIST_QUEUES, timeout_s=timeout_s)).payload)

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
        members = {"username": name, "queuePattern": pattern, "operations": queues.operation_names(operations)}
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
        return queues.list_of(User, (await self._engine.request(Command.ADMIN_LIST_USERS, timeout_s=timeout_s)).payload)

    async def permissions(self, name: str, *, timeout_s: float | None = None) -> list[Permission]:
        """What a user may do.

        >>> await client.permissions("docs-ada")  # doctest: +SKIP
        [Permission(pattern='orders.*', operations=('Publish', 'Subscribe'))]
        """
        return queues.list_of(
            Permission, await self._users(Command.ADMIN_GET_USER_PERMISSIONS, timeout_s, username=name)
        )
