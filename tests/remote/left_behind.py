# SPDX-License-Identifier: Apache-2.0
"""What a real broker has left, a data directory and a bucket in a folder, and what disks and stores do to it.

The fixtures are in conftest.py: `left` is what it left, and each test has copies of it in its `world`.
"""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import dataclass
from pathlib import Path

from vibemq import config
from vibemq.broker.disk import Reserve
from vibemq.remote.bucket import Bucket
from vibemq.remote.epochs import Epochs
from vibemq.remote.tier import Tier
from vibemq.remote.write_ahead import Tenure
from vibemq.server.recovery import Recovery
from vibemq.storage.log import Log
from vibemq.storage.metadata import Metadata
from vibemq.storage.records import StreamRecord

COUNT = 1200
CLOSED = 3  # segments of each stream, at least
STREAMS = {"events": "remote", "more": "remote", "tiered": "os"}
END_S_MAX = 20


@dataclass
class World:
    folder: Path
    remote: config.Remote
    metadata: Metadata
    bucket: Bucket
    uploaded: list[tuple[str, int]]

    @property
    def data(self) -> str:
        return str(self.folder / "data")

    def record(self, name: str) -> StreamRecord:
        return next(record for record in self.metadata.streams() if record.name == name)

    def directory(self, name: str) -> Path:
        return Path(self.record(name).directory)

    def files(self, name: str, suffix: str) -> list[Path]:
        return sorted(self.directory(name).glob(f"*.{suffix}"))

    def objects(self, name: str, suffix: str = "segment") -> list[Path]:
        return sorted((self.folder / "bucket/streams" / self.record(name).incarnation).glob(f"*.{suffix}"))

    def tier(self, **changed: object) -> Tier:
        remote = config.Remote(url=self.remote.url, **changed)  # type: ignore[arg-type]
        newest = max(int(path.name) for path in (self.folder / "bucket/brokers/vibemq").iterdir() if path.suffix == "")
        tenure = Tenure(self.epochs, newest)
        return Tier(remote, tenure, self.metadata, lambda *what: self.uploaded.append(what))

    @property
    def epochs(self) -> Epochs:
        return Epochs(self.bucket, self.remote.name, self.data)

    def no_write_ahead_objects(self) -> None:
        shutil.rmtree(self.folder / "bucket/wal")

    def not_sent(self, name: str) -> int:
        """Take the last closed segment of a stream out of the store; its first offset."""
        stub = self.files(name, "remote")[-1]
        for key in self.folder.glob(f"bucket/streams/{self.record(name).incarnation}/{stub.stem}-*"):
            key.unlink()
        stub.unlink()
        return int(stub.stem)

    def only_in_the_store(self, name: str, count: int) -> None:
        """As retention does it to the oldest segments."""
        for segment in self.files(name, "segment")[:count]:
            segment.unlink()
            segment.with_suffix(".tracking").unlink(missing_ok=True)

    def configuration(self, data: str | None = None) -> config.Config:
        options = {("remote", "url"): self.remote.url, ("server", "data_dir"): data or self.data}
        return config.load(environ={}, overrides={name: (value, "test") for name, value in options.items()})

    def recover(self, metadata: Metadata | None = None) -> None:
        store = self.configuration().store
        sizes = store.segment_size_bytes, store.segment_size_bytes
        Recovery(metadata or self.metadata, *sizes, reserve=Reserve(self.data, 0)).before_serving()


def counted(monkeypatch, owner: type, name: str) -> list[object]:
    """Grows by one at each call of that method."""
    calls: list[object] = []
    real = getattr(owner, name)
    monkeypatch.setattr(owner, name, lambda *args: calls.append(args) or real(*args))
    return calls


async def until(holds, what: str) -> None:
    try:
        async with asyncio.timeout(END_S_MAX):
            while not holds():
                await asyncio.sleep(0.002)
    except TimeoutError:
        raise AssertionError(f"not within {END_S_MAX} s: {what}") from None


def next_offset(directory: str) -> tuple[int, int]:
    """First and next."""
    held = Log(directory)
    stats = held.stats()
    held.close()
    return stats.first_offset, stats.next_offset


def remote_offset(world: World, name: str) -> int:
    held = Log(str(world.directory(name)))
    found = held.remote_offset
    held.close()
    return found


def flip(path: Path, position: int) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 0xFF]))


def send_up(world: World, name: str, first: int) -> None:
    """Let a closed segment of that stream go up."""

    async def go_up() -> None:
        tier = world.tier()
        tier.look_at(world.record(name))
        tier.start()
        await until((world.directory(name) / f"{first:020}.remote").exists, f"the segment of {name} is in the store")
        await tier.close()

    asyncio.run(go_up())
