# SPDX-License-Identifier: Apache-2.0
"""A broker is suspended before each of its requests while others depose it: none of its acknowledgements is wrong.

The older broker changes the metadata, deletes a stream, uploads a segment or deletes objects for retention. It is
suspended before each request in turn. Meanwhile newer brokers start with empty directories, and change, upload and
delete objects. Then it resumes. Bucket, Service, Tier, Tenure and `open_bucket` are the product's own, over a folder.
Each rule can be switched off, and then the model finds the fault that the rule prevents.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("obstore", reason="needs the extra remote")

import vibemq.storage.cold as cold
from vibemq.config import Config, Remote, Server
from vibemq.errors import RemoteError, Superseded
from vibemq.remote import epochs as epochs_module
from vibemq.remote import opening, restoring, stubs
from vibemq.remote import tier as tier_module
from vibemq.remote.asking import change_body
from vibemq.remote.bucket import Bucket
from vibemq.remote.epochs import Epochs
from vibemq.remote.objects import Kind, Place, chunks_head, segment_section, write_ahead_key
from vibemq.remote.service import Service
from vibemq.remote.tier import Tier
from vibemq.remote.write_ahead import Tenure
from vibemq.storage import identity
from vibemq.storage.log import SEGMENT_HEADER_BYTES
from vibemq.storage.metadata import Metadata

STREAM = "events"
SEGMENT_BYTES = 5000
#: Few, so that a suspended broker's numbers are deleted.
SNAPSHOT_EACH, SNAPSHOTS_KEPT = 2, 2
REQUESTS_MAX = 40
RECORD: dict[str, Any] = {
    "slot": 0, "vhost": "/", "name": STREAM, "incarnation": "00ff00ff00ff00ff", "durability": "os",
    "arguments": "{}", "created_ms": 1, "queue": None,
}  # fmt: skip


class Sleeper(Bucket):
    """A bucket that passes each request through a gate."""

    gate: Callable[[], Awaitable[None]] | None = None

    async def _ask(self, *words: Any, **more: Any) -> Any:
        if self.gate is not None:
            await self.gate()
        return await super()._ask(*words, **more)

    async def _listed(self, *words: Any) -> Any:
        if self.gate is not None:
            await self.gate()
        return await super()._listed(*words)


@dataclass
class Broker:
    """The processes of one epoch, with their own data directory."""

    folder: Path
    bucket: Sleeper
    metadata: Metadata
    tenure: Tenure
    tier: Tier
    service: Service
    acknowledged: set[str] = field(default_factory=set)

    @property
    def vhosts(self) -> set[str]:
        return {vhost.name for vhost in self.metadata.vhosts()} - {"/"}

    @property
    def streams(self) -> dict[str, Any]:
        return {record.name: record for record in self.metadata.streams()}

    async def change(self, name: str, changes: list[Any]) -> bool:
        """Make a change with the next number, as a worker does; apply other brokers' changes of that number first."""
        while True:
            bound = self.metadata.binding()
            assert bound is not None
            number, body = bound.number + 1, change_body(changes)
            try:
                answer = await self.service._change({"number": number, "body": body})
            except RemoteError:
                return False
            if (taken := answer.get("taken")) is not None:
                there = opening.from_json("taken", str(taken).encode())
                self.metadata.apply(number, there["changes"], there.get("epoch", 0))
                continue
            self.metadata.apply(number, changes, int(str(answer["epoch"])))
            self.acknowledged.add(name)
            return True

    async def add_vhost(self, name: str) -> bool:
        row = dict(zip(self.columns("vhosts"), self.metadata._rows("SELECT * FROM vhosts")[0], strict=True))
        return await self.change(name, [["insert", "vhosts", {**row, "name": name}]])

    async def delete_stream(self) -> bool:
        return await self.change("deleted", [["delete", "streams", {"slot": self.streams[STREAM].slot}]])

    def columns(self, table: str) -> list[str]:
        return [row[1] for row in self.metadata._rows(f"PRAGMA table_info({table})")]

    async def upload(self, first: int, after: int) -> bool:
        try:
            await self.tier._upload(self.streams[STREAM], first, after)
        except RemoteError:
            return False
        return True

    async def retention(self, place: Place) -> bool:
        """Delete the local segment and then its object."""
        cold.remove_stub(self.streams[STREAM].directory, place.first)
        try:
            await self.tier._delete([place])
        except RemoteError:
            return False
        return True

    def places(self) -> list[Place]:
        """Return the segments for this broker's readers."""
        record = self.streams[STREAM]
        return [stubs.place_of(record.incarnation, stub) for stub in cold.stubs(record.directory)]

    async def background(self) -> None:
        while self.tier._tasks:
            await asyncio.gather(*self.tier._tasks, return_exceptions=True)


