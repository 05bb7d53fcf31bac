# SPDX-License-Identifier: Apache-2.0
"""Policies: settings for all streams and queues of a virtual host whose names match a pattern.

Of the policies that match a stream and say anything of streams, the one with the highest priority holds, alone;
its values override the stream's own arguments, and so it is with queues and their options.  Both keep what they
were made with, so what a policy changed comes back when the policy goes.  ``accounts.policy_changes`` counts the
changes, so that others find out with one small read whether anything has to be looked at again.

What may be said has RabbitMQ's names; what it amounts to for a queue has those under which a queue's own options are
stored (broker/options.py), so that a policy's go over them.
"""

from collections.abc import Iterable, Mapping

from vibemq.errors import LimitExceeded, UserError
from vibemq.storage.arguments import (
    CHUNK_MESSAGES,
    CHUNK_MESSAGES_MAX,
    FILTER_SIZE_BYTES,
    FILTER_SIZE_BYTES_MAX,
    FILTER_SIZE_BYTES_MIN,
    LENGTH_BYTES_MAX,
    LOCAL_MAX_AGE,
    LOCAL_MAX_LENGTH_BYTES,
    MAX_AGE,
    MAX_LENGTH_BYTES,
    READ_UNCONFIRMED,
    SEGMENT_SIZE_BYTES,
    SEGMENT_SIZE_BYTES_MAX,
    max_age_ms,
)
from vibemq.storage.database import again_when_full
from vibemq.storage.names import require_address
from vibemq.storage.patterns import Pattern, pattern
from vibemq.storage.records import PolicyRecord, StreamRecord, Table
from vibemq.storage.vhosts import Vhosts

NAME_SIZE_MAX_BYTES = 255
DEAD_LETTER_SUFFIX = ".dlq"
#: A ledger entry counts to here (csrc/ledger/ledger.h); more attempts than this are no limit at all.
ATTEMPTS_MAX = 1000
#: Below it every send would be overdue at once, and the queue turn in circles.
ACK_TIMEOUT_MS_MIN = 10
#: What a policy may say at most; no queue has so many messages, nor a message so much time.
COUNT_MAX = 1_000_000_000_000
MS_MAX = 100 * 365 * 86_400_000

DELIVERY_LIMIT = "delivery-limit"
OVERFLOW = "overflow"
DEAD_LETTER_EXCHANGE = "dead-letter-exchange"
DEAD_LETTER_ROUTING_KEY = "dead-letter-routing-key"
#: Whole numbers, of streams and of queues, and the range of each.  0 is not "no limit" for RabbitMQ's queues.
STREAM_NUMBERS = {
    MAX_LENGTH_BYTES: range(LENGTH_BYTES_MAX + 1),
    LOCAL_MAX_LENGTH_BYTES: range(LENGTH_BYTES_MAX + 1),
    SEGMENT_SIZE_BYTES: range(SEGMENT_SIZE_BYTES_MAX + 1),
    FILTER_SIZE_BYTES: range(FILTER_SIZE_BYTES_MIN, FILTER_SIZE_BYTES_MAX + 1),
    CHUNK_MESSAGES: range(1, CHUNK_MESSAGES_MAX + 1),
}
QUEUE_NUMBERS = {
    "max-length": range(1, COUNT_MAX + 1),
    "message-ttl": range(1, MS_MAX + 1),
    "consumer-timeout": range(ACK_TIMEOUT_MS_MIN, MS_MAX + 1),
    DELIVERY_LIMIT: range(ATTEMPTS_MAX),
}
QUEUE_OPTIONS = {"max-length": "max_messages", "message-ttl": "message_ttl_ms", "consumer-timeout": "ack_timeout_ms"}
#: RabbitMQ's name -> the number that a queue is stored with (broker.options.Overflow).
OVERFLOWS = {"drop-head": 0, "reject-publish": 1, "reject-publish-dlx": 3}
STREAM_AGES = (MAX_AGE, LOCAL_MAX_AGE)
STREAM_FLAGS = (READ_UNCONFIRMED,)
STREAM_KEYS = (*STREAM_AGES, *STREAM_NUMBERS, *STREAM_FLAGS)
QUEUE_KEYS = (*QUEUE_NUMBERS, OVERFLOW, DEAD_LETTER_EXCHANGE, DEAD_LETTER_ROUTING_KEY)
#: The kinds of things that concern streams, and queues; the others are kept for tools and change nothing.
STREAMS_TOO = ("all", "queues", "streams")
QUEUES_TOO = ("all", "queues", "classic_queues")
APPLY_TO = (*STREAMS_TOO, "classic_queues", "quorum_queues", "exchanges")

