# SPDX-License-Identifier: Apache-2.0
"""One TCP connection of the native client: its login, its requests and its pings.

A request belongs to its connection and fails with it. What the bytes that come mean is the Engine's to say.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from typing import Any

from vibemq import __version__
from vibemq.client._failures import no_broker_hint, not_a_broker, refusal, wrong_door
from vibemq.client._native import Core
from vibemq.client.settings import Settings
from vibemq.errors import ConnectionClosed, ProtocolError, TimeoutExceeded, VibeMQError
from vibemq.protocols.native import codec
from vibemq.protocols.native.spec import FEATURE_NAMES, Command, Header, command_name

WRITE_BUFFER_BYTES_MAX = 1_048_576  # what waits in this process for the socket before publishers wait, too


def limit(timeout_s: float) -> asyncio.Timeout:
    """asyncio.timeout, which takes no infinity in every event loop."""
    return asyncio.timeout(None if math.isinf(timeout_s) else timeout_s)


@contextlib.asynccontextmanager
async def within(timeout_s: float, told: str, hint: str) -> AsyncIterator[None]:
    """TimeoutExceeded, with these words, when it takes longer than timeout_s."""
    try:
        async with limit(timeout_s) as scope:
            yield
    except TimeoutError:
        if not scope.expired():
            raise
        raise TimeoutExceeded(told, hint=f"{hint} A longer timeout_s waits longer.") from None


def _no_way_hint(error: OSError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            "tls_ca (--ca-file on the command line, tlsCa in a URL) names the file of the authority that the broker's "
            "certificate is from; is it for this host name?"
        )
    if isinstance(error, ssl.SSLError):
        return f"Is this the port for TLS? {wrong_door('native')}"
    return no_broker_hint("native")


class Link(asyncio.Protocol):
    """Until the answer to Connect has come, it is the first frame and nothing else is looked at.

    `gone`: not yet there, or there no more; what is written then is dropped.
    """

    def __init__(
        self,
        settings: Settings,
        core: Core,
        on_data: Callable[[Link, bytes], None],
        on_lost: Callable[[Link, VibeMQError], None],
    ) -> None:
        self.peer = settings.peer
        self.gone = True
        self.why: VibeMQError | None = None
        self.writable, self.closed = asyncio.Event(), asyncio.Event()
        self.writable.set()
        self.transport: asyncio.Transport | None = None
        self._settings, self._core, self._on_data, self._on_lost = settings, core, on_data, on_lost
        self._loop = asyncio.get_running_loop()
        self._first: asyncio.Future[codec.Message] = self._loop.create_future()
        self._requests: dict[bytes, asyncio.Future[codec.Message]] = {}
        self._received_at = 0.0
        self._lingers = False
        self._ping: asyncio.TimerHandle | None = None

    # ---- opening ----

    async def open(self) -> codec.Message:
        """Connects and logs in; gives the answer to Connect."""
        settings, patience_s = self._settings, self._settings.connect_timeout_s
        context = settings.tls_context()
        try:
            async with self._answer_within(patience_s, "connecting"):
                await self._loop.create_connection(lambda: self, settings.host, settings.port, ssl=context)
        except TimeoutExceeded:
            raise
        except OSError as error:
            raise ConnectionClosed(
                f"{self.peer}: could not connect: {_why(error)}",
                hint=_no_way_hint(error),
            ) from error
        headers = {
            Header.CLIENT_VERSION.value: f"vibemq-python/{__version__}",
            Header.SUPPORTED_COMPRESSION.value: ",".join(settings.compression),
            Header.FEATURES.value: ",".join(FEATURE_NAMES),
            Header.CLIENT.value: self._core.prefix.decode(),
        }
        if settings.user is not None and settings.password is not None:
            headers |= {Header.AUTH_USERNAME.value: settings.user, Header.AUTH_PASSWORD.value: settings.password}
        self.write(self._frame(Command.CONNECT, headers=headers))
        async with self._answer_within(patience_s, "logging in"):
            answer = await self._first
        if answer.type == Command.ERROR:
            raise refusal(f"{self.peer}: logging in", answer.error_code, answer.error_message)
        name = answer.headers.get(Header.NEGOTIATED_COMPRESSION, "").lower() or None
        if name is not None and name not in settings.compression:
            raise ProtocolError(f"{self.peer}: needed one of {settings.compression}, had compression {name!r}")
        self._core.negotiated(name, settings.compression_threshold_bytes)
        return answer

    def _answer_within(self, timeout_s: float, what: str, hint: str = "Is the broker overloaded?") -> Any:
        return within(timeout_s, f"{self.peer}: {what}: nothing came within {timeout_s:g} s", hint)

    def keep_alive(self) -> None:
        """Pings from now on, and ends when nothing comes any more."""
        self._ping = self._loop.call_later(self._settings.keep_alive_s, self._keep_alive)

    def _keep_alive(self) -> None:
        silent = self._loop.time() - self._received_at
        if silent > 2 * self._settings.keep_alive_s:
            told = f"{self.peer}: nothing came for {silent:.0f} s, not even the answer to a ping"
            self.end(ConnectionClosed(told, hint="The broker or the network between is down."))
            return
        self.write(self._frame(Command.PING))
        self.keep_alive()

    # ---- what the event loop calls ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport, self.gone = transport, False
        self._received_at = self._loop.time()
        transport.set_write_buffer_limits(WRITE_BUFFER_BYTES_MAX)
        self._core.restart()

    def data_received(self, data: bytes) -> None:
        self._received_at = self._loop.time()
        if not self._lingers:
            self._on_data(self, data)

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()

    def connection_lost(self, error: Exception | None) -> None:
        self.gone = True
        self.writable.set()
        self.closed.set()
        if self._ping is not None:
            self._ping.cancel()
        why = self.why or ConnectionClosed(
            f"{self.peer}: {error or 'the broker closed the connection'}",
            hint="Connect again." if self._first.done() else wrong_door("native"),
        )
        self.fail(why)
        self._on_lost(self, why)

    # ---- frames ----

    def _frame(self, command: Command, id: bytes | None = None, **fields: Any) -> bytes:
        id = id or self._core.request_id()
        return codec.encode_frame(command, id, text_layout=self._settings.text_layout, **fields)

    def write(self, data: bytes) -> None:
        if self.transport is not None and not self.gone and data:
            self.transport.write(data)

    def post(self, command: Command, queue: str) -> None:
        """Sends it; nobody waits for the answer."""
        self.write(self._core.packed(self._frame(command, queue=queue)))

    async def exchange(
        self, command: Command, queue: str | None = None, *, timeout_s: float | None = None, **fields: Any
    ) -> codec.Message:
        """The answer to a command, or the error that fits it."""
        what = command_name(command) + (f" {queue}" if queue else "")
        if self.gone:
            raise ConnectionClosed(f"{self.peer}: {what}: the connection is gone", hint="Try again.")
        id = self._core.request_id()
        future = self._requests[id] = self._loop.create_future()
        try:
            self.write(self._core.packed(self._frame(command, id, queue=queue, **fields)))
            patience_s = self._settings.command_timeout_s if timeout_s is None else timeout_s
            hint = "It was sent, so it may have been done. Is the broker overloaded?"
            async with self._answer_within(patience_s, what, hint):
                answer = await future
        finally:
            self._requests.pop(id, None)
        if answer.type == Command.ERROR:
            raise refusal(f"{self.peer}: {what}", answer.error_code, answer.error_message)
        return answer

    def take(self, frame: codec.Message) -> codec.Message | None:
        """A frame that is about no message; given back where nobody has asked for it."""
        if frame.type == Command.DISCONNECT:
            reason = frame.headers.get(Header.REASON, "no reason given")
            self.end(ConnectionClosed(f"{self.peer}: the broker said goodbye: {reason}"))
        elif not self._first.done():
            self._first.set_result(frame)
        elif (future := self._requests.pop(frame.id, None)) is None:
            return frame
        elif not future.done():
            future.set_result(frame)
        return None

    # ---- the end ----

    def damaged(self, error: VibeMQError, data: bytes) -> None:
        """`data` is no frame: whoever has not answered Connect yet is most likely no broker at all."""
        answered = self._first.done()
        self.end(ProtocolError(f"{self.peer}: {error}") if answered else not_a_broker(self.peer, "native", data, error))

    def end(self, why: VibeMQError) -> None:
        """At once."""
        self.why = self.why or why
        if self.transport is not None:
            self.transport.abort()

    def fail(self, why: VibeMQError) -> None:
        """Whoever waits for an answer gets this."""
        requests, self._requests = self._requests, {}
        for future in (self._first, *requests.values()):
            if not future.done():
                future.set_exception(why)
                future.exception()  # somebody may have stopped waiting

    def say_goodbye(self, lingers: bool) -> None:
        """Send Disconnect and close; `lingers`: only once the broker has closed.

        A socket that is closed while deliveries arrive resets its connection: the broker might not read the goodbye.
        """
        self.write(self._frame(Command.DISCONNECT))
        if self.transport is None:
            return
        if lingers and self.transport.can_write_eof():
            self._lingers = True
            self.transport.write_eof()
        else:
            self.transport.close()

    async def wait_closed(self, timeout_s: float) -> None:
        """Until the broker has taken our last bytes, or for no longer than timeout_s."""
        if self.gone or self.transport is None:
            return
        try:
            async with asyncio.timeout(timeout_s):
                await self.closed.wait()
        except TimeoutError:
            self.transport.abort()


def _why(problem: OSError) -> str:
    """In the system's words: asyncio's have a tuple in them. Look-ups and TLS have numbers and words of their own."""
    if isinstance(problem, ssl.SSLError | socket.gaierror) or not problem.errno:
        return str(problem.strerror or problem)
    return os.strerror(problem.errno)
