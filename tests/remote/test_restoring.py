# SPDX-License-Identifier: Apache-2.0
"""What is put together of a bucket that a broker was killed over, without a broker."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any

import pytest

import vibemq.storage.cold as cold
from vibemq.once_a_minute import OnceAMinute
from vibemq.remote.archiver import Archiver
from vibemq.remote.objects import Chunks, LedgerState, Place, SegmentBegins
from vibemq.remote.restoring import HARMED, Restored

INCARNATION = "00112233445566ff"


class Segments:
    """A bucket of these, all of a size, without publishing ids."""

    async def plain_size(self, *_: object) -> int:
        return 1000

    async def read(self, *_: object) -> memoryview:
        return memoryview(b"")


def restored(directory: str, is_queue: bool, *ranges: tuple[int, int]) -> Restored:
    record = SimpleNamespace(
        name="tasks",
        incarnation=INCARNATION,
        directory=directory,
        durability="remote",
        queue=SimpleNamespace() if is_queue else None,
    )
    made = Restored(record, is_whole=True)
    places = {Place(INCARNATION, first, after, 1, 7, 0, 0): 1000 for first, after in ranges}
    asyncio.run(made.take_places(Segments(), places, asyncio.Semaphore(1)))
    return made


@pytest.mark.parametrize("base", [300, 350, 400])
def test_segments_of_a_queue_that_were_settled_are_not_missed_and_those_left_of_them_are_not_brought_back(
    tmp_path, caplog, base
):
    """As a broker leaves them that was killed while it deleted some of the first three."""
    directory = tmp_path / "log"
    made = restored(str(directory), True, (0, 100), (300, 400), (400, 500))
    made.lay(LedgerState(INCARNATION, base, ()))
    made.finish()
    assert "missing" not in caplog.text
    assert [stub.first for stub in cold.stubs(str(directory))] == ([400] if base == 400 else [300, 400])


def test_a_hole_in_what_was_published_last_is_told_with_what_lies_behind_it(tmp_path, caplog):
    made = restored(str(tmp_path / "log"), False)
    made.lay(SegmentBegins(INCARNATION, 0, memoryview(bytes(64)), memoryview(b"")))
    for position, first, after in ((64, 0, 10), (164, 10, 20), (364, 30, 40), (64, 0, 10)):  # some come again
        made.lay(Chunks(INCARNATION, 0, position, first, after, memoryview(bytes(100))))
    assert made.finish().startswith("stream 'tasks' ends at offset 20:")
    assert "those from 30 to 39 go into a .quarantine file" in caplog.text


def test_what_came_again_later_leaves_no_hole(tmp_path, caplog):
    made = restored(str(tmp_path / "log"), False)
    made.lay(SegmentBegins(INCARNATION, 0, memoryview(bytes(64)), memoryview(b"")))
    for position, first, after in ((64, 0, 10), (264, 20, 30), (164, 10, 20), (264, 20, 30)):
        made.lay(Chunks(INCARNATION, 0, position, first, after, memoryview(bytes(100))))
    assert made.finish() == "" == caplog.text


@pytest.mark.parametrize("is_queue", [True, False])
def test_segments_that_somebody_may_need_are_missed_by_name(tmp_path, caplog, is_queue):
    made = restored(str(tmp_path / "log"), is_queue, (0, 100), (300, 400))
    made.lay(LedgerState(INCARNATION, 120, ()))
    made.finish()
    since = 120 if is_queue else 100
    assert f"segments with offsets {since} to 299 are missing in the bucket" in caplog.text


def test_older_objects_stay_as_long_as_somebody_may_put_back_what_is_missing_of_them(tmp_path, caplog):
    asked: list[str] = []
    archiver: Any = Archiver.__new__(Archiver)
    archiver.metadata = SimpleNamespace(path=str(tmp_path / "meta.db"), logs=lambda: [])
    archiver.tier = SimpleNamespace(is_busy=False, in_background=asked.append)
    archiver.by_slot, archiver._earlier_due_s = {}, 0.0
    archiver._says = OnceAMinute(logging.getLogger(), logging.ERROR)
    archiver._delete_earlier = lambda: "deleted"
    harmed = tmp_path / HARMED
    harmed.write_text("a stream ends\n")
    archiver._forget_earlier()
    assert asked == [] and str(harmed) in caplog.text
    harmed.unlink()
    archiver._forget_earlier()
    assert asked == ["deleted"]
