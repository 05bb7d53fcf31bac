# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport uint8_t

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


cdef class Poller:
    cdef int epoll_fd
    cdef dict keys
    cdef epoll_event ready[256]

    cdef int _control(self, int operation, int fd, int events) except -1
    # Wait up to timeout_ms (-1: for ever) and leave fd and bits in `ready`; returns how many.
    cdef int wait(self, int timeout_ms) except -1
