# SPDX-License-Identifier: Apache-2.0
"""One client as an asyncio program: it opens a connection, makes a new one when that is lost, and knows who waits.

All decisions about frames are the Core's, and what belongs to one connection is the Link's; here is what lasts longer.
Everything runs in the event loop's thread, but for `forget`, `settle` and `abandon`, which any thread may call.

    CONNECTING -> CONNECTED -> RECONNECTING -> CONNECTED ...       CLOSED from everywhere, and for ever

A message belongs to the client: it goes out again on the next connection until it is acknowledged, or until whoever
waits for that has lost patience: then it is forgotten, and PublishTimeout says whether it may be stored. The time
without a connection counts.

The protocol has one subscription for a queue on a connection. So the first consumer of a queue uses the client's own
connection, and each further one, while the first is there, one of its own: to the broker they are two consumers, each
with its own prefetch, as if two clients had made them. Such a connection ends with its consumer or with the client.
A consumer that is dropped without a word is unsubscribed behind its back; whoever consumes its queue next waits for
that, and gets what it had not settled.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from enum import Enum
from typing import TYPE_CHECKING, Any
from weakref import ref

from vibemq.client._link import Link, limit, within
from vibemq.client._native import Batch, Core, Flow, Message
from vibemq.client.queues import OnConflict, QueueDeclaration, declare
from vibemq.client.settings import Settings
from vibemq.errors import (
    AuthenticationFailed,
    ConfigError,
    ConnectionClosed,
    InvalidRequest,
    NotAQueue,
    NotAuthorized,
    PublishTimeout,
    QueueConflict,
    QueueNotFound,
    RequestFailed,
    VibeMQError,
)
from vibemq.protocols.native import codec
from vibemq.protocols.native.spec import FEATURE_NAMES, FORM_STORED, Command, ErrorCode, Header, command_name

if TYPE_CHECKING:
    from vibemq.client.consuming import AnyConsumer

log = logging.getLogger("vibemq.client")

#: A client's report of a delivery: acknowledged, failed, or held by the program; and the feature that it needs.
SETTLEMENTS: dict[bool | None, tuple[Command, str]] = {
    True: (Command.ACK, ""),
    False: (Command.NACK, "nack"),
    None: (Command.HOLDING, "holding"),
}
GOODBYE_TIMEOUT_S = 5.0  # a broker that does not take our last bytes is not waited for


class State(Enum):
    """Of the connection, as `on_connection` is told."""

    CONNECTING = "connecting"
    CONNECTED = "connected"
    RECONNECTING = "reconnecting"
    CLOSED = "closed"


StateCallback = Callable[[State, VibeMQError | None], object]


class Feed:
    """One subscription: where its messages go, and who is told when no more will come.

    It does not keep its consumer alive: one that is dropped without a word unsubscribes by that.
    """

    def __init__(
        self, consumer: AnyConsumer, queue: str, prefetch: int | None, create: bool, stored: bool,
        subscriber: str = "", subscriber_ttl_s: int = 0,
    ) -> None:  # fmt: skip
        self.subscriber, self.subscriber_ttl_s = subscriber, subscriber_ttl_s
        self.queue, self.prefetch, self.create = queue, prefetch, create
        self.stored = stored  # its messages come as they are stored
        self.leaving = False  # nobody wants its messages any more, though the broker may not know it yet
        self.left = asyncio.Event()  # and now it does
        self._consumer = ref(consumer)

    def hold(self) -> None:
        """Report the message that the program holds, and the last one it has seen, before the subscription ends."""
        if (consumer := self._consumer()) is not None:
            consumer._say_held()

    def give(self, messages: list[Message]) -> None:
        if (consumer := self._consumer()) is not None:
            consumer._arrived(messages)

    def end(self, why: VibeMQError | None) -> None:
        self.left.set()
        if (consumer := self._consumer()) is not None:
            consumer._ended(why)


class Engine:
    """All of a client but its faces; made in a running event loop.

    Invariant: a Feed is in `_feeds`, or in `_beside` with its connection, or has ended.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        declare: Iterable[QueueDeclaration] = (),
        fail_on_provisioning_error: bool = True,
        on_connection: StateCallback | None = None,
    ) -> None:
        self.settings = settings
        self.loop = asyncio.get_running_loop()
        self.core = Core(settings.frame_max_bytes, settings.text_layout)
        self.core.on_settle = self.settle
        self.state = State.CONNECTING
        self.features: frozenset[str] = frozenset()
        self.server_version = ""
        self.declarations = [*declare, *(QueueDeclaration(name) for name in settings.queues)]
        self._fail_on_provisioning_error = fail_on_provisioning_error
        self._on_connection = on_connection
        self._thread_id = threading.get_ident()
        self._link = Link(settings, self.core, self._received, self._lost)
        self._flows: set[Flow] = set()  # those that somebody waits for
        self._settled: deque[tuple[Message, int, bool]] = deque()  # never replaced: other threads append
        self._settling = False
        self._feeds: dict[str, Feed] = {}
        self._beside: dict[Feed, Engine] = {}
        self._begun: set[str] = set()  # queues whose subscription was asked for on a connection that is being opened
        self._abandoning: set[asyncio.Task[None]] = set()
        self._decided = asyncio.Event()  # there is a connection, or there will be none
        self._reconnecting: asyncio.Task[None] | None = None
        self._failure: VibeMQError | None = None

    # ---- opening, losing, closing ----

    async def open(self) -> None:
        """The first connection: what goes wrong is raised, not tried again."""
        self._tell(State.CONNECTING, None)
        try:
            await self._establish(first=True)
        except BaseException as error:
            self.end(self._given_up(error))
            raise

    def _given_up(self, error: BaseException) -> VibeMQError:
        return error if isinstance(error, VibeMQError) else ConnectionClosed(f"{self.settings.peer}: given up")

    async def _establish(self, *, first: bool) -> None:
        link = self._link = Link(self.settings, self.core, self._received, self._lost)
        try:
            answer = await link.open()
            granted = answer.headers.get(Header.FEATURES, "")
            self.features = frozenset(word.strip() for word in granted.split(",")).intersection(FEATURE_NAMES)
            self.server_version = answer.headers.get(Header.SERVER_VERSION, "")
            await self._provision(first)
            await self._subscribe_again()
        except BaseException as error:
            link.end(self._given_up(error))
            raise
        if link.gone:
            raise link.why or ConnectionClosed(f"{self.settings.peer}: the connection ended at once")
        # From here to the end of this function nothing else runs: no message can slip in between.
        link.write(self.core.unacknowledged())
        self._tell(State.CONNECTED, None)
        self._decided.set()
        link.keep_alive()

    async def _provision(self, first: bool) -> None:
        for wanted in self.declarations:
            on_conflict = wanted.on_conflict if first else OnConflict.IGNORE
            try:
                await declare(self._link.exchange, wanted, on_conflict, is_ours=bool(self.features))
            except (QueueConflict, ConnectionClosed, AuthenticationFailed):
                raise
            except VibeMQError as error:
                if self._fail_on_provisioning_error:
                    raise
                log.warning("queue %s could not be declared: %s", wanted.name, error)

    def _lost(self, link: Link, why: VibeMQError) -> None:
        """The connection is gone: its requests have failed, messages wait for the next one."""
        if link is not self._link or self.state != State.CONNECTED:
            return  # whoever is opening it is told by the requests
        if not self.settings.reconnect:
            self.end(why)
            return
        self._decided.clear()
        self._tell(State.RECONNECTING, why)
        self._reconnecting = self.loop.create_task(self._reconnect())

    async def _reconnect(self) -> None:
        most = self.settings.reconnect_max_attempts
        for attempt in itertools.count(1):
            await asyncio.sleep(self.settings.delay_s(attempt))
            try:
                await self._establish(first=False)
                return
            except (VibeMQError, OSError) as error:
                told = str(error).removeprefix(f"{self.settings.peer}: ")
                log.warning("%s: reconnect %d failed: %s", self.settings.peer, attempt, told)
                if most and attempt >= most:
                    self.end(
                        ConnectionClosed(
                            f"{self.settings.peer}: given up after {attempt} attempts to reconnect: {told}",
                            hint="Connect again once the broker is there; reconnectMaxAttempts=0 never gives up.",
                        )
                    )
                    return
                if isinstance(error, VibeMQError):
                    self._tell(State.RECONNECTING, error)
            except Exception as error:  # as of an interpreter that is ending: nobody else would be told of it
                self.end(ConnectionClosed(f"{self.settings.peer}: could not reconnect: {error!r}"))
                return

    async def close(self, timeout_s: float = GOODBYE_TIMEOUT_S) -> None:
        """Sends what is settled, says goodbye, ends. Never raises."""
        if self.is_over:
            return
        link = self._link
        for feed in self._feeds.values():
            feed.hold()
        self.flush_settled()
        beside, self._beside = self._beside, {}
        await asyncio.gather(*(engine.close(timeout_s) for engine in beside.values()))
        if self.is_connected:
            link.say_goodbye(bool(self._feeds))
        self.end(None)
        await link.wait_closed(timeout_s)

    def end(self, why: VibeMQError | None) -> None:
        """For good: everybody who waits is told."""
        if self.is_over:
            return
        failure = self._failure = why or self.failure()
        if self._reconnecting is not None and self._reconnecting is not asyncio.current_task():
            self._reconnecting.cancel()
        if why is not None:
            self._link.end(why)
        self._link.fail(failure)
        self._decided.set()
        for flow in self._flows:
            self._wake(flow)
        feeds, self._feeds = self._feeds, {}
        for feed in feeds.values():
            feed.end(why)
        beside, self._beside = self._beside, {}
        for engine in beside.values():
            engine.end(why)
        self._tell(State.CLOSED, why)

    @property
    def is_connected(self) -> bool:
        return self.state == State.CONNECTED

    @property
    def is_over(self) -> bool:
        return self.state == State.CLOSED

    @property
    def takes_holding(self) -> bool:
        """True if the broker accepts reports of the message that a program holds."""
        return SETTLEMENTS[None][1] in self.features

    def failure(self) -> VibeMQError:
        """Why there is no connection and will be none."""
        return self._failure or ConnectionClosed(f"{self.settings.peer}: the client is closed", hint="Connect again.")

    def _tell(self, state: State, why: VibeMQError | None) -> None:
        self.state = state
        log.info("%s: %s%s", self.settings.peer, state.value, f": {why}" if why else "")
        if self._on_connection is not None:
            try:
                self._on_connection(state, why)
            except Exception:
                log.exception("%s: on_connection failed", self.settings.peer)

    def _received(self, link: Link, data: bytes) -> None:
        if link is not self._link or self.is_over:
            return
        try:
            events = self.core.feed(data)
        except VibeMQError as error:
            for flow in self._flows:  # acknowledgements before the damage count
                self._wake(flow)
            link.damaged(error, data)
            return
        deliveries: dict[str, list[Message]] = {}
        for event in events:
            if isinstance(event, Message):
                deliveries.setdefault(event.queue, []).append(event)
            elif isinstance(event, Flow):
                self._wake(event)
            elif (frame := link.take(event)) is not None and frame.type == Command.ERROR:
                log.warning("%s: %s (%s)", self.settings.peer, frame.error_message, frame.error_code)
        for queue, messages in deliveries.items():
            if (feed := self._feeds.get(queue)) is not None:  # else it was on its way while we unsubscribed
                feed.give(messages)

    # ---- requests ----

    def patience_s(self, timeout_s: float | None) -> float:
        """What a call was given, or what the settings say for all calls; math.inf is for ever."""
        if timeout_s is None:
            return self.settings.command_timeout_s
        if not timeout_s > 0:
            raise ConfigError(f"timeout_s: needed more than 0 seconds, had {timeout_s}")
        return timeout_s

    async def ready(self, timeout_s: float | None = None, what: str = "") -> None:
        """Until there is a connection; raises when there will be none, or none came in time."""
        if not self._decided.is_set():
            patience_s = self.patience_s(timeout_s)
            told = f"{self.settings.peer}: {what} was never sent: there was no connection for {patience_s:g} s"
            async with within(patience_s, told, "Nothing was changed. Is the broker there?"):
                await self._decided.wait()
        if self._failure is not None:
            raise self._failure

    def need(self, feature: str, lacking: str, hint: str) -> None:
        """InvalidRequest where the broker does not know it."""
        if feature not in self.features:
            told = f"{self.settings.peer}: this broker {lacking}"
            raise InvalidRequest(told, code=ErrorCode.UNKNOWN_COMMAND.value, hint=hint)

    async def request(
        self, command: Command, queue: str | None = None, *, timeout_s: float | None = None, **fields: Any
    ) -> codec.Message:
        """Link.exchange on the connection that is there, or comes; timeout_s is for the connection and the answer."""
        patience_s = self.patience_s(timeout_s)
        end = self.loop.time() + patience_s
        await self.ready(patience_s, command_name(command) + (f" {queue}" if queue else ""))
        return await self._link.exchange(command, queue, timeout_s=end - self.loop.time(), **fields)

    # ---- publishing ----

    def submit(self, batch: Batch, flow: Flow) -> None:
        """In flight from now on; out now, or with the next connection."""
        if self._failure is not None:
            raise self._failure
        self.core.submit(batch, flow)
        if self.is_connected:
            self._link.write(self.core.wire(batch))

    async def send_batch(self, batch: Batch, flow: Flow, window: int, timeout_s: float | None = None) -> None:
        """Submits once the window has room for all of it and the socket takes bytes."""
        await self.room(flow, max(0, window - batch.count), timeout_s, waiting=batch.count)
        if not self._link.writable.is_set():
            patience_s = self.patience_s(timeout_s)
            try:
                async with limit(patience_s):
                    await self._link.writable.wait()
            except TimeoutError:
                raise self._give_up(flow, patience_s, batch.count) from None
        self.submit(batch, flow)

    async def room(self, flow: Flow, most: int, timeout_s: float | None = None, *, waiting: int = 0) -> None:
        """Until no more than `most` messages of the flow are in flight.

        When none of them was acknowledged for timeout_s they are forgotten, and PublishTimeout tells of them; `waiting`
        is how many more there are that have not been submitted.
        """
        if flow.in_flight <= most:
            return
        patience_s = self.patience_s(timeout_s)
        while flow.in_flight > most:
            answered = flow.submitted - flow.in_flight
            if self._failure is not None:
                raise self._failure
            future: asyncio.Future[None] = self.loop.create_future()
            flow.waiters.append(future)
            flow.wake_at = max(flow.wake_at, most)
            self._flows.add(flow)
            try:
                async with limit(patience_s) as scope:
                    await future
            except TimeoutError:
                if not scope.expired():
                    raise
                if flow.submitted - flow.in_flight == answered:  # else it goes on, so the patience starts anew
                    raise self._give_up(flow, patience_s, waiting) from None
            finally:
                if future in flow.waiters:
                    flow.waiters.remove(future)
                if not flow.waiters:
                    self._flows.discard(flow)
                    flow.wake_at = -1

    def _wake(self, flow: Flow) -> None:
        """All who wait look again; who has to go on waiting says so again."""
        waiters, flow.waiters = flow.waiters, []
        for future in waiters:
            if not future.done():
                future.set_result(None)

    def _give_up(self, flow: Flow, patience_s: float, waiting: int) -> PublishTimeout:
        """Forgets what nobody has patience for any longer; all who wait for it are told."""
        unsent, unanswered = self.core.forget(flow)
        unsent += waiting
        told = []
        if unsent:
            why = "were not acknowledged before them" if self.is_connected else "there was no connection"
            told.append(f"{messages_were(unsent)} never sent: for {patience_s:g} s {why}")
        hint = "Nothing of it is stored, nor will it be sent: publish it again."
        if unanswered:
            told.append(f"{messages_were(unanswered)} sent, and not acknowledged for {patience_s:g} s")
            hint = (
                "What was sent may have been stored; it is not sent again. Publishing it again, also with the same id, "
                "may store it twice. Is the broker overloaded or out of disk space?"
            )
        error = PublishTimeout(
            f"{self.settings.peer}: {'; '.join(told)}", unsent=unsent, unanswered=unanswered, hint=hint
        )
        for future in flow.waiters:
            if not future.done():
                future.set_exception(error)
        return error

    @contextlib.contextmanager
    def flow(self) -> Iterator[Flow]:
        """A Flow that is forgotten when this ends by an error."""
        flow = Flow()
        try:
            yield flow
        except BaseException:
            self.forget(flow)
            raise

    def forget(self, flow: Flow) -> None:
        """From any thread: what is not acknowledged yet is not sent again."""
        if threading.get_ident() == self._thread_id:
            self.core.forget(flow)
        elif not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self.core.forget, flow)

    # ---- consuming ----

    async def subscribe(self, feed: Feed, timeout_s: float | None = None) -> None:
        """Messages go to the feed from now on, also after a reconnect; they may come before the answer."""
        end = self.loop.time() + self.patience_s(timeout_s)
        await self.ready(timeout_s, f"the subscription to queue {feed.queue}")
        told = f"{self.settings.peer}: the subscription to queue {feed.queue} was not made in time"
        while (other := self._feeds.get(feed.queue)) is not None:
            async with within(max(0.0, end - self.loop.time()), told, "Is the broker overloaded?"):
                if not other.leaving:
                    await self._subscribe_beside(feed, end)
                    return
                await other.left.wait()
        self._feeds[feed.queue] = feed
        try:
            await self._subscribe(feed, end - self.loop.time())
        except BaseException as error:
            self._feeds.pop(feed.queue, None)
            if not isinstance(error, RequestFailed):  # it may be made all the same, and nobody would take its messages
                self._link.post(Command.UNSUBSCRIBE, feed.queue)
            raise

    async def _subscribe_beside(self, feed: Feed, end: float) -> None:
        engine = self._beside[feed] = Engine(replace(self.settings, queues=()))
        try:
            await engine.open()
            await engine.subscribe(feed, end - self.loop.time())
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
        if feed.subscriber:
            headers[Header.SUBSCRIBER.value] = feed.subscriber
        if feed.subscriber_ttl_s:
            headers[Header.SUBSCRIBER_TTL.value] = str(feed.subscriber_ttl_s)
        await self._link.exchange(Command.SUBSCRIBE, feed.queue, headers=headers, timeout_s=timeout_s)

    async def _subscribe_again(self) -> None:
        """After a reconnect: a queue that one may not consume any more ends its consumer, and nobody else."""
        self._begun.clear()
        for feed in list(self._feeds.values()):
            if self._feeds.get(feed.queue) is not feed:
                continue  # removed meanwhile
            self._begun.add(feed.queue)
            try:
                await self._subscribe(feed)
            except (QueueNotFound, NotAQueue, NotAuthorized) as gone:
                self._feeds.pop(feed.queue, None)
                feed.end(gone)

    async def unsubscribe(self, feed: Feed, timeout_s: float | None = None) -> None:
        """What is not settled goes back to the queue."""
        if (beside := self._beside.pop(feed, None)) is not None:
            await beside.close(self.patience_s(timeout_s))
            return
        if self._feeds.get(feed.queue) is not feed:
            return
        feed.leaving = True
        feed.hold()
        self.flush_settled()
        try:
            if self.is_connected:
                await self._link.exchange(Command.UNSUBSCRIBE, feed.queue, timeout_s=self.patience_s(timeout_s))
            elif feed.queue in self._begun:
                self._link.post(Command.UNSUBSCRIBE, feed.queue)
        except ConnectionClosed:
            return  # then the subscription is gone as well
        finally:
            if self._feeds.get(feed.queue) is feed:
                del self._feeds[feed.queue]
            feed.left.set()

    def engine_of(self, feed: Feed) -> Engine:
        """Return the engine with the connection of a feed."""
        return self._beside.get(feed, self)

    def abandon(self, feed: Feed) -> None:
        """Unsubscribes without anybody waiting for it. From any thread."""
        feed.leaving = True
        with contextlib.suppress(RuntimeError):  # the loop has ended, and everything with it
            self.loop.call_soon_threadsafe(self._abandon, feed)

    def _abandon(self, feed: Feed) -> None:
        if not self.is_over:
            task = self.loop.create_task(self._unsubscribe_quietly(feed))
            self._abandoning.add(task)
            task.add_done_callback(self._abandoning.discard)

    async def _unsubscribe_quietly(self, feed: Feed) -> None:
        try:
            await self.unsubscribe(feed)
        except VibeMQError as error:
            log.warning("queue %s: unsubscribing failed: %s", feed.queue, error)

    def settle(self, message: Message, done: bool | None, in_hand: bool = True) -> bool:
        """Send Ack, Nack or (None) Holding together with others of this turn of the loop. From any thread."""
        command, feature = SETTLEMENTS[done]
        if self.is_over or not (done or feature in self.features):
            return False
        self._settled.append((message, command, in_hand))
        if not self._settling:
            self._settling = True
            if threading.get_ident() == self._thread_id:
                self.loop.call_soon(self.flush_settled)
            else:
                try:
                    self.loop.call_soon_threadsafe(self.flush_settled)
                except RuntimeError:  # the loop has ended
                    return False
        return True

    async def flush(self) -> None:
        """Hand all reports of messages to the socket before this returns."""
        self.flush_settled()

    def flush_settled(self) -> None:
        self._settling = False
        settled = []
        while self._settled:
            settled.append(self._settled.popleft())
        if settled:
            self._link.write(self.core.settlements(settled))


def messages_were(count: int) -> str:
    return "1 message was" if count == 1 else f"{count} messages were"
