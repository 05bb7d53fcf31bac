# SPDX-License-Identifier: Apache-2.0
"""Transactions, which are staged on a broker of ours: blocks of entries, pipelined, confirmed once they are kept."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

from vibemq.client._flows import Publisher
from vibemq.client._frames import Frames
from vibemq.errors import LimitExceeded
from vibemq.protocols.streams import spec
from vibemq.protocols.streams.spec import ExtensionKey, Key, TransactionState

#: Blocks on their way without a confirm; of 256 KiB each they are what a disk takes in some tens of milliseconds.
UNCONFIRMED_BLOCKS_MAX = 32
_HEAD = struct.Struct(">IHHBIQIH")  # Publish 1 with one message: its size and number, then the block's target


class Committed(NamedTuple):
    """What has become of a commit; `holder` says who or what is in the way where the state is not OK."""

    state: TransactionState
    rows: int
    holder: str


class Staging(Publisher):
    """One transaction. With any other `state` than OK nothing can be staged, and `holder` says why.

    `sequence` is the number of the last block that the broker has; the next one that is staged is behind it.
    """

    def __init__(self, connection: Frames, publisher_id: int, name: str, answer: Any) -> None:
        super().__init__(connection, publisher_id, name, answer.sequence + 1, UNCONFIRMED_BLOCKS_MAX, name)
        self.name = name
        self.state = TransactionState(answer.state)
        self.sequence = answer.sequence
        self.holder = answer.holder

    @property
    def blocks(self) -> int:
        """How many have been staged, from the first one on: what a commit names."""
        return self.next_id - 1

    def stage(self, target: int, entries: bytes | bytearray | memoryview, timeout_s: float | None = None) -> None:
        """Send one block: entries as they lie in a chunk, for the target of this index.

        Waits only while too much is not confirmed. What was refused is raised by this or a later call.
        """
        connection, size = self._connection, len(entries)
        most = connection.frame_max - (_HEAD.size - 4)
        if size > most:
            raise LimitExceeded("entries of a block in bytes", size, most, hint="Stage them in several blocks.")
        deadline = connection._deadline(timeout_s, f"staging transaction {self.name}")
        self._raise()
        self._await_room(deadline, 1)
        head = _HEAD.pack(_HEAD.size - 4 + size, Key.PUBLISH, 1, self.publisher_id, 1, self.next_id, 2 + size, target)
        self._send(b"".join((head, entries)), 1, deadline)
        if connection._transport.poll_input():
            connection._handle_frames()


class Transactions(Frames):
    """The commands of transactions, of our brokers only."""

    @property
    def has_transactions(self) -> bool:
        return ExtensionKey.BEGIN_TRANSACTION in self.commands

    def begin_transaction(
        self,
        name: str,
        application: str,
        version: int,
        run: str,
        targets: Sequence[str],
        *,
        ephemeral: bool = False,
        keeps_targets: bool = False,
        timeout_s: float | None = None,
    ) -> Staging:
        """Begins to stage, or goes on where another connection ended; look at its `state` first.

        name: 32 hex digits. application: whose versions rise, which `run` counts up. targets: streams and queues; every
        transaction of a version names the same ones in the same order. ephemeral: the application will not come again.
        keeps_targets: the broker refuses a version that lacks a target of the last one.
        """
        publisher_id = self._free_publisher_id()
        answer = self._extension(
            ExtensionKey.BEGIN_TRANSACTION,
            timeout_s=timeout_s,
            publisher_id=publisher_id,
            transaction=name,
            application=application,
            batch=version,
            run=run,
            flags=flags(ephemeral, last=False, keeps_targets=keeps_targets),
            targets=list(targets),
        )
        staging = Staging(self, publisher_id, name, answer)
        if staging.state == TransactionState.OK:
            self._publishers[publisher_id] = staging
        return staging

    def commit_transactions(
        self,
        application: str,
        version: int,
        run: str,
        targets: Sequence[str],
        transactions: Sequence[tuple[str, int]],
        *,
        ephemeral: bool = False,
        keeps_targets: bool = False,
        last: bool = False,
        timeout_s: float | None = None,
    ) -> Committed:
        """Decides that so many blocks of each of these are the version, and has them appended in this order.

        last: nothing more comes of this run. It takes as long as there is to copy: let timeout_s be in proportion.
        """
        answer = self._extension(
            ExtensionKey.COMMIT_TRANSACTIONS,
            timeout_s=timeout_s,
            application=application,
            batch=version,
            run=run,
            flags=flags(ephemeral, last, keeps_targets),
            targets=list(targets),
            transactions=list(transactions),
        )
        return Committed(TransactionState(answer.state), answer.rows, answer.holder)

    def abort_transactions(
        self,
        application: str,
        run: str,
        names: Sequence[str] = (),
        *,
        last: bool = False,
        timeout_s: float | None = None,
    ) -> None:
        """Throws away what the run has staged: these, or without names all of it."""
        self._extension(
            ExtensionKey.ABORT_TRANSACTIONS,
            timeout_s=timeout_s,
            application=application,
            run=run,
            flags=flags(ephemeral=False, last=last),
            transactions=list(names),
        )


def flags(ephemeral: bool, last: bool, keeps_targets: bool = False) -> int:
    flag = spec.TransactionFlag
    return ephemeral * flag.EPHEMERAL | last * flag.LAST | keeps_targets * flag.KEEPS_TARGETS
