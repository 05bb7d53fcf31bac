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

    cdef int shutdown(self) except -1:
        self.connection.close_after_flush()
        return 0

    cdef int close(self) except -1:
        return 0
