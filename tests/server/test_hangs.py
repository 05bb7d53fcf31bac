# SPDX-License-Identifier: Apache-2.0
"""Which silence of a worker is a hang.  With clients it is shown in tests/interop/streams/test_client_restarts.py."""

import signal
import struct
import time

import pytest
from supervisor_harness import wait_until

from vibemq.server import hangs
from vibemq.server.hangs import GRACE_S, LOOK_S, Beats, HangWatch
from vibemq.server.slow_calls import SlowCallWatch
from vibemq.storage.calls import KINDS, Calls, shared

MOST_S = 10.0
# `struct calls` of csrc/base/calls.h: 64 entries, two words for each kind and four more come before `replaced`.
CALL_BYTES = 256
REPLACED_AT = 64 * CALL_BYTES + (2 * len(KINDS) + 4) * 8


class World:
    """A clock, and what /proc says of each worker; the pid of worker n is 100 + n."""

    def __init__(self, monkeypatch, count=2):
        self.now_s = 0.0
        self.beats = Beats(count)
        self.count = count
        self.processes = {100 + index: ("S", 0.0) for index in range(count)}
        monkeypatch.setattr(hangs, "_process", lambda pid: self.processes[pid])
        self.watch = HangWatch(self.beats, MOST_S, self.now_s)

    def look(self, after_s=LOOK_S, beating=()):
        """The index of one that hangs, or None."""
        self.now_s += after_s
        for index in beating:
            self.beats.beat(index)
        found = self.watch.look(self.now_s, [(index, 100 + index) for index in range(self.count)])
        return None if found is None else found[0]

    def looks(self, seconds, **options):
        return [self.look(**options) for _ in range(int(seconds / LOOK_S))]


@pytest.fixture
def world(monkeypatch):
    return World(monkeypatch)


def test_who_beats_is_left_alone_and_who_is_silent_is_found_once(world):
    assert world.looks(MOST_S, beating=[1]) == [None] * 10
    assert world.look(beating=[1]) == 0
    assert world.looks(MOST_S - 1, beating=[0, 1]) == [None] * 9


def test_a_stopped_worker_is_found(world):
    world.processes[100] = ("T", 0.0)
    assert [found for found in world.looks(MOST_S + 1, beating=[1]) if found is not None] == [0]


def test_time_in_which_the_supervisor_did_not_run_either_is_not_counted(world):
    """The machine was suspended, or so busy that nobody got anywhere."""
    world.look(beating=[0, 1])
    assert world.look(after_s=3600.0) is None
    assert world.look(beating=[0, 1]) is None


def test_who_waits_for_the_disk_or_is_debugged_is_left_alone(world):
    world.processes = {100: ("D", 0.0), 101: ("t", 0.0)}
    assert set(world.looks(10 * MOST_S)) == {None}


def test_a_worker_in_a_slow_file_system_call_is_left_alone_in_any_state(world):
    world.watch = HangWatch(world.beats, MOST_S, world.now_s, waits_for_disk=lambda index: index == 1)
    assert {found for found in world.looks(10 * MOST_S, beating=[0]) if found is not None} == set()


@pytest.mark.parametrize(
    ("in_a_call", "is_replaced", "waits"),
    [
        ([0], False, True),
        ([1], False, False),  # a helper's
        ([0], True, False),  # the loop has gone on without that thread
        ([0, 1], True, True),  # and the one that runs it now waits as well
    ],
)
def test_a_slow_call_of_the_thread_that_runs_the_loop_counts(in_a_call, is_replaced, waits):
    memory = shared(1)
    for entry in in_a_call:
        since_ms = time.monotonic_ns() // 1_000_000 - 10_000
        struct.pack_into("=IIq", memory, entry * CALL_BYTES, KINDS.index("open"), 1, since_ms)
    struct.pack_into("=I", memory, REPLACED_AT, is_replaced)
    watch = SlowCallWatch({"worker 0": Calls(memory, 0)}, 0.0)
    assert watch.waits_for_disk("worker 0") == waits


def test_who_gets_no_processor_is_left_alone(world):
    world.processes[100] = ("R", 5.0)
    assert set(world.looks(10 * MOST_S, beating=[1])) == {None}


def test_who_computes_without_end_is_found(world):
    found = []
    for second in range(30):
        world.processes[100] = ("R", 0.5 * second)  # others have the processor, too
        found.append(world.look(beating=[1]))
    assert found.index(0) == 2 * MOST_S


def test_those_who_wait_for_the_one_that_hangs_are_given_time_to_show_it(world):
    world.processes[101] = ("T", 0.0)
    found = world.looks(MOST_S + 1)
    assert [index for index in found if index is not None] == [1]
    world.processes[101] = ("S", 0.0)
    assert set(world.looks(GRACE_S, beating=[0, 1])) == {None}


def test_they_are_next_if_it_was_they(world):
    world.processes[101] = ("T", 0.0)
    world.looks(MOST_S + 1)
    assert 0 in world.looks(GRACE_S + 1, beating=[1])


def test_0_switches_it_off():
    assert HangWatch(Beats(1), 0, 0.0).due is None


def test_it_is_killed_and_replaced_and_the_log_says_why(start):
    """The workers of these tests have no loop that beats."""
    broker = start(server__workers=1, server__worker_hang_s=1).wait_ready()
    [pid] = broker.workers()
    broker.wait_log(f"worker 0, pid {pid}, is killed and replaced: it has done nothing for")
    broker.wait_log(f"worker 0, pid {pid}, was killed by SIGKILL")
    wait_until(lambda: broker.workers() not in ([], [pid]), "another worker")
    broker.signal(signal.SIGTERM)
    assert broker.wait() == 0
