# SPDX-License-Identifier: Apache-2.0
"""No consumer, by any protocol, is given a message before its publisher could be confirmed: durability `disk`.

The tests control the disk: its syncs wait, fail, or succeed.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from admin.http_caller import Http
from held_disk import HeldDisk
from peers import micromsg2, queues
from peers.queues import QueuePeer
from peers.signalr_data import DataPeer
from peers.streams import DEADLINE_S, Killed, Peer, connected, is_alive, on_every_worker, server_of
from running import Running, broker, wait_until

from vibemq.client.streams import StreamsConnection
from vibemq.protocols.streams.spec import Code, Key, OffsetType
from vibemq.storage.cuts import look
from vibemq.storage.figures import log_figures
from vibemq.storage.log import Log
from vibemq.storage.reading import ChunkReader

DROP_NEWEST = 1
DISK = ("--durability", "disk")
ROUND_TRIPS = 5


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@contextlib.contextmanager
def killed(folder: Path, disk: HeldDisk, *flags: str) -> Iterator[Running]:
    """Run a broker, and kill all of its processes in the end."""
    with pytest.raises(Killed), broker(folder, *DISK, *flags, through=disk.through) as running:
        yield running
        pids = [running.process.pid, *running._children("")]
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        running.process.wait()
        wait_until(lambda: not any(map(is_alive, pids)), "all processes have ended")
        raise Killed


def log_of(folder: Path) -> str:
    """The directory of the only stream."""
    (directory,) = (folder / "streams").iterdir()
    return str(directory)


def bodies(chunk: Any) -> bytes:
    return bytes(chunk.data)


def expect_nothing(*peers: Peer) -> None:
    """Wait for answers that follow any delivery a worker had for these peers."""
    for peer in peers:
        for _ in range(ROUND_TRIPS):
            peer.ask(Key.METADATA, streams=[])
        assert not peer.has_frame()


def read_all(running: Running, stream: str, start: int = 0) -> list[bytes]:
    with StreamsConnection.connect(running.host, running.port) as client:
        return [data for chunk in client.read_chunks(stream, start) for _, data in chunk.messages()]


def test_a_stream_ends_for_every_reader_at_the_newest_sync(tmp_path: Path, disk: HeldDisk, stack: ExitStack):
    """Test `first`, `last`, `next`, offsets and times on every worker; stats, HTTP, the page and the files."""
    with broker(tmp_path / "data", *DISK, through=disk.through) as running:
        publisher = stack.enter_context(connected(running))
        publisher.create("s")
        publisher.store("s", [b"one"])
        peers: list[Peer] = []
        readers = list(on_every_worker(running, peers))
        for reader in readers:
            for number, at in enumerate((OffsetType.FIRST, OffsetType.LAST)):
                reader.subscribe("s", number, at=at, credit=10)
                assert reader.chunk(number).chunk_id == 0
            reader.subscribe("s", 2, at=OffsetType.NEXT, credit=10)
            reader.subscribe("s", 3, at=OffsetType.OFFSET, offset_value=1, credit=10)
        publisher.declare("s")
        disk.hold()
        publisher.publish([(1, b"two")])
        disk.wait_until_held()
        expect_nothing(publisher, *readers)

        late = stack.enter_context(connected(running))
        now = OffsetType.TIMESTAMP
        for number, (at, value) in enumerate([(OffsetType.LAST, 0), (OffsetType.OFFSET, 0), (now, 0)]):
            late.subscribe("s", number, at=at, offset_value=value, credit=10)
            assert late.chunk(number).chunk_id == 0
        late.subscribe("s", 3, at=now, offset_value=2**50, credit=10)
        for at, offset in ((OffsetType.NEXT, 1), (OffsetType.LAST, 0), (OffsetType.OFFSET, 1)):
            fields = {"stream": "s", "offset_type": at, "offset_value": 7, "properties": {}}
            assert late.ask(Key.RESOLVE_OFFSET_SPEC, **fields).offset == offset
        statistics = late.ask(Key.STREAM_STATS, stream="s").statistics
        assert (statistics["committed_chunk_id"], statistics["last_chunk_id"]) == (0, 0)
        assert read_all(running, "s") == [b"one"]
        http = Http(running)
        looked = http.get("stream", "/", "s", "messages")
        assert [message["offset"] for message in looked["messages"]] == [0]
        assert (looked["next_offset"], http.get("queues", "/", "s")["confirmed_offset"]) == (1, 1)
        assert http.get("queues", "/", "s")["next_offset"] == 2
        metrics = http.raw("GET", "/metrics").text
        assert 'vibemq_stream_messages_unconfirmed{vhost="/",stream="s"} 1' in metrics
        directory = log_of(tmp_path / "data")
        figures = log_figures(directory)
        assert figures is not None and (figures.next_offset, figures.confirmed_offset) == (2, 1)
        planned = look(directory, -1, -1, -1, 0, 0, 0, 10, figures.written_ms)
        assert (planned.next, planned.durable, planned.limit) == (1, 1, 1), "Spark plans no further"
        files = ChunkReader(os.open(directory, os.O_RDONLY | os.O_DIRECTORY), directory)
        files.attach(0)
        assert files.take() is not None and files.take() is None
        expect_nothing(*readers, late)

        disk.release()
        assert publisher.confirmed(1) == [1]
        for peer in (*readers, late):
            delivers = [peer.expect(Key.DELIVER) for _ in range(4)]
            assert {deliver.subscription_id for deliver in delivers} == {0, 1, 2, 3}
            assert {deliver.chunk.chunk_id for deliver in delivers} == {1}
        assert files.take() is not None
        assert read_all(running, "s") == [b"one", b"two"]
        with connected(running) as probe:
            probe.subscribe("s", at=OffsetType.LAST)
            assert probe.chunk().chunk_id == 1
        for peer in peers:
            peer.socket.close()


def test_readers_on_every_worker_are_woken_by_the_sync(tmp_path: Path, disk: HeldDisk):
    with broker(tmp_path / "data", *DISK, through=disk.through) as running, connected(running) as publisher:
        publisher.create("s")
        publisher.declare("s")
        peers: list[Peer] = []
        one_each = list(on_every_worker(running, peers))
        for peer in one_each:
            peer.subscribe("s", at=OffsetType.NEXT, credit=100)
        for at in range(20):
            disk.hold()
            publisher.publish([(at, b"message %d" % at)])
            disk.wait_until_held()
            expect_nothing(publisher, *one_each)
            disk.release()
            assert publisher.confirmed(1) == [at]
            for peer in one_each:
                chunk = peer.chunk()
                assert chunk.chunk_id == at and bodies(chunk).endswith(b"message %d" % at)
        for peer in peers:
            peer.socket.close()


def test_a_stream_with_read_unconfirmed_is_read_before_the_sync(tmp_path: Path, disk: HeldDisk):
    with broker(tmp_path / "data", *DISK, through=disk.through) as running, connected(running) as peer:
        fields = {"stream": "t", "arguments": {"read-unconfirmed": "perhaps"}}
        assert peer.code(Key.CREATE, **fields) == Code.PRECONDITION_FAILED
        peer.create("s", **{"read-unconfirmed": "true"})
        peer.declare("s")
        peer.subscribe("s", at=OffsetType.NEXT)
        disk.hold()
        peer.publish([(1, b"early")])
        disk.wait_until_held()
        assert bodies(peer.chunk()).endswith(b"early")
        assert not peer.has_frame()
        disk.release()
        assert peer.confirmed(1) == [1]


@pytest.mark.parametrize("protocol", ["native, worker 0", "native, worker 1", "micromsg2", "signalr"])
def test_a_queue_hands_out_only_confirmed_messages(tmp_path: Path, disk: HeldDisk, stack: ExitStack, protocol: str):
    with broker(tmp_path / "data", *DISK, through=disk.through) as running:
        publisher = stack.enter_context(QueuePeer(running))
        publisher.create("q")
        if protocol.startswith("native"):
            native = queues.on_worker(running, int(protocol[-1]), stack)
            native.subscribe("q")
        elif protocol == "micromsg2":
            micro = stack.enter_context(micromsg2.connected(running))
            micro.subscribe("q")
        else:
            hub = stack.enter_context(DataPeer(running))
            consuming = hub.stream("Subscribe", "q", {"ack": "auto"})
        for at in range(10):
            disk.hold()
            id = publisher.start_publish("q", at)
            disk.wait_until_held()
            for _ in range(ROUND_TRIPS):
                if protocol.startswith("native"):
                    native.ping()
                elif protocol == "micromsg2":
                    micro.ping()
                else:
                    hub.ask("QueueInfo", "q")
                publisher.ping()
            assert id not in publisher.answers
            assert publisher.counts("q") == (1, 0), "it waits, and no consumer has it"
            disk.release()
            publisher.answer(id)
            if protocol.startswith("native"):
                assert native.take_acked(1) == [at]
                native.ping()
            elif protocol == "micromsg2":
                assert micro.deliver().payload == b"%d" % at
                micro.ping()
            else:
                assert hub.item(consuming)["body"] == at
            wait_until(lambda: publisher.counts("q") == (0, 0), "it is settled")


def test_readers_by_offset_of_the_other_protocols_wait_too(tmp_path: Path, disk: HeldDisk, stack: ExitStack):
    with broker(tmp_path / "data", *DISK, through=disk.through) as running:
        publisher = stack.enter_context(connected(running))
        publisher.create("s")
        publisher.declare("s")
        hub = stack.enter_context(DataPeer(running))
        micro = stack.enter_context(micromsg2.connected(running))
        readings = [hub.stream("ReadStream", "s", {"from": start}) for start in ("first", "next")]
        micro.subscribe("s", **{"from": "next"})
        disk.hold()
        publisher.publish([(1, b"\0SuM")])
        disk.wait_until_held()
        for _ in range(ROUND_TRIPS):
            hub.ask("QueueInfo", "s")
            micro.ping()
        assert not micro.has_frame()
        limited = hub.stream("ReadStream", "s", {"from": "first", "follow": False})
        assert hub.rest(limited) == [], "the present messages end before it"
        disk.release()
        assert publisher.confirmed(1) == [1]
        assert [hub.item(id)["offset"] for id in readings] == [0, 0]
        micro.deliver()


def test_messages_of_a_killed_worker_are_synced_by_a_worker_that_reads(tmp_path: Path, disk: HeldDisk):
    with broker(tmp_path / "data", *DISK, through=disk.through) as running:
        peers: list[Peer] = []
        publisher, reader = list(on_every_worker(running, peers))
        publisher.create("s")
        publisher.declare("s")
        reader.subscribe("s", at=OffsetType.NEXT)
        disk.hold()
        publisher.publish([(1, b"nobody's")])
        disk.wait_until_held()
        expect_nothing(reader)
        os.kill(server_of(publisher, set(running.worker_pids())), signal.SIGKILL)
        disk.release()
        assert bodies(reader.chunk()).endswith(b"nobody's")
        for peer in peers:
            peer.socket.close()


def test_messages_of_a_killed_broker_are_read_after_its_next_start(tmp_path: Path, disk: HeldDisk):
    with killed(tmp_path / "data", disk) as running, connected(running) as publisher:
        publisher.create("s")
        publisher.declare("s")
        disk.hold()
        publisher.publish([(1, b"nobody's")])
        disk.wait_until_held()
    disk.release()
    with broker(tmp_path / "data", *DISK) as running:
        assert read_all(running, "s") == [b"nobody's"]


def test_a_message_of_a_failed_sync_is_given_to_no_consumer_and_none_waits_for_it(
    tmp_path: Path, disk: HeldDisk, stack: ExitStack
):
    with broker(tmp_path / "data", *DISK, workers=1, through=disk.through) as running:
        publisher, reader = stack.enter_context(connected(running)), stack.enter_context(connected(running))
        publisher.create("s")
        publisher.declare("s")
        reader.subscribe("s", credit=10)
        publisher.publish([(1, b"one")])
        assert publisher.confirmed(1) == [1] and bodies(reader.chunk()).endswith(b"one")
        queue, consumer = stack.enter_context(QueuePeer(running)), stack.enter_context(QueuePeer(running))
        queue.create("q")
        disk.hold()
        publisher.publish([(2, b"refused")])
        disk.wait_until_held()
        id = queue.start_publish("q", "refused")
        disk.fail()
        assert publisher.expect(Key.PUBLISH_ERROR).errors == [(2, Code.INTERNAL_ERROR)]
        with pytest.raises(queues.Refused):
            queue.answer(id)
        expect_nothing(reader)
        disk.mend()
        publisher.publish([(3, b"three")])
        assert publisher.confirmed(1) == [3]
        chunk = reader.chunk()
        assert chunk.chunk_id == 2 and bodies(chunk).endswith(b"three")
        assert read_all(running, "s") == [b"one", b"three"]
        assert read_all(running, "s", 1) == [b"three"]
        consumer.subscribe("q")
        queue.publish("q", "kept")
        assert consumer.take_acked(1) == ["kept"]


def test_messages_whose_sync_failed_do_not_fill_a_bounded_queue(tmp_path: Path, disk: HeldDisk, stack: ExitStack):
    with broker(tmp_path / "data", *DISK, workers=1, through=disk.through) as running:
        queue = stack.enter_context(QueuePeer(running))
        queue.create("q", maxQueueSize=2, overflowStrategy=DROP_NEWEST)
        disk.hold()
        ids = [queue.start_publish("q", "lost"), queue.start_publish("q", "lost")]
        disk.wait_until_held()
        disk.fail()
        for id in ids:
            with pytest.raises(queues.Refused):
                queue.answer(id)
        disk.mend()
        queue.publish("q", "kept")
        queue.publish("q", "kept too")
        with pytest.raises(queues.Refused):
            queue.publish("q", "too much")
        queue.subscribe("q")
        kept = queue.take(2)
        assert queues.payloads(kept) == ["kept", "kept too"]
        queue.ack(*kept)


def test_written_and_confirmed_messages_are_counted_separately(tmp_path: Path, disk: HeldDisk):
    with broker(tmp_path / "data", *DISK, through=disk.through) as running, connected(running) as peer:
        peer.create("s")
        peer.declare("s")
        disk.hold()
        peer.publish([(at, b"x") for at in range(10)])
        disk.wait_until_held()
        with closing(Log(log_of(tmp_path / "data"))) as log:
            wait_until(lambda: log.stats().next_offset == 10, "ten messages are written", DEADLINE_S)
            assert log.stats()[:4] == (0, 10, 0, -1)
            assert log.confirmed_offset == 0
            disk.release()
            assert peer.confirmed(10) == list(range(10))
            assert log.stats()[:4] == (0, 10, 10, 0)
