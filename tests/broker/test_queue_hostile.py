# SPDX-License-Identifier: Apache-2.0
"""Peers that misbehave, and loads that are too large: they cost themselves, and nobody else."""

import os
import socket
import struct

import pytest
from peers import streams as streams_peer
from peers.queues import Command, QueuePeer, Refused, attempts, payload, payloads, wait_until
from running import broker, resident_bytes

from vibemq.protocols.native.codec import encode_body, encode_frame
from vibemq.protocols.native.spec import FRAME_BODY_BYTES_MAX_DEFAULT
from vibemq.protocols.streams.codec import SubBatch

UNACKED = int(os.environ.get("VIBEMQ_UNACKED", "1000000"))
UNACKED_BYTES_EACH_MAX = 400  # of the worker's memory, for a message in flight with a short id


# ---- consumers ----


def reset(peer):
    """End the connection without a goodbye: the broker sees ECONNRESET."""
    peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.close()


@pytest.mark.parametrize("ends", ["close", "reset"])
def test_what_a_consumer_had_that_died_goes_to_another_in_order(connect_to, name, ends):
    publisher, dies, lives = connect_to(0), connect_to(1), connect_to(0)
    publisher.create(name)
    dies.subscribe(name)
    publisher.publish_all(name, range(50))
    dies.take(50)
    dies.close() if ends == "close" else reset(dies)
    publisher.await_counts(name, 50)
    lives.subscribe(name)
    found = lives.take(50)
    assert payloads(found) == list(range(50))
    assert {attempts(message) for message in found} == {2}
    lives.ack(*found)
    publisher.await_counts(name, 0)


def test_a_consumer_that_stops_reading_holds_up_nobody(connect_to, name):
    """Nor does the broker keep for it more than an outbox: the log holds the rest."""
    publisher, stalls, works = connect_to(0), connect_to(0, receive_buffer_bytes=4096), connect_to(1)
    publisher.create(name, maxQueueSize=0)
    stalls.subscribe(name, prefetch=100_000)
    works.subscribe(name, prefetch=100_000)
    publisher.await_subscribers(name, 2)
    body = b'"' + b"x" * 10_000 + b'"'
    for _ in range(4):
        publisher.publish_all(name, [body] * 500)
    taken = 0
    while publisher.counts(name)[0] or select_more(
        works
    ):  # the one that works takes all that the other has no room for
        works.ack(works.delivery())
        taken += 1
    stuck = 2000 - taken
    assert stuck * len(body) < 8 << 20
    reset(stalls)
    for _ in range(stuck):
        works.ack(works.delivery())
    publisher.await_counts(name, 0)


def select_more(peer):
    peer.ping()
    return bool(peer.deliveries)


def test_acknowledging_twice_settles_once(connect, name):
    publisher, consumer = connect(), connect()
    publisher.create(name)
    consumer.subscribe(name, prefetch=2)
    publisher.publish_all(name, range(4))
    first, second = consumer.take(2)
    consumer.ack(first, first, first)
    assert payloads(consumer.rest()) == [2]
    assert publisher.counts(name) == (1, 2)
    consumer.ack(second)
    assert payloads(consumer.rest()) == [3]


def test_acknowledging_what_was_never_delivered_changes_nothing(connect, name):
    publisher, consumer = connect(), connect()
    publisher.create(name)
    consumer.subscribe(name, prefetch=1)
    publisher.publish(name, 0, "waits-not")
    publisher.publish(name, 1, "waits")
    consumer.delivery()
    for id in (b"waits", b"unknown", b"\xff\xfe", b"x" * 65_535):
        consumer.send(Command.ACK, id)
    consumer.send(Command.ACK, b"a", headers={"messageId": "unknown"})
    consumer.send(Command.ACK, b"waits-not", queue="another.queue")
    assert consumer.rest() == []
    assert publisher.counts(name) == (1, 1)
    consumer.send(Command.ACK, b"a", headers={"messageId": "waits-not"})
    assert payloads(consumer.rest()) == [1]


def test_nobody_settles_what_another_connection_has(connect, name):
    publisher, owner, thief = connect(), connect(), connect()
    publisher.create(name)
    owner.subscribe(name, prefetch=1)
    publisher.publish(name, 1, "mine")
    message = owner.delivery()
    thief.subscribe(name)
    thief.ack(message)
    thief.nack(message)
    thief.ping()
    assert publisher.counts(name) == (0, 1)
    assert thief.rest() == []
    owner.ack(message)
    owner.ping()
    assert publisher.counts(name) == (0, 0)


