# SPDX-License-Identifier: Apache-2.0
"""Metrics of single streams, queues, stored offsets, publishers and consumers, of each kind up to a number."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Collection, Iterable
from functools import cached_property
from typing import Any, TypeVar

from vibemq.admin.api.connections import protocol_of
from vibemq.admin.api.exposition import Page
from vibemq.admin.api.service import Api
from vibemq.admin.api.survey import Entry, age_s, look_at
from vibemq.storage.ledger import QueueStats

T = TypeVar("T")
#: Of each queue: name, meaning, the field of QueueStats.
_QUEUE_METRICS = (
    ("messages_ready", "messages that wait for a consumer", "waiting"),
    ("messages_unacknowledged", "messages that consumers have and have not settled", "in_flight"),
    ("consumers", "consumers of the queue", "consumers"),
    ("delivered_total", "deliveries to consumers, the first of a message and all later ones", "delivered"),
    ("redelivered_total", "deliveries that were not the first of their message", "redelivered"),
    ("acked_total", "messages that were acknowledged", "acked"),
    ("dead_lettered_total", "messages that went to the dead-letter queue", "dead_lettered"),
    ("expired_total", "messages that were older than the queue's time to live", "expired"),
    ("dropped_total", "messages lost to a limit, the time to live or failed attempts", "dropped"),
    ("refused_total", "messages that a full queue did not take, as their publishers were told", "refused"),
    ("members_away", "members of a fan-out that vanished and still have copies", "away"),
    ("purged_total", "messages that waited when the queue was purged", "purged"),
    ("failing_messages", "messages without a limit of attempts that failed three deliveries or more", "failing"),
)
_STREAM_METRICS: tuple[tuple[str, str, Callable[[Entry], int]], ...] = (
    ("messages", "records that are kept", lambda entry: entry.counts.kept),
    ("bytes", "size of the segments", lambda entry: entry.counts.log.size_bytes),
    ("segments", "segment files", lambda entry: entry.counts.log.segment_count),
    (
        "messages_unconfirmed",
        "records that are not delivered yet: they wait for a sync, or for the object store",
        lambda entry: entry.counts.log.next_offset - entry.counts.log.confirmed_offset,
    ),
    ("next_offset", "offset of the next record", lambda entry: entry.counts.log.next_offset),
)


class Objects:
    """What one page says of them.  ``most`` of each kind; ``is_detailed``: each is looked at now, and only those in
    ``vhosts``, if any are named."""

    def __init__(
        self, api: Api, page: Page, most: int, *, is_detailed: bool = False, vhosts: Collection[str] = ()
    ) -> None:  # fmt: skip
        self._api, self._page, self._most = api, page, most
        self._is_detailed, self._vhosts = is_detailed, vhosts
        self._now_ms = time.time_ns() // 1_000_000

    @cached_property
    def _entries(self) -> list[Entry]:
        records = self._api.metadata.streams()
        if not self._is_detailed:
            return self._api.survey.look(records)
        asked = (record for record in records if not self._vhosts or record.vhost in self._vhosts)
        return [entry for record in asked if (entry := look_at(record, self._most)) is not None]

    @cached_property
    def _queues(self) -> list[tuple[Entry, QueueStats]]:
        return [(entry, entry.counts.queue) for entry in self._entries if entry.counts.queue is not None]

    @cached_property
    def _by_name(self) -> dict[tuple[str, str], Entry]:
        return {(entry.record.vhost, entry.record.name): entry for entry in self._entries}

    @cached_property
    def _sessions(self) -> list[dict[str, Any]]:
        found = self._api.workers.sessions()
        return [one for one in found if not self._vhosts or one.get("vhost") in self._vhosts]

    def add_totals(self) -> None:
        """Over all streams and queues, whether they are shown one by one or not."""
        add, queues = self._page.add, [queue for _, queue in self._queues]
        add("streams", "streams, and the logs of queues", len(self._entries))
        add("queues", "queues", len(queues))
        for name, about, of in _STREAM_METRICS[:-1]:
            add(f"streams_{name}", f"{about}, of all streams and queues", sum(map(of, self._entries)))
        for name, about, field in _QUEUE_METRICS:
            about = f"{about}, of all queues"
            if name.endswith("_total"):
                add(f"queues_{name}", about, self._api.survey.totals[field])
            else:
                about = about.replace("of the queue, ", "")
                add(f"queues_{name}", about, sum(getattr(queue, field) for queue in queues))
        add("stored_offsets", "stored offsets; those that lag most are shown", sum(one.stored for one in self._entries))
        used = [session.get(key, ()) for session in self._sessions for key in ("publishers", "subscriptions")]
        add("publishers", "publishers of all doors", sum(map(len, used[::2])))
        add("consumers", "consumers of all doors", sum(map(len, used[1::2])))

    def add_streams(self) -> None:
        for entry in self._first(self._entries, lambda entry: entry.counts.log.size_bytes):
            for name, about, of in _STREAM_METRICS:
                self._page.add(f"stream_{name}", about, of(entry), **entry.names)

    def add_queues(self) -> None:
        for entry, queue in self._first(self._queues, lambda pair: pair[0].counts.messages):
            names = {"vhost": entry.record.vhost, "queue": entry.record.name}
            for name, about, field in _QUEUE_METRICS:
                self._page.add(f"queue_{name}", about, getattr(queue, field), **names)
            if queue.failing:
                about = "offset of the message that failed most often, in a queue without a limit of attempts"
                self._page.add("queue_failing_message_offset", about, queue.failing_offset, **names)
                about = "failed deliveries of that message"
                self._page.add("queue_failing_message_deliveries", about, queue.failing_deliveries, **names)
            oldest = queue.base if entry.counts.messages else entry.counts.log.next_offset
            if (age := age_s(entry, oldest, self._now_ms)) is not None:
                about = "age of the oldest message that is not settled; 0: there is none"
                self._page.add("queue_oldest_message_age_seconds", about, age, **names)

    def add_stored_offsets(self) -> None:
        behind = [(one, entry) for entry in self._entries for one in entry.offsets]
        for one, entry in self._first(behind, lambda pair: pair[0].lag):
            names = {**entry.names, "reference": one.reference}
            self._page.add("stored_offset", "offset that a consumer has stored", one.offset, **names)
            self._page.add("stored_offset_lag", "messages behind a stored offset", one.lag, **names)
            if (age := age_s(entry, one.offset + 1, self._now_ms)) is not None:
                about = "age of the first message behind a stored offset; 0: there is none"
                self._page.add("stored_offset_lag_seconds", about, age, **names)

    def add_publishers(self) -> None:
        """Those that publish by offset; what comes through the other doors has no publisher that is counted."""
        found = [(session, one) for session in self._sessions for one in session.get("publishers", ())]
        counted = [(session, one) for session, one in found if "published" in one]
        for session, one in self._first(counted, lambda pair: pair[1]["published"]):
            names = _labels(session, one, one["publisher_id"], one["reference"])
            for key, done in (("published", "published"), ("confirmed", "confirmed"), ("errored", "refused")):
                self._page.add(f"publisher_{key}_total", f"messages {done}", one[key], **names)

    def add_consumers(self) -> None:
        found = [(session, one) for session in self._sessions for one in session.get("subscriptions", ())]
        lags = [(self._lag(session, one), session, one) for session, one in found]
        for lag, session, one in self._first(lags, lambda each: -1 if each[0] is None else each[0][0]):
            name = str(one["properties"].get("name", ""))
            names = _labels(session, one, one["subscription_id"], name) | {"protocol": protocol_of(session)}
            if "consumed" in one:
                self._page.add("consumer_consumed_total", "messages delivered", one["consumed"], **names)
            if "in_flight" in one and "next_offset" not in one:
                about = "messages that the consumer has and has not settled"
                self._page.add("consumer_messages_unacknowledged", about, one["in_flight"], **names)
            if lag is None:
                continue
            messages, entry, oldest = lag
            about = "messages behind the end; of a queue, those that wait and those that the consumer has"
            self._page.add("consumer_offset_lag", about, messages, **names)
            if (age := age_s(entry, oldest, self._now_ms) if messages else 0.0) is not None:
                about = "age of the first message that the consumer has not got, or of its queue's oldest; 0: none"
                self._page.add("consumer_lag_seconds", about, age, **names)

    def _lag(self, session: dict[str, Any], one: dict[str, Any]) -> tuple[int, Entry, int] | None:
        """How many messages, of what, and the offset of the first; None: its stream is gone, or was not looked at."""
        entry = self._by_name.get((session.get("vhost", ""), one["stream"]))
        if entry is None:
            return None
        end = entry.counts.log.next_offset
        if one.get("next_offset") is not None:  # it reads by offset
            behind: int = one.get("offset_lag", max(0, end - one["next_offset"]))
            return behind, entry, one["next_offset"]
        if entry.counts.queue is None or "in_flight" not in one:
            return None
        return entry.counts.ready + one["in_flight"], entry, entry.counts.queue.base

    def _first(self, found: Iterable[T], of: Callable[[T], int]) -> list[T]:
        return heapq.nlargest(self._most, found, key=of)


def _labels(session: dict[str, Any], user: dict[str, Any], number: int, name: str) -> dict[str, Any]:
    about = {"vhost": session["vhost"], "stream": user["stream"], "connection": session["name"]}
    return {**about, "id": number, "reference": name}
