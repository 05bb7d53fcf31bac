# SPDX-License-Identifier: Apache-2.0
"""A start in the same boot on other files than the last broker left: a lost cache, a snapshot, an older copy."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from running import Running, broker, wait_until, written

import vibemq.client
from vibemq.client.streams import StreamsConnection
from vibemq.server.datadir import is_served

COUNT, BATCH = 4000, 20
SMALL = ("--set", "store.segment_size_bytes=262144", "--set", "store.disk_free_min_bytes=1000000")
IMAGE_BYTES = 256 << 20


def body(number: int) -> bytes:
    return b"message %d " % number + b"." * 150


def publish(connection: StreamsConnection, stream: str, first: int, count: int) -> None:
    with connection.publisher(stream) as publisher:
        for at in range(first, first + count, BATCH):
            publisher.publish([body(number) for number in range(at, min(at + BATCH, first + count))])
        publisher.flush()


def whole(connection: StreamsConnection, stream: str) -> int:
    """Return the next offset; assert that there is a message at each offset below it, and that it is the right one."""
    end = connection.next_offset(stream)
    found = []
    if end:
        for chunk in connection.read_chunks(stream, 0, end, timeout_s=10):
            found += [(offset, bytes(message)) for offset, message in chunk.messages()]
    assert found == [(offset, body(offset)) for offset in range(end)]
    return end


def kill(served: Running, data: Path) -> None:
    served.process.kill()
    served.process.wait()
    wait_until(lambda: not is_served(str(data)), "the workers end after their supervisor")


@contextmanager
def mounted(folder: Path, image: Path, device: str = "") -> Iterator[str]:
    """Mount an image through a loop device, that one if it is named; yield its name."""
    folder.mkdir(exist_ok=True)
    if os.geteuid() != 0 or any(shutil.which(tool) is None for tool in ("losetup", "mkfs.ext4", "fsfreeze")):
        pytest.skip("only root may mount a file system, with losetup, mkfs.ext4 and fsfreeze")
    place = [device] if device else ["--find", "--show"]
    done = subprocess.run(["losetup", *place, str(image)], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"there is no loop device here: {done.stderr.strip()}")
    device = device or done.stdout.strip()
    try:
        done = subprocess.run(["mount", device, str(folder)], capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"a file system cannot be mounted here: {done.stderr.strip()}")
        try:
            yield device
        finally:
            subprocess.run(["umount", str(folder)], check=True)
    finally:
        subprocess.run(["losetup", "--detach", device], check=True)


@pytest.fixture
def image(tmp_path: Path) -> Path:
    path = tmp_path / "image"
    with open(path, "wb") as file:
        file.truncate(IMAGE_BYTES)
    if shutil.which("mkfs.ext4") is None:
        pytest.skip("mkfs.ext4 is not installed")
    subprocess.run(["mkfs.ext4", "-q", "-m", "0", str(path)], check=True)
    return path


@contextmanager
def ends_killed() -> Iterator[None]:
    with pytest.raises(AssertionError, match="did not stop cleanly"):
        yield


def test_a_disk_that_lost_its_cache_in_the_same_boot_leaves_no_hole_and_all_that_was_synced(
    tmp_path: Path, image: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    disk, lost = tmp_path / "disk", tmp_path / "lost"
    with mounted(disk, image) as device:
        with ends_killed(), broker(disk / "data", *SMALL, workers=1) as served:
            with StreamsConnection.connect(served.host, served.port) as connection:
                connection.create("cached")
                connection.create("synced", {"durability": "disk"})
                publish(connection, "cached", 0, COUNT)
                os.sync()
                publish(connection, "cached", COUNT, COUNT)
                publish(connection, "synced", 0, COUNT)
            kill(served, disk / "data")
        shutil.copyfile(image, lost)  # without a sync: all that only the page cache of the mounted one has is missing
    capfd.readouterr()
    with (
        mounted(disk, lost, device),  # the same device and the same inodes, in the same boot
        broker(disk / "data", *SMALL, workers=1) as served,
        StreamsConnection.connect(served.host, served.port) as connection,
    ):
        assert whole(connection, "synced") == COUNT
        end = whole(connection, "cached")
        assert end >= COUNT, "these were synced"
        publish(connection, "cached", end, BATCH)
        assert whole(connection, "cached") == end + BATCH
    assert "was written through another mount, or is a copy" in written(capfd)


def test_a_snapshot_taken_under_load_serves_beside_the_original_in_the_same_boot(tmp_path: Path, image: Path) -> None:
    disk, taken, copy = tmp_path / "disk", tmp_path / "taken", tmp_path / "copy"
    ends = threading.Event()
    with mounted(disk, image), broker(disk / "data", *SMALL, workers=2) as served:

        def load(queue: str) -> None:
            with vibemq.client.connect(f"vibemq://{served.host}:{served.native_port}") as client:
                client.create_queue(queue)
                while not ends.is_set():
                    client.publish_many(queue, list(range(100)))
                    with client.consume(queue) as consumer:
                        for _ in range(90):
                            next(consumer).ack()

        threads = [threading.Thread(target=load, args=(f"q{number}",)) for number in range(4)]
        for thread in threads:
            thread.start()
        try:
            wait_until(lambda: len(list((disk / "data/streams").glob("*/*.ledger"))) >= 4, "all queues are in use")
            subprocess.run(["fsfreeze", "--freeze", str(disk)], check=True)
            try:
                shutil.copyfile(image, taken)
            finally:
                subprocess.run(["fsfreeze", "--unfreeze", str(disk)], check=True)
            with (
                mounted(copy, taken),
                broker(copy / "data", *SMALL, workers=2) as other,
                vibemq.client.connect(f"vibemq://{other.host}:{other.native_port}?commandTimeout=60") as client,
            ):
                for number in range(4):
                    client.publish(f"q{number}", "the last")
                    with client.consume(f"q{number}", timeout_s=60) as consumer:
                        message = next(consumer)
                        while message.payload != "the last":
                            message.ack()
                            message = next(consumer)
                        message.ack()
        finally:
            ends.set()
            for thread in threads:
                thread.join()


def test_a_copy_of_a_live_directory_serves_beside_the_original_with_all_that_was_confirmed_before(
    tmp_path: Path,
) -> None:
    data, copy = tmp_path / "data", tmp_path / "copy"
    ends = threading.Event()
    with broker(data, *SMALL, workers=2) as served:
        with StreamsConnection.connect(served.host, served.port) as connection:
            for stream, durability in (("cached", "os"), ("synced", "disk")):
                connection.create(stream, {"durability": durability})
                publish(connection, stream, 0, COUNT)

        def load(stream: str) -> None:
            with StreamsConnection.connect(served.host, served.port) as connection:
                at = COUNT
                while not ends.is_set():
                    publish(connection, stream, at, BATCH)
                    at += BATCH

        threads = [threading.Thread(target=load, args=(stream,)) for stream in ("cached", "synced")]
        for thread in threads:
            thread.start()
        try:
            shutil.copytree(data, copy, ignore=shutil.ignore_patterns("*.sock"))
            with (
                broker(copy, *SMALL, workers=2) as other,
                StreamsConnection.connect(other.host, other.port) as connection,
            ):
                for stream in ("cached", "synced"):
                    end = whole(connection, stream)
                    assert end >= COUNT
                    publish(connection, stream, end, BATCH)
                    assert whole(connection, stream) == end + BATCH
        finally:
            ends.set()
            for thread in threads:
                thread.join()


def test_an_older_copy_that_is_written_over_the_streams_leaves_no_hole(tmp_path: Path) -> None:
    data, older = tmp_path / "data", tmp_path / "older"
    one_segment = ("--set", "store.segment_size_bytes=67108864")
    with ends_killed(), broker(data, *one_segment, workers=1) as served:
        with StreamsConnection.connect(served.host, served.port) as connection:
            connection.create("events")
            publish(connection, "events", 0, COUNT)
            shutil.copytree(data / "streams", older)
            publish(connection, "events", COUNT, COUNT)
        kill(served, data)
    for path in older.rglob("*"):
        if path.is_file():
            with open(data / "streams" / path.relative_to(older), "r+b") as file:  # in place: the inode stays
                file.write(path.read_bytes())
                file.truncate()
    with (
        broker(data, *one_segment, workers=1) as served,
        StreamsConnection.connect(served.host, served.port) as connection,
    ):
        end = whole(connection, "events")
        assert end == COUNT
        publish(connection, "events", end, BATCH)
        assert whole(connection, "events") == end + BATCH
