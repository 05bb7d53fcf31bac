# SPDX-License-Identifier: Apache-2.0
"""Windows: what an acknowledgement settles, which messages are taken, and which number is acknowledged when.

Two models of a few lines hold everything in lists and search them, as the protocol describes it; random histories must
give the same answers on the windows. They begin anywhere near the wrap of the numbers.
"""

import json
import random
import sys
from collections import deque
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from vibemq.protocols.micromsg2.spec import SEQUENCE_MAX, WINDOW_MAX
from vibemq.protocols.micromsg2.window import Arrival, ReceiveWindow, SendWindow

TAKEN, DUPLICATE, OVERRUN = Arrival
WAITING, ACCEPTED, REFUSED = "waiting", "accepted", "refused"
MESSAGES = 1_000_000
VECTORS = json.loads((Path(__file__).parent / "vectors.json").read_text())
# What is unacknowledged, the acknowledgement, and what remains.
ACK_CASES = [(case["unacked"], case["ack"], case["remaining"]) for case in VECTORS["ack_cases"]]


def sending(size: int, after: int = 0) -> SendWindow:
    """A window whose next number follows `after`."""
    window = SendWindow(size)
    for _ in range(after):
        window.next()
    return window


def send(window: SendWindow, count: int = 1) -> list[int]:
    numbers = []
    for _ in range(count):
        numbers.append(window.next())
        window.push(1, 2, numbers[-1])
    return numbers


def acknowledge(window: SendWindow, number: int) -> list[int]:
    """The numbers of the messages that this acknowledgement settles."""
    settled = []
    for _ in range(window.covered(number)):
        message = window.peek()
        assert message is not None
        settled.append(message[2])
        window.pop()
    return settled


def received(size: int, numbers: list[int], lenient: bool = False) -> ReceiveWindow:
    window = ReceiveWindow(size, lenient)
    assert [window.take(number) for number in numbers] == [TAKEN] * len(numbers)
    return window


# ---- vectors ----


@pytest.mark.parametrize(("unacknowledged", "number", "remaining"), [case for case in ACK_CASES if 0 not in case[0]])
def test_an_acknowledgement_settles_all_up_to_its_number(unacknowledged, number, remaining):
    window = sending(10, after=unacknowledged[0] - 1)
    assert send(window, len(unacknowledged)) == unacknowledged
    assert acknowledge(window, number) == unacknowledged[: len(unacknowledged) - len(remaining)]
    assert window.count == len(remaining)


@pytest.mark.parametrize(("numbers", "number", "remaining"), [case for case in ACK_CASES if case[1] in case[0]])
def test_what_is_decided_is_acknowledged_by_its_last_number(numbers, number, remaining):
    window = received(10, numbers)
    for index in range(1, len(numbers) - len(remaining) + 1):
        window.accepted(index)
    assert window.acknowledge() == number
    assert window.unacknowledged == len(remaining)


# ---- what we send ----


def test_numbers_go_from_65535_to_1():
    window = sending(0, after=65533)
    assert [window.next() for _ in range(4)] == [65534, 65535, 1, 2]


@pytest.mark.parametrize("number", [-1, 0, 6, 65535, 65536, 65537, 1 << 32])
def test_an_acknowledgement_of_what_was_never_sent_settles_nothing(number):
    window = sending(10)
    send(window, 5)
    assert window.covered(number) == 0
    assert window.covered(5) == 5


def test_a_late_or_repeated_acknowledgement_settles_nothing():
    window = sending(10)
    send(window, 5)
    assert acknowledge(window, 3) == [1, 2, 3]
    assert [window.covered(number) for number in (1, 2, 3)] == [0, 0, 0]
    assert acknowledge(window, 5) == [4, 5]
    assert window.covered(5) == 0


def test_a_window_that_never_sent_has_nothing_to_decide():
    window = SendWindow(10)
    assert [window.covered(number) for number in (-1, 0, 1, 65535, 65536)] == [0] * 5
    assert window.peek() is None


def test_a_full_window_has_room_again_with_an_acknowledgement():
    window = sending(3)
    for expected in (True, True, True):
        assert window.has_room() is expected
        send(window)
    assert not window.has_room()
    acknowledge(window, 1)
    assert window.has_room()


def test_a_window_of_one_sends_one_message_for_each_acknowledgement():
    window = sending(1, after=65533)
    for number in (65534, 65535, 1, 2):
        assert window.has_room()
        assert send(window) == [number]
        assert not window.has_room()
        assert acknowledge(window, number) == [number]


def test_without_acknowledgements_there_is_always_room_and_nothing_is_remembered():
    window = sending(0)
    send(window, 100)
    assert window.has_room()
    assert (window.count, window.last) == (0, 100)
    assert window.covered(100) == 0


