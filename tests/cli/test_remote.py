# SPDX-License-Identifier: Apache-2.0
"""`vibemq remote`: what a bucket has, damage of every kind by hand, and what nobody refers to."""

import asyncio
import json
import os
import random
import re
import shutil
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

import pytest
from click.testing import CliRunner
from running import ENVIRONMENT, broker, wait_until

from vibemq.cli.commands import main
from vibemq.client.streams import StreamsConnection
from vibemq.config import Remote
from vibemq.errors import StorageError
from vibemq.remote import verifying
from vibemq.remote.bucket import Bucket
from vibemq.remote.coverage import Coverage
from vibemq.remote.objects import (
    Chunks,
    Kind,
    SegmentBegins,
    change_key,
    opened,
    read_place,
    seal_section,
    to_json,
    write_ahead_key,
)
from vibemq.storage.walk import Walk

pytest.importorskip("obstore", reason="needs the extra remote")

OPTIONS = {
    "store.durability": "remote",
    "remote.interval_ms": "10",
    "store.segment_size_bytes": "65536",
    "remote.segment_age_s": "10",
}


def run(bucket: Path, *arguments: str):
    return CliRunner().invoke(main, ["remote", *arguments, "--url", f"file://{bucket}"], prog_name="vibemq")


def test_no_thread_of_the_stores_client_finds_python_taken_down(tmp_path):
    """It would end the process by SIGABRT, one of ten times."""
    code = (
        "import atexit, sys; atexit.register(print, 'taken down', flush=True); "
        "from vibemq.cli.__main__ import run; "
        f"sys.argv = ['vibemq', 'remote', 'list', '--url', 'file://{tmp_path}']; run()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 1 and "no object" in done.stdout + done.stderr, done
    assert "taken down" not in done.stdout


def flags(bucket: Path, *more: str) -> list[str]:
    pairs = [f"remote.url=file://{bucket}", *(f"{name}={value}" for name, value in OPTIONS.items()), *more]
    return [word for pair in pairs for word in ("--set", pair)]


def streams_in(bucket: Path) -> set[str]:
    return {path.parent.name for path in bucket.glob("streams/*/*")}


def fill(folder: Path, bucket: Path, *more: str) -> None:
    """Streams `events`, of some segments, and `gone`, which was deleted and whose objects are put back."""
    with ExitStack() as stack:
        running = stack.enter_context(broker(folder, *flags(bucket, *more), workers=1))
        connection = stack.enter_context(
            StreamsConnection.connect(running.host, running.port, user="guest", password="guest")
        )
        for name in ("events", "gone"):
            connection.create(name)
            with connection.publisher(name, "load") as publisher:
                for _ in range(12):
                    publisher.publish([os.urandom(300) for _ in range(100)])
                    publisher.flush()
        wait_until(lambda: len(list(bucket.glob("streams/*/*.segment"))) >= 6, "segments in the store")
        kept = bucket.parent / "kept"
        shutil.copytree(bucket / "streams", kept)
        connection.delete("gone")
        wait_until(lambda: len(streams_in(bucket)) == 1, "objects deleted")


@pytest.fixture(scope="module")
def filled(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("filled")
    with broker(folder / "data", *flags(folder / "bucket"), workers=1):
        pass  # so that there is an epoch before the one that has everything
    fill(folder / "data", folder / "bucket")
    return folder


@pytest.fixture(autouse=True)
def hurried(monkeypatch):
    """No broker is at work that a second look would be for."""
    monkeypatch.setattr(verifying, "LOOK_AGAIN_S", 0.0)


@pytest.fixture
def bucket(filled, tmp_path) -> Path:
    """A copy to damage."""
    shutil.copytree(filled / "bucket", tmp_path / "bucket")
    return tmp_path / "bucket"


def one(bucket: Path, pattern: str) -> Path:
    """The first by name."""
    return sorted(bucket.glob(pattern))[0]


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def problems(bucket: Path, *options: str) -> list[str]:
    done = run(bucket, "verify", *options)
    lines = done.stdout.splitlines()
    found = [line for line in lines[:-1] if not line.startswith("note: ")]
    assert done.exit_code == (1 if found else 0), done.output
    assert lines[-1].startswith(f"{len(found)} problems" if found else "all is well")
    return found


# ---- list ----


def test_the_list_has_brokers_streams_and_what_waits_for_a_segment(bucket):
    found = json.loads(run(bucket, "list", "--json").stdout)
    assert re.fullmatch(r"[0-9a-f]{16}", found["cluster"]) and found["problem"] == ""
    (known,) = found["brokers"]
    assert known["name"] == "vibemq" and known["epoch"] == 2 and known["epochs"][0]["started_ms"] > 1_600_000_000_000
    (events,) = found["streams"]
    assert (events["name"], events["kind"], events["first_offset"]) == ("events", "stream", 0)
    assert events["segments"] >= 2 and events["next_offset"] >= 200 and events["bytes"] > 65536
    assert [each["epoch"] for each in found["write_ahead"]] == [1, 2]
    shown = run(bucket, "list").stdout
    assert found["cluster"] in shown and "events" in shown


def test_streams_are_listed_without_names_where_the_metadata_is_damaged(bucket):
    flip(one(bucket, "meta/snapshot-*"), 3)
    done = run(bucket, "list")
    assert done.exit_code == 1 and "the metadata cannot be read" in done.stderr
    assert json.loads(run(bucket, "list", "--json").stdout)["streams"][0]["kind"] == "unknown"


@pytest.mark.parametrize("command", ["list", "verify", "prune"])
def test_a_folder_that_is_not_there_is_not_made(tmp_path, command):
    done = run(tmp_path / "misspelt", command)
    assert done.exit_code == 1 and "there is no folder" in done.stderr and not (tmp_path / "misspelt").exists()
    (tmp_path / "empty").mkdir()
    assert run(tmp_path / "empty", command).exit_code == 1


def test_without_a_store_it_says_so():
    done = CliRunner().invoke(main, ["remote", "list"], prog_name="vibemq")
    assert done.exit_code == 1 and "remote.url is empty" in done.stderr


# ---- verify ----


@pytest.mark.parametrize("options", [(), ("--quick",)])
def test_a_whole_bucket_is_well(bucket, options):
    assert problems(bucket, *options) == []


DAMAGE = {
    "format": "no broker starts",
    "meta/0*": "a restore",
    "meta/snapshot-*": "cannot be restored",
    "brokers/*/*1": "it is for people",
    "wal/*/00000002/*": "missing after a lost machine",
    "streams/*/*.segment": "cannot read some or all of the offsets 0 to",
    "streams/*/*.index": "cannot read the offsets 0 to",
    "streams/*/*.tracking": "may store one twice",
}


@pytest.mark.parametrize("pattern", DAMAGE)
@pytest.mark.parametrize("how", ["a bit", "cut", "renamed"])
def test_every_damaged_object_is_named_with_what_it_means(bucket, pattern, how):
    path = one(bucket, pattern)
    key = str(path.relative_to(bucket))
    if how == "a bit":
        flip(path, 0)
    elif how == "cut":
        path.write_bytes(path.read_bytes()[:-1])
    else:
        path.write_bytes(path.read_bytes().replace(key.encode(), key[::-1].encode()))
    found = [line for line in problems(bucket) if line.startswith(f"{key}: ")]
    assert len(found) == 1 and DAMAGE[pattern] in found[0]
    quick = [line for line in problems(bucket, "--quick") if line.startswith(f"{key}: ")]
    assert len(quick) == (how != "a bit")


def test_a_stream_is_called_by_its_name(bucket):
    flip(one(bucket, "streams/*/*.segment"), 200)
    assert any("stream 'events' in vhost '/'" in line for line in problems(bucket))


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("meta/0000000000000002", "missing, and there are later changes"),
        ("wal/vibemq/00000002/*5", "missing, 1 in all"),
        ("streams/*/*.index", "missing, and its segment is there"),
        ("streams/*/*.tracking", "missing, and its segment is there"),
        ("format", "it is missing"),
    ],
)
def test_what_is_missing_is_named(bucket, pattern, said):
    path = one(bucket, pattern)
    path.unlink()
    found = [line for line in problems(bucket, "--quick") if line.startswith(f"{path.relative_to(bucket)}: ")]
    assert len(found) == 1 and said in found[0]


