# SPDX-License-Identifier: Apache-2.0
"""Stateful reconnect: what a peer has not acknowledged is kept, and sent again over its next WebSocket.

Both ends number their records of types 1 to 5 from 1 on and never begin anew.  Whoever has lost a socket first says
with a Sequence which number comes next over the new one, then repeats what was not acknowledged; the other end drops
what it has seen.  Invariant: ``first + len(unacked) == total + 1``.
"""

from collections import deque

from vibemq.protocols.signalr.envelope cimport TYPE_CANCEL_INVOCATION, TYPE_INVOCATION, TYPE_SEQUENCE

from vibemq.errors import ProtocolError


class OutOfSequence(ProtocolError):
    """The peer goes on behind records that never came: they are lost."""


cdef class Replay:
    def __init__(self, size_t bytes_max):
        self.unacked = deque()
        self.first, self.bytes_max = 1, bytes_max

    cdef int keep(self, const uint8_t *data, size_t size) except -1:
        self.unacked.append((<char *> data)[:size])
        self.total += 1
        self.bytes += size
        return 0

    def acknowledged(self, int64_t number):
        """The peer has everything up to `number`."""
        if number > self.total:
            raise OutOfSequence(f"Ack {number} is above {self.total}, the number of messages that were sent.")
        while self.first <= number:
            self.bytes -= len(self.unacked.popleft())
            self.first += 1

    def lost(self):
        """The socket is gone: on the next one nothing counts before the peer's Sequence."""
        self.awaits_sequence = True

    def records(self):
        """What the next socket begins with, after a Sequence with ``first``."""
        return list(self.unacked)

    def resume(self, int64_t number):
        """The peer goes on with `number`."""
        if number > self.received + 1:
            raise OutOfSequence(f"Sequence {number} is above {self.received + 1}, the next message that was expected.")
        if number < 1:
            raise OutOfSequence(f"Sequence {number} is no number of a message.")
        self.coming, self.awaits_sequence = number - 1, False

    cdef bint takes(self, int type) noexcept:
        """Is this record to be acted upon, or has it been?"""
        if self.awaits_sequence:
            return type == TYPE_SEQUENCE
        if type < TYPE_INVOCATION or type > TYPE_CANCEL_INVOCATION:
            return True
        self.coming += 1
        if self.coming <= self.received:
            return False
        self.received = self.coming
        return True

    def to_tell(self) -> int:
        """The number to acknowledge now; 0: the peer knows."""
        if self.received == self.told:
            return 0
        self.told = self.received
        return self.told
