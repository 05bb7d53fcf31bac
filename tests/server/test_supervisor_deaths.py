# SPDX-License-Identifier: Apache-2.0
"""Workers die: how soon they are replaced, what becomes of who waits, and when they must wait."""

import os
import resource
import selectors
import signal
import time
from contextlib import suppress

import pytest
from running import broker, exit_code, forked, written
from supervisor_harness import once_within, wait_until

from vibemq.config import Config
from vibemq.server.processes import QUICK_DEATHS_FREE, Process

PROMISED_S = 0.2
FDS_TO_SPARE = 50
TRIES_MAX = 30


def test_a_killed_worker_is_replaced_within_200_ms(start):
    broker = start(server__workers=1).wait_ready()

    def took_s():
        pid = broker.ask()[1]
        killed = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        assert broker.ask()[1] != pid
        return time.monotonic() - killed

    once_within(PROMISED_S, TRIES_MAX, took_s)


def test_a_connection_that_waits_in_a_dead_workers_queue_is_answered_by_its_successor(start):
    broker = start(server__workers=1).wait_ready()
    [pid] = broker.workers()
    os.kill(pid, signal.SIGSTOP)
    with broker.connect() as connection:  # accepted by the kernel, not by the worker
        os.kill(pid, signal.SIGKILL)
        index, answered_by = map(int, connection.makefile().readline().split())
    assert index == 0
    assert [answered_by] == broker.workers() != [pid]


def test_the_other_workers_do_not_notice(start):
    broker = start(server__workers=3).wait_ready()
    victim, *others = broker.workers()
    os.kill(victim, signal.SIGKILL)
    broker.wait_log(" is ready, pid ", count=4)
    assert victim not in broker.workers()
    assert set(others) < set(broker.workers())


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two processor cores")
def test_a_worker_is_replaced_where_there_are_fewer_cores_by_now(tmp_path, capfd):
    count = Config().worker_count
    with broker(tmp_path, "--workers", "0", workers=count) as running:
        os.sched_setaffinity(running.process.pid, {min(os.sched_getaffinity(0))})
        os.kill(running.worker_pids()[-1], signal.SIGKILL)
        wait_until(lambda: written(capfd).count(" is ready, pid ") == count + 1, "another worker is ready")


def test_killing_a_worker_again_and_again_never_makes_it_wait(start):
    broker = start(server__workers=1).wait_ready()
    for _ in range(15):
        os.kill(broker.ask()[1], signal.SIGKILL)
    broker.ask()
    assert "it is started again in" not in broker.log


def test_a_worker_that_keeps_ending_is_started_ever_more_slowly_and_the_log_says_so(start):
    broker = start().wait_ready()
    flaky = broker.folder / "vibemq.toml.flaky"
    flaky.touch()
    os.kill(broker.workers()[0], signal.SIGKILL)
    broker.wait_log("worker 0 ended 4 times in a row right after its start; it is started again in 0.1 s")
    broker.wait_log("worker 0 ended 5 times in a row right after its start; it is started again in 0.2 s")
    flaky.unlink()
    wait_until(lambda: len(broker.workers()) == 2, f"both workers run, as shown by {broker.log_path}")
    wait_until(lambda: 0 in {broker.ask()[0] for _ in range(20)}, "worker 0 accepts")


def test_a_worker_whose_death_is_known_before_its_first_word_is_read_harms_nobody():
    """One that is ready and ends at once: both are told in one turn of the supervisor's loop, in either order."""

    class Backwards(selectors.DefaultSelector):
        def select(self, timeout=None):
            return sorted(super().select(timeout), key=lambda event: event[0].fd != worker.pidfd)

    def life(_, ready_fd):
        os.write(ready_fd, b"1")
        return 4

    told = []
    with Backwards() as selector:
        calls = selector, lambda _: None, life, lambda: None, told.append
        worker = Process("worker 0", "worker 0", 0, *calls, quick_deaths=QUICK_DEATHS_FREE)
        worker.start()
        wait_until(lambda: len(selector.select(0)) == 2, "it is ready, and it has ended")
        for key, _ in selector.select(0):
            key.data()
    assert told == [worker]
    assert worker.restart_at_s is not None


@pytest.mark.parametrize("spare", range(3))
def test_a_worker_for_which_no_descriptor_is_left_is_started_later(spare):
    def started():
        held = []
        with selectors.DefaultSelector() as selector:
            calls = selector, lambda _: None, lambda *_: signal.pause(), lambda: None, lambda _: None
            process = Process("worker-0", "worker 0", 0, *calls)
            with suppress(OSError):
                while True:
                    held.append(os.dup(2))
            for _ in range(spare):
                os.close(held.pop())
            before = len(os.listdir("/proc/self/fd")) if spare else None
            process.start()
            if process.alive:
                os.kill(process.pid, signal.SIGKILL)
                os.waitpid(process.pid, 0)
                return spare == 2
            left = len(os.listdir("/proc/self/fd")) if spare else None
            return spare < 2 and process.restart_at_s is not None and before == left

    limit = max(int(fd) for fd in os.listdir("/proc/self/fd")) + FDS_TO_SPARE

    def work():
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
        assert started()

    assert exit_code(forked(work)) == 0


def test_a_worker_that_fails_later_is_replaced_at_once_and_its_exit_code_logged(start):
    broker = start(server__workers=1).wait_ready()
    [pid] = broker.workers()
    with broker.connect() as connection:
        connection.sendall(b"exit 7\n")
        wait_until(lambda: broker.workers() not in ([pid], []), "a new worker")
    assert f"worker 0, pid {pid}, ended with exit code 7" in broker.log
    assert broker.ask()[1] != pid


def test_killing_supervisor_and_workers_leaves_a_data_directory_that_starts_again(start):
    for _ in range(3):
        broker = start().wait_ready()
        for pid in [*broker.workers(), broker.process.pid]:
            os.kill(pid, signal.SIGKILL)
        broker.wait()
    start().wait_ready()
