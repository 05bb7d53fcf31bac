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
import struct
import time
from collections.abc import AsyncIterator
from itertools import pairwise

import vibemq.storage.cold as cold
from vibemq.errors import RemoteError, StorageError
from vibemq.remote.bucket import Bucket, Missing
from vibemq.remote.epochs import Epochs, WriteAheadObject
from vibemq.remote.objects import (
    FAN_OUTS,
    Chunks,
    Damaged,
    Kind,
    LedgerState,
    Members,
    Offsets,
    Place,
    Seal,
    Sections,
    SegmentBegins,
)
from vibemq.remote.stubs import damaged, history, late, mend, places_of_all, segment_bytes, stub_of
from vibemq.storage import ledger, members
from vibemq.storage.log import SEGMENT_HEADER_BYTES, Log, confirm_stored
from vibemq.storage.metadata import Metadata
from vibemq.storage.offsets import StoredOffsets
from vibemq.storage.records import StreamRecord

#: Objects that are read at a time, and tables behind segments.
READS_AT_A_TIME = 16
#: So long a start waits for an object; then it fails, and the next one begins again.
ANSWER_TIMEOUT_S = 60.0
RETRY_S = 1.0
#: Epoch, sizes of entries, trailer and filter (csrc/log/FORMAT.md).
CHUNK_HEADER = struct.Struct(">20xI12xIIB3x")
#: A file in the data directory that names what was not whole. As long as it is there no older object is deleted, so
#: that whoever puts those back finds the rest.
HARMED = "harmed-objects"
ADVICE = (
    "to have them back, stop this broker before anybody publishes, put the objects that are missing or damaged back "
    "from a copy or a version of the bucket, and start with an empty data directory again"
)

log = logging.getLogger("vibemq.remote")


async def restore_logs(bucket: Bucket, epochs: Epochs, metadata: Metadata, is_whole: bool, puts_max: int) -> list[str]:
    """Before recovery.  What cannot be read is named in the log, and the rest is restored.  Returns what that has cost.

    ``is_whole``: the data directory as a whole, so that what is there was only begun.
    """
    began_s = time.monotonic()
    wanted = {
        record.incarnation: Restored(record, is_whole) for record in metadata.logs() if is_whole or _is_wanted(record)
    }
    torn = [record for record in metadata.logs() if record.incarnation not in wanted and _has_damaged_stubs(record)]
    if not wanted and not torn:
        return []
    harmed: list[str] = []
    places = await places_of_all(bucket)
    for record in torn:
        try:
            await mend(bucket, record.directory, places.get(record.incarnation, {}))
        except (StorageError, OSError) as problem:  # recovery puts it aside, and the objects stay
            log.error("stream %r: a damaged stub is not made again: %s", record.name, problem)
    if not wanted:
        return []
    tables = asyncio.Semaphore(READS_AT_A_TIME)
    await asyncio.gather(
        *(one.take_places(bucket, places.get(incarnation, {}), tables) for incarnation, one in wanted.items())
    )
    async for epoch, found in _all_sections(epochs, puts_max, harmed):
        if (one := wanted.get(found.incarnation)) is not None:
            one.lay(found, epoch)
    for incarnation, one in wanted.items():
        if one.superseded:
            await one.take_places(bucket, places[incarnation], tables)
    holes = [hole for one in wanted.values() if (hole := one.finish())]
    log.warning(
        "restored %d streams from the object store in %.1f s: %d segments there, %d bytes of chunks brought back",
        len(wanted),
        time.monotonic() - began_s,
        sum(len(one.places) for one in wanted.values()),
        sum(one.laid_bytes for one in wanted.values()),
    )
    for hole in holes:
        if harmed:
            log.error("%s; %s", hole, ADVICE)
        else:
            log.warning("%s, and were not confirmed: an object before them was never created", hole)
    return [*holes, *harmed] if holes and harmed else []  # what was held elsewhere too is not missed


def _is_wanted(record: StreamRecord) -> bool:
    """Is it missing here, or may it have lost what was confirmed?"""
    if not os.path.isdir(record.directory):
        return True
    return record.durability == "remote" and _will_recover(record)


