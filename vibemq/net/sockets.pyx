# SPDX-License-Identifier: Apache-2.0
"""The system calls of the loop: on a connected socket, where none waits and none raises a signal, epoll, and TLS.

The poller has the shape of Python's ``selectors``, and a fast path that makes no Python object: ``register``,
``modify``, ``unregister`` and ``select`` behave as in ``selectors.EpollSelector``, so ``selectors.DefaultSelector`` can
take its place for debugging; the worker's turn calls ``wait`` and reads (fd, bits) from a C array instead.
Level-triggered: what one turn leaves unread is reported again in the next.

TLS stands between one socket and its connection, which reads and sends as if there were none.
OpenSSL (vibemq/openssl.pyx) does it, between two memory buffers, a record at a time: with AES-256-GCM it encrypts
and decrypts 10 GB/s so, as in larger rounds, and the buffers that a connection keeps are small.  System calls are
dear, most of all for whom each of them wakes, so one of them serves many records.  A round takes 2 us, so the loop's
thread keeps the GIL.

What the peer sent and what is decrypted are not the same: a caller with too little room, or
a record that came with the end, leaves bytes here that no poller reports.  `unread` says so,
and the connection then comes back by itself.

A step of the handshake costs 0.5 ms of signing with ECDSA and several with RSA, so each runs in a
helper thread; until it is back, `working` keeps everybody else away.

What a record costs depends on the peer, most with new keys (13 us for 27 bytes of ciphertext).  So where rounds give
little, a call ends after BARREN_ROUNDS_MAX of them, and what it has read waits in `held` for the next turn.

Bounds: what OpenSSL has and did not decrypt is at most a round and a record, `held` WIRE_BYTES, `unsent` SEALED_BYTES,
what OpenSSL has for the peer ANSWERS_BYTES_MAX between calls; what a handshake may send is bounded by OpenSSL (100 KiB
of certificates).  There is no renegotiation.
"""

import logging
import math
import os
import selectors

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.errno cimport EAGAIN, ECONNRESET, EINTR, EPIPE, errno
from libc.string cimport memcpy, memset
from vibemq.openssl cimport (
    openssl_attach, openssl_decrypt, openssl_encrypt, openssl_feed, openssl_finish, openssl_handshake, openssl_take,
    openssl_waiting,
)

from vibemq.errors import ConnectionClosed, LimitExceeded
from vibemq.net.hosts import host_of
from vibemq.once_a_minute import OnceAMinute
from vibemq.openssl import reason

logger = logging.getLogger(__name__)
without_tls = OnceAMinute(logger)

cdef extern from "<sys/socket.h>" nogil:
    enum:
        MSG_NOSIGNAL
        MSG_DONTWAIT
        SHUT_WR
    struct msghdr:
        void *msg_name
        unsigned int msg_namelen
        iovec *msg_iov
        size_t msg_iovlen
        void *msg_control
        size_t msg_controllen
        int msg_flags
    ssize_t c_recv "recv" (int fd, void *data, size_t size, int flags)
    ssize_t c_sendmsg "sendmsg" (int fd, const msghdr *message, int flags)
    int c_shutdown "shutdown" (int fd, int how)


cdef ssize_t socket_receive(int fd, uint8_t *data, size_t size) noexcept:
    cdef ssize_t n
    while True:
        n = c_recv(fd, data, size, MSG_DONTWAIT)
        if n > 0:
            return n
        if n == 0:
            return -1
        if errno == EINTR:
            continue
        return 0 if errno == EAGAIN else -1


cdef ssize_t socket_send(int fd, str peer, iovec *pieces, size_t count) except -1:
    cdef msghdr message
    cdef ssize_t n
    message.msg_name = NULL
    message.msg_namelen = 0
    message.msg_control = NULL
    message.msg_controllen = 0
    message.msg_flags = 0
    message.msg_iov = pieces
    message.msg_iovlen = count
    while True:
        n = c_sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT)
        if n >= 0:
            return n
        if errno == EINTR:
            continue
        if errno == EAGAIN:
            return 0
        if errno == EPIPE or errno == ECONNRESET:
            raise ConnectionClosed(peer)
        raise ConnectionClosed(f"{peer}: {os.strerror(errno)}")