def test_what_a_restore_would_not_find_is_named(bucket):
    """Write-ahead objects whose messages are in no segment of the store yet."""
    names = sorted(bucket.glob("wal/vibemq/00000002/*"))
    for path in names:
        shutil.copy(path, path.with_name("kept"))
        path.unlink()
        found = problems(bucket)
        if any(" ends there, whatever was confirmed" in line for line in found):
            assert any("'events'" in line for line in found)
            return
        shutil.move(path.with_name("kept"), path)
    pytest.fail("no object held what no segment has")


def test_a_hole_between_segments_is_named(bucket):
    segments = sorted(bucket.glob("streams/*/*.segment"))
    for suffix in ("segment", "index", "tracking"):
        segments[1].with_suffix(f".{suffix}").unlink()
    first, after = (int(segments[1].name[at : at + 20]) for at in (0, 21))
    (found,) = problems(bucket, "--quick")
    assert f"offsets {first} to {after - 1} before it are in no segment" in found


def change(bucket: Path, work, keys: str = "") -> None:
    async def changed():
        await work(Bucket(Remote(url=f"file://{bucket}", encryption_keys=keys)))

    asyncio.run(changed())


def test_a_segment_that_is_whole_as_an_object_is_walked_all_the_same(bucket):
    """As when a disk had damaged it before it was sent."""
    path = one(bucket, "streams/*/*.segment")
    key = str(path.relative_to(bucket))

    async def damage(opened: Bucket) -> None:
        body = bytearray(await opened.read(key, Kind.SEGMENT))
        body[-500] ^= 1
        await opened.write(key, Kind.SEGMENT, [body])

    change(bucket, damage)
    assert problems(bucket, "--quick") == []
    (found,) = problems(bucket)
    assert found.startswith(key) and "are not what was written (CRC)" in found


