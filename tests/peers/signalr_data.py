# SPDX-License-Identifier: Apache-2.0
"""A hub connection over a WebSocket, for tests that look at every message and its order."""

from __future__ import annotations

import itertools
import json
import time
from collections import deque
from typing import Any

from running import Running
from websockets.sync.client import connect

from peers.hub_messages import Message, decode, encode, split_records
from vibemq.protocols.signalr import spec
from vibemq.protocols.signalr.spec import Dialect, Encoding, MessageType

DEADLINE_S = 60.0


class Refused(Exception):
    """The hub answered with an error."""


class DataPeer:
    """Past its handshake; everything that comes is kept in order, and found by the id that it bears."""

    def __init__(self, running: Running, encoding: Encoding = Encoding.JSON, dialect: Dialect = Dialect.V1) -> None:
        self.encoding, self.dialect = encoding, dialect
        self.socket = connect(
            f"ws://{running.host}:{running.ports['signalr']}/hub",
            open_timeout=DEADLINE_S,
            compression=None,
            max_size=None,
        )
        self.numbers = itertools.count(1)
        self.come: deque[Message] = deque()
        shake: dict[str, Any] = {"protocol": encoding.name.lower()}
        if dialect is Dialect.V1:
            shake["version"] = 1
        self.socket.send(json.dumps(shake) + "\x1e")
        if dialect is Dialect.V1:
            answer = self.socket.recv(DEADLINE_S)
            assert answer in ("{}\x1e", b"{}\x1e"), answer

    def __enter__(self) -> DataPeer:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    # ---- records ----

    def send(self, *messages: Message) -> None:
        records = b"".join(encode(message, self.encoding, self.dialect) for message in messages)
        self.socket.send(records.decode() if self.encoding is Encoding.JSON else records)

    def call(self, target: str, *arguments: Any, **more: Any) -> Message:
        """An Invocation with a fresh id."""
        return Message(MessageType.INVOCATION, str(next(self.numbers)), target, list(arguments), **more)

    def _receive(self, deadline: float) -> None:
        data = self.socket.recv(max(deadline - time.monotonic(), 0))
        data = data.encode() if isinstance(data, str) else data
        records, used = split_records(data, self.encoding)
        assert used == len(data), "a record was split"
        for record in records:
            message = decode(record, self.encoding, self.dialect)
            if message is not None and message.type != MessageType.PING:
                self.come.append(message)

    def next(self, wanted: Any) -> Any:
        """The first message that came, or comes, for which this is true."""
        deadline = time.monotonic() + DEADLINE_S
        while True:
            for message in self.come:
                if wanted(message):
                    self.come.remove(message)
                    return message
            self._receive(deadline)

    # ---- calls and streams ----

    def answer(self, id: str | None) -> Any:
        found = self.next(lambda m: m.id == id and m.type == MessageType.COMPLETION)
        if found.error is not None:
            raise Refused(found.error)
        return None if found.payload is spec.NOTHING else found.payload

    def ask(self, target: str, *arguments: Any) -> Any:
        call = self.call(target, *arguments)
        self.send(call)
        return self.answer(call.id)

    def stream(self, target: str, *arguments: Any) -> str:
        call = self.call(target, *arguments)
        is_early = self.dialect is not Dialect.V1
        self.send(call if is_early else call._replace(type=MessageType.STREAM_INVOCATION))
        assert call.id is not None
        return call.id

    def item(self, id: str) -> Any:
        return self.next(lambda m: m.id == id and m.type == MessageType.STREAM_ITEM).payload

    def items(self, id: str, count: int) -> list[Any]:
        return [self.item(id) for _ in range(count)]

    def rest(self, id: str) -> list[Any]:
        """What comes until the stream ends."""
        found: list[Any] = []
        while True:
            message = self.next(lambda m: m.id == id)
            if message.type != MessageType.STREAM_ITEM:
                if message.error is not None:
                    raise Refused(message.error)
                return found
            found.append(message.payload)

    def cancel(self, id: str) -> None:
        self.send(Message(MessageType.CANCEL_INVOCATION, id))
