# SPDX-License-Identifier: Apache-2.0
"""Stateful reconnect: what a peer has not acknowledged is kept, and sent again over its next WebSocket.

Both ends number their records of types 1 to 5 from 1 on and never begin anew.  Whoever has lost a socket first says
with a Sequence which number comes next over the new one, then repeats what was not acknowledged; the other end drops
what it has seen.  Invariant: ``first + len(unacked) == total + 1``.
"""

from __future__ import annotations

from collections import deque

from vibemq.errors import ProtocolError
from vibemq.protocols.signalr.spec import STATEFUL_BUFFER_BYTES_MAX, MessageType


class OutOfSequence(ProtocolError):
    """The peer goes on behind records that never came: they are lost."""


class Replay:
    def __init__(self) -> None:
        self.unacked: deque[bytes] = deque()  # the first one is number `first`
        self.first = 1
        self.total = 0  # records ever sent
        self.bytes = 0
        self.received = 0  # the highest number that the peer has used
        self.awaits_sequence = False
        self._coming = 0  # the number of the record that came last
        self._told = 0  # what the peer was told of `received`

    @property
    def is_full(self) -> bool:
        """Has the peer acknowledged too little to be sent more?"""
        return self.bytes > STATEFUL_BUFFER_BYTES_MAX

    def keep(self, record: bytes) -> None:
        self.unacked.append(record)
        self.total += 1
        self.bytes += len(record)

    def acknowledged(self, number: int) -> None:
        """The peer has everything up to `number`."""
        if number > self.total:
            raise OutOfSequence(f"Ack {number} is above {self.total}, the number of messages that were sent.")
        while self.first <= number:
            self.bytes -= len(self.unacked.popleft())
            self.first += 1

    def lost(self) -> None:
        """The socket is gone: on the next one nothing counts before the peer's Sequence."""
        self.awaits_sequence = True

    def goes_on_with(self, number: int) -> None:
        """What the peer's Sequence says."""
        if number > self.received + 1:
            raise OutOfSequence(f"Sequence {number} is above {self.received + 1}, the next message that was expected.")
        if number < 1:
            raise OutOfSequence(f"Sequence {number} is no number of a message.")
        self._coming, self.awaits_sequence = number - 1, False

    def takes(self, type: int) -> bool:
        """Is this record to be acted upon, or has it been?"""
        if self.awaits_sequence:
            return type == MessageType.SEQUENCE
        if not MessageType.INVOCATION <= type <= MessageType.CANCEL_INVOCATION:
            return True
        self._coming += 1
        if self._coming <= self.received:
            return False
        self.received = self._coming
        return True

    def to_tell(self) -> int:
        """The number to acknowledge now; 0: the peer knows."""
        if self.received == self._told:
            return 0
        self._told = self.received
        return self._told
