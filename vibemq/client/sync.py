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
import functools
import threading
import warnings
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Concatenate, ParamSpec, TypeVar

from vibemq.client import publishing
from vibemq.client._engine import GOODBYE_TIMEOUT_S, Engine, StateCallback
from vibemq.client.aio import AsyncClient, ClientFace, Connecting, aconnect
from vibemq.client.consuming import Consumer, Handler, Subscription
from vibemq.client.publishing import WINDOW_DEFAULT, Headers, Priority, Publisher, Summary, told_as
from vibemq.client.queues import QueueDeclaration
from vibemq.errors import UserError

P = ParamSpec("P")
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
    connecting = aconnect(
        url,
        declare=declare,
        fail_on_provisioning_error=fail_on_provisioning_error,
        on_connection=on_connection,
        timeout_s=timeout_s,
        **settings,
    )
    return Client(connecting)


def _run(loop: asyncio.AbstractEventLoop) -> None:
    """The client's thread. It knows nothing of the client, so that one which nobody has any more can be told."""
    try:
        loop.run_forever()
    finally:
        loop.close()


async def _stop(loop: asyncio.AbstractEventLoop, engine: Engine | None = None) -> None:
    """In that thread: ends it, with a goodbye for a client that was not closed."""
    if engine is not None:
        await engine.close(0.0)
    others = asyncio.all_tasks() - {asyncio.current_task()}  # other threads wait for them
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    loop.stop()


def _finish(loop: asyncio.AbstractEventLoop, engine: Engine) -> None:
    loop.finishing = loop.create_task(_stop(loop, engine))  # type: ignore[attr-defined] # a loop keeps no task alive


def _blocking(
    method: Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Client, P], T]:
    """The method of an AsyncClient for whoever waits; its examples, too."""

    def wait(self: Client, /, *arguments: P.args, **options: P.kwargs) -> T:
        return self._call(method(self._inner, *arguments, **options))

    functools.update_wrapper(wait, method)
    wait.__module__, wait.__qualname__ = __name__, f"Client.{method.__name__}"
    return told_as(method)(wait)


class Client(ClientFace, contextlib.AbstractContextManager["Client"]):
    """A client that is connected, and connects again by itself. Made by `connect`."""

    def __init__(self, connecting: Connecting) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=_run, args=(self._loop,), name="vibemq client", daemon=True)
        self._thread.start()
        try:
            self._inner = self._call(connecting.open())
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
        asyncio.run_coroutine_threadsafe(_stop(self._loop), self._loop)
        self._thread.join(STOP_TIMEOUT_S)

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

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- publishing ----

    publish = _blocking(AsyncClient.publish)

    @told_as(AsyncClient.publish_many)
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
        with self._engine.flow() as flow:
            for batch in publishing.batches(self._engine.core, queue, payloads, window, headers, priority, raw):
                self._call(self._engine.send_batch(batch, flow, window, timeout_s))
            self._call(self._engine.room(flow, 0, timeout_s))
        return publishing.summary(flow, queue)

    @told_as(
        AsyncClient.publisher,
        "With `stored` a payload is a whole message in bytes, as a queue keeps it (AMQP 1.0), with its id and headers.",
    )
    def publisher(
        self, queue: str, *, window: int = WINDOW_DEFAULT, raw: bool = False, stored: bool = False
    ) -> Publisher:
        return Publisher(self._call, self._engine, queue, window, raw or stored, stored)

    # ---- consuming ----

    @told_as(
        AsyncClient.consume,
        "With `stored`, which brokers of ours know (gives_stored), `raw` is a whole message as its queue keeps it, in "
        "AMQP 1.0.",
    )
    def consume(
        self,
        queue: str,
        *,
        prefetch: int | None = None,
        auto_ack: bool = False,
        create: bool = False,
        stored: bool = False,
        timeout_s: float | None = None,
        subscriber: str = "",
        subscriber_ttl_s: int = 0,
    ) -> Consumer:
        return Consumer(
            self._call, self._engine, queue, prefetch, auto_ack, create, timeout_s, stored, subscriber, subscriber_ttl_s
        )

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

    move_messages = _blocking(AsyncClient.move_messages)

    # ---- queues ----

    create_queue = _blocking(AsyncClient.create_queue)
    declare_queue = _blocking(AsyncClient.declare_queue)
    delete_queue = _blocking(AsyncClient.delete_queue)
    purge_queue = _blocking(AsyncClient.purge_queue)
    alter_queue = _blocking(AsyncClient.alter_queue)
    queue_info = _blocking(AsyncClient.queue_info)
    list_queues = _blocking(AsyncClient.list_queues)

    # ---- users; brokers answer these while authorization is on, and mostly to superusers ----

    create_user = _blocking(AsyncClient.create_user)
    delete_user = _blocking(AsyncClient.delete_user)
    change_password = _blocking(AsyncClient.change_password)
    grant = _blocking(AsyncClient.grant)
    revoke = _blocking(AsyncClient.revoke)
    list_users = _blocking(AsyncClient.list_users)
    permissions = _blocking(AsyncClient.permissions)
