# SPDX-License-Identifier: Apache-2.0
"""When a session of a door to queues reads on: not while too much of what it was sent waits here, while a helper thread
works on its last command, or after its share of a turn.  Each limit goes on well below itself, so nothing flutters.

A disk or memory alarm is no such reason: such a session may also consume, and its acknowledgements make room.  Its
publishes are refused (admission.py)."""

from vibemq.net.connection cimport Connection
from vibemq.net.door cimport PAUSE_COMMAND, PAUSE_PARKED, PAUSE_TURN, PAUSE_UNCONFIRMED

cdef enum:
    PARKED_BYTES_MAX = 16 << 20   # before full queues


cdef class QueueSession(Session):
    def __init__(self, Connection connection, Py_ssize_t unconfirmed_max):
        super().__init__(connection)
        self.unconfirmed_max = unconfirmed_max

    def count_unconfirmed(self, Py_ssize_t more):
        """Stop reading while too much waits for a sync; go on at three quarters of the limit."""
        self.unconfirmed += more
        if not self.pauses & PAUSE_UNCONFIRMED:
            if self.unconfirmed >= self.unconfirmed_max:
                self.pause(PAUSE_UNCONFIRMED)
        elif self.unconfirmed * 4 <= self.unconfirmed_max * 3:
            self.go_on(PAUSE_UNCONFIRMED)

    def count_parked(self, Py_ssize_t more):
        """Nothing more is read while too much is parked before full queues; on with half of that.

        But from one that consumes: its acknowledgements may be what makes room."""
        self.parked_bytes += more
        if not self.pauses & PAUSE_PARKED:
            if self.parked_bytes > PARKED_BYTES_MAX and not self.consumes():
                self.pause(PAUSE_PARKED)
        elif self.parked_bytes * 2 < PARKED_BYTES_MAX:
            self.go_on(PAUSE_PARKED)

    cdef bint consumes(self):
        return False

    cdef bint parks_no_more(self):
        return self.parked_bytes > PARKED_BYTES_MAX and self.consumes()

    cdef int yield_turn(self) except -1:
        if not self.pauses & PAUSE_TURN:
            self.pause(PAUSE_TURN)
            self.connection.want_turn()
        return 0

    cdef int go_on_after_turn(self) except -1:
        if self.pauses & PAUSE_TURN:
            self.go_on(PAUSE_TURN)
        return 0

    @property
    def working(self) -> bool:
        return self.pauses & PAUSE_COMMAND != 0

    def set_busy(self):
        """A helper thread works on a command; the next one waits for its reply."""
        self.pause(PAUSE_COMMAND)

    def set_idle(self):
        """The helper thread has finished; what it was for comes now, then ``resume``."""
        self.pauses &= ~<unsigned int> PAUSE_COMMAND

    def resume(self):
        """Read on, unless something still forbids it."""
        self.go_on(0)