class World:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = f"file://{folder}/bucket"
        self.brokers: list[Broker] = []
        self.numbers = count()

    async def start(self) -> Broker:
        """Start a broker of that name with an empty data directory."""
        folder = self.folder / f"data-{next(self.numbers)}"
        folder.mkdir()
        identity.make(str(folder))
        config = Config(server=Server(data_dir=str(folder)), remote=Remote(url=self.url))
        epoch = await opening.open_bucket(config, lambda metadata: None, lambda metadata: None)
        bucket, metadata = Sleeper(config.remote), Metadata(str(folder / "meta.db"))
        tenure = Tenure(Epochs(bucket, "vibemq", str(folder)), epoch)
        tier = Tier(config.remote, tenure, metadata, lambda *_: None)
        made = Broker(folder, bucket, metadata, tenure, tier, Service(str(folder), bucket, tier, tenure, dict))
        self.brokers.append(made)
        for record in made.streams.values():  # as recovery does
            Path(record.directory).mkdir(parents=True, exist_ok=True)
        return made

    async def restart_archiver(self, of: Broker) -> Broker:
        """Continue the same data directory under a new epoch, as after a kill of the archiver, without a fence."""
        bucket = Sleeper(Remote(url=self.url))
        epochs = Epochs(bucket, "vibemq", str(of.folder))
        tenure = Tenure(epochs, await epochs.take())
        tier = Tier(Remote(url=self.url), tenure, of.metadata, lambda *_: None)
        service = Service(str(of.folder), bucket, tier, tenure, dict)
        return Broker(of.folder, bucket, of.metadata, tenure, tier, service)

    def has(self, place: Place) -> bool:
        return (self.folder / "bucket" / place.key()).exists()

    def close(self) -> None:
        for one in self.brokers:
            one.metadata.close()


