# SPDX-License-Identifier: Apache-2.0
"""A broker's epochs in the bucket: taking the next one, and ending the sequences of those before with a seal.

`EPOCH.sealed` is created last, so an epoch without it has confirmed nothing. The newest of them says whose data
directory has all that was confirmed since: any other one lacks some of it and must not go on as it is.
"""

import asyncio
import logging
import secrets
import socket
import time
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from vibemq.errors import RemoteError
from vibemq.remote.bucket import Bucket, Listed, Missing, Taken
from vibemq.remote.objects import (
    ON_THEIR_WAY_MAX,
    RETIRED_PREFIX,
    Damaged,
    Kind,
    Seal,
    Sections,
    epoch_key,
    from_json,
    seal_section,
    sections,
    to_json,
    write_ahead_key,
    write_ahead_prefix,
)
from vibemq.storage import identity

log = logging.getLogger("vibemq.remote")

#: Epoch objects that stay, for people who look at who was here.
KEPT = 16
#: What a key of an epoch ends with that says: all before it are sealed.
SEALED = ".sealed"
#: A seal is JSON with names of limited length, and the object's key behind it.
SEAL_BYTES_MAX = 2048
READS_AT_A_TIME = 16


class Outdated(RemoteError):
    """Another data directory has been this broker since, and this one lacks what was confirmed there."""


class WriteAheadObject(NamedTuple):
    epoch: int
    number: int
    key: str
    size: int  # of the object, in bytes


