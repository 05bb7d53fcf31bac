# SPDX-License-Identifier: Apache-2.0
"""A client of the broker, whatever door it came through: who it is, what it may do, how much of it waits, and when it is
read on.

Its owner, the session or what outlives one, has a `peer` (for the log), `ending`, ``hold(reason, holds)``, ``fail``,
``send_off(why)`` (an admission.Ended) and ``rights_changed()``.  What is decided about a client is in admission.py.

It is not read while too much of what it sent waits here, while a helper thread works on its last command, or after its
share of a turn.  Each limit goes on well below itself, so nothing flutters.  A disk or memory alarm is no such reason:
a client may also consume, and its acknowledgements make room; its publishes are refused (admission.py).
"""

import time
from itertools import islice

from vibemq.broker.inflight cimport InFlight
from vibemq.net.connection cimport Connection
from vibemq.net.door cimport PAUSE_COMMAND, PAUSE_PARKED, PAUSE_TURN, PAUSE_UNCONFIRMED

from vibemq.storage.vhosts import DEFAULT_VHOST

cdef enum:
    PARKED_BYTES_MAX = 16 << 20   # before full queues
    DESCRIBED_MAX = 128           # publishers, and subscriptions, of one connection: about a microsecond each


cdef class Client:
    def __init__(self, owner, broker, Py_ssize_t unconfirmed_max):
        self.owner, self.broker, self.unconfirmed_max = owner, broker, unconfirmed_max
        self.user, self.refusals = "", set()

    cdef int count_unconfirmed(self, Py_ssize_t more) except -1:
        """Not read while too much waits for a sync; on at three quarters of the limit."""
        self.unconfirmed += more
        if self.unconfirmed >= self.unconfirmed_max:
            self.hold(PAUSE_UNCONFIRMED, True)
        elif self.unconfirmed * 4 <= self.unconfirmed_max * 3:
            self.hold(PAUSE_UNCONFIRMED, False)
        return 0

    cdef int count_parked(self, Py_ssize_t more) except -1:
        self.parked_bytes += more
        return self._look_at_parked()

    cdef int count_consumers(self, Py_ssize_t more) except -1:
        self.consumers += more
        return self._look_at_parked()

    cdef int _look_at_parked(self) except -1:
        """Not read while too much is parked before full queues; on with half of that.

        But who consumes is always read: its acknowledgements may be what makes room."""
        self.parks_much = self.parked_bytes > (PARKED_BYTES_MAX // 2 if self.parks_much else PARKED_BYTES_MAX)
        return self.hold(PAUSE_PARKED, self.parks_much and not self.consumers)

    cdef bint parks_no_more(self) noexcept:
        return self.parked_bytes > PARKED_BYTES_MAX and self.consumers > 0

    cdef int count_burying(self, Py_ssize_t more) except -1:
        self.burying += more
        return self.hold(PAUSE_COMMAND, self.burying > 0)

    cdef int hold(self, unsigned int reason, bint holds) except -1:
        if holds != (self.held & reason != 0):
            self.held ^= reason
            self.owner.hold(reason, holds)
        return 0


cdef class ClientSession(Session):
    def __init__(self, Connection connection, door):
        super().__init__(connection)
        self.door, self.client = door, Client(self, door.broker, door.config.unconfirmed_max)
        self.publishers = {}
        self.connected_ms = time.time_ns() // 1_000_000

    cdef int yield_turn(self) except -1:
        if not self.pauses & PAUSE_TURN:
            self.pause(PAUSE_TURN)
            self.connection.want_turn()
        return 0

    cdef int go_on_after_turn(self) except -1:
        if self.pauses & PAUSE_TURN:
            self.go_on(PAUSE_TURN)
        return 0

    cdef bint look_at_deadline(self, int64_t now_ms) except -1:
        if not self.deadline_ms or now_ms < self.deadline_ms:
            return False
        self.deadline_ms = 0
        self.at_deadline(self)
        return True

    def hold(self, unsigned int reason, bint holds):
        if holds:
            self.pause(reason)
        else:
            self.go_on(reason)

    def forget_publisher(self, key, publisher):
        if self.publishers.get(key) is publisher:
            del self.publishers[key]
        if self.publisher_cached is publisher:
            self.publisher_cached = None

    cdef bint has_confirmed_all(self) except -1:
        """Or refused; but for what is parked."""
        for publisher in self.publishers.values():
            if not publisher.is_idle:
                return False
        return True

    cdef int close_publishers(self) except -1:
        for publisher in list(self.publishers.values()):
            publisher.close()
        self.publishers.clear()
        self.publisher_cached = None
        return 0

    def set_deadline(self, int64_t at_ms, then):
        self.deadline_ms, self.at_deadline = at_ms, then

    def wait_until(self, int64_t at_ms, then):
        """Nothing is read before, so that guessing gets slow; ``then(session)`` answers."""
        self.set_busy()
        self.set_deadline(at_ms, then)

    @property
    def working(self) -> bool:
        return self.pauses & PAUSE_COMMAND != 0

    def set_busy(self):
        """A helper thread works on a command; the next one waits for its reply."""
        self.pause(PAUSE_COMMAND)

    def set_idle(self):
        """The helper thread has finished; what it was for comes now, then ``read_on``."""
        self.pauses &= ~<unsigned int> PAUSE_COMMAND

    def read_on(self):
        """Unless something still forbids it."""
        self.go_on(0)

    def command_failed(self, problem):
        """What followed the work of a helper thread raised this."""
        self.fail(problem)

    def write(self, bytes frame):
        """Queue a whole frame."""
        self.connection.write_bytes(frame)

    def described(self, **more) -> dict:
        """What the admin side shows of any connection, and ``more``."""
        return {
            "user": self.client.user,
            "peer_host": self.peer_address,
            "peer_port": self.connection.peer_port,
            "is_tls": self.connection.is_tls,
            "connected_at": self.connected_ms,
            "state": self.shown_state,
            **more,
        }


cdef class QueueSession(ClientSession):
    def __init__(self, Connection connection, door):
        super().__init__(connection, door)
        self.subscriptions, self.by_number, self.in_flight = {}, [], InFlight()

    def free_number(self) -> int:
        """For one subscription more."""
        if len(self.subscriptions) < len(self.by_number):
            return self.by_number.index(None)
        self.by_number.append(None)
        return len(self.by_number) - 1

    def remember_subscription(self, name, subscription):
        self.by_number[subscription.number] = self.subscriptions[name] = subscription
        self.client.count_consumers(1)

    def forget_subscription(self, name):
        self.by_number[self.subscriptions.pop(name).number] = None
        self.client.count_consumers(-1)

    def remove_subscription(self, name, bint lost=False) -> bool:
        """`lost`: without a goodbye, so what was in flight may have been what went wrong."""
        subscription = self.subscriptions.get(name)
        if subscription is None:
            return False
        subscription.leave(lost)
        self.forget_subscription(name)
        return True

    def described(self, **more) -> dict:
        """Of very many queues only the first."""
        return ClientSession.described(
            self,
            vhost=DEFAULT_VHOST,
            publishers=[{"stream": one.stream.name} for one in islice(self.publishers.values(), DESCRIBED_MAX)],
            subscriptions=[one.describe() for one in islice(self.subscriptions.values(), DESCRIBED_MAX)],
            **more,
        )

    cdef int close(self) except -1:
        self.state = "closed"
        self.close_publishers()
        for name in list(self.subscriptions):
            self.remove_subscription(name, lost=True)
        return 0
