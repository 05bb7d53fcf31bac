# SPDX-License-Identifier: Apache-2.0
"""What every server under the load generator has: connections for commands, and connections for the load.

A Peer holds one connection for commands and makes the connections whose sockets the load threads then own.
"""

from __future__ import annotations

import socket
from typing import Any, Generic, TypeVar

from vibemq.bench._flow import Consumer, Flow, Publisher, Tally
from vibemq.bench.load import Load
from vibemq.errors import VibeMQError

READ_SIZE = 1 << 16
L = TypeVar("L", bound=Load)


class Wire:
    """A connected socket and what was read from it beyond what was asked for."""

    def __init__(self, host: str, port: int, timeout_s: float) -> None:
        try:
            self.socket = socket.create_connection((host, port), timeout=timeout_s)
        except OSError as error:
            raise VibeMQError(f"{host}:{port}: needed a server, had {error}") from error
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.held = bytearray()

    def send(self, data: bytes) -> None:
        try:
            self.socket.sendall(data)
        except OSError as error:
            raise VibeMQError(f"the server took no command: {error}") from error

    def exactly(self, size: int) -> bytes:
        while len(self.held) < size:
            self.more()
        taken = bytes(self.held[:size])
        del self.held[:size]
        return taken

    def line(self) -> bytes:
        """Up to CR LF, which is left out."""
        while (at := self.held.find(b"\r\n")) < 0:
            self.more()
        return self.exactly(at + 2)[:-2]

    def more(self) -> None:
        """Receives once."""
        try:
            more = self.socket.recv(READ_SIZE)
        except TimeoutError as error:
            raise VibeMQError("the server did not answer in time") from error
        except OSError as error:
            raise VibeMQError(f"the server ended the connection during a command: {error}") from error
        if not more:
            raise VibeMQError("the server ended the connection during a command")
        self.held += more

    def rest(self) -> bytes:
        return bytes(self.held)

    def close(self) -> None:
        self.socket.close()


class Peer(Generic[L]):
    """One server's protocol; the methods that raise are the ones that each has to say for itself."""

    shares = True  # consumers do: what one has had, no other gets
    tally: Tally | None = None  # of what came, where they share
    control: Wire | None = None

    def __init__(self, load: L) -> None:
        self.load = load

    def publishing(self, number: int) -> dict[str, Any]:
        """What every publisher is told."""
        load = self.load
        total = load.messages // load.publishers
        return {
            "total": total,
            "first": number * total,
            "window": load.window,
            "group": load.group,
            "rate": load.rate / load.publishers,
            "timed": load.timed,
            "verify": load.verify,
        }

    def consuming(self) -> dict[str, Any]:
        """What every consumer is told."""
        return {"wanted": self.load.messages, "timed": self.load.mode == "lat", "tally": self.tally}

    def create(self) -> None:
        """New and empty."""

    def delete(self) -> None:
        """What need not exist."""

    def left(self) -> int:
        """Messages that are not settled yet."""
        return 0

    def publisher(self, number: int) -> tuple[socket.socket, Publisher]:
        raise VibeMQError(f"{type(self).__name__} cannot publish")

    def consumer(self, number: int) -> tuple[socket.socket, Consumer]:
        raise VibeMQError(f"{type(self).__name__} cannot consume")

    def check(self, flows: list[Flow]) -> None:
        """Raises what only this protocol can say of a run that is over."""

    def close(self) -> None:
        """Ends the connection for commands."""
        if self.control is not None:
            self.control.close()