@pytest.fixture(autouse=True)
def model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments have random bytes, and threads are replaced by direct calls."""

    async def here(work: Callable[..., Any], *words: Any) -> Any:
        return work(*words)

    async def make(*_: Any) -> None:
        """Make no configured user."""

    async def prove(_: Bucket) -> None:
        """The proof of the store has tests of its own."""

    def describe(directory: str, first: int, after: int, epoch: int) -> cold.Stub:
        return cold.Stub(first, after, SEGMENT_BYTES, 1, 2, 7, epoch)

    monkeypatch.setattr(asyncio, "to_thread", here)
    monkeypatch.setattr(opening, "_make", make)
    monkeypatch.setattr(opening, "prove_create_only", prove)
    monkeypatch.setattr(opening, "SNAPSHOT_EACH", SNAPSHOT_EACH)
    monkeypatch.setattr(opening, "SNAPSHOTS_KEPT", SNAPSHOTS_KEPT)
    monkeypatch.setattr(tier_module, "_make_durable", lambda directory: 1)
    monkeypatch.setattr(tier_module, "_pieces", lambda path: iter([b"x" * SEGMENT_BYTES]))
    monkeypatch.setattr(cold, "describe", describe)
    monkeypatch.setattr(logging.getLogger("vibemq.remote"), "disabled", True)


ACTIONS: dict[str, Callable[[Broker, Place], Awaitable[bool]]] = {
    "change": lambda old, _: old.add_vhost("late"),
    "delete": lambda old, _: old.delete_stream(),
    "upload": lambda old, _: old.upload(100, 500),
    "upload behind": lambda old, _: old.upload(500, 600),
    "retention": lambda old, place: old.retention(place),
}


async def run(folder: Path, action: str, sleeps_before: int, takeovers: int, changes: int) -> bool:
    """Suspend the older broker before that request; False: it makes fewer requests."""
    folder.mkdir()
    world = World(folder)
    try:
        return await _run(world, action, sleeps_before, takeovers, changes)
    finally:
        world.close()


async def _run(world: World, action: str, sleeps_before: int, takeovers: int, changes: int) -> bool:
    old = await world.start()
    await old.change("stream", [["insert", "streams", RECORD]])
    Path(old.streams[STREAM].directory).mkdir(parents=True)
    assert await old.upload(0, 100)
    (first,) = old.places()
    made, asleep, awake = 0, asyncio.Event(), asyncio.Event()

    async def gate() -> None:
        nonlocal made
        made += 1
        if made == sleeps_before:
            asleep.set()
            await awake.wait()

    old.bucket.gate = gate

    async def act() -> bool:
        done = await ACTIONS[action](old, first)
        await old.background()
        return done

    before = {path.name for path in world.folder.glob("bucket/meta/0*")}
    task = asyncio.create_task(act())
    waits = asyncio.create_task(asyncio.wait_for(asleep.wait(), 30))
    await asyncio.wait({task, waits}, return_when=asyncio.FIRST_COMPLETED)
    waits.cancel()
    if not asleep.is_set():
        return False
    was_created = {path.name for path in world.folder.glob("bucket/meta/0*")} != before
    newest = old
    sure: set[str] = set()
    for number in range(takeovers):
        newest = await world.start()
        for change in range(changes):
            assert await newest.add_vhost(f"{number}-{change}"), "the newest broker makes any change"
            sure.add(f"{number}-{change}")
    mine = None
    if STREAM in newest.streams:
        end = max((place.next for place in newest.places()), default=0)
        assert await newest.upload(end, end + 50)
        mine = newest.places()[-1]
    served = newest.places() if mine else []
    awake.set()
    is_done = await task
    assert await newest.add_vhost("last")
    await newest.background()

    reader = await world.start()
    assert sure | {"last"} <= newest.vhosts == reader.vhosts, "all changes that the newest broker acknowledged exist"
    assert newest.streams.keys() == reader.streams.keys(), "there is one history of the metadata"
    if action == "change":
        assert not is_done or "late" in reader.vhosts, "the acknowledged change exists"
        assert was_created or "late" not in reader.vhosts, "a change after the newer broker's start is void"
    if action == "delete":
        assert not is_done or STREAM not in reader.streams, "the acknowledged deletion holds"
        assert was_created or STREAM in reader.streams, "a deletion after the newer broker's start is void"
    if mine is None:
        return True
    assert all(world.has(place) for place in served), "no object of the newest broker's readers is deleted"
    assert set(newest.places()) == set(reader.places()), "there is one history of the log"
    if action == "upload" and is_done:
        assert old.places()[-1] in reader.places(), "newer brokers have the segment of a file that may be deleted"
    return True


def check(folder: Path, action: str) -> None:
    """Run every step, with one newer broker and with several, which make few or many changes."""
    for takeovers, changes in ((1, 0), (1, SNAPSHOT_EACH + 1), (3, SNAPSHOT_EACH + 1)):
        for sleeps_before in range(1, REQUESTS_MAX):
            name = f"{action.replace(' ', '-')}-{takeovers}-{changes}-{sleeps_before}"
            try:
                if not asyncio.run(run(folder / name, action, sleeps_before, takeovers, changes)):
                    break
            except AssertionError as problem:
                said = f"asleep before request {sleeps_before}, {takeovers} newer, {changes} changes: {problem}"
                raise AssertionError(said) from problem
        else:
            raise AssertionError("it makes more requests than that")
        assert sleeps_before > 2, "it makes some"


@pytest.mark.parametrize("action", ACTIONS)
def test_a_broker_suspended_at_any_request_loses_no_change_of_newer_ones_and_acknowledges_none(tmp_path, action):
    check(tmp_path, action)


@pytest.mark.parametrize("is_late", [True, False])
def test_objects_of_a_newer_broker_win_over_a_segment_that_an_older_one_sent_late(tmp_path, is_late):
    """The late segment comes before the newer broker's own upload; a segment in time stays."""

    async def run() -> None:
        world = World(tmp_path)
        old = await world.start()
        await old.change("stream", [["insert", "streams", {**RECORD, "durability": "remote"}]])
        Path(old.streams[STREAM].directory).mkdir(parents=True)
        assert await old.upload(0, 100)
        newer = await world.start()
        for first in (100, 500):
            begin = segment_section(RECORD["incarnation"], first, b"h" * SEGMENT_HEADER_BYTES, b"")
            chunks = chunks_head(RECORD["incarnation"], first, SEGMENT_HEADER_BYTES, first, first + 50, 4) + b"mine"
            key = write_ahead_key("vibemq", newer.tenure.epoch, first)
            if first == 100 or not is_late:
                await newer.bucket.create(key, Kind.WRITE_AHEAD, begin + chunks)
        if not is_late:
            await newer.bucket.delete([write_ahead_key("vibemq", newer.tenure.epoch, 100)])
        assert not await old.upload(100, 500), "it is sent, and not acknowledged"
        reader = await world.start()
        here = Path(reader.streams[STREAM].directory)
        assert [place.first for place in reader.places()] == ([0] if is_late else [0, 100])
        begun = here / f"{100 if is_late else 500:020}.segment"
        assert begun.read_bytes()[SEGMENT_HEADER_BYTES:] == b"mine"
        world.close()

    asyncio.run(run())


