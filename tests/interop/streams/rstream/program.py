# SPDX-License-Identifier: Apache-2.0
"""The interoperability program of rstream; ../README.md has the words of its command line and what it prints."""

import asyncio
import contextlib
import json
import os
import ssl
import sys

import rstream
from rstream import AMQPMessage, CompressionType, ConsumerOffsetSpecification, OffsetSpecification, OffsetType

command, words = sys.argv[1], sys.argv[2:]
given = dict(zip((word.removeprefix("--") for word in words[::2]), words[1::2], strict=True))
stream, count = given["stream"], int(given.get("count", "0"))
PACE_S, PAUSE_S = 0.002, 0.2
reference, wanted_filter = given.get("reference"), given.get("filter")
NAMED = {"first": OffsetType.FIRST, "last": OffsetType.LAST, "next": OffsetType.NEXT}


def say(event: str, **fields: object) -> None:
    print(json.dumps({"event": event, **fields}), flush=True)


def connection() -> dict:
    context = ssl.create_default_context(cafile=given["tls"]) if "tls" in given else None
    return {
        "host": given["host"],
        "port": int(given["port"]),
        "username": given.get("user", "guest"),
        "password": given.get("password", "guest"),
        "vhost": given.get("vhost", "/"),
        "ssl_context": context,
    }


async def filter_value(_: AMQPMessage) -> str:
    return str(wanted_filter)


async def routing_key(message: AMQPMessage) -> str:
    return bytes(message.body).decode()


async def publish() -> None:
    first = int(given.get("first", "0"))
    confirmed = asyncio.Event()
    answers = 0
    messages = []
    for number in range(first, first + count):
        message = AMQPMessage(body=b"rstream-%d" % number, application_properties={"client": "rstream"})
        message.publishing_id = number + 1 if reference else None  # its constructor does not take it
        messages.append(message)
    compression = given.get("compression")
    entries = 1 if compression else count

    async def on_confirm(status: rstream.ConfirmationStatus) -> None:
        nonlocal answers
        answers += status.is_confirmed
        if not status.is_confirmed:
            say("error", text=f"refused: code {status.response_code}")
        if answers == entries:
            confirmed.set()

    extractor = filter_value if wanted_filter else None
    if "super" in given:
        async with rstream.SuperStreamProducer(
            **connection(), super_stream=stream, routing_extractor=routing_key, filter_value_extractor=extractor
        ) as producer:
            for message in messages:
                await producer.send(message, on_publish_confirm=on_confirm)
            await confirmed.wait()
    else:
        async with rstream.Producer(
            **connection(), filter_value_extractor=extractor, default_batch_publishing_delay=0.05
        ) as producer:
            if compression:
                kind = CompressionType.Gzip if compression == "gzip" else CompressionType.No
                await producer.send_sub_entry(
                    stream, messages, compression_type=kind, publisher_name=reference, on_publish_confirm=on_confirm
                )
            else:
                await producer.send_batch(stream, messages, publisher_name=reference, on_publish_confirm=on_confirm)
            await confirmed.wait()
    say("confirmed", count=count)


