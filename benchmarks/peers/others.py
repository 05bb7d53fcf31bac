# SPDX-License-Identifier: Apache-2.0
"""How a queue is made, filled, read and looked into at servers of others: all that happens before and after the load.

What a server promises with a confirm is the same everywhere: the page cache has the message (see servers.py).
"""

from __future__ import annotations

import json
import struct
import uuid
from typing import Any

from benchmarks.peers._peers import (
    AmqpConsumer,
    AmqpPublisher,
    EchoPublisher,
    NatsConsumer,
    NatsPublisher,
    RedisConsumer,
    RedisPublisher,
)
from vibemq.bench._flow import NUMBER_MARK, Consumer, Publisher, body
from vibemq.bench.load import Wire
from vibemq.bench.queues import Native, QueueLoad, QueuePeer
from vibemq.errors import UserError, VibeMQError
from vibemq.protocols.native.codec import encode_frame
from vibemq.protocols.native.spec import Command, Header


class Echo(Native):
    """A bare TCP round trip of the sizes of Native's Publish and PublishAck; the server is null.py's `echo`."""

    def __init__(self, load: QueueLoad) -> None:
        QueuePeer.__init__(self, load)

    def create(self) -> None:
        """There is no queue."""

    def delete(self) -> None:
        """There is no queue."""

    def consumer(self, number: int) -> Consumer:
        raise UserError(f"protocol echo: needed mode pub or rtt, had {self.load.mode}")

    def sizes(self) -> tuple[int, int]:
        """Of the request and the reply."""
        id, queue = "0" * 32, self.load.queue
        headers = {Header.MESSAGE_ID.value: id, Header.QUEUE_NAME.value: queue}
        return len(self.publish_frame()), len(encode_frame(Command.PUBLISH_ACK, id, queue=queue, headers=headers))

    def publisher(self, number: int) -> Publisher:
        wire, frame = self.wire(), self.publish_frame()
        return EchoPublisher(connection=wire.socket, reply_size=self.sizes()[1], frame=frame, **self.publishing(number))


# ---- NATS JetStream ----


class Nats(QueuePeer):
    """A stream on files with work-queue retention; a push consumer that acknowledges each message."""

    port_default = 4222

    def __init__(self, load: QueueLoad) -> None:
        super().__init__(load)
        self.inbox = f"_INBOX.{uuid.uuid4().hex[:12]}"
        self.stream = load.queue.upper()
        self.control = self.connect()
        self.control.send(f"SUB {self.inbox}.c 1\r\n".encode())

    def connect(self) -> Wire:
        wire = self.wire()
        if not wire.line().startswith(b"INFO "):
            raise VibeMQError("needed NATS's INFO, had something else")
        options: dict[str, Any] = {"verbose": False, "pedantic": False, "lang": "c", "version": "1", "headers": True}
        if self.load.user:
            options |= {"user": self.load.user, "pass": self.load.password}
        wire.send(b"CONNECT " + json.dumps(options | {"no_responders": True}).encode() + b"\r\nPING\r\n")
        while (line := wire.line()) != b"PONG":
            if line.startswith(b"-ERR"):
                raise VibeMQError(f"NATS answered {line.decode()}")
        return wire

    def request(self, subject: str, missing_ok: bool = False, **arguments: Any) -> dict[str, Any]:
        payload = json.dumps(arguments).encode() if arguments else b""
        self.control.send(f"PUB $JS.API.{subject} {self.inbox}.c {len(payload)}\r\n".encode() + payload + b"\r\n")
        while not (line := self.control.line()).startswith((b"MSG ", b"HMSG ", b"-ERR")):
            continue
        if not line.startswith(b"MSG "):
            raise VibeMQError(f"{subject}: NATS answered {line.decode()}")
        answer = json.loads(self.control.exactly(int(line.split()[-1]) + 2))
        if "error" in answer and not (missing_ok and answer["error"]["code"] == 404):
            raise VibeMQError(f"{subject}: NATS answered {answer['error']}")
        return answer

    def create(self) -> None:
        self.delete()
        self.request(
            f"STREAM.CREATE.{self.stream}",
            name=self.stream,
            subjects=[f"{self.load.queue}.in"],
            retention="workqueue",
            storage="file",
            num_replicas=1,
            max_consumers=-1,
            max_msgs=-1,
            max_bytes=-1,
            discard="new",
        )

    def delete(self) -> None:
        self.request(f"STREAM.DELETE.{self.stream}", missing_ok=True)

    def left(self) -> int:
        return int(self.request(f"STREAM.INFO.{self.stream}")["state"]["messages"])

    def publisher(self, number: int) -> Publisher:
        wire = self.connect()
        inbox = f"{self.inbox}.p{number}".encode()
        wire.send(b"SUB " + inbox + b".* 1\r\n")
        text = body(self.load.size_bytes)
        frame = b"PUB %s.in %s.%s %d\r\n%s\r\n" % (self.load.queue.encode(), inbox, NUMBER_MARK, len(text), text)
        return NatsPublisher(**wire.handed_on(), frame=frame, **self.publishing(number))

    def consumer(self, number: int) -> Consumer:
        wire = self.connect()
        subject = f"{self.load.queue}.out"
        wire.send(f"SUB {subject} readers 1\r\nPING\r\n".encode())
        while wire.line() != b"PONG":
            continue
        if number == 0:
            self.request(
                f"CONSUMER.DURABLE.CREATE.{self.stream}.readers",
                stream_name=self.stream,
                config={
                    "durable_name": "readers",
                    "deliver_subject": subject,
                    "deliver_group": "readers",
                    "deliver_policy": "all",
                    "ack_policy": "explicit",
                    "max_ack_pending": self.load.prefetch,
                },
            )
        options = self.consuming()
        return NatsConsumer(**wire.handed_on(), **options)