POLICIES = Table("policies", PolicyRecord)


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
                (self._queues, QUEUES_TOO, QUEUE_KEYS),
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
        said = {key: _argument(value) for key, value in policy.definition.items() if key in STREAM_KEYS}
        return {**record.arguments, **said}

    def options(self, record: StreamRecord) -> dict[str, object]:
        """The options that hold for this queue; none for a stream."""
        if record.queue is None:
            return {}
        policy = self.of(record.vhost, record.name, is_queue=True)
        if policy is None:
            return record.queue
        return {**record.queue, **options_said(record.name, policy.definition)}


class Policies(Vhosts):
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
        if not definition:
            raise UserError("the policy's definition is empty")
        for key, value in definition.items():
            check_key(key, value)
        with self._writing(synced=True) as db:
            self.require_vhost(vhost)
            had = self.find_policy(vhost, name)
            if had is None:
                require_address("policy", name)
            letters = definition.get(DEAD_LETTER_ROUTING_KEY)  # a queue that would be made
            if letters is not None and (had is None or letters != had.definition.get(DEAD_LETTER_ROUTING_KEY)):
                require_address(DEAD_LETTER_ROUTING_KEY, str(letters))
            record = PolicyRecord(vhost, name, wanted, dict(definition), priority, apply_to)  # type: ignore[arg-type]
            POLICIES.insert(db, record, how="INSERT OR REPLACE")
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
        return self._records(POLICIES, "WHERE ?1 IS NULL OR vhost = ?1 ORDER BY vhost, name", vhost)

    def find_policy(self, vhost: str, name: str) -> PolicyRecord | None:
        return self._record(POLICIES, "WHERE vhost = ? AND name = ?", vhost, name)

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


def _argument(value: object) -> str:
    """A policy's value as a stream's argument is stored."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def check_key(key: str, value: object) -> None:
    """Raises UserError for what no policy can say."""
    if key not in STREAM_KEYS and key not in QUEUE_KEYS:
        raise UserError(
            f"{key!r} cannot be set by a policy; what can be is, of streams: {', '.join(STREAM_KEYS)}; "
            f"of queues: {', '.join(QUEUE_KEYS)}"
        )
    numbers = STREAM_NUMBERS.get(key) or QUEUE_NUMBERS.get(key)
    if key in STREAM_AGES and isinstance(value, str):
        try:
            max_age_ms(value, key)
        except LimitExceeded as problem:
            raise UserError(str(problem)) from None
        needed = ""
    elif key in STREAM_AGES:
        needed = 'text like "12h"'
    elif key in STREAM_FLAGS:
        needed = "" if isinstance(value, bool) else "true or false"
    elif numbers is not None:
        fits = isinstance(value, int) and not isinstance(value, bool) and value in numbers
        needed = "" if fits else f"a whole number from {numbers.start} to {numbers.stop - 1}"
    elif key == OVERFLOW:
        needed = "" if isinstance(value, str) and value in OVERFLOWS else f"one of {', '.join(OVERFLOWS)}"
    elif key == DEAD_LETTER_EXCHANGE and value != "":
        raise UserError(
            f'{key} is {value!r}: queues have no exchanges, so only "" is possible; {DEAD_LETTER_ROUTING_KEY} '
            f"names the queue that dead letters go to, and without it they go to NAME{DEAD_LETTER_SUFFIX}"
        )
    else:
        fits = isinstance(value, str) and value.isprintable() and len(value.encode()) <= NAME_SIZE_MAX_BYTES
        is_name = fits and (value or key == DEAD_LETTER_EXCHANGE)
        needed = "" if is_name else f"the name of a queue, of at most {NAME_SIZE_MAX_BYTES} bytes,"
    if needed:
        raise UserError(f"{key} is {value!r}: {needed} is needed")


def options_said(queue: str, definition: Mapping[str, int | str]) -> dict[str, object]:
    """What a policy's definition says of this queue, as options are stored; nothing where it is about streams."""
    found: dict[str, object] = {option: definition[key] for key, option in QUEUE_OPTIONS.items() if key in definition}
    if DELIVERY_LIMIT in definition:  # so often a message may come back, besides its first delivery
        found["attempts_max"] = int(definition[DELIVERY_LIMIT]) + 1
    if OVERFLOW in definition:
        found["overflow"] = OVERFLOWS[str(definition[OVERFLOW])]
    letters = definition.get(DEAD_LETTER_ROUTING_KEY)
    if letters is None and DEAD_LETTER_EXCHANGE not in definition:
        return found
    # A pattern that also matches dead-letter queues does not give them others, which would have others again.
    if queue != letters and not queue.endswith(DEAD_LETTER_SUFFIX):
        found["dead_letter"], found["dead_letter_queue"] = True, letters or ""
    return found
