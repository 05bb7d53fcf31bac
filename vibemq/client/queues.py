# SPDX-License-Identifier: Apache-2.0
"""What a client says of queues and users: options, declarations and what to do when a queue is not as declared.

A declaration is compared with the queue that is there, setting by setting, but only in what it declares: what nobody
asked for is no conflict, and everything that was asked for and is otherwise is one. How bad a difference is, Severity
says as all VibeMQ clients have it; those clients compare whole sets of options, and let pass what is only INFO.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from enum import Enum, IntEnum
from typing import Any, TypeVar

import msgspec

from vibemq.errors import ConfigError, NotAuthorized, ProtocolError, QueueConflict, QueueNotFound, VibeMQError
from vibemq.protocols.native.codec import Message as Frame
from vibemq.protocols.native.options import (
    ADDITIONS,
    ATTEMPTS_UNLIMITED,
    OPTION_DEFAULTS,
    READERS,
    QueueOptions,
    format_time_span,
    queue_options,
)
from vibemq.protocols.native.spec import Command, DeliveryMode, ErrorCode, OverflowStrategy, QueueOperation, wire_name

log = logging.getLogger("vibemq.client")
T = TypeVar("T")
EPOCH = datetime.fromtimestamp(0, UTC)

SETTINGS = tuple(setting.name for setting in fields(QueueOptions))


class OnConflict(Enum):
    """What to do about a queue that exists with other options than declared."""

    IGNORE = "ignore"  # use it as it is
    FAIL = "fail"  # QueueConflict
    OVERRIDE = "override"  # delete it with its messages, and create it as declared


class Severity(IntEnum):
    """How bad a difference is, for programs that want to know; each one is a conflict."""

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

    `declared` names the settings that a queue which is there must have. Those of `options` that are not the default
    are always among them, so it is needed only for a setting that must be the default.

    >>> from vibemq.client import QueueDeclaration, QueueOptions
    >>> QueueDeclaration("orders", QueueOptions(max_messages=500)).options.max_messages
    500
    """

    name: str
    options: QueueOptions = OPTION_DEFAULTS
    on_conflict: OnConflict = OnConflict.IGNORE
    declared: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        said = {name for name in SETTINGS if getattr(self.options, name) != getattr(OPTION_DEFAULTS, name)}
        object.__setattr__(self, "declared", self.declared | said)
        check_values(self.options)
        if self.options.overflow == OverflowStrategy.REDIRECT_TO_DLQ and not self.options.dead_letter:
            raise ConfigError(
                f"queue {self.name}: its overflow is redirected to a dead-letter queue, but it has none",
                hint="Declare it with dead_letter=True.",
            )


@dataclass(frozen=True, slots=True)
class QueueInfo:
    """A queue as the broker describes it. `messages` wait; `in_flight` are with consumers, not yet settled.

    Since the queue was made, `dropped` messages were lost to a limit, a time to live or failed attempts, and `refused`
    were not taken because the queue was full; brokers that are not ours say 0.
    """

    name: str
    messages: int
    in_flight: int
    subscribers: int
    options: QueueOptions
    created: datetime | None = None
    dead_letter_queue: str | None = None
    dropped: int = 0
    refused: int = 0
    raw: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class User:
    name: str
    is_superuser: bool = False
    created: datetime = EPOCH


@dataclass(frozen=True, slots=True)
class Permission:
    """What a user may do with the queues whose names match the pattern; operations as Publish, Subscribe, ..."""

    pattern: str
    operations: tuple[str, ...] = ()


#: What brokers call their fields.
WIRE_NAMES = {"username": "name", "isSuperuser": "is_superuser", "createdAt": "created", "queuePattern": "pattern"}

# ---- values to payloads and back ----


def make_options(given: QueueOptions | None, changes: dict[str, Any]) -> QueueOptions:
    """`given` with changes by name; enumerations may be named: mode="priority_based"."""
    check_names(changes)
    read: dict[str, type[IntEnum]] = {"mode": DeliveryMode, "overflow": OverflowStrategy}
    values: dict[str, Any] = {
        name: member_of(read[name], value, "queue options", ConfigError) if name in read else value
        for name, value in changes.items()
    }
    made = replace(given or OPTION_DEFAULTS, **values)
    check_values(made)
    return made


def check_names(changes: dict[str, Any]) -> None:
    if unknown := changes.keys() - set(SETTINGS):
        raise ConfigError(f"queue options: there is no {', '.join(sorted(unknown))}; known are {sorted(SETTINGS)}")


