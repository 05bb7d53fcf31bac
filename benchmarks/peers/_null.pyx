# SPDX-License-Identifier: Apache-2.0
"""The least that a server can do, to know where the load generator itself ends.

A null server answers what a read brought, hands each message on, and keeps nothing. One thread, which waits for whoever
does not take what is sent. What is rare is done in Python. This is their loop, the one of the native protocol, and
`echo`, which answers so many bytes with so many others. Each takes connections until its listening socket is shut down.
"""

from libc.stdint cimport uint8_t, uint32_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy

from vibemq.bench._flow cimport buffer_reserve, receive_some, send_some
from vibemq.protocols.native.wire cimport (
    FRAME_HEADER_BYTES, FRAME_NEEDS_MORE, FRAME_OK, TYPE_ACK, TYPE_CONNECT, TYPE_CONNECT_ACK, TYPE_DISCONNECT,
    TYPE_DELIVER, TYPE_PUBLISH, TYPE_QUEUE_INFO, TYPE_SUBSCRIBE, TYPE_SUBSCRIBE_ACK, frame_begin, frame_end,
    frame_header, frame_parse, frame_payload, frame_size, header_size, native_frame, publish_ack_size,
    publish_ack_write, put_bytes, put_header,
)

import select
import socket

cdef extern from *:
    """
    #include <unistd.h>
    #include <sys/socket.h>
    #include <netinet/in.h>
    #include <netinet/tcp.h>
    static int null_accept(int listener) {
        int one = 1, fd = accept(listener, NULL, NULL);
        if (fd >= 0) setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        return fd;
    }
    """
    int close(int fd) nogil
    int null_accept(int listener) nogil

cdef enum:
    RECEIVE_SIZE = 1 << 18
    BODY_SIZE_MAX = 1 << 20


# ---- the loop ----


cdef class Connection:
    def __cinit__(self, connection):
        self.socket, self.fd = connection, connection.fileno()

    def __dealloc__(self):
        free(self.inbox.data)
        free(self.outbox.data)

    cdef uint8_t *out(self, size_t size) except NULL:
        """Where the next `size` bytes to send go."""
        if self.outbox.size - self.outbox.end < size and not buffer_reserve(&self.outbox, size):
            raise MemoryError
        self.outbox.end += size
        return self.outbox.data + self.outbox.end - size

    cdef int answer(self, bytes data) except -1:
        memcpy(self.out(len(data)), <const char *>data, len(data))
        return 0


cdef class Server:
    kind = Connection

    def __cinit__(self):
        self.connections, self.subscribers, self.poll = {}, [], select.epoll()

    @classmethod
    def serve(cls, listener):
        with socket.socket(fileno=listener) as accepting:
            try:
                cls().run(accepting)
            finally:
                accepting.detach()

    def run(self, listener):
        self.poll.register(listener.fileno(), select.EPOLLIN)
        while True:
            for fd, _ in self.poll.poll(0 if self.has_work() else None):
                if fd == listener.fileno():
                    try:
                        connection, _ = listener.accept()
                    except OSError:  # shut down
                        return
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    self.connections[connection.fileno()] = self.kind(connection)
                    self.poll.register(connection.fileno(), select.EPOLLIN)
                elif not self.read(self.connections[fd]):
                    self.drop(fd)
            self.turn()

    def drop(self, fd):
        cdef Connection c = self.connections.pop(fd)
        self.poll.unregister(fd)
        if c in self.subscribers:
            self.subscribers.remove(c)
        c.socket.close()

    cdef bint read(self, Connection c) except -1:
        """False: the connection is to end."""
        cdef Py_ssize_t got
        if c.inbox.size - c.inbox.end < RECEIVE_SIZE and not buffer_reserve(&c.inbox, RECEIVE_SIZE):
            raise MemoryError
        got = receive_some(c.fd, c.inbox.data + c.inbox.end, c.inbox.size - c.inbox.end, False)
        if got <= 0:
            return got == 0
        c.inbox.end += got
        if not self.take(c):
            return False
        if c.inbox.begin == c.inbox.end:
            c.inbox.begin = c.inbox.end = 0
        return True

    cdef bint take(self, Connection c) except -1:
        return False

    cdef int turn(self) except -1:
        cdef Connection c
        for c in self.connections.values():
            if c.outbox.end:
                send_all(c.fd, c.outbox.data, c.outbox.end)  # where it is gone, the next read shows it
                c.outbox.end = 0
        return 0

    cdef bint has_work(self) except -1:
        return False


