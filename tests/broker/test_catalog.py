# SPDX-License-Identifier: Apache-2.0
"""Making and deleting super streams and virtual hosts: all or nothing on the disk too, and everybody is told."""

import json
import os
from types import SimpleNamespace

import pytest

from vibemq import config
from vibemq.broker import catalog as module
from vibemq.broker.arguments import BadArgument, stream_arguments
from vibemq.broker.catalog import Catalog, checked_name
from vibemq.errors import (
    ExchangeNotFound,
    LimitExceeded,
    MetadataUnsure,
    StorageError,
    StreamExists,
    UserError,
    VhostNotFound,
)
from vibemq.storage import log as logs
from vibemq.storage.changes import NumberTaken
from vibemq.storage.metadata import Metadata


@pytest.fixture
def metadata(tmp_path):
    (tmp_path / "streams").mkdir()
    found = Metadata(str(tmp_path / "meta.db"))
    yield found
    found.close()


@pytest.fixture
def catalog(metadata):
    told = []
    table = SimpleNamespace(metadata=metadata, helpers=None, tell=lambda holders, slot: told.append(slot), told=told)
    return Catalog(config.load(environ={}, overrides={("store", "streams_max"): (20, "test")}), table)


def create(catalog, name, vhost="/", **arguments):
    return catalog.create_stream(vhost, name, stream_arguments(arguments, catalog.config.store))


def create_super(catalog, name="s", count=3, **arguments):
    keys = [str(number) for number in range(count)]
    return catalog.create_super_stream("/", name, [f"{name}-{key}" for key in keys], keys, arguments)


def directories(metadata):
    return sorted(os.listdir(metadata.streams_dir))


def known(metadata):
    return sorted(record.incarnation for record in metadata.streams())


class KilledBeforeItsCommit:
    """Publishes as a worker does that is killed before it commits what the bucket has; the next one meets it there."""

    def __init__(self):
        self.bucket = {}
        self.is_killed = False

    def __call__(self, number, changes):
        if number in self.bucket:
            raise NumberTaken(number, {"changes": self.bucket[number]})
        self.bucket[number] = json.loads(json.dumps(changes))
        if self.is_killed:
            self.is_killed = False
            raise MetadataUnsure("ERR_IO", "it was killed")
        return 1  # the epoch


def killed(catalog, metadata):
    """After a worker was killed while it made the stream `dying`."""
    metadata.bind("00112233445566ff", "a")
    metadata.publish = KilledBeforeItsCommit()
    metadata.publish.is_killed = True
    with pytest.raises(MetadataUnsure):
        create(catalog, "dying")


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (create, ["dying", "s"]),
        (create_super, ["dying", "s-0", "s-1", "s-2"]),
        (lambda catalog, name: catalog.create_queue("/", name, {}), ["dying", "s"]),
        (lambda catalog, _: catalog.create_queue("/", "dying", {}), ["dying"]),
    ],
    ids=["stream", "super stream", "queue", "queue of the same name"],
)
def test_what_is_made_after_a_worker_was_killed_in_a_change_is_made_behind_that(catalog, metadata, make, names):
    killed(catalog, metadata)
    make(catalog, "s")
    assert sorted(record.name for record in metadata.streams()) == names
    assert directories(metadata) == known(metadata), "no log is left over"


def test_every_partition_has_its_log_with_the_arguments_of_all(catalog, metadata):
    made = create_super(catalog, **{"stream-filter-size-bytes": "32"})
    assert directories(metadata) == known(metadata) == sorted(record.incarnation for record in made)
    for record in made:
        held = logs.Log(record.directory)
        assert held.filter_size_bytes == 32
        held.close()


@pytest.mark.parametrize(
    ("partitions", "keys", "arguments"),
    [
        ([], [], {}),
        (["a", "b"], ["0"], {}),
        (["a", "a\r\n"], ["0", "1"], {}),
        (["a", ""], ["0", "1"], {}),
        (["a", "amq.b"], ["0", "1"], {}),
        (["a", "ü" * 128], ["0", "1"], {}),
        (["a"], ["0"], {"max-age": "soon"}),
    ],
)
def test_what_no_super_stream_can_be_is_refused_before_anything_is_made(catalog, metadata, partitions, keys, arguments):
    with pytest.raises(BadArgument):
        catalog.create_super_stream("/", "s", partitions, keys, arguments)
    with pytest.raises(BadArgument):
        catalog.create_super_stream("/", "amq.s", ["a"], ["0"], {})
    assert directories(metadata) == known(metadata) == []


@pytest.mark.parametrize("problem", [MetadataUnsure, StorageError])
def test_a_log_stays_where_nobody_knows_whether_its_stream_was_made(catalog, metadata, problem):
    """The object store may have the change all the same, and then the stream is there after the next start at most."""

    def publish(number, changes):
        raise problem("ERR_IO", "not answered")

    metadata.own_all("here", 1)
    metadata.bind("c1", "here")
    metadata.publish = publish
    for make in (create, create_super):
        with pytest.raises(problem):
            make(catalog, "s")
    assert len(directories(metadata)) == (4 if problem is MetadataUnsure else 0) and known(metadata) == []


def test_limits_and_names_that_are_taken_leave_no_files(catalog, metadata):
    with pytest.raises(LimitExceeded):
        create_super(catalog, count=21)
    with pytest.raises(LimitExceeded):
        create_super(catalog, count=1001)
    create_super(catalog)
    before = directories(metadata)
    with pytest.raises(StreamExists):
        create_super(catalog, count=4)
    with pytest.raises(VhostNotFound):
        catalog.create_super_stream("shop", "s", ["a"], ["0"], {})
    assert directories(metadata) == known(metadata) == before


