# SPDX-License-Identifier: Apache-2.0
"""Policies: settings for all streams and queues of a virtual host whose names match a pattern.

Of the policies that match a stream and say anything of streams, the one with the highest priority holds, alone;
its values override the stream's own arguments, and so it is with queues and their options.  Both keep what they
were made with, so what a policy changed comes back when the policy goes.  ``accounts.policy_changes`` counts the
changes, so that others find out with one small read whether anything has to be looked at again.
"""

import json
from collections.abc import Iterable, Mapping

from vibemq.errors import LimitExceeded, UserError
from vibemq.storage import queue_policies
from vibemq.storage.arguments import (
    CHUNK_MESSAGES,
    CHUNK_MESSAGES_MAX,
    FILTER_SIZE_BYTES,
    FILTER_SIZE_BYTES_MAX,
    FILTER_SIZE_BYTES_MIN,
    MAX_AGE,
    MAX_LENGTH_BYTES,
    SEGMENT_SIZE_BYTES,
    SEGMENT_SIZE_BYTES_MAX,
    max_age_ms,
)
from vibemq.storage.database import Database, again_when_full
from vibemq.storage.patterns import Pattern, pattern
from vibemq.storage.records import PolicyRecord, StreamRecord
from vibemq.storage.vhosts import require_vhost

#: What can be set in whole numbers, and the range of each.
SIZES = {
    MAX_LENGTH_BYTES: range(2**63),
    SEGMENT_SIZE_BYTES: range(SEGMENT_SIZE_BYTES_MAX + 1),
    FILTER_SIZE_BYTES: range(FILTER_SIZE_BYTES_MIN, FILTER_SIZE_BYTES_MAX + 1),
    CHUNK_MESSAGES: range(1, CHUNK_MESSAGES_MAX + 1),
}
STREAM_KEYS = (MAX_AGE, *SIZES)
#: The kinds of things that concern streams, and queues; the others are kept for tools and change nothing.
STREAMS_TOO = ("all", "queues", "streams")
QUEUES_TOO = ("all", "queues", "classic_queues")
APPLY_TO = (*STREAMS_TOO, "classic_queues", "quorum_queues", "exchanges")

_COLUMNS = "vhost, name, pattern, definition, priority, apply_to"


class HeldPolicies:
    """All policies, as of one moment; never changed, so all threads may share it."""

    __slots__ = ("_queues", "_streams", "changes")

    def __init__(self, changes: int, policies: Iterable[PolicyRecord]) -> None:
        self.changes = changes  # how many there had been
        # By virtual host; the first that matches holds.
        self._streams: dict[str, list[tuple[Pattern, PolicyRecord]]] = {}
        self._queues: dict[str, list[tuple[Pattern, PolicyRecord]]] = {}
        for policy in sorted(policies, key=lambda policy: (-policy.priority, policy.name)):
            for held, kinds, keys in (
                (self._streams, STREAMS_TOO, STREAM_KEYS),
                (self._queues, QUEUES_TOO, queue_policies.QUEUE_KEYS),
            ):
                if policy.apply_to in kinds and not policy.definition.keys().isdisjoint(keys):
                    held.setdefault(policy.vhost, []).append((pattern(policy.pattern), policy))

    def of(self, vhost: str, name: str, *, is_queue: bool = False) -> PolicyRecord | None:
        """The policy that holds for a stream, or a queue, of this name."""
        for compiled, policy in (self._queues if is_queue else self._streams).get(vhost, ()):
            if compiled.matches(name):
                return policy
        return None

    def is_for_queues_as(self, other: "HeldPolicies") -> bool:
        """Do both say the same of every queue?"""
        mine, theirs = (
            {vhost: [policy for _, policy in found] for vhost, found in held._queues.items()} for held in (self, other)
        )
        return mine == theirs

    def arguments(self, record: StreamRecord) -> dict[str, str]:
        """The arguments that hold for this stream; a queue's retention is its own business."""
        policy = None if record.queue is not None else self.of(record.vhost, record.name)
        if policy is None:
            return record.arguments
        said = {key: str(value) for key, value in policy.definition.items() if key in STREAM_KEYS}
        return {**record.arguments, **said}

    def options(self, record: StreamRecord) -> dict[str, object]:
        """The options that hold for this queue; none for a stream."""
        if record.queue is None:
            return {}
        policy = self.of(record.vhost, record.name, is_queue=True)
        if policy is None:
            return record.queue
        return {**record.queue, **queue_policies.options(record.name, policy.definition)}


