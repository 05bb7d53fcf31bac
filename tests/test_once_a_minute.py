# SPDX-License-Identifier: Apache-2.0
"""What happens often is said at once, and then once a minute with the count."""

import logging
import weakref

import pytest

from vibemq import once_a_minute
from vibemq.once_a_minute import LINES_MAX, OTHERS_MAX, OnceAMinute

logger = logging.getLogger("vibemq.test")


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def reporter(clock: Clock) -> OnceAMinute:
    return OnceAMinute(logger, logging.WARNING, clock=clock)


def test_the_first_event_is_said_at_once_and_1626_more_in_one_line(
    reporter: OnceAMinute, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(1627):
        reporter.say("a", "queue %s drops message %d", "a", number)
    assert caplog.messages == ["queue a drops message 0"]
    clock.now_s += 59
    reporter.say_due()
    assert len(caplog.messages) == 1
    clock.now_s += 1
    reporter.say_due()
    assert caplog.messages[1:] == ["queue a drops message 1626 (1,626 more in the last 60 s; said once a minute)"]
    reporter.say("a", "queue %s drops message %d", "a", 5000)
    assert len(caplog.messages) == 2  # the minute counts from the last line


def test_what_has_not_happened_for_a_minute_is_said_at_once_again(
    reporter: OnceAMinute, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    reporter.say("a", "full")
    clock.now_s += 61
    reporter.say_due()
    assert reporter.say("a", "full", count=3)
    assert caplog.messages == ["full", "full (3 times)"]


def test_without_anybody_who_calls_say_due_the_next_event_brings_the_count(
    reporter: OnceAMinute, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    reporter.say("a", "full")
    reporter.say("a", "full")
    clock.now_s += 61
    reporter.say("a", "full")
    assert caplog.messages == ["full", "full (2 more in the last 61 s; said once a minute)"]


def test_each_subject_has_its_own_minute(reporter: OnceAMinute, caplog: pytest.LogCaptureFixture) -> None:
    reporter.say("a", "queue %s", "a")
    reporter.say("b", "queue %s", "b")
    reporter.say("a", "queue %s", "a")
    assert caplog.messages == ["queue a", "queue b"]


def test_what_was_counted_is_said_at_the_end_of_the_process(
    reporter: OnceAMinute, clock: Clock, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OnceAMinute, "all", weakref.WeakSet([reporter]))  # others have been used by other tests
    reporter.say("a", "full")
    reporter.say("a", "full", count=7)
    clock.now_s += 2
    once_a_minute.say_rest()
    once_a_minute.say_due()
    assert caplog.messages == ["full", "full (7 more in the last 2 s; said once a minute)"]


def test_beyond_so_many_lines_one_says_how_many_others_there_were(
    reporter: OnceAMinute, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(LINES_MAX + 3):
        reporter.say(number, "queue %d", number)
    reporter.say(LINES_MAX, "queue %d", LINES_MAX)
    reporter.say_due()
    assert caplog.messages == [f"queue {number}" for number in range(LINES_MAX)]
    caplog.clear()
    clock.now_s += 60
    reporter.say_due()
    assert caplog.messages == [f"queue {LINES_MAX} (the last of 4 such events of 3 others in the last 60 s)"]
    caplog.clear()
    assert reporter.say("new", "queue %s", "new")
    reporter.say_rest()
    assert caplog.messages == ["queue new"]


def test_a_flood_of_the_same_subjects_brings_a_line_a_minute_for_each_of_so_many(
    reporter: OnceAMinute, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        caplog.clear()
        for _ in range(60):
            for number in range(LINES_MAX):
                reporter.say(number, "queue %d", number)
            reporter.say_due()
            clock.now_s += 1
        assert len(caplog.messages) == LINES_MAX


def test_a_flood_of_subjects_is_bounded_without_a_loop_too(
    reporter: OnceAMinute, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        for number in range(OTHERS_MAX + LINES_MAX + 5):
            reporter.say((clock.now_s, number), "queue %d", number)
        clock.now_s += 61
    reporter.say_rest()
    assert len(caplog.messages) == 2 * (LINES_MAX + 1)
    assert f"of {OTHERS_MAX:,} or more others" in caplog.messages[-1]
