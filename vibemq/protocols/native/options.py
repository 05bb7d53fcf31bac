# SPDX-License-Identifier: Apache-2.0
"""What a CreateQueue may say about its queue, and what QueueInfo says back.

Peers that follow the protocol's text put options into headers, with names for enumerations and milliseconds for times;
.NET peers put them into a JSON payload, with numbers and time spans. Both kinds of value are read in both places.
Values come back as declared: .NET clients compare them with what they would declare and call a difference a conflict.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import IntEnum
from typing import Any

import msgspec

from vibemq.errors import Refused
from vibemq.protocols.native.codec import is_json, is_queue_name
from vibemq.protocols.native.spec import DEAD_LETTER_SUFFIX, DeliveryMode, ErrorCode, OverflowStrategy, wire_name

INT32_MAX = 2**31 - 1  # counts are 32 bits wide in .NET peers
ATTEMPTS_UNLIMITED = INT32_MAX  # for a queue without a limit of failed deliveries; .NET peers need a number
TIME_SPAN_MS_MAX = 922_337_203_685_477  # as far as the time spans of .NET peers go
TICKS_PER_MS = 10_000
DAY_MS = 86_400_000
DURABILITIES = ("os", "disk", "remote")

TIME_SPAN = re.compile(r"(-?)(?:(\d{1,8})\.)?([01]\d|2[0-3]):([0-5]\d):([0-5]\d)(?:\.(\d{1,7}))?", re.ASCII)
DECIMAL = re.compile(r"\d{1,15}", re.ASCII)


class BadOption(Refused, ValueError):
    def __init__(self, name: str, needed: str, had: object, *, in_payload: bool) -> None:
        shown = str(had)
        text = f"{name}: needed {needed}, had {shown if len(shown) <= 60 else shown[:57] + '...'}"
        super().__init__(ErrorCode.INVALID_PAYLOAD if in_payload else ErrorCode.INVALID_MESSAGE, text)


@dataclass(frozen=True, slots=True)
class QueueOptions:
    """As declared; None leaves it to the broker's configuration.  The last five are our additions."""

    mode: DeliveryMode = DeliveryMode.ROUND_ROBIN
    max_messages: int | None = None  # .NET peers always say one, their own default of 10,000 included
    message_ttl_ms: int | None = None
    dead_letter: bool = False
    dead_letter_queue: str | None = None
    overflow: OverflowStrategy = OverflowStrategy.DROP_OLDEST
    attempts_max: int | None = None  # .NET peers always set one, by default 3
    ack_timeout_ms: int | None = None
    backoff_ms: int | None = None
    backoff_max_ms: int | None = None
    prefetch: int | None = None
    durability: str | None = None

    def dead_letter_name(self, queue: str) -> str:
        return self.dead_letter_queue or queue + DEAD_LETTER_SUFFIX

    def stored(self) -> dict[str, int | str | bool]:
        """What the metadata keeps: nothing of what was not said."""
        return {name: value for name, value in asdict(self).items() if value is not None}


OPTION_DEFAULTS = QueueOptions()


def options_of(stored: Mapping[str, Any], defaults: QueueOptions = OPTION_DEFAULTS) -> QueueOptions:
    """What `stored` once gave to the metadata; what is not in there is that of `defaults`."""
    given = {name: value for name, value in stored.items() if value is not None}
    return msgspec.convert(asdict(defaults) | given, QueueOptions)


# ---- times ----