# ---- Redis Streams ----


def resp(*words: str | bytes | int) -> bytes:
    """A command."""
    return b"*%d\r\n" % len(words) + b"".join(resp_word(word) for word in words)


def resp_word(word: str | bytes | int) -> bytes:
    text = word if isinstance(word, bytes) else str(word).encode()
    return b"$%d\r\n%s\r\n" % (len(text), text)


class Redis(QueuePeer):
    """XADD; XREADGROUP with a count, and one XACK for what it brought. Entries stay in the stream, as is usual."""

    port_default = 6379
    GROUP = "readers"
    READ_COUNT = 1000
    BLOCK_MS = 200  # a reader notices soon that the run is over

    def __init__(self, load: QueueLoad) -> None:
        super().__init__(load)
        self.control = self.wire()

    def command(self, *words: str | bytes | int) -> Any:
        self.control.send(resp(*words))
        return self._answer()

    def _answer(self) -> Any:
        line = self.control.line()
        kind, text = line[:1], line[1:]
        if kind == b"-":
            raise VibeMQError(f"Redis answered {text.decode()}")
        if kind == b"$":
            return None if text == b"-1" else self.control.exactly(int(text) + 2)[:-2]
        if kind == b"*":
            return [self._answer() for _ in range(int(text))]
        return int(text) if kind == b":" else text

    def create(self) -> None:
        self.delete()
        self.command("XGROUP", "CREATE", self.load.queue, self.GROUP, "0", "MKSTREAM")

    def delete(self) -> None:
        self.command("DEL", self.load.queue)

    def left(self) -> int:
        (group,) = self.command("XINFO", "GROUPS", self.load.queue)
        fields = dict(zip(group[::2], group[1::2], strict=True))
        return int(fields[b"pending"]) + int(fields[b"lag"] or 0)

    def publisher(self, number: int) -> Publisher:
        wire = self.wire()
        frame = resp("XADD", self.load.queue, "*", "d", body(self.load.size_bytes))
        return RedisPublisher(connection=wire.socket, frame=frame, **self.publishing(number))

    def consumer(self, number: int) -> Consumer:
        wire = self.wire()
        queue = self.load.queue
        count = min(self.READ_COUNT, self.load.prefetch)
        group = ("GROUP", self.GROUP, f"c{number}", "COUNT", count, "BLOCK", self.BLOCK_MS)
        return RedisConsumer(
            connection=wire.socket,
            read=resp("XREADGROUP", *group, "STREAMS", queue, ">"),
            ack=resp_word("XACK") + resp_word(queue) + resp_word(self.GROUP),
            ack_words=3,
            **self.consuming(),
        )


