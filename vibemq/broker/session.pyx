# SPDX-License-Identifier: Apache-2.0
"""When a session of a door to queues reads on: not while too much of what it was sent waits here, while a helper thread
works on its last command, or after its share of a turn.  Each limit goes on well below itself, so nothing flutters."""

from vibemq.net.connection cimport Connection

cdef enum:
    PARKED_BYTES_MAX = 16 << 20   # before full queues


cdef class QueueSession(Session):
    def __init__(self, Connection connection, Py_ssize_t unconfirmed_max):
        super().__init__(connection)
        self.unconfirmed_max = unconfirmed_max

    def count_unconfirmed(self, Py_ssize_t more):
        """Stop reading while too much waits for a sync; go on at three quarters of the limit."""
        self.unconfirmed += more
        if not self.throttled and self.unconfirmed >= self.unconfirmed_max:
            self.throttled = self.busy = True
            self.connection.pause()
        elif self.throttled and self.unconfirmed * 4 <= self.unconfirmed_max * 3:
            self.throttled = False
            self.resume()

    def count_parked(self, Py_ssize_t more):
        """Nothing more is read while too much is parked before full queues; on with half of that."""
        self.parked_bytes += more
        if not self.blocked and self.parked_bytes > PARKED_BYTES_MAX:
            self.blocked = self.busy = True
            self.connection.pause()
        elif self.blocked and self.parked_bytes * 2 < PARKED_BYTES_MAX:
            self.blocked = False
            self.resume()

    cdef int yield_turn(self) except -1:
        if not self.yielded:
            self.yielded = self.busy = True
            self.connection.want_turn()
        return 0

    cdef int go_on_after_turn(self) except -1:
        if self.yielded:
            self.yielded = False
            self.resume()
        return 0

    def set_busy(self):
        """A helper thread works on a command; the next one waits for its reply."""
        self.working = self.busy = True

    def set_idle(self):
        """The helper thread has finished; what it was for comes now, then ``resume``."""
        self.working = False

    def resume(self):
        """Read on, unless something still forbids it."""
        self.busy = self.working or self.throttled or self.yielded or self.blocked
        if not self.busy:
            self.connection.want_turn()  # the loop resumes it, when nobody is in the middle of anything
