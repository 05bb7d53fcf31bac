# SPDX-License-Identifier: Apache-2.0
"""Messages from one queue into others, as they are stored: dead letters back to where they came from, for instance.

A message is acknowledged at its source after the target has confirmed it, so it is never in neither. What a lost
connection left unanswered is published once: the frame bears a number of this client, by which the broker knows it
again, beside the message's own id. When this process itself ends in between, up to WINDOW_COUNT messages are in both
queues, each with the same id.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from vibemq.client._engine import Engine
from vibemq.client._native import NO_FIELDS, Batch, Message
from vibemq.client._streams import read_message
from vibemq.client.consuming import AsyncConsumer
from vibemq.client.publishing import summary
from vibemq.client.queues import QueueInfo, find_queue, is_there, no_such_queue
from vibemq.errors import ConfigError, InvalidRequest
from vibemq.protocols.native.spec import FORM_STORED, ErrorCode, Header

WINDOW_COUNT = 64  # messages on their way: hides the round trip, and bounds what a crash leaves in both queues
PREFETCH_COUNT = 4 * WINDOW_COUNT  # or as many as the broker allows
REMEMBERED_COUNT = 4 * (PREFETCH_COUNT + WINDOW_COUNT)  # more than several lost connections take
DRY_RUN_COUNT_MAX = 10_000  # messages that are looked at, all of which this process holds until the end
SUBSCRIBED_S = 8.0  # then it subscribes again: queues wait 30 s for an acknowledgement, unless told otherwise
IDLE_S = 0.2  # a source that sends nothing for so long is asked whether it is empty


class Moved(NamedTuple):
    """How many messages went to which queue, or with dry_run would go; `left` do not say where they came from."""

    queues: dict[str, int]
    left: int

    @property
    def total(self) -> int:
        return sum(self.queues.values())


Progress = Callable[[int, int], object]


class Mover:
    def __init__(
        self, engine: Engine, source: QueueInfo, target: str | None, dry_run: bool, timeout_s: float | None
    ) -> None:
        if target == source.name:
            raise ConfigError(f"queue {target}: needed another queue to move to, had the same")
        self._engine, self._source, self._target, self._timeout_s = engine, source.name, target, timeout_s
        self._waiting, self._dry_run = source.messages, dry_run
        most = DRY_RUN_COUNT_MAX if dry_run else PREFETCH_COUNT
        self._prefetch = min(most, source.raw.get("prefetchMax", DRY_RUN_COUNT_MAX))
        self._known: set[str] = set()
        self._counts: Counter[str] = Counter()
        self._left = 0
        self._confirmed: dict[bytes, int] = {}  # what went last, and on which connection it was acknowledged

    async def run(self, count: int | None, progress: Progress | None) -> Moved:
        count = self._waiting if count is None else min(count, self._waiting)
        if self._dry_run:  # nothing that it looks at is acknowledged
            count = min(count, self._prefetch)
        lacking = "does not hand out messages as they are stored"
        self._engine.need(FORM_STORED, lacking, "It is too old, or not one of ours.")
        taken, is_over = 0, False
        while not is_over:
            taken, self._left = taken - self._left, 0  # these come again
            taken, is_over = await self._subscribed(taken, count, progress)
        return Moved(dict(self._counts), self._left)

    async def _subscribed(self, taken: int, count: int, progress: Progress | None) -> tuple[int, bool]:
        """One subscription, which ends before the broker takes what stays in the queue for not acknowledged in time."""
        consumer = AsyncConsumer(self._engine, self._source, self._prefetch, False, False, IDLE_S, True)
        loop = self._engine.loop
        until, silent_s = loop.time() + (math.inf if self._dry_run else SUBSCRIBED_S), 0.0
        async with consumer:
            while taken < count:
                messages = await consumer._some(min(WINDOW_COUNT, count - taken))
                if messages:
                    silent_s = 0.0
                    taken += len(messages)
                    await self._move(messages)
                    if progress is not None:
                        progress(taken, count)
                    if loop.time() >= until and taken < count:
                        return taken, False
                    continue
                silent_s += IDLE_S
                info = await find_queue(self._engine.request, self._source, self._timeout_s)
                if info is None or not info.messages:
                    break
                if self._left >= self._prefetch:
                    raise InvalidRequest(
                        f"queue {self._source}: {self._left} messages that do not say where they came from lie before "
                        "others, and no more are handed out at once",
                        code=ErrorCode.QUEUE_FULL.value,
                        hint=f"Move them away first: vibemq queues move {self._source} QUEUE --count {self._left}",
                    )
                if silent_s >= self._engine.patience_s(self._timeout_s):
                    break  # others have what is in it
        return taken, True

    async def _move(self, messages: list[Message]) -> None:
        going: dict[str, list[Message]] = {}
        for message in messages:
            where = self._target or read_message(message.raw)[2].get(Header.ORIGINAL_QUEUE) or ""
            if self._is_confirmed(message):
                message.ack()
            elif not where or where == self._source:
                self._left += 1
            else:
                if where not in self._known and not await is_there(self._engine.request, where, self._timeout_s):
                    # Being published to would make it, and not as it was.
                    raise no_such_queue(
                        f"queue {where}, to which messages of {self._source} should go, does not exist",
                        f"Make it, with the options it should have (`vibemq queues create {where}`), or name another.",
                    )
                self._known.add(where)
                going.setdefault(where, []).append(message)
        if not self._dry_run:
            await self._publish(going)
        self._counts.update({where: len(found) for where, found in going.items()})

    async def _publish(self, going: dict[str, list[Message]]) -> None:
        with self._engine.flow() as flow:
            for where, messages in going.items():
                batch = Batch(self._engine.core, where, True)
                for message in messages:
                    batch.add(message.raw, NO_FIELDS, True)
                self._engine.submit(batch, flow)
            await self._engine.room(flow, 0, self._timeout_s)
        became = summary(flow, self._target or f"of dead letters of {self._source}")
        refused = {one.index for one in became.failed}
        for index, message in enumerate(itertools.chain(*going.values())):
            if index not in refused:
                self._remember(message)
                message.ack()
        became.raise_failed()  # those that were refused stay where they are

    def _is_confirmed(self, message: Message) -> bool:
        """Does it come again because the connection took our acknowledgement with it?"""
        if message.attempts == 1:
            return False
        if self._confirmed.get(_digest(message), self._engine.core.epoch) == self._engine.core.epoch:
            return False
        self._remember(message)
        return True

    def _remember(self, message: Message) -> None:
        # A connection that is gone by now cannot take the acknowledgement, and one that goes now may not.
        self._confirmed[_digest(message)] = self._engine.core.epoch - message.stale
        if len(self._confirmed) > REMEMBERED_COUNT:
            del self._confirmed[next(iter(self._confirmed))]


def _digest(message: Message) -> bytes:
    return hashlib.blake2b(message.raw, digest_size=16).digest()
