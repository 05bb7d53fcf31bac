# SPDX-License-Identifier: Apache-2.0
"""Blocks of cold segments that are here: fetched when a reader asks, and before he asks when he reads on.

Who reads on has blocks fetched ahead of him, several at a time and across segments: few where the store is quick, and
twice as many each time he had to wait. All of them together are at most `remote.cache_size_max_bytes`; the ones that
nobody has come to for longest make room.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor

import vibemq.storage.cold as cold
from vibemq.config import Remote
from vibemq.errors import RemoteError, StorageError
from vibemq.once_a_minute import OnceAMinute
from vibemq.remote.bucket import Bucket, Missing
from vibemq.remote.indexes import INDEX_HEADER_BYTES, IndexMaker, index_fault
from vibemq.remote.objects import Damaged, Kind, Place
from vibemq.remote.stubs import place_of

#: Ahead of a reader, who may be quicker than the store: in one second 16 of them are 1 Gbit/s.
AHEAD_BLOCKS_MIN, AHEAD_BLOCKS_MAX = 2, 16
#: At the same time, of all readers, and so much memory; the rest of them is for blocks that somebody waits for.
FETCHES_MAX, FETCHES_AHEAD_MAX = 32, 16
#: More only keep each other from ending, and whatever else the archiver has threads for.
WRITES_MAX = 2
#: Of cold segments descriptors are kept.
OPEN_SEGMENTS_MAX = 256
NOWHERE = -2

log = logging.getLogger("vibemq.remote")


class Cached:
    """One cold segment, and which of its blocks are here.  Raises StorageError."""

    def __init__(self, directory: str, place: Place) -> None:
        self.directory, self.place = directory, place
        self.blocks = cold.Blocks(directory, place.first)
        self.count = self.blocks.count
        self.there = [bool(mark) for mark in self.blocks.marks()]
        self.last = NOWHERE  # the block that a reader came to last; before the first: he reads the segment before

    def put(self, number: int, data: memoryview) -> None:
        self.blocks.put(number, data)
        self.there[number] = True


Block = tuple[Cached, int]


class Cache:
    """For one event loop."""

    def __init__(self, config: Remote, bucket: Bucket, streams_dir: str) -> None:
        self.bucket, self.streams_dir = bucket, streams_dir
        self.blocks_max = config.cache_size_max_bytes // cold.BLOCK_BYTES
        self._open: OrderedDict[tuple[str, int], Cached] = OrderedDict()
        self._used: OrderedDict[Block, None] = OrderedDict()  # the blocks that are here; used last, last
        self._fetching: dict[Block, asyncio.Task[None]] = {}
        self._indexes: dict[str, asyncio.Task[None]] = {}  # on their way, by their paths
        self._ahead: dict[str, int] = {}  # of each stream that is read: how many blocks
        self._slots = asyncio.Semaphore(FETCHES_MAX)
        self._writers = ThreadPoolExecutor(WRITES_MAX, thread_name_prefix="cache")
        self._says = OnceAMinute(log, logging.ERROR)

    @property
    def bytes(self) -> int:
        return len(self._used) * cold.BLOCK_BYTES

    async def fetch(self, incarnation: str, segment: int, start: int, end: int) -> None:
        """Have bytes [start, end) of a cold segment here.  Raises RemoteError, StorageError.

        An empty range: a reader has come to ``start`` and reads on.
        """
        cached = self._opened(incarnation, segment)
        at = start // cold.BLOCK_BYTES
        wanted = range(at, min(-(-end // cold.BLOCK_BYTES), cached.count)) if end > start else range(0)
        reads_on = not wanted or cached.last == at - 1
        missing = [number for number in wanted if not cached.there[number]]
        if missing and reads_on:  # what was fetched ahead was not enough
            self._ahead[incarnation] = self._ahead.get(incarnation, AHEAD_BLOCKS_MIN) * 2
        fetches = [self._fetch(cached, number) for number in missing]
        cached.last = wanted[-1] if wanted else at
        if reads_on:
            self._read_on(cached, cached.last)
        for number in range(at, cached.last + 1):
            if (cached, number) in self._used:
                self._used.move_to_end((cached, number))
        await asyncio.gather(*map(asyncio.shield, fetches))

    def _read_on(self, cached: Cached, number: int) -> None:
        """Begin to fetch what comes behind that block, unless it is here."""
        incarnation = cached.place.incarnation
        # Half of the room, shared: what is fetched for one reader must not take what another is reading.
        most = max(1, min(AHEAD_BLOCKS_MAX, self.blocks_max // 2 // max(1, len(self._ahead))))
        ahead = self._ahead[incarnation] = min(self._ahead.get(incarnation, AHEAD_BLOCKS_MIN), most)
        for _ in range(ahead):
            number += 1
            if number >= cached.count:
                following = self._following(cached)
                if following is None:
                    return
                cached, number = following, 0
            if not cached.there[number] and len(self._fetching) < FETCHES_AHEAD_MAX:
                self._fetch(cached, number)

    def _following(self, cached: Cached) -> Cached | None:
        """The cold segment behind it; None: there is none, or its file is here."""
        place = cached.place
        try:
            if os.path.exists(os.path.join(cached.directory, f"{place.next:020}.segment")):
                return None
            following = self._opened(place.incarnation, place.next)
            following.last = max(following.last, NOWHERE + 1)
            return following
        except (RemoteError, StorageError):
            return None  # whoever wants it is told

    def _opened(self, incarnation: str, segment: int) -> Cached:
        found = self._open.get((incarnation, segment))
        if found is None:
            directory = os.path.join(self.streams_dir, incarnation)
            found = self._open[incarnation, segment] = Cached(directory, _place(directory, incarnation, segment))
            self._used.update(((found, number), None) for number in range(found.count) if found.there[number])
            while len(self._open) > OPEN_SEGMENTS_MAX:
                self._evict(next(iter(self._open.values())))
        self._open.move_to_end((incarnation, segment))
        return found

    def _fetch(self, cached: Cached, number: int) -> asyncio.Task[None]:
        """Several readers may want one block at once."""
        task = self._fetching.get((cached, number))
        if task is None:
            task = asyncio.get_running_loop().create_task(self._fetch_block(cached, number))
            self._fetching[cached, number] = task
            task.add_done_callback(lambda task: self._fetched((cached, number), task))
        return task

    async def _fetch_block(self, cached: Cached, number: int) -> None:
        at = number * cold.BLOCK_BYTES
        until = min(at + cold.BLOCK_BYTES, cached.blocks.size_bytes)
        async with self._slots:
            data = await self._read_part(cached.place, at, until)
            await asyncio.get_running_loop().run_in_executor(self._writers, cached.put, number, data)

    async def _read_part(self, place: Place, at: int, until: int) -> memoryview:
        """Read a block, also of an object that was cut or has a damaged trailer: readers verify its chunks."""
        key = place.key()
        try:
            return await self.bucket.read_part(key, Kind.SEGMENT, at, until)
        except Damaged as problem:
            if self.bucket.keys is not None:
                raise  # without its trailer it cannot be decrypted
            said = "%s: its undamaged chunks are served; restore it from a version or a copy of the bucket"
            self._says.say(key, said, problem)
            return await self.bucket.read_damaged_part(key, at, until)

    def _fetched(self, block: Block, task: asyncio.Task[None]) -> None:
        cached, number = block
        self._fetching.pop(block, None)
        if task.cancelled():
            return
        if (problem := task.exception()) is not None:
            # Whoever waits for it is told as well, and that may be nobody.
            is_known = isinstance(problem, RemoteError | StorageError | OSError)
            said = "block %d of %s is not fetched: %s"
            self._says.say(cached.place.key(), said, number, cached.place.key(), problem if is_known else repr(problem))
        elif cached.there[number] and self._open.get((cached.place.incarnation, cached.place.first)) is cached:
            self._used[block] = None
            self._make_room()

    def _make_room(self) -> None:
        while len(self._used) > self.blocks_max:
            (cached, number), _ = self._used.popitem(last=False)
            cached.there[number] = False
            try:
                cached.blocks.drop(number)
            except StorageError as problem:  # of some file systems a whole file is all that gives back room
                log.debug("all blocks of a segment make room, not only one: %s", problem)
                self._evict(cached)
            else:
                if not any(cached.there) and not self._is_fetching(cached):
                    self._evict(cached)

    def _is_fetching(self, cached: Cached) -> bool:
        return any(one is cached for one, _ in self._fetching)

    def _evict(self, cached: Cached) -> None:
        """A fetch under way ends in a file that has no name any more; a reader who still wants it asks again."""
        self._let_go(cached)
        cold.evict(cached.directory, cached.place.first)

    def _let_go(self, cached: Cached) -> None:
        self._open.pop((cached.place.incarnation, cached.place.first), None)
        for number in range(cached.count):
            self._used.pop((cached, number), None)
        if not any(incarnation == cached.place.incarnation for incarnation, _ in self._open):
            self._ahead.pop(cached.place.incarnation, None)

    def forget(self, incarnation: str) -> None:
        """A stream that is gone."""
        for cached in [cached for key, cached in self._open.items() if key[0] == incarnation]:
            self._let_go(cached)

    async def clear(self) -> None:
        """What an archiver before this one has left: nobody would ever count it."""
        for incarnation, segment in await asyncio.to_thread(_left, self.streams_dir):
            if (incarnation, segment) not in self._open:
                cold.evict(os.path.join(self.streams_dir, incarnation), segment)

    async def fetch_index(self, incarnation: str, segment: int) -> None:
        """Have a segment's index in its log's directory."""
        directory = os.path.join(self.streams_dir, incarnation)
        path = os.path.join(directory, f"{segment:020}.index")
        place = _place(directory, incarnation, segment)
        if await asyncio.to_thread(_is_index, path, place):
            return
        task = self._indexes.get(path)
        if task is None:  # several readers may want one at once
            fetch = self._fetch_index(directory, place, path)
            task = self._indexes[path] = asyncio.get_running_loop().create_task(fetch)
            task.add_done_callback(lambda _: self._indexes.pop(path))
        await asyncio.shield(task)

    async def _fetch_index(self, directory: str, place: Place, path: str) -> None:
        key = place.key("index")
        try:
            body = await self.bucket.read(key, Kind.INDEX)
            fault, _ = index_fault(place, body)
        except (Damaged, Missing) as problem:
            fault = str(problem)
        if fault:
            self._says.say(key, "%s: %s; it is rebuilt from its segment, here and not in the bucket", key, fault)
            stub = cold.stub(directory, place.first)
            body = await self._index_of(place, stub.size_bytes if stub is not None else 0)
        await asyncio.to_thread(_write_whole, path, body)

    async def _index_of(self, place: Place, size: int) -> memoryview:
        """Build an index of the segment's chunks up to the first damaged one: readers find the others without it."""
        maker = IndexMaker(place)
        for at in range(0, size, cold.BLOCK_BYTES):
            if not maker.take(at, await self._read_part(place, at, min(size, at + cold.BLOCK_BYTES))):
                break
        return memoryview(maker.body)

    async def close(self) -> None:
        tasks = [*self._fetching.values(), *self._indexes.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._writers.shutdown()


def _place(directory: str, incarnation: str, segment: int) -> Place:
    """Where the store has it.  Raises RemoteError, StorageError."""
    stub = cold.stub(directory, segment)
    if stub is None:
        raise RemoteError(f"segment {segment} of {incarnation} is not in the object store")
    return place_of(incarnation, stub)


def _is_index(path: str, place: Place) -> bool:
    """True if this segment has a local index with an undamaged header."""
    try:
        with open(path, "rb") as file:
            return not index_fault(place, memoryview(file.read(INDEX_HEADER_BYTES)))[0]
    except FileNotFoundError:
        return False


def _left(streams_dir: str) -> list[tuple[str, int]]:
    found = []
    for incarnation in os.listdir(streams_dir):
        try:
            names = os.listdir(os.path.join(streams_dir, incarnation))
        except (FileNotFoundError, NotADirectoryError):  # deleted just now, or none of ours
            continue
        found += [(incarnation, int(name[:20])) for name in names if name[:20].isdigit() and name[20:] == ".cold"]
    return found


def _write_whole(path: str, body: memoryview) -> None:
    half_made = f"{path}.tmp"
    with open(half_made, "wb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(body)
    os.rename(half_made, path)