# ---- what the peer sends ----


def test_a_number_is_a_duplicate_until_as_many_others_came_as_the_window_holds():
    window = ReceiveWindow(3)
    for number in (1, 2, 3):
        assert window.take(number) == TAKEN
        window.accepted(window.index)
        window.acknowledge()
    assert [window.take(number) for number in (1, 2, 3)] == [DUPLICATE] * 3
    assert window.index == 3  # a duplicate is not counted
    assert window.take(4) == TAKEN
    window.accepted(4)
    window.acknowledge()
    assert [window.take(number) for number in (2, 3, 4)] == [DUPLICATE] * 3
    assert window.take(1) == TAKEN


def test_a_duplicate_is_answered_by_the_last_acknowledgement_unless_it_lies_behind_that():
    window = received(5, [7, 8, 9])
    assert window.take(7) == DUPLICATE
    assert window.again() == -1
    for index in (1, 2):
        window.accepted(index)
    assert window.acknowledge() == 8
    for number, answer in ((7, 8), (8, 8), (9, -1), (7, 8)):
        assert window.take(number) == DUPLICATE
        assert window.again() == answer
    window.refused(3)  # and it stays unacknowledged, however often it comes
    assert window.take(9) == DUPLICATE
    assert window.again() == -1
    assert window.take(10) == TAKEN
    window.accepted(4)
    assert window.acknowledge() == 10
    assert window.take(9) == DUPLICATE
    assert window.again() == 10


def test_who_sends_beyond_the_window_overruns_it():
    window = received(3, [1, 2, 3])
    assert window.is_full()
    assert window.take(4) == OVERRUN
    assert window.take(3) == DUPLICATE  # sent again, not beyond
    window.accepted(1)
    assert window.take(4) == OVERRUN  # settled, but the peer does not know
    window.acknowledge()
    assert window.take(4) == TAKEN
    assert window.take(5) == OVERRUN


def test_a_peer_whose_window_is_its_own_business_overruns_at_the_largest_window():
    window = received(10, list(range(1, WINDOW_MAX + 1)), lenient=True)
    assert window.is_full()
    assert window.take(WINDOW_MAX + 1) == OVERRUN
    assert window.take(1) == DUPLICATE  # whatever is unacknowledged is remembered
    for index in range(1, WINDOW_MAX + 1):
        window.accepted(index)
    assert window.acknowledge() == WINDOW_MAX
    assert window.take(WINDOW_MAX + 1) == TAKEN
    assert window.take(1) == TAKEN


def test_a_peer_that_numbers_from_65535_to_0_is_understood():
    window = received(4, [65535, 0, 1])
    window.accepted(1)
    window.accepted(2)
    assert window.acknowledge() == 0
    assert window.take(0) == DUPLICATE
    assert window.unacknowledged == 1


def test_a_peer_that_jumps_is_understood():
    window = received(4, [5, 40000, 12])
    for index in (1, 2):
        window.accepted(index)
    assert window.acknowledge() == 40000
    window.accepted(3)
    assert window.acknowledge() == 12


def test_what_is_decided_out_of_order_waits_for_what_came_before():
    window = received(5, [1, 2, 3, 4])
    window.accepted(3)
    window.accepted(2)
    assert window.acknowledge() == -1
    window.accepted(1)
    assert window.acknowledge() == 3
    assert window.acknowledge() == -1
    assert (window.unacknowledged, window.is_decided()) == (1, False)
    window.accepted(4)
    assert window.is_decided()
    assert window.acknowledge() == 4


def test_settling_again_or_what_never_came_changes_nothing():
    window = received(5, [1, 2])
    window.accepted(1)
    window.accepted(1)
    window.accepted(3)
    window.accepted(0)
    assert window.acknowledge() == 1
    window.accepted(1)
    assert window.acknowledge() == -1
    assert window.take(3) == TAKEN
    window.accepted(2)
    assert window.acknowledge() == 2


def test_a_refused_message_is_acknowledged_only_by_a_later_one_that_was_accepted():
    window = received(5, [1, 2, 3, 4])
    window.accepted(1)
    window.refused(2)
    assert window.acknowledge() == 1
    assert window.unacknowledged == 2  # nothing more is said about 2
    window.refused(3)
    assert window.acknowledge() == -1
    window.accepted(4)
    assert window.acknowledge() == 4


def test_refused_messages_alone_are_never_acknowledged_and_fill_no_window():
    window = ReceiveWindow(1)
    for number in range(1, 50):
        assert window.take(number) == TAKEN
        window.refused(window.index)
        assert window.acknowledge() == -1
        assert window.is_decided()
        assert not window.is_full()
    assert window.again() == -1