class Policies(Database):
    """Policies; the table is storage.metadata's."""

    _held = HeldPolicies(-1, ())  # what was read last

    @again_when_full
    def set_policy(
        self,
        vhost: str,
        name: str,
        wanted: str,
        definition: Mapping[str, object],
        priority: int = 0,
        apply_to: str = "all",
    ) -> bool:
        """Make a policy for the names that the pattern ``wanted`` matches, or change it; False: it was there.

        Raises VhostNotFound, UserError with what cannot be.
        """
        if not name or not name.isprintable():
            raise UserError(f"policy name {name!r}: printable characters are needed")
        if apply_to not in APPLY_TO:
            raise UserError(f"a policy cannot apply to {apply_to!r}: one of {', '.join(APPLY_TO)} is needed")
        if isinstance(priority, bool) or not isinstance(priority, int) or not -(2**31) <= priority < 2**31:
            raise UserError(f"the priority is {priority!r}: a whole number is needed")
        pattern(wanted)
        kept = json.dumps(_checked(definition), sort_keys=True)
        with self._writing(synced=True) as db:
            require_vhost(db, vhost)
            had = db.execute("SELECT 1 FROM policies WHERE vhost = ? AND name = ?", (vhost, name)).fetchone()
            db.execute(
                f"INSERT OR REPLACE INTO policies ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?)",
                (vhost, name, wanted, kept, priority, apply_to),
            )
            db.execute("UPDATE accounts SET policy_changes = policy_changes + 1")
        return had is None

    @again_when_full
    def clear_policy(self, vhost: str, name: str) -> bool:
        """Was there one?"""
        with self._writing(synced=True) as db:
            gone = db.execute("DELETE FROM policies WHERE vhost = ? AND name = ?", (vhost, name)).rowcount > 0
            if gone:
                db.execute("UPDATE accounts SET policy_changes = policy_changes + 1")
        return gone

    def policies(self, vhost: str | None = None) -> list[PolicyRecord]:
        """By vhost and name."""
        given = "?1 IS NULL OR vhost = ?1"
        rows = self._rows(f"SELECT {_COLUMNS} FROM policies WHERE {given} ORDER BY vhost, name", vhost)
        return [_record(row) for row in rows]

    def find_policy(self, vhost: str, name: str) -> PolicyRecord | None:
        row = self._row(f"SELECT {_COLUMNS} FROM policies WHERE vhost = ? AND name = ?", vhost, name)
        return None if row is None else _record(row)

    def policy_changes(self) -> int:
        """How many changes of policies there have been; some microseconds."""
        return int(self._kept("policy_changes"))

    # ---- what holds ----

    def held_policies(self) -> HeldPolicies:
        """The policies as they are now; some microseconds when none has changed."""
        changes = self.policy_changes()
        held = self._held
        if held.changes != changes:
            # Read after the count: what is newer than it is read once more, never less.
            self._held = held = HeldPolicies(changes, self.policies())
        return held

    def policy_of(self, vhost: str, name: str, *, is_queue: bool = False) -> PolicyRecord | None:
        """The policy that holds for a stream, or a queue, of this name."""
        return self.held_policies().of(vhost, name, is_queue=is_queue)

    def effective_arguments(self, record: StreamRecord) -> dict[str, str]:
        """The arguments that hold for this stream."""
        return self.held_policies().arguments(record)

    def effective_options(self, record: StreamRecord) -> dict[str, object]:
        """The options that hold for this queue."""
        return self.held_policies().options(record)


def _checked(definition: Mapping[str, object]) -> dict[str, int | str]:
    if not definition:
        raise UserError("the policy's definition is empty")
    kept: dict[str, int | str] = {}
    for key, value in definition.items():
        if key == MAX_AGE and isinstance(value, str):
            try:
                max_age_ms(value)
            except LimitExceeded as problem:
                raise UserError(str(problem)) from None
            kept[key] = value
        elif key in SIZES and isinstance(value, int) and not isinstance(value, bool) and value in SIZES[key]:
            kept[key] = value
        elif key in SIZES:
            least, most = SIZES[key].start, SIZES[key].stop - 1
            raise UserError(f"{key} is {value!r}: a whole number from {least} to {most} is needed")
        elif key == MAX_AGE:
            raise UserError(f'{key} is {value!r}: text like "12h" is needed')
        elif key in queue_policies.QUEUE_KEYS and isinstance(value, int | str):
            queue_policies.check(key, value)
            kept[key] = value
        elif key in queue_policies.QUEUE_KEYS:
            raise UserError(f"{key} is {value!r}: a number or text is needed")
        else:
            raise UserError(
                f"{key!r} cannot be set by a policy; what can be is, of streams: {', '.join(STREAM_KEYS)}; "
                f"of queues: {', '.join(queue_policies.QUEUE_KEYS)}"
            )
    return kept


def _record(row: tuple) -> PolicyRecord:
    vhost, name, wanted, definition, priority, apply_to = row
    return PolicyRecord(vhost, name, wanted, json.loads(definition), priority, apply_to)