def parse_time_span(text: str) -> int:
    """`[-][d.]hh:mm:ss[.fffffff]` in milliseconds; what is finer is rounded up, so that no time becomes none."""
    match = TIME_SPAN.fullmatch(text)
    if match is None:
        raise ValueError(f"time span: needed [d.]hh:mm:ss[.fffffff], had {text!r}")
    sign, days, hours, minutes, seconds, fraction = match.groups()
    whole_s = ((int(days or 0) * 24 + int(hours)) * 60 + int(minutes)) * 60 + int(seconds)
    ticks = whole_s * 1000 * TICKS_PER_MS + int((fraction or "").ljust(7, "0"))
    ms = -(-ticks // TICKS_PER_MS)
    return -ms if sign else ms


def format_time_span(ms: int) -> str:
    """As .NET writes it: days only if there are any, no fraction or seven digits."""
    sign = "-" if ms < 0 else ""
    days, rest_ms = divmod(abs(ms), DAY_MS)
    seconds, fraction_ms = divmod(rest_ms, 1000)
    clock = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return f"{sign}{f'{days}.' if days else ''}{clock}{f'.{fraction_ms * TICKS_PER_MS:07}' if fraction_ms else ''}"


def format_time(ms: int) -> str:
    """Milliseconds since 1970 as ISO 8601 in UTC, with a fraction if there is one."""
    time = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)
    return f"{time:%Y-%m-%dT%H:%M:%S}{f'.{ms % 1000:03}' if ms % 1000 else ''}Z"


# ---- one value, a text from a header or anything but null from JSON; a ValueError says what was needed ----


def _whole(value: object, most: int, needed: str) -> int:
    if isinstance(value, str) and DECIMAL.fullmatch(value):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise ValueError(needed)
    return value


def _count(value: object) -> int:
    return _whole(value, INT32_MAX, f"a whole number from 0 to {INT32_MAX}")


def _time_ms(value: object) -> int:
    if isinstance(value, str) and ":" in value:
        try:
            value = parse_time_span(value)
        except ValueError:
            value = None
    return _whole(value, TIME_SPAN_MS_MAX, "milliseconds, or a time span [d.]hh:mm:ss[.fffffff], not negative")


def _flag(value: object) -> bool:
    if isinstance(value, str):
        value = {"true": True, "false": False}.get(value.lower())
    if not isinstance(value, bool):
        raise ValueError("true or false")
    return value


def _queue_name(value: object) -> str | None:
    if value == "":
        return None
    if not isinstance(value, str) or not is_queue_name(value):
        raise ValueError("the name of a queue")
    return value


def _durability(value: object) -> str:
    if not isinstance(value, str) or value.lower() not in DURABILITIES:
        raise ValueError(f"one of {', '.join(DURABILITIES)}")
    return value.lower()


def _member(kind: type[IntEnum]) -> Callable[[object], IntEnum]:
    by_name = {wire_name(member).lower(): member for member in kind}
    needed = f"one of {', '.join(wire_name(member) for member in kind)}, or 0 to {max(kind)}"

    def read(value: object) -> IntEnum:
        if isinstance(value, str) and value.lower() in by_name:
            return by_name[value.lower()]
        return kind(_whole(value, max(kind), needed))

    return read


#: Field -> (names on the wire, the first before the others; how a value is read)
READERS: dict[str, tuple[tuple[str, ...], Callable[[object], object]]] = {
    "mode": (("mode", "deliveryMode"), _member(DeliveryMode)),
    "max_messages": (("maxQueueSize",), _count),
    "message_ttl_ms": (("messageTtl",), _time_ms),
    "dead_letter": (("enableDeadLetterQueue",), _flag),
    "dead_letter_queue": (("deadLetterQueueName",), _queue_name),
    "overflow": (("overflowStrategy",), _member(OverflowStrategy)),
    "attempts_max": (("maxRetryAttempts",), _count),
    "ack_timeout_ms": (("ackTimeoutMs",), _time_ms),
    "backoff_ms": (("backoffMs",), _time_ms),
    "backoff_max_ms": (("backoffMaxMs",), _time_ms),
    "prefetch": (("prefetch",), _count),
    "durability": (("durability",), _durability),
}
ADDITIONS = ("ack_timeout_ms", "backoff_ms", "backoff_max_ms", "prefetch", "durability")


def queue_options(headers: Mapping[str, str], payload: bytes | None, defaults: QueueOptions) -> QueueOptions:
    """The options of a CreateQueue: a payload member wins over a header.

    An option in neither is that of `defaults`; with a payload it is its own default, because a .NET peer leaves
    out unwanted options.  It never leaves out the limits of messages and of failed deliveries, so missing ones are the
    broker's.
    """
    members = _members(payload)
    given = _read(headers, in_payload=False) | _read(members or {}, in_payload=True)
    return replace(defaults if members is None else OPTION_DEFAULTS, **given)


