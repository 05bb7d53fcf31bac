# SPDX-License-Identifier: Apache-2.0
"""How a queue behaves: chosen when it is made, kept with it, never changed afterwards.

What is stored is a plain dictionary (storage.metadata); options that a queue does not name
follow the broker's configuration, so an operator can change those for all of them.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vibemq.config import Queues


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


DEAD_LETTER_SUFFIX = ".dlq"
#: A ledger entry counts to here (csrc/ledger/ledger.h); more attempts than this are no limit at all.
ATTEMPTS_MAX = 1000
#: Below it every send would be overdue at once, and the queue turn in circles.
ACK_TIMEOUT_MS_MIN = 10


@dataclass(frozen=True, slots=True)
class QueuePolicy:
    """All of a queue's options, with the configuration's values where the queue has none."""

    mode: DeliveryMode
    max_messages: int  # waiting ones; 0: no limit
    message_ttl_ms: int  # 0: none
    dead_letter: bool
    dead_letter_queue: str  # as declared; "": the default name
    overflow: Overflow
    attempts_max: int
    ack_timeout_ms: int
    backoff_ms: int
    backoff_max_ms: int
    prefetch: int
    keep: bool  # its stream was there before the queue: settled messages are not dropped for the queue's sake

    @property
    def is_fan_out(self) -> bool:
        """Does each message go to all consumers?"""
        return self.mode in FAN_OUTS

    def dead_letter_name(self, queue: str) -> str:
        return self.dead_letter_queue or queue + DEAD_LETTER_SUFFIX

    def backoff_after(self, strikes: int) -> int:
        """Milliseconds before the next attempt, doubling."""
        return min(self.backoff_ms << min(max(strikes - 1, 0), 32), self.backoff_max_ms)


def policy(stored: Mapping[str, Any], defaults: Queues) -> QueuePolicy:
    """The policy that stored options (protocol names, None for "not said") amount to."""

    def given(name: str, default: Any) -> Any:
        value = stored.get(name)
        return default if value is None else value

    return QueuePolicy(
        mode=DeliveryMode(given("mode", 0)),
        max_messages=max(0, given("max_messages", defaults.max_messages)),
        message_ttl_ms=max(0, given("message_ttl_ms", 0)),
        dead_letter=bool(given("dead_letter", False)),
        dead_letter_queue=given("dead_letter_queue", ""),
        overflow=Overflow(given("overflow", 0)),
        attempts_max=min(max(1, given("attempts_max", defaults.attempts_max)), ATTEMPTS_MAX),
        ack_timeout_ms=given("ack_timeout_ms", defaults.ack_timeout_ms),
        backoff_ms=given("backoff_ms", defaults.backoff_ms),
        backoff_max_ms=given("backoff_max_ms", defaults.backoff_max_ms),
        prefetch=given("prefetch", defaults.prefetch),
        keep=bool(given("keep", False)),
    )


def has_ttl(stored: Mapping[str, Any] | None) -> bool:
    """Do messages of a queue that is stored like this expire?"""
    return bool(stored and stored.get("message_ttl_ms"))


def dead_letter_options(source: QueuePolicy) -> dict[str, Any]:
    """What a dead-letter queue made on demand is stored with: bounded as its source, and nothing behind it."""
    return {"mode": 0, "max_messages": source.max_messages, "overflow": int(Overflow.DROP_OLDEST), "dead_letter": False}
