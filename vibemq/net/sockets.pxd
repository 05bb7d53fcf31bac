# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport uint8_t
from vibemq.openssl cimport OpensslEnd

cdef extern from "<sys/uio.h>" nogil:
    struct iovec:
        void *iov_base
        size_t iov_len


# Bytes read, 0 when there are none now, -1 when the peer is gone.
cdef ssize_t socket_receive(int fd, uint8_t *data, size_t size) noexcept
# One gathering call: bytes taken, 0 when the socket is full.  Raises ConnectionClosed, which names the peer.
cdef ssize_t socket_send(int fd, str peer, iovec *pieces, size_t count) except -1
# No more is sent; what the peer sends can still be received.
cdef void socket_end_output(int fd) noexcept


cdef extern from "<sys/epoll.h>" nogil:
    ctypedef union epoll_data_t:
        int fd
    enum:
        EPOLLIN
        EPOLLOUT
        EPOLLERR
        EPOLLHUP
        EPOLLRDHUP
    struct epoll_event:
        unsigned int events
        epoll_data_t data


cdef enum:
    READY_MAX = 256  # events of one wait


cdef class Poller:
    cdef int epoll_fd
    cdef dict keys
    cdef epoll_event ready[READY_MAX]
    cdef bint interrupted               # a signal ended the last wait, so it says nothing about any descriptor

    cdef int _control(self, int operation, int fd, int events) except -1
    # Wait up to timeout_ms (-1: for ever) and leave fd and bits in `ready`; returns how many.
    cdef int wait(self, int timeout_ms) except -1


cdef class Tls:
    cdef object certificates            # net.certificates.Certificates
    cdef object connection              # OpenSSL.SSL.Connection: owns what `end` points to
    cdef OpensslEnd end
    cdef str peer
    cdef bytes held                     # ciphertext that was read and OpenSSL was not given yet; None
    cdef bytes unsent                   # ciphertext that the socket did not take, from unsent_head on; None
    cdef size_t unsent_head
    cdef readonly bint established      # the handshake is over
    cdef bint begun                     # the first byte was looked at
    cdef bint working                   # a helper thread has the handshake: nobody else may touch `end`
    cdef bint unread                    # there may be more to receive that the poller does not report

    # Take what the socket has for the handshake; as socket_receive, of ciphertext.
    cdef ssize_t fill(self, int fd) except -2
    # As socket_receive, of what was decrypted.
    cdef ssize_t receive(self, int fd, uint8_t *data, size_t size) except -2
    # Encrypt and send until the socket is full; bytes of `pieces` that were taken, of which
    # those of the last call may still be here as ciphertext.
    cdef size_t send(self, int fd, iovec *pieces, int count) except? 0
    # Send ciphertext; True when none is left.
    cdef bint flush(self, int fd) except -1
    cdef bint has_unsent(self)
    # Before the socket is closed; nothing else may be asked of it then.
    cdef int say_goodbye(self, int fd) except -1
    cdef int _let_go(self) except -1
    cdef ssize_t _read(self, int fd, size_t size) except -2
    cdef int _feed(self, const uint8_t *data, size_t size) except -1
    cdef size_t _decrypt(self, uint8_t *data, size_t size) except? 0
    cdef bint _send_sealed(self, int fd, size_t size) except -1
