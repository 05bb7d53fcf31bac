# SPDX-License-Identifier: Apache-2.0
"""Several consumers of one queue on one client, one after another and at the same time, against a real broker."""

import asyncio
import itertools
import threading
import time

import pytest
from running import broker

from vibemq.client import aconnect, connect
from vibemq.errors import ConnectionClosed

DEADLINE_S = 60
names = (f"shared-{number}" for number in itertools.count())


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    with broker(tmp_path_factory.mktemp("native-consumers") / "data", workers=2) as running:
        yield f"vibemq://127.0.0.1:{running.native_port}"


@pytest.fixture
def client(url):
    with connect(url) as connected:
        yield connected


@pytest.fixture
def queue():
    return next(names)


def await_subscribers(client, queue, count):
    """Whose worker does not count the consumers itself hears a moment later that they have come or gone."""
    deadline = time.monotonic() + DEADLINE_S
    while (info := client.queue_info(queue)).subscribers != count:
        assert time.monotonic() < deadline, info
        time.sleep(0.01)
    return info


def counts_when_nobody_consumes(client, queue):
    info = await_subscribers(client, queue, 0)
    return info.messages, info.in_flight


def test_what_comes_after_stop_is_not_handed_out(client, queue):
    client.publish_many(queue, range(20))
    consumer = client.consume(queue, prefetch=1)
    message = next(consumer)
    consumer.stop()
    message.ack()
    deadline = time.monotonic() + DEADLINE_S
    while not consumer._messages:  # the broker does not know yet
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert list(consumer) == []
    consumer.close()
    assert counts_when_nobody_consumes(client, queue) == (19, 0)


def test_a_queue_is_consumed_again_at_once_after_break(client, queue):
    client.publish_many(queue, range(20))
    seen = []
    for _ in range(20):
        for message in client.consume(queue):
            seen.append(message.payload)
            message.ack()
            break
    assert seen == list(range(20))


def test_asyncio_consumes_again_at_once_after_break(url, queue):
    async def consume():
        seen = []
        async with aconnect(url) as client:
            await client.publish_many(queue, range(5))
            for _ in range(5):
                async for message in client.consume(queue):
                    seen.append(message.payload)
                    message.ack()
                    break
        return seen

    assert asyncio.run(consume()) == list(range(5))


def test_consumers_of_one_client_share_a_queue(client, queue):
    client.create_queue(queue)
    consumers = [client.consume(queue, prefetch=1) for _ in range(3)]
    for consumer in consumers:
        consumer.open()
    await_subscribers(client, queue, 3)  # another worker counts them
    client.publish_many(queue, range(3))
    messages = [next(consumer) for consumer in consumers]  # each has one, and no room for another's
    assert sorted(message.payload for message in messages) == [0, 1, 2]
    for message in messages:
        message.ack()
    for consumer in consumers:
        consumer.close()
    assert counts_when_nobody_consumes(client, queue) == (0, 0)


def test_handlers_of_one_client_share_a_queue(client, queue):
    seen, news = [], threading.Condition()

    def handle(message):
        with news:
            seen.append(message.payload)
            news.notify_all()

    subscriptions = [client.subscribe(queue, handle, prefetch=1, create=True) for _ in range(2)]
    client.publish_many(queue, range(100))
    with news:
        assert news.wait_for(lambda: len(seen) == 100, 30)
    assert sorted(seen) == list(range(100))
    for subscription in subscriptions:
        subscription.close()


def test_asyncio_consumers_of_one_client_share_a_queue(url, queue):
    async def consume():
        async with aconnect(url) as client:
            await client.create_queue(queue)
            consumers = [client.consume(queue, prefetch=1) for _ in range(3)]
            await asyncio.gather(*(consumer.open() for consumer in consumers))
            await client.publish_many(queue, range(3))
            messages = [await anext(consumer) for consumer in consumers]
            for message in messages:
                message.ack()
            await asyncio.gather(*(consumer.close() for consumer in consumers))
            return sorted(message.payload for message in messages)

    assert asyncio.run(consume()) == [0, 1, 2]
    with connect(url) as client:
        assert counts_when_nobody_consumes(client, queue) == (0, 0)


def test_every_consumer_of_a_fan_out_has_every_message(client, queue):
    client.create_queue(queue, mode="fan_out_with_ack")
    consumers = [client.consume(queue) for _ in range(2)]
    for consumer in consumers:
        consumer.open()
    client.publish(queue, "all")
    assert [next(consumer).payload for consumer in consumers] == ["all", "all"]


def test_closing_the_client_ends_all_its_consumers(url, queue):
    with connect(url) as watcher:
        client = connect(url)
        client.create_queue(queue)
        consumers = [client.consume(queue) for _ in range(2)]
        for consumer in consumers:
            consumer.open()
        client.close()
        for consumer in consumers:
            assert list(consumer) == []
        counts_when_nobody_consumes(watcher, queue)


def test_a_client_that_is_closed_consumes_nothing(url, queue):
    client = connect(url)
    client.close()
    with pytest.raises(ConnectionClosed):
        next(client.consume(queue))
