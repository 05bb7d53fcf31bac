# SPDX-License-Identifier: Apache-2.0
"""Transactions on a disk without room: who writes waits, what is decided is finished, and each row is there once."""

from __future__ import annotations

import os
import uuid

import pytest
from full_disk import FILLER, fill, small_disk
from running import broker, wait_until
from staging import begun, entries, rows

from vibemq.client.streams import StreamsConnection
from vibemq.protocols.streams.spec import TransactionState as State

pytestmark = pytest.mark.timeout(300)

DISK_BYTES, LEFT_BYTES, SEGMENT_BYTES = 96 << 20, 8 << 20, 4 << 20
BODIES = [b"%06d" % number + bytes(100_000) for number in range(200)]


def serving(disk, floor_bytes: int):
    options = {"store.disk_free_min_bytes": floor_bytes, "store.segment_size_bytes": SEGMENT_BYTES}
    return broker(disk / "data", *(word for name, value in options.items() for word in ("--set", f"{name}={value}")))


def stage_all(client: StreamsConnection) -> list[tuple[str, int]]:
    with begun(client, "app", 0, "one") as staging:
        for body in BODIES:
            staging.stage(0, entries(body))
    return [(staging.name, staging.blocks)]


@pytest.mark.parametrize("kind", ["tmpfs", "ext4"])
def test_a_disk_that_fills_up_in_a_commit_costs_time_and_no_row(tmp_path, kind):
    with (
        small_disk(tmp_path, DISK_BYTES, kind) as disk,
        serving(disk, 0) as served,
        StreamsConnection.connect(served.host, served.port) as client,
    ):
        client.create("one")
        parts = stage_all(client)
        fill(disk)
        os.truncate(disk / FILLER, (disk / FILLER).stat().st_size - LEFT_BYTES)
        full = client.commit_transactions("app", 0, "run", ["one"], parts)
        assert (full.state, "decided and not all appended yet" in full.holder) == (State.FULL, True), full
        there = rows(client, "one")
        assert there == BODIES[: len(there)] != BODIES
        (disk / FILLER).unlink()
        wait_until(lambda: rows(client, "one") == BODIES, "all that is decided to be appended")
        again = client.commit_transactions("app", 0, "run", ["one"], parts)
        assert (again.state, again.rows) == (State.ALREADY, len(BODIES))
        assert rows(client, "one") == BODIES


def test_under_a_disk_alarm_nothing_more_is_staged_or_decided_until_there_is_room(tmp_path):
    with (
        small_disk(tmp_path, DISK_BYTES, "ext4") as disk,
        serving(disk, LEFT_BYTES) as served,
        StreamsConnection.connect(served.host, served.port) as client,
    ):
        client.create("one")
        parts = stage_all(client)
        fill(disk)

        def begin() -> tuple[State, str]:
            answer = client.begin_transaction(uuid.uuid4().hex, "app", 0, "run", ["one"])
            answer.close()
            return answer.state, answer.holder

        wait_until(lambda: begin()[0] == State.FULL, "the disk alarm")
        assert "disk alarm" in begin()[1]
        full = client.commit_transactions("app", 0, "run", ["one"], parts)
        assert (full.state, "disk alarm" in full.holder) == (State.FULL, True)
        assert rows(client, "one") == []
        (disk / FILLER).unlink()
        wait_until(lambda: begin()[0] == State.OK, "the end of the alarm")
        done = client.commit_transactions("app", 0, "run", ["one"], parts)
        assert (done.state, done.rows) == (State.OK, len(BODIES))
        assert rows(client, "one") == BODIES
