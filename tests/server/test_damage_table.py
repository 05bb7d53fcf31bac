# SPDX-License-Identifier: Apache-2.0
"""The promise of docs/damage.md: each kind of file flipped, cut and missing, in the same boot and in another."""

from __future__ import annotations

import logging
import os
import random
import struct
import sys
import tempfile
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import damage_table
import pytest
from damage_table import AGAIN, BEHIND_CUT, CHUNK, COPIES, OFFSETS, REFUSED, SEGMENT, Kind
from other_boot import write_in_another_boot
from peers.queues import Command, QueuePeer
from running import Running, broker, wait_until

import vibemq.client
import vibemq.storage.cold as cold
import vibemq.storage.ledger as ledger
import vibemq.storage.log as logs
from vibemq.broker.disk import Reserve
from vibemq.client.streams import StreamsConnection
from vibemq.errors import StorageError, VibeMQError
from vibemq.remote.objects import Damaged, opened, sealed
from vibemq.remote.objects import Kind as ObjectKind
from vibemq.server import datadir, lease
from vibemq.server.recovery import Recovery
from vibemq.storage.members import MemberTable
from vibemq.storage.metadata import Metadata
from vibemq.storage.offsets import StoredOffsets
from vibemq.storage.reading import ChunkReader

COUNT, BATCH, SEGMENT_BYTES = 600, 10, 16_384
ALL = os.environ.get("VIBEMQ_DAMAGE") == "all"
#: Of each kind and boot where not every byte is flipped.
FLIPS, CUTS = 10, 3
SEED = int(os.environ.get("VIBEMQ_DAMAGE_SEED") or random.randrange(1 << 32))
INODE_AT = 24  # in the control page
BLOCK = 16_384  # offsets of a ledger's block
#: A start for each byte of a block takes hours: csrc/tests/ledger_damage_test.c flips each byte of a block.
BLOCK_BYTES, BLOCK_STEP = 16 * BLOCK, 64
HARMS = ("flip", "cut", "missing")


@dataclass
class Facts:
    """The content that a data directory serves."""

    refused: str = ""
    said: str = ""
    accounts: list[object] = field(default_factory=list)
    messages: dict[int, bytes] = field(default_factory=dict)
    next_offset: int = 0
    published: int = 0
    offsets: dict[bytes, int] = field(default_factory=dict)
    settled: dict[str, int] = field(default_factory=dict)  # of each queue, bit by bit
    owed: dict[str, tuple[list[object], int]] = field(default_factory=dict)  # of absent members: ranges, position


