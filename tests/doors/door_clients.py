# SPDX-License-Identifier: Apache-2.0
"""Each door's way in and way out, by a client that people use, and Spark's way out.

A message is named in the terms of its door: what a client is told to publish, and what it then says it got.  Nothing is
translated here but how a client spells things (rstream has texts as bytes; a hub's base64 is bytes), so that the tables
in door_values.py say what the broker does.
"""

from __future__ import annotations

import asyncio
import binascii
import json
import urllib.request
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from peers.signalr import HubPeer
from running import Running

import vibemq.client
from vibemq.client.micromsg2 import Micromsg2Client
from vibemq.protocols.signalr.codec import elements_of, parts_of
from vibemq.protocols.signalr.spec import Encoding, MessageType

DEADLINE_S = 60
RECORD_BYTES_MAX = 1 << 20  # of a hub: twice what the largest body here becomes
LOGIN: dict[str, Any] = {"username": "guest", "password": "guest"}
BASE64 = "base64"
GUEST = "Basic " + binascii.b2a_base64(b"guest:guest", newline=False).decode()
JSON = "application/json"
SECTION = b"\0\x53"  # how each section of an AMQP 1.0 message begins


class Nothing:
    """A body that is not there; None is a null in JSON."""

    def __repr__(self) -> str:
        return "NOTHING"


NOTHING = Nothing()


class Stored(bytes):
    """A whole message as a streams client stores it, which need not be AMQP 1.0."""


class Packed(bytes):
    """A value as MessagePack, which is compared byte for byte."""


def packed(value: Any) -> Packed:
    return Packed(msgspec.msgpack.encode(value))


class Unread(bytes):
    """JSON that a reader gets as it was sent, and that a client's `payload` refuses with an error."""


class Message(NamedTuple):
    """What a door has no word for stays as it is here."""

    body: Any
    id: Any = "m-1"
    headers: Mapping[str, Any] = {}
    content_type: str | None = None
    key: str | None = None
    # What only consumers are told:
    offset: int | None = None
    timestamp_ms: int | None = None
    again: Any = None  # is this not the first delivery? The native door counts them


def run(work: Awaitable[Any]) -> Any:
    async def limited() -> Any:
        async with asyncio.timeout(DEADLINE_S):
            return await work

    return asyncio.run(limited())


# ---- native: vibemq.client ----


def native_client(served: Running) -> vibemq.client.Client:
    return vibemq.client.connect(f"vibemq://{served.host}:{served.native_port}")


def native_publish(served: Running, queue: str, messages: Sequence[Message]) -> None:
    with native_client(served) as client:
        for message in messages:
            # The client has no word for no payload but JSON text of no length.
            is_empty = message.body is NOTHING
            client.publish(
                queue, "" if is_empty else message.body, raw=is_empty, headers=message.headers, id=message.id
            )


def native_consume(served: Running, queue: str, count: int) -> list[Message]:
    with native_client(served) as client, client.consume(queue, create=True, timeout_s=DEADLINE_S) as consumer:
        found = []
        for _ in range(count):
            message = next(consumer)
            found.append(Message(native_body(message), message.id, message.headers, again=message.attempts))
            message.ack()
        return found


def native_body(message: Any) -> Any:
    try:
        return message.payload
    except msgspec.ValidationError:  # a number that no double holds
        return Unread(message.raw)


def native_leave(served: Running, queue: str) -> None:
    """Takes a message and goes without having settled it."""
    with native_client(served) as client, client.consume(queue, create=True, timeout_s=DEADLINE_S) as consumer:
        next(consumer)


# ---- streams: rstream, whose offsets take nothing from a queue ----


def streams_publish(served: Running, queue: str, messages: Sequence[Message]) -> None:
    from rstream import AMQPMessage, Producer, Properties

    def written(message: Message) -> Any:
        if isinstance(message.body, Stored):
            return bytes(message.body)
        properties = Properties(message_id=message.id, content_type=message.content_type, group_id=message.key)
        part = {"value" if isinstance(message.body, str) else "body": message.body}
        return AMQPMessage(
            **({} if message.body is NOTHING else part),
            properties=properties,
            application_properties=dict(message.headers) or None,
        )

    async def work() -> None:
        async with Producer(served.host, served.port, **LOGIN) as producer:
            for message in messages:
                await producer.send_wait(queue, written(message))

    run(work())


def streams_consume(served: Running, queue: str, count: int) -> list[Message]:
    return [
        streams_message(data)._replace(offset=context.offset, timestamp_ms=context.timestamp)
        for data, context in streams_read(served, queue, count)
    ]


def streams_read(served: Running, queue: str, count: int) -> list[tuple[bytes, Any]]:
    """The first messages as they are stored, with what is told of each."""
    from rstream import Consumer, ConsumerOffsetSpecification, OffsetType

    async def work() -> list[tuple[bytes, Any]]:
        found: list[tuple[bytes, Any]] = []
        complete = asyncio.Event()

        def collect(data: bytes, context: Any) -> None:
            found.append((data, context))
            if len(found) == count:
                complete.set()

        consumer = Consumer(served.host, served.port, **LOGIN)
        await consumer.start()
        try:
            place = ConsumerOffsetSpecification(OffsetType.FIRST, None)
            await consumer.subscribe(queue, collect, offset_specification=place)
            await complete.wait()
        finally:
            await consumer.close()
        return found

    return run(work())


