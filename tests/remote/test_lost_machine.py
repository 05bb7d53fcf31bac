# SPDX-License-Identifier: Apache-2.0
"""Machines are lost at random moments under load, and whatever was confirmed is there again: once, in order, whole.

In small here; `make remote-soak` runs VIBEMQ_SOAK_ROUNDS rounds of it.
"""

import os
import random
import shutil
import signal
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path

import pytest
from running import broker, wait_until, written

import vibemq.client
from vibemq.client.streams import StreamsConnection
from vibemq.errors import VibeMQError
from vibemq.remote.asking import ask

pytest.importorskip("obstore", reason="needs the extra remote")

ROUNDS = int(os.environ.get("VIBEMQ_SOAK_ROUNDS", "4"))
ALIVE_SECONDS_MAX = 1.5
BATCH = 50
#: What is lost: the machine with its disk, all processes, or the archiver alone.
LOSSES = ("machine", "machine", "processes", "archiver")

pytestmark = pytest.mark.timeout(120 + ROUNDS * 60)


class Load(threading.Thread):
    """Publishes numbers, a batch after the other, until it is told to stop or loses the broker; knows what is sure."""

    def __init__(self, publish: Callable[[list[int]], None], first: int) -> None:
        super().__init__(daemon=True)
        self.publish, self.next = publish, first
        self.sure = 0  # below it all is confirmed; what was there before may only have been on its way
        self.stopping = threading.Event()
        self.problem: Exception | None = None

    def run(self) -> None:
        try:
            while not self.stopping.is_set():
                self.publish(list(range(self.next, self.next + BATCH)))
                self.next += BATCH
                self.sure = self.next
        except Exception as problem:  # the broker is gone: what it had confirmed is known
            self.problem = problem


def flags(bucket: Path, *more: str) -> list[str]:
    options = {"remote.url": f"file://{bucket}", "store.durability": "remote", "remote.interval_ms": "10"}
    small = {"store.segment_size_bytes": "200000", "queues.segment_size_bytes": "200000", "remote.segment_age_s": "10"}
    return [word for pair in (options | small).items() for word in ("--set", "=".join(pair))] + list(more)


@contextmanager
def lost(folder: Path, bucket: Path, what: str):
    """A broker that ends with a loss."""
    with pytest.raises(Lost), broker(folder, *flags(bucket)) as running:
        yield running
        pids = [running.process.pid, *running._children("")]
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        running.process.wait()
        if what == "machine":
            shutil.rmtree(folder)
        raise Lost


class Lost(Exception):
    """So that nobody stops the broker in order."""


def stream_of(running) -> tuple[StreamsConnection, Callable[[list[int]], None]]:
    connection = StreamsConnection.connect(running.host, running.port, user="guest", password="guest")
    connection.create("events", exist_ok=True)
    publisher = connection.publisher("events", "load")

    def publish(numbers: list[int]) -> None:
        publisher.publish([b"event %d" % number for number in numbers])
        publisher.flush()

    return connection, publish


def queue_of(running) -> tuple[vibemq.client.Client, Callable[[list[int]], None]]:
    client = vibemq.client.connect(f"vibemq://{running.host}:{running.native_port}", reconnect=False)

    def publish(numbers: list[int]) -> None:
        with client.publisher("tasks") as publisher:
            for number in numbers:
                publisher.publish({"number": number}, headers={"kind": f"kind {number % 7}"})

    return client, publish


