# SPDX-License-Identifier: Apache-2.0
"""Is the broker well? RabbitMQ's health checks by its names and words, and maintenance: drain and revive.

Alarms are looked at here, from the disk and from the page that the supervisor writes, without asking a worker: what is
said of them holds while workers hang.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from vibemq.admin.api.calls import Answer, Call, bad_request
from vibemq.admin.api.connections import PROTOCOLS
from vibemq.admin.api.service import Api
from vibemq.broker.alarms import Alarm, in_effect
from vibemq.broker.disk import free_bytes

#: How long a change of maintenance waits for the workers, and how often it asks them.
TAKEN_UP_MAX_S, TAKEN_UP_LOOK_S = 2.0, 0.02
#: A file system call that takes longer is shown.
STALLED_S = 1.0
OK: dict[str, Any] = {"status": "ok"}


def alarms_of(api: Api) -> list[Alarm]:
    data_dir = os.path.dirname(api.metadata.path)
    return in_effect(data_dir, api.config.store.disk_free_min_bytes, api.conditions)


def disk_free(api: Api) -> int:
    """In bytes, where the data lies."""
    try:
        return free_bytes(os.path.dirname(api.metadata.path))
    except OSError:
        return 0


def memory_of(api: Api) -> tuple[int, int]:
    """Bytes that are used, and above which there is an alarm."""
    return (0, 0) if api.conditions is None else api.conditions.memory


def stalled(api: Api) -> list[dict[str, Any]]:
    """File system calls that have run for more than STALLED_S, the longest first."""
    found = [(call.seconds, name, call) for name, calls in api.calls.items() for call in calls.running(STALLED_S)]
    longest_first = sorted(found, reverse=True)
    return [{"process": name, "call": str(call), "seconds": round(seconds, 1)} for seconds, name, call in longest_first]


def is_drained(api: Api) -> bool:
    return api.conditions is not None and api.conditions.is_drained


def alarms(reason: str) -> Callable[[Api, Call], Answer]:
    """Every worker answers, and no alarm is in effect: else it fails with these words, {} being the alarms' names."""

    def check(api: Api, call: Call) -> Answer:
        found = alarms_of(api)
        if not found:
            return _workers(api)
        shown = [{"node": api.node, "resource": str(alarm)} for alarm in found]
        return _failed(reason.format(", ".join(found)), alarms=shown)

    return check


def in_service(api: Api, call: Call) -> Answer:
    if is_drained(api):
        return _failed("this node is in maintenance mode: `vibemq ctl revive` ends that")
    return Answer(200, OK)


def ready_to_serve_clients(api: Api, call: Call) -> Answer:
    """Whoever connects is served: every worker answers, which is said first (`vibemq ctl ping`), and no maintenance."""
    found = _workers(api)
    return found if found.status != 200 else in_service(api, call)


def live(api: Api, call: Call) -> Answer:
    """For orchestrators, who would start the broker again: it is there; the supervisor replaces workers that hang."""
    return Answer(200, OK)


def ready(api: Api, call: Call) -> Answer:
    """For orchestrators and load balancers: `ready_to_serve_clients`, and no more than its reason: everybody may ask.

    An alarm is no reason: publishers wait, and those who would make room by consuming must still get in.
    """
    return api.readiness.of(lambda: ready_to_serve_clients(api, call))


def port_listener(api: Api, call: Call) -> Answer:
    wanted = call.path["port"]
    if not (wanted.isascii() and wanted.isdigit()):
        raise bad_request(f"a port is a number, had {wanted!r}")
    ports = [] if is_drained(api) else [int(address.rpartition(":")[2]) for address in api.addresses.values()]
    if int(wanted) in ports:
        return Answer(200, OK | {"port": int(wanted)})
    return _failed("No active listener", missing=int(wanted), ports=ports)


def protocol_listener(api: Api, call: Call) -> Answer:
    """``protocol`` may be a door's name or what the overview calls it."""
    wanted = call.path["protocol"]
    doors = [] if is_drained(api) else list(api.addresses)
    protocols = [PROTOCOLS.get(door, door) for door in doors]
    if wanted.lower() in (name.lower() for name in (*doors, *protocols)):
        return Answer(200, OK | {"protocol": wanted})
    return _failed("No active listener", missing=wanted, protocols=protocols)


def virtual_hosts(api: Api, call: Call) -> Answer:
    """They are rows of a database that has just been read; none can be down by itself."""
    api.metadata.vhosts()
    return Answer(200, OK)


def quorum(api: Api, call: Call) -> Answer:
    """One node alone is critical for nothing that another could take over."""
    return Answer(200, OK)


def set_drained(drained: bool) -> Callable[[Api, Call], None]:
    """Maintenance: workers refuse newcomers and send everybody away, as at a stop; and its end.

    It waits for all that answer to have begun, which takes half a second.
    """

    def change(api: Api, call: Call) -> None:
        if api.conditions is None:
            raise bad_request("no broker runs")
        api.conditions.is_drained = drained
        deadline_s = time.monotonic() + TAKEN_UP_MAX_S
        while any(worker["is_drained"] != drained for worker in api.workers.statuses()):
            if time.monotonic() > deadline_s:  # one that ends just now; its successor looks before it begins
                break
            time.sleep(TAKEN_UP_LOOK_S)
        api.readiness.forget()

    return change


def restart_workers(api: Api, call: Call) -> Answer:
    """Begin a rolling restart; ``restarts`` tells of it."""
    if api.conditions is None:
        raise bad_request("no broker runs")
    api.conditions.restarts_wanted += 1
    return Answer(202, {"number": api.conditions.restarts_wanted})


def restarts(api: Api, call: Call) -> dict[str, int]:
    """``done``: the number of the last rolling restart that has ended."""
    if api.conditions is None:
        raise bad_request("no broker runs")
    return {"wanted": api.conditions.restarts_wanted, "done": api.conditions.restarts_done}


def _workers(api: Api) -> Answer:
    down = len(api.workers) - len(api.workers.statuses())
    if down:
        return _failed(f"{down} of {len(api.workers)} workers do not answer")
    return Answer(200, OK)


def _failed(reason: str, **more: Any) -> Answer:
    return Answer(503, {"status": "failed", "reason": reason, **more})
