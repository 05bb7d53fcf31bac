# SPDX-License-Identifier: Apache-2.0
"""Two connections of one worker as one pipe: what comes from either goes to the other.

A TLS connection cannot be given to another process, because its keys are in this one.  So the other process
gets one end of a socket pair instead, and a pair of these carries the bytes.

Bound: what waits for one end is at most PENDING_BYTES_MAX and one read; then the other end is not read.
When one end is gone, the other takes what is left for it and ends too.
"""

from libc.stdint cimport uint8_t

from vibemq.net.connection cimport Connection

cdef enum:
    PENDING_BYTES_MAX = 256 * 1024


cdef class Relay(Session):
    def __init__(self, Connection connection, Connection other):
        super().__init__(connection)
        self.other = other

    cdef Py_ssize_t receive(self, const uint8_t *data, size_t size) except -1:
        if self.other is not None and not self.other.closing:
            self.other.write(data, size)
            self.busy = self.other.pending() > PENDING_BYTES_MAX
        return size

    cdef bint deliver(self) except -1:
        self.connection.flush()
        if self.other is not None and self.other.session.busy and self.connection.pending() <= PENDING_BYTES_MAX // 2:
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
