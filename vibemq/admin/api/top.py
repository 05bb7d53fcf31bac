# SPDX-License-Identifier: Apache-2.0
"""What `vibemq ctl top` shows: the processes, and the streams and queues in which most happens."""

from __future__ import annotations

import heapq
import time
from typing import Any

import vibemq
import vibemq.storage.clock as clock
from vibemq.admin.api.calls import Call, bad_request
from vibemq.admin.api.health import alarms_of, disk_free, is_drained, memory_of
from vibemq.admin.api.processes import about
from vibemq.admin.api.service import Api
from vibemq.admin.api.survey import Entry

ROWS_MAX = 1000
ROWS_DEFAULT = 50


def top(api: Api, call: Call) -> Any:
    """``?rows=``: of how many streams and queues.  What ends in _total grows; two answers make a rate of it."""
    wanted = call.query.get("rows", str(ROWS_DEFAULT))
    if not (wanted.isascii() and wanted.isdigit() and int(wanted) <= ROWS_MAX):
        raise bad_request(f"rows is a number up to {ROWS_MAX}, had {wanted!r}")
    entries = api.survey.look(api.metadata.streams())
    used, limit = memory_of(api)
    workers = {name: seat for name, seat in api.meters.items() if name.startswith("worker")}
    return {
        "node": api.node,
        "version": vibemq.__version__,
        "at_s": time.monotonic(),
        "uptime_s": (clock.boot_ms() - api.started_ms) / 1000,
        "alarms": [str(alarm) for alarm in alarms_of(api)],
        "is_drained": is_drained(api),
        "memory_used": used,
        "memory_limit": limit,
        "disk_free": disk_free(api),
        "connections": sum(answer["connections"] for answer in api.workers.statuses()),
        "confirmed_total": _messages(workers, "confirm_os", "confirm_disk", "confirm_remote"),
        "delivered_total": _messages(workers, "deliver_stream", "deliver_queue"),
        "streams": len(entries),
        "processes": [
            {"name": name, "pid": seat.pid, "turning_s_total": seat.histogram("turn").sum_us / 1e6, **about(seat.pid)}
            for name, seat in api.meters.items()
            if seat.pid
        ],
        "rows": [_row(entry) for entry in heapq.nlargest(int(wanted), entries, key=_busy)],
    }


def _messages(workers: Any, *kinds: str) -> int:
    return sum(sum(seat.histogram(kind).buckets) for seat in workers.values() for kind in kinds)


def _busy(entry: Entry) -> tuple[float, int]:
    return entry.per_s, entry.counts.messages


def _row(entry: Entry) -> dict[str, Any]:
    queue = entry.counts.queue
    return {
        **entry.names,
        "type": "stream" if queue is None else "queue",
        "published_per_s": entry.per_s,
        "ready": entry.counts.ready,
        "unacknowledged": entry.counts.unacknowledged,
        "consumers": None if queue is None else queue.consumers,
        "acked_total": None if queue is None else queue.acked,
        "lost_total": None if queue is None else queue.dropped + queue.refused,
        "bytes": entry.counts.log.size_bytes,
        "stored_offset_lag": max((one.lag for one in entry.offsets), default=None),
    }
