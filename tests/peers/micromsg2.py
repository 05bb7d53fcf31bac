# SPDX-License-Identifier: Apache-2.0
"""One raw connection to the MicroMsg2 door: the tests say every byte and see every frame.

The product's own client hides what these tests are about (windows, acknowledgements, the order of frames).  Every wait
has a deadline, so a broker that keeps silent fails a test instead of stopping it.  That nothing more comes is shown by
a command and its answer, never by waiting: what a worker does because of a frame is in the outbox before it answers the
next one.
"""

from __future__ import annotations

import contextlib
import itertools
import select
import socket
import ssl
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from running import Running

from peers.streams import server_of
from vibemq.protocols.micromsg2 import extensions
from vibemq.protocols.micromsg2.codec import (
    Command,
    ErrorFrame,
    ExtensionFrame,
    Handshake,
    Message,
    ack_sequence,
    decode_frame,
    decode_handshake,
    encode_ack,
    encode_command,
    encode_extension,
    encode_handshake,
    encode_message,
)
from vibemq.protocols.micromsg2.extensions import Agreed

if TYPE_CHECKING:
    from vibemq.protocols.micromsg2.codec import Frame

DEADLINE_S = 30.0
USUAL = "batch-ack:max-count=100;pub-sub;x-reply"
TYPE_A = b"Order, shop, Version=1.0.0.0"
TYPE_B = b"Invoice, shop, Version=1.0.0.0"
NO_TYPE = b"System.Object, mscorlib"
ROOT, PASSWORD = "boss", "the superuser's password"  # of the broker with users
numbers = itertools.count(1)


