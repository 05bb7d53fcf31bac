# SPDX-License-Identifier: Apache-2.0
"""A network between a client and the broker that can be cut, where what goes through it ends in the middle; or that can
lose everything for a while, as behind a switch that is off: nobody is told, and nothing comes through."""

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
        self.works = threading.Event()
        self.works.set()
        self.has_swallowed = threading.Event()  # something came while it was lost
        self.open: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Whoever is connected finds it reset; new connections work."""
        with self.lock:
            ends, self.open = self.open, set()
        for end in ends:
            _reset(end)

    def lose(self) -> None:
        """Nothing comes through from now on; connections are not told."""
        self.has_swallowed.clear()
        self.works.clear()

    def restore(self) -> None:
        """What was under way comes through after all, as TCP sends it again."""
        self.works.set()

    def close(self) -> None:
        self.listener.close()
        self.cut()
        self.restore()

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
                if not self.works.is_set():
                    self.has_swallowed.set()
                    self.works.wait()
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
