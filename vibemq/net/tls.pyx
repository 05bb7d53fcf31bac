# SPDX-License-Identifier: Apache-2.0
"""TLS between one socket and its connection, which reads and sends as if there were none.

The standard library's ssl does it, between two memory buffers: ciphertext comes from the
socket in rounds of 64 KiB and leaves in rounds of 64 KiB.  Measured with AES-GCM, whose own
speed was 3.5 GB/s there, a round goes through at 3.1 GB/s each way (rounds of 16 KiB and of
1 MiB at 2.1), so a direct way to libssl had nothing left to win.

What the peer sent and what is decrypted are not the same: a caller with too little room, or
a record that came with the end, leaves bytes here that no poller reports.  `unread` says so,
and the connection then comes back by itself.

A step of the handshake costs 0.5 ms of signing with ECDSA and several with RSA, so each runs in a
helper thread; until it is back, `working` keeps everybody else away.

Bounds: `incoming` holds a round and a record, `unsent` and `outgoing` together UNSENT_BYTES_MAX;
what a handshake may send is bounded by OpenSSL (100 KiB of certificates).  There is no renegotiation.
"""

import logging
import ssl

from cpython.buffer cimport PyBUF_READ, PyBUF_WRITE
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.string cimport memcpy
from vibemq.net.sockets cimport socket_receive, socket_send

from vibemq.errors import ConnectionClosed, LimitExceeded

logger = logging.getLogger(__name__)

cdef enum:
    # One read of the socket, and one round of encryption: four records.
    ROUND_BYTES = 64 * 1024
    # A peer that makes us answer (key updates) and does not read is given up here.
    UNSENT_BYTES_MAX = 4 * ROUND_BYTES
    # What every TLS connection begins with.
    RECORD_HANDSHAKE = 0x16

# Where a round is put together or read to.  Only the loop's thread uses it, and nothing stays in it over a call.
cdef uint8_t wire[ROUND_BYTES]


cdef class Tls:
    def __init__(self, parts, str peer):
        self.ssl, self.incoming, self.outgoing = parts
        self.peer = peer

    # ---- handshake ----

    def step(self) -> bool:
        """Go on with the handshake as far as what has come allows; True when it is over.  Runs in a helper thread."""
        try:
            self.ssl.do_handshake()
        except ssl.SSLWantReadError:
            return False
        return True

    def step_done(self, finished, error):
        """Back in the loop's thread.  Raises ConnectionClosed when there is no way on."""
        self.working = False
        if error is not None:
            if not isinstance(error, ssl.SSLError):
                raise error
            raise ConnectionClosed(f"{self.peer}: no TLS handshake: {_reason(error)}")
        if finished:
            self.established = True
            self.unread = True  # the first frames may have come with its last message

    @property
    def server_name(self) -> str:
        """The host name that the client asked for; "" when it named none."""
        return self.ssl.server_name

    @property
    def peer_certificate(self):
        """The client's checked certificate as ssl.SSLSocket.getpeercert() gives it; None without one."""
        return self.ssl.getpeercert() or None if self.established else None

    # ---- in ----

    cdef ssize_t fill(self, int fd) except -2:
        cdef ssize_t n = socket_receive(fd, wire, ROUND_BYTES)
        if n <= 0:
            return n
        if not self.begun:
            self.begun = True
            if wire[0] != RECORD_HANDSHAKE:
                logger.warning("%s: speaks without TLS to the TLS port, closed", self.peer)
                return -1
        self.incoming.write(PyMemoryView_FromMemory(<char *> wire, n, PyBUF_READ))
        return n

    cdef ssize_t receive(self, int fd, uint8_t *data, size_t size) except -2:
        cdef size_t got = self._decrypt(data, size)
        cdef size_t rounds = size // ROUND_BYTES + 1
        cdef ssize_t n = 0
        while got < size and rounds and not self.ended:
            n = self.fill(fd)
            if n <= 0:
                break
            got += self._decrypt(data + got, size - got)
            rounds -= 1
        if len(self.unsent or b"") + self.outgoing.pending > UNSENT_BYTES_MAX:
            raise LimitExceeded("TLS answers (the peer does not read)", self.outgoing.pending, UNSENT_BYTES_MAX)
        self.unread = got == size or (got > 0 and self.ended)
        if got:
            return got
        return -1 if n < 0 or self.ended else 0

    cdef size_t _decrypt(self, uint8_t *data, size_t size) except? 0:
        """Decrypt what has come; sets `ended` at the peer's last word."""
        cdef size_t got = 0, n
        while got < size and not self.ended and (self.incoming.pending or self.ssl.pending()):
            try:
                n = self.ssl.read(size - got, PyMemoryView_FromMemory(<char *> data + got, size - got, PyBUF_WRITE))
            except ssl.SSLWantReadError:
                break  # only the beginning of a record
            except ssl.SSLError as problem:
                raise ConnectionClosed(f"{self.peer}: TLS: {_reason(problem)}") from None
            if n == 0:
                self.ended = True
            got += n
        return got

    # ---- out ----

    cdef size_t send(self, int fd, iovec *pieces, int count) except? 0:
        cdef size_t taken = 0, filled, n, at = 0
        cdef int i = 0
        if not self.established or not self.flush(fd):
            return 0
        while i < count:
            filled = 0
            while i < count and filled < ROUND_BYTES:
                n = min(pieces[i].iov_len - at, ROUND_BYTES - filled)
                memcpy(wire + filled, <const uint8_t *> pieces[i].iov_base + at, n)
                filled += n
                at += n
                if at == pieces[i].iov_len:
                    i += 1
                    at = 0
            self._encrypt(wire, filled)
            taken += filled
            if not self.flush(fd):
                break
        return taken

    cdef int _encrypt(self, const uint8_t *data, size_t size) except -1:
        cdef size_t done = 0
        while done < size:
            try:
                done += self.ssl.write(PyMemoryView_FromMemory(<char *> data + done, size - done, PyBUF_READ))
            except ssl.SSLError as problem:
                raise ConnectionClosed(f"{self.peer}: TLS: {_reason(problem)}") from None
        return 0

    cdef bint flush(self, int fd) except -1:
        cdef iovec piece
        while True:
            if self.unsent is None:
                if not self.outgoing.pending:
                    return True
                self.unsent, self.unsent_head = self.outgoing.read(), 0
            piece.iov_base = <char *> self.unsent + self.unsent_head
            piece.iov_len = len(self.unsent) - self.unsent_head
            self.unsent_head += socket_send(fd, self.peer, &piece, 1)
            if self.unsent_head < <size_t> len(self.unsent):
                return False
            self.unsent = None

    cdef bint has_unsent(self):
        return self.unsent is not None or (not self.working and self.outgoing.pending)

    cdef int say_goodbye(self, int fd) except -1:
        """Tell the peer that nothing was cut off, if the socket takes it at once, or send it the alert that ended all."""
        if self.working:
            return 0
        try:
            if self.established and not self.has_unsent():
                self.ssl.unwrap()
        except ssl.SSLError:
            pass  # it waits for the peer's own goodbye, or a failed connection has none
        try:
            self.flush(fd)
        except ConnectionClosed:
            pass
        return 0


def _reason(problem):
    """Of an ssl.SSLError, in words."""
    reason = (problem.reason or str(problem)).replace("_", " ").lower()
    detail = getattr(problem, "verify_message", "")
    return f"{reason}: {detail}" if detail else reason