def test_a_lost_machine_loses_nothing_confirmed(tmp_path):
    seed = int(os.environ.get("VIBEMQ_SEED", random.randrange(1 << 32)))
    print("VIBEMQ_SEED", seed)
    chance = random.Random(seed)
    folder, bucket = tmp_path / "data", tmp_path / "bucket"
    sure_events = sure_tasks = 0
    settled: set[int] = set()  # of the queue, and confirmed to be
    seen: list[int] = []
    for number in range(ROUNDS):
        what = chance.choice(LOSSES)
        print("round", number, "loses", what)
        with lost(folder, bucket, what) as running:
            connection, publish_events = stream_of(running)
            client, publish_tasks = queue_of(running)
            sequence = connection.query_publisher_sequence("load", "events")
            there = [int(body.split()[1]) for body in messages(connection)]
            assert there == list(range(len(there))), "events are there once and in order"
            assert sequence == len(there), "publishing ids are those of the messages"
            assert len(there) >= sure_events, f"events from {len(there)} to {sure_events} were confirmed and are lost"
            loads = [Load(publish_events, len(there)), Load(publish_tasks, 1_000_000 * number)]
            for load in loads:
                load.start()
            for message in client.consume("tasks", prefetch=20, timeout_s=0.3, create=True):
                assert message.headers["kind"] == f"kind {message.payload['number'] % 7}"
                seen.append(message.payload["number"])
                message.ack()
                if len(seen) % 40 == 0:
                    break
            if what == "archiver":
                os.kill(running._children("vibemq: archiver")[0], signal.SIGKILL)
            time.sleep(chance.uniform(0.2, ALIVE_SECONDS_MAX))  # how long it lives; nothing is concluded from it
            if what == "archiver":
                for load in loads:
                    load.stopping.set()
                for load in loads:
                    load.join(30)
                    assert load.problem is None, f"publishers wait for the next archiver: {ask(str(folder), 'status')}"
            counted = [load.sure for load in loads]
        for load in loads:
            load.join(30)
            assert not load.is_alive()
            assert load.problem is None or isinstance(load.problem, VibeMQError | OSError), load.problem
        sure_events = max(sure_events, counted[0])
        sure_tasks = counted[1]
        settled |= {*range(1_000_000 * number, sure_tasks)}
    with broker(folder, *flags(bucket)) as running:
        connection, _ = stream_of(running)
        there = [int(body.split()[1]) for body in messages(connection)]
        assert there == list(range(len(there))) and len(there) >= sure_events
        client, _ = queue_of(running)
        for message in client.consume("tasks", auto_ack=True, timeout_s=3, create=True):
            seen.append(message.payload["number"])
        assert settled <= set(seen), f"{len(settled - set(seen))} tasks were confirmed and never came"
        client.close()
        connection.close()


def messages(connection: StreamsConnection) -> list[bytes]:
    return [body for chunk in connection.read_chunks("events", 0) for _, body in chunk.messages()]


def test_a_data_directory_whose_broker_has_lived_on_elsewhere_is_refused(tmp_path, capfd):
    old, new, bucket = tmp_path / "old", tmp_path / "new", tmp_path / "bucket"
    with broker(old, *flags(bucket)) as running:
        connection, publish = stream_of(running)
        publish(list(range(10)))
    with broker(new, *flags(bucket)) as running:
        connection, publish = stream_of(running)
        publish(list(range(10, 20)))
    with pytest.raises(AssertionError, match="no ready line"), broker(old, *flags(bucket)):
        pass
    assert "has confirmed what this one does not have" in written(capfd)
    with broker(new, *flags(bucket)) as running:
        connection, _ = stream_of(running)
        assert [int(body.split()[1]) for body in messages(connection)] == list(range(20))
        connection.close()


def test_a_damaged_snapshot_of_the_metadata_costs_nothing_while_an_older_one_is_there(tmp_path):
    folder, bucket = tmp_path / "data", tmp_path / "bucket"
    with broker(folder, *flags(bucket)) as running:
        stream_of(running)[0].close()
    newest = bucket / "meta/snapshot-0000000000000001"
    newest.write_bytes(b"damaged")
    shutil.rmtree(folder)
    with broker(folder, *flags(bucket)) as running:
        connection = StreamsConnection.connect(running.host, running.port, user="guest", password="guest")
        assert connection.next_offset("events") == 0
        connection.close()


def test_what_old_objects_held_is_in_newer_ones_before_they_are_deleted(tmp_path):
    folder, bucket = tmp_path / "data", tmp_path / "bucket"
    wal = bucket / "wal/vibemq"
    with lost(folder, bucket, "machine") as running:
        connection, publish = stream_of(running)
        client, publish_tasks = queue_of(running)
        for number in range(20):
            publish(list(range(number * 10, number * 10 + 10)))
            publish_tasks(list(range(number * 10, number * 10 + 10)))
        connection.store_offset("reader", "events", 77)
        for message in client.consume("tasks", prefetch=5, timeout_s=1):
            if message.payload["number"] != 7:
                message.ack()
            if message.payload["number"] >= 100:
                break

        def first_ones() -> set[str]:
            return {path.name for path in max(wal.iterdir()).iterdir() if path.name < f"{20:016}"}

        wait_until(lambda: len(first_ones()) >= 15, "an object for each publish")
        wait_until(lambda: not first_ones(), "old objects are deleted", 60)
    with broker(folder, *flags(bucket)) as running:
        connection, _ = stream_of(running)
        assert [int(body.split()[1]) for body in messages(connection)] == list(range(200))
        assert connection.query_offset("reader", "events") == 77
        assert connection.query_publisher_sequence("load", "events") == 200
        client, _ = queue_of(running)
        left = [m.payload["number"] for m in client.consume("tasks", auto_ack=True, timeout_s=2)]
        assert left[0] == 7 and sorted(left)[-1] == 199 and set(range(101, 200)) <= set(left) and 50 not in left
        client.close()
        connection.close()
