# SPDX-License-Identifier: Apache-2.0
"""Loads of queues, and the native protocol under them: how queues are made and looked into before and after a load."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from vibemq.bench._ends import NativeConsumer, NativePublisher
from vibemq.bench._flow import NUMBER_MARK, QUEUE_MARK, SIZE_MIN, Consumer, Publisher, Tally, body
from vibemq.bench.load import Load, Peer, Wire, option
from vibemq.errors import UserError, VibeMQError
from vibemq.protocols.native import codec
from vibemq.protocols.native.spec import PORT_DEFAULT, PORT_TLS_DEFAULT, Command, Header, OverflowStrategy

PIPELINE_COUNT = 200  # commands on the way when thousands of queues are made
NATIVE_ID_PREFIX_SIZE = 24  # of the 32 hex digits that .NET clients use for an id; the others are the number


@dataclass(frozen=True)
class QueueLoad(Load):
    """Consumers share the messages of a queue, and acknowledge each."""

    mode: str = "both"
    group: int = 500
    timeout_s: float = 120.0
    protocol: str = "native"
    queue: str = option("bench", "Deleted before and after a run.")
    prefetch: int = option(10_000, "Unacknowledged per consumer.")
    queues: int = option(1, "Messages go to each in turn.")
    durability: str = option("", "Of the queue.")

    counts = (*Load.counts, "prefetch", "queues")

    def settings(self) -> dict[str, Any]:
        return {
            "prefetch": self.prefetch,
            "queues": self.queues,
            "publishers": self.publishers if self.publishes else 0,
            "consumers": self.consumers if self.consumes else 0,
        }

    def check(self) -> None:
        super().check()
        if self.size_bytes < SIZE_MIN:
            raise UserError(
                f"size: needed {SIZE_MIN} bytes or more, had {self.size_bytes}",
                hint="A body is JSON and holds its sending time and its number.",
            )
        if self.messages % self.publishers:
            raise UserError(f"messages: needed a multiple of {self.publishers} publishers, had {self.messages}")
        if self.messages >= 1 << 32:
            raise UserError(f"messages: needed fewer than 2^32, had {self.messages}")
        if self.queues > 1 and self.protocol != "native":
            raise UserError(f"queues: needed 1 with {self.protocol}, had {self.queues}")
        if self.consumers > self.queues > 1:
            raise UserError(f"consumers: needed at most {self.queues}, one for each queue, had {self.consumers}")


class QueuePeer(Peer):
    """A server of queues."""

    load: QueueLoad

    def __init__(self, load: QueueLoad) -> None:
        super().__init__(load)
        self.tally = Tally(load.messages, load.queues) if load.verify else None

    def wire(self) -> Wire:
        return Wire(self.load.host, self.load.port, self.load.timeout_s, self.load.tls_ca)


class Native(QueuePeer):
    """Our own protocol for queues."""

    port_default, port_tls_default = PORT_DEFAULT, PORT_TLS_DEFAULT
    control: Wire

    def __init__(self, load: QueueLoad) -> None:
        super().__init__(load)
        self.control = self.connect()

    def connect(self) -> Wire:
        wire, load = self.wire(), self.load
        headers = {"clientVersion": "vibemq bench"}
        if load.user:
            headers |= {Header.AUTH_USERNAME.value: load.user, Header.AUTH_PASSWORD.value: load.password}
        wire.send(codec.encode_frame(Command.CONNECT, "connect", headers=headers))
        self.reply(wire)
        return wire

    def frame(self, wire: Wire) -> bytes:
        head = wire.exactly(5)
        return head + wire.exactly(int.from_bytes(head[:4], "big"))

    def reply(self, wire: Wire) -> codec.Message:
        message = codec.decode_body(self.frame(wire)[5:])
        if message.type == Command.ERROR:
            raise VibeMQError(f"the broker answered {message.error_code}: {message.error_message}")
        return message

    def names(self) -> list[str]:
        load = self.load
        return [f"{load.queue}-{i:08x}" for i in range(load.queues)] if load.queues > 1 else [load.queue]

    def request(self, command: Command, names: Sequence[str], payload: bytes | None = None) -> Iterator[codec.Message]:
        """The command for each queue, some of them on the way at a time."""
        for begin in range(0, len(names), PIPELINE_COUNT):
            part = names[begin : begin + PIPELINE_COUNT]
            self.control.send(b"".join(codec.encode_frame(command, "c", queue=name, payload=payload) for name in part))
            for _ in part:
                yield self.reply(self.control)

    def create(self) -> None:
        self.delete()
        options = {
            "mode": 0,
            "maxQueueSize": 0,
            "overflowStrategy": OverflowStrategy.DROP_NEWEST,
            "prefetch": self.load.prefetch,
            **({"durability": self.load.durability} if self.load.durability else {}),
        }
        for _ in self.request(Command.CREATE_QUEUE, self.names(), json.dumps(options).encode()):
            pass

    def delete(self) -> None:
        for _ in self.request(Command.DELETE_QUEUE, self.names()):
            pass

    def left(self) -> int:
        infos = [json.loads(reply.payload or b"{}") for reply in self.request(Command.QUEUE_INFO, self.names())]
        return sum(info.get("messageCount", 0) + info.get("inFlightCount", 0) for info in infos)

    def publish_frame(self) -> bytes:
        load = self.load
        queue = f"{load.queue}-".encode() + QUEUE_MARK if load.queues > 1 else load.queue.encode()
        # The marks are no characters of a queue's name; the load thread makes them such.
        prefix = uuid.uuid4().hex[:NATIVE_ID_PREFIX_SIZE].encode()
        return codec.encode_frame(Command.PUBLISH, prefix + NUMBER_MARK, queue=queue, payload=body(load.size_bytes))

    def publisher(self, number: int) -> Publisher:
        options = self.connect().handed_on() | self.publishing(number)
        return NativePublisher(frame=self.publish_frame(), queues=self.load.queues, **options)

    def consumer(self, number: int) -> Consumer:
        wire = self.connect()
        early = b""
        for name in self.names()[number % self.load.queues :: self.load.consumers]:
            wire.send(codec.encode_frame(Command.SUBSCRIBE, "subscribe", queue=name))
            while (frame := self.frame(wire))[6] != Command.SUBSCRIBE_ACK:  # in between comes what waits in the queues
                if frame[6] == Command.ERROR:
                    code = codec.decode_body(frame[5:]).error_code
                    raise VibeMQError(f"Subscribe {name}: the broker answered {code}")
                early += frame
        wire.held[:0] = early
        return NativeConsumer(**wire.handed_on(), **self.consuming())
