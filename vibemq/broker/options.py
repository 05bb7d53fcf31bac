# SPDX-License-Identifier: Apache-2.0
"""How a queue behaves: chosen when it is made and kept with it; what can change while it lives is `altered`.

What is stored is a plain dictionary (storage.metadata); options that a queue does not name
follow the broker's configuration, so an operator can change those for all of them.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from vibemq.broker.arguments import DURABILITIES, BadArgument
from vibemq.config import Queues
from vibemq.storage.policies import ACK_TIMEOUT_MS_MIN as ACK_TIMEOUT_MS_MIN
from vibemq.storage.policies import ATTEMPTS_MAX as ATTEMPTS_MAX
from vibemq.storage.policies import DEAD_LETTER_SUFFIX as DEAD_LETTER_SUFFIX
from vibemq.storage.policies import NAME_SIZE_MAX_BYTES as NAME_SIZE_MAX_BYTES


class DeliveryMode(enum.IntEnum):
    ROUND_ROBIN = 0
    FAN_OUT_WITH_ACK = 1
    FAN_OUT_WITHOUT_ACK = 2
    PRIORITY_BASED = 3


FAN_OUTS = (DeliveryMode.FAN_OUT_WITH_ACK, DeliveryMode.FAN_OUT_WITHOUT_ACK)


class Overflow(enum.IntEnum):
    DROP_OLDEST = 0
    DROP_NEWEST = 1
    BLOCK_PUBLISHER = 2
    REDIRECT_TO_DLQ = 3


class FailureReason(enum.StrEnum):
    """Why a message is in a dead-letter queue; the header x-failure-reason."""

    MAX_RETRIES_EXCEEDED = "MaxRetriesExceeded"
    MESSAGE_EXPIRED = "MessageExpired"
    DESERIALIZATION_ERROR = "DeserializationError"
    QUEUE_FULL = "QueueFull"
    MAXLEN = "maxlen"  # the queue has a limit, and newer messages were published
    UNDELIVERABLE = "Undeliverable"  # none of the consumers that tried could be given it
    MEMBER_GONE = "MemberGone"  # a copy of a fan-out's member that vanished and did not return in time
    CYCLE = "cycle"  # only in the log, as the reason of a drop


#: Reasons for which one copy of a fan-out leaves the queue, and the message stays for the other members.
OF_ONE_MEMBER = (FailureReason.UNDELIVERABLE, FailureReason.MEMBER_GONE)

#: What the log says of messages that left a queue for good.
DROPPED = {
    FailureReason.QUEUE_FULL: "it is full (max_messages {queue.max_messages}), and drops the oldest",
    FailureReason.MESSAGE_EXPIRED: "messages are older than its time to live of {queue.options.message_ttl_ms} ms, and "
    "are dropped; with a dead-letter queue they would be kept",
    FailureReason.MAX_RETRIES_EXCEEDED: "message {offset} was delivered {times} and not acknowledged, and is dropped; "
    "with a dead-letter queue it would be kept",
    FailureReason.UNDELIVERABLE: "message {offset} could be given to none of the consumers that tried, and is dropped; "
    "with a dead-letter queue it would be kept",
    FailureReason.MAXLEN: "it is full (max_messages {queue.max_messages}), and drops the oldest",
    FailureReason.MEMBER_GONE: "message {offset} is dropped for a member of the fan-out that did not come back",
    FailureReason.CYCLE: "message {offset} went round through dead-letter queues without a consumer that rejected it, "
    "and is dropped (cycle); let one of these queues have no dead-letter queue",
    FailureReason.DESERIALIZATION_ERROR: "message {offset} cannot be read, and is dropped",
}

#: A name keeps the queue's segments until its time to live ends: at most a month.
SUBSCRIBER_TTL_S_MAX = 2_592_000
#: Failed deliveries that a queue with a dead-letter queue allows without a declared limit: .NET clients' default.
ATTEMPTS_WITH_DEAD_LETTERS = 3
#: A queue without a limit reports a message that failed so often, and delays each further delivery of it.
FAILING_FROM = 3

_NUMBER_MAX = 2**53  # of milliseconds or messages: what every reader of JSON takes exactly


@dataclass(frozen=True, slots=True)
class QueueOptions:
    """All of a queue's options, with the configuration's values where the queue has none."""

    mode: DeliveryMode
    max_messages: int  # waiting ones; 0: no limit
    message_ttl_ms: int  # 0: none
    dead_letter: bool
    dead_letter_queue: str  # as declared; "": the default name
    overflow: Overflow
    attempts_max: int | None  # failed deliveries; None: no limit
    ack_timeout_ms: int
    backoff_ms: int
    backoff_max_ms: int
    prefetch: int
    keep: bool  # its stream was there before the queue: settled messages are not dropped for the queue's sake

    @property
    def is_fan_out(self) -> bool:
        """Does each message go to all consumers?"""
        return self.mode in FAN_OUTS

    @property
    def drops_waiting(self) -> bool:
        """Do messages that wait leave the queue, though nobody uses it?  Then somebody must be home."""
        return bool(self.message_ttl_ms or (self.max_messages and self.overflow is Overflow.DROP_OLDEST))

    def dead_letter_name(self, queue: str) -> str:
        return self.dead_letter_queue or queue + DEAD_LETTER_SUFFIX

    def backoff_after_failure(self, failures: int) -> int:
        """Return the milliseconds before the next attempt after a refusal or a lost connection.

        A limit bounds the immediate redeliveries of a message. Without a limit the back-off does.
        """
        return self.backoff_after(failures) if self.attempts_max is None and failures >= FAILING_FROM else 0

    def backoff_after(self, strikes: int) -> int:
        """Milliseconds before the next attempt, doubling."""
        return min(self.backoff_ms << min(max(strikes - 1, 0), 32), self.backoff_max_ms)


def options_of(stored: Mapping[str, Any], defaults: Queues) -> QueueOptions:
    """The options that stored ones (protocol names, None for "not said") amount to."""

    def given(name: str, default: Any) -> Any:
        value = stored.get(name)
        return default if value is None else value

    # Without a dead-letter queue the limit drops messages, so it must be declared.
    dead_letter = bool(given("dead_letter", False))
    attempts = stored.get("attempts_max")
    if attempts is None:
        attempts = defaults.attempts_max or (ATTEMPTS_WITH_DEAD_LETTERS if dead_letter else None)
    return QueueOptions(
        mode=DeliveryMode(given("mode", 0)),
        max_messages=max(0, given("max_messages", defaults.max_messages)),
        message_ttl_ms=max(0, given("message_ttl_ms", 0)),
        dead_letter=dead_letter,
        dead_letter_queue=given("dead_letter_queue", ""),
        overflow=Overflow(given("overflow", 0)),
        attempts_max=None if attempts is None else min(max(1, attempts), ATTEMPTS_MAX),
        ack_timeout_ms=given("ack_timeout_ms", defaults.ack_timeout_ms),
        backoff_ms=given("backoff_ms", defaults.backoff_ms),
        backoff_max_ms=given("backoff_max_ms", defaults.backoff_max_ms),
        prefetch=given("prefetch", defaults.prefetch),
        keep=bool(given("keep", False)),
    )


def _whole(least: int, what: str = "a number", zero: str = "") -> tuple[Callable[[Any], bool], str]:
    return (
        lambda value: isinstance(value, int) and not isinstance(value, bool) and least <= value <= _NUMBER_MAX,
        f"{what} from {least}{zero} to {_NUMBER_MAX}",
    )


def _one_of(values: type[enum.IntEnum]) -> tuple[Callable[[Any], bool], str]:
    return (
        lambda value: isinstance(value, int) and not isinstance(value, bool) and value in list(values),
        f"one of {', '.join(f'{member.value} ({member.name.lower()})' for member in values)}",
    )


_FLAG = (lambda value: isinstance(value, bool), "true or false")
#: What a queue is made of.  Option -> what it may be, and in words.
_FIXED: dict[str, tuple[Callable[[Any], bool], str]] = {
    "mode": _one_of(DeliveryMode),
    "durability": (lambda value: value in DURABILITIES, f"one of {', '.join(DURABILITIES)}"),
    "keep": _FLAG,
}
#: What can change while it lives.
_CHANGEABLE: dict[str, tuple[Callable[[Any], bool], str]] = {
    "max_messages": _whole(0, zero=" (no limit)"),
    "overflow": _one_of(Overflow),
    "message_ttl_ms": _whole(0, "milliseconds", " (none)"),
    "attempts_max": _whole(0, zero=" (as 1)"),  # above ATTEMPTS_MAX as that
    "ack_timeout_ms": _whole(ACK_TIMEOUT_MS_MIN, "milliseconds"),
    "backoff_ms": _whole(0, "milliseconds"),
    "backoff_max_ms": _whole(0, "milliseconds"),
    "prefetch": _whole(1),
    "dead_letter": _FLAG,
    "dead_letter_queue": (
        lambda value: (
            isinstance(value, str)
            and value.isprintable()
            and len(value.encode(errors="replace")) <= NAME_SIZE_MAX_BYTES
        ),
        f"the name of a queue, of at most {NAME_SIZE_MAX_BYTES} bytes",
    ),
}
CHANGEABLE = tuple(_CHANGEABLE)
#: What a dead-letter queue made on demand is stored with: no limit, because nothing is behind it.
OF_DEAD_LETTERS: Mapping[str, Any] = {"mode": 0, "max_messages": 0, "dead_letter": False}


def stored_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Options as they are stored, from a document that somebody may have edited; None is left out.

    Raises BadArgument.
    """
    options = _FIXED | _CHANGEABLE
    for option, value in given.items():
        if option not in options:
            raise BadArgument(f"there is no option {option[:60]!r}; known are {', '.join(options)}")
        is_good, needed = options[option]
        if value is not None and not is_good(value):
            raise BadArgument(f"{option}: needed {needed}, had {str(value)[:60]!r}")
    return {
        option: int(value) if isinstance(value, enum.IntEnum) else value
        for option, value in given.items()
        if value is not None
    }


