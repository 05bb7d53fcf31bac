# SPDX-License-Identifier: Apache-2.0
"""Timers: what is over is not kept until the time it was set to."""

import gc
import weakref

from vibemq.broker.timers import NEVER, OVER_MIN, Timers


class Owner:
    def __init__(self, timers):
        self.rung = []
        self.timer = timers.timer(self.rung.append)
        self.on_time = timers.timer(self.ring)

    def ring(self, now_ms):
        self.rung.append(now_ms)


def test_who_ends_its_timer_goes_at_once_however_late_it_was_set():
    timers = Timers()
    owner = Owner(timers)
    owner.on_time.set(10**12)
    gone = weakref.ref(owner)
    gc.disable()
    try:
        owner.on_time.end()
        del owner
        assert gone() is None
    finally:
        gc.enable()
    timers.run(10**12)


def test_timers_that_are_over_do_not_pile_up_and_the_others_ring():
    timers = Timers()
    live = Owner(timers)
    live.on_time.set(500)
    for _ in range(100 * OVER_MIN):
        over = Owner(timers)
        over.on_time.set(10**12)
        over.on_time.end()
        over.on_time.end()
    assert len(timers._heap) <= 2 * OVER_MIN
    timers.run(500)
    assert live.rung == [500]
    over.on_time.set(600)  # a late word to one that is over
    timers.run(600)
    assert over.rung == []


def test_nothing_is_due_when_all_are_over():
    timers = Timers()
    for owner in [Owner(timers) for _ in range(OVER_MIN)]:
        owner.on_time.set(7)
        owner.on_time.end()
    assert timers.next_ms == NEVER