def streams_message(data: bytes) -> Message:
    from rstream import Properties, amqp_decoder

    if not data.startswith(SECTION):
        return Message(data, None)
    message = amqp_decoder(data)
    properties = message.properties or Properties()
    headers = {text(key): text(value) for key, value in (message.application_properties or {}).items()}
    body = message.body if message.body is not None else text(message.value)
    body = NOTHING if body is None else body
    return Message(body, text(properties.message_id), headers, text(properties.content_type), text(properties.group_id))


def text(value: Any) -> Any:
    """rstream gives strings, symbols and binary as bytes."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value
    return value


# ---- signalr: aiosignalr, JSON over WebSockets ----


def with_hub(served: Running, work: Callable[[Any], Awaitable[Any]]) -> Any:
    from aiosignalr.client import HubConnection
    from aiosignalr.protocol import JSONProtocol

    class Json(JSONProtocol):
        def __init__(self) -> None:
            super().__init__(RECORD_BYTES_MAX)  # instead of 32 KiB

    async def talk() -> Any:
        hub = HubConnection(protocol=Json())
        await hub.start(f"http://{served.host}:{served.ports['signalr']}/hub", transports={"WebSockets"})
        try:
            return await work(hub)
        finally:
            await hub.stop()

    return run(talk())


def signalr_publish(served: Running, queue: str, messages: Sequence[Message]) -> None:
    async def work(hub: Any) -> None:
        for message in messages:
            body = message.body
            options = {
                "messageId": message.id,
                "headers": message.headers,
                "contentType": message.content_type,
                "key": message.key,
            }
            if isinstance(body, bytes):
                body, options["encoding"] = binascii.b2a_base64(body, newline=False).decode(), BASE64
            await hub.invoke("Publish", queue, body, {name: value for name, value in options.items() if value})

    with_hub(served, work)


def signalr_consume(served: Running, queue: str, count: int) -> list[Message]:
    async def work(hub: Any) -> list[Message]:
        deliveries = await hub.stream("Subscribe", queue)
        try:
            return [signalr_message(await anext(deliveries)) for _ in range(count)]
        finally:
            await deliveries.aclose()

    return with_hub(served, work)


def signalr_leave(served: Running, queue: str) -> None:
    async def work(hub: Any) -> None:
        await anext(await hub.stream("Subscribe", queue, {"ack": "manual"}))

    with_hub(served, work)


def signalr_message(delivery: dict[str, Any]) -> Message:
    body = delivery["body"]
    if delivery.get("encoding") == BASE64:
        body = binascii.a2b_base64(body, strict_mode=True)
    return Message(
        body,
        delivery["id"],
        delivery.get("headers", {}),
        delivery.get("contentType"),
        delivery.get("key"),
        delivery["offset"],
        delivery["timestamp"],
        delivery["redelivered"],
    )


# ---- SignalR in MessagePack: the tests' own client, which shows the bytes of a body ----


def messagepack_publish(served: Running, queue: str, messages: Sequence[Message]) -> None:
    with HubPeer(served, encoding=Encoding.MESSAGEPACK) as hub:
        for message in messages:
            options = {
                "messageId": message.id,
                "headers": message.headers,
                "contentType": message.content_type,
                "key": message.key,
            }
            hub.ask("Publish", queue, msgspec.Raw(message.body), {name: each for name, each in options.items() if each})


def messagepack_consume(served: Running, queue: str, count: int) -> list[Message]:
    found: list[Message] = []
    with HubPeer(served, encoding=Encoding.MESSAGEPACK) as hub:
        hub.http.socket.settimeout(DEADLINE_S)
        hub.stream("Subscribe", queue)
        while len(found) < count:
            record = hub.next_raw()
            type, *_, item, error, _, _ = parts_of(record, Encoding.MESSAGEPACK)
            if type == MessageType.STREAM_ITEM:
                found.append(messagepack_message(item))
            else:
                assert type == MessageType.PING, error
    return found


def messagepack_message(item: bytes) -> Message:
    parts = elements_of(item, Encoding.MESSAGEPACK, True)
    raw = {msgspec.msgpack.decode(name): value for name, value in zip(parts[::2], parts[1::2], strict=True)}
    body = Packed(raw.pop("body"))
    assert "encoding" not in raw
    delivery = {name: msgspec.msgpack.decode(value) for name, value in raw.items()}
    return Message(
        body,
        delivery["id"],
        delivery.get("headers", {}),
        delivery.get("contentType"),
        delivery.get("key"),
        delivery["offset"],
        delivery["timestamp"],
        delivery["redelivered"],
    )


# ---- micromsg2: vibemq.client.micromsg2 ----

MESSAGE_ID, CONTENT_TYPE = "message-id", "content-type"


def micromsg2_client(served: Running, *offer: str, auto_ack: bool = True) -> Micromsg2Client:
    """Without `json` among what is offered nothing is said about content types but by properties."""
    offers = (*offer, "batch-ack:max-count=100", "pub-sub", "x-reply")
    port = served.ports["micromsg2"]
    return Micromsg2Client(served.host, port, offer=offers, auto_ack=auto_ack, timeout_s=DEADLINE_S)


def micromsg2_publish(served: Running, queue: str, messages: Sequence[Message]) -> None:
    """Where a message is JSON, the connection says so; any other content type is a property."""
    with micromsg2_client(served) as plain, micromsg2_client(served, "json") as with_json:
        for message in messages:
            is_json = message.content_type == JSON
            client = with_json if is_json else plain
            last = {MESSAGE_ID: message.id, CONTENT_TYPE: None if is_json else message.content_type}
            client.send(queue, message.body, {**message.headers, **last})
            client.flush()


def micromsg2_consume(served: Running, queue: str, count: int) -> list[Message]:
    with micromsg2_client(served) as client:
        client.subscribe(queue)
        return [micromsg2_message(client.receive(DEADLINE_S)) for _ in range(count)]


def micromsg2_leave(served: Running, queue: str) -> None:
    with micromsg2_client(served, auto_ack=False) as client:
        client.subscribe(queue)
        assert client.receive(DEADLINE_S) is not None


def micromsg2_message(message: Any) -> Message:
    assert message is not None, "nothing came"
    headers = dict(message.properties)
    return Message(message.payload, headers.pop(MESSAGE_ID, None), headers, headers.pop(CONTENT_TYPE, None))


# ---- Spark ----


def spark_read(spark: Any, served: Running, queue: str, count: int) -> list[Message]:
    reader = spark.read.format("vibemq").option("endpoints", f"{served.host}:{served.port}").option("stream", queue)
    rows = reader.option("includeHeaders", "true").load().orderBy("offset").collect()
    assert len(rows) == count, rows
    return [
        Message(
            bytes(row.value),
            row.message_id,
            row.headers,
            row.content_type,
            None if row.key is None else bytes(row.key).decode(),
            offset=row.offset,
            timestamp_ms=round(row.timestamp.timestamp() * 1000),
        )
        for row in rows
    ]


def spark_says(message: Message) -> bool:
    """Whether a row can be this message of a streams client: its columns are texts and bytes."""
    is_text = isinstance(message.id, str | None) and all(isinstance(each, str) for each in message.headers.values())
    return is_text and (message.body is NOTHING or type(message.body) is bytes)


def spark_publish(spark: Any, served: Running, queue: str, messages: Sequence[Message]) -> None:
    columns = "value binary, message_id string, headers map<string, string>, content_type string, key string"
    rows = [
        (None if body is NOTHING else body, id, dict(headers), content_type, key)
        for body, id, headers, content_type, key, *_ in messages
    ]
    writer = spark.createDataFrame(rows, columns).coalesce(1).write.format("vibemq").mode("append")
    writer.option("endpoints", f"{served.host}:{served.port}").option("stream", queue).save()


# ---- the management API, a reader only ----


def http_consume(served: Running, queue: str, count: int) -> list[Message]:
    found: list[Message] = []
    at = "first"
    while len(found) < count:
        url = f"http://{served.host}:{served.ports['admin']}/api/stream/%2F/{queue}/messages?offset={at}"
        with urllib.request.urlopen(urllib.request.Request(url, headers={"Authorization": GUEST})) as answer:
            page = json.load(answer)
        found += map(http_message, page["messages"])
        at = page["next"]
    return found


def http_message(shown: dict[str, Any]) -> Message:
    body = shown["body"]
    if shown["encoding"] == BASE64:
        body = binascii.a2b_base64(body, strict_mode=True)
    return Message(body, shown["id"], shown["headers"], offset=shown["offset"], timestamp_ms=shown["timestamp"])


# ---- the table ----


class Door(NamedTuple):
    publish: Callable[[Running, str, Sequence[Message]], None]
    consume: Callable[[Running, str, int], list[Message]]
    #: Takes a message and goes without having settled it; None where a queue is read and nothing taken.
    leave: Callable[[Running, str], None] | None = None


#: A further door is one more entry here, and one more column in the tables.
DOORS = {
    "native": Door(native_publish, native_consume, native_leave),
    "streams": Door(streams_publish, streams_consume),
    "signalr": Door(signalr_publish, signalr_consume, signalr_leave),
    "micromsg2": Door(micromsg2_publish, micromsg2_consume, micromsg2_leave),
}
HTTP = "http"  # a reader in the tables of values
MESSAGEPACK = "messagepack"  # the hub's other encoding: a column of its own in the tables of values
SPARK = "spark"  # writes what a streams client does, where a row can say it
TAKERS = [name for name, door in DOORS.items() if door.leave is not None]
