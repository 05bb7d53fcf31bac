# SPDX-License-Identifier: Apache-2.0
"""The SignalR door under load: invocations with completion, deliveries, fan-out, and connections that do nothing.

Beside it null hubs that show where the load generator ends, and, where an interpreter with aiosignalr is named, that
hub as a peer.
"""

from __future__ import annotations

import os
import selectors
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import click

from benchmarks import fanout
from benchmarks.compare import Scenario, comparison, tell
from benchmarks.fanout import FanOut
from benchmarks.figures import as_many_files_as_allowed, memory_mb
from benchmarks.peers.signalr import HubWire, json_record
from benchmarks.servers import (
    NullSignalR,
    NullSignalRMessagePack,
    Server,
    VibeMQ,
    VibeMQSignalR,
    VibeMQSignalRMessagePack,
    version_of,
)
from vibemq.bench.queues import QueueLoad
from vibemq.bench.run import tree_cpu_s
from vibemq.errors import VibeMQError

PEER_PYTHON = "VIBEMQ_PEER_PYTHON"  # an interpreter with aiosignalr; without, there is no peer
CLIENT_PING_S = 10.0  # more often than clients do
IDLE_S = 25.0  # two keep-alive pings to each connection, and two back
PING = {"type": 6}


class AioSignalR(Server):
    """aiosignalr 0.1.1 or newer, from PyPI; it keeps nothing."""

    name = "aiosignalr"
    protocol = "signalr"
    durability = "none"
    scale = 0.02

    @staticmethod
    def python() -> str:
        named = os.environ.get(PEER_PYTHON, "")
        return named and os.path.abspath(named)  # it is started in a folder of its own

    @classmethod
    def missing(cls) -> str:
        if not cls.python():
            return f"{PEER_PYTHON} names no interpreter that has it"
        found = subprocess.run([cls.python(), "-c", "import aiosignalr"], capture_output=True, check=False)
        return f"{cls.python()} has no aiosignalr" if found.returncode else ""

    def launch(self) -> None:
        hub = Path(__file__).resolve().with_name("aiosignalr_hub.py")
        self.port = int(self.ready_line(self.spawn([self.python(), str(hub)]))["port"])

    def version(self) -> str:
        return version_of(self.python(), "-c", "from importlib.metadata import version; print(version('aiosignalr'))")


class AioSignalRMessagePack(AioSignalR):
    """The same for clients that speak MessagePack."""

    name = "aiosignalr-messagepack"
    protocol = "signalr-messagepack"


def hands_on(server: Server) -> bool:
    return not isinstance(server, NullSignalRMessagePack)


def hands_on_quickly(server: Server) -> bool:
    return hands_on(server) and not isinstance(server, AioSignalR)


HUBS: tuple[type[Server], ...] = (VibeMQSignalR, VibeMQSignalRMessagePack, NullSignalR, NullSignalRMessagePack)
SCENARIOS = (
    Scenario(
        "publish",
        "Publish 100 B with completion, 10,000 open invocations, one WebSocket",
        QueueLoad(mode="pub", messages=1_000_000),
    ),
    Scenario(
        "both",
        "Publish, Subscribe and Ack of 100 B, one queue",
        QueueLoad(mode="both", messages=500_000),
        "consume_msg_s",
        is_for=hands_on,
    ),
    Scenario(
        "fan-out",
        "one publisher to 1,000 WebSockets, deliveries in all",
        FanOut(mode="pub", messages=2_000),
        "consume_msg_s",
        fanout.run,
        hands_on,
    ),
    Scenario(
        "fan-out-paced",
        "the same at 100 messages/s, open loop: 100,000 deliveries/s",
        FanOut(mode="lat", messages=500, rate=100.0),
        "latency_us.p99",
        fanout.run,
        hands_on_quickly,
    ),
)


@click.command()
@comparison((*HUBS, AioSignalR, AioSignalRMessagePack), SCENARIOS, "null-signalr")
def signalr() -> None:
    """The SignalR door; with an interpreter in VIBEMQ_PEER_PYTHON that has aiosignalr, that hub too."""


# ---- connections that do nothing ----


def idle(server: VibeMQ, count: int) -> dict[str, Any]:
    """Hub connections after their handshake, with the pings of both sides."""
    load = QueueLoad(protocol=server.protocol, port=server.port)
    before = memory_mb(server)
    began = time.monotonic()
    wires = [HubWire(load, server.port) for _ in range(count)]
    opened_s = time.monotonic() - began
    fresh = memory_mb(server)
    pings = dict.fromkeys(wires, 0)
    cpu_s, began = tree_cpu_s(server.pid), time.monotonic()
    with selectors.EpollSelector() as selector:
        for wire in wires:
            wire.socket.setblocking(False)
            selector.register(wire.socket, selectors.EVENT_READ, wire)
        sent = 0
        while (now := time.monotonic() - began) < IDLE_S:
            if sent * CLIENT_PING_S <= now:
                sent += 1
                for wire in wires:
                    wire.send_record(json_record(PING))
            for key, _ in selector.select(0.1):
                data = key.data.socket.recv(1 << 12)
                if not data:
                    raise VibeMQError("the hub ended an idle connection")
                pings[key.data] += data.count(b'"type":6')
    after = memory_mb(server)
    cpu_s = tree_cpu_s(server.pid) - cpu_s
    for wire in wires:
        wire.close()
    return {
        "connections": count,
        "opened_per_s": round(count / opened_s),
        "all_processes": after,
        "after_the_handshakes": fresh,
        "kb_for_a_connection": round((after["pss_mb"] - before["pss_mb"]) * 1024 / count, 2),
        "pings_to_each": [min(pings.values()), max(pings.values())],
        "broker_cpu_percent": round(100 * cpu_s / IDLE_S, 1),
    }


@click.command("signalr-idle")
@click.option("--connections", type=click.IntRange(1), default=10_000, show_default=True)
def signalr_idle(connections: int) -> None:
    """Hub connections that only exchange pings: memory, and CPU."""
    as_many_files_as_allowed()
    with tempfile.TemporaryDirectory() as folder:
        tell(f"idle: {connections} connections")
        server = VibeMQSignalR(Path(folder) / "idle")
        server.start()
        try:
            for name, value in idle(server, connections).items():
                click.echo(f"{name}: {value}")
        finally:
            server.stop()
