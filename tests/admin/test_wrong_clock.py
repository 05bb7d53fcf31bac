# SPDX-License-Identifier: Apache-2.0
"""A wall clock that is wrong, or is set while the broker runs, removes nothing, and keeps nothing for good."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from http_caller import STREAM, Http
from other_boot import begin_in_another_boot, write_in_another_boot
from peers.queues import Command, QueuePeer
from running import Running, broker, wait_until, written
from staging import begun, entries, rows
from wrong_clock import DAY_S, HOUR_S, Clock

import vibemq.client
from vibemq.client.streams import StreamsConnection
from vibemq.protocols.streams.spec import TransactionState as State
from vibemq.storage.members import MemberTable

YEARS_S = 80 * 365 * DAY_S
FAN_OUT_WITH_ACK = 1
CLOCK_GRACE_S = 8
# In the file of a queue's members: a record, and in it the boot of the moment when the member went away.
RECORD_BYTES, STAMP_BOOT_AT = 1024, 52
SMALL = {"x-stream-max-segment-size-bytes": 4096}


@pytest.fixture
def clock(tmp_path: Path) -> Clock:
    return Clock(tmp_path)


@contextmanager
def serving(folder: Path, clock: Clock, *flags: str) -> Iterator[Running]:
    with broker(folder, "--set", "store.retention_interval_s=1", *flags, workers=1, through=clock.through) as running:
        yield running


def make_stream(http: Http, name: str, **arguments: object) -> None:
    body = {**STREAM, "arguments": {**STREAM["arguments"], **SMALL, **arguments}}
    assert http.status("PUT", "queues", "/", name, body=body) == 201


def publish(running: Running, stream: str, count: int) -> None:
    """A segment for each message."""
    with StreamsConnection.connect(running.host, running.port) as connection, connection.publisher(stream) as publisher:
        for _ in range(count):
            publisher.publish([b"x" * 5000])


def first_offset(http: Http, name: str) -> int:
    """-1: there is no message any more."""
    with StreamsConnection.connect(http.running.host, http.running.port) as connection:
        return connection.stats(name)["first_chunk_id"]


def metric(http: Http, name: str) -> float:
    lines = http.raw("GET", "/metrics").text.splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"vibemq_{name} "))


def apply_retention(http: Http, age: str) -> None:
    """Streams have it when this returns."""
    body = {"pattern": ".*", "definition": {"max-age": age}, "apply-to": "streams"}
    assert http.status("PUT", "policies", "/", "age", body=body) in (201, 204)


def in_another_boot(folder: Path) -> None:
    for directory in (folder / "streams").iterdir():
        write_in_another_boot(directory)
        begin_in_another_boot(directory)


def messages(running: Running, queue: str, count: int) -> list[bytes]:
    url = f"vibemq://{running.host}:{running.native_port}"
    with vibemq.client.connect(url) as client, client.consume(queue, timeout_s=60) as consumer:
        return [next(consumer).payload for _ in range(count)]


def test_a_message_stored_while_the_clock_was_ahead_pins_no_stream(tmp_path, clock):
    with serving(tmp_path / "data", clock) as running:
        http = Http(running)
        make_stream(http, "events", **{"x-max-age": "2s"})
        publish(running, "events", 2)
        clock.jump(YEARS_S)
        publish(running, "events", 1)
        clock.jump(0)
        publish(running, "events", 2)
        began_ms = time.time_ns() // 1_000_000
        publish(running, "events", 1)
        with StreamsConnection.connect(running.host, running.port) as connection:
            times = [chunk.timestamp_ms for chunk in connection.read_chunks("events", 5, 6)]
            assert began_ms <= times[0] < began_ms + HOUR_S * 1000
        [directory] = (tmp_path / "data/streams").iterdir()

        def closed() -> list[int]:
            return [int(path.stem) for path in directory.glob("*.segment") if int(path.stem) < 5]

        wait_until(lambda: not closed(), "only the active segment is left")


@pytest.mark.parametrize("is_synchronised", [False, True])
def test_a_start_with_a_clock_that_is_ahead_removes_nothing(tmp_path, clock, is_synchronised):
    folder = tmp_path / "data"
    with serving(folder, clock) as running:
        make_stream(Http(running), "events")
        publish(running, "events", 5)
        with vibemq.client.connect(f"vibemq://{running.host}:{running.native_port}") as client:
            client.create_queue("jobs", message_ttl_ms=HOUR_S * 1000)
            for number in range(5):
                client.publish("jobs", b"%d" % number)
    in_another_boot(folder)
    (folder / "clock").write_text(f"{time.time_ns() // 1_000_000}\n")
    clock.jump(400 * DAY_S)
    if is_synchronised:  # and yet more than a day ahead of the last known time
        clock.synchronise()
    with serving(folder, clock) as running:
        http = Http(running)
        assert metric(http, "clock_believed") == 0
        apply_retention(http, "7D")
        assert first_offset(http, "events") == 0
        assert messages(running, "jobs", 5) == [b"%d" % number for number in range(5)]
    with serving(folder, clock, "--set", "retention.clock_grace_s=0") as running:
        wait_until(lambda: first_offset(Http(running), "events") != 0, "without a grace what is old goes")


def test_a_synchronised_clock_is_believed_at_once_where_the_last_known_time_is_less_than_a_day_back(tmp_path, clock):
    clock.synchronise()
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "clock").write_text(f"{time.time_ns() // 1_000_000 - HOUR_S * 1000}\n")
    with serving(folder, clock) as running:
        http = Http(running)
        assert metric(http, "clock_believed") == 1
        clock.jump(HOUR_S)
        wait_until(lambda: metric(http, "clock_steps_total") == 1, "the step was seen")
        # The step is counted, and logged, before it is judged.
        wait_until(lambda: metric(http, "clock_believed") == 1, "the clock is believed", 5)
        clock.jump(3 * DAY_S)
        wait_until(lambda: metric(http, "clock_steps_total") == 2, "the step was seen")
        assert metric(http, "clock_believed") == 0


def test_the_time_to_live_of_an_absent_subscriber_counts_over_reboots_once_the_clock_is_believed(tmp_path, clock):
    folder = tmp_path / "data"
    with serving(folder, clock) as running, QueuePeer(running) as peer, QueuePeer(running) as audit:
        peer.create("q", mode=FAN_OUT_WITH_ACK)
        peer.subscribe("q")
        headers = {"vibemq-subscriber": "audit", "vibemq-subscriber-ttl": "600"}
        audit.ask(Command.SUBSCRIBE, queue="q", headers=headers)
        audit.unsubscribe("q")
        peer.publish("q", "kept for the one who is away")
        peer.ack(*peer.take(1))
        peer.unsubscribe("q")
        peer.await_counts("q", 1)
    in_another_boot(folder)
    [members] = (folder / "streams").glob("*/members")
    table = MemberTable(str(members.parent), False)
    [away] = [record.index for record in table.all() if record.name == "audit"]
    with open(members, "r+b") as file:
        file.seek(away * RECORD_BYTES + STAMP_BOOT_AT)
        file.write(bytes(4))
    table._seal(away)
    clock.jump(HOUR_S)
    flags = ("--set", f"retention.clock_grace_s={CLOCK_GRACE_S}", "--set", "queues.member_grace_s=1")
    with serving(folder, clock, *flags) as running, QueuePeer(running) as peer:
        assert peer.info("q")["messageCount"] == 1
        assert metric(Http(running), "clock_believed") == 0
        wait_until(lambda: peer.info("q")["messageCount"] == 0, "its time was over long ago")


def test_a_clock_that_is_set_while_the_broker_runs_removes_nothing(tmp_path, clock, capfd):
    with serving(tmp_path / "data", clock, "--set", "transactions.staged_age_max_s=60") as running:
        http = Http(running)
        make_stream(http, "events", **{"x-max-age": "1h"})
        make_stream(http, "target")
        publish(running, "events", 5)
        with (
            vibemq.client.connect(f"vibemq://{running.host}:{running.native_port}") as client,
            StreamsConnection.connect(running.host, running.port) as connection,
        ):
            client.create_queue("jobs", message_ttl_ms=HOUR_S * 1000)
            client.publish("jobs", b"job")
            with begun(connection, "app", 0, "target") as staging:
                staging.stage(0, entries(b"row"))
            staged = staging.name, staging.blocks
            for steps, jump_s in enumerate((-10 * 365 * DAY_S, 2 * DAY_S, 0), 1):
                clock.jump(jump_s)
                wait_until(lambda expected=steps: metric(http, "clock_steps_total") == expected, "the step was seen")
                assert metric(http, "clock_believed") == 0
                assert 0 <= metric(http, "uptime_seconds") < HOUR_S
                assert 0 <= http.get("live", "node")["uptime_ms"] < HOUR_S * 1000
                apply_retention(http, f"{steps}h")
                assert first_offset(http, "events") == 0
                assert client.queue_info("jobs").messages == 1
            assert http.get("live", "node")["clock"]["step_ms"] / 1000 == pytest.approx(-2 * DAY_S, abs=60)
            assert connection.commit_transactions("app", 0, "run", ["target"], [staged]).state == State.OK
            assert rows(connection, "target") == [b"row"]
        assert messages(running, "jobs", 1) == [b"job"]
    assert written(capfd).count("the wall clock was set") == 3