def _will_recover(record: StreamRecord) -> bool:
    try:
        Log(record.directory).close()
    except StorageError as problem:
        # Of another boot, or whatever became of its page; a newer version's files are nobody's to touch.
        return problem.code not in ("ERR_VERSION", "ERR_DELETED")
    return False


def _has_damaged_stubs(record: StreamRecord) -> bool:
    """Recovery would begin the log behind them; in the same boot there is none, and the archiver sees to it."""
    try:
        return _will_recover(record) and bool(damaged(record.directory))
    except (StorageError, OSError):
        return False  # of a newer version, or one that cannot be read, as recovery will say


async def _all_sections(
    epochs: Epochs, puts_max: int, harmed: list[str]
) -> AsyncIterator[tuple[int, SegmentBegins | Chunks | Offsets | LedgerState | Members]]:
    """Yield the remaining write-ahead objects in order, with their epochs; some are read ahead.

    ``harmed``: the damaged ones.

    So many objects as are on their way at a time may lie behind one that was never created; behind more it was deleted.
    """
    objects = await epochs.objects()
    last = {one.epoch: at for at, one in enumerate(objects)}
    before: WriteAheadObject | None = None  # the last one that is no seal
    for at in range(0, len(objects), READS_AT_A_TIME):
        some = objects[at : at + READS_AT_A_TIME]
        contents = await asyncio.gather(*(_read(epochs, one, harmed) for one in some))
        for index, (one, found) in enumerate(zip(some, contents, strict=True), start=at):
            if any(isinstance(section, Seal) for section in found):
                continue
            is_gap = before is not None and before.epoch == one.epoch and one.number != before.number + 1
            if before is not None and is_gap and last[one.epoch] - index >= puts_max:
                log.error("objects are missing in the bucket between %s and %s", before.key, one.key)
                harmed.append(f"objects are missing between {before.key} and {one.key}")
            before = one
            for section in found:
                if isinstance(section, SegmentBegins | Chunks | Offsets | LedgerState | Members):
                    yield one.epoch, section


async def _read(epochs: Epochs, one: WriteAheadObject, harmed: list[str]) -> list[Sections]:
    """What is damaged or gone is named; a store that does not answer is asked again.  RemoteError: for too long."""
    deadline_s = time.monotonic() + ANSWER_TIMEOUT_S
    while True:
        try:
            return await epochs.read(one)
        except (Damaged, Missing) as problem:
            log.error("a write-ahead object cannot be restored: %s", problem)
            harmed.append(str(problem))
            return []
        except RemoteError as problem:
            if time.monotonic() >= deadline_s:
                raise
            log.warning("while restoring, the object store is asked again: %s", problem)
            await asyncio.sleep(RETRY_S)


async def _table(bucket: Bucket, last: Place) -> memoryview:
    """Empty where it is damaged or gone: then publishers whose last message is old may store one twice."""
    try:
        return await bucket.read(last.key("tracking"), Kind.TRACKING)
    except (Damaged, Missing) as problem:
        log.error("what a stream knows of its publishers cannot be restored: %s", problem)
        return memoryview(b"")


