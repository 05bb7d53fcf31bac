# SPDX-License-Identifier: Apache-2.0
"""The broker as a whole over the management API: overview, nodes, health, metrics."""

from __future__ import annotations

import heapq
import os
import platform
import time
from contextlib import closing, suppress
from typing import Any

import vibemq
from vibemq.admin.api import remote, transactions
from vibemq.admin.api.calls import Answer, Call, not_found
from vibemq.admin.api.connections import PROTOCOLS, STREAM_PROTOCOL, protocol_of
from vibemq.admin.api.health import alarms_of, is_drained
from vibemq.admin.api.service import Api
from vibemq.admin.api.streams import NOTHING, Counts, counts_of
from vibemq.broker.alarms import Alarm
from vibemq.broker.disk import free_bytes
from vibemq.errors import StorageError, VibeMQError
from vibemq.storage.log import StoredOffsets
from vibemq.storage.records import StreamRecord

CLUSTER_NAME = "vibemq"
#: Of all streams together, those that lag most: a page that Prometheus takes in a second.
STORED_OFFSETS_SHOWN_MAX = 10_000


def overview(api: Api, call: Call) -> Any:
    sessions = list(api.sessions(call.caller))
    records = [record for record in api.metadata.streams() if api.sees(call.caller, record.vhost)]
    ready = unacknowledged = 0
    for record in records:
        try:
            counts = counts_of(record)
        except StorageError:  # the log says so, and the others are wanted all the same
            continue
        ready, unacknowledged = ready + counts.ready, unacknowledged + counts.unacknowledged
    version = api.config.streams.product_version
    return {
        "product_name": "VibeMQ",
        "product_version": vibemq.__version__,
        "management_version": version,
        "rabbitmq_version": version,
        "erlang_version": "27",
        "cluster_name": CLUSTER_NAME,
        "node": api.node,
        "exchange_types": [{"name": "direct", "description": "for super streams", "enabled": True}],
        "listeners": [_listener(api, door, address) for door, address in api.addresses.items()],
        "contexts": [],
        "rates_mode": "none",
        "disable_stats": False,
        "message_stats": {},
        "churn_rates": {},
        "statistics_db_event_queue": 0,
        "object_totals": {
            "connections": len(sessions),
            "channels": 0,
            "consumers": sum(len(session.get("subscriptions", ())) for session in sessions),
            "exchanges": len(api.metadata.exchanges()),
            "queues": len(records),
        },
        "queue_totals": {
            "messages": ready + unacknowledged,
            "messages_ready": ready,
            "messages_unacknowledged": unacknowledged,
        },
    }


def nodes(api: Api, call: Call) -> Any:
    """There is one; or that of the path."""
    if "node" not in call.path:
        return [_node(api)]
    if call.path["node"] != api.node:
        raise not_found()
    return _node(api)


def cluster_name(api: Api, call: Call) -> Any:
    return {"name": CLUSTER_NAME}


def auth(api: Api, call: Call) -> Any:
    return {"oauth_enabled": False}


def _listener(api: Api, door: str, address: str) -> dict[str, Any]:
    host, _, port = address.rpartition(":")
    protocol = PROTOCOLS.get(door, door)
    return {"node": api.node, "protocol": protocol, "ip_address": host.strip("[]"), "port": int(port)}


def _node(api: Api) -> dict[str, Any]:
    limit = api.config.store.disk_free_min_bytes
    alarms = alarms_of(api)
    used, watermark = (0, 0) if api.conditions is None else api.conditions.memory
    answers = api.workers.ask_all("status")
    return {
        "name": api.node,
        "type": "disc",
        "running": True,
        "os_pid": str(os.getppid()),
        "uptime": time.time_ns() // 1_000_000 - api.started_ms,
        "processors": os.cpu_count(),
        "rates_mode": "none",
        "mem_used": used,
        "mem_limit": watermark,
        "mem_alarm": Alarm.MEMORY in alarms,
        "disk_free": _disk_free(api),
        "disk_free_limit": limit,
        "disk_free_alarm": Alarm.DISK in alarms,
        "being_drained": is_drained(api),
        "partitions": [],
        "db_dir": os.path.dirname(api.metadata.path),
        "os": platform.platform(),
        "workers": [{"pid": answer["pid"], "connections": answer["connections"]} for answer in answers],
    }


def _disk_free(api: Api) -> int:
    try:
        return free_bytes(os.path.dirname(api.metadata.path))
    except OSError:
        return 0


# ---- metrics ----

#: Of each queue: name, kind, meaning, the field of QueueStats.
_QUEUE_METRICS = (
    ("messages_ready", "gauge", "messages that wait for a consumer", "waiting"),
    ("messages_unacknowledged", "gauge", "messages that consumers have and have not settled", "in_flight"),
    ("consumers", "gauge", "consumers of the queue", "consumers"),
    ("delivered_total", "counter", "deliveries to consumers, the first of a message and all later ones", "delivered"),
    ("redelivered_total", "counter", "deliveries that were not the first of their message", "redelivered"),
    ("acked_total", "counter", "messages that were acknowledged", "acked"),
    ("dead_lettered_total", "counter", "messages that went to the dead-letter queue", "dead_lettered"),
    ("expired_total", "counter", "messages that were older than the queue's time to live", "expired"),
    ("dropped_total", "counter", "messages lost to a limit, the time to live or failed attempts", "dropped"),
    ("refused_total", "counter", "messages that a full queue did not take, as their publishers were told", "refused"),
    ("purged_total", "counter", "messages that waited when the queue was purged", "purged"),
)


