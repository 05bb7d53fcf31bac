# SPDX-License-Identifier: Apache-2.0
"""Policies: settings for all streams of a virtual host whose names match a pattern.

Of the policies that match a stream, the one with the highest priority holds, alone; its values
override the stream's own arguments.  A stream keeps its arguments as it was made with, so what a
policy changed comes back when the policy goes.  ``accounts.policy_changes`` counts the changes, so
that others find out with one small read whether anything has to be looked at again.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vibemq.errors import LimitExceeded, UserError
from vibemq.storage.arguments import (
    FILTER_SIZE_BYTES,
    FILTER_SIZE_BYTES_MAX,
    FILTER_SIZE_BYTES_MIN,
    MAX_AGE,
    MAX_LENGTH_BYTES,
    SEGMENT_SIZE_BYTES,
    SEGMENT_SIZE_BYTES_MAX,
    max_age_ms,
)
from vibemq.storage.database import Database
from vibemq.storage.patterns import Pattern, pattern
from vibemq.storage.vhosts import require_vhost

if TYPE_CHECKING:
    from vibemq.storage.metadata import StreamRecord

#: What can be set in whole numbers, and the range of each.
SIZES = {
    MAX_LENGTH_BYTES: range(2**63),
    SEGMENT_SIZE_BYTES: range(SEGMENT_SIZE_BYTES_MAX + 1),
    FILTER_SIZE_BYTES: range(FILTER_SIZE_BYTES_MIN, FILTER_SIZE_BYTES_MAX + 1),
}
#: The kinds of things that concern streams; the others are kept for tools and change nothing.
STREAMS_TOO = ("all", "queues", "streams")
APPLY_TO = (*STREAMS_TOO, "classic_queues", "quorum_queues", "exchanges")

_COLUMNS = "vhost, name, pattern, definition, priority, apply_to"


@dataclass(frozen=True, slots=True)
class PolicyRecord:
    vhost: str
    name: str
    pattern: str
    definition: dict[str, int | str]
    priority: int
    apply_to: str


class HeldPolicies:
    """All policies that concern streams, as of one moment; never changed, so all threads may share it."""

    __slots__ = ("_by_vhost", "changes")

    def __init__(self, changes: int, policies: Iterable[PolicyRecord]) -> None:
        self.changes = changes  # how many there had been
        self._by_vhost: dict[str, list[tuple[Pattern, PolicyRecord]]] = {}  # the first that matches holds
        for policy in sorted(policies, key=lambda policy: (-policy.priority, policy.name)):
            if policy.apply_to in STREAMS_TOO:
                self._by_vhost.setdefault(policy.vhost, []).append((pattern(policy.pattern), policy))

    def of(self, vhost: str, stream: str) -> PolicyRecord | None:
        """The policy that holds for a stream of this name."""
        for compiled, policy in self._by_vhost.get(vhost, ()):
            if compiled.matches(stream):
                return policy
        return None

    def arguments(self, record: "StreamRecord") -> dict[str, str]:
        """The arguments that hold for this stream; a queue's retention is its own business."""
        policy = None if record.queue is not None else self.of(record.vhost, record.name)
        if policy is None:
            return record.arguments
        return {**record.arguments, **{key: str(value) for key, value in policy.definition.items()}}


class Policies(Database):
    """Policies; the table is storage.metadata's."""

    _held = HeldPolicies(-1, ())  # what was read last

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

    def clear_policy(self, vhost: str, name: str) -> bool:
        """Was there one?"""
        with self._writing(synced=True) as db:
            gone = db.execute("DELETE FROM policies WHERE vhost = ? AND name = ?", (vhost, name)).rowcount > 0
            if gone:
                db.execute("UPDATE accounts SET policy_changes = policy_changes + 1")
        return gone

    def policies(self, vhost: str | None = None) -> list[PolicyRecord]:
        """By vhost and name."""
        with self._reading() as db:
            rows = db.execute(
                f"SELECT {_COLUMNS} FROM policies WHERE ?1 IS NULL OR vhost = ?1 ORDER BY vhost, name", (vhost,)
            ).fetchall()
        return [_record(row) for row in rows]

    def find_policy(self, vhost: str, name: str) -> PolicyRecord | None:
        with self._reading() as db:
            row = db.execute(f"SELECT {_COLUMNS} FROM policies WHERE vhost = ? AND name = ?", (vhost, name)).fetchone()
        return None if row is None else _record(row)

    def policy_changes(self) -> int:
        """How many changes of policies there have been; some microseconds."""
        with self._reading() as db:
            changes: int = db.execute("SELECT policy_changes FROM accounts").fetchone()[0]
        return changes

    # ---- what holds ----

    def held_policies(self) -> HeldPolicies:
        """The policies as they are now; some microseconds when none has changed."""
        changes = self.policy_changes()
        held = self._held
        if held.changes != changes:
            # Read after the count: what is newer than it is read once more, never less.
            self._held = held = HeldPolicies(changes, self.policies())
        return held

    def policy_of(self, vhost: str, stream: str) -> PolicyRecord | None:
        """The policy that holds for a stream of this name."""
        return self.held_policies().of(vhost, stream)

    def effective_arguments(self, record: "StreamRecord") -> dict[str, str]:
        """The arguments that hold for this stream."""
        return self.held_policies().arguments(record)


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
        else:
            raise UserError(
                f"{key!r} cannot be set by a policy", hint=f"what can be set: {', '.join([MAX_AGE, *SIZES])}"
            )
    return kept


def _record(row: tuple) -> PolicyRecord:
    vhost, name, wanted, definition, priority, apply_to = row
    return PolicyRecord(vhost, name, wanted, json.loads(definition), priority, apply_to)
