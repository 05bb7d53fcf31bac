# SPDX-License-Identifier: Apache-2.0
"""The broker as a whole over the management API: overview and nodes."""

from __future__ import annotations

import os
import platform
from typing import Any

import vibemq
import vibemq.storage.clock as clock
from vibemq.admin.api.calls import Call, not_found
from vibemq.admin.api.connections import PROTOCOLS
from vibemq.admin.api.counts import counts_of
from vibemq.admin.api.health import alarms_of, disk_free, is_drained, memory_of, stalled
from vibemq.admin.api.processes import about
from vibemq.admin.api.service import Api
from vibemq.broker.alarms import Alarm
from vibemq.errors import StorageError

CLUSTER_NAME = "vibemq"
PROCESSES_MAX = 1 << 22  # of Linux on 64 bits (PID_MAX_LIMIT)


def overview(api: Api, call: Call) -> Any:
    sessions = list(api.sessions(call.caller))
    records = api.seen(call, api.metadata.streams())
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
        "message_stats": _rates(api),
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


def _rates(api: Api) -> dict[str, Any]:
    """Rates of the last seconds; totals would fall with each queue that is deleted."""
    totals = {} if api.sampler is None else api.sampler.sample.totals
    names = {"publish": "published", "deliver_get": "delivered", "ack": "acked"}
    return {f"{name}_details": {"rate": round(totals.get(ours, 0.0), 3)} for name, ours in names.items()}


def nothing(api: Api, call: Call) -> Any:
    """What RabbitMQ has and a broker without AMQP 0.9.1, plugins and a cluster has none of.  Raises Refused."""
    api.vhost_of(call)
    return []


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
    used, watermark = memory_of(api)
    answers = api.workers.statuses()
    processes_max = os.sysconf("SC_CHILD_MAX")
    processes = [found for seat in api.meters.values() if (found := about(seat.pid))]
    return {
        "name": api.node,
        "type": "disc",
        "running": True,
        "os_pid": str(os.getppid()),
        "uptime": clock.boot_ms() - api.started_ms,
        "processors": os.cpu_count(),
        "fd_used": sum(int(process["open_fds"]) for process in processes),
        "fd_total": sum(int(process["max_fds"]) for process in processes),
        "sockets_used": sum(answer["connections"] for answer in answers),
        "sockets_total": api.config.server.connections_max * len(answers),
        "proc_used": len(processes),
        "proc_total": processes_max if 0 < processes_max < PROCESSES_MAX else PROCESSES_MAX,
        "run_queue": 0,
        "rates_mode": "none",
        "mem_used": used,
        "mem_limit": watermark,
        "mem_alarm": Alarm.MEMORY in alarms,
        "disk_free": disk_free(api),
        "disk_free_limit": limit,
        "disk_free_alarm": Alarm.DISK in alarms,
        "being_drained": is_drained(api),
        "stalled_file_calls": stalled(api),
        "partitions": [],
        "db_dir": os.path.dirname(api.metadata.path),
        "os": platform.platform(),
        "workers": [{"pid": answer["pid"], "connections": answer["connections"]} for answer in answers],
    }
