# SPDX-License-Identifier: Apache-2.0
"""Consuming changes nothing that is there unless it is told to: no queue is made, and a stream stays a stream."""

import asyncio

import pytest
from peers.native_server import NativeServer
from running import broker

from vibemq.client import aconnect, connect
from vibemq.client.micromsg2 import Micromsg2Client
from vibemq.client.streams import StreamsConnection
from vibemq.errors import NotAQueue, QueueNotFound
from vibemq.protocols.native.spec import Command, ErrorCode

COUNT = 10_100  # above the limit that a queue has by default


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    with broker(tmp_path_factory.mktemp("native-create") / "data", workers=1) as started:
        yield started


@pytest.fixture
def client(running):
    with connect(f"vibemq://127.0.0.1:{running.native_port}") as connected:
        yield connected


@pytest.fixture
def streams(running):
    with StreamsConnection.connect(running.host, running.port) as connected:
        yield connected


def fill(streams, name, count=COUNT):
    streams.create(name, {"max-age": "7D"})
    with streams.publisher(name) as publisher:
        publisher.publish([b"\x00\x53\x75\xa0\x01%d" % (number % 10) for number in range(count)])


def is_queue(client, name):
    return name in client.list_queues()


def test_consuming_a_name_that_does_not_exist_makes_nothing(client):
    with pytest.raises(QueueNotFound, match="typo") as raised:
        next(client.consume("typo"))
    assert "create=True" in raised.value.hint
    with pytest.raises(QueueNotFound):
        client.subscribe("typo", print)
    assert not is_queue(client, "typo")


def test_consuming_with_create_makes_the_queue(client):
    with client.consume("made", create=True):
        assert is_queue(client, "made")
    client.subscribe("made-too", print, create=True).close()
    assert is_queue(client, "made-too")


def test_consuming_a_stream_is_refused_and_leaves_it_as_it_was(client, streams):
    fill(streams, "s1", 3)
    before = streams.stats("s1")
    with pytest.raises(NotAQueue, match="'s1' is a stream, not a queue") as raised:
        next(client.consume("s1"))
    assert "vibemq streams tail" in raised.value.hint
    assert not is_queue(client, "s1")
    assert streams.stats("s1") == before


@pytest.mark.parametrize("how", ["consume", "create_queue"])
def test_a_stream_that_is_made_a_queue_has_no_limit_and_gives_everything(client, streams, how):
    name = f"s2-{how}"
    fill(streams, name)
    if how == "create_queue":
        client.create_queue(name)
    with client.consume(name, create=how == "consume", prefetch=1000, timeout_s=5) as consumer:
        assert client.queue_info(name).options.max_messages == 0
        for number, message in enumerate(consumer, 1):
            message.ack()
            if number == COUNT:
                break
    assert number == COUNT
    assert (streams.first_offset(name), streams.next_offset(name)) == (0, COUNT)  # its retention says what is kept


def test_a_limit_that_is_told_holds_for_what_was_a_stream_too(client, streams):
    fill(streams, "s3", 3)
    client.create_queue("s3", max_messages=7)
    assert client.queue_info("s3").options.max_messages == 7


def test_asyncio_consumers_make_nothing_either(running):
    async def consume():
        async with aconnect(f"vibemq://127.0.0.1:{running.native_port}") as client:
            with pytest.raises(QueueNotFound):
                await anext(client.consume("typo-async"))
            async with client.consume("made-async", create=True):
                assert "made-async" in await client.list_queues()

    asyncio.run(consume())


def test_a_stream_stays_one_at_the_micromsg2_door(running, client, streams):
    fill(streams, "s4", 3)
    with Micromsg2Client(port=running.ports["micromsg2"]) as peer:
        peer.subscribe("queue/s4")
        peer.send("queue/s4", b"4")
        peer.flush()
        assert peer.receive(20).payload == b"4"
    assert not is_queue(client, "s4")


def test_a_consumer_whose_queue_is_gone_after_a_reconnect_is_told_and_the_client_goes_on():
    with NativeServer() as server, connect(server.url, reconnect_initial_delay_s=0.01) as client:
        client.publish("q", 1)
        consumer, other = client.consume("q"), client.consume("other")
        consumer.open()
        other.open()
        server.replies[Command.SUBSCRIBE] = lambda connection, frame: (
            connection.refuse(frame, ErrorCode.QUEUE_NOT_FOUND) if frame.queue == "q" else None
        )
        server.drop()
        with pytest.raises(QueueNotFound):
            for message in consumer:
                message.ack()
        client.publish("other", 2)
        assert next(other).payload == 2
