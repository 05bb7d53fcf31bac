# SPDX-License-Identifier: Apache-2.0
"""What durability `remote` promises to survive, with real brokers on a real S3 server behind a way that fails."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from peers.faulty import FaultyStore
from running import Running, broker, resident_bytes, wait_until, written

from vibemq.client.streams import StreamsConnection
from vibemq.errors import RequestFailed, VibeMQError
from vibemq.storage.metadata import Metadata

pytest.importorskip("obstore", reason="needs the extra remote")
pytestmark = pytest.mark.timeout(120)

#: What obstore waits for in vain is given up soon, so that a test of a silent store does not take minutes.
CLIENT = ",timeout=2s"
CONFIRM_S_MAX = 40.0
BATCH = 50


def flags(store: FaultyStore, **more: object) -> list[str]:
    """``more``: options, with __ for the point."""
    options = {
        "remote.url": store.url,
        "remote.options": store.options + CLIENT,
        "store.durability": "remote",
        "remote.interval_ms": 10,
        "store.segment_size_bytes": 200_000,
        **{name.replace("__", "."): value for name, value in more.items()},
    }
    return [word for name, value in options.items() for word in ("--set", f"{name}={value}")]


@contextmanager
def serving(folder: Path, store: FaultyStore, workers: int = 1, **more: object) -> Iterator[Running]:
    with broker(folder, *flags(store, **more), workers=workers, through=store.through) as running:
        yield running


class Lost(Exception):
    """So that nobody stops the broker in order."""


@contextmanager
def lost(folder: Path, store: FaultyStore, workers: int = 1, **more: object) -> Iterator[Running]:
    """A broker of which every process is killed at the end."""
    with pytest.raises(Lost), serving(folder, store, workers, **more) as running:
        yield running
        kill(running)
        raise Lost


def kill(running: Running) -> None:
    for pid in (running.process.pid, *running._children("")):
        os.kill(pid, signal.SIGKILL)
    running.process.wait()


@contextmanager
def outlived(folder: Path, store: FaultyStore, **more: object) -> Iterator[Running]:
    """A broker that ends by itself, with an error, before the block does."""
    with pytest.raises(Lost), serving(folder, store, **more) as running:
        yield running
        raise Lost


def archiver(running: Running) -> int:
    wait_until(lambda: bool(running._children("vibemq: archiver")), "an archiver")
    return running._children("vibemq: archiver")[0]


def connected(running: Running, timeout_s: float = CONFIRM_S_MAX) -> StreamsConnection:
    return StreamsConnection.connect(running.host, running.port, heartbeat_s=0, timeout_s=timeout_s)


def bodies(connection: StreamsConnection, stream: str = "events", first: int = 0) -> list[bytes]:
    return [body for chunk in connection.read_chunks(stream, first) for _, body in chunk.messages()]


def event(number: int) -> bytes:
    return b"event %d" % number


def whole(connection: StreamsConnection, sure: int, stream: str = "events") -> int:
    """All events up to at least the one that was confirmed, once and in order; how many."""
    there = bodies(connection, stream)
    assert there == [event(number) for number in range(len(there))]
    assert len(there) >= sure, f"{sure} were confirmed, {len(there)} are there"
    return len(there)


class Publisher(threading.Thread):
    """Publishes events under a reference until it is told to stop; where it loses its worker it goes on elsewhere."""

    def __init__(self, running: Running, stream: str = "events") -> None:
        super().__init__(daemon=True)
        self.running, self.stream = running, stream
        self.sure = 0  # of the events, so many are confirmed
        self.stopping = threading.Event()
        self.problem: Exception | None = None
        self.start()

    def run(self) -> None:
        while not self.stopping.is_set():
            try:
                with connected(self.running) as connection:
                    connection.create(self.stream, exist_ok=True)
                    publisher = connection.publisher(self.stream, "ref")
                    while not self.stopping.is_set():
                        first = publisher.next_id - 1  # the first id is 1
                        publisher.publish([event(first + at) for at in range(BATCH)])
                        publisher.flush()
                        self.sure = first + BATCH
            except (VibeMQError, OSError) as problem:
                self.problem = problem

    def goes_on(self, events: int = 4 * BATCH) -> None:
        wanted = self.sure + events
        try:
            wait_until(lambda: self.sure >= wanted, "confirms", CONFIRM_S_MAX)
        except AssertionError as never:
            raise AssertionError(f"{never}; the last problem was {self.problem!r}") from None

    def stop(self) -> int:
        self.stopping.set()
        self.join(CONFIRM_S_MAX)
        assert not self.is_alive()
        return self.sure


# ---- killed ----


def test_publishers_go_on_when_an_archiver_or_a_worker_is_killed_while_answers_are_late_or_lost(tmp_path, faulty):
    seed = int(os.environ.get("VIBEMQ_SEED", random.randrange(1 << 32)))
    print("VIBEMQ_SEED", seed)
    chance = random.Random(seed)
    folder = tmp_path / "data"
    faulty.delay(0.03, "PUT", "wal/")
    with lost(folder, faulty, workers=2) as running:
        publisher = Publisher(running)
        publisher.goes_on()
        for victim in ("archiver", "worker", "archiver"):
            trouble = chance.choice((faulty.cut_after, faulty.cut_before))("PUT", "wal/", times=chance.randrange(1, 8))
            wait_until(lambda trouble=trouble: trouble.met > 0, "a request is cut")
            os.kill(archiver(running) if victim == "archiver" else running.worker_pids()[0], signal.SIGKILL)
            publisher.goes_on()
        faulty.cut_after("PUT", "wal/")
        sure = publisher.sure
    publisher.stopping.set()
    faulty.up()
    with serving(folder, faulty) as running, connected(running) as connection:
        count = whole(connection, sure)
        assert connection.query_publisher_sequence("ref", "events") == count


def test_everything_killed_while_answers_are_lost_and_the_disk_too_leaves_what_was_confirmed(tmp_path, faulty):
    faulty.delay(0.03, "PUT", "wal/")
    with lost(tmp_path / "data", faulty, workers=2) as running:
        publisher = Publisher(running)
        publisher.goes_on()
        faulty.cut_after("PUT", "wal/")
        sure = publisher.sure
    publisher.stopping.set()
    faulty.up()
    with serving(tmp_path / "other", faulty) as running, connected(running) as connection:
        count = whole(connection, sure)
        with connection.publisher("events", "ref") as again:
            assert again.next_id == count + 1
            again.publish([event(count)])
        whole(connection, count + 1)
