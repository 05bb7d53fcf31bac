# SPDX-License-Identifier: Apache-2.0
"""What the page shows of the broker as a whole, as the sampler saw it last: overview, node, connections, Spark.

Requests of the management API like any others, below /api/live; what somebody may see is what the same user sees
elsewhere in it. Whoever asks is taken for somebody who goes on looking.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from typing import Any, TypeVar

import vibemq
import vibemq.storage.clock as clock
from vibemq.admin.api import remote, transactions
from vibemq.admin.api.calls import MONITORING, Call, Refused, bad_request
from vibemq.admin.api.connections import PROTOCOLS, protocol_of
from vibemq.admin.api.health import is_drained, memory_of, stalled
from vibemq.admin.api.service import Api
from vibemq.admin.page.sampler import RATES, Sample, Sampler, Seen, messages_in
from vibemq.errors import StorageError
from vibemq.storage.offsets import StoredOffsets

BUSIEST_SHOWN = 8  # streams and queues on the overview
PAGE_ROWS, ROWS_MAX = 50, 500  # of one page of a list
SPARK_PREFIX = "spark-"  # of the names under which Spark's listener stores offsets (vibemq/spark/listener.py)
SPARK_ROWS_MAX = 500  # sources, those that lag most

T = TypeVar("T")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def sampler_of(api: Api) -> Sampler:
    """Raises Refused."""
    if api.sampler is None:
        raise Refused(503, "unavailable", "no broker runs, so nothing can be measured")
    return api.sampler


def seen_by(api: Api, call: Call, sample: Sample) -> list[Seen]:
    """The streams and queues that the caller may look at."""
    vhosts = {record.name for record in api.metadata.vhosts() if api.sees(call.caller, record.name)}
    return [seen for seen in sample.streams.values() if seen.record.vhost in vhosts]


def number(call: Call, name: str, otherwise: int, most: int, least: int = 0) -> int:
    """A whole number of the query.  Raises Refused."""
    said = call.query.get(name, str(otherwise))
    if not (said.isascii() and said.isdigit() and len(said) < 17 and least <= int(said) <= most):
        raise bad_request(f"{name} is {said!r}: a whole number from {least} to {most} is needed")
    return int(said)


# ---- overview ----


def overview(api: Api, call: Call) -> Any:
    """``history`` is the whole broker's, so only for those who may see all of it; from the point ``after`` on."""
    sampler = sampler_of(api)
    sample = sampler.watch()
    seen = seen_by(api, call, sample)
    is_whole = call.caller.level >= MONITORING
    totals = dict(sample.totals) if is_whole else _totals(seen)
    # Of those at rest the fullest: a newcomer's first message, or what nobody consumes.
    busiest = sorted(seen, key=lambda one: (-_pace(one), -one.ready, one.record.vhost, one.record.name))[:BUSIEST_SHOWN]
    queues = sum(one.record.queue is not None for one in seen)
    return {
        "node": api.node,
        "version": vibemq.__version__,
        "uptime_ms": clock.boot_ms() - api.started_ms,
        "sampled_ms": sample.at_ms,
        "totals": totals,
        "streams": len(seen) - queues,
        "queues": queues,
        "damaged": sample.damaged,
        "workers": {"answering": len(sample.workers), "count": len(api.workers)},
        "alarms": sample.alarms,
        "clock": _clock(),
        "stalled": stalled(api)[:1],
        "is_drained": is_drained(api),
        "doors": [{"name": PROTOCOLS.get(door, door), "address": address} for door, address in api.addresses.items()],
        "busiest": [shown(one) for one in busiest if one.is_busy or one.ready],
        "history": sampler.broker_history(number(call, "after", 0, 2**53)) if is_whole else None,
    }


def _clock() -> dict[str, Any]:
    """``step_ms``: the last step of the wall clock, negative if it was set back; 0: there was none."""
    state = clock.state()
    if state is None or not state.steps:
        return {"is_believed": clock.is_believed(), "step_ms": 0, "ago_ms": 0}
    ago_ms = clock.boot_ms() - state.stepped_ms
    return {"is_believed": clock.is_believed(), "step_ms": state.step_ms, "ago_ms": ago_ms}


def _pace(seen: Seen) -> float:
    return seen.published_rate + seen.delivered_rate


def _totals(seen: list[Seen]) -> dict[str, float]:
    return {
        **{name: sum(getattr(one, f"{name}_rate") for one in seen) for name in RATES},
        **messages_in(seen),
    }


def shown(seen: Seen) -> dict[str, Any]:
    """One row of a list of streams and queues; numbers are as of the last look, rates messages a second."""
    return {
        "vhost": seen.record.vhost,
        "name": seen.record.name,
        "kind": "stream" if seen.record.queue is None else "queue",
        "durability": seen.record.durability,
        "ready": seen.ready,
        "unacked": seen.unacked,
        "published": round(seen.published_rate, 1),
        "delivered": round(seen.delivered_rate, 1),
        "acked": round(seen.acked_rate, 1),
        "lost": round(seen.lost_rate, 1),
        "size_bytes": seen.size_bytes,
        "segments": seen.segments,
        "first_offset": seen.log.first_offset,
        "next_offset": seen.log.next_offset,
        "confirmed_offset": seen.log.confirmed_offset,
        "written_ms": seen.log.written_ms,
    }


# ---- the node ----


