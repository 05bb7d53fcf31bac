# SPDX-License-Identifier: Apache-2.0
"""One run of the queue load generator: publish, deliver and acknowledge, against any server whose protocol has a Peer.

A run in which anything was refused or lost is an error and no figure; with `verify` every message must come once and
in its queue's order, and every ack must be for a message that waited for one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from vibemq.bench._flow import SIZE_MIN, Consumer, Flow, Publisher, Tally
from vibemq.bench.cpu import only_on
from vibemq.bench.native import Native
from vibemq.bench.peer import Peer
from vibemq.bench.running import POLL_S, Outcome, Run, check_load
from vibemq.errors import UserError, VibeMQError

MODES = {
    "pub": "publish, and wait for every ack",
    "con": "consume and acknowledge what an earlier run left (--keep)",
    "both": "publish, deliver and acknowledge at the same time",
    "rtt": "publish one message at a time and measure the way to its ack and back",
    "lat": "publish at --rate and measure each message from its scheduled sending to its arrival",
}
PERCENTILES = {"p50": 50.0, "p99": 99.0, "p999": 99.9}
PEERS: dict[str, type[Peer]] = {"native": Native}
SETTLED_TIMEOUT_S = 10.0  # acks are not answered: the server needs a moment until it has read the last one


@dataclass(frozen=True, slots=True)
class QueueLoad:
    """What a run does. `rate` is of all publishers together, 0: as fast as can be; port 0: the protocol's own.

    apart: the server runs on the last core and the load threads on the first. Left alone, the kernel sometimes puts
    both ends of a round trip on one core, where it takes a quarter of the time, and sometimes not.
    """

    protocol: str = "native"
    host: str = "127.0.0.1"
    port: int = 0
    user: str = ""
    password: str = field(default="", repr=False)
    queue: str = "bench"
    mode: str = "both"
    messages: int = 1_000_000
    size_bytes: int = 100
    window: int = 10_000
    group: int = 500
    prefetch: int = 10_000
    publishers: int = 1
    consumers: int = 1
    queues: int = 1
    rate: float = 0.0
    durability: str = ""
    verify: bool = False
    keep: bool = False
    timeout_s: float = 120.0
    broker_pid: int = 0
    apart: bool = False

    @property
    def publishes(self) -> bool:
        return self.mode != "con"

    @property
    def consumes(self) -> bool:
        return self.mode not in ("pub", "rtt")

    def check(self) -> None:
        """Refuses what would not measure what it says."""
        check_load(self, MODES, ("messages", "window", "group", "prefetch", "publishers", "consumers", "queues"))
        if self.size_bytes < SIZE_MIN:
            raise UserError(
                f"size: needed {SIZE_MIN} bytes or more, had {self.size_bytes}",
                hint="A body is JSON and holds its sending time and its number.",
            )
        if self.mode == "lat" and not self.rate:
            raise UserError("mode lat: needed a rate, had none", hint="Give --rate, for example 20000.")
        if self.messages % self.publishers:
            raise UserError(f"messages: needed a multiple of {self.publishers} publishers, had {self.messages}")
        if self.messages >= 1 << 32:
            raise UserError(f"messages: needed fewer than 2^32, had {self.messages}")
        if self.apart and (not self.broker_pid or len(os.sched_getaffinity(0)) < 2):
            raise UserError("apart: needed two cores and the server's process id")
        if self.queues > 1 and self.protocol != "native":
            raise UserError(f"queues: needed 1 with {self.protocol}, had {self.queues}")
        if self.protocol == "echo" and self.consumes:
            raise UserError(f"protocol echo: needed mode pub or rtt, had {self.mode}")
        if self.consumers > self.queues > 1:
            raise UserError(f"consumers: needed at most {self.queues}, one for each queue, had {self.consumers}")


@dataclass(slots=True)
class QueueResult(Outcome):
    """Rates are from the common start to the last publisher's ack and the last delivery's ack."""

    load: QueueLoad
    repeated: int = 0

    def figures(self) -> dict[str, Any]:
        """Flat, named with units: the JSON line."""
        load = self.load
        figures: dict[str, Any] = {
            "protocol": load.protocol,
            "mode": load.mode,
            "size_bytes": load.size_bytes,
            "window": load.window,
            "group": load.group,
            "prefetch": load.prefetch,
            "queues": load.queues,
            "publishers": load.publishers if load.publishes else 0,
            "consumers": load.consumers if load.consumes else 0,
            "rate_msg_s": load.rate,
            "sent": self.sent,
            "confirmed": self.confirmed,
            "consumed": self.consumed,
            "repeated": self.repeated,
            "wall_s": round(self.wall_s, 3),
            "publish_msg_s": round(self.confirmed / self.publish_s) if self.publish_s else 0,
            "consume_msg_s": round(self.consumed / self.consume_s) if self.consume_s else 0,
            "client_cpu_us_per_msg": round(self.client_cpu_s * 1e6 / self.handled, 4),
        }
        if load.broker_pid:
            figures["broker_cpu_us_per_msg"] = round(self.broker_cpu_s * 1e6 / self.handled, 4)
        return figures | self.percentiles(PERCENTILES)


def run(
    load: QueueLoad, look: Callable[[], None] | None = None, peers: Mapping[str, type[Peer]] = PEERS
) -> QueueResult:
    """Creates the queues, runs the load, deletes them, and gives the figures; raises if anything was lost.

    look: is called when all is done and everything is still connected.
    """
    if load.protocol not in peers:
        raise UserError(f"protocol: needed one of {', '.join(peers)}, had {load.protocol}")
    load.check()
    peer = peers[load.protocol](load)
    try:
        if load.publishes:
            peer.create()
        try:
            return _Run(load, peer).go(look)
        finally:
            if not load.keep:
                peer.delete()
    finally:
        peer.close()


class _Run(Run):
    """A connection for each publisher and consumer."""

    load: QueueLoad

    def __init__(self, load: QueueLoad, peer: Peer) -> None:
        super().__init__(load)
        self.peer = peer
        self.tally = Tally(load.messages, load.queues) if load.verify else None
        self.publishers: list[Publisher] = []
        self.consumers: list[Consumer] = []

    @property
    def flows(self) -> list[Flow]:
        return [*self.consumers, *self.publishers]

    def go(self, look: Callable[[], None] | None = None) -> QueueResult:
        load = self.load
        try:
            if load.consumes:
                for number in range(load.consumers):
                    connection, consumer = self.peer.consumer(number, self.tally)
                    self.sockets.append(connection)
                    self.consumers.append(consumer)
            if load.publishes:
                for number in range(load.publishers):
                    connection, publisher = self.peer.publisher(number)
                    self.sockets.append(connection)
                    self.publishers.append(publisher)
            for number, flow in enumerate(self.flows):
                self.add_thread(partial(self._body, flow), str(number))
            with ExitStack() as stack:
                if load.apart:
                    stack.enter_context(only_on(max(os.sched_getaffinity(0)), load.broker_pid))
                result = self._measure()
            if look is not None:
                look()
            return result
        finally:
            self.stop(self.flows)

    def _body(self, flow: Flow) -> None:
        if self.load.apart:
            os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        flow.run()

    def is_over(self) -> bool:
        """Consumers of one queue stop together: none of them knows how many messages the others had."""
        if len(self.consumers) > 1 and sum(c.received for c in self.consumers) >= self.load.messages:
            for consumer in self.consumers:
                consumer.stop()
        return any(flow.fault for flow in self.flows)

    def _measure(self) -> QueueResult:
        result = QueueResult(self.load)
        start_ns = self.measure(result)
        for publisher in self.publishers:
            result.add_publisher(publisher, publisher.last_ns - start_ns)
        for consumer in self.consumers:
            result.add_consumer(consumer, consumer.last_ns - start_ns)
        self._check(result)
        return result

    def state(self) -> str:
        return (
            f"sent {sum(p.sent for p in self.publishers)}, confirmed {sum(p.confirmed for p in self.publishers)}, "
            f"consumed {sum(c.received for c in self.consumers)}"
        )

    def _check(self, result: QueueResult) -> None:
        """A run in which anything was refused, lost or out of order raises."""
        load = self.load
        for fault in filter(None, (flow.fault for flow in self.flows)):
            raise VibeMQError(f"{load.mode} run: {fault}; {self.state()}")
        if (load.publishes and result.confirmed < load.messages) or (load.consumes and result.consumed < load.messages):
            raise VibeMQError(f"{load.mode} run: a connection ended before all was done: {self.state()}")
        if strange := sum(publisher.strange for publisher in self.publishers):
            raise VibeMQError(f"{load.mode} run: {strange} acks were for messages that waited for none")
        if self.tally is not None and load.consumes:
            result.repeated = self.tally.repeated
            disordered = sum(consumer.disordered for consumer in self.consumers)
            if self.tally.missing or self.tally.repeated or self.tally.strange or (disordered and load.consumers == 1):
                raise VibeMQError(
                    f"{load.mode} run: {self.tally.missing} messages were missing, {self.tally.repeated} came again, "
                    f"{self.tally.strange} were not ours, {disordered} out of order"
                )
        if load.consumes:
            self._await_settled()

    def _await_settled(self) -> None:
        """Nothing may be left: what a server has not taken for acknowledged, it would deliver again."""
        end = time.monotonic() + SETTLED_TIMEOUT_S
        while left := self.peer.left():
            if time.monotonic() > end:
                raise VibeMQError(f"{self.load.mode} run: {left} messages were acknowledged and are still in the queue")
            time.sleep(POLL_S)
