# SPDX-License-Identifier: Apache-2.0
"""One message, two doors: what goes in through queues comes out of streams, and the other way round."""

import asyncio
import json

import pytest
from peers.queues import DEADLINE_S, Refused, attempts, payload, payloads

from vibemq.client.streams import StreamsConnection

rstream = pytest.importorskip("rstream", reason="the client rstream is not installed")

from rstream import (  # noqa: E402  (after importorskip)
    AMQPMessage,
    CompressionType,
    Consumer,
    ConsumerOffsetSpecification,
    OffsetType,
    Producer,
    amqp_decoder,
)

LOGIN = {"username": "guest", "password": "guest"}


def run(coroutine):
    async def limited():
        async with asyncio.timeout(DEADLINE_S):
            return await coroutine

    return asyncio.run(limited())


async def send(served, stream, messages, compression=None):
    async with Producer(served.host, served.port, **LOGIN) as out:
        if compression is None:
            for message in messages:
                await out.send_wait(stream, message)
        else:
            await out.send_sub_entry(stream, messages, compression_type=compression)  # sent at the latest by close


async def read(served, stream, count, first=0):
    found, complete = [], asyncio.Event()

    def collect(message, context):
        found.append((context.offset, message))
        if len(found) == count:
            complete.set()

    consumer = Consumer(served.host, served.port, **LOGIN)
    await consumer.start()
    try:
        specification = ConsumerOffsetSpecification(OffsetType.OFFSET, first)
        await consumer.subscribe(stream, collect, offset_specification=specification, decoder=amqp_decoder)
        await complete.wait()
    finally:
        await consumer.close()
    return found


def body_of(message):
    return b"".join(message.body) if isinstance(message.body, list) else message.body


@pytest.fixture
def streams(single):
    with StreamsConnection.connect(single.host, single.port) as connection:
        yield connection


def publish(streams, name, messages):
    with streams.publisher(name) as publisher:
        publisher.publish(messages)
        publisher.flush()


def amqp(body):
    """A bare message with one data section."""
    return b"\x00\x53\x75\xb0" + len(body).to_bytes(4, "big") + body


# ---- in through queues, out of streams ----


def test_a_stream_client_reads_a_queue_by_offset_and_takes_nothing_away(single, connect, name):
    publisher, consumer = connect(), connect()
    publisher.create(name)
    for number in range(10):
        publisher.publish(name, {"n": number}, f"id-{number}", own=f"value {number}", priority="High")
    found = run(read(single, name, 7, first=3))
    assert [offset for offset, _ in found] == list(range(3, 10))
    for offset, message in found:
        assert json.loads(body_of(message)) == {"n": offset}
        assert message.properties.message_id in (f"id-{offset}", b"id-%d" % offset)
        headers = {text(key): text(value) for key, value in message.application_properties.items()}
        assert headers == {"own": f"value {offset}", "priority": "High"}
    consumer.subscribe(name)
    messages = consumer.take(10)
    assert [payload(message)["n"] for message in messages] == list(range(10))
    consumer.ack(*messages)
    publisher.await_counts(name, 0)


def text(value):
    return value.decode() if isinstance(value, bytes) else value


def test_a_queue_is_a_stream_to_stream_clients(streams, connect, name):
    publisher = connect()
    publisher.create(name)
    publisher.publish_all(name, range(5))
    assert streams.exists(name)
    assert (streams.first_offset(name), streams.next_offset(name)) == (0, 5)


# ---- in through streams, out of queues ----


def test_a_consumer_gets_what_a_stream_client_published(single, connect, name):
    consumer = connect()
    consumer.create(name)
    consumer.subscribe(name)
    run(
        send(
            single,
            name,
            [
                AMQPMessage(body=b'{"json": true}', application_properties={"own": "value", "number": 7}),
                AMQPMessage(body="no JSON, ä".encode()),
                AMQPMessage(body=b"\xff\x00binary"),
            ],
        )
    )
    as_json, as_text, as_bytes = consumer.take(3)
    assert as_json.payload == b'{"json": true}', "bytes of JSON go through unchanged"
    assert as_json.headers == {"own": "value", "number": "7", "deliveryAttempts": "1"}
    assert payload(as_text) == "no JSON, ä"
    assert "payload-encoding" not in as_text.headers
    assert payload(as_bytes) == "/wBiaW5hcnk="
    assert as_bytes.headers["payload-encoding"] == "base64"
    consumer.ack(as_json, as_text, as_bytes)
    consumer.ping()
    assert consumer.counts(name) == (0, 0)


def test_bytes_that_are_no_amqp_are_a_body(streams, connect, name):
    consumer = connect()
    consumer.create(name)
    publish(streams, name, [b'{"raw": 1}', b"raw text", b"\x80\x81", b""])
    consumer.subscribe(name)
    messages = consumer.take(4)
    assert payloads(messages) == [{"raw": 1}, "raw text", "gIE=", None]
    assert [message.headers.get("payload-encoding") for message in messages] == [None, None, "base64", None]
    assert len({message.id for message in messages}) == 4, "the broker gives each an id"
    consumer.ack(*messages)
    consumer.ping()
    assert consumer.counts(name) == (0, 0)


