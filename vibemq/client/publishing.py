# SPDX-License-Identifier: Apache-2.0
"""What both faces of the native client share about publishing: what became of messages, and how many go at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from vibemq.client._outgoing import NO_FIELDS, Fields, Flow
from vibemq.client._refusals import refusal
from vibemq.errors import VibeMQError

WINDOW_DEFAULT = 1_000  # messages without an acknowledgement: hides the round trip, little to send again
BATCHES_IN_A_WINDOW = 4  # so that one is written while others are on their way
BATCH_COUNT_MAX = 4_096

Headers = Mapping[str, str] | None
Priority = int | str | None


@dataclass(frozen=True, slots=True)
class Refused:
    """A message that the broker did not take. `index` counts the messages of the call or publisher, from 0."""

    index: int
    id: str
    error: VibeMQError


@dataclass(frozen=True, slots=True)
class Summary:
    """What became of many messages: how many the broker has, and those that it refused."""

    published: int
    failed: list[Refused] = field(default_factory=list)

    def raise_failed(self) -> Summary:
        """Raises the first error, if there is one."""
        if self.failed:
            raise self.failed[0].error
        return self


def summary(flow: Flow, queue: str, acked_before: int = 0) -> Summary:
    failed = [
        Refused(index, id, refusal(f"queue {queue}: publishing message {id}", code, message))
        for index, id, code, message in flow.take_refused()
    ]
    return Summary(flow.acked - acked_before, failed)


def fields_of(headers: Headers, priority: Priority) -> Fields:
    return Fields(headers, priority) if headers or priority is not None else NO_FIELDS


def batch_count(window: int) -> int:
    if window < 1:
        raise ValueError(f"window: needed 1 message or more, had {window}")
    return min(max(1, window // BATCHES_IN_A_WINDOW), BATCH_COUNT_MAX)
