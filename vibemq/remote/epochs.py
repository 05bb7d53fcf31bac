# SPDX-License-Identifier: Apache-2.0
"""A broker's epochs in the bucket: taking the next one, and ending the sequences of those before with a seal."""

import logging
import secrets
import socket
import time
from typing import NamedTuple

from vibemq.remote.bucket import Bucket, Taken
from vibemq.remote.objects import (
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
)
from vibemq.storage import identity

log = logging.getLogger("vibemq.remote")

#: Epoch objects that stay, for people who look at who was here.
KEPT = 16
#: What a key of an epoch ends with that says: all before it are sealed.
SEALED = ".sealed"


class WriteAheadObject(NamedTuple):
    epoch: int
    number: int
    key: str


class Epochs:
    """Of broker ``name``, for the data directory ``data_dir``."""

    def __init__(self, bucket: Bucket, name: str, data_dir: str) -> None:
        self.bucket, self.name = bucket, name
        self.identity = identity.read(data_dir)
        self.writer = secrets.token_hex(16)

    async def owner(self) -> str | None:
        """The data directory that took the newest epoch, by its identity; None: nobody has taken any."""
        keys = [found.key for found in await self.bucket.listed(f"brokers/{self.name}/")]
        newest = max((key for key in keys if not key.endswith(SEALED)), default=None)
        if newest is None:
            return None
        return str(from_json(newest, await self.bucket.read(newest, Kind.EPOCH)).get("data"))

    async def take(self) -> int:
        """A new epoch; when this returns, every earlier one is sealed.  Raises RemoteError."""
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
        last = {found.epoch: found.number for found in await self.objects()}
        for earlier in range(done, epoch):
            await self._seal(earlier, epoch, last.get(earlier, 0))
        await self.bucket.create(epoch_key(self.name, epoch) + SEALED, Kind.EPOCH, body)
        old = [name for name in there if int(name.partition(".")[0]) <= epoch - KEPT]
        await self.bucket.delete([f"brokers/{self.name}/{name}" for name in old])
        return epoch

    async def _seal(self, earlier: int, epoch: int, number: int) -> None:
        """``number``: the highest that was listed, or 0."""
        body = seal_section(broker=self.name, epoch=epoch, writer=self.writer, data=self.identity)
        while True:
            key = write_ahead_key(self.name, earlier, number)
            try:
                await self.bucket.create(key, Kind.WRITE_AHEAD, body)
                log.info("epoch %d of broker %r ends before write-ahead object %d", earlier, self.name, number)
                return
            except Taken:
                if await self._is_seal(key):
                    return
                number += 1

    async def _is_seal(self, key: str) -> bool:
        try:
            body = await self.bucket.read(key, Kind.WRITE_AHEAD)
            return any(isinstance(found, Seal) for found in sections(key, body))
        except Damaged as problem:
            log.error("%s", problem)  # it was no seal of ours, which are tiny and written whole
            return False

    async def objects(self) -> list[WriteAheadObject]:
        """The write-ahead objects of all epochs, in their order; those of one number, by the name."""
        found = []
        for one in await self.bucket.listed(f"wal/{self.name}/"):
            parts = one.key.split("/")
            if len(parts) == 4 and parts[2].isdigit() and parts[3].isdigit():
                found.append(WriteAheadObject(int(parts[2]), int(parts[3]), one.key))
        return sorted(found)

    async def read(self, found: WriteAheadObject) -> list[Sections]:
        return list(sections(found.key, await self.bucket.read(found.key, Kind.WRITE_AHEAD)))

    async def forget_before(self, epoch: int) -> None:
        """Delete the sequences of earlier epochs: all in them is in segments, or in objects of this one.

        Their last objects, the seals, stay: without one a broker that slept all the while would go on with its own.
        """
        earlier = [found for found in await self.objects() if found.epoch < epoch]
        last = {found.epoch: found.key for found in earlier}
        await self.bucket.delete([found.key for found in earlier if found.key != last[found.epoch]])
