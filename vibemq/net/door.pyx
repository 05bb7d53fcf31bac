# SPDX-License-Identifier: Apache-2.0
"""What every door's session looks like to the connection it belongs to (contract in door.pxd)."""


cdef class Session:
    def __init__(self, Connection connection):
        self.connection = connection

    @property
    def is_tls(self) -> bool:
        return self.connection.is_tls

    @property
    def server_name(self) -> str:
        return self.connection.server_name

    @property
    def peer_certificate(self):
        return self.connection.peer_certificate

    @property
    def peer(self) -> str:
        return self.connection.peer

    @property
    def peer_address(self) -> str:
        return self.connection.peer_host

    @property
    def is_loopback(self) -> bool:
        return self.connection.is_loopback

    @property
    def ending(self) -> bool:
        return self.connection.closing or self.connection.closed

    cdef int pause(self, unsigned int reason) except -1:
        self.pauses |= reason
        if not self.busy:
            self.busy = True
            self.connection.pause()
        return 0

    cdef int go_on(self, unsigned int reason) except -1:
        self.pauses &= ~reason
        if self.busy and not self.pauses:
            self.busy = False
            self.connection.want_turn()  # the loop resumes it, when nobody is in the middle of anything
        return 0

    @property
    def shown_state(self) -> str:
        """For people."""
        return "blocked" if self.pauses & PAUSES_SHOWN else "running"

    def finish(self):
        """Send what is queued, then close the connection."""
        self.connection.close_after_flush()

    def fail(self, problem):
        """End the connection at its next turn; the log says why."""
        self.connection.fail(problem)

    cdef int open(self) except -1:
        return 0

    cdef Py_ssize_t receive(self, const uint8_t *data, size_t size) except -1:
        raise TypeError(f"{type(self).__name__} does not say how to receive")

    cdef bint deliver(self) except -1:
        return self.connection.flush() and False

    cdef int tick(self, int64_t now_ms) except -1:
        return 0

    cdef int beat(self, int64_t now_ms) except -1:
        return 0

    cdef int shutdown(self) except -1:
        self.connection.close_after_flush()
        return 0

    cdef int close(self) except -1:
        return 0


# ---- a relay ----

cdef enum:
    RELAY_BYTES_MAX = 256 * 1024


cdef class Relay(Session):
    """Two connections of one worker as one pipe: what comes from either goes to the other.

    A TLS connection cannot be given to another process, because its keys are in this one: that gets one end of a socket
    pair instead, and a pair of these carries the bytes.  What waits for one end is at most RELAY_BYTES_MAX and one read;
    then the other end is not read.  When one end is gone, the other takes what is left for it and ends too.
    """

    cdef Connection other  # the far end; None once it is gone

    def __init__(self, Connection connection, Connection other):
        super().__init__(connection)
        self.other = other

    cdef Py_ssize_t receive(self, const uint8_t *data, size_t size) except -1:
        if self.other is not None and not self.other.closing:
            self.other.write(data, size)
            self.busy = self.other.pending() > RELAY_BYTES_MAX
        return size

    cdef bint deliver(self) except -1:
        self.connection.flush()
        if self.other is not None and self.other.session.busy and self.connection.pending() <= RELAY_BYTES_MAX // 2:
            self.other.session.busy = False
            self.other.want_turn()  # the loop resumes it
        return False

    cdef int shutdown(self) except -1:
        return 0  # the session at the other end says goodbye, and its end is this one's

    cdef int close(self) except -1:
        cdef Connection other = self.other
        self.other = None
        if other is not None and not other.closed:
            (<Relay> other.session).other = None
            other.close_after_flush()
        return 0


def join(Connection one, Connection two):
    """From now on each is the other's peer; the session that either had is closed."""
    for connection, other in ((one, two), (two, one)):
        before = (<Connection> connection).session
        (<Connection> connection).session = Relay(connection, other)
        if before is not None:
            (<Session> before).close()