@pytest.mark.parametrize("action", ["change", "delete"])
def test_an_archiver_that_is_started_again_needs_no_fence(tmp_path, action):
    """One process at a time changes `meta.db`, and the next change takes the number of the unanswered one."""

    async def run(folder: Path, sleeps_before: int) -> bool:
        folder.mkdir()
        world = World(folder)
        old = await world.start()
        await old.change("stream", [["insert", "streams", RECORD]])
        Path(old.streams[STREAM].directory).mkdir(parents=True)
        made, asleep, awake = 0, asyncio.Event(), asyncio.Event()

        async def gate() -> None:
            nonlocal made
            made += 1
            if made == sleeps_before:
                asleep.set()
                await awake.wait()

        old.bucket.gate = gate
        task = asyncio.create_task(ACTIONS[action](old, Place(RECORD["incarnation"], 0, 1, 1, 1, 1, 1)))
        waits = asyncio.create_task(asleep.wait())
        await asyncio.wait({task, waits}, return_when=asyncio.FIRST_COMPLETED)
        waits.cancel()
        if not asleep.is_set():
            world.close()
            return False
        again = await world.restart_archiver(old)
        assert await again.add_vhost("since")
        awake.set()
        is_done = await task
        await old.background()
        assert await again.add_vhost("last")
        reader = await world.start()
        assert {"since", "last"} <= again.vhosts == reader.vhosts, "there is one history of the metadata"
        assert again.streams.keys() == reader.streams.keys()
        assert not is_done or ("late" in reader.vhosts if action == "change" else STREAM not in reader.streams)
        world.close()
        return True

    for sleeps_before in range(1, REQUESTS_MAX):
        if not asyncio.run(run(tmp_path / str(sleeps_before), sleeps_before)):
            break
    assert 2 < sleeps_before < REQUESTS_MAX - 1


