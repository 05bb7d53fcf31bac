# SPDX-License-Identifier: Apache-2.0
"""Messages from one queue into others, as they are stored: dead letters back to where they came from, for instance.

doubles none:
A message is acknowledged at its source after the target has confirmed it, so it is always in one of them. A lost
connection doubles none:
doubles none:

- A Publish without an answer is sent again with its number, by which the broker recognizes it.
- An acknowledgement is certain once the broker has answered a request that was sent after it on the same connection.
  Until then the mover remembers the message, at most PROVE_COUNT + WINDOW_COUNT for each connection. After a loss it
  acknowledges these again when they are delivered again, and does not publish them again.
- A call ends when no acknowledgement is uncertain. If it cannot find out, it fails with the number of messages that
  may be in both queues.

When this process itself ends in between, up to PROVE_COUNT + WINDOW_COUNT messages are in both queues, each with the
same id.
"""

from __future__ import annotations

import hashlib
import math
import shlex
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from vibemq.client._engine import Engine
from vibemq.client._native import NO_FIELDS, Batch, Core, Message
from vibemq.client._streams import read_message
from vibemq.client.consuming import AsyncConsumer
from vibemq.client.publishing import summary
from vibemq.client.queues import QueueInfo, find_queue, is_there, no_such_queue
from vibemq.errors import ConfigError, ConnectionClosed, InvalidRequest, PublishTimeout
from vibemq.protocols.native.spec import FORM_STORED, ErrorCode, Header

