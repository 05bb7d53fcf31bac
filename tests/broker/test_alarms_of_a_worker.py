# SPDX-License-Identifier: Apache-2.0
"""When a worker looks at its disk, what it takes from that, and what the other processes tell it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vibemq.broker import alarms, disk
from vibemq.broker.alarms import LOOK_FULL_MS, LOOK_MS_MAX, LOOK_MS_MIN, Alarm, Alarms, Conditions
from vibemq.broker.timers import Timers

FLOOR = 50_000_000


class AtOnce:
    """Helper threads without the threads."""

    def __init__(self) -> None:
        self.hangs = False

    def submit_sync(self, work: Callable[[], Any], done: Callable[[Any, BaseException | None], None]) -> None:
        if self.hangs:
            return
        try:
            result = work()
        except OSError as problem:
            done(None, problem)
        else:
            done(result, None)


class Worker:
    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.free: int | OSError = 10 * FLOOR
        self.lacks_files = False
        self.now_ms, self.changes = 0, 0
        self.timers, self.conditions, self.helpers = Timers(), Conditions(), AtOnce()
        monkeypatch.setattr(alarms, "free_bytes", self.free_bytes)
        monkeypatch.setattr(alarms, "lacks_files", lambda _: self.lacks_files)
        monkeypatch.setattr(disk, "free_bytes", self.free_bytes)
        self.alarms = Alarms(str(folder), FLOOR, self.conditions, self.timers, self.helpers)
        self.timer = self.alarms._timer
        self.alarms.listen(self.changed)

    def free_bytes(self, _: str) -> int:
        if isinstance(self.free, OSError):
            raise self.free
        return self.free

    def changed(self) -> None:
        self.changes += 1

    def look(self, free: int | OSError) -> int:
        """One look that finds so much; how many ms until the next."""
        self.free = free
        self.now_ms = max(self.now_ms, self.timer.due_ms)
        self.timers.run(self.now_ms)
        return self.timer.due_ms - self.now_ms


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Worker:
    return Worker(tmp_path, monkeypatch)


def test_it_looks_the_more_often_the_nearer_the_floor(worker: Worker) -> None:
    assert worker.look(1000 * FLOOR) == LOOK_MS_MAX
    assert LOOK_MS_MIN < worker.look(10 * FLOOR) < LOOK_MS_MAX
    assert worker.look(FLOOR) == LOOK_MS_MIN
    assert worker.look(FLOOR - 1) == LOOK_FULL_MS


def test_dead_letters_wait_below_half_of_the_floor(worker: Worker) -> None:
    worker.look(FLOOR - 1)
    assert (worker.alarms.in_effect, worker.alarms.holds_copies) == ({Alarm.DISK}, False)
    assert "disk alarm" in worker.alarms.refusal
    worker.look(FLOOR // 2 - 1)
    assert worker.alarms.holds_copies
    assert worker.changes == 2
    worker.look(FLOOR)
    assert (worker.alarms.in_effect, worker.alarms.holds_copies, worker.alarms.refusal) == (set(), False, "")


def test_a_write_that_met_a_full_disk_needs_no_look(worker: Worker) -> None:
    worker.look(10 * FLOOR)
    worker.alarms.met_full_disk()
    assert worker.alarms.in_effect == {Alarm.DISK}
    worker.look(10 * FLOOR)
    assert not worker.alarms.in_effect


def test_a_write_that_met_a_full_disk_is_told_as_what_it_is(worker: Worker, caplog: pytest.LogCaptureFixture) -> None:
    worker.look(10 * FLOOR)
    worker.alarms.met_full_disk()
    assert "a write found no room" in caplog.text


def test_too_few_inodes_are_a_full_disk(worker: Worker, caplog: pytest.LogCaptureFixture) -> None:
    worker.lacks_files = True
    assert worker.look(1000 * FLOOR) == LOOK_FULL_MS
    assert (worker.alarms.in_effect, worker.alarms.holds_copies) == ({Alarm.DISK}, True)
    assert "fewer than 256 files" in worker.alarms.refusal
    assert "inodes are used up" in caplog.text
    worker.lacks_files = False
    worker.look(1000 * FLOOR)
    assert (worker.alarms.in_effect, worker.alarms.refusal) == (set(), "")


def test_memory_is_looked_at_while_the_disk_does_not_answer(worker: Worker) -> None:
    worker.look(FLOOR - 1)
    worker.helpers.hangs = True
    assert worker.look(FLOOR - 1) == LOOK_MS_MAX
    for is_alarm in (True, False):
        worker.conditions.set_memory(7, 5, is_alarm=is_alarm)
        assert worker.look(FLOOR - 1) == LOOK_MS_MAX
        assert (Alarm.MEMORY in worker.alarms.in_effect) == is_alarm
    assert worker.alarms.in_effect == {Alarm.DISK}


def test_a_disk_that_cannot_be_asked_is_as_it_was_and_memory_counts_all_the_same(worker: Worker) -> None:
    worker.look(FLOOR - 1)
    worker.conditions.set_memory(7, 5, is_alarm=True)
    worker.look(OSError(5, "Input/output error"))
    assert worker.alarms.in_effect == {Alarm.DISK, Alarm.MEMORY}
    worker.conditions.set_memory(4, 5, is_alarm=False)
    worker.look(FLOOR)
    assert not worker.alarms.in_effect


def test_what_the_supervisor_and_the_admin_process_write_does_not_touch(worker: Worker) -> None:
    worker.conditions.is_drained = True
    worker.conditions.set_memory(7, 5, is_alarm=True)
    assert (worker.conditions.is_drained, worker.conditions.has_memory_alarm) == (True, True)
    assert worker.conditions.memory == (7, 5)
    worker.conditions.is_drained = False
    assert worker.conditions.has_memory_alarm
