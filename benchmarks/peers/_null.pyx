# SPDX-License-Identifier: Apache-2.0
"""The least that a server can do, to know where the load generator itself ends.

`serve` parses native frames, answers each Publish, hands each message to the newest subscriber and counts acks. It keeps
nothing: without a subscriber a message is forgotten. `echo` answers so many bytes with so many others. Both take
connections from a listening socket until a connection closes it or the process is ended; one thread, no allocation
for a message.
"""

from libc.stdint cimport uint8_t, uint32_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memset

from vibemq.bench._flow cimport Buffer, buffer_reserve, receive_some, send_some
from vibemq.protocols.native.wire cimport (
    FRAME_HEADER_BYTES, FRAME_NEEDS_MORE, FRAME_OK, TYPE_ACK, TYPE_CONNECT, TYPE_CONNECT_ACK, TYPE_DISCONNECT,
    TYPE_PUBLISH, TYPE_QUEUE_INFO, TYPE_SUBSCRIBE, TYPE_SUBSCRIBE_ACK, deliver_size, deliver_write, frame_begin,
    frame_end, frame_header, frame_parse, frame_payload, frame_size, native_frame, publish_ack_size, publish_ack_write,
)

cdef extern from *:
    """
    #include <poll.h>
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
    struct pollfd:
        int fd
        short events
        short revents
    int POLLIN, POLLOUT, POLLERR, POLLHUP, POLLNVAL
    int poll(pollfd *fds, unsigned long count, int timeout_ms) nogil
    int close(int fd) nogil
    int null_accept(int listener) nogil

cdef enum:
    CONNECTIONS_MAX = 256
    BODY_SIZE_MAX = 1 << 20
    RECEIVE_SIZE_MIN = 1 << 16
    BUFFER_SIZE = 1 << 18
    WAITING_SIZE_MAX = 1 << 22  # no more is read while a subscriber leaves so much lying
    ALONE_MS = -1


cdef struct connection:
    int fd
    Buffer inbox
    Buffer outbox


cdef struct server:
    connection *connections
    int count
    int subscriber              # its place among the connections, or -1
    long long published, acked


cdef bint append(connection *c, size_t size) noexcept nogil:
    return c.outbox.size - c.outbox.end >= size or buffer_reserve(&c.outbox, size)


cdef bint answer(connection *c, const native_frame *frame, uint8_t type, const char *payload, size_t size) noexcept nogil:
    cdef size_t whole = frame_size(frame.id_size, frame.queue_size, size, 0, False)
    cdef uint8_t *p
    if not append(c, whole):
        return False
    p = frame_begin(c.outbox.data + c.outbox.end, whole, type, frame.id, frame.id_size, frame.queue, frame.queue_size)
    frame_end(frame_payload(p, payload, size, 0), False)
    c.outbox.end += whole
    return True


cdef bint publish(server *s, connection *c, const native_frame *f) noexcept nogil:
    cdef size_t size = publish_ack_size(f.id_size, f.queue_size, False)
    cdef connection *reader
    if not append(c, size):
        return False
    publish_ack_write(c.outbox.data + c.outbox.end, f.id, f.id_size, f.queue, f.queue_size, False)
    c.outbox.end += size
    if s.subscriber < 0:
        return True
    reader = &s.connections[s.subscriber]
    size = deliver_size(f.id_size, f.queue_size, f.payload_size, f.headers_size, 1, False)
    if not append(reader, size):
        return False
    deliver_write(
        reader.outbox.data + reader.outbox.end, f.id, f.id_size, f.queue, f.queue_size, f.payload, f.payload_size,
        f.headers, f.headers_size, f.header_count, 1, False,
    )
    reader.outbox.end += size
    return True


cdef bint handle(server *s, int place, const native_frame *f) noexcept nogil:
    """False: the connection is to end."""
    cdef connection *c = &s.connections[place]
    if f.type == TYPE_PUBLISH:
        return publish(s, c, f)
    if f.type == TYPE_ACK:
        s.acked += 1
        return True
    if f.type == TYPE_CONNECT:
        return answer(c, f, TYPE_CONNECT_ACK, NULL, 0)
    if f.type == TYPE_SUBSCRIBE:
        s.subscriber = place
        return answer(c, f, TYPE_SUBSCRIBE_ACK, NULL, 0)
    if f.type == TYPE_QUEUE_INFO:
        return answer(c, f, TYPE_QUEUE_INFO, b'{"messageCount":0,"inFlightCount":0}', 36)
    return f.type != TYPE_DISCONNECT and answer(c, f, f.type, NULL, 0)


cdef bint take(server *s, int place) noexcept nogil:
    """Receives and handles all whole frames; False: the connection is to end."""
    cdef connection *c = &s.connections[place]
    cdef uint32_t size = 0
    cdef uint8_t flags = 0
    cdef native_frame frame
    cdef int found
    cdef Py_ssize_t got
    if c.inbox.size - c.inbox.end < RECEIVE_SIZE_MIN and not buffer_reserve(&c.inbox, RECEIVE_SIZE_MIN):
        return False
    got = receive_some(c.fd, c.inbox.data + c.inbox.end, c.inbox.size - c.inbox.end, False)
    if got <= 0:
        return got == 0
    c.inbox.end += got
    while True:
        found = frame_header(
            c.inbox.data + c.inbox.begin, c.inbox.end - c.inbox.begin, BODY_SIZE_MAX, 0, &size, &flags
        )
        if found != FRAME_OK:
            break
        if frame_parse(c.inbox.data + c.inbox.begin + FRAME_HEADER_BYTES, size, &frame) != FRAME_OK:
            return False
        if not handle(s, place, &frame):
            return False
        c.inbox.begin += FRAME_HEADER_BYTES + size
    if c.inbox.begin == c.inbox.end:
        c.inbox.begin = c.inbox.end = 0
    return found == FRAME_NEEDS_MORE


cdef bint push(connection *c) noexcept nogil:
    cdef Py_ssize_t sent = send_some(c.fd, c.outbox.data + c.outbox.begin, c.outbox.end - c.outbox.begin)
    if sent < 0:
        return False
    c.outbox.begin += sent
    if c.outbox.begin == c.outbox.end:
        c.outbox.begin = c.outbox.end = 0
    return True


cdef void drop(server *s, int place) noexcept nogil:
    """The last connection takes its place."""
    cdef connection *c = &s.connections[place]
    close(c.fd)
    free(c.inbox.data)
    free(c.outbox.data)
    s.count -= 1
    if s.subscriber == place:
        s.subscriber = -1
    elif s.subscriber == s.count:
        s.subscriber = place
    c[0] = s.connections[s.count]


cdef bint add(server *s, int fd) noexcept nogil:
    cdef connection *c = &s.connections[s.count]
    if s.count == CONNECTIONS_MAX:
        close(fd)
        return True
    c.fd = fd
    c.inbox = Buffer(<uint8_t *>malloc(BUFFER_SIZE), 0, 0, BUFFER_SIZE)
    c.outbox = Buffer(<uint8_t *>malloc(BUFFER_SIZE), 0, 0, BUFFER_SIZE)
    s.count += 1
    return c.inbox.data is not NULL and c.outbox.data is not NULL


cdef bint turn(server *s, int listener, pollfd *polled) noexcept nogil:
    """Waits, and does what there is to do; False when the listening socket is gone."""
    cdef int i, count = s.count, fd
    cdef bint full = s.subscriber >= 0 and (
        s.connections[s.subscriber].outbox.end - s.connections[s.subscriber].outbox.begin > WAITING_SIZE_MAX
    )
    for i in range(count):
        polled[i].fd = s.connections[i].fd
        polled[i].events = 0 if full and i != s.subscriber else POLLIN
        if s.connections[i].outbox.end:
            polled[i].events |= POLLOUT
    polled[count].fd, polled[count].events = listener, POLLIN
    poll(polled, count + 1, ALONE_MS)
    if polled[count].revents:
        fd = null_accept(listener)
        if fd < 0 or not add(s, fd):
            return False
    # From the last to the first: whoever takes a dropped one's place was looked at before.
    for i in range(count - 1, -1, -1):
        if polled[i].revents & (POLLIN | POLLERR | POLLHUP | POLLNVAL) and not take(s, i):
            drop(s, i)
    for i in range(s.count - 1, -1, -1):
        if s.connections[i].outbox.end and not push(&s.connections[i]):
            drop(s, i)
    return True


def serve(int listener):
    """A native server that keeps nothing; returns when the listening socket is shut down."""
    cdef server s
    cdef pollfd polled[CONNECTIONS_MAX + 1]
    memset(&s, 0, sizeof(s))
    s.subscriber = -1
    s.connections = <connection *>calloc(CONNECTIONS_MAX + 1, sizeof(connection))
    if s.connections is NULL:
        raise MemoryError
    with nogil:
        while turn(&s, listener, polled):
            pass
        while s.count:
            drop(&s, s.count - 1)
    free(s.connections)


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
