# SPDX-License-Identifier: Apache-2.0
"""One run of the load generator: connections, a thread for each, one clock, and figures.

It knows nothing of the server behind the port, so the same run measures this broker and any other server whose protocol
has a Peer. A run in which anything was refused or lost is an error and no figure; with `verify` every message must come
in order, where consumers share the messages each of them once, and every ack must be for a message that waited for one.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from vibemq.bench._flow import Consumer, Flow, Publisher, Tunnel
from vibemq.bench.load import Load, Peer, Result
from vibemq.bench.queues import Native
from vibemq.bench.streams import Streams
from vibemq.errors import TimeoutExceeded, UserError, VibeMQError

PEERS: dict[str, Callable[[Any], Peer]] = {"streams": Streams, "native": Native}
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
POLL_S = 0.01
SETTLED_TIMEOUT_S = 10.0  # acks are not answered: the server needs a moment until it has read the last one


def run(
    load: Load, look: Callable[[], None] | None = None, peers: Mapping[str, Callable[[Any], Peer]] = PEERS
) -> Result:
    """Creates what is to be loaded, loads it, deletes it, and gives the figures; raises if anything was lost.

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
            return Run(peer).go(look)
        finally:
            if not load.keep:
                peer.delete()
    finally:
        peer.close()


class Run:
    """A connection with a thread for each publisher and consumer."""

    def __init__(self, peer: Peer) -> None:
        self.peer, self.load = peer, peer.load
        self.publishers: list[Publisher] = []
        self.consumers: list[Consumer] = []
        self.threads: list[threading.Thread] = []

    @property
    def flows(self) -> list[Flow]:
        return [*self.consumers, *self.publishers]

    def go(self, look: Callable[[], None] | None = None) -> Result:
        try:
            self.open()
            with ExitStack() as stack:
                if self.load.apart:
                    stack.enter_context(only_on(max(os.sched_getaffinity(0)), self.load.broker_pid))
                result = self.measure()
            self.check(result)
            if look is not None:
                look()
            return result
        finally:
            self.stop()

    def open(self) -> None:
        """Consumers first: what is published meets them."""
        for number in range(self.load.consumers if self.load.consumes else 0):
            self.consumers.append(self.peer.consumer(number))
        for number in range(self.load.publishers if self.load.publishes else 0):
            self.publishers.append(self.peer.publisher(number))

    def body(self, flow: Flow) -> None:
        if self.load.apart:
            os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        flow.run()

    def measure(self) -> Result:
        """Lets the threads run."""
        load, result = self.load, Result(self.load)
        for number, flow in enumerate(self.flows):
            name = f"vibemq bench {number}"
            self.threads.append(threading.Thread(target=self.body, args=(flow,), name=name, daemon=True))
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
        result.add(self.publishers, self.consumers, start_ns)
        return result

    def is_over(self) -> bool:
        """Asked while threads run: is there nothing left to wait for?"""
        shared = self.peer.shares and len(self.consumers) > 1
        if shared and sum(consumer.received for consumer in self.consumers) >= self.load.messages:
            for consumer in self.consumers:  # none of them knows how many messages the others had
                consumer.stop()
        return any(flow.fault for flow in self.flows)

    def state(self) -> str:
        """How far it has come, for an error."""
        return (
            f"sent {sum(p.sent for p in self.publishers)}, confirmed {sum(p.confirmed for p in self.publishers)}, "
            f"consumed {sum(c.received for c in self.consumers)}"
        )

    def check(self, result: Result) -> None:
        """A run in which anything was refused, lost or out of order raises."""
        load, peer, tally = self.load, self.peer, self.peer.tally
        peer.check(self.flows)
        fault = next((flow.fault for flow in self.flows if flow.fault), "")
        missing = any(consumer.received < consumer.wanted for consumer in self.consumers)
        if peer.shares:
            missing = load.consumes and result.consumed < load.messages
        if fault or missing or result.confirmed < sum(publisher.total for publisher in self.publishers):
            how = f": {fault}" if fault else ""
            raise VibeMQError(f"{load.mode} run: a connection ended before all was done{how}: {self.state()}")
        if strange := sum(publisher.strange for publisher in self.publishers):
            raise VibeMQError(f"{load.mode} run: {strange} acks were for messages that waited for none")
        if tally is not None and load.consumes:
            result.repeated = tally.repeated
            in_order = not result.disordered or load.consumers > 1
            if tally.missing or tally.repeated or tally.strange or not in_order:
                raise VibeMQError(
                    f"{load.mode} run: {tally.missing} messages were missing, {tally.repeated} came again, "
                    f"{tally.strange} were not ours, {result.disordered} out of order"
                )
        elif result.disordered:
            raise VibeMQError(f"{load.mode} run: {result.disordered} messages were not what their producer sent next")
        if load.consumes:
            self.await_settled()

    def await_settled(self) -> None:
        """Nothing may be left: what a server has not taken for acknowledged, it would deliver again."""
        end = time.monotonic() + SETTLED_TIMEOUT_S
        while left := self.peer.left():
            if time.monotonic() > end:
                raise VibeMQError(f"{self.load.mode} run: {left} messages were acknowledged and are still in the queue")
            time.sleep(POLL_S)

    def stop(self) -> None:
        """Ends the threads by ending their sockets; a closed descriptor is never left to a running thread."""
        connections = self.connections()
        for flow in self.flows:
            flow.stop()
        for connection in connections:
            with suppress(OSError):  # the other side was quicker
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self.threads:
            if thread.ident is not None:
                thread.join()
        for connection in connections:
            connection.close()

    def connections(self) -> list[socket.socket | Tunnel]:
        return [flow.connection for flow in self.flows]


# ---- processor time and place of a process and all that it started ----


def tree_cpu_s(pid: int) -> float:
    """User and system seconds of `pid` and its descendants that are alive now."""
    return sum(tree_pids(pid).values())


@contextmanager
def only_on(core: int, pid: int) -> Iterator[None]:
    """Keeps every thread of `pid` and its descendants on one core for as long as this lasts."""
    threads = [int(task.name) for process in tree_pids(pid) for task in Path(f"/proc/{process}/task").iterdir()]
    before = {}
    try:
        for thread in threads:
            with suppress(ProcessLookupError):
                before[thread] = os.sched_getaffinity(thread)
                os.sched_setaffinity(thread, {core})
        yield
    finally:
        for thread, cores in before.items():
            with suppress(ProcessLookupError):
                os.sched_setaffinity(thread, cores)


def tree_pids(pid: int) -> dict[int, float]:
    """`pid` and its descendants, with the seconds that each has used."""
    parents: dict[int, int] = {}
    seconds: dict[int, float] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it ended while we looked
            stat = (folder / "stat").read_text()
            # The name in parentheses may hold anything, so the fields are counted from the last parenthesis.
            fields = stat[stat.rindex(")") + 2 :].split()
            parents[int(folder.name)] = int(fields[1])
            seconds[int(folder.name)] = (int(fields[11]) + int(fields[12])) / TICKS_PER_S
    if pid not in seconds:
        raise UserError(f"process {pid}: there is none", hint="Give the process id of the broker's first process.")
    return {process: used for process, used in seconds.items() if _descends(process, pid, parents)}


def _descends(process: int, ancestor: int, parents: dict[int, int]) -> bool:
    while process not in (ancestor, 0):
        process = parents.get(process, 0)
    return process == ancestor
