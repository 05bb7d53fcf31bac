# SPDX-License-Identifier: Apache-2.0
"""SignalR hubs under the queue load generator: WebSockets, hub methods named as ours, JSON or MessagePack.

A connection skips negotiation, as clients do that know they want WebSockets. Commands are in JSON in either case.
"""

from __future__ import annotations

import base64
import json
import os
from typing import TYPE_CHECKING, Any

import msgspec

from benchmarks.peers._signalr import SignalRAudience, SignalRConsumer, SignalRPublisher
from benchmarks.peers.topic import TopicPeer
from vibemq.bench._flow import NUMBER_MARK, Consumer, Publisher, body
from vibemq.bench.load import Wire
from vibemq.errors import VibeMQError
from vibemq.protocols.signalr.spec import PORT_DEFAULT

if TYPE_CHECKING:
    from vibemq.bench.queues import QueueLoad

PATH = "/hub"
SEPARATOR = b"\x1e"
TEXT, BINARY, CLOSE = 1, 2, 8
INVOCATION, COMPLETION, STREAM_INVOCATION = 1, 3, 4
LENGTH_16_BIT, LENGTH_64_BIT = 126, 127
FIN, MASKED = 0x80, 0x80
SUBSCRIPTION_ID = "s"


class HubWire(Wire):
    """A WebSocket on which the handshake of the hub protocol is over; `key` is the mask of all that it sends."""

    def __init__(self, load: QueueLoad, port: int, protocol: str = "json") -> None:
        super().__init__(load.host, port, load.timeout_s)
        self.key = os.urandom(4)
        lines = [
            f"GET {PATH} HTTP/1.1",
            f"Host: {load.host}:{port}",
            "Upgrade: websocket",
            "Connection: Upgrade",
            f"Sec-WebSocket-Key: {base64.b64encode(os.urandom(16)).decode()}",
            "Sec-WebSocket-Version: 13",
        ]
        if load.user:
            lines.append(f"Authorization: Basic {base64.b64encode(f'{load.user}:{load.password}'.encode()).decode()}")
        self.send("\r\n".join([*lines, "", ""]).encode())
        status = self.line()
        while self.line():
            continue
        if b" 101 " not in status:
            raise VibeMQError(f"needed a WebSocket, the server answered {status.decode('latin-1')}")
        self.send_record(json_record({"protocol": protocol, "version": 1}))
        answer = json.loads(self.message().rstrip(SEPARATOR))
        if answer:
            raise VibeMQError(f"the hub refused the handshake: {answer}")

    def send_record(self, record: bytes, opcode: int = TEXT) -> None:
        head = frame_head(len(record), opcode, self.key)
        self.send(head + masked(record, self.key))

    def message(self) -> bytes:
        """The payload of the next message."""
        while True:
            first, size = self.exactly(2)
            if size == LENGTH_16_BIT:
                size = int.from_bytes(self.exactly(2), "big")
            elif size == LENGTH_64_BIT:
                size = int.from_bytes(self.exactly(8), "big")
            payload = self.exactly(size)
            if first & 15 == CLOSE:
                raise VibeMQError(f"the hub closed the connection: {payload[2:].decode('utf-8', 'replace')}")
            if first & 15 in (TEXT, BINARY):
                return payload

    def invoke(self, method: str, *arguments: Any) -> Any:
        """The result of a hub method, on a connection in JSON that has no other invocation open."""
        self.send_record(
            json_record({"type": INVOCATION, "invocationId": "c", "target": method, "arguments": list(arguments)})
        )
        while True:
            for record in self.message().split(SEPARATOR)[:-1]:
                answer = json.loads(record)
                if answer.get("error"):
                    raise VibeMQError(f"{method}: the hub answered {answer['error']}")
                if answer["type"] == COMPLETION:
                    return answer.get("result")


