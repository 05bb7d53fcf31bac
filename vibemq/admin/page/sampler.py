# SPDX-License-Identifier: Apache-2.0
"""Rates, and what else has to be looked at twice: a thread of the admin process that goes over all streams.

What it reads are files and shared pages, so that workers are asked one short question each, whoever and however many
look: every LIVE_S while somebody does, and every few seconds for the history of the last hour while nobody does.
However many streams there are, it takes no more than a share of one processor: it looks less often then.

What takes the workers more, connections and readers, is asked for when a page that shows them is open, once for all
who look at that moment.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from vibemq.admin.api.health import alarms_of, disk_free, memory_of
from vibemq.admin.api.service import Api
from vibemq.admin.page.rings import POINT_S, History
from vibemq.errors import StorageError, VibeMQError
from vibemq.once_a_minute import OnceAMinute
from vibemq.storage.figures import LogFigures, log_figures
from vibemq.storage.ledger import QueueStats, queue_stats
from vibemq.storage.log import Log
from vibemq.storage.records import StreamRecord

LIVE_S = 1.0  # between two looks while somebody watches
WATCHED_S = 5.0  # a page that is open asks every second; one that has not for so long is closed, or hidden
SHARE_MAX = 0.05  # of one processor, for looking
LISTINGS_MAX = 1000  # of segments, in one look: a tenth of a millisecond each
RATES = ("published", "delivered", "acked", "lost")
STREAM_SERIES = (*RATES, "ready", "unacked")
BROKER_SERIES = (*STREAM_SERIES, "retained", "connections", "memory")
_END_S = 0.2  # for the thread, at the end: what it waits for then, nobody wants

log = logging.getLogger("vibemq.admin")
failing = OnceAMinute(log)
T = TypeVar("T")


@dataclass(slots=True)
class Seen:
    """One stream or queue as it was with the last look; rates are messages a second, since the one before."""

    record: StreamRecord
    log: LogFigures
    queue: QueueStats | None = None
    segments: int | None = None  # None: not counted yet
    closed_bytes: int = 0
    published_rate: float = 0.0
    delivered_rate: float = 0.0
    acked_rate: float = 0.0
    lost_rate: float = 0.0  # messages dropped, or refused by a full queue

    @property
    def ready(self) -> int:
        return self.log.next_offset - self.log.first_offset if self.queue is None else self.queue.waiting

    @property
    def unacked(self) -> int:
        return 0 if self.queue is None else self.queue.in_flight

    @property
    def size_bytes(self) -> int | None:
        return None if self.segments is None else self.closed_bytes + self.log.active_bytes

    @property
    def is_busy(self) -> bool:
        return bool(self.published_rate or self.delivered_rate or self.acked_rate or self.lost_rate)


@dataclass(frozen=True, slots=True)
class Sample:
    """One look at everything; ``streams`` by incarnation, ``workers`` as they answered."""

    at_s: float = 0.0  # by the monotonic clock; 0: there was none
    at_ms: int = 0  # by the wall clock
    streams: dict[str, Seen] = field(default_factory=dict)
    workers: list[dict[str, Any]] = field(default_factory=list)
    totals: dict[str, float] = field(default_factory=dict)
    alarms: list[str] = field(default_factory=list)
    damaged: int = 0  # streams that could not be read


class Shared(Generic[T]):
    """What is asked for once for all who want it at that moment, and then kept for LIVE_S.

    It is kept longer where asking takes long: no more than a share of the time goes to it.
    """

    def __init__(self, ask: Callable[[], T]) -> None:
        self._ask = ask
        self._lock = threading.Lock()
        self._found: T | None = None
        self._until_s = 0.0

    def get(self) -> T:
        with self._lock:
            began_s = time.monotonic()
            if self._found is None or began_s >= self._until_s:
                self._found = self._ask()
                now_s = time.monotonic()
                self._until_s = now_s + max(LIVE_S * 0.9, (now_s - began_s) / SHARE_MAX)
            return self._found


class Sampler:
    """May be asked from several threads; ``start`` begins to look."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._history = History(BROKER_SERIES, STREAM_SERIES)
        self._lock = threading.Lock()  # of the history
        self.sample = Sample()
        self.sessions = Shared(lambda: list(api.workers.sessions()))
        self.readers: Shared[Counter[tuple[str, str]]] = Shared(api.workers.readers)
        self._watched_s = -WATCHED_S
        self._came = threading.Event()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)
        self._unread: set[str] = set()  # by the last look, by incarnation
        self._commits = -1
        self._records: list[StreamRecord] = []
        self._point = Sample()  # the look of the history's last point

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._over.set()
        self._came.set()
        if self._thread.is_alive():
            self._thread.join(_END_S)

    def watch(self) -> Sample:
        """What was seen last, for somebody who goes on looking."""
        was_watched = self._is_watched()
        self._watched_s = time.monotonic()
        if not was_watched:
            self._came.set()
        return self.sample

    def _is_watched(self) -> bool:
        return time.monotonic() - self._watched_s < WATCHED_S

    def broker_history(self, after: int) -> dict[str, Any]:
        with self._lock:
            return self._history.broker_since(after)

    def stream_history(self, incarnation: str, after: int) -> dict[str, Any]:
        with self._lock:
            self._history.want(incarnation)
            return self._history.stream_since(incarnation, after)

    # ---- the thread ----

    def _run(self) -> None:
        while not self._over.is_set():
            began_s = time.monotonic()
            try:
                self.look(began_s)
            except VibeMQError as problem:
                failing.say("look", "rates cannot be measured now: %s", problem)
            except Exception as problem:  # a mistake of ours; the next look may succeed
                if failing.say("look", "rates cannot be measured, by an error of ours: %r", problem):
                    log.error("it was raised here", exc_info=problem)
            took_s = time.monotonic() - began_s
            pause_s = max(LIVE_S if self._is_watched() else POINT_S, took_s / SHARE_MAX) - took_s
            self._came.clear()
            if self._came.wait(pause_s):
                # Somebody came: what is older than LIVE_S is looked at again, and nothing more often.
                self._over.wait(max(0.0, min(pause_s, began_s + LIVE_S - time.monotonic())))
        self._api.metadata.close()

    def look(self, now_s: float) -> None:
        """Take one sample; called by the thread only, and by tests."""
        before = self.sample
        elapsed_s = now_s - before.at_s if before.at_s else 0.0
        commits = self._api.metadata.commits_seen()
        if commits != self._commits:
            self._records, self._commits = list(self._api.metadata.streams()), commits
        streams: dict[str, Seen] = {}
        moved: Counter[str] = Counter()
        unread: set[str] = set()
        listings = LISTINGS_MAX
        for record in self._records:
            old = before.streams.get(record.incarnation)
            seen = self._seen(record, old)
            if seen is None:
                unread.add(record.incarnation)
                continue
            if seen.segments is None and listings:
                listings -= 1
                _count_segments(seen)
            if elapsed_s:
                counts = _moved(seen, old, before.at_ms)
                moved.update(counts)
                for name in RATES:
                    setattr(seen, f"{name}_rate", counts[name] / elapsed_s)
            streams[record.incarnation] = seen
        workers = self._api.workers.statuses()
        moved["delivered"] += _delivered(workers, before.workers)
        totals = {
            **{name: moved[name] / elapsed_s if elapsed_s else 0.0 for name in RATES},
            **messages_in(streams.values()),
            "connections": sum(worker["connections"] for worker in workers),
            "memory": memory_of(self._api)[0],
            "disk_free": disk_free(self._api),
        }
        alarms = [str(alarm) for alarm in alarms_of(self._api)]
        damaged = len(unread & self._unread)  # one that is just being deleted is not there the next time
        self._unread = unread
        self.sample = Sample(now_s, int(time.time() * 1000), streams, workers, totals, alarms, damaged)
        self._remember(now_s)

    def _seen(self, record: StreamRecord, old: Seen | None) -> Seen | None:
        figures = log_figures(record.directory)
        if figures is None:
            return None
        seen = Seen(record, figures)
        if old is not None and old.log.segments_generation == figures.segments_generation:
            seen.segments, seen.closed_bytes = old.segments, old.closed_bytes
        if record.queue is not None:
            try:
                seen.queue = queue_stats(record.directory, figures.next_offset)
            except StorageError:  # it is being made or deleted, or the log says why
                return None
        return seen

    def _remember(self, now_s: float) -> None:
        """A point of the history, where it is time for one: the rates since the one before."""
        since_s = now_s - self._point.at_s
        if since_s < POINT_S * 0.9:
            return
        moved: Counter[str] = Counter()
        points: dict[str, dict[str, float]] = {}
        with self._lock:
            wanted = self._history.remembered
            for incarnation, seen in self.sample.streams.items():
                counts = _moved(seen, self._point.streams.get(incarnation), self._point.at_ms)
                moved.update(counts)
                if any(counts.values()) or incarnation in wanted:
                    rates = {name: count / since_s for name, count in counts.items()}
                    points[incarnation] = {**rates, "ready": seen.ready, "unacked": seen.unacked}
            moved["delivered"] += _delivered(self.sample.workers, self._point.workers)
            if self._point.at_s:  # the first look only begins
                rates = {name: moved[name] / since_s for name in RATES}
                self._history.put(self.sample.at_ms / 1000, {**self.sample.totals, **rates}, points)
        self._point = self.sample


