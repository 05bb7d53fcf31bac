# SPDX-License-Identifier: Apache-2.0
"""Options of a queue as the command ``create`` gives them, as texts.  What is not said follows the configuration."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from typing import Any

from vibemq.broker.arguments import DURABILITIES
from vibemq.broker.options import ACK_TIMEOUT_MS_MIN, ATTEMPTS_MAX, DeliveryMode, Overflow
from vibemq.errors import Refused
from vibemq.protocols.micromsg2.spec import ErrorCode
from vibemq.storage.policies import COUNT_MAX, MS_MAX


def bad(key: str, needed: str, had: str) -> Refused:
    return Refused(ErrorCode.BAD_COMMAND, f"{key}: needed {needed}, had '{had:.40}'")


def whole(least: int, most: int) -> Callable[[str, str], int]:
    def read(key: str, text: str) -> int:
        value = int(text) if text.isascii() and text.isdigit() and len(text) < 20 else -1
        if not least <= value <= most:
            raise bad(key, f"a number from {least} to {most}", text)
        return value

    return read


def choice(needed: str, values: Mapping[str, Any]) -> Callable[[str, str], Any]:
    def read(key: str, text: str) -> Any:
        if text.lower() not in values:
            raise bad(key, needed, text)
        return values[text.lower()]

    return read


def member(kind: type[enum.IntEnum]) -> Callable[[str, str], int]:
    """ROUND_ROBIN is round-robin."""
    names = {one.name.lower().replace("_", "-"): int(one) for one in kind}
    return choice(f"one of {', '.join(names)}", names)


flag = choice("0 or 1", {"0": False, "1": True, "false": False, "true": True})
#: Key -> the field that a queue's metadata keeps it in (broker.options), and how it is read.
OPTIONS: dict[str, tuple[str, Callable[[str, str], Any]]] = {
    "durability": ("durability", choice("os, disk or remote", {one: one for one in DURABILITIES})),
    "mode": ("mode", member(DeliveryMode)),
    "max-messages": ("max_messages", whole(0, COUNT_MAX)),
    "message-ttl-ms": ("message_ttl_ms", whole(0, MS_MAX)),
    "dead-letter": ("dead_letter", flag),
    "overflow": ("overflow", member(Overflow)),
    "attempts-max": ("attempts_max", whole(1, ATTEMPTS_MAX)),
    "ack-timeout-ms": ("ack_timeout_ms", whole(ACK_TIMEOUT_MS_MIN, MS_MAX)),
    "backoff-ms": ("backoff_ms", whole(0, MS_MAX)),
    "backoff-max-ms": ("backoff_max_ms", whole(0, MS_MAX)),
}
#: What is no option; every queue outlives a restart, so `durable` must be 1.
OTHER_KEYS = frozenset(("id", "destination", "topic", "queue", "to", "name", "durable"))


def queue_options(pairs: Mapping[str, list[str]]) -> dict[str, Any]:
    """What a queue's metadata keeps.  Raises Refused."""
    kept = {}
    for key, values in pairs.items():
        if key in OPTIONS:
            field, read = OPTIONS[key]
            kept[field] = read(key, values[-1])
        elif key not in OTHER_KEYS:
            known = ", ".join(sorted(OPTIONS))
            raise Refused(ErrorCode.BAD_COMMAND, f"there is no option '{key:.40}'; known are {known}")
    if "durable" in pairs and not flag("durable", pairs["durable"][-1]):
        raise bad("durable", "1, because all queues outlive a restart", pairs["durable"][-1])
    return kept
