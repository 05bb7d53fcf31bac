# SPDX-License-Identifier: Apache-2.0
"""How small and how steady: start, memory, idle connections, many streams, durability `disk`.

    python benchmarks/scale.py [--connections 10000] [--streams 5000] [--output FILE.json]

Starts its own broker with two workers. Every figure that depends on the machine is a ratio or a
size; what it is compared with is measured in the same run.
"""

import argparse
import json
import os
import re
import resource
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from vibemq.bench.load import Load, run
from vibemq.client.streams import StreamsConnection
from vibemq.protocols.streams.codec import encode_request
from vibemq.protocols.streams.spec import Key

READY = re.compile(r"pid=(\d+) .*streams=(\S+):(\d+)")
ROUNDS = 5
MESSAGES = 10_000_000


class Broker:
    """`vibemq serve` on a folder of its own."""

    def __init__(self, folder: str, *arguments: str) -> None:
        began = time.monotonic()
        command = [sys.executable, "-m", "vibemq.cli", "serve", "--workers", "2", "--streams-port", "0"]
        self.process = subprocess.Popen(
            [*command, "--data-dir", folder, *arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        found = READY.search(self.process.stdout.readline())
        self.ready_s = time.monotonic() - began
        self.pid, self.host, self.port = int(found[1]), found[2], int(found[3])

    def processes(self) -> list[int]:
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        return [self.pid, *map(int, children)]

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(40)


def resident_mb(pid: int, field: str = "VmRSS") -> float:
    return int(re.search(rf"{field}:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[1]) / 1024


def proportional_mb(pid: int) -> float:
    """Memory with what processes share counted once between them."""
    return int(re.search(r"Pss:\s+(\d+)", Path(f"/proc/{pid}/smaps_rollup").read_text())[1]) / 1024


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


def idle_connections(broker: Broker, count: int) -> dict[str, float]:
    before = sum(map(proportional_mb, broker.processes()))
    peers = [handshake(broker.port) for _ in range(count)]
    after = sum(map(proportional_mb, broker.processes()))
    for peer in peers:
        peer.close()
    return {"connections": count, "all_processes_mb": round(after, 1), "for_connections_mb": round(after - before, 1)}


def rate(broker: Broker, stream: str) -> float:
    result = run(Load(port=broker.port, stream=stream, messages=MESSAGES, mode="pub", broker_pid=broker.pid))
    return result.confirmed / result.publish_s


def rounds(broker: Broker, stream: str) -> list[float]:
    rate(broker, stream)
    return [rate(broker, stream) for _ in range(ROUNDS)]


def many_streams(broker: Broker, count: int) -> dict[str, float]:
    alone = rounds(broker, "busy")
    with StreamsConnection.connect("127.0.0.1", broker.port) as connection:
        began = time.monotonic()
        for number in range(count):
            connection.create(f"idle-{number}", exist_ok=True)
        created_s = time.monotonic() - began
        readers = [reader(broker.port, range(first, min(first + 250, count))) for first in range(0, count, 250)]
        beside = rounds(broker, "busy")
        memory = sum(map(proportional_mb, broker.processes()))
        for peer in readers:
            peer.close()
        for number in range(count):
            connection.delete(f"idle-{number}")
    ratio = statistics.median(beside) / statistics.median(alone)
    return {
        "streams": count,
        "busy_ratio": round(ratio, 3),
        "all_processes_mb": round(memory, 1),
        "created_per_s": round(count / created_s),
    }


def disk_durability(folder: Path) -> dict[str, float]:
    """Rates of the two durabilities in alternation, and the disk's own at the same batch size."""
    rates: dict[str, list[float]] = {"os": [], "disk": []}
    with ExitStack() as stack:
        brokers = {}
        for name in rates:
            brokers[name] = Broker(str(folder / name), "--durability", name)
            stack.callback(brokers[name].stop)
        for _ in range(ROUNDS):
            for name, broker in brokers.items():
                rates[name].append(rate(broker, "durable"))
    own = device_bytes_per_s(folder)
    middle = {name: statistics.median(values) for name, values in rates.items()}
    return {
        "os_per_s": round(middle["os"]),
        "disk_per_s": round(middle["disk"]),
        "ratio": round(middle["disk"] / middle["os"], 3),
        "device_mb_per_s": round(own / 1e6),
        "disk_mb_per_s": round(middle["disk"] * 104 / 1e6),
    }


def device_bytes_per_s(folder: Path) -> float:
    """Writing 1 GiB in pieces of 8 MiB with an fdatasync after each."""
    piece = os.urandom(8 << 20)
    fd = os.open(folder / "device", os.O_CREAT | os.O_WRONLY, 0o600)
    began = time.monotonic()
    for _ in range(128):
        os.write(fd, piece)
        os.fdatasync(fd)
    took = time.monotonic() - began
    os.close(fd)
    os.unlink(folder / "device")
    return (1 << 30) / took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--connections", type=int, default=10_000)
    parser.add_argument("--streams", type=int, default=5_000)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        broker = Broker(str(folder / "data"))
        stack.callback(broker.stop)
        report: dict[str, object] = {
            "ready_s": round(broker.ready_s, 3),
            "resident_mb": {str(pid): round(resident_mb(pid), 1) for pid in broker.processes()},
        }
        report["idle"] = idle_connections(broker, arguments.connections)
        report["streams"] = many_streams(broker, arguments.streams)
        report["durability"] = disk_durability(folder)
    text = json.dumps(report, indent=2)
    print(text)
    if arguments.output:
        arguments.output.write_text(text + "\n")


if __name__ == "__main__":
    main()