def json_record(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode() + SEPARATOR


def messagepack_record(value: Any) -> bytes:
    record = msgspec.msgpack.encode(value)
    size, head = len(record), b""
    while size >= 0x80:
        head += bytes([size & 0x7F | 0x80])
        size >>= 7
    return head + bytes([size]) + record


def frame_head(size: int, opcode: int, key: bytes) -> bytes:
    """Of a masked message, with the shortest length."""
    if size < LENGTH_16_BIT:
        return bytes([FIN | opcode, MASKED | size]) + key
    if size < 1 << 16:
        return bytes([FIN | opcode, MASKED | LENGTH_16_BIT]) + size.to_bytes(2, "big") + key
    return bytes([FIN | opcode, MASKED | LENGTH_64_BIT]) + size.to_bytes(8, "big") + key


def masked(payload: bytes, key: bytes) -> bytes:
    whole = (key * (len(payload) // 4 + 1))[: len(payload)]
    return (int.from_bytes(payload, "big") ^ int.from_bytes(whole, "big")).to_bytes(len(payload), "big")


class SignalR(TopicPeer):
    """Invocations of Publish with completion; a stream of Subscribe whose deliveries are acknowledged with Ack."""

    port_default = PORT_DEFAULT
    protocol = "json"
    is_messagepack = False

    def __init__(self, load: QueueLoad) -> None:
        super().__init__(load)
        self.opcode = BINARY if self.is_messagepack else TEXT
        self.control = self.connect()

    def connect(self, protocol: str = "json") -> HubWire:
        return HubWire(self.load, self.load.port, protocol)

    def create(self) -> None:
        self.make("queue")

    def create_topic(self) -> None:
        self.make("topic")

    def make(self, kind: str) -> None:
        self.delete()
        options = {"type": kind, "maxLength": 0, "overflow": "dropNewest", "prefetch": self.load.prefetch}
        if self.load.durability:
            options["durability"] = self.load.durability
        self.control.invoke("CreateQueue", self.load.queue, options)

    def delete(self) -> None:
        self.control.invoke("DeleteQueue", self.load.queue)

    def info(self) -> dict[str, Any]:
        found: dict[str, Any] = self.control.invoke("QueueInfo", self.load.queue)
        return found

    def left(self) -> int:
        info = self.info()
        return int(info["messages"]) + int(info["unacked"])

    def publish_record(self) -> bytes:
        """An invocation whose id is the message's number; the body is a JSON value."""
        call = {
            "type": INVOCATION,
            "invocationId": NUMBER_MARK.decode(),
            "target": "Publish",
            "arguments": [self.load.queue],
        }
        return json_record(call)[: -len(b"]}" + SEPARATOR)] + b"," + body(self.load.size_bytes) + b"]}" + SEPARATOR

    def subscribe_record(self, ack: str) -> bytes:
        call = {"type": STREAM_INVOCATION, "invocationId": SUBSCRIPTION_ID, "target": "Subscribe"}
        return json_record(call | {"arguments": [self.load.queue, {"ack": ack, "prefetch": self.load.prefetch}]})

    def publisher(self, number: int) -> Publisher:
        wire, record = self.connect(self.protocol), self.publish_record()
        head = frame_head(len(record), self.opcode, wire.key)
        return SignalRPublisher(
            **wire.handed_on(),
            frame=head + record,
            key=wire.key,
            payload_at=len(head),
            is_messagepack=self.is_messagepack,
            **self.publishing(number),
        )

    def subscriber(self, filter: str = "") -> HubWire:
        if filter:
            raise VibeMQError("a hub has no filters")
        return self.subscribed("auto")

    def subscribed(self, ack: str) -> HubWire:
        wire = self.connect(self.protocol)
        wire.send_record(self.subscribe_record(ack), self.opcode)
        return wire

    def subscribers(self) -> int:
        return int(self.info()["consumers"])

    def consumer(self, number: int) -> Consumer:
        wire = self.subscribed("manual")
        return SignalRConsumer(
            **wire.handed_on(),
            key=wire.key,
            is_messagepack=self.is_messagepack,
            **self.consuming(),
        )

    def audience(self, **options: Any) -> SignalRAudience:
        return SignalRAudience(is_messagepack=self.is_messagepack, **options)


class SignalRMessagePack(SignalR):
    """The same with records of MessagePack; a body is bytes."""

    protocol = "messagepack"
    is_messagepack = True

    def publish_record(self) -> bytes:
        arguments = [self.load.queue, body(self.load.size_bytes)]
        return messagepack_record([INVOCATION, {}, NUMBER_MARK.decode(), "Publish", arguments, []])

    def subscribe_record(self, ack: str) -> bytes:
        arguments = [self.load.queue, {"ack": ack, "prefetch": self.load.prefetch}]
        return messagepack_record([STREAM_INVOCATION, {}, SUBSCRIPTION_ID, "Subscribe", arguments, []])
