# SPDX-License-Identifier: Apache-2.0
"""TLS for the load threads: a socket for one thread that sends and one that reads, at the same time.

An ssl.SSLSocket is not for two threads at once, and makes two system calls for each record.  Here the
ciphertext passes through memory: only encrypting and decrypting is under a lock, and one system call takes many
records, as the broker does it.

OpenSSL is only given whole records: that it wants more is an exception, which costs as much as ten records.  The
beginning of a record waits in `_wire`, in front of what comes next.
"""

from __future__ import annotations

import socket
import ssl
import threading

SEND_BYTES = 128 * 1024  # encrypted for one system call, and still in the cache then
ROUND_BYTES = 64 * 1024  # decrypted at a time: they stay in the cache
RECEIVE_BYTES = 512 * 1024
RECORD_HEADER_BYTES = 5  # type, version, and the size of what follows in the last two


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
        self._begin = self._end = 0  # what came and OpenSSL does not have yet, in `_wire`
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
                if not self._receive():
                    raise ConnectionResetError("the server closed the connection in the TLS handshake")
                while self._feed():
                    pass

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
            rest = data[start : start + SEND_BYTES]
            with self._lock:
                while rest:
                    rest = rest[self._ssl.write(rest) :]
                records = self._outgoing.read()
            self._plain.sendall(records)
        return len(data)

    def recv_into(self, room: memoryview) -> int:
        got = self._decrypt(room, 0)
        while not got:
            if not self._receive():
                return 0
            while self._feed():
                got = self._decrypt(room, got)
        return got

    def _receive(self) -> bool:
        """Take what the socket has; False at the end of the connection."""
        held = self._end - self._begin
        self._wire[:held] = self._wire[self._begin : self._end]
        self._begin, self._end = 0, held
        count = self._plain.recv_into(self._wire[held:], 0, self._flags)
        self._end += count
        return count > 0

    def _feed(self) -> bool:
        """Give OpenSSL the next round of whole records; False when there is none."""
        wire, begin, end = self._wire, self._begin, self._begin
        while end - begin < ROUND_BYTES and end + RECORD_HEADER_BYTES <= self._end:
            record = RECORD_HEADER_BYTES + (wire[end + 3] << 8 | wire[end + 4])
            if end + record > self._end:
                break
            end += record
        if end == begin:
            return False
        with self._lock:
            self._incoming.write(wire[begin:end])
        self._begin = end
        return True

    def _decrypt(self, room: memoryview, got: int) -> int:
        with self._lock:
            while got < len(room) and (self._incoming.pending or self._ssl.pending()):
                try:
                    got += int(self._ssl.read(len(room) - got, room[got:]))  # type: ignore[arg-type]
                except ssl.SSLWantReadError:
                    break  # it was a record of TLS itself
        return got
