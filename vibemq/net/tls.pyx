# SPDX-License-Identifier: Apache-2.0
"""TLS between one socket and its connection, which reads and sends as if there were none.

The standard library's ssl does it, between two memory buffers.  Measured with AES-GCM, whose own
speed was 3.5 GB/s there, it encrypts and decrypts 3.1 GB/s in rounds of 64 KiB (2.1 in rounds of 16
KiB, or of 1 MiB, which leave the cache), so a direct way to libssl had little left to win.  System
calls are dear too, most of all for whom each of them wakes, so one of them serves several rounds.

What the peer sent and what is decrypted are not the same: a caller with too little room, or
a record that came with the end, leaves bytes here that no poller reports.  `unread` says so,
and the connection then comes back by itself.

A step of the handshake costs 0.5 ms of signing with ECDSA and several with RSA, so each runs in a
helper thread; until it is back, `working` keeps everybody else away.

OpenSSL is only given whole records: that it wants more is an exception, which costs as much as ten
records.  The beginning of a record waits in `partial`.

Bounds: `incoming` holds a round and a record, `unsent` SEND_ROUNDS and what records add, `outgoing`
ANSWERS_BYTES_MAX between calls; what a handshake may send is bounded by OpenSSL (100 KiB of certificates).  There is
no renegotiation.
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
    # Through the memory buffers at a time: four records.
    ROUND_BYTES = 64 * 1024
    # One read of the socket: as much as the connection's own receive buffer takes.
    WIRE_BYTES = 512 * 1024
    # Encrypted for one call: a little more than a door fetches for a send, and what a full socket leaves here.
    SEND_ROUNDS = 5
    # A peer that makes us answer (key updates) and does not read is given up here.
    ANSWERS_BYTES_MAX = 64 * 1024
    # Type, version, size; and the largest record of any version.
    RECORD_HEADER_BYTES = 5
    RECORD_BYTES_MAX = RECORD_HEADER_BYTES + 16 * 1024 + 2048
    # What every TLS connection begins with.
    RECORD_HANDSHAKE = 0x16

# Where small pieces are put together, and where ciphertext comes in.  Only the loop's thread uses them, and
# nothing stays in them over a call.
cdef uint8_t plain[ROUND_BYTES]
cdef uint8_t wire[WIRE_BYTES]


cdef size_t whole_records(const uint8_t *data, size_t size, size_t most) noexcept:
    """Bytes of the whole records at the front, at most `most` unless the first is larger; 0 when there is none.

    What is no record counts as whole, for OpenSSL to refuse.
    """
    cdef size_t end = 0, record
    while end + RECORD_HEADER_BYTES <= size:
        record = RECORD_HEADER_BYTES + (<size_t> data[end + 3] << 8 | data[end + 4])
        if record > RECORD_BYTES_MAX:
            return size
        if end + record > size or (end and end + record > most):
            break
        end += record
    return end


cdef class Tls:
    def __init__(self, parts, str peer):
        self.ssl, self.incoming, self.outgoing = parts
        self.peer = peer
        self.partial = b""

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
        cdef ssize_t n = self._read(fd, ROUND_BYTES)
        cdef size_t part
        if n > 0:
            part = whole_records(wire, n, n)
            self.incoming.write(PyMemoryView_FromMemory(<char *> wire, part, PyBUF_READ))
            self.partial = (<char *> wire)[part:n]
        return n

    cdef ssize_t _read(self, int fd, size_t size) except -2:
        """Into `wire`: what is kept of a record, and what the socket has; as socket_receive, of both together."""
        cdef size_t held = len(self.partial)
        cdef ssize_t n = socket_receive(fd, wire + held, size - held)
        if n <= 0:
            return n
        memcpy(wire, <const char *> self.partial, held)
        if not self.begun:
            self.begun = True
            if wire[0] != RECORD_HANDSHAKE:
                logger.warning("%s: speaks without TLS to the TLS port, closed", self.peer)
                return -1
        return held + n

    cdef ssize_t receive(self, int fd, uint8_t *data, size_t size) except -2:
        cdef size_t got = self._decrypt(data, size), at = 0, part
        cdef ssize_t n = 0
        if got < size and not self.ended:
            # What is decrypted is smaller than what was read, so all of it finds room, but for a record.
            n = self._read(fd, min(max(size - got, <size_t> ROUND_BYTES), <size_t> WIRE_BYTES))
            while n > 0:
                part = whole_records(wire + at, n - at, ROUND_BYTES)
                if part == 0:
                    self.partial = (<char *> wire)[at:n]
                    break
                self.incoming.write(PyMemoryView_FromMemory(<char *> wire + at, part, PyBUF_READ))
                got += self._decrypt(data + got, size - got)
                at += part
        if self.outgoing.pending > ANSWERS_BYTES_MAX:
            raise LimitExceeded("TLS answers (the peer does not read)", self.outgoing.pending, ANSWERS_BYTES_MAX)
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
        cdef iovec sealed[SEND_ROUNDS]
        cdef const uint8_t *data
        cdef size_t taken = 0, filled, part, offset = 0, total, n
        cdef int i = 0, rounds
        cdef bytes records
        cdef list held
        if not self.established or not self.flush(fd):
            return 0
        while i < count:
            held, rounds, total = [], 0, 0
            while i < count and rounds < SEND_ROUNDS:
                if pieces[i].iov_len - offset >= ROUND_BYTES:
                    data, filled = <const uint8_t *> pieces[i].iov_base + offset, ROUND_BYTES
                    offset += ROUND_BYTES
                else:
                    data, filled = plain, 0
                    while i < count and filled < ROUND_BYTES:
                        part = min(pieces[i].iov_len - offset, ROUND_BYTES - filled)
                        memcpy(plain + filled, <const uint8_t *> pieces[i].iov_base + offset, part)
                        filled += part
                        offset += part
                        if offset == pieces[i].iov_len:
                            i, offset = i + 1, 0
                if i < count and offset == pieces[i].iov_len:
                    i, offset = i + 1, 0
                self._encrypt(data, filled)
                taken += filled
                records = self.outgoing.read()
                held.append(records)
                sealed[rounds].iov_base, sealed[rounds].iov_len = <char *> records, len(records)
                total += sealed[rounds].iov_len
                rounds += 1
            n = socket_send(fd, self.peer, sealed, rounds)
            if n < total:
                self.unsent, self.unsent_head = b"".join(held), n
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
