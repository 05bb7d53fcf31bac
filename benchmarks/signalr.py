# SPDX-License-Identifier: Apache-2.0
"""The SignalR door under load: invocations with completion, deliveries, fan-out, and connections that do nothing.

    python benchmarks/signalr.py --rounds 5 --warm-mb 18000 --output result
    python benchmarks/signalr.py --load publish --load idle --peer-python aiosignalr/bin/python

Brokers of its own with two workers each and the durability `os`, null hubs that show where the load generator ends,
and, where an interpreter with aiosignalr is named, that hub as a peer: all in turn, the generator on the same cores.
"""

from __future__ import annotations

import os
import selectors
import subprocess
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click

from benchmarks import fanout, report
from benchmarks.commands import extent_options, output_option, show, tell
from benchmarks.fanout import FanOut
from benchmarks.figures import as_many_files_as_allowed, memory_mb
from benchmarks.loads import WORKERS, DoorLoad, measured, one_queue, table
from benchmarks.peers.signalr import HubWire, json_record
from benchmarks.servers import (
    NullSignalR,
    NullSignalRMessagePack,
    Server,
    VibeMQSignalR,
    VibeMQSignalRMessagePack,
    version_of,
)
from vibemq.bench.cpu import tree_cpu_s
from vibemq.bench.queues import QueueLoad
from vibemq.errors import VibeMQError

CLIENT_PING_S = 10.0  # more often than clients do
IDLE_S = 25.0  # two keep-alive pings to each connection, and two back
PING = {"type": 6}


class AioSignalR(Server):
    """aiosignalr 0.1.1 or newer, from PyPI; it keeps nothing."""

    name = "aiosignalr"
    protocol = "signalr"
    durability = "none"
    scale = 0.02

    def __init__(self, folder: Path, python: str) -> None:
        super().__init__(folder)
        self.python = python

    def launch(self) -> None:
        hub = Path(__file__).resolve().with_name("aiosignalr_hub.py")
        self.port = int(self.ready_line(self.spawn([self.python, str(hub)]))["port"])

    def version(self) -> str:
        return version_of(self.python, "-c", "from importlib.metadata import version; print(version('aiosignalr'))")


class AioSignalRMessagePack(AioSignalR):
    name = "aiosignalr-messagepack"
    protocol = "signalr-messagepack"


# ---- loads with a rate ----


def to_many(load: QueueLoad) -> dict[str, Any]:
    return fanout.run(FanOut(load)).figures()


def hands_on(server: Server) -> bool:
    return not isinstance(server, NullSignalRMessagePack)


def hands_on_quickly(server: Server) -> bool:
    return hands_on(server) and not isinstance(server, AioSignalR)


LOADS = (
    DoorLoad(
        "publish",
        "Publish 100 B with completion, 10,000 open invocations, one WebSocket",
        QueueLoad(mode="pub", messages=1_000_000),
        one_queue,
    ),
    DoorLoad(
        "both",
        "Publish, Subscribe and Ack of 100 B, one queue",
        QueueLoad(mode="both", messages=500_000),
        one_queue,
        hands_on,
    ),
    DoorLoad(
        "fan-out",
        "one publisher to 1,000 WebSockets, deliveries in all",
        QueueLoad(mode="pub", messages=2_000),
        to_many,
        hands_on,
    ),
    DoorLoad(
        "fan-out-paced",
        "the same at 100 messages/s, open loop: 100,000 deliveries/s",
        QueueLoad(mode="lat", messages=500, rate=100.0),
        to_many,
        hands_on_quickly,
    ),
)


# ---- connections that do nothing ----


def idle(server: VibeMQSignalR, count: int) -> dict[str, Any]:
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


# ---- the command ----


def servers_in(folder: Path, peer_python: str) -> list[Server]:
    ours = [kind(folder / kind.name, workers=WORKERS) for kind in (VibeMQSignalR, VibeMQSignalRMessagePack)]
    servers: list[Server] = [*ours, *(kind(folder / kind.name) for kind in (NullSignalR, NullSignalRMessagePack))]
    if peer_python:
        peer_python = os.path.abspath(peer_python)  # it is started in a folder of its own
        found = subprocess.run([peer_python, "-c", "import aiosignalr"], capture_output=True, check=False)
        if found.returncode:
            raise click.BadParameter(f"{peer_python} has no aiosignalr")
        servers += [kind(folder / kind.name, peer_python) for kind in (AioSignalR, AioSignalRMessagePack)]
    return servers


@click.command(help=__doc__.splitlines()[0])
@click.option("--load", "names", multiple=True, type=click.Choice([*(load.name for load in LOADS), "idle"]))
@click.option("--server", "wanted", multiple=True, help="Repeatable; default: all.")
@click.option("--baseline", default="null-signalr", show_default=True, help="Ratios are against this server.")
@click.option("--connections", type=click.IntRange(1), default=10_000, show_default=True, help="Of the load idle.")
@click.option("--peer-python", default="", help="An interpreter with aiosignalr; without, there is no peer.")
@extent_options
@output_option
def main(
    names: tuple[str, ...],
    wanted: tuple[str, ...],
    baseline: str,
    connections: int,
    peer_python: str,
    rounds: int,
    scale: float,
    warm_mb: int,
    output: Path | None,
) -> None:
    as_many_files_as_allowed()
    report.warm_memory(warm_mb)
    loads = [load for load in LOADS if not names or load.name in names]
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        servers = [each for each in servers_in(Path(folder), peer_python) if not wanted or each.name in wanted]
        for server in servers if loads else ():
            tell(f"starting {server.name}")
            stack.callback(server.start().stop)
        found = report.head(rounds, baseline) | {
            "scenarios": [measured(load, servers, rounds, scale, baseline) for load in loads]
        }
        text = table(found, servers, "a completion") if loads else ""
        if not names or "idle" in names:
            tell(f"idle: {connections} connections")
            server = VibeMQSignalR(Path(folder) / "idle", workers=WORKERS)
            stack.callback(server.start().stop)
            found["idle"] = idle(server, connections)
            text += "\n".join(f"{name}: {value}" for name, value in found["idle"].items()) + "\n"
    show(found, text, output)


if __name__ == "__main__":
    main()
