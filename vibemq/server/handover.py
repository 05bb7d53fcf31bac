# SPDX-License-Identifier: Apache-2.0
"""Connections that go from the worker that accepted them to the one that has what they are about.

Some protocols spread one conversation over several connections (the requests of a SignalR long poll), and the kernel
gives each to any worker.  Who is not the one that has the conversation passes the socket on, with the bytes read so
far, through a socket pair that the supervisor made for the receiver; a killed worker's packets are read by its
successor.

A packet is a line of JSON and, behind it, those bytes; with it travels the socket's descriptor, and where there are
more than INLINE_BYTES_MAX bytes a memfd that holds them.  A TLS connection stays, and what travels is one end of a pair
that leads to it (net/door.pyx), and that end itself where it is passed on again.
"""

from __future__ import annotations

import json
import logging
import os
import socket
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vibemq.net.connection import Connection
    from vibemq.server.turn import Loop

INLINE_BYTES_MAX = 16 * 1024
HEAD_BYTES_MAX = 4096
RECEIVED_PER_TURN = 64
#: The kernel's room for packets on their way to one worker; beyond it a connection is refused.
SEND_BUFFER_BYTES = 1 << 20

logger = logging.getLogger(__name__)

#: One for each worker: what it reads, what all others write.
Channel = tuple[socket.socket, socket.socket]


def channels(count: int) -> list[Channel]:
    """Made by the supervisor, before the fork."""
    made = []
    for _ in range(count):
        theirs, ours = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        made.append((theirs, ours))
    return made


class Handovers:
    """One worker's part: what it gives away, and what it is given."""

    def __init__(self, loop: Loop, worker: int, among: Sequence[Channel], doors: Mapping[str, Any]) -> None:
        self._loop, self._doors = loop, doors
        self._receiver = among[worker][0]
        self._senders = [sender for _, sender in among]
        loop.attend(self._receiver.fileno(), self._receive)

    def give(self, worker: int, door: str, connection: Connection, data: bytes) -> bool:
        """Let ``worker`` go on with this connection, beginning with ``data``.  False: it cannot take it now.

        Only from the session's deliver(), when nothing waits to be sent.  The session is closed afterwards.
        """
        if not connection.is_tls or connection.is_relayed:
            if not self._send(worker, door, connection, data, connection.fd):
                return False
            self._loop.close(connection)  # the socket lives on, in the packet
            return True
        try:
            near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        except OSError as problem:  # too many files are open
            logger.warning("%s: could not be handed to worker %d: %s", connection.peer, worker, problem)
            return False
        with far:
            if not self._send(worker, door, connection, data, far.fileno()):
                near.close()
                return False
        self._loop.far_end(near.detach(), connection)
        return True

    def _send(self, worker: int, door: str, connection: Connection, data: bytes, fd: int) -> bool:
        head = {
            "door": door,
            "peer": [connection.peer_host, connection.peer_port],
            "local": [connection.local_host, connection.local_port],
            "tls": connection.is_tls,
            "bytes": len(data),
        }
        fds, rest = [fd], data
        try:
            if len(data) > INLINE_BYTES_MAX:
                fds.append(os.memfd_create("vibemq-handover", os.MFD_CLOEXEC))
                rest = b""
                if os.write(fds[1], data) < len(data):
                    raise OSError("memory is full")
            socket.send_fds(self._senders[worker], [json.dumps(head).encode(), b"\n", rest], fds)
        except OSError as problem:
            logger.warning("%s: could not be handed to worker %d: %s", connection.peer, worker, problem)
            return False
        finally:
            for made in fds[1:]:
                os.close(made)
        return True

    def _receive(self) -> None:
        for _ in range(RECEIVED_PER_TURN):
            try:
                packet, fds, _, _ = socket.recv_fds(
                    self._receiver, HEAD_BYTES_MAX + INLINE_BYTES_MAX, 2, socket.MSG_CMSG_CLOEXEC
                )
            except BlockingIOError:
                return
            self._take(packet, fds)

    def _take(self, packet: bytes, fds: list[int]) -> None:
        line, _, data = packet.partition(b"\n")
        if len(fds) == 2:
            with open(fds.pop(), "rb") as held:
                held.seek(0)
                data = held.read()
        head = json.loads(line)
        if not fds or len(data) != head["bytes"]:
            logger.warning("a connection was lost on its way here: too many files are open")
            for fd in fds:
                os.close(fd)
            return
        door = self._doors[head["door"]]
        if not self._loop.adopt(fds[0], tuple(head["peer"]), tuple(head["local"]), head["tls"], door, data):
            os.close(fds[0])
