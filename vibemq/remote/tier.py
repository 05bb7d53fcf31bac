# SPDX-License-Identifier: Apache-2.0
"""The second tier: closed segments go up in the background; what is read of them later comes back (cache.py).

A segment is sent up once, whole: the table behind it first, then its index, then itself, so one that a listing shows
is complete. A stub beside it in the log's directory (csrc/log/FORMAT.md) says that the store has it: from then on
retention may take the file here. Objects of segments that retention has taken altogether, and of streams that were
deleted, go too.

A segment of durability `remote` that is damaged here is made whole before it is sent, from the write-ahead objects
that have its chunks (repairing.py). Where they do not, it is not sent: what there is is kept, the status names the
stream, and neither it nor any other stops being served.
"""

from __future__ import annotations

import asyncio
import logging
import os
from bisect import insort
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import vibemq.storage.cold as cold
from vibemq.config import Remote
from vibemq.errors import RemoteError, StorageError
from vibemq.once_a_minute import OnceAMinute
from vibemq.remote.cache import Cache
from vibemq.remote.objects import Kind, Place, read_place
from vibemq.remote.repairing import repair
from vibemq.remote.stubs import mend, place_of, places_of_all
from vibemq.remote.write_ahead import Tenure
from vibemq.storage.log import SEGMENT_HEADER_BYTES, Log, housekeep
from vibemq.storage.metadata import Metadata
from vibemq.storage.records import StreamRecord
from vibemq.storage.tail import Tail, local_segments
from vibemq.storage.transactions import STAGING
from vibemq.storage.walk import Walk

#: What is read of a file at a time.
PIECE_BYTES = 4 << 20
RETRY_S_MIN, RETRY_S_MAX = 1.0, 60.0
CANCEL_AGAIN_S = 0.5
#: So often it is tried to delete a deleted stream's objects, in two minutes or more; then `vibemq remote prune` has to.
FORGET_TRIES = 8
FORGETS_AT_A_TIME = 8
#: How often it looks which objects retention has made superfluous.
SWEEP_S = 30.0
SUFFIXES = {"tracking": Kind.TRACKING, "index": Kind.INDEX, "segment": Kind.SEGMENT}
#: Of a segment that is damaged here.
NOT_SENT_YET = "looked for in the write-ahead objects once all of the segment has been sent in those"
BEYOND_REPAIR = (
    "whole in no write-ahead object, or not surely as it was confirmed, so it is not sent up; what is whole in it is "
    "served from here; to have the rest, put objects that are missing or damaged back from a copy or a version of the "
    "bucket, and start the broker again"
)
GONE = ("ERR_NOT_FOUND", "ERR_DELETED")

log = logging.getLogger("vibemq.remote")


class Paused(NamedTuple):
    """A stream whose segments could not be sent, until they are tried again."""

    name: str
    pause_s: float
    why: str


