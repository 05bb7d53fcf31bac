# SPDX-License-Identifier: Apache-2.0
"""How small and how steady: start, memory, idle connections, many streams, durability `disk`.

    python -m benchmarks scale [--connections 10000] [--streams 5000] [--scale 1.0] [--output FILE.json]

Starts its own broker with two workers. Every figure that depends on the machine is a ratio or a
size; what it is compared with is measured in the same run.
"""

import os
import re
import socket
import statistics
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import click

from benchmarks.figures import as_many_files_as_allowed, memory_mb, show
from benchmarks.servers import VibeMQ
from vibemq.bench.run import run, tree_pids
from vibemq.bench.streams import StreamsLoad as Load
from vibemq.client.streams import StreamsConnection
from vibemq.protocols.streams.codec import encode_request
from vibemq.protocols.streams.spec import Key

ROUNDS = 5
MESSAGES = 10_000_000
WINDOW = 1_000_000  # unconfirmed: a sync takes milliseconds, and the publisher must not wait for it
BYTES_PER_MESSAGE = 104  # in the log: 100 of body, 4 of header


def broker(folder: Path, *arguments: str) -> VibeMQ:
    return VibeMQ(folder, extra=arguments)


def resident_mb(pid: int) -> float:
    return int(re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[1]) / 1024


def handshake(port: int) -> socket.socket:
    peer = socket.create_connection(("127.0.0.1", port))
    peer.sendall(
        encode_request(Key.PEER_PROPERTIES, 1, properties={"product": "idle"})
        + encode_request(Key.SASL_HANDSHAKE, 2)
        + encode_request(Key.SASL_AUTHENTICATE, 3, mechanism="PLAIN", data=b"\0guest\0guest")
        + encode_request(Key.TUNE, frame_max=1 << 20, heartbeat=0)
        + encode_request(Key.OPEN, 4, virtual_host="/")
    )
    got = b""
    while b"advertised_port" not in got:
        more = peer.recv(65536)
        if not more:
            raise ConnectionError("the broker closed an idle connection in its handshake")
        got += more
    return peer


def reader(port: int, numbers: range) -> socket.socket:
    """A connection that is subscribed to 250 streams on which nothing happens."""
    peer = handshake(port)
    for number in numbers:
        peer.sendall(
            encode_request(
                Key.SUBSCRIBE,
                number,
                subscription_id=number % 250,
                stream=f"idle-{number}",
                offset_type=1,
                credit=10,
            )
        )
    waiting = len(numbers) * 14  # an answer: size, key, version, correlation id, code
    while waiting:
        waiting -= len(peer.recv(min(waiting, 65536)))
    return peer


def idle_connections(server: VibeMQ, count: int) -> dict[str, float]:
    before = memory_mb(server)["pss_mb"]
    peers = [handshake(server.streams_port) for _ in range(count)]
    after = memory_mb(server)["pss_mb"]
    for peer in peers:
        peer.close()
    return {"connections": count, "all_processes_mb": after, "for_connections_mb": round(after - before, 1)}


def rate(server: VibeMQ, stream: str, messages: int, offered: float = 0.0) -> float:
    load = Load(
        port=server.streams_port,
        stream=stream,
        messages=messages,
        mode="pub",
        rate=offered,
        window=WINDOW,
        timeout_s=120,
    )
    result = run(load)
    return result.confirmed / result.publish_s


def alternate(brokers: dict[str, VibeMQ], stream: str, messages: int, offered: float = 0.0) -> dict[str, list[float]]:
    """Rates of each, in alternation, after one round that is not counted."""
    rates: dict[str, list[float]] = {name: [] for name in brokers}
    for turn in range(ROUNDS + 1):
        for name in sorted(brokers, reverse=turn % 2 == 1):
            found = rate(brokers[name], stream, messages, offered)
            if turn:
                rates[name].append(found)
    return rates


