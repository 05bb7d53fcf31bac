# SPDX-License-Identifier: Apache-2.0
"""Closed segments on their way to the store, away from it and back, over what a real broker has left."""

from __future__ import annotations

import asyncio
import os
import zlib

import pytest
from left_behind import END_S_MAX, World, send_up, until

from vibemq.errors import StorageError
from vibemq.remote import tier as module
from vibemq.remote.bucket import Away, Bucket
from vibemq.remote.objects import Kind, Place
from vibemq.remote.stubs import stub_of
from vibemq.storage import cold

pytest.importorskip("obstore", reason="needs the extra remote")
pytestmark = pytest.mark.timeout(300)

# ---- up ----


def test_nothing_goes_up_before_stubs_were_compared_with_the_bucket(world, monkeypatch):
    world.not_sent("tiered")

    async def compare() -> None:
        tier, may_list, written = world.tier(), asyncio.Event(), asyncio.Event()
        real = world.bucket.listed

        async def listed(prefix: str, after: str = ""):
            found = await real(prefix, after)
            await may_list.wait()
            return found

        async def write(key: str, kind: Kind, pieces: object) -> None:
            written.set()

        async def inline(work, *args):
            return work(*args)

        monkeypatch.setattr(world.bucket, "listed", listed)
        monkeypatch.setattr(world.bucket, "write", write)
        monkeypatch.setattr(asyncio, "to_thread", inline)  # so that nothing is under way but what waits for the store
        tier.look_at(world.record("tiered"))
        tier.start()
        for _ in range(1000):
            await asyncio.sleep(0)
        assert not written.is_set(), "its object would not be in the listing"
        may_list.set()
        await asyncio.wait_for(written.wait(), END_S_MAX)
        await tier.close()

    asyncio.run(compare())


@pytest.mark.parametrize("problem", [OSError("of this disk"), StorageError("ERR_IO", "of this disk")])
def test_a_log_that_cannot_be_compared_with_the_bucket_holds_up_no_other(world, monkeypatch, problem):
    number, bad, real = world.not_sent("more"), str(world.directory("events")), module.mend

    async def mend(bucket: Bucket, directory: str, places: dict[Place, int]) -> None:
        if directory == bad:
            raise problem
        await real(bucket, directory, places)

    monkeypatch.setattr(module, "mend", mend)

    send_up(world, "more", number)


# ---- away ----


@pytest.mark.parametrize("times", [2, module.FORGET_TRIES])
def test_the_objects_of_a_deleted_stream_are_tried_to_be_deleted_so_often(world, monkeypatch, at_once, caplog, times):
    incarnation, left_to_fail = world.record("tiered").incarnation, times
    real = world.bucket.delete

    async def delete(keys: list[str]) -> None:
        nonlocal left_to_fail
        left_to_fail -= 1
        if left_to_fail >= 0:
            raise Away("not now")
        await real(keys)

    monkeypatch.setattr(world.bucket, "delete", delete)

    async def forget() -> None:
        tier = world.tier()
        tier.forget([incarnation])
        await until(lambda: not tier._tasks, "it is done or given up")

    there = len(world.objects("tiered"))
    asyncio.run(forget())
    is_given_up = times == module.FORGET_TRIES
    assert len(world.objects("tiered")) == (there if is_given_up else 0)
    assert ("`vibemq remote prune` deletes it" in caplog.text) == is_given_up


# ---- back ----

BLOCKS = 6
ROOM = 3


@pytest.fixture
def large(world):
    """A segment of several blocks that is only in the store; its first offset and its bytes."""
    first, size = 10_000, BLOCKS * cold.BLOCK_BYTES - 1000
    body = os.urandom(1 << 20) * (size // (1 << 20) + 1)
    place = Place(world.record("tiered").incarnation, first, first + 1, 1, 7, 1, 2)
    asyncio.run(world.bucket.write(place.key(), Kind.SEGMENT, [body[:size]]))
    cold.write_stub(str(world.directory("tiered")), stub_of(place, size))
    return first, body[:size]


def held_bytes(world: World) -> int:
    return sum(path.stat().st_blocks * 512 for path in world.directory("tiered").glob("*.cold"))


def test_what_is_fetched_of_one_segment_stays_within_the_cache_and_can_be_read(world, large):
    first, body = large
    most = ROOM * cold.BLOCK_BYTES
    incarnation = world.record("tiered").incarnation

    async def read_on() -> None:
        tier = world.tier(cache_size_max_bytes=most)
        path = world.directory("tiered") / f"{first:020}.cold"
        for number in range(BLOCKS):
            start = number * cold.BLOCK_BYTES
            await tier.cache.fetch(incarnation, first, start, min(start + 4096, len(body)))
            assert cold.Blocks(str(path.parent), first).marks()[number], "what was asked for is there"
            with path.open("rb") as file:
                assert zlib.crc32(os.pread(file.fileno(), 4096, 4096 + start)) == zlib.crc32(body[start:][:4096])
            await until(lambda: not tier.cache._fetching, "what is read ahead")
            assert tier.cache.bytes <= most and held_bytes(world) <= most + (64 << 10)
        await tier.cache.fetch(
            incarnation, first, 0, 2 * most
        )  # one question may be larger: who reads asks for the rest
        assert tier.cache.bytes == most and held_bytes(world) <= most + (64 << 10)

    asyncio.run(read_on())


def test_blocks_that_an_earlier_archiver_has_fetched_do_not_stay_uncounted(world, large):
    first, _ = large
    incarnation = world.record("tiered").incarnation

    async def two() -> None:
        await world.tier().cache.fetch(incarnation, first, 0, 1)
        assert held_bytes(world) >= cold.BLOCK_BYTES
        second = world.tier()
        await second.cache.clear()
        assert held_bytes(world) == 0
        await second.cache.fetch(incarnation, first, 0, 1)
        await second.cache.clear()  # not what it has itself
        assert held_bytes(world) >= cold.BLOCK_BYTES

    asyncio.run(two())
