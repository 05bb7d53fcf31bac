# SPDX-License-Identifier: Apache-2.0
"""An offset has one history: a message that a consumer was given is in the object store, also after a loss."""

from __future__ import annotations

import os
import signal
from contextlib import closing
from pathlib import Path

import pytest
from peers.streams import Peer, connected, on_every_worker
from running import Running, broker, wait_until
from test_lost_machine import flags, lost

from vibemq.client.streams import StreamsConnection
from vibemq.protocols.streams.spec import RESPONSE_BIT, Key, OffsetType
from vibemq.storage.log import Log

pytest.importorskip("obstore", reason="needs the extra remote")
pytestmark = pytest.mark.timeout(120)

#: The first object is sent at once, and then none while a test runs.
SELDOM = ("--set", "remote.interval_ms=20000")
ROUND_TRIPS = 5


def log_of(folder: Path) -> str:
    (directory,) = (folder / "streams").iterdir()
    return str(directory)


def read_all(running: Running, start: int = 0) -> list[tuple[int, bytes]]:
    with StreamsConnection.connect(running.host, running.port) as client:
        return [one for chunk in client.read_chunks("h", start) for one in chunk.messages() if one[0] >= start]


def wait_written(folder: Path, count: int) -> None:
    with closing(Log(log_of(folder))) as log:
        wait_until(lambda: log.stats().next_offset == count, f"{count} messages are written")


def expect_nothing(*peers: Peer) -> None:
    for peer in peers:
        for _ in range(ROUND_TRIPS):
            peer.ask(Key.METADATA, streams=[])
        assert not peer.has_frame()


@pytest.mark.parametrize("what", ["machine", "processes"])
def test_a_consumer_is_given_no_message_that_a_lost_machine_removes(tmp_path: Path, what: str, monkeypatch):
    folder, bucket = tmp_path / "data", tmp_path / "bucket"
    monkeypatch.setattr("test_lost_machine.flags", lambda bucket: flags(bucket, *SELDOM))
    with lost(folder, bucket, what) as running, connected(running) as publisher, connected(running) as consumer:
        publisher.create("h")
        publisher.declare("h")
        publisher.publish([(1, b"first")])
        assert publisher.confirmed(1) == [1]
        consumer.subscribe("h", credit=10)
        assert consumer.chunk().chunk_id == 0
        publisher.publish([(at, b"unsent %d" % at) for at in (2, 3, 4)])
        wait_written(folder, 4)
        expect_nothing(publisher, consumer)
        assert read_all(running) == [(0, b"first")]
        assert consumer.ask(Key.STREAM_STATS, stream="h").statistics["committed_chunk_id"] == 0
    with broker(folder, *flags(bucket)) as running, connected(running) as publisher:
        # A reader of offset 0 continues from 1, and gets all messages that were ever confirmed from there on.
        publisher.declare("h")
        publisher.publish([(at, b"new %d" % at) for at in (5, 6, 7)])
        assert publisher.confirmed(3) == [5, 6, 7]
        new = [b"new 5", b"new 6", b"new 7"]
        if what == "processes":  # the same disk still has them, and no publisher was refused
            new = [b"unsent 2", b"unsent 3", b"unsent 4", *new]
        assert read_all(running, 1) == list(enumerate(new, 1))


def test_consumers_on_every_worker_continue_after_the_upload(tmp_path: Path):
    """The archiver is killed before an upload, and its successor uploads."""
    folder, bucket = tmp_path / "data", tmp_path / "bucket"
    with broker(folder, *flags(bucket, *SELDOM)) as running, connected(running) as publisher:
        publisher.create("h")
        publisher.declare("h", reference="me")
        publisher.publish([(1, b"first")])
        assert publisher.confirmed(1) == [1]
        peers: list[Peer] = []
        readers = list(on_every_worker(running, peers))
        for reader in readers:
            reader.subscribe("h", at=OffsetType.NEXT, credit=10)
        publisher.publish([(2, b"later")])
        wait_written(folder, 2)
        asking = connected(running)
        peers.append(asking)
        asking.send(asking.command(Key.QUERY_PUBLISHER_SEQUENCE, reference="me", stream="h"))
        expect_nothing(publisher, asking, *readers)
        (archiver,) = running._children("vibemq: archiver")
        os.kill(archiver, signal.SIGKILL)
        assert publisher.confirmed(1) == [2]
        assert asking.expect(Key.QUERY_PUBLISHER_SEQUENCE | RESPONSE_BIT).sequence == 2
        for reader in readers:
            assert reader.chunk().chunk_id == 1
        for peer in peers:
            peer.socket.close()


def test_a_stream_with_read_unconfirmed_is_read_before_the_store_has_it(tmp_path: Path):
    folder, bucket = tmp_path / "data", tmp_path / "bucket"
    with broker(folder, *flags(bucket, *SELDOM)) as running, connected(running) as peer:
        peer.create("h", **{"read-unconfirmed": "true"})
        peer.declare("h")
        peer.publish([(1, b"first")])
        assert peer.confirmed(1) == [1]
        peer.subscribe("h", at=OffsetType.NEXT, credit=10)
        peer.publish([(2, b"early")])
        assert peer.chunk().chunk_id == 1
        assert not peer.has_frame()
