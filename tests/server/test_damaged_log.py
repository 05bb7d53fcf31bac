# SPDX-License-Identifier: Apache-2.0
"""The cost of a flipped bit in a stream's log after a restart of the machine, with a real broker."""

from __future__ import annotations

import random
import re
from contextlib import nullcontext
from pathlib import Path

import pytest
from other_boot import write_in_another_boot
from running import broker, written

from vibemq.client.streams import StreamsConnection
from vibemq.storage.log import recovery_ahead
from vibemq.storage.metadata import Metadata

COUNT, BATCH = 2000, 20
SMALL = ("--set", "store.segment_size_bytes=65536")


def body(number: int) -> bytes:
    return b"message %d " % number + b"." * 150


def directory_of(data: Path, name: str = "events") -> Path:
    metadata = Metadata(str(data / "meta.db"))
    [directory] = [record.directory for record in metadata.streams() if record.name == name]
    metadata.close()
    return Path(directory)


def write(data: Path, durability: str = "os", *, kill: bool = False) -> Path:
    ends = pytest.raises(AssertionError, match="did not stop cleanly") if kill else nullcontext()
    with ends, broker(data, *SMALL, "--durability", durability) as served:
        with StreamsConnection.connect(served.host, served.port) as connection:
            connection.create("events")
            with connection.publisher("events", "ref") as publisher:
                for at in range(0, COUNT, BATCH):
                    publisher.publish([body(number) for number in range(at, at + BATCH)])
                    publisher.flush()
        if kill:
            served.process.kill()
    return directory_of(data)


def read(connection: StreamsConnection) -> set[int]:
    """Return the readable offsets; assert that each has the message that was published at it."""
    found: set[int] = set()
    end = connection.next_offset("events")
    for chunk in connection.read_chunks("events", 0, end, timeout_s=10):
        for offset, message in chunk.messages():
            assert message == body(offset)
            found.add(offset)
    return found


def flip(path: Path, position: int, bit: int) -> None:
    with open(path, "r+b") as file:
        file.seek(position)
        (byte,) = file.read(1)
        file.seek(position)
        file.write(bytes([byte ^ 1 << bit]))


@pytest.mark.parametrize("durability", ["os", "disk"])
@pytest.mark.parametrize("end", ["stopped", "killed"])
def test_one_bit_in_an_old_segment_costs_its_chunk_after_another_boot(tmp_path, capfd, durability, end):
    directory = write(tmp_path, durability, kill=end == "killed")
    segments = sorted(directory.glob("*.segment"))
    assert len(segments) >= 5
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    path = segments[0]
    flip(path, chance.randrange(64 + 48, path.stat().st_size), chance.randrange(8))
    write_in_another_boot(directory)
    capfd.readouterr()
    with broker(tmp_path, *SMALL) as served, StreamsConnection.connect(served.host, served.port) as connection:
        assert connection.next_offset("events") == COUNT
        there = read(connection)
        lost = set(range(COUNT)) - there
        assert len(lost) <= BATCH and lost == set(range(min(lost, default=0), max(lost, default=-1) + 1))
        with connection.publisher("events", "ref") as publisher:
            assert publisher.next_id == COUNT + 1
            publisher.publish([body(COUNT)])
            publisher.flush()
        assert read(connection) == there | {COUNT}
    said = written(capfd)
    assert "was cut at" not in said and "is kept as" not in said
    assert not lost or str(path) in said or path.name in said


def test_a_log_is_known_to_be_durable_after_an_orderly_stop(tmp_path):
    directory = write(tmp_path)
    write_in_another_boot(directory)
    header_cost = 1024 * (COUNT // BATCH)  # a look at each chunk's header, and none at its messages
    assert (
        recovery_ahead(str(directory)) <= header_cost < sum(path.stat().st_size for path in directory.glob("*.segment"))
    )


def test_a_lost_index_of_the_active_segment_is_made_again(tmp_path):
    directory = write(tmp_path)
    newest = sorted(directory.glob("*.index"))[-1]
    newest.unlink()
    with broker(tmp_path, *SMALL) as served, StreamsConnection.connect(served.host, served.port) as connection:
        with connection.publisher("events", "ref") as publisher:
            publisher.publish([body(COUNT)])
            publisher.flush()
        assert newest.exists()
        assert read(connection) == set(range(COUNT + 1))
        # Also while the broker runs: a worker reopens the files after the stream was idle.
        newest.unlink()
    with broker(tmp_path, *SMALL) as served, StreamsConnection.connect(served.host, served.port) as connection:
        with connection.publisher("events", "ref") as publisher:
            publisher.publish([body(COUNT + 1)])
            publisher.flush()
        assert read(connection) == set(range(COUNT + 2))


def test_a_damaged_control_page_is_named_and_rebuilt_in_the_same_boot(tmp_path, capfd):
    directory = write(tmp_path)
    flip(directory / "control", 4, 3)  # its version
    capfd.readouterr()
    with broker(tmp_path, *SMALL) as served, StreamsConnection.connect(served.host, served.port) as connection:
        assert read(connection) == set(range(COUNT))
        with connection.publisher("events", "ref") as publisher:
            assert publisher.next_id == COUNT + 1
    said = written(capfd)
    assert re.search(r"stream 'events': \S*/control is damaged, missing or of an older version; it is rebuilt", said)
    assert "newer" not in said
