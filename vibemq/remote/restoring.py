# SPDX-License-Identifier: Apache-2.0
"""Bringing logs back from the bucket: on an empty machine all of them, after a power cut what this disk has lost.

Segments that the store has get a stub and are read from there. What is not in a segment of the store yet is laid from
the write-ahead objects into the segment's file, at the very places where it was: the bytes are those that were
written, so laying some that are there already changes nothing. What comes of it is an ordinary log of another boot,
which recovery makes whole.
"""

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import AsyncIterator, Iterable
from itertools import pairwise

import vibemq.storage.cold as cold
from vibemq.errors import RemoteError, StorageError
from vibemq.remote.bucket import Bucket, Missing
from vibemq.remote.epochs import Epochs, WriteAheadObject
from vibemq.remote.objects import Chunks, Damaged, Kind, LedgerState, Offsets, Place, Seal, Sections, SegmentBegins
from vibemq.remote.tier import places_of_all, stub_of
from vibemq.storage import ledger
from vibemq.storage.log import SEGMENT_HEADER_BYTES, Log
from vibemq.storage.metadata import Metadata
from vibemq.storage.offsets import StoredOffsets
from vibemq.storage.records import StreamRecord

#: Objects that are read at a time, and tables behind segments.
READS_AT_A_TIME = 16
#: So long a start waits for an object; then it fails, and the next one begins again.
ANSWER_TIMEOUT_S = 60.0
RETRY_S = 1.0

log = logging.getLogger("vibemq.remote")


async def restore_logs(bucket: Bucket, epochs: Epochs, metadata: Metadata, is_whole: bool) -> None:
    """Before recovery.  What cannot be read is named in the log, and the rest is restored.

    ``is_whole``: the data directory as a whole, so that what is there was only begun.
    """
    began_s = time.monotonic()
    wanted = {
        record.incarnation: Restored(record, is_whole) for record in metadata.logs() if is_whole or _is_wanted(record)
    }
    if not wanted:
        return
    places = await places_of_all(bucket)
    tables = asyncio.Semaphore(READS_AT_A_TIME)
    await asyncio.gather(
        *(one.take_places(bucket, places.get(incarnation, {}), tables) for incarnation, one in wanted.items())
    )
    async for found in _all_sections(epochs):
        if (one := wanted.get(found.incarnation)) is not None:
            one.lay(found)
    for one in wanted.values():
        one.finish()
    log.warning(
        "restored %d streams from the object store in %.1f s: %d segments there, %d bytes of chunks brought back",
        len(wanted),
        time.monotonic() - began_s,
        sum(len(one.places) for one in wanted.values()),
        sum(one.laid_bytes for one in wanted.values()),
    )


def _is_wanted(record: StreamRecord) -> bool:
    """Is it missing here, or may it have lost what was confirmed?"""
    if not os.path.isdir(record.directory):
        return True
    if record.durability != "remote":
        return False
    try:
        Log(record.directory).close()
    except StorageError as problem:
        # Of another boot, or whatever became of its page; a newer version's files are nobody's to touch.
        return problem.code not in ("ERR_VERSION", "ERR_DELETED")
    return False


async def _all_sections(epochs: Epochs) -> AsyncIterator[SegmentBegins | Chunks | Offsets | LedgerState]:
    """Of every write-ahead object that is left, in their order; some are read ahead."""
    objects = await epochs.objects()
    before, is_ended = None, False
    for at in range(0, len(objects), READS_AT_A_TIME):
        some = objects[at : at + READS_AT_A_TIME]
        for one, found in zip(some, await asyncio.gather(*(_read(epochs, one) for one in some)), strict=True):
            if before is not None and before.epoch == one.epoch and one.number != before.number + 1 and not is_ended:
                log.error("objects are missing in the bucket between %s and %s", before.key, one.key)
            before, is_ended = one, any(isinstance(section, Seal) for section in found)
            for section in found:
                if isinstance(section, SegmentBegins | Chunks | Offsets | LedgerState):
                    yield section


async def _read(epochs: Epochs, one: WriteAheadObject) -> list[Sections]:
    """What is damaged or gone is named; a store that does not answer is asked again.  RemoteError: for too long."""
    deadline_s = time.monotonic() + ANSWER_TIMEOUT_S
    while True:
        try:
            return await epochs.read(one)
        except (Damaged, Missing) as problem:
            log.error("a write-ahead object cannot be restored: %s", problem)
            return []
        except RemoteError as problem:
            if time.monotonic() >= deadline_s:
                raise
            log.warning("while restoring, the object store is asked again: %s", problem)
            await asyncio.sleep(RETRY_S)


