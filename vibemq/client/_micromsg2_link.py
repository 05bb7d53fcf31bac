# SPDX-License-Identifier: Apache-2.0
"""The socket of a MicroMsg2 client: bytes in and out, every wait with a deadline.

It keeps reading while it cannot write, because a broker whose messages nobody takes stops reading, and two full sockets
would wait for each other. What was read lies in `input`; whoever understands it takes it from there.
"""

from __future__ import annotations

import contextlib
import ipaddress
import math
import select
import socket
import ssl
import time

from vibemq.errors import ConnectionClosed, TimeoutExceeded

RECEIVE_BYTES = 262_144
FILL_BYTES_MAX = 1 << 20  # of one look: without acknowledgements a broker sends as fast as we read
WOULD_BLOCK = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class Link:
    """`ended`: the peer says no more. A deadline is a time of time.monotonic(), or None for ever."""

    def __init__(self, host: str, port: int, tls: ssl.SSLContext | None, timeout_s: float) -> None:
        self.peer = f"{host}:{port}"
        self.input = bytearray()
        self.ended = False
        try:
            plain = socket.create_connection((host, port), None if math.isinf(timeout_s) else timeout_s)
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            address = ipaddress.ip_address(plain.getpeername()[0].partition("%")[0])
            self._socket = tls.wrap_socket(plain, server_hostname=host) if tls else plain
        except OSError as error:
            hint = "Does the broker run, and is this its MicroMsg2 port?"
            if isinstance(error, ssl.SSLCertVerificationError):
                hint = "Does the context trust the authority of the broker's certificate, and is that for this host?"
            raise ConnectionClosed(f"{self.peer}: could not connect: {error}", hint=hint) from error
        #: Nobody else hears what is said.
        self.is_private = tls is not None or address.is_loopback
        self._socket.setblocking(False)
        self._readable = select.poll()
        self._readable.register(self._socket, select.POLLIN)
        self._either = select.poll()
        self._either.register(self._socket, select.POLLIN | select.POLLOUT)

    @property
    def closed(self) -> bool:
        return self._socket.fileno() < 0

    def write(self, data: bytes, deadline: float) -> None:
        """All of it; OSError when the connection is lost."""
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[self._socket.send(rest) :]
            except WOULD_BLOCK:
                try:
                    self._wait(self._either, deadline, "the broker to read on")
                except TimeoutExceeded:
                    self._socket.close()  # half a frame may be out, and nothing could follow it
                    raise
                self.fill()

    def write_last(self, data: bytes) -> None:
        """As much of it as the socket takes, and the end."""
        with contextlib.suppress(OSError):
            self._socket.send(data)
        self._socket.close()

    def fill(self) -> bool:
        """Takes some of what the socket has, without waiting; True if there was anything, be it the end."""
        some, end = False, len(self.input) + FILL_BYTES_MAX
        while not self.ended and len(self.input) < end:
            try:
                data = self._socket.recv(RECEIVE_BYTES)
            except WOULD_BLOCK:
                break
            except OSError:
                data = b""
            self.input += data
            self.ended, some = not data, True
        return some

    def wait_input(self, deadline: float | None, what: str) -> bool:
        """Until something has come; False: nothing will any more. Raises TimeoutExceeded."""
        while not self.fill():
            if self.ended:
                return False
            self._wait(self._readable, deadline, what)
        return True

    def _wait(self, poll: select.poll, deadline: float | None, what: str) -> None:
        left_s = None if deadline in (None, math.inf) else max(0.0, deadline - time.monotonic())
        if not poll.poll(None if left_s is None else left_s * 1000):
            raise TimeoutExceeded(f"{self.peer}: waited for {what}, nothing came in time")

    def close(self, patience_s: float = 0.0) -> None:
        """Without patience at once, which may cost what is still on its way; else when the peer has closed too."""
        if patience_s and not self.closed:
            with contextlib.suppress(OSError, TimeoutExceeded):
                self._socket.shutdown(socket.SHUT_WR)
                deadline = time.monotonic() + patience_s
                while time.monotonic() < deadline and self.wait_input(deadline, "the broker to close"):
                    self.input.clear()
        self._socket.close()