def test_a_log_that_cannot_be_made_undoes_all(catalog, metadata, monkeypatch):
    real, made = logs.create, []

    def fails_later(directory, **options):
        made.append(directory)
        if len(made) == 3:
            raise StorageError("ERR_DISK_FULL", "no space left")
        real(directory, **options)

    monkeypatch.setattr(module.logs, "create", fails_later)
    with pytest.raises(StorageError):
        create_super(catalog)
    assert directories(metadata) == known(metadata) == []
    assert metadata.exchanges() == []


def test_a_policy_that_changes_while_the_logs_are_made_holds_for_them(catalog, metadata, monkeypatch):
    metadata.set_policy("/", "narrow", "^s-", {"stream-filter-size-bytes": 64})
    real = logs.create

    def create_and_change(directory, **options):
        real(directory, **options)
        metadata.set_policy("/", "wide", "^s-1", {"stream-filter-size-bytes": 128}, 1)

    monkeypatch.setattr(module.logs, "create", create_and_change)
    sizes = []
    for record in create_super(catalog):
        held = logs.Log(record.directory)
        sizes.append(held.filter_size_bytes)
        held.close()
    assert sizes == [64, 128, 64]


def test_a_super_stream_is_deleted_with_its_partitions_wherever_they_are_from(catalog, metadata):
    records = create_super(catalog)
    create(catalog, "other")
    more = create(catalog, "more")
    metadata.add_binding("/", "s", "more", "9", {})
    held = logs.Log(records[1].directory)
    gone = catalog.delete_super_stream("/", "s")
    assert [one.directory for one in gone] == [record.directory for record in (*records, more)]
    assert [record.name for record in metadata.streams()] == ["other"]
    assert metadata.partitions("/", "s") is None
    with pytest.raises(StorageError):  # who has it open still cannot publish
        logs.Log(records[1].directory)
    held.close()
    with pytest.raises(ExchangeNotFound):
        catalog.delete_super_stream("/", "s")


def test_a_deletion_that_fails_half_way_tells_of_what_is_gone_and_can_be_repeated(catalog, metadata, monkeypatch):
    records = create_super(catalog)
    real = catalog.delete

    def fails_for_the_last(vhost, name, **more):
        if name == "s-2":
            raise StorageError("ERR_IO", "input/output error")
        return real(vhost, name, **more)

    with monkeypatch.context() as broken:
        broken.setattr(catalog, "delete", fails_for_the_last)
        with pytest.raises(StorageError):
            catalog.delete_super_stream("/", "s")
    assert catalog.table.told == [record.slot for record in records[:2]]
    assert metadata.partitions("/", "s") == ["s-2"]
    assert directories(metadata) == [records[2].incarnation]
    assert len(catalog.delete_super_stream("/", "s")) == 1


def test_a_vhost_goes_with_everything_in_it(catalog, metadata):
    metadata.add_vhost("shop")
    for name in ("a", "b"):
        create(catalog, name, vhost="shop")
        create(catalog, name)
    metadata.add_exchange("shop", "x", {})
    metadata.set_policy("shop", "p", "", {"max-age": "1h"})
    assert len(catalog.delete_vhost("shop")) == 2
    assert [record.vhost for record in metadata.streams()] == ["/", "/"]
    assert metadata.exchanges() == metadata.policies() == []
    assert not metadata.has_vhost("shop")
    with pytest.raises(VhostNotFound):
        catalog.delete_vhost("shop")


def test_the_default_vhost_stays_with_everything_in_it(catalog, metadata):
    create(catalog, "a")
    with pytest.raises(UserError, match="always there"):
        catalog.delete_vhost("/")
    assert [record.name for record in metadata.streams()] == ["a"]


def test_a_stream_made_while_its_vhost_is_deleted_goes_too(catalog, metadata, monkeypatch):
    metadata.add_vhost("shop")
    real, turns = metadata.delete_vhost, []

    def late(name):
        if not turns:
            turns.append(create(catalog, "late", vhost="shop"))
        real(name)

    monkeypatch.setattr(metadata, "delete_vhost", late)
    assert [one.directory for one in catalog.delete_vhost("shop")] == [turns[0].directory]
    assert not metadata.has_vhost("shop")


def test_line_ends_are_no_part_of_a_name():
    assert checked_name("or\r\nders") == "orders"


def test_a_stream_that_the_metadata_cannot_take_leaves_no_log(catalog, metadata, monkeypatch):
    """As when the disk is full: clients try again and again, and each try would leave one."""
    real = metadata.create_stream

    def full(*values, prepare, **options):
        def prepared(record):
            prepare(record)
            raise StorageError("ERR_DISK_FULL", "no room for the commit")

        return real(*values, prepare=prepared, **options)

    monkeypatch.setattr(metadata, "create_stream", full)
    with pytest.raises(StorageError):
        create(catalog, "orders")
    assert directories(metadata) == known(metadata) == []


def test_logs_of_streams_that_may_have_been_committed_stay(catalog, metadata, monkeypatch):
    real = metadata.create_super_stream

    def committed(*values):
        real(*values)
        raise OSError("the directory cannot be synced")

    monkeypatch.setattr(metadata, "create_super_stream", committed)
    with pytest.raises(OSError, match="cannot be synced"):
        create_super(catalog)
    assert directories(metadata) == known(metadata)
    assert len(known(metadata)) == 3
