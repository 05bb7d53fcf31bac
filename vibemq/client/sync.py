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
import logging
import queue as queues
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator
from types import TracebackType
from typing import Any, TypeVar

from vibemq.client._engine import State, StateCallback
from vibemq.client._faces import ClientFace, ConsumerFace, PublisherFace
from vibemq.client._link import Feed
from vibemq.client._native import Message
from vibemq.client._outgoing import Batch, Flow
from vibemq.client.aio import Connecting
from vibemq.client.publishing import WINDOW_DEFAULT, Headers, Priority, Summary, batch_count, fields_of, summary
from vibemq.client.queues import OnConflict, Permission, QueueDeclaration, QueueInfo, QueueOptions, User
from vibemq.client.settings import parse
from vibemq.errors import UserError, VibeMQError
from vibemq.protocols.native.spec import QueueOperation

log = logging.getLogger("vibemq.client")
T = TypeVar("T")

LINGER_S = 0.002  # how long a publisher's batch that is not full waits for more
STOP_TIMEOUT_S = 10.0  # longer than the engine takes for its goodbye

Handler = Callable[[Message], object]


def connect(
    url: str = "vibemq://localhost",
    *,
    declare: Iterable[QueueDeclaration] = (),
    fail_on_provisioning_error: bool = True,
    on_connection: StateCallback | None = None,
    **settings: Any,
) -> Client:
    """A Client for the broker at `url`: `vibemq://user:password@host:port/?key=value` or `Host=...;Port=...`.

    declare: queues that are to be there, now and after each reconnect. fail_on_provisioning_error: False logs where
    that fails. on_connection: called with (state, error or None) whenever the connection comes or goes, from a thread
    of the client, in which it may not use the client. settings: fields of vibemq.client.Settings, which win over the
    url: keep_alive_s=5, reconnect=False and so on.

    >>> from vibemq.client import connect
    >>> with connect("vibemq://localhost:2925/?keepAlive=15") as other:
    ...     print(other.state.value)
    connected
    """
    return Client(
        parse(url, **settings),
        declare=declare,
        fail_on_provisioning_error=fail_on_provisioning_error,
        on_connection=on_connection,
    )