# ---- the native protocol ----


cdef class Native(Server):
    """Answers each Publish, hands each message to the newest subscriber, and forgets it where there is none."""

    cdef bint take(self, Connection c) except -1:
        cdef uint32_t size = 0
        cdef uint8_t flags = 0
        cdef native_frame frame
        cdef int found
        while True:
            found = frame_header(
                c.inbox.data + c.inbox.begin, c.inbox.end - c.inbox.begin, BODY_SIZE_MAX, 0, &size, &flags
            )
            if found != FRAME_OK:
                break
            if frame_parse(c.inbox.data + c.inbox.begin + FRAME_HEADER_BYTES, size, &frame) != FRAME_OK:
                return False
            if not self.handle(c, &frame):
                return False
            c.inbox.begin += FRAME_HEADER_BYTES + size
        return found == FRAME_NEEDS_MORE

    cdef bint handle(self, Connection c, const native_frame *f) except -1:
        """False: the connection is to end."""
        if f.type == TYPE_PUBLISH:
            self.publish(c, f)
        elif f.type == TYPE_CONNECT:
            self.reply(c, f, TYPE_CONNECT_ACK, b"")
        elif f.type == TYPE_SUBSCRIBE:
            self.subscribers.append(c)
            self.reply(c, f, TYPE_SUBSCRIBE_ACK, b"")
        elif f.type == TYPE_QUEUE_INFO:
            self.reply(c, f, TYPE_QUEUE_INFO, b'{"messageCount":0,"inFlightCount":0}')
        elif f.type != TYPE_ACK and f.type != TYPE_DISCONNECT:
            self.reply(c, f, f.type, b"")
        return f.type != TYPE_DISCONNECT

    cdef int publish(self, Connection c, const native_frame *f) except -1:
        cdef size_t size = publish_ack_size(f.id_size, f.queue_size, False)
        cdef Connection reader
        cdef uint8_t *p
        publish_ack_write(c.out(size), f.id, f.id_size, f.queue, f.queue_size, False)
        if self.subscribers:
            reader = self.subscribers[len(self.subscribers) - 1]
            size = frame_size(f.id_size, f.queue_size, f.payload_size, f.headers_size + header_size(16, 1), False)
            p = frame_begin(reader.out(size), size, TYPE_DELIVER, f.id, f.id_size, f.queue, f.queue_size)
            p = frame_payload(p, f.payload, f.payload_size, f.header_count + 1)
            put_header(put_bytes(p, f.headers, f.headers_size), b"deliveryAttempts", 16, b"1", 1)
        return 0

    cdef int reply(self, Connection c, const native_frame *f, uint8_t type, bytes payload) except -1:
        cdef const char *text = payload
        cdef size_t whole = frame_size(f.id_size, f.queue_size, len(payload), 0, False)
        cdef uint8_t *p = frame_begin(c.out(whole), whole, type, f.id, f.id_size, f.queue, f.queue_size)
        frame_end(frame_payload(p, text, len(payload), 0), False)
        return 0


# ---- a bare round trip ----


def echo(int listener, size_t request_size, size_t reply_size):
    """One connection after the other; every `request_size` bytes are answered with `reply_size` bytes."""
    cdef uint8_t *request = <uint8_t *>malloc(request_size)
    cdef uint8_t *reply = <uint8_t *>calloc(1, reply_size)
    cdef int fd
    if request is NULL or reply is NULL:
        raise MemoryError
    with nogil:
        while True:
            fd = null_accept(listener)
            if fd < 0:
                break
            answer_bytes(fd, request, request_size, reply, reply_size)
            close(fd)
    free(request)
    free(reply)


cdef void answer_bytes(int fd, uint8_t *request, size_t request_size, uint8_t *reply, size_t reply_size) noexcept nogil:
    cdef size_t held = 0, left
    cdef Py_ssize_t moved
    while True:
        moved = receive_some(fd, request + held, request_size - held, True)
        if moved < 0:
            return
        held += moved
        if held < request_size:
            continue
        held, left = 0, reply_size
        while left:
            moved = send_some(fd, reply, left)
            if moved < 0:
                return
            left -= moved
