# SPDX-License-Identifier: Apache-2.0
"""What the files say of all streams and queues together, at a bounded price for each look.

To open a log and count costs some 70 us.  Whoever scrapes every five seconds a broker with 65,536 streams would keep
a processor busy, which the workers want.  So a look takes up LOOK_S_MAX of those that were looked at longest ago, and
knows the others as they were; only the first look, and what is new, is looked at whatever it takes.

What is counted up is summed here by what it grew: the sum does not fall when a queue is deleted, and begins with 0
when this process does, as Prometheus expects of a counter.
"""

from __future__ import annotations

import heapq
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from typing import NamedTuple

from vibemq.admin.api.counts import NOTHING, Counts, counts_of
from vibemq.errors import VibeMQError
from vibemq.storage.log import Log
from vibemq.storage.offsets import StoredOffsets
from vibemq.storage.records import StreamRecord

LOOK_S_MAX = 0.1  # of a scrape: some 1,500 streams, so 10,000 are as they were half a minute ago at most
RATE_S_MIN = 0.1  # two scrapes at the same time say nothing of a rate
#: Of one stream those that are furthest behind: all that 65,536 streams can have would be gigabytes.
OFFSETS_KEPT_MAX = 16
#: What of a queue only ever grows (the fields of QueueStats).
COUNTED = ("delivered", "redelivered", "acked", "dead_lettered", "expired", "dropped", "refused", "purged")
_NO_COUNTS: dict[str, int] = dict.fromkeys(COUNTED, 0)


class Offset(NamedTuple):
    reference: str
    offset: int
    lag: int  # messages that come after it


class Entry(NamedTuple):
    """One stream or queue at one instant; ``stored``: how many stored offsets it has, ``offsets``: some of them."""

    record: StreamRecord
    counts: Counts
    stored: int = 0
    offsets: tuple[Offset, ...] = ()
    looked_s: float = 0.0  # when, by the survey's clock
    per_s: float = 0.0  # messages that came since the look before

    @property
    def names(self) -> dict[str, str]:
        return {"vhost": self.record.vhost, "stream": self.record.name}


def look_at(record: StreamRecord, offsets_max: int) -> Entry | None:
    """None: it is damaged, or being deleted; the log says so, and the others are wanted all the same."""
    try:
        counts = counts_of(record)
    except VibeMQError:
        return None
    if counts is NOTHING:
        return None
    found: list[Offset] = []
    with suppress(VibeMQError):  # these may be damaged alone
        found = _stored_offsets(record, counts)
    return Entry(record, counts, len(found), tuple(heapq.nlargest(offsets_max, found, key=lambda one: one.lag)))


def _stored_offsets(record: StreamRecord, counts: Counts) -> list[Offset]:
    with closing(StoredOffsets(record.directory)) as stored:
        found = stored.all()
    end = counts.log.next_offset - 1
    return [Offset(name.decode(errors="backslashreplace"), at, max(0, end - at)) for name, at in found.items()]


def age_s(entry: Entry, offset: int, now_ms: int) -> float | None:
    """How long ago the message at ``offset`` was appended; 0: there is none yet, None: that cannot be said."""
    if offset >= entry.counts.log.next_offset:
        return 0.0
    try:
        with closing(Log(entry.record.directory)) as log:
            at_ms = log.time_at(max(offset, entry.counts.log.first_offset))
    except VibeMQError:
        return None
    return None if at_ms is None else max(0.0, (now_ms - at_ms) / 1000)


class Survey:
    """May be used from several threads."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._entries: dict[str, Entry | None] = {}  # by incarnation; looked at longest ago first
        self._counted: dict[str, dict[str, int]] = {}  # of queues, at the last look
        self._began = False
        self.totals: Counter[str] = Counter(_NO_COUNTS)  # of COUNTED, since this process began to look

    def look(self, records: Iterable[StreamRecord]) -> list[Entry]:
        """All of ``records`` that can be read, as they are or were a while ago."""
        with self._lock:
            known = {record.incarnation: record for record in records}
            for incarnation in self._entries.keys() - known.keys():
                del self._entries[incarnation]
                self._counted.pop(incarnation, None)
            until = self._clock() + LOOK_S_MAX
            old = [(incarnation, known[incarnation]) for incarnation in self._entries]
            for incarnation, record in known.items():
                if incarnation not in self._entries:
                    self._take(incarnation, record, is_new=self._began)
            for incarnation, record in old:
                if self._clock() > until:
                    break
                self._take(incarnation, record, is_new=False)
            self._began = True
            return [entry for entry in self._entries.values() if entry is not None]

    def _take(self, incarnation: str, record: StreamRecord, *, is_new: bool) -> None:
        """``is_new``: all that it has counted came since this process began."""
        before, entry = self._entries.pop(incarnation, None), look_at(record, OFFSETS_KEPT_MAX)
        if entry is not None:
            entry = entry._replace(looked_s=self._clock())
            if before is not None:
                passed_s = max(entry.looked_s - before.looked_s, RATE_S_MIN)
                entry = entry._replace(per_s=(entry.counts.log.next_offset - before.counts.log.next_offset) / passed_s)
        self._entries[incarnation] = entry
        if entry is None or entry.counts.queue is None:
            return
        now = {field: getattr(entry.counts.queue, field) for field in COUNTED}
        had = self._counted.get(incarnation, _NO_COUNTS if is_new else now)
        for field in COUNTED:
            self.totals[field] += max(0, now[field] - had[field])
        self._counted[incarnation] = now