def test_messages_with_one_id_are_settled_oldest_first(connect, name):
    publisher, consumer, other = connect(), connect(), connect()
    publisher.create(name)
    consumer.subscribe(name)
    for number in range(3):
        publisher.publish(name, number, "same")
    messages = consumer.take(3)
    consumer.ack(messages[2])
    consumer.ping()
    consumer.unsubscribe(name)
    other.subscribe(name)
    assert payloads(other.rest()) == [1, 2]


def test_the_queue_of_an_acknowledgement_chooses_among_equal_ids(connect, name):
    peer, other = connect(), name + ".other"
    for queue in (name, other):
        peer.create(queue)
        peer.subscribe(queue)
        peer.publish(queue, queue, "same")
    messages = {message.queue: message for message in peer.take(2)}
    peer.ack(messages[other])
    peer.ping()
    assert peer.counts(other) == (0, 0)
    assert peer.counts(name) == (0, 1)


def test_a_consumer_that_subscribes_and_leaves_at_once_takes_nothing_along(connect_to, name):
    publisher = connect_to(0)
    publisher.create(name, maxRetryAttempts=1000)
    publisher.publish_all(name, range(100))
    for number in range(30):
        passing = connect_to(number % 2)
        frames = [encode_frame(Command.SUBSCRIBE, b"s", queue=name)]
        if number % 3 == 0:
            frames.append(encode_frame(Command.UNSUBSCRIBE, b"u", queue=name))
        passing.send_all(*frames, encode_frame(Command.DISCONNECT, b"d"))
        reset(passing) if number % 3 == 1 else passing.ended()
    publisher.await_subscribers(name, 0)
    publisher.await_counts(name, 100)
    consumer = connect_to(1)
    consumer.subscribe(name)
    messages = consumer.take(100)
    assert payloads(messages) == list(range(100))
    consumer.ack(*messages)
    publisher.await_counts(name, 0)


# ---- publishers ----


def test_a_publisher_faster_than_the_disk_is_slowed_down_and_loses_nothing(connect, name):
    """Durability `disk`: each confirm waits for a sync, and a sync covers all that came while the last one ran."""
    publisher, consumer = connect(), connect()
    publisher.create(name, durability="disk", maxQueueSize=0)
    publisher.publish_all(name, range(20_000))
    consumer.subscribe(name, prefetch=20_000)
    messages = consumer.take(20_000)
    assert payloads(messages) == list(range(20_000))
    consumer.ack(*messages)
    publisher.await_counts(name, 0)


def test_a_publisher_that_never_reads_its_confirms_costs_itself_only(connect, name):
    deaf, consumer = connect(receive_buffer_bytes=4096), connect()
    consumer.create(name, maxQueueSize=0)
    consumer.subscribe(name, prefetch=1000)
    frame = encode_frame(Command.PUBLISH, b"deaf", queue=name, payload=b"1")
    deaf.socket.setblocking(False)
    sent = 0
    with pytest.raises(BlockingIOError):
        while sent < 200 << 20:
            sent += deaf.socket.send(frame * 1000)
    consumer.take_acked(100)  # the others are served meanwhile
    deaf.close()


def body_bytes_of_deliver(name, payload_bytes):
    return len(encode_body(Command.DELIVER, b"big", queue=name, payload=b'"' + b"x" * (payload_bytes - 2) + b'"'))


def test_a_message_is_accepted_up_to_the_size_that_every_client_reads(connect, name):
    publisher, consumer = connect(), connect()
    publisher.create(name)
    consumer.subscribe(name)
    low, high = 2, FRAME_BODY_BYTES_MAX_DEFAULT
    while high - low > 1:  # the largest that is accepted
        middle = (low + high) // 2
        try:
            publisher.publish(name, b'"' + b"x" * (middle - 2) + b'"', "big")
            consumer.ack(consumer.delivery())
            low = middle
        except Refused as problem:
            assert problem.code == "INVALID_MESSAGE"
            high = middle
    room = FRAME_BODY_BYTES_MAX_DEFAULT - body_bytes_of_deliver(name, low)
    assert 0 < room < 64, "what the broker adds and no more is kept free"
    for size, accepted in ((low - 1, True), (low, True), (low + 1, False)):
        body = b'"' + b"x" * (size - 2) + b'"'
        if accepted:
            publisher.publish(name, body, "big")
            message = consumer.delivery()
            assert message.payload == body
            consumer.ack(message)
        else:
            with pytest.raises(Refused, match="INVALID_MESSAGE"):
                publisher.publish(name, body, "big")
    publisher.await_counts(name, 0)


