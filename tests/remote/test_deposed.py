# SPDX-License-Identifier: Apache-2.0
"""Two brokers, one bucket: no answer, upload or deletion of the older one undoes the newer one's work.

Real brokers of one name. The older one checks for a newer epoch as seldom as possible, so each answer must check.
"""

from __future__ import annotations

import asyncio
import base64
import http.client
import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from peers.faulty import FaultyStore
from peers.s3 import Store
from running import Running, broker, wait_until, written
from test_failures import Lost, bodies, connected, flags, kill

pytest.importorskip("obstore", reason="needs the extra remote")

from vibemq import config
from vibemq.client.streams import StreamsConnection
from vibemq.errors import Superseded, VibeMQError
from vibemq.remote import opening
from vibemq.remote.bucket import Bucket
from vibemq.remote.epochs import Epochs
from vibemq.remote.objects import Kind, opened, read_place, sealed
from vibemq.storage import identity
from vibemq.storage.metadata import Metadata

pytestmark = pytest.mark.timeout(240)

#: Longer than a test, so that only the checks of requests take effect.
NEVER = ("--set", "remote.deposed_after_s=3600")
GUEST = "Basic " + base64.b64encode(b"guest:guest").decode()
END_S_MAX = 60
STARTS, CHANGES_EACH = 5, 260


def options(bucket: Path) -> list[str]:
    given = {
        "remote.url": f"file://{bucket}",
        "remote.interval_ms": 10,
        "store.durability": "remote",
        "store.segment_size_bytes": 65_536,
        "server.shutdown_timeout_s": 2,
    }
    return [word for name, value in given.items() for word in ("--set", f"{name}={value}")]


@contextmanager
def outlived(folder: Path, *flags: str, through: tuple[str, ...] = ()) -> Iterator[Running]:
    """Run a broker that another one deposes; kill it if it does not notice."""
    with pytest.raises(Lost), broker(folder, *flags, workers=1, through=through) as running:
        yield running
        raise Lost


def http_status(running: Running, method: str, path: str, body: object = None) -> int:
    """0: it did not answer."""
    link = http.client.HTTPConnection(running.host, running.admin_port, timeout=30)
    try:
        link.request(method, f"/api{path}", json.dumps(body or {}), {"Authorization": GUEST})
        return link.getresponse().status
    except (OSError, http.client.HTTPException):
        return 0
    finally:
        link.close()


def refused(work: Callable[[], object]) -> bool:
    try:
        work()
    except (VibeMQError, OSError):
        return True
    return False


def streams_create(running: Running) -> bool:
    return refused(lambda: connected(running).create("late"))


def streams_delete(running: Running) -> bool:
    return refused(lambda: connected(running).delete("events"))


def put_stream(running: Running) -> bool:
    given = {"durable": True, "arguments": {"x-queue-type": "stream"}}
    return not 200 <= http_status(running, "PUT", "/queues/%2F/late", given) < 300


def delete_stream(running: Running) -> bool:
    return not 200 <= http_status(running, "DELETE", "/queues/%2F/events") < 300


def put_user(running: Running) -> bool:
    return not 200 <= http_status(running, "PUT", "/users/late", {"password": "a-password-of-it", "tags": ""}) < 300


CHANGES = [streams_create, streams_delete, put_stream, delete_stream, put_user]


def event(number: int) -> bytes:
    return b"%06d" % number + b" " * 800


def published(connection: StreamsConnection, stream: str, first: int, after: int) -> None:
    with connection.publisher(stream, "ref") as publisher:
        for at in range(first, after, 50):
            publisher.publish([event(number) for number in range(at, min(after, at + 50))])
            publisher.flush()


def numbers(connection: StreamsConnection, stream: str) -> list[int]:
    return [int(body[:6]) for body in bodies(connection, stream)]


def names_in(bucket: Path) -> set[str]:
    return {str(path.relative_to(bucket)) for path in bucket.glob("streams/*/*")}


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_deposed_broker_acknowledges_no_change_and_the_newer_one_has_none_of_it(tmp_path, change):
    bucket = tmp_path / "bucket"
    with outlived(tmp_path / "old", *options(bucket), *NEVER) as old:
        with connected(old) as connection:
            connection.create("events")
            published(connection, "events", 0, 300)
            wait_until(lambda: any(name.endswith(".segment") for name in names_in(bucket)), "a segment is in the store")
        with broker(tmp_path / "new", *options(bucket), workers=1) as new:
            before = names_in(bucket)
            assert change(old), "the older broker acknowledged a change"
            assert old.process.wait(END_S_MAX) == Superseded.exit_code, "and it ends, for it knows now"
            with connected(new) as connection:
                connection.create("since")  # behind objects that the older broker may have left in the bucket
                assert numbers(connection, "events") == list(range(300))
                assert connection.metadata(["late"])["late"].code != 1
            assert before <= names_in(bucket)
        with broker(tmp_path / "new", *options(bucket), workers=1) as new, connected(new) as connection:
            assert numbers(connection, "events") == list(range(300))
        metadata = Metadata(str(tmp_path / "new/meta.db"))
        assert {record.name for record in metadata.streams()} == {"events", "since"} and not metadata.users()
        metadata.close()


def suspend(running: Running) -> list[int]:
    pids = [running.process.pid, *running._children("")]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    return pids