def subscriber_of(name: str | None, ttl: str | int | None) -> tuple[str, int]:
    """Check the name of a fan-out's member and its time to live in seconds from a client.  Raises BadArgument."""
    name = name or ""
    if not name.isprintable() or len(name.encode(errors="replace")) > NAME_SIZE_MAX_BYTES:
        raise BadArgument(f"a subscriber's name needs at most {NAME_SIZE_MAX_BYTES} printable bytes, had {name[:60]!r}")
    text = str(ttl or 0)
    if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text) <= SUBSCRIBER_TTL_S_MAX):
        raise BadArgument(f"a subscriber's time to live needs 0 to {SUBSCRIBER_TTL_S_MAX} seconds, had {text[:20]!r}")
    if int(text) and not name:
        raise BadArgument("a subscriber's time to live needs the subscriber's name")
    return name, int(text)


def letters_named(name: str, options: Mapping[str, Any]) -> str | None:
    """Where the dead letters of the queue `name` would go with these stored options; None: they do not say."""
    return options.get("dead_letter_queue") or (name + DEAD_LETTER_SUFFIX if options.get("dead_letter") else None)


# ---- changing a queue that lives ----


def altered(name: str, stored: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """What the queue `name`, stored like this, is to be stored with.  None: as the configuration has it.

    Raises BadArgument.
    """
    for option, value in changes.items():
        if option in _FIXED and value != stored.get(option, 0 if option == "mode" else None):
            raise BadArgument(
                f"{option}: it cannot change while queue {name} lives; make another queue with it and move the "
                "messages there, or delete the queue and make it anew"
            )
        if option not in _CHANGEABLE and option not in _FIXED:
            raise BadArgument(f"there is no option {option[:60]!r}; known are {', '.join(CHANGEABLE)}")
    kept = {option: value for option, value in stored.items() if option not in changes} | stored_options(changes)
    if kept.get("dead_letter_queue") == name:
        raise BadArgument(f"dead_letter_queue: queue {name} cannot be its own dead-letter queue")
    return kept


def shown(value: Any) -> str:
    """An option's value for people."""
    if value is None:
        return "no limit"
    return value.name.lower() if isinstance(value, enum.IntEnum) else repr(value) if value == "" else str(value)
