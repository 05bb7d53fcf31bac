# SPDX-License-Identifier: Apache-2.0
"""The system calls on a connected socket.  None waits, and none raises a signal."""

import os

from libc.errno cimport EAGAIN, ECONNRESET, EINTR, EPIPE, errno

from vibemq.errors import ConnectionClosed

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