def messages_in(everything: Collection[Seen]) -> dict[str, int]:
    """Count messages that wait in queues or are in flight, and apart from them the messages that streams retain."""
    return {
        "ready": sum(seen.ready for seen in everything if seen.queue is not None),
        "unacked": sum(seen.unacked for seen in everything),
        "retained": sum(seen.ready for seen in everything if seen.queue is None),
    }


def _count_segments(seen: Seen) -> None:
    try:
        with closing(Log(seen.record.directory)) as opened:
            stats = opened.stats()
    except StorageError:  # gone, or the log says why
        return
    seen.segments = stats.segment_count
    seen.closed_bytes = max(0, stats.size_bytes - seen.log.active_bytes)


def _moved(seen: Seen, old: Seen | None, old_ms: int) -> dict[str, int]:
    """Count messages published, delivered, acknowledged, and dropped or refused since `old`.

    A stream or queue that was made since then counts all its messages.
    """
    is_new = old is None and seen.record.created_ms >= old_ms > 0
    if old is None and not is_new:
        return dict.fromkeys(RATES, 0)
    counts = dict.fromkeys(RATES, 0)
    counts["published"] = max(0, seen.log.next_offset - (0 if old is None else old.log.next_offset))
    if seen.queue is not None:
        had = None if old is None else old.queue
        counts["delivered"] = max(0, seen.queue.delivered - (0 if had is None else had.delivered))
        counts["acked"] = max(0, seen.queue.acked - (0 if had is None else had.acked))
        counts["lost"] = max(0, _lost(seen.queue) - (0 if had is None else _lost(had)))
    return counts


def _lost(queue: QueueStats) -> int:
    return queue.dropped + queue.refused


def _delivered(now: Iterable[dict[str, Any]], before: Iterable[dict[str, Any]]) -> int:
    """What workers have sent to readers of streams since; one that is new on its seat began at nothing."""
    had = {worker["pid"]: worker["delivered"] for worker in before}
    known = [(worker["delivered"], had.get(worker["pid"], 0)) for worker in now] if had else []
    return sum(max(0, count - old) for count, old in known)
