# SPDX-License-Identifier: Apache-2.0
"""What the object store costs: durability `remote` beside `disk` and `os`, a slow store, cold reads, a restore.

    python -m benchmarks remote [--rounds 5] [--scale 1.0] [--warm-mb 20000] [--output FILE.json]

The store is a folder (file://), which is the limit of what any store can do, and where a store must be slow a real S3
server (moto) behind a proxy that delays its answers. Brokers have two workers and are measured in alternation, each
ratio in one run; their CPU is that of all their processes, the archiver's with its writing of the folder included.
"""

from __future__ import annotations

import asyncio
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import click

from benchmarks.figures import show
from benchmarks.report import keep_warm, warm_memory
from benchmarks.servers import VibeMQ
from vibemq.bench.run import run, tree_cpu_s
from vibemq.bench.streams import StreamsLoad as Load
from vibemq.client.streams import StreamsConnection
from vibemq.config import Remote
from vibemq.remote.asking import ask
from vibemq.remote.bucket import Bucket
from vibemq.remote.objects import Kind
from vibemq.remote.stubs import places_of_all
from vibemq.storage.tail import crc32

ROOT = Path(__file__).resolve().parent.parent
MESSAGES = 8_000_000
MESSAGE_BYTES = 104  # in a chunk
PUT_BYTES = 8 << 20
WINDOW = 4_000_000  # unconfirmed: a confirm takes an interval, and the publisher must not wait for it
UNCONFIRMED = ("--set", "streams.unconfirmed_max=5000000")
SEGMENT_BYTES = 100_000_000
COLD_MESSAGES = 16_000_000
CACHE_BYTES = 64 << 20  # of what was read back: the least there is, so that it is read back again
SEGMENTS_OF_50_GB = 100  # a segment has 500 MB by default; what a restore reads hangs on their number
PUBLISHERS = 200  # of a connection, whose number is a byte
LATENCY_RATE = 20_000
LATENCY_S = 10


def broker(folder: Path, *options: str) -> VibeMQ:
    words = [word for option in options for word in ("--set", option)]
    return VibeMQ(folder, extra=(*words, *UNCONFIRMED))


def remote(bucket: Path, *more: str) -> tuple[str, ...]:
    return (f"remote.url=file://{bucket}", "store.durability=remote", *more)


def publish(server: VibeMQ, messages: int, stream: str = "load", **more: Any) -> Any:
    load = Load(port=server.streams_port, stream=stream, messages=messages, mode="pub", window=WINDOW, timeout_s=300,
                broker_pid=server.pid, **more)  # fmt: skip
    return run(load)


def rate(result: Any) -> float:
    return float(result.confirmed / result.publish_s)


def alternate(rounds: int, works: dict[str, Callable[[], dict[str, float]]]) -> dict[str, dict[str, list[float]]]:
    """What each gives, in alternation, after a round that is not counted."""
    found: dict[str, dict[str, list[float]]] = {name: {} for name in works}
    for turn in range(rounds + 1):
        for name in sorted(works, reverse=turn % 2 == 1):
            keep_warm()
            for what, value in works[name]().items():
                if turn:
                    found[name].setdefault(what, []).append(value)
    return found


def compared(found: dict[str, dict[str, list[float]]], what: str, over: str, under: str) -> dict[str, Any]:
    """The ratio of medians, and the spread of each."""
    middle = {name: statistics.median(values[what]) for name, values in found.items() if what in values}
    spread = {name: [min(found[name][what]), middle[name], max(found[name][what])] for name in middle}
    # None: a run too small for the clock of CPU time.
    ratio = round(middle[over] / middle[under], 3) if middle[under] else None
    return {"ratio": ratio, what: spread}


