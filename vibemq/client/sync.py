# SPDX-License-Identifier: Apache-2.0
"""The native client for programs without asyncio.

    with vibemq.client.connect("vibemq://localhost:2925") as client:
        client.publish("orders", {"number": 1})
        for message in client.consume("orders"):
            print(message.payload)
            message.ack()

It is an AsyncClient whose event loop runs in a thread of its own, so pings and reconnects go on whatever the caller
does. Any number of threads may use a Client. Payloads become frames in the thread that has them; the loop is woken once
for a batch. Handlers of `subscribe` run in a thread for each subscription, and may use the client.

The examples below have a `client` that is connected.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import threading
import warnings
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

from vibemq.client import publishing
from vibemq.client._engine import GOODBYE_TIMEOUT_S, Engine, StateCallback
from vibemq.client._moving import Moved, Progress
from vibemq.client._outgoing import Batch, Flow
from vibemq.client.aio import ClientFace, Connecting
from vibemq.client.consuming import Consumer, Handler, Subscription
from vibemq.client.publishing import WINDOW_DEFAULT, Headers, Priority, Publisher, Summary
from vibemq.client.queues import OnConflict, Permission, QueueDeclaration, QueueInfo, QueueOptions, User
from vibemq.client.settings import parse
from vibemq.errors import UserError
from vibemq.protocols.native.spec import QueueOperation

log = logging.getLogger("vibemq.client")
T = TypeVar("T")

STOP_TIMEOUT_S = 10.0  # longer than the engine takes for its goodbye


def connect(
    url: str = "vibemq://localhost",
    *,
    declare: Iterable[QueueDeclaration] = (),
    fail_on_provisioning_error: bool = True,
    on_connection: StateCallback | None = None,
    timeout_s: float | None = None,
    **settings: Any,
) -> Client:
    """A Client for the broker at `url`: `vibemq://user:password@host:port/?key=value` or `Host=...;Port=...`.

    declare: queues that are to be there, now and after each reconnect. fail_on_provisioning_error: False logs where
    that fails. on_connection: called with (state, error or None) whenever the connection comes or goes, from a thread
    of the client, in which it may not use the client. timeout_s: for the connection, and once more for the login; short
    for connect_timeout_s. settings: fields of vibemq.client.Settings, which win over the url: keep_alive_s=5,
    reconnect=False and so on.

    Every call of a client takes timeout_s, in seconds (math.inf: for ever); the default is command_timeout_s, 10. When
    it is over, TimeoutExceeded says whether what was asked for may have been done; of messages, PublishTimeout.

    >>> from vibemq.client import connect
    >>> with connect("vibemq://localhost:2925/?keepAlive=15") as other:
    ...     print(other.state.value)
    connected
    """
    if timeout_s is not None:
        settings["connect_timeout_s"] = timeout_s
    return Client(
        parse(url, **settings),
        declare=declare,
        fail_on_provisioning_error=fail_on_provisioning_error,
        on_connection=on_connection,
    )


def _run(loop: asyncio.AbstractEventLoop) -> None:
    """The client's thread. It knows nothing of the client, so that one which nobody has any more can be told."""
    try:
        loop.run_forever()
    finally:
        loop.close()


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


def _finish(loop: asyncio.AbstractEventLoop, engine: Engine) -> None:
    """In that thread: says goodbye for a client that was not closed, and ends."""

    async def close() -> None:
        await engine.close(0.0)
        await _cancel_others()
        loop.stop()

    loop.finishing = loop.create_task(close())  # type: ignore[attr-defined] # a loop keeps no task alive


