# SPDX-License-Identifier: Apache-2.0
"""What the options of a call may say: a CreateQueue about its queue, which QueueInfo says back, and a Publish about its
message.

Three types: a ``queue`` gives each message to one consumer, a ``topic`` to all that are subscribed, and a ``stream``
keeps its messages to be read any number of times.  Options that nobody named follow the broker's configuration.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Any

from vibemq.broker.catalog import NAME_SIZE_MAX_BYTES, RESERVED_PREFIX
from vibemq.broker.options import (
    ACK_TIMEOUT_MS_MIN,
    ATTEMPTS_MAX,
    FAN_OUTS,
    DeliveryMode,
    Overflow,
    QueueOptions,
    options_of,
)
from vibemq.config import Queues
from vibemq.protocols.signalr.spec import GIVEN_ID_BYTES_MAX, NUMBER_MAX, ErrorCode, HubError
from vibemq.storage.arguments import MAX_AGE, MAX_LENGTH_BYTES

TYPES = ("queue", "topic", "stream")
MS_MAX = 86_400_000 * 365 * 100
CONTENT_TYPE_BYTES_MAX = 255  # it is in each delivery
HEADERS_MAX = 1000  # each is some microseconds of the loop, and is in each delivery
PRIORITY_MAX = 255  # an AMQP 1.0 ubyte


Reader = Callable[[Any], Any]


def invalid(name: str, needed: str, had: object) -> HubError:
    return HubError(ErrorCode.INVALID_ARGUMENT, f"Option '{name}' must be {needed}, had {had!r:.60}.")


# Readers: the value as it is meant.  They raise ValueError with what was needed, and who asks names the value.


def must(needed: str, fits: Callable[[Any], bool]) -> Reader:
    def read(value: Any) -> Any:
        if not fits(value):
            raise ValueError(needed)
        return value

    return read


def whole_from(least: int, most: int) -> Reader:
    def read(value: Any) -> int:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise ValueError(f"a whole number from {least} to {most}", value)
        return value

    return read


def one_of(*names: str) -> Reader:
    by_folded = {name.lower(): name for name in names}

    def read(value: Any) -> str:
        found = by_folded.get(value.lower()) if isinstance(value, str) else None
        if found is None:
            raise ValueError(f"one of {', '.join(names)}")
        return found

    return read


def text_of(bytes_max: int, kind: str = "string") -> Reader:
    return must(
        f"a {kind} of 1 to {bytes_max} bytes",
        lambda value: isinstance(value, str) and 1 <= len(value.encode(errors="replace")) <= bytes_max,
    )


flag = must("true or false", lambda value: isinstance(value, bool))
any_text = must("a text", lambda value: isinstance(value, str) and value != "")


def queue_name(name: str, value: Any) -> str:
    """As the other doors need it: 1 to 255 bytes that people can read."""
    if not isinstance(value, str) or not value.isprintable() or not 1 <= len(value.encode()) <= NAME_SIZE_MAX_BYTES:
        raise HubError(
            ErrorCode.INVALID_NAME,
            f"{name}: needed 1 to {NAME_SIZE_MAX_BYTES} bytes of printable text; choose another name.",
        )
    if value.startswith(RESERVED_PREFIX):
        raise HubError(
            ErrorCode.INVALID_NAME,
            f"{name}: names that begin with {RESERVED_PREFIX} are reserved; choose another name.",
        )
    return value


def dead_letter(value: Any) -> bool | str:
    return value if isinstance(value, bool) else queue_name("deadLetter", value)


def camel(member: Any) -> str:
    """ROUND_ROBIN is "roundRobin"."""
    first, *rest = member.name.lower().split("_")
    return first + "".join(word.capitalize() for word in rest)


def member_of(members: type[IntEnum]) -> Reader:
    by_name = {camel(member): member for member in members}
    read = one_of(*by_name)
    return lambda value: by_name[read(value)]


COMMON: dict[str, Reader] = {"type": one_of(*TYPES), "durable": flag, "durability": one_of("os", "disk", "remote")}
#: Option of a queue or topic -> the field of its policy, and how it is read.
QUEUE_OPTIONS: dict[str, tuple[str, Reader]] = {
    "maxLength": ("max_messages", whole_from(0, NUMBER_MAX)),
    "messageTtlMs": ("message_ttl_ms", whole_from(0, MS_MAX)),
    "deadLetter": ("dead_letter", dead_letter),
    "overflow": ("overflow", member_of(Overflow)),
    "maxAttempts": ("attempts_max", whole_from(1, ATTEMPTS_MAX)),
    "ackTimeoutMs": ("ack_timeout_ms", whole_from(ACK_TIMEOUT_MS_MIN, MS_MAX)),
    "backoffMs": ("backoff_ms", whole_from(0, MS_MAX)),
    "backoffMaxMs": ("backoff_max_ms", whole_from(0, MS_MAX)),
    "prefetch": ("prefetch", whole_from(1, 10_000_000)),
    "mode": ("mode", member_of(DeliveryMode)),
}
STREAM_OPTIONS: dict[str, Reader] = {"maxBytes": whole_from(0, NUMBER_MAX), "maxAgeMs": whole_from(1000, MS_MAX)}


def read_options(given: Mapping[str, Any], readers: Mapping[str, Reader]) -> dict[str, Any]:
    """The members that are there, each read; null is the same as none.  Raises HubError."""
    values = {}
    for name, value in given.items():
        if name not in readers:
            known = ", ".join(sorted(readers))
            raise HubError(ErrorCode.INVALID_ARGUMENT, f"Option '{name:.60}' is not known; there are {known}.")
        if value is not None:
            try:
                values[name] = readers[name](value)
            except ValueError as problem:
                needed, had = (*problem.args, value)[:2]
                raise invalid(name, needed, had) from None
    return values


def created_options(given: Mapping[str, Any]) -> tuple[str, dict[str, Any], dict[str, str]]:
    """(type, what a queue's metadata keeps, a stream's arguments) of a CreateQueue.  Raises HubError."""
    kind = read_options({"type": given.get("type") or "queue"}, COMMON)["type"]
    queue_readers = {name: read for name, (_, read) in QUEUE_OPTIONS.items()}
    values = read_options(given, COMMON | (STREAM_OPTIONS if kind == "stream" else queue_readers))
    if values.get("durable") is False:
        raise invalid("durable", "true, because all queues outlive a restart", "false")
    stored = {field: values[name] for name, (field, _) in QUEUE_OPTIONS.items() if name in values}
    arguments: dict[str, str] = {}
    if "durability" in values:
        stored["durability"] = arguments["durability"] = values["durability"]
    if "maxBytes" in values:
        arguments[MAX_LENGTH_BYTES] = str(values["maxBytes"])
    if "maxAgeMs" in values:
        arguments[MAX_AGE] = f"{-(-values['maxAgeMs'] // 1000)}s"
    if isinstance(stored.get("dead_letter"), str):
        stored["dead_letter"], stored["dead_letter_queue"] = True, stored["dead_letter"]
    fitting = [member for member in DeliveryMode if (member in FAN_OUTS) == (kind == "topic")]
    mode = stored.setdefault("mode", fitting[0])
    if mode not in fitting:
        raise invalid("mode", f"one of {', '.join(map(camel, fitting))} for a {kind}", camel(mode))
    plain = {field: int(value) if isinstance(value, IntEnum) else value for field, value in stored.items()}
    return kind, plain, arguments


def differing(stored: Mapping[str, Any], wanted: Mapping[str, Any], durability: str, defaults: Queues) -> str | None:
    """An option that a queue was made with otherwise than it is wanted now; None: it is as wanted."""
    have = options_of(stored, defaults)
    if "durability" in wanted and wanted["durability"] != durability:
        return "durability"
    shown = {field: name for name, (field, _) in QUEUE_OPTIONS.items()} | {"dead_letter_queue": "deadLetter"}
    for field, value in wanted.items():
        if field != "durability" and getattr(have, field) != value:
            return shown[field]
    return None


def type_of(have: QueueOptions) -> str:
    return "topic" if have.is_fan_out else "queue"


def shown_options(name: str, stored: Mapping[str, Any], durability: str, defaults: Queues) -> dict[str, Any]:
    """The options as a CreateQueue would give them, those of the configuration included."""
    have = options_of(stored, defaults)
    shown: dict[str, Any] = {"durable": True, "durability": durability}
    for option, (field, _) in QUEUE_OPTIONS.items():
        shown[option] = getattr(have, field)
    shown["mode"], shown["overflow"] = camel(have.mode), camel(have.overflow)
    shown["deadLetter"] = have.dead_letter_name(name) if have.dead_letter else False
    return shown


# ---- messages ----


def content_type(value: Any) -> str:
    text: str = text_of(CONTENT_TYPE_BYTES_MAX)(value)
    if not (text.isascii() and text.isprintable()):
        raise ValueError("ASCII")
    return text


def headers(given: Any) -> list[tuple[bytes, bytes | bool | int | float]]:
    if not isinstance(given, dict) or len(given) > HEADERS_MAX:
        raise ValueError(f"an object with at most {HEADERS_MAX} members")
    found: list[tuple[bytes, bytes | bool | int | float]] = []
    for key, value in given.items():
        if not isinstance(key, str) or not key:
            raise ValueError("an object whose names are not empty", key)
        if isinstance(value, str):
            value = value.encode(errors="replace")
        elif isinstance(value, float):
            if not math.isfinite(value):
                raise invalid(f"headers.{key}", "a finite number", value)
        elif not isinstance(value, int):  # bool, too
            raise invalid(f"headers.{key}", "a string, a number or a boolean", value)
        elif not -(2**63) <= value < 2**64:
            raise invalid(f"headers.{key}", "a number of 64 bits", value)
        found.append((key.encode(errors="replace"), value))
    return found


MESSAGE_OPTIONS: dict[str, Reader] = {
    "messageId": text_of(GIVEN_ID_BYTES_MAX),
    "key": text_of(GIVEN_ID_BYTES_MAX),
    "contentType": content_type,
    "encoding": must("'base64' or missing", lambda value: value == "base64"),
    "headers": headers,
    "priority": whole_from(0, PRIORITY_MAX),
    "ttlMs": whole_from(0, NUMBER_MAX),
}


class MessageOptions:
    """What a message's options say."""

    __slots__ = ("content_type", "headers", "id", "is_base64", "key", "priority", "size", "ttl_ms")

    def __init__(self, values: Mapping[str, Any]) -> None:
        texts = [values.get(name) for name in ("messageId", "key", "contentType")]
        self.id, self.key, self.content_type = [text and text.encode(errors="replace") for text in texts]
        self.headers = values.get("headers", [])
        self.is_base64 = "encoding" in values
        self.priority: int = values.get("priority", -1)
        self.ttl_ms: int | None = values.get("ttlMs")
        pieces = [self.id, self.key, self.content_type, *(piece for header in self.headers for piece in header)]
        self.size = sum(len(piece) for piece in pieces if isinstance(piece, bytes))


def message_options(given: Any) -> MessageOptions | None:
    """None: they say nothing.  Raises HubError."""
    if given is not None and not isinstance(given, dict):
        raise HubError(ErrorCode.INVALID_ARGUMENT, f"Options must be an object, had {given!r:.60}.")
    return MessageOptions(read_options(given, MESSAGE_OPTIONS)) if given else None
