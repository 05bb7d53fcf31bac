# SPDX-License-Identifier: Apache-2.0
"""One TCP connection of the native client, and where the messages of a subscription go.

Neither decides anything: a Link hands bytes and its end to the Engine, a Feed hands messages to a consumer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING
from weakref import WeakMethod

from vibemq.client._doors import wrong_door
from vibemq.client._native import Message
from vibemq.errors import ConnectionClosed, VibeMQError
from vibemq.protocols.native import codec

if TYPE_CHECKING:
    from vibemq.client._engine import Engine

WRITE_BUFFER_BYTES_MAX = 1_048_576  # what waits in this process for the socket before publishers wait, too

Sink = Callable[[list[Message]], None]


class Feed:
    """One subscription: where its messages go, and who is told when no more will come.

    It does not keep its consumer alive: one that is dropped without a word unsubscribes by that.
    """

    def __init__(
        self,
        queue: str,
        prefetch: int | None,
        create: bool,
        sink: Sink,
        on_end: Callable[[VibeMQError | None], None],
    ) -> None:
        self.queue, self.prefetch, self.create = queue, prefetch, create
        self.stored = False  # its messages come as they are stored
        self.leaving = False  # nobody wants its messages any more, though the broker may not know it yet
        self.left = asyncio.Event()  # and now it does
        self._sink, self._on_end = WeakMethod(sink), WeakMethod(on_end)

    def give(self, messages: list[Message]) -> None:
        if (sink := self._sink()) is not None:
            sink(messages)

    def end(self, why: VibeMQError | None) -> None:
        if (on_end := self._on_end()) is not None:
            on_end(why)


class Link(asyncio.Protocol):
    """One TCP connection. Until the answer to Connect has come, it is the first frame and nothing else is looked at."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.transport: asyncio.Transport | None = None
        self.first: asyncio.Future[codec.Message] = engine.loop.create_future()
        self.received_at = engine.loop.time()
        self.writable = asyncio.Event()
        self.writable.set()
        self.closed = asyncio.Event()
        self.gone = False
        self.why: VibeMQError | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.set_write_buffer_limits(WRITE_BUFFER_BYTES_MAX)
        self.engine.attached(self)

    def data_received(self, data: bytes) -> None:
        self.received_at = self.engine.loop.time()
        self.engine.received(self, data)

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()

    def connection_lost(self, error: Exception | None) -> None:
        self.gone = True
        self.writable.set()
        self.closed.set()
        why = self.why or ConnectionClosed(
            f"{self.engine.settings.peer}: {error or 'the broker closed the connection'}",
            hint="Connect again." if self.first.done() else wrong_door("native"),
        )
        if not self.first.done():
            self.first.set_exception(why)
            self.first.exception()  # somebody may have stopped waiting
        self.engine.lost(self, why)

    def write(self, data: bytes) -> None:
        if self.transport is not None and not self.gone and data:
            self.transport.write(data)

    def end(self, why: VibeMQError) -> None:
        self.why = self.why or why
        if self.transport is not None:
            self.transport.abort()