def test_a_frame_above_the_maximum_ends_the_connection_and_no_other(connect, name):
    publisher, other = connect(), connect()
    publisher.create(name)
    publisher.send_all(struct.pack(">IB", FRAME_BODY_BYTES_MAX_DEFAULT + 1, 0))
    assert publisher.ended()
    assert any(answer.error_code == "INVALID_MESSAGE" for answer in publisher.answers.values())
    other.publish(name, 1)


@pytest.mark.parametrize("bad", [b"{", b"\xff", b"1 2", b"[" * 65 + b"]" * 65, b"nan", b"\xef\xbb\xbf1"])
def test_what_is_no_json_is_refused_and_the_connection_stays(connect, name, bad):
    publisher = connect()
    publisher.create(name)
    with pytest.raises(Refused, match="INVALID_MESSAGE"):
        publisher.publish(name, bad)
    publisher.publish(name, 1)
    assert publisher.counts(name) == (1, 0)


# ---- much ----


def test_a_million_unacknowledged_messages_take_little_memory_and_all_can_be_acknowledged(tmp_path):
    options = ("--set", "server.shutdown_timeout_s=2", "--set", f"queues.prefetch_max={UNACKED}")
    with broker(tmp_path, *options, workers=1) as running:
        publisher, consumer = QueuePeer(running), QueuePeer(running)
        publisher.create("q", maxQueueSize=0, ackTimeoutMs=3_600_000)
        (worker,) = running.worker_pids()
        before = resident_bytes(worker)
        frames = b"".join(encode_frame(Command.PUBLISH, b"%d" % at, queue="q", payload=b"1") for at in range(1000))
        for _ in range(UNACKED // 1000):
            publisher.socket.sendall(frames)
            publisher.ping()
            publisher.answers.clear()
        consumer.subscribe("q", prefetch=UNACKED)
        count = 0
        while count < UNACKED:
            consumer.delivery()
            count += 1 + len(consumer.deliveries)
            consumer.deliveries.clear()
        assert publisher.counts("q") == (0, UNACKED)
        grown = resident_bytes(worker) - before
        assert grown < UNACKED * UNACKED_BYTES_EACH_MAX, f"{grown / UNACKED:.0f} bytes for each"
        acks = b"".join(encode_frame(Command.ACK, b"%d" % at) for at in range(1000))
        for _ in range(UNACKED // 1000):
            consumer.socket.sendall(acks)
        wait_until(lambda: publisher.counts("q") == (0, 0), "all are settled", seconds=60)
        assert payload(publisher.ask(Command.LIST_QUEUES)) == ["q"]
        consumer.close()
        publisher.close()


# ---- publishers of another door ----


@pytest.mark.parametrize("dead_letter", [False, True], ids=["dropped", "dead-lettered"])
def test_sub_batches_that_cannot_be_unpacked_leave_the_queue_with_one_line_of_the_log(tmp_path, capfd, dead_letter):
    """Twenty bytes may say that they are 65,535 messages."""
    bad = SubBatch(compression=2, records=65_535, uncompressed_size=4 * 65_535, body=b"not snappy")
    with (
        broker(tmp_path, workers=1) as running,
        streams_peer.connected(running) as streams,
        QueuePeer(running) as consumer,
    ):
        consumer.create("q", enableDeadLetterQueue=dead_letter)
        streams.declare("q", 1)
        streams.publish([(1, bad), (2, bad), (3, b"the end")], 1)
        assert streams.confirmed(3, 1) == [1, 2, 3]
        consumer.subscribe("q")
        found = consumer.take(1)
        assert payloads(found) == ["the end"]
        consumer.ack(*found)
        consumer.await_counts("q", 0)
    said = capfd.readouterr().err
    assert said.count("ERR_CORRUPT") == 1, said
