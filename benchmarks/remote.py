# SPDX-License-Identifier: Apache-2.0
"""What the object store costs: durability `remote` beside `disk` and `os`, a slow store, cold reads, a restore.

    python -m benchmarks remote [--rounds 5] [--scale 1.0] [--output FILE.json]

The store is a folder (file://), which is the limit of what any store can do, and where a store must be slow a real S3
server (moto) behind a proxy that delays its answers. Brokers have two workers and are measured in alternation, each
ratio in one run; their CPU is that of all their processes, the archiver's with its writing of the folder included.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click

from benchmarks.figures import show
from benchmarks.servers import VibeMQ
from vibemq.bench.run import run
from vibemq.bench.streams import StreamsLoad as Load
from vibemq.client.streams import StreamsConnection
from vibemq.config import Remote
from vibemq.remote.asking import ask
from vibemq.remote.bucket import Bucket
from vibemq.remote.objects import Kind
from vibemq.remote.stubs import places_of_all

ROOT = Path(__file__).resolve().parent.parent
MESSAGES = 8_000_000
WINDOW = 4_000_000  # unconfirmed: a confirm takes an interval, and the publisher must not wait for it
UNCONFIRMED = ("--set", "streams.unconfirmed_max=5000000")
SEGMENT_BYTES = 100_000_000
COLD_MESSAGES = 16_000_000
LATENCY_RATE = 20_000


def broker(folder: Path, *options: str) -> VibeMQ:
    words = [word for option in options for word in ("--set", option)]
    return VibeMQ(folder, extra=(*words, *UNCONFIRMED))


def remote(bucket: Path, *more: str) -> tuple[str, ...]:
    return (f"remote.url=file://{bucket}", "store.durability=remote", *more)


def publish(server: VibeMQ, messages: int, **more: Any) -> Any:
    load = Load(port=server.streams_port, stream="load", messages=messages, mode="pub", window=WINDOW, timeout_s=300,
                broker_pid=server.pid, **more)  # fmt: skip
    return run(load)


def rate(result: Any) -> float:
    return float(result.confirmed / result.publish_s)


def alternate(rounds: int, works: dict[str, Callable[[], dict[str, float]]]) -> dict[str, dict[str, list[float]]]:
    """What each gives, in alternation, after a round that is not counted."""
    found: dict[str, dict[str, list[float]]] = {name: {} for name in works}
    for turn in range(rounds + 1):
        for name in sorted(works, reverse=turn % 2 == 1):
            for what, value in works[name]().items():
                if turn:
                    found[name].setdefault(what, []).append(value)
    return found


def compared(found: dict[str, dict[str, list[float]]], what: str, over: str, under: str) -> dict[str, Any]:
    """The ratio of medians, and the spread of each."""
    middle = {name: statistics.median(values[what]) for name, values in found.items()}
    spread = {name: [min(values[what]), middle[name], max(values[what])] for name, values in found.items()}
    # None: a run too small for the clock of CPU time.
    ratio = round(middle[over] / middle[under], 3) if middle[under] else None
    return {"ratio": ratio, what: spread}


def durabilities(folder: Path, rounds: int, messages: int) -> dict[str, Any]:
    """The three, as fast as they go; `remote` without its second tier, too."""
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
        found = alternate(rounds, works)
    return {
        "remote_over_disk": compared(found, "msg_s", "remote", "disk"),
        "remote_over_os": compared(found, "msg_s", "remote", "os"),
        "cpu_over_os": compared(found, "cpu_us", "remote", "os"),
    }


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


def cold(folder: Path, rounds: int, messages: int) -> dict[str, Any]:
    """A stream client reads what lies in the store alone, beside obstore's own reading of the same; a restore."""
    bucket = folder / "cold-bucket"
    options = (*remote(bucket), f"store.segment_size_bytes={SEGMENT_BYTES}", "remote.segment_age_s=10",
               "remote.cache_size_max_bytes=67108864")  # fmt: skip
    server = broker(folder / "cold", *options)
    server.start()
    publish(server, messages, keep=True)
    status = {}
    for _ in range(600):  # until all closed segments are there
        status = ask(str(server.folder / "data"), "status")["status"]
        if status["segments"] >= messages * 104 // SEGMENT_BYTES - 1 and not status["streams_waiting_to_be_sent"]:
            break
        time.sleep(0.1)
    server.stop()
    places = asyncio.run(_places(bucket))
    stored = sum(size for of_one in places.values() for size in of_one.values())
    server = broker(folder / "cold-restored", *options)
    began = time.monotonic()
    server.start()
    with ExitStack() as stack:
        stack.callback(server.stop)
        with StreamsConnection.connect("127.0.0.1", server.streams_port) as connection:
            first = next(iter(connection.read_chunks("load", 0)))
        restored_s = time.monotonic() - began
        assert first.chunk_id == 0

        def read() -> dict[str, float]:
            with StreamsConnection.connect("127.0.0.1", server.streams_port) as connection:
                began, got = time.monotonic(), 0
                last = max(place.next for of_one in places.values() for place in of_one)
                for chunk in connection.read_chunks("load", 0, last):
                    got += len(chunk.data)
                return {"bytes_s": got / (time.monotonic() - began)}

        def own() -> dict[str, float]:
            began = time.monotonic()
            got = asyncio.run(_read_all(bucket, places))
            return {"bytes_s": got / (time.monotonic() - began)}

        found = alternate(rounds, {"client": read, "obstore": own})
    return {"stored_bytes": stored, "restore_to_first_message_s": round(restored_s, 2),
            **compared(found, "bytes_s", "client", "obstore")}  # fmt: skip


