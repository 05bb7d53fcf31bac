# SPDX-License-Identifier: Apache-2.0
"""What a client says of queues and users: options, declarations and what to do when a queue is not as declared.

A declaration is compared with the queue that is there setting by setting; how bad a difference is stands in
`differences`, as all VibeMQ clients have it. From SOFT on it is a conflict.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from enum import Enum, IntEnum
from typing import Any

import msgspec

from vibemq.errors import ConfigError, ProtocolError
from vibemq.protocols.native.options import (
    ADDITIONS,
    OPTION_DEFAULTS,
    READERS,
    QueueOptions,
    format_time_span,
    queue_options,
)
from vibemq.protocols.native.spec import DeliveryMode, OverflowStrategy, QueueOperation, wire_name

__all__ = [
    "Difference",
    "OnConflict",
    "Permission",
    "QueueDeclaration",
    "QueueInfo",
    "QueueOptions",
    "Severity",
    "User",
]


class OnConflict(Enum):
    """What to do about a queue that exists with other options than declared."""

    IGNORE = "ignore"  # use it as it is
    FAIL = "fail"  # QueueConflict
    OVERRIDE = "override"  # delete it with its messages, and create it as declared


class Severity(IntEnum):
    INFO = 0
    SOFT = 1  # messages may be lost that would not have been
    HARD = 2  # the queue works in another way


@dataclass(frozen=True, slots=True)
class Difference:
    """One setting in which a queue is not as declared."""

    setting: str
    existing: object
    declared: object
    severity: Severity

    def __str__(self) -> str:
        return f"{self.setting} is {_shown(self.existing)}, declared {_shown(self.declared)}"


@dataclass(frozen=True, slots=True)
class QueueDeclaration:
    """A queue that is to be there whenever the client is connected.

    >>> from vibemq.client import QueueDeclaration, QueueOptions
    >>> QueueDeclaration("orders", QueueOptions(max_messages=500)).options.max_messages
    500
    """

    name: str
    options: QueueOptions = OPTION_DEFAULTS
    on_conflict: OnConflict = OnConflict.IGNORE

    def __post_init__(self) -> None:
        if self.options.overflow == OverflowStrategy.REDIRECT_TO_DLQ and not self.options.dead_letter:
            raise ConfigError(
                f"queue {self.name}: its overflow is redirected to a dead-letter queue, but it has none",
                hint="Declare it with dead_letter=True.",
            )


@dataclass(frozen=True, slots=True)
class QueueInfo:
    """A queue as the broker describes it. `messages` wait; `in_flight` are with consumers, not yet settled."""

    name: str
    messages: int
    in_flight: int
    subscribers: int
    options: QueueOptions
    created: datetime | None = None
    dead_letter_queue: str | None = None
    raw: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class User:
    name: str
    is_superuser: bool
    created: datetime


@dataclass(frozen=True, slots=True)
class Permission:
    """What a user may do with the queues whose names match the pattern; operations as Publish, Subscribe, ..."""

    pattern: str
    operations: tuple[str, ...]


# ---- values to payloads and back ----


def make_options(given: QueueOptions | None, changes: dict[str, Any]) -> QueueOptions:
    """`given` with changes by name; enumerations may be named: mode="priority_based"."""
    known = {f.name for f in fields(QueueOptions)}
    if unknown := changes.keys() - known:
        raise ConfigError(f"queue options: there is no {', '.join(sorted(unknown))}; known are {sorted(known)}")
    read: dict[str, type[IntEnum]] = {"mode": DeliveryMode, "overflow": OverflowStrategy}
    values: dict[str, Any] = {
        name: _member(read[name], value) if name in read else value for name, value in changes.items()
    }
    return replace(given or OPTION_DEFAULTS, **values)


def _member(kind: type[IntEnum], value: object) -> IntEnum:
    if isinstance(value, str):
        plain = value.replace("_", "").replace("-", "").lower()
        for member in kind:
            if wire_name(member).lower() == plain:
                return member
    elif isinstance(value, int) and value in list(kind):
        return kind(value)
    raise ConfigError(f"queue options: needed one of {', '.join(m.name.lower() for m in kind)}, had {value!r}")


def options_payload(options: QueueOptions) -> bytes:
    """As .NET peers send them, and our additions where they are given."""
    members: dict[str, Any] = {
        "mode": int(options.mode),
        "maxQueueSize": options.max_messages,
        "messageTtl": None if options.message_ttl_ms is None else format_time_span(options.message_ttl_ms),
        "enableDeadLetterQueue": options.dead_letter,
        "deadLetterQueueName": options.dead_letter_queue,
        "overflowStrategy": int(options.overflow),
        "maxRetryAttempts": options.attempts_max,
    }
    members |= {READERS[name][0][0]: getattr(options, name) for name in ADDITIONS}
    return msgspec.json.encode({name: value for name, value in members.items() if value is not None})


def info_of(name: str, payload: bytes) -> QueueInfo:
    try:
        members = msgspec.json.decode(payload, type=dict[str, Any])
        settings = {key: value for key, value in members.items() if key != "maxSize"}
        if "maxSize" in members:
            settings["maxQueueSize"] = members["maxSize"]
        created = members.get("createdAt")
        return QueueInfo(
            name=members.get("name", name),
            messages=members.get("messageCount", 0),
            in_flight=members.get("inFlightCount", 0),
            subscribers=members.get("subscriberCount", 0),
            options=queue_options({}, msgspec.json.encode(settings), OPTION_DEFAULTS),
            created=msgspec.convert(created, datetime) if created else None,
            dead_letter_queue=members.get("effectiveDeadLetterQueueName") or members.get("deadLetterQueueName"),
            raw=members,
        )
    except (ValueError, ProtocolError) as error:
        raise ProtocolError(f"queue {name}: needed its description, had {payload[:80]!r}: {error}") from None


def names_of(payload: bytes | None) -> list[str]:
    return _list(payload, list[str], "a list of queue names")


def users_of(payload: bytes | None) -> list[User]:
    found = _list(payload, list[dict[str, Any]], "a list of users")
    return [
        User(user["username"], bool(user.get("isSuperuser")), datetime.fromtimestamp(user.get("createdAt", 0), UTC))
        for user in found
    ]


def permissions_of(payload: bytes | None) -> list[Permission]:
    found = _list(payload, list[dict[str, Any]], "a list of permissions")
    return [Permission(entry["queuePattern"], tuple(entry.get("operations", ()))) for entry in found]


def operation_names(operations: tuple[str | QueueOperation, ...]) -> list[str]:
    return [name if isinstance(name, str) else wire_name(name) for name in operations]


def _list(payload: bytes | None, kind: Any, needed: str) -> Any:
    try:
        return msgspec.json.decode(payload or b"[]", type=kind)
    except msgspec.DecodeError as error:
        raise ProtocolError(f"answer of the broker: needed {needed}, had {(payload or b'')[:80]!r}: {error}") from None


# ---- declarations ----


def differences(existing: QueueOptions, declared: QueueOptions) -> tuple[Difference, ...]:
    """In which settings a queue is not as declared, and how bad that is.

    >>> from vibemq.client import QueueOptions
    >>> from vibemq.client.queues import differences
    >>> [str(found) for found in differences(QueueOptions(), QueueOptions(max_messages=5))]
    ['max_messages is 10000, declared 5']
    """
    found = []
    for setting, severity in (
        ("mode", Severity.HARD),
        ("max_messages", Severity.INFO),
        ("attempts_max", Severity.INFO),
        ("message_ttl_ms", _ttl_severity(existing.message_ttl_ms, declared.message_ttl_ms)),
        ("dead_letter", Severity.SOFT if existing.dead_letter else Severity.INFO),
        ("dead_letter_queue", Severity.HARD),
        ("overflow", _overflow_severity(existing, declared)),
    ):
        was, wanted = getattr(existing, setting), getattr(declared, setting)
        if setting == "dead_letter_queue" and not (existing.dead_letter and declared.dead_letter):
            continue
        if was != wanted:
            found.append(Difference(setting, was, wanted, severity))
    return tuple(found)


def _ttl_severity(existing: int | None, declared: int | None) -> Severity:
    if declared is None or (existing is not None and declared > existing):
        return Severity.INFO
    return Severity.SOFT


def _overflow_severity(existing: QueueOptions, declared: QueueOptions) -> Severity:
    to_dead_letters = declared.overflow == OverflowStrategy.REDIRECT_TO_DLQ
    return Severity.HARD if to_dead_letters and not existing.dead_letter else Severity.INFO


def conflicts(found: tuple[Difference, ...]) -> bool:
    return any(difference.severity >= Severity.SOFT for difference in found)


def _shown(value: object) -> str:
    return wire_name(value) if isinstance(value, IntEnum) else str(value)
