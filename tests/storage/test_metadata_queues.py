# SPDX-License-Identifier: Apache-2.0
"""Queues in the metadata: a stream with options; how a stream becomes one; and who notices a change."""

import sqlite3
from concurrent.futures import ThreadPoolExecutor

import pytest

from vibemq.errors import StorageError, StreamNotFound
from vibemq.storage import metadata as module
from vibemq.storage.metadata import Metadata

OPTIONS = {"mode": 3, "max": 10_000, "dead": None, "name": "ü"}


@pytest.fixture
def metadata(tmp_path):
    found = Metadata(str(tmp_path / "meta.db"))
    yield found
    found.close()


def create(metadata, name, vhost="/", **changes):
    options = {"arguments": {}, "durability": "os", "streams_max": 65536, **changes}
    return metadata.create_stream(vhost, name, **options)


def test_a_queue_is_found_with_its_options(metadata):
    made = create(metadata, "jobs", queue=OPTIONS)
    assert made.queue == OPTIONS
    assert metadata.find_stream("/", "jobs") == made


def test_a_queue_without_any_option_is_still_a_queue(metadata):
    assert create(metadata, "jobs", queue={}).queue == {}
    assert [record.name for record in metadata.queues("/")] == ["jobs"]


def test_a_plain_stream_is_no_queue(metadata):
    assert create(metadata, "orders").queue is None
    assert list(metadata.queues("/")) == []


def test_a_stream_becomes_a_queue_and_keeps_everything_else(metadata):
    before = create(metadata, "orders", arguments={"max-age": "1h"}, durability="disk")
    seen = []
    after = metadata.set_queue("/", "orders", OPTIONS, seen.append)
    assert seen == [after]
    assert metadata.find_stream("/", "orders") == after
    assert (after.incarnation, after.slot, after.arguments) == (before.incarnation, before.slot, before.arguments)
    assert after.queue == OPTIONS


def test_a_queue_keeps_its_first_options_and_nothing_is_prepared_again(metadata):
    made = create(metadata, "jobs", queue=OPTIONS)
    seen = []
    assert metadata.set_queue("/", "jobs", {"mode": 0}, seen.append) == made
    assert seen == []


def test_what_prepare_refuses_stays_a_plain_stream(metadata):
    create(metadata, "orders")

    def prepare(record):
        raise StorageError("ERR_DISK_FULL", "no space")

    with pytest.raises(StorageError, match="no space"):
        metadata.set_queue("/", "orders", OPTIONS, prepare)
    assert metadata.find_stream("/", "orders").queue is None


def test_only_a_stream_that_exists_becomes_a_queue(metadata):
    create(metadata, "orders")
    with pytest.raises(StreamNotFound, match="no stream 'orders' in vhost '/other'"):
        metadata.set_queue("/other", "orders", OPTIONS)


def test_of_many_at_once_one_makes_the_queue(metadata):
    create(metadata, "orders")
    prepared = []

    def work(number):
        made = metadata.set_queue("/", "orders", {"number": number}, prepared.append)
        metadata.close()
        return made

    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(work, range(8)))
    assert len(prepared) == 1
    assert found == [prepared[0]] * 8


def test_queues_come_in_pages_by_slot_from_their_vhost_only(metadata, monkeypatch):
    metadata.add_vhost("/other")
    for n in range(module.PAGE_ROWS + 3):
        create(metadata, f"q{n}", queue={})
        if n % 100 == 0:
            create(metadata, f"s{n}")
            create(metadata, f"q{n}", vhost="/other", queue={})
    found = list(metadata.queues("/"))
    assert [record.name for record in found] == [f"q{n}" for n in range(module.PAGE_ROWS + 3)]
    assert [record.slot for record in found] == sorted(record.slot for record in found)
    assert [record.name for record in metadata.queues("/other")] == [f"q{n}" for n in range(0, 503, 100)]


def test_a_database_from_before_queues_keeps_its_streams_and_users(tmp_path, monkeypatch):
    path = str(tmp_path / "meta.db")
    db = sqlite3.connect(path)
    db.executescript(module.MIGRATIONS[0])
    db.execute("INSERT INTO streams VALUES (0, '/', 'orders', 'ab', 'os', '{}', 1)")
    db.execute("INSERT INTO users VALUES ('bob', 'hash', '[]', 7)")
    db.execute("PRAGMA user_version = 1")
    db.commit()
    db.close()
    metadata = Metadata(path)
    assert metadata.find_stream("/", "orders").queue is None
    assert metadata.set_queue("/", "orders", OPTIONS).queue == OPTIONS
    bob = metadata.find_user("bob")
    assert (bob.is_superuser, bob.created_ms, bob.updated_ms) == (False, 7, 7)
    metadata.close()