async def consume() -> None:
    ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    received, last = 0, None

    async def on_message(message: AMQPMessage, context: rstream.MessageContext) -> None:
        nonlocal received, last
        if count and received == count:
            return
        received, last = received + 1, context.offset
        properties = message.application_properties or {}
        client = properties.get(b"client", b"").decode()
        say("message", body=bytes(message.body).decode(), client=client, offset=last, stream=context.stream)
        if received == count:
            if "store" in given:
                await context.consumer.store_offset(context.stream, reference, context.offset)
            ended.set_result("enough")

    async def on_update(active: bool, context: rstream.EventContext) -> OffsetSpecification:
        say("active", active=active)
        return OffsetSpecification(OffsetType.FIRST, None)

    async def on_closed(info: rstream.OnClosedErrorInfo) -> None:
        if not ended.done() and info.streams:
            ended.set_result("gone" if info.reason == "Metadata Update" else "closed")

    while True:
        kind = rstream.SuperStreamConsumer if "super" in given else rstream.Consumer
        options = connection() | ({"super_stream": stream} if "super" in given else {})
        consumer = kind(**options, on_close_handler=on_closed)
        await consumer.start()
        at = given["from"]
        if last is not None:
            at = f"offset:{last + 1}"
        elif at == "stored":
            try:
                at = f"offset:{await consumer.query_offset(stream, reference) + 1}"
            except rstream.OffsetNotFound:
                at = "first"
        name, _, value = at.partition(":")
        spec = {"offset": OffsetType.OFFSET, "timestamp": OffsetType.TIMESTAMP, **NAMED}[name]
        properties = {"single-active-consumer": "true", "name": reference} if "single" in given else None
        await consumer.subscribe(
            **({} if "super" in given else {"stream": stream}),
            callback=on_message,
            decoder=rstream.amqp_decoder,
            offset_specification=ConsumerOffsetSpecification(spec, int(value) if value else None),
            properties=properties,
            subscriber_name=reference,
            consumer_update_listener=on_update if "single" in given else None,
            filter_input=rstream.FilterConfiguration([wanted_filter]) if wanted_filter else None,
        )
        say("subscribed")
        reason = await ended
        if reason == "enough":
            await consumer.close()
            return
        if reason == "gone":
            say("gone")
            return
        say("closed")
        ended = asyncio.get_running_loop().create_future()


async def through() -> None:
    """The client says that a connection has ended, and another one is made."""
    number, last = 0, -1

    async def on_confirm(status: rstream.ConfirmationStatus) -> None:
        if status.is_confirmed:
            say("confirmed", number=status.message_id)

    async def on_message(message: AMQPMessage, context: rstream.MessageContext) -> None:
        nonlocal last
        if context.offset > last:
            last = context.offset
            say("message", body=bytes(message.body).decode(), offset=last)

    while True:
        lost = asyncio.Event()

        async def on_closed(_: rstream.OnClosedErrorInfo, lost: asyncio.Event = lost) -> None:
            lost.set()

        producer = rstream.Producer(**connection(), on_close_handler=on_closed, default_batch_publishing_delay=0.01)
        consumer = rstream.Consumer(**connection(), on_close_handler=on_closed)
        try:
            await producer.start()
            await consumer.start()
            at = ConsumerOffsetSpecification(OffsetType.OFFSET, last + 1)
            await consumer.subscribe(stream, on_message, decoder=rstream.amqp_decoder, offset_specification=at)
            say("subscribed")
            while not lost.is_set():
                message = AMQPMessage(body=b"rstream-%d" % number)
                message.publishing_id = number
                number += 1
                await producer.send(stream, message, on_publish_confirm=on_confirm)
                await asyncio.sleep(PACE_S)
        except Exception as failed:
            print(f"{type(failed).__name__}: {failed}", file=sys.stderr)
        say("closed")
        for client in (producer, consumer):
            with contextlib.suppress(Exception):
                await asyncio.wait_for(client.close(), PAUSE_S)
        await asyncio.sleep(PAUSE_S)


async def manage() -> None:
    partitions = int(given.get("partitions", "0"))
    if partitions or "super" in given:
        async with rstream.SuperStreamConsumer(**connection(), super_stream=stream) as client:
            if command == "create":
                await client.create_super_stream(stream, n_partitions=partitions)
            else:
                await client.delete_super_stream(stream)
    else:
        async with rstream.Producer(**connection()) as client:
            if command == "create":
                await client.create_stream(stream)
            else:
                await client.delete_stream(stream)
    say(command + "d")


try:
    asyncio.run(
        {"publish": publish, "consume": consume, "through": through, "create": manage, "delete": manage}[command]()
    )
except Exception as failed:
    cause = failed.__context__ or failed  # what went wrong first, when closing went wrong after it
    say("error", text=f"{type(cause).__name__}: {cause}", code=getattr(cause, "code", 0))
    os._exit(1)
