# SPDX-License-Identifier: Apache-2.0
"""Helper threads where the kernel refuses threads: a job waits, and is done when there is a thread again."""

import threading
from types import SimpleNamespace

import pytest

from vibemq.broker.alarms import Alarms
from vibemq.broker.timers import Timers
from vibemq.server.helpers import Helpers

DEADLINE_S = 60.0


class Kernel:
    """Refuses threads while ``refuses``."""

    refuses = False

    def __init__(self, monkeypatch):
        really_start = threading.Thread.start

        def start(thread):
            if self.refuses:
                raise RuntimeError("can't start new thread")
            really_start(thread)

        monkeypatch.setattr(threading.Thread, "start", start)


@pytest.fixture
def kernel(monkeypatch):
    return Kernel(monkeypatch)


class Loop:
    """The part of a worker's loop that helpers need."""

    def __init__(self):
        self.rung = threading.Semaphore(0)
        self.helpers = Helpers(self.rung.release)

    def await_job(self):
        assert self.rung.acquire(timeout=DEADLINE_S)
        self.helpers.take_finished()


def test_a_job_whose_thread_is_refused_is_done_later_and_keeps_nobody_from_ending(kernel):
    kernel.refuses = True
    loop, done = Loop(), []
    loop.helpers.submit_sync(lambda: 7, lambda *outcome: done.append(outcome))
    assert loop.helpers.running == 0, "no thread can do it, so a stop does not wait for it"
    loop.helpers.start_refused()
    assert done == []
    kernel.refuses = False
    loop.helpers.start_refused()
    assert loop.helpers.running == 1
    loop.await_job()
    assert done == [(7, None)]
    assert loop.helpers.running == 0


def test_jobs_go_on_with_the_threads_that_are_there(kernel):
    loop, done = Loop(), []
    kernel.refuses = True
    for number in range(100):
        loop.helpers.submit(lambda number=number: number, lambda result, _: done.append(result))
    for _ in range(100):
        loop.await_job()
    assert sorted(done) == list(range(100))


def test_the_disk_alarm_goes_on_after_a_thread_was_refused(kernel, tmp_path, monkeypatch):
    kernel.refuses = True
    loop, timers = Loop(), Timers()
    conditions = SimpleNamespace(has_memory_alarm=False, has_file_limit=False)
    watch = Alarms(str(tmp_path), 1 << 20, conditions, timers, loop.helpers)
    found = []
    monkeypatch.setattr(watch, "_found", found.append)
    timers.run(0)
    timers.run(10**9)
    kernel.refuses = False
    loop.helpers.start_refused()
    loop.await_job()
    assert found[-1] is not None and found[-1] > 0
    timers.run(2 * 10**9)
    loop.await_job()
    loop.helpers.close()
