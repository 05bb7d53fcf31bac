# SPDX-License-Identifier: Apache-2.0
"""Expiry goes by a clock that never jumps, whatever somebody sets the machine's clock to."""

import time

import pytest

from vibemq.broker.expiry import GRAIN_MS_MIN, MARKS, NEVER, Expiry

TTL_MS = 60_000
NOW_MS = 1_000_000  # of the monotonic clock, when the home begins


class Store:
    """A log as the expiry sees it: (wall clock ms, offset) of each message that was there before the home."""

    def __init__(self, *messages: tuple[int, int]) -> None:
        self.messages = messages
        self.end = 1 + max((offset for _, offset in messages), default=-1)

    def first_after(self, wall_ms: int) -> int:
        return next((offset for at_ms, offset in self.messages if at_ms >= wall_ms), self.end)


@pytest.fixture
def wall(monkeypatch):
    """The wall clock, in ms, in a list of one: a test sets it as a person would."""
    clock = [5_000_000]
    monkeypatch.setattr(time, "time_ns", lambda: clock[0] * 1_000_000)
    return clock


def test_a_message_that_arrived_expires_once_its_time_is_over(wall):
    expiry = Expiry(TTL_MS, NOW_MS, 0, Store().first_after)
    expiry.arrived(3, NOW_MS + 10)
    assert expiry.expired_below(NOW_MS + 10 + TTL_MS - 1) == 0
    assert expiry.expired_below(NOW_MS + 10 + TTL_MS) == 3


@pytest.mark.parametrize("jump_ms", [3_600_000, -3_600_000])
def test_setting_the_clock_neither_expires_early_nor_keeps_what_arrived(wall, jump_ms):
    expiry = Expiry(TTL_MS, NOW_MS, 0, Store().first_after)
    expiry.arrived(1, NOW_MS)
    wall[0] += jump_ms
    assert expiry.expired_below(NOW_MS + TTL_MS - 1) == 0
    assert expiry.expired_below(NOW_MS + TTL_MS) == 1


@pytest.mark.parametrize("jump_ms", [3_600_000, -3_600_000])
def test_setting_the_clock_does_not_touch_what_was_there_before_either(wall, jump_ms):
    store = Store((wall[0] - 50_000, 0), (wall[0] - 10_000, 1))
    expiry = Expiry(TTL_MS, NOW_MS, store.end, store.first_after)
    wall[0] += jump_ms
    assert expiry.expired_below(NOW_MS) == 0
    assert expiry.expired_below(NOW_MS + 10_001) == 1  # 50 s old when the home began, and 10 s more
    assert expiry.expired_below(NOW_MS + 50_001 + expiry.grain_ms) == 2


def test_the_marks_are_bounded_however_many_messages_arrive(wall):
    expiry = Expiry(TTL_MS, NOW_MS, 0, Store().first_after)
    for ms in range(2 * TTL_MS):
        expiry.arrived(ms + 1, NOW_MS + ms)
        expiry.expired_below(NOW_MS + ms)
    assert len(expiry.marks) <= TTL_MS // expiry.grain_ms + 2 < 2 * MARKS
    # A message lives longer than its time by one grain at most, and never shorter.
    expired = expiry.expired_below(NOW_MS + 2 * TTL_MS)
    assert TTL_MS - expiry.grain_ms <= expired <= TTL_MS + 1


def test_it_says_when_to_look_again(wall):
    expiry = Expiry(500, NOW_MS, 0, Store().first_after)
    assert expiry.grain_ms == GRAIN_MS_MIN
    assert expiry.due_ms(NOW_MS, 0) == NEVER
    expiry.arrived(1, NOW_MS + 5)
    assert expiry.due_ms(NOW_MS + 5, 0) == NOW_MS + 505
