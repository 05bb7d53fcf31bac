# SPDX-License-Identifier: Apache-2.0
"""Single active consumer groups: the decision by itself, and random histories of several workers.

The workers are simulated in this process, each with its own hold on the table that real workers share, so
that turns, answers and deaths come in any order.  Whenever the dust has settled, the active members are those
that a model of a few lines names; at no time is one asked to become active before another has said that it stopped.
"""

import os
import signal
from typing import NamedTuple

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from running import exit_code, forked

from vibemq.broker.groups import Groups, choose
from vibemq.errors import LimitExceeded, PreconditionFailed
from vibemq.storage.shm import NAME_BYTES_MAX, Board, GroupTable, State, board_init, groups_init

W, A, D = State.WAITING, State.ACTIVE, State.DEACTIVATING
STREAMS = ((3, "00000000000000aa"), (4, "fedcba9876543210"))


class Row(NamedTuple):
    state: State
    partition: int


# ---- the decision ----


@pytest.mark.parametrize(
    ("partition", "states", "change"),
    [
        (-1, [], None),
        (-1, [W, W], (0, A)),
        (-1, [A, W], None),
        (-1, [W, A], None),  # sticky
        (0, [W], (0, A)),
        (0, [W, W], (0, A)),
        (1, [W, W, W], (1, A)),
        (1, [A, W], (0, D)),
        (1, [W, A], None),
        (3, [W, A, W], (1, D)),  # 3 mod 3 is the first
        (1, [D, W], None),  # one change at a time
        (-1, [D, W], None),
        (2, [W], (0, A)),
    ],
)
def test_what_a_group_needs_next(partition, states, change):
    members = [Row(state, partition) for state in states]
    expected = None if change is None else (members[change[0]], change[1])
    chosen = choose(members)
    assert chosen == expected
    if chosen is not None and change is not None:
        assert chosen[0] is members[change[0]]


# ---- workers without processes ----


class Table(GroupTable):
    """The real table; the bells are noted instead of rung."""

    rung: set[int]

    def ring(self, workers):
        self.rung.update(workers)


class World:
    """What a supervisor makes, and a seat for each worker."""

    def __init__(self, workers: int) -> None:
        self.board_fd, self.groups_fd = os.memfd_create("board"), os.memfd_create("groups")
        board_init(self.board_fd, workers)
        groups_init(self.groups_fd)
        self.doorbells = [os.eventfd(0, os.EFD_NONBLOCK) for _ in range(workers)]
        self.rung: set[int] = set()
        self.workers = [self.sit(index) for index in range(workers)]

    def sit(self, index: int) -> Groups:
        board = Board(self.board_fd, index, self.doorbells)
        board.sit()
        table = Table(self.groups_fd, board)
        table.rung = self.rung
        return Groups(table)

    def close(self) -> None:
        for fd in (self.board_fd, self.groups_fd, *self.doorbells):
            os.close(fd)

    def settle(self) -> None:
        """Turns until no worker is rung any more."""
        while self.rung:
            self.workers[self.rung.pop()].take_news()


class Client:
    """A consumer that notes what it is asked and answers when the test says so."""

    def __init__(self, groups: Groups) -> None:
        self.groups = groups
        self.asked: list[bool] = []  # not answered yet
        self.heard: list[bool] = []
        self.wanted = self.at_work = False
        self.engaged = False  # from being asked to become active until it has answered that it stopped

    def become(self, active: bool) -> None:
        self.asked.append(active)
        self.heard.append(active)
        self.wanted = active
        self.engaged |= active
        self.at_work &= active

    def answer(self, index: int = 0, name_it: bool = True) -> None:
        active = self.asked.pop(index)
        if active and self.wanted:
            self.at_work = True
        self.engaged &= active
        self.groups.answered(self, active if name_it else None)


@pytest.fixture
def world():
    made = World(2)
    yield made
    made.close()


def states(world: World) -> list[str]:
    return [member["state"] for group in world.workers[0].listing() for member in group["members"]]


def test_a_member_is_told_in_a_later_turn_than_its_subscribe(world):
    client = Client(world.workers[0])
    client.groups.join(STREAMS[0], "g", -1, client)
    assert client.heard == []
    assert world.rung == {0}
    world.settle()
    assert client.heard == [True]


def test_the_next_in_order_takes_over_on_another_worker(world):
    first, second, third = (Client(world.workers[index]) for index in (0, 1, 0))
    for client in (first, second, third):
        client.groups.join(STREAMS[0], "g", -1, client)
    world.settle()
    first.answer()
    first.groups.leave(first)
    world.settle()
    assert (second.heard, third.heard) == ([True], [])
    assert first.heard == [True]  # who has left is told nothing


def test_a_partition_moves_only_after_its_consumer_has_stopped(world):
    first, second = Client(world.workers[0]), Client(world.workers[1])
    first.groups.join(STREAMS[0], "g", 1, first)
    world.settle()
    first.answer()
    second.groups.join(STREAMS[0], "g", 1, second)
    world.settle()
    assert (first.heard, second.heard) == ([True, False], [])
    assert states(world) == ["deactivating", "waiting"]
    first.answer(name_it=False)
    world.settle()
    assert second.heard == [True]
    assert states(world) == ["waiting", "active"]


