# SPDX-License-Identifier: Apache-2.0
"""A queue in plain Python, as the protocol describes it: what the broker's queues are compared with.

Every operation ends with ``dispatch``, and ``delivered`` then holds what each consumer must have received
since the last ``take``: (payload, attempts) in order.  There is no time in here: timeouts and back-off
have tests of their own.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

ROUND_ROBIN, FAN_OUT_WITH_ACK, FAN_OUT_WITHOUT_ACK, PRIORITY_BASED = range(4)
DROP_OLDEST, DROP_NEWEST, BLOCK_PUBLISHER, REDIRECT_TO_DLQ = range(4)

UNCOUNTED_RETURNS = 10  # a message goes back so often without a failure
LIMIT_WITH_DEAD_LETTERS = 3  # if none is declared

ACCEPTED, REFUSED, PARKED = "accepted", "refused", "parked"


@dataclass(eq=False)
class Entry:
    """One message; its payload is its number, so numbers are the order of arrival."""

    number: int
    priority: int
    attempts: int = 0
    strikes: int = 0
    acked: bool = False  # fan-out: at least one copy was


@dataclass(eq=False)
class Copy:
    """What one consumer has to do with one message: in flight, or (fan-out) on its way to it."""

    entry: Entry
    strikes: int = 0
    attempts: int = 0  # deliveries
    held: bool = False  # the client reported that its program holds it
    seen: bool = False  # the program has had it, because a younger one was settled
    inherited: bool = False  # and not given yet: nobody's once the entry is acknowledged


@dataclass(eq=False)
class Consumer:
    prefetch: int
    in_flight: list[Copy] = field(default_factory=list)  # in order of delivery
    returned: list[Copy] = field(default_factory=list)  # fan-out: copies that come again, before what is new
    pending: list[Copy] = field(default_factory=list)  # fan-out: in order of arrival
    stands: bool = False  # in the rotation
    gone: bool = False

    @property
    def has_room(self) -> bool:
        return not self.gone and len(self.in_flight) < self.prefetch

    def settled(self, at: int) -> Copy:
        if at:
            self.in_flight[at - 1].seen = True
        return self.in_flight.pop(at)


class QueueModel:
    """``publish`` says what the publisher is told; ``parked`` are those that are told nothing yet."""

    def __init__(
        self, mode: int, *, bound: int = 0, overflow: int = DROP_OLDEST, attempts_max: int | None = None,
        dead_letter: bool = True
    ) -> None:  # fmt: skip
        self.mode, self.bound, self.overflow, self.dead_letter = mode, bound, overflow, dead_letter
        if attempts_max is None and dead_letter:
            attempts_max = LIMIT_WITH_DEAD_LETTERS
        self.attempts_max = math.inf if attempts_max is None else max(attempts_max, 1)
        self.waiting: list[Entry] = []  # fan-out: only while nobody is there
        self.consumers: dict[str, Consumer] = {}
        self.rotation: deque[Consumer] = deque()
        self.delivered: dict[str, list[tuple[int, int]]] = {}
        self.dead: list[int] = []
        self.parked: list[tuple[int, int]] = []
        self.unparked: list[int] = []

    @property
    def is_fan_out(self) -> bool:
        return self.mode in (FAN_OUT_WITH_ACK, FAN_OUT_WITHOUT_ACK)

    def take(self) -> dict[str, list[tuple[int, int]]]:
        delivered, self.delivered = self.delivered, {}
        return delivered

    # ---- publishers ----

    @property
    def waiting_count(self) -> int:
        """What counts towards the bound: of a fan-out, what at least one consumer has not been handed."""
        if not self.is_fan_out or not self.consumers:
            return len(self.waiting)
        return max(len(consumer.pending) for consumer in self.consumers.values())

    @property
    def is_full(self) -> bool:
        return self.bound > 0 and self.waiting_count >= self.bound

    def publish(self, number: int, priority: int = 1) -> str:
        if self.overflow == BLOCK_PUBLISHER and (self.parked or self.is_full):
            self.parked.append((number, priority))
            self.settle()
            return PARKED
        if self.is_full and self.overflow == DROP_NEWEST:
            return REFUSED
        if self.is_full and self.overflow == REDIRECT_TO_DLQ:
            if not self.dead_letter:
                return REFUSED
            self.dead.append(number)
            return ACCEPTED
        self._arrive(number, priority)
        self.settle()
        return ACCEPTED

    def _arrive(self, number: int, priority: int) -> None:
        entry = Entry(number, priority)
        if self.is_fan_out and self.consumers:
            for consumer in self.consumers.values():
                consumer.pending.append(Copy(entry))
            return
        self.waiting.append(entry)
        while self.bound and self.overflow == DROP_OLDEST and len(self.waiting) > self.bound:
            self.waiting.remove(min(self.waiting, key=lambda entry: entry.number))

    # ---- consumers ----

    def subscribe(self, name: str, prefetch: int) -> None:
        consumer = Consumer(prefetch)
        if self.is_fan_out and not self.consumers:
            consumer.pending = [Copy(entry, entry.strikes) for entry in self.waiting]
            self.waiting = []
        self.consumers[name] = consumer
        self._stand(consumer)
        self.settle()

    def leave(self, name: str, *, lost: bool) -> None:
        """Remove a consumer that unsubscribed, or whose connection was `lost`.

        The delivery that its program held has failed; if the connection was lost and none was reported, the oldest one.
        A message that went back too often before has failed as well. Unsubscribing gives unseen messages back as never
        delivered.
        """
        consumer = self.consumers.pop(name)
        consumer.gone = True
        oldest_failed = lost and not any(copy.held for copy in consumer.in_flight)
        seen = len(consumer.in_flight)
        while not lost and seen and not (consumer.in_flight[seen - 1].held or consumer.in_flight[seen - 1].seen):
            seen -= 1
        for copy in consumer.in_flight[seen:]:
            copy.attempts -= 1
            copy.entry.attempts -= 1
        for at, copy in enumerate(consumer.in_flight[:seen]):
            copy.strikes += copy.held or (oldest_failed and at == 0) or copy.attempts > UNCOUNTED_RETURNS
        if self.is_fan_out:
            self._inherit(consumer)
        else:
            for copy in consumer.in_flight:
                self._ready(copy)
        consumer.in_flight = []
        self.settle()

    def _inherit(self, gone: Consumer) -> None:
        """Copies that nobody else has and nobody has acknowledged: for all who are there, or whoever comes."""
        if self.mode == FAN_OUT_WITHOUT_ACK:
            owed = gone.pending if not self.consumers else []
        else:
            owed = [*gone.in_flight, *gone.returned, *gone.pending]
        elsewhere = {
            copy.entry
            for consumer in self.consumers.values()
            for copy in (*consumer.in_flight, *consumer.returned, *consumer.pending)
        }
        for copy in sorted(owed, key=lambda copy: copy.entry.number):
            if copy.strikes >= self.attempts_max:
                self._bury(copy.entry)  # one consumer's last attempt is the message's, whoever else has it
            if copy.entry.acked or copy.entry in elsewhere or copy.entry in self.waiting:
                continue
            copy.entry.strikes = copy.strikes
            if self.consumers:
                for consumer in self.consumers.values():
                    consumer.returned.append(Copy(copy.entry, copy.strikes, inherited=True))
                    consumer.returned.sort(key=lambda copy: copy.entry.number)
            else:
                self.waiting.append(copy.entry)

    def ack(self, name: str, at: int) -> int:
        consumer = self.consumers[name]
        copy = consumer.settled(at)
        copy.entry.acked = True
        self._stand(consumer)
        self.settle()
        return copy.entry.number

    def hold(self, name: str, at: int) -> int:
        copy = self.consumers[name].in_flight[at]
        copy.held = True
        return copy.entry.number

    def nack(self, name: str, at: int) -> int:
        consumer = self.consumers[name]
        copy = consumer.settled(at)
        copy.strikes += 1
        self._stand(consumer)
        if not self.is_fan_out:
            self._ready(copy)
        elif copy.strikes >= self.attempts_max:
            self._bury(copy.entry)
        else:
            consumer.returned.append(copy)
            consumer.returned.sort(key=lambda copy: copy.entry.number)
        self.settle()
        return copy.entry.number

    def _ready(self, copy: Copy) -> None:
        copy.entry.strikes = copy.strikes
        if copy.strikes >= self.attempts_max:
            self._bury(copy.entry)
        else:
            self.waiting.append(copy.entry)

    def _bury(self, entry: Entry) -> None:
        entry.acked = True
        if self.dead_letter:
            self.dead.append(entry.number)

    # ---- the rest ----

    def purge(self) -> None:
        self.waiting = []
        for consumer in self.consumers.values():
            consumer.pending = []
        self.settle()

    def kill(self) -> None:
        """All processes end at once: nobody is given anything in between, and nobody has failed."""
        self.parked = []
        consumers, self.consumers = self.consumers, {}
        self.rotation.clear()
        for consumer in consumers.values():
            consumer.gone = True
            if self.is_fan_out:
                self._inherit(consumer)
            else:
                self.waiting += [copy.entry for copy in consumer.in_flight]

    # ---- who gets what ----

    def settle(self) -> None:
        """Hand out; what that makes room for arrives; and so on."""
        self._dispatch()
        while self.parked and not self.is_full:
            number, priority = self.parked.pop(0)
            self.unparked.append(number)
            self._arrive(number, priority)
            self._dispatch()

    def _stand(self, consumer: Consumer) -> None:
        if not consumer.stands and consumer.has_room:
            consumer.stands = True
            self.rotation.append(consumer)

    def _dispatch(self) -> None:
        if self.is_fan_out:
            for name, consumer in self.consumers.items():
                self._fill(name, consumer)
            return
        names = {id(consumer): name for name, consumer in self.consumers.items()}
        while self.waiting and self.rotation:
            consumer = self.rotation.popleft()
            consumer.stands = False
            if not consumer.has_room:
                continue
            entry = min(self.waiting, key=self._rank)
            self.waiting.remove(entry)
            self._give(names[id(consumer)], consumer, Copy(entry, entry.strikes))
            self._stand(consumer)

    def _rank(self, entry: Entry) -> tuple[int, int]:
        return (-entry.priority if self.mode == PRIORITY_BASED else 0, entry.number)

    def _fill(self, name: str, consumer: Consumer) -> None:
        while (consumer.returned or consumer.pending) and consumer.has_room:
            copy = (consumer.returned or consumer.pending).pop(0)
            if copy.inherited and copy.entry.acked:
                continue
            if copy.inherited:  # with what has failed since, wherever that was
                copy.strikes = max(copy.strikes, copy.entry.strikes)
            copy.inherited = False
            self._give(name, consumer, copy)

    def _give(self, name: str, consumer: Consumer, copy: Copy) -> None:
        copy.entry.attempts += 1
        copy.attempts = copy.attempts + 1 if self.is_fan_out else copy.entry.attempts
        copy.held = False
        if self.is_fan_out:
            copy.entry.strikes = copy.strikes
        if self.mode != FAN_OUT_WITHOUT_ACK:
            consumer.in_flight.append(copy)
        self.delivered.setdefault(name, []).append((copy.entry.number, copy.entry.attempts))