class Restored:
    """One stream, as it is put together."""

    def __init__(self, record: StreamRecord, is_whole: bool) -> None:
        self.record, self.directory = record, record.directory
        self.is_missing = is_whole or not os.path.isdir(record.directory)
        self.places: list[Place] = []
        self.superseded: set[Place] = set()  # late segments, which a deposed broker uploaded
        self.laid_bytes = 0
        self._in_store = 0  # offsets below it lie in segments of the store
        self._files: dict[int, int] = {}  # first offset of a segment -> descriptor
        self._laid: dict[int, list[tuple[int, int, int, int]]] = {}  # -> bytes and offsets: begin, end, first, next
        self._epochs: dict[int, tuple[int | None, int]] = {}  # of a segment's first chunk, and the highest in it
        self._offsets: dict[bytes, int] = {}
        self._ledger: LedgerState | None = None
        self._members: Members | None = None

    async def take_places(self, bucket: Bucket, places: dict[Place, int], tables: asyncio.Semaphore) -> None:
        """Write stubs for the segments of the store, and the table of publishing ids behind the last one."""
        self.places = history(place for place in places if place not in self.superseded)
        for place in late(places, self.places):
            self._name_late(place)
        if self.is_missing and (self.places or self.record.durability == "remote"):
            os.makedirs(self.directory, mode=0o750, exist_ok=True)
        if not self.places:
            return
        known = {stub.first for stub in cold.stubs(self.directory)}

        async def take(place: Place) -> None:
            async with tables:
                size = await segment_bytes(bucket, place, places[place])
                await asyncio.to_thread(cold.write_stub, self.directory, stub_of(place, size))

        await asyncio.gather(*(take(place) for place in self.places if place.first not in known))
        last = self.places[-1]
        self._in_store = last.next
        table_path = os.path.join(self.directory, f"{last.next:020}.tracking")
        if self.is_missing and not (self.superseded and os.path.exists(table_path)):  # else a write-ahead object had it
            async with tables:
                table = await _table(bucket, last)
            if len(table):
                self._write(f"{last.next:020}.tracking", table)

    def lay(self, found: SegmentBegins | Chunks | Offsets | LedgerState | Members, epoch: int) -> None:
        if isinstance(found, Offsets):
            self._offsets = found.stored
        elif isinstance(found, LedgerState):
            self._ledger, self._members = found, None  # its members come next
        elif isinstance(found, Members):
            self._members = found
        elif self.record.durability != "remote":
            return
        elif isinstance(found, SegmentBegins):
            self._supersede(found.first, epoch)
            if found.first >= self._in_store:
                self._begin(found)
        elif found.segment >= self._in_store and (file := self._files.get(found.segment)) is not None:
            os.pwrite(file, found.data, found.position)
            self.laid_bytes += len(found.data)
            end = found.position + len(found.data)
            self._laid.setdefault(found.segment, []).append((found.position, end, found.first, found.next))
            self._note_epochs(found)
            for first in [first for first in self._files if found.segment < first < found.next]:
                self._drop(first)

    def _supersede(self, first: int, epoch: int) -> None:
        """Note that the write-ahead objects of an epoch have all messages from offset ``first`` on.

        So a segment of an earlier epoch that ends behind it is late: it may have messages that were never confirmed.
        """
        too_late = [one for one in self.places if 0 < one.broker_epoch < epoch and one.next > first]
        for place in too_late:
            self._name_late(place)
            self.places.remove(place)
            cold.remove_stub(self.directory, place.first)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(self.directory, f"{place.next:020}.tracking"))
        if too_late:
            self._in_store = min(self._in_store, first)

    def _name_late(self, place: Place) -> None:
        if place not in self.superseded:
            self.superseded.add(place)
            said = "stream %r: %s was uploaded by a deposed broker, and is not used"
            log.warning(said, self.record.name, place.key())

    # An object may lie behind one that was never created: then what is in it was not confirmed, and a later epoch's
    # messages got the same offsets. What a later epoch says holds.

    def _begin(self, found: SegmentBegins) -> None:
        file = self._files.get(found.first)
        if file is not None and os.pread(file, SEGMENT_HEADER_BYTES, 0) == bytes(found.header):
            return
        if file is not None:
            self._drop(found.first)
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

    def _note_epochs(self, found: Chunks) -> None:
        lowest, highest = self._epochs.get(found.segment, (None, 0))
        at = 0
        while at + CHUNK_HEADER.size <= len(found.data):
            epoch, data, trailer, filter = CHUNK_HEADER.unpack_from(found.data, at)
            if found.position + at == SEGMENT_HEADER_BYTES:
                lowest = epoch
            highest = max(highest, epoch)
            at += CHUNK_HEADER.size + data + trailer + filter
        self._epochs[found.segment] = lowest, highest

    def _drop_older(self) -> None:
        """Segments that begin with an epoch that is over in the one before: epochs rise in a log."""
        newest = 0
        for first in sorted(self._files):
            lowest, highest = self._epochs.get(first, (None, newest))
            if lowest is not None and lowest < newest:
                self._drop(first)
            else:
                newest = max(newest, highest)

    def _drop(self, first: int) -> None:
        """A segment that is none."""
        os.close(self._files.pop(first))
        self._laid.pop(first, None)
        self._epochs.pop(first, None)
        for suffix in ("segment", "tracking"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(self.directory, f"{first:020}.{suffix}"))

    def _write(self, name: str, body: memoryview) -> None:
        path = os.path.join(self.directory, name)
        with open(f"{path}.tmp", "wb", opener=lambda name, flags: os.open(name, flags, 0o640)) as file:
            file.write(body)
        os.rename(f"{path}.tmp", path)

    def finish(self) -> str:
        """Returns what is lost of what was published last; "": nothing."""
        self._drop_older()
        for file in self._files.values():
            os.close(file)
        if not os.path.isdir(self.directory):
            return ""  # recovery makes an empty log, and says so
        for name in ("offsets", "ledger", members.FILE_NAME) if self.is_missing else ():
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(self.directory, name))  # half made
        settled = self._settled()
        for place in self.places:
            if place.next <= settled:  # a broker was killed before it deleted these objects, which this one will do
                cold.remove_stub(self.directory, place.first)
        for before, after in pairwise(self.places):
            if max(before.next, settled) < after.first:
                said = "stream %r: segments with offsets %d to %d are missing in the bucket between %s and %s"
                name = self.record.name
                log.error(said, name, max(before.next, settled), after.first - 1, before.key(), after.key())
        if self._offsets and not os.path.exists(os.path.join(self.directory, "offsets")):
            held = StoredOffsets(self.directory)
            for reference, offset in self._offsets.items():
                held.store(reference, offset)
            held.close()
        if self.record.queue is not None and not os.path.exists(os.path.join(self.directory, "ledger")):
            known = self._ledger or LedgerState(self.record.incarnation, 0, ())
            if self._members is not None:
                members.restore(self.directory, self._members.packed)
            ledger.restore(self.directory, known.base, list(known.ranges))
            if self._members is None:
                self._log_members_lost(known)
        if self.record.durability == "remote" and not self.is_missing and (end := self._stored_end()) is not None:
            try:
                confirm_stored(self.directory, *end)
            except StorageError as problem:  # readers wait until the archiver has sent it again
                log.warning("stream %r: its confirmed offset cannot be written: %s", self.record.name, problem)
        return self._hole() if self.is_missing else ""

    def _log_members_lost(self, known: LedgerState) -> None:
        """Log messages that a fan-out loses: an older version's objects have no members, so one acknowledgement counts.

        `base` stays below every copy that a member is owed, so settled messages above it may be such copies.
        """
        if self.record.queue is not None and self.record.queue.get("mode") in FAN_OUTS and known.ranges:
            log.warning(
                "queue %r: %d messages at offsets %d to %d that one member had acknowledged do not come again to "
                "members that had not, because the bucket has no members of that fan-out",
                self.record.name,
                sum(end - first for first, end in known.ranges),
                known.ranges[0][0],
                known.ranges[-1][1] - 1,
            )

    def _stored_end(self) -> tuple[int, int, int] | None:
        """Return the segment, position and offset up to which the store has the whole log, by the objects read here."""
        found: tuple[int, int, int] | None = None
        if self.places:
            last = self.places[-1]
            found = last.next, SEGMENT_HEADER_BYTES, last.next
        for segment in sorted(self._laid):
            if found is not None and segment > found[2]:
                break
            end, after = SEGMENT_HEADER_BYTES, segment
            for begin, next_end, _, next_offset in sorted(self._laid[segment]):
                if begin > end:
                    return segment, end, after
                end, after = max(end, next_end), max(after, next_offset)
            found = segment, end, after
        return found

    def _hole(self) -> str:
        """A log has none: it ends there, and what lies behind goes into quarantine."""
        for pieces in (sorted(self._laid[segment]) for segment in sorted(self._laid)):
            end, after = SEGMENT_HEADER_BYTES, pieces[0][2]
            for begin, next_end, first, next_offset in pieces:
                if begin > end:
                    last = max(piece[3] for piece in pieces) - 1
                    return (
                        f"stream {self.record.name!r} ends at offset {after}: what follows is in no whole object, and "
                        f"those from {first} to {last} go into a .quarantine file"
                    )
                end, after = max(end, next_end), max(after, next_offset)
        return ""

    def _settled(self) -> int:
        """Of a queue: nobody needs what is below that offset."""
        if self.record.queue is None:
            return 0
        try:
            return ledger.settled(self.directory)[0]
        except StorageError:  # not here, or damaged: recovery will say so
            return self._ledger.base if self._ledger is not None else 0