def test_who_leaves_instead_of_answering_holds_nobody_up(world):
    first, second = Client(world.workers[0]), Client(world.workers[1])
    first.groups.join(STREAMS[0], "g", 1, first)
    world.settle()
    second.groups.join(STREAMS[0], "g", 1, second)
    world.settle()
    first.groups.leave(first)
    first.groups.answered(first, False)  # an answer that comes too late
    world.settle()
    assert second.heard == [True]


def test_an_old_answer_is_not_taken_for_the_one_that_counts(world):
    first, second = Client(world.workers[0]), Client(world.workers[1])
    first.groups.join(STREAMS[0], "g", 1, first)
    world.settle()
    second.groups.join(STREAMS[0], "g", 1, second)
    world.settle()
    assert first.asked == [True, False]
    first.answer()  # that it is active, which it is no more
    world.settle()
    assert second.heard == []
    first.answer()
    first.groups.answered(first, False)  # once more, though nothing was asked
    first.groups.answered(first)
    world.settle()
    assert second.heard == [True]


def test_who_is_chosen_again_is_told_again(world):
    first, second = Client(world.workers[0]), Client(world.workers[1])
    first.groups.join(STREAMS[0], "g", 1, first)
    world.settle()
    first.answer()
    second.groups.join(STREAMS[0], "g", 1, second)
    world.settle()
    second.groups.leave(second)
    first.answer()
    world.settle()
    assert first.heard == [True, False, True]


def test_a_dead_workers_member_is_replaced_when_its_seat_is_taken(world):
    first, second = Client(world.workers[0]), Client(world.workers[1])
    for client in (first, second):
        client.groups.join(STREAMS[0], "g", -1, client)
    world.settle()
    world.workers[0] = world.sit(0)
    world.workers[0].seats_changed()
    world.settle()
    assert second.heard == [True]
    assert states(world) == ["active"]


def test_the_same_name_on_another_stream_is_another_group(world):
    clients = [Client(world.workers[0]) for _ in STREAMS]
    for stream, client in zip(STREAMS, clients, strict=True):
        client.groups.join(stream, "g", -1, client, label=f"127.0.0.1:1 -> 127.0.0.1:{stream[0]}")
    world.settle()
    assert [client.heard for client in clients] == [[True], [True]]
    listing = world.workers[1].listing()
    assert [(group["slot"], group["incarnation"], group["name"]) for group in listing] == [(*s, "g") for s in STREAMS]
    assert listing[1]["members"] == [{"worker": 0, "id": 2, "state": "active", "label": "127.0.0.1:1 -> 127.0.0.1:4"}]


def test_what_cannot_join_is_not_there(world):
    client, other = Client(world.workers[0]), Client(world.workers[1])
    client.groups.join(STREAMS[0], "g", 2, client)
    with pytest.raises(PreconditionFailed):
        other.groups.join(STREAMS[0], "g", -1, other)
    with pytest.raises(LimitExceeded):
        other.groups.join(STREAMS[0], "g" * (NAME_BYTES_MAX + 1), -1, other)
    with pytest.raises(LimitExceeded):
        other.groups.join(STREAMS[0], "", -1, other)
    with pytest.raises(ValueError, match="already"):
        client.groups.join(STREAMS[0], "other", -1, client)
    other.groups.leave(other)
    other.groups.answered(other)
    assert states(world) == ["active"]


def test_one_that_cannot_be_told_makes_way_for_the_next(world):
    class Broken(Client):
        def become(self, active):
            raise OSError("no more")

    broken, client = Broken(world.workers[0]), Client(world.workers[0])
    for one in (broken, client):
        one.groups.join(STREAMS[0], "g", -1, one)
    world.settle()
    assert client.heard == [True]


@pytest.mark.parametrize("where", ["before it decided", "with the mutex held", "before it rang"])
def test_a_worker_killed_in_the_middle_of_a_change_leaves_no_group_stuck(world, where):
    """A real process dies with the real mutex in its hands, while the active member leaves."""
    active, waiting = Client(world.workers[0]), Client(world.workers[1])
    for client in (active, waiting):
        client.groups.join(STREAMS[0], "g", -1, client)
    world.settle()

    def leave():
        table = world.workers[0].table
        with table:
            table.remove(table.group(STREAMS[0][1], "g")[0].row)
            if where == "before it decided":
                os.kill(os.getpid(), signal.SIGKILL)
            world.workers[0]._decide(STREAMS[0][1], "g", set())
            if where == "with the mutex held":
                os.kill(os.getpid(), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)

    assert exit_code(forked(leave)) == -signal.SIGKILL
    world.workers[0] = world.sit(0)
    assert world.rung == set()
    world.workers[1].seats_changed()
    world.settle()
    assert waiting.heard == [True]
    assert states(world) == ["active"]


