# SPDX-License-Identifier: Apache-2.0
"""When messages expire.  What the log knows of older ones is shown in csrc/tests/retention_clock_test.c."""

from vibemq.broker.expiry import GRAIN_MS_MIN, MARKS, NEVER, Expiry

TTL_MS = 60_000
NOW_MS = 1_000_000  # of the monotonic clock, when the home begins


class Log:
    """A log that knows of ``older`` of its messages that they are older than any time to live."""

    def __init__(self, older: int = 0) -> None:
        self.older = older

    def older_end(self, start: int, age_ms: int) -> int:
        assert age_ms > 0
        return max(start, self.older)


def test_a_message_that_arrived_expires_once_its_time_is_over():
    expiry = Expiry(TTL_MS, NOW_MS, 0, Log().older_end)
    expiry.arrived(3, NOW_MS + 10)
    assert expiry.expired_below(NOW_MS + 10 + TTL_MS - 1) == 0
    assert expiry.expired_below(NOW_MS + 10 + TTL_MS) == 3


def test_messages_that_were_there_before_expire_as_the_log_says():
    log = Log()
    expiry = Expiry(TTL_MS, NOW_MS, 5, log.older_end)
    assert expiry.expired_below(NOW_MS) == 0
    log.older = 3
    assert expiry.expired_below(NOW_MS + expiry.grain_ms) == 3
    log.older = 9  # messages that arrived since then have a time of their own
    assert expiry.expired_below(NOW_MS + 2 * expiry.grain_ms) == 5


def test_messages_whose_age_the_log_does_not_know_expire_a_time_to_live_after_the_home_began():
    expiry = Expiry(TTL_MS, NOW_MS, 5, Log().older_end)
    expiry.arrived(6, NOW_MS + 1)
    assert expiry.expired_below(NOW_MS + TTL_MS - 1) == 0
    assert expiry.expired_below(NOW_MS + TTL_MS) == 5
    assert expiry.expired_below(NOW_MS + TTL_MS + 1) == 6


def test_the_marks_are_bounded_however_many_messages_arrive():
    expiry = Expiry(TTL_MS, NOW_MS, 0, Log().older_end)
    for ms in range(2 * TTL_MS):
        expiry.arrived(ms + 1, NOW_MS + ms)
        expiry.expired_below(NOW_MS + ms)
    assert len(expiry.marks) <= TTL_MS // expiry.grain_ms + 2 < 2 * MARKS
    # A message lives longer than its time by one grain at most, and never shorter.
    expired = expiry.expired_below(NOW_MS + 2 * TTL_MS)
    assert TTL_MS - expiry.grain_ms <= expired <= TTL_MS + 1


def test_it_says_when_to_look_again():
    expiry = Expiry(500, NOW_MS, 0, Log().older_end)
    assert expiry.grain_ms == GRAIN_MS_MIN
    assert expiry.due_ms(NOW_MS, 0) == NEVER  # nothing was there before
    expiry.arrived(1, NOW_MS + 5)
    assert expiry.due_ms(NOW_MS + 5, 0) == NOW_MS + 505
