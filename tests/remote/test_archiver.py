# SPDX-License-Identifier: Apache-2.0
"""The archiver's parts in this process, over what a real broker has left: starts, stubs, and the process itself."""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from left_behind import COUNT, END_S_MAX, World, flip, next_offset, remote_offset, until
from test_damage import other_boot

import vibemq.server.archiver as process
from vibemq import config
from vibemq.errors import ConfigError, StorageError, Superseded
from vibemq.remote import archiver as archiver_module
from vibemq.remote import opening, restoring
from vibemq.remote.archiver import Archiver
from vibemq.remote.bucket import Away, Bucket
from vibemq.remote.epochs import Epochs, WriteAheadObject
from vibemq.remote.followed import CARRIED_BYTES_MAX, Followed
from vibemq.remote.objects import change_key
from vibemq.remote.write_ahead import Object
from vibemq.server import opening as server_opening
from vibemq.storage import cold, identity, shm
from vibemq.storage.log import SEGMENT_HEADER_BYTES
from vibemq.storage.metadata import Metadata
from vibemq.storage.tail import local_segments

pytest.importorskip("obstore", reason="needs the extra remote")
pytestmark = pytest.mark.timeout(300)


def anybody(_: Metadata) -> None:
    """No start is refused for its users."""


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
    asyncio.run(opening.open_bucket(world.configuration(str(data)), anybody, anybody))
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


@pytest.mark.parametrize("cut", ["truncate", "shorten"])
@pytest.mark.parametrize("path", ["format", "meta/snapshot", "meta/0", "wal/", "tracking", "list-type"])
def test_a_start_reads_again_after_an_incomplete_answer_of_the_store(world, faulty, tmp_path, path, cut):
    bucket, data = tmp_path / "w/bucket", tmp_path / "other"
    for each in bucket.rglob("*"):
        if each.is_file():
            faulty.store.overwrite(str(each.relative_to(bucket)), each.read_bytes())
    data.mkdir()
    identity.make(str(data))
    rule = getattr(faulty, cut)(10, path=path, times=1)
    configuration = msgspec.structs.replace(world.configuration(str(data)), remote=faulty.remote())
    asyncio.run(opening.open_bucket(configuration, anybody, anybody))
    assert rule.met >= 1, "the start reads such an object"
    metadata = Metadata(str(data / "meta.db"))
    world.recover(metadata)
    found = {record.name: next_offset(record.directory) for record in metadata.streams()}
    metadata.close()
    assert {name: found[name] for name in ("events", "more")} == {"events": (0, COUNT), "more": (0, COUNT)}


def test_a_restore_that_was_refused_begins_anew_when_changes_behind_its_snapshot_have_gone(
    world, tmp_path, monkeypatch, at_once
):
    def refuse(_: Metadata) -> None:
        raise ConfigError("not with these users")

    monkeypatch.setattr(opening, "SNAPSHOT_EACH", 1)
    data, meta = tmp_path / "other", tmp_path / "w/bucket/meta"
    data.mkdir()
    identity.make(str(data))
    with pytest.raises(ConfigError, match="not with these users"):
        asyncio.run(opening.open_bucket(world.configuration(str(data)), refuse, anybody))
    begun = Metadata(str(data / "meta.db"))
    number, _ = begun.binding().number, begun.close()
    names = [f"later-{turn}" for turn in range(opening.SNAPSHOTS_KEPT + 2)]
    for name in names:  # each start makes a snapshot of what the one before it changed
        asyncio.run(opening.open_bucket(world.configuration(), anybody, lambda made, name=name: made.add_vhost(name)))
    fence, change = (meta / change_key(number + behind).partition("/")[2] for behind in (1, 2))
    assert fence.exists() and not change.exists(), "a fence stays, so that nobody creates another change in its place"
    assert restored(world, data)["events"] == (0, COUNT)
    again = Metadata(str(data / "meta.db"))
    assert {vhost.name for vhost in again.vhosts()} == {"/", *names}
    again.close()


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
    async def refuse(*_: object) -> int:
        raise Superseded("another one is there", hint="start with an empty directory")

    monkeypatch.setattr(opening, "open_bucket", refuse)
    with pytest.raises(Superseded, match="another one is there") as said:
        server_opening.open_bucket(world.configuration(), anybody, anybody)
    assert (said.value.hint, said.value.exit_code) == ("start with an empty directory", 3)


