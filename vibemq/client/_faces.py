# SPDX-License-Identifier: Apache-2.0
"""What both faces of the native client have in common: all of them that never waits.

Waiting is where they differ, so each does it by itself: `aio` in the caller's event loop, `sync` with a loop in a
thread of its own. Nothing here locks: who lets several threads in, as sync.Publisher does, holds a lock around it.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from vibemq.client._engine import Engine, State
from vibemq.client._native import Message
from vibemq.client._outgoing import BATCH_BYTES_MAX, Batch, Flow
from vibemq.client.publishing import Headers, Priority, Summary, batch_count, fields_of, summary
from vibemq.protocols.native.spec import FORM_STORED


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


class PublisherFace:
    """The batch that is being filled, and what became of those before it."""

    def __init__(self, engine: Engine, queue: str, window: int, raw: bool, flow: Flow, stored: bool = False) -> None:
        self.queue = queue
        self._engine, self._window, self._raw, self._flow = engine, window, raw, flow
        self._count = batch_count(window)
        self._stored = stored
        self._batch = Batch(engine.core, queue, stored)
        self._acked_before = 0

    @property
    def in_flight(self) -> int:
        """How many messages the broker has not yet acknowledged.

        >>> client.publisher("docs").in_flight
        0
        """
        return self._flow.in_flight + self._batch.count

    def _add(self, payload: Any, headers: Headers, id: str | None, priority: Priority) -> bool:
        """Puts a message into the batch. True: it is time to send it, and to wait for room."""
        self._batch.add(payload, fields_of(headers, priority), self._raw, id)
        full = self._batch.count >= self._count or self._batch.size_bytes >= BATCH_BYTES_MAX
        return full or self.in_flight >= self._window

    def _take(self) -> Batch:
        batch, self._batch = self._batch, Batch(self._engine.core, self.queue, self._stored)
        return batch

    def _summary(self) -> Summary:
        """What became of the messages since the last time."""
        found = summary(self._flow, self.queue, self._acked_before)
        self._acked_before += found.published
        return found


class ConsumerFace:
    """The messages that have come and were not yet handed out, and the one that was handed out last."""

    def __init__(self, queue: str, auto_ack: bool, timeout_s: float | None) -> None:
        self.queue = queue
        self._auto_ack, self._timeout_s = auto_ack, timeout_s
        self._messages: deque[Message] = deque()
        self._open = self._over = False
        self._last: Message | None = None

    def _next_here(self) -> Message | None:
        while self._messages:
            message = self._messages.popleft()
            if not message.stale:  # else it comes again
                self._last = message
                return message
        return None

    def _settle_last(self, *, failed: bool = False) -> None:
        """With auto_ack, what becomes of the message at hand now that its reader is done with it."""
        if self._auto_ack and self._last is not None:
            if failed:
                self._last.nack()
            else:
                self._last.ack()
        self._last = None
