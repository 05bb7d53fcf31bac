# SPDX-License-Identifier: Apache-2.0
"""The other end of one MicroMsg2 connection, played by a test: it reads and writes exactly what its script says.

The script runs in a thread of its own and gets a Server; what it raises, or asserts in vain, fails the test when the
`with` block ends. Every wait has a deadline.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from vibemq.protocols.micromsg2 import extensions
from vibemq.protocols.micromsg2.codec import (
    Command,
    ExtensionFrame,
    Handshake,
    Message,
    ack_sequence,
    decode_frame,
    decode_handshake,
    encode_ack,
    encode_command,
    encode_handshake,
)

if TYPE_CHECKING:
    from vibemq.protocols.micromsg2.codec import Frame

DEADLINE_S = 30.0


class Server:
    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.inbox = b""
        self.c1 = self.c2 = Handshake()

    # ---- the handshake ----

    def read_handshake(self) -> Handshake:
        while (found := decode_handshake(self.inbox)) is None:
            self._read()
        handshake, used = found
        assert isinstance(handshake, Handshake), f"needed a handshake, had {handshake}"
        self.inbox = self.inbox[used:]
        return handshake

    def answer(self, required: str = "", optional: str = "", minor: int = 0) -> None:
        """C1, then this S1."""
        self.c1 = self.read_handshake()
        lists = (required.encode(), optional.encode())
        self.write(encode_handshake(Handshake(minor=minor, identity=b"server", required=lists[0], optional=lists[1])))

    def handshake(self, required: str = "", optional: str = "", minor: int = 0) -> Server:
        self.answer(required, optional, minor)
        self.c2 = self.read_handshake()
        self.agreed = extensions.agree(self.c2)
        return self

    # ---- frames ----

    def write(self, *data: bytes) -> None:
        self.socket.sendall(b"".join(data))

    def _read(self) -> None:
        data = self.socket.recv(1 << 16)
        assert data, f"the client closed the connection, {len(self.inbox)} bytes of a frame before"
        self.inbox += data

    def next(self) -> Frame:
        while (found := decode_frame(self.inbox)) is None:
            self._read()
        frame, used = found
        self.inbox = self.inbox[used:]
        return frame

    def message(self) -> Message:
        frame = self.next()
        assert isinstance(frame, Message), f"needed a message, had {frame}"
        return frame

    def messages(self, count: int) -> list[int]:
        """The numbers of the next `count` frames, all messages."""
        return [self.message().sequence for _ in range(count)]

    def acknowledged(self) -> int:
        """The next frame is an acknowledgement; its number."""
        frame = self.next()
        assert isinstance(frame, ExtensionFrame) and frame.id == self.agreed.ack_id, f"needed an ack, had {frame}"
        return ack_sequence(frame.payload)

    def ack(self, number: int) -> None:
        self.write(encode_ack(self.agreed.ack_id, number))

    def command(self) -> tuple[str, dict[str, str], str]:
        """Name, pairs and id of the next frame, a command."""
        frame = self.next()
        assert isinstance(frame, Command), f"needed a command, had {frame}"
        pairs = dict(frame.pairs)
        return frame.name, pairs, pairs.pop("id", "")

    def reply(self, name: str, id: str, **pairs: str) -> None:
        self.write(encode_command(name, [("id", id), *pairs.items()]))

    def ended(self) -> list[Frame]:
        """What comes until the client closes."""
        frames = []
        while data := self.socket.recv(1 << 16):
            self.inbox += data
        while (found := decode_frame(self.inbox)) is not None:
            frames.append(found[0])
            self.inbox = self.inbox[found[1] :]
        assert not self.inbox
        return frames


@contextmanager
def playing(script: Callable[[Server], object]) -> Iterator[int]:
    """The port where one connection is served so."""
    problems: list[BaseException] = []

    def play() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.settimeout(DEADLINE_S)
            try:
                script(Server(connection))
            except BaseException as problem:
                problems.append(problem)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(DEADLINE_S)
        thread = threading.Thread(target=play)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            thread.join(2 * DEADLINE_S)
            if problems:
                raise problems[0]