def durabilities(folder: Path, rounds: int, messages: int) -> dict[str, Any]:
    """The three, as fast as they go, and what the store alone takes for the same bytes."""
    with ExitStack() as stack:
        options = {
            "os": (),
            "disk": ("store.durability=disk",),
            "remote": remote(folder / "bucket"),
        }
        works = {}
        for name, chosen in options.items():
            server = broker(folder / name, *chosen)
            stack.callback(server.start().stop)

            def work(server: VibeMQ = server) -> dict[str, float]:
                result = publish(server, messages)
                return {"msg_s": rate(result), "cpu_us": result.broker_cpu_s * 1e6 / result.handled}

            works[name] = work
        works["store"] = lambda: _twice_in_the_store(folder / "alone", messages)
        found = alternate(rounds, works)
    return {
        "store_over_disk": compared(found, "msg_s", "store", "disk")["ratio"],
        "store_cpu_over_os": compared(found, "cpu_us", "store", "os")["ratio"],
        "remote_over_disk": compared(found, "msg_s", "remote", "disk"),
        "remote_over_os": compared(found, "msg_s", "remote", "os"),
        "cpu_over_os": compared(found, "cpu_us", "remote", "os"),
    }


def _twice_in_the_store(folder: Path, messages: int) -> dict[str, float]:
    """What no broker can do better here: obstore alone puts the bytes of so many messages twice.

    They are in a write-ahead object until they are in a segment, and memory that is put was written before.
    """
    obstore, stores = import_module("obstore"), import_module("obstore.store")
    store, object_ = stores.LocalStore(folder, mkdir=True), bytes(PUT_BYTES)
    began, cpu = time.monotonic(), _cpu_s(0)
    for number in range(2 * messages * MESSAGE_BYTES // PUT_BYTES):
        obstore.put(store, str(number), object_, mode="create", use_multipart=False)
    took_s, cpu = time.monotonic() - began, _cpu_s(0) - cpu
    shutil.rmtree(folder)
    return {"msg_s": messages / took_s, "cpu_us": cpu * 1e6 / messages}


def requests(folder: Path, messages: int) -> dict[str, Any]:
    """PUTs in ten seconds of publishing to one stream, and to a thousand."""
    found = {}
    for streams in (1, 1000):
        with ExitStack() as stack:
            server = broker(folder / f"puts-{streams}", *remote(folder / f"puts-bucket-{streams}"))
            stack.callback(server.start().stop)
            with StreamsConnection.connect("127.0.0.1", server.streams_port) as connection:
                publishers = []
                for number in range(streams):
                    connection.create(f"stream-{number}")
                for number in range(min(streams, 200)):
                    publishers.append(connection.publisher(f"stream-{number}"))
                before, began = _puts(server), time.monotonic()
                while (took := time.monotonic() - began) < 10.0:
                    for publisher in publishers:
                        publisher.publish([b"x" * 100] * 10)
                    for publisher in publishers:
                        publisher.flush()
                found[f"{streams}_streams_puts_s"] = round((_puts(server) - before) / took, 2)
    return found


def _puts(server: VibeMQ) -> int:
    return int(ask(str(server.folder / "data"), "status")["status"]["requests"]["put"])


def slow_store(folder: Path, rounds: int, messages: int) -> dict[str, Any]:
    """p99 of a confirm with a store that takes 50 ms more, and rates with 200 ms and without."""
    sys.path.insert(0, str(ROOT / "tests"))
    from peers.faulty import FaultyStore
    from peers.s3 import S3Server

    with ExitStack() as stack:
        store = stack.enter_context(S3Server())
        proxy = stack.enter_context(FaultyStore(store))
        options = [word for word in proxy.flags if word != "--set"]
        options += ["store.durability=remote", "remote.interval_ms=50", "remote.tier=false"]
        server = broker(folder / "slow", *options)
        server.environment = proxy.environ
        stack.callback(server.start().stop)
        rule = proxy.delay(0.05)
        result = run(Load(port=server.streams_port, stream="load", messages=LATENCY_RATE * 10, mode="lat",
                          rate=LATENCY_RATE, batch=10, timeout_s=120))  # fmt: skip
        p99_ms = result.confirms.percentile_us(99.0) / 1000
        rule.remove()

        def at(delay_s: float) -> dict[str, float]:
            rule = proxy.delay(delay_s) if delay_s else None
            found = rate(publish(server, messages))
            if rule:
                rule.remove()
            return {"msg_s": found}

        found = alternate(rounds, {"delayed": lambda: at(0.2), "plain": lambda: at(0)})
    return {"p99_confirm_ms_delayed_50": round(p99_ms, 1), **compared(found, "msg_s", "delayed", "plain")}


def tier(folder: Path, rounds: int, messages: int) -> dict[str, Any]:
    """Publishing and consuming while segments go up, beside a broker that sends none up."""
    with ExitStack() as stack:
        works = {}
        for name, goes_up in (("up", "true"), ("not", "false")):
            options = (f"remote.url=file://{folder}/tier-bucket-{name}", f"remote.tier={goes_up}",
                       f"store.segment_size_bytes={SEGMENT_BYTES}")  # fmt: skip
            server = broker(folder / f"tier-{name}", *options)
            stack.callback(server.start().stop)

            def work(server: VibeMQ = server) -> dict[str, float]:
                result = run(Load(port=server.streams_port, stream="load", messages=messages, mode="pubsub",
                                  timeout_s=300, broker_pid=server.pid))  # fmt: skip
                return {"msg_s": rate(result)}

            works[name] = work
        return compared(alternate(rounds, works), "msg_s", "up", "not")


class Store(NamedTuple):
    """Where a broker's objects are: its options and environment, and the same for our own hands."""

    options: tuple[str, ...]
    environment: dict[str, str]
    config: Remote


def in_folder(bucket: Path) -> Store:
    return Store((f"remote.url=file://{bucket}",), {}, Remote(url=f"file://{bucket}"))


@contextmanager
def in_s3() -> Iterator[Store]:
    """moto or, where VIBEMQ_S3 says so, versitygw; it has its part of the same two cores."""
    sys.path.insert(0, str(ROOT / "tests"))
    from peers.s3 import S3Server

    with S3Server() as server:
        store = server.below("cold")
        options = (f"remote.url={store.url}", f"remote.options={store.options}")
        yield Store(options, store.environ, store.remote())


class Stored:
    """A stream "load" of which all but the end lies in a store alone: a broker that was restored from there."""

    def __init__(self, folder: Path, store: Store, messages: int) -> None:
        self.store = store
        options = (*store.options, "store.durability=remote", f"store.segment_size_bytes={SEGMENT_BYTES}",
                   "remote.segment_age_s=10", f"remote.cache_size_max_bytes={CACHE_BYTES}")  # fmt: skip
        server = broker(folder / "first", *options)
        server.environment = store.environment
        server.start()
        publish(server, messages, keep=True)
        closed = messages * MESSAGE_BYTES // SEGMENT_BYTES - 1
        for _ in range(1200):  # until all closed segments are there
            status = ask(str(server.folder / "data"), "status")["status"]
            if status["segments"] >= closed and not status["streams_waiting_to_be_sent"]:
                break
            time.sleep(0.1)
        server.stop()
        shutil.rmtree(folder / "first")
        self.places = asyncio.run(_places(store.config))
        self.next = max(place.next for of_one in self.places.values() for place in of_one)
        self.server = broker(folder / "restored", *options)
        self.server.environment = store.environment

    def start(self) -> float:
        """Seconds to the first message."""
        began = time.monotonic()
        self.server.start()
        with StreamsConnection.connect("127.0.0.1", self.server.streams_port) as connection:
            first = next(iter(connection.read_chunks("load", 0)))
        assert first.chunk_id == 0
        return time.monotonic() - began


def cold(folder: Path, rounds: int, messages: int, store: Store) -> dict[str, Any]:
    """A stream client reads what lies in the store alone, beside obstore's own reading of the same; a restore.

    Of a folder the same bytes go through a bare socket, too, which is as much as any server could do here.
    """
    stored = Stored(folder, store, messages)
    with ExitStack() as stack:
        stack.callback(stored.server.stop)
        restored_s = stored.start()

        def read() -> dict[str, float]:
            with StreamsConnection.connect("127.0.0.1", stored.server.streams_port) as connection:
                began, cpu, got = time.monotonic(), _cpu_s(stored.server.pid), 0
                for chunk in connection.read_chunks("load", 0, stored.next):
                    got += len(chunk.data)
                took_s, cpu = time.monotonic() - began, _cpu_s(stored.server.pid) - cpu
                return {"bytes_s": got / took_s, "cpu_ns_byte": cpu * 1e9 / got}

        def own() -> dict[str, float]:
            began, cpu = time.monotonic(), _cpu_s(0)
            got = asyncio.run(_read_all(store.config, stored.places))
            return {"bytes_s": got / (time.monotonic() - began), "cpu_ns_byte": (_cpu_s(0) - cpu) * 1e9 / got}

        works = {"client": read, "obstore": own}
        if store.config.url.startswith("file://"):
            files = [f"{store.config.url[7:]}/{place.key()}" for of_one in stored.places.values() for place in of_one]
            works["socket"] = lambda: _through_a_socket(files)
        found = alternate(rounds, works)
    over_socket = compared(found, "bytes_s", "client", "socket")["ratio"] if "socket" in found else None
    return {"stored_bytes": sum(size for of_one in stored.places.values() for size in of_one.values()),
            "restore_to_first_message_s": round(restored_s, 2), "client_over_socket": over_socket,
            "cpu": compared(found, "cpu_ns_byte", "client", "obstore"),
            **compared(found, "bytes_s", "client", "obstore")}  # fmt: skip


SENDER = """
import socket, sys
with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as connection:
    room = memoryview(bytearray(1 << 18))
    for path in sys.argv[2:]:
        with open(path, "rb", buffering=0) as file:
            while size := file.readinto(room):
                connection.sendall(room[:size])
"""


def _through_a_socket(files: list[str]) -> dict[str, float]:
    """Read by one process, received by another, which looks at the bytes as a client's CRC does."""
    room, got = memoryview(bytearray(1 << 18)), 0
    with socket.create_server(("127.0.0.1", 0)) as listener:
        command = [sys.executable, "-c", SENDER, str(listener.getsockname()[1]), *files]
        with subprocess.Popen(command) as sender, listener.accept()[0] as connection:
            began = time.monotonic()
            while size := connection.recv_into(room):
                crc32(room[:size])
                got += size
            took_s = time.monotonic() - began
        assert sender.returncode == 0
    return {"bytes_s": got / took_s}


def cold_s3(folder: Path, rounds: int, messages: int) -> dict[str, Any]:
    with in_s3() as store:
        return cold(folder, rounds, messages, store)


def _cpu_s(broker_pid: int) -> float:
    """Of this process, which is the client, and of a server's."""
    return (tree_cpu_s(broker_pid) if broker_pid else 0.0) + time.process_time()


async def _places(config: Remote) -> Any:
    return await places_of_all(Bucket(config))


async def _read_all(config: Remote, places: Any) -> int:
    opened = Bucket(config)
    got = 0
    for of_one in places.values():
        for place in sorted(of_one):
            for at in range(0, of_one[place], 8 << 20):
                got += len(await opened.read_part(place.key(), Kind.SEGMENT, at, at + (8 << 20)))
    return got


READER = """
import sys, time
from vibemq.client.streams import StreamsConnection
port, stream, end = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
print("ready", flush=True)
while True:
    with StreamsConnection.connect("127.0.0.1", port) as connection:
        print(sum(len(chunk.data) for chunk in connection.read_chunks(stream, 0, end)), flush=True)
"""


def beside(folder: Path, rounds: int, messages: int) -> dict[str, Any]:
    """Latency from publisher to consumer: alone, beside a reader of cold data, and of the same data that is here.

    The third says how much of it any reader at full speed costs, who has a core of two for himself.
    """
    stored = Stored(folder, in_folder(folder / "bucket"), messages)
    with ExitStack() as stack:
        stack.callback(stored.server.stop)
        stored.start()
        port = stored.server.streams_port
        publish(stored.server, messages, keep=True, stream="here")
        read = dict.fromkeys(("cold", "here"), 0)

        def latency(stream: str) -> dict[str, float]:
            with reading(stream) if stream else nullcontext():
                result = run(Load(port=port, stream="hot", messages=LATENCY_RATE * LATENCY_S, mode="lat",
                                  rate=LATENCY_RATE, batch=10, timeout_s=300))  # fmt: skip
            return {"p99_ms": result.latencies.percentile_us(99.0) / 1000}

        @contextmanager
        def reading(stream: str) -> Iterator[None]:
            command = [sys.executable, "-c", READER, str(port), stream, str(stored.next)]
            reader = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            assert reader.stdout is not None and reader.stdout.readline() == "ready\n"
            try:
                yield
                assert reader.poll() is None, f"the reader of {stream} ended with {reader.returncode}"
            finally:
                reader.kill()
                read["cold" if stream == "load" else "here"] += sum(map(int, reader.stdout))
                reader.wait()

        works = {"alone": lambda: latency(""), "cold": lambda: latency("load"), "here": lambda: latency("here")}
        found = alternate(rounds, works)
    return {"read_bytes": read, "here_over_alone": compared(found, "p99_ms", "here", "alone")["ratio"],
            "cold_over_here": compared(found, "p99_ms", "cold", "here")["ratio"],
            **compared(found, "p99_ms", "cold", "alone")}  # fmt: skip


def restore(folder: Path, streams: int, messages: int) -> dict[str, Any]:
    """From an empty directory to the first message: many streams, and one with as many segments as 50 GB have."""
    bucket = folder / "many-bucket"
    options = remote(bucket, f"store.segment_size_bytes={messages * MESSAGE_BYTES // SEGMENTS_OF_50_GB}")
    server = broker(folder / "many", *options)
    server.start()
    with ExitStack() as stack:
        stack.callback(server.stop)
        publish(server, messages, keep=True)
        with StreamsConnection.connect("127.0.0.1", server.streams_port) as connection:
            began = time.monotonic()
            for number in range(streams):
                connection.create(f"stream-{number}")
            created_s = time.monotonic() - began
            for at in range(0, streams, PUBLISHERS):
                # All wait for the same write-ahead object.
                some = range(at, min(at + PUBLISHERS, streams))
                publishers = [connection.publisher(f"stream-{number}") for number in some]
                for publisher in publishers:
                    publisher.publish([b"x" * 100] * 100)
                for publisher in publishers:
                    publisher.flush()
                    publisher.close()
    places = asyncio.run(_places(Remote(url=f"file://{bucket}")))
    shutil.rmtree(folder / "many")
    server = broker(folder / "many-restored", *options)
    began = time.monotonic()
    server.start()
    with ExitStack() as stack:
        stack.callback(server.stop)
        with StreamsConnection.connect("127.0.0.1", server.streams_port) as connection:
            assert next(iter(connection.read_chunks("load", 0))).chunk_id == 0
            first_s = time.monotonic() - began
            for number in range(streams):
                assert sum(chunk.records for chunk in connection.read_chunks(f"stream-{number}", 0)) == 100
    return {"streams": streams, "segments": sum(map(len, places.values())),
            "bucket_bytes": sum(file.stat().st_size for file in bucket.rglob("*") if file.is_file()),
            "to_create_s": round(created_s, 2), "to_first_message_s": round(first_s, 2)}  # fmt: skip


@click.command(name="remote")
@click.option("--rounds", default=5, show_default=True)
@click.option("--scale", default=1.0, show_default=True, help="Of the messages of a run.")
@click.option("--only", multiple=True, help="Of: durabilities, requests, slow, tier, cold, cold-s3, beside, restore.")
@click.option("--warm-mb", type=click.IntRange(0), default=0, help="Keep so much memory in use.")
@click.option("--output", type=click.Path(path_type=Path))
def remote_command(rounds: int, scale: float, only: tuple[str, ...], warm_mb: int, output: Path | None) -> None:
    """Durability `remote`, the second tier, and a restore."""
    warm_memory(warm_mb)
    works: dict[str, Callable[[Path], dict[str, Any]]] = {
        "durabilities": lambda folder: durabilities(folder, rounds, round(MESSAGES * scale)),
        "requests": lambda folder: requests(folder, 0),
        "slow": lambda folder: slow_store(folder, rounds, round(MESSAGES * scale)),
        "tier": lambda folder: tier(folder, rounds, round(MESSAGES * scale)),
        "cold": lambda folder: cold(folder, rounds, round(COLD_MESSAGES * scale), in_folder(folder / "bucket")),
        "cold-s3": lambda folder: cold_s3(folder, rounds, round(COLD_MESSAGES * scale)),
        "beside": lambda folder: beside(folder, rounds, round(COLD_MESSAGES * scale)),
        "restore": lambda folder: restore(folder, round(1000 * scale), round(COLD_MESSAGES * scale)),
    }
    report = {}
    for name in only or works:
        with tempfile.TemporaryDirectory() as folder:
            report[name] = works[name](Path(folder))
    show(report, output)
