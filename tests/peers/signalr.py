# SPDX-License-Identifier: Apache-2.0
"""One hub connection over a raw WebSocket, in either dialect and encoding: tests say and see every message.

`next()` is the only way to learn what the broker said; pings are passed over, because they come by the clock.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import Any, Self

from running import Running

from peers.http import BINARY, CLOSE, PING, TEXT, HttpPeer, frame
from peers.hub_messages import Message, decode, encode, split_records
from vibemq.protocols.signalr.spec import NOTHING, Dialect, Encoding, MessageType

numbers = itertools.count(1)
RS = b"\x1e"


def fresh(what: str = "queue") -> str:
    """A name that nobody else uses."""
    return f"hub-{what}-{next(numbers)}"


class HubPeer:
    def __init__(
        self,
        running: Running,
        *,
        encoding: Encoding = Encoding.JSON,
        dialect: Dialect = Dialect.V1,
        target: str = "/hub",
        version: int = 1,
        shake: bool = True,
        http: HttpPeer | None = None,
        **headers: str,
    ) -> None:
        self.encoding, self.dialect, self.version = encoding, dialect, version
        self.http = http or HttpPeer(running)
        self.http.upgrade(target, **headers)
        self.ids = itertools.count(1)
        self.inbox: list[bytes] = []
        self.answers: dict[str, Message] = {}
        self.close_code: int | None = None
        if shake:
            self.raw(self.handshake_record, TEXT)
            if dialect == Dialect.V1:
                assert self.http.next_frame().payload == b"{}" + RS

    @property
    def handshake_record(self) -> bytes:
        shake: dict[str, Any] = {"protocol": self.encoding.name.lower()}
        if self.dialect == Dialect.V1:
            shake["version"] = self.version
        return json.dumps(shake).encode() + RS

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.http.socket.close()

    # ---- out ----

    @property
    def opcode(self) -> int:
        return TEXT if self.encoding == Encoding.JSON else BINARY

    def raw(self, data: bytes, opcode: int | None = None) -> None:
        self.http.write(frame(self.opcode if opcode is None else opcode, data))

    def record(self, type: MessageType, **fields: Any) -> bytes:
        return encode(Message(type, **fields), self.encoding, self.dialect)

    def send(self, type: MessageType, **fields: Any) -> None:
        self.raw(self.record(type, **fields))

    def call_record(self, target: str, *arguments: Any, id: str | None = None, **fields: Any) -> bytes:
        return self.record(MessageType.INVOCATION, id=id, target=target, arguments=list(arguments), **fields)

    def begin(self, target: str, *arguments: Any, **fields: Any) -> str:
        """Call without waiting for the answer."""
        id = fields.pop("id", None) or str(next(self.ids))
        self.raw(self.call_record(target, *arguments, id=id, **fields))
        return id

    def stream(self, target: str, *arguments: Any, **fields: Any) -> str:
        id = fields.pop("id", None) or str(next(self.ids))
        early = self.dialect != Dialect.V1
        type = MessageType.INVOCATION if early else MessageType.STREAM_INVOCATION
        self.send(type, id=id, target=target, arguments=list(arguments), **fields)
        return id

    def notify(self, target: str, *arguments: Any) -> None:
        """A call that nobody answers."""
        early = self.dialect != Dialect.V1
        self.raw(self.call_record(target, *arguments, id=str(next(self.ids)) if early else None, nonblocking=True))

    # ---- in ----

    def next_raw(self) -> bytes:
        while not self.inbox:
            found = self.http.next_frame()
            if found.opcode == CLOSE:
                self.close_code = int.from_bytes(found.payload[:2], "big")
                raise ConnectionError(f"closed with {self.close_code}: {found.payload[2:].decode()}")
            if found.opcode == PING:
                continue
            assert found.opcode == self.opcode, found
            records, used = split_records(found.payload, self.encoding)
            assert used == len(found.payload), "a record is split over messages"
            self.inbox += records
        return self.inbox.pop(0)

    def next(self) -> Message:
        while True:
            message = decode(self.next_raw(), self.encoding, self.dialect)
            assert message is not None
            if message.type != MessageType.PING:
                return message

    def answer(self, id: str) -> Message:
        """The completion of this call; what else is completed meanwhile is kept."""
        while id not in self.answers:
            message = self.next()
            assert message.type == MessageType.COMPLETION, message
            assert message.id is not None
            self.answers[message.id] = message
        return self.answers.pop(id)

    def ask(self, target: str, *arguments: Any) -> Any:
        """Call, and the result; None for void."""
        found = self.answer(self.begin(target, *arguments))
        assert found.error is None, found.error
        return None if found.payload is NOTHING else found.payload

    def refusal(self, target: str, *arguments: Any) -> str:
        found = self.answer(self.begin(target, *arguments))
        assert found.error is not None, found
        return found.error

    def items(self, id: str, count: int) -> list[Any]:
        found: list[Any] = []
        while len(found) < count:
            message = self.next()
            assert message.type == MessageType.STREAM_ITEM and message.id == id, message
            found.append(message.payload)
        return found

    def stream_end(self, id: str) -> Message:
        message = self.next()
        early = self.dialect == Dialect.EARLY
        assert message.type == (MessageType.STREAM_COMPLETION if early else MessageType.COMPLETION), message
        assert message.id == id, message
        return message

    def closed(self) -> Message | None:
        """Wait for the end; the Close that came before it, if there was one."""
        last = None
        try:
            while True:
                last = self.next()
        except ConnectionError:
            return last if last is not None and last.type == MessageType.CLOSE else None


def delivery_of(call: Message) -> Any:
    """What a call of ReceiveMessage brought."""
    return call.arguments[1]


def bodies(deliveries: Sequence[Any]) -> list[Any]:
    return [delivery["body"] for delivery in deliveries]
