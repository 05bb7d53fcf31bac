# SPDX-License-Identifier: Apache-2.0
"""How many messages a stream or queue has, as its files say."""

from __future__ import annotations

from contextlib import closing
from typing import NamedTuple

from vibemq.errors import StorageError
from vibemq.storage.ledger import QueueStats, queue_stats
from vibemq.storage.log import Log, LogStats
from vibemq.storage.records import StreamRecord

_GONE = ("ERR_NOT_FOUND", "ERR_DELETED")


class Counts(NamedTuple):
    """Read from the files: no worker is asked, so none is held up.

    A stream holds all that retention has left.  A queue holds what waits and is in flight, which its ledger knows;
    its log also has messages that are settled, until their segments go.  ``queue``: None for a plain stream, and for
    one that is being deleted.
    """

    log: LogStats
    queue: QueueStats | None

    @property
    def kept(self) -> int:
        """Records of the log, settled or not."""
        return self.log.next_offset - self.log.first_offset

    @property
    def ready(self) -> int:
        return self.kept if self.queue is None else self.queue.waiting

    @property
    def unacknowledged(self) -> int:
        return 0 if self.queue is None else self.queue.in_flight

    @property
    def messages(self) -> int:
        return self.ready + self.unacknowledged


NOTHING = Counts(LogStats(0, 0, 0, -1, 0, 0), None)


def counts_of(record: StreamRecord) -> Counts:
    """Nothing at all for one that is being deleted.  Raises StorageError where files are damaged."""
    try:
        with closing(Log(record.directory)) as log:
            stats = log.stats()
        return Counts(stats, None if record.queue is None else queue_stats(record.directory, stats.next_offset))
    except StorageError as problem:
        if problem.code in _GONE:
            return NOTHING
        raise
