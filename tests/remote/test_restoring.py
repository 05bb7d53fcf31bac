# SPDX-License-Identifier: Apache-2.0
"""What is put together of a bucket that a broker was killed over, without a broker."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest

import vibemq.storage.cold as cold
from vibemq.broker.options import DeliveryMode
from vibemq.once_a_minute import OnceAMinute
from vibemq.remote.archiver import Archiver
from vibemq.remote.epochs import WriteAheadObject
from vibemq.remote.objects import Chunks, LedgerState, Place, Seal, SegmentBegins
from vibemq.remote.restoring import CHUNK_HEADER, HARMED, Restored, _all_sections

INCARNATION = "00112233445566ff"


class Segments:
    """A bucket of these, all of a size, without publishing ids."""

    async def plain_size(self, *_: object) -> int:
        return 1000

    async def read(self, *_: object) -> memoryview:
        return memoryview(b"")


def chunk(epoch: int, size: int = 100) -> memoryview:
    """Of that size in all."""
    return memoryview(CHUNK_HEADER.pack(epoch, size - CHUNK_HEADER.size, 0, 0) + bytes(size - CHUNK_HEADER.size))


def restored(directory: str, is_queue: bool, *ranges: tuple[int, int], mode: int = 0) -> Restored:
    record = SimpleNamespace(
        name="tasks",
        incarnation=INCARNATION,
        directory=directory,
        durability="remote",
        queue={"mode": mode} if is_queue else None,
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
    made.lay(LedgerState(INCARNATION, base, ()), 1)
    made.finish()
    assert "missing" not in caplog.text
    assert [stub.first for stub in cold.stubs(str(directory))] == ([400] if base == 400 else [300, 400])


@pytest.mark.parametrize(("mode", "said"), [(DeliveryMode.FAN_OUT_WITH_ACK, 1), (DeliveryMode.ROUND_ROBIN, 0)])
def test_copies_that_members_of_a_fan_out_lose_with_the_machine_are_named(tmp_path, caplog, mode, said):
    made = restored(str(tmp_path / "log"), True, (0, 100), mode=mode)
    made.lay(LedgerState(INCARNATION, 10, ((12, 20), (30, 31))), 1)
    made.finish()
    assert caplog.text.count("queue 'tasks': 9 messages at offsets 12 to 30") == said


def test_a_hole_in_what_was_published_last_is_told_with_what_lies_behind_it(tmp_path):
    made = restored(str(tmp_path / "log"), False)
    made.lay(SegmentBegins(INCARNATION, 0, memoryview(bytes(64)), memoryview(b"")), 1)
    for position, first, after in ((64, 0, 10), (164, 10, 20), (364, 30, 40), (64, 0, 10)):  # some come again
        made.lay(Chunks(INCARNATION, 0, position, first, after, memoryview(bytes(100))), 1)
    hole = made.finish()
    assert hole.startswith("stream 'tasks' ends at offset 20:") and "those from 30 to 39 go into" in hole


def test_what_came_again_later_leaves_no_hole(tmp_path, caplog):
    made = restored(str(tmp_path / "log"), False)
    made.lay(SegmentBegins(INCARNATION, 0, memoryview(bytes(64)), memoryview(b"")), 1)
    for position, first, after in ((64, 0, 10), (264, 20, 30), (164, 10, 20), (264, 20, 30)):
        made.lay(Chunks(INCARNATION, 0, position, first, after, memoryview(bytes(100))), 1)
    assert made.finish() == "" == caplog.text


@pytest.mark.parametrize("is_queue", [True, False])
def test_segments_that_somebody_may_need_are_missed_by_name(tmp_path, caplog, is_queue):
    made = restored(str(tmp_path / "log"), is_queue, (0, 100), (300, 400))
    made.lay(LedgerState(INCARNATION, 120, ()), 1)
    made.finish()
    since = 120 if is_queue else 100
    assert f"segments with offsets {since} to 299 are missing in the bucket" in caplog.text


def test_of_two_segments_that_begin_at_one_offset_the_one_of_the_later_epoch_is_laid(tmp_path):
    """The former was sent, and behind it in the sequence something was missing: it was never confirmed."""
    made = restored(str(tmp_path / "log"), False)
    for header, body, table in ((b"f", chunk(1, 200), b"one"), (b"l", chunk(2), b"two")):
        made.lay(SegmentBegins(INCARNATION, 70, memoryview(header * 64), memoryview(table)), 1)
        made.lay(Chunks(INCARNATION, 70, 64, 70, 80, body), 1)
    assert made.finish() == ""
    assert (tmp_path / "log" / f"{70:020}.segment").read_bytes() == b"l" * 64 + bytes(chunk(2))
    assert (tmp_path / "log" / f"{70:020}.tracking").read_bytes() == b"two"


def test_a_segment_of_an_epoch_that_is_over_before_it_begins_is_dropped(tmp_path):
    """With its table of publishing ids, which nobody has confirmed."""
    made = restored(str(tmp_path / "log"), False)
    header, table = memoryview(bytes(64)), memoryview(b"ids")
    for first, position, begin, after, epoch in ((0, 64, 0, 10, 1), (20, 64, 20, 30, 1), (0, 164, 10, 20, 2)):
        made.lay(SegmentBegins(INCARNATION, first, header, table), 1)
        made.lay(Chunks(INCARNATION, first, position, begin, after, chunk(epoch)), 1)
    assert made.finish() == ""
    assert not [path.name for path in (tmp_path / "log").iterdir() if path.name.startswith(f"{20:020}")]


def test_segments_of_rising_epochs_are_kept_however_often_they_came(tmp_path):
    made = restored(str(tmp_path / "log"), False)
    header, empty = memoryview(bytes(64)), memoryview(b"")
    for first, epoch in ((0, 1), (10, 1), (0, 1), (10, 1), (20, 2), (10, 1)):
        made.lay(SegmentBegins(INCARNATION, first, header, empty), 1)
        made.lay(Chunks(INCARNATION, first, 64, first, first + 10, chunk(epoch)), 1)
    assert made.finish() == ""
    names = sorted(path.name for path in (tmp_path / "log").glob("*.segment"))
    assert names == [f"{first:020}.segment" for first in (0, 10, 20)]


def test_a_segment_that_begins_among_messages_of_a_later_epoch_is_dropped(tmp_path):
    made = restored(str(tmp_path / "log"), False)
    header, empty = memoryview(bytes(64)), memoryview(b"")
    for first, position, begin, after in ((0, 64, 0, 10), (20, 64, 20, 30), (0, 64, 0, 10), (0, 74, 10, 25)):
        made.lay(SegmentBegins(INCARNATION, first, header, empty), 1)
        made.lay(Chunks(INCARNATION, first, position, begin, after, memoryview(bytes(10))), 1)
    assert made.finish() == ""
    assert [path.name for path in (tmp_path / "log").glob("*.segment")] == [f"{0:020}.segment"]


class Sequence:
    """Of one epoch, with these write-ahead objects, which hold nothing, and seals."""

    def __init__(self, numbers: Iterable[int], seals: Iterable[int]) -> None:
        self.numbers, self.seals = set(numbers), set(seals)

    async def objects(self) -> list[WriteAheadObject]:
        return [WriteAheadObject(2, number, f"wal/2/{number}", 9) for number in sorted(self.numbers | self.seals)]

    async def read(self, found: WriteAheadObject) -> list[Any]:
        return [Seal({})] if found.number in self.seals else []


@pytest.mark.parametrize(
    ("numbers", "seals", "missing"),
    [
        (range(30), {30}, None),
        ({*range(30)} - {3}, {30}, (2, 4)),
        ({*range(30)} - {3}, {3, 30}, (2, 4)),  # what was deleted by hand is where the seal goes
        ({*range(30)} - {20, 21}, {30}, (19, 22)),
        ({*range(30)} - {22, 25}, {22, 30}, None),  # eight were on their way, and two of them not created
        (range(10, 30), {0, 30}, None),  # what is not needed any more is deleted from the front
    ],
)
def test_an_object_that_was_deleted_is_told_from_one_that_was_never_created(caplog, numbers, seals, missing):
    async def read() -> list[str]:
        harmed: list[str] = []
        async for _ in _all_sections(Sequence(numbers, seals), 8, harmed):
            pass
        return harmed

    expected = [] if missing is None else ["objects are missing between wal/2/{} and wal/2/{}".format(*missing)]
    assert asyncio.run(read()) == expected
    assert ("missing in the bucket" in caplog.text) == bool(missing)


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