class World:
    """A data directory with files that are restored before each case."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.reserve = Reserve(str(folder), 0)
        self.files = {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        self.directories = [str(folder), *(str(path) for path in folder.rglob("*") if path.is_dir())]
        #: Segments are large and never mapped for writing: their states show whether they were changed.
        self.segments = {name: _state(name) for name in self.files if name.endswith(".segment")}
        metadata = Metadata(datadir.metadata_path(str(folder)))
        found = {record.name: record.incarnation for record in metadata.streams()}
        self.events, self.orders, self.many = found["events"], found["orders"], found["many"]
        self.news = found.get("news", "none")
        metadata.close()
        self.log = str(folder / "streams" / self.events)

    def put_back(self) -> None:
        for directory in self.directories:
            for entry in os.scandir(directory):
                if entry.is_file() and entry.path not in self.files:
                    os.unlink(entry.path)
        for name, data in self.files.items():
            if name in self.segments and self.segments[name] == _state(name):
                continue
            if name.endswith("/control"):
                inode = os.stat(name).st_ino if os.path.exists(name) else 0
                data = data[:INODE_AT] + inode.to_bytes(8, sys.byteorder) + data[INODE_AT + 8 :]
            if _bytes(name) == data:
                continue
            with open(name, "wb") as file:
                if name.endswith("/control"):
                    inode = os.fstat(file.fileno()).st_ino
                    data = data[:INODE_AT] + inode.to_bytes(8, sys.byteorder) + data[INODE_AT + 8 :]
                file.write(data)
            if name in self.segments:
                self.segments[name] = _state(name)

    def find(self, kind: Kind) -> Path:
        pattern = kind.pattern.format(events=self.events, orders=self.orders, many=self.many, news=self.news)
        return sorted(self.folder.glob(pattern))[kind.which]

    def start(self, caplog: pytest.LogCaptureFixture, boot: str) -> Facts:
        """Recover as the supervisor does before it serves, and return the content for readers."""
        facts = Facts()
        caplog.clear()
        path, number = datadir.metadata_path(str(self.folder)), datadir.boot_id()
        if boot == "another":
            for directory in (self.folder / "streams").iterdir():
                if (directory / "control").exists():
                    with suppress(OSError):
                        write_in_another_boot(directory)
            number = "another boot"
        metadata = None
        try:
            with open(self.folder / "lock", "ab") as lock:
                held = lease.take(str(self.folder), lock.fileno(), number)
            datadir.identify(str(self.folder), has_bucket=False)
            metadata = Metadata(path)
            metadata.require_whole(number if held.vouches else "", is_restorable=False)
            metadata.begin_serving(number)
            metadata.require_access()
            held.begin()
            believed, is_orderly = held.believed, held.is_orderly
            options = {"reserve": self.reserve, "believed": believed, "is_orderly": is_orderly}
            Recovery(metadata, SEGMENT_BYTES, SEGMENT_BYTES, **options).before_serving()
            facts.accounts = [metadata.users(), metadata.permissions("eve"), [r.name for r in metadata.logs()]]
        except VibeMQError as problem:
            facts.refused = f"{problem} {problem.hint}"
        finally:
            if metadata is not None:
                metadata.close()
        if not facts.refused:
            self.read(facts)
        facts.said += caplog.text
        return facts

    def read(self, facts: Facts) -> None:
        held = logs.Log(self.log)
        facts.next_offset, facts.published = held.stats().next_offset, held.publisher_sequence("ref")
        held.close()
        for queue in (self.orders, self.many):
            base, ranges = ledger.settled(str(self.folder / "streams" / queue))
            facts.settled[queue] = sum((1 << end) - (1 << first) for first, end in [(0, base), *ranges])
        with suppress(FileNotFoundError):
            for one in MemberTable(str(self.folder / "streams" / self.news), False).all():
                facts.owed[one.name] = (one.copies, one.cursor)
        stored = StoredOffsets(self.log)
        facts.offsets = stored.all()
        stored.close()
        for at in range(0, facts.next_offset, BATCH):
            try:
                reader = ChunkReader(os.open(self.log, os.O_RDONLY | os.O_DIRECTORY), self.log)
                reader.attach(at)
                chunk = reader.take()
            except StorageError as problem:
                facts.said += str(problem)
                continue
            facts.messages.update(messages_of(chunk))


def _state(name: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(name)
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def _bytes(name: str) -> bytes | None:
    try:
        with open(name, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return None


@lru_cache
def messages_of(chunk: bytes) -> dict[int, bytes]:
    found = {}
    first, place = int.from_bytes(chunk[24:32]), 48
    while place < len(chunk):
        size = int.from_bytes(chunk[place : place + 4])
        found[first] = chunk[place + 4 : place + 4 + size]
        first, place = first + 1, place + 4 + size
    return found


def write(folder: Path, *, kill: bool) -> None:
    ends = pytest.raises(AssertionError, match="did not stop cleanly") if kill else nullcontext()
    with ends, broker(folder, "--set", f"store.segment_size_bytes={SEGMENT_BYTES}") as served:
        with StreamsConnection.connect(served.host, served.port) as connection:
            connection.create("events")
            connection.create("other")
            with connection.publisher("events", "ref") as publisher:
                for at in range(0, COUNT, BATCH):
                    publisher.publish([b"message %d " % number + b"." * 150 for number in range(at, at + BATCH)])
                    publisher.flush()
            for number in range(5):
                connection.store_offset(f"reader{number}", "events", 100 * number)
                assert connection.query_offset(f"reader{number}", "events") == 100 * number
        with vibemq.client.connect(f"vibemq://{served.host}:{served.native_port}") as client:
            client.publish_many("orders", list(range(40)))
            with client.consume("orders") as consumer:
                for message, number in zip(consumer, range(20), strict=False):
                    if number < 5 or number % 2:
                        message.ack()
                client.queue_info("orders")  # answered after the acknowledgements were read
            client.publish_many("many", range(3 * BLOCK + 100))
        if not kill:
            write_news(served)
        metadata = Metadata(datadir.metadata_path(str(folder)))
        for name in ("ada", "eve"):
            metadata.add_user(name, f"$argon2id$of {name}")
        metadata.grant("eve", "orders", [1])
        metadata.close()
        if kill:
            workers = served.worker_pids()
            served.process.kill()
            wait_until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in workers), "their end")
    (folder / "reserve").unlink(missing_ok=True)
    metadata = Metadata(datadir.metadata_path(str(folder))) if not kill else None
    if metadata is None:
        return
    metadata.rest()
    directory, many = (str(metadata.find_stream("/", name).directory) for name in ("events", "many"))
    metadata.close()
    # As if most of its messages had been delivered, and all of its second block, which was removed then.
    os.unlink(f"{many}/ledger")
    ledger.restore(many, 10, [(20, 30), (BLOCK, 2 * BLOCK + 500), (3 * BLOCK - 1, 3 * BLOCK + 50)])
    os.rename(f"{many}/{BLOCK:020}.ledger", f"{many}/{BLOCK:020}.settled")
    os.truncate(f"{many}/{BLOCK:020}.settled", 0)
    # As if the first two segments were in an object store as well, and a block of one had been fetched.
    first, second, third = logs.segments(directory)[:3]
    for begin, end in ((first, second), (second, third)):
        cold.write_stub(directory, cold.describe(directory, begin, end, 1))
    head = struct.pack(">4sIQQI", b"VMQK", 1, first, os.path.getsize(f"{directory}/{first:020}.segment"), 8 << 20)
    Path(directory, f"{first:020}.cold").write_bytes(head.ljust(4096, b"\0"))


def write_news(served: Running) -> None:
    """An absent member of a fan-out is owed three messages that another member has acknowledged."""
    with QueuePeer(served) as first, QueuePeer(served) as second:
        first.create("news", mode=1)
        for peer, name in ((first, "first"), (second, "audit")):
            headers = {"vibemq-subscriber": name, "vibemq-subscriber-ttl": "600"}
            peer.ask(Command.SUBSCRIBE, queue="news", headers=headers)
        first.await_subscribers("news", 2)
        first.publish_all("news", range(3))
        first.ack(*first.take(3))
        second.take(3)
        second.close()
        first.await_counts("news", 3)


@pytest.fixture(scope="module")
def worlds() -> Iterator[dict[bool, World]]:
    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # thousands of small files are put back
    with tempfile.TemporaryDirectory(dir=base) as folder:
        found = {}
        for kill in (False, True):
            data = Path(folder, f"killed-{kill}")
            data.mkdir(mode=0o700)
            write(data, kill=kill)
            found[kill] = World(data)
        yield found


def cases(harm: str, size: int, chance: random.Random) -> Iterator[tuple[int, int]]:
    """Yield each position and bit, or the size that is left, once."""
    if harm == "missing":
        yield 0, 0
    elif size == 0:
        return
    elif harm == "cut":
        yield from ((chance.randrange(size), 0) for _ in range(CUTS))
    elif ALL:
        step = BLOCK_STEP if size == BLOCK_BYTES else 1
        yield from ((at + chance.randrange(step), chance.randrange(8)) for at in range(0, size, step))
    else:  # half of them in the header, where most is decided
        for number in range(FLIPS):
            yield chance.randrange(min(size, 128) if number % 2 else size), chance.randrange(8)


def damage(path: Path, harm: str, at: int, bit: int) -> None:
    if harm == "missing":
        path.unlink()
    elif harm == "cut":
        os.truncate(path, at)
    else:
        data = bytearray(path.read_bytes())
        data[at] ^= 1 << bit
        path.write_bytes(data)


def check(kind: Kind, cost: str, before: Facts, now: Facts, path: Path, segments: list[int]) -> None:
    if now.refused:
        assert cost == REFUSED
        assert kind.pattern.rpartition("/")[2].replace("*", "") in now.refused or "meta." in now.refused
        return
    assert now.accounts == before.accounts
    assert now.messages.items() <= before.messages.items(), "each is the message published there"
    lost = before.messages.keys() - now.messages.keys()
    for queue, settled in before.settled.items():
        assert now.settled[queue] & ~settled == 0, "no message that waits is taken for settled"
    if now.settled != before.settled:
        assert cost == AGAIN
        assert not kind.names or path.exists() or path.stem in now.said, "it is named"
    for name, (ranges, position) in before.owed.items():
        found = now.owed.get(name)
        assert cost == COPIES if found is None else found[0] == ranges and found[1] <= position
    gone = before.offsets.items() - now.offsets.items()
    assert now.offsets.items() <= before.offsets.items()
    if gone:
        assert cost == OFFSETS
        assert f"{path} is missing" in now.said or f"{path.parent}: " in now.said, "it is named"
    if lost:
        assert cost in (CHUNK, BEHIND_CUT, SEGMENT)
        first = int(path.name.partition(".")[0])
        after = min((number for number in segments if number > first), default=COUNT)
        assert first <= min(lost) and max(lost) < after, "of other files nothing is lost"
        assert cost != CHUNK or len(lost) <= BATCH
        assert path.name in now.said, "it is named"
        ends_log = after == COUNT and max(lost) == COUNT - 1
    if not lost or not ends_log:
        assert (now.next_offset, now.published) == (before.next_offset, before.published)
    else:
        assert now.next_offset in (COUNT, min(lost)), "an offset is given again only where the log was cut"
        assert min(lost) <= now.published <= now.next_offset


@pytest.mark.parametrize("kind", damage_table.FILES, ids=lambda kind: kind.name.replace("`", ""))
@pytest.mark.parametrize("boot", ["the same", "another"])
def test_the_cost_of_damage_is_that_of_the_document(worlds, caplog, kind, boot):
    caplog.set_level(logging.WARNING)
    chance = random.Random(f"{SEED} {kind.name} {boot}")
    world = worlds[kind.killed]
    world.put_back()
    before = world.start(caplog, boot)
    assert before.refused == "" and len(before.messages) == COUNT and before.published == COUNT
    assert len(before.offsets) == 5
    world.put_back()
    segments = logs.segments(world.log)
    for harm in HARMS:
        cost = {"flip": kind.flip, "cut": kind.cut, "missing": kind.missing}[harm]
        world.put_back()
        for at, bit in cases(harm, world.find(kind).stat().st_size, chance):
            world.put_back()
            path = world.find(kind)
            damage(path, harm, at, bit)
            now = world.start(caplog, boot)
            try:
                check(kind, cost, before, now, path, segments)
            except AssertionError as problem:
                case = f"{path.name}: {harm} at {at}, bit {bit}; VIBEMQ_DAMAGE_SEED={SEED}\n{now.refused}\n{now.said}"
                raise AssertionError(f"{case}\n{problem}") from None


@pytest.mark.parametrize("kind", ObjectKind)
def test_every_flipped_bit_and_every_cut_of_an_object_is_found(kind):
    key = f"some/key/of/{kind.name.lower()}"
    body = bytes(range(256)) + random.Random(SEED).randbytes(300)
    whole = sealed(key, kind, body)
    assert opened(key, kind, whole) == body
    for at in range(len(whole)):
        for bit in range(8):
            harmed = bytearray(whole)
            harmed[at] ^= 1 << bit
            with pytest.raises(Damaged):
                opened(key, kind, harmed)
        with pytest.raises(Damaged):
            opened(key, kind, whole[:at])


def test_the_document_has_a_row_for_each_kind_and_the_costs_of_the_tests():
    text = damage_table.DOCUMENT.read_text()
    assert text == damage_table.document(text), "run `python tests/server/damage_table.py`"
    named = {name for name, *_ in damage_table.OBJECTS}
    assert named == {kind.name for kind in ObjectKind} - {"PROBE"}
