# SPDX-License-Identifier: Apache-2.0
"""One run of a fan-out: one publisher, and every message to each of many subscribers on a connection of its own.

Subscriptions acknowledge by themselves, as most clients of topics have it. A thread of the generator watches its share
of the subscribers with epoll; each must get every message once and in order, or the run is an error.

With `one_in` they have filters: all messages pass at 1; at 16 only those do whose number ends with the subscriber's
digit. Only MicroMsg2 has filters.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.peers import PEERS
from benchmarks.peers.topic import TopicPeer
from vibemq.bench.load import Result
from vibemq.bench.queues import QueueLoad
from vibemq.bench.run import POLL_S, SETTLED_TIMEOUT_S, Run
from vibemq.errors import UserError, VibeMQError

FILTER_OF_ALL = "kind=Torder;size<N1000"
DIGITS = 16  # a number ends with one of so many


@dataclass(frozen=True)
class FanOut(QueueLoad):
    """Mode pub, or lat with a rate; a latency then is that of each delivery."""

    subscribers: int = 1_000
    threads: int = 1
    one_in: int = 0

    def settings(self) -> dict[str, Any]:
        return super().settings() | {"subscribers": self.subscribers}

    def filter(self, place: int) -> str:
        """That of the subscriber with this place."""
        return {0: "", 1: FILTER_OF_ALL}.get(self.one_in, f"number>T{place % DIGITS:x}")

    def check(self) -> None:
        super().check()
        if self.mode not in ("pub", "lat") or self.publishers != 1:
            raise UserError(f"fan-out: needed one publisher and mode pub or lat, had {self.mode}")
        if not 1 <= self.threads <= self.subscribers:
            raise UserError(f"threads: needed 1 to {self.subscribers}, one for each subscriber, had {self.threads}")
        if self.one_in not in (0, 1, DIGITS) or self.messages % max(1, self.one_in):
            raise UserError(f"one_in: needed 0, 1 or, of a multiple of {DIGITS} messages, {DIGITS}; had {self.one_in}")
        if not issubclass(PEERS[self.protocol], TopicPeer):
            raise UserError(f"fan-out: needed a protocol with topics, had {self.protocol}")


def run(load: FanOut, look: Callable[[], None] | None = None) -> Result:
    """Makes the topic, subscribes, publishes, and gives the figures; raises if a delivery was lost or out of order.

    Of the result `consumed` are deliveries, those of all subscribers.
    """
    load.check()
    peer = PEERS[load.protocol](load)
    assert isinstance(peer, TopicPeer)
    try:
        peer.create_topic()
        try:
            return FanOutRun(peer).go(look)
        finally:
            peer.delete()
    finally:
        peer.close()


class FanOutRun(Run):
    """A thread for the publisher, and some for the subscribers."""

    load: FanOut

    def __init__(self, peer: TopicPeer) -> None:
        load = peer.load
        super().__init__(peer)
        self.sockets: list[socket.socket] = []
        self.step = max(1, load.one_in)
        self.for_each = load.messages // self.step

    def open(self) -> None:
        listeners = [self._subscriber(place) for place in range(self.load.subscribers)]
        self._await_subscribers()
        self.publishers.append(self.peer.publisher(0))
        for number in range(self.load.threads):
            audience = self.peer.audience(
                connections=listeners[number :: self.load.threads],
                messages=self.for_each,
                step=self.step,
                timed=self.load.mode == "lat",
            )
            self.consumers.append(audience)

    def _subscriber(self, place: int) -> tuple[socket.socket, bytes, int]:
        """As an audience takes it."""
        wire = self.peer.subscriber(self.load.filter(place))
        self.sockets.append(wire.socket)
        return wire.socket, bytes(wire.held), place % self.step

    def _await_subscribers(self) -> None:
        """A topic keeps nothing for who comes later, and a stream's beginning is not answered."""
        end = time.monotonic() + SETTLED_TIMEOUT_S
        while (count := self.peer.subscribers()) < self.load.subscribers:
            if time.monotonic() > end:
                raise VibeMQError(f"fan-out: needed {self.load.subscribers} subscribers, the server has {count}")
            time.sleep(POLL_S)

    def connections(self) -> list[Any]:
        return [*self.sockets, *(publisher.connection for publisher in self.publishers)]

    def is_over(self) -> bool:
        return any(flow.fault for flow in self.flows)

    def check(self, result: Result) -> None:
        for fault in filter(None, (flow.fault for flow in self.flows)):
            raise VibeMQError(f"fan-out: {fault}; {self.state()}")
        wanted = self.for_each * self.load.subscribers
        least = min(audience.least for audience in self.consumers)
        strange = self.publishers[0].strange
        if result.confirmed < self.load.messages or strange:
            raise VibeMQError(f"fan-out: not all was confirmed: {self.state()}, {strange} acks for nothing")
        if result.consumed != wanted or least != self.for_each or result.disordered:
            raise VibeMQError(
                f"fan-out: needed {wanted} deliveries, had {result.consumed}; one subscriber had {least} of "
                f"{self.for_each}, {result.disordered} were out of order"
            )
