# SPDX-License-Identifier: Apache-2.0
"""/metrics, in Prometheus's text format.  All names begin with vibemq_, and those of counters end with _total."""

from __future__ import annotations

import heapq
import time
from contextlib import closing, suppress
from typing import Any

import vibemq
from vibemq.admin.api import remote, transactions
from vibemq.admin.api.calls import Answer, Call
from vibemq.admin.api.connections import STREAM_PROTOCOL, protocol_of
from vibemq.admin.api.counts import NOTHING, Counts, counts_of
from vibemq.admin.api.health import alarms_of, disk_free, is_drained, memory_of
from vibemq.admin.api.service import Api
from vibemq.broker.alarms import Alarm
from vibemq.errors import VibeMQError
from vibemq.storage.offsets import StoredOffsets
from vibemq.storage.records import StreamRecord

#: Of all streams together, those that lag most: a page that Prometheus takes in a second.
STORED_OFFSETS_SHOWN_MAX = 10_000
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
    ("purged_total", "messages that waited when the queue was purged", "purged"),
)


def metrics(api: Api, call: Call) -> Answer:
    page = _Page()
    _add_broker(api, page)
    for name, about, value in transactions.metrics(api):
        page.add(name, about, value)
    for name, about, number, labels in remote.metrics(api):
        page.add(f"remote_{name}", about, number, **labels)
    _add_streams(api, page)
    _add_stream_sessions(api, page)
    return Answer(200, page.text())


def _add_broker(api: Api, page: _Page) -> None:
    answers, alarms = api.workers.ask_all("status"), alarms_of(api)
    used, watermark = memory_of(api)
    disk_min = api.config.store.disk_free_min_bytes
    page.add("build_info", "the version that runs", 1, version=vibemq.__version__)
    for name, about, value in (
        ("alarms_free_disk_space_watermark", "1 while too little disk is free to take messages", Alarm.DISK in alarms),
        ("alarms_memory_used_watermark", "1 while too much memory is used to take messages", Alarm.MEMORY in alarms),
        ("being_drained", "1 in maintenance mode", is_drained(api)),
        ("disk_space_available_bytes", "free where the data lies", disk_free(api)),
        ("disk_space_available_limit_bytes", "below this the disk alarm is in effect", disk_min),
        ("memory_used_bytes", "of all processes, without the page cache", used),
        ("memory_limit_bytes", "above this the memory alarm is in effect; 0: never", watermark),
        ("uptime_seconds", "since the broker started", time.time() - api.started_ms / 1000),
        ("workers", "worker processes", len(api.workers)),
        ("workers_answering", "worker processes that answer", len(answers)),
        ("connections", "open connections", sum(answer["connections"] for answer in answers)),
    ):
        page.add(name, about, +value)
    ends = [answer["certificate_ends_s"] for answer in answers if answer.get("certificate_ends_s") is not None]
    if ends:
        about = "Unix time at which the TLS certificate ends that the doors show"
        page.add("tls_certificate_not_after_seconds", about, min(ends))


def _add_streams(api: Api, page: _Page) -> None:
    behind: list[tuple[int, int, dict[str, str]]] = []
    for record in api.metadata.streams():
        try:
            counts = counts_of(record)
        except VibeMQError:  # damaged: the log says so, and the others are wanted all the same
            continue
        with suppress(VibeMQError):  # so may these be alone, and what else is known of the stream is wanted
            behind += _stored_offsets(record, counts)
        names = {"vhost": record.vhost, "stream": record.name}
        page.add("stream_messages", "records that are kept", counts.kept, **names)
        page.add("stream_bytes", "size of the segments", counts.log.size_bytes, **names)
        page.add("stream_segments", "segment files", counts.log.segment_count, **names)
        page.add("stream_next_offset", "offset of the next record", counts.log.next_offset, **names)
        if counts.queue is not None:
            for name, about, field in _QUEUE_METRICS:
                value = getattr(counts.queue, field)
                page.add(f"queue_{name}", about, value, vhost=record.vhost, queue=record.name)
    for lag, offset, names in heapq.nlargest(STORED_OFFSETS_SHOWN_MAX, behind, key=lambda one: one[0]):
        page.add("stored_offset", "offset that a consumer has stored", offset, **names)
        page.add("stored_offset_lag", "messages behind a stored offset", lag, **names)
    page.add("stored_offsets", "stored offsets; those that lag most are shown", len(behind))


def _add_stream_sessions(api: Api, page: _Page) -> None:
    for session in api.workers.sessions():
        if protocol_of(session) != STREAM_PROTOCOL:
            continue
        for one in session.get("publishers", ()):
            names = _labels(session, one, one["publisher_id"], one["reference"])
            for key, done in (("published", "published"), ("confirmed", "confirmed"), ("errored", "refused")):
                page.add(f"publisher_{key}_total", f"messages {done}", one[key], **names)
        for one in session.get("subscriptions", ()):
            names = _labels(session, one, one["subscription_id"], str(one["properties"].get("name", "")))
            page.add("consumer_consumed_total", "messages delivered", one["consumed"], **names)
            page.add("consumer_offset_lag", "messages behind the end", one["offset_lag"], **names)


def _stored_offsets(record: StreamRecord, counts: Counts) -> list[tuple[int, int, dict[str, str]]]:
    """Of each: how many messages come after it, the offset, and whose it is."""
    if counts is NOTHING:
        return []
    with closing(StoredOffsets(record.directory)) as stored:
        found = stored.all()
    end, names = counts.log.next_offset - 1, {"vhost": record.vhost, "stream": record.name}
    shown = ((name.decode(errors="backslashreplace"), at) for name, at in found.items())
    return [(max(0, end - at), at, {**names, "reference": name}) for name, at in shown]


def _labels(session: dict[str, Any], user: dict[str, Any], number: int, name: str) -> dict[str, Any]:
    about = {"vhost": session["vhost"], "stream": user["stream"], "connection": session["name"]}
    return {**about, "id": number, "reference": name}


class _Page:
    """Samples by metric, because all of one must stand together."""

    def __init__(self) -> None:
        self._metrics: dict[str, list[str]] = {}

    def add(self, name: str, about: str, value: float, **labels: Any) -> None:
        name = f"vibemq_{name}"
        if name not in self._metrics:
            kind = "counter" if name.endswith("_total") else "gauge"
            self._metrics[name] = [f"# HELP {name} {about}", f"# TYPE {name} {kind}"]
        shown = ",".join(f'{label}="{_escaped(str(value))}"' for label, value in labels.items())
        self._metrics[name].append(f"{name}{{{shown}}} {value}" if shown else f"{name} {value}")

    def text(self) -> str:
        return "".join(f"{line}\n" for lines in self._metrics.values() for line in lines)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
