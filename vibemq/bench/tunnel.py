# SPDX-License-Identifier: Apache-2.0
"""TLS for the load threads: a socket for one thread that sends and one that reads, at the same time.

An ssl.SSLSocket is not for two threads at once, and makes two system calls for each record.  Here the
ciphertext passes through memory: only encrypting and decrypting is under a lock, and one system call takes many
records, as the broker does it.
"""

from __future__ import annotations

import socket
import ssl
import threading

SEND_BYTES = 256 * 1024  # encrypted for one system call
ROUND_BYTES = 64 * 1024  # through the memory buffers at a time: they stay in the cache
RECEIVE_BYTES = 512 * 1024


class TunnelContext(ssl.SSLContext):
    """Makes tunnels where others make SSL sockets."""

    @classmethod
    def trusting(cls, authorities: str) -> TunnelContext:
        context = cls(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(authorities)
        return context

    def wrap_socket(self, sock: socket.socket, *, server_hostname: str) -> Tunnel:  # type: ignore[override]
        return Tunnel(sock, self, server_hostname)


class Tunnel:
    """What a client needs of a socket.  Sending always waits."""

    def __init__(self, plain: socket.socket, context: ssl.SSLContext, host: str) -> None:
        self._plain = plain
        self._lock = threading.Lock()
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._ssl = context.wrap_bio(self._incoming, self._outgoing, server_hostname=host)
        self._wire = memoryview(bytearray(RECEIVE_BYTES))
        self._flags = 0
        self._shake_hands()

    def _shake_hands(self) -> None:
        finished = False
        while not finished:
            try:
                self._ssl.do_handshake()
                finished = True
            except ssl.SSLWantReadError:
                pass
            self._plain.sendall(self._outgoing.read())
            if not finished:
                count = self._plain.recv_into(self._wire)
                if not count:
                    raise ConnectionResetError("the server closed the connection in the TLS handshake")
                self._incoming.write(self._wire[:count])

    def setblocking(self, flag: bool) -> None:
        self._flags = 0 if flag else socket.MSG_DONTWAIT
        self._plain.setblocking(True)

    def fileno(self) -> int:
        return self._plain.fileno()

    def shutdown(self, how: int) -> None:
        self._plain.shutdown(how)

    def close(self) -> None:
        self._plain.close()

    def send(self, data: memoryview) -> int:
        for start in range(0, len(data), SEND_BYTES):
            self._plain.sendall(self._encrypted(data[start : start + SEND_BYTES]))
        return len(data)

    def _encrypted(self, data: memoryview) -> bytes:
        records = []
        with self._lock:
            for start in range(0, len(data), ROUND_BYTES):
                rest = data[start : start + ROUND_BYTES]
                while rest:
                    rest = rest[self._ssl.write(rest) :]
                records.append(self._outgoing.read())
        return b"".join(records)

    def recv_into(self, room: memoryview) -> int:
        got = self._decrypt(room, 0)
        while not got:
            count = self._plain.recv_into(self._wire, 0, self._flags)
            if not count:
                return 0
            for start in range(0, count, ROUND_BYTES):
                with self._lock:
                    self._incoming.write(self._wire[start : min(start + ROUND_BYTES, count)])
                got = self._decrypt(room, got)
        return got

    def _decrypt(self, room: memoryview, got: int) -> int:
        with self._lock:
            while got < len(room) and (self._incoming.pending or self._ssl.pending()):
                try:
                    got += int(self._ssl.read(len(room) - got, room[got:]))  # type: ignore[arg-type]
                except ssl.SSLWantReadError:
                    break
        return got