class Client(ClientFace):
    """A client that is connected, and connects again by itself. Made by `connect`."""

    def __init__(self, settings: Any, **options: Any) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="vibemq client", daemon=True)
        self._thread.start()
        try:
            self._inner = self._call(Connecting(settings, options).open())
        except BaseException:
            self._stop()
            raise
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
        except BaseException:
            future.cancel()  # Ctrl-C: nobody waits any longer
            raise

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(STOP_TIMEOUT_S)
        if not self._thread.is_alive():
            self._loop.close()

    def close(self) -> None:
        """Says goodbye and ends the client's thread. Consumers end; what is not settled goes back to its queue.

        >>> other = connect("vibemq://localhost:2925")
        >>> other.close()
        """
        if self._loop.is_closed():
            return
        self._call(self._inner.close())
        self._stop()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
    ) -> str:
        """Publishes one message and waits until the broker has it; gives its id.

        `payload` is anything that JSON can say (bytes go as base64 and come out as bytes), or with `raw` JSON text.
        What the broker refuses is raised: QueueFull, QueueNotFound, NotAuthorized and others of RequestFailed.

        >>> id = client.publish("docs", {"number": 1}, headers={"source": "docs"}, priority="high")
        >>> client.publish("docs", '{"number": 2}', id="order-2", raw=True)
        'order-2'
        """
        return self._call(self._inner.publish(queue, payload, headers=headers, id=id, priority=priority, raw=raw))

    def publish_many(
        self,
        queue: str,
        payloads: Iterable[Any],
        *,
        window: int = WINDOW_DEFAULT,
        headers: Headers = None,
        priority: Priority = None,
        raw: bool = False,
    ) -> Summary:
        """Publishes all of them, with at most `window` messages on their way; waits until the broker has them.

        >>> summary = client.publish_many("docs", ({"number": n} for n in range(100)))
        >>> summary.published, summary.failed
        (100, [])
        """
        flow, fields, count = Flow(), fields_of(headers, priority), batch_count(window)
        iterator, more = iter(payloads), True
        try:
            while more:
                batch = Batch(self._engine.core, queue)
                more = batch.extend(iterator, count, fields, raw)
                self._call(self._engine.send_batch(batch, flow, window))
            self._call(self._engine.room(flow, 0))
        except BaseException:
            self._forget(flow)
            raise
        return summary(flow, queue)

    def _forget(self, flow: Flow) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._engine.forget, flow)

    def publisher(self, queue: str, *, window: int = WINDOW_DEFAULT, raw: bool = False) -> Publisher:
        """An object whose `publish` does not wait for the broker, but for room in the window.

        >>> with client.publisher("docs") as publisher:
        ...     for number in range(10):
        ...         publisher.publish({"number": number})
        ...     print(publisher.flush().published)
        10
        """
        return Publisher(self, queue, window, raw)

    # ---- consuming ----

    def consume(
        self, queue: str, *, prefetch: int | None = None, auto_ack: bool = False, timeout_s: float | None = None
    ) -> Consumer:
        """The messages of a queue, one after another, without an end; each is to be settled with its ack or nack.

        At most `prefetch` are here unsettled at a time. With `auto_ack` a message is acknowledged when the next one is
        asked for. `timeout_s` ends the iteration when nothing came for so long.

        >>> id = client.publish("docs-consume", {"number": 1})
        >>> for message in client.consume("docs-consume"):
        ...     print(message.payload, message.attempts)
        ...     message.ack()
        ...     break
        {'number': 1} 1
        """
        return Consumer(self, queue, prefetch, auto_ack, timeout_s)

    def subscribe(self, queue: str, handler: Handler, *, prefetch: int | None = None) -> Subscription:
        """Calls `handler` with each message, one after another, in a thread: it returns = ack, it raises = nack.

        >>> import threading
        >>> seen = threading.Event()
        >>> subscription = client.subscribe("docs-handled", lambda message: seen.set())
        >>> id = client.publish("docs-handled", "hello")
        >>> seen.wait(10)
        True
        >>> subscription.close()
        """
        return Subscription(Consumer(self, queue, prefetch, False, None), handler)

    # ---- queues ----

    def create_queue(self, name: str, options: QueueOptions | None = None, **changes: Any) -> None:
        """Makes a queue; if there is one already, it stays as it is. Options are the fields of QueueOptions.

        >>> client.create_queue("docs-new", mode="priority_based", max_messages=500, message_ttl_ms=60_000)
        """
        self._call(self._inner.create_queue(name, options, **changes))

    def declare_queue(
        self,
        name: str,
        options: QueueOptions | None = None,
        *,
        on_conflict: OnConflict | str = OnConflict.IGNORE,
        **changes: Any,
    ) -> None:
        """Makes a queue, or compares the one that is there; it is declared again after each reconnect.

        Compared is what is given by name, and what in `options` is not the default. Where the queue is otherwise,
        "ignore" logs that, "fail" raises QueueConflict, "override" deletes the queue with its messages and makes it
        anew; what is not given is then the default.

        >>> client.declare_queue("docs-declared", max_messages=500, on_conflict="fail")
        """
        self._call(self._inner.declare_queue(name, options, on_conflict=on_conflict, **changes))

    def delete_queue(self, name: str) -> None:
        """Deletes a queue with all its messages; also if there is none.

        >>> client.create_queue("docs-short")
        >>> client.delete_queue("docs-short")
        """
        self._call(self._inner.delete_queue(name))

    def purge_queue(self, name: str) -> None:
        """Drops the messages that wait in a queue. Only brokers of ours know how.

        >>> client.create_queue("docs-purge")
        >>> client.purge_queue("docs-purge")
        """
        self._call(self._inner.purge_queue(name))

    def queue_info(self, name: str) -> QueueInfo:
        """How many messages are in a queue, and its options. QueueNotFound if there is none.

        >>> client.create_queue("docs-info", max_messages=7)
        >>> info = client.queue_info("docs-info")
        >>> info.messages, info.options.max_messages
        (0, 7)
        """
        return self._call(self._inner.queue_info(name))

    def list_queues(self) -> list[str]:
        """The names of the queues that the user may see.

        >>> client.create_queue("docs-listed")
        >>> "docs-listed" in client.list_queues()
        True
        """
        return self._call(self._inner.list_queues())

    # ---- users; brokers answer these while authorization is on, and mostly to superusers ----

    def create_user(self, name: str, password: str) -> None:
        """Makes a user, who may do nothing until something is granted.

        >>> client.create_user("docs-ada", "lovelace 1843")  # doctest: +SKIP
        """
        self._call(self._inner.create_user(name, password))

    def delete_user(self, name: str) -> None:
        """Removes a user and what was granted.

        >>> client.delete_user("docs-ada")  # doctest: +SKIP
        """
        self._call(self._inner.delete_user(name))

    def change_password(self, name: str, password: str) -> None:
        """Gives a user another password.

        >>> client.change_password("docs-ada", "babbage 1791")  # doctest: +SKIP
        """
        self._call(self._inner.change_password(name, password))

    def grant(self, name: str, pattern: str, *operations: str | QueueOperation) -> None:
        """Lets a user do these operations with the queues that the pattern matches; replaces what it said before.

        >>> client.grant("docs-ada", "orders.*", "Publish", "Subscribe")  # doctest: +SKIP
        """
        self._call(self._inner.grant(name, pattern, *operations))

    def revoke(self, name: str, pattern: str) -> None:
        """Takes back what was granted by exactly this pattern.

        >>> client.revoke("docs-ada", "orders.*")  # doctest: +SKIP
        """
        self._call(self._inner.revoke(name, pattern))

    def list_users(self) -> list[User]:
        """All users, by name.

        >>> [user.name for user in client.list_users()]  # doctest: +SKIP
        ['docs-ada', 'vibemq']
        """
        return self._call(self._inner.list_users())

    def permissions(self, name: str) -> list[Permission]:
        """What a user may do.

        >>> client.permissions("docs-ada")  # doctest: +SKIP
        [Permission(pattern='orders.*', operations=('Publish', 'Subscribe'))]
        """
        return self._call(self._inner.permissions(name))