def node(api: Api, call: Call) -> Any:
    sample = sampler_of(api).watch()
    used, limit = memory_of(api)
    return {
        "node": api.node,
        "version": vibemq.__version__,
        "pid": os.getppid(),
        "uptime_ms": clock.boot_ms() - api.started_ms,
        "data_dir": os.path.dirname(api.metadata.path),
        "memory": {"used_bytes": used, "limit_bytes": limit},
        "disk": {"free_bytes": sample.totals.get("disk_free", 0), "limit_bytes": api.config.store.disk_free_min_bytes},
        "alarms": sample.alarms,
        "clock": _clock(),
        "stalled": stalled(api)[:1],
        "is_drained": is_drained(api),
        "workers": [{**worker, "memory_bytes": _resident_bytes(worker["pid"])} for worker in sample.workers],
        "worker_count": len(api.workers),
        "doors": [{"name": PROTOCOLS.get(door, door), "address": address} for door, address in api.addresses.items()],
        "remote": remote.status(api, call) if api.config.remote.url else None,
    }


def _resident_bytes(pid: int) -> int | None:
    """None: it has just ended."""
    try:
        with open(f"/proc/{pid}/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * _PAGE_BYTES
    except OSError:
        return None


# ---- connections ----


def connections(api: Api, call: Call) -> Any:
    """Those that the caller may see, filtered by ``name``, sorted and paged."""
    sampler = sampler_of(api)
    sampler.watch()
    rows = [
        _connection(session)
        for session in sampler.sessions.get()
        if call.caller.level >= MONITORING or session.get("user") == call.caller.name
    ]
    wanted = call.query.get("name", "").casefold()
    fields = ("name", "user", "vhost", "protocol", "client")
    found = [row for row in rows if any(wanted in row[field].casefold() for field in fields)]
    return paged(call, found, len(rows), dict.__getitem__, lambda row: row, _SORTABLE_CONNECTIONS)


_SORTABLE_CONNECTIONS = ("name", "user", "vhost", "protocol", "state", "connected_ms", "publishers", "consumers",
                         "worker", "client")  # fmt: skip


def _connection(session: dict[str, Any]) -> dict[str, Any]:
    properties = session.get("client_properties") or {}
    words = (properties.get(name, "") for name in ("connection_name", "product", "version"))
    return {
        "name": session["name"],
        "user": session.get("user", ""),
        "vhost": session.get("vhost", ""),
        "protocol": protocol_of(session),
        "is_tls": bool(session.get("is_tls")),
        "state": session.get("state", ""),
        "connected_ms": session.get("connected_at", 0),
        "worker": session["worker"],
        "client": " ".join(str(word) for word in words if word),
        "publishers": len(session.get("publishers", ())),
        "consumers": len(session.get("subscriptions", ())),
    }


def paged(
    call: Call, found: list[T], total: int, value: Callable[[T, str], Any], show: Callable[[T], Any],
    sortable: tuple[str, ...],
) -> dict[str, Any]:  # fmt: skip
    """The page of what was ``found`` that the query asks for; behind the last page it is the last one.

    ``value`` is what one has in a column, by name where they have the same; None, what is not known, comes last. Only
    what is on the page is made a row of, by ``show``.  Raises Refused.
    """
    column = call.query.get("sort", "name")
    if column not in sortable:
        raise bad_request(f"sort is {column!r}: {', '.join(sortable)} are there")
    size = number(call, "page_size", PAGE_ROWS, ROWS_MAX, 1)
    pages = max(1, -(-len(found) // size))
    page = min(number(call, "page", 1, 2**31, 1), pages)
    is_reverse = call.query.get("sort_reverse") == "true"
    keyed = sorted((value(one, "name"), at) for at, one in enumerate(found))
    rows = [found[at] for _, at in keyed]
    if column != "name":
        unknown = [one for one in rows if value(one, column) is None]
        rows = [one for one in rows if value(one, column) is not None] if unknown else rows
        rows.sort(key=lambda one: value(one, column), reverse=is_reverse)
        rows += unknown
    elif is_reverse:
        rows.reverse()
    return {
        "rows": [show(one) for one in rows[(page - 1) * size : page * size]],
        "found": len(found),
        "total": total,
        "page": page,
        "pages": pages,
    }


# ---- Spark ----


def spark(api: Api, call: Call) -> Any:
    """Queries that read, by the offsets that their listener stores, and applications that write."""
    sample = sampler_of(api).watch()
    found: list[dict[str, Any]] = []
    for seen in seen_by(api, call, sample):
        found += [
            {"query": name.removeprefix(SPARK_PREFIX), "vhost": seen.record.vhost, "stream": seen.record.name,
             "offset": at, "lag": max(0, seen.log.next_offset - 1 - at), "published": round(seen.published_rate, 1)}
            for name, at in stored_offsets(seen.record.directory).items()
            if name.startswith(SPARK_PREFIX)
        ]  # fmt: skip
    found.sort(key=lambda row: (-row["lag"], row["query"], row["stream"]))
    return {"sources": found[:SPARK_ROWS_MAX], "found": len(found), "sinks": transactions.list_transactions(api, call)}


def stored_offsets(directory: str) -> dict[str, int]:
    """By the names of consumers; nothing where the files are gone."""
    if not os.path.exists(os.path.join(directory, "offsets")):
        return {}
    try:
        with closing(StoredOffsets(directory)) as stored:
            return {name.decode(errors="backslashreplace"): at for name, at in stored.all().items()}
    except StorageError:  # the log says why
        return {}
