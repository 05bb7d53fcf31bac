# SPDX-License-Identifier: Apache-2.0
"""What every server under the queue load generator has: connections for commands, and connections for the load.

A Peer holds one connection for commands and makes the connections whose sockets the load threads then own.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

from vibemq.bench._flow import Consumer, Publisher, Tally
from vibemq.errors import VibeMQError

if TYPE_CHECKING:
    from vibemq.bench.queues import QueueLoad

READ_SIZE = 1 << 16


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
            self._more()
        taken = bytes(self.held[:size])
        del self.held[:size]
        return taken

    def line(self) -> bytes:
        """Up to CR LF, which is left out."""
        while (at := self.held.find(b"\r\n")) < 0:
            self._more()
        return self.exactly(at + 2)[:-2]

    def _more(self) -> None:
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


class Peer:
    """One server's protocol; the methods that raise are the ones that each has to say for itself."""

    port_default = 0

    def __init__(self, load: QueueLoad) -> None:
        self.load = load

    def wire(self) -> Wire:
        return Wire(self.load.host, self.load.port or self.port_default, self.load.timeout_s)

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
            "queues": load.queues,
            "timed": load.mode in ("rtt", "lat"),
            "verify": load.verify,
        }

    def consuming(self, tally: Tally | None) -> dict[str, Any]:
        return {"wanted": self.load.messages, "timed": self.load.mode == "lat", "tally": tally}

    def create(self) -> None:
        """New empty queues."""

    def delete(self) -> None:
        """Queues that need not exist."""

    def left(self) -> int:
        """Messages that are not settled yet."""
        return 0

    def publisher(self, number: int) -> tuple[socket.socket, Publisher]:
        raise VibeMQError(f"{type(self).__name__} cannot publish")

    def consumer(self, number: int, tally: Tally | None) -> tuple[socket.socket, Consumer]:
        raise VibeMQError(f"{type(self).__name__} cannot consume")

    def close(self) -> None:
        """Ends the connection for commands."""
