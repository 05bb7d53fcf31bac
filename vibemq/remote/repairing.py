# SPDX-License-Identifier: Apache-2.0
"""A closed segment that is damaged on this disk is made whole from the write-ahead objects that still have its chunks.

First it is found out where what is damaged lies whole; only when that is all of it, anything is written. A chunk that
is whole here stays: an object behind one that was never created may have others for its place. Where several objects
have a chunk, the newest that has it whole counts, since one that a later archiver sent again was read from this disk.
Where the chunk's header here is damaged, too, nothing here tells what was confirmed: then no object of a later epoch
may be damaged, since that might have another chunk for the place.
"""

import asyncio
import logging
import os
import weakref
from collections.abc import Iterable
from typing import NamedTuple

from vibemq.errors import StorageError
from vibemq.remote.epochs import Epochs, WriteAheadObject
from vibemq.remote.objects import Buffer, Chunks, Damaged, Kind, Seal, Sections, SegmentBegins
from vibemq.remote.restoring import READS_AT_A_TIME
from vibemq.storage.log import SEGMENT_HEADER_BYTES
from vibemq.storage.walk import CHUNK_HEADER_BYTES, ChunkSeen, Walk, chunk_at

log = logging.getLogger("vibemq.remote")


class Held(NamedTuple):
    """Where a chunk lies whole."""

    key: str
    epoch: int
    at: int  # in the object's body
    header: bytes
    seen: ChunkSeen


async def repair(epochs: Epochs, incarnation: str, path: str, first: int, after: int) -> bool:
    """Is it whole now, up to the offset ``after``?  False: not all that is damaged lies whole in some object.

    Raises RemoteError, also where an object was deleted since it was listed: newer ones may have what it had; OSError.
    """
    damaged = Segment(incarnation, path, first)
    objects = await epochs.objects()
    for at in range(0, len(objects), READS_AT_A_TIME):
        some = objects[at : at + READS_AT_A_TIME]
        contents = await asyncio.gather(*(_read(epochs, one) for one in some))
        for one, found in zip(some, contents, strict=True):
            await asyncio.to_thread(damaged.look_for, one, found)
    wanted = await asyncio.to_thread(damaged.wanted, after)
    if wanted is None:
        return False
    of_each: dict[str, dict[int, Held]] = {}
    for position, held in wanted.items():
        of_each.setdefault(held.key, {})[position] = held
    for key, pieces in of_each.items():
        body = await epochs.bucket.read(key, Kind.WRITE_AHEAD)
        await asyncio.to_thread(damaged.lay, body, pieces)
    await asyncio.to_thread(damaged.end)
    return True


async def _read(epochs: Epochs, one: WriteAheadObject) -> Iterable[Sections] | None:
    """None: it is damaged."""
    try:
        return await epochs.read(one)
    except Damaged as problem:
        log.error("a write-ahead object cannot be restored: %s", problem)
        return None


class Segment:
    """A segment's file that is damaged, and where its damaged chunks lie whole."""

    def __init__(self, incarnation: str, path: str, first: int) -> None:
        self.incarnation, self.path, self.first = incarnation, path, first
        self._file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self._file)  # whoever is cancelled leaves a thread behind that still uses it
        self._seed = self._seed_of(os.pread(self._file, SEGMENT_HEADER_BYTES, 0))
        self._header = b""  # for the file, whose own is damaged
        self._is_headless = self._seed is None
        self._held: dict[int, Held] = {}  # by the place in the file
        self._unread_epoch = 0  # the last one with an object that could not be read

    def _seed_of(self, header: Buffer) -> int | None:
        walk = Walk(self.first, self.path)
        try:
            walk.take(header)
        except StorageError:
            return None
        return walk.seed if len(header) == SEGMENT_HEADER_BYTES else None

    def look_for(self, one: WriteAheadObject, found: Iterable[Sections] | None) -> None:
        """In an object; those of earlier ones come first.  None: it cannot be read."""
        if found is None:
            self._unread_epoch = one.epoch
            return
        for section in found:
            if isinstance(section, Seal) or section.incarnation != self.incarnation:
                continue
            if isinstance(section, SegmentBegins) and section.first == self.first and self._is_headless:
                header, self._header = self._header, bytes(section.header)
                if header != self._header:
                    self._seed = self._seed_of(self._header)
                    self._held.clear()
            elif isinstance(section, Chunks) and section.segment == self.first:
                self._look_at(one, section)

    def _look_at(self, one: WriteAheadObject, section: Chunks) -> None:
        here = memoryview(os.pread(self._file, len(section.data), section.position))
        if self._seed is None or here.obj == bytes(section.data):
            return
        at = 0
        while (seen := chunk_at(section.data[at:], self._seed)) is not None:
            known = chunk_at(here[at:], self._seed)
            if seen.is_whole and not (known is not None and known.is_whole):
                header = bytes(section.data[at:][:CHUNK_HEADER_BYTES])
                self._held[section.position + at] = Held(one.key, one.epoch, section.at + at, header, seen)
            at += seen.size

    def wanted(self, after: int) -> dict[int, Held] | None:
        """What takes the place of damaged chunks before that offset; None where that does not make it whole."""
        chosen: dict[int, Held] = {}
        position, expected, is_header_right = SEGMENT_HEADER_BYTES, self.first, not self._is_headless
        while expected < after:
            if self._seed is None:
                return None
            header = os.pread(self._file, CHUNK_HEADER_BYTES, position)
            seen = chunk_at(header, self._seed)
            if seen is not None:
                seen = chunk_at(os.pread(self._file, seen.size, position), self._seed) or seen
            if seen is not None and seen.is_whole:
                is_header_right = True
            else:
                held = self._held.get(position)
                if held is None:
                    return None
                if seen is not None:
                    is_confirmed = held.header == header
                else:
                    is_confirmed = held.seen.first == expected and held.epoch >= self._unread_epoch
                if not is_confirmed:
                    return None
                chosen[position], seen = held, held.seen
            position, expected = position + seen.size, seen.next
        return chosen if is_header_right else None  # an object's may be of another life of this segment

    def lay(self, body: memoryview, pieces: dict[int, Held]) -> None:
        """Chunks of an object into their places, while others may be reading there.

        They were damaged until now, and what comes is what was confirmed: a reader in the middle of it finds a check
        that is wrong, as before, or right. The file stays the same, so nobody who has it open or mapped has to know.
        """
        for position, held in pieces.items():
            os.pwrite(self._file, body[held.at :][: held.seen.size], position)

    def end(self) -> None:
        """On disk before a stub says that this file may go."""
        if self._is_headless:
            os.pwrite(self._file, self._header, 0)
        os.fsync(self._file)
