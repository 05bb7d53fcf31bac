# SPDX-License-Identifier: Apache-2.0
"""Data directories that released versions wrote (released/make.py), opened by the broker that is here.

Unpacked they are of another boot and their files have other inodes, as after a copy to another machine.
"""

import fcntl
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from released.make import BOSS, LIMITS, SIZE_MAX_BYTES
from running import ENVIRONMENT, broker

import vibemq.client
from vibemq.access.users import Authenticator, Verdict
from vibemq.client.streams import StreamsConnection
from vibemq.errors import LimitExceeded
from vibemq.storage.database import Database
from vibemq.storage.metadata import MIGRATIONS, Metadata

RELEASED = sorted((Path(__file__).parent / "released").glob("*.tar.gz"))
USER, PASSWORD = BOSS


def test_released_versions_are_kept_and_small():
    assert [path.name for path in RELEASED][:1] == ["0.1.0.tar.gz"]
    assert all(path.stat().st_size <= SIZE_MAX_BYTES for path in RELEASED)


@pytest.mark.parametrize("archive", RELEASED, ids=lambda path: path.name.removesuffix(".tar.gz"))
def test_all_that_a_released_version_kept_is_there_and_goes_on(archive, tmp_path):
    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path, filter="data")
    data = tmp_path / "data"
    with broker(data) as served:
        where = served.host, served.port
        with StreamsConnection.connect(*where, user=USER, password=PASSWORD) as connection:
            bodies = [body for chunk in connection.read_chunks("events", 0, 20) for _, body in chunk.messages()]
            assert bodies == [b"event %d" % number for number in range(20)]
            assert connection.filter_range("events", 0, 20, ["1"]) != connection.filter_range("events", 0, 20, ["0"])
            assert connection.filter_range("events", 0, 20, ["no such value"]) == []
            assert connection.query_offset("reader", "events") == 12
            assert connection.query_publisher_sequence("shop", "events") == 20
            assert connection.partitions("orders") == ["orders-0", "orders-1", "orders-2"]
            with connection.publisher("events") as publisher:
                publisher.publish([b"event 20"])
            assert connection.next_offset("events") == 21
        url = f"vibemq://{USER}:{PASSWORD}@{served.host}:{served.native_port}"
        with vibemq.client.connect(url) as client:
            assert (client.queue_info("jobs").messages, client.queue_info("jobs.dlq").messages) == (6, 1)
            for queue, waiting in (("jobs", [*range(4, 10)]), ("jobs.dlq", [3])):
                with client.consume(queue, timeout_s=60) as consumer:
                    assert sorted(next(consumer).payload for _ in waiting) == waiting
            if archive.name != "0.1.0.tar.gz":  # which had no names of members
                with client.consume("copies", subscriber="audit", timeout_s=60) as consumer:
                    assert [next(consumer).payload for _ in range(4)] == [1, 2, 3, 4]
    metadata = Metadata(str(data / "meta.db"))
    assert Authenticator(metadata, True).check("shop", "shop-password", True) is Verdict.OK
    (granted,) = metadata.permissions("shop")
    assert granted.pattern == "jobs*" and len(granted.operations) == 1
    (policy,) = metadata.policies()
    assert (policy.name, policy.pattern, policy.definition) == ("week", "^events$", {"max-age": "7D"})
    # 0.1.0 had no table for limits of guest, who has no row among the users.
    assert metadata.limits_of("user", "guest") == ({} if archive.name == "0.1.0.tar.gz" else json.loads(LIMITS))
    metadata.set_limits("user", "guest", json.loads(LIMITS))
    with pytest.raises(LimitExceeded, match="at most 50"):
        for number in range(51):
            metadata.create_stream("/", f"more-{number}", {}, "os", 1000, user="guest")
    metadata.close()


def test_a_command_leaves_the_database_of_an_older_broker_that_runs_as_it_is(tmp_path):
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    older = Database(str(data / "meta.db"), MIGRATIONS[:-1])
    older._rows("SELECT 1 FROM users")
    older.close()

    def users() -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "vibemq.cli", "users", "list", "--data-dir", str(data)]
        return subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, timeout=60)

    before = (data / "meta.db").read_bytes()
    version = slice(60, 64)  # PRAGMA user_version
    held = os.open(data / "lock", os.O_RDWR | os.O_CREAT)  # as its supervisor and workers hold it
    fcntl.flock(held, fcntl.LOCK_EX)
    refused = users()
    assert refused.returncode == 1 and "is of an older version than this `vibemq`" in refused.stderr, refused.stderr
    assert "start the broker again with this one" in refused.stderr
    assert (data / "meta.db").read_bytes()[version] == before[version] and not list(data.glob("meta.db-*"))
    os.close(held)
    done = users()
    assert done.returncode == 0, done.stderr
    assert (data / "meta.db").read_bytes()[version] > before[version]