class Epochs:
    """Of broker ``name``, for the data directory ``data_dir``."""

    def __init__(self, bucket: Bucket, name: str, data_dir: str) -> None:
        self.bucket, self.name = bucket, name
        self.identity = identity.read(data_dir)
        self.writer = secrets.token_hex(16)

    async def take(self, goes_on: bool = True) -> int:
        """A new epoch; when this returns, every earlier one is sealed.  Raises RemoteError.

        ``goes_on``: with what lies in the data directory, and not with what is restored afterwards.  Raises Outdated.
        """
        if goes_on:
            await self.check_newest()  # lest it ends one that does better
        there = [found.key.rpartition("/")[2] for found in await self.bucket.listed(f"brokers/{self.name}/")]
        numbers = [int(name) for name in there if name.isdigit()]
        done = max((int(name.partition(".")[0]) for name in there if name.endswith(SEALED)), default=1)
        epoch = max(numbers, default=0) + 1
        body = to_json(
            writer=self.writer, data=self.identity, host=socket.gethostname(), started_ms=time.time_ns() // 1_000_000
        )
        while True:
            try:
                await self.bucket.create(epoch_key(self.name, epoch), Kind.EPOCH, body)
                break
            except Taken:
                epoch += 1
        for earlier in range(done, epoch):
            await self._seal(earlier, epoch)
        if goes_on:
            await self.check_newest()  # one that had begun when this did has confirmed what it ever will
        await self._finish_retiring(done, epoch)
        await self.bucket.create(epoch_key(self.name, epoch) + SEALED, Kind.EPOCH, body)
        old = [name for name in there if int(name.partition(".")[0]) <= epoch - KEPT]
        await self.bucket.delete([f"brokers/{self.name}/{name}" for name in old])
        return epoch

    # ---- deletions by retention ----

    # A request to delete has no condition. A broker suspended after its check for a newer epoch would delete objects
    # that the newer broker reads by then. So it lists them in an object first. The next broker deletes these too,
    # before it lists the segments.

    async def retire(self, epoch: int, keys: list[str], check: Callable[[], Awaitable[None]]) -> None:
        """Delete objects.  ``check`` raises if a newer epoch was taken."""
        listed = f"{self._retired}{epoch:08}-{secrets.token_hex(8)}"
        await self.bucket.create(listed, Kind.RETIRED, to_json(keys=keys))
        await check()
        await self.bucket.delete(keys)
        await self.bucket.delete([listed])

    async def _finish_retiring(self, done: int, epoch: int) -> None:
        """Delete the objects in the lists of the epochs since ``done``; lists of earlier epochs came too late."""
        there = [one.key for one in await self.bucket.listed(self._retired)]
        if await self.newer_than(epoch) is not None:
            return  # which finishes it, and has not seen later lists
        for key in there:
            if int(key[len(self._retired) :].partition("-")[0]) >= done:
                try:
                    found = from_json(key, await self.bucket.read(key, Kind.RETIRED))
                    await self.bucket.delete([str(one) for one in found["keys"]])
                except (Damaged, Missing) as problem:
                    log.error("the objects that an earlier epoch was deleting are unknown: %s", problem)
            await self.bucket.delete([key])

    @property
    def _retired(self) -> str:
        return f"{RETIRED_PREFIX}{self.name}/"

    async def newer_than(self, epoch: int) -> dict[str, Any] | None:
        """Who has taken an epoch behind that one; None: nobody."""
        listed = await self.bucket.listed(f"brokers/{self.name}/", after=epoch_key(self.name, epoch) + SEALED)
        keys = [found.key for found in listed if not found.key.endswith(SEALED)]
        return await self._taken_by(max(keys)) if keys else None

    async def next_of(self, epoch: int) -> dict[str, Any] | None:
        """Return the object of the next epoch; None: it was not taken, or was deleted after many later ones."""
        key = epoch_key(self.name, epoch + 1)
        try:
            await self.bucket.size(key)
            return await self._taken_by(key)
        except Missing:
            return None

    async def _taken_by(self, key: str) -> dict[str, Any]:
        """Return the content of an epoch's object; its existence is enough."""
        said: dict[str, Any] = {}
        try:
            said = from_json(key, await self.bucket.read(key, Kind.EPOCH))
        except (Damaged, Missing) as problem:
            log.error("the broker that has taken an epoch is unknown: %s", problem)
        return {**said, "broker": self.name, "epoch": int(key.rpartition("/")[2]), "key": key}

    async def check_newest(self) -> None:
        """Raises Outdated where another data directory has been this broker."""
        keys = [found.key for found in await self.bucket.listed(f"brokers/{self.name}/")]
        newest = max((key for key in keys if key.endswith(SEALED)), default=None)
        if newest is None:
            return
        there = from_json(newest, await self.bucket.read(newest, Kind.EPOCH))
        if there.get("data") != self.identity:
            raise Outdated(
                f"object {newest}: another data directory, on {there.get('host')}, is broker {self.name!r} now, and "
                "has confirmed what this one does not have",
                hint="stop that broker, if it still runs, and start with an empty data directory: all that is in the "
                "bucket is restored; keep the old one for what its streams of durability os and disk held",
            )

    async def _seal(self, earlier: int, epoch: int) -> None:
        """Whatever its broker does meanwhile, it confirms nothing more.

        It confirms in order but creates out of turn, so the seal goes into the first gap. It also deletes from the
        front: where there are objects behind the seal, that gap may have been one of those, and so another seal goes
        into the next gap, and so on until one is behind them all. What is missing before more objects than may be on
        their way was deleted; `vibemq remote verify` names it.
        """
        body = seal_section(broker=self.name, epoch=epoch, writer=self.writer, data=self.identity)
        sealed = -1
        while True:
            behind = [found.number for found in await self._of_epoch(earlier) if found.number > sealed]
            if sealed >= 0 and not behind:
                return
            number = _first_gap(behind, 0 if sealed < 0 else behind[0])
            if behind and number > behind[-1]:
                number = behind[-1]  # it may be a seal already
            sealed = await self._seal_from(earlier, number, body)

    async def _seal_from(self, earlier: int, number: int, body: bytes) -> int:
        """The number of the seal that now stands, from that one on."""
        while True:
            key = write_ahead_key(self.name, earlier, number)
            try:
                await self.bucket.create(key, Kind.WRITE_AHEAD, body)
                log.info("epoch %d of broker %r ends before write-ahead object %d", earlier, self.name, number)
                return number
            except Taken:
                if await self._is_seal(key):
                    return number
                number += 1

    async def _is_seal(self, key: str) -> bool:
        try:
            body = await self.bucket.read(key, Kind.WRITE_AHEAD)
            return any(isinstance(found, Seal) for found in sections(key, body))
        except Missing:  # its broker has deleted it just now
            return False
        except Damaged as problem:
            log.error(
                "a write-ahead object is no seal: %s", problem
            )  # it was no seal of ours, which are tiny and written whole
            return False

    async def objects(self) -> list[WriteAheadObject]:
        """The write-ahead objects of all epochs, in their order; those of one number, by the name."""
        return await self._objects(f"wal/{self.name}/")

    async def _of_epoch(self, epoch: int) -> list[WriteAheadObject]:
        return await self._objects(write_ahead_prefix(self.name, epoch))

    async def _objects(self, prefix: str) -> list[WriteAheadObject]:
        found = []
        for one in await self.bucket.listed(prefix):
            parts = one.key.split("/")
            if len(parts) == 4 and parts[2].isdigit() and parts[3].isdigit():
                found.append(WriteAheadObject(int(parts[2]), int(parts[3]), one.key, one.size))
        return sorted(found)

    async def read(self, found: WriteAheadObject) -> list[Sections]:
        return list(sections(found.key, await self.bucket.read(found.key, Kind.WRITE_AHEAD)))

    async def forget_before(self, epoch: int) -> None:
        """Delete the sequences of earlier epochs: all in them is in segments, or in objects of this one.

        Seals stay: without one a broker that slept all the while would go on with its own.
        """
        of_each: dict[int, list[WriteAheadObject]] = {}
        for found in await self.objects():
            if found.epoch < epoch:
                of_each.setdefault(found.epoch, []).append(found)
        for there in of_each.values():
            if len(there) == 1:
                continue  # it was done before
            gone = [found for found in there[:-1] if found.size > SEAL_BYTES_MAX or not await self._is_seal(found.key)]
            await self.bucket.delete([found.key for found in gone])


async def seals_among(bucket: Bucket, objects: list[Listed]) -> set[str]:
    """Return the keys of the seals among write-ahead objects; a damaged one is not returned."""
    reads = asyncio.Semaphore(READS_AT_A_TIME)

    async def is_seal(one: Listed) -> bool:
        if one.size > SEAL_BYTES_MAX:
            return False
        async with reads:
            try:
                body = await bucket.read(one.key, Kind.WRITE_AHEAD)
                return any(isinstance(found, Seal) for found in sections(one.key, body))
            except (Damaged, Missing):
                return False

    are = await asyncio.gather(*map(is_seal, objects))
    return {one.key for one, is_one in zip(objects, are, strict=True) if is_one}


def _first_gap(numbers: list[int], number: int) -> int:
    """Return the first number from ``number`` on that is not among these, which rise.

    With at most ON_THEIR_WAY_MAX of them behind it, except for ``number`` itself.
    """
    for at, there in enumerate(numbers):
        if there != number and (at == 0 or len(numbers) - at <= ON_THEIR_WAY_MAX):
            break
        number = there + 1
    return number