class Micromsg2Peer:
    """`next()` and `rest()` are the only ways to learn what the broker said."""

    def __init__(
        self, running: Running, *, receive_buffer_bytes: int = 0, tls: ssl.SSLContext | None = None, host: str = ""
    ) -> None:
        plain = socket.socket()
        if receive_buffer_bytes:  # before connect, or the window has been offered already
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        plain.settimeout(DEADLINE_S)
        plain.connect((host or running.host, running.ports["micromsg2-tls" if tls else "micromsg2"]))
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.running = running
        self.socket = tls.wrap_socket(plain, server_hostname="localhost") if tls else plain
        self.inbox = b""
        self.c1 = Handshake()
        self.agreed = Agreed()
        self.sent = 0  # the sequence number used last
        self.got = 0  # that of the message that came last

    def __enter__(self) -> Micromsg2Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    # ---- bytes ----

    def write(self, *data: bytes) -> None:
        self.socket.sendall(b"".join(data))

    def drip(self, data: bytes) -> None:
        """One byte a segment."""
        for at in range(len(data)):
            self.socket.sendall(data[at : at + 1])

    def _read(self) -> None:
        data = self.socket.recv(1 << 20)
        if not data:
            raise ConnectionError(f"the broker closed the connection, {len(self.inbox)} bytes of a frame before")
        self.inbox += data

    def _take(self, decode: Callable[[bytes], Any]) -> Any:
        while True:
            found = decode(self.inbox)
            if found is not None:
                value, used = found
                self.inbox = self.inbox[used:]
                return value
            self._read()

    def next(self) -> Frame:
        frame: Frame = self._take(decode_frame)
        if isinstance(frame, Message):
            self.got = 1 if self.got == 65535 else self.got + 1
            assert frame.sequence == self.got, "the broker's own numbers have no gaps"
        return frame

    def rest(self) -> list[Frame]:
        """Whatever comes until the broker closes the connection."""
        frames = []
        with contextlib.suppress(ConnectionError):
            while True:
                frames.append(self.next())
        assert not self.inbox, f"the last frame is not whole: {self.inbox[:100]!r}"
        return frames

    def has_frame(self) -> bool:
        """Is something there to read, or at least the beginning of it?"""
        return bool(self.inbox) or bool(select.select([self.socket], [], [], 0)[0])

    def ended(self) -> str:
        """The text of the one ERROR that comes until the broker closes the connection."""
        frames = self.rest()
        texts = [frame.text for frame in frames if isinstance(frame, ErrorFrame)]
        assert len(texts) == 1, f"needed one ERROR, had {frames}"
        return texts[0]

    # ---- the handshake ----

    def hello(self, required: str = "", optional: str = "", *, minor: int = 0) -> Handshake | ErrorFrame:
        """C1, and S1 or what was said instead."""
        self.c1 = Handshake(minor=minor, identity=b"peer", required=required.encode(), optional=optional.encode())
        self.write(encode_handshake(self.c1))
        return self.answered()

    def answered(self) -> Handshake | ErrorFrame:
        """S1, or what was said instead."""
        answer: Handshake | ErrorFrame = self._take(decode_handshake)
        return answer

    def handshake(
        self,
        required: str = "",
        optional: str = "",
        *,
        minor: int = 0,
        answers: Mapping[str, Mapping[str, str]] | None = None,
    ) -> Agreed:
        """All three steps.  C2 takes what was asked for and is there, as every client would."""
        s1 = self.hello(required, optional, minor=minor)
        assert isinstance(s1, Handshake), s1
        self.write(self.c2(s1, answers))
        return self.agreed

    def c2(self, s1: Handshake, answers: Mapping[str, Mapping[str, str]] | None = None) -> bytes:
        lists = extensions.answer(extensions.lists_of(self.c1), s1, answers=answers)
        c2 = extensions.handshake_of(lists, minor=self.c1.minor, identity=b"peer")
        self.agreed = extensions.agree(c2)
        return encode_handshake(c2)

    def decide(self, required: str, optional: str = "") -> bytes:
        """A C2 with exactly these, from now on agreed."""
        c2 = Handshake(minor=self.c1.minor, identity=b"peer", required=required.encode(), optional=optional.encode())
        self.agreed = extensions.agree(c2)
        return encode_handshake(c2)

    # ---- what is sent ----

    def message(self, destination: str | bytes, payload: bytes = b"1", properties: bytes = b"", **more: Any) -> bytes:
        """A MESSAGE with the next number."""
        self.sent = 1 if self.sent == 65535 else self.sent + 1
        name = destination if isinstance(destination, bytes) else destination.encode()
        return encode_message(self.sent, name, payload, properties, **more)

    def send(self, destination: str | bytes, payload: bytes = b"1", properties: bytes = b"", **more: Any) -> int:
        self.write(self.message(destination, payload, properties, **more))
        return self.sent

    def ack(self, number: int | None = None) -> None:
        """Everything up to this message of the broker's; the last one unless told."""
        self.write(encode_ack(self.agreed.ack_id, self.got if number is None else number))

    def command(self, name: str, /, **pairs: object) -> None:
        """`_` in a key stands for `-`."""
        self.write(encode_command(name, [(key.rstrip("_").replace("_", "-"), value) for key, value in pairs.items()]))

    def dotnet(self, type: bytes) -> bytes:
        return encode_extension(self.agreed.dotnet_id, type)

    # ---- what comes ----

    def deliver(self, ack: bool = True) -> Message:
        """The next frame, which is a message."""
        frame = self.next()
        assert isinstance(frame, Message), f"needed a message, had {frame}"
        if ack and self.agreed.ack_id:
            self.ack()
        return frame

    def delivers(self, count: int, ack: bool = True) -> list[bytes]:
        """The payloads of the next `count` messages."""
        return [self.deliver(ack).payload for _ in range(count)]

    def acked(self, number: int | None = None) -> None:
        """Until everything up to this number is acknowledged, by default all that was sent; nothing else comes."""
        wanted = self.sent if number is None else number
        while True:
            frame = self.next()
            assert isinstance(frame, ExtensionFrame) and frame.id == self.agreed.ack_id, f"needed an ack, had {frame}"
            if ack_sequence(frame.payload) == wanted:
                return

    def publish(self, destination: str | bytes, payload: bytes = b"1", properties: bytes = b"", **more: Any) -> None:
        """Send, until it is acknowledged."""
        self.acked(self.send(destination, payload, properties, **more))

    def error(self) -> str:
        """The next frame is an ERROR; its text."""
        frame = self.next()
        assert isinstance(frame, ErrorFrame), f"needed an ERROR, had {frame}"
        return frame.text

    def refused(self, destination: str | bytes, payload: bytes = b"1", **more: Any) -> str:
        """The code of the ERROR that answers a message."""
        self.send(destination, payload, **more)
        return code(self.error())

    # ---- commands, where x-reply is agreed ----

    def ask(self, name: str, /, **pairs: object) -> dict[str, str]:
        """The answer to a command, which is the next COMMAND; its name is under "reply"."""
        id = f"c{next(numbers)}"
        self.command(name, id=id, **pairs)
        frame = self.next()
        assert isinstance(frame, Command), f"needed the answer to {name}, had {frame}"
        answer = dict(frame.pairs)
        assert answer.pop("id") == id
        return {"reply": frame.name, **answer}

    def tell(self, name: str, /, **pairs: object) -> dict[str, str]:
        """A command that succeeds."""
        answer = self.ask(name, **pairs)
        assert answer.pop("reply") == "ok", answer
        return answer

    def denied(self, name: str, /, **pairs: object) -> str:
        """The code of a command that fails."""
        answer = self.ask(name, **pairs)
        assert answer["reply"] == "error" and answer["text"], answer
        return answer["code"]

    def ping(self) -> None:
        """What was sent before has been acted upon, and nothing has come that nobody has looked at."""
        assert self.ask("list", pattern="no-queue-is-called-this")["reply"] == "ok"

    def create(self, destination: str, **options: object) -> str:
        assert self.tell("create", destination=destination, **options)["created"] == "true"
        return destination

    def subscribe(self, destination: str, **pairs: object) -> str:
        self.tell("subscribe", destination=destination, **pairs)
        return destination

    def info(self, destination: str) -> dict[str, int]:
        answer = self.tell("info", destination=destination)
        return {key: int(answer[key]) for key in ("messages", "in-flight", "consumers")}

    @property
    def server_pid(self) -> int:
        """Of the worker that serves this connection."""
        return server_of(self, set(self.running.worker_pids()))  # type: ignore[arg-type]


def code(text: str) -> str:
    """What stands before the colon of an ERROR."""
    return text.partition(":")[0]


def connected(running: Running, extensions: str = USUAL, *, minor: int = 0, **more: Any) -> Micromsg2Peer:
    """An open connection."""
    peer = Micromsg2Peer(running, **more)
    peer.handshake(extensions, minor=minor)
    return peer


def on_worker(
    running: Running, pid: int, stack: contextlib.ExitStack, extensions: str = USUAL, **more: Any
) -> Micromsg2Peer:
    """A connection that this worker serves: the kernel chooses, so it may take some."""
    for _ in range(200):
        peer = connected(running, extensions, **more)
        if peer.server_pid == pid:
            return stack.enter_context(peer)
        peer.socket.close()
    raise AssertionError(f"200 connections, and none at worker {pid}")
