# SPDX-License-Identifier: Apache-2.0
"""A real client, written by others and unmodified: rstream publishes and consumes through the broker."""

import asyncio

import pytest
from peers.streams import DEADLINE_S

rstream = pytest.importorskip("rstream", reason="the client rstream is not installed")

from rstream import (  # noqa: E402  (after importorskip)
    AMQPMessage,
    CompressionType,
    Consumer,
    ConsumerOffsetSpecification,
    OffsetType,
    Producer,
    RawMessage,
    amqp_decoder,
)

LOGIN = {"username": "guest", "password": "guest"}
COUNT = 1000


def run(coroutine):
    async def limited():
        async with asyncio.timeout(DEADLINE_S):
            return await coroutine

    return asyncio.run(limited())


def producer(served, **options):
    return Producer(served.host, served.port, **LOGIN, **options)


class Reading:
    """A consumer that collects (offset, message) until it has as many as it was told."""

    def __init__(self, served, stream, count, specification=None, **options):
        self.consumer = Consumer(served.host, served.port, **LOGIN)
        self.stream, self.count, self.specification, self.options = stream, count, specification, options
        self.found, self.complete = [], asyncio.Event()

    async def __aenter__(self):
        await self.consumer.start()
        await self.consumer.subscribe(
            self.stream, self.collect, offset_specification=self.specification, **self.options
        )
        return self

    async def __aexit__(self, *_):
        await self.consumer.close()

    def collect(self, message, context):
        self.found.append((context.offset, message))
        if len(self.found) >= self.count:
            self.complete.set()

    async def all(self):
        await self.complete.wait()
        return self.found


async def read(served, stream, count, specification=None, **options):
    async with Reading(served, stream, count, specification, **options) as reading:
        return await reading.all()


def numbered(start, stop):
    return [(at, b"message %d" % at) for at in range(start, stop)]


async def fill(served, stream, count=COUNT):
    async with producer(served) as out:
        await out.create_stream(stream)
        await out.send_batch(stream, [data for _, data in numbered(0, count)])
        await out.send_wait(stream, b"message %d" % count)


def test_what_send_wait_published_is_read_back(served, name):
    async def work():
        async with producer(served) as out:
            await out.create_stream(name)
            for _, data in numbered(0, 20):
                await out.send_wait(name, data)
        return await read(served, name, 20)

    assert run(work()) == numbered(0, 20)


def test_every_message_of_a_batch_is_confirmed_and_read_back(served, name):
    async def work():
        statuses, complete = [], asyncio.Event()

        def confirmed(status):
            statuses.append(status)
            if len(statuses) == COUNT:
                complete.set()

        async with producer(served) as out:
            await out.create_stream(name)
            data = [message for _, message in numbered(0, COUNT)]
            for at in range(0, COUNT, 100):
                await out.send_batch(name, data[at : at + 100], on_publish_confirm=confirmed)
            await complete.wait()
        assert all(status.is_confirmed for status in statuses)
        assert len({status.message_id for status in statuses}) == COUNT
        return await read(served, name, COUNT)

    assert run(work()) == numbered(0, COUNT)


def test_amqp_messages_keep_their_sections(served, name):
    async def work():
        async with producer(served) as out:
            await out.create_stream(name)
            for at in range(10):
                await out.send_wait(name, AMQPMessage(body=b"body %d" % at, application_properties={b"at": at}))
        return await read(served, name, 10, decoder=amqp_decoder)

    found = run(work())
    assert [b"".join(message.body) if isinstance(message.body, list) else message.body for _, message in found] == [
        b"body %d" % at for at in range(10)
    ]
    assert [message.application_properties for _, message in found] == [{b"at": at} for at in range(10)]


@pytest.mark.parametrize("compression", [CompressionType.No, CompressionType.Gzip])
def test_sub_batches_are_read_back_message_by_message(served, name, compression):
    async def work():
        async with producer(served) as out:
            await out.create_stream(name)
            for at in range(0, 60, 20):
                messages = [AMQPMessage(body=data) for _, data in numbered(at, at + 20)]
                await out.send_sub_entry(name, messages, compression_type=compression)
            await out.send_wait(name, AMQPMessage(body=b"message 60"))
        return await read(served, name, 61, decoder=amqp_decoder)

    found = run(work())
    assert [offset for offset, _ in found] == list(range(61))


@pytest.mark.parametrize(
    ("offset_type", "value", "first"), [(OffsetType.FIRST, None, 0), (OffsetType.OFFSET, 777, 777)]
)
def test_a_consumer_begins_where_it_asks_to(served, name, offset_type, value, first):
    async def work():
        await fill(served, name)
        specification = ConsumerOffsetSpecification(offset_type, value)
        return await read(served, name, COUNT + 1 - first, specification)

    assert run(work()) == numbered(first, COUNT + 1)


def test_a_consumer_of_what_comes_next_gets_that_only(served, name):
    async def work():
        await fill(served, name)
        specification = ConsumerOffsetSpecification(OffsetType.NEXT, None)
        async with Reading(served, name, 1, specification) as reading, producer(served) as out:
            await out.send_wait(name, b"next")
            return await reading.all()

    assert run(work()) == [(COUNT + 1, b"next")]


def test_a_producer_with_a_name_is_deduplicated_over_its_restart(served, name):
    async def work():
        for _ in range(2):
            async with producer(served) as out:
                await out.create_stream(name, exists_ok=True)
                for at in range(1, 11):
                    message = RawMessage(b"message %d" % at, at)
                    await out.send_wait(name, message, publisher_name="tank")
        async with producer(served) as out:
            await out.send_wait(name, b"end", publisher_name="other")
        return await read(served, name, 11)

    assert run(work()) == [*((at - 1, b"message %d" % at) for at in range(1, 11)), (10, b"end")]


def test_a_stream_can_be_made_asked_for_and_removed(served, name):
    async def work():
        async with producer(served) as out:
            answers = [await out.stream_exists(name)]
            await out.create_stream(name, arguments={"max-length-bytes": 10_000_000, "max-age": "1h"})
            answers.append(await out.stream_exists(name))
            await out.create_stream(name, arguments={"max-length-bytes": 10_000_000, "max-age": "1h"}, exists_ok=True)
            await out.delete_stream(name)
            answers.append(await out.stream_exists(name))
            await out.delete_stream(name, missing_ok=True)
            with pytest.raises(rstream.StreamDoesNotExist):
                await out.delete_stream(name)
            return answers

    assert run(work()) == [False, True, False]


def test_100_000_messages_in_one_frame_as_it_sends_them(served):
    """It asks for frames of 1 MiB and does not keep to that: this one has 1,500,009 bytes."""
    count = 100_000

    async def publish():
        confirmed, done = 0, asyncio.Event()

        async def on_confirm(status):
            nonlocal confirmed
            confirmed += status.is_confirmed
            if confirmed == count:
                done.set()

        async with producer(served) as client:
            await client.create_stream("one-frame")
            await client.send_batch("one-frame", [b"abc"] * count, on_publish_confirm=on_confirm)
            await done.wait()

    run(publish())