def metrics(api: Api, call: Call) -> Answer:
    """In Prometheus's text format."""
    page = _Page()
    answers = api.workers.ask_all("status")
    page.add("vibemq_build_info", "gauge", "the version that runs", 1, version=vibemq.__version__)
    alarms = alarms_of(api)
    used, watermark = (0, 0) if api.conditions is None else api.conditions.memory
    disk_min = api.config.store.disk_free_min_bytes
    ends = [answer["certificate_ends_s"] for answer in answers if answer.get("certificate_ends_s") is not None]
    for name, about, value in (
        ("alarms_free_disk_space_watermark", "1 while too little disk is free to take messages", Alarm.DISK in alarms),
        ("alarms_memory_used_watermark", "1 while too much memory is used to take messages", Alarm.MEMORY in alarms),
        ("being_drained", "1 in maintenance mode", is_drained(api)),
        ("disk_space_available_bytes", "free where the data lies", _disk_free(api)),
        ("disk_space_available_limit_bytes", "below this the disk alarm is in effect", disk_min),
        ("memory_used_bytes", "of all processes, without the page cache", used),
        ("memory_limit_bytes", "above this the memory alarm is in effect; 0: never", watermark),
        ("uptime_seconds", "since the broker started", time.time() - api.started_ms / 1000),
        ("workers", "worker processes", len(api.workers)),
        ("workers_answering", "worker processes that answer", len(answers)),
        ("connections", "open connections", sum(answer["connections"] for answer in answers)),
    ):
        page.add(f"vibemq_{name}", "gauge", about, +value)
    for name, kind, about, value in transactions.metrics(api):
        page.add(f"vibemq_{name}", kind, about, value)
    for name, kind, about, value, labels in remote.metrics(api):
        page.add(f"vibemq_remote_{name}", kind, about, value, **labels)
    if ends:
        about = "Unix time at which the TLS certificate ends that the doors show"
        page.add("vibemq_tls_certificate_not_after_seconds", "gauge", about, min(ends))
    behind: list[tuple[int, int, dict[str, str]]] = []
    for record in api.metadata.streams():
        try:
            counts = counts_of(record)
        except VibeMQError:  # damaged: the log says so, and the others are wanted all the same
            continue
        with suppress(VibeMQError):  # so may these be alone, and what else is known of the stream is wanted
            behind += _stored_offsets(record, counts)
        names = {"vhost": record.vhost, "stream": record.name}
        page.add("vibemq_stream_messages", "gauge", "records that are kept", counts.kept, **names)
        page.add("vibemq_stream_bytes", "gauge", "size of the segments", counts.log.size_bytes, **names)
        page.add("vibemq_stream_segments", "gauge", "segment files", counts.log.segment_count, **names)
        page.add("vibemq_stream_next_offset", "gauge", "offset of the next record", counts.log.next_offset, **names)
        if counts.queue is not None:
            for name, kind, about, field in _QUEUE_METRICS:
                number = getattr(counts.queue, field)
                page.add(f"vibemq_queue_{name}", kind, about, number, vhost=record.vhost, queue=record.name)
    for lag, offset, names in heapq.nlargest(STORED_OFFSETS_SHOWN_MAX, behind, key=lambda one: one[0]):
        page.add("vibemq_stored_offset", "gauge", "offset that a consumer has stored", offset, **names)
        page.add("vibemq_stored_offset_lag", "gauge", "messages behind a stored offset", lag, **names)
    page.add("vibemq_stored_offsets", "gauge", "stored offsets; those that lag most are shown", len(behind))
    for session in api.workers.sessions():
        if protocol_of(session) != STREAM_PROTOCOL:
            continue
        for one in session.get("publishers", ()):
            names = _labels(session, one, one["publisher_id"], one["reference"])
            for key, done in (("published", "published"), ("confirmed", "confirmed"), ("errored", "refused")):
                page.add(f"vibemq_publisher_{key}_total", "counter", f"messages {done}", one[key], **names)
        for one in session.get("subscriptions", ()):
            names = _labels(session, one, one["subscription_id"], str(one["properties"].get("name", "")))
            page.add("vibemq_consumer_consumed_total", "counter", "messages delivered", one["consumed"], **names)
            page.add("vibemq_consumer_offset_lag", "gauge", "messages behind the end", one["offset_lag"], **names)
    return Answer(200, page.text())


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

    def add(self, name: str, kind: str, about: str, value: float, **labels: Any) -> None:
        if name not in self._metrics:
            self._metrics[name] = [f"# HELP {name} {about}", f"# TYPE {name} {kind}"]
        shown = ",".join(f'{label}="{_escaped(str(value))}"' for label, value in labels.items())
        self._metrics[name].append(f"{name}{{{shown}}} {value}" if shown else f"{name} {value}")

    def text(self) -> str:
        return "".join(f"{line}\n" for lines in self._metrics.values() for line in lines)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
