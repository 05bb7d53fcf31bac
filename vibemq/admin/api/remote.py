# SPDX-License-Identifier: Apache-2.0
"""The object store over the management API: what the archiver says of itself, as JSON and as metrics.

A store that is away is no reason to be unhealthy: whoever balances load must not take a broker out because publishers
of some streams wait, while all the others are served. So it is said here and in `vibemq ctl status`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from vibemq.admin.api.calls import Call, not_found
from vibemq.admin.api.service import Api
from vibemq.errors import RemoteError
from vibemq.remote.asking import ask

#: The archiver answers from memory. Whoever scrapes gives up after 10 s, and wants all the other metrics anyway.
ANSWER_TIMEOUT_S = 2.0
CONNECT_TIMEOUT_S = 0.5

#: Name, meaning, the field of the status.
_METRICS = (
    ("sent_bytes_total", "sent to the object store since the archiver started", "sent_bytes"),
    ("received_bytes_total", "received from the object store since the archiver started", "received_bytes"),
    ("errors_total", "requests that the object store did not answer as it should", "errors"),
    ("away_seconds", "since when the object store has not answered; 0: it does", "away_s"),
    ("epoch", "of this broker in the bucket", "epoch"),
    ("streams", "streams and queues of durability remote", "streams"),
    ("messages_waiting", "messages that the object store does not have yet", "messages_waiting"),
    ("objects_on_their_way", "write-ahead objects that are being created", "objects_on_their_way"),
    ("write_ahead_objects", "write-ahead objects of this epoch in the object store", "write_ahead_objects"),
    ("segments", "segments in the object store", "segments"),
    ("segment_bytes", "size of the segments in the object store", "segment_bytes"),
    ("streams_unsent", "streams that cannot be sent, 10 at most; the status says why", "streams_that_cannot_be_sent"),
    ("streams_waiting", "streams with closed segments to be sent", "streams_waiting_to_be_sent"),
    ("cache_bytes", "on this disk, of segments that were read back", "cache_bytes"),
)


def status(api: Api, call: Call) -> dict[str, Any]:
    """``is_up`` false: the archiver does not answer, and ``why``."""
    if not api.config.remote.url:
        raise not_found("this broker has no object store: remote.url is empty")
    return _asked(api)


def metrics(api: Api) -> Iterator[tuple[str, str, float, dict[str, str]]]:
    """Of each its name behind "vibemq_remote_", what it is, its value, its labels."""
    if not api.config.remote.url:
        return
    found = _asked(api)
    yield "up", "1 while the archiver answers", +found["is_up"], {}
    if not found["is_up"]:
        return
    for kind, count in found["requests"].items():
        yield "requests_total", "requests to the object store, by kind", count, {"request": kind}
    for name, about, field in _METRICS:
        value = found[field]
        yield name, about, len(value) if isinstance(value, dict) else value, {}


def _asked(api: Api) -> dict[str, Any]:
    down = {"is_up": False, "url": api.config.remote.url, "broker": api.config.remote.name}
    try:
        answer = ask(os.path.dirname(api.metadata.path), "status", ANSWER_TIMEOUT_S, CONNECT_TIMEOUT_S)
    except RemoteError as problem:
        return {**down, "why": str(problem)}
    return {"is_up": True, **answer["status"]} if answer["ok"] else {**down, "why": str(answer["why"])}