class Tier:
    def __init__(
        self, config: Remote, tenure: Tenure, metadata: Metadata, uploaded: Callable[[str, int], None]
    ) -> None:
        """``uploaded(incarnation, offset)``: the store has closed segments up to there."""
        epochs = tenure.epochs
        bucket = epochs.bucket
        self.config, self.tenure, self.epochs, self.bucket, self.metadata = config, tenure, epochs, bucket, metadata
        self.cache = Cache(config, bucket, metadata.streams_dir)
        self._uploaded = uploaded
        self._is_looking = True
        self._pauses: dict[str, Paused] = {}
        self._looks: OrderedDict[str, StreamRecord] = OrderedDict()
        self._wake = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._places: dict[str, list[Place]] = {}  # of each stream, rising
        self._repairs: set[str] = set()  # streams that wait until a segment of theirs is repaired
        self._one_repair = asyncio.Lock()  # at a time: each reads objects of all streams
        #: A stream's segment that was searched for in vain, and whether all of it had been sent: a second search would
        #: find no more objects than the first.
        self._beyond_repair: dict[str, tuple[int, bool]] = {}
        self._forgets = asyncio.Semaphore(FORGETS_AT_A_TIME)
        self._says = OnceAMinute(log, logging.ERROR)
        self.segments = self.segment_bytes = 0

    def start(self) -> None:
        self.in_background(self.cache.clear())
        self.in_background(self._work())

    @property
    def is_busy(self) -> bool:
        """May there be closed segments that are not in the store?"""
        return self._is_looking or bool(self._looks or self._pauses or self._repairs)

    async def _work(self) -> None:
        # First, and to its end: a stub that is written meanwhile would have no object in its listing.
        while not await self._tried(self._reconcile()):
            await asyncio.sleep(SWEEP_S)
        self.in_background(self._sweep_all())
        await self._upload_all()

    def in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(self._guarded(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: work.close())  # where it was cancelled before it began

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except (RemoteError, StorageError, OSError) as problem:
            self._says.say(type(problem).__name__, "in the object store: %s", problem)
        except Exception:
            log.exception("in the object store")

    async def close(self) -> None:
        # Again and again: a request that is answered in the moment of its cancellation swallows it (asyncio.wait_for).
        while tasks := [task for task in self._tasks if not task.done()]:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=CANCEL_AGAIN_S)
        await self.cache.close()

    # ---- up ----

    def look_at(self, record: StreamRecord, is_aged: bool = False) -> None:
        """It may have closed segments that are not in the store yet.

        Of a queue most are settled and gone soon, so only those that have stayed for long go up, and of durability
        `remote` alone; nor does what transactions have staged.
        """
        if record.durability == "remote":
            is_wanted = is_aged or (record.queue is None and record.vhost != STAGING)
        else:
            is_wanted = self.config.tier and record.queue is None and record.vhost != STAGING
        if is_wanted:
            self._look_soon(record)

    async def _upload_all(self) -> None:
        """Each stream in its turn; one whose segments cannot be sent, or are repaired, holds up no other."""
        while True:
            while self._looks:
                incarnation, record = self._looks.popitem(last=False)
                if incarnation in self._repairs:
                    continue  # it is looked at again when that is done
                self._is_looking = True
                try:
                    if await self._upload_closed(record):
                        self._pauses.pop(incarnation, None)
                except Exception as problem:
                    self._again(record, problem)
            self._wake.clear()
            self._is_looking = False
            await self._wake.wait()

    def _again(self, record: StreamRecord, problem: Exception) -> None:
        incarnation = record.incarnation
        if self._is_gone(incarnation):
            self.forget([incarnation])  # once more: it was deleted while something of it went up
            return
        is_gone = isinstance(problem, FileNotFoundError) or getattr(problem, "code", "") in GONE
        if not is_gone:  # of a queue a segment may go while it is sent
            self._says.say(incarnation, "segments of stream %r are not sent up yet: %r", record.name, problem)
        before = self._pauses.get(incarnation)
        pause_s = RETRY_S_MIN if before is None else min(before.pause_s * 2, RETRY_S_MAX)
        self._pauses[incarnation] = Paused(record.name, pause_s, why_not(problem))

        def look() -> None:
            if incarnation in self._pauses:
                self._look_soon(record)

        asyncio.get_running_loop().call_later(pause_s, look)

    def _look_soon(self, record: StreamRecord) -> None:
        self._looks[record.incarnation] = record
        self._wake.set()

    def _is_gone(self, incarnation: str) -> bool:
        try:
            return self.metadata.stream_of(incarnation) is None
        except StorageError:
            return False  # nobody knows just now

    async def _upload_closed(self, record: StreamRecord) -> bool:
        """False: a segment is repaired first."""
        directory = record.directory
        here = await asyncio.to_thread(local_segments, directory)
        known = self._known(record)
        have = {place.first for place in known}
        for first, after in pairwise(here):
            if first not in have and os.path.getsize(_path(directory, first, "segment")) > SEGMENT_HEADER_BYTES:
                if record.durability == "remote" and not await self._is_whole(record, first, after):
                    return False
                await self._upload(record, first, after)
        if known:
            self._uploaded(record.incarnation, known[-1].next)
        await asyncio.to_thread(housekeep, directory)  # what is there need not be here
        return True

    def _known(self, record: StreamRecord) -> list[Place]:
        if record.incarnation not in self._places:
            stubs = cold.stubs(record.directory)
            self._places[record.incarnation] = [place_of(record.incarnation, stub) for stub in stubs]
            self.segments += len(stubs)
            self.segment_bytes += sum(stub.size_bytes for stub in stubs)
        return self._places[record.incarnation]

    async def _upload(self, record: StreamRecord, first: int, after: int) -> None:
        directory = record.directory
        epoch = await asyncio.to_thread(_make_durable, directory)
        stub = await asyncio.to_thread(cold.describe, directory, first, after, epoch)
        # A segment that is sent again does not make those behind it late (`history`): epochs rise along a log.
        behind = [place.broker_epoch for place in self._known(record) if place.first >= after]
        stub = stub._replace(broker_epoch=min([self.tenure.epoch, *behind]))
        place = place_of(record.incarnation, stub)
        files = {
            "tracking": _path(directory, after, "tracking"),
            "index": _path(directory, first, "index"),
            "segment": _path(directory, first, "segment"),
        }
        for suffix, path in files.items():
            await self.bucket.write(place.key(suffix), SUFFIXES[suffix], _pieces(path))
        await self.tenure.check()  # a newer broker may lack the segment, and this file is then the only copy
        await asyncio.to_thread(cold.write_stub, directory, stub)
        if (places := self._places.get(record.incarnation)) is not None:  # else it was deleted meanwhile
            insort(places, place)
        self.segments += 1
        self.segment_bytes += stub.size_bytes
        self._uploaded(record.incarnation, after)

    async def _is_whole(self, record: StreamRecord, first: int, after: int) -> bool:
        """False: it is damaged, and its repair has begun.  Raises StorageError where there can be none, or not yet."""
        incarnation, path = record.incarnation, _path(record.directory, first, "segment")
        damage = await asyncio.to_thread(_damage, path, first, after)
        if not damage:
            return True
        all_is_sent = await asyncio.to_thread(_remote_offset, record.directory) >= after
        # Without the file's header nobody can send the rest.
        if not all_is_sent and await asyncio.to_thread(_has_header, path, first):
            raise StorageError("ERR_CORRUPT", f"{damage}; damaged on this disk, and {NOT_SENT_YET}")
        if self._beyond_repair.get(incarnation) == (first, all_is_sent):
            raise StorageError("ERR_CORRUPT", f"{damage}; damaged on this disk, and {BEYOND_REPAIR}")
        self._repairs.add(incarnation)
        self.in_background(self._repair(record, first, after, damage, all_is_sent))
        return False

    async def _repair(self, record: StreamRecord, first: int, after: int, damage: str, all_is_sent: bool) -> None:
        incarnation, path = record.incarnation, _path(record.directory, first, "segment")
        try:
            async with self._one_repair:
                is_whole = await repair(self.epochs, incarnation, path, first, after)
            if is_whole and not await asyncio.to_thread(_damage, path, first, after):
                said = "stream %r: damage on this disk is repaired from the object store: %s"
                log.warning(said, record.name, damage)
            else:
                self._beyond_repair[incarnation] = first, all_is_sent
        except Exception as problem:
            self._again(record, problem)
        else:
            self._look_soon(record)
        finally:
            self._repairs.discard(incarnation)

    # ---- away ----

    def deleted_by(self, changes: list[Any]) -> list[str]:
        """The streams that a change of the metadata takes away, before it is committed; by their incarnations."""
        keys = [one[2] for one in changes if one[:2] == ["delete", "streams"]]
        found = [self.metadata.stream_at(key["slot"]) for key in keys]
        return [record.incarnation for record in found if record is not None]

    def forget(self, incarnations: list[str]) -> None:
        """Streams that are gone leave no objects."""
        for incarnation in incarnations:
            self._places.pop(incarnation, None)
            self._looks.pop(incarnation, None)
            self._pauses.pop(incarnation, None)
            self._beyond_repair.pop(incarnation, None)
            self.cache.forget(incarnation)
            self.in_background(self._forget(f"streams/{incarnation}/"))

    async def _forget(self, prefix: str) -> None:
        pause_s = RETRY_S_MIN
        for left in reversed(range(FORGET_TRIES)):
            try:
                async with self._forgets:
                    await self._delete_below(prefix)
                return
            except RemoteError as problem:
                if not left:
                    said = "what is below %s of a deleted stream stays: `vibemq remote prune` deletes it: %s"
                    log.error(said, prefix, problem)
                    return
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, RETRY_S_MAX)

    async def _delete_below(self, prefix: str) -> None:
        listed = await self.bucket.listed(prefix)
        await self.bucket.delete([found.key for found in sorted(listed, key=_segments_first)])

    async def _sweep_all(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            for incarnation in list(self._places):
                await self._tried(self._sweep(incarnation))

    async def _tried(self, work: Coroutine[Any, Any, None]) -> bool:
        """Is it done?  What a store that is away, or a stream that is gone, keeps from being done comes again."""
        try:
            await work
        except (RemoteError, StorageError, OSError) as problem:
            if getattr(problem, "code", "") not in GONE:
                self._says.say("sweep", "what is superfluous in the object store is not deleted yet: %s", problem)
            return False
        return True

    async def _sweep(self, incarnation: str) -> None:
        places = self._places.get(incarnation)
        if not places:
            return
        first = await asyncio.to_thread(_first_offset, self._directory(incarnation))
        gone = [place for place in places if place.next <= first]
        if gone:
            # Also segments that a broker sent late: next to a log that begins behind them nothing tells them for it.
            there = [read_place(one.key) for one in await self.bucket.listed(f"streams/{incarnation}/")]
            listed = {named[0] for named in there if named is not None and named[1] == "segment"}
            strange = [] if _has_quarantine(self._directory(incarnation)) else sorted(listed - set(places))
            await self._delete([*gone, *(place for place in strange if place.next <= first)])
            del places[: len(gone)]
            self.segments -= len(gone)

    async def _delete(self, places: list[Place]) -> None:
        keys = [place.key(suffix) for suffix in ("segment", "index", "tracking") for place in places]
        await self.epochs.retire(self.tenure.epoch, keys, self.tenure.check)

    async def _reconcile(self) -> None:
        """Once: what an archiver that was killed, or a power cut, has left between stubs and objects."""
        for incarnation, listed in (await places_of_all(self.bucket)).items():
            directory = self._directory(incarnation)
            if os.path.isdir(directory):  # else another broker's, or one that was deleted: `vibemq remote prune`
                try:
                    await mend(self.bucket, directory, listed)
                    await self._reconcile_one(incarnation, directory, set(listed))
                except (StorageError, OSError) as problem:
                    log.info("%s is not compared with the object store: %s", directory, problem)

    async def _reconcile_one(self, incarnation: str, directory: str, listed: set[Place]) -> None:
        stubs = {place_of(incarnation, stub): stub for stub in await asyncio.to_thread(cold.stubs, directory)}
        is_oldest = True
        for place, stub in stubs.items():
            is_oldest = is_oldest and place not in listed
            if place in listed:
                continue
            if is_oldest or os.path.exists(_path(directory, stub.first, "segment")):
                # Retention had taken it before a power cut brought the stub back; or it goes up again.
                await asyncio.to_thread(cold.remove_stub, directory, stub.first)
                self._places.pop(incarnation, None)
            else:
                log.error("object %s is missing in the bucket: those messages cannot be read", place.key())
        first = await asyncio.to_thread(_first_offset, directory)
        if _has_quarantine(directory):
            return
        if gone := [place for place in listed - stubs.keys() if place.next <= first]:
            await self._delete(gone)

    def _directory(self, incarnation: str) -> str:
        return os.path.join(self.metadata.streams_dir, incarnation)

    @property
    def unsent(self) -> dict[str, str]:
        """Streams whose segments could not be sent when it was tried last, with the reason."""
        return {paused.name: paused.why for paused in self._pauses.values() if paused.why}

    def status(self) -> dict[str, object]:
        return {
            "segments": self.segments,
            "segment_bytes": self.segment_bytes,
            "streams_waiting_to_be_sent": len(self._looks.keys() | self._pauses.keys() | self._repairs),
            "cache_bytes": self.cache.bytes,
        }


def why_not(problem: Exception) -> str:
    """For people; "" where only a segment, or the whole log, has just gone."""
    return "" if getattr(problem, "code", "") in GONE else str(problem) or repr(problem)


def _path(directory: str, first: int, suffix: str) -> str:
    return os.path.join(directory, f"{first:020}.{suffix}")


def _has_quarantine(directory: str) -> bool:
    """True if a cut took bytes out of the log: then no unknown object is deleted, it may be the only copy."""
    return any(name.endswith(".quarantine") for name in os.listdir(directory))


def _segments_first(found: Any) -> tuple[bool, str]:
    return (not found.key.endswith(".segment"), found.key)


def _make_durable(directory: str) -> int:
    """What is in the store must not be lost here afterwards, or there would be two histories; returns the epoch."""
    held = Tail(directory)
    try:
        held.log.sync()
        return held.epoch
    finally:
        held.close()


def _first_offset(directory: str) -> int:
    held = Log(directory)
    try:
        return held.stats().first_offset
    finally:
        held.close()


def _remote_offset(directory: str) -> int:
    held = Log(directory)
    try:
        return held.remote_offset
    finally:
        held.close()


def _has_header(path: str, first: int) -> bool:
    """Is the header of a segment's file whole?"""
    with open(path, "rb") as file:
        header = file.read(SEGMENT_HEADER_BYTES)
    try:
        Walk(first, path).take(header)
    except StorageError:
        return False
    return len(header) == SEGMENT_HEADER_BYTES


def _damage(path: str, first: int, after: int) -> str:
    """What of a closed segment is not what was written; "": nothing.

    What lies behind the last offset was never committed.
    """
    walk = Walk(first, path)
    try:
        for piece in _pieces(path):
            walk.take(piece)
    except StorageError as problem:
        if walk.next < after:
            return str(problem)
    else:
        if walk.next <= after:
            try:
                walk.end()
            except StorageError as problem:
                return str(problem)
    return f"{path}: {walk.first_damage}" if walk.damaged else ""


def _pieces(path: str) -> Iterator[bytes]:
    if path.endswith(".tracking") and not os.path.exists(path):
        return  # none was kept
    with open(path, "rb", buffering=0) as file:
        while piece := file.read(PIECE_BYTES):
            yield piece