# ---- AMQP 0-9-1 ----


def short(text: str) -> bytes:
    return bytes([len(text)]) + text.encode()


def amqp_frame(kind: int, channel: int, payload: bytes) -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + b"\xce"


def amqp_method(channel: int, number: tuple[int, int], arguments: bytes = b"") -> bytes:
    return amqp_frame(1, channel, struct.pack(">HH", *number) + arguments)


class Amqp(QueuePeer):
    """A durable classic queue, persistent messages, publisher confirms, an ack for each message."""

    port_default = 5672
    PERSISTENT = struct.pack(">HB", 0x1000, 2)  # the one property that is present: delivery-mode

    def __init__(self, load: QueueLoad) -> None:
        super().__init__(load)
        self.control = self.connect()

    def connect(self) -> Wire:
        wire, load = self.wire(), self.load
        login = f"\0{load.user or 'guest'}\0{load.password or 'guest'}".encode()
        wire.send(b"AMQP\0\0\x09\x01")
        self.expect(wire, (10, 10))  # connection.start
        answer = struct.pack(">I", 0) + short("PLAIN") + struct.pack(">I", len(login)) + login + short("en_US")
        wire.send(amqp_method(0, (10, 11), answer))
        tune = self.expect(wire, (10, 30))
        channels, frame_size, _ = struct.unpack(">HIH", tune[:8])
        wire.send(amqp_method(0, (10, 31), struct.pack(">HIH", channels, frame_size, 0)))
        wire.send(amqp_method(0, (10, 40), short("/") + short("") + b"\0"))
        self.expect(wire, (10, 41))
        self.ask(wire, (20, 10), short(""), (20, 11))  # channel.open
        return wire

    def expect(self, wire: Wire, number: tuple[int, int]) -> bytes:
        """The arguments of the next method, which must be this one."""
        while True:
            kind, _, size = struct.unpack(">BHI", wire.exactly(7))
            payload = wire.exactly(size + 1)[:-1]
            if kind == 8:
                continue
            got = struct.unpack(">HH", payload[:4])
            if got != number:
                raise VibeMQError(f"AMQP: needed method {number}, had {got}: {payload[4:]!r}")
            return payload[4:]

    def ask(self, wire: Wire, number: tuple[int, int], arguments: bytes, answer: tuple[int, int]) -> bytes:
        wire.send(amqp_method(1, number, arguments))
        return self.expect(wire, answer)

    def declare(self, passive: bool) -> int:
        """How many messages are ready."""
        bits = bytes([2 | passive])  # durable
        answer = self.ask(
            self.control, (50, 10), b"\0\0" + short(self.load.queue) + bits + struct.pack(">I", 0), (50, 11)
        )
        return int.from_bytes(answer[1 + answer[0] :][:4], "big")

    def create(self) -> None:
        self.delete()
        self.declare(passive=False)

    def delete(self) -> None:
        self.ask(self.control, (50, 40), b"\0\0" + short(self.load.queue) + b"\0", (50, 41))

    def left(self) -> int:
        return self.declare(passive=True)

    def publisher(self, number: int) -> Publisher:
        wire, text = self.connect(), body(self.load.size_bytes)
        self.ask(wire, (85, 10), b"\0", (85, 11))  # confirm.select
        frame = amqp_method(1, (60, 40), b"\0\0" + short("") + short(self.load.queue) + b"\0")
        frame += amqp_frame(2, 1, struct.pack(">HHQ", 60, 0, len(text)) + self.PERSISTENT) + amqp_frame(3, 1, text)
        return AmqpPublisher(**wire.handed_on(), frame=frame, **self.publishing(number))

    def consumer(self, number: int) -> Consumer:
        wire = self.connect()
        prefetch = min(self.load.prefetch, 65_535)
        self.ask(wire, (60, 10), struct.pack(">IHB", 0, prefetch, 0), (60, 11))
        consume = b"\0\0" + short(self.load.queue) + short("") + b"\0" + struct.pack(">I", 0)
        self.ask(wire, (60, 20), consume, (60, 21))
        ack = amqp_method(1, (60, 80), struct.pack(">QB", 0, 0))
        options = self.consuming()
        return AmqpConsumer(**wire.handed_on(), ack=ack, **options)
