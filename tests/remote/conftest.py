# SPDX-License-Identifier: Apache-2.0
"""An S3 server for each file of tests that asks for one, which takes it a second, and a prefix of it for each test.

And what a broker has left in a folder (left_behind.py), with copies of it for each test.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from left_behind import CLOSED, COUNT, STREAMS, World
from peers.faulty import FaultyStore
from peers.s3 import S3Server, Store
from running import wait_until

from vibemq import config
from vibemq.client.streams import StreamsConnection
from vibemq.remote import bucket, opening, restoring, tier
from vibemq.remote.bucket import Bucket
from vibemq.storage.metadata import Metadata

prefixes = itertools.count(1)


@pytest.fixture(scope="module")
def s3_server() -> Iterator[S3Server]:
    with S3Server() as server:
        yield server


@pytest.fixture
def s3(s3_server: S3Server) -> Store:
    """A store that is empty."""
    return s3_server.below(f"test-{next(prefixes)}")


@pytest.fixture
def faulty(s3: Store) -> Iterator[FaultyStore]:
    """The same store, by a way on which a test may put anything."""
    with FaultyStore(s3) as proxy:
        yield proxy


@pytest.fixture(scope="session")
def left(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a broker that was killed: `data` and `bucket`."""
    from test_lost_machine import lost  # which is skipped without the extra

    folder = tmp_path_factory.mktemp("left")
    with lost(folder / "data", folder / "bucket", "processes") as running:
        connection = StreamsConnection.connect(running.host, running.port, user="guest", password="guest")
        for name, durability in STREAMS.items():
            connection.create(name, {"durability": durability})
            with connection.publisher(name, "ref") as publisher:
                for at in range(0, COUNT, 50):
                    publisher.publish([b"%06d" % number + b" " * 800 for number in range(at, at + 50)])
                    publisher.flush()

        def are_up() -> bool:
            """A stub comes last, when its segment is in the store."""
            logs = list((folder / "data/streams").iterdir())
            return len(logs) == len(STREAMS) and all(len(list(log.glob("*.remote"))) >= CLOSED for log in logs)

        wait_until(are_up, "closed segments are in the store")
        connection.close()
    return folder


@pytest.fixture
def world(left: Path, tmp_path: Path) -> Iterator[World]:
    shutil.copytree(left, tmp_path / "w", ignore=shutil.ignore_patterns("reserve", "*.sock"))
    remote = config.Remote(url=f"file://{tmp_path}/w/bucket")
    metadata = Metadata(str(tmp_path / "w/data/meta.db"))
    made = World(tmp_path / "w", remote, metadata, Bucket(remote), [])
    made.recover()  # a log's page says which file it is, and a copy is another
    yield made
    metadata.close()


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What would be tried again after a while is tried again at once."""
    for one in (tier, restoring, opening, bucket):
        for name in ("RETRY_S", "RETRY_S_MIN", "RETRY_S_MAX"):
            if hasattr(one, name):
                monkeypatch.setattr(one, name, 0.0)