def altered_options(payload: bytes | None) -> dict[str, Any]:
    """The changes of an AlterQueue: values to store, and None for what is given back to the configuration.

    Unlike at CreateQueue, what is not known is refused: nobody may believe that it was changed.
    """
    members = _members(payload) or {}
    fields = {name: field for field, (names, _) in READERS.items() for name in names}
    if unknown := [name for name in members if name not in fields]:
        raise BadOption(unknown[0][:60], f"one of {', '.join(sorted(fields))}", members[unknown[0]], in_payload=True)
    if not members:
        raise BadOption("payload", "an option to change", "none", in_payload=True)
    given = {fields[name]: None for name, value in members.items() if value is None}
    read = _read(members, in_payload=True)
    return given | {name: int(value) if isinstance(value, IntEnum) else value for name, value in read.items()}


def _members(payload: bytes | None) -> dict[str, Any] | None:
    if not payload:
        return None
    if not is_json(payload):  # bounds the depth before a recursive parser sees it
        raise BadOption("payload", "JSON", f"{len(payload)} bytes of something else", in_payload=True)
    try:
        value = msgspec.json.decode(payload)
    except msgspec.DecodeError as error:  # grammar apart, a number may be too large or an escape half a character
        raise BadOption("payload", "JSON with values in range", error, in_payload=True) from None
    if value is not None and not isinstance(value, dict):
        raise BadOption("payload", "a JSON object", payload.decode(), in_payload=True)
    return value


def _read(source: Mapping[str, Any], *, in_payload: bool) -> dict[str, Any]:
    given = {}
    for field, (names, read) in READERS.items():
        name = next((name for name in names if source.get(name) is not None), None)
        if name is None:
            continue
        try:
            given[field] = read(source[name])
        except ValueError as wrong:
            raise BadOption(name, str(wrong), repr(source[name]), in_payload=in_payload) from None
    return given


# ---- QueueInfo ----


def queue_info(
    name: str,
    options: QueueOptions,
    created_ms: int,
    *,
    message_count: int,
    subscriber_count: int,
    in_flight_count: int = 0,
    dropped_count: int = 0,
    refused_count: int = 0,
    prefetch_max: int | None = None,
    text_layout: bool = False,
) -> bytes:
    """Return the JSON payload of a QueueInfo reply.

    `message_count` counts waiting messages. No limit of failed deliveries is sent as ATTEMPTS_UNLIMITED. Enumerations
    are numbers, or names for a peer of the text layout.
    """

    attempts = options.attempts_max

    def member(value: IntEnum) -> int | str:
        return wire_name(value) if text_layout else int(value)

    info: dict[str, Any] = {
        "name": name,
        "messageCount": min(message_count, INT32_MAX),
        "subscriberCount": min(subscriber_count, INT32_MAX),
        "deliveryMode": member(options.mode),
        "maxSize": min(options.max_messages or 0, INT32_MAX),
        "createdAt": format_time(created_ms),
        "messageTtl": None if options.message_ttl_ms is None else format_time_span(options.message_ttl_ms),
        "enableDeadLetterQueue": options.dead_letter,
        "deadLetterQueueName": options.dead_letter_queue,
        "overflowStrategy": member(options.overflow),
        "maxRetryAttempts": ATTEMPTS_UNLIMITED if attempts is None else min(attempts, INT32_MAX),
        "deliveryModeName": wire_name(options.mode),
        "overflowStrategyName": wire_name(options.overflow),
        "inFlightCount": min(in_flight_count, INT32_MAX),
        "droppedCount": dropped_count,
        "refusedCount": refused_count,
        "prefetchMax": prefetch_max,
        "effectiveDeadLetterQueueName": options.dead_letter_name(name) if options.dead_letter else None,
    }
    info |= {READERS[field][0][0]: getattr(options, field) for field in ADDITIONS}
    return msgspec.json.encode({key: value for key, value in info.items() if value is not None})
