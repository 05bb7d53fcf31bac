# SPDX-License-Identifier: Apache-2.0
"""A disk that fills up, at every door, with real clients: publishers hear why, consumers empty it, publishers go on.

The broker's floor stops publishers while some is free.  Then somebody else takes the rest, to the last byte: consumers
are still handed messages, acknowledge, and store offsets, out of the reserve, and so make room.  Nothing confirmed is
lost.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from door_clients import DOORS, Message, native_client
from full_disk import FILLER, fill, free_bytes, small_disk
from running import Running, broker

from vibemq.client.streams import StreamsConnection
from vibemq.errors import RequestFailed, ServerFailed, TimeoutExceeded
from vibemq.protocols.streams.spec import OffsetType

pytestmark = pytest.mark.timeout(300)

DISK_BYTES, FLOOR_BYTES, SEGMENT_BYTES = 96 << 20, 24 << 20, 4 << 20
BODY_BYTES = 500_000
WAIT_S = 60
FEW = 5
OPTIONS = {
    "store.disk_free_min_bytes": FLOOR_BYTES,
    "store.segment_size_bytes": SEGMENT_BYTES,
    "queues.segment_size_bytes": SEGMENT_BYTES,
    "queues.max_messages": 0,
}
WORKERS = 2  # each looks at the disk for itself


class Full(NamedTuple):
    served: Running
    disk: Path


@pytest.fixture(params=["tmpfs", "ext4"])
def full(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Full]:
    flags = [word for name, value in OPTIONS.items() for word in ("--set", f"{name}={value}")]
    logged = ("sh", "-c", f"exec \"$@\" 2> '{tmp_path}/log'", "sh")
    with (
        small_disk(tmp_path, DISK_BYTES, request.param) as disk,
        broker(disk / "data", *flags, workers=WORKERS, through=logged) as served,
    ):
        yield Full(served, disk)


def wait_until(holds: Callable[[], Any], what: str) -> None:
    end = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < end, f"after {WAIT_S} s still not: {what}"
        time.sleep(0.05)


def few(name: str) -> list[Message]:
    return [Message(f"{name} {number}", id=f"{name}-{number}") for number in range(FEW)]


def publish_until_refused(served: Running) -> list[str]:
    """Ids of what was confirmed."""
    confirmed = []
    with native_client(served) as client, pytest.raises(ServerFailed, match="disk alarm"):
        while True:
            name = f"big-{len(confirmed)}"
            client.publish("big", "x" * BODY_BYTES, id=name)
            confirmed.append(name)
    return confirmed


def test_publishers_hear_why_consumers_empty_the_disk_and_publishers_go_on(full: Full, tmp_path: Path) -> None:
    served, disk = full
    for name, door in DOORS.items():
        if name != "streams":
            door.publish(served, name, few(name))
    with StreamsConnection.connect(served.host, served.port, timeout_s=WAIT_S) as streams:
        streams.create("streams")
        streams.create("spare")
        publisher = streams.publisher("streams")
        publisher.publish([b"before"])
        publisher.flush()

        confirmed = publish_until_refused(served)
        assert len(confirmed) * BODY_BYTES > DISK_BYTES / 3, "it was refused too early"
        assert free_bytes(disk) > FLOOR_BYTES / 2, "far below the floor"

        log = tmp_path / "log"
        wait_until(lambda: log.read_text().count("no messages are taken") >= WORKERS, "every worker has the alarm")
        with native_client(served) as client:
            for _ in range(500):
                with pytest.raises(ServerFailed):
                    client.publish("big", "refused")

        # ---- every door says it in its own words; who publishes to a stream is not read ----
        for name in ("native", "signalr", "micromsg2"):
            with pytest.raises(Exception, match="disk alarm"):
                DOORS[name].publish(served, name, [Message("refused", id="refused")])
        with StreamsConnection.connect(served.host, served.port) as other, pytest.raises(RequestFailed) as refused:
            other.publisher("streams")
        assert "PRECONDITION_FAILED" in str(refused.value) and "vibemq ctl check_alarms" in refused.value.hint
        publisher.publish([b"while"])
        with pytest.raises(TimeoutExceeded):
            publisher.flush(timeout_s=1)

        # ---- somebody else takes the rest ----
        fill(disk)
        assert free_bytes(disk) < 4096
        with StreamsConnection.connect(served.host, served.port, timeout_s=WAIT_S) as reader:
            reader.store_offset("reader", "streams", 0)
            wait_until(lambda: reader.query_offset("reader", "streams") == 0, "the offset is stored")
            reader.delete("spare")
            assert not reader.exists("spare")
        for name, door in DOORS.items():
            if name != "streams":
                assert [message.id for message in door.consume(served, name, FEW)] == [m.id for m in few(name)]
        taken = DOORS["native"].consume(served, "big", len(confirmed))
        assert [message.id for message in taken] == confirmed

        # ---- and so there is room, though the other one keeps what it has taken ----
        wait_until(lambda: free_bytes(disk) > FLOOR_BYTES, "what was consumed has made room")
        publisher.flush(timeout_s=WAIT_S)
        for name, door in DOORS.items():
            if name != "streams":
                wait_until(lambda: goes_in(served, name), f"{name} takes messages again")  # noqa: B023
                assert [message.id for message in door.consume(served, name, 1)] == ["again"]
        subscription = streams.subscribe("streams", OffsetType.FIRST)
        found: list[bytes] = []
        while len(found) < 2:
            found += [message for _, message in subscription.next_chunk(WAIT_S).messages()]
        assert found == [b"before", b"while"]
    warnings = [line for line in log.read_text().splitlines() if " WARNING " in line or " ERROR " in line]
    assert any("publishes are refused" in line for line in warnings)
    assert len(warnings) < 20, "the log says it once a minute"
    wait_until(lambda: (disk / "data" / "reserve").stat().st_size == FLOOR_BYTES // 2, "the reserve is whole again")


def goes_in(served: Running, name: str) -> bool:
    try:
        DOORS[name].publish(served, name, [Message("again", id="again")])
    except Exception as problem:
        if "disk alarm" not in str(problem):
            raise
        return False
    return True


def test_a_connection_that_publishes_and_consumes_makes_its_own_room(full: Full) -> None:
    served, disk = full
    with native_client(served) as client:
        confirmed = 0
        with pytest.raises(ServerFailed, match="disk alarm"):
            while True:
                client.publish("own", "x" * BODY_BYTES)
                confirmed += 1
        with client.consume("own", timeout_s=WAIT_S) as consumer:
            for _ in range(confirmed):
                next(consumer).ack()
        wait_until(lambda: free_bytes(disk) > FLOOR_BYTES, "it has made room")
        wait_until(lambda: goes_in(served, "native"), "messages are taken again")


def test_a_queue_whose_messages_all_lie_in_the_segment_in_use_gives_their_room_back(tmp_path: Path) -> None:
    """At no byte free: the new segment, without which the old one cannot go, comes from the reserve."""
    options = OPTIONS | {"queues.segment_size_bytes": DISK_BYTES}
    flags = [word for name, value in options.items() for word in ("--set", f"{name}={value}")]
    with small_disk(tmp_path, DISK_BYTES, "tmpfs") as disk, broker(disk / "data", *flags) as served:
        confirmed = publish_until_refused(served)
        fill(disk)
        assert len(DOORS["native"].consume(served, "big", len(confirmed))) == len(confirmed)
        wait_until(lambda: free_bytes(disk) > FLOOR_BYTES, "what was consumed has made room")
        wait_until(lambda: goes_in(served, "native"), "messages are taken again")


@pytest.mark.parametrize("is_upgrade", [False, True], ids=["same version", "from one without a lease"])
def test_a_broker_that_was_killed_on_a_full_disk_starts_and_is_emptied(tmp_path: Path, is_upgrade: bool) -> None:
    flags = [word for name, value in OPTIONS.items() for word in ("--set", f"{name}={value}")]
    with small_disk(tmp_path, DISK_BYTES, "tmpfs") as disk:
        with pytest.raises(AssertionError, match="cleanly"), broker(disk / "data", *flags) as served:
            confirmed = publish_until_refused(served)
            fill(disk)
            served.process.kill()
        if is_upgrade:
            (disk / "data/lease").unlink()
            fill(disk)
        with broker(disk / "data", *flags) as served:
            taken = DOORS["native"].consume(served, "big", len(confirmed))
            assert [message.id for message in taken] == confirmed
            (disk / FILLER).unlink()
            wait_until(lambda: goes_in(served, "native"), "messages are taken again")
