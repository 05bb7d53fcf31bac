# SPDX-License-Identifier: Apache-2.0
"""HTTPS: TLS between a listening socket and what speaks HTTP behind it.

The event loop's own server keeps the certificate that it began with, so connections are accepted here: each gets the
context of its moment, and those that are open stay as they are when another one is read.  It is also here that
newcomers are counted from their first byte on: whoever does not finish a handshake holds a place, and for some
seconds only.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from typing import Protocol

from vibemq.once_a_minute import OnceAMinute

#: Without descriptors or memory there is nothing to accept with; the event loop's own servers wait as long.
NO_ROOM_S = 1.0

log = logging.getLogger("vibemq.admin")
refusing = OnceAMinute(log)


class Secured(Protocol):
    """What is needed of net.certificates."""

    @property
    def http(self) -> ssl.SSLContext: ...


class SecureServer:
    """``connected()``: the number of connections behind it; with its handshakes they are at most ``connections_max``.

    A newcomer beyond that takes the place of the oldest idle connection (``make_room()``), or of the oldest handshake,
    which goes first where more than half of the places are handshakes.
    """

    def __init__(
        self,
        listener: socket.socket,
        certificates: Secured,
        protocol: Callable[[], asyncio.BaseProtocol],
        connected: Callable[[], int],
        make_room: Callable[[], bool],
        connections_max: int,
        handshake_s: float,
    ) -> None:
        self._listener, self._certificates, self._protocol = listener, certificates, protocol
        self._connected, self._connections_max, self._handshake_s = connected, connections_max, handshake_s
        self._make_room = make_room
        self._handshakes: dict[asyncio.Task[None], None] = {}  # oldest first
        self._accepting = asyncio.get_running_loop().create_task(self._accept())

    def close(self) -> None:
        for task in (self._accepting, *self._handshakes):
            task.cancel()
        self._listener.close()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                peer, address = await loop.sock_accept(self._listener)
            except ConnectionAbortedError:  # it has left again
                continue
            except OSError as problem:
                refusing.say("accept", "no HTTPS connection can be accepted now: %s", problem.strerror)
                await asyncio.sleep(NO_ROOM_S)
                continue
            if len(self._handshakes) + self._connected() >= self._connections_max and not self._has_made_room():
                peer.close()
            else:
                task = loop.create_task(self._shake_hands(peer, str(address[0])))
                self._handshakes[task] = None
                task.add_done_callback(lambda done: self._handshakes.pop(done, None))
            await asyncio.sleep(0)  # a flood of newcomers keeps nobody else waiting

    def _has_made_room(self) -> bool:
        if len(self._handshakes) <= self._connections_max // 2 and self._make_room():
            return True
        oldest = next((task for task in self._handshakes if not task.cancelling()), None)
        return oldest is not None and oldest.cancel()

    async def _shake_hands(self, peer: socket.socket, host: str) -> None:
        loop, context = asyncio.get_running_loop(), self._certificates.http
        try:
            await loop.connect_accepted_socket(
                self._protocol, peer, ssl=context, ssl_handshake_timeout=self._handshake_s
            )
        except OSError as problem:  # ssl's errors are such
            refusing.say(host, "%s: no TLS handshake for HTTPS: %s", host, _reason(problem))


def _reason(problem: OSError) -> str:
    if isinstance(problem, ssl.SSLCertVerificationError):
        return str(problem.verify_message)
    if isinstance(problem, ssl.SSLError):
        return (problem.reason or "it was cut off").replace("_", " ").lower()
    return problem.strerror or str(problem) or "the peer left"