def test_a_broker_suspended_during_many_starts_and_snapshots_acknowledges_no_change(tmp_path):
    """Its next number was deleted long ago, so the store takes the object."""
    bucket = tmp_path / "bucket"
    with outlived(tmp_path / "old", *options(bucket), *NEVER) as old:
        with connected(old) as connection:
            connection.create("events")
        pids = suspend(old)
        for start in range(STARTS):
            folder = tmp_path / f"new-{start}"
            folder.mkdir()
            identity.make(str(folder))
            remote = config.Remote(url=f"file://{bucket}", name="vibemq")
            made = config.Config(server=config.Server(data_dir=str(folder)), remote=remote)

            def change(metadata: Metadata, start: int = start) -> None:
                for number in range(CHANGES_EACH):
                    metadata.add_vhost(f"{start}-{number}")

            asyncio.run(opening.open_bucket(made, lambda metadata: None, change))
        left = [int(path.name) for path in bucket.glob("meta/0*")]
        assert len(left) < STARTS * CHANGES_EACH, "old changes are deleted"
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
        assert put_stream(old), "the older broker acknowledged a change"
        assert old.process.wait(END_S_MAX) == Superseded.exit_code


def put_behind(store: Store, late: str, newest: str) -> str:
    """Create a segment object of the older broker that begins where the newer one's last segment ends; its key."""
    (place, _), (last, _) = read_place(late), read_place(newest)
    made = place._replace(first=last.next, next=last.next + 100).key()
    store.overwrite(made, sealed(made, Kind.SEGMENT, opened(late, Kind.SEGMENT, store.read(late))))
    return made


def test_segments_that_a_deposed_broker_sends_late_are_not_taken_for_the_newer_ones(
    tmp_path, faulty: FaultyStore, capfd
):
    """One has offsets of the newer broker's, one lies behind all of those."""
    more = {"store__segment_size_bytes": 65_536, "remote__segment_age_s": 10}
    direct = faulty.store
    hung = faulty.hang("PUT", r"streams/.*\.segment")
    slow = flags(faulty, **more, remote__options=faulty.options)  # without the short timeout of other tests
    with outlived(tmp_path / "old", *slow, *NEVER, through=faulty.through) as old:
        with connected(old) as connection:
            connection.create("events", {"durability": "os"})
            published(connection, "events", 0, 900)
            wait_until(lambda: hung.met > 0, "a segment is on its way")
        with (
            pytest.raises(Lost),
            broker(tmp_path / "new", *flags(direct, **more), workers=1, through=direct.through) as new,
        ):
            with connected(new) as connection:
                assert numbers(connection, "events") == []
                published(connection, "events", 10_000, 10_400)
                wait_until(lambda: len([key for key in direct.keys("streams/") if key.endswith(".segment")]) > 2, "up")
            mine = {key for key in direct.keys("streams/") if key.endswith(".segment")}
            hung.remove()
            assert old.process.wait(END_S_MAX) == Superseded.exit_code
            [late] = {key for key in direct.keys("streams/") if key.endswith(".segment")} - mine
            behind = put_behind(direct, late, max(mine))
            kill(new)
            shutil.rmtree(tmp_path / "new")
            raise Lost
        third = broker(tmp_path / "third", *flags(direct, **more), workers=1, through=direct.through)
        with third as running, connected(running) as connection:
            there = numbers(connection, "events")
            assert there == list(range(10_000, 10_000 + len(there))) and len(there) > 100
            said = written(capfd)
            for key in (late, behind):
                assert f"stream 'events': {key} was uploaded by a deposed broker" in said


def take_epoch(store: Store, folder: Path) -> None:
    """Take an epoch, as a newer broker does at its start."""
    folder.mkdir()
    identity.make(str(folder))

    async def take() -> None:
        await Epochs(Bucket(store.remote()), "vibemq", str(folder)).take(goes_on=False)

    asyncio.run(take())


@pytest.mark.parametrize("is_suspended", [False, True], ids=["awake", "suspended"])
def test_a_deposed_broker_with_traffic_of_durability_os_refuses_from_its_next_look_for_a_newer_epoch_on(
    tmp_path, faulty: FaultyStore, capfd, is_suspended
):
    """The broker checks every 0.4 `remote.deposed_after_s`; a check may have begun before the newer epoch was taken.

    An object of durability `remote` that never arrives does not delay its end.
    """
    direct = faulty.store
    slow = flags(faulty, remote__deposed_after_s=1, remote__options=faulty.options)
    with outlived(tmp_path / "old", *slow, through=faulty.through) as old:
        with connected(old) as connection, connected(old) as other:
            connection.create("events", {"durability": "os"})
            connection.create("waits")
            hung = faulty.hang("PUT", "wal/")
            other.publisher("waits", "ref").publish([b"never confirmed"])
            wait_until(lambda: hung.met > 0, "an object is on its way")
            publisher = connection.publisher("events", "ref")
            publisher.publish([b"x"])
            publisher.flush()
            pids = suspend(old) if is_suspended else []
            looks = [faulty.watch("HEAD", "brokers/"), faulty.watch("GET", "list-type=2.*brokers")]
            take_epoch(direct, tmp_path / "new")
            began_s, before = time.monotonic(), sum(look.met for look in looks)
            for pid in pids:
                os.kill(pid, signal.SIGCONT)
            with pytest.raises((VibeMQError, OSError)):
                while True:
                    publisher.publish([b"x"])
                    publisher.flush()
            print(f"it refused {time.monotonic() - began_s:.2f} s after the newer epoch was taken")
            assert old.process.wait(END_S_MAX) == Superseded.exit_code
            assert sum(look.met for look in looks) - before <= 2
        said = written(capfd)
        assert "another broker has taken this one's place" in said
