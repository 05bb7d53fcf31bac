# SPDX-License-Identifier: Apache-2.0
"""Transactions as people see them: the applications whose batches are numbered, and what is staged for them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from vibemq.admin.api.calls import Call
from vibemq.admin.api.service import Api
from vibemq.broker.staged import size_bytes
from vibemq.storage.records import StreamRecord


def list_transactions(api: Api, call: Call) -> list[dict[str, Any]]:
    """One row for each application; times in ms since 1970, 0 for never."""
    staged = _staged(api)
    waiting = {(decision.vhost, decision.application) for decision in api.metadata.decisions()}
    return [
        {
            "vhost": known.vhost,
            "application": known.name,
            "user": known.user,
            "run": known.run,
            "peer": known.peer,
            "seen_at": known.seen_ms,
            "version": known.version,
            "messages": known.messages,
            "decided_at": known.decided_ms,
            "is_waiting": (known.vhost, known.name) in waiting,  # decided and not all of it appended yet
            "open_transactions": len(staged[known.vhost, known.name]),
            "staged_bytes": size_bytes(staged[known.vhost, known.name]),
            "past_runs": len(known.past),
            "is_ephemeral": known.is_ephemeral,
        }
        for known in api.seen(call, api.metadata.applications())
    ]


def metrics(api: Api) -> Iterator[tuple[str, str, int]]:
    """Of each its name behind "vibemq_", what it is, its value."""
    records = api.metadata.staging()
    batches, messages = api.metadata.decided_ever()
    waiting = len(api.metadata.decisions())
    yield "transactions_open", "transactions that are staged and not decided", len(records)
    yield "transactions_staged_bytes", "on disk, of what is staged", size_bytes(records)
    yield "transactions_batches_waiting", "batches that are decided and not all appended", waiting
    yield "transactions_batches_total", "batches that were decided and appended", batches
    yield "transactions_messages_total", "messages of these batches", messages
    yield "transactions_applications", "applications that are remembered", len(api.metadata.applications())


def _staged(api: Api) -> dict[tuple[str, str], list[StreamRecord]]:
    found: dict[tuple[str, str], list[StreamRecord]] = defaultdict(list)
    for record in api.metadata.staging():
        found[record.arguments["vhost"], record.arguments["application"]].append(record)
    return found