def summary(rates: dict[str, list[float]], over: str, under: str) -> dict[str, object]:
    middle = {name: statistics.median(values) for name, values in rates.items()}
    spread = {f"{name}_msg_s": [round(min(v)), round(middle[name]), round(max(v))] for name, v in rates.items()}
    return {"ratio": round(middle[over] / middle[under], 3), **spread}


def many_streams(folder: Path, count: int, messages: int) -> dict[str, object]:
    """A busy stream in a broker that has `count` more open, beside one that has none."""
    with ExitStack() as stack:
        brokers = {}
        for name in ("alone", "among_many"):
            brokers[name] = broker(folder / name)
            stack.callback(brokers[name].start().stop)
        many = brokers["among_many"]
        with StreamsConnection.connect("127.0.0.1", many.streams_port) as connection:
            began = time.monotonic()
            for number in range(count):
                connection.create(f"idle-{number}", exist_ok=True)
            created_s = time.monotonic() - began
        readers = [reader(many.streams_port, range(first, min(first + 250, count))) for first in range(0, count, 250)]
        os.sync()  # thousands of new files are written back before, not during, what is measured
        report = summary(alternate(brokers, "busy", messages), "among_many", "alone")
        memory = memory_mb(many)["pss_mb"]
        for peer in readers:
            peer.close()
    return {"streams": count, **report, "all_processes_mb": memory, "created_s": round(created_s, 1)}


def disk_durability(folder: Path, scale: float) -> dict[str, object]:
    """Both durabilities as fast as they go, and at a rate that the disk itself can keep up with."""
    own, messages = device_bytes_per_s(folder, scale), round(MESSAGES * scale)
    with ExitStack() as stack:
        brokers = {}
        for name in ("os", "disk"):
            brokers[name] = broker(folder / name, "--durability", name)
            stack.callback(brokers[name].start().stop)
        offered = own * 0.6 / BYTES_PER_MESSAGE
        return {
            "device_mb_s": round(own / 1e6),
            "offered_msg_s": round(offered),
            "at_that_rate": summary(alternate(brokers, "paced", messages, offered), "disk", "os"),
            "at_full_rate": summary(alternate(brokers, "full", messages), "disk", "os"),
        }


def device_bytes_per_s(folder: Path, scale: float) -> float:
    """Writing 1 GiB (times `scale`) in pieces of 8 MiB with an fdatasync after each."""
    piece, pieces = os.urandom(8 << 20), max(1, round(128 * scale))
    fd = os.open(folder / "device", os.O_CREAT | os.O_WRONLY, 0o600)
    began = time.monotonic()
    for _ in range(pieces):
        os.write(fd, piece)
        os.fdatasync(fd)
    took = time.monotonic() - began
    os.close(fd)
    os.unlink(folder / "device")
    return pieces * len(piece) / took


@click.command()
@click.option("--connections", default=10_000, show_default=True)
@click.option("--streams", default=5_000, show_default=True)
@click.option("--scale", default=1.0, show_default=True, help="Of the messages of a run.")
@click.option("--only-streams", is_flag=True, help="The streams alone, for a second look.")
@click.option("--output", type=click.Path(path_type=Path))
def scale(connections: int, streams: int, scale: float, only_streams: bool, output: Path | None) -> None:
    """Start, memory, idle connections, many open streams, durability `disk`."""
    as_many_files_as_allowed()
    messages = round(MESSAGES * scale)
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        if only_streams:
            show(many_streams(folder, streams, messages), output)
            return
        server = broker(folder / "data")
        began = time.monotonic()
        stack.callback(server.start().stop)
        report: dict[str, object] = {
            "ready_s": round(time.monotonic() - began, 3),
            "resident_mb": {str(pid): round(resident_mb(pid), 1) for pid in tree_pids(server.pid)},
        }
        report["idle"] = idle_connections(server, connections)
        report["streams"] = many_streams(folder, streams, messages)
        report["durability"] = disk_durability(folder, scale)
    show(report, output)
