# SPDX-License-Identifier: Apache-2.0
"""A wall clock that jumps by hours, forth and back: nothing in the bucket depends on it."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from flows import BATCH, NativeQueue, Streams, connected
from running import ENVIRONMENT, Running, broker, wait_until, written
from test_failures import Lost, kill
from wrong_clock import HOUR_S, Clock

pytest.importorskip("obstore", reason="needs the extra remote")
pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def clock(tmp_path: Path) -> Clock:
    return Clock(tmp_path)


def options(bucket: Path) -> list[str]:
    given = {
        "remote.url": f"file://{bucket}",
        "remote.interval_ms": 10,
        "remote.segment_age_s": 10,
        "remote.local_age_max_s": HOUR_S,
        "store.durability": "remote",
        "store.segment_size_bytes": 65536,
    }
    return [word for name, value in given.items() for word in ("--set", f"{name}={value}")]


@contextmanager
def serving(folder: Path, bucket: Path, clock: Clock) -> Iterator[Running]:
    with broker(folder, *options(bucket), workers=1, through=clock.through) as running:
        yield running


@contextmanager
def lost(folder: Path, bucket: Path, clock: Clock) -> Iterator[Running]:
    with pytest.raises(Lost), serving(folder, bucket, clock) as running:
        yield running
        kill(running)
        shutil.rmtree(folder)
        raise Lost


def remote(bucket: Path, clock: Clock, *words: str) -> str:
    command = [sys.executable, "-m", "vibemq.cli", "remote", *words, "--url", f"file://{bucket}"]
    done = subprocess.run(command, env=ENVIRONMENT | clock.environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def newest_s(running: Running) -> float:
    """When the broker thinks that the newest event was published."""
    with connected(running) as connection:
        return max(chunk.timestamp_ms for chunk in connection.read_chunks("events", 0)) / 1000


def test_whatever_the_clock_says_nothing_is_lost_or_deleted_too_early(tmp_path, clock):
    bucket, chance = tmp_path / "bucket", random.Random(1)
    events, tasks = Streams("events"), NativeQueue("tasks")
    for wrong_h, machine in ((0, "first"), (-30, "second")):
        clock.jump(wrong_h * HOUR_S)
        with lost(tmp_path / machine, bucket, clock) as running:
            for flow in (events, tasks):
                flow.check(running, chance, is_thorough=False)
            for jump_h in (wrong_h, wrong_h + 5, wrong_h - 10, wrong_h):
                clock.jump(jump_h * HOUR_S)
                with events.open(running) as publish, tasks.open(running) as publish_tasks:
                    for _ in range(30):
                        events.publish(publish)
                    tasks.publish(publish_tasks)
            if machine == "first":
                assert abs(newest_s(running) - time.time() - 5 * HOUR_S) < HOUR_S, "the clock has jumped"
            wait_until(lambda: list(bucket.glob("streams/*/*.segment")) != [], "a segment is in the store")
            clock.jump(100 * HOUR_S)
            assert "would delete" not in remote(bucket, clock, "prune")
            assert remote(bucket, clock, "verify").startswith("all is well")
    clock.jump(7 * HOUR_S)
    with serving(tmp_path / "last", bucket, clock) as running:
        for flow in (events, tasks):
            flow.check(running, chance, is_thorough=True)
        assert len(events.confirmed) == 2 * 4 * 30 * 50
    numbers = sorted(path.name for path in (bucket / "brokers/vibemq").iterdir() if path.name.isdigit())
    assert numbers == [f"{number:0{len(numbers[0])}}" for number in range(1, len(numbers) + 1)]


def test_the_broker_that_came_later_goes_on_though_its_clock_says_that_it_came_earlier(tmp_path, clock, capfd):
    bucket = tmp_path / "bucket"
    events, fresh = Streams("events"), Streams("events")
    clock.jump(20 * HOUR_S)
    with pytest.raises(Lost), serving(tmp_path / "older", bucket, clock) as older:
        with events.open(older) as publish:
            events.publish(publish)
            clock.jump(-20 * HOUR_S)
            with serving(tmp_path / "newer", bucket, clock) as newer:
                with fresh.open(newer) as publish_there:
                    fresh.publish(publish_there)
                work = events.publishing(publish)  # the older one hears of it when it sends something
                work.start()
                older.process.wait(60)
                assert work.ended() is not None and len(events.confirmed) == BATCH, "and confirms nothing of it"
                fresh.confirmed |= events.confirmed
                fresh.check(newer, random.Random(1), is_thorough=True)
        raise Lost
    assert "another broker has taken this one's place" in written(capfd)
