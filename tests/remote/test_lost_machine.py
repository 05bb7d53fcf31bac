# SPDX-License-Identifier: Apache-2.0
"""Machines are lost at random moments under load, and whatever was confirmed is there again: once, in order, whole.

In small here; `make remote-soak` runs VIBEMQ_SOAK_ROUNDS rounds of it.
"""

import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
from flows import GONE, Flow, QueueFlow, Work, everywhere
from power_cut import cut_power
from running import Running, broker, wait_until, written

import vibemq.client
from vibemq.client.streams import StreamsConnection

pytest.importorskip("obstore", reason="needs the extra remote")

ROUNDS = int(os.environ.get("VIBEMQ_SOAK_ROUNDS", "5"))
ALIVE_SECONDS_MAX = 1.0
#: Which process is killed while the others go on, and what is lost in the end: all processes, with them what the disk
#: had not written, or the machine with its disk.
LOSSES = (("", "machine"), ("", "power"), ("", "processes"), ("archiver", "machine"), ("worker", "power"))
THOROUGH_EACH = 20  # rounds

pytestmark = pytest.mark.timeout(120 + ROUNDS * 60)


def flags(bucket: Path, *more: str) -> list[str]:
    options = {"remote.url": f"file://{bucket}", "store.durability": "remote", "remote.interval_ms": "10"}
    options["queues.attempts_max"] = "1000"  # whoever is killed so often has not failed with its messages
    small = {"store.segment_size_bytes": "200000", "queues.segment_size_bytes": "200000", "remote.segment_age_s": "10"}
    return [word for pair in (options | small).items() for word in ("--set", "=".join(pair))] + list(more)


@contextmanager
def lost(folder: Path, bucket: Path, what: str, chance: random.Random | None = None):
    """A broker that ends with a loss, of which ``chance`` is for one of power."""
    with pytest.raises(Lost), broker(folder, *flags(bucket)) as running:
        yield running
        pids = [running.process.pid, *running._children("")]
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        running.process.wait()
        wait_until(lambda: not any(map(is_alive, pids)), "all processes are gone")
        if what == "machine":
            shutil.rmtree(folder)
        elif what == "power":
            assert chance is not None
            print(*cut_power(folder, chance), sep="\n", flush=True)
        raise Lost


def is_alive(pid: int) -> bool:
    """It may be dead and nobody has asked for it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


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


def test_whatever_is_lost_what_was_confirmed_at_any_door_is_there_again(tmp_path):
    seed = int(os.environ.get("VIBEMQ_SEED", random.randrange(1 << 32)))
    print("VIBEMQ_SEED", seed)
    chance = random.Random(seed)
    folder, bucket = tmp_path / "data", tmp_path / "bucket"
    flows = everywhere()
    for number in range(ROUNDS):
        if number % len(LOSSES) == 0:
            losses = chance.sample(LOSSES, len(LOSSES))
        killed, what = losses[number % len(LOSSES)]
        print(f"round {number} loses {what}, after {killed or 'nothing'} was killed", flush=True)
        works: list[Work] = []
        with lost(folder, bucket, what, chance) as running, ExitStack() as stack:
            for flow in flows:
                flow.check(running, chance, is_thorough=number % THOROUGH_EACH == THOROUGH_EACH - 1)
            publishing = [flow.publishing(stack.enter_context(flow.open(running))) for flow in flows]
            works += publishing + [flow.consuming(running, random.Random(chance.random())) for flow in flows]
            for work in works:
                work.start()
            live(chance)
            if killed:
                kill_one(running, flows, killed, chance)
                live(chance)
                end_all(publishing, killed)
                for flow in flows:  # whoever connects again goes on
                    with flow.open(running) as publish:
                        flow.publish(publish)
            clients = stack.pop_all()  # which find out by themselves
        for work in works:
            work.ended()
        with suppress(*GONE):
            clients.close()
    with broker(folder, *flags(bucket)) as running:
        for flow in flows:
            flow.check(running, chance, is_thorough=True)
            print(flow.target, len(flow.confirmed), "confirmed")
            assert flow.confirmed


def live(chance: random.Random) -> None:
    time.sleep(chance.uniform(0.1, ALIVE_SECONDS_MAX))  # how long it lives; nothing is concluded from it


def kill_one(running: Running, flows: list[Flow], what: str, chance: random.Random) -> None:
    for flow in flows:
        if isinstance(flow, QueueFlow):
            flow.may_come_again = what == "worker"
    os.kill(chance.choice(running._children(f"vibemq: {what}")), signal.SIGKILL)


def end_all(publishing: list[Work], killed: str) -> None:
    for work in publishing:
        work.stopping.set()
    for work in publishing:
        problem = work.ended()
        assert problem is None or killed == "worker", f"publishers wait for the next archiver: {problem!r}"


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


def test_while_the_folder_is_not_mounted_nothing_is_confirmed_though_the_archiver_dies_too(tmp_path, capfd):
    bucket, away = tmp_path / "bucket", tmp_path / "away"
    with broker(tmp_path / "data", *flags(bucket)) as running:
        connection, publish = stream_of(running)
        publish(list(range(10)))
        bucket.rename(away)
        os.kill(running._children("vibemq: archiver")[0], signal.SIGKILL)
        wait_until(lambda: "no epoch can be taken" in written(capfd), "the next archiver looks for the bucket")
        publisher = connection.publisher("events")
        publisher.publish([b"event 10"])
        wait_until(lambda: written(capfd).count("no epoch can be taken") > 1, "and again")
        assert publisher.unconfirmed == 1
        shutil.rmtree(bucket)  # it may be there, and empty
        away.rename(bucket)
        publisher.flush(timeout_s=60)
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
