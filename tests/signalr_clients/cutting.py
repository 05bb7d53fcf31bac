# SPDX-License-Identifier: Apache-2.0
"""A network between a client and the broker that can be cut: what goes through it, ends in the middle."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

RESET = struct.pack("ii", 1, 0)  # SO_LINGER: what is closed is reset


class Network:
    """Forwards each connection to ``port`` on this machine."""

    def __init__(self, port: int) -> None:
        self.target = port
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listener.getsockname()[1]
        self.lock = threading.Lock()
        self.open: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Whoever is connected finds it reset; new connections work."""
        with self.lock:
            ends, self.open = self.open, set()
        for end in ends:
            _reset(end)

    def close(self) -> None:
        self.listener.close()
        self.cut()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self.listener.accept()
                far = socket.create_connection(("127.0.0.1", self.target))
                with self.lock:
                    self.open |= {near, far}
                for source, target in ((near, far), (far, near)):
                    threading.Thread(target=self._forward, args=(source, target), daemon=True).start()

    def _forward(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
            return
        with self.lock:  # it was reset by one side, and so is the other
            self.open -= {source, target}
        _reset(source)
        _reset(target)


def _reset(end: socket.socket) -> None:
    with suppress(OSError):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        end.shutdown(socket.SHUT_RDWR)  # wakes whoever reads it
    end.close()


@contextmanager
def network(port: int) -> Iterator[Network]:
    made = Network(port)
    try:
        yield made
    finally:
        made.close()
