# SPDX-License-Identifier: Apache-2.0
"""Every way from a publisher to a consumer ends where publishers could be confirmed: durability `disk`, one broker.

The disk holds back its syncs in each test; streams and queues are made before, because making one takes a sync.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from admin.http_caller import Http
from held_disk import HeldDisk
from peers import micromsg2
from peers.queues import Command, QueuePeer, on_worker, payloads
from peers.signalr_data import DataPeer
from peers.streams import Peer, connected
from running import Running, broker, wait_until
from staging import amqp, staged

from vibemq.client.streams import StreamsConnection
from vibemq.protocols.streams import codec
from vibemq.protocols.streams.spec import Code, Key, OffsetType
from vibemq.storage.ledger import queue_stats
from vibemq.storage.metadata import Metadata

FAN_OUT_WITH_ACK, BLOCK_PUBLISHER = 1, 2
ROUND_TRIPS = 5


class Served(NamedTuple):
    running: Running
    data: Path
    disk: HeldDisk

    @contextmanager
    def held(self) -> Iterator[None]:
        """No sync ends meanwhile."""
        self.disk.hold()
        try:
            yield
        finally:
            self.disk.release()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("confirmed")
    disk = HeldDisk(folder)
    flags = ("--durability", "disk", "--set", "server.shutdown_timeout_s=2")
    with broker(folder / "data", *flags, through=disk.through) as running:
        yield Served(running, folder / "data", disk)


@pytest.fixture
def peer(served: Served, stack: ExitStack) -> Peer:
    return stack.enter_context(connected(served.running))


@pytest.fixture
def queue_peers(served: Served, stack: ExitStack) -> list[QueuePeer]:
    """Three, of which the last two are on different workers."""
    return [on_worker(served.running, worker, stack) for worker in (0, 0, 1)]


def expect_nothing(*peers: Any) -> None:
    for _ in range(ROUND_TRIPS):
        for one in peers:
            if isinstance(one, Peer):
                one.ask(Key.METADATA, streams=[])
                assert not one.has_frame()
            else:
                one.ping()
                assert not one.deliveries


def base_of(served: Served, queue: str) -> int:
    """All messages of the queue below this offset are settled."""
    with closing(Metadata(str(served.data / "meta.db"))) as metadata:
        record = metadata.find_stream("/", queue)
    assert record is not None
    return queue_stats(record.directory, 2).base


def publish(served: Served, peer: Peer, *messages: bytes) -> None:
    """Through publisher 0, which is declared; until a sync of them waits."""
    peer.publish(list(enumerate(messages, time.time_ns())))
    served.disk.wait_until_held()


# ---- queues ----


def test_a_dead_letter_is_handed_out_and_its_source_settled_when_the_copy_is_confirmed(
    served: Served, queue_peers: list[QueuePeer]
):
    publisher, consumer, reader = queue_peers
    publisher.create("source", maxRetryAttempts=1, enableDeadLetterQueue=True)
    consumer.subscribe("source")
    publisher.publish("source", "first")
    consumer.nack(consumer.delivery())
    reader.subscribe("source.dlq")
    reader.ack(reader.delivery())
    publisher.publish("source", "second")
    with served.held():
        consumer.nack(consumer.delivery())
        served.disk.wait_until_held()
        expect_nothing(publisher, consumer, reader)
        assert base_of(served, "source") == 1, "the source keeps the message"
    assert payloads([reader.delivery()]) == ["second"]
    wait_until(lambda: base_of(served, "source") == 2, "the source has settled it")


def test_a_publisher_that_waits_for_room_is_published_and_confirmed_later(served: Served, queue_peers: list[QueuePeer]):
    publisher, near, far = queue_peers
    publisher.create("bounded", maxQueueSize=1, overflowStrategy=BLOCK_PUBLISHER)
    near.subscribe("bounded", prefetch=1)
    with served.held():
        ids = [publisher.start_publish("bounded", number) for number in range(2)]
        served.disk.wait_until_held()
        expect_nothing(publisher, near)
        assert not set(ids) & publisher.answers.keys()
    publisher.answer(ids[0])
    message = near.delivery()
    publisher.answer(ids[1])
    ids = [publisher.start_publish("bounded", number) for number in range(2, 4)]
    expect_nothing(publisher)
    near.unsubscribe("bounded")
    with served.held():
        far.subscribe("bounded", prefetch=2)
        far.ack(*far.take(2))
        served.disk.wait_until_held()
        expect_nothing(publisher, near, far)
        assert not set(ids) & publisher.answers.keys()
    assert payloads([message]) == [0]
    assert far.take_acked(2) == [2, 3]
    for id in ids:
        publisher.answer(id)


def test_members_of_a_fan_out_and_an_heir_of_copies_get_only_confirmed_messages(
    served: Served, queue_peers: list[QueuePeer], stack: ExitStack
):
    publisher, first, second = queue_peers
    publisher.create("copies", mode=FAN_OUT_WITH_ACK)
    for member in (first, second):
        member.ask(Command.SUBSCRIBE, queue="copies", headers={"vibemq-subscriber": f"member {member.worker}"})
    publisher.await_subscribers("copies", 2)
    publisher.publish("copies", "old")
    first.ack(first.delivery())
    second.delivery()
    with served.held():
        id = publisher.start_publish("copies", "new")
        served.disk.wait_until_held()
        expect_nothing(publisher, first, second)
        second.close()
        publisher.await_subscribers("copies", 1)
        heir = stack.enter_context(QueuePeer(served.running))
        heir.ask(Command.SUBSCRIBE, queue="copies", headers={"vibemq-subscriber": "member 1"})
        publisher.await_subscribers("copies", 2)
        assert heir.take_acked(1) == ["old"]
        expect_nothing(publisher, first, heir)
    publisher.answer(id)
    assert first.take_acked(1) == heir.take_acked(1) == ["new"]
    expect_nothing(first, heir)
    publisher.await_counts("copies", 0)


# ---- streams ----


def answer(peer: Peer, is_active: bool, offset: int | None = None) -> None:
    """To the next ConsumerUpdate."""
    question = peer.expect(Key.CONSUMER_UPDATE)
    assert question.active == is_active
    where: dict[str, int] = {"offset_type": OffsetType.NONE}
    if offset is not None:
        where = {"offset_type": OffsetType.OFFSET, "offset_value": offset}
    peer.send(codec.encode_response(Key.CONSUMER_UPDATE, question.correlation_id, Code.OK, **where))


def test_the_next_active_consumer_of_a_super_stream_begins_no_further(served: Served, peer: Peer, stack: ExitStack):
    fields = {"partitions": ["super-0", "super-1"], "binding_keys": ["0", "1"], "arguments": {}}
    assert peer.code(Key.CREATE_SUPER_STREAM, name="super", **fields) == Code.OK
    peer.declare("super-0")
    one, two = (stack.enter_context(connected(served.running)) for _ in range(2))
    group = {"single-active-consumer": "true", "name": "group", "super-stream": "super"}
    one.subscribe("super-0", at=OffsetType.NEXT, credit=10, properties=group)
    answer(one, True)
    two.subscribe("super-0", at=OffsetType.NEXT, credit=10, properties=group)
    with served.held():
        publish(served, peer, b"one")
        expect_nothing(peer, one, two)
        one.socket.close()
        answer(two, True, offset=0)
        expect_nothing(peer, two)
    assert two.chunk().chunk_id == 0
    peer.confirmed(1)


def test_rows_of_a_transaction_are_read_when_its_commit_is_answered(served: Served, stack: ExitStack):
    served_by = (served.running.host, served.running.port)
    client, reader = (stack.enter_context(StreamsConnection.connect(*served_by)) for _ in range(2))
    client.create("rows")
    follower = stack.enter_context(connected(served.running))
    follower.subscribe("rows", at=OffsetType.NEXT, credit=10)
    parts = [staged(client, "app", 0, ("rows", [b"row"]))]
    with served.held(), ThreadPoolExecutor(1) as pool:
        try:
            committing = pool.submit(client.commit_transactions, "app", 0, "run", ["rows"], parts)
            served.disk.wait_until_held()
            expect_nothing(follower)
            assert not committing.done()
            assert list(reader.read_chunks("rows", 0)) == []
        finally:
            served.disk.release()
        assert committing.result().rows == 1
    assert follower.chunk().chunk_id == 0


def test_every_start_of_a_reader_ends_before_a_message_that_is_not_confirmed(
    served: Served, peer: Peer, stack: ExitStack
):
    running = served.running
    peer.create("starts")
    peer.declare("starts")
    peer.publish([(1, amqp(b"a"))])
    assert peer.confirmed(1) == [1]
    hub, micro = stack.enter_context(DataPeer(running)), stack.enter_context(micromsg2.connected(running))
    with served.held():
        publish(served, peer, amqp(b"b"))
        future = {"timestamp": (time.time_ns() + 10**12) // 10**6}
        behind = [hub.stream("ReadStream", "starts", {"from": start}) for start in ("next", 1, future)]
        before = [
            hub.stream("ReadStream", "starts", {"from": start}) for start in ("last", "first", 0, {"timestamp": 0})
        ]
        now = hub.stream("ReadStream", "starts", {"from": "last", "follow": False})
        assert [hub.item(id)["offset"] for id in before] == [0] * 4
        assert [item["offset"] for item in hub.rest(now)] == [0]
        for start, count in (("next", 0), ("last", 1), ("1", 0), ("first", 1)):
            micro.subscribe("starts", **{"from": start})
            assert micro.delivers(count) == [b"a"] * count, start
            micro.ping()
            assert not micro.has_frame(), start
            micro.tell("unsubscribe", destination="starts")
        micro.subscribe("starts", **{"from": "next"})
        for _ in range(ROUND_TRIPS):
            hub.ask("QueueInfo", "starts")
            micro.ping()
        assert not micro.has_frame()
        assert not [message for message in hub.come if message.id in (*behind, *before)]
        looked = Http(running).get("stream", "/", "starts", "messages", query="?offset=last")
        assert ([message["offset"] for message in looked["messages"]], looked["next_offset"]) == ([0], 1)
        tail = [sys.executable, "-m", "vibemq.cli", "streams", "tail", "starts", "--port", str(running.port)]
        assert subprocess.run([*tail, "--from", "first"], check=True, capture_output=True).stdout.splitlines() == [b"a"]
    assert [hub.item(id)["offset"] for id in (*behind[:2], *before)] == [1] * 6
    assert micro.delivers(1) == [b"b"]
    peer.confirmed(1)


def test_a_policy_lets_a_stream_be_read_before_messages_are_confirmed(served: Served, peer: Peer, stack: ExitStack):
    http, policy = Http(served.running), ("policies", "/", "early")
    assert http.status("PUT", *policy, body={"pattern": "^early$", "definition": {"read-unconfirmed": "yes"}}) == 400
    assert http.status("PUT", *policy, body={"pattern": "^early$", "definition": {"read-unconfirmed": True}}) == 201
    peer.create("early")
    peer.declare("early")
    reader = stack.enter_context(connected(served.running))
    reader.subscribe("early", at=OffsetType.NEXT, credit=10)
    with served.held():
        publish(served, peer, b"at once")
        assert reader.chunk().chunk_id == 0
        assert not peer.has_frame()
    peer.confirmed(1)
    assert http.status("DELETE", *policy) == 204
    with served.held():
        publish(served, peer, b"later")
        expect_nothing(peer, reader)
    assert reader.chunk().chunk_id == 1
    peer.confirmed(1)


def test_a_micro_batch_of_spark_ends_where_confirmed_messages_end(served: Served, peer: Peer):
    pytest.importorskip("pyspark.sql.datasource")
    peer.create("rows of spark")
    peer.declare("rows of spark")
    peer.publish([(1, amqp(b"a"))])
    assert peer.confirmed(1) == [1]
    assert spark_plan(served.running, "rows of spark") == (1, [b"a"])
    with served.held():
        publish(served, peer, amqp(b"b"))
        # At once: a plan starts a sync itself where none has ended for a second.
        assert spark_plan(served.running, "rows of spark") == (1, [b"a"])
    peer.confirmed(1)
    assert spark_plan(served.running, "rows of spark") == (2, [b"a", b"b"])


def spark_plan(running: Running, stream: str) -> tuple[int, list[bytes]]:
    """Where a micro-batch ends that Spark's reader plans now, and the values that its tasks read."""
    from vibemq.spark.source import VibeMQDataSource

    given = {"endpoints": f"{running.host}:{running.port}", "stream": stream, "startingOffsets": "earliest"}
    source = VibeMQDataSource(given)
    reader = source.streamReader(source.schema())
    start = reader.initialOffset()
    end = reader.latestOffset(start)
    rows = [value for part in reader.partitions(start, end) for batch in reader.read(part) for value in batch["value"]]
    reader.stop()
    return end["s"][stream]["o"], [value.as_py() for value in rows]


def test_a_queue_that_is_browsed_shows_only_confirmed_messages(served: Served, queue_peers: list[QueuePeer]):
    publisher = queue_peers[0]
    publisher.create("browsed")
    publisher.publish("browsed", "old")
    http = Http(served.running)
    with served.held():
        id = publisher.start_publish("browsed", "new")
        served.disk.wait_until_held()
        looked = http.get("stream", "/", "browsed", "messages", query="?offset=first")
        assert [message["body"] for message in looked["messages"]] == ['"old"']
        assert publisher.purge("browsed") == 1, "what is not confirmed stays"
    publisher.answer(id)
    publisher.await_counts("browsed", 1)
