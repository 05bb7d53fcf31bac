# SPDX-License-Identifier: Apache-2.0
"""/metrics and /metrics/detailed, in Prometheus's text format.

/metrics has the broker, its processes, latencies, what is summed over all streams and queues, and of single ones the
first admin.metrics_objects_max of each kind: those that are largest or lag most.  /metrics/detailed has what it is
asked for by ``family=`` and ``vhost=``, each of which may come several times, up to DETAILED_MAX of each kind.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import vibemq
import vibemq.storage.clock as clock
from vibemq.admin.api import processes, remote, transactions
from vibemq.admin.api.calls import Answer, Call, bad_request, values
from vibemq.admin.api.exposition import Histogram, Page
from vibemq.admin.api.health import alarms_of, disk_free, is_drained, memory_of
from vibemq.admin.api.metrics_objects import Objects
from vibemq.admin.api.service import Api
from vibemq.broker.alarms import Alarm
from vibemq.broker.limits import refused_total
from vibemq.storage.calls import SLOW_MS

DETAILED_MAX = 100_000  # of each kind: some tens of MB, which whoever asks for all has asked for
_ABOUT_PROCESS = {
    "open_fds": "file descriptors that are open",
    "max_fds": "file descriptors that may be open",
    "cpu_seconds_total": "processor time used",
    "resident_memory_bytes": "memory in use, with what it shares with the others",
}
#: Of a histogram: its name and meaning, its label, where it is counted, and which powers of two of a microsecond
#: bound its buckets: what is quicker than the first needs no telling apart.
_HISTOGRAMS: tuple[tuple[str, str, str, dict[str, str], range], ...] = (
    (
        "confirm_latency_seconds",
        "by messages: from the turn in which a worker read them until it confirmed them",
        "durability",
        {"os": "confirm_os", "disk": "confirm_disk", "remote": "confirm_remote"},
        range(4, 27),
    ),
    (
        "delivery_latency_seconds",
        "by messages: their age when they were written to a consumer; who reads a backlog gets old ones",
        "source",
        {"stream": "deliver_stream", "queue": "deliver_queue"},
        range(10, 32),
    ),
    ("fdatasync_seconds", "what an fdatasync of a log took", "", {"": "sync"}, range(6, 27)),
)
_TURN = range(4, 25)


def metrics(api: Api, call: Call) -> Answer:
    page = Page()
    for add in _BROKER.values():
        add(api, page)
    objects = Objects(api, page, api.config.admin.metrics_objects_max)
    objects.add_totals()
    for add_objects in _OBJECTS.values():
        add_objects(objects)
    return Answer(200, page.text())


def detailed(api: Api, call: Call) -> Answer:
    """Raises Refused where it is asked for what there is not."""
    vhosts = values(call, "vhost")
    for vhost in vhosts:
        api.require_seen(call.caller, vhost)
    families = values(call, "family") or [*_BROKER, *_OBJECTS]
    page = Page()
    objects = Objects(api, page, DETAILED_MAX, is_detailed=True, vhosts=vhosts)
    for family in dict.fromkeys(families):
        if family in _BROKER:
            _BROKER[family](api, page)
        elif family in _OBJECTS:
            _OBJECTS[family](objects)
        else:
            raise bad_request(f"there is no family {family!r}; known are {', '.join([*_BROKER, *_OBJECTS])}")
    return Answer(200, page.text())


def _add_broker(api: Api, page: Page) -> None:
    answers, alarms = api.workers.statuses(), alarms_of(api)
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
        ("time_seconds", "the broker's clock, in Unix time", time.time()),
        ("uptime_seconds", "since the broker started", (clock.boot_ms() - api.started_ms) / 1000),
        ("clock_believed", "1 while the wall clock may remove what is too old", clock.is_believed()),
        ("workers", "worker processes", len(api.workers)),
        ("workers_answering", "worker processes that answer", len(answers)),
        ("connections", "open connections", sum(answer["connections"] for answer in answers)),
        ("connections_limit", "connections that all workers together take", _connections_max(api)),
    ):
        page.add(name, about, +value)
    steps = clock.state()
    about = "steps of the wall clock by more than a minute since the broker started"
    page.add("clock_steps_total", about, steps.steps if steps else 0)
    about = "the last of them in seconds, negative if the clock was set back; 0: there was none"
    page.add("clock_last_step_seconds", about, steps.step_ms / 1000 if steps else 0)
    about = "requests of clients that a limit has refused, and entries that a full table of the broker could not keep"
    for answer in answers:
        page.add("limits_refused_total", about, answer["limits_refused"], process=f"worker {answer['worker']}")
    page.add("limits_refused_total", about, refused_total(), process="admin")
    ends = [answer["certificate_ends_s"] for answer in answers if answer.get("certificate_ends_s") is not None]
    if ends:
        about = "Unix time at which the TLS certificate ends that the doors show"
        page.add("tls_certificate_not_after_seconds", about, min(ends))


#: Limits of names: metric -> (counter, its description).
_NAMES = {
    "publisher_names_evicted_total": (
        "names_evicted",
        "publisher names that were evicted from the full table of a stream, with their publishing ids",
    ),
    "publisher_names_refused_total": (
        "names_refused",
        "named publishers that were refused because connected publishers have all names in their stream's table",
    ),
    "stored_offsets_evicted_total": (
        "offsets_evicted",
        "stored offsets that were evicted from the full file of a stream",
    ),
    "publisher_tables_rebuilt_total": (
        "tables_rebuilt",
        "damaged tables of publishing ids that were rebuilt from their log",
    ),
}


def _connections_max(api: Api) -> int:
    return len(api.workers) * api.config.server.connections_max


def _add_processes(api: Api, page: Page) -> None:
    for name, seat in api.meters.items():
        if not seat.pid:
            continue
        counted = {each: seat.counter(each) for each in ("starts", "accepted", "not_appended")}
        page.add("process_starts_total", "processes that had this part", counted["starts"], process=name)
        for level in ("warning", "error"):
            lines = seat.counter(f"log_{level}s")
            page.add("log_lines_total", "lines in the log of this level", lines, process=name, level=level)
        if name.startswith("worker"):
            about = "connections that were accepted, or taken over from another worker"
            page.add("connections_opened_total", about, counted["accepted"], process=name)
            about = "batches of messages that their log did not take; publishers were told"
            page.add("append_failures_total", about, counted["not_appended"], process=name)
            for metric, (counter, about) in _NAMES.items():
                page.add(metric, about, seat.counter(counter), process=name)
        for metric, value in processes.about(seat.pid).items():
            page.add(f"process_{metric}", _ABOUT_PROCESS[metric], value, process=name)


def _add_disk(api: Api, page: Page) -> None:
    slow: dict[str, tuple[int, float]] = {}
    for name, calls in api.calls.items():
        if not api.meters[name].pid:
            continue
        running = max((call.seconds for call in calls.running(SLOW_MS / 1000)), default=0.0)
        about = "how long the oldest file system call of the process has run, if it is slow (above 50 ms)"
        page.add("file_call_running_seconds", about, running, process=name)
        about = "the slowest file system call that ended in this minute and the one before, if it was slow"
        page.add("file_call_slowest_seconds", about, calls.slowest_s, process=name)
        for kind, (count, seconds) in calls.slow().items():
            before = slow.get(kind, (0, 0.0))
            slow[kind] = before[0] + count, before[1] + seconds
    for kind, (count, seconds) in slow.items():
        page.add("file_calls_slow_total", "file system calls that took more than 50 ms", count, call=kind)
        page.add("file_calls_slow_seconds_total", "time of those calls", seconds, call=kind)


def _add_latency(api: Api, page: Page) -> None:
    workers = {name: seat for name, seat in api.meters.items() if name.startswith("worker")}
    for name, seat in workers.items():
        about = "a turn of a worker's loop, without the wait before it"
        page.histogram("loop_turn_seconds", about, _histogram([seat], "turn", _TURN), process=name)
    for metric, about, label, kinds, powers in _HISTOGRAMS:
        for value, kind in kinds.items():
            labels = {label: value} if label else {}
            page.histogram(metric, about, _histogram(workers.values(), kind, powers), **labels)


def _histogram(seats: Any, kind: str, powers: range) -> Histogram:
    """Of several processes together."""
    found = [seat.histogram(kind) for seat in seats]
    counts = [sum(column) for column in zip(*(one.buckets for one in found), strict=True)]
    first, rest = powers.start, powers.stop
    joined = [sum(counts[: first + 1]), *counts[first + 1 :]]
    return Histogram([2**k / 1e6 for k in range(first, rest)], joined, sum(one.sum_us for one in found) / 1e6)


def _add_transactions(api: Api, page: Page) -> None:
    for name, about, value in transactions.metrics(api):
        page.add(name, about, value)


def _add_remote(api: Api, page: Page) -> None:
    for name, about, number, labels in remote.metrics(api):
        page.add(f"remote_{name}", about, number, **labels)


#: Families by their names in /metrics/detailed: of the broker as a whole, and of single streams, queues and users.
_BROKER: dict[str, Callable[[Api, Page], None]] = {
    "broker": _add_broker,
    "processes": _add_processes,
    "disk": _add_disk,
    "latency": _add_latency,
    "transactions": _add_transactions,
    "remote": _add_remote,
}
_OBJECTS: dict[str, Callable[[Objects], None]] = {
    "streams": Objects.add_streams,
    "queues": Objects.add_queues,
    "stored_offsets": Objects.add_stored_offsets,
    "publishers": Objects.add_publishers,
    "consumers": Objects.add_consumers,
}
