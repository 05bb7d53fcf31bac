# SPDX-License-Identifier: Apache-2.0
"""Many subscribers to one topic, in one thread: each must get its numbers, all of them and in order.

They share an inbox; only what is left of a frame that was cut is kept for a connection. A protocol says in `take` how
deliveries are read.
"""

from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy

from vibemq.bench._flow cimport (
    BODY_NUMBER_AT, BODY_SIZE_MIN, body_stamp, buffer_reserve, fail_with, get_hex8, load, now_ns, precise_sleep,
    receive_some, store,
)

cdef extern from *:
    """
    #include <sys/epoll.h>
    #include <unistd.h>
    static int audience_watch(int poll, int fd, uint64_t number) {
        struct epoll_event event = {.events = EPOLLIN, .data = {.u64 = number}};
        return epoll_ctl(poll, EPOLL_CTL_ADD, fd, &event);
    }
    static inline uint64_t audience_which(const struct epoll_event *event) { return event->data.u64; }
    """
    struct epoll_event:
        pass
    int EPOLL_CLOEXEC
    int epoll_create1(int flags) nogil
    int epoll_wait(int fd, epoll_event *events, int most, int timeout_ms) nogil
    int close(int fd) nogil
    int audience_watch(int poll, int fd, uint64_t number) noexcept nogil
    uint64_t audience_which(const epoll_event *event) noexcept nogil

cdef enum:
    EVENTS_MAX = 256
    INBOX_SIZE = 1 << 18
    IDLE_MS = 100               # how soon stop() is noticed


cdef class Audience:
    def __cinit__(self, *, connections, int64_t messages, int64_t step=1, bint timed=False, **_):
        """connections: of each its socket, what came behind the handshake, and the first number that is for it.

        messages: how many each is to get, of numbers that are `step` apart.
        """
        cdef int64_t place = 0
        self.count, self.messages, self.step, self.timed = len(connections), messages, step, timed
        self.listeners = <listener *>calloc(self.count, sizeof(listener))
        self.inbox = Buffer(<uint8_t *>malloc(INBOX_SIZE), 0, 0, INBOX_SIZE)
        self.poll = epoll_create1(EPOLL_CLOEXEC)
        self.latencies = Histogram()
        if self.listeners is NULL or self.inbox.data is NULL or self.poll < 0:
            raise MemoryError
        for connection, early, first in connections:
            self.listeners[place].fd, self.listeners[place].next = connection.fileno(), first
            if not self.keep(&self.listeners[place], <const uint8_t *><bytes>early, len(early)):
                raise MemoryError
            if audience_watch(self.poll, self.listeners[place].fd, place) < 0:
                raise OSError(f"connection {place} cannot be watched")
            place += 1

    def __init__(self, *, connections, **_):
        self.failure = Flow(connection=connections[0][0])

    def __dealloc__(self):
        cdef int64_t i
        if self.listeners is not NULL:
            for i in range(self.count):
                free(self.listeners[i].rest.data)
        free(self.listeners)
        free(self.inbox.data)
        if self.poll > 0:
            close(self.poll)

    @property
    def received(self):
        return load(&self.received_)

    @property
    def fault(self):
        return self.failure.fault

    @property
    def least(self):
        """Of the deliveries that each has had, the fewest."""
        return min([self.listeners[i].received for i in range(self.count)])

    def stop(self):
        store(&self.stopped, 1)

    def run(self):
        with nogil:
            precise_sleep()
            self.loop()

    cdef const uint8_t *take(self, listener *each, const uint8_t *p, const uint8_t *end) noexcept nogil:
        return end

    cdef bint note(self, listener *each, const uint8_t *body, size_t size) noexcept nogil:
        cdef int64_t number
        if size < BODY_SIZE_MIN:
            return False
        number = get_hex8(body + BODY_NUMBER_AT)
        self.disordered += number != each.next
        each.next = number + self.step
        if self.timed:
            self.latencies.record_ns(self.now - body_stamp(body), 1)
        each.received += 1
        store(&self.received_, self.received_ + 1)
        self.last_ns = self.now
        return True

    cdef bint keep(self, listener *each, const uint8_t *p, size_t size) noexcept nogil:
        each.rest.begin = each.rest.end = 0
        if size == 0:
            return True
        if each.rest.size < size and not buffer_reserve(&each.rest, size):
            return False
        memcpy(each.rest.data, p, size)
        each.rest.end = size
        return True

    cdef void loop(self) noexcept nogil:
        cdef epoll_event events[EVENTS_MAX]
        cdef int i, ready
        for i in range(self.count):
            if self.listeners[i].rest.end and not self.read(&self.listeners[i], False):
                return
        while self.received_ < self.count * self.messages and not load(&self.stopped):
            ready = epoll_wait(self.poll, events, EVENTS_MAX, IDLE_MS)
            for i in range(ready):
                if not self.read(&self.listeners[audience_which(&events[i])], True):
                    return

    cdef bint read(self, listener *each, bint receives) noexcept nogil:
        """Takes what has come on one connection; False when all is over."""
        cdef Buffer *inbox = &self.inbox
        cdef size_t held = each.rest.end
        cdef Py_ssize_t got = 0
        cdef const uint8_t *done
        inbox.begin = inbox.end = 0
        if inbox.size < held + INBOX_SIZE // 2 and not buffer_reserve(inbox, held + INBOX_SIZE):
            return fail_with(self.failure, NULL, b"no memory for the inbox") is not NULL
        if held:
            memcpy(inbox.data, each.rest.data, held)
        if receives:
            got = receive_some(each.fd, inbox.data + held, inbox.size - held, False)
            if got == 0:
                return True
            if got < 0:
                return fail_with(self.failure, NULL, b"the server ended a subscriber's connection") is not NULL
        self.now = now_ns()
        done = self.take(each, inbox.data, inbox.data + held + got)
        if done is NULL:
            return False
        if not self.keep(each, done, inbox.data + held + got - done):
            return fail_with(self.failure, NULL, b"no memory for a frame") is not NULL
        return True