class Publisher(PublisherFace):
    """Publishes to one queue, pipelined; made by Client.publisher. Leaving `with` flushes. Threads may share it."""

    def __init__(self, client: Client, queue: str, window: int, raw: bool) -> None:
        super().__init__(client._engine, queue, window, raw, Flow())
        self._client = client
        self._lock = threading.Lock()  # around the batch; the loop's thread never waits for it

    def publish(
        self, payload: Any, *, headers: Headers = None, id: str | None = None, priority: Priority = None
    ) -> None:
        """Publishes without waiting for the broker, unless the window is full.

        >>> with client.publisher("docs") as publisher:
        ...     publisher.publish({"number": 1}, headers={"source": "docs"})
        """
        with self._lock:
            if self._add(payload, headers, id, priority):
                self._client._call(self._engine.send_batch(self._take(), self._flow, self._window))
            elif self._batch.count == 1:
                loop = self._engine.loop
                loop.call_soon_threadsafe(loop.call_later, LINGER_S, self._send, self._batch)

    def _send(self, batch: Batch) -> None:
        """In the loop's thread: the batch has waited long enough, if it is still the one that is filled."""
        if self._engine.state == State.CLOSED:
            return
        if not self._lock.acquire(blocking=False):
            self._engine.loop.call_later(LINGER_S, self._send, batch)
            return
        try:
            if self._batch is batch:
                self._engine.submit(self._take(), self._flow)
        finally:
            self._lock.release()

    def flush(self) -> Summary:
        """Waits until every message is acknowledged or refused: what happened since the last flush.

        >>> client.publisher("docs").flush()
        Summary(published=0, failed=[])
        """
        with self._lock:
            batch = self._take()
            self._client._call(self._engine.send_batch(batch, self._flow, self._window + batch.count))
        self._client._call(self._engine.room(self._flow, 0))
        return self._summary()

    def __enter__(self) -> Publisher:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.flush().raise_failed()
        else:
            self._client._forget(self._flow)