cdef void socket_end_output(int fd) noexcept:
    c_shutdown(fd, SHUT_WR)  # it fails only where the peer is gone, which the next receive tells


# ---- epoll ----

cdef extern from "<sys/epoll.h>" nogil:
    int EPOLL_CLOEXEC
    enum:
        EPOLL_CTL_ADD
        EPOLL_CTL_MOD
        EPOLL_CTL_DEL
    int epoll_create1(int flags)
    int epoll_ctl(int epfd, int op, int fd, epoll_event *event)
    int epoll_wait(int epfd, epoll_event *events, int maxevents, int timeout)


cdef unsigned int _bits(int events):
    cdef unsigned int bits = 0
    if events & 1:
        bits |= EPOLLIN | EPOLLRDHUP
    if events & 2:
        bits |= EPOLLOUT
    return bits


cdef class Poller:
    def __cinit__(self):
        self.epoll_fd = epoll_create1(EPOLL_CLOEXEC)
        if self.epoll_fd < 0:
            raise OSError(errno, os.strerror(errno))
        self.keys = {}

    def __dealloc__(self):
        self.close()

    def close(self):
        if self.epoll_fd >= 0:
            os.close(self.epoll_fd)
            self.epoll_fd = -1

    cdef int _control(self, int operation, int fd, int events) except -1:
        cdef epoll_event event
        event.events = _bits(events)
        event.data.fd = fd
        if epoll_ctl(self.epoll_fd, operation, fd, &event) < 0:
            raise OSError(errno, os.strerror(errno))
        return 0

    def register(self, fileobj, int events, data=None):
        """Watch a file object or fd; KeyError if it is watched already (as selectors)."""
        cdef int fd = fileobj if isinstance(fileobj, int) else fileobj.fileno()
        if fd in self.keys:
            raise KeyError(f"{fileobj!r} (FD {fd}) is already registered")
        key = selectors.SelectorKey(fileobj, fd, events, data)
        self._control(EPOLL_CTL_ADD, fd, events)
        self.keys[fd] = key
        return key

    def modify(self, fileobj, int events, data=None):
        """Change what is watched; KeyError if it is not watched."""
        cdef int fd = fileobj if isinstance(fileobj, int) else fileobj.fileno()
        key = self.keys[fd]._replace(events=events, data=data)
        self._control(EPOLL_CTL_MOD, fd, events)
        self.keys[fd] = key
        return key

    def unregister(self, fileobj):
        """Stop watching; KeyError if it is not watched."""
        cdef int fd = fileobj if isinstance(fileobj, int) else fileobj.fileno()
        key = self.keys.pop(fd)
        self._control(EPOLL_CTL_DEL, fd, 0)
        return key

    def get_map(self):
        return dict(self.keys)

    cdef int wait(self, int timeout_ms) except -1:
        cdef int n
        with nogil:
            n = epoll_wait(self.epoll_fd, self.ready, READY_MAX, timeout_ms)
        self.interrupted = n < 0
        if n < 0:
            if errno == EINTR:
                return 0
            raise OSError(errno, os.strerror(errno))
        return n

    def select(self, timeout=None):
        """[(key, events)] as in selectors: timeout in seconds, None waits for ever."""
        cdef int n = self.wait(-1 if timeout is None else max(0, math.ceil(timeout * 1000)))
        cdef int i, events
        found = []
        for i in range(n):
            key = self.keys.get(self.ready[i].data.fd)
            if key is None:
                continue
            events = 0
            if self.ready[i].events & ~(<unsigned int> EPOLLOUT):
                events |= 1
            if self.ready[i].events & ~(<unsigned int> (EPOLLIN | EPOLLRDHUP)):
                events |= 2
            found.append((key, events & key.events))
        return found