#: What the values of options are, and how to say it; all others are whole numbers.
KINDS: dict[str, tuple[type, str]] = {
    "mode": (DeliveryMode, "a DeliveryMode or its name"),
    "overflow": (OverflowStrategy, "an OverflowStrategy or its name"),
    "dead_letter": (bool, "True or False"),
    "dead_letter_queue": (str, "the name of a queue"),
    "durability": (str, "'os', 'disk' or 'remote'"),
}


def check_values(options: QueueOptions) -> None:
    """Each is of the type that it has to be; whether it can be that much, the broker says."""
    for name in SETTINGS:
        value = getattr(options, name)
        kind, needed = KINDS.get(name, (int, "a whole number"))
        is_absent = value is None and getattr(OPTION_DEFAULTS, name) is None
        if not is_absent and (not isinstance(value, kind) or (kind is int and isinstance(value, bool))):
            raise ConfigError(
                f"queue options: {name}: needed {needed}, had {value!r}",
                hint="Times are in milliseconds." if name.endswith("_ms") else "",
            )


def member_of(kind: type[IntEnum], value: object, what: str, error: type[VibeMQError]) -> IntEnum:
    """By its name or number."""
    if isinstance(value, str):
        plain = value.replace("_", "").replace("-", "").lower()
        for member in kind:
            if wire_name(member).lower() == plain:
                return member
    elif isinstance(value, int) and value in list(kind):
        return kind(value)
    raise error(f"{what}: needed one of {', '.join(m.name.lower() for m in kind)}, had {value!r}")


def options_payload(wanted: QueueDeclaration) -> bytes:
    """Return the options as .NET peers send them, without undeclared limits, and with VibeMQ's own options if given."""
    values = {name: getattr(wanted.options, name) for name in SETTINGS}
    if "max_messages" not in wanted.declared:
        values["max_messages"] = None
    if values["message_ttl_ms"] is not None:
        values["message_ttl_ms"] = format_time_span(values["message_ttl_ms"])
    return _payload({name: value for name, value in values.items() if value is not None})


def _payload(values: dict[str, Any]) -> bytes:
    return msgspec.json.encode({READERS[name][0][0]: value for name, value in values.items()})


def changes_payload(changes: dict[str, Any]) -> bytes:
    """The options that an AlterQueue changes; None gives one back to the broker's configuration."""
    if not changes:
        raise ConfigError("alter_queue: no option to change was given", hint=f"There are {', '.join(SETTINGS)}.")
    check_names(changes)
    made = make_options(None, {name: value for name, value in changes.items() if value is not None})
    return _payload({name: None if value is None else getattr(made, name) for name, value in changes.items()})


def info_of(name: str, payload: bytes) -> QueueInfo:
    try:
        members = msgspec.json.decode(payload, type=dict[str, Any])
        settings = {"maxQueueSize" if key == "maxSize" else key: value for key, value in members.items()}
        if settings.get("maxRetryAttempts") == ATTEMPTS_UNLIMITED:
            del settings["maxRetryAttempts"]
        created = members.get("createdAt")
        return QueueInfo(
            name=members.get("name", name),
            messages=members.get("messageCount", 0),
            in_flight=members.get("inFlightCount", 0),
            subscribers=members.get("subscriberCount", 0),
            options=queue_options({}, msgspec.json.encode(settings), OPTION_DEFAULTS),
            created=msgspec.convert(created, datetime) if created else None,
            dead_letter_queue=members.get("effectiveDeadLetterQueueName") or members.get("deadLetterQueueName"),
            dropped=members.get("droppedCount", 0),
            refused=members.get("refusedCount", 0),
            raw=members,
        )
    except (ValueError, ProtocolError) as error:
        raise ProtocolError(f"queue {name}: needed its description, had {payload[:80]!r}: {error}") from None


def list_of(kind: type[T], payload: bytes | None) -> list[T]:
    """A broker's answer that is a list of names, users or permissions."""
    try:
        found: list[Any] = msgspec.json.decode(
            payload or b"[]", type=list[str] if kind is str else list[dict[str, Any]]
        )
        if kind is not str:
            found = [{WIRE_NAMES.get(name, name): value for name, value in each.items()} for each in found]
        return msgspec.convert(found, list[kind], strict=False)  # type: ignore[valid-type]
    except msgspec.DecodeError as error:
        needed = {str: "queue names", User: "users", Permission: "permissions"}[kind]
        told = f"answer of the broker: needed a list of {needed}, had {(payload or b'')[:80]!r}: {error}"
        raise ProtocolError(told) from None