class Restored:
    """One stream, as it is put together."""

    def __init__(self, record: StreamRecord, is_whole: bool) -> None:
        self.record, self.directory = record, record.directory
        self.is_missing = is_whole or not os.path.isdir(record.directory)
        self.places: list[Place] = []
        self.laid_bytes = 0
        self._in_store = 0  # offsets below it lie in segments of the store
        self._files: dict[int, int] = {}  # first offset of a segment -> descriptor
        self._offsets: dict[bytes, int] = {}
        self._ledger: LedgerState | None = None

    async def take_places(self, bucket: Bucket, places: dict[Place, int], tables: asyncio.Semaphore) -> None:
        """Write stubs for the segments of the store, and the table of publishing ids behind the last one."""
        self.places = history(places)
        if self.is_missing and (self.places or self.record.durability == "remote"):
            os.makedirs(self.directory, mode=0o750, exist_ok=True)
        if not self.places:
            return
        for before, after in pairwise(self.places):
            if before.next < after.first:
                said = "stream %r: segments with offsets %d to %d are missing in the bucket between %s and %s"
                name = self.record.name
                log.error(said, name, before.next, after.first - 1, before.key(), after.key())
        known = {stub.first for stub in cold.stubs(self.directory)}
        for place in self.places:
            if place.first not in known:
                async with tables:
                    size = await bucket.plain_size(place.key(), Kind.SEGMENT, places[place])
                cold.write_stub(self.directory, stub_of(place, size))
        last = self.places[-1]
        self._in_store = last.next
        if self.is_missing:
            async with tables:
                table = await bucket.read(last.key("tracking"), Kind.TRACKING)
            if len(table):
                self._write(f"{last.next:020}.tracking", table)

    def lay(self, found: SegmentBegins | Chunks | Offsets | LedgerState) -> None:
        if isinstance(found, Offsets):
            self._offsets = found.stored
        elif isinstance(found, LedgerState):
            self._ledger = found
        elif self.record.durability != "remote":
            return
        elif isinstance(found, SegmentBegins):
            if found.first >= self._in_store:
                self._begin(found)
        elif found.segment >= self._in_store and (file := self._files.get(found.segment)) is not None:
            os.pwrite(file, found.data, found.position)
            self.laid_bytes += len(found.data)

    def _begin(self, found: SegmentBegins) -> None:
        if found.first in self._files:
            return
        path = os.path.join(self.directory, f"{found.first:020}.segment")
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        header = os.pread(file, SEGMENT_HEADER_BYTES, 0)
        if header != bytes(found.header):
            if len(header) == SEGMENT_HEADER_BYTES:  # another segment of this name: what it holds was never confirmed
                os.close(file)
                aside = f"{path}.{time.time_ns()}.quarantine"
                os.rename(path, aside)
                said = "stream %r: %s is not the segment that was confirmed; kept as %s"
                log.error(said, self.record.name, path, aside)
                file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
            os.pwrite(file, found.header, 0)
        self._files[found.first] = file
        table = f"{found.first:020}.tracking"
        if len(found.tracking) and not os.path.exists(os.path.join(self.directory, table)):
            self._write(table, found.tracking)

    def _write(self, name: str, body: memoryview) -> None:
        path = os.path.join(self.directory, name)
        with open(f"{path}.tmp", "wb", opener=lambda name, flags: os.open(name, flags, 0o640)) as file:
            file.write(body)
        os.rename(f"{path}.tmp", path)

    def finish(self) -> None:
        for file in self._files.values():
            os.close(file)
        if not os.path.isdir(self.directory):
            return  # recovery makes an empty log, and says so
        for name in ("offsets", "ledger") if self.is_missing else ():
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(self.directory, name))  # half made
        if self._offsets and not os.path.exists(os.path.join(self.directory, "offsets")):
            held = StoredOffsets(self.directory)
            for reference, offset in self._offsets.items():
                held.store(reference, offset)
            held.close()
        if self.record.queue is not None and not os.path.exists(os.path.join(self.directory, "ledger")):
            known = self._ledger or LedgerState(self.record.incarnation, 0, ())
            ledger.restore(self.directory, known.base, list(known.ranges))


def history(places: Iterable[Place]) -> list[Place]:
    """Rising, without a segment that another one covers."""
    kept: list[Place] = []
    for place in sorted(places, key=lambda place: (place.first, place.next, place.epoch)):
        if kept and place.first == kept[-1].first:
            kept[-1] = place
        elif not kept or place.first >= kept[-1].next:
            kept.append(place)
    return kept
