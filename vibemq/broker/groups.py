# SPDX-License-Identifier: Apache-2.0
"""Single active consumer: of the consumers in a group one is active and gets messages; the others wait.

Groups live in a table that all workers share (storage.shm), and whoever changes one decides on the
spot, under the table's mutex, what follows from it (``choose``).  Each decision changes the state of one
member at most, and deciding again changes nothing; so a worker killed anywhere leaves nothing that
the next decision does not mend.  Workers whose members changed are rung; each tells its own
members (``take_news``), always in a later turn than the change: a Subscribe is answered first.

A member that is to stop stays `deactivating`, and nobody else is made active, until it has answered
or is gone.  One that was to stop before it ever heard that it was active has nothing to answer.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from vibemq.once_a_minute import OnceAMinute
from vibemq.storage.shm import GroupTable, State

logger = logging.getLogger(__name__)
faults = OnceAMinute(logger, logging.ERROR)


class Consumer(Protocol):
    """What a door puts into a group.  It is compared by identity."""

    def become(self, active: bool) -> None:
        """Ask the client: it is active from now on, or is to stop.  Never called within ``join``.

        True: nothing may be delivered until the answer; False: stop at once, and call
        ``Groups.answered`` when the answer is here.
        """


@dataclass(slots=True, eq=False)
class _Joined:
    """A member of this worker.  ``told``: what it last heard, None when that is settled."""

    consumer: Consumer
    incarnation: str
    name: str
    row: int
    told: bool | None = None
    asked: list[bool] = field(default_factory=list)  # questions not answered yet, oldest first


def choose(members: Sequence[Any]) -> tuple[Any, State] | None:
    """The one change of state that a group needs now, if any.  ``members`` are in registration order.

    A plain group (partition -1) keeps its active member and else takes the first; a partition's
    group has the member ``partition mod n``.
    """
    if not members or any(member.state == State.DEACTIVATING for member in members):
        return None
    active = next((member for member in members if member.state == State.ACTIVE), None)
    partition = members[0].partition
    chosen = members[partition % len(members)] if partition >= 0 else active or members[0]
    if chosen is active:
        return None
    return (chosen, State.ACTIVE) if active is None else (active, State.DEACTIVATING)


class Groups:
    """The groups as one worker sees them, and its own members."""

    def __init__(self, table: GroupTable) -> None:
        self.table = table
        self.by_number: dict[int, _Joined] = {}
        self.number_of: dict[Consumer, int] = {}
        self.last_number = 0

    # ---- what doors call ----

    def join(self, stream_key: tuple[int, str], name: str, partition: int, member: Consumer, label: str = "") -> None:
        """Add a consumer to the group ``name`` of a stream, which is given by its slot and incarnation.

        ``label`` is shown to people.  PreconditionFailed: the group has another partition index;
        LimitExceeded: the name is too long, or there are too many members.
        """
        slot, incarnation = stream_key
        if member in self.number_of:
            raise ValueError(f"{member!r} is in a group already")
        number = self.last_number + 1
        with self._change() as changed:
            row = self.table.add(slot, incarnation, name, partition, number, label)
            self._decide(incarnation, name, changed)
        self.last_number = number
        self.number_of[member] = number
        self.by_number[number] = _Joined(member, incarnation, name, row)

    def leave(self, member: Consumer) -> None:
        """The consumer is gone: unsubscribed, disconnected, or its stream deleted.  It is told nothing more."""
        number = self.number_of.pop(member, None)
        if number is None:
            return
        joined = self.by_number.pop(number)
        with self._change() as changed:
            self.table.remove(joined.row)
            self._decide(joined.incarnation, joined.name, changed)

    def answered(self, member: Consumer, active: bool | None = None) -> None:
        """The client has answered what ``become(active)`` asked; None stands for the oldest open question."""
        number = self.number_of.get(member)
        if number is None:
            return
        joined = self.by_number[number]
        if active is None and joined.asked:
            active = joined.asked[0]
        if active is None or active not in joined.asked:
            return
        joined.asked.remove(active)
        if active is False:
            self._stopped(joined)

    def listing(self) -> list[dict[str, Any]]:
        """Every group of the broker with its members in registration order, for people and tools."""
        groups: dict[tuple[str, str], dict[str, Any]] = {}
        with self.table:
            rows = self.table.all()
        for row in rows:
            group = groups.setdefault(
                (row.incarnation, row.name),
                {
                    "slot": row.slot,
                    "incarnation": row.incarnation,
                    "name": row.name,
                    "partition": row.partition,
                    "members": [],
                },
            )
            group["members"].append(
                {"worker": row.worker, "id": row.member, "state": row.state.name.lower(), "label": row.label}
            )
        return list(groups.values())

    # ---- what the loop calls ----

    def take_news(self) -> None:
        """Tell each member of this worker what it has become since it last heard."""
        for number, joined in list(self.by_number.items()):
            if number not in self.by_number:
                continue  # left while another was told
            state = self.table.state(joined.row)
            if state == State.ACTIVE and joined.told is not True:
                self._tell(joined, True)
            elif state == State.DEACTIVATING and joined.told is True:
                self._tell(joined, False)
            elif state == State.DEACTIVATING and joined.told is None:
                self._stopped(joined)

    def seats_changed(self) -> None:
        """Another process may have taken a seat: its predecessor's members are gone."""
        with self._change() as changed:
            gone = self.table.dead()
            for row in gone:
                self.table.remove(row.row)
            for incarnation, name in {(row.incarnation, row.name): None for row in gone}:
                self._decide(incarnation, name, changed)
        self.take_news()  # of a change whose author died before it rang

    # ---- inside ----

    def _tell(self, joined: _Joined, active: bool) -> None:
        joined.told = active
        joined.asked.append(active)
        try:
            joined.consumer.become(active)
        except Exception as problem:
            faults.say_fault(problem, "group %r: a member that cannot be told leaves it", joined.name)
            self.leave(joined.consumer)

    def _stopped(self, joined: _Joined) -> None:
        joined.told = None
        if self.table.state(joined.row) != State.DEACTIVATING:
            return
        with self._change() as changed:
            self.table.set_state(joined.row, State.WAITING)
            self._decide(joined.incarnation, joined.name, changed)

    @contextmanager
    def _change(self) -> Iterator[set[int]]:
        """The table's mutex, and a set for the workers to ring once it is let go."""
        changed: set[int] = set()
        try:
            with self.table:
                if self.table.repair_wanted:
                    for incarnation, name in {(row.incarnation, row.name): None for row in self.table.all()}:
                        self._decide(incarnation, name, changed)
                    self.table.repaired()
                yield changed
        finally:
            self.table.ring(changed)

    def _decide(self, incarnation: str, name: str, changed: set[int]) -> None:
        change = choose(self.table.group(incarnation, name))
        if change is not None:
            member, state = change
            self.table.set_state(member.row, state)
            changed.add(member.worker)