def operation_names(operations: tuple[str | QueueOperation, ...]) -> list[str]:
    return [name if isinstance(name, str) else wire_name(name) for name in operations]


# ---- questions; `ask` is Engine.request, or Link.exchange while the connection is being opened ----

Ask = Callable[..., Awaitable[Frame]]


def no_such_queue(told: str, hint: str) -> QueueNotFound:
    return QueueNotFound(told, code=ErrorCode.QUEUE_NOT_FOUND.value, hint=hint)


async def find_queue(ask: Ask, name: str, timeout_s: float | None = None) -> QueueInfo | None:
    try:
        answer = await ask(Command.QUEUE_INFO, name, timeout_s=timeout_s)
    except QueueNotFound:
        return None
    return info_of(name, answer.payload) if answer.payload else None


async def is_there(ask: Ask, name: str, timeout_s: float | None = None) -> bool:
    """Does a queue exist? Who may not ask for it sees it in the list, if any permission of theirs is for it."""
    try:
        return await find_queue(ask, name, timeout_s) is not None
    except NotAuthorized:
        return name in list_of(str, (await ask(Command.LIST_QUEUES, timeout_s=timeout_s)).payload)


async def declare(
    ask: Ask, wanted: QueueDeclaration, on_conflict: OnConflict, *, is_ours: bool, timeout_s: float | None = None
) -> None:
    """Makes the queue, or looks whether it is as wanted. timeout_s is for each question of up to three."""
    info = await find_queue(ask, wanted.name, timeout_s)
    if info is not None:
        found = differences(info.options, wanted)
        if not is_ours:  # another's broker has no such settings: made again it would be no different
            found = tuple(difference for difference in found if difference.setting not in ADDITIONS)
        if not found:
            return
        told = f"queue {wanted.name} is not as declared: {'; '.join(map(str, found))}"
        if on_conflict == OnConflict.IGNORE:
            log.warning("%s", told)
            return
        if on_conflict == OnConflict.FAIL:
            hint = "Declare it as it is, or change it by alter_queue, which keeps its messages."
            raise QueueConflict(told, differences=found, hint=hint)
        await ask(Command.DELETE_QUEUE, wanted.name, timeout_s=timeout_s)
    await ask(Command.CREATE_QUEUE, wanted.name, payload=options_payload(wanted), timeout_s=timeout_s)


def differences(existing: QueueOptions, wanted: QueueDeclaration) -> tuple[Difference, ...]:
    """In which of its declared settings a queue is not as wanted, and how bad that is.

    >>> from vibemq.client import QueueDeclaration, QueueOptions
    >>> from vibemq.client.queues import differences
    >>> wanted = QueueDeclaration("orders", QueueOptions(max_messages=5))
    >>> [str(found) for found in differences(QueueOptions(attempts_max=9), wanted)]
    ['max_messages is not set, declared 5']
    """
    declared = queue_options({}, options_payload(wanted), OPTION_DEFAULTS)  # as a broker would read them
    found = []
    for setting in SETTINGS:
        was, asked = getattr(existing, setting), getattr(declared, setting)
        if setting == "dead_letter_queue" and existing.dead_letter:  # no name is one, too
            was, asked = existing.dead_letter_name(wanted.name), declared.dead_letter_name(wanted.name)
        if setting in wanted.declared and was != asked:
            found.append(Difference(setting, was, asked, _severity(setting, existing, declared)))
    return tuple(found)


def _severity(setting: str, existing: QueueOptions, declared: QueueOptions) -> Severity:
    match setting:
        case "mode" | "dead_letter_queue":
            return Severity.HARD
        case "overflow":
            to_dead_letters = declared.overflow == OverflowStrategy.REDIRECT_TO_DLQ
            return Severity.HARD if to_dead_letters and not existing.dead_letter else Severity.INFO
        case "dead_letter":
            return Severity.SOFT if existing.dead_letter else Severity.INFO
        case "message_ttl_ms":
            was, asked = existing.message_ttl_ms, declared.message_ttl_ms
            return Severity.INFO if asked is None or (was is not None and asked > was) else Severity.SOFT
    return Severity.INFO


def _shown(value: object) -> str:
    if value is None:
        return "not set"
    return wire_name(value) if isinstance(value, IntEnum) else str(value)
