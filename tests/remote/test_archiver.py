# SPDX-License-Identifier: Apache-2.0
"""The archiver's parts in this process, over what a real broker has left: a data directory and a bucket in a folder.

Each test has copies of both, and does to them what disks, stores and other brokers do.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import zlib
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
from running import wait_until
from test_damage import other_boot
from test_lost_machine import lost

import vibemq.server.archiver as process
from vibemq import config
from vibemq.broker.disk import Reserve
from vibemq.client.streams import StreamsConnection
from vibemq.errors import StorageError, Superseded
from vibemq.remote import archiver as archiver_module
from vibemq.remote import opening, restoring
from vibemq.remote import tier as module
from vibemq.remote.archiver import Archiver
from vibemq.remote.bucket import Away, Bucket
from vibemq.remote.epochs import Epochs, WriteAheadObject
from vibemq.remote.objects import Kind, Place
from vibemq.remote.stubs import stub_of
from vibemq.remote.tier import Tier
from vibemq.remote.verifying import verify
from vibemq.server import opening as server_opening
from vibemq.server.recovery import recover_all
from vibemq.storage import cold, identity, shm
from vibemq.storage.log import SEGMENT_HEADER_BYTES, Log
from vibemq.storage.metadata import Metadata
from vibemq.storage.records import StreamRecord
from vibemq.storage.tail import Tail

pytest.importorskip("obstore", reason="needs the extra remote")
pytestmark = pytest.mark.timeout(60)

COUNT = 1200
CLOSED = 3  # segments of each stream, at least
STREAMS = {"events": "remote", "more": "remote", "tiered": "os"}
END_S_MAX = 20


@pytest.fixture(scope="module")
def left(tmp_path_factory) -> Path:
    """Of a broker that was killed: `data` and `bucket`."""
    folder = tmp_path_factory.mktemp("left")
    with lost(folder / "data", folder / "bucket", "processes") as running:
        connection = StreamsConnection.connect(running.host, running.port, user="guest", password="guest")
        for name, durability in STREAMS.items():
            connection.create(name, {"durability": durability})
            with connection.publisher(name, "ref") as publisher:
                for at in range(0, COUNT, 50):
                    publisher.publish([b"%06d" % number + b" " * 800 for number in range(at, at + 50)])
                    publisher.flush()
        segments = folder / "bucket/streams"

        def are_up() -> bool:
            return segments.is_dir() and all(
                len(list(one.glob("*.segment"))) >= CLOSED for one in segments.iterdir()
            ) and len(list(segments.iterdir())) == len(STREAMS)  # fmt: skip

        wait_until(are_up, "closed segments are in the store")
        connection.close()
    return folder


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
        return Tier(remote, self.bucket, self.metadata, lambda *what: self.uploaded.append(what))

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
        recover_all(metadata or self.metadata, *sizes, reserve=Reserve(self.data, 0))


@pytest.fixture
def world(left, tmp_path):
    shutil.copytree(left, tmp_path / "w", ignore=shutil.ignore_patterns("reserve", "*.sock"))
    remote = config.Remote(url=f"file://{tmp_path}/w/bucket")
    metadata = Metadata(str(tmp_path / "w/data/meta.db"))
    made = World(tmp_path / "w", remote, metadata, Bucket(remote), [])
    made.recover()  # a log's page says which file it is, and a copy is another
    yield made
    metadata.close()


@pytest.fixture
def at_once(monkeypatch):
    """What would be tried again after a while is tried again at once."""
    for one in (module, restoring, opening):
        for name in ("RETRY_S", "RETRY_S_MIN", "RETRY_S_MAX"):
            if hasattr(one, name):
                monkeypatch.setattr(one, name, 0.0)


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


# ---- starts ----


def test_a_start_takes_one_epoch(left):
    assert sorted(os.listdir(left / "bucket/brokers/vibemq")) == ["00000001", "00000001.sealed"]


def failing(monkeypatch, times: int) -> None:
    """Each write-ahead object can be read after so many attempts."""
    real, asked = Epochs.read, {}

    async def read(self: Epochs, found: WriteAheadObject):
        if asked.setdefault(found.key, 0) < times:
            asked[found.key] += 1
            raise Away(f"cannot read {found.key}: it is tried again")
        return await real(self, found)

    monkeypatch.setattr(Epochs, "read", read)


def restored(world: World, data: Path) -> dict[str, tuple[int, int]]:
    data.mkdir(exist_ok=True)
    identity.make(str(data))
    asyncio.run(opening.open_bucket(world.configuration(str(data))))
    metadata = Metadata(str(data / "meta.db"))
    world.recover(metadata)
    found = {record.name: next_offset(record.directory) for record in metadata.streams()}
    metadata.close()
    return found


def test_a_start_waits_for_objects_that_cannot_be_read_just_now(world, tmp_path, monkeypatch, at_once):
    failing(monkeypatch, 3)
    found = restored(world, tmp_path / "other")
    assert {name: found[name] for name in ("events", "more")} == {"events": (0, COUNT), "more": (0, COUNT)}


def test_a_start_that_has_waited_for_long_enough_fails_and_the_next_one_has_everything(
    world, tmp_path, monkeypatch, at_once
):
    data = tmp_path / "other"
    with monkeypatch.context() as away:
        away.setattr(restoring, "ANSWER_TIMEOUT_S", 0.0)
        failing(away, 1000)
        with pytest.raises(Away):
            restored(world, data)
    assert restored(world, data)["events"] == (0, COUNT)


@pytest.mark.parametrize("harm", ["damaged", "gone"])
def test_a_start_names_a_table_that_cannot_be_used_and_restores_everything_else(world, tmp_path, caplog, at_once, harm):
    """`verify` says what it means: one publisher may store a message twice."""
    table = world.objects("events", "tracking")[-1]
    if harm == "gone":
        table.unlink()
    else:
        flip(table, 20)
    assert {*restored(world, tmp_path / "other").values()} == {(0, COUNT), (0, next_of_tiered(world))}
    assert table.name in caplog.text


def next_of_tiered(world: World) -> int:
    """Of a stream of durability os only closed segments are in the store."""
    return int(world.objects("tiered")[-1].name.split("-")[1])


@pytest.mark.parametrize("encrypted", [False, True])
def test_one_damaged_object_keeps_nobody_from_making_stubs_again(world, tmp_path, monkeypatch, encrypted):
    world.only_in_the_store("tiered", 2)
    oldest, first = world.files("tiered", "remote")[0], world.objects("tiered")[0]
    before = oldest.read_bytes()
    os.truncate(oldest, 0)
    if encrypted:  # then each object's size is looked at
        keys = tmp_path / "keys"
        keys.touch(mode=0o600)
        keys.write_text("1 " + "11" * 32)
        world.bucket = Bucket(config.Remote(url=world.remote.url, encryption_keys=str(keys)))
        first.write_bytes(first.read_bytes()[:-1] + b"?")
    reconciled(world)
    assert len(cold.stubs(str(oldest.parent))) == len(world.files("tiered", "remote"))
    assert (oldest.read_bytes() == before) is not encrypted


def test_who_was_superseded_hears_it_from_the_process_that_opens_the_bucket(world, monkeypatch):
    async def refuse(_: config.Config) -> int:
        raise Superseded("another one is there", hint="start with an empty directory")

    monkeypatch.setattr(opening, "open_bucket", refuse)
    with pytest.raises(Superseded, match="another one is there") as said:
        server_opening.open_bucket(world.configuration())
    assert (said.value.hint, said.value.exit_code) == ("start with an empty directory", 3)


# ---- stubs ----


def test_a_damaged_stub_is_made_again_before_recovery_begins_the_log_behind_it(world, at_once):
    world.only_in_the_store("tiered", 2)
    there = world.objects("tiered")
    oldest = world.files("tiered", "remote")[0]
    before = oldest.read_bytes()
    flip(oldest, 20)
    other_boot(Path(world.data))
    asyncio.run(opening.open_bucket(world.configuration()))
    world.recover()
    assert oldest.read_bytes() == before
    assert next_offset(str(world.directory("tiered")))[0] == 0
    reconciled(world)
    assert world.objects("tiered") == there


def test_a_damaged_stub_is_made_again_while_the_log_is_in_use(world):
    world.only_in_the_store("tiered", 2)
    oldest = world.files("tiered", "remote")[0]
    before = oldest.read_bytes()
    os.truncate(oldest, 10)
    reconciled(world)
    assert oldest.read_bytes() == before


def test_objects_of_a_log_stay_when_its_oldest_stub_was_damaged_and_nobody_has_made_it_again(world):
    world.only_in_the_store("tiered", 2)
    there, oldest = world.objects("tiered"), world.files("tiered", "remote")[0]
    os.truncate(oldest, 10)
    other_boot(Path(world.data))
    world.recover()  # as of a broker without [remote], and then with it again
    assert next_offset(str(world.directory("tiered")))[0] > 0
    reconciled(world)
    assert world.objects("tiered") == there and list(world.directory("tiered").glob("*.quarantine"))


def test_a_damaged_stub_that_the_bucket_knows_nothing_of_is_put_aside_and_said(world, caplog):
    world.only_in_the_store("tiered", 2)
    world.objects("tiered")[0].unlink()
    there, oldest = world.objects("tiered"), world.files("tiered", "remote")[0]
    os.truncate(oldest, 10)
    reconciled(world)
    assert not oldest.exists() and "the bucket has no such segment" in caplog.text
    assert world.objects("tiered") == there


def reconciled(world: World) -> None:
    async def reconcile() -> None:
        await world.tier()._reconcile()

    asyncio.run(reconcile())


# ---- up ----


def test_nothing_goes_up_before_stubs_were_compared_with_the_bucket(world, monkeypatch):
    world.not_sent("tiered")

    async def compare() -> None:
        tier, may_list, written = world.tier(), asyncio.Event(), asyncio.Event()
        real = world.bucket.listed

        async def listed(prefix: str, after: str = ""):
            found = await real(prefix, after)
            await may_list.wait()
            return found

        async def write(key: str, kind: Kind, pieces: object) -> None:
            written.set()

        async def inline(work, *args):
            return work(*args)

        monkeypatch.setattr(world.bucket, "listed", listed)
        monkeypatch.setattr(world.bucket, "write", write)
        monkeypatch.setattr(asyncio, "to_thread", inline)  # so that nothing is under way but what waits for the store
        tier.look_at(world.record("tiered"))
        tier.start()
        for _ in range(1000):
            await asyncio.sleep(0)
        assert not written.is_set(), "its object would not be in the listing"
        may_list.set()
        await asyncio.wait_for(written.wait(), END_S_MAX)
        await tier.close()

    asyncio.run(compare())


@pytest.mark.parametrize("problem", [OSError("of this disk"), StorageError("ERR_IO", "of this disk")])
def test_a_log_that_cannot_be_compared_with_the_bucket_holds_up_no_other(world, monkeypatch, problem):
    number, bad, real = world.not_sent("more"), str(world.directory("events")), module.mend

    async def mend(bucket: Bucket, directory: str, places: dict[Place, int]) -> None:
        if directory == bad:
            raise problem
        await real(bucket, directory, places)

    monkeypatch.setattr(module, "mend", mend)

    async def send() -> None:
        tier = world.tier()
        tier.look_at(world.record("more"))
        tier.start()
        await until((world.directory("more") / f"{number:020}.remote").exists, "the other's segment is in the store")
        await tier.close()

    asyncio.run(send())


def harm_header(world: World, monkeypatch, segment: Path) -> None:
    flip(segment, SEGMENT_HEADER_BYTES)


def harm_entries(world: World, monkeypatch, segment: Path) -> None:
    flip(segment, segment.stat().st_size // 2)


def harm_file(world: World, monkeypatch, segment: Path) -> None:
    flip(segment, 3)


def harm_us(world: World, monkeypatch, segment: Path) -> None:
    """A mistake of ours is no reason, either."""
    real = cold.describe

    def describe(directory: str, *args: int):
        if directory == str(segment.parent):
            raise RuntimeError("a mistake")
        return real(directory, *args)

    monkeypatch.setattr(cold, "describe", describe)


@pytest.mark.parametrize("harm", [harm_header, harm_entries, harm_file, harm_us])
def test_a_stream_whose_segment_cannot_be_sent_is_named_and_holds_up_no_other(world, monkeypatch, harm):
    monkeypatch.setattr(module, "RETRY_S_MIN", 3600.0)
    first = world.not_sent("events")
    others = [(name, world.not_sent(name)) for name in ("tiered", "more")]
    segment = world.directory("events") / f"{first:020}.segment"
    harm(world, monkeypatch, segment)

    async def send() -> None:
        tier = world.tier()
        for name in ("events", "tiered", "more"):
            tier.look_at(world.record(name))
        tier.start()
        for name, number in others:
            stub = world.directory(name) / f"{number:020}.remote"
            await until(stub.exists, f"the segment of {name} is in the store")
        said = tier.status()
        assert said["streams_waiting_to_be_sent"] == 1 and tier.is_busy, "older objects stay as long"
        [(name, why)] = tier.unsent.items()
        assert name == "events" and (str(first) in why or "mistake" in why)
        await tier.close()

    asyncio.run(send())
    assert not [one for one in world.objects("events") if one.name.startswith(f"{first:020}")]
    assert (world.record("events").incarnation, first) not in world.uploaded


def test_a_damaged_chunk_that_nothing_else_has_goes_up_as_it_is_and_verify_names_it(world):
    """Or the disk would be full of what cannot go."""
    first = world.not_sent("tiered")
    harm_entries(world, None, world.directory("tiered") / f"{first:020}.segment")

    async def send() -> list[str]:
        tier = world.tier()
        tier.look_at(world.record("tiered"))
        tier.start()
        await until((world.directory("tiered") / f"{first:020}.remote").exists, "it is in the store")
        await tier.close()
        return [
            finding.line() for finding in (await verify(world.bucket, is_quick=False)).findings if finding.is_problem
        ]

    [line] = asyncio.run(send())
    assert f"/{first:020}-" in line and "(CRC)" in line and "'tiered'" in line


def test_what_is_damaged_here_and_whole_in_the_store_comes_back_as_the_status_says(world, at_once):
    """The object store has the confirmed chunks in write-ahead objects as long as the segment was not sent."""
    first = world.not_sent("events")
    directory = world.directory("events")
    segment = directory / f"{first:020}.segment"
    whole = segment.read_bytes()
    harm_entries(world, None, segment)
    with pytest.raises(StorageError, match=f"put {directory} elsewhere"):
        module._require_whole(str(directory), first, int(world.files("events", "segment")[-1].stem))
    directory.rename(world.folder / "elsewhere")
    asyncio.run(opening.open_bucket(world.configuration()))
    world.recover()
    assert segment.read_bytes() == whole and next_offset(str(directory)) == (0, COUNT)


def test_bytes_behind_the_last_offset_of_a_segment_are_no_damage(world):
    first = world.not_sent("events")
    after = int(world.files("events", "segment")[-1].stem)
    segment = world.directory("events") / f"{first:020}.segment"
    whole = segment.read_bytes()
    module._require_whole(str(segment.parent), first, after)
    for behind in (b"\0" * 100, os.urandom(5000)):
        segment.write_bytes(whole + behind)
        module._require_whole(str(segment.parent), first, after)
    segment.write_bytes(whole[:-10])
    with pytest.raises(StorageError, match="ends within a chunk"):
        module._require_whole(str(segment.parent), first, after)


# ---- away ----


@pytest.mark.parametrize("times", [2, module.FORGET_TRIES])
def test_the_objects_of_a_deleted_stream_are_tried_to_be_deleted_so_often(world, monkeypatch, at_once, caplog, times):
    incarnation, left_to_fail = world.record("tiered").incarnation, times
    real = world.bucket.delete

    async def delete(keys: list[str]) -> None:
        nonlocal left_to_fail
        left_to_fail -= 1
        if left_to_fail >= 0:
            raise Away("not now")
        await real(keys)

    monkeypatch.setattr(world.bucket, "delete", delete)

    async def forget() -> None:
        tier = world.tier()
        tier.forget([incarnation])
        await until(lambda: not tier._tasks, "it is done or given up")

    there = len(world.objects("tiered"))
    asyncio.run(forget())
    is_given_up = times == module.FORGET_TRIES
    assert len(world.objects("tiered")) == (there if is_given_up else 0)
    assert ("`vibemq remote prune` deletes it" in caplog.text) == is_given_up


# ---- back ----

BLOCKS = 6
ROOM = 3


@pytest.fixture
def large(world):
    """A segment of several blocks that is only in the store; its first offset and its bytes."""
    first, size = 10_000, BLOCKS * cold.BLOCK_BYTES - 1000
    body = os.urandom(1 << 20) * (size // (1 << 20) + 1)
    place = Place(world.record("tiered").incarnation, first, first + 1, 1, 7, 1, 2)
    asyncio.run(world.bucket.write(place.key(), Kind.SEGMENT, [body[:size]]))
    cold.write_stub(str(world.directory("tiered")), stub_of(place, size))
    return first, body[:size]


def held_bytes(world: World) -> int:
    return sum(path.stat().st_blocks * 512 for path in world.directory("tiered").glob("*.cold"))


def test_what_is_fetched_of_one_segment_stays_within_the_cache_and_can_be_read(world, large):
    first, body = large
    most = ROOM * cold.BLOCK_BYTES
    incarnation = world.record("tiered").incarnation

    async def read_on() -> None:
        tier = world.tier(cache_size_max_bytes=most)
        path = world.directory("tiered") / f"{first:020}.cold"
        for number in range(BLOCKS):
            start = number * cold.BLOCK_BYTES
            await tier.cache.fetch(incarnation, first, start, min(start + 4096, len(body)))
            assert cold.Blocks(str(path.parent), first).marks()[number], "what was asked for is there"
            with path.open("rb") as file:
                assert zlib.crc32(os.pread(file.fileno(), 4096, 4096 + start)) == zlib.crc32(body[start:][:4096])
            await until(lambda: not tier.cache._fetching, "what is read ahead")
            assert tier.cache.bytes <= most and held_bytes(world) <= most + (64 << 10)
        await tier.cache.fetch(
            incarnation, first, 0, 2 * most
        )  # one question may be larger: who reads asks for the rest
        assert tier.cache.bytes == most and held_bytes(world) <= most + (64 << 10)

    asyncio.run(read_on())


def test_blocks_that_an_earlier_archiver_has_fetched_do_not_stay_uncounted(world, large):
    first, _ = large
    incarnation = world.record("tiered").incarnation

    async def two() -> None:
        await world.tier().cache.fetch(incarnation, first, 0, 1)
        assert held_bytes(world) >= cold.BLOCK_BYTES
        second = world.tier()
        await second.cache.clear()
        assert held_bytes(world) == 0
        await second.cache.fetch(incarnation, first, 0, 1)
        await second.cache.clear()  # not what it has itself
        assert held_bytes(world) >= cold.BLOCK_BYTES

    asyncio.run(two())


# ---- the process ----


def board() -> tuple[int, list[int]]:
    fd = os.memfd_create("board")
    shm.board_init(fd, 1)
    return fd, [os.eventfd(0, os.EFD_NONBLOCK)]


def test_streams_that_cannot_be_followed_or_sent_are_named_and_the_others_are_sent(world):
    harm_header(world, None, world.directory("tiered") / f"{world.not_sent('tiered'):020}.segment")
    for suffix in ("segment", "index"):
        flip(world.files("events", suffix)[-1], 3)  # the headers of what is written to now
    fd, doorbells = board()

    async def serve() -> dict[str, object]:
        epochs = Epochs(world.bucket, "vibemq", world.data)
        seat = shm.Board(fd, 0, doorbells)
        made = Archiver(world.remote, world.metadata, seat, world.bucket, epochs, await epochs.take())
        is_over = asyncio.Event()
        task = asyncio.create_task(made.serve(is_over.is_set, lambda: None))
        await until(lambda: remote_offset(world, "more") == COUNT, "the other stream is in the store")
        await until(lambda: len(made.status()["streams_that_cannot_be_sent"]) == 2, "both are named")  # type: ignore[arg-type]
        said = made.status()
        is_over.set()
        await task
        return said

    said = asyncio.run(serve())
    assert said["streams_not_followed"] == 1
    assert {"events", "tiered"} == said["streams_that_cannot_be_sent"].keys()  # type: ignore[attr-defined]


def test_a_newer_epoch_is_noticed_without_any_traffic_and_ends_the_archiver_with_its_own_exit_code(
    world, tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr(archiver_module, "NEWER_LOOK_S", 0.0)
    caplog.set_level(logging.INFO)
    fd, doorbells = board()
    ready, ready_fd = os.pipe()
    other = tmp_path / "another"
    other.mkdir()
    identity.make(str(other))

    async def run() -> int:
        epoch = await Epochs(world.bucket, "vibemq", world.data).take()
        context = SimpleNamespace(
            config=world.configuration(), data_dir=world.data, metadata_path=f"{world.data}/meta.db",
            supervisor_pid=os.getppid(), board_fd=fd, archiver_seat=0, doorbell_fds=doorbells, ready_fd=ready_fd,
            epoch=epoch,
        )  # fmt: skip
        task = asyncio.create_task(process._run(context))  # type: ignore[arg-type]
        assert await asyncio.to_thread(os.read, ready, 1) == b"R"
        await until(lambda: all(remote_offset(world, name) == COUNT for name in ("events", "more")), "nothing waits")
        assert sorted(os.listdir(world.folder / "bucket/brokers/vibemq"))[-1] == f"{epoch:08}.sealed", "it takes none"
        await Epochs(world.bucket, "vibemq", str(other)).take(goes_on=False)
        return await asyncio.wait_for(task, END_S_MAX)

    assert asyncio.run(run()) == Superseded.exit_code
    assert "another broker has taken this one's place" in caplog.text
    assert "Traceback" not in caplog.text


# ---- what is damaged and goes up as it is ----


@pytest.mark.parametrize("room_bytes", [1000, 1 << 20])
def test_a_chunk_whose_header_is_damaged_is_passed_on_in_whatever_room_there_is(world, room_bytes):
    segment = world.files("events", "segment")[1]
    data, first = segment.read_bytes(), int(segment.stem)
    after = int(world.files("events", "segment")[2].stem)
    tail = Tail(str(segment.parent))
    tail.begin(first)
    at = SEGMENT_HEADER_BYTES + tail.next_bytes()
    assert tail.next_bytes() > 1000, "larger than the room"
    flip(segment, at + 20)
    tail.begin(first)
    taken, room = [], bytearray(max(room_bytes, 1000))
    while tail.waiting_bytes():
        needed = tail.next_bytes()
        if needed > len(room):
            room = bytearray(needed)
        piece = tail.take(room)
        assert piece is not None, "nothing moves on any more"
        assert piece.position == SEGMENT_HEADER_BYTES + sum(map(len, taken))
        taken.append(bytes(room[: piece.size]))
        room = bytearray(room_bytes)
    now = segment.read_bytes()
    assert b"".join(taken) == now[SEGMENT_HEADER_BYTES:] and len(now) == len(data)
    assert tail.next <= after and tail.ended_by() == after
    tail.close()