class Consumer(ConsumerFace):
    """The messages of one queue; made by Client.consume. It subscribes when the first is asked for.

    One thread iterates; messages may be settled in any. Dropping it, as `break` out of a loop does, unsubscribes.
    """

    def __init__(
        self, client: Client, queue: str, prefetch: int | None, auto_ack: bool, timeout_s: float | None
    ) -> None:
        super().__init__(queue, auto_ack, timeout_s)
        self._client = client
        self._feed = Feed(queue, prefetch, self._arrived, self._ended)
        self._box: queues.SimpleQueue[list[Message] | VibeMQError | None] = queues.SimpleQueue()

    def open(self) -> None:
        """Subscribes now.

        >>> consumer = client.consume("docs")
        >>> consumer.open()
        >>> consumer.close()
        """
        self._client._call(self._client._engine.subscribe(self._feed))
        self._open = True

    def _arrived(self, messages: list[Message]) -> None:
        self._box.put(messages)

    def _ended(self, why: VibeMQError | None) -> None:
        self._box.put(why)

    def __iter__(self) -> Iterator[Message]:
        return self

    def __next__(self) -> Message:
        self._settle_last()
        if not self._open and not self._over:
            self.open()
        while not self._over:
            if (message := self._next_here()) is not None:
                return message
            try:
                news = self._box.get(timeout=self._timeout_s)
            except queues.Empty:
                raise StopIteration from None
            if isinstance(news, list):
                self._messages.extend(news)
            else:
                self._over = True
                if news is not None:
                    raise news
        raise StopIteration

    def stop(self) -> None:
        """The iteration ends, from any thread, after the message that is at hand.

        >>> client.consume("docs").stop()
        """
        self._over = True
        self._box.put(None)

    def close(self) -> None:
        """Unsubscribes; messages that are not settled go back to the queue.

        >>> with client.consume("docs", timeout_s=0.1) as consumer:
        ...     pass
        """
        self.stop()
        if not self._client._loop.is_closed():
            self._client._call(self._client._engine.unsubscribe(self._feed))
        self._open = False

    def __enter__(self) -> Consumer:
        if not self._open:
            self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._settle_last(failed=error is not None)
        self.close()

    def __del__(self) -> None:
        if self._open:
            self._client._engine.abandon(self._feed)


class Subscription:
    """A handler at work in a thread; made by Client.subscribe."""

    def __init__(self, consumer: Consumer, handler: Handler) -> None:
        self._consumer, self._handler = consumer, handler
        consumer.open()
        self._thread = threading.Thread(target=self._run, name=f"vibemq {consumer.queue}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            for message in self._consumer:
                try:
                    self._handler(message)
                except Exception:
                    log.exception("handler of queue %s failed with %r", self._consumer.queue, message)
                    message.nack()
                else:
                    message.ack()
        except VibeMQError as error:
            log.warning("subscription to queue %s ended: %s", self._consumer.queue, error)

    def close(self) -> None:
        """Unsubscribes once the message at hand is done. The handler itself may call it.

        >>> subscription = client.subscribe("docs-closed", print)
        >>> subscription.close()
        """
        self._consumer.stop()
        if threading.current_thread() is not self._thread:
            self._thread.join()
        self._consumer.close()