def test_an_index_of_another_segment_is_found(bucket):
    first, second = (str(path.relative_to(bucket)) for path in sorted(bucket.glob("streams/*/*.index"))[:2])

    async def exchange(opened: Bucket) -> None:
        await opened.write(second, Kind.INDEX, [bytes(await opened.read(first, Kind.INDEX))])

    change(bucket, exchange)
    (found,) = problems(bucket)
    assert found.startswith(second) and "it belongs to another segment" in found


def test_a_sequence_that_no_seal_ends_is_found(bucket):
    last = one(bucket, "wal/vibemq/00000001/*")
    last.unlink()

    async def not_a_seal(opened: Bucket) -> None:
        await opened.create(write_ahead_key("vibemq", 1, 0), Kind.WRITE_AHEAD, b"")

    change(bucket, not_a_seal)
    (found,) = problems(bucket)
    assert "does not end with a seal" in found


def test_what_comes_behind_a_seal_is_found(bucket):
    async def seal(opened: Bucket) -> None:
        await opened.create(
            write_ahead_key("vibemq", 3, 0), Kind.WRITE_AHEAD, seal_section(writer="", broker="b", epoch=4)
        )
        await opened.create(write_ahead_key("vibemq", 3, 1), Kind.WRITE_AHEAD, b"")

    change(bucket, seal)
    found = problems(bucket)
    assert any("objects follow this seal" in line for line in found)
    assert any("never took epoch 3" in line for line in found)