def test_a_message_has_its_number_for_as_long_as_it_is_not_answered():
    window = received(2, [65535, 0])
    assert [window.number_of(index) for index in (0, 1, 2, 3)] == [0, 65535, 0, 0]
    window.refused(1)
    window.take(9)
    assert [window.number_of(index) for index in (2, 3)] == [0, 9]


def test_without_acknowledgements_every_message_is_taken_and_counted():
    window = received(0, [1, 1, 7, 7])
    assert window.index == 4
    assert not window.is_full()
    assert window.is_decided()
    window.accepted(4)
    assert (window.acknowledge(), window.again()) == (-1, -1)


# ---- memory ----


def test_a_large_window_takes_memory_only_as_far_as_it_is_used():
    send_window, receive_window = SendWindow(WINDOW_MAX), ReceiveWindow(WINDOW_MAX)
    assert sys.getsizeof(send_window) < 200
    assert sys.getsizeof(receive_window) < 200
    for _ in range(3):
        send(send_window)
        receive_window.take(send_window.last)
        receive_window.accepted(receive_window.index)
        acknowledge(send_window, receive_window.acknowledge())
    assert sys.getsizeof(send_window) < 500
    assert sys.getsizeof(receive_window) < 9000  # with a bit for each number
    for _ in range(2 * SEQUENCE_MAX):
        if not send_window.has_room():
            for index in range(receive_window.index - WINDOW_MAX, receive_window.index):
                receive_window.accepted(index + 1)
            acknowledge(send_window, receive_window.acknowledge())
        assert receive_window.take(send(send_window)[0]) == TAKEN
    assert sys.getsizeof(send_window) < 32 * WINDOW_MAX
    assert sys.getsizeof(receive_window) < 16 * WINDOW_MAX


@pytest.mark.parametrize("window", [SendWindow, ReceiveWindow])
def test_a_window_above_the_largest_is_refused(window):
    with pytest.raises(ValueError, match="10001"):
        window(WINDOW_MAX + 1)


# ---- both ends ----