WINDOW_COUNT = 64  # messages in transit: hides the round trip
PROVE_COUNT = 4 * WINDOW_COUNT  # acknowledgements before a request proves that the broker has read them
PREFETCH_COUNT = 4 * WINDOW_COUNT  # or as many as the broker allows
UNCERTAIN_COUNT_MAX = 4096  # uncertain acknowledgements, as a dozen lost connections leave them: 100 bytes each
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
        self._left = 0  # delivered in this subscription, without a target queue
        self._held = 0  # delivered in this subscription, beyond `count`
        self._acked: Counter[Key] = Counter()  # on this connection, since the broker last answered
        self._uncertain: Counter[Key] = Counter()  # acknowledged on connections that were lost
        self._connection: tuple[Core, int] | None = None
        self._lost_count, self._lost_s, self._is_past_lost = 0, 0.0, False

    async def run(self, count: int | None, progress: Progress | None) -> Moved:
        count = self._waiting if count is None else min(count, self._waiting)
        if self._dry_run:  # nothing that it looks at is acknowledged
            count = min(count, self._prefetch)
        lacking = "does not hand out messages as they are stored"
        self._engine.need(FORM_STORED, lacking, "It is too old, or not one of ours.")
        is_over = count == 0
        while not is_over:
            self._left = self._held = 0  # these are delivered again
            try:
                is_over = await self._subscribed(count, progress)
            except ConnectionClosed:  # during the subscription or a request; try another connection
                if self._engine.is_over or not self._engine.settings.reconnect:
                    raise
        return Moved(dict(self._counts), self._left)

    async def _subscribed(self, count: int, progress: Progress | None) -> bool:
        """Move in one subscription, which ends before the ack timeout of messages that stay in the queue.

        True: all messages are moved.
        """
        consumer = AsyncConsumer(self._engine, self._source, self._prefetch, False, False, IDLE_S, True)
        consumer.looks_only = True  # messages that are not moved go back, not as failed
        loop = self._engine.loop
        until, silent_s = loop.time() + (math.inf if self._dry_run else SUBSCRIBED_S), 0.0
        async with consumer:
            engine = self._engine.engine_of(consumer._feed)
            while True:
                self._look_for_a_loss(engine)
                wanted = count - self._counts.total() - self._left
                if wanted <= 0 and not self._uncertain:
                    await self._prove(engine)
                    if not self._uncertain:
                        return True
                messages = await consumer._some(min(WINDOW_COUNT, wanted) if wanted > 0 else WINDOW_COUNT)
                if messages:
                    silent_s = 0.0
                    self._look_for_a_loss(engine)
                    await self._move([message for message in messages if not message.stale], wanted)
                    if self._acked.total() >= PROVE_COUNT:
                        await self._prove(engine)
                    if progress is not None:
                        progress(self._counts.total() + self._left, count)
                    if loop.time() >= until and (self._uncertain or self._counts.total() + self._left < count):
                        await self._prove(engine)
                        return False
                    continue
                silent_s += IDLE_S
                info = await self._prove(engine)
                if info is None or self._is_seen(info, wanted):
                    self._uncertain.clear()
                    return True
                if self._left + self._held >= self._prefetch and wanted > 0:
                    raise InvalidRequest(
                        f"queue {self._source}: {self._left} messages that do not say where they came from lie before "
                        "others, and no more are handed out at once",
                        code=ErrorCode.QUEUE_FULL.value,
                        hint=f"Move them away first: `vibemq queues move {shlex.quote(self._source)} QUEUE "
                        f"--count {self._left}`.",
                    )
                if silent_s >= self._engine.patience_s(self._timeout_s):
                    self._raise_uncertain()
                    return True  # other consumers have its messages

    async def _prove(self, engine: Engine) -> QueueInfo | None:
        """Request the source's state. The answer proves that the broker has read each acknowledgement before it."""
        while True:
            engine.flush_settled()
            self._look_for_a_loss(engine)
            try:
                info = await find_queue(engine.request, self._source, self._timeout_s)
            except ConnectionClosed:
                if engine.is_over or not engine.settings.reconnect:
                    raise
                continue
            if not self._look_for_a_loss(engine):
                self._acked.clear()
            return info

    def _look_for_a_loss(self, engine: Engine) -> bool:
        """Mark the last acknowledgements of a lost connection as uncertain: the broker may have read them or not."""
        connection = engine.core, engine.core.epoch
        before, self._connection = self._connection, connection
        if before is None or before == connection:
            return False
        if before[0] is connection[0] or self._acked:
            self._lost_count += 1
            self._lost_s, self._is_past_lost = engine.loop.time(), False
        self._uncertain.update(self._acked)
        self._acked.clear()
        self._left = self._held = 0
        if self._uncertain.total() > UNCERTAIN_COUNT_MAX:
            self._raise_uncertain()
        return True

    def _is_seen(self, info: QueueInfo, wanted: int) -> bool:
        """True if no message of the source may still be delivered here. Called after a silence."""
        mine = self._left + self._held
        if not self._lost_count:
            return not info.messages
        if info.in_flight > mine:
            return False  # perhaps at a lost connection that the broker still counts
        if not info.messages:
            return True
        if wanted > 0:
            return False
        # Redelivered messages come first. The oldest one of a lost connection waits for its back-off.
        backoff_ms = min(info.options.backoff_ms or 0, info.options.backoff_max_ms or math.inf)
        waits_s = backoff_ms * 2 ** min(self._lost_count - 1, 16) / 1000 + IDLE_S
        return self._is_past_lost and mine > 0 and self._engine.loop.time() - self._lost_s > waits_s

    def _raise_uncertain(self) -> None:
        if self._uncertain:
            raise PublishTimeout(
                f"queue {self._source}: connections were lost, and whether the broker has read the acknowledgements of "
                f"{self._uncertain.total()} moved messages is not known: they may be in both queues",
                unsent=0,
                unanswered=self._uncertain.total(),
                hint=f"Each has the same id in both. Inspect the messages in {self._source} before you move them.",
            )

    async def _move(self, messages: list[Message], wanted: int) -> None:
        going: dict[str, list[Message]] = {}
        for message in messages:
            where = self._target or read_message(message.raw)[2].get(Header.ORIGINAL_QUEUE) or ""
            if self._is_confirmed(message):
                self._acknowledge(message)
                continue
            self._is_past_lost |= message.attempts == 1
            if wanted <= 0:
                self._held += 1
            elif not where or where == self._source:
                self._left += 1
            else:
                if where not in self._known and not await is_there(self._engine.request, where, self._timeout_s):
                    # Being published to would make it, and not as it was.
                    raise no_such_queue(
                        f"queue {where}, to which messages of {self._source} should go, does not exist",
                        f"Make it, with the options it should have (`vibemq queues create {shlex.quote(where)}`), or "
                        "name another.",
                    )
                self._known.add(where)
                going.setdefault(where, []).append(message)
        if not self._dry_run:
            await self._publish(going)
        else:
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
        for index, (where, message) in enumerate((where, each) for where, found in going.items() for each in found):
            if index not in refused:
                self._counts[where] += 1
                self._acknowledge(message)
        became.raise_failed()  # those that were refused stay where they are

    def _is_confirmed(self, message: Message) -> bool:
        """True if it is redelivered because its acknowledgement was lost with a connection."""
        key = _key(message)
        if message.attempts == 1 or not self._uncertain[key]:
            return False
        self._uncertain -= Counter([key])
        return True

    def _acknowledge(self, message: Message) -> None:
        message.ack()
        # A connection that is gone by now cannot take the acknowledgement, and one that goes now may not.
        (self._uncertain if message.stale else self._acked)[_key(message)] += 1


Key = tuple[str, bytes]


def _key(message: Message) -> Key:
    return message.id, hashlib.blake2b(message.raw, digest_size=16).digest()