# ---- random histories ----

GROUPS = [(stream, name, partition) for stream in STREAMS for name, partition in (("plain", -1), ("second", 1))]
GROUPS.append((STREAMS[0], "sixth", 5))
WORKERS = 3


class Histories(RuleBasedStateMachine):
    """Invariant of the model: ``members[group]`` are the living ones in the order in which they came."""

    @initialize()
    def begin(self):
        self.world = World(WORKERS)
        self.members: dict[int, list[Client]] = {index: [] for index in range(len(GROUPS))}
        self.told_of_seats: set[int] = set(range(WORKERS))  # workers that have seen the last death

    def teardown(self):
        if hasattr(self, "world"):
            self.settle()
            self.world.close()

    @property
    def clients(self) -> list[Client]:
        return [client for members in self.members.values() for client in members]

    def client(self, index: int) -> Client:
        return self.clients[index % len(self.clients)]

    @rule(worker=st.integers(0, WORKERS - 1), group=st.integers(0, len(GROUPS) - 1))
    def join(self, worker, group):
        client = Client(self.world.workers[worker])
        stream, name, partition = GROUPS[group]
        client.groups.join(stream, name, partition, client)
        self.members[group].append(client)

    @rule(worker=st.integers(0, WORKERS - 1), group=st.integers(0, len(GROUPS) - 1))
    def join_with_another_partition(self, worker, group):
        client = Client(self.world.workers[worker])
        stream, name, partition = GROUPS[group]
        if self.members[group]:
            with pytest.raises(PreconditionFailed):
                client.groups.join(stream, name, partition + 1, client)

    @precondition(lambda self: self.clients)
    @rule(index=st.integers(0, 1000))
    def leave(self, index):
        client = self.client(index)
        client.groups.leave(client)
        for members in self.members.values():
            if client in members:
                members.remove(client)

    @precondition(lambda self: any(client.asked for client in self.clients))
    @rule(index=st.integers(0, 1000), which=st.integers(0, 1000), name_it=st.booleans())
    def answer(self, index, which, name_it):
        asked = [client for client in self.clients if client.asked]
        client = asked[index % len(asked)]
        # Only who names the question may answer out of order.
        client.answer(which % len(client.asked) if name_it else 0, name_it)

    @precondition(lambda self: self.world.rung)
    @rule(index=st.integers(0, 1000))
    def turn(self, index):
        worker = sorted(self.world.rung)[index % len(self.world.rung)]
        self.world.rung.discard(worker)
        self.world.workers[worker].take_news()

    @rule(worker=st.integers(0, WORKERS - 1), itself_at_once=st.booleans())
    def kill(self, worker, itself_at_once):
        gone = self.world.workers[worker]
        self.world.workers[worker] = self.world.sit(worker)
        self.world.rung.discard(worker)
        for members in self.members.values():
            members[:] = [client for client in members if client.groups is not gone]
        self.told_of_seats = set()
        if itself_at_once:
            self.see_seats(worker)

    @precondition(lambda self: len(self.told_of_seats) < WORKERS)
    @rule(worker=st.integers(0, WORKERS - 1))
    def see_seats(self, worker):
        self.told_of_seats.add(worker)
        self.world.workers[worker].seats_changed()

    @rule()
    def settle(self):
        """Everybody is told and answers: now the members at work are those of the model."""
        for worker in set(range(WORKERS)) - self.told_of_seats:
            self.see_seats(worker)
        while self.world.rung or any(client.asked for client in self.clients):
            self.world.settle()
            for client in self.clients:
                while client.asked:
                    client.answer()
        for (_, _, partition), members in zip(GROUPS, self.members.values(), strict=True):
            expected = members[partition % len(members) if partition >= 0 else 0] if members else None
            assert [client for client in members if client.at_work] == ([expected] if expected else [])
        listed = {(g["slot"], g["incarnation"], g["name"]): g for g in self.world.workers[0].listing()}
        assert len(listed) == sum(1 for members in self.members.values() if members)
        for (stream, name, _), members in zip(GROUPS, self.members.values(), strict=True):
            if members:
                shown = [member["state"] for member in listed[(*stream, name)]["members"]]
                assert shown == ["active" if client.at_work else "waiting" for client in members]

    @invariant()
    def at_most_one_of_a_group_is_engaged(self):
        for members in getattr(self, "members", {}).values():
            assert sum(client.engaged for client in members) <= 1
            assert all(client.engaged for client in members if client.at_work)

    @invariant()
    def questions_make_sense(self):
        for (_, _, partition), members in zip(GROUPS, getattr(self, "members", {}).values(), strict=False):
            for client in members:
                assert client.heard == [position % 2 == 0 for position in range(len(client.heard))]
                assert partition >= 0 or len(client.heard) <= 1  # sticky


TestHistories = Histories.TestCase
TestHistories.settings = settings(
    max_examples=int(os.environ.get("VIBEMQ_MODEL_EXAMPLES", "60")),
    stateful_step_count=60,
    deadline=None,
    derandomize=True,
)