@pytest.mark.parametrize("size", [1, 2, 10, 1000, WINDOW_MAX])
def test_a_million_messages_arrive_once_and_are_acknowledged(size):
    print("seed", size)
    chance = random.Random(size)
    sender, receiver = SendWindow(size), ReceiveWindow(size)
    sent = acknowledged = 0
    while acknowledged < MESSAGES:
        for _ in range(chance.randint(1, size - sender.count) if sender.count < size else 0):
            number = sender.next()
            assert number == sent % SEQUENCE_MAX + 1
            sender.push(0, 0, sent & 0xFFFFFFFF)
            assert receiver.take(number) == TAKEN
            sent += 1
        waiting = list(range(acknowledged + 1, sent + 1))
        kept = chance.randint(0, len(waiting) // 2)  # not settled in this round
        if chance.random() < 0.1:
            chance.shuffle(waiting)
        for index in waiting[: len(waiting) - kept]:
            receiver.accepted(index)
        number = receiver.acknowledge()
        for _ in range(sender.covered(number)):
            assert sender.peek() == (0, 0, acknowledged)
            sender.pop()
            acknowledged += 1
        assert receiver.unacknowledged == sender.count == sent - acknowledged
        assert sender.covered(number) == 0
        assert receiver.take(sender.last) == DUPLICATE


# ---- models ----

SIZES = st.sampled_from([1, 2, 3, 10, 17, 40])
BEFORE_WRAP = st.sampled_from([0, 1, 65500, 65533, 65534, 65535])
NUMBERS = st.integers(0, SEQUENCE_MAX)
HISTORIES = settings(max_examples=60, stateful_step_count=60, derandomize=True, deadline=None, database=None)


class SendHistory(RuleBasedStateMachine):
    """The model: a queue of numbers, searched from the oldest."""

    @initialize(size=SIZES, after=BEFORE_WRAP)
    def begin(self, size: int, after: int) -> None:
        self.window = sending(size, after)
        self.number = after
        self.unacknowledged: deque[int] = deque()

    @rule(count=st.integers(1, 20))
    def send(self, count: int) -> None:
        for _ in range(min(count, self.window.size - len(self.unacknowledged))):
            assert self.window.has_room()
            self.number = self.number % SEQUENCE_MAX + 1
            self.unacknowledged.append(self.number)
            assert send(self.window) == [self.number]

    def is_acknowledged(self, number: int) -> None:
        covered: list[int] = []
        if number in self.unacknowledged:
            while not covered or covered[-1] != number:
                covered.append(self.unacknowledged.popleft())
        assert acknowledge(self.window, number) == covered

    @precondition(lambda self: self.unacknowledged)
    @rule(at=st.integers(0, 39))
    def acknowledge_one_of_them(self, at: int) -> None:
        self.is_acknowledged(self.unacknowledged[at % len(self.unacknowledged)])

    @rule(number=st.integers(-1, SEQUENCE_MAX + 1))
    def acknowledge_any(self, number: int) -> None:
        self.is_acknowledged(number)

    @rule(distance=st.integers(-3, 60))
    def acknowledge_near(self, distance: int) -> None:
        self.is_acknowledged((self.number - distance) % (SEQUENCE_MAX + 1))

    @invariant()
    def the_same_is_left(self) -> None:
        assert self.window.count == len(self.unacknowledged)
        assert self.window.has_room() == (len(self.unacknowledged) < self.window.size)
        oldest = self.window.peek()
        assert (oldest and oldest[2]) == (self.unacknowledged[0] if self.unacknowledged else None)


class ReceiveHistory(RuleBasedStateMachine):
    """The model: every message that ever came with its number and state, and how many are answered or remembered."""

    @initialize(size=SIZES, lenient=st.booleans(), number=BEFORE_WRAP, zero=st.booleans())
    def begin(self, size: int, lenient: bool, number: int, zero: bool) -> None:
        self.window = ReceiveWindow(size, lenient)
        self.limit = WINDOW_MAX if lenient else size
        self.number, self.zero = number, zero
        self.numbers: list[int] = []
        self.states: list[str] = []
        self.answered = self.remembered = 0
        self.acknowledged = 0

    def arrive(self, number: int) -> None:
        unacknowledged = len(self.numbers) - self.answered
        if number in self.numbers[len(self.numbers) - self.remembered :]:
            expected = DUPLICATE
        elif unacknowledged >= self.limit:
            expected = OVERRUN
        else:
            expected = TAKEN
            self.numbers.append(number)
            self.states.append(WAITING)
            self.remembered = min(self.remembered + 1, max(self.window.size, unacknowledged + 1))
        assert self.window.take(number) == expected
        if expected == DUPLICATE:
            at = len(self.numbers) - self.numbers[::-1].index(number)
            assert self.window.again() == (self.numbers[self.acknowledged - 1] if at <= self.acknowledged else -1)

    @rule(count=st.integers(1, 12))
    def the_next_come(self, count: int) -> None:
        for _ in range(count):
            self.number = (0 if self.zero else 1) if self.number == SEQUENCE_MAX else self.number + 1
            self.arrive(self.number)

    @rule(number=NUMBERS)
    def the_peer_jumps(self, number: int) -> None:
        self.number = number
        self.arrive(number)

    @precondition(lambda self: self.numbers)
    @rule(distance=st.integers(0, 45))
    def one_comes_again(self, distance: int) -> None:
        self.arrive(self.numbers[-1 - distance % len(self.numbers)])

    def settle_one(self, distance: int, state: str) -> None:
        at = len(self.numbers) - 1 - distance % len(self.numbers)
        (self.window.accepted if state == ACCEPTED else self.window.refused)(at + 1)
        if at >= self.settled_count():
            self.states[at] = state
        if not self.due():
            self.answered = self.settled_count()

    @precondition(lambda self: self.numbers)
    @rule(distance=st.integers(0, 45), state=st.sampled_from([ACCEPTED, ACCEPTED, REFUSED]))
    def any_is_decided(self, distance: int, state: str) -> None:
        self.settle_one(distance, state)

    @rule(count=st.integers(1, 20), state=st.sampled_from([ACCEPTED, ACCEPTED, REFUSED]))
    def the_oldest_are_settled(self, count: int, state: str) -> None:
        for _ in range(min(count, self.states.count(WAITING))):
            self.settle_one(len(self.states) - 1 - self.states.index(WAITING), state)

    @rule()
    def acknowledge(self) -> None:
        due = self.due()
        if due:
            self.acknowledged, self.answered = due[-1] + 1, self.settled_count()
        assert self.window.acknowledge() == (self.numbers[due[-1]] if due else -1)

    def settled_count(self) -> int:
        return self.states.index(WAITING) if WAITING in self.states else len(self.states)

    def due(self) -> list[int]:
        """Places of messages that may be acknowledged and are not."""
        return [at for at in range(self.answered, self.settled_count()) if self.states[at] == ACCEPTED]

    @invariant()
    def the_same_is_left(self) -> None:
        unacknowledged = len(self.numbers) - self.answered
        assert self.window.unacknowledged == unacknowledged
        assert self.window.is_full() == (unacknowledged >= self.window.size)
        assert self.window.is_decided() == (WAITING not in self.states)
        assert self.window.index == len(self.numbers)
        assert self.window.last == (self.numbers[-1] if self.numbers else 0)


SendHistory.TestCase.settings = HISTORIES
ReceiveHistory.TestCase.settings = HISTORIES
test_any_history_of_a_send_window = SendHistory.TestCase
test_any_history_of_a_receive_window = ReceiveHistory.TestCase