# ---- TLS ----

cdef enum:
    # Through the memory buffers at a time: what a record holds.
    ROUND_BYTES = 16 * 1024
    # One read of the socket: as much as the connection's own receive buffer takes.
    WIRE_BYTES = 512 * 1024
    # Rounds of one call that give less than half of what they took.  Large records make the first such a one.
    BARREN_ROUNDS_MAX = 2
    # Encrypted for one call: a little more than a door fetches for a send, and what a full socket leaves here.
    SEND_ROUNDS = 20
    # More than any cipher adds to a record.
    RECORD_BYTES_MORE = 512
    SEALED_BYTES = SEND_ROUNDS * (ROUND_BYTES + RECORD_BYTES_MORE)
    # A peer that makes us answer (key updates) and does not read is given up here.
    ANSWERS_BYTES_MAX = 64 * 1024
    # What every TLS connection begins with.
    RECORD_HANDSHAKE = 0x16

# Where small pieces are put together, where ciphertext comes in and where it goes out.  Only the loop's thread uses
# them, and nothing stays in them over a call.
cdef uint8_t plain[ROUND_BYTES]
cdef uint8_t wire[WIRE_BYTES]
cdef uint8_t sealed[SEALED_BYTES]


cdef class Tls:
    def __init__(self, certificates, str peer):
        self.certificates, self.peer = certificates, peer
        self.connection = certificates.accept()
        openssl_attach(&self.end, self.connection)

    # ---- handshake ----

    def step(self) -> bool:
        """Go on with the handshake as far as what has come allows; True when it is over.  Runs in a helper thread."""
        cdef int result
        with nogil:
            result = openssl_handshake(&self.end)
        if result < 0:
            raise ConnectionClosed(f"{self.peer}: no TLS handshake: {reason(self.connection)}")
        return result == 1

    def step_done(self, finished, error, bint closed):
        """Back in the loop's thread; `closed`: too late.  Raises ConnectionClosed when there is no way on."""
        self.working = False
        if closed:
            self._let_go()
            return
        if error is not None:
            raise error
        if finished:
            self.established = True
            self.unread = True  # the first frames may have come with its last message

    @property
    def server_name(self) -> str:
        """The host name that the client asked for; "" when it named none."""
        name = self.connection.get_servername() if self.established else None
        return name.decode("ascii", "replace") if name else ""

    @property
    def peer_certificate(self):
        """What the client's checked certificate says of it (net.certificates); None without one."""
        return self.certificates.peer(self.connection) if self.established else None

    # ---- in ----

    cdef ssize_t fill(self, int fd) except -2:
        cdef ssize_t n = self._read(fd, ROUND_BYTES)
        if n > 0:
            self._feed(wire, n)
        return n

    cdef ssize_t _read(self, int fd, size_t size) except -2:
        """Into `wire`; as socket_receive."""
        cdef ssize_t n = socket_receive(fd, wire, size)
        if n > 0 and not self.begun:
            self.begun = True
            if wire[0] != RECORD_HANDSHAKE:
                host = host_of(self.peer.partition(" -> ")[0].rpartition(":")[0].strip("[]"))
                without_tls.say(host, "%s: speaks without TLS to the TLS port, closed", self.peer)
                return -1
        return n

    cdef int _feed(self, const uint8_t *data, size_t size) except -1:
        if openssl_feed(&self.end, data, size):
            raise MemoryError
        return 0

    cdef ssize_t receive(self, int fd, uint8_t *data, size_t size) except -2:
        cdef size_t got = self._decrypt(data, size) if self.unread else 0, at = 0, part, more, answers
        cdef const uint8_t *come = wire
        cdef ssize_t n = 0
        cdef int barren = 0
        cdef bytes held = self.held
        if got < size and not self.end.ended:
            if held is not None:
                self.held, come, n = None, held, len(held)
            else:
                # What is decrypted is smaller than what was read, so all finds room, but for a round and a record.
                n = self._read(fd, min(max(size - got, <size_t> ROUND_BYTES), <size_t> WIRE_BYTES))
            while <ssize_t> at < n and got < size and barren < BARREN_ROUNDS_MAX:
                part = min(n - at, <size_t> ROUND_BYTES)
                self._feed(come + at, part)
                more = self._decrypt(data + got, size - got)
                barren += more < part // 2
                got += more
                at += part
            if <ssize_t> at < n:
                self.held = come[at:n]
        answers = openssl_waiting(&self.end)
        if answers > ANSWERS_BYTES_MAX:
            raise LimitExceeded("TLS answers (the peer does not read)", answers, ANSWERS_BYTES_MAX)
        self.unread = got == size or self.held is not None or (got > 0 and self.end.ended)
        if got:
            return got
        return -1 if n < 0 or self.end.ended else 0

    cdef size_t _decrypt(self, uint8_t *data, size_t size) except? 0:
        cdef ssize_t got = openssl_decrypt(&self.end, data, size)
        if got < 0:
            raise ConnectionClosed(f"{self.peer}: TLS: {reason(self.connection)}")
        return got

    # ---- out ----

    cdef size_t send(self, int fd, iovec *pieces, int count) except? 0:
        cdef const uint8_t *data
        cdef size_t taken = 0, filled, part, offset = 0, total
        cdef int i = 0, rounds
        if not self.established or not self.flush(fd):
            return 0
        while i < count:
            rounds, total = 0, 0
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
                if openssl_encrypt(&self.end, data, filled):
                    raise ConnectionClosed(f"{self.peer}: TLS: {reason(self.connection)}")
                taken += filled
                # What a peer that wants tiny records leaves no room for stays with OpenSSL, for the next flush.
                total += openssl_take(&self.end, sealed + total, SEALED_BYTES - total)
                rounds += 1
            if not self._send_sealed(fd, total):
                break
        return taken

    cdef bint _send_sealed(self, int fd, size_t size) except -1:
        """True when the socket took all; else the rest waits in `unsent`."""
        cdef iovec piece
        cdef size_t n
        piece.iov_base, piece.iov_len = sealed, size
        n = socket_send(fd, self.peer, &piece, 1)
        if n == size:
            return True
        self.unsent, self.unsent_head = PyBytes_FromStringAndSize(<char *> sealed + n, size - n), 0
        return False

    cdef bint flush(self, int fd) except -1:
        cdef iovec piece
        cdef size_t size
        if self.unsent is not None:
            piece.iov_base = <char *> self.unsent + self.unsent_head
            piece.iov_len = len(self.unsent) - self.unsent_head
            self.unsent_head += socket_send(fd, self.peer, &piece, 1)
            if self.unsent_head < <size_t> len(self.unsent):
                return False
            self.unsent = None
        while True:
            size = openssl_take(&self.end, sealed, SEALED_BYTES)
            if size == 0:
                return True
            if not self._send_sealed(fd, size):
                return False

    cdef bint has_unsent(self):
        return self.unsent is not None or (self.connection is not None and not self.working
                                           and openssl_waiting(&self.end) > 0)

    # ---- the end ----

    cdef int say_goodbye(self, int fd) except -1:
        """Tell the peer that nothing was cut off, or what went wrong, if the socket takes it at once."""
        if self.working:
            return 0  # step_done lets go
        if self.established and not self.has_unsent():
            openssl_finish(&self.end)
        try:
            self.flush(fd)
        except ConnectionClosed:
            pass
        self._let_go()
        return 0

    cdef int _let_go(self) except -1:
        """Free what OpenSSL has for it: some 50 KiB, too much to wait for the garbage collector."""
        self.established = self.unread = False
        self.held = self.unsent = self.connection = None
        memset(&self.end, 0, sizeof(self.end))
        return 0