class Client(ClientFace):
    """A client that is connected, and connects again by itself. Made by `connect`."""

    def __init__(self, settings: Any, **options: Any) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=_run, args=(self._loop,), name="vibemq client", daemon=True)
        self._thread.start()
        try:
            self._inner = self._call(Connecting(settings, options).open())
        except BaseException:
            self._stop()
            raise
        self._inner.must_be_closed = False  # this one must
        super().__init__(self._inner._engine)

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        """Has the loop do it, and waits."""
        if threading.current_thread() is self._thread:
            work.close()
            raise UserError(
                "the client was used in its own thread", hint="on_connection may not wait for the client: hand it on."
            )
        if self._loop.is_closed():
            work.close()
            raise self._engine.failure()
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except concurrent.futures.CancelledError:  # by another thread's close()
            raise self._engine.failure() from None
        except BaseException:
            future.cancel()  # Ctrl-C: nobody waits any longer
            raise

    def _stop(self) -> None:
        async def stop() -> None:
            await _cancel_others()  # other threads wait for them
            self._loop.stop()

        asyncio.run_coroutine_threadsafe(stop(), self._loop)
        self._thread.join(STOP_TIMEOUT_S)
        if not self._thread.is_alive():
            self._loop.close()

    def close(self, timeout_s: float = GOODBYE_TIMEOUT_S) -> None:
        """Says goodbye and ends the client's thread. Consumers end; what is not settled goes back to its queue.

        A broker that does not take our last bytes is waited for timeout_s.

        >>> other = connect("vibemq://localhost:2925")
        >>> other.close()
        """
        if self._loop.is_closed():
            return
        self._call(self._inner.close(timeout_s))
        self._stop()

    def __del__(self, warn: Callable[..., None] = warnings.warn) -> None:
        if "_engine" not in self.__dict__ or self._loop.is_closed():
            return
        warn(f"unclosed {self!r} of {self._engine.settings.peer}", ResourceWarning, source=self)
        with contextlib.suppress(RuntimeError):  # its thread was quicker
            self._loop.call_soon_threadsafe(_finish, self._loop, self._engine)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.close()

    # ---- publishing ----

    def publish(
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

        >>> id = client.publish("docs", {"number": 1}, headers={"source": "docs"}, priority="high")
        >>> client.publish("docs", '{"number": 2}', id="order-2", raw=True)
        'order-2'
        """
        return self._call(
            self._inner.publish(queue, payload, headers=headers, id=id, priority=priority, raw=raw, timeout_s=timeout_s)
        )

    def publish_many(
        self,
        queue: str,
        payloads: Iterable[Any],
        *,
        window: int = WINDOW_DEFAULT,
        headers: Headers = None,
        priority: Priority = None,
        raw: bool = False,
        timeout_s: float | None = None,
    ) -> Summary:
        """Publishes all of them, with at most `window` messages on their way; waits until the broker has them.

        PublishTimeout when none of them is acknowledged for timeout_s; those that were are stored.

        >>> summary = client.publish_many("docs", ({"number": n} for n in range(100)))
        >>> summary.published, summary.failed
        (100, [])
        """
        flow, fields, count = Flow(), publishing.fields_of(headers, priority), publishing.batch_count(window)
        iterator, more = iter(payloads), True
        try:
            while more:
                batch = Batch(self._engine.core, queue)
                more = batch.extend(iterator, count, fields, raw)
                self._call(self._engine.send_batch(batch, flow, window, timeout_s))
            self._call(self._engine.room(flow, 0, timeout_s))
        except BaseException:
            self._engine.forget(flow)
            raise
        return publishing.summary(flow, queue)

    def publisher(
        self, queue: str, *, window: int = WINDOW_DEFAULT, raw: bool = False, stored: bool = False
    ) -> Publisher:
        """An object whose `publish` does not wait for the broker, but for room in the window.

        With `stored` a payload is a whole message in bytes, as a queue keeps it (AMQP 1.0), with its id and headers.

        >>> with client.publisher("docs") as publisher:
        ...     for number in range(10):
        ...         publisher.publish({"number": number})
        ...     print(publisher.flush().published)
        10
        """
        return Publisher(self._call, self._engine, queue, window, raw or stored, stored)

    # ---- consuming ----

    def consume(
        self,
        queue: str,
        *,
        prefetch: int | None = None,
        auto_ack: bool = False,
        create: bool = False,
        timeout_s: float | None = None,
    ) -> Consumer:
        """The messages of a queue, one after another, without an end; each is to be settled with its ack or nack.

        At most `prefetch` are here unsettled at a time. With `auto_ack` a message is acknowledged when the next one is
        asked for. `timeout_s` ends the iteration when nothing came for so long.

        A queue may have any number of consumers on one client: each but the first has a connection of its own.
        QueueNotFound where there is no queue, NotAQueue where there is a stream instead; `create` makes the queue, of a
        stream for good: it keeps what the stream's retention keeps, and has no limit of messages.

        >>> id = client.publish("docs-consume", {"number": 1})
        >>> for message in client.consume("docs-consume"):
        ...     print(message.payload, message.attempts)
        ...     message.ack()
        ...     break
        {'number': 1} 1
        """
        return Consumer(self._call, self._engine, queue, prefetch, auto_ack, create, timeout_s)

    def subscribe(
        self,
        queue: str,
        handler: Handler,
        *,
        prefetch: int | None = None,
        create: bool = False,
        timeout_s: float | None = None,
    ) -> Subscription:
        """Calls `handler` with each message, one after another, in a thread: it returns = ack, it raises = nack.

        >>> import threading
        >>> seen = threading.Event()
        >>> subscription = client.subscribe("docs-handled", lambda message: seen.set(), create=True)
        >>> id = client.publish("docs-handled", "hello")
        >>> seen.wait(10)
        True
        >>> subscription.close()
        """
        return Subscription(self.consume(queue, prefetch=prefetch, create=create), handler, timeout_s)

    def move_messages(
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
        `progress` is called with (how many so far, of how many) in a thread of the client. timeout_s is for each wait.
        If the program ends in between, some may be in both queues.

        >>> client.create_queue("docs-failing", dead_letter=True, attempts_max=1)
        >>> id = client.publish("docs-failing", {"number": 1})
        >>> with client.consume("docs-failing") as consumer:
        ...     next(consumer).nack()
        >>> with client.consume("docs-failing.dlq", create=True) as consumer:
        ...     number = next(consumer).payload["number"]
        >>> client.move_messages("docs-failing.dlq")
        Moved(queues={'docs-failing': 1}, left=0)
        """
        return self._call(
            self._inner.move_messages(
                source, target, count=count, dry_run=dry_run, progress=progress, timeout_s=timeout_s
            )
        )

    # ---- queues ----

    def create_queue(
        self, name: str, options: QueueOptions | None = None, *, timeout_s: float | None = None, **changes: Any
    ) -> None:
        """Makes a queue; if there is one already, it stays as it is. Options are the fields of QueueOptions.

        >>> client.create_queue("docs-new", mode="priority_based", max_messages=500, message_ttl_ms=60_000)
        """
        self._call(self._inner.create_queue(name, options, timeout_s=timeout_s, **changes))

    def declare_queue(
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

        >>> client.declare_queue("docs-declared", max_messages=500, on_conflict="fail")
        """
        self._call(self._inner.declare_queue(name, options, on_conflict=on_conflict, timeout_s=timeout_s, **changes))

    def delete_queue(self, name: str, *, missing_ok: bool = False, timeout_s: float | None = None) -> None:
        """Deletes a queue with all its messages; QueueNotFound if there is none, unless `missing_ok`.

        >>> client.create_queue("docs-short")
        >>> client.delete_queue("docs-short")
        """
        self._call(self._inner.delete_queue(name, missing_ok=missing_ok, timeout_s=timeout_s))

    def purge_queue(self, name: str, *, timeout_s: float | None = None) -> None:
        """Drops the messages that wait in a queue. Only brokers of ours know how.

        >>> client.create_queue("docs-purge")
        >>> client.purge_queue("docs-purge")
        """
        self._call(self._inner.purge_queue(name, timeout_s=timeout_s))

    def alter_queue(self, name: str, *, timeout_s: float | None = None, **changes: Any) -> None:
        """Changes options of a queue that is there; its messages stay. Only brokers of ours know how.

        Options are the fields of QueueOptions but for `mode` and `durability`, which cannot change; what is not named
        stays as it is, and None is what the broker's configuration says. A smaller limit or time drops messages at
        once, so who may alter a queue is who may create and delete it.

        >>> client.create_queue("docs-altered", max_messages=500)
        >>> client.alter_queue("docs-altered", max_messages=700, overflow="block_publisher")
        >>> client.queue_info("docs-altered").options.max_messages
        700
        """
        self._call(self._inner.alter_queue(name, timeout_s=timeout_s, **changes))

    def queue_info(self, name: str, *, timeout_s: float | None = None) -> QueueInfo:
        """How many messages are in a queue, and its options. QueueNotFound if there is none.

        >>> client.create_queue("docs-info", max_messages=7)
        >>> info = client.queue_info("docs-info")
        >>> info.messages, info.options.max_messages
        (0, 7)
        """
        return self._call(self._inner.queue_info(name, timeout_s=timeout_s))

    def list_queues(self, *, timeout_s: float | None = None) -> list[str]:
        """The names of the queues that the user may see.

        >>> client.create_queue("docs-listed")
        >>> "docs-listed" in client.list_queues()
        True
        """
        return self._call(self._inner.list_queues(timeout_s=timeout_s))

    # ---- users; brokers answer these while authorization is on, and mostly to superusers ----

    def create_user(self, name: str, password: str, *, timeout_s: float | None = None) -> None:
        """Makes a user, who may do nothing until something is granted.

        >>> client.create_user("docs-ada", "lovelace 1843")  # doctest: +SKIP
        """
        self._call(self._inner.create_user(name, password, timeout_s=timeout_s))

    def delete_user(self, name: str, *, timeout_s: float | None = None) -> None:
        """Removes a user and what was granted.

        >>> client.delete_user("docs-ada")  # doctest: +SKIP
        """
        self._call(self._inner.delete_user(name, timeout_s=timeout_s))

    def change_password(self, name: str, password: str, *, timeout_s: float | None = None) -> None:
        """Gives a user another password.

        >>> client.change_password("docs-ada", "babbage 1791")  # doctest: +SKIP
        """
        self._call(self._inner.change_password(name, password, timeout_s=timeout_s))

    def grant(self, name: str, pattern: str, *operations: str | QueueOperation, timeout_s: float | None = None) -> None:
        """Lets a user do these operations with the queues that the pattern matches; replaces what it said before.

        >>> client.grant("docs-ada", "orders.*", "Publish", "Subscribe")  # doctest: +SKIP
        """
        self._call(self._inner.grant(name, pattern, *operations, timeout_s=timeout_s))

    def revoke(self, name: str, pattern: str, *, timeout_s: float | None = None) -> None:
        """Takes back what was granted by exactly this pattern.

        >>> client.revoke("docs-ada", "orders.*")  # doctest: +SKIP
        """
        self._call(self._inner.revoke(name, pattern, timeout_s=timeout_s))

    def list_users(self, *, timeout_s: float | None = None) -> list[User]:
        """All users, by name.

        >>> [user.name for user in client.list_users()]  # doctest: +SKIP
        ['docs-ada', 'vibemq']
        """
        return self._call(self._inner.list_users(timeout_s=timeout_s))

    def permissions(self, name: str, *, timeout_s: float | None = None) -> list[Permission]:
        """What a user may do.

        >>> client.permissions("docs-ada")  # doctest: +SKIP
        [Permission(pattern='orders.*', operations=('Publish', 'Subscribe'))]
        """
        return self._call(self._inner.permissions(name, timeout_s=timeout_s))
