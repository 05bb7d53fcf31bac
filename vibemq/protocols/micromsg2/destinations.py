# SPDX-License-Identifier: Apache-2.0
"""Destinations and the queues behind them: ``topic/NAME`` is a fan-out, ``queue/NAME`` and any other text a queue.

Both have one space of names, that of the broker's queues.  A prefix that contradicts the queue that is there is
refused, because messages would go to one of the consumers instead of all, or the other way round; a bare name takes
what is there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vibemq.broker.catalog import NAME_SIZE_MAX_BYTES, RESERVED_PREFIX, queue_name_fits
from vibemq.broker.options import DeliveryMode
from vibemq.errors import Refused
from vibemq.protocols.micromsg2.spec import DESTINATION_BYTES_MAX, QUEUE_PREFIX, TOPIC_PREFIX, ErrorCode

#: What people and other brokers write before a slash -> what they mean.
PREFIX_MEANT = {
    "queues": QUEUE_PREFIX,
    "queue:": QUEUE_PREFIX,
    "q": QUEUE_PREFIX,
    "": QUEUE_PREFIX,
    "topics": TOPIC_PREFIX,
    "topic:": TOPIC_PREFIX,
    "t": TOPIC_PREFIX,
    "exchange": TOPIC_PREFIX,
}


@dataclass(frozen=True, slots=True)
class Target:
    name: str  # of the queue
    prefix: str  # "": it was not said what it is

    @property
    def options(self) -> dict[str, Any]:
        """With which the queue is made where it does not exist."""
        return {"mode": int(DeliveryMode.FAN_OUT_WITH_ACK)} if self.prefix == TOPIC_PREFIX else {}

    def fits(self, is_fan_out: bool) -> bool:
        return not self.prefix or is_fan_out == (self.prefix == TOPIC_PREFIX)

    def wrong_kind(self) -> Refused:
        right, is_there = (QUEUE_PREFIX, "queue") if self.prefix == TOPIC_PREFIX else (TOPIC_PREFIX, "topic")
        text = f"'{self.name}' is a {is_there}; its destination is {right}{self.name}"
        return Refused(ErrorCode.WRONG_KIND, text)


def check_new(target: Target) -> None:
    """A queue is about to be made by this name: one that other doors could not name is a mistake.  Raises Refused."""
    if queue_name_fits(target.name):
        return
    word, slash, rest = target.name.partition("/")
    if slash and word.lower() in PREFIX_MEANT and queue_name_fits(rest) and rest:
        meant = f"'{PREFIX_MEANT[word.lower()]}{rest}' was probably meant"
    else:
        meant = f"its destination is {QUEUE_PREFIX}NAME or {TOPIC_PREFIX}NAME"
    raise Refused(
        ErrorCode.INVALID_NAME,
        f"a new queue's name has letters, digits, '-', '_' and '.' only, had '{target.name:.100}': {meant}",
    )


def target_of(destination: bytes, default: str = "") -> Target:
    """What a frame's destination means; `default` stands for the empty one.  Raises Refused."""
    try:
        text = destination.decode() or default
    except UnicodeDecodeError:
        raise Refused(ErrorCode.INVALID_NAME, "a destination is ASCII or UTF-8") from None
    if not text:
        raise Refused(ErrorCode.NO_DESTINATION, "name a destination; micromsg2.default_queue is not set here")
    if len(destination) > DESTINATION_BYTES_MAX:
        raise Refused(ErrorCode.INVALID_NAME, f"a destination has at most {DESTINATION_BYTES_MAX} bytes")
    prefix = next((prefix for prefix in (TOPIC_PREFIX, QUEUE_PREFIX) if text.lower().startswith(prefix)), "")
    name = text[len(prefix) :]
    if not name.isprintable() or not 1 <= len(name.encode()) <= NAME_SIZE_MAX_BYTES:
        raise Refused(ErrorCode.INVALID_NAME, f"a name has 1 to {NAME_SIZE_MAX_BYTES} bytes of printable text")
    if name.startswith(RESERVED_PREFIX):
        raise Refused(ErrorCode.INVALID_NAME, f"names that begin with {RESERVED_PREFIX} are reserved")
    return Target(name, prefix)
