# SPDX-License-Identifier: Apache-2.0
"""A stream most of which lies only in the object store, through a broker; a thread plays the archiver."""

import json
import shutil
import socket
import struct
import threading
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
from peers.streams import connected
from running import broker, wait_until, written

from vibemq.errors import StorageError
from vibemq.protocols.streams.spec import OffsetType
from vibemq.storage import cold, cuts
from vibemq.storage import log as logs

BODIES = [b"%06d" % i + b"." * 200 for i in range(3000)]
ARGUMENTS = {"stream-max-segment-size-bytes": "50000", "local-max-length-bytes": "1"}


class Archiver(threading.Thread):
    """Fetches what it is asked for from a folder."""

    def __init__(self, data: Path, directory: Path, store: Path) -> None:
        super().__init__(daemon=True)
        self.directory, self.store = directory, store
        self.asked: Counter[str] = Counter()
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(data / "remote.sock"))
        self.listener.listen()

    def run(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            with connection, connection.makefile("rb") as stream:
                if len(size := stream.read(4)) < 4:
                    continue
                answer = self.answer(json.loads(stream.read(struct.unpack(">I", size)[0])))
                connection.sendall(struct.pack(">I", len(answer)) + answer)

    def answer(self, wanted: dict) -> bytes:
        assert wanted["log"] == self.directory.name
        self.asked[wanted["do"]] += 1
        name = f"{wanted['segment']:020}"
        if wanted["do"] == "index":
            shutil.copy(self.store / f"{name}.index", self.directory)
        elif wanted["from"] < wanted["to"]:  # else a reader says how far it is
            blocks = cold.Blocks(str(self.directory), wanted["segment"])
            data = (self.store / f"{name}.segment").read_bytes()
            for block in range(wanted["from"] // cold.BLOCK_BYTES, (wanted["to"] - 1) // cold.BLOCK_BYTES + 1):
                blocks.put(block, data[block * cold.BLOCK_BYTES :][: cold.BLOCK_BYTES])
            assert all(blocks.marks())
            blocks.close()
        return json.dumps({"ok": True}).encode()

    def stop(self) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)
        self.join()
        self.listener.close()


def here(directory: Path) -> set[str]:
    return {path.name for path in directory.glob("*.segment")}


@pytest.fixture
def stored(tmp_path):
    """A broker, its stream's directory and the store, where all but the active segment are only there."""
    data, store = tmp_path / "d", tmp_path / "store"
    store.mkdir()
    with broker(data, "--set", "store.retention_interval_s=1") as running:
        peer = connected(running)
        peer.create("clicks", **ARGUMENTS)
        for at in range(0, len(BODIES), 100):
            peer.store("clicks", BODIES[at : at + 100])
        (directory,) = (path for path in (data / "streams").iterdir() if any(path.glob("*.segment")))
        first = logs.segments(str(directory))
        assert len(first) > 5
        for segment, following in pairwise(first):
            for suffix in ("segment", "index"):
                shutil.copy(directory / f"{segment:020}.{suffix}", store)
            cold.write_stub(str(directory), cold.describe(str(directory), segment, following, 1))
        assert [stub.first for stub in cold.stubs(str(directory))] == first[:-1]
        wait_until(lambda: len(here(directory)) == 1, "housekeeping to leave the active segment only")
        assert logs.segments(str(directory)) == first
        yield running, peer, directory, store


def received(peer, subscription_id: int, count: int) -> int:
    """Takes `count` messages from the first on; returns how many chunks that were."""
    at = chunks = 0
    while at < count:
        chunk = peer.chunk(subscription_id)
        assert chunk.chunk_id == at
        at += chunk.records
        chunks += 1
        peer.credit(subscription_id, 1)
    return chunks


def test_a_consumer_is_given_what_lies_in_the_store(stored):
    _, peer, directory, store = stored
    archiver = Archiver(directory.parent.parent, directory, store)
    archiver.start()
    peer.subscribe("clicks", 1)
    received(peer, 1, len(BODIES))
    assert archiver.asked["fetch"] > 5
    assert archiver.asked["index"] == 0
    archiver.stop()


def test_a_consumer_waits_for_an_archiver_that_is_not_there_and_for_indexes(stored):
    _, peer, directory, store = stored
    for stub in cold.stubs(str(directory)):
        (directory / f"{stub.first:020}.index").unlink()
    peer.subscribe("clicks", 1, at=OffsetType.OFFSET, offset_value=205)
    time.sleep(0.5)
    archiver = Archiver(directory.parent.parent, directory, store)
    archiver.start()
    chunk = peer.chunk(1)
    assert chunk.chunk_id <= 205 < chunk.chunk_id + chunk.records
    assert archiver.asked["index"] == 1
    archiver.stop()


def test_a_consumer_with_a_filter_waits_too_and_does_not_turn_in_circles(stored, capfd):
    _, peer, directory, store = stored
    peer.subscribe("clicks", 1, properties={"filter.0": "eu", "match-unfiltered": "true"})
    time.sleep(0.5)
    assert written(capfd).count("archiver is not running") <= 1
    archiver = Archiver(directory.parent.parent, directory, store)
    archiver.start()
    received(peer, 1, len(BODIES))
    archiver.stop()


def test_a_plan_needs_indexes_only(stored):
    _, _, directory, store = stored
    before = cuts.look(str(directory), -1, -1, 1, 0, 40_000, 0, 100, 0)
    for stub in cold.stubs(str(directory)):
        (directory / f"{stub.first:020}.index").unlink()
    with pytest.raises(StorageError, match="archiver is not running"):
        cuts.look(str(directory), -1, -1, 1, 0, 40_000, 0, 100, 0)
    archiver = Archiver(directory.parent.parent, directory, store)
    archiver.start()
    assert cuts.look(str(directory), -1, -1, 1, 0, 40_000, 0, 100, 0) == before
    assert before.first == 0
    assert before.next == len(BODIES)
    assert archiver.asked["fetch"] == 0
    archiver.stop()


def test_evicted_blocks_are_gone(stored):
    _, _, directory, _ = stored
    blocks = cold.Blocks(str(directory), 0)
    assert blocks.count == 1
    with pytest.raises(StorageError, match="not allowed"):
        blocks.put(0, b"too short")
    assert (directory / f"{0:020}.cold").exists()
    cold.evict(str(directory), 0)
    assert not (directory / f"{0:020}.cold").exists()
    cold.remove_stub(str(directory), 0)
    with pytest.raises(StorageError):
        cold.Blocks(str(directory), 0)