@pytest.mark.parametrize(
    ("compression", "padding"),
    [(CompressionType.No, 0), (CompressionType.Gzip, 0), (CompressionType.Gzip, 10_000)],
    ids=["plain", "gzip", "gzip, unpacked by a helper thread"],
)
def test_sub_batches_are_handed_out_message_by_message(single, connect, name, compression, padding):
    first, second = connect(), connect()
    first.create(name)
    first.subscribe(name)
    second.subscribe(name)
    run(send(single, name, [AMQPMessage(body=b"%d" % number + b" " * padding) for number in range(40)], compression))
    found = [first.take(20), second.take(20)]
    assert payloads(found[0]) == list(range(0, 40, 2))
    assert payloads(found[1]) == list(range(1, 40, 2))
    first.ack(*found[0][:5])
    first.ping()
    first.unsubscribe(name)
    again = second.take(15)
    assert payloads(again) == list(range(10, 40, 2)), "each message has its own fate"
    second.ack(*found[1], *again)
    second.ping()
    assert second.counts(name) == (0, 0)


def test_both_kinds_of_publisher_are_in_one_order(streams, connect, name):
    peer = connect()
    peer.create(name)
    peer.subscribe(name)
    for number in range(0, 20, 2):
        peer.publish(name, number)
        publish(streams, name, [amqp(b"%d" % (number + 1))])
    assert payloads(peer.take(20)) == list(range(20))


def test_a_stream_publisher_makes_queues_overflow_too(streams, connect, name):
    consumer = connect()
    consumer.create(name, maxQueueSize=5)
    publish(streams, name, [b"%d" % number for number in range(50)])
    consumer.await_counts(name, 5)
    consumer.subscribe(name)
    assert payloads(consumer.take(5)) == [45, 46, 47, 48, 49]


def test_what_a_stream_client_published_expires_and_dies_like_anything_else(streams, connect, name):
    consumer = connect()
    consumer.create(name, maxRetryAttempts=1, enableDeadLetterQueue=True)
    consumer.subscribe(name)
    publish(streams, name, [b"\xff\xfe", amqp(b'{"a":1}')])
    consumer.nack(*consumer.take(2))
    reader = connect()
    reader.create(name + ".dlq")
    reader.subscribe(name + ".dlq")
    dead = reader.take(2)
    assert payloads(sorted(dead, key=lambda message: message.payload)) == ["//4=", {"a": 1}]
    reader.ack(*dead)


def test_what_as_many_consumers_as_attempts_could_not_be_given_goes_to_the_dead_letter_queue(streams, connect, name):
    """Binary grows by a third as base64: a large one no longer fits into a frame."""
    consumer = connect()
    consumer.create(name, enableDeadLetterQueue=True, maxRetryAttempts=1)
    publish(streams, name, [b"\xff" * 1_000_000, b"1"])
    consumer.subscribe(name)
    assert payload(consumer.delivery()) == 1
    consumer.await_counts(name, 0, 1)
    consumer.create(name + ".dlq")
    consumer.await_counts(name + ".dlq", 1)


# ---- a stream becomes a queue ----


def test_subscribing_to_a_stream_makes_it_a_queue_that_begins_with_its_first_message(streams, connect, name):
    streams.create(name)
    publish(streams, name, [b"%d" % number for number in range(30)])
    consumer = connect()
    assert consumer.info(name) is None
    consumer.subscribe(name)
    messages = consumer.take(30)
    assert payloads(messages) == list(range(30))
    assert {attempts(message) for message in messages} == {1}
    consumer.ack(*messages)
    consumer.await_counts(name, 0)
    assert streams.first_offset(name) == 0, "its own retention says what is kept"
    consumer.publish(name, 30)
    assert payload(consumer.delivery()) == 30


def test_a_queue_made_of_a_stream_begins_with_the_first_message_that_retention_has_left(streams, connect, name):
    streams.create(name, {"max-length-bytes": "20000", "stream-max-segment-size-bytes": "10000"})
    for at in range(0, 200, 20):
        publish(streams, name, [amqp(json.dumps([number, "x" * 1000]).encode()) for number in range(at, at + 20)])
    first = streams.first_offset(name)
    assert first > 0
    consumer = connect()
    consumer.subscribe(name)
    found = [payload(consumer.delivery())[0]]
    while found[-1] < 199:
        found.append(payload(consumer.delivery())[0])
    assert found == list(range(found[0], 200))
    assert found[0] >= first  # retention runs beside: it may have taken more since


def test_publishing_to_a_stream_through_a_queue_makes_it_one_as_well(streams, connect, name):
    streams.create(name)
    publish(streams, name, [b"0"])
    peer = connect()
    peer.publish(name, 1)
    peer.subscribe(name)
    assert payloads(peer.take(2)) == [0, 1]


def test_a_stream_deleted_by_a_stream_client_is_a_deleted_queue(streams, connect, name):
    peer = connect()
    peer.create(name)
    peer.subscribe(name)
    peer.publish(name, 1)
    peer.delivery()
    streams.delete(name)
    assert peer.info(name) is None
    peer.ping()
    try:
        peer.publish(name, 2)
    except Refused as problem:
        assert problem.code == "QUEUE_NOT_FOUND"
