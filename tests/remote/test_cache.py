# SPDX-License-Identifier: Apache-2.0
"""Blocks of cold segments: who reads on finds them here, and all of them together are as many as they may be."""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path
from typing import Any

import pytest

from vibemq.config import Remote
from vibemq.errors import RemoteError, StorageError
from vibemq.remote import cache as cache_module
from vibemq.remote.cache import FETCHES_AHEAD_MAX, FETCHES_MAX, Cache
from vibemq.storage import cold

BLOCK = cold.BLOCK_BYTES
ONE, TWO = "00000000000000a1", "00000000000000b2"


class Blobs:
    """A bucket whose segments are zeros, and whose answers can be held back."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int]] = []  # segment's first offset and block, in order
        self.at_once = self.most_at_once = 0
        self.go = asyncio.Event()
        self.go.set()
        self.broken: set[int] = set()

    async def read_part(self, key: str, kind: object, start: int, end: int) -> memoryview:
        number = start // BLOCK
        self.asked.append((key.split("/")[1], number))
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await self.go.wait()
        finally:
            self.at_once -= 1
        if number in self.broken:
            raise RemoteError(f"object {key} in the bucket is damaged")
        return memoryview(bytes(end - start))


@pytest.fixture
def streams(tmp_path: Path) -> Path:
    """Two streams of two cold segments, of 40 blocks and 3; a block has 10 messages."""
    for name in (ONE, TWO):
        folder = tmp_path / name
        folder.mkdir()
        cold.write_stub(str(folder), cold.Stub(0, 400, 40 * BLOCK, 1, 2, 7, 1))
        cold.write_stub(str(folder), cold.Stub(400, 430, 2 * BLOCK + 5000, 2, 3, 8, 1))
    return tmp_path


def with_cache(streams: Path, work: Any, blocks: int = 128) -> Any:
    async def main() -> Any:
        bucket = Blobs()
        cache = Cache(Remote(cache_size_max_bytes=blocks * BLOCK), bucket, str(streams))  # type: ignore[arg-type]
        try:
            return await work(cache, bucket)
        finally:
            bucket.go.set()
            await cache.close()

    return asyncio.run(main())


async def settled(cache: Cache) -> None:
    while cache._fetching:
        await asyncio.wait(list(cache._fetching.values()))


async def read(cache: Cache, block: int, segment: int = 0, log: str = ONE) -> None:
    """What a reader asks who misses a block, and what he says when he is in it."""
    await cache.fetch(log, segment, block * BLOCK, block * BLOCK + 1)
    await cache.fetch(log, segment, block * BLOCK, block * BLOCK)


def here(streams: Path, segment: int = 0, log: str = ONE) -> list[int]:
    """The blocks that are marked."""
    path = streams / log / f"{segment:020}.cold"
    if not path.exists():
        return []
    with open(path, "rb", buffering=0) as file:
        return [number for number, mark in enumerate(file.read(576)[64:]) if mark]


def test_a_block_that_is_asked_for_comes_alone_and_those_behind_it_when_its_reader_reads_on(streams):
    async def work(cache: Cache, bucket: Blobs) -> None:
        await cache.fetch(ONE, 0, 20 * BLOCK + 5, 20 * BLOCK + 6)
        await settled(cache)
        assert here(streams) == [20]
        await cache.fetch(ONE, 0, 20 * BLOCK + 9, 20 * BLOCK + 9)
        await settled(cache)
        assert here(streams) == [20, 21, 22]
        assert [block for _, block in bucket.asked] == [20, 21, 22]

    with_cache(streams, work)


def test_nobody_waits_for_what_is_fetched_ahead(streams):
    async def work(cache: Cache, bucket: Blobs) -> None:
        await cache.fetch(ONE, 0, 0, 1)
        bucket.go.clear()
        await asyncio.wait_for(cache.fetch(ONE, 0, 0, 0), 60)
        assert here(streams) == [0]

    with_cache(streams, work)


def test_reading_ahead_goes_on_in_the_next_segment_unless_that_is_here(streams):
    async def work(cache: Cache, bucket: Blobs) -> None:
        for log in (ONE, TWO):
            await read(cache, 39, log=log)
        await settled(cache)
        assert here(streams, 400) == [0, 1]
        assert here(streams, 400, TWO) == []

    (streams / TWO / f"{400:020}.segment").touch()
    with_cache(streams, work)


def test_who_had_to_wait_has_twice_as_many_fetched_ahead_up_to_a_limit(streams):
    async def work(cache: Cache, bucket: Blobs) -> list[int]:
        ahead = []
        await read(cache, 0)
        for _ in range(3):
            await settled(cache)
            at = max(here(streams))
            bucket.go.clear()
            await cache.fetch(ONE, 0, at * BLOCK, at * BLOCK)
            wanted = asyncio.create_task(cache.fetch(ONE, 0, (at + 1) * BLOCK, (at + 1) * BLOCK + 1))
            await asyncio.sleep(0)
            bucket.go.set()
            await wanted
            await settled(cache)
            ahead.append(max(here(streams)) - at - 1)
        return ahead

    assert with_cache(streams, work) == [4, 8, FETCHES_AHEAD_MAX - 1]  # and the one that he waits for
    (streams / ONE / f"{0:020}.cold").unlink()
    assert with_cache(streams, work, blocks=8) == [4, 4, 4]  # half of the room


def test_the_cache_is_bounded_and_what_was_used_last_stays(streams):
    async def work(cache: Cache, bucket: Blobs) -> None:
        for block in range(12):
            await read(cache, block)
            await settled(cache)
            assert cache.bytes <= 8 * BLOCK
            assert len(here(streams)) <= 8 and block in here(streams)
        blocks_on_disk = os.stat(streams / ONE / f"{0:020}.cold").st_blocks * 512
        assert blocks_on_disk <= 8 * BLOCK + (1 << 20), "what was dropped gave back its room"

    with_cache(streams, work, blocks=8)


def test_a_file_system_that_gives_back_no_room_within_a_file_loses_the_whole_file(streams, monkeypatch):
    class Blocks(cold.Blocks):
        def drop(self, block: int) -> None:
            raise StorageError("ERR_IO", "not supported here")

    monkeypatch.setattr(cache_module.cold, "Blocks", Blocks)

    async def work(cache: Cache, bucket: Blobs) -> None:
        for block in range(12):
            await cache.fetch(ONE, 0, block * BLOCK, block * BLOCK + 1)
            await settled(cache)
            assert cache.bytes <= 8 * BLOCK and len(here(streams)) * BLOCK == cache.bytes

    with_cache(streams, work, blocks=8)


def test_so_many_are_fetched_at_once_and_whoever_waits_comes_before_who_reads_on(streams):
    async def work(cache: Cache, bucket: Blobs) -> None:
        bucket.go.clear()
        waiting = [asyncio.create_task(cache.fetch(log, 0, block * BLOCK, block * BLOCK + 1))
                   for log in (ONE, TWO) for block in range(0, 40, 2)]  # fmt: skip
        while bucket.at_once < FETCHES_MAX:
            await asyncio.sleep(0)
        before = len(cache._fetching)
        await cache.fetch(ONE, 0, 0, 0)
        assert len(cache._fetching) == before == 40, "nothing is fetched ahead while so many wait"
        bucket.go.set()
        await asyncio.gather(*waiting)
        assert bucket.most_at_once == FETCHES_MAX

    with_cache(streams, work)


def test_readers_of_one_block_share_one_request(streams):
    async def work(cache: Cache, bucket: Blobs) -> None:
        await asyncio.gather(*(cache.fetch(ONE, 0, 5, 6) for _ in range(20)))
        assert [block for _, block in bucket.asked] == [0]

    with_cache(streams, work)


def test_what_cannot_be_fetched_ahead_is_named_and_costs_only_who_wants_it(streams, caplog):
    async def work(cache: Cache, bucket: Blobs) -> None:
        bucket.broken = {1}
        with caplog.at_level(logging.ERROR):
            await read(cache, 0)
            await settled(cache)
        assert here(streams) == [0, 2]
        assert "block 1 of streams/" in caplog.text and "is damaged" in caplog.text
        with pytest.raises(RemoteError, match="is damaged"):
            await cache.fetch(ONE, 0, BLOCK, BLOCK + 1)
        await read(cache, 2)

    with_cache(streams, work)


def test_a_stream_that_is_gone_and_what_an_earlier_archiver_left_count_no_more(streams):
    async def before(cache: Cache, bucket: Blobs) -> None:
        await read(cache, 0)
        await read(cache, 0, log=TWO)
        await settled(cache)
        cache.forget(ONE)
        assert cache.bytes == 3 * BLOCK

    async def after(cache: Cache, bucket: Blobs) -> None:
        await cache.fetch(TWO, 400, 0, 1)
        await cache.fetch(TWO, 0, 0, 1)
        assert cache.bytes == 4 * BLOCK, "what is found is used, and counts"
        await cache.clear()
        assert here(streams) == [] and here(streams, 0, TWO) == [0, 1, 2]

    with_cache(streams, before)
    with_cache(streams, after)


def test_a_segment_that_the_store_does_not_have_is_said_to_be_none(streams):
    async def work(cache: Cache, bucket: Blobs) -> None:
        with pytest.raises(RemoteError, match=r"segment 7 of .* is not in the object store"):
            await cache.fetch(ONE, 7, 0, 1)

    with_cache(streams, work)


def test_an_index_that_several_want_is_fetched_once_and_is_never_half_there(streams: Path) -> None:
    async def work(cache: Cache, bucket: Blobs) -> int:
        asked = 0

        async def read(key: str, kind: object) -> memoryview:
            nonlocal asked
            asked += 1
            await asyncio.sleep(0)
            return memoryview(b"index")

        bucket.read = read  # type: ignore[attr-defined]
        await asyncio.gather(*(cache.fetch_index(ONE, 0) for _ in range(8)))
        await cache.fetch_index(ONE, 0)
        assert not cache._indexes
        return asked

    assert with_cache(streams, work) == 1
    assert sorted(path.name for path in (streams / ONE).glob("*.index*")) == [f"{0:020}.index"]