def test_encryption_keys_are_counted_and_missed(bucket, tmp_path):
    keys = tmp_path / "keys"
    with open(keys, "w", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(f"7 {'22' * 32}\n")
    key = str(one(bucket, "streams/*/*.segment").relative_to(bucket))

    async def encrypt(opened: Bucket) -> None:
        await opened.write(key, Kind.SEGMENT, [bytes(await opened.read(key, Kind.SEGMENT))])

    change(bucket, encrypt, str(keys))
    done = run(bucket, "verify", "--set", f"remote.encryption_keys={keys}")
    assert done.exit_code == 0 and "1 with key 7" in done.stdout
    (found,) = problems(bucket)
    assert found.startswith("encryption key 7: 1 objects are encrypted with it")


def body_of(bucket: Path) -> tuple[int, bytearray]:
    """Of the first segment: its first offset, and the file."""
    path = one(bucket, "streams/*/*.segment")
    body = opened(key := str(path.relative_to(bucket)), Kind.SEGMENT, path.read_bytes())
    place = read_place(key)
    assert place is not None
    return place[0].first, bytearray(body)


@pytest.mark.parametrize("size", [1, 47, 4096, 1 << 20])
def test_a_walk_finds_the_same_whatever_the_pieces(bucket, size):
    first, body = body_of(bucket)
    whole, walk = Walk(first, "whole"), Walk(first, "in pieces")
    whole.take(body)
    for at in range(0, len(body), size):
        walk.take(body[at : at + size])
    walk.end()
    assert (walk.next, walk.chunks, walk.seed, walk.damaged) == (whole.next, whole.chunks, whole.seed, 0)
    assert whole.chunks > 1


def test_a_walk_notices_every_flipped_bit_and_every_cut(bucket):
    first, body = body_of(bucket)

    def is_whole(data: bytearray) -> bool:
        walk = Walk(first, "damaged")
        try:
            walk.take(data)
            walk.end()
        except StorageError:
            return False
        return not walk.damaged

    assert is_whole(body)
    for at in [*range(112), *range(112, len(body), 997), len(body) - 1]:
        body[at] ^= 0x10
        assert not is_whole(body), at
        body[at] ^= 0x10
    assert not any(is_whole(body[:size]) for size in (0, 1, 63, 65, 111, 113, len(body) - 1))


def test_a_bucket_at_work_is_well(tmp_path, monkeypatch):
    """Objects come and go while they are looked at."""
    monkeypatch.setattr(verifying, "LOOK_AGAIN_S", 1.0)
    bucket, stopping = tmp_path / "bucket", threading.Event()
    with broker(tmp_path / "data", *flags(bucket), workers=1) as running:

        def load() -> None:
            with StreamsConnection.connect(running.host, running.port, user="guest", password="guest") as connection:
                while not stopping.is_set():
                    name = f"stream {time.monotonic_ns()}"
                    connection.create(name)
                    with connection.publisher(name, "load") as publisher:
                        for _ in range(12):
                            publisher.publish([os.urandom(300) for _ in range(50)])
                            publisher.flush()
                    connection.delete(name)

        loading = threading.Thread(target=load)
        loading.start()
        try:
            wait_until(lambda: any(bucket.glob("streams/*/*.segment")), "a segment in the store")
            for _ in range(5):
                assert problems(bucket) == []
                assert json.loads(run(bucket, "list", "--json").stdout)["problem"] == ""
                assert run(bucket, "prune", "--yes").exit_code == 0
        finally:
            stopping.set()
            loading.join()
        assert problems(bucket) == []


def test_spans_of_a_segment_are_joined_in_any_order():
    chance = random.Random(int(os.environ.get("VIBEMQ_SEED", "1")))
    for _ in range(200):
        cuts = sorted(chance.sample(range(65, 1000), 8))
        pieces = [Chunks("s", 7, at, 7, 8, memoryview(bytes(end - at))) for at, end in pairwise([64, *cuts])]
        pieces += chance.sample(pieces, 3)
        chance.shuffle(pieces)
        coverage = Coverage()
        coverage.add(SegmentBegins("s", 7, memoryview(bytes(64)), memoryview(b"")))
        for piece in pieces:
            coverage.add(piece)
        assert coverage.hole("s", 7) == coverage.hole("s", 0) == ""
        assert coverage.hole("s", 5) == "offsets 5 to 6 are in no segment of the store and in no write-ahead object"
        without = chance.choice(pieces)
        left = Coverage()
        left.add(SegmentBegins("s", 7, memoryview(bytes(64)), memoryview(b"")))
        for piece in pieces:
            if piece.position != without.position:
                left.add(piece)
        is_last = without.position == cuts[-2]
        assert bool(left.hole("s", 7)) != is_last


# ---- prune ----


def test_objects_of_deleted_streams_go_when_one_is_sure(bucket, filled):
    known = streams_in(bucket)
    shutil.copytree(filled / "kept", bucket / "streams", dirs_exist_ok=True)
    count = len(list(bucket.glob("streams/*/*")))
    dry = run(bucket, "prune")
    assert "would delete: " in dry.stdout and "of streams that were deleted" in dry.stdout
    assert len(list(bucket.glob("streams/*/*"))) == count
    assert problems(bucket) == []  # it costs money and nothing else
    assert "deleted: " in run(bucket, "prune", "--yes").stdout
    assert streams_in(bucket) == known and len(known) == 1
    assert "nothing is superfluous" in run(bucket, "prune").stdout
    assert problems(bucket) == []


def test_files_beside_no_segment_go_after_an_hour(bucket):
    path = one(bucket, "streams/*/*.segment")
    path.unlink()
    assert "left: 2 objects" in run(bucket, "prune", "--yes").stdout
    for suffix in ("index", "tracking"):
        beside = path.with_suffix(f".{suffix}")
        os.utime(beside, (0, beside.stat().st_mtime - 3700))
    assert "deleted: 2 objects" in run(bucket, "prune", "--yes").stdout
    assert not path.with_suffix(".index").exists()


def test_changes_below_the_oldest_snapshot_go(bucket):
    number = int(one(bucket, "meta/snapshot-*").name[-16:])

    async def older(opened: Bucket) -> None:
        await opened.create(change_key(number), Kind.CHANGE, to_json(writer="", epoch=1, changes=[["delete", "x", {}]]))

    change(bucket, older)
    assert "deleted: 1 objects" in run(bucket, "prune", "--yes").stdout
    assert not (bucket / change_key(number)).exists() and len(list(bucket.glob("meta/0*"))) >= 2


def test_nothing_is_deleted_while_the_metadata_cannot_be_read(bucket, filled):
    shutil.copytree(filled / "kept", bucket / "streams", dirs_exist_ok=True)
    count = len(list(bucket.glob("streams/*/*")))
    one(bucket, "meta/0000000000000002").unlink()
    done = run(bucket, "prune", "--yes")
    assert done.exit_code == 1 and "is missing in the bucket" in done.stderr
    assert len(list(bucket.glob("streams/*/*"))) == count


def test_strange_objects_are_left_and_said(bucket):
    (bucket / "notes.txt").write_text("mine")
    assert "left: 1 objects, 4 bytes: objects whose names are none of VibeMQ's" in run(bucket, "prune", "--yes").stdout
    assert "note: notes.txt: 1 objects have names" in run(bucket, "verify").stdout