async def _places(bucket: Path) -> Any:
    return await places_of_all(Bucket(Remote(url=f"file://{bucket}")))


async def _read_all(bucket: Path, places: Any) -> int:
    opened = Bucket(Remote(url=f"file://{bucket}"))
    got = 0
    for of_one in places.values():
        for place in sorted(of_one):
            for at in range(0, of_one[place], 8 << 20):
                got += len(await opened.read_part(place.key(), Kind.SEGMENT, at, at + (8 << 20)))
    return got


def restore(folder: Path, streams: int) -> dict[str, Any]:
    """From an empty directory to the first message, with many streams."""
    bucket = folder / "many-bucket"
    server = broker(folder / "many", *remote(bucket))
    server.start()
    with StreamsConnection.connect("127.0.0.1", server.streams_port) as connection:
        for number in range(streams):
            connection.create(f"stream-{number}")
            publisher = connection.publisher(f"stream-{number}")
            publisher.publish([b"x" * 100] * 100)
            publisher.flush()
            publisher.close()
    server.stop()
    server = broker(folder / "many-restored", *remote(bucket))
    began = time.monotonic()
    server.start()
    with ExitStack() as stack:
        stack.callback(server.stop)
        with StreamsConnection.connect("127.0.0.1", server.streams_port) as connection:
            assert sum(chunk.records for chunk in connection.read_chunks(f"stream-{streams - 1}", 0)) == 100
        return {"streams": streams, "to_first_message_s": round(time.monotonic() - began, 2)}


@click.command(name="remote")
@click.option("--rounds", default=5, show_default=True)
@click.option("--scale", default=1.0, show_default=True, help="Of the messages of a run.")
@click.option("--only", multiple=True, help="Of: durabilities, requests, slow, tier, cold, restore.")
@click.option("--output", type=click.Path(path_type=Path))
def remote_command(rounds: int, scale: float, only: tuple[str, ...], output: Path | None) -> None:
    """Durability `remote`, the second tier, and a restore."""
    works: dict[str, Callable[[Path], dict[str, Any]]] = {
        "durabilities": lambda folder: durabilities(folder, rounds, round(MESSAGES * scale)),
        "requests": lambda folder: requests(folder, 0),
        "slow": lambda folder: slow_store(folder, rounds, round(MESSAGES * scale / 8)),
        "tier": lambda folder: tier(folder, rounds, round(MESSAGES * scale)),
        "cold": lambda folder: cold(folder, rounds, round(COLD_MESSAGES * scale)),
        "restore": lambda folder: restore(folder, round(1000 * scale)),
    }
    report = {}
    for name in only or works:
        with tempfile.TemporaryDirectory() as folder:
            report[name] = works[name](Path(folder))
    show(report, output)
