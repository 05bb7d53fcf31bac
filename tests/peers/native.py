# SPDX-License-Identifier: Apache-2.0
"""One raw connection to the native door: the tests say every byte and see every frame.

The product's own client hides what these tests are about (layouts, the order of frames, what comes after an error).
Every wait has a deadline, so a broker that keeps silent fails a test instead of stopping it.  Every frame is
looked at on its way in: its layout must be the one that this peer speaks.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import select
import socket
from typing import Any

from running import Running

from vibemq.protocols.native import compression
from vibemq.protocols.native.codec import Message, decode_body, encode_frame, split_frames
from vibemq.protocols.native.spec import FLAGS_MAX_DEFAULT, Command, Compression

DEADLINE_S = 30.0
BODY_BYTES_MAX = 1_048_576  # what .NET clients read
FRESH_ID = b"server"
numbers = itertools.count(1)


def publish_ack_frame(id: bytes, queue: bytes, text_layout: bool = False) -> bytes:
    """As the broker sends it."""
    headers = {b"messageId": id, b"queueName": queue}
    return encode_frame(Command.PUBLISH_ACK, id, queue=queue, headers=headers, text_layout=text_layout)


def error_frame(id: bytes, queue: bytes, code: str, text: str) -> bytes:
    return encode_frame(Command.ERROR, id, queue=queue, error_code=code, error_message=text)


class NativePeer:
    """`next()` and `rest()` are the only ways to learn what the broker said."""

    def __init__(self, running: Running, *, text: bool = False, receive_buffer_bytes: int = 0) -> None:
        self.text = text
        self.socket = socket.socket()
        if receive_buffer_bytes:  # before connect, or the window has been offered already
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        self.socket.settimeout(DEADLINE_S)
        self.socket.connect((running.host, running.native_port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.inbox = b""
        self.flags = Compression.NONE  # of the frame that `next` returned last
        self.wire_bytes = 0  # and the size of its body
        self.flags_max: int = FLAGS_MAX_DEFAULT

    def __enter__(self) -> NativePeer:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    # ---- bytes and frames ----

    def write(self, *data: bytes) -> None:
        self.socket.sendall(b"".join(data))

    def drip(self, data: bytes) -> None:
        """One byte a segment."""
        for at in range(len(data)):
            self.socket.sendall(data[at : at + 1])

    def frame(self, command: int, id: bytes | None = None, **fields: Any) -> bytes:
        return encode_frame(command, id or b"r%d" % next(numbers), **{"text_layout": self.text, **fields})

    def send(self, command: int, id: bytes | None = None, **fields: Any) -> None:
        self.write(self.frame(command, id, **fields))

    def next(self) -> Message:
        while True:
            # As a .NET client reads: no body above the limit, whatever the broker allows itself.
            frames, _ = split_frames(self.inbox, BODY_BYTES_MAX, self.flags_max)
            if frames:
                flags, body = frames[0]
                self.inbox = self.inbox[5 + len(body) :]
                self.flags, self.wire_bytes = Compression(flags), len(body)
                message = decode_body(compression.decompress(flags, body, 1 << 26))
                assert message.type == Command.ERROR or message.text_layout == self.text, "not the layout of this peer"
                return message
            data = self.socket.recv(1 << 16)
            if not data:
                raise ConnectionError(f"the broker closed the connection, {len(self.inbox)} bytes of a frame before")
            self.inbox += data

    def expect(self, command: int) -> Message:
        message = self.next()
        assert message.type == command, f"needed {Command(command).name}, had {message}"
        return message

    def rest(self) -> list[Message]:
        """Whatever comes until the broker closes the connection."""
        messages = []
        with contextlib.suppress(ConnectionError):
            while True:
                messages.append(self.next())
        assert not self.inbox, "the last frame is not whole"
        return messages

    def has_frame(self) -> bool:
        """Is something there to read, or at least the beginning of it?"""
        return bool(self.inbox) or bool(select.select([self.socket], [], [], 0)[0])

    # ---- commands ----

    def connect(self, **headers: str) -> Message:
        """A Connect that succeeds.  `_` in the name of a header stands for `-`."""
        self.send(Command.CONNECT, headers={name.replace("_", "-"): value for name, value in headers.items()})
        return self.expect(Command.CONNECT_ACK)

    def ask(self, command: int, id: bytes | None = None, **fields: Any) -> Message:
        """A request and the answer to it, which must be the next frame."""
        id = id or b"r%d" % next(numbers)
        self.send(command, id, **fields)
        answer = self.next()
        assert answer.id == id, f"needed the answer to {id!r}, had {answer}"
        return answer

    def refused(self, command: int, id: bytes | None = None, **fields: Any) -> str:
        """The code of the Error that answers."""
        answer = self.ask(command, id, **fields)
        assert answer.type == Command.ERROR, f"needed an Error, had {answer}"
        assert answer.error_message
        return answer.error_code or ""

    def publish(self, queue: str, payload: bytes | None = b"{}", id: bytes | None = None, **fields: Any) -> Message:
        answer = self.ask(Command.PUBLISH, id, queue=queue, payload=payload, **fields)
        assert answer.type == Command.PUBLISH_ACK, answer
        return answer

    def create(self, queue: str, **options: Any) -> str:
        """Options in a payload, as .NET clients send them; none: the broker's defaults."""
        payload = json.dumps(options).encode() if options else None
        answer = self.ask(Command.CREATE_QUEUE, queue=queue, payload=payload)
        assert answer.type == Command.CREATE_QUEUE, answer
        return queue

    def subscribe(self, queue: str, **headers: str) -> Message:
        answer = self.ask(Command.SUBSCRIBE, queue=queue, headers=headers)
        assert answer.type == Command.SUBSCRIBE_ACK, answer
        return answer

    def deliver(self, ack: bool = True) -> Message:
        message = self.expect(Command.DELIVER)
        if ack:
            self.send(Command.ACK, message.id)
        return message

    def delivers(self, count: int, ack: bool = True) -> list[bytes]:
        """The ids of the next `count` Delivers."""
        return [self.deliver(ack).id for _ in range(count)]

    def info(self, queue: str) -> dict[str, Any]:
        answer = self.ask(Command.QUEUE_INFO, queue=queue)
        assert answer.type == Command.QUEUE_INFO and answer.payload, answer
        info: dict[str, Any] = json.loads(answer.payload)
        return info

    def ping(self) -> None:
        """What was sent before has been read when this returns, and nothing else has come."""
        assert self.ask(Command.PING).type == Command.PONG

    def admin(self, command: int, **fields: Any) -> Any:
        """The payload of the reply to an admin command; for a refusal its code."""
        answer = self.ask(command, payload=json.dumps(fields).encode())
        if answer.type == Command.ERROR:
            return answer.error_code
        assert answer.type == command and answer.queue is None and answer.payload
        return json.loads(answer.payload)


def connected(running: Running, *, text: bool = False, **headers: str) -> NativePeer:
    """An open connection."""
    peer = NativePeer(running, text=text)
    peer.connect(**headers)
    return peer
