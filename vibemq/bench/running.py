# SPDX-License-Identifier: Apache-2.0
"""What a run of either load generator is: sockets, a thread for each end of the load, one clock, and figures.

A subclass of Run opens the sockets, adds the threads, calls `measure` and, whatever happened, `stop`.
"""

from __future__ import annotations

import socket
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from vibemq.bench._histogram import Histogram
from vibemq.bench.cpu import tree_cpu_s
from vibemq.errors import TimeoutExceeded, UserError

POLL_S = 0.01


def check_load(load: Any, modes: Iterable[str], counts: Iterable[str]) -> None:
    """Refuses a mode that there is not, and a count of nothing."""
    if load.mode not in modes:
        raise UserError(f"mode: needed one of {', '.join(modes)}, had {load.mode}")
    for name in counts:
        if getattr(load, name) < 1:
            raise UserError(f"{name}: needed 1 or more, had {getattr(load, name)}")


@dataclass(slots=True)
class Outcome:
    """What a run gave. `publish_s` and `consume_s` are from the common start to the last that was heard of either."""

    load: Any
    sent: int = 0
    confirmed: int = 0
    consumed: int = 0
    wall_s: float = 0.0
    publish_s: float = 0.0
    consume_s: float = 0.0
    broker_cpu_s: float = 0.0
    client_cpu_s: float = 0.0
    latencies: Histogram = field(default_factory=Histogram)
    confirms: Histogram = field(default_factory=Histogram)

    def add_publisher(self, end: Any, took_ns: int) -> None:
        self.sent += end.sent
        self.confirmed += end.confirmed
        self.publish_s = max(self.publish_s, took_ns / 1e9)
        self.confirms.merge(end.confirms)

    def add_consumer(self, end: Any, took_ns: int) -> None:
        self.consumed += end.received
        self.consume_s = max(self.consume_s, took_ns / 1e9)
        self.latencies.merge(end.latencies)

    @property
    def handled(self) -> int:
        """How many messages the CPU time is shared among."""
        return max(self.confirmed, self.consumed, 1)

    def percentiles(self, percents: dict[str, float]) -> dict[str, dict[str, int]]:
        """Of what was timed: the percentiles by name, and the largest."""
        return {
            name: {key: histogram.percentile_us(percent) for key, percent in percents.items()}
            | {"max": histogram.max_us}
            for name, histogram in (("latency_us", self.latencies), ("confirm_us", self.confirms))
            if histogram.total
        }


class Run(ABC):
    """The sockets and threads of one run."""

    def __init__(self, load: Any) -> None:
        self.load = load
        self.sockets: list[socket.socket] = []
        self.threads: list[threading.Thread] = []

    @abstractmethod
    def state(self) -> str:
        """How far it has come, for an error."""

    def is_over(self) -> bool:
        """Asked while threads run: is there nothing left to wait for?"""
        return False

    def add_thread(self, body: Callable[[], None], name: str) -> None:
        self.threads.append(threading.Thread(target=body, name=f"vibemq bench {name}", daemon=True))

    def measure(self, result: Outcome) -> int:
        """Lets the threads run and takes the times into `result`; gives the start in nanoseconds."""
        load = self.load
        broker_cpu_s = tree_cpu_s(load.broker_pid) if load.broker_pid else 0.0
        client_cpu_s, start_ns = time.process_time(), time.monotonic_ns()
        for thread in self.threads:
            thread.start()
        end = time.monotonic() + load.timeout_s
        while any(thread.is_alive() for thread in self.threads) and not self.is_over():
            if time.monotonic() > end:
                raise TimeoutExceeded(
                    f"{load.mode} run: not done within {load.timeout_s:g} s: {self.state()}",
                    hint="Raise --timeout, or send fewer --messages.",
                )
            time.sleep(POLL_S)
        result.wall_s = (time.monotonic_ns() - start_ns) / 1e9
        result.client_cpu_s = time.process_time() - client_cpu_s
        if load.broker_pid:
            result.broker_cpu_s = tree_cpu_s(load.broker_pid) - broker_cpu_s
        return start_ns

    def stop(self, ends: Iterable[Any]) -> None:
        """Ends the threads by ending their sockets; a closed descriptor is never left to a running thread."""
        for end in ends:
            end.stop()
        for connection in self.sockets:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:  # the other side was quicker
                continue
        for thread in self.threads:
            if thread.ident is not None:
                thread.join()
        for connection in self.sockets:
            connection.close()
