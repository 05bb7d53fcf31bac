# SPDX-License-Identifier: Apache-2.0
"""The load generator's TLS: what was sent arrives, however the socket cuts the records."""

import random
import socket
import ssl
import threading
from pathlib import Path

import pytest
from authority import Authority

from vibemq.bench.tunnel import TunnelContext

ROOM_BYTES = 10_000  # less than a record
CONTENT = random.Random(1).randbytes(200_000)


class Cut:
    """A socket that gives at most so many bytes at a time."""

    def __init__(self, plain: socket.socket, most: int) -> None:
        self.plain, self.most = plain, most
        self.sendall = plain.sendall

    def recv_into(self, room: memoryview, size: int = 0, flags: int = 0) -> int:
        return self.plain.recv_into(room[: self.most], size, flags)


def echo(context: ssl.SSLContext, plain: socket.socket) -> None:
    """Sends back what it was sent, once all of CONTENT has come."""
    with context.wrap_socket(plain, server_side=True) as secure:
        got = b""
        while len(got) < len(CONTENT):
            got += secure.recv(len(CONTENT))
        secure.sendall(got)


@pytest.mark.parametrize("most", [1, 4_099, 1 << 20])
def test_records_arrive_whole_however_they_are_cut(tmp_path: Path, most: int) -> None:
    authority = Authority(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.issue("server"))
    ours, theirs = socket.socketpair()
    thread = threading.Thread(target=echo, args=(context, theirs))
    with ours:
        thread.start()
        trusting = TunnelContext.trusting(authority.certificate)
        tunnel = trusting.wrap_socket(Cut(ours, most), server_hostname="localhost")  # type: ignore[arg-type]
        tunnel.send(memoryview(CONTENT))
        got, room = b"", memoryview(bytearray(ROOM_BYTES))
        while len(got) < len(CONTENT):
            count = tunnel.recv_into(room)
            assert count
            got += room[:count]
    thread.join()
    assert got == CONTENT
