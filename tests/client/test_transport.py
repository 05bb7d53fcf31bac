# SPDX-License-Identifier: Apache-2.0
"""What a client's socket still gives when the connection ends, and how much of it is taken."""

from __future__ import annotations

import select
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from vibemq.client._transport import Deadline, Transport
from vibemq.errors import ConnectionClosed

RECEIVE_BYTES = 16_384
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: closing sends a reset


@contextmanager
def both_ends() -> Iterator[tuple[Transport, socket.socket, bytearray]]:
    """A transport, its peer, and what it has received."""
    heard = bytearray()

    def receive(receive_into: Callable[[bytearray], int]) -> int:
        room = bytearray(RECEIVE_BYTES)
        got = receive_into(room)
        heard.extend(room[:got])
        return got

    with socket.create_server(("127.0.0.1", 0)) as listener:
        transport = Transport("127.0.0.1", listener.getsockname()[1], None, 10.0, "streams", receive)
        peer, _ = listener.accept()
        with peer:
            yield transport, peer, heard
            transport.close()


def wait_for(transport: Transport, event: int) -> None:
    """Until that has come through the kernel: POLLHUP, or POLLRDHUP, the end, behind which nothing can come."""
    poll = select.poll()
    poll.register(transport._socket, event & select.POLLRDHUP)
    assert poll.poll(10_000)


def test_what_the_broker_said_last_is_told_where_a_send_fails() -> None:
    with both_ends() as (transport, peer, heard):

        def explain() -> None:
            raise ConnectionClosed(f"the broker said {bytes(heard)!r}")

        transport.on_input = explain
        peer.sendall(b"too many connections")
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        peer.close()
        wait_for(transport, select.POLLHUP)
        with pytest.raises(ConnectionClosed, match="the broker said b'too many connections'"):
            transport.send(b"a frame", Deadline(10.0, "sending"))


def test_a_send_that_fails_says_so_where_the_broker_said_nothing() -> None:
    with both_ends() as (transport, peer, _):
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        peer.close()
        wait_for(transport, select.POLLHUP)
        with pytest.raises(ConnectionClosed, match="sending failed: "):
            transport.send(b"a frame", Deadline(10.0, "sending"))


def test_all_that_waits_is_taken_in_several_calls_and_an_end_behind_it_is_no_error() -> None:
    sent = bytes(range(256)) * (5 * RECEIVE_BYTES // 256)
    with both_ends() as (transport, peer, heard):
        peer.sendall(sent)
        peer.close()
        wait_for(transport, select.POLLRDHUP)
        transport.take_input()
        assert heard == sent
