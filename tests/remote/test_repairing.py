# SPDX-License-Identifier: Apache-2.0
"""Segments that are damaged before the store has them: made whole, named, or sent as they are."""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path

import pytest
from left_behind import World, counted, flip, remote_offset, send_up, until

from vibemq.remote import tier as module
from vibemq.remote.epochs import Epochs, WriteAheadObject
from vibemq.remote.objects import Kind, chunks_head, write_ahead_key
from vibemq.remote.tier import Tier
from vibemq.remote.verifying import verify
from vibemq.storage import cold, walk
from vibemq.storage.log import SEGMENT_HEADER_BYTES
from vibemq.storage.tail import Tail

pytest.importorskip("obstore", reason="needs the extra remote")
pytestmark = pytest.mark.timeout(300)


def harm_header(world: World, monkeypatch, segment: Path) -> None:
    flip(segment, SEGMENT_HEADER_BYTES)


def harm_entries(world: World, monkeypatch, segment: Path) -> None:
    flip(segment, segment.stat().st_size // 2)


def harm_file(world: World, monkeypatch, segment: Path) -> None:
    flip(segment, 3)


def harm_us(world: World, monkeypatch, segment: Path) -> None:
    """A mistake of ours is no reason, either."""
    real = cold.describe

    def describe(directory: str, *args: int):
        if directory == str(segment.parent):
            raise RuntimeError("a mistake")
        return real(directory, *args)

    monkeypatch.setattr(cold, "describe", describe)


def all_is_sent(world: World, name: str) -> None:
    """In write-ahead objects."""
    tail = Tail(str(world.directory(name)))
    tail.set_remote_offset(tail.committed[2])
    tail.close()


@pytest.mark.parametrize("harm", [harm_header, harm_entries, harm_file, harm_us])
def test_a_stream_whose_segment_cannot_be_sent_is_named_and_holds_up_no_other(world, monkeypatch, harm):
    monkeypatch.setattr(module, "RETRY_S_MIN", 3600.0)
    first = world.not_sent("events")
    others = [(name, world.not_sent(name)) for name in ("tiered", "more")]
    segment = world.directory("events") / f"{first:020}.segment"
    world.no_write_ahead_objects()
    all_is_sent(world, "events")
    harm(world, monkeypatch, segment)

    async def send() -> None:
        tier = world.tier()
        for name in ("events", "tiered", "more"):
            tier.look_at(world.record(name))
        tier.start()
        for name, number in others:
            stub = world.directory(name) / f"{number:020}.remote"
            await until(stub.exists, f"the segment of {name} is in the store")
        await until(lambda: tier.unsent, "what is damaged was looked for")
        said = tier.status()
        assert said["streams_waiting_to_be_sent"] == 1 and tier.is_busy, "older objects stay as long"
        [(name, why)] = tier.unsent.items()
        assert name == "events" and (str(first) in why or "mistake" in why)
        await tier.close()

    asyncio.run(send())
    assert not [one for one in world.objects("events") if one.name.startswith(f"{first:020}")]
    assert (world.record("events").incarnation, first) not in world.uploaded


def test_a_damaged_chunk_that_nothing_else_has_goes_up_as_it_is_and_verify_names_it(world):
    """Or the disk would be full of what cannot go."""
    first = world.not_sent("tiered")
    harm_entries(world, None, world.directory("tiered") / f"{first:020}.segment")

    send_up(world, "tiered", first)
    findings = asyncio.run(verify(world.bucket, is_quick=False)).findings
    [line] = [finding.line() for finding in findings if finding.is_problem]
    assert f"/{first:020}-" in line and "(CRC)" in line and "'tiered'" in line


def harm_end(world: World, monkeypatch, segment: Path) -> None:
    os.truncate(segment, segment.stat().st_size - 10)


def harm_all(world: World, monkeypatch, segment: Path) -> None:
    for position in range(SEGMENT_HEADER_BYTES, segment.stat().st_size, 1000):
        flip(segment, position)


@pytest.mark.parametrize("harm", [harm_header, harm_entries, harm_file, harm_end, harm_all])
def test_a_damaged_segment_that_write_ahead_objects_have_is_made_whole_and_sent(world, monkeypatch, caplog, harm):
    first = world.not_sent("events")
    segment = world.directory("events") / f"{first:020}.segment"
    whole = segment.read_bytes()
    all_is_sent(world, "events")
    harm(world, monkeypatch, segment)
    with segment.open("rb") as reader:
        send_up(world, "events", first)
        assert reader.read() == whole, "who has the file open reads on in it"
    [there] = [one for one in world.objects("events") if one.name.startswith(f"{first:020}")]
    assert there.read_bytes().startswith(whole)
    [line] = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert line.startswith("stream 'events': damage on this disk is repaired") and str(segment) in line


def chunks_of(segment: Path) -> list[tuple[int, bytes, walk.ChunkSeen]]:
    """Position, bytes, and what it is."""
    whole, position, found = segment.read_bytes(), SEGMENT_HEADER_BYTES, []
    seed = cold.describe(str(segment.parent), int(segment.stem), 1 << 62, 1).seed
    while (seen := walk.chunk_at(whole[position:], seed)) is not None:
        found.append((position, whole[position : position + seen.size], seen))
        position += seen.size
    return found


def write_ahead(world: World, epoch: int, position: int, segment: int, seen: walk.ChunkSeen, data: bytes) -> Path:
    """One more object, with one chunk of `events`; its file."""
    head = chunks_head(world.record("events").incarnation, segment, position, seen.first, seen.next, len(data))
    key = write_ahead_key(world.remote.name, epoch, 0)
    asyncio.run(world.bucket.create(key, Kind.WRITE_AHEAD, head + data))
    return world.folder / "bucket" / key


def test_what_was_sent_again_from_a_damaged_segment_hides_nothing_that_is_whole_in_older_objects(world):
    first = world.not_sent("events")
    segment = world.directory("events") / f"{first:020}.segment"
    whole = segment.read_bytes()
    (position, data, seen), (behind, more, last) = chunks_of(segment)[2:4]
    flip(segment, position + len(data) // 2)
    both = seen._replace(next=last.next)
    write_ahead(world, 100, position, first, both, segment.read_bytes()[position : behind + len(more)])
    flip(segment, behind + len(more) // 2)
    all_is_sent(world, "events")
    send_up(world, "events", first)
    assert segment.read_bytes() == whole


@pytest.mark.parametrize("harmed_byte", [20, 1000])  # of the chunk's header, or behind that
def test_a_segment_is_left_as_it_is_where_objects_have_another_chunk_in_the_place_of_a_damaged_one(
    world, monkeypatch, harmed_byte
):
    """One that was never confirmed: an object before it was never created."""
    monkeypatch.setattr(module, "RETRY_S_MIN", 0.0)
    first = world.not_sent("events")
    segment = world.directory("events") / f"{first:020}.segment"
    chunks = chunks_of(segment)
    world.no_write_ahead_objects()
    (position, _, seen), (_, other, _) = chunks[1:3]
    write_ahead(world, 100, position, first, seen, other)
    flip(segment, position + harmed_byte)
    damaged = segment.read_bytes()
    tail = Tail(str(segment.parent))
    tail.set_remote_offset(seen.first)  # not all of the segment yet: what it lacks may be on its way
    listed = counted(monkeypatch, Epochs, "objects")
    tries = counted(monkeypatch, Tier, "_again")

    async def send() -> None:
        tier = world.tier()
        tier.look_at(world.record("events"))
        tier.start()
        await until(lambda: len(tries) >= 2, "it is tried again")
        assert "once all of the segment has been sent" in tier.unsent["events"] and not listed
        tail.set_remote_offset(tail.committed[2])
        await until(lambda: "in no write-ahead object" in tier.unsent.get("events", ""), "it was looked for")
        tries.clear()
        await until(lambda: len(tries) >= 2, "it is tried again")
        await tier.close()

    asyncio.run(send())
    tail.close()
    assert segment.read_bytes() == damaged
    assert len(listed) == 1, "a second search would find no more"


def test_a_file_whose_header_is_damaged_is_repaired_before_all_is_sent_since_nobody_can_send_more_of_it(world):
    first = world.not_sent("events")
    segment = world.directory("events") / f"{first:020}.segment"
    whole = segment.read_bytes()
    harm_file(world, None, segment)
    assert remote_offset(world, "events") <= first
    send_up(world, "events", first)
    assert segment.read_bytes() == whole


@pytest.mark.parametrize(
    ("harmed_byte", "unread_epoch", "is_repaired"),
    [(20, 101, False), (20, 99, True), (1000, 101, True)],  # 20: of the chunk's header
)
def test_where_an_object_cannot_be_read_no_older_chunk_takes_the_place_of_one_whose_header_is_damaged(
    world, monkeypatch, harmed_byte, unread_epoch, is_repaired
):
    """The older one may never have been confirmed, and another with the same offsets have come after it."""
    monkeypatch.setattr(module, "RETRY_S_MIN", 3600.0)
    first = world.not_sent("events")
    segment = world.directory("events") / f"{first:020}.segment"
    whole, (position, data, seen) = segment.read_bytes(), chunks_of(segment)[1]
    world.no_write_ahead_objects()
    write_ahead(world, 100, position, first, seen, data)
    flip(write_ahead(world, unread_epoch, position, first, seen, data), 1000)
    flip(segment, position + harmed_byte)
    damaged = segment.read_bytes()
    all_is_sent(world, "events")

    async def send() -> None:
        tier = world.tier()
        tier.look_at(world.record("events"))
        tier.start()
        await until(lambda: tier.unsent or segment.with_suffix(".remote").exists(), "it is sent, or cannot be")
        assert bool(tier.unsent) != is_repaired
        await tier.close()

    asyncio.run(send())
    assert segment.read_bytes() == (whole if is_repaired else damaged)


def test_where_an_object_was_deleted_since_it_was_listed_they_are_listed_again(world, monkeypatch):
    """What it had is in a newer one."""
    monkeypatch.setattr(module, "RETRY_S_MIN", 0.0)
    first = world.not_sent("events")
    segment = world.directory("events") / f"{first:020}.segment"
    whole, (position, data, seen) = segment.read_bytes(), chunks_of(segment)[1]
    world.no_write_ahead_objects()
    older = write_ahead(world, 100, position, first, seen, data)
    flip(segment, position + 20)
    all_is_sent(world, "events")
    real = Epochs.objects

    async def objects(self: Epochs) -> list[WriteAheadObject]:
        listed = await real(self)
        if older.exists():
            older.unlink()
            await asyncio.to_thread(write_ahead, world, 101, position, first, seen, data)
        return listed

    monkeypatch.setattr(Epochs, "objects", objects)
    send_up(world, "events", first)
    assert segment.read_bytes() == whole


def test_while_a_segment_is_repaired_other_streams_are_sent_and_no_second_one_is_repaired(world, monkeypatch):
    firsts = {name: world.not_sent(name) for name in ("events", "more", "tiered")}
    for name in ("events", "more"):
        harm_entries(world, None, world.directory(name) / f"{firsts[name]:020}.segment")
        all_is_sent(world, name)
    stubs = {name: world.directory(name) / f"{first:020}.remote" for name, first in firsts.items()}
    began: list[str] = []

    async def send() -> None:
        may_go_on = asyncio.Event()
        real = module.repair

        async def repair(epochs: Epochs, incarnation: str, *where) -> bool:
            began.append(incarnation)
            await may_go_on.wait()
            return await real(epochs, incarnation, *where)

        monkeypatch.setattr(module, "repair", repair)
        tier = world.tier()
        for name in firsts:
            tier.look_at(world.record(name))
        tier.start()
        await until(stubs["tiered"].exists, "the stream behind them is sent")
        for name in ("events", "more"):
            tier.look_at(world.record(name))
        await until(lambda: not tier._looks, "they are looked at again")
        assert len(began) == 1 and tier.status()["streams_waiting_to_be_sent"] == 2 and tier.is_busy
        may_go_on.set()
        await until(lambda: all(stub.exists() for stub in stubs.values()), "all are sent")
        await until(lambda: not tier.is_busy, "nothing waits any more")
        await tier.close()

    asyncio.run(send())
    assert sorted(began) == sorted(world.record(name).incarnation for name in ("events", "more")), "once each"


def test_bytes_behind_the_last_offset_of_a_segment_are_no_damage(world):
    first = world.not_sent("events")
    after = int(world.files("events", "segment")[-1].stem)
    segment = world.directory("events") / f"{first:020}.segment"
    whole = segment.read_bytes()
    assert not module._damage(str(segment), first, after)
    for behind in (b"\0" * 100, os.urandom(5000)):
        segment.write_bytes(whole + behind)
        assert not module._damage(str(segment), first, after)
    segment.write_bytes(whole[:-10])
    assert "ends within a chunk" in module._damage(str(segment), first, after)


@pytest.mark.parametrize("room_bytes", [1000, 1 << 20])
def test_a_chunk_whose_header_is_damaged_is_passed_on_in_whatever_room_there_is(world, room_bytes):
    segment = world.files("events", "segment")[1]
    data, first = segment.read_bytes(), int(segment.stem)
    after = int(world.files("events", "segment")[2].stem)
    tail = Tail(str(segment.parent))
    tail.begin(first)
    at = SEGMENT_HEADER_BYTES + tail.next_bytes()
    assert tail.next_bytes() > 1000, "larger than the room"
    flip(segment, at + 20)
    tail.begin(first)
    taken, room = [], bytearray(max(room_bytes, 1000))
    while tail.waiting_bytes():
        needed = tail.next_bytes()
        if needed > len(room):
            room = bytearray(needed)
        piece = tail.take(room)
        assert piece is not None, "nothing moves on any more"
        assert piece.position == SEGMENT_HEADER_BYTES + sum(map(len, taken))
        taken.append(bytes(room[: piece.size]))
        room = bytearray(room_bytes)
    now = segment.read_bytes()
    assert b"".join(taken) == now[SEGMENT_HEADER_BYTES:] and len(now) == len(data)
    assert tail.next <= after and tail.ended_by() == after
    tail.close()
