# SPDX-License-Identifier: Apache-2.0
"""One run of a fan-out: one publisher, and every message to each of many subscribers on a connection of its own.

Subscriptions acknowledge by themselves, as most clients of topics have it. A thread of the generator watches its share
of the subscribers with epoll; each must get every message once and in order, or the run is an error.

With `one_in` they have filters: all messages pass at 1; at 16 only those do whose number ends with the subscriber's
digit. Only MicroMsg2 has filters.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.peers import PEERS
from benchmarks.peers._audience import Audience
from benchmarks.peers.topic import TopicPeer
from vibemq.bench.queues import SETTLED_TIMEOUT_S, QueueLoad, QueueResult
from vibemq.bench.running import POLL_S, Run
from vibemq.errors import UserError, VibeMQError

FILTER_OF_ALL = "kind=Torder;size<N1000"
DIGITS = 16  # a number ends with one of so many


@dataclass(frozen=True, slots=True)
class FanOut:
    """`load` is the publisher's: mode pub, or lat with a rate; a latency then is that of each delivery."""

    load: QueueLoad
    subscribers: int = 1_000
    threads: int = 1
    one_in: int = 0

    def filter(self, place: int) -> str:
        """That of the subscriber with this place."""
        return {0: "", 1: FILTER_OF_ALL}.get(self.one_in, f"number>T{place % DIGITS:x}")

    def check(self) -> None:
        self.load.check()
        if self.load.mode not in ("pub", "lat") or self.load.publishers != 1:
            raise UserError(f"fan-out: needed one publisher and mode pub or lat, had {self.load.mode}")
        if not 1 <= self.threads <= self.subscribers:
            raise UserError(f"threads: needed 1 to {self.subscribers}, one for each subscriber, had {self.threads}")
        if self.one_in not in (0, 1, DIGITS) or self.load.messages % max(1, self.one_in):
            raise UserError(f"one_in: needed 0, 1 or, of a multiple of {DIGITS} messages, {DIGITS}; had {self.one_in}")
        if not issubclass(PEERS[self.load.protocol], TopicPeer):
            raise UserError(f"fan-out: needed a protocol with topics, had {self.load.protocol}")


@dataclass(slots=True)
class FanOutResult(QueueResult):
    """`consumed` are deliveries, those of all subscribers."""

    subscribers: int = 0

    def figures(self) -> dict[str, Any]:
        return QueueResult.figures(self) | {"subscribers": self.subscribers}


def run(fan_out: FanOut, look: Callable[[], None] | None = None) -> FanOutResult:
    """Makes the topic, subscribes, publishes, and gives the figures; raises if a delivery was lost or out of order."""
    fan_out.check()
    peer = PEERS[fan_out.load.protocol](fan_out.load)
    assert isinstance(peer, TopicPeer)
    try:
        peer.create_topic()
        try:
            return _Run(fan_out, peer).go(look)
        finally:
            peer.delete()
    finally:
        peer.close()


class _Run(Run):
    """A thread for the publisher, and some for the subscribers."""

    def __init__(self, fan_out: FanOut, peer: TopicPeer) -> None:
        super().__init__(fan_out.load)
        self.fan_out, self.peer = fan_out, peer
        self.audiences: list[Audience] = []

    def go(self, look: Callable[[], None] | None) -> FanOutResult:
        try:
            listeners = [self._subscriber(place) for place in range(self.fan_out.subscribers)]
            self._await_consumers()
            connection, self.publisher = self.peer.publisher(0)
            self.sockets.append(connection)
            for number in range(self.fan_out.threads):
                audience = self.peer.audience(
                    connections=listeners[number :: self.fan_out.threads],
                    messages=self._for_each,
                    step=self._step,
                    timed=self.load.mode == "lat",
                )
                self.audiences.append(audience)
                self.add_thread(audience.run, f"audience {number}")
            self.add_thread(self.publisher.run, "publisher")
            result = self._measure()
            if look is not None:
                look()
            return result
        finally:
            self.stop([*self.audiences, *([self.publisher] if self.audiences else [])])

    @property
    def _step(self) -> int:
        return max(1, self.fan_out.one_in)

    @property
    def _for_each(self) -> int:
        return self.load.messages // self._step

    def _subscriber(self, place: int) -> tuple[int, bytes, int]:
        """As an audience takes it."""
        wire = self.peer.subscriber(self.fan_out.filter(place))
        self.sockets.append(wire.socket)
        return wire.socket.fileno(), wire.rest(), place % self._step

    def _await_consumers(self) -> None:
        """A topic keeps nothing for who comes later, and a stream's beginning is not answered."""
        end = time.monotonic() + SETTLED_TIMEOUT_S
        while (count := self.peer.subscribers()) < self.fan_out.subscribers:
            if time.monotonic() > end:
                raise VibeMQError(f"fan-out: needed {self.fan_out.subscribers} subscribers, the server has {count}")
            time.sleep(POLL_S)

    @property
    def delivered(self) -> int:
        return sum(audience.received for audience in self.audiences)

    def state(self) -> str:
        return f"sent {self.publisher.sent}, confirmed {self.publisher.confirmed}, delivered {self.delivered}"

    def faults(self) -> list[str]:
        return [fault for fault in (self.publisher.fault, *(audience.fault for audience in self.audiences)) if fault]

    def is_over(self) -> bool:
        return bool(self.faults())

    def _measure(self) -> FanOutResult:
        result = FanOutResult(self.load, subscribers=self.fan_out.subscribers)
        start_ns = self.measure(result)
        result.add_publisher(self.publisher, self.publisher.last_ns - start_ns)
        for audience in self.audiences:
            result.add_consumer(audience, audience.last_ns - start_ns)
        for fault in self.faults():
            raise VibeMQError(f"fan-out: {fault}; {self.state()}")
        wanted = self._for_each * self.fan_out.subscribers
        least = min(audience.least for audience in self.audiences)
        disordered = sum(audience.disordered for audience in self.audiences)
        if result.confirmed < self.load.messages or self.publisher.strange:
            raise VibeMQError(
                f"fan-out: not all was confirmed: {self.state()}, {self.publisher.strange} acks for nothing"
            )
        if result.consumed != wanted or least != self._for_each or disordered:
            raise VibeMQError(
                f"fan-out: needed {wanted} deliveries, had {result.consumed}; one subscriber had {least} of "
                f"{self._for_each}, {disordered} were out of order"
            )
        return result