# ---- stubs ----


def test_a_damaged_stub_is_made_again_before_recovery_begins_the_log_behind_it(world, at_once):
    world.only_in_the_store("tiered", 2)
    there = world.objects("tiered")
    oldest = world.files("tiered", "remote")[0]
    before = oldest.read_bytes()
    flip(oldest, 20)
    other_boot(Path(world.data))
    asyncio.run(opening.open_bucket(world.configuration(), anybody, anybody))
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


# ---- the process ----


def board() -> tuple[int, list[int]]:
    fd = os.memfd_create("board")
    shm.board_init(fd, 1)
    return fd, [os.eventfd(0, os.EFD_NONBLOCK)]


def test_streams_that_cannot_be_followed_or_sent_are_named_and_the_others_are_sent(world):
    flip(world.directory("tiered") / f"{world.not_sent('tiered'):020}.segment", SEGMENT_HEADER_BYTES)
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


def test_objects_that_a_stream_needs_stay_while_it_cannot_be_sent_and_until_it_was_sent_again(world):
    """A closed segment that is in no object of its own is one of the things for which it needs them."""
    world.not_sent("events")
    record = world.record("events")
    fd, doorbells = board()
    numbers: list[tuple[int, ...]] = []

    async def serve() -> None:
        epochs = Epochs(world.bucket, "vibemq", world.data)
        made = Archiver(
            world.remote, world.metadata, shm.Board(fd, 0, doorbells), world.bucket, epochs, await epochs.take()
        )

        async def pruned() -> None:
            made._need_no_more()
            made._prune()
            await asyncio.gather(*made.tier._tasks)
            numbers.append((made.write_ahead.first, made.write_ahead.confirmed))

        async def sent() -> None:
            await made._turn(lambda: False)
            await until(lambda: not made.write_ahead.waiting, "the object is there")

        made._follow_all()
        made.tier._looks.clear()  # nothing goes up before it is said below
        made.tier._is_looking = False
        await sent()
        failed = made.by_slot[record.slot]
        made._failed(failed, StorageError("ERR_IO", "input/output error"))
        for followed in made.by_slot.values():
            followed.begun.clear()  # as if all the others needed no object any more
        for _ in range(3):
            made.write_ahead.send(await made.write_ahead.begin())
        await until(lambda: not made.write_ahead.waiting, "three more")
        await pruned()
        made._follow_again()
        await sent()
        await pruned()
        [look] = made.tier._looks
        assert look == record.incarnation
        await made.tier._upload_closed(record)
        made.tier._looks.clear()
        await pruned()
        for followed in made.by_slot.values():
            followed.close()
        await made.write_ahead.close(END_S_MAX)

    asyncio.run(serve())
    (failing, _), (closed, _), (after, confirmed) = numbers
    assert failing == closed == 0, "what it needs lies in the first object"
    assert after == confirmed - 1, "all but the newest, which now has it"


def harm_bit(segment: Path) -> None:
    flip(segment, SEGMENT_HEADER_BYTES + 200)


def harm_end(segment: Path) -> None:
    os.truncate(segment, segment.stat().st_size - 10)


def test_a_stream_whose_file_is_shorter_than_what_was_committed_is_named(world):
    harm_end(world.files("events", "segment")[-1])
    followed = Followed(world.record("events"))
    made = Object(0, bytearray(4 << 20))
    with pytest.raises(StorageError, match="ends at byte"):
        while followed.put_chunks(made, 4 << 20, lambda _: None):
            pass
    followed.close()


@pytest.mark.parametrize("harm", [harm_bit, harm_end])
def test_a_damaged_active_segment_is_closed_to_be_repaired_and_takes_no_older_objects_place(world, harm):
    directory = world.directory("events")
    segment = int(world.files("events", "segment")[-1].stem)
    followed = Followed(world.record("events"))
    assert followed.tail.committed[0] == segment and followed.tail.position < CARRIED_BYTES_MAX
    made = Object(0, bytearray(4 << 20))
    assert followed.put_chunks(made, 4 << 20, lambda _: None)
    for mark in made.marks:
        mark()
    harm(world.files("events", "segment")[-1])
    followed.again(5)
    assert followed.needs_from() == 0 and not followed.has_chunks, "it is not sent again"
    assert local_segments(str(directory))[-1] == followed.tail.committed[0] > segment
    followed.close()


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