def test_a_segment_that_a_later_epoch_sends_again_makes_none_behind_it_late(tmp_path):
    """Its object was deleted by hand, and its file is still here."""

    async def run() -> None:
        world = World(tmp_path)
        old = await world.start()
        await old.change("stream", [["insert", "streams", RECORD]])
        Path(old.streams[STREAM].directory).mkdir(parents=True)
        for first in range(0, 400, 100):
            assert await old.upload(first, first + 100)
        lost = old.places()[1]
        await old.bucket.delete([lost.key(suffix) for suffix in ("segment", "index", "tracking")])
        cold.remove_stub(old.streams[STREAM].directory, lost.first)
        again = await world.restart_archiver(old)
        assert await again.upload(lost.first, lost.next) and await again.upload(400, 500)
        assert again.tier._places[RECORD["incarnation"]] == again.places(), "they rise"
        reader = await world.start()
        assert [place.first for place in reader.places()] == [0, 100, 200, 300, 400]
        world.close()

    asyncio.run(run())


def test_a_start_that_was_overtaken_while_it_restored_does_not_serve(tmp_path, monkeypatch):
    async def run() -> None:
        world = World(tmp_path)
        plain, overtaken = opening.restore_logs, []

        async def slow(*words: Any) -> list[str]:
            if not overtaken:
                overtaken.append(True)
                await world.start()
            return await plain(*words)

        monkeypatch.setattr(opening, "restore_logs", slow)
        with pytest.raises(Superseded, match="00000002: a broker 'vibemq'"):
            await world.start()
        world.close()

    asyncio.run(run())


def test_retention_deletes_late_segments_with_those_that_prove_them_late(tmp_path, monkeypatch):
    """Else one could begin the log after a restore, once nothing of the newer broker lies before its end."""

    async def run() -> None:
        world = World(tmp_path)
        old = await world.start()
        await old.change("stream", [["insert", "streams", RECORD]])
        Path(old.streams[STREAM].directory).mkdir(parents=True)
        newer = await world.start()
        for first in (0, 100, 200):
            assert await newer.upload(first, first + 100)
        assert not await old.upload(0, 200)
        monkeypatch.setattr(tier_module, "_first_offset", lambda directory: 200)
        for first in (0, 100):
            cold.remove_stub(newer.streams[STREAM].directory, first)
        await newer.tier._sweep(RECORD["incarnation"])
        reader = await world.start()
        assert newer.places() == reader.places() and [place.first for place in reader.places()] == [200]
        world.close()

    asyncio.run(run())


def longer_wins(places: Any) -> list[Place]:
    """The former rule: of segments with one first offset the longest counts, by any broker."""
    kept: list[Place] = []
    for place in sorted(places, key=lambda place: (place.first, place.next, place.epoch)):
        if kept and place.first == kept[-1].first:
            kept[-1] = place
        elif not kept or place.first >= kept[-1].next:
            kept.append(place)
    return kept


def only_overlaps(places: Any) -> list[Place]:
    """The rule before: a segment that overlaps none counts, wherever it lies."""
    kept: list[Place] = []
    for place in sorted(places, key=lambda one: (-one.broker_epoch, one.first)):
        if all(place.next <= one.first or one.next <= place.first for one in kept):
            kept.append(place)
    return sorted(kept)


async def nothing(*_: Any) -> None:
    """A check that never finds a newer epoch."""


async def only_caught_up(bucket: Bucket, metadata: Metadata, epoch: int) -> None:
    await opening.catch_up(bucket, metadata)


@pytest.mark.parametrize(
    ("action", "owner", "name", "old"),
    [
        ("change", Tenure, "check", nothing),
        ("delete", Tenure, "check", nothing),
        ("upload", Tenure, "check", nothing),
        ("retention", Tenure, "check", nothing),
        ("retention", epochs_module.Epochs, "_finish_retiring", nothing),
        ("upload", restoring, "history", longer_wins),
        ("upload behind", restoring, "history", only_overlaps),
        ("change", opening, "_fence", only_caught_up),
        ("delete", opening, "_fence", only_caught_up),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_without_each_rule_the_model_finds_the_fault(tmp_path, monkeypatch, action, owner, name, old):
    monkeypatch.setattr(owner, name, old)
    with pytest.raises(AssertionError, match="asleep before request"):
        check(tmp_path, action)
