# SPDX-License-Identifier: Apache-2.0
"""The streams client and the load generator against real brokers: ours, and one that others wrote."""

import itertools

import pytest

from vibemq.bench.run import run
from vibemq.bench.streams import StreamsLoad
from vibemq.client.streams import StreamsConnection
from vibemq.errors import AuthenticationFailed, RequestFailed, StreamExists, StreamNotFound
from vibemq.protocols.streams.spec import OffsetType

_numbers = itertools.count()


@pytest.fixture
def connection(broker_port):
    with StreamsConnection.connect("127.0.0.1", broker_port, timeout_s=20) as opened:
        yield opened


@pytest.fixture
def stream(connection):
    name = f"client-{next(_numbers)}"
    connection.create(name, {"max-length-bytes": 1_000_000_000})
    yield name
    connection.delete(name, missing_ok=True)


def test_a_stream_is_created_found_and_deleted(connection, stream):
    assert connection.exists(stream) and not connection.exists("no such stream")
    connection.create(stream, {"max-length-bytes": 1_000_000_000}, exist_ok=True)
    with pytest.raises(StreamExists):
        connection.create(stream, {"max-length-bytes": 1_000_000_000})
    with pytest.raises(RequestFailed):
        connection.create(stream, {"max-length-bytes": 2})
    connection.delete(stream)
    assert not connection.exists(stream)
    with pytest.raises(StreamNotFound):
        connection.publisher(stream)
    with pytest.raises(StreamNotFound):
        connection.next_offset(stream)


def test_ends_of_an_empty_stream_and_of_a_full_one(connection, stream):
    assert (connection.first_offset(stream), connection.next_offset(stream)) == (0, 0)
    assert list(connection.read_chunks(stream, 0)) == []
    with connection.publisher(stream) as publisher:
        publisher.publish([b"%d" % i for i in range(20_000)])
    assert (connection.first_offset(stream), connection.next_offset(stream)) == (0, 20_000)


def test_what_is_published_is_read_in_order(connection, stream):
    with connection.publisher(stream) as publisher:
        for start in range(0, 50_000, 10_000):
            publisher.publish([b"%d" % i for i in range(start, start + 10_000)])
    read = [pair for chunk in connection.read_chunks(stream, 0) for pair in chunk.messages()]
    assert read == [(i, b"%d" % i) for i in range(50_000)]


def test_ranges_cover_each_offset_once(connection, stream):
    with connection.publisher(stream) as publisher:
        publisher.publish([b"%d" % i for i in range(30_000)])
    for start, end in ((0, 1), (29_999, 30_000), (12_345, 23_456), (0, 30_000)):
        offsets = [o for chunk in connection.read_chunks(stream, start, end) for o, _ in chunk.messages()]
        assert [o for o in offsets if start <= o < end] == list(range(start, end))


def test_messages_of_every_size(connection, stream):
    messages = [bytes([i % 256]) * size for i, size in enumerate((0, 1, 15, 4_095, 65_536, 1_000_000))]
    with connection.publisher(stream) as publisher:
        publisher.publish(messages)
    assert [m for chunk in connection.read_chunks(stream, 0) for _, m in chunk.messages()] == messages


def test_a_reference_drops_what_was_published_before(connection, stream):
    with connection.publisher(stream, "me") as publisher:
        publisher.publish([b"a", b"b", b"c"])
    assert connection.query_publisher_sequence("me", stream) == 3
    with connection.publisher(stream, "me") as publisher:
        publisher.next_id = 2
        publisher.publish([b"b again", b"c again", b"d"])
        publisher.flush()
        assert publisher.confirmed == 3
    assert [m for chunk in connection.read_chunks(stream, 0) for _, m in chunk.messages()] == [b"a", b"b", b"c", b"d"]


def test_a_subscriber_follows(connection, stream):
    with connection.subscribe(stream, OffsetType.NEXT) as subscription:
        assert subscription.next_chunk(0.1, default=None) is None
        with connection.publisher(stream) as publisher:
            publisher.publish([b"hello"])
        assert list(subscription.next_chunk(10).messages()) == [(0, b"hello")]


def test_a_deleted_stream_is_announced(connection, stream):
    with connection.subscribe(stream) as subscription:
        connection.delete(stream)
        with pytest.raises(StreamNotFound):
            subscription.next_chunk(10)


def test_a_wrong_password_is_refused(broker_port):
    with pytest.raises(AuthenticationFailed):
        StreamsConnection.connect("127.0.0.1", broker_port, password="wrong", timeout_s=10)


def test_the_load_generator_in_every_mode(broker_port):
    common = {"port": broker_port, "messages": 20_000, "stream": "client-load", "verify": True}
    assert run(StreamsLoad(mode="pub", keep=True, **common)).confirmed == 20_000
    assert run(StreamsLoad(mode="con", **common)).consumed == 20_000
    result = run(StreamsLoad(mode="pubsub", publishers=2, consumers=2, **common))
    assert (result.confirmed, result.consumed, result.disordered) == (20_000, 40_000, 0)
    assert (
        run(StreamsLoad(mode="pubsub", batch=1, group=64, spread=True, publishers=2, consumers=2, **common)).consumed
        == 20_000
    )
    result = run(StreamsLoad(mode="lat", rate=40_000, **common))
    assert result.latencies.total == result.confirms.total == 20_000
    assert result.wall_s > 0.4, "it keeps to its rate"
