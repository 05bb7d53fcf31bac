# SPDX-License-Identifier: Apache-2.0
"""The system calls of the loop: on a connected socket, where none waits and none raises a signal, and epoll.

The poller has the shape of Python's ``selectors``, and a fast path that makes no Python object: ``register``,
``modify``, ``unregister`` and ``select`` behave as in ``selectors.EpollSelector``, so ``selectors.DefaultSelector`` can
take its place for debugging; the worker's turn calls ``wait`` and reads (fd, bits) from a C array instead.
Level-triggered: what one turn leaves unread is reported again in the next.
"""

import math
import os
import selectors

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
            n = epoll_wait(self.epoll_fd, self.ready, 256, timeout_ms)
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
