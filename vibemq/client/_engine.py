# SPDX-License-Identifier: Apache-2.0
"""One client's connection as an asyncio program: it opens it, keeps it alive, and makes a new one when it is lost.

All decisions about frames are the Core's; here is what needs time: deadlines, pings, back-off. Everything runs in the
event loop's thread, but for `settle`, which any thread may call.

    CONNECTING -> CONNECTED -> RECONNECTING -> CONNECTED ...       CLOSED from everywhere, and for ever

A request belongs to its connection and fails with it. A message belongs to the client: it goes out again on the next
connection until it is acknowledged, or until whoever waits for that has lost patience: then it is forgotten, and
PublishTimeout says whether it may be stored. The time without a connection counts.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import ssl
import threading
from collections import deque
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any

from vibemq import __version__
from vibemq.client._doors import who_speaks, wrong_door
from vibemq.client._link import Link
from vibemq.client._native import Core, Message
from vibemq.client._outgoing import Batch, Flow
from vibemq.client._refusals import refusal
from vibemq.client._subscriptions import Subscriptions
from vibemq.client.queues import (
    OnConflict,
    QueueDeclaration,
    QueueInfo,
    differences,
    info_of,
    names_of,
    options_payload,
)
from vibemq.client.settings import Settings
from vibemq.errors import (
    AuthenticationFailed,
    ConfigError,
    ConnectionClosed,
    NotAuthorized,
    ProtocolError,
    PublishTimeout,
    QueueConflict,
    QueueNotFound,
    TimeoutExceeded,
    VibeMQError,
)
from vibemq.protocols.native import codec
from vibemq.protocols.native.options import ADDITIONS
from vibemq.protocols.native.spec import (
    COMPRESSION_BY_NAME,
    FEATURE_NAMES,
    Command,
    Header,
    command_name,
)

log = logging.getLogger("vibemq.client")

GOODBYE_TIMEOUT_S = 5.0  # a broker that does not take our last bytes is not waited for


class State(Enum):
    """Of the connection, as `on_connection` is told."""

    CONNECTING = "connecting"
    CONNECTED = "connected"
    RECONNECTING = "reconnecting"
    CLOSED = "closed"


def messages_were(count: int) -> str:
    return "1 message was" if count == 1 else f"{count} messages were"


StateCallback = Callable[[State, VibeMQError | None], object]


class Engine:
    """All of a client but its faces; made in a running event loop."""

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
        self.connection_id = ""
        self.subscriptions = Subscriptions(self)
        self.declarations = [*declare, *(QueueDeclaration(name) for name in settings.queues)]
        self._fail_on_provisioning_error = fail_on_provisioning_error
        self._on_connection = on_connection
        self._thread_id = threading.get_ident()
        self._link: Link | None = None
        self._requests: dict[bytes, asyncio.Future[codec.Message]] = {}
        self._flows: set[Flow] = set()  # those that somebody waits for
        self._settled: deque[tuple[Message, int]] = deque()  # never replaced: other threads append
        self._settling = False
        self._connected: asyncio.Future[None] = self.loop.create_future()
        self._reconnecting: asyncio.Task[None] | None = None
        self._ping: asyncio.TimerHandle | None = None
        self._failure: VibeMQError | None = None

    # ---- opening, losing, closing ----

    async def open(self) -> None:
        """The first connection: what goes wrong is raised, not tried again."""
        self._tell(State.CONNECTING, None)
        try:
            await self._establish(first=True)
        except BaseException as error:
            self.end(error if isinstance(error, VibeMQError) else ConnectionClosed(f"{self.settings.peer}: given up"))
            raise

    async def _establish(self, *, first: bool) -> None:
        link = await self._open_link()
        try:
            async with self._deadline(self.settings.connect_timeout_s, "logging in"):
                await self._log_in(link)
            await self._provision(first)
            await self.subscriptions.begin_again()
        except BaseException as error:
            self._link = None
            link.end(error if isinstance(error, VibeMQError) else ConnectionClosed(f"{self.settings.peer}: given up"))
            raise
        if link.gone:
            raise link.why or ConnectionClosed(f"{self.settings.peer}: the connection ended at once")
        # From here to the end of this function nothing else runs: no message can slip in between.
        link.write(self.core.unacknowledged())
        self._tell(State.CONNECTED, None)
        if not self._connected.done():
            self._connected.set_result(None)
        self._ping = self.loop.call_later(self.settings.keep_alive_s, self._keep_alive, link)

    async def _open_link(self) -> Link:
        peer = self.settings.peer
        context = None
        if self.settings.tls:
            context = ssl.create_default_context()
            if self.settings.skip_cert_validation:
                context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        try:
            async with self._deadline(self.settings.connect_timeout_s, "connecting"):
                _, link = await self.loop.create_connection(
                    lambda: Link(self), self.settings.host, self.settings.port, ssl=context
                )
        except TimeoutExceeded:
            raise
        except OSError as error:
            raise ConnectionClosed(
                f"{peer}: could not connect: {error.strerror or error}",
                hint=(
                    f"The native door has no TLS: leave tls out. {wrong_door('native')}"
                    if isinstance(error, ssl.SSLError)
                    else "Does the broker run, is this its native port, and can this machine reach it?"
                ),
            ) from error
        return link

    def attached(self, link: Link) -> None:
        """Before its first byte is read: nothing is left of the connection before."""
        self._link = link
        self.core.restart()

    async def _log_in(self, link: Link) -> None:
        settings = self.settings
        headers = {
            Header.CLIENT_VERSION.value: f"vibemq-python/{__version__}",
            Header.SUPPORTED_COMPRESSION.value: ",".join(settings.compression),
            Header.FEATURES.value: ",".join(FEATURE_NAMES),
            Header.CLIENT.value: self.core.prefix.decode(),
        }
        if settings.user is not None and settings.password is not None:
            headers |= {Header.AUTH_USERNAME.value: settings.user, Header.AUTH_PASSWORD.value: settings.password}
        link.write(
            codec.encode_frame(
                Command.CONNECT, self.core.request_id(), headers=headers, text_layout=settings.text_layout
            )
        )
        answer = await link.first
        if answer.type == Command.ERROR:
            raise refusal(f"{settings.peer}: logging in", answer.error_code, answer.error_message)
        name = answer.headers.get(Header.NEGOTIATED_COMPRESSION, "").lower() or None
        if name is not None and name not in settings.compression:
            raise ProtocolError(f"{settings.peer}: needed one of {settings.compression}, had compression {name!r}")
        self.core.negotiated(name if name in COMPRESSION_BY_NAME else None, settings.compression_threshold_bytes)
        granted = answer.headers.get(Header.FEATURES, "")
        self.features = frozenset(word.strip() for word in granted.split(",")).intersection(FEATURE_NAMES)
        self.server_version = answer.headers.get(Header.SERVER_VERSION, "")
        self.connection_id = answer.headers.get(Header.CONNECTION_ID, "")

    def lost(self, link: Link, why: VibeMQError) -> None:
        """The connection is gone: requests fail, messages wait for the next one."""
        if link is not self._link:
            return
        self._link = None
        if self._ping is not None:
            self._ping.cancel()
        requests, self._requests = self._requests, {}
        for future in requests.values():
            if not future.done():
                future.set_exception(why)
        if self.state != State.CONNECTED:
            return  # whoever is opening it is told by these futures
        if not self.settings.reconnect:
            self.end(why)
            return
        self._connected = self.loop.create_future()
        self._tell(State.RECONNECTING, why)
        self._reconnecting = self.loop.create_task(self._reconnect(why))

    async def _reconnect(self, why: VibeMQError) -> None:
        attempt, most = 0, self.settings.reconnect_max_attempts
        while True:
            attempt += 1
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
        if self.state == State.CLOSED:
            return
        link = self._link
        self.flush_settled()
        await self.subscriptions.close(timeout_s)
        if self.state == State.CONNECTED and link is not None and link.transport is not None:
            link.write(
                codec.encode_frame(Command.DISCONNECT, self.core.request_id(), text_layout=self.settings.text_layout)
            )
            link.transport.close()
        self.end(None)
        if link is not None and not link.gone:
            try:
                async with asyncio.timeout(timeout_s):
                    await link.closed.wait()
            except TimeoutError:
                if link.transport is not None:
                    link.transport.abort()

    def end(self, why: VibeMQError | None) -> None:
        """For good: everybody who waits is told."""
        if self.state == State.CLOSED:
            return
        self._failure = why or ConnectionClosed(f"{self.settings.peer}: the client is closed", hint="Connect again.")
        if self._ping is not None:
            self._ping.cancel()
        if self._reconnecting is not None and self._reconnecting is not asyncio.current_task():
            self._reconnecting.cancel()
        link, self._link = self._link, None
        if why is not None and link is not None:
            link.end(why)
        requests, self._requests = self._requests, {}
        waiting: list[asyncio.Future[Any]] = [*requests.values(), self._connected]
        waiting += [future for flow in self._flows for _, future in flow.waiters]
        for future in waiting:
            if not future.done():
                future.set_exception(self._failure)
        if self._connected.done() and not self._connected.cancelled():
            self._connected.exception()  # nobody may be waiting for it
        self.subscriptions.end(why)
        self._tell(State.CLOSED, why)

    @property
    def is_connected(self) -> bool:
        return self.state == State.CONNECTED

    @property
    def is_over(self) -> bool:
        return self.state == State.CLOSED

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

    def _keep_alive(self, link: Link) -> None:
        if link is not self._link:
            return
        interval = self.settings.keep_alive_s
        silent = self.loop.time() - link.received_at
        if silent > 2 * interval:
            link.end(
                ConnectionClosed(
                    f"{self.settings.peer}: nothing came for {silent:.0f} s, not even the answer to a ping",
                    hint="The broker or the network between is down.",
                )
            )
            return
        link.write(codec.encode_frame(Command.PING, self.core.request_id(), text_layout=self.settings.text_layout))
        self._ping = self.loop.call_later(interval, self._keep_alive, link)

    # ---- bytes that came ----

    def received(self, link: Link, data: bytes) -> None:
        if link is not self._link:
            return
        try:
            events = self.core.feed(data)
        except VibeMQError as error:
            for flow in list(self._flows):  # acknowledgements before the damage count
                self._wake(flow)
            link.end(self._not_understood(error, data, link.first.done()))
            return
        deliveries: dict[str, list[Message]] = {}
        for event in events:
            if isinstance(event, Message):
                deliveries.setdefault(event.queue, []).append(event)
            elif isinstance(event, Flow):
                self._wake(event)
            else:
                self._answer(link, event)
        for queue, messages in deliveries.items():
            self.subscriptions.give(queue, messages)

    def _not_understood(self, error: VibeMQError, data: bytes, has_answered: bool) -> ProtocolError:
        """`data` is no frame: whoever has not answered Connect yet is most likely no broker at all."""
        peer = self.settings.peer
        if has_answered:
            return ProtocolError(f"{peer}: {error}")
        return ProtocolError(
            f"{peer}: {who_speaks(data)} answers there, not a broker's native door: {error}",
            hint=wrong_door("native", data),
        )

    def _answer(self, link: Link, frame: codec.Message) -> None:
        if frame.type == Command.DISCONNECT:
            reason = frame.headers.get(Header.REASON, "no reason given")
            link.end(ConnectionClosed(f"{self.settings.peer}: the broker said goodbye: {reason}"))
        elif not link.first.done():
            link.first.set_result(frame)
        elif (future := self._requests.pop(frame.id, None)) is not None:
            if not future.done():
                future.set_result(frame)
        elif frame.type == Command.ERROR:
            log.warning("%s: %s (%s)", self.settings.peer, frame.error_message, frame.error_code)

    def _wake(self, flow: Flow) -> None:
        left = []
        for most, future in flow.waiters:
            if flow.in_flight > most:
                left.append((most, future))
            elif not future.done():
                future.set_result(None)
        flow.waiters = left
        flow.wake_at = max((most for most, _ in left), default=-1)

    # ---- requests ----

    @contextlib.asynccontextmanager
    async def _deadline(self, timeout_s: float, what: str, hint: str = "Is the broker overloaded?") -> Any:
        try:
            async with asyncio.timeout(None if math.isinf(timeout_s) else timeout_s) as scope:
                yield
        except TimeoutError:
            if not scope.expired():
                raise
            raise TimeoutExceeded(
                f"{self.settings.peer}: {what}: nothing came within {timeout_s:g} s",
                hint=f"{hint} A longer timeout_s waits longer.",
            ) from None

    def patience_s(self, timeout_s: float | None) -> float:
        """What a call was given, or what the settings say for all calls; math.inf is for ever."""
        if timeout_s is None:
            return self.settings.command_timeout_s
        if not timeout_s > 0:
            raise ConfigError(f"timeout_s: needed more than 0 seconds, had {timeout_s}")
        return timeout_s

    async def ready(self, timeout_s: float | None = None, what: str = "") -> None:
        """Until there is a connection; raises when there will be none, or none came in time."""
        if self.state == State.CONNECTED:
            return
        if self._failure is not None:
            raise self._failure
        patience_s = self.patience_s(timeout_s)
        try:
            async with asyncio.timeout(None if math.isinf(patience_s) else patience_s) as scope:
                await asyncio.shield(self._connected)
        except TimeoutError:
            if not scope.expired():
                raise
            raise TimeoutExceeded(
                f"{self.settings.peer}: {what} was never sent: there was no connection for {patience_s:g} s",
                hint="Nothing was changed. Is the broker there? A longer timeout_s waits longer.",
            ) from None

    async def request(
        self,
        command: Command,
        queue: str | None = None,
        *,
        payload: bytes | None = None,
        headers: dict[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> codec.Message:
        """The answer to a command, or the error that fits it; timeout_s is for the connection and the answer."""
        patience_s = self.patience_s(timeout_s)
        end = self.loop.time() + patience_s
        await self.ready(patience_s, command_name(command) + (f" {queue}" if queue else ""))
        return await self.exchange(command, queue, payload, headers, end - self.loop.time())

    async def exchange(
        self,
        command: Command,
        queue: str | None = None,
        payload: bytes | None = None,
        headers: dict[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> codec.Message:
        what = command_name(command) + (f" {queue}" if queue else "")
        if self._link is None:
            raise ConnectionClosed(f"{self.settings.peer}: {what}: the connection is gone", hint="Try again.")
        id = self.core.request_id()
        frame = codec.encode_frame(
            command, id, queue=queue, payload=payload, headers=headers, text_layout=self.settings.text_layout
        )
        future = self._requests[id] = self.loop.create_future()
        try:
            self._link.write(self.core.packed(frame))
            patience_s = self.settings.command_timeout_s if timeout_s is None else timeout_s
            hint = "It was sent, so it may have been done. Is the broker overloaded?"
            async with self._deadline(patience_s, what, hint):
                answer = await future
        finally:
            self._requests.pop(id, None)
        if answer.type == Command.ERROR:
            raise refusal(f"{self.settings.peer}: {what}", answer.error_code, answer.error_message)
        return answer

    def post(self, command: Command, queue: str) -> None:
        """Sends it, if there is a connection; nobody waits for the answer."""
        if self._link is not None:
            frame = codec.encode_frame(
                command, self.core.request_id(), queue=queue, text_layout=self.settings.text_layout
            )
            self._link.write(self.core.packed(frame))

    # ---- publishing ----

    def submit(self, batch: Batch, flow: Flow) -> None:
        """In flight from now on; out now, or with the next connection."""
        if self._failure is not None:
            raise self._failure
        self.core.submit(batch, flow)
        if self.state == State.CONNECTED and self._link is not None:
            self._link.write(self.core.wire(batch))

    async def send_batch(self, batch: Batch, flow: Flow, window: int, timeout_s: float | None = None) -> None:
        """Submits once the window has room for all of it and the socket takes bytes."""
        await self.room(flow, max(0, window - batch.count), timeout_s, waiting=batch.count)
        if self._link is not None and not self._link.writable.is_set():
            patience_s = self.patience_s(timeout_s)
            try:
                async with asyncio.timeout(None if math.isinf(patience_s) else patience_s):
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
            waiter = (most, future)
            flow.waiters.append(waiter)
            flow.wake_at = max(flow.wake_at, most)
            self._flows.add(flow)
            try:
                async with asyncio.timeout(None if math.isinf(patience_s) else patience_s) as scope:
                    await future
            except TimeoutError:
                if not scope.expired():
                    raise
                if flow.submitted - flow.in_flight == answered:  # else it goes on, so the patience starts anew
                    raise self._give_up(flow, patience_s, waiting) from None
            finally:
                if waiter in flow.waiters:
                    flow.waiters.remove(waiter)
                if not flow.waiters:
                    self._flows.discard(flow)
                    flow.wake_at = -1

    def _give_up(self, flow: Flow, patience_s: float, waiting: int) -> PublishTimeout:
        """Forgets what nobody has patience for any longer; all who wait for it are told."""
        unsent, unanswered = self.core.forget(flow)
        unsent += waiting
        told = []
        if unsent:
            why = "were not acknowledged before them" if self.state == State.CONNECTED else "there was no connection"
            told.append(f"{messages_were(unsent)} never sent: for {patience_s:g} s {why}")
        if unanswered:
            told.append(f"{messages_were(unanswered)} sent, and not acknowledged for {patience_s:g} s")
        hint = "Nothing of it is stored, nor will it be sent: publish it again."
        if unanswered:
            hint = (
                "What was sent may have been stored; it is not sent again. Publishing it again, also with the same id, "
                "may store it twice. Is the broker overloaded or out of disk space?"
            )
        error = PublishTimeout(
            f"{self.settings.peer}: {'; '.join(told)}", unsent=unsent, unanswered=unanswered, hint=hint
        )
        for _, future in flow.waiters:
            if not future.done():
                future.set_exception(error)
        return error

    def forget(self, flow: Flow) -> None:
        self.core.forget(flow)

    # ---- settling; who consumes what is in _subscriptions.py ----

    def settle(self, message: Message, done: bool) -> bool:
        """Ack or Nack, sent together with others of this turn of the loop. From any thread."""
        if self.state == State.CLOSED or not (done or "nack" in self.features):
            return False
        self._settled.append((message, Command.ACK if done else Command.NACK))
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

    def flush_settled(self) -> None:
        self._settling = False
        settled = []
        while self._settled:
            settled.append(self._settled.popleft())
        if settled and self._link is not None:
            self._link.write(self.core.settlements(settled))

    # ---- queues ----

    async def find_queue(self, name: str, *, inside: bool = False, timeout_s: float | None = None) -> QueueInfo | None:
        """`inside`: while the connection is being opened."""
        ask = self.exchange if inside else self.request
        try:
            answer = await ask(Command.QUEUE_INFO, name, timeout_s=timeout_s)
        except QueueNotFound:
            return None
        return info_of(name, answer.payload) if answer.payload else None

    async def is_there(self, name: str, timeout_s: float | None = None) -> bool:
        """Does a queue exist? Who may not ask for it sees it in the list, if any permission of theirs is for it."""
        try:
            return await self.find_queue(name, timeout_s=timeout_s) is not None
        except NotAuthorized:
            answer = await self.request(Command.LIST_QUEUES, timeout_s=timeout_s)
            return name in names_of(answer.payload)

    async def declare(
        self,
        wanted: QueueDeclaration,
        on_conflict: OnConflict,
        *,
        inside: bool = False,
        timeout_s: float | None = None,
    ) -> None:
        """Makes the queue, or looks whether it is as wanted. timeout_s is for each question of up to three."""
        ask = self.exchange if inside else self.request
        info = await self.find_queue(wanted.name, inside=inside, timeout_s=timeout_s)
        if info is not None:
            found = differences(info.options, wanted)
            if not self.features:  # another's broker has no such settings: made again it would be no different
                found = tuple(difference for difference in found if difference.setting not in ADDITIONS)
            if not found:
                return
            told = "; ".join(map(str, found))
            if on_conflict == OnConflict.IGNORE:
                log.warning("queue %s is not as declared: %s", wanted.name, told)
                return
            if on_conflict == OnConflict.FAIL:
                raise QueueConflict(
                    f"queue {wanted.name} is not as declared: {told}",
                    differences=found,
                    hint="Declare it as it is, or with on_conflict=OVERRIDE, which deletes its messages.",
                )
            await ask(Command.DELETE_QUEUE, wanted.name, timeout_s=timeout_s)
        await ask(Command.CREATE_QUEUE, wanted.name, payload=options_payload(wanted), timeout_s=timeout_s)

    async def _provision(self, first: bool) -> None:
        for wanted in self.declarations:
            try:
                await self.declare(wanted, wanted.on_conflict if first else OnConflict.IGNORE, inside=True)
            except (QueueConflict, ConnectionClosed, AuthenticationFailed):
                raise
            except VibeMQError as error:
                if self._fail_on_provisioning_error:
                    raise
                log.warning("queue %s could not be declared: %s", wanted.name, error)
