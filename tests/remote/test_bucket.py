# SPDX-License-Identifier: Apache-2.0
"""The bucket over a folder: create once, read whole and in parts, plain and encrypted; epochs and their seals."""

import asyncio
import os
import shutil
from collections.abc import Iterable
from types import SimpleNamespace

import pytest

from vibemq.config import Remote
from vibemq.errors import ConfigError, RemoteError
from vibemq.remote.bucket import Bucket, Counts, Missing, Taken
from vibemq.remote.cipher import PIECE_BYTES, read_keys
from vibemq.remote.epochs import Epochs, Outdated
from vibemq.remote.objects import FORMAT_KEY, Kind, to_json
from vibemq.remote.write_ahead import Deposed, WriteAhead
from vibemq.storage import identity

pytest.importorskip("obstore", reason="needs the extra remote")

KEY = "streams/00ff00ff00ff00ff/a.segment"


@pytest.fixture(params=["plain", "encrypted"])
def config(request, tmp_path):
    keys = ""
    if request.param == "encrypted":
        keys = str(tmp_path / "keys")
        with open(keys, "w", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            file.write(f"1 {'11' * 32}\n7 {'22' * 32}\n")
    return Remote(url=f"file://{tmp_path}/bucket", encryption_keys=keys)


def test_only_one_of_many_creators_of_a_key_wins(config):
    async def race():
        bucket = Bucket(config)
        bodies = [b"%d" % number for number in range(20)]
        results = await asyncio.gather(
            *(bucket.create("meta/1", Kind.CHANGE, body) for body in bodies), return_exceptions=True
        )
        won = [body for body, result in zip(bodies, results, strict=True) if result is None]
        assert [type(result) for result in results if result is not None] == [Taken] * 19
        assert bytes(await bucket.read("meta/1", Kind.CHANGE)) == won[0] and len(won) == 1

    asyncio.run(race())


def test_whose_answer_was_lost_finds_that_it_created_the_object(tmp_path):
    async def twice():
        bucket = Bucket(Remote(url=f"file://{tmp_path}/bucket"))
        await bucket.create("meta/1", Kind.CHANGE, b"mine")
        await bucket.create("meta/1", Kind.CHANGE, b"mine")
        with pytest.raises(Taken):
            await bucket.create("meta/1", Kind.CHANGE, b"hers")

    asyncio.run(twice())


def test_a_store_that_takes_nothing_is_not_called_well_because_it_lists():
    counts = Counts()
    counts.failed("create", "no space", "make room", 100.0)
    for now_s in (101.0, 105.0, 110.0):
        counts.answered("list", now_s)
        counts.answered("read", now_s)
        counts.failed("create", "no space", "make room", now_s + 1)
    assert (counts.trouble_since_s, counts.errors, counts.last_error, counts.advice) == (
        100.0,
        4,
        "no space",
        "make room",
    )
    counts.answered("create", 112.0)
    assert counts.trouble_since_s is None
    counts.failed("create", "away", "is it up?", 120.0)
    counts.answered("list", 500.0)  # whoever wanted that write has given up
    assert counts.trouble_since_s is None
    counts.failed("list", "away", "is it up?", 600.0)
    counts.answered("read", 601.0)
    assert counts.trouble_since_s is None


def test_a_folder_that_is_not_there_any_more_is_not_made_anew_and_taken_for_the_bucket(tmp_path):
    """As where a file system was unmounted: what is put below its name would be hidden, once it is mounted again."""
    folder, away = tmp_path / "bucket", tmp_path / "away"
    with asyncio.Runner() as runner:
        bucket = Bucket(Remote(url=f"file://{folder}"))
        runner.run(bucket.create(FORMAT_KEY, Kind.FORMAT, to_json(cluster="ours")))
        with pytest.raises(RemoteError, match="cluster ours, and not of theirs"):
            runner.run(bucket.bind("theirs"))
        runner.run(bucket.bind("ours"))
        runner.run(bucket.create("meta/1", Kind.CHANGE, b"first"))
        folder.rename(away)
        for put in (bucket.create("meta/2", Kind.CHANGE, b"second"), bucket.write(KEY, Kind.SEGMENT, [b"body"])):
            with pytest.raises(RemoteError, match="does not exist") as refused:
                runner.run(put)
            assert "mounted" in refused.value.hint and not folder.exists()
        assert bucket.counts.trouble_since_s is not None
        away.rename(folder)
        runner.run(bucket.create("meta/2", Kind.CHANGE, b"second"))
        assert bucket.counts.trouble_since_s is None
        shutil.copytree(folder, away)
        shutil.rmtree(folder)
        away.rename(folder)  # mounted again, it may be another one to the kernel
        runner.run(bucket.create("meta/3", Kind.CHANGE, b"third"))
        assert [one.key for one in runner.run(bucket.listed("meta/"))] == ["meta/1", "meta/2", "meta/3"]


def test_keys_before_the_place_that_was_asked_for_are_not_listed_whatever_the_store_says(tmp_path, monkeypatch):
    """Else a broker would take its own epoch for a newer one's, and end."""

    async def look():
        bucket = Bucket(Remote(url=f"file://{tmp_path}/bucket"))
        listed = bucket._obstore.list
        monkeypatch.setattr(
            bucket._obstore, "list", lambda store, prefix, offset, **more: listed(store, prefix, **more)
        )
        for key in ("meta/1", "meta/2", "meta/3"):
            await bucket.create(key, Kind.CHANGE, b"body")
        assert [one.key for one in await bucket.listed("meta/", after="meta/2")] == ["meta/3"]
        assert [one.key for one in await bucket.listed("meta/")] == ["meta/1", "meta/2", "meta/3"]

    asyncio.run(look())


def test_parts_of_a_large_object_are_those_of_the_whole(config):
    body = os.urandom(3 * PIECE_BYTES + 12345)

    async def parts():
        bucket = Bucket(config)
        await bucket.write(KEY, Kind.SEGMENT, [body[at : at + 700_001] for at in range(0, len(body), 700_001)])
        assert bytes(await bucket.read(KEY, Kind.SEGMENT)) == body
        for start, end in [(0, 1), (PIECE_BYTES - 1, PIECE_BYTES + 1), (5, len(body)), (len(body) - 1, len(body) + 99)]:
            assert bytes(await bucket.read_part(KEY, Kind.SEGMENT, start, end)) == body[start:end]
        assert bytes(await bucket.read_part(KEY, Kind.SEGMENT, len(body), len(body) + 1)) == b""

    asyncio.run(parts())


@pytest.mark.parametrize("left", ["what was there before", "nothing"])
def test_what_a_store_says_it_has_taken_is_looked_at(config, monkeypatch, left):
    async def write():
        bucket = Bucket(config)
        if left != "nothing":
            await bucket.write(KEY, Kind.SEGMENT, [b"of another"])  # of the same size

        async def put_async(store: object, key: str, pieces: Iterable[bytes], **_: object) -> None:
            """As a store does that takes everything and keeps nothing."""
            assert b"".join(pieces)

        monkeypatch.setattr(bucket, "_obstore", SimpleNamespace(**{**vars(bucket._obstore), "put_async": put_async}))
        with pytest.raises(RemoteError, match=KEY):
            await bucket.write(KEY, Kind.SEGMENT, [b"that writer"[:10]])

    asyncio.run(write())


def test_what_is_not_there_is_missing_and_what_was_damaged_is_named(tmp_path):
    async def look():
        bucket = Bucket(Remote(url=f"file://{tmp_path}/bucket"))
        with pytest.raises(Missing, match="meta/7"):
            await bucket.read("meta/7", Kind.CHANGE)
        await bucket.create("meta/7", Kind.CHANGE, b"body")
        path = tmp_path / "bucket/meta/7"
        path.write_bytes(path.read_bytes().replace(b"body", b"bodY"))
        with pytest.raises(RemoteError, match=r"meta/7.*damaged"):
            await bucket.read("meta/7", Kind.CHANGE)
        await bucket.delete(["meta/7", "meta/8"])
        assert await bucket.listed("meta/") == []

    asyncio.run(look())


def test_an_encrypted_body_is_not_readable_without_its_key(tmp_path):
    path = tmp_path / "keys"
    path.touch(mode=0o600)
    path.write_text("1 " + "11" * 32)

    async def look():
        url = f"file://{tmp_path}/bucket"
        await Bucket(Remote(url=url, encryption_keys=str(path))).create("meta/1", Kind.CHANGE, b"secret words")
        assert b"secret" not in (tmp_path / "bucket/meta/1").read_bytes()
        with pytest.raises(RemoteError, match="encrypted with key 1"):
            await Bucket(Remote(url=url)).read("meta/1", Kind.CHANGE)
        path.write_text("1 " + "33" * 32)
        with pytest.raises(RemoteError, match="does not decrypt"):
            await Bucket(Remote(url=url, encryption_keys=str(path))).read("meta/1", Kind.CHANGE)

    asyncio.run(look())


@pytest.mark.parametrize(
    ("text", "mode", "said"),
    [
        ("", 0o600, "has no key"),
        ("1 abc", 0o600, "line 1"),
        ("1 " + "11" * 32 + "\n1 " + "22" * 32, 0o600, "line 2"),
        ("1 " + "11" * 32, 0o644, "other accounts"),
    ],
)
def test_a_file_of_keys_that_cannot_be_used_is_refused_without_showing_a_key(tmp_path, text, mode, said):
    path = tmp_path / "keys"
    path.write_text(text)
    path.chmod(mode)
    with pytest.raises(ConfigError, match=said) as refused:
        read_keys(str(path))
    assert "11" * 32 not in str(refused.value)


def test_keys_come_from_a_command_that_is_not_quoted_when_it_fails():
    assert read_keys("command:printf '1 %s\\n' " + "11" * 32).current == 1
    with pytest.raises(ConfigError, match="exit code 3"):
        read_keys("command:sh -c 'echo secret; exit 3'")
    with pytest.raises(ConfigError, match="cannot be run"):
        read_keys("command:/no/such/program")


def test_who_takes_the_next_epoch_ends_the_sequence_of_the_one_before(tmp_path):
    config = Remote(url=f"file://{tmp_path}/bucket")
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        identity.make(str(tmp_path / name))

    async def two():
        bucket = Bucket(config)
        first = Epochs(bucket, "vibemq", str(tmp_path / "old"))
        assert await first.take() == 1
        ahead = WriteAhead(bucket, config, 1)
        told = []

        async def send(body):
            made = await ahead.begin()
            made.put(body)
            made.marks.append(lambda: told.append(body))
            ahead.send(made)

        await send(b"")
        await asyncio.wait_for(ahead.close(10), 20)
        assert told == [b""]
        second = Epochs(bucket, "vibemq", str(tmp_path / "new"))
        with pytest.raises(Outdated, match="another data directory"):
            await second.take()
        assert await second.take(goes_on=False) == 2
        with pytest.raises(Outdated, match=r"00000002\.sealed"):
            await first.take()
        await send(b"")
        with pytest.raises(Deposed) as deposed:
            await asyncio.wait_for(ahead.failure, 20)
        assert deposed.value.by["data"] == second.identity and told == [b""]
        late = asyncio.create_task(asyncio.Event().wait())
        ahead._tasks.add(late)
        await asyncio.wait_for(ahead.close(3600), 20)  # none of them would be confirmed
        assert late.cancelling()
        assert await second.take() == 3
        assert [(found.epoch, found.number) for found in await second.objects()] == [(1, 0), (1, 1), (2, 0)]
        await second.forget_before(3)
        assert [(found.epoch, found.number) for found in await second.objects()] == [(1, 1), (2, 0)]

    asyncio.run(two())


def test_the_size_of_what_was_written_is_known_of_every_object(config):
    async def sizes():
        bucket = Bucket(config)
        for size in (0, 1, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 2 * PIECE_BYTES):
            key = f"streams/{size}"
            await bucket.write(key, Kind.SEGMENT, [bytes(size)])
            assert await bucket.plain_size(key, Kind.SEGMENT, await bucket.size(key)) == size

    asyncio.run(sizes())
